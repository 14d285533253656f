"""Marginal MAP by messages (eps_y = 0): several starts, each decoded y judged by its evaluated Q, the best polished.

    merged       hidden components summed out, then max-product over the outputs (exact on forests)
    marginals    sum-product; its max-marginals are a candidate; mixed-product only where regions do not follow
    sum first    sum-product; its max-marginals are a candidate; then mixed-product from its messages
    regions      the best so far improved by relabelling whole regions; then as sum first, from messages of the result
    cold         mixed-product from even messages
    damped       the same with damping
    annealed     eps_y falls from eps_h, messages carried over; then mixed-product
    proximal     the proximal-point scheme: soft, no argmax messages
    joint        max-product over all variables, its outputs a candidate
    random       mixed-product from random messages
    Gibbs        annealed Gibbs sampling of exp(Q(y) / t), where Q changes locally

Convergence is not quality: the argmax messages of mixed-product have poor fixed points, and only Q tells.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from mssvm.core.arrays import Bools, Floats, Ints
from mssvm.core.potentials import Marginals
from mssvm.engines.numba.messages import given as messages_given
from mssvm.engines.numba.messages import merge as messages_merge
from mssvm.engines.numba.messages import polish as messages_polish
from mssvm.engines.numba.messages.given import Given
from mssvm.engines.numba.messages.scaled import load
from mssvm.inference.propagation.found import Effort, Found
from mssvm.inference.propagation.merge import merge
from mssvm.inference.propagation.proximal import proximal_steps
from mssvm.inference.propagation.run import Control, LogRun, Mode, Model, Run, by_regions, open_gently, settle

# The lowest temperature of annealing, relative to eps_h; messages of argmax kind take over from there.
COLDEST = 0.02
# Gibbs sampling starts and ends at these fractions of the range of scores at a variable.
HOT, COLD = 16.0, 200.0


@dataclass(eq=False)
class Search:
    """The search for one block of instances; ``make_run(ties)`` gives fresh messages, ties broken if asked."""

    model: Model
    given: Given
    mode: Mode
    make_run: Callable[[bool], Run]
    which: Ints
    found: Found
    effort: Effort
    control: Control
    seed: int
    spread: Floats
    merging: bool
    soft: float
    messages: Floats | None = None
    kept: Floats | None = None

    def __post_init__(self) -> None:
        n = len(self.found.value)
        self.w = self.model.plan.wiring
        self.acc = np.empty(len(self.model.unary))
        self.q = np.full(n, np.nan)
        self.y = np.zeros(len(self.model.free), dtype=np.int64)
        self.last = np.full(len(self.model.free), -1, dtype=np.int64)
        self.clamped: Run | None = None
        self.clamped_at = np.full(len(self.model.free), -1, dtype=np.int64)
        self.forest = np.zeros(n, dtype=bool)
        messages_merge.find_forests(self.w, self.which, self.model.free, self.forest)
        self.exact = np.zeros(n, dtype=bool)

    @property
    def sum_mode(self) -> Mode:
        return Mode(np.zeros(len(self.mode.outputs), dtype=bool), self.soft, self.soft)

    def run(self, candidates: list[Ints]) -> None:
        """Fill ``found`` for the block."""
        for y in candidates:
            self.y[:] = y
            self.consider(self.which)
        left = self._merged() if self.merging else self.which
        if not len(left):
            return
        for start in self.effort.starts:
            getattr(self, f"_{start}")(left)
        for k in range(self.effort.restarts):
            self._random(left, k)
        self._polish(left)

    # --- judging -----------------------------------------------------------------------------------------------------

    def consider(self, which: Ints) -> Ints:
        """Evaluate Q at ``self.y`` where it changed, keep it where it is the best; returns the instances evaluated."""
        new = messages_polish.changed(self.w, which, self.given.outside, self.y, self.last)
        if len(new):
            self.evaluate(new, self.y, self.q)
            messages_polish.keep_better(self.w, new, self.q, self.y, self.found.value, self.found.y)
        return np.asarray(new)

    def evaluate(self, which: Ints, y: Ints, value: Floats) -> None:
        """Q(y): exact where hidden components are trees, else the Bethe value of sum-product given y."""
        g = self.given
        messages_given.evaluate(
            self.w, which, g, self.model.unary, self.model.tables, y, self.mode.eps_h, self.acc, value
        )
        loopy = which[~g.forest[which]]
        if len(loopy):
            run = self.sum_given(loopy, y)
            run.finish(loopy, self.sum_mode, self.w.table_at, None, value)

    def sum_given(self, which: Ints, y: Ints) -> Run:
        """Sum-product over the hidden variables, which have cycles, with the others held at y; settled already where y
        was the last to be judged."""
        if self.clamped is None:
            self.clamped = self.make_run(False)
        run = self.clamped
        which = messages_polish.changed(self.w, which, self.given.outside, y, self.clamped_at)
        if not len(which):
            return run
        run.given(which, self.given.outside, y)
        run.start(which, None)
        settle(run, which, which, self.sum_mode, self.control, self.effort.sweeps)
        return run

    def _follow(self, run: Run, mode: Mode, which: Ints, control: Control, name: str) -> None:
        """Advance to convergence, judging the decoded y after 1, 2, 4, ... times the first number of sweeps."""
        before, active = self.found.value[which].copy(), which
        for n in _checkpoints(self.effort.sweeps, self.effort.first_check):
            run.advance(active, mode, n, control)
            run.decode(active, self.y)
            self.consider(active)
            active = active[~(run.residual[active] <= control.tolerance)]
            if not len(active):
                break
        self._credit(run, which, self.found.value[which] > before, control, name)

    def _credit(self, run: Run, which: Ints, better: Bools, control: Control, name: str) -> None:
        """Convergence is reported for the run that found the best y, sweeps for all runs together."""
        self.found.method[which[better]] = name
        mine = which[better | (self.found.residual[which] == np.inf)]
        self.found.residual[mine] = run.residual[mine]
        self.found.converged[mine] = run.residual[mine] <= control.tolerance

    def _count(self, run: Run, which: Ints) -> None:
        self.found.sweeps[which] += run.sweeps[which]

    # --- starts ------------------------------------------------------------------------------------------------------

    def _opened(self, which: Ints, mode: Mode) -> Run:
        run = self.make_run(True)
        run.start(which, None)
        open_gently(run, which[~self.forest[which]], mode, self.control)
        return run

    def _marginals(self, which: Ints) -> None:
        movable = self._movable(which)
        run = self._opened(movable, self.sum_mode)
        self._follow(run, self.sum_mode, movable, self.control, "max-marginals")
        self._count(run, movable)
        rest = np.setdiff1d(which, movable)
        if len(rest):
            self._sum_first(rest)

    def _sum_first(self, which: Ints) -> None:
        run = self._opened(which, self.sum_mode)
        self._sum_then_mixed(run, which, "max-marginals", "sum-product, then mixed-product")

    def _sum_then_mixed(self, run: Run, which: Ints, first: str, second: str) -> None:
        self._follow(run, self.sum_mode, which, self.control, first)
        run.residual[which] = np.inf
        self._follow(run, self.mode, which, self.control, second)
        self._count(run, which)

    def _movable(self, which: Ints) -> Ints:
        return which[~self.forest[which] & self.model.plan.pairwise[which]]

    def _regions(self, which: Ints) -> None:
        loopy = self._movable(which)
        messages_polish.restore(self.w, loopy, self.found.y, self.y)
        moved, log_messages = by_regions(self.model, loopy, self.y)
        if len(moved):
            if self.effort.judge_moves:
                self.consider(moved)
            run = self.make_run(True)
            run.start(moved, log_messages)
            self._sum_then_mixed(run, moved, "max-marginals by regions", "regions, then mixed-product")

    def _cold(self, which: Ints) -> None:
        self._plain(which, self.messages, self.control, "mixed-product")

    def _damped(self, which: Ints) -> None:
        self._plain(which, None, replace(self.control, damping=max(0.5, self.control.damping)), "damped mixed-product")

    def _plain(self, which: Ints, log_messages: Floats | None, control: Control, name: str) -> None:
        run = self.make_run(True)
        run.start(which, log_messages)
        self._follow(run, self.mode, which, control, name)
        self._count(run, which)
        if self.kept is not None:
            load(self.w, which, run.log_messages(which), 0.0, self.kept)

    def _joint(self, which: Ints) -> None:
        everything = Mode(np.ones(len(self.mode.outputs), dtype=bool), 0.0, 0.0)
        run = self._opened(which, everything)
        self._follow(run, everything, which, self.control, "joint max-product")
        self._count(run, which)

    def _annealed(self, which: Ints) -> None:
        if self.mode.eps_h == 0.0:
            # Both temperatures would have to fall together; max-product is their limit.
            self._cold(which)
            return
        run = LogRun(self.model)
        run.start(which, None)
        control = replace(self.control, damping=max(0.2, self.control.damping))
        eps_y = self.mode.eps_h
        while eps_y > COLDEST * self.mode.eps_h:
            run.residual[which] = np.inf
            run.advance(which, Mode(self.mode.outputs, eps_y, self.mode.eps_h), 4, control)
            run.decode(which, self.y)
            self.consider(which)
            eps_y *= 0.5
        self._count(run, which)
        self._plain(which, run.log_messages(which), self.control, "annealed mixed-product")

    def _proximal(self, which: Ints) -> None:
        before, steps = self.found.value[which].copy(), max(10, self.effort.sweeps // 10)
        for run in proximal_steps(self.model, self.mode.outputs, self.soft, which, self.control, steps):
            run.decode(which, self.y)
            self.consider(which)
        self._credit(run, which, self.found.value[which] > before, self.control, "proximal point")
        self._count(run, which)

    def _random(self, which: Ints, k: int) -> None:
        log_messages = np.zeros(self.model.plan.n_messages)
        for b_spread in np.unique(self.spread[which]):
            some = which[self.spread[which] == b_spread]
            messages_polish.noise(self.w, some, 0.5 * b_spread, self.seed, 100 + k, log_messages)
        self._plain(which, log_messages, self.control, "mixed-product from random messages")

    def _merged(self) -> Ints:
        """Max-product on the merged model; returns the instances that are not thereby solved exactly."""
        worth = self.which[self.forest[self.which] | (self.given.n_components[self.which] > 0)]
        merged = merge(self.model, self.given, worth, self.mode.eps_h, self.effort.merge)
        if merged is None:
            return self.which
        which, w = merged.which, merged.model.plan.wiring
        forest = np.zeros(len(self.q), dtype=bool)
        messages_merge.find_forests(w, which, merged.model.free, forest)
        everything = Mode(np.ones(len(self.mode.outputs), dtype=bool), 0.0, 0.0)
        run = LogRun(merged.model)
        run.start(which, None)
        self._follow(run, everything, which, self.control, "max-product over merged regions")
        trees = which[forest[which] & (run.residual[which] <= self.control.tolerance)]
        if len(trees):
            run.finish(trees, everything, w.table_at, None, self.found.upper)
            top, best = self.found.upper[trees], self.found.value[trees]
            self.exact[trees] = best >= top - 1e-9 * (1.0 + np.abs(top))
        self._count(run, which)
        self.found.upper[trees] = np.where(self.exact[trees], self.found.value[trees], self.found.upper[trees])
        return self.which[~self.exact[self.which]]

    # --- polishing ---------------------------------------------------------------------------------------------------

    def _polish(self, which: Ints) -> None:
        forest = which[self.given.forest[which]]
        if len(forest) and self.effort.flips:
            self._local_search(forest)
        loopy = which[~self.given.forest[which]]
        if len(loopy) and self.effort.flips:
            self._flip_by_messages(loopy)

    def _local_search(self, which: Ints) -> None:
        free = self.model.free & self.given.outside
        common = (self.given, free, self.model.unary, self.model.tables, self.y, self.mode.eps_h)
        messages_polish.restore(self.w, which, self.found.y, self.y)
        messages_polish.ascend(self.w, which, *common, self.acc)
        self.consider(which)
        for k in range(self.effort.gibbs):
            messages_polish.restore(self.w, which, self.found.y, self.y)
            messages_polish.anneal(
                self.w, which, *common, self.spread / HOT, self.spread / COLD, self.effort.rounds,
                self.effort.budget, self.seed, k, self.acc,
            )  # fmt: skip
            before = self.found.value[which].copy()
            self.consider(which)
            self.found.method[which[self.found.value[which] > before]] = "annealed Gibbs search"

    def _flip_by_messages(self, which: Ints) -> None:
        """Move outputs to the best state under the messages of sum-product given the others, while Q rises."""
        free = self.model.free & self.given.outside
        share, n_changed = np.ones(len(self.q)), np.zeros(len(self.q), dtype=np.int64)
        score = np.empty(len(self.model.unary))
        for _ in range(self.effort.flips):
            run = self.sum_given(which, self.found.y)
            run.open_score(which, score)
            messages_polish.restore(self.w, which, self.found.y, self.y)
            messages_polish.propose(self.w, which, free, score, share, self.y, n_changed)
            which = which[n_changed[which] > 0]
            if not len(which):
                break
            before = self.found.value[which].copy()
            self.consider(which)
            worse = ~(self.found.value[which] > before)
            share[which] = np.where(worse, 0.5 * share[which], 1.0)
            which = which[~(worse & (n_changed[which] == 1))]
            if not len(which):
                break

    # --- the answer --------------------------------------------------------------------------------------------------

    def finish(self, mu_at: Ints, mu: Marginals | None, value: Floats) -> None:
        """Value Q(y) and the point mass on y times the marginals of h given y."""
        y = self.found.y
        tree = self.which[self.given.forest[self.which]]
        value[tree] = self.found.value[tree]
        if mu is not None:
            messages_given.marginals(
                self.w, tree, self.given, self.model.unary, self.model.tables, y, self.mode.eps_h, self.acc,
                mu_at, mu.unary, mu.tables,
            )  # fmt: skip
        loopy = self.which[~self.given.forest[self.which]]
        if len(loopy):
            run = self.sum_given(loopy, y)
            run.finish(loopy, self.sum_mode, mu_at, mu, value)
            # As y was judged: beliefs of messages that were finished once already are rounded once more.
            value[loopy] = self.found.value[loopy]
            self.found.converged[loopy] &= run.residual[loopy] <= self.control.tolerance


def _checkpoints(sweeps: int, first: int) -> Iterator[int]:
    """first, first, 2 first, 4 first, ... adding up to ``sweeps``."""
    done, step = 0, first
    while done < sweeps:
        n = min(step, sweeps - done)
        yield n
        done += n
        step = done
