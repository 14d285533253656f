"""Starts of the search for outputs by minimum cuts (``cuts``), where no variable is summed out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from mssvm.core.arrays import Ints
from mssvm.inference.propagation.cuts import CutModel
from mssvm.inference.propagation.uniforms import uniforms

if TYPE_CHECKING:
    from mssvm.inference.propagation.search import OutputSearch

CUT_STREAM = (1 << 20) + 1
CUT_TOLERANCE = 1e-9  # relative to a score: a bound within this distance proves that the score is the maximum


def cut(search: OutputSearch, instances: Ints) -> None:
    """One minimum cut where every variable has at most two states; a labelling that meets its bound is exact."""
    call = search.call
    for b, model in _cut_models(search, instances):
        if int(model.n_allowed.max()) > 2:
            continue
        low, high = model.extremes()
        if _ties_go_down(search):
            labelling, upper = model.mix(high, low)
        else:
            labelling, upper = model.mix(low, high)
        search.judge.judge_labelling(b, labelling, "minimum cut")
        if not call.upper[b] <= upper:
            call.upper[b] = upper
        if call.value[b] >= upper - CUT_TOLERANCE * (1.0 + abs(upper)):
            call.exact[b] = True
            call.converged[b] = True
            call.residual[b] = 0.0


def expansions(search: OutputSearch, instances: Ints) -> None:
    """Improve the best states so far by expansions; with ``judge_moves`` also the best states of single variables."""
    call = search.call
    for b, model in _cut_models(search, instances):
        first, end = call.bound_query.batch.var_ptr[b : b + 2]
        best = call.y[first:end].copy()
        beginnings = []
        if best[0] >= 0:
            beginnings.append(best)
        if call.effort.judge_moves or not beginnings:
            beginnings.append(model.best_alone())
        for y in beginnings:
            search.judge.judge_labelling(b, model.expand(y, call.effort.expansions), "expansions by cuts")


def _cut_models(search: OutputSearch, instances: Ints) -> Iterator[tuple[int, CutModel]]:
    """The instances that cuts can improve: they have cycles, their factors join pairs, and no variable is summed."""
    if search.task.temperatures.eps_h > 0.0:
        return
    bound_query = search.call.bound_query
    loopy = instances[~bound_query.forest[instances] & bound_query.batch.pairwise[instances]]
    for b in loopy.tolist():
        model = CutModel.of(bound_query.batch, search.call.theta, bound_query.query.allowed, b)
        if model is not None:
            yield b, model


def _ties_go_down(search: OutputSearch) -> bool:
    """Whether a cut prefers the lower of two equally good states, a choice made by the seed."""
    seed = search.call.bound_query.plan.settings.seed
    return bool(uniforms(np.zeros(1, dtype=np.int64), seed, CUT_STREAM)[0] < 0.5)
