"""Chains: one label per position (paper section 6.1 uses the chain with hidden variables between the labels)."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from mssvm.core.errors import InputError
from mssvm.data.labels import LabelVocabulary
from mssvm.structures.base import Raw, check_flag, label_mask
from mssvm.structures.encoder import HardConstraint, Schema, WeightBlock
from mssvm.structures.pairwise import Frame, Pairwise, edge_source, split


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
    """

    edge_name = "transition"

    def __init__(
        self,
        hidden: int = 0,
        linked: bool = False,
        direct: bool = False,
        ends: bool = False,
        forbidden: Iterable[tuple[Hashable, Hashable]] | None = None,
        forced: Mapping[Hashable, Any] | None = None,
        fixed: Mapping[str, Any] | None = None,
    ) -> None:
        self.hidden = hidden
        self.linked = linked
        self.direct = direct
        self.ends = ends
        self.forbidden = forbidden
        self.forced = forced
        self.fixed = fixed

    def check(self) -> None:
        super().check()
        check_flag(self.ends, "ends")
        if isinstance(self.forbidden, Mapping):
            raise InputError("forbidden must be an iterable of label pairs; chains have one type of edge.")

    def read(self, X: Sequence[Any]) -> Raw:
        pairs = [split(item, b) for b, item in enumerate(X)]
        return Raw({"node": [x for x, _ in pairs], **edge_source([e for _, e in pairs])})

    def frame(self, key: Any, schema: Schema) -> Frame:
        n = int(key)
        at = np.arange(n)
        marks = {"first": at[:1], "last": at[-1:]}
        zeros = np.zeros(n, dtype=np.int64)
        return Frame((n,), np.stack([at[:-1], at[1:]], axis=1), zeros, zeros[1:], marks)

    def blocks(self, schema: Schema, vocabulary: LabelVocabulary) -> tuple[WeightBlock, ...]:
        out = super().blocks(schema, vocabulary)
        if self.ends:
            n = vocabulary.n_classes
            out = (*out, WeightBlock("start", "first", ("label",), (n,)), WeightBlock("end", "last", ("label",), (n,)))
        return out

    def forbidden_pairs(self, schema: Schema, vocabulary: LabelVocabulary) -> dict[str, Any]:
        mask = np.zeros((vocabulary.n_classes, vocabulary.n_classes), dtype=bool)
        for a, b in _pairs(self.forbidden):
            if a is not None and b is not None:
                mask[vocabulary.index(a, "forbidden"), vocabulary.index(b, "forbidden")] = True
        for a, after in (self.forced or {}).items():
            many = after if isinstance(after, (list, set, frozenset)) else (after,)
            mask[vocabulary.index(a, "forced")] |= ~label_mask(many, vocabulary, "forced")
        return {"": mask} if mask.any() else {}

    def constraints(self, schema: Schema, vocabulary: LabelVocabulary) -> list[HardConstraint]:
        out = super().constraints(schema, vocabulary)
        for group, ends in (
            ("first", [b for a, b in _pairs(self.forbidden) if a is None]),
            ("last", [a for a, b in _pairs(self.forbidden) if b is None]),
        ):
            if ends:
                out.append(HardConstraint(group, label_mask(ends, vocabulary, "forbidden")))
        return out


def _pairs(forbidden: Iterable[Any] | None) -> list[tuple[Any, Any]]:
    pairs = list(forbidden or ())
    for pair in pairs:
        if not isinstance(pair, (tuple, list)) or len(pair) != 2 or (pair[0] is None and pair[1] is None):
            raise InputError(f"forbidden holds {pair!r}; it needs pairs (label, next label).")
    return [(a, b) for a, b in pairs]
