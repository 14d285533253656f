"""Weighted mini-bucket elimination of one instance: an upper bound on the nested power sum (paper eq. 5), made tight.

Eliminating a variable from a product of functions that is too large is split by Hoelder's inequality,

    PS_w [f_1 + .. + f_R]  <=  PS_{w_1} [f_1 + d_1] + .. + PS_{w_R} [f_R + d_R],     sum w_r = w,  sum_r d_r(x) = 0,

which holds for any weights w_r >= 0 and any shifts d_r of variables that all f_r have, so both can be chosen to make
the bound tight: shifts by moment matching on the way, then shifts and weights together by L-BFGS.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from time import monotonic

import numpy as np
from scipy.optimize import OptimizeResult, minimize

from mssvm.core.arrays import Bools, Floats, Ints
from mssvm.core.library import Record
from mssvm.core.orders import find_order
from mssvm.core.potentials import Potentials, Query, segment_argmax
from mssvm.core.topology import Batch, Topology
from mssvm.engines.elimination import compile_elimination
from mssvm.engines.native.elimination import ScoreSweep, instances_record

# Where a temperature is zero, the bound is minimised at these instead, in turn: a max has no gradient to follow.
SMOOTHING = (0.3, 0.03)


@dataclass(frozen=True, eq=False)
class OneInstance:
    """One instance of a batch with its masks applied; variables with a single allowed state are clamped to it.

    ``states`` are the first allowed states, which are those of clamped variables.
    """

    topology: Topology
    unary: Floats
    tables: Floats
    table_at: Ints
    output: Bools
    clamped: Bools
    states: Ints

    @classmethod
    def of(cls, batch: Batch, b: int, theta: Potentials, query: Query) -> OneInstance:
        topology = batch.topology(b)
        variables = slice(int(batch.var_ptr[b]), int(batch.var_ptr[b + 1]))
        states = batch.state_span(b)
        allowed = query.allowed[states]
        return cls(
            topology=topology,
            unary=np.where(allowed, theta.unary[states], -np.inf),
            tables=theta.tables,
            table_at=batch.table_at[batch.factor_ptr[b] : batch.factor_ptr[b + 1]],
            output=query.output[variables],
            clamped=query.n_allowed(batch)[variables] == 1,
            states=segment_argmax(allowed.astype(np.float64), topology.unary_ptr),
        )

    @cached_property
    def free(self) -> tuple[Ints, Ints]:
        """Unclamped hidden variables and unclamped outputs."""
        return np.flatnonzero(~self.output & ~self.clamped), np.flatnonzero(self.output & ~self.clamped)

    def scores_of(self, v: int) -> Floats:
        """The unary scores of a variable, -inf at states that are not allowed."""
        unary_ptr = self.topology.unary_ptr
        return np.asarray(self.unary[unary_ptr[v] : unary_ptr[v + 1]])

    def masked_table(self, f: int) -> Floats:
        """The table of factor ``f`` in its shape, -inf at entries whose states the unary scores forbid."""
        topology = self.topology
        first = int(self.table_at[f])
        table = self.tables[first : first + int(topology.table_sizes[f])].reshape(topology.table_shape(f))
        for axis, v in enumerate(topology.scopes[f]):
            shape = [1] * table.ndim
            shape[axis] = -1
            allowed = (self.scores_of(v) > -np.inf).reshape(shape)
            table = np.where(allowed, table, -np.inf)
        return table

    def order(self, one_group: bool, restarts: int = 8, seed: int = 0) -> tuple[int, ...]:
        """An elimination order of the unclamped variables; hidden ones first unless temperatures are equal."""
        hidden, outputs = self.free
        separate = [hidden.tolist(), outputs.tolist()]
        groups = [separate[0] + separate[1]] if one_group else separate
        return find_order(self.topology.cards, self.topology.scopes, groups, restarts, seed).variables

    def record(self, states: Ints) -> Record:
        """This instance as a batch of its own, clamped variables at the given states; the masks are in ``unary``."""
        graph = self.topology
        var_ptr = np.array([0, graph.n_vars])
        factor_ptr = np.array([0, graph.n_factors])
        allowed = np.ones(len(self.unary), dtype=bool)
        return instances_record(var_ptr, factor_ptr, graph.unary_ptr, self.table_at, self.table_at, allowed, states)


class Relaxation:
    """Mini-buckets of one instance with their weights and shifts; ``run`` is an upper bound.

    ``work`` stays between runs: it holds ``shifts`` and, after ``run``, the messages, from which outputs are decoded.
    """

    def __init__(self, instance: OneInstance, order: Sequence[int], entries: int, eps_y: float, eps_h: float) -> None:
        self.instance = instance
        self.program = compile_elimination(instance.topology, order, instance.output, entries)
        self.tau = np.where(self.program.output, eps_y, eps_h)
        copies = np.diff(self.program.position_ptr)
        self.weight = self.tau / np.repeat(copies, copies)
        self.tilt = np.zeros(len(self.split))
        self.sweep = ScoreSweep(self.program)
        self.work = self.sweep.work
        self.load(instance.states)

    def beside(self) -> Relaxation:
        """The same mini-buckets for another thread, in memory of their own, without the shifts."""
        other = copy(self)
        other.sweep = ScoreSweep(self.program)
        other.work = other.sweep.work
        other.load(self.instance.states)
        return other

    @cached_property
    def split(self) -> Ints:
        """The steps of variables with several mini-buckets; without any the value is exact."""
        return np.flatnonzero(self.program.shift_at >= 0)

    @cached_property
    def shift_index(self) -> Ints:
        """Entries of the shifts in the work vector, step by step."""
        starts = self.program.shift_at[self.split]
        sizes = self.program.shift_size[self.split]
        ends = np.cumsum(sizes)
        return np.repeat(starts - ends + sizes, sizes) + np.arange(sizes.sum())

    @property
    def exact(self) -> bool:
        """No bucket was split, so the value is exact."""
        return len(self.split) == 0

    @property
    def shifts(self) -> Floats:
        return self.work[self.shift_index]

    @shifts.setter
    def shifts(self, values: Floats) -> None:
        self.work[self.shift_index] = values

    def load(self, states: Ints) -> None:
        """Load the scores, with the variables outside the order at the given states; the shifts stay."""
        instance = self.instance
        self.sweep.load(instance.record(states), instance.unary, instance.tables)

    def run(self, match: bool = False) -> float:
        """The bound; with ``match`` the shifts are first improved by moment matching, position by position."""
        return self.sweep.bound(self.weight, match)

    def decode(self, states: Ints) -> None:
        """After ``run``: write the maximisers of the variables at temperature zero into ``states``."""
        self.sweep.decode(self.tau, states)

    @property
    def parameters(self) -> tuple[Floats, Floats, Floats]:
        """The variables of ``improve``: shifts, weights, and the weights' logarithms, of which only ratios count."""
        return self.shifts, self.weight, self.tilt

    @parameters.setter
    def parameters(self, values: tuple[Floats, Floats, Floats]) -> None:
        self.shifts, self.weight, self.tilt = values

    def improve(
        self, iterations: int, deadline: float = float("inf"), enough: float = -np.inf, warm_start: bool = False
    ) -> float:
        """Match moments, then minimise over shifts and weights until the deadline (of the monotonic clock), or until
        the bound is at most ``enough``; ``warm_start`` begins with the present parameters.

        The parameters of the best bound stay; returns this bound.
        """
        best = self.run(match=not warm_start)
        if self.exact or not iterations or best <= enough or best == -np.inf:
            return best
        best_parameters = self.parameters
        base, _, _ = best_parameters
        stages = self._smoothing_stages(warm_start)
        start = np.concatenate([np.zeros(len(base)), self.tilt])
        began = monotonic()
        for turn, smoothing in enumerate(stages, start=1):
            # The next stage gets the time that a stage leaves unused.
            until = began + (deadline - began) * turn / len(stages)
            objective = _Objective(self, base, np.maximum(self.tau, smoothing), until, enough)
            start = objective.minimise(start, -(-iterations // len(stages)))
            objective.set(start, self.tau)
            value = self.run()
            if value < best:
                best = value
                best_parameters = (self.shifts, self.weight, start[len(base) :])
            if best <= enough or monotonic() >= deadline:
                break
        self.parameters = best_parameters
        return self.run()

    def _smoothing_stages(self, warm_start: bool) -> tuple[float, ...]:
        """The lowest temperatures of the successive minimisations; the last of them alone after a warm start."""
        if not (self.tau[self.split] == 0.0).any():
            return (0.0,)
        return SMOOTHING[-1:] if warm_start else SMOOTHING


class _Objective:
    """The bound in shifts (around ``base``) and weights of the split steps, at temperatures ``tau``, and its gradient.

    Parameters are changes of the shifts, of which only the part that sums to zero over the copies of a variable counts,
    and logarithms of the copies' weights, of which only ratios count.
    """

    def __init__(self, relaxation: Relaxation, base: Floats, tau: Floats, deadline: float, enough: float) -> None:
        self.relaxation = relaxation
        self.base = base
        self.tau = tau
        self.deadline = deadline
        self.enough = enough
        program = relaxation.program
        split = relaxation.split
        sizes = program.shift_size[split]
        # Copies of one variable share an owner; their shifts of the same states, which must sum to zero, share a cell.
        position = np.searchsorted(program.position_ptr, split, side="right")
        _, first, self.owner = np.unique(position, return_index=True, return_inverse=True)
        starts = np.cumsum(sizes) - sizes
        self.cell = np.arange(len(base)) - np.repeat(starts - starts[first][self.owner], sizes)
        self.cell_size = np.bincount(self.cell)[self.cell]
        self.grad = np.zeros(program.n_work)
        self.d_weight = np.zeros(len(program.var))

    def _centred(self, x: Floats) -> Floats:
        """Remove the mean over the copies of each variable and state."""
        sums = np.bincount(self.cell, weights=x, minlength=len(x))
        centred: Floats = x - sums[self.cell] / self.cell_size
        return centred

    def set(self, x: Floats, tau: Floats) -> None:
        """Set the relaxation's shifts, and as weights ``tau`` times the softmax over each variable's copies."""
        relaxation = self.relaxation
        n = len(self.base)
        e = np.exp(np.clip(x[n:], -30.0, 30.0))
        relaxation.shifts = self.base + self._centred(x[:n])
        relaxation.weight = tau.copy()
        relaxation.weight[relaxation.split] *= e / np.bincount(self.owner, weights=e)[self.owner]

    def __call__(self, x: Floats) -> tuple[float, Floats]:
        if monotonic() >= self.deadline:
            raise _OutOfTimeError
        self.set(x, self.tau)
        relaxation = self.relaxation
        split = relaxation.split
        value = relaxation.run()
        weight = relaxation.weight[split]
        relaxation.sweep.gradient(relaxation.weight, self.grad, self.d_weight)
        slope = weight * self.d_weight[split]
        mean = np.bincount(self.owner, weights=slope)[self.owner]
        d_log = slope - weight / np.maximum(self.tau[split], 1e-300) * mean
        return value, np.concatenate([self._centred(self.grad[relaxation.shift_index]), d_log])

    def minimise(self, start: Floats, iterations: int) -> Floats:
        """The minimiser after some iterations of L-BFGS, or at the deadline the last iterate."""
        last = start

        def callback(intermediate_result: OptimizeResult) -> None:  # SciPy asks for this name
            nonlocal last
            last = intermediate_result.x.copy()
            # The smoothed bound is no less than that at the temperatures asked for.
            if intermediate_result.fun <= self.enough:
                raise StopIteration

        options = {"maxiter": iterations}
        try:
            result = minimize(self, start, jac=True, method="L-BFGS-B", options=options, callback=callback)
        except _OutOfTimeError:
            return last
        return np.asarray(result.x)


class _OutOfTimeError(Exception):
    """Raised to leave the minimiser; caught in this module."""
