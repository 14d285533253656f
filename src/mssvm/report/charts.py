"""Line charts, bars and heat maps as SVG text. Colours are CSS classes, which the page sets for light and dark;
those of a heat map are the same in both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from math import ceil, floor, isfinite, log10

WIDTH = 460
HEIGHT = 300
LEFT = 58
RIGHT = 14
TOP = 34
BOTTOM = 46
N_STYLES = 6
BAR_WIDTH = 620
BAR_LEFT = 120
BAR_RIGHT = 52
BAR_TOP = 42
BAR = 11
GAP = 12
LONGEST = 16


@dataclass(frozen=True)
class Series:
    """Points with optional half-lengths of error bars; ``style`` picks colour and marker."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    error: Sequence[float] | None = None
    style: int = 0


@dataclass(frozen=True)
class _Axis:
    """Maps data to pixels; ``logarithmic`` works on log10."""

    low: float
    high: float
    start: float
    end: float
    logarithmic: bool

    def __call__(self, value: float) -> float:
        v = log10(value) if self.logarithmic else value
        return self.start + (v - self.low) / (self.high - self.low) * (self.end - self.start)

    def ticks(self) -> list[float]:
        if self.logarithmic:
            powers = range(floor(self.low), ceil(self.high) + 1)
            for steps in ((1.0,), (1.0, 2.0, 5.0), (1.0, 1.25, 1.5, 2.0, 3.0, 5.0, 7.0)):
                marks = [m * 10.0**k for k in powers for m in steps if self.low <= log10(m) + k <= self.high]
                if len(marks) >= 3:
                    break
            return marks
        step = _nice((self.high - self.low) / 5)
        first = ceil(self.low / step - 1e-9)
        return [k * step for k in range(first, floor(self.high / step + 1e-9) + 1)]


def line_chart(
    title: str,
    x_label: str,
    y_label: str,
    series: Sequence[Series],
    log_x: bool = False,
    log_y: bool = False,
    x_ticks: Sequence[float] | None = None,
    y_from: float | None = None,
) -> str:
    """Lines with markers and error bars, a legend in the plot's head, axes with units in their labels.

    With ``y_from`` the y-axis fits the points from that x on; curves are cut off where they leave it before.
    """
    legend_rows = (len(series) + 2) // 3
    top = TOP + 16 * legend_rows
    height = HEIGHT + 16 * legend_rows
    xs = [v for s in series for v in s.x]
    ys: list[float] = []
    for s in series:
        for x, y, error in zip(s.x, s.y, s.error or [0.0] * len(s.y), strict=True):
            if y_from is None or x >= y_from:
                ys += [y - error, y + error]
    ys = [y for y in ys if isfinite(y) and (y > 0 or not log_y)]
    x_axis = _axis(xs, LEFT, WIDTH - RIGHT, log_x, pad=0.03)
    y_axis = _axis(ys, height - BOTTOM, top, log_y, pad=0.08)
    parts = [_grid(x_axis, y_axis, x_ticks, top, height), _labels(title, x_label, y_label, top, height)]
    parts += [_curve(s, x_axis, y_axis, log_y) for s in series]
    parts += [_key(s, k) for k, s in enumerate(series)]
    return svg(WIDTH, height, title, parts)


def heat_map(
    title: str,
    rows: Sequence[str],
    columns: Sequence[str],
    values: Sequence[Sequence[float | None]],
    row_label: str,
    column_label: str,
    texts: Sequence[Sequence[str]],
    bound: float | None = None,
) -> str:
    """A coloured table: blue is high, orange low, white the middle of the range. Empty cells are grey.

    The range is that of the values, or from -bound to bound.
    """
    if bound is None:
        present = [v for row in values for v in row if v is not None]
        low = min(present)
        high = max(present)
    else:
        low = -bound
        high = bound
    cell_w = 76
    cell_h = 44
    left = 86
    top = 64
    parts = [f'<text class="t" x="8" y="18">{escape(title)}</text>']
    parts.append(f'<text class="a" x="{left}" y="38">{escape(column_label)}</text>')
    parts.append(f'<text class="a" x="8" y="38">{escape(row_label)}</text>')
    for j, name in enumerate(columns):
        parts.append(f'<text class="k m" x="{left + (j + 0.5) * cell_w}" y="56">{escape(name)}</text>')
    for i, name in enumerate(rows):
        y = top + i * cell_h
        parts.append(f'<text class="k" x="8" y="{y + cell_h / 2 + 4}">{escape(name)}</text>')
        for j, value in enumerate(values[i]):
            x = left + j * cell_w
            colour = _cell_colour(value, low, high)
            parts.append(
                f'<rect x="{x}" y="{y}" width="{cell_w - 2}" height="{cell_h - 2}" rx="3" style="fill:{colour}"/>'
            )
            for row, line in enumerate(texts[i][j].split("\n")):
                size = "h" if row == 0 else "h s"
                parts.append(
                    f'<text class="{size} m" x="{x + cell_w / 2 - 1}" y="{y + 18 + 15 * row}">{escape(line)}</text>'
                )
    return svg(left + cell_w * len(columns) + 8, top + cell_h * len(rows) + 8, title, parts)


def _cell_colour(value: float | None, low: float, high: float) -> str:
    if value is None:
        return "#ddd"
    if high <= low:
        return diverging(0.5)
    return diverging((value - low) / (high - low))


def bar_chart(title: str, groups: Sequence[str], series: Sequence[tuple[str, Sequence[float]]]) -> str:
    """Horizontal bars with their values in percent at their ends, and a legend above."""
    parts = [f'<text class="t" x="8" y="18">{escape(title)}</text>']
    for k, (name, _) in enumerate(series):
        x = BAR_LEFT + k * 130
        parts.append(f'<rect class="p c{k % N_STYLES}" x="{x}" y="28" width="10" height="9"/>')
        parts.append(f'<text class="k" x="{x + 15}" y="37">{escape(name)}</text>')
    full_width = BAR_WIDTH - BAR_LEFT - BAR_RIGHT
    height = BAR_TOP + 8
    for g, group in enumerate(groups):
        top = height
        shown = group if len(group) <= LONGEST else group[: LONGEST - 1] + "…"
        middle = top + len(series) * BAR / 2 + 4
        parts.append(f'<text class="k e" x="{BAR_LEFT - 8}" y="{middle:g}">{escape(shown)}</text>')
        for k, (_, values) in enumerate(series):
            y = top + k * BAR
            width = max(full_width * values[g], 0.5)
            parts.append(
                f'<rect class="p c{k % N_STYLES}" x="{BAR_LEFT}" y="{y}" width="{width:.1f}" height="{BAR - 2}"/>'
            )
            parts.append(
                f'<text class="k s" x="{BAR_LEFT + width + 6:.1f}" y="{y + BAR - 2}">{100 * values[g]:.1f}</text>'
            )
        height = top + len(series) * BAR + GAP
    parts.append(f'<line class="g" x1="{BAR_LEFT}" x2="{BAR_LEFT}" y1="{BAR_TOP}" y2="{height}"/>')
    return svg(BAR_WIDTH, height, title, parts)


def diverging(share: float) -> str:
    """From orange (0) through white to blue (1); light enough for black text."""
    ends = (232, 148, 74) if share < 0.5 else (92, 148, 214)
    weight = abs(2 * share - 1)
    return "#" + "".join(f"{round(255 + weight * (c - 255)):02x}" for c in ends)


def svg(width: float, height: float, title: str, parts: Sequence[str]) -> str:
    head = f'<svg viewBox="0 0 {width:g} {height:g}" role="img" style="max-width:{width:g}px">'
    return f"{head}<title>{escape(title)}</title>{''.join(parts)}</svg>"


def _axis(values: Sequence[float], start: float, end: float, logarithmic: bool, pad: float) -> _Axis:
    shown = [log10(v) for v in values if v > 0] if logarithmic else list(values)
    low = min(shown, default=0.0)
    high = max(shown, default=1.0)
    margin = pad * (high - low) or 0.5 * abs(high) or 1.0
    return _Axis(low - margin, high + margin, start, end, logarithmic)


def _nice(step: float) -> float:
    """The next 1, 2, 2.5 or 5 times a power of ten."""
    power = 10.0 ** floor(log10(step))
    return next(m * power for m in (1.0, 2.0, 2.5, 5.0, 10.0) if m * power >= step * (1 - 1e-9))


def _grid(x_axis: _Axis, y_axis: _Axis, x_ticks: Sequence[float] | None, top: float, height: float) -> str:
    parts = []
    for v in y_axis.ticks():
        y = y_axis(v)
        parts.append(f'<line class="g" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text class="k e" x="{LEFT - 6}" y="{y + 4:.1f}">{_tick_label(v)}</text>')
    for v in x_ticks or x_axis.ticks():
        x = x_axis(v)
        parts.append(f'<line class="g" x1="{x:.1f}" x2="{x:.1f}" y1="{top}" y2="{height - BOTTOM}"/>')
        parts.append(f'<text class="k m" x="{x:.1f}" y="{height - BOTTOM + 16}">{v:g}</text>')
    return "".join(parts)


def _tick_label(value: float) -> str:
    """Large numbers in thousands, as the axis leaves little room for labels."""
    if 1e4 <= abs(value) < 1e6:
        return f"{value / 1e3:g}k"
    return f"{value:g}"


def _labels(title: str, x_label: str, y_label: str, top: float, height: float) -> str:
    middle = (top + height - BOTTOM) / 2
    return (
        f'<text class="t" x="8" y="18">{escape(title)}</text>'
        f'<text class="a m" x="{(LEFT + WIDTH - RIGHT) / 2}" y="{height - 10}">{escape(x_label)}</text>'
        f'<text class="a m" transform="rotate(-90 14 {middle})" x="14" y="{middle}">{escape(y_label)}</text>'
    )


def _curve(series: Series, x_axis: _Axis, y_axis: _Axis, log_y: bool) -> str:
    drawable = [k for k, y in enumerate(series.y) if isfinite(y) and (y > 0 or not log_y)]
    style = series.style % N_STYLES
    line = [(x_axis(series.x[k]), y_axis(series.y[k])) for k in drawable]
    parts = [
        f'<polyline class="l c{style}" points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in piece)}"/>'
        for piece in _inside(line, y_axis.end, y_axis.start)
    ]
    drawn = [k for k in drawable if y_axis.end <= y_axis(series.y[k]) <= y_axis.start]
    points = [(x_axis(series.x[k]), y_axis(series.y[k])) for k in drawn]
    if len(points) <= 30:
        parts += [_marker(style, x, y) for x, y in points]
    if series.error is not None:
        for (x, _), k in zip(points, drawn, strict=True):
            low = series.y[k] - series.error[k]
            high = series.y[k] + series.error[k]
            if isfinite(low) and (low > 0 or not log_y):
                y1 = y_axis(low)
                y2 = y_axis(high)
                parts.append(f'<line class="b c{style}" x1="{x:.1f}" x2="{x:.1f}" y1="{y1:.1f}" y2="{y2:.1f}"/>')
    return "".join(parts)


def _inside(points: Sequence[tuple[float, float]], top: float, bottom: float) -> list[list[tuple[float, float]]]:
    """The pieces of a line that lie between two heights, cut where it crosses them."""
    pieces: list[list[tuple[float, float]]] = [[]]
    for k, (x, y) in enumerate(points):
        if k > 0:
            before = points[k - 1]
            crossed = sorted(
                (level - before[1]) / (y - before[1])
                for level in (top, bottom)
                if min(before[1], y) < level < max(before[1], y)
            )
            for share in crossed:
                # A crossing begins a piece where the line comes in, and ends the piece where it goes out.
                pieces[-1].append((before[0] + share * (x - before[0]), before[1] + share * (y - before[1])))
                if len(pieces[-1]) > 1:
                    pieces.append([])
        if top <= y <= bottom:
            pieces[-1].append((x, y))
    return [piece for piece in pieces if piece]


def _marker(style: int, x: float, y: float) -> str:
    if style % 3 == 0:
        return f'<circle class="p c{style}" cx="{x:.1f}" cy="{y:.1f}" r="3.4"/>'
    if style % 3 == 1:
        return f'<rect class="p c{style}" x="{x - 3:.1f}" y="{y - 3:.1f}" width="6" height="6"/>'
    return f'<path class="p c{style}" d="M{x:.1f} {y - 4:.1f}l4 7h-8z"/>'


def _key(series: Series, place: int) -> str:
    x = LEFT + (place % 3) * 132
    y = TOP + 16 * (place // 3)
    style = series.style % N_STYLES
    line = f'<line class="l c{style}" x1="{x}" x2="{x + 20}" y1="{y - 4}" y2="{y - 4}"/>'
    return line + _marker(style, x + 10, y - 4) + f'<text class="k" x="{x + 25}" y="{y}">{escape(series.name)}</text>'
