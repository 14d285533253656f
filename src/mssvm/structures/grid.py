"""Grids: one label per pixel; neighbours have a table for every direction, or a weight for having the same label."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from mssvm.core.arrays import Floats
from mssvm.core.errors import InputError
from mssvm.core.registry import EDGES
from mssvm.structures.base import Schema, Sources
from mssvm.structures.pairwise import Pairwise, SiteGraph, edge_source, split_edges

DIRECTIONS = ("right", "down", "down_right", "down_left")
DISTANCES = ("side", "corner")  # types of associative edges, which do not depend on the direction

Ends = tuple[tuple[slice, slice], tuple[slice, slice]]
"""Positions in an (H, W) array of the first and of the second ends of all edges of one direction."""


@dataclass(eq=False, repr=False)
class Grid(Pairwise):
    """Images with a label for every pixel.

    Parameters
    ----------
    neighbours : 4 or 8
        4 links a pixel to the right and down, 8 also along both diagonals.
    edges : "free", "associative" or "contrast"
        How two neighbours are scored. "free" has a table of all pairs of labels for every direction. "associative" has
        one weight >= 0 for equal labels, whatever the direction (with diagonals two weights, "side" and "corner").
        "contrast" adds another weight >= 0, which counts less the more the two pixels differ: it is multiplied by
        exp(-|x_i - x_j|^2 / (2 m)), m the mean of |x_i - x_j|^2 over the edges of the image, so that labels change
        where the image does. Tables can learn which label appears above which; where few pixels are labelled they also
        learn patterns that do not exist, such as stripes, while the other two only smooth (docs/decisions/0007).
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

    >>> image = np.array([[0.0, 0.0, 1.0], [0.0, 1.0, 1.0]])[..., None]
    >>> scribble = [["sky", None, None], [None, None, "sea"]]
    >>> ms.HCRF(ms.Grid(edges="associative"), C=10.0).fit([image], [scribble]).predict([image])[0].tolist()
    [['sky', 'sky', 'sea'], ['sky', 'sea', 'sea']]
    """

    depth: ClassVar[int] = 2

    neighbours: int = 4
    hidden: int = 0
    linked: bool = True
    direct: bool = False
    forbidden: Any = None
    fixed: Mapping[str, Any] | None = None
    edges: str = "free"

    def check(self) -> None:
        super().check()
        if self.neighbours not in (4, 8):
            raise InputError(f"neighbours must be 4 or 8, got {self.neighbours!r}.")
        if self.edges not in EDGES:
            raise InputError(f"edges must be one of {', '.join(map(repr, EDGES))}, got {self.edges!r}.")

    @property
    def _directions(self) -> tuple[str, ...]:
        return DIRECTIONS[: self.neighbours // 2]

    def read(self, X: Sequence[Any]) -> Sources:
        nodes = []
        edges = []
        keys = []
        for b, item in enumerate(X):
            x, edge_x = split_edges(item, b, axes=3)
            (h, w), rows = _pixels(x, b)
            nodes.append(rows)
            edges.append(self._edge_features(edge_x, rows, h, w, b))
            keys.append((h, w))
        edge_types = self._directions if self.edges == "free" else DISTANCES[: self.neighbours // 4]
        return Sources({"node": nodes, **edge_source(edges)}, keys, {"edge": edge_types})

    def _edge_features(self, edge_x: Any, rows: Any, h: int, w: int, b: int) -> Floats | None:
        """Features of the edges of instance b, the user's and the contrast; None if there are neither."""
        parts = []
        if edge_x is not None:
            parts.append(self._edge_rows(edge_x, h, w, b))
        if self.edges == "contrast":
            parts.append(self._contrast(rows, h, w, b))
        if not parts:
            return None
        return np.concatenate(parts, axis=1)

    def _contrast(self, rows: Any, h: int, w: int, b: int) -> Floats:
        """Likeness of the ends of every edge, exp(-|x_i - x_j|^2 / (2 m)), direction by direction."""
        if not isinstance(rows, np.ndarray):
            raise InputError("contrast needs an (H, W, d) array of numbers; use edges='associative'.", instance=b)
        x = rows.reshape(h, w, -1).astype(np.float64)
        with np.errstate(invalid="ignore", over="ignore"):  # numbers that are not finite are refused later
            distances = [((x[first] - x[second]) ** 2).sum(axis=2).ravel() for first, second in self._ends]
            distance = np.concatenate(distances)
            mean = float(distance.sum()) / max(len(distance), 1)
            likeness = np.exp(-distance / max(2.0 * mean, 1e-300))
        return np.where(np.isfinite(likeness), likeness, 0.0)[:, None]

    @property
    def _ends(self) -> tuple[Ends, ...]:
        """The ends of the edges of every direction."""
        all_but_last = slice(None, -1)
        all_but_first = slice(1, None)
        every = slice(None)
        ends = (
            ((every, all_but_last), (every, all_but_first)),
            ((all_but_last, every), (all_but_first, every)),
            ((all_but_last, all_but_last), (all_but_first, all_but_first)),
            ((all_but_last, all_but_first), (all_but_first, all_but_last)),
        )
        return ends[: len(self._directions)]

    def _edge_rows(self, edge_x: Any, h: int, w: int, b: int) -> Floats:
        """Features of all edges, direction by direction."""
        names = self._directions
        parts = [edge_x.get(name) for name in names] if isinstance(edge_x, Mapping) else list(edge_x)
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
            if self.edges != "free" and array.min(initial=0.0) < 0:
                raise InputError(f"edge features {name!r} fall below 0; associative edges need them >= 0.", instance=b)
            rows.append(array.reshape(-1, array.shape[2]))
        try:
            return np.concatenate(rows)
        except ValueError:
            raise InputError("edge features differ in number between directions.", instance=b) from None

    def site_graph(self, key: Any, schema: Schema) -> SiteGraph:
        h, w = key
        pixels = np.arange(h * w).reshape(h, w)
        edges = []
        edge_types = []
        for direction, (first, second) in enumerate(self._ends):
            pairs = np.stack([pixels[first].ravel(), pixels[second].ravel()], axis=1)
            edge_type = direction if self.edges == "free" else direction // 2
            edges.append(pairs)
            edge_types.append(np.full(len(pairs), edge_type, dtype=np.int64))
        node_types = np.zeros(h * w, dtype=np.int64)
        return SiteGraph((h, w), np.concatenate(edges), node_types, np.concatenate(edge_types))


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
