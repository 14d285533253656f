"""Which families may run with copies of their hidden variables, at eps_y = eps_h / n (``cpp/copies.hpp``)."""

from __future__ import annotations

from math import comb

import numpy as np

from mssvm.core.arrays import Bools
from mssvm.core.potentials import Query
from mssvm.core.topology import Batch
from mssvm.engines.native.families import Kinds

MOST_COPIES = 8  # powers up to this of exp(-40) are far from underflow


def copies_of(batch: Batch, kinds: Kinds, query: Query, eps_y: float, eps_h: float) -> int:
    """Number of copies of hidden variables; 0 if copying is impossible, or no faster than rows."""
    ratio = eps_h / eps_y if eps_y > 0.0 else 0.0
    n = int(ratio) if ratio <= MOST_COPIES and ratio == int(ratio) else 0
    lead = kinds.readings[0]
    card = kinds.topologies[0].card_array[lead.order]
    if n < 2 or len(card) < 3 or np.any(card[::2] != card[0]) or np.any(card[1::2] != card[1]):
        return 0
    if int(card[0]) < comb(n + int(card[1]) - 1, n):
        return 0
    label = _labels_in_turn(batch, kinds, query)
    return n if label is not None and _one_axis(kinds, label) else 0


def _labels_in_turn(batch: Batch, kinds: Kinds, query: Query) -> Bools | None:
    """Which positions of a path are labels, if labels and hidden variables alternate and labels are at both ends."""
    lead = kinds.readings[0]
    n = len(lead.order)
    label: Bools = np.arange(n - 1, -1, -1) % 2 == 0
    if not np.array_equal(lead.parent, np.arange(1, n + 1)):
        return None
    for reading, chosen in zip(kinds.readings, kinds.instances, strict=True):
        mine = label[n - len(reading.order) :]
        output = query.output[batch.var_ptr[chosen][:, None] + reading.order]
        if not mine[0] or output[:, ~mine].any():
            return None
    return label


def _one_axis(kinds: Kinds, label: Bools) -> bool:
    """Whether every table has its labels on the same axis wherever it is used."""
    flip = kinds.readings[0].flip[:-1]
    rows = flip != label[:-1]  # labels are the table's rows
    return len(np.unique(kinds.tables)) == len(np.unique(np.stack([kinds.tables, rows]), axis=1).T)
