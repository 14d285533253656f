"""Labels on the nodes of a graph with scores on nodes and edges: what chains, grids, graphs and multi-label share.

Without hidden variables

    theta(x, y) = sum_i x_i . node[:, y_i] + bias[y_i] + sum_(i,j) edge[y_i, y_j] + x_ij . edge.x[:, y_i, y_j]

The first axis of a table is the label that an edge comes from, i: in a chain edge[a, b] scores a followed by b.

Hidden variables, one per edge (``linked=False``, the paper's chain: y_i - h_ij - y_j), see the features of both ends:

    + sum_(i,j) left[y_i, h_ij] + right[h_ij, y_j]
    + sum_(i,j) x_i . left.x[:, h_ij] + x_j . right.x[:, h_ij] + x_ij . between.x[:, h_ij]

or one per node (``linked=True``: a copy of the graph made of hidden variables under the labels):

    + sum_i x_i . hidden.node[:, h_i] + attach[y_i, h_i]
    + sum_(i,j) hidden.edge[h_i, h_j] + x_ij . hidden.edge.x[:, h_i, h_j]

Undirected edges (``GraphModel(directed=False)``) score both orders in one table: edge[y_i, y_j] + edge[y_j, y_i].

Associative edges have no tables of labels or hidden states; they score whether both ends are in the same state:
edge [y_i = y_j] + x_ij . edge.x [y_i = y_j], with weights that stay >= 0.

With hidden variables the labels have no edges of their own unless ``direct=True``. Every block exists once per node
type or edge type.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import numpy as np
from scipy import sparse

from mssvm.core.arrays import Bools, Ints
from mssvm.core.checks import count, several, shown
from mssvm.core.errors import InputError
from mssvm.data.labels import LabelVocabulary
from mssvm.structures.base import MOST_STATES, Schema, Structure, check_flag
from mssvm.structures.encoder import Encoder
from mssvm.structures.layout import InstanceTopology
from mssvm.structures.weights import HardConstraint, WeightBlock

LABEL = "label"
HIDDEN = "hidden"


@dataclass(frozen=True, eq=False)
class SiteGraph:
    """Sites and edges of one instance; ``shape`` is that of its labels, ``edges`` are pairs (i, j) of sites.

    ``node_type`` and ``edge_type`` are positions in the schema's lists of types; ``marks`` are further groups of sites,
    such as the first of a chain.
    """

    shape: tuple[int, ...]
    edges: Ints
    node_type: Ints
    edge_type: Ints
    marks: Mapping[str, Ints] = field(default_factory=dict)


class BlockTemplate(NamedTuple):
    """A ``WeightBlock`` without its type: the block of type t is called "name:t", and so are its group and rows."""

    name: str
    group: str
    axes: tuple[str, ...]
    source: str | None = None
    rows: str | None = None


class Pairwise(Structure):
    """Base of structures whose labels sit on the nodes of a graph."""

    edge_name: ClassVar[str] = "edge"
    edges: str = "free"  # "free": tables of labels; otherwise weights for equal labels
    ends: bool = False  # scores of their own for the first and the last node
    directed: bool = True  # whether edge (i, j) differs from (j, i)
    hidden: int
    linked: bool
    direct: bool
    forbidden: Any

    @abstractmethod
    def site_graph(self, key: Any, schema: Schema) -> SiteGraph:
        """Sites and edges of an instance with the given key."""

    def check(self) -> None:
        count(self.hidden, "hidden", 0, MOST_STATES)
        for name in ("linked", "direct", "ends"):
            check_flag(getattr(self, name), name)

    def constraints(self, schema: Schema, vocabulary: LabelVocabulary) -> list[HardConstraint]:
        edge_types = schema.types_of("edge")
        forbidden = self.forbidden or {}
        if not isinstance(forbidden, Mapping):
            forbidden = dict.fromkeys(edge_types, label_pairs(forbidden))
        out = []
        for name, pairs in forbidden.items():
            if str(name) not in edge_types:
                listed = ", ".join(map(repr, edge_types))
                raise InputError(f"forbidden names the edge type {name!r}; there are {listed}.")
            mask = pair_mask(pairs, vocabulary)
            out.append(HardConstraint(typed("edge", str(name)), mask if self.directed else mask | mask.T))
        return out

    # ------------------------------------------------------------------------------------- weights

    @property
    def _hidden_on_nodes(self) -> bool:
        return bool(self.hidden) and self.linked

    @property
    def _hidden_on_edges(self) -> bool:
        return bool(self.hidden) and not self.linked

    @property
    def _labels_linked(self) -> bool:
        """Whether labels have edges of their own."""
        return not self.hidden or self.direct

    def blocks(self, schema: Schema, vocabulary: LabelVocabulary) -> tuple[WeightBlock, ...]:
        cards = {LABEL: vocabulary.n_classes, HIDDEN: self.hidden}
        out = []
        for kind, templates in self._templates():
            for type_name in schema.types_of(kind):
                for template in templates:
                    if template.source is None or template.source in schema.features:
                        out.append(self._block(template, type_name, cards))
        return tuple(out)

    def _block(self, template: BlockTemplate, type_name: str, cards: Mapping[str, int]) -> WeightBlock:
        axes = template.axes
        sizes = tuple(cards[axis] for axis in axes)
        between_alike = axes in ((LABEL, LABEL), (HIDDEN, HIDDEN))
        symmetric = between_alike and not self.directed
        agree = 0
        if self.edges != "free" and between_alike:
            agree = sizes[0]
            axes = ()
            sizes = ()
        rows = None if template.rows is None else typed(template.rows, type_name)
        name = typed(template.name, type_name)
        group = typed(template.group, type_name)
        return WeightBlock(name, group, axes, sizes, template.source, rows, agree, symmetric)

    def _templates(self) -> list[tuple[str, list[BlockTemplate]]]:
        """The blocks of every node type or edge type, as the formulas above list them."""
        edge = self.edge_name
        node_blocks = [
            BlockTemplate("node", "node", (LABEL,), "node", "node"),
            BlockTemplate("bias", "node", (LABEL,)),
        ]
        out = [("node", node_blocks)]
        if self._labels_linked:
            out.append(("edge", _edge_blocks(edge, "edge", (LABEL, LABEL))))
        if self._hidden_on_nodes:
            hidden_blocks = [
                BlockTemplate("hidden.node", "hidden", (HIDDEN,), "node", "node"),
                BlockTemplate("attach", "attach", (LABEL, HIDDEN)),
            ]
            out.append(("node", hidden_blocks))
            out.append(("edge", _edge_blocks(f"hidden.{edge}", "hidden.edge", (HIDDEN, HIDDEN))))
        if self._hidden_on_edges:
            between_blocks = [
                BlockTemplate("left", "left", (LABEL, HIDDEN)),
                BlockTemplate("right", "right", (HIDDEN, LABEL)),
                BlockTemplate("left.x", "between", (HIDDEN,), "node", "left"),
                BlockTemplate("right.x", "between", (HIDDEN,), "node", "right"),
                BlockTemplate("between.x", "between", (HIDDEN,), "edge", "edge"),
            ]
            out.append(("edge", between_blocks))
        if self.ends:
            end_blocks = [BlockTemplate("start", "first", (LABEL,)), BlockTemplate("end", "last", (LABEL,))]
            out.append(("node", end_blocks))
        return out

    # ------------------------------------------------------------------------------------- topology

    def topology(self, key: Any, encoder: Encoder) -> InstanceTopology:
        graph = self.site_graph(key, encoder.schema)
        n = len(graph.node_type)
        edges = graph.edges
        constrained = {constraint.group for constraint in encoder.constraints}
        rows = dict[str, Ints]()
        groups = dict(graph.marks)
        hidden_groups = dict[str, Ints]()  # added after all others: the order of groups is the order of factors
        # Hidden variable k is variable n + k, that of node k or of edge k.
        for number, name in enumerate(encoder.schema.types_of("node")):
            nodes = np.flatnonzero(graph.node_type == number)
            rows[typed("node", name)] = nodes
            groups[typed("node", name)] = nodes[:, None]
            if self._hidden_on_nodes:
                hidden_groups[typed("hidden", name)] = n + nodes[:, None]
                hidden_groups[typed("attach", name)] = np.stack([nodes, n + nodes], axis=1)
        for number, name in enumerate(encoder.schema.types_of("edge")):
            chosen = np.flatnonzero(graph.edge_type == number)
            ends = edges[chosen]
            left, right = ends.T
            rows[typed("edge", name)] = chosen
            rows[typed("left", name)] = left
            rows[typed("right", name)] = right
            if self._labels_linked or typed("edge", name) in constrained:
                groups[typed("edge", name)] = ends
            if self._hidden_on_nodes:
                hidden_groups[typed("hidden.edge", name)] = n + edges[chosen]
            if self._hidden_on_edges:
                hidden_groups[typed("between", name)] = n + chosen[:, None]
                hidden_groups[typed("left", name)] = np.stack([left, n + chosen], axis=1)
                hidden_groups[typed("right", name)] = np.stack([n + chosen, right], axis=1)
        n_hidden = 0
        hidden_shape = None
        if self._hidden_on_nodes:
            n_hidden = n
            hidden_shape = graph.shape
        if self._hidden_on_edges:
            n_hidden = len(edges)
        cards = np.repeat([encoder.vocabulary.n_classes, self.hidden], [n, n_hidden])
        sizes = {"node": n, "edge": len(edges)}
        return InstanceTopology(cards, np.arange(n), graph.shape, groups | hidden_groups, sizes, rows, hidden_shape)


def _edge_blocks(name: str, group: str, axes: tuple[str, ...]) -> list[BlockTemplate]:
    """A table for all pairs of the type, and one per edge feature."""
    return [BlockTemplate(name, group, axes), BlockTemplate(f"{name}.x", group, axes, "edge", "edge")]


def typed(name: str, type_name: str) -> str:
    """The name of a block, group or list of rows of one type; the empty type name stands for no type."""
    return f"{name}:{type_name}" if type_name else name


def label_pairs(forbidden: Any) -> list[tuple[Any, Any]]:
    """Forbidden pairs of labels, checked."""
    pairs = several(forbidden, "forbidden", "pairs of labels")
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


def split_edges(item: Any, b: int, axes: int = 2) -> tuple[Any, Any]:
    """Features of the sites, and of the edges (None where there are none), of instance b.

    An instance with edge features is ``{"x": ..., "edge_x": ...}`` or a tuple of arrays with ``axes`` axes.
    """
    if type(item) is list:
        return item, None
    if isinstance(item, Mapping):
        if "x" not in item or any(name not in ("x", "edge_x") for name in item):
            raise InputError(f"a dict needs the key 'x' and may have 'edge_x', got {sorted(item)}.", instance=b)
        return item["x"], item.get("edge_x")
    if isinstance(item, tuple) and len(item) > 1 and all(_is_array(part, axes) for part in item):
        if len(item) == 2:
            return item
        return item[0], item[1:]
    return item, None


def edge_source(edges: list[Any]) -> dict[str, list[Any]]:
    """The source "edge", or nothing where no instance has edge features."""
    for b, edge in enumerate(edges):
        if (edge is None) != (edges[0] is None):
            without = 0 if edges[0] is None else b
            raise InputError("edge features are missing, but other instances have them.", instance=without)
    if not edges or edges[0] is None:
        return {}
    return {"edge": edges}


def _is_array(part: Any, axes: int) -> bool:
    return sparse.issparse(part) or (isinstance(part, np.ndarray) and part.ndim == axes)
