"""Images as SVG, alone and in rows: one rectangle per run of equal pixels, so that no binary data are embedded."""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape
from itertools import product

import numpy as np

from mssvm.core.arrays import AnyArray, Floats, Ints
from mssvm.report.charts import svg

# Colours that differ in lightness too, so that they can be told apart in print; negative labels mean "not observed".
PALETTE = ("#2b4c7e", "#7fb069", "#e6aa68", "#ca3c25", "#f2e394", "#8e6c8a", "#4fb0c6", "#555555")
UNSEEN = "#e8e8e8"
CELL = 7
SIDE = 150  # a small picture is enlarged to this size, in units of the drawing
SPACE = 10
_DRAWING = re.compile(r'<svg viewBox="0 0 ([\d.]+) ([\d.]+)"[^>]*>(.*)</svg>', re.DOTALL)


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


def colour_picture(title: str, pixels: AnyArray) -> str:
    """A picture of colours (H, W, 3), bytes, in 32 steps of each."""
    coarse = (np.round(pixels / 255 * 31) * 255 / 31).astype(int)
    colours = np.array([f"#{r:02x}{g:02x}{b:02x}" for r, g, b in coarse.reshape(-1, 3).tolist()], dtype=object)
    return _picture(title, colours.reshape(pixels.shape[:2]))


def _picture(title: str, colours: np.ndarray[tuple[int, ...], np.dtype[np.object_]]) -> str:
    n_rows, n_columns = colours.shape
    width = n_columns * CELL
    height = n_rows * CELL + 20
    parts = [f'<text class="k" x="0" y="12">{escape(title)}</text>']
    for i in range(n_rows):
        starts = np.flatnonzero(np.r_[True, colours[i, 1:] != colours[i, :-1]])
        ends = np.r_[starts[1:], n_columns]
        for a, b in zip(starts, ends, strict=True):
            place = f'x="{a * CELL}" y="{20 + i * CELL}" width="{(b - a) * CELL}" height="{CELL}"'
            parts.append(f'<rect {place} fill="{colours[i, a]}"/>')
    head = f'<svg viewBox="0 0 {width} {height}" role="img" shape-rendering="crispEdges" style="max-width:{width}px">'
    return f"{head}<title>{escape(title)}</title>{''.join(parts)}</svg>"


def enlarged(values: AnyArray) -> AnyArray:
    """Every pixel repeated, so that a small picture has room for its title."""
    times = max(1, round(SIDE / (CELL * values.shape[1])))
    return np.kron(values, np.ones((times, times), dtype=values.dtype))


def strip(title: str, drawings: Sequence[str]) -> str:
    """Drawings of this package side by side."""
    parts = []
    at = 0.0
    height = 0.0
    for drawing in drawings:
        match = _DRAWING.fullmatch(drawing)
        assert match is not None, "a strip is made of drawings of this package"
        drawing_width, drawing_height, content = match.groups()
        parts.append(f'<g shape-rendering="crispEdges" transform="translate({at:g})">{content}</g>')
        at += float(drawing_width) + SPACE
        height = max(height, float(drawing_height))
    return svg(at - SPACE, height, title, parts)


def legend(names: Sequence[str]) -> str:
    """The key of the colours of the labels 0, 1, ... and of sites that were not observed; it wraps like text."""
    swatches = zip((*PALETTE[: len(names)], UNSEEN), (*names, "not observed"), strict=True)
    return "".join(f'<span><i style="background:{colour}"></i>{escape(name)}</span>' for colour, name in swatches)


def hidden_chain_graph(title: str, all_inputs: bool) -> str:
    """A piece of a chain of outputs y and hidden variables h, with inputs x at all sites or at the hidden ones."""
    parts = [f'<text class="k" x="8" y="16">{escape(title)}</text>']
    parts.append('<line class="g" x1="10" x2="310" y1="60" y2="60"/>')
    for k, name in enumerate("yhyhy"):
        x = 40 + 60 * k
        sites = [(name, 60, "p c1" if name == "h" else "p c0")]
        if all_inputs or name == "h":
            parts.append(f'<line class="g" x1="{x}" x2="{x}" y1="60" y2="112"/>')
            sites.append(("x", 112, "p c4"))
        for text, y, style in sites:
            parts.append(f'<circle class="{style}" cx="{x}" cy="{y}" r="14"/>')
            parts.append(f'<text class="h m" x="{x}" y="{y + 4}">{text}</text>')
    return svg(320, 134, title, parts)


def hidden_grid_graph(title: str, all_inputs: bool) -> str:
    """A piece of the grid on which outputs y and hidden variables h alternate, with inputs x beside their sites."""
    n = 4
    step = 72
    place = [[(40 + step * j, 52 + step * i) for j in range(n)] for i in range(n)]
    edges = [(place[i][j], place[i][j + 1]) for i in range(n) for j in range(n - 1)]
    edges += [(place[i][j], place[i + 1][j]) for i in range(n - 1) for j in range(n)]
    parts = [f'<text class="k" x="8" y="16">{escape(title)}</text>']
    parts += [f'<line class="g" x1="{a}" x2="{c}" y1="{b}" y2="{d}"/>' for (a, b), (c, d) in edges]
    for i, j in product(range(n), range(n)):
        x, y = place[i][j]
        output = (i + j) % 2 == 0
        sites = [("y" if output else "h", x, y, 14, "p c0" if output else "p c1")]
        if all_inputs or not output:
            parts.append(f'<line class="g" x1="{x}" x2="{x + 27}" y1="{y}" y2="{y + 27}"/>')
            sites.append(("x", x + 27, y + 27, 10, "p c4"))
        for text, at_x, at_y, radius, style in sites:
            parts.append(f'<circle class="{style}" cx="{at_x}" cy="{at_y}" r="{radius}"/>')
            parts.append(f'<text class="h m" x="{at_x}" y="{at_y + 4}">{text}</text>')
    return svg(320, 310, title, parts)
