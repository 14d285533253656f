"""One call of propagation: instances sorted by what roles and temperatures ask for, run in blocks of a thread each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from mssvm.core.arrays import Bools, Floats, Ints
from mssvm.core.errors import UnsupportedError
from mssvm.core.potentials import Marginals, Potentials, Query, Status, segment_argmax
from mssvm.core.topology import Batch, offsets
from mssvm.engines.numba.messages import given as messages_given
from mssvm.engines.numba.messages import merge as messages_merge
from mssvm.engines.numba.messages import polish as messages_polish
from mssvm.engines.numba.messages.given import Given
from mssvm.engines.numba.messages.scaled import load
from mssvm.inference.propagation.found import Effort, Found
from mssvm.inference.propagation.merge import Merged, merge
from mssvm.inference.propagation.plan import Plan
from mssvm.inference.propagation.run import (
    SAFE_RANGE,
    Control,
    LogRun,
    Mode,
    Model,
    Run,
    ScaledRun,
    ScaledTables,
    Spans,
    by_regions,
    settle,
)
from mssvm.inference.propagation.search import Search
from mssvm.inference.propagation.threads import Each

# Max-product is the same at any positive scale; this one keeps both range and precision.
MAX_PRODUCT_RANGE = 100.0
# Blocks of instances per thread.
BLOCKS = 4


@dataclass(frozen=True, eq=False)
class Settings:
    effort: Effort
    control: Control
    seed: int
    threads: int
    merging: bool
    scaled: bool


@dataclass(frozen=True, eq=False)
class Task:
    """Instances that need the same kind of run: "sum" (one temperature), "soft" (two) or "search" (eps_y = 0)."""

    kind: str
    which: Ints
    mode: Mode


@dataclass(eq=False)
class Report:
    """What became of every instance; entries of instances not asked for are not meaningful."""

    found: Found
    exact: Bools
    lower: Floats
    messages: Floats | None = None

    def status(self, value: Floats) -> Status:
        upper = np.where(self.exact, value, self.found.upper)
        lower = np.where(self.exact, value, self.lower)
        method = tuple(str(m) for m in self.found.method)
        return Status(method, self.exact, self.found.converged, self.found.sweeps, self.found.residual, lower, upper)


def prepare(plan: Plan, batch: Batch, theta: Potentials, query: Query, seed: int) -> Model:
    """Masked potentials and free variables."""
    unary = np.where(query.allowed, theta.unary, -np.inf)
    hair = np.zeros(len(unary))
    messages_polish.hairs(plan.wiring, np.arange(len(batch)), seed, hair)
    untied = unary + 1e-10 * hair * (1.0 + np.abs(np.where(unary == -np.inf, 0.0, unary)))
    return Model(plan, unary, untied, theta.tables, query.allowed, query.output, query.n_allowed(batch) > 1)


def tasks(model: Model, batch: Batch, eps_y: float, eps_h: float, which: Ints) -> list[Task]:
    """Sort instances by the temperatures that matter to them: clamped variables and absent roles do not."""
    n = len(batch)
    has_output = np.bincount(batch.owner[model.free & model.output], minlength=n)[which] > 0
    has_hidden = np.bincount(batch.owner[model.free & ~model.output], minlength=n)[which] > 0
    none, every = np.zeros(len(model.free), dtype=bool), np.ones(len(model.free), dtype=bool)
    out: list[Task] = []

    def add(chosen: Bools, eps_y: float, eps_h: float) -> None:
        if not chosen.any():
            return
        if eps_y == eps_h > 0.0:
            out.append(Task("sum", which[chosen], Mode(none, eps_y, eps_h)))
        elif eps_y == 0.0:
            outputs = every if eps_h == 0.0 else model.output
            out.append(Task("search", which[chosen], Mode(outputs, eps_y, eps_h)))
        else:
            out.append(Task("soft", which[chosen], Mode(model.output, eps_y, eps_h)))

    both = has_output & has_hidden
    if eps_h == 0.0 < eps_y and both.any():
        b = int(which[both][0])
        raise UnsupportedError(
            f"instance {b} has outputs at eps_y = {eps_y} and hidden variables at eps_h = 0, where hidden messages are "
            "undefined; use exact elimination or a small positive eps_h."
        )
    add(both, eps_y, eps_h)
    add(~has_output, eps_h, eps_h)
    add(has_output & ~has_hidden, eps_y, eps_y)
    return out


class Job:
    """State of one call; ``run`` handles one task and fills values, marginals and the report."""

    def __init__(
        self,
        settings: Settings,
        batch: Batch,
        model: Model,
        value: Floats,
        mu: Marginals | None,
        candidates: list[Ints],
        messages: Floats | None,
        each: Each,
    ) -> None:
        n = len(batch)
        self.settings, self.batch, self.model, self.value, self.mu = settings, batch, model, value, mu
        self.candidates, self.messages, self.each = candidates, messages, each
        self.report = Report(Found.nothing(n, batch.n_vars), np.zeros(n, dtype=bool), np.full(n, np.nan))
        self.spans = Spans.of(model, each)
        self.range = self.spans.per_instance(batch.var_ptr)

    def run(self, task: Task) -> None:
        safe, unit = self._safe(task)
        if len(safe):
            tables = ScaledTables.of(self.model, self.spans, unit, self.each)
            self._blocks(task, safe, lambda untied: ScaledRun(self.model, tables, untied), unit)
        rest = np.setdiff1d(task.which, safe)
        if len(rest):
            unit = task.mode.eps_h if task.mode.eps_h > 0.0 else 1.0
            self._blocks(task, rest, lambda untied: LogRun(self.model, untied), unit)

    def clear_infeasible(self, which: Ints) -> None:
        """No assignment, no marginal: an instance of value -inf has weight zero everywhere, as with ``power_sum``."""
        none = np.zeros(len(self.value), dtype=bool)
        none[which] = self.value[which] == -np.inf
        if self.mu is not None and none.any():
            self.mu.unary[none[self.batch.owner][self.batch.state_var]] = 0.0
            self.mu.tables[none[self.batch.mu_owner]] = 0.0

    def _safe(self, task: Task) -> tuple[Ints, float]:
        """The instances on which scaled probabilities cannot underflow, and the temperature they are scaled by."""
        pairwise = task.which[self.model.plan.pairwise[task.which] & np.isfinite(self.range[task.which])]
        if task.kind == "soft" or not self.settings.scaled or not len(pairwise):
            return pairwise[:0], 1.0
        unit = task.mode.eps_h
        if unit == 0.0:
            # Per instance it would not matter; one unit for all keeps one set of tables, unless ranges differ wildly.
            unit = max(float(self.range[pairwise].max()) / MAX_PRODUCT_RANGE, 1e-300)
            return pairwise[self.range[pairwise] >= 1e-9 * self.range[pairwise].max()], unit
        return pairwise[self.range[pairwise] <= SAFE_RANGE * unit], unit

    def _blocks(self, task: Task, which: Ints, make_run: Callable[[bool], Run], unit: float) -> None:
        """Split over threads; every instance is computed on its own, so the split changes no bit."""
        action = self._search if task.kind == "search" else self._soft
        shared = None if task.kind == "search" else self._with_clamped(make_run(False), which)

        def one(block: Ints) -> None:
            action(block, task.mode, make_run, shared, unit)

        # Instances need different numbers of sweeps: with more blocks than threads, no thread waits long for another.
        # A search has its own messages for every block, which should not be many.
        few = self.settings.threads == 1 or task.kind == "search"
        count = self.settings.threads * (1 if few else BLOCKS)
        self.each(one, [b for b in np.array_split(which, min(count, len(which))) if len(b)])

    def _with_clamped(self, run: Run, which: Ints) -> Run:
        """``run`` told of the variables with one allowed state, as a search is of those whose states it tries."""
        if not self.model.free.all():
            only = segment_argmax(self.model.allowed.astype(np.float64), self.batch.unary_ptr)
            run.given(which, ~self.model.free, only)
        return run

    # --- eps_y > 0 ---------------------------------------------------------------------------------------------------

    def _soft(self, which: Ints, mode: Mode, make_run: Callable[[bool], Run], run: Run | None, unit: float) -> None:
        assert run is not None
        if mode.eps_y != mode.eps_h and self.settings.merging:
            which = self._soft_merged(which, mode)
            if not len(which):
                return
        run.start(which, self.messages)
        forest = np.zeros(len(self.value), dtype=bool)
        messages_merge.find_forests(self.model.plan.wiring, which, self.model.free, forest)
        self._settle(run, which, which[~forest[which] & (self.messages is None)], mode)
        self._try_regions(run, which[~forest[which]], mode)
        run.finish(which, mode, self.batch.mu_at, self.mu, self.value)
        if self.report.messages is not None:
            load(self.model.plan.wiring, which, run.log_messages(which), 0.0, self.report.messages)
        self.report.found.method[which] = "sum-product" if mode.eps_y == mode.eps_h else "two-temperature propagation"
        if mode.eps_y == mode.eps_h:
            self.report.exact[which] = forest[which] & self.report.found.converged[which]

    def _try_regions(self, run: Run, loopy: Ints, mode: Mode) -> None:
        """A second run from the decoded states improved by regions; per instance, the higher value decides.

        Sums given y are left alone: their value is compared with that of other y, found without this.
        """
        n, w = len(self.value), self.model.plan.wiring
        open_outputs = np.bincount(self.batch.owner[self.model.free & self.model.output], minlength=n) > 0
        pairwise = loopy[self.model.plan.pairwise[loopy] & open_outputs[loopy]]
        if self.messages is not None or not len(pairwise) or "regions" not in self.settings.effort.starts:
            return
        first, second = np.zeros(n), np.zeros(n)
        run.finish(pairwise, mode, w.table_at, None, first)
        z = np.zeros(self.batch.n_vars, dtype=np.int64)
        run.decode(pairwise, z)
        moved, log_messages = by_regions(self.model, pairwise, z)
        kept = run.log_messages(moved)
        found = [a[moved].copy() for a in (run.residual, self.report.found.residual, self.report.found.converged)]
        run.start(moved, log_messages)
        self._settle(run, moved, moved[:0], mode)
        run.finish(moved, mode, w.table_at, None, second)
        back = ~(second[moved] > first[moved])
        run.start(moved[back], kept)
        for a, before in zip(
            (run.residual, self.report.found.residual, self.report.found.converged), found, strict=True
        ):
            a[moved[back]] = before[back]

    def _settle(self, run: Run, which: Ints, loopy: Ints, mode: Mode) -> None:
        settle(run, which, loopy, mode, self.settings.control, self.settings.effort.sweeps)
        found = self.report.found
        found.sweeps[which] += run.sweeps[which]
        found.residual[which] = run.residual[which]
        found.converged[which] = run.residual[which] <= self.settings.control.tolerance

    def _soft_merged(self, which: Ints, mode: Mode) -> Ints:
        """Sum-product at eps_y over merged regions; returns the instances that were too large to merge."""
        given = self._given(which, mode)
        merged = merge(self.model, given, which, mode.eps_h, self.settings.effort.merge)
        if merged is None:
            return which
        run = LogRun(merged.model)
        one = Mode(np.zeros(len(mode.outputs), dtype=bool), mode.eps_y, mode.eps_y)
        run.start(merged.which, None)
        forest = np.zeros(len(self.value), dtype=bool)
        messages_merge.find_forests(merged.model.plan.wiring, merged.which, merged.model.free, forest)
        self._settle(run, merged.which, merged.which[~forest[merged.which]], one)
        self._unmerge(merged, run, one)
        self.report.exact[merged.which] = forest[merged.which] & self.report.found.converged[merged.which]
        self.report.found.method[merged.which] = "sum-product over merged regions"
        return np.setdiff1d(which, merged.which)

    def _unmerge(self, merged: Merged, run: LogRun, mode: Mode) -> None:
        w = merged.model.plan.wiring
        cards = np.diff(w.state_ptr)[w.scope].astype(np.float64)
        logs = np.add.reduceat(np.log(cards), w.scope_ptr[:-1]) if len(cards) else np.zeros(0)
        factor_at = offsets(np.rint(np.exp(logs)).astype(np.int64))
        beliefs = Marginals(np.zeros(len(merged.model.unary)), np.zeros(int(factor_at[-1])))
        run.finish(merged.which, mode, factor_at, beliefs if self.mu is not None else None, self.value)
        if self.mu is not None:
            merged.marginals(merged.which, beliefs.unary, beliefs.tables, factor_at, self.batch.mu_at, self.mu)

    # --- eps_y = 0 ---------------------------------------------------------------------------------------------------

    def _given(self, which: Ints, mode: Mode) -> Given:
        n, n_vars, n_factors = len(self.batch), self.batch.n_vars, self.batch.n_factors
        ints = [np.zeros(n_vars, dtype=np.int64) for _ in range(6)]
        given = Given(
            mode.outputs | ~self.model.free, ints[0], ints[1], ints[2], ints[3], np.zeros(n_factors, dtype=np.int64),
            np.zeros(n, dtype=np.int64), ints[4], ints[5], np.zeros(n_vars, dtype=bool), np.zeros(n, dtype=bool),
        )  # fmt: skip
        messages_given.find_components(self.model.plan.wiring, which, given)
        return given

    def _search(self, which: Ints, mode: Mode, make_run: Callable[[bool], Run], run: Run | None, unit: float) -> None:
        s, given = self.settings, self._given(which, mode)
        spread = np.where(np.isfinite(self.range), np.maximum(self.range, 1e-12), 1.0)
        search = Search(
            self.model, given, mode, make_run, which, self.report.found, s.effort, s.control, s.seed, spread, s.merging,
            unit, self.messages, self.report.messages,
        )  # fmt: skip
        search.run(self.candidates)
        search.finish(self.batch.mu_at, self.mu, self.value)
        self.report.exact[which] = search.exact[which]
        self.report.lower[which] = np.where(given.forest[which], self.value[which], np.nan)
