"""Graphs of any shape with types of nodes and edges."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mssvm.core.arrays import Ints
from mssvm.core.checks import mapping
from mssvm.core.errors import InputError
from mssvm.data.graphs import Graph
from mssvm.data.labels import LabelVocabulary
from mssvm.structures.base import Schema, Sources, check_flag, label_mask, type_names
from mssvm.structures.pairwise import Pairwise, SiteGraph, edge_source, typed
from mssvm.structures.weights import HardConstraint


@dataclass(eq=False, repr=False)
class GraphModel(Pairwise):
    """Graphs with a label on every node; X is a list of ``Graph`` instances.

    Parameters
    ----------
    hidden : int
        States of the hidden variables; 0 for none. By default (``linked=True``) every node has one, tied to its label
        and to the hidden variables of its neighbours.
    linked : bool
        False puts one hidden variable on every edge instead.
    direct : bool
        Keep direct links between labels beside the hidden variables.
    directed : bool
        Whether an edge (i, j) differs from (j, i). If not, every edge scores its labels in both orders with the same
        weights, edge[y_i, y_j] + edge[y_j, y_i], so that the order in which its ends are listed does not matter.
    forbidden : iterable of (label, label), or mapping of edge type to such pairs
        Joint labels that no edge (i, j) may have, in the order of the edge.
    allowed : mapping of node type to labels
        The labels that nodes of a type can have; types not named can have all.
    fixed : mapping of block to weights
        Known weights that training leaves alone (see ``Chain``).

    >>> graph = ms.Graph(np.array([[1.0], [-1.0], [1.0]]), [[0, 1], [1, 2]])
    >>> ms.CRF(ms.GraphModel(directed=False)).fit([graph], [["a", "b", "a"]]).predict([graph])[0].tolist()
    ['a', 'b', 'a']
    """

    hidden: int = 0
    linked: bool = True
    direct: bool = False
    directed: bool = True
    forbidden: Any = None
    allowed: Mapping[Hashable, Iterable[Hashable]] | None = None
    fixed: Mapping[str, Any] | None = None

    def check(self) -> None:
        super().check()
        check_flag(self.directed, "directed")
        if self.hidden and not self.linked and not self.directed:
            raise InputError("a hidden variable on an edge makes it directed; use directed=True or linked=True.")

    def read(self, X: Sequence[Any]) -> Sources:
        graphs = [_checked(item, b) for b, item in enumerate(X)]
        types = {
            "node": _all_type_names([graph.node_types for graph in graphs]),
            "edge": _all_type_names([graph.edge_types for graph in graphs]),
        }
        keys: list[Hashable] = []
        for graph in graphs:
            node_types = _type_names(graph.node_types, len(graph))
            edge_types = _type_names(graph.edge_types, len(graph.edges))
            keys.append((node_types, edge_types, graph.edges.tobytes()))
        edges = edge_source([graph.edge_features for graph in graphs])
        return Sources({"node": [graph.nodes for graph in graphs], **edges}, keys, types)

    def site_graph(self, key: Any, schema: Schema) -> SiteGraph:
        node_types, edge_types, edge_bytes = key
        edges = np.frombuffer(edge_bytes, dtype=np.int64).reshape(-1, 2)
        node_numbers = _numbers(node_types, schema.types_of("node"))
        edge_numbers = _numbers(edge_types, schema.types_of("edge"))
        return SiteGraph((len(node_types),), edges, node_numbers, edge_numbers)

    def constraints(self, schema: Schema, vocabulary: LabelVocabulary) -> list[HardConstraint]:
        out = super().constraints(schema, vocabulary)
        for name, members in mapping(self.allowed, "allowed", "node types to labels").items():
            if str(name) not in schema.types_of("node"):
                listed = ", ".join(repr(t) for t in schema.types_of("node"))
                raise InputError(f"allowed names the node type {name!r}; there are {listed}.")
            out.append(HardConstraint(typed("node", str(name)), ~label_mask(members, vocabulary, "allowed")))
        return out


def _checked(item: Any, b: int) -> Graph:
    if isinstance(item, Graph):
        return item
    raise InputError(f"expected a Graph of nodes and edges, got {type(item).__name__}.", instance=b)


def _all_type_names(types_of_graphs: list[Sequence[Hashable] | None]) -> tuple[str, ...]:
    """All type names in sorted order; the empty name stands for no type."""
    types: list[Hashable] = []
    for graph_types in types_of_graphs:
        if graph_types is None or not len(graph_types):
            types.append(None)
        else:
            types.extend(graph_types)
    return type_names("" if t is None else t for t in types)


def _type_names(types: Sequence[Hashable] | None, n: int) -> tuple[str, ...]:
    if types is None:
        return ("",) * n
    return tuple("" if t is None else str(t) for t in types)


def _numbers(types: Sequence[str], learned: Sequence[str]) -> Ints:
    """Positions of type names in the schema's list."""
    position = {name: k for k, name in enumerate(learned)}
    return np.array([position[name] for name in types], dtype=np.int64)
