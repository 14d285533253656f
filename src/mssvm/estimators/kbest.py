"""The k best outputs of every instance, by partitioning (Lawler 1972): exact wherever inference is.

The outputs other than the best one, y*, fall into disjoint sets: set t agrees with y* before output t and differs from
it there. Each is a mask of allowed states, so its best member is one call of the same inference; taking the best of all
sets and splitting that set further gives the next best, and so on. All instances and sets of a round run in one batch.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass, field

import numpy as np

from mssvm.core.arrays import Bools, Floats, Ints, sum_by
from mssvm.core.checks import count
from mssvm.core.errors import UnsupportedError
from mssvm.core.memory import check_memory
from mssvm.core.potentials import Query
from mssvm.core.topology import Batch, counts
from mssvm.estimators.prediction import PredictionRequest

STATES_AT_ONCE = 1 << 20


@dataclass(order=True)
class Leaf:
    """The best member of a set of outputs; ordered so that the best comes first."""

    cost: float
    number: int
    states: Ints = field(compare=False)
    allowed: Bools = field(compare=False)


def k_best(request: PredictionRequest, k: int) -> list[list[tuple[float, Ints]]]:
    """Per instance up to k pairs (score, states of all variables) of different outputs, best first."""
    batch = request.encoded.batch
    _check_size(batch, request.query, k)
    spans = [batch.state_span(b) for b in range(len(batch))]
    heaps: list[list[Leaf]] = [[] for _ in spans]
    best: list[list[tuple[float, Ints]]] = [[] for _ in spans]
    sets = [(b, request.query.allowed[span]) for b, span in enumerate(spans)]
    for _ in range(k):
        if not sets and not any(heaps):
            break  # every output has been found
        sizes = np.array([len(mask) for _, mask in sets], dtype=np.int64)
        call = (np.cumsum(sizes) - sizes) // STATES_AT_ONCE
        for part in np.split(np.arange(len(sets)), np.flatnonzero(np.diff(call)) + 1):
            _evaluate(request, [sets[s] for s in part], heaps)
        sets = []
        for b, heap in enumerate(heaps):
            if heap:
                leaf = heapq.heappop(heap)
                best[b].append((-leaf.cost, leaf.states))
                if len(best[b]) < k:
                    sets += [(b, mask) for mask in _split(batch, request.query.output, b, leaf)]
    return best


def _check_size(batch: Batch, query: Query, k: int) -> None:
    """Raise if the sets of all outputs but the best do not fit into memory. Every labelling that is returned, of which
    there are at most k and no more than exist, leaves a set for each output site; a set has a mask over the states of
    its instance and the states of its best member."""
    log_states = np.where(query.output, np.log(np.maximum(query.n_allowed(batch), 1)), 0.0)
    n_existing = np.exp(np.minimum(sum_by(batch.owner, log_states, len(batch)), math.log(k)))
    n_sets = np.maximum(n_existing - 1.0, 0.0) * counts(query.output, batch.var_ptr)
    bytes_of_set = np.diff(batch.unary_ptr[batch.var_ptr]) + 8 * np.diff(batch.var_ptr)
    what = f"finding the {k} best labellings of {len(batch)} instances"
    check_memory(float(n_sets @ bytes_of_set), what, "give fewer instances at a time, or shorter ones")


def _evaluate(request: PredictionRequest, sets: list[tuple[int, Bools]], heaps: list[list[Leaf]]) -> None:
    """Find the best member of every set and put it on its instance's heap."""
    if not sets:
        return
    batch = request.encoded.batch
    instances = np.array([b for b, _ in sets], dtype=np.int64)
    roles = [request.query.output[batch.var_ptr[b] : batch.var_ptr[b + 1]] for b in instances]
    query = Query(np.concatenate(roles), np.concatenate([mask for _, mask in sets]))
    belief, states = request.variants(instances, query)
    inexact = np.flatnonzero(~belief.status.exact)
    if len(inexact):
        raise UnsupportedError(
            f"instance {int(instances[inexact[0]])}: the k best outputs need exact inference, which this structure and "
            "member do not have here; use a chain or a tree without linked hidden variables, or raise memory_limit."
        )
    ends = np.cumsum([len(r) for r in roles])[:-1]
    for (b, mask), value, part in zip(sets, belief.value, np.split(states, ends), strict=True):
        if np.isfinite(value):
            heapq.heappush(heaps[b], Leaf(-float(value), len(heaps[b]), part, mask))


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


def gap_to_second(request: PredictionRequest) -> Floats:
    """Score of the best output minus that of the second best; inf where there is only one."""
    gaps = []
    for best in k_best(request, 2):
        if len(best) < 2:
            gaps.append(np.inf)
            continue
        (first, _), (second, _) = best
        gaps.append(first - second)
    return np.array(gaps)


def check_k(k: object) -> int:
    """A whole number >= 1, or an error."""
    return count(k, "k", 1)
