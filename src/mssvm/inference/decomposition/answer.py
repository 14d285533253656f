"""Sweeps and readings for the instances of a batch that have cycles, at their temperatures."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from mssvm.core.arrays import Bools, Floats, Ints
from mssvm.core.errors import UnsupportedError
from mssvm.core.potentials import Belief, Potentials, Query
from mssvm.core.topology import spread
from mssvm.engines.decomposition import ChainRun
from mssvm.inference.decomposition.labelling import Labelling
from mssvm.inference.decomposition.product import product_bound

if TYPE_CHECKING:
    from mssvm.inference.decomposition.plan import DecompositionPlan

COLD_SWEEPS = 20  # before the first evaluation of a training
AT_A_TIME = 8  # sweeps between two looks at the bound
PROVEN = 1e-9  # of a maximum: a gap that is rounding


@dataclass(frozen=True, eq=False)
class ChainTask:
    """Instances with the temperatures of their free variables."""

    plan: DecompositionPlan
    query: Query
    instances: Ints
    eps_y: float
    eps_h: float

    def __post_init__(self) -> None:
        if self.eps_y != self.eps_h:
            raise UnsupportedError(
                "outputs and hidden variables at two temperatures are not taken apart into chains yet."
            )


class ChainAnswer:
    """One call: ``belief`` is completed by the task's instances. Without a ``side`` it begins without messages."""

    def __init__(self, task: ChainTask, theta: Potentials, belief: Belief, side: str) -> None:
        self.task, self.theta, self.belief, self.side = task, theta, belief, side
        self.plan, self.settings, self.batch = task.plan, task.plan.settings, task.plan.batch
        self.eps, self.instances = task.eps_y, task.instances
        self.size = np.diff(self.batch.var_ptr)[self.instances]

    def run(self) -> Belief:
        chains, fresh = self._chains()
        chains.load(self.theta, self.task.query.allowed, self.eps)
        if not self.side:
            value, fall, sweeps = self._converge(chains)
        else:
            sweeps = COLD_SWEEPS if fresh else self.settings.warm_sweeps
            before = chains.sweep(sweeps - 1) if sweeps > 1 else np.full(len(self.batch), np.inf)
            value = chains.sweep(1)
            fall = self._fall(before, value)
        converged = fall <= self._enough(value[self.instances])
        if self.eps == 0.0:
            return self._maximum(chains, value, converged, sweeps)
        return self._sum(chains, value, converged, sweeps)

    def _chains(self) -> tuple[ChainRun, bool]:
        """The messages to go on from, and whether they are new."""
        plan = self.plan
        if not self.side:
            return plan.chains(self.instances).run(), True
        key = self.side, self.instances.tobytes()
        fresh = key not in plan.kept
        if fresh:
            plan.kept[key] = plan.chains(self.instances).run()
        return plan.kept[key], fresh

    def _fall(self, before: Floats, value: Floats) -> Floats:
        """Of the bounds of the task's instances; none where no assignment is possible."""
        one, two = before[self.instances], value[self.instances]
        return np.where(two > -np.inf, one - np.where(two > -np.inf, two, 0.0), 0.0)

    def _enough(self, value: Floats) -> Floats:
        """Fall of the bound in a sweep that counts as convergence."""
        unit = self.eps if self.eps > 0.0 else 1.0
        rounding = 1e-13 * np.abs(np.where(value > -np.inf, value, 0.0))
        return np.asarray(self.settings.tolerance * unit * self.size + rounding)

    def _converge(self, chains: ChainRun) -> tuple[Floats, Floats, int]:
        """Sweeps until no bound falls by more than is enough."""
        done, most = 0, max(2, self.settings.sweeps)
        while True:
            step = min(AT_A_TIME, most - done)
            before = chains.sweep(max(step - 1, 1))
            value = chains.sweep(1)
            done += max(step, 2)
            fall = self._fall(before, value)
            if done >= most or bool(np.all(fall <= self._enough(value[self.instances]))):
                return value, fall, done

    def _sum(self, chains: ChainRun, value: Floats, converged: Bools, sweeps: int) -> Belief:
        belief, mine = self.belief, self.instances
        residual = chains.read(belief.mu)
        upper = value[mine]
        belief.value[mine] = upper
        self._clear(upper == -np.inf)
        lower = np.full(len(mine), np.nan)
        if not self.side:
            lower = product_bound(self.batch, self.theta, self.task.query, self.eps, self.eps, belief.mu, mine)
        return self._report("decomposition bound", converged, sweeps, residual[mine], lower, upper)

    def _maximum(self, chains: ChainRun, value: Floats, converged: Bools, sweeps: int) -> Belief:
        belief, mine, batch = self.belief, self.instances, self.batch
        found = Labelling(self.plan.engine, batch, self.theta, self.task.query, mine)
        states = np.zeros(batch.n_vars, dtype=np.int64)
        chains.decode(states)
        found.take(states)
        upper = value[mine]
        if not self.side:
            upper = found.improve(upper)
        # A labelling of the bound's score is the best one, up to rounding.
        upper = np.maximum(upper, found.score)
        gap = np.zeros(len(mine))
        np.subtract(upper, found.score, out=gap, where=upper > found.score)
        proven = gap <= PROVEN * (1.0 + np.abs(upper))
        belief.value[mine] = np.where(proven, found.score, upper)
        found.mark(belief.mu)
        self._clear(belief.value[mine] == -np.inf)
        status = self._report("decomposition bound", converged | proven, sweeps, gap, found.score, upper).status
        exact = status.exact.copy()
        exact[mine] = proven
        return replace(belief, status=replace(status, exact=exact))

    def _clear(self, impossible: Bools) -> None:
        """An instance without an assignment has no marginals."""
        if impossible.any():
            self.belief.mu.clear(self.batch, spread(self.instances[impossible], len(self.batch)))

    def _report(
        self, method: str, converged: Bools, sweeps: int, residual: Floats, lower: Floats, upper: Floats
    ) -> Belief:
        """The belief with what is known about the task's instances."""
        old, mine = self.belief.status, self.instances
        names = list(old.method)
        for b in mine.tolist():
            names[b] = method
        columns = {}
        given = {
            "exact": np.zeros(len(mine), dtype=bool),
            "converged": converged,
            "sweeps": np.full(len(mine), sweeps),
            "residual": residual,
            "lower": lower,
            "upper": upper,
        }
        for name, values in given.items():
            column = getattr(old, name).copy()
            column[mine] = values
            columns[name] = column
        return replace(self.belief, status=replace(old, method=tuple(names), **columns))
