"""The k best outputs by partitioning (Lawler 1972): exact wherever inference is, whatever the graph and temperatures.

The outputs other than the best one, y*, fall into disjoint sets: set t agrees with y* before output t and differs from
it there. Each is a mask of allowed states, so its best member is one call of the same inference; taking the best of all
sets and splitting that set further gives the next best, and so on. All instances and sets of a round run in one batch.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field

import numpy as np

from mssvm.core.arrays import Bools, Floats, Ints
from mssvm.core.errors import InputError, UnsupportedError
from mssvm.core.potentials import Query
from mssvm.core.topology import Batch
from mssvm.estimators.decoding import Question

STATES_AT_ONCE = 1 << 20


@dataclass(order=True)
class Leaf:
    """The best member of a set of outputs; ordered so that the best comes first."""

    cost: float
    number: int
    states: Ints = field(compare=False)
    allowed: Bools = field(compare=False)


def k_best(question: Question, k: int) -> list[list[tuple[float, Ints]]]:
    """Per instance up to k pairs (score, states of all variables) of different outputs, best first."""
    batch = question.encoded.batch
    spans = [batch.state_span(b) for b in range(len(batch))]
    heaps: list[list[Leaf]] = [[] for _ in spans]
    found: list[list[tuple[float, Ints]]] = [[] for _ in spans]
    sets = [(b, question.query.allowed[span]) for b, span in enumerate(spans)]
    for _ in range(k):
        _grow(question, sets, heaps)
        sets = []
        for b, heap in enumerate(heaps):
            if heap:
                leaf = heapq.heappop(heap)
                found[b].append((-leaf.cost, leaf.states))
                if len(found[b]) < k:
                    sets += [(b, mask) for mask in _split(batch, question.query.output, b, leaf)]
    return found


def _grow(question: Question, sets: list[tuple[int, Bools]], heaps: list[list[Leaf]]) -> None:
    """Find the best member of every set and put it on its instance's heap."""
    first = 0
    while first < len(sets):
        size, last = 0, first
        while last < len(sets) and (last == first or size < STATES_AT_ONCE):
            size += len(sets[last][1])
            last += 1
        _evaluate(question, sets[first:last], heaps)
        first = last


def _evaluate(question: Question, sets: list[tuple[int, Bools]], heaps: list[list[Leaf]]) -> None:
    batch = question.encoded.batch
    which = np.array([b for b, _ in sets], dtype=np.int64)
    roles = [question.query.output[batch.var_ptr[b] : batch.var_ptr[b + 1]] for b in which]
    query = Query(np.concatenate(roles), np.concatenate([mask for _, mask in sets]))
    belief, states = question.variants(which, query)
    _demand_exact(belief.status.exact, which)
    ends = np.cumsum([len(r) for r in roles])[:-1]
    for (b, mask), value, part in zip(sets, belief.value, np.split(states, ends), strict=True):
        if np.isfinite(value):
            heapq.heappush(heaps[b], Leaf(-float(value), len(heaps[b]), part, mask))


def _demand_exact(exact: Bools, which: Ints) -> None:
    if not exact.all():
        b = int(which[np.flatnonzero(~exact)[0]])
        raise UnsupportedError(
            f"instance {b}: the k best outputs need exact inference, which this structure and member do not have here; "
            "use a chain or a tree without linked hidden variables, or raise memory_limit."
        )


def _split(batch: Batch, output: Bools, b: int, leaf: Leaf) -> list[Bools]:
    """The sets of outputs left in the leaf's set without its best member."""
    first = int(batch.var_ptr[b])
    at = batch.unary_ptr[first : int(batch.var_ptr[b + 1]) + 1] - batch.unary_ptr[first]
    out = []
    agreed = leaf.allowed.copy()
    for i in np.flatnonzero(output[first : first + len(leaf.states)]):
        best = int(at[i] + leaf.states[i])
        if np.count_nonzero(agreed[at[i] : at[i + 1]]) > 1:
            child = agreed.copy()
            child[best] = False
            out.append(child)
        agreed[at[i] : at[i + 1]] = False
        agreed[best] = True
    return out


def gap_to_second(question: Question) -> Floats:
    """Score of the best output minus that of the second best; inf where there is only one."""
    pairs = k_best(question, 2)
    return np.array([pair[0][0] - pair[1][0] if len(pair) > 1 else np.inf for pair in pairs])


def check_k(k: object) -> int:
    if isinstance(k, bool) or not isinstance(k, (int, np.integer)) or k < 1:
        raise InputError(f"k must be a whole number >= 1, got {k!r}.")
    return int(k)
