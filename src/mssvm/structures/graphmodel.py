"""Graphs of any shape with types of nodes and edges."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy import sparse

from mssvm.core.checks import mapping
from mssvm.core.errors import InputError
from mssvm.data.graphs import Graph
from mssvm.data.labels import LabelVocabulary
from mssvm.structures.base import Raw, Schema, check_flag, label_mask, type_names
from mssvm.structures.encoded import HardConstraint
from mssvm.structures.pairwise import Frame, Pairwise, edge_source, tag


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
            raise InputError("a hidden variable on an edge tells its ends apart; use directed=True or linked=True.")

    def read(self, X: Sequence[Any]) -> Raw:
        graphs = [_graph(item, b) for b, item in enumerate(X)]
        if not self.directed:
            graphs = [_both_ways(g) for g in graphs]
        kinds = {
            "node": _names([g.node_types for g in graphs]),
            "edge": _names([g.edge_types for g in graphs]),
        }
        keys: list[Hashable] = []
        for g in graphs:
            nodes, edges = _type_names(g.node_types, len(g)), _type_names(g.edge_types, len(g.edges))
            keys.append((nodes, edges, g.edges.tobytes()))
        sources = {"node": [g.nodes for g in graphs], **edge_source([g.edge_features for g in graphs])}
        return Raw(sources, keys, kinds)

    def frame(self, key: Any, schema: Schema) -> Frame:
        nodes, edges, packed = key
        codes = []
        for names, kind in ((nodes, "node"), (edges, "edge")):
            number = {name: c for c, name in enumerate(schema.types_of(kind))}
            codes.append(np.array([number[name] for name in names], dtype=np.int64))
        pairs = np.frombuffer(packed, dtype=np.int64).reshape(-1, 2)
        return Frame((len(nodes),), pairs, codes[0], codes[1])

    def constraints(self, schema: Schema, vocabulary: LabelVocabulary) -> list[HardConstraint]:
        out = super().constraints(schema, vocabulary)
        for name, members in mapping(self.allowed, "allowed", "node types to labels").items():
            if str(name) not in schema.types_of("node"):
                known = ", ".join(repr(t) for t in schema.types_of("node"))
                raise InputError(f"allowed names the node type {name!r}; there are {known}.")
            out.append(HardConstraint(tag("node", str(name)), ~label_mask(members, vocabulary, "allowed")))
        return out


def _graph(item: Any, b: int) -> Graph:
    if isinstance(item, Graph):
        return item
    raise InputError(f"expected a Graph of nodes and edges, got {type(item).__name__}.", instance=b)


def _both_ways(g: Graph) -> Graph:
    """Every edge followed, after all others, by its reverse with the same features and type."""
    features, types = g.edge_features, g.edge_types
    if features is not None:
        twice = [features, features]
        if sparse.issparse(features):
            features = sparse.vstack(twice)
        else:
            features = np.concatenate(twice) if isinstance(features, np.ndarray) else [*features, *features]
    edges = np.concatenate([g.edges, g.edges[:, ::-1]])
    return replace(g, edges=edges, edge_features=features, edge_types=None if types is None else [*types, *types])


def _names(types: list[Sequence[Hashable] | None]) -> tuple[str, ...]:
    """All type names in sorted order; untyped things have the empty name."""
    return type_names("" if t is None else t for given in types for t in (given or (None,)))


def _type_names(types: Sequence[Hashable] | None, n: int) -> tuple[str, ...]:
    return ("",) * n if types is None else tuple(str(t) for t in types)
