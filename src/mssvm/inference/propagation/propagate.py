"""Belief propagation at two temperatures on any graph: sum-, max-, mixed-product and everything between.

    eps_y = eps_h > 0, or one role only      sum-product at that temperature; exact on forests
    eps_y > 0, eps_h > 0                     the two-temperature recursion; hidden components are merged where cheap
    eps_y = 0 < eps_h                        marginal MAP: several starts, best y by evaluated Q, sum-product given y
    eps_y = eps_h = 0                        max-product: every variable an output

The value is the region free energy for eps_y > 0 and Q(y) of the decoded y at eps_y = 0.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from mssvm.core.arrays import Floats, Ints
from mssvm.core.errors import InputError
from mssvm.core.potentials import Belief, Marginals, Potentials, Query
from mssvm.core.power import check_temperature
from mssvm.core.topology import Batch
from mssvm.inference.propagation.found import Effort
from mssvm.inference.propagation.job import Job, Report, Settings, prepare, tasks
from mssvm.inference.propagation.merge import MergeLimit
from mssvm.inference.propagation.plan import plan_of
from mssvm.inference.propagation.run import Control, LogRun, Mode
from mssvm.inference.propagation.search import Search
from mssvm.inference.propagation.threads import workers

EFFORTS = {
    "fast": Effort(
        ("marginals", "regions"), 12, first_check=12, judge_moves=False, opening=6, retry=False,
        merge=MergeLimit(4096.0, 1e5),
    ),
    "normal": Effort(("sum_first", "regions", "cold", "damped"), 200, flips=20, merge=MergeLimit(65536.0, 2e6)),
    "careful": Effort(
        ("sum_first", "cold", "damped", "annealed", "joint", "regions"), 500, restarts=3, flips=100, gibbs=6,
        rounds=300, budget=2e7, merge=MergeLimit(1e6, 5e7),
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Propagate:
    """Approximate inference by messages; ``effort`` is the one dial: "fast", "normal", "careful", or a number.

    The numbers 0, 1, 2 are the three names; each step above 2 doubles the restarts of "careful". ``threads`` changes
    the time, never the result. ``scaled=False`` forces the log-space kernel. ``starts`` and ``max_sweeps`` override the
    effort.
    """

    effort: int | str = "normal"
    damping: float = 0.0
    max_sweeps: int | None = None
    tolerance: float = 1e-9
    schedule: str = "sequential"
    seed: int = 0
    threads: int = 1
    merging: bool = True
    scaled: bool = True
    starts: tuple[str, ...] | None = None
    keep_messages: bool = False

    def __post_init__(self) -> None:
        if self.schedule not in ("sequential", "flooding"):
            raise InputError(f"schedule is {self.schedule!r}; it must be 'sequential' or 'flooding'.")
        if self.threads < 1:
            raise InputError(f"threads must be at least 1, got {self.threads}.")
        if not 0.0 <= self.damping < 1.0:
            raise InputError(f"damping is {self.damping}; it must be at least 0 and less than 1.")
        unknown = [s for s in self.starts or () if not hasattr(Search, f"_{s}")]
        if unknown:
            raise InputError(f"start {unknown[0]!r} is unknown; see mssvm.inference.propagation.search for the list.")
        self.budget()

    def budget(self) -> Effort:
        """The effort in terms of starts and sweeps."""
        names = list(EFFORTS)
        if isinstance(self.effort, str) and self.effort in EFFORTS:
            level = names.index(self.effort)
        elif isinstance(self.effort, int) and not isinstance(self.effort, bool) and self.effort >= 0:
            level = self.effort
        else:
            raise InputError(
                f"effort is {self.effort!r}; it must be 'fast', 'normal', 'careful' or a whole number >= 0."
            )
        effort = EFFORTS[names[min(level, 2)]]
        more = 2 ** max(0, level - 2)
        effort = replace(effort, restarts=effort.restarts * more, gibbs=effort.gibbs * more)
        if self.starts is not None:
            effort = replace(effort, starts=self.starts)
        return effort if self.max_sweeps is None else replace(effort, sweeps=self.max_sweeps)

    def __call__(
        self,
        batch: Batch,
        theta: Potentials,
        query: Query,
        eps_y: float,
        eps_h: float,
        candidates: list[Ints] | None = None,
        messages: Floats | None = None,
    ) -> Belief:
        """``candidates``: assignments whose outputs are judged too; ``messages``: a warm start, from ``extras``."""
        value, mu = np.zeros(len(batch)), Marginals.zeros(batch)
        which = np.arange(len(batch))
        found = self.fill(batch, theta, query, eps_y, eps_h, which, value, mu, candidates, messages)
        extras: dict[str, object] = {"messages": found.messages} if self.keep_messages else {}
        return Belief(value, mu, found.status(value), extras)

    def fill(
        self,
        batch: Batch,
        theta: Potentials,
        query: Query,
        eps_y: float,
        eps_h: float,
        which: Ints,
        value: Floats,
        mu: Marginals | None,
        candidates: list[Ints] | None = None,
        messages: Floats | None = None,
    ) -> Report:
        """Compute the named instances, write their values and add their marginals (to zeros); says how it went."""
        eps_y, eps_h = check_temperature(eps_y, "eps_y"), check_temperature(eps_h, "eps_h")
        theta.check(batch)
        query.check(batch)
        effort = self.budget()
        control = Control(self.damping, self.schedule == "flooding", self.tolerance, effort.opening, effort.retry)
        settings = Settings(effort, control, self.seed, self.threads, self.merging, self.scaled)
        plan = plan_of(batch)
        model = prepare(plan, batch, theta, query, self.seed)
        with workers(self.threads) as each:
            job = Job(settings, batch, model, value, mu, candidates or [], messages, each)
            if self.keep_messages:
                job.report.messages = np.zeros(job.model.plan.n_messages)
            for task in tasks(job.model, batch, eps_y, eps_h, np.asarray(which, dtype=np.int64)):
                job.run(task)
        job.clear_infeasible(np.asarray(which, dtype=np.int64))
        return job.report


def pseudo_marginals(batch: Batch, theta: Potentials, query: Query, messages: Floats, eps: float = 1.0) -> Marginals:
    """b_i ~ exp(g_i / eps), b_a ~ exp(S_a / eps) from given messages; max-marginals, from those of max-product."""
    model = prepare(plan_of(batch), batch, theta, query, 0)
    run, which, mu = LogRun(model), np.arange(len(batch)), Marginals.zeros(batch)
    run.start(which, messages)
    run.finish(which, Mode(np.zeros(batch.n_vars, dtype=bool), eps, eps), batch.mu_at, mu, np.zeros(len(batch)))
    return mu
