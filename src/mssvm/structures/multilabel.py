"""Several binary labels of one instance: an ordinary multi-label problem, with links between the labels.

theta(x, y) = sum_j x . node:j[:, y_j] + bias:j[y_j] + sum_(j,k) edge:j-k[y_j, y_k]

Links are a tree, all pairs, none, or those given. The tree is that of Chow and Liu (1968): the spanning tree with the
largest sum of mutual informations between labels, estimated from the training labels that are not missing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any, ClassVar

import numpy as np
from scipy import sparse

from mssvm.core.arrays import Floats, Ints
from mssvm.core.checks import shown
from mssvm.core.errors import InputError
from mssvm.data.labels import LabelVocabulary
from mssvm.structures.base import Schema, Sources
from mssvm.structures.encoder import Encoder
from mssvm.structures.layout import InstanceTopology
from mssvm.structures.pairwise import Pairwise, SiteGraph
from mssvm.structures.weights import WeightBlock

SMOOTHING = 0.5  # added to every count of a pair of labels

Pair = tuple[int, int]


@dataclass(eq=False, repr=False)
class MultiLabel(Pairwise):
    """Binary labels, several for every instance, any of them missing; every label has weights of its own.

    Parameters
    ----------
    graph : "tree", "full", "none" or an iterable of pairs
        Which labels are linked: those of the Chow-Liu tree of the training labels, all, none (one classifier for each
        label), or the pairs named (by name or number). Inference is exact on trees, and on small other graphs.
    names : iterable of str
        What the labels are called, in the order of the columns of y; their numbers by default.
    hidden : int
        States of the hidden variables; 0 for none. By default there is one on every link, y_j - h_jk - y_k, that sees
        the features.
    linked : bool
        Put one hidden variable under every label instead, linked as the labels would be.
    direct : bool
        Keep direct links between labels beside the hidden variables.
    forbidden : mapping of link, named "j-k", to pairs of labels
        Joint labels that a link may not have.
    fixed : mapping of block to weights
        Known weights that training leaves alone (see ``Chain``).

    X is an array or a sparse matrix (n, d), a data frame, or a list of rows or of named features; y an array (n, L) of
    two classes, with ``MISSING``, None, NaN or ``missing_label`` where a label is not known. Predictions are (n, L).

    >>> rows, labels = np.array([[1.0], [1.0], [-1.0], [-1.0]]), np.array([[1, 1], [1, np.nan], [0, 0], [0, 0]])
    >>> ms.HCRF(ms.MultiLabel(names=["red", "round"])).fit(rows, labels).predict(rows[1:3]).tolist()
    [[1.0, 1.0], [0.0, 0.0]]
    """

    learns_from_labels: ClassVar[bool] = True

    graph: str | Iterable[Sequence[Any]] = "tree"
    names: Iterable[str] | None = None
    hidden: int = 0
    linked: bool = False
    direct: bool = False
    forbidden: Any = None
    fixed: Mapping[str, Any] | None = None

    def check(self) -> None:
        super().check()
        if isinstance(self.graph, str) and self.graph not in ("tree", "full", "none"):
            raise InputError(f"graph must be 'tree', 'full', 'none' or pairs of labels, got {self.graph!r}.")

    def instances(self, X: Any) -> Sequence[Any]:
        """Every instance as a table of one row."""
        if sparse.issparse(X):
            packed = sparse.csr_array(X)
            return [packed[[b]] for b in range(packed.shape[0])]
        if hasattr(X, "to_numpy"):
            X = X.to_numpy()
        if isinstance(X, np.ndarray) and X.dtype != object:
            if X.ndim != 2:
                raise InputError(f"X has shape {X.shape}; MultiLabel needs one row of features per instance, (n, d).")
            return list(X[:, None, :])
        return [_row(x, b) for b, x in enumerate(super().instances(X))]

    def read(self, X: Sequence[Any]) -> Sources:
        return Sources({"node": list(X)}, [()] * len(X))

    def types_from_labels(self, y: Any, vocabulary: LabelVocabulary) -> dict[str, tuple[str, ...]]:
        """Names of the labels ("node") and of the links ("edge"), and the numbers of the links' "ends"."""
        n = len(y[0]) if y is not None and len(y) else 0
        if vocabulary.n_classes > 2:
            hint = "give missing_label= if one of them marks missing labels"
            raise InputError(f"MultiLabel has binary labels, but y holds {vocabulary.shown}; {hint}.")
        names = [str(j) for j in range(n)] if self.names is None else [str(name) for name in self.names]
        if len(names) != n or len(set(names)) != n:
            raise InputError(f"names lists {len(set(names))} different names, but y has {n} labels; name each once.")
        labels = vocabulary.encode(y, [(n,)] * len(y))
        pairs = self._pairs(np.where(labels.single, labels.states, -1).reshape(-1, n), names)
        links = tuple(f"{names[j]}-{names[k]}" for j, k in pairs)
        return {"node": tuple(names), "edge": links, "ends": tuple(f"{j} {k}" for j, k in pairs)}

    def joined_types(
        self, earlier: Mapping[str, tuple[str, ...]], later: Mapping[str, tuple[str, ...]]
    ) -> dict[str, tuple[str, ...]]:
        """The graph stays as it was learned first; y must have the same labels."""
        if later["node"] != earlier["node"]:
            n = len(later["node"])
            raise InputError(f"y has {n} labels an instance, but the model learned {len(earlier['node'])}.")
        return dict(earlier)

    def _pairs(self, states: Ints, names: list[str]) -> list[Pair]:
        if self.graph == "tree":
            return chow_liu_tree(states)
        if self.graph == "full":
            return list(combinations(range(len(names)), 2))
        if isinstance(self.graph, str):
            return []
        number: dict[Any, int] = {}
        for j, name in enumerate(names):
            number[name] = j
        for j in range(len(names)):
            number[j] = j
        pairs: list[Pair] = []
        for pair in self.graph:
            ends = set()
            if isinstance(pair, (tuple, list)):
                ends = {number[end] for end in pair if end in number}
            if len(ends) != 2 or len(pair) != 2:
                raise InputError(f"graph holds {pair!r}; it needs pairs of two of the {len(names)} labels.")
            pairs.append((min(ends), max(ends)))
        return list(dict.fromkeys(pairs))  # without repeats

    def blocks(self, schema: Schema, vocabulary: LabelVocabulary) -> tuple[WeightBlock, ...]:
        # Both ends of a link have the same features, so the features of one end are enough.
        blocks = super().blocks(schema, vocabulary)
        return tuple(block for block in blocks if not block.name.startswith("right.x:"))

    def site_graph(self, key: Any, schema: Schema) -> SiteGraph:
        n = len(schema.types_of("node"))
        ends = [pair.split() for pair in schema.types_of("ends") if pair]
        edges = np.array(ends, dtype=np.int64).reshape(-1, 2)
        return SiteGraph((n,), edges, np.arange(n), np.arange(len(edges)))

    def topology(self, key: Any, encoder: Encoder) -> InstanceTopology:
        # All labels of an instance, and all links, have its one row of features.
        topology = super().topology(key, encoder)
        rows = {name: np.zeros_like(members) for name, members in topology.rows.items()}
        return replace(topology, sizes={"node": 1}, rows=rows, table=True)


def chow_liu_tree(states: Ints) -> list[Pair]:
    """The spanning tree of largest mutual information; ``states`` (n, L), -1 where missing. Ties go to low numbers."""
    n = states.shape[1]
    gain = mutual_information(states)
    tree: list[Pair] = []
    component = list(range(n))  # the component of every label in the forest so far
    for j, k in sorted(combinations(range(n), 2), key=lambda pair: -gain[pair]):
        if component[j] != component[k]:
            tree.append((j, k))
            component = [component[j] if c == component[k] else c for c in component]
    return sorted(tree)


def mutual_information(states: Ints) -> Floats:
    """Mutual information (L, L) of every two columns, from smoothed counts of the rows where neither is missing."""
    n_states = max(int(states.max(initial=0)) + 1, 2)
    indicators = [(states == state).astype(np.float64) for state in range(n_states)]
    joint = np.array([[a.T @ b for b in indicators] for a in indicators]) + SMOOTHING
    joint /= joint.sum(axis=(0, 1))
    independent = joint.sum(axis=1, keepdims=True) * joint.sum(axis=0, keepdims=True)
    return np.asarray((joint * np.log(joint / independent)).sum(axis=(0, 1)))


def _row(x: Any, b: int) -> Any:
    """One instance as a table of one row."""
    if isinstance(x, str) or (isinstance(x, np.ndarray) and x.ndim != 1):
        raise InputError(f"expected one row of features, got {shown(x)}.", instance=b)
    if sparse.issparse(x):
        return x
    if isinstance(x, np.ndarray):
        return x[None]
    return [x]
