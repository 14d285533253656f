"""Labels on the nodes of a graph with scores on nodes and edges: what chains, grids and graphs share, and chains.

Without hidden variables

    theta(x, y) = sum_i x_i . node[:, y_i] + bias[y_i] + sum_(i,j) edge[y_i, y_j] + x_ij . edge.x[:, y_i, y_j]

Hidden variables, one per edge (``linked=False``, the paper's chain: y_i - h_ij - y_j), see the features of both ends:

    + sum_(i,j) left[y_i, h_ij] + right[h_ij, y_j]
    + sum_(i,j) x_i . left.x[:, h_ij] + x_j . right.x[:, h_ij] + x_ij . between.x[:, h_ij]

or one per node (``linked=True``: a copy of the graph made of hidden variables under the labels):

    + sum_i x_i . hidden.node[:, h_i] + attach[y_i, h_i]
    + sum_(i,j) hidden.edge[h_i, h_j] + x_ij . hidden.edge.x[:, h_i, h_j]

Where edges are associative, both ends being in the same state takes the place of the tables of labels and of hidden
states: edge [y_i = y_j] + x_ij . edge.x [y_i = y_j], with weights that stay >= 0.

With hidden variables the labels have no edges of their own unless ``direct=True``. Every block exists once per node
type or edge type.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from scipy import sparse

from mssvm.core.arrays import Bools, Ints
from mssvm.core.checks import count, mapping, several, shown
from mssvm.core.errors import InputError
from mssvm.data.labels import LabelVocabulary
from mssvm.structures.base import MOST_STATES, Encoder, Raw, Schema, Structure, check_flag, label_mask
from mssvm.structures.encoded import GroupedTopology, HardConstraint, WeightBlock


@dataclass(frozen=True, eq=False)
class Frame:
    """Sites and edges of one topology, and ``marks``: further groups. Types are positions in the schema's lists."""

    shape: tuple[int, ...]
    edges: Ints
    node_type: Ints
    edge_type: Ints
    marks: Mapping[str, Ints] = field(default_factory=dict)


BlockTemplate = tuple[str, str, tuple[str, ...], str | None, str | None]
"""Name, group, axes, source and rows of a ``WeightBlock``, the names yet without their type."""


class Pairwise(Structure):
    """Base of structures whose labels sit on the nodes of a graph."""

    edge_name: ClassVar[str] = "edge"
    edges: str = "free"  # other than free: associative, with weights for agreement instead of tables
    ends: bool = False  # scores of their own for the first and the last node
    hidden: int
    linked: bool
    direct: bool
    forbidden: Any

    @abstractmethod
    def frame(self, key: Any, schema: Schema) -> Frame:
        """Sites and edges of an instance with the given key."""

    def check(self) -> None:
        count(self.hidden, "hidden", 0, MOST_STATES)
        for name in ("linked", "direct", "ends"):
            check_flag(getattr(self, name), name)

    def constraints(self, schema: Schema, vocabulary: LabelVocabulary) -> list[HardConstraint]:
        kinds, given = schema.types_of("edge"), self.forbidden or {}
        if not isinstance(given, Mapping):
            given = dict.fromkeys(kinds, label_pairs(given))
        for name in given:
            if str(name) not in kinds:
                raise InputError(f"forbidden names the edge type {name!r}; there are {', '.join(map(repr, kinds))}.")
        return [HardConstraint(tag("edge", str(name)), pair_mask(pairs, vocabulary)) for name, pairs in given.items()]

    # ------------------------------------------------------------------------------------- weights

    def blocks(self, schema: Schema, vocabulary: LabelVocabulary) -> tuple[WeightBlock, ...]:
        cards = {"label": vocabulary.n_classes, "hidden": self.hidden}
        out = []
        for kind, templates in self._templates():
            for t in schema.types_of(kind):
                for name, group, axes, source, rows in templates:
                    if source is None or source in schema.features:
                        sizes, at = tuple(map(cards.__getitem__, axes)), tag(rows, t) if rows else None
                        agree = sizes[0] if self.edges != "free" and axes in (("label",) * 2, ("hidden",) * 2) else 0
                        axes, sizes = ((), ()) if agree else (axes, sizes)
                        out.append(WeightBlock(tag(name, t), tag(group, t), axes, sizes, source, at, agree))
        return tuple(out)

    def _templates(self) -> list[tuple[str, list[BlockTemplate]]]:
        """The blocks of every node type or edge type, as the formulas above list them."""
        edge, y, h = self.edge_name, ("label",), ("hidden",)
        out: list[tuple[str, list[BlockTemplate]]] = [
            ("node", [("node", "node", y, "node", "node"), ("bias", "node", y, None, None)])
        ]
        if not self.hidden or self.direct:
            out.append(("edge", _pair(edge, "edge", (*y, *y))))
        if self.hidden and self.linked:
            alone: BlockTemplate = ("hidden.node", "hidden", h, "node", "node")
            out.append(("node", [alone, ("attach", "attach", (*y, *h), None, None)]))
            out.append(("edge", _pair(f"hidden.{edge}", "hidden.edge", (*h, *h))))
        elif self.hidden:
            ends: list[BlockTemplate] = [
                ("left", "left", (*y, *h), None, None),
                ("right", "right", (*h, *y), None, None),
            ]
            ends += [("left.x", "between", h, "node", "left"), ("right.x", "between", h, "node", "right")]
            out.append(("edge", [*ends, ("between.x", "between", h, "edge", "edge")]))
        if self.ends:
            out.append(("node", [("start", "first", y, None, None), ("end", "last", y, None, None)]))
        return out

    # ------------------------------------------------------------------------------------- topology

    def topology(self, key: Any, encoder: Encoder) -> GroupedTopology:
        frame = self.frame(key, encoder.schema)
        n, edges = len(frame.node_type), frame.edges
        rows, groups, below = dict[str, Ints](), dict(frame.marks), dict[str, Ints]()
        constrained = set[str]()
        for constraint in encoder.constraints:
            constrained.add(constraint.group)
        for c, t in enumerate(encoder.schema.types_of("node")):
            chosen = np.flatnonzero(frame.node_type == c)
            rows[tag("node", t)], groups[tag("node", t)] = chosen, chosen[:, None]
            if self.hidden and self.linked:
                below[tag("hidden", t)] = n + chosen[:, None]
                below[tag("attach", t)] = np.stack([chosen, n + chosen], axis=1)
        for c, t in enumerate(encoder.schema.types_of("edge")):
            chosen = np.flatnonzero(frame.edge_type == c)
            left, right = edges[chosen].T
            rows |= {tag("edge", t): chosen, tag("left", t): left, tag("right", t): right}
            if not self.hidden or self.direct or tag("edge", t) in constrained:
                groups[tag("edge", t)] = edges[chosen]
            if self.hidden and self.linked:
                below[tag("hidden.edge", t)] = n + edges[chosen]
            elif self.hidden:
                below[tag("between", t)] = n + chosen[:, None]
                below[tag("left", t)] = np.stack([left, n + chosen], axis=1)
                below[tag("right", t)] = np.stack([n + chosen, right], axis=1)
        n_hidden = 0 if not self.hidden else n if self.linked else len(edges)
        cards = np.repeat([encoder.vocabulary.n_classes, self.hidden], [n, n_hidden])
        shape, sizes = frame.shape if self.hidden and self.linked else None, {"node": n, "edge": len(edges)}
        return GroupedTopology(cards, np.arange(n), frame.shape, groups | below, sizes, rows, shape)


def _pair(name: str, group: str, axes: tuple[str, ...]) -> list[BlockTemplate]:
    """A table for all pairs of the type, and one per edge feature."""
    return [(name, group, axes, None, None), (f"{name}.x", group, axes, "edge", "edge")]


def tag(name: str, kind: str) -> str:
    return f"{name}:{kind}" if kind else name


def label_pairs(given: Any) -> list[tuple[Any, Any]]:
    """Forbidden pairs of labels, checked."""
    pairs = several(given, "forbidden", "pairs of labels")
    for pair in pairs:
        if not isinstance(pair, (tuple, list)) or len(pair) != 2:
            raise InputError(f"forbidden holds {shown(pair)}; it needs pairs of labels.")
    return [(a, b) for a, b in pairs]


def pair_mask(pairs: Any, vocabulary: LabelVocabulary) -> Bools:
    """A mask over pairs of classes from forbidden label pairs."""
    mask = np.zeros((vocabulary.n_classes, vocabulary.n_classes), dtype=bool)
    for a, b in label_pairs(pairs):
        mask[vocabulary.index(a, "forbidden"), vocabulary.index(b, "forbidden")] = True
    return mask


# ----------------------------------------------------------------------------------------- instances with edge features


def split(item: Any, b: int, axes: int = 2) -> tuple[Any, Any]:
    """Features of the sites, and of the edges (None where there are none) of one instance.

    An instance with edge features is ``{"x": ..., "edge_x": ...}`` or a tuple of arrays with ``axes`` axes.
    """
    if type(item) is list:
        return item, None
    if isinstance(item, Mapping):
        if "x" not in item or any(name not in ("x", "edge_x") for name in item):
            raise InputError(f"a dict needs the key 'x' and may have 'edge_x', got {sorted(item)}.", instance=b)
        return item["x"], item.get("edge_x")
    if isinstance(item, tuple) and len(item) > 1 and all(_is_array(part, axes) for part in item):
        return item[0], item[1] if len(item) == 2 else item[1:]
    return item, None


def edge_source(edges: list[Any]) -> dict[str, list[Any]]:
    """The source "edge", or nothing where no instance has edge features."""
    for b, edge in enumerate(edges):
        if (edge is None) != (edges[0] is None):
            without = 0 if edges[0] is None else b
            raise InputError("edge features are missing, but other instances have them.", instance=without)
    return {} if not edges or edges[0] is None else {"edge": edges}


def _is_array(part: Any, axes: int) -> bool:
    return sparse.issparse(part) or (isinstance(part, np.ndarray) and part.ndim == axes)


# ----------------------------------------------------------------------------------------- chains


@dataclass(eq=False, repr=False)
class Chain(Pairwise):
    """Sequences with a label at every position.

    Parameters
    ----------
    hidden : int
        States of the hidden variables; 0 for none. By default there is one between every two neighbouring labels,
        y_t - h_t - y_{t+1}, that sees the features of both positions: inference stays exact for every temperature.
    linked : bool
        Put a chain of hidden variables under the labels instead (h_t - h_{t+1}, y_t - h_t), each seeing the features
        of its position. Sums, joint maxima and max-marginals stay exact; marginal MAP is hard and is approximated.
    direct : bool
        Keep direct transitions y_t -> y_{t+1} beside the hidden variables.
    ends : bool
        Separate scores for the first and the last label.
    forbidden : iterable of (label, next label)
        Transitions that never happen; ``None`` as the first stands for the start of the sequence, as the second for
        its end: ``[("O", "I"), (None, "I")]``.
    forced : mapping of label to a label or an iterable of labels
        What must follow a label; every other successor is forbidden.
    fixed : mapping of block to weights
        Known weights that training leaves alone: a number, an array with NaN where free, or
        ``{(feature, states...): weight}``.

    X is a list of (T, d) arrays, sparse matrices, or lists of named features; with edge features a list of
    ``{"x": ..., "edge_x": (T - 1, e)}`` or of tuples of two arrays.

    >>> tagger = ms.CRF(ms.Chain(forbidden=[("O", "I")])).fit(X, y)                # I never follows O
    >>> tagger.score(X, y)
    1.0
    """

    edge_name: ClassVar[str] = "transition"

    hidden: int = 0
    linked: bool = False
    direct: bool = False
    ends: bool = False
    forbidden: Iterable[tuple[Hashable, Hashable]] | None = None
    forced: Mapping[Hashable, Any] | None = None
    fixed: Mapping[str, Any] | None = None

    def read(self, X: Sequence[Any]) -> Raw:
        if set(map(type, X)) == {list}:  # the common case of text, sooner told
            return Raw({"node": list(X)})
        nodes, edges = [], []
        for b, item in enumerate(X):
            sites, between = split(item, b)
            nodes.append(sites)
            edges.append(between)
        return Raw({"node": nodes, **edge_source(edges)})

    def frame(self, key: Any, schema: Schema) -> Frame:
        n = int(key)
        at, zeros = np.arange(n)[:, None], np.zeros(n, dtype=np.int64)
        return Frame((n,), np.hstack([at[:-1], at[1:]]), zeros, zeros[1:], {"first": at[:1], "last": at[-1:]})

    def constraints(self, schema: Schema, vocabulary: LabelVocabulary) -> list[HardConstraint]:
        if self.forbidden is None and self.forced is None:
            return []
        pairs = label_pairs(self.forbidden)
        inside = pair_mask([pair for pair in pairs if None not in pair], vocabulary)
        for a, after in mapping(self.forced, "forced", "labels to what must follow them").items():
            many = after if isinstance(after, (list, set, frozenset)) else (after,)
            inside[vocabulary.index(a, "forced")] |= ~label_mask(many, vocabulary, "forced")
        first = label_mask([b for a, b in pairs if a is None], vocabulary, "forbidden")
        last = label_mask([a for a, b in pairs if b is None], vocabulary, "forbidden")
        groups = {"edge": inside, "first": first, "last": last}
        return [HardConstraint(group, mask) for group, mask in groups.items() if mask.any()]
