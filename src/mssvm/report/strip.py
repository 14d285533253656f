"""Pictures in one row of equal height, as one drawing."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from mssvm.core.arrays import AnyArray
from mssvm.report.charts import svg
from mssvm.report.pictures import CELL

SIDE = 150  # units of the drawing that a small picture is enlarged to
SPACE = 10
_DRAWING = re.compile(r'<svg viewBox="0 0 ([\d.]+) ([\d.]+)"[^>]*>(.*)</svg>', re.DOTALL)


def enlarged(values: AnyArray) -> AnyArray:
    """Every pixel repeated, so that a small picture has room for its title."""
    times = max(1, round(SIDE / (CELL * values.shape[1])))
    return np.kron(values, np.ones((times, times), dtype=values.dtype))


def strip(title: str, drawings: Sequence[str]) -> str:
    """Drawings of this package side by side."""
    parts, at, height = [], 0.0, 0.0
    for drawing in drawings:
        found = _DRAWING.fullmatch(drawing)
        assert found is not None, "a strip is made of drawings of this package"
        parts.append(f'<g shape-rendering="crispEdges" transform="translate({at:g})">{found[3]}</g>')
        at += float(found[1]) + SPACE
        height = max(height, float(found[2]))
    return svg(at - SPACE, height, title, parts)
