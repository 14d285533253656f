"""Sweeps and readings for the instances of a batch that have cycles, at their temperatures."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from mssvm.core.arrays import Bools, Floats, Ints
from mssvm.core.errors import UnsupportedError
from mssvm.core.potentials import Belief, Marginals, Potentials, Query
from mssvm.core.topology import mask_from_indices
from mssvm.engines.decomposition import Bounding, ChainRun
from mssvm.inference.decomposition.consistent import BOUND, ON_HOST
from mssvm.inference.decomposition.labelling import Labelling
from mssvm.inference.decomposition.product import product_bound

if TYPE_CHECKING:
    from mssvm.inference.decomposition.plan import DecompositionPlan

COLD_SWEEPS = 10  # least number of sweeps of the first evaluation with tables
AT_A_TIME = 8  # sweeps between two tests of convergence
LOWEST = 0.05  # least eps_y of a sweep at two temperatures, as a share of eps_h
PROVEN = 1e-9  # a relative gap between bound and labelling up to this is rounding error: the labelling is the maximum


@dataclass(frozen=True, eq=False)
class ChainTask:
    """Instances with the temperatures of their free variables."""

    plan: DecompositionPlan
    query: Query
    instances: Ints
    eps_y: float
    eps_h: float

    def __post_init__(self) -> None:
        if self.eps_h == 0.0 < self.eps_y:
            raise UnsupportedError(
                f"instance {int(self.instances[0])} has outputs at eps_y = {self.eps_y} and hidden variables at "
                "eps_h = 0, which are not taken apart into chains; use exact elimination or a small positive eps_h."
            )

    @property
    def nested(self) -> bool:
        """Whether there are two temperatures."""
        return self.eps_y != self.eps_h

    @property
    def sweep_eps_y(self) -> float:
        """The eps_y of sweeps. At two temperatures sweeps make the marginals of a variable in its chains equal, and a
        maximum has no such marginals: eps_y is raised to a share of eps_h for sweeps, and only the value is computed at
        eps_y itself."""
        return max(self.eps_y, LOWEST * self.eps_h) if self.nested else self.eps_y

    @cached_property
    def hidden(self) -> Bools | None:
        """At two temperatures, the variables at eps_h."""
        if not self.nested:
            return None
        return ~self.query.output & (self.query.n_allowed(self.plan.batch) > 1)

    def run(self) -> ChainRun:
        """Chains without messages."""
        return self.plan.chains(self.instances, self.hidden).run()


class ChainAnswer:
    """One call of a bound: it writes the marginals of the task's instances into ``mu``; ``result`` returns values and
    status.

    A ``side`` of training ("plus" or "minus") makes a fixed number of sweeps from the messages of its last call;
    without one ("") a call begins with messages of zero and sweeps until the bound has converged.
    """

    def __init__(self, task: ChainTask, theta: Potentials, mu: Marginals, side: str, warm_sweeps: int) -> None:
        self.task = task
        self.theta = theta
        self.mu = mu
        self.side = side
        self.warm_sweeps = warm_sweeps
        self.plan = task.plan
        self.settings = task.plan.settings
        self.batch = task.plan.batch
        self.eps = task.sweep_eps_y
        self.instances = task.instances
        self.size = np.diff(self.batch.var_ptr)[self.instances]

    def begin(self) -> None:
        """The part of the call that needs no numbers from the device: in training all sweeps."""
        self.chains, cold = self.plan.run(self.task, self.side, self.theta)
        task = self.task
        self.chains.load(self.theta, task.query.allowed, task.sweep_eps_y, task.eps_h)
        if self.side:
            self.sweeps = max(COLD_SWEEPS, self.warm_sweeps) if cold else self.warm_sweeps
            self.wait = self.chains.answer(self.sweeps, self.mu if self.eps > 0.0 else None)

    def result(self, belief: Belief) -> Belief:
        """``belief`` with the task's instances."""
        self.belief = belief
        task = self.task
        chains = self.chains
        if self.side:
            before, value, residual = self.wait()
            sweeps = self.sweeps
            fall = self._fall(before, value)
        else:
            value, fall, sweeps = self._converge(chains)
        converged = fall <= self._enough(value[self.instances])
        if self.eps == 0.0:
            return self._maximum(chains, value, converged, sweeps)
        if not self.side:
            residual = chains.read(self.mu)
        if task.sweep_eps_y > task.eps_y:
            chains.load(self.theta, task.query.allowed, task.eps_y, task.eps_h)
            # An instance that sweeps proved to be impossible is impossible at any temperature.
            value = np.where(value == -np.inf, -np.inf, chains.sweep(0))
        return self._sum(chains, value, converged, sweeps, residual)

    @property
    def _method(self) -> str:
        return ON_HOST if self.chains.elsewhere else BOUND

    def _fall(self, before: Floats, value: Floats) -> Floats:
        """Decrease of the bounds of the task's instances; 0 where no assignment is possible."""
        one = before[self.instances]
        two = value[self.instances]
        return np.where(two > -np.inf, one - np.where(two > -np.inf, two, 0.0), 0.0)

    def _enough(self, value: Floats) -> Floats:
        """The decrease of the bound in a sweep below which it counts as converged."""
        unit = self.eps if self.eps > 0.0 else 1.0
        rounding = 1e-13 * np.abs(np.where(value > -np.inf, value, 0.0))
        return np.asarray(self.settings.tolerance * unit * self.size + rounding)

    def _converge(self, chains: ChainRun) -> tuple[Floats, Floats, int]:
        """Sweep until every bound has converged."""
        done = 0
        most = max(2, self.settings.sweeps)
        while True:
            step = max(min(AT_A_TIME, most - done), 2)
            before, value, _ = chains.answer(step, None)()
            done += step
            fall = self._fall(before, value)
            if done >= most or bool(np.all(fall <= self._enough(value[self.instances]))):
                return value, fall, done

    def _sum(self, chains: ChainRun, value: Floats, converged: Bools, sweeps: int, residual: Floats) -> Belief:
        belief = self.belief
        mine = self.instances
        upper = value[mine]
        belief.value[mine] = upper
        self._clear(upper == -np.inf)
        lower = np.full(len(mine), np.nan)
        if not self.side:
            lower = self._product(chains)
            lower = np.where(upper == -np.inf, upper, lower)
        return self._report(self._method, converged, sweeps, residual[mine], lower, upper)

    def _product(self, chains: ChainRun) -> Floats:
        """The lower bound by independent variables, on the device that has the marginals if it can compute it."""
        task = self.task
        if isinstance(chains, Bounding):
            found = chains.product(task.query, task.eps_y, task.eps_h, self.mu)
            if found is not None:
                return np.asarray(found[self.instances])
        return product_bound(self.batch, self.theta, task.query, task.eps_y, task.eps_h, self.mu, self.instances)

    def _maximum(self, chains: ChainRun, value: Floats, converged: Bools, sweeps: int) -> Belief:
        belief = self.belief
        mine = self.instances
        batch = self.batch
        theta = Potentials(self.theta.unary, self.theta.tables)  # labellings are found on the host
        found = Labelling(self.plan.host, batch, theta, self.task.query, mine)
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
        marked = Marginals.zeros(batch)
        found.mark(marked)
        belief.mu.add(marked)
        self._clear(belief.value[mine] == -np.inf)
        status = self._report(self._method, converged | proven, sweeps, gap, found.score, upper).status
        exact = status.exact.copy()
        exact[mine] = proven
        return replace(belief, status=replace(status, exact=exact))

    def _clear(self, impossible: Bools) -> None:
        """An instance without an assignment has no marginals."""
        if impossible.any():
            self.belief.mu.clear(self.batch, mask_from_indices(self.instances[impossible], len(self.batch)))

    def _report(
        self, method: str, converged: Bools, sweeps: int, residual: Floats, lower: Floats, upper: Floats
    ) -> Belief:
        """The belief with the status of the task's instances."""
        old = self.belief.status
        mine = self.instances
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
