"""Marginal MAP by messages (eps_y = 0): several starts, each decoded y judged by its evaluated Q, the best polished.

    merged       hidden components summed out, then max-product over the outputs (exact on forests)
    cut          a minimum cut, where no variable is summed and none has more than two states (exact if submodular)
    marginals    sum-product; its max-marginals are a candidate; mixed-product only where regions do not follow
    sum first    sum-product; its max-marginals are a candidate; then mixed-product from its messages
    regions      the best so far improved by relabelling whole regions; then as sum first, from messages of the result
    cold         mixed-product from uniform messages
    damped       the same with damping
    annealed     eps_y falls from eps_h, messages carried over; then mixed-product
    joint        max-product over all variables, its outputs a candidate
    random       mixed-product from random messages
    expansions   the best so far (with ``judge_moves`` also the best states by themselves) improved by cuts
    Gibbs        annealed Gibbs sampling of exp(Q(y) / t), where Q changes locally

Convergence is not quality: the argmax messages of mixed-product have poor fixed points, and only Q tells.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from mssvm.core.arrays import Floats, Ints
from mssvm.core.potentials import segment_argmax
from mssvm.core.topology import spans
from mssvm.engines.messages import (
    Annealing,
    Conditional,
    MessageModel,
    MessageRun,
    Schedule,
    Temperatures,
)
from mssvm.inference.propagation.cuts import CutModel
from mssvm.inference.propagation.effort import uniforms

if TYPE_CHECKING:
    from mssvm.inference.propagation.call import PropagationCall
    from mssvm.inference.propagation.plan import MessageTask

# The lowest temperature of annealing, relative to eps_h; messages of argmax kind take over from there.
COLDEST = 0.02
# Gibbs sampling starts and ends at these fractions of the range of scores at a variable.
HOT, COLD = 16.0, 200.0
# Restarts use streams of random numbers from this one on.
RANDOM_STREAM = 100
CUT_STREAM = (1 << 20) + 1
CUT_TOLERANCE = 1e-9  # relative to a score: a bound so close proves it


class OutputSearch:
    """The search for y: states under trial, and sum-product messages given them.

    ``conditional`` judges states, ``merged`` is the model without hidden variables, if there
    is one.
    """

    def __init__(
        self, call: PropagationCall, task: MessageTask, instances: Ints, conditional: Conditional,
        merged: MessageModel | None,
    ) -> None:  # fmt: skip
        assert task.components is not None
        bound = call.bound
        self.call, self.conditional, self.merged = call, conditional, merged
        self.merging, self.components, self.t = task.merging, task.components, task.temperatures
        self.instances = instances
        self.bound, self.batch, self.model, self.effort = bound, bound.batch, call.model, call.effort
        self.schedule, self.seed = call.effort.schedule, bound.plan.settings.seed
        self.messages = call.fresh_run(instances, self.t, noisy=True)
        loopy = not self.components.forest[instances].all()
        self.held = call.fresh_run(instances, self.t) if loopy else self.messages
        n_vars = len(call.y)
        self.q, self.y = np.full(len(call.value), np.nan), np.zeros(n_vars, dtype=np.int64)
        self.judged, self.held_at = np.full((2, n_vars), -1, dtype=np.int64)
        self.rows = self._span(self.instances)

    @cached_property
    def range(self) -> Floats:
        known = self.call.model.range
        return np.where(np.isfinite(known), np.maximum(known, 1e-12), 1.0)

    @cached_property
    def sums(self) -> Temperatures:
        return Temperatures.one(len(self.call.y), self.t.eps_h or self.messages.unit)

    @cached_property
    def maxima(self) -> Temperatures:
        return Temperatures.one(len(self.call.y), 0.0)

    def run(self) -> None:
        """Find y, then value Q(y) and the point mass on y times the marginals of h given y."""
        for y in self.call.candidates:
            self._copy(self.instances, y, self.y)
            self._judge(self.instances)
        left = self._solve_merged()
        if len(left):
            for start in self.effort.starts:
                STARTS[start](self, left)
                left = left[~self.call.exact[left]]
            for k in range(self.effort.restarts if len(left) else 0):
                self._random(left, k)
            if self.effort.flips and len(left):
                self._polish(left)
        self._finish()

    def _rows(self, instances: Ints) -> slice | Ints:
        """Variables of the named instances."""
        return self.rows if len(instances) == len(self.instances) else self._span(instances)

    def _span(self, instances: Ints) -> slice | Ints:
        ptr = self.batch.var_ptr
        if len(instances) and instances[-1] - instances[0] == len(instances) - 1:
            # Instances come in ascending order.
            return slice(int(ptr[instances[0]]), int(ptr[instances[-1] + 1]))
        return spans(ptr[instances], ptr[instances + 1] - ptr[instances])

    # --- judging -----------------------------------------------------------------------------------------------------

    def _judge(self, instances: Ints) -> None:
        """Evaluate Q at ``self.y`` where it changed, keep it where it is the best."""
        new, call = self._changed(instances, self.y, self.judged), self.call
        if not len(new):
            return
        self._evaluate(new)
        first = (call.value[new] == -np.inf) & (call.y[self.batch.var_ptr[new]] < 0)
        better = new[(self.q[new] > call.value[new]) | first]
        call.value[better] = np.where(np.isnan(self.q[better]), -np.inf, self.q[better])
        self._copy(better, self.y, call.y)

    def _changed(self, instances: Ints, y: Ints, last: Ints) -> Ints:
        """The named instances whose given variables differ from ``last``, which is brought up to date."""
        rows = self._rows(instances)
        new = (last[rows] != y[rows]) & (self.components.outside[rows] | (last[rows] < 0))
        last[rows] = y[rows]
        changed = np.zeros(len(self.batch), dtype=bool)
        changed[self.batch.owner[rows][new]] = True
        return instances[changed[instances]]

    def _copy(self, instances: Ints, source: Ints, y: Ints) -> None:
        rows = self._rows(instances)
        y[rows] = source[rows]

    def _evaluate(self, instances: Ints) -> None:
        """Q(y): exact where hidden components are trees, else the Bethe value of sum-product given y."""
        self.conditional.evaluate(instances, self.y, self.q)
        loopy = instances[~self.components.forest[instances]]
        if not len(loopy):
            return
        self._sum_given(loopy, self.y).beliefs(loopy, self.sums, self.q, None)

    def _sum_given(self, instances: Ints, y: Ints) -> MessageRun:
        """Sum-product over the hidden variables, which have cycles, with the others held at y; converged already where
        y was the last to be judged."""
        self._converge_given(self._changed(instances, y, self.held_at), y)
        return self.held

    def _converge_given(self, instances: Ints, y: Ints) -> None:
        if len(instances):
            self.held.hold(instances, self.components.outside, y)
            self.held.start(instances, None)
            self.effort.converge(self.held, instances, instances, self.sums)

    def _follow(
        self, run: MessageRun, t: Temperatures, instances: Ints, name: str, schedule: Schedule | None = None
    ) -> None:
        """Advance to convergence, judging the decoded y after 1, 2, 4, ... times the first number of sweeps.

        Convergence is reported for the run that found the best y, sweeps for all runs together.
        """
        call, schedule = self.call, schedule or self.schedule
        before, active, swept = call.value[instances].copy(), instances, run.sweeps[instances]
        for n in _checkpoints(self.effort.sweeps, self.effort.first_check):
            run.advance(active, t, n, schedule)
            run.decode(active, self.y)
            self._judge(active)
            active = active[~(run.residual[active] <= schedule.tolerance)]
            if not len(active):
                break
        call.sweeps[instances] += run.sweeps[instances] - swept
        better = call.value[instances] > before
        call.method[instances[better]] = name
        mine = instances[better | (call.residual[instances] == np.inf)]
        call.residual[mine] = run.residual[mine]
        call.converged[mine] = run.residual[mine] <= schedule.tolerance

    # --- starts ------------------------------------------------------------------------------------------------------

    def _warm_run(self, instances: Ints, t: Temperatures) -> MessageRun:
        run = self.messages
        run.start(instances, None)
        self.effort.warm(run, instances[~self.bound.forest[instances]], t)
        self.call.sweeps[instances] += run.sweeps[instances]
        return run

    def _movable(self, instances: Ints) -> Ints:
        if self.model.relabel is None:
            return instances[:0]
        return instances[~self.bound.forest[instances] & self.batch.pairwise[instances]]

    def _marginals(self, instances: Ints) -> None:
        movable = self._movable(instances)
        self._follow(self._warm_run(movable, self.sums), self.sums, movable, "max-marginals")
        rest = np.setdiff1d(instances, movable)
        if len(rest):
            self._sum_first(rest)

    def _sum_first(self, instances: Ints) -> None:
        run = self._warm_run(instances, self.sums)
        self._sum_then_mixed(run, instances, "max-marginals", "sum-product, then mixed-product")

    def _sum_then_mixed(self, run: MessageRun, instances: Ints, first: str, second: str) -> None:
        self._follow(run, self.sums, instances, first)
        run.residual[instances] = np.inf
        self._follow(run, self.t, instances, second)

    def _regions(self, instances: Ints) -> None:
        loopy = self._movable(instances)
        if self.model.relabel is None or not len(loopy):
            return
        self._copy(loopy, self.call.y, self.y)
        moved, messages = self.model.relabel(loopy, self.bound.free, self.y)
        if len(moved):
            if self.effort.judge_moves:
                self._judge(moved)
            run = self.messages
            run.start(moved, messages)
            self._sum_then_mixed(run, moved, "max-marginals by regions", "regions, then mixed-product")

    def _cold(self, instances: Ints) -> None:
        self._mixed(instances, self.call.messages, "mixed-product")

    def _damped(self, instances: Ints) -> None:
        self._mixed(instances, None, "damped mixed-product", damping=0.5)

    def _mixed(self, instances: Ints, messages: Floats | None, name: str, damping: float = 0.0) -> None:
        run, schedule = self.messages, self.schedule
        run.start(instances, messages)
        self._follow(run, self.t, instances, name, replace(schedule, damping=max(damping, schedule.damping)))
        self.call.keep(run, instances)

    def _joint(self, instances: Ints) -> None:
        self._follow(self._warm_run(instances, self.maxima), self.maxima, instances, "joint max-product")

    def _annealed(self, instances: Ints) -> None:
        if self.t.eps_h == 0.0:
            # Both temperatures would have to fall together; max-product is their limit.
            self._cold(instances)
            return
        run = self.model.run()
        run.start(instances, None)
        schedule = replace(self.schedule, damping=max(0.2, self.schedule.damping))
        eps_y = self.t.eps_h
        while eps_y > COLDEST * self.t.eps_h:
            run.residual[instances] = np.inf
            run.advance(instances, Temperatures(self.t.outputs, eps_y, self.t.eps_h), 4, schedule)
            run.decode(instances, self.y)
            self._judge(instances)
            eps_y *= 0.5
        self.call.sweeps[instances] += run.sweeps[instances]
        self._mixed(instances, run.log_messages(instances), "annealed mixed-product")

    def _random(self, instances: Ints, k: int) -> None:
        ptr, rows = self.batch.message_ptr, self.call.message_rows(instances)
        counts, messages = np.diff(ptr)[instances], np.zeros(ptr[-1])
        draws = uniforms(rows - np.repeat(ptr[instances], counts), self.seed, RANDOM_STREAM + k)
        messages[rows] = -np.repeat(0.5 * self.range[instances], counts) * draws
        self._mixed(instances, messages, "mixed-product from random messages")

    def _cut(self, instances: Ints) -> None:
        """One minimum cut where every variable has at most two states; what it proves is exact."""
        call = self.call
        for b, model in self._cut_models(instances):
            if int(model.n_allowed.max()) > 2:
                continue
            low, high = model.extremes()
            found, upper = model.mix(high, low) if self._ties_go_down else model.mix(low, high)
            self._try(b, found, "minimum cut")
            if not call.upper[b] <= upper:
                call.upper[b] = upper
            if call.value[b] >= upper - CUT_TOLERANCE * (1.0 + abs(upper)):
                call.exact[b] = call.converged[b] = True
                call.residual[b] = 0.0

    @property
    def _ties_go_down(self) -> bool:
        """Which of two equally good labellings a cut finds, by the seed."""
        return bool(uniforms(np.zeros(1, dtype=np.int64), self.seed, CUT_STREAM)[0] < 0.5)

    def _expansions(self, instances: Ints) -> None:
        for b, model in self._cut_models(instances):
            first, end = self.batch.var_ptr[b : b + 2]
            known = self.call.y[first:end].copy()
            begins = [known] if known[0] >= 0 else []
            if self.effort.judge_moves or not begins:
                begins.append(model.best_alone())
            for y in begins:
                self._try(b, model.expand(y, self.effort.expansions), "expansions by cuts")

    def _cut_models(self, instances: Ints) -> Iterator[tuple[int, CutModel]]:
        """The instances that cuts can improve: with cycles, by pairs of variables, none of them summed."""
        if self.t.eps_h > 0.0:
            return
        loopy = instances[~self.bound.forest[instances] & self.batch.pairwise[instances]]
        for b in loopy.tolist():
            model = CutModel.of(self.batch, self.call.theta, self.bound.query.allowed, b)
            if model is not None:
                yield b, model

    def _try(self, b: int, y: Ints, name: str) -> None:
        """Judge a labelling of one instance."""
        before = self.call.value[b]
        self.y[self.batch.var_ptr[b] : self.batch.var_ptr[b + 1]] = y
        self._judge(np.array([b]))
        if self.call.value[b] > before:
            self.call.method[b] = name
            self.call.converged[b] = True
            self.call.residual[b] = 0.0

    def _solve_merged(self) -> Ints:
        """Max-product on the merged model; returns the instances that are not thereby solved exactly."""
        if self.merged is None or self.merging is None:
            return self.instances
        merging, call = self.merging, self.call
        instances = np.intersect1d(self.instances, merging.instances)
        run = self.merged.run()
        run.start(instances, None)
        self._follow(run, self.maxima, instances, "max-product over merged regions")
        trees = instances[merging.forest[instances] & (run.residual[instances] <= self.schedule.tolerance)]
        if len(trees):
            run.beliefs(trees, self.maxima, call.upper, None)
            top, best = call.upper[trees], call.value[trees]
            call.exact[trees] = best >= top - 1e-9 * (1.0 + np.abs(top))
            call.upper[trees] = np.where(call.exact[trees], best, top)
        return self.instances[~call.exact[self.instances]]

    # --- polishing ---------------------------------------------------------------------------------------------------

    def _polish(self, instances: Ints) -> None:
        forest = self.components.forest[instances]
        if forest.any():
            self._local_search(instances[forest])
        if not forest.all():
            self._flip_by_messages(instances[~forest])

    def _local_search(self, instances: Ints) -> None:
        free, call, effort = self.bound.free & self.components.outside, self.call, self.effort
        self._copy(instances, call.y, self.y)
        self.conditional.improve(instances, free, self.y)
        self._judge(instances)
        most = int(np.bincount(self.batch.owner[free], minlength=len(self.batch))[instances].max())
        for k in range(effort.gibbs):
            self._copy(instances, call.y, self.y)
            draws = uniforms(np.arange(effort.rounds * most), self.seed, k)
            annealing = Annealing(self.range / HOT, self.range / COLD, effort.rounds, effort.budget, draws)
            self.conditional.improve(instances, free, self.y, annealing)
            before = call.value[instances].copy()
            self._judge(instances)
            call.method[instances[call.value[instances] > before]] = "annealed Gibbs search"

    def _flip_by_messages(self, instances: Ints) -> None:
        """Move outputs to the best state under the messages of sum-product given the others, while Q rises."""
        share, n_changed, call = np.ones(len(self.q)), np.zeros(len(self.q), dtype=np.int64), self.call
        for _ in range(self.effort.flips):
            score = self._sum_given(instances, call.y).scores(instances)
            self._copy(instances, call.y, self.y)
            for b in instances:
                n_changed[b] = self._propose(int(b), score[self.batch.state_span(b)], share[b])
            instances = instances[n_changed[instances] > 0]
            if not len(instances):
                break
            before = call.value[instances].copy()
            self._judge(instances)
            worse = ~(call.value[instances] > before)
            share[instances] = np.where(worse, 0.5 * share[instances], 1.0)
            instances = instances[~(worse & (n_changed[instances] == 1))]
            if not len(instances):
                break

    def _propose(self, b: int, score: Floats, share: float) -> int:
        """Move outputs of b to the state of highest score: of those that gain, the best ``share``, no two in one
        factor; returns how many."""
        graph, lo, hi = self.batch.topology(b), int(self.batch.var_ptr[b]), int(self.batch.var_ptr[b + 1])
        y, at = self.y[lo:hi], graph.unary_ptr
        target = segment_argmax(score, at)
        movable = (self.bound.free & self.components.outside)[lo:hi]
        with np.errstate(invalid="ignore"):
            gain = np.where(movable, score[at[:-1] + target] - score[at[:-1] + y], 0.0)
        left, n = int(np.ceil(share * np.count_nonzero(gain > 1e-9))), 0
        near, blocked = np.argsort(graph.scope_flat, kind="stable"), np.zeros(hi - lo, dtype=bool)
        factor = np.searchsorted(graph.scope_ptr, near, side="right") - 1
        factor_ptr = np.searchsorted(graph.scope_flat[near], np.arange(hi - lo + 1))
        for k in np.argsort(-gain, kind="stable"):
            if n == left or not gain[k] > 1e-9:
                break
            if not blocked[k]:
                y[k] = target[k]
                n += 1
                for f in factor[factor_ptr[k] : factor_ptr[k + 1]]:
                    blocked[list(graph.scopes[f])] = True
        return n

    # --- the answer --------------------------------------------------------------------------------------------------

    def _finish(self) -> None:
        call, forest = self.call, self.components.forest[self.instances]
        tree, loopy = self.instances[forest], self.instances[~forest]
        self.conditional.marginals(tree, call.y, call.mu)
        if len(loopy):
            run = self._sum_given(loopy, call.y)
            # The value stays as y was judged: beliefs of messages that were finished once are rounded once more.
            run.beliefs(loopy, self.sums, self.q, call.mu)
            call.converged[loopy] &= run.residual[loopy] <= self.schedule.tolerance
        call.lower[tree] = call.value[tree]


def _checkpoints(sweeps: int, first: int) -> Iterator[int]:
    """first, first, 2 first, 4 first, ... adding up to ``sweeps``; one of none if there are to be none."""
    done, step = 0, first
    if not sweeps:
        yield 0
    while done < sweeps:
        n = min(step, sweeps - done)
        yield n
        done += n
        step = done


STARTS: dict[str, Callable[[OutputSearch, Ints], None]] = {
    "marginals": OutputSearch._marginals,
    "sum_first": OutputSearch._sum_first,
    "regions": OutputSearch._regions,
    "cold": OutputSearch._cold,
    "damped": OutputSearch._damped,
    "annealed": OutputSearch._annealed,
    "joint": OutputSearch._joint,
    "cut": OutputSearch._cut,
    "expansions": OutputSearch._expansions,
}
