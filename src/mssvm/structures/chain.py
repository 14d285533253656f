"""Chains: a label at every position of a sequence, with hidden variables between the labels or under them.

Chains of second order add trigram[y_t, y_{t+1}, y_{t+2}]; the other scores are those of ``pairwise``.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from mssvm.core.checks import count, mapping
from mssvm.data.labels import LabelVocabulary
from mssvm.structures.base import Schema, Sources, label_mask
from mssvm.structures.pairwise import LABEL, Pairwise, SiteGraph, edge_source, label_pairs, pair_mask, split_edges
from mssvm.structures.tags import illegal_pairs
from mssvm.structures.weights import HardConstraint, WeightBlock

TRIGRAM = "trigram"


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
        of its position. Sums, joint maxima and marginals stay exact; marginal MAP is hard and is approximated.
    direct : bool
        Keep direct transitions y_t -> y_{t+1} beside the hidden variables.
    ends : bool
        Separate scores for the first and the last label.
    forbidden : iterable of (label, next label), "bio" or "bioes"
        Transitions that never happen; ``None`` as the first stands for the start of the sequence, as the second for
        its end: ``[("O", "I"), (None, "I")]``. "bio" and "bioes" stand for all transitions that are illegal in these
        tagging schemes (O, B-x, I-x, also E-x, S-x), so that no prediction has an I-x without its B-x.
    forced : mapping of label to a label or an iterable of labels
        The labels that must follow a label; every other successor is forbidden.
    fixed : mapping of block to weights
        Known weights that training leaves alone: a number, an array with NaN where free, or
        ``{(feature, states...): weight}``.
    order : int
        2 adds a table over every three labels in a row. At one temperature inference stays exact, at a cost that grows
        with the cube of the number of labels; at two it may be approximate where long runs of labels are missing.

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
    forbidden: Iterable[tuple[Hashable, Hashable]] | str | None = None
    forced: Mapping[Hashable, Any] | None = None
    fixed: Mapping[str, Any] | None = None
    order: int = 1

    def check(self) -> None:
        super().check()
        count(self.order, "order", 1, 2)

    def read(self, X: Sequence[Any]) -> Sources:
        if all(type(item) is list for item in X):  # text, the common case: no edge features to look for
            return Sources({"node": list(X)})
        nodes = []
        edges = []
        for b, item in enumerate(X):
            x, edge_x = split_edges(item, b)
            nodes.append(x)
            edges.append(edge_x)
        return Sources({"node": nodes, **edge_source(edges)})

    def site_graph(self, key: Any, schema: Schema) -> SiteGraph:
        n = int(key)
        positions = np.arange(n)[:, None]
        edges = np.hstack([positions[:-1], positions[1:]])
        types = np.zeros(n, dtype=np.int64)
        marks = {"first": positions[:1], "last": positions[-1:]}
        if self.order == 2:
            marks[TRIGRAM] = np.hstack([positions[:-2], positions[1:-1], positions[2:]])
        return SiteGraph((n,), edges, types, types[1:], marks)

    def blocks(self, schema: Schema, vocabulary: LabelVocabulary) -> tuple[WeightBlock, ...]:
        blocks = super().blocks(schema, vocabulary)
        if self.order == 1:
            return blocks
        n = vocabulary.n_classes
        return (*blocks, WeightBlock(TRIGRAM, TRIGRAM, (LABEL, LABEL, LABEL), (n, n, n)))

    def constraints(self, schema: Schema, vocabulary: LabelVocabulary) -> list[HardConstraint]:
        if self.forbidden is None and self.forced is None:
            return []
        forbidden = self.forbidden
        if isinstance(forbidden, str):
            forbidden = illegal_pairs(forbidden, vocabulary.classes)
        pairs = label_pairs(forbidden)
        transitions = pair_mask([pair for pair in pairs if None not in pair], vocabulary)
        for label, successors in mapping(self.forced, "forced", "labels to what must follow them").items():
            if not isinstance(successors, (list, set, frozenset)):
                successors = (successors,)
            transitions[vocabulary.index(label, "forced")] |= ~label_mask(successors, vocabulary, "forced")
        first = label_mask([b for a, b in pairs if a is None], vocabulary, "forbidden")
        last = label_mask([a for a, b in pairs if b is None], vocabulary, "forbidden")
        masks = {"edge": transitions, "first": first, "last": last}
        return [HardConstraint(group, mask) for group, mask in masks.items() if mask.any()]
