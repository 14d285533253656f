"""Images as SVG: one rectangle per run of equal pixels in a row, so that no binary data is embedded."""

from __future__ import annotations

from html import escape

import numpy as np

from mssvm.core.arrays import Floats, Ints

# Colours that differ in lightness too, so that they can be told apart in print; negative labels mean "not observed".
PALETTE = ("#2b4c7e", "#7fb069", "#e6aa68", "#ca3c25", "#f2e394", "#8e6c8a", "#4fb0c6", "#555555")
UNSEEN = "#e8e8e8"
CELL = 7


def label_picture(title: str, labels: Ints) -> str:
    """A picture of labels 0, 1, ...; negative ones are shown as unseen."""
    colours = np.array([*PALETTE, UNSEEN], dtype=object)
    index = np.where(labels < 0, len(PALETTE), labels % len(PALETTE))
    return _picture(title, colours[index])


def scalar_picture(title: str, values: Floats, low: float | None = None, high: float | None = None) -> str:
    """A grey picture, black at ``low`` and white at ``high`` (the extremes by default), in 32 steps."""
    bottom = float(values.min()) if low is None else low
    top = float(values.max()) if high is None else high
    share = np.clip((values - bottom) / max(top - bottom, 1e-300), 0.0, 1.0)
    grey = (np.round(share * 31) * 255 / 31).astype(int)
    colours = np.array([f"#{g:02x}{g:02x}{g:02x}" for g in grey.ravel()], dtype=object)
    return _picture(title, colours.reshape(grey.shape))


def _picture(title: str, colours: np.ndarray[tuple[int, ...], np.dtype[np.object_]]) -> str:
    n_rows, n_columns = colours.shape
    width, height = n_columns * CELL, n_rows * CELL + 20
    parts = [f'<text class="k" x="0" y="12">{escape(title)}</text>']
    for i in range(n_rows):
        starts = np.flatnonzero(np.r_[True, colours[i, 1:] != colours[i, :-1]])
        ends = np.r_[starts[1:], n_columns]
        for a, b in zip(starts, ends, strict=True):
            place = f'x="{a * CELL}" y="{20 + i * CELL}" width="{(b - a) * CELL}" height="{CELL}"'
            parts.append(f'<rect {place} fill="{colours[i, a]}"/>')
    head = f'<svg viewBox="0 0 {width} {height}" role="img" shape-rendering="crispEdges" style="max-width:{width}px">'
    return f"{head}<title>{escape(title)}</title>{''.join(parts)}</svg>"
