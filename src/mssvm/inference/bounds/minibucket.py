"""Weighted mini-bucket upper bounds on the nested power sum (paper eq. 5), for any (eps_y, eps_h).

Eliminating a variable from a product of functions that is too large is split by Hoelder's inequality,

    PS_w [f_1 + .. + f_R]  <=  PS_{w_1} [f_1 + d_1] + .. + PS_{w_R} [f_R + d_R],     sum w_r = w,  sum_r d_r(x) = 0,

which holds for any weights w_r >= 0 and any shifts d_r of the eliminated variable alone, so both can be chosen to make
the bound tight: shifts by moment matching on the way, then shifts and weights together by L-BFGS.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from time import monotonic

import numpy as np
from scipy.optimize import minimize

from mssvm.core.arrays import Bools, Floats, Ints
from mssvm.core.errors import InputError
from mssvm.core.orders import find_order
from mssvm.core.potentials import Potentials, Query, segment_argmax
from mssvm.core.power import check_temperature
from mssvm.core.topology import Batch, Topology
from mssvm.engines.numba.elimination import bounds as engine
from mssvm.engines.numba.elimination.bounds import Buckets
from mssvm.inference.bounds.buckets import Compiler

# Where a temperature is zero, the bound is minimised at these instead, in turn: a max has no gradient to follow.
SMOOTHING = (1.0, 0.3, 0.1, 0.03)
ROUNDING = 1e-12


@dataclass(frozen=True, eq=False)
class Instance:
    """One instance of a batch with its masks applied; variables with a single allowed state are clamped to it."""

    graph: Topology
    unary: Floats
    tables: Floats
    table_at: Ints
    output: Bools
    clamped: Bools
    states: Ints

    @classmethod
    def of(cls, batch: Batch, b: int, theta: Potentials, query: Query) -> Instance:
        span = batch.state_span(b)
        rows = slice(int(batch.var_ptr[b]), int(batch.var_ptr[b + 1]))
        graph = batch.topology(b)
        unary = np.where(query.allowed[span], theta.unary[span], -np.inf)
        first = segment_argmax(query.allowed[span].astype(np.float64), graph.unary_ptr)
        clamped = query.n_allowed(batch)[rows] == 1
        table_at = batch.table_at[batch.factor_ptr[b] : batch.factor_ptr[b + 1]]
        return cls(graph, unary, theta.tables, table_at, query.output[rows], clamped, first)

    @cached_property
    def free(self) -> tuple[Ints, Ints]:
        """Unclamped hidden variables and unclamped outputs."""
        return np.flatnonzero(~self.output & ~self.clamped), np.flatnonzero(self.output & ~self.clamped)

    def order(self, one_group: bool, restarts: int = 8, seed: int = 0) -> tuple[int, ...]:
        """An elimination order of the unclamped variables; hidden ones first unless temperatures are equal."""
        hidden, outputs = (v.tolist() for v in self.free)
        groups = [hidden + outputs] if one_group else [hidden, outputs]
        return find_order(self.graph.cards, self.graph.scopes, groups, restarts, seed).variables


class Relaxation:
    """Mini-buckets of one instance with their weights and shifts; ``value`` is an upper bound after ``run``."""

    def __init__(
        self,
        instance: Instance,
        order: Sequence[int],
        entries: int,
        eps_y: float,
        eps_h: float,
        plan: Buckets | None = None,
    ) -> None:
        self.plan = plan or Compiler(instance.graph, order, instance.output, entries).compile()
        self.tau = np.where(self.plan.output, eps_y, eps_h)
        self.copies = np.repeat(np.diff(self.plan.pos_ptr), np.diff(self.plan.pos_ptr))
        self.position = np.repeat(np.arange(len(self.plan.pos_ptr) - 1), np.diff(self.plan.pos_ptr))
        self.weight = self.tau / self.copies
        self.delta = np.zeros(self.plan.n_delta)
        self.work = np.empty(self.plan.n_work)
        self.instance = instance
        self.load(instance.states)

    @property
    def exact(self) -> bool:
        """No bucket was split, so the value is exact."""
        return len(self.plan.var) == len(self.plan.pos_ptr) - 1

    def load(self, states: Ints) -> None:
        """Take the scores, with the variables outside the order at the given states."""
        i = self.instance
        engine.load(self.plan, i.unary, i.graph.unary_ptr, i.tables, i.table_at, states, self.work)

    def run(self, match: bool = False) -> float:
        """The bound; with ``match`` the shifts are first improved by moment matching, position by position."""
        return float(engine.forward(self.plan, self.weight, self.delta, self.work, match))

    def improve(self, iterations: int, stop: Callable[[], bool] = lambda: False) -> float:
        """Match moments, then minimise over shifts and weights; keeps the best bound found and returns it."""
        best = self.run(match=True)
        if self.exact or not iterations or best == -np.inf:
            return best
        kept = self.delta.copy(), self.weight.copy()
        stages = SMOOTHING if (self.tau[self.copies > 1] == 0.0).any() else (0.0,)
        start = np.concatenate([np.zeros(self.plan.n_delta), np.zeros(len(self.weight))])
        shape = _Shape(self)
        for smoothing in stages:
            objective = _Objective(self, shape, np.maximum(self.tau, smoothing), stop)
            start = objective.minimise(start, -(-iterations // len(stages)))
            self.delta, self.weight = objective.delta(start), shape.weights(start, self.tau)
            value = self.run()
            if value < best:
                best, kept = value, (self.delta.copy(), self.weight.copy())
            self.delta = objective.base
            if stop():
                break
        self.delta, self.weight = kept
        return self.run()


class _Shape:
    """Parameters of weights and shifts: only variables with several mini-buckets have any."""

    def __init__(self, relaxation: Relaxation) -> None:
        plan = relaxation.plan
        self.n_delta = plan.n_delta
        self.position, self.copies = relaxation.position, relaxation.copies
        self.split = self.copies > 1
        # Entries of delta of the same variable and state, which must sum to zero, share a cell.
        state = np.arange(self.n_delta) - np.repeat(plan.delta_at, plan.card)
        first = plan.delta_at[plan.pos_ptr[:-1]]
        self.cell = np.repeat(first[self.position], plan.card) + state
        self.cell_size = np.repeat(self.copies, plan.card).astype(np.float64)

    def centre(self, x: Floats) -> Floats:
        """Remove the mean over the copies of each variable and state."""
        sums = np.bincount(self.cell, weights=x, minlength=self.n_delta)
        out: Floats = x - sums[self.cell] / self.cell_size
        return out

    def weights(self, x: Floats, tau: Floats) -> Floats:
        """tau times the softmax of the parameters over each variable's copies."""
        e = np.exp(np.clip(x[self.n_delta :], -30.0, 30.0))
        out: Floats = tau * e / np.bincount(self.position, weights=e)[self.position]
        return out


class _Objective:
    """The bound and its gradient in the parameters, at fixed temperatures ``tau``."""

    def __init__(self, relaxation: Relaxation, shape: _Shape, tau: Floats, stop: Callable[[], bool]) -> None:
        self.r, self.shape, self.tau, self.stop = relaxation, shape, tau, stop
        self.base = relaxation.delta
        self.grad = np.zeros(relaxation.plan.n_work)
        self.d_delta = np.zeros(relaxation.plan.n_delta)
        self.d_weight = np.zeros(len(relaxation.weight))

    def delta(self, x: Floats) -> Floats:
        return self.base + self.shape.centre(x[: self.shape.n_delta])

    def __call__(self, x: Floats) -> tuple[float, Floats]:
        if self.stop():
            raise _OutOfTimeError
        plan, work = self.r.plan, self.r.work
        delta, weight = self.delta(x), self.shape.weights(x, self.tau)
        value = float(engine.forward(plan, weight, delta, work, False))
        engine.backward(plan, weight, delta, work, self.grad, self.d_delta, self.d_weight)
        mean = np.bincount(self.shape.position, weights=weight * self.d_weight)[self.shape.position]
        d_log = weight * self.d_weight - weight / np.maximum(self.tau, 1e-300) * mean
        return value, np.concatenate([self.shape.centre(self.d_delta), np.where(self.shape.split, d_log, 0.0)])

    def minimise(self, start: Floats, iterations: int) -> Floats:
        best = [start]
        try:
            found = minimize(
                self,
                start,
                jac=True,
                method="L-BFGS-B",
                options={"maxiter": iterations},
                callback=lambda x: best.append(x.copy()),
            )
            return np.asarray(found.x)
        except _OutOfTimeError:
            return best[-1]


class _OutOfTimeError(Exception):
    """Leaves the minimiser; never seen outside this module."""


@dataclass(frozen=True)
class MiniBucket:
    """Upper bounds by weighted mini-buckets of at most ``2**ibound`` table entries; exact where nothing is split.

    ``iterations`` of L-BFGS follow the moment-matching pass; 0 leaves it at that pass, and so does a ``time_limit``
    (seconds per instance) that is used up by then.
    """

    ibound: int = 12
    iterations: int = 40
    seed: int = 0
    time_limit: float = float("inf")

    def __post_init__(self) -> None:
        if not 1 <= self.ibound <= 32 or self.iterations < 0:
            raise InputError(f"ibound must be 1 to 32 and iterations >= 0, got {self.ibound} and {self.iterations}.")

    def __call__(self, batch: Batch, theta: Potentials, query: Query, eps_y: float, eps_h: float) -> Floats:
        relax = Relaxing(1 << self.ibound, self.iterations, self.seed, self.time_limit)
        return relax(batch, theta, query, eps_y, eps_h)


@dataclass(frozen=True)
class Relaxing:
    """The bound of every instance, relaxed to mini-buckets of at most ``entries`` table entries."""

    entries: int
    iterations: int
    seed: int
    time_limit: float

    def __call__(self, batch: Batch, theta: Potentials, query: Query, eps_y: float, eps_h: float) -> Floats:
        eps_y, eps_h = check_temperature(eps_y, "eps_y"), check_temperature(eps_h, "eps_h")
        theta.check(batch)
        query.check(batch)
        out = np.empty(len(batch))
        for b in range(len(batch)):
            late = partial(_passed, monotonic() + self.time_limit)
            instance = Instance.of(batch, b, theta, query)
            order = instance.order(eps_y == eps_h, seed=self.seed)
            relaxation = Relaxation(instance, order, self.entries, eps_y, eps_h)
            out[b] = relaxation.improve(self.iterations, stop=late)
        # Outwards by what summation may have lost, so that a tight bound is not below the value by rounding.
        return out + ROUNDING * np.where(np.isfinite(out), 1.0 + np.abs(out), 0.0)


def _passed(deadline: float) -> bool:
    return monotonic() >= deadline
