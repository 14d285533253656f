"""Instances that are graphs: features of typed nodes and edges, and general factor graphs."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy import sparse

from mssvm.core.arrays import Ints
from mssvm.core.checks import mapping, sequence_length
from mssvm.core.errors import InputError


@dataclass(frozen=True, eq=False)
class Graph:
    """One instance: ``nodes`` (features: (N, d) array, sparse matrix or named features) and ``edges`` (E, 2).

    ``edge_features`` has a row per edge; ``node_types`` and ``edge_types`` give each node or edge a name, and each
    name has weights of its own. An edge (i, j) scores the labels of i and j in this order.

    >>> len(ms.Graph(nodes=np.eye(3), edges=[[0, 1], [1, 2]], edge_types=["near", "far"]))
    3
    """

    nodes: Any
    edges: Any
    edge_features: Any = None
    node_types: Sequence[Hashable] | None = None
    edge_types: Sequence[Hashable] | None = None

    def __post_init__(self) -> None:
        n = len(self)
        edges = _table(self.edges, "edges")
        if edges.shape[1] != 2:
            raise InputError(f"edges has shape {np.shape(self.edges)}; it needs two node numbers per row.")
        _check_scopes(edges, n, "edge", "node")
        object.__setattr__(self, "edges", edges)
        _check_length(self.node_types, "node_types", n, "nodes")
        _check_length(self.edge_types, "edge_types", len(edges), "edges")
        _check_length(self.edge_features, "edge_features", len(edges), "edges")

    @property
    def n_nodes(self) -> int:
        return _length(self.nodes)

    def __len__(self) -> int:
        return self.n_nodes

    @classmethod
    def from_adjacency(
        cls,
        nodes: Any,
        adjacency: Any,
        directed: bool = False,
        weights: bool = False,
        node_types: Sequence[Hashable] | None = None,
    ) -> Graph:
        """From features of ``nodes`` and a square (sparse or dense) matrix ``adjacency``, whose nonzeros are edges.

        Unless ``directed`` the matrix must be symmetric and each edge is taken once, from the lower to the higher
        number. ``weights`` makes the entries the single edge feature. The diagonal is ignored. ``node_types`` are as in
        ``Graph``.

        >>> ms.Graph.from_adjacency(np.eye(3), [[0, 1, 0], [1, 0, 1], [0, 1, 0]]).edges.tolist()
        [[0, 1], [1, 2]]
        """
        matrix = sparse.coo_array(adjacency)
        if matrix.shape != (_length(nodes), _length(nodes)):
            raise InputError(f"adjacency has shape {matrix.shape}, but there are {_length(nodes)} nodes.")
        if not directed and (abs(matrix - matrix.T)).sum() != 0:
            raise InputError("adjacency is not symmetric; pass directed=True, or make it symmetric.")
        matrix = sparse.coo_array(sparse.csr_array(matrix))
        proper = matrix.row != matrix.col if directed else matrix.row < matrix.col
        keep = (matrix.data != 0) & proper
        edges = np.stack([matrix.row[keep], matrix.col[keep]], axis=1).astype(np.int64)
        features = matrix.data[keep].astype(np.float64)[:, None] if weights else None
        return cls(nodes, edges, features, node_types)

    @classmethod
    def from_networkx(
        cls,
        graph: Any,
        features: str = "x",
        edge_features: str | None = None,
        node_type: str | None = None,
        edge_type: str | None = None,
    ) -> Graph:
        """From a networkx ``graph``; nodes keep its order. ``features``, ``node_type``, ``edge_features`` and
        ``edge_type`` name the attributes of nodes and edges that hold them (None: there are none)."""
        number = {node: i for i, node in enumerate(graph.nodes)}
        pairs = np.array([(number[a], number[b]) for a, b in graph.edges()], dtype=np.int64).reshape(-1, 2)
        nodes = graph.nodes(data=True)
        edges = [(f"({a!r}, {b!r})", data) for a, b, data in graph.edges(data=True)]
        return cls(
            nodes=_attributes(nodes, features, "node"),
            edges=pairs,
            edge_features=_attributes(edges, edge_features, "edge"),
            node_types=_attributes(nodes, node_type, "node"),
            edge_types=_attributes(edges, edge_type, "edge"),
        )


@dataclass(frozen=True, eq=False)
class FactorInput:
    """One instance of a ``FactorModel``: the type of every variable, and factors by type.

    ``factors`` maps the name of a factor type to the variables of each factor (n, order), or to a pair of these and
    one row of features per factor.

    >>> x = ms.FactorInput(["y", "y", "h"], {"triple": [[0, 1, 2]], "own": ([[0], [1]], [[0.5], [2.0]])})
    >>> len(x), x.scopes["triple"].tolist()
    (3, [[0, 1, 2]])
    """

    variables: Sequence[Hashable]
    factors: Mapping[str, Any]
    scopes: Mapping[str, Ints] = field(init=False, repr=False)
    features: Mapping[str, Any] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        scopes: dict[str, Ints] = {}
        features: dict[str, Any] = {}
        n_variables = _length(self.variables)
        for name, factors in mapping(self.factors, "factors", "names to scopes").items():
            listed, feature_rows = _split_features(factors)
            table = _table(listed, f"factors[{name!r}]")
            _check_scopes(table, n_variables, f"factor {name!r}", "variable")
            if feature_rows is not None:
                n_rows = _length(feature_rows)
                if n_rows != len(table):
                    raise InputError(f"factors[{name!r}] has {len(table)} scopes but {n_rows} feature rows.")
                features[name] = feature_rows
            scopes[name] = table
        object.__setattr__(self, "scopes", scopes)
        object.__setattr__(self, "features", features)

    def with_features(self, features: Mapping[str, Any]) -> FactorInput:
        """The same variables and factors with other features, one row per factor of each named type.

        >>> ms.FactorInput(["y"], {"own": [[0]]}).with_features({"own": [[3.0]]}).features
        {'own': [[3.0]]}
        """
        for name, rows in features.items():
            if name not in self.scopes or _length(rows) != len(self.scopes[name]):
                n = len(self.scopes.get(name, ()))
                raise InputError(f"features of {name!r} have {_length(rows)} rows, but there are {n} such factors.")
        other = copy(self)
        factors = {name: (scopes, features.get(name)) for name, scopes in self.scopes.items()}
        object.__setattr__(other, "factors", factors)
        object.__setattr__(other, "features", dict(features))
        return other

    def __len__(self) -> int:
        return len(self.variables)


def _length(rows: Any) -> int:
    if isinstance(rows, str):
        return len(rows)  # types of one letter each
    if sparse.issparse(rows):
        return int(rows.shape[0])
    return sequence_length(rows, "features or types", "of rows")


def _check_length(entries: Any, name: str, n: int, of: str) -> None:
    if entries is not None and _length(entries) != n:
        raise InputError(f"{name} has {_length(entries)} entries, but there are {n} {of}.")


def _split_features(factors: Any) -> tuple[Any, Any]:
    """Scopes, and features or None, of the factors of one type: a table of scopes, or a pair of these and features."""
    if isinstance(factors, tuple) and len(factors) == 2 and not np.isscalar(factors[0]) and _is_table(factors[0]):
        return factors
    return factors, None


def _is_table(rows: Any) -> bool:
    """Whether ``rows`` is a list of scopes rather than one scope."""
    return np.ndim(rows) == 2 or (np.ndim(rows) == 1 and not len(rows))


def _table(rows: Any, what: str) -> Ints:
    """Rows of whole numbers as an array; an empty list has the shape (0, 2)."""
    try:
        table = np.asarray(rows)
    except ValueError:
        table = np.zeros(0)
    if table.size == 0 and table.ndim <= 2:
        width = table.shape[1] if table.ndim == 2 else 0
        return np.zeros((0, width or 2), dtype=np.int64)
    if table.ndim != 2 or table.dtype.kind not in "iu":
        raise InputError(f"{what} must be a table of whole numbers, one row each, got shape {table.shape}.")
    return table.astype(np.int64)


def _check_scopes(scopes: Ints, n: int, of: str, what: str) -> None:
    outside = np.flatnonzero(((scopes < 0) | (scopes >= n)).any(axis=1))
    if len(outside):
        r = int(outside[0])
        raise InputError(f"{of} {r} names {what}s {tuple(scopes[r].tolist())}, but {what}s run from 0 to {n - 1}.")
    ordered = np.sort(scopes, axis=1)
    twice = np.flatnonzero((ordered[:, 1:] == ordered[:, :-1]).any(axis=1))
    if len(twice):
        r = int(twice[0])
        raise InputError(f"{of} {r} names a {what} twice: {tuple(scopes[r].tolist())}; the {what}s must differ.")


def _attributes(entries: Any, name: str | None, what: str) -> list[Any] | None:
    """The named attribute of all nodes or edges; None without a name."""
    if name is None:
        return None
    for entry, data in entries:
        if name not in data:
            raise InputError(f"{what} {entry} has no attribute {name!r}; set it, or name another attribute.")
    return [data[name] for _, data in entries]
