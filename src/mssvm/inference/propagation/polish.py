"""Local improvement of the best outputs: coordinate ascent and annealed Gibbs sampling of Q, or flips by messages.

Where hidden components are trees Q changes locally and is exact; elsewhere sum-product given y proposes the changes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from mssvm.core.arrays import Floats, Ints
from mssvm.core.potentials import segment_argmax
from mssvm.core.topology import Topology
from mssvm.engines.messages import Annealing
from mssvm.inference.propagation.judge import score_range
from mssvm.inference.propagation.uniforms import uniforms

if TYPE_CHECKING:
    from mssvm.inference.propagation.search import OutputSearch

# Gibbs sampling starts and ends at these fractions of the range of scores at a variable.
HOT = 16.0
COLD = 200.0
GAIN = 1e-9  # a smaller rise of a score is rounding


def polish(search: OutputSearch, instances: Ints) -> None:
    """Improve the best y of the named instances while Q rises."""
    forest = search.components.forest[instances]
    if forest.any():
        _local_search(search, instances[forest])
    if not forest.all():
        _flip_by_messages(search, instances[~forest])


def _local_search(search: OutputSearch, instances: Ints) -> None:
    """Coordinate ascent on Q from the best y, then rounds of annealed Gibbs sampling."""
    call = search.call
    judge = search.judge
    effort = call.effort
    batch = call.bound_query.batch
    free = call.bound_query.free & search.components.outside
    judge.take_best(instances)
    judge.conditional.improve(instances, free, judge.y)
    judge.judge(instances)
    max_free = int(np.bincount(batch.owner[free], minlength=len(batch))[instances].max())
    score_ranges = score_range(call.model.range)
    for k in range(effort.gibbs):
        judge.take_best(instances)
        draws = uniforms(np.arange(effort.rounds * max_free), call.bound_query.plan.settings.seed, k)
        annealing = Annealing(score_ranges / HOT, score_ranges / COLD, effort.rounds, effort.budget, draws)
        judge.conditional.improve(instances, free, judge.y, annealing)
        before = call.value[instances].copy()
        judge.judge(instances)
        call.method[instances[call.value[instances] > before]] = "annealed Gibbs search"


def _flip_by_messages(search: OutputSearch, instances: Ints) -> None:
    """Move outputs to the best state under the messages of sum-product given the others, while Q rises.

    Of the moves that gain, the best ``share`` is made at once; it is halved where that lowers Q.
    """
    call = search.call
    judge = search.judge
    batch = call.bound_query.batch
    share = np.ones(len(batch))
    n_moved = np.zeros(len(batch), dtype=np.int64)
    for _ in range(call.effort.flips):
        score = judge.sum_given(instances, call.y).scores(instances)
        judge.take_best(instances)
        for b in instances:
            n_moved[b] = _propose(search, int(b), score[batch.state_span(b)], share[b])
        instances = instances[n_moved[instances] > 0]
        if not len(instances):
            break
        before = call.value[instances].copy()
        judge.judge(instances)
        worse = ~(call.value[instances] > before)
        share[instances] = np.where(worse, 0.5 * share[instances], 1.0)
        # A single move that does not gain ends the search.
        instances = instances[~(worse & (n_moved[instances] == 1))]
        if not len(instances):
            break


def _propose(search: OutputSearch, b: int, score: Floats, share: float) -> int:
    """Put outputs of b at their state of highest score under trial; returns the number of moves.

    Of the moves that gain, the best ``share`` is made, no two of them in one factor.
    """
    batch = search.call.bound_query.batch
    graph = batch.topology(b)
    variables = slice(int(batch.var_ptr[b]), int(batch.var_ptr[b + 1]))
    y = search.judge.y[variables]
    target = segment_argmax(score, graph.unary_ptr)
    movable = (search.call.bound_query.free & search.components.outside)[variables]
    at = graph.unary_ptr[:-1]
    with np.errstate(invalid="ignore"):
        gain = np.where(movable, score[at + target] - score[at + y], 0.0)
    max_moves = int(np.ceil(share * np.count_nonzero(gain > GAIN)))
    factor_ptr, factors = _factors_by_variable(graph)
    blocked = np.zeros(len(y), dtype=bool)
    n_moves = 0
    for k in np.argsort(-gain, kind="stable"):
        if n_moves == max_moves or not gain[k] > GAIN:
            break
        if blocked[k]:
            continue
        y[k] = target[k]
        n_moves += 1
        for f in factors[factor_ptr[k] : factor_ptr[k + 1]]:
            blocked[list(graph.scopes[f])] = True
    return n_moves


def _factors_by_variable(graph: Topology) -> tuple[Ints, Ints]:
    """Offsets, and the factors of each variable."""
    slots = np.argsort(graph.scope_flat, kind="stable")
    factors = np.searchsorted(graph.scope_ptr, slots, side="right") - 1
    return np.searchsorted(graph.scope_flat[slots], np.arange(graph.n_vars + 1)), factors
