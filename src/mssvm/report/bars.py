"""Bars side by side: one group per row, one bar per series, values between 0 and 1."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from mssvm.report.charts import N_STYLES, svg

WIDTH, LEFT, RIGHT = 620, 120, 52
BAR, GAP, TOP = 11, 12, 42
LONGEST = 16


def bar_chart(title: str, groups: Sequence[str], series: Sequence[tuple[str, Sequence[float]]]) -> str:
    """Horizontal bars with their values in percent at their ends, and a legend above."""
    parts = [f'<text class="t" x="8" y="18">{escape(title)}</text>']
    for k, (name, _) in enumerate(series):
        x = LEFT + k * 130
        parts.append(f'<rect class="p c{k % N_STYLES}" x="{x}" y="28" width="10" height="9"/>')
        parts.append(f'<text class="k" x="{x + 15}" y="37">{escape(name)}</text>')
    room = WIDTH - LEFT - RIGHT
    height = TOP + 8
    for g, group in enumerate(groups):
        top = height
        shown = group if len(group) <= LONGEST else group[: LONGEST - 1] + "…"
        middle = top + len(series) * BAR / 2 + 4
        parts.append(f'<text class="k e" x="{LEFT - 8}" y="{middle:g}">{escape(shown)}</text>')
        for k, (_, values) in enumerate(series):
            y, width = top + k * BAR, max(room * values[g], 0.5)
            parts.append(f'<rect class="p c{k % N_STYLES}" x="{LEFT}" y="{y}" width="{width:.1f}" height="{BAR - 2}"/>')
            parts.append(f'<text class="k s" x="{LEFT + width + 6:.1f}" y="{y + BAR - 2}">{100 * values[g]:.1f}</text>')
        height = top + len(series) * BAR + GAP
    parts.append(f'<line class="g" x1="{LEFT}" x2="{LEFT}" y1="{TOP}" y2="{height}"/>')
    return svg(WIDTH, height, title, parts)
