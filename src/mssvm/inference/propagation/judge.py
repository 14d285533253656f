"""Judging of outputs: Q(y) = PS_{eps_h} over h of theta(y, h) of every y under trial; the best is recorded in the call.

Where hidden components are trees given y, Q is exact; elsewhere it is the Bethe value of sum-product given y.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from mssvm.core.arrays import Floats, Ints
from mssvm.core.topology import spans
from mssvm.engines.messages import Conditional, MessageRun, Temperatures

if TYPE_CHECKING:
    from mssvm.inference.propagation.call import PropagationCall
    from mssvm.inference.propagation.plan import MessageTask


class Judge:
    """Trial states ``y`` (one per variable) and their values ``q`` (one per instance), for the instances of a task.

    ``unit`` is the temperature of sums where eps_h is zero.
    """

    def __init__(self, call: PropagationCall, task: MessageTask, unit: float, conditional: Conditional) -> None:
        assert task.components is not None
        components = task.components
        self.call = call
        self.batch = call.bound_query.batch
        self.components = components
        self.conditional = conditional
        self.instances = task.instances
        self.sums = Temperatures.one(self.batch.n_vars, task.temperatures.eps_h or unit)
        self.y = np.zeros(self.batch.n_vars, dtype=np.int64)
        self.q = np.full(len(self.batch), np.nan)
        self._last_judged = np.full(self.batch.n_vars, -1, dtype=np.int64)
        self._last_conditioned = np.full(self.batch.n_vars, -1, dtype=np.int64)
        self._variables = self._variable_span(task.instances)
        # Sum-product given y is needed only where hidden components have cycles.
        has_loopy = not components.forest[task.instances].all()
        self._conditioned: MessageRun | None = None
        if has_loopy:
            self._conditioned = call.fresh_run(task.instances, task.temperatures)

    def judge(self, instances: Ints) -> None:
        """Evaluate Q at ``y`` where it changed, and record it where it is the best so far."""
        changed = self._update_changed(instances, self.y, self._last_judged)
        if not len(changed):
            return
        self._evaluate(changed)
        value = self.call.value
        is_first = (value[changed] == -np.inf) & (self.call.y[self.batch.var_ptr[changed]] < 0)
        better = changed[(self.q[changed] > value[changed]) | is_first]
        value[better] = np.where(np.isnan(self.q[better]), -np.inf, self.q[better])
        self.copy(better, self.y, self.call.y)

    def judge_labelling(self, b: int, y: Ints, name: str) -> None:
        """Judge a labelling of one instance that no messages produced; ``name`` is the method reported for it."""
        call = self.call
        before = call.value[b]
        self.y[self.batch.var_ptr[b] : self.batch.var_ptr[b + 1]] = y
        self.judge(np.array([b]))
        if call.value[b] > before:
            call.method[b] = name
            call.converged[b] = True
            call.residual[b] = 0.0

    def try_candidate(self, y: Ints) -> None:
        """Judge an assignment of the whole batch."""
        self.copy(self.instances, y, self.y)
        self.judge(self.instances)

    def take_best(self, instances: Ints) -> None:
        """Put the best states so far under trial."""
        self.copy(instances, self.call.y, self.y)

    def copy(self, instances: Ints, source: Ints, target: Ints) -> None:
        """Copy the states of the named instances."""
        variables = self._variables_of(instances)
        target[variables] = source[variables]

    def sum_given(self, instances: Ints, y: Ints) -> MessageRun:
        """Sum-product over hidden variables with cycles, given y; converged already where y was the last one judged."""
        run = self._conditioned
        assert run is not None
        changed = self._update_changed(instances, y, self._last_conditioned)
        if len(changed):
            run.hold(changed, self.components.outside, y)
            run.start(changed, None)
            self.call.effort.converge(run, changed, changed, self.sums)
        return run

    def add_marginals(self, instances: Ints) -> None:
        """Add the point mass on the best y times the marginals of h given it; report lower bounds and convergence."""
        call = self.call
        forest = self.components.forest[instances]
        trees = instances[forest]
        self.conditional.marginals(trees, call.y, call.mu)
        call.lower[trees] = call.value[trees]
        loopy = instances[~forest]
        if not len(loopy):
            return
        run = self.sum_given(loopy, call.y)
        # ``call.value`` keeps the value with which y was judged: computed again here, it could differ by rounding.
        run.beliefs(loopy, self.sums, self.q, call.mu)
        call.converged[loopy] &= run.residual[loopy] <= call.tolerance

    def _evaluate(self, instances: Ints) -> None:
        self.conditional.evaluate(instances, self.y, self.q)
        loopy = instances[~self.components.forest[instances]]
        if len(loopy):
            self.sum_given(loopy, self.y).beliefs(loopy, self.sums, self.q, None)

    def _update_changed(self, instances: Ints, y: Ints, last: Ints) -> Ints:
        """The named instances whose given variables differ from ``last``, which is brought up to date."""
        variables = self._variables_of(instances)
        matters = self.components.outside[variables] | (last[variables] < 0)
        differs = (last[variables] != y[variables]) & matters
        last[variables] = y[variables]
        changed = np.zeros(len(self.batch), dtype=bool)
        changed[self.batch.owner[variables][differs]] = True
        return instances[changed[instances]]

    def _variables_of(self, instances: Ints) -> slice | Ints:
        if len(instances) == len(self.instances):
            return self._variables
        return self._variable_span(instances)

    def _variable_span(self, instances: Ints) -> slice | Ints:
        """The variables of instances, which come in ascending order; a slice where these are consecutive."""
        ptr = self.batch.var_ptr
        if len(instances) and instances[-1] - instances[0] == len(instances) - 1:
            return slice(int(ptr[instances[0]]), int(ptr[instances[-1] + 1]))
        return spans(ptr[instances], ptr[instances + 1] - ptr[instances])


def score_range(model_range: Floats) -> Floats:
    """The range of scores at a variable, per instance, as a positive finite number."""
    return np.where(np.isfinite(model_range), np.maximum(model_range, 1e-12), 1.0)
