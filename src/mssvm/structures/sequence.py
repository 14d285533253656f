"""One label per sequence over a chain of hidden variables: the classic hidden conditional random field.

    theta(x, y, h) = bias[y] + sum_t x_t . state[:, y, h_t] + label_state[y, h_t] + sum_t transition[y, h_t, h_{t+1}]

``per_class=False`` shares the state scores between the classes: x_t . state[:, h_t]. ``pool="mean"`` adds the mean of
the features over the sequence as features of the label itself: mean_t x_t . pooled[:, y].
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
from scipy import sparse

from mssvm.core.checks import count
from mssvm.core.errors import InputError
from mssvm.data.features import FeatureRows, FeatureSchema
from mssvm.data.labels import LabelVocabulary
from mssvm.structures.base import MOST_STATES, Parsed, Schema, Sources, Structure, check_flag
from mssvm.structures.encoder import Encoder
from mssvm.structures.layout import InstanceTopology
from mssvm.structures.weights import WeightBlock


@dataclass(eq=False, repr=False)
class SequenceLabel(Structure):
    """A label for a whole sequence, with a hidden state at every position.

    Parameters
    ----------
    hidden : int
        Number of hidden states, at least one.
    per_class : bool
        Whether each class scores the features of a state on its own, or all share one score per state.
    pool : None or "mean"
        Whether the mean features of the sequence score the label directly, too.
    fixed : mapping of block to weights
        Known weights that training leaves alone (see ``Chain``).

    X is a list of (T, d) arrays, sparse matrices or lists of named features; y has one label per sequence.

    >>> model = ms.HCRF(ms.SequenceLabel(hidden=2), C=10.0, random_state=0).fit(X, ["short", "long"])
    >>> model.predict(X).tolist()
    ['short', 'long']
    """

    depth: ClassVar[int] = 0

    hidden: int = 3
    per_class: bool = True
    pool: str | None = None
    fixed: Mapping[str, Any] | None = None

    def check(self) -> None:
        count(self.hidden, "hidden", 1, MOST_STATES)
        check_flag(self.per_class, "per_class")
        if self.pool not in (None, "mean"):
            raise InputError(f"pool must be None or 'mean', got {self.pool!r}.")

    def read(self, X: Sequence[Any]) -> Sources:
        return Sources({"node": list(X)})

    def derive(self, schema: Schema, parsed: Parsed) -> tuple[Schema, Parsed]:
        """With ``pool`` the mean features of every sequence are a source of their own."""
        if self.pool is None:
            return schema, parsed
        node = schema.features["node"]
        rows = parsed.rows["node"]
        n = len(rows.ptr) - 1
        lengths = np.diff(rows.ptr)
        owner = np.repeat(np.arange(n), lengths)
        shares = 1.0 / np.maximum(lengths, 1)[owner]
        average = sparse.csr_array((shares, (owner, np.arange(len(owner)))), shape=(n, len(owner)))
        means = FeatureRows(average @ rows.matrix, np.arange(n + 1))
        kind: Literal["dense", "sparse"] = "dense" if node.kind == "dense" else "sparse"
        pooled = FeatureSchema(kind, node.n_features, node.vocabulary, "pooled")
        return Schema({"node": node, "pooled": pooled}), Parsed({"node": rows, "pooled": means}, parsed.keys)

    def blocks(self, schema: Schema, vocabulary: LabelVocabulary) -> tuple[WeightBlock, ...]:
        n = vocabulary.n_classes
        k = self.hidden
        if self.per_class:
            state = WeightBlock("state", "label_state", ("label", "hidden"), (n, k), "node")
        else:
            state = WeightBlock("state", "state", ("hidden",), (k,), "node")
        blocks = [
            WeightBlock("bias", "label", ("label",), (n,)),
            state,
            WeightBlock("label_state", "label_state", ("label", "hidden"), (n, k)),
            WeightBlock("transition", "transition", ("label", "hidden", "hidden"), (n, k, k)),
        ]
        if self.pool is not None:
            blocks.append(WeightBlock("pooled", "label", ("label",), (n,), "pooled"))
        return tuple(blocks)

    def topology(self, key: Any, encoder: Encoder) -> InstanceTopology:
        n = int(key)
        label = np.zeros((n, 1), dtype=np.int64)  # variable 0, once for every hidden variable
        states = np.arange(1, n + 1)[:, None]
        groups = {
            # Transitions first: their one shared table then precedes the others, which are adjacent.
            "transition": np.hstack([label[1:], states[:-1], states[1:]]),
            "state": states,
            "label_state": np.hstack([label, states]),
            "label": np.zeros((1, 1), dtype=np.int64),
        }
        cards = np.repeat([encoder.vocabulary.n_classes, self.hidden], [1, n])
        return InstanceTopology(cards, np.arange(1), (), groups, {"node": n, "pooled": 1})
