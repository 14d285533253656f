"""Marginal MAP by messages (eps_y = 0): several starts, each decoded y judged by its evaluated Q, the best polished.

    merged       hidden components summed out, then max-product over the outputs (exact on forests)
    cut          a minimum cut, where no variable is summed and none has more than two states (exact if submodular)
    marginals    sum-product; its max-marginals are a candidate; mixed-product only where ``regions`` cannot run
    sum first    sum-product; its max-marginals are a candidate; then mixed-product from its messages
    regions      the best states so far, with whole regions relabelled; then as sum first, from messages of the result
    cold         mixed-product from uniform messages
    damped       the same with damping
    annealed     eps_y falls from eps_h, messages carried over; then mixed-product
    joint        max-product over all variables, its outputs a candidate
    random       mixed-product from random messages
    expansions   the best states so far, improved by cuts; with ``judge_moves`` also those of single variables
    Gibbs        annealed Gibbs sampling of exp(Q(y) / t), where Q changes locally

Convergence is not quality: argmax messages of mixed-product have poor fixed points; only Q tells them apart. ``judge``
evaluates it; ``starts`` and ``cut_starts`` produce candidates, ``polish`` improves the best of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import numpy as np

from mssvm.core.arrays import Ints
from mssvm.engines.messages import Conditional, MessageModel, MessageRun, Schedule, Temperatures
from mssvm.inference.propagation import cut_starts, polish, starts
from mssvm.inference.propagation.judge import Judge

if TYPE_CHECKING:
    from mssvm.inference.propagation.call import PropagationCall
    from mssvm.inference.propagation.merging import Merging
    from mssvm.inference.propagation.plan import MessageTask

PROVEN = 1e-9  # relative to a value: a y this close to the maximum of the merged model is optimal


class OutputSearch:
    """The search for the outputs y of the instances of one task.

    ``call`` collects the report, ``judge`` holds the states under trial, ``messages`` is the run that all starts use.
    """

    def __init__(
        self,
        call: PropagationCall,
        task: MessageTask,
        conditional: Conditional,
        merged: MessageModel | None,
    ) -> None:
        assert task.components is not None
        self.call = call
        self.task = task
        self.components = task.components
        self.instances = task.instances
        self.messages = call.fresh_run(task.instances, task.temperatures, noisy=True)
        self.judge = Judge(call, task, self.messages.unit, conditional)
        self._merged = merged

    def run(self) -> None:
        """Find y, then the value Q(y) and the point mass on y times the marginals of h given y."""
        effort = self.call.effort
        for y in self.call.candidates:
            self.judge.try_candidate(y)
        open_instances = self._solve_merged()
        for name in effort.starts:
            if not len(open_instances):
                break
            STARTS[name](self, open_instances)
            open_instances = open_instances[~self.call.exact[open_instances]]
        if len(open_instances):
            for k in range(effort.restarts):
                starts.random(self, open_instances, k)
            if effort.flips:
                polish.polish(self, open_instances)
        self.judge.add_marginals(self.instances)

    def follow(
        self,
        run: MessageRun,
        temperatures: Temperatures,
        instances: Ints,
        name: str,
        schedule: Schedule | None = None,
    ) -> None:
        """Advance to convergence, judging the decoded y after 1, 2, 4, ... times the first number of sweeps.

        Convergence is reported for the run that found the best y, sweeps for all runs together.
        """
        call = self.call
        effort = call.effort
        schedule = schedule or effort.schedule
        value_before = call.value[instances].copy()
        sweeps_before = run.sweeps[instances]
        active = instances
        for n_sweeps in _checkpoints(effort.sweeps, effort.first_check):
            run.advance(active, temperatures, n_sweeps, schedule)
            run.decode(active, self.judge.y)
            self.judge.judge(active)
            active = active[~(run.residual[active] <= schedule.tolerance)]
            if not len(active):
                break
        call.sweeps[instances] += run.sweeps[instances] - sweeps_before
        is_better = call.value[instances] > value_before
        call.method[instances[is_better]] = name
        reported = instances[is_better | (call.residual[instances] == np.inf)]
        call.residual[reported] = run.residual[reported]
        call.converged[reported] = run.residual[reported] <= schedule.tolerance

    def _solve_merged(self) -> Ints:
        """Max-product on the merged model; returns the instances that it does not solve exactly."""
        if self._merged is None or self.task.merging is None:
            return self.instances
        self._maximise_merged(self._merged, self.task.merging)
        return self.instances[~self.call.exact[self.instances]]

    def _maximise_merged(self, merged: MessageModel, merging: Merging) -> None:
        call = self.call
        instances = np.intersect1d(self.instances, merging.instances)
        maxima = Temperatures.one(len(call.y), 0.0)
        run = merged.run()
        run.start(instances, None)
        self.follow(run, maxima, instances, "max-product over merged regions")
        converged = run.residual[instances] <= call.tolerance
        trees = instances[merging.forest[instances] & converged]
        if not len(trees):
            return
        run.beliefs(trees, maxima, call.upper, None)
        maximum = call.upper[trees]
        best = call.value[trees]
        call.exact[trees] = best >= maximum - PROVEN * (1.0 + np.abs(maximum))
        call.upper[trees] = np.where(call.exact[trees], best, maximum)


def _checkpoints(sweeps: int, first: int) -> Iterator[int]:
    """first, first, 2 first, 4 first, ... adding up to ``sweeps``; a single 0 for no sweeps."""
    if not sweeps:
        yield 0
    done = 0
    step = first
    while done < sweeps:
        n = min(step, sweeps - done)
        yield n
        done += n
        step = done


STARTS: dict[str, Callable[[OutputSearch, Ints], None]] = {
    "marginals": starts.marginals,
    "sum_first": starts.sum_first,
    "regions": starts.regions,
    "cold": starts.cold,
    "damped": starts.damped,
    "annealed": starts.annealed,
    "joint": starts.joint,
    "cut": cut_starts.cut,
    "expansions": cut_starts.expansions,
}
