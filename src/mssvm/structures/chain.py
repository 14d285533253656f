"""Chains: one label per position (paper section 7.1 uses the chain with hidden variables between the labels)."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, ClassVar

import numpy as np

from mssvm.core.checks import mapping
from mssvm.core.errors import InputError
from mssvm.data.labels import LabelVocabulary
from mssvm.structures.base import Raw, check_flag, label_mask
from mssvm.structures.encoder import HardConstraint, Schema, WeightBlock
from mssvm.structures.pairwise import Frame, Pairwise, edge_source, label_pairs, pair_mask, split


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

    def check(self) -> None:
        super().check()
        check_flag(self.ends, "ends")
        if isinstance(self.forbidden, Mapping):
            raise InputError("forbidden must be an iterable of label pairs; chains have one type of edge.")

    def read(self, X: Sequence[Any]) -> Raw:
        if set(map(type, X)) == {list}:  # the common case of text, sooner told
            return Raw({"node": list(X)})
        nodes, edges = zip(*map(split, X, count()), strict=True) if len(X) else ((), ())
        return Raw({"node": list(nodes), **edge_source(list(edges))})

    def frame(self, key: Any, schema: Schema) -> Frame:
        n = int(key)
        at, zeros = np.arange(n)[:, None], np.zeros(n, dtype=np.int64)
        return Frame((n,), np.hstack([at[:-1], at[1:]]), zeros, zeros[1:], {"first": at[:1], "last": at[-1:]})

    def blocks(self, schema: Schema, vocabulary: LabelVocabulary) -> tuple[WeightBlock, ...]:
        out = super().blocks(schema, vocabulary)
        if self.ends:
            n = vocabulary.n_classes
            out = (*out, WeightBlock("start", "first", ("label",), (n,)), WeightBlock("end", "last", ("label",), (n,)))
        return out

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
