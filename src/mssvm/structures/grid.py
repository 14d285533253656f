"""Grids: one label per pixel, with a table of its own for every direction in which neighbours lie."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from mssvm.core.arrays import Ints
from mssvm.core.errors import InputError
from mssvm.structures.base import Raw
from mssvm.structures.encoder import Schema
from mssvm.structures.pairwise import Frame, Pairwise, edge_source, split

DIRECTIONS = ("right", "down", "down_right", "down_left")


@dataclass(eq=False, repr=False)
class Grid(Pairwise):
    """Images with a label for every pixel.

    Parameters
    ----------
    neighbours : 4 or 8
        4 links a pixel to the right and down, 8 also along both diagonals; every direction has its own weights.
    hidden : int
        States of the hidden variables; 0 for none. By default (``linked=True``) every pixel has one, tied to its label
        and to the hidden variables of its neighbours: a hidden grid under the labels.
    linked : bool
        False puts one hidden variable between every two neighbours instead.
    direct : bool
        Keep direct links between neighbouring labels beside the hidden variables.
    forbidden : iterable of (label, label), or mapping of direction to such pairs
        Neighbours that never occur, the first label being the left or upper one; the directions are "right", "down",
        "down_right" and "down_left".
    fixed : mapping of block to weights
        Known weights that training leaves alone (see ``Chain``).

    X is a list of (H, W, d) arrays. With edge features it is a list of ``{"x": ..., "edge_x": ...}`` or of tuples
    (x, horizontal, vertical): horizontal (H, W-1, e), vertical (H-1, W, e), with 8 neighbours also both diagonals
    (H-1, W-1, e); ``edge_x`` is a tuple of these or a dict by direction.
    """

    depth: ClassVar[int] = 2

    neighbours: int = 4
    hidden: int = 0
    linked: bool = True
    direct: bool = False
    forbidden: Any = None
    fixed: Mapping[str, Any] | None = None

    def check(self) -> None:
        super().check()
        if self.neighbours not in (4, 8):
            raise InputError(f"neighbours must be 4 or 8, got {self.neighbours!r}.")

    @property
    def _directions(self) -> tuple[str, ...]:
        return DIRECTIONS[: self.neighbours // 2]

    def read(self, X: Sequence[Any]) -> Raw:
        nodes, edges, keys = [], [], []
        for b, item in enumerate(X):
            x, edge_x = split(item, b, axes=3)
            (h, w), rows = _pixels(x, b)
            nodes.append(rows)
            edges.append(None if edge_x is None else self._edge_rows(edge_x, h, w, b))
            keys.append((h, w))
        return Raw({"node": nodes, **edge_source(edges)}, keys, {"edge": self._directions})

    def _edge_rows(self, given: Any, h: int, w: int, b: int) -> Any:
        """Features of all edges, direction by direction."""
        names = self._directions
        parts = [given.get(name) for name in names] if isinstance(given, Mapping) else list(given)
        if len(parts) != len(names) or any(part is None for part in parts):
            raise InputError(f"edge features are needed for each of {', '.join(names)}.", instance=b)
        shapes = [(h, w - 1), (h - 1, w), (h - 1, w - 1), (h - 1, w - 1)]
        rows = []
        for name, part, shape in zip(names, parts, shapes, strict=False):
            array = np.asarray(part, dtype=np.float64)
            if array.ndim != 3 or array.shape[:2] != shape:
                raise InputError(
                    f"edge features {name!r} have shape {array.shape}; "
                    f"the grid of {h} x {w} needs ({shape[0]}, {shape[1]}, e).",
                    instance=b,
                )
            rows.append(array.reshape(-1, array.shape[2]))
        try:
            return np.concatenate(rows)
        except ValueError:
            raise InputError("edge features differ in number between directions.", instance=b) from None

    def frame(self, key: Any, schema: Schema) -> Frame:
        h, w = key
        at = np.arange(h * w).reshape(h, w)
        ends = (
            (at[:, :-1], at[:, 1:]),
            (at[:-1], at[1:]),
            (at[:-1, :-1], at[1:, 1:]),
            (at[:-1, 1:], at[1:, :-1]),
        )[: len(self._directions)]
        edges = np.concatenate([np.stack([a.ravel(), b.ravel()], axis=1) for a, b in ends])
        sizes = [a.size for a, _ in ends]
        kinds: Ints = np.repeat(np.arange(len(ends)), sizes)
        return Frame((h, w), edges, np.zeros(h * w, dtype=np.int64), kinds)


def _is_named(x: Any) -> bool:
    """Whether the pixels are nested lists of named features."""
    for _ in range(2):
        if not isinstance(x, (list, tuple)) or not len(x):
            return False
        x = x[0]
    return isinstance(x, (Mapping, set, frozenset))


def _pixels(x: Any, b: int) -> tuple[tuple[int, int], Any]:
    """Height and width, and one row of features per pixel in C order (arrays, or nested lists of named features)."""
    if _is_named(x):
        widths = {len(row) for row in x}
        if len(widths) > 1:
            raise InputError("the rows of the grid differ in length.", instance=b)
        return (len(x), widths.pop()), [site for row in x for site in row]
    try:
        array = np.asarray(x, dtype=None if isinstance(x, np.ndarray) else np.float64)
    except (ValueError, TypeError, OverflowError):
        raise InputError("a grid needs an (H, W, d) array of numbers.", instance=b) from None
    if array.ndim != 3:
        reason = f"a grid has shape {array.shape}; it needs (H, W, d) (x[..., None] adds a feature axis)."
        raise InputError(reason, instance=b)
    return (array.shape[0], array.shape[1]), array.reshape(array.shape[0] * array.shape[1], array.shape[2])
