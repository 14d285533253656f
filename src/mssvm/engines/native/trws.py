"""The decomposition bound by compiled sweeps: at one temperature (``cpp/trws.hpp``), at two (``cpp/nested.hpp``).

Sweeps change messages along factors at one temperature, and at two the shifts of every variable's scores in each of its
chains; a later call continues from these.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np

from mssvm.core.arrays import Bools, Floats, Ints
from mssvm.core.library import FLOAT, FLOATS, INT, INTS, MASK, Function, Record, RecordKind, RecordType
from mssvm.core.potentials import Marginals, Potentials
from mssvm.core.threads import Workers
from mssvm.core.topology import Batch
from mssvm.engines.decomposition import Waiting
from mssvm.engines.native.chain_layout import LAYOUT, chain_layout
from mssvm.engines.native.chains import factor_weights

MAXIMA, SCALED, SCORES = range(3)  # values of ``Rule`` in the kernel
# Range of a table, in units of its temperature, up to which scaled form loses nothing significant: products of one
# message (of two messages at two temperatures) are above 1e-261.
SAFE = 600.0
SAFE_NESTED = 300.0
NO_FLOATS = np.zeros(0)
NO_INTS = np.zeros(0, dtype=np.int64)

LOAD = Function(
    "mssvm_trws_load",
    layout=RecordKind(LAYOUT),
    scores=FLOATS,
    allowed=MASK,
    unary_ptr=INTS,
    unary=FLOATS,
    tables=FLOATS,
    table=INTS,
    size=INTS,
    scaled_at=INTS,
    weight=FLOATS,
    scaled=FLOATS,
    eps=FLOAT,
    safe=FLOAT,
    threads=INT,
)
_CALL: dict[str, Any] = {
    "layout": RecordKind(LAYOUT),
    "unary": FLOATS,
    "tables": FLOATS,
    "scaled": FLOATS,
    "messages": FLOATS,
    "read": FLOATS,
    "unary_ptr": INTS,
    "owner": INTS,
    "value": FLOATS,
    "mu_unary": FLOATS,
    "mu_tables": FLOATS,
    "partial": FLOATS,
    "by_lane": FLOATS,
    "residual": FLOATS,
    "states": INTS,
    "shifts": FLOATS,
    "eps": FLOAT,
    "eps_h": FLOAT,
    "rule": INT,
    "sweeps": INT,
    "threads": INT,
    "ready": INT,
}
SWEEP = Function("mssvm_trws_sweep", **_CALL)
READ = Function("mssvm_trws_read", **_CALL)
DECODE = Function("mssvm_trws_decode", **_CALL)
NESTED_SWEEP = Function("mssvm_nested_sweep", **_CALL)
NESTED_READ = Function("mssvm_nested_read", **_CALL)
ANSWER = RecordType("chain answer", {"call": RecordKind(SWEEP.record), "before": FLOATS, "nested": INT})
ANSWERS = Function("mssvm_chain_answers", first=RecordKind(ANSWER), second=RecordKind(ANSWER), threads=INT)


class ChainPlan:
    """The bound on some instances of a batch, all of them pairwise. With a mask of ``hidden`` variables it has two
    temperatures: eps_h for these, eps_y for the others."""

    def __init__(self, batch: Batch, instances: Ints, workers: Workers, hidden: Bools | None = None) -> None:
        self.batch = batch
        self.workers = workers
        self.instances = np.asarray(instances, dtype=np.int64)
        self.layout = chain_layout(batch, self.instances, workers.idle, hidden)
        self.owner = np.ascontiguousarray(batch.owner, dtype=np.int64)

    def factor_weights(self) -> Floats:
        return factor_weights(self.batch, self.instances)

    def run(self) -> ChainRun:
        """Messages, or shifts, of zero."""
        return NestedRun(self) if self.layout.nested else ChainRun(self)


class ChainRun:
    """Messages of a plan in progress; scores are loaded before they are swept."""

    elsewhere = False
    ready = False  # at two temperatures: messages from later variables are up to date with the shifts

    def __init__(self, plan: ChainPlan) -> None:
        self.plan = plan
        self.messages = _vectors(plan.layout.n_messages)

    @property
    def state(self) -> Floats:
        """The messages, or shifts, from which the next sweep continues."""
        return self.messages

    def restore(self, state: Floats) -> None:
        self.state[:] = state

    @cached_property
    def _unary(self) -> Floats:
        return _vectors(self.plan.layout.n_states)

    @cached_property
    def _by_lane(self) -> Floats:
        return _vectors(self.plan.layout.n_lanes)

    @cached_property
    def _scaled(self) -> Floats:
        return np.zeros(self.plan.layout.tables.total)

    def load(self, theta: Potentials, allowed: Bools, eps_y: float, eps_h: float) -> None:
        """Copy scores into lanes and scale tables; messages stay as they are. With one temperature eps_y = eps_h."""
        plan = self.plan
        batch = self.plan.batch
        scaled = self.plan.layout.tables
        tables = np.ascontiguousarray(theta.tables, dtype=np.float64)
        safe = LOAD(
            layout=plan.layout.record,
            scores=np.ascontiguousarray(theta.unary, dtype=np.float64),
            allowed=np.ascontiguousarray(allowed, dtype=bool),
            unary_ptr=batch.unary_ptr,
            unary=self._unary,
            tables=tables,
            table=scaled.table,
            size=scaled.size,
            scaled_at=scaled.scaled_at,
            weight=scaled.weight,
            scaled=self._scaled,
            eps=float(eps_h),  # temperature of scaled tables; at two temperatures outputs are summed in scores
            safe=SAFE_NESTED if plan.layout.nested else SAFE,
            threads=plan.workers.idle,
        )
        rule = MAXIMA
        if eps_h > 0.0:
            rule = SCALED if safe else SCORES
        self._record = SWEEP.record(
            layout=plan.layout.record,
            unary=self._unary,
            tables=tables,
            scaled=self._scaled,
            messages=self.messages,
            read=NO_FLOATS,
            unary_ptr=batch.unary_ptr,
            owner=plan.owner,
            value=NO_FLOATS,
            mu_unary=NO_FLOATS,
            mu_tables=NO_FLOATS,
            partial=NO_FLOATS,
            by_lane=self._by_lane,
            residual=NO_FLOATS,
            states=NO_INTS,
            shifts=NO_FLOATS,
            eps=float(eps_y),
            eps_h=float(eps_h),
            rule=rule,
            sweeps=0,
            threads=plan.workers.idle,
            ready=0,
        )

    def sweep(self, n: int) -> Floats:
        """The bound of every instance of the batch (0 outside the plan) after n > 0 sweeps, each forwards and
        backwards."""
        value = np.zeros(len(self.plan.batch))
        SWEEP.run(self.changed(value=value, sweeps=n))
        return value

    def read(self, mu: Marginals) -> Floats:
        """Write the gradient of the bound in the scores, its marginals, at the messages of the last sweep (eps > 0).

        Returns, by instance, the largest difference of a variable's marginals between two chains.
        """
        return self._read(READ, mu)

    def _read(self, function: Function, mu: Marginals) -> Floats:
        residual = np.zeros(len(self.plan.batch))
        read = self.plan.workers.workspace("readings of chains", self.plan.layout.n_read)
        partial = np.zeros(self.plan.layout.n_partial)
        function.run(
            self.changed(mu_unary=mu.unary, mu_tables=mu.tables, partial=partial, residual=residual, read=read)
        )
        return residual

    def answer(self, n: int, mu: Marginals | None) -> PendingAnswer:
        """Computed when it is waited for, or with another one (``PendingAnswer.join``)."""
        return PendingAnswer(self, n, mu)

    def decode(self, states: Ints) -> None:
        """Write a labelling: states in order, given the earlier ones and the messages of later ones."""
        DECODE.run(self.changed(states=states))

    def changed(self, **fields: Any) -> Record:
        """The record of a call on these messages."""
        return self._record.changed(**fields)


class NestedRun(ChainRun):
    """Shifts of a plan with hidden variables in progress."""

    def __init__(self, plan: ChainPlan) -> None:
        super().__init__(plan)
        self.shifts = _vectors(plan.layout.n_shifts)

    @property
    def state(self) -> Floats:
        return self.shifts

    def load(self, theta: Potentials, allowed: Bools, eps_y: float, eps_h: float) -> None:
        super().load(theta, allowed, eps_y, eps_h)
        self.ready = False

    def sweep(self, n: int) -> Floats:
        """The bound after n sweeps; with n = 0 at the shifts as they are."""
        value = np.zeros(len(self.plan.batch))
        NESTED_SWEEP.run(self.changed(value=value, sweeps=n))
        self.ready = True
        return value

    def read(self, mu: Marginals) -> Floats:
        return self._read(NESTED_READ, mu)

    def changed(self, **fields: Any) -> Record:
        return self._record.changed(shifts=self.shifts, ready=int(self.ready), **fields)


class PendingAnswer:
    """Sweeps of a run and the marginals after them, computed by the first call that waits for them."""

    def __init__(self, run: ChainRun, n: int, mu: Marginals | None) -> None:
        self._run = run
        self._done = False
        size = len(run.plan.batch)
        self._before = np.full(size, np.inf) if n < 2 else np.zeros(size)
        self._value = np.zeros(size)
        self._residual = np.zeros(size)
        self._call = run.changed(value=self._value, sweeps=n)
        self._reads = mu is not None
        if mu is not None:
            partial = np.zeros(run.plan.layout.n_partial)
            self._call = self._call.changed(
                mu_unary=mu.unary, mu_tables=mu.tables, partial=partial, residual=self._residual
            )

    def __call__(self) -> tuple[Floats, Floats, Floats]:
        if not self._done:
            _compute(self)
        return self._before, self._value, self._residual

    def join(self, other: Waiting) -> None:
        """Compute this answer and one of another run at the same time, if there are several threads: with one they
        would only need more memory."""
        if isinstance(other, PendingAnswer) and self.threads > 1:
            _compute(self, other)

    @property
    def threads(self) -> int:
        return self._run.plan.workers.idle

    def record(self, workspace: str) -> Record:
        """The answer as the kernel takes it, with a workspace of this name."""
        plan = self._run.plan
        if self._reads:
            self._call.set("read", plan.workers.workspace(workspace, plan.layout.n_read))
        return ANSWER(call=self._call, before=self._before, nested=int(plan.layout.nested))

    def end(self) -> None:
        self._run.ready = True
        self._done = True


def _compute(one: PendingAnswer, other: PendingAnswer | None = None) -> None:
    """Compute one answer, or two on the same threads."""
    second = None if other is None else other.record("readings of other chains")
    ANSWERS(first=one.record("readings of chains"), second=second, threads=one.threads)
    one.end()
    if other is not None:
        other.end()


def _vectors(n: int) -> Floats:
    """Zeros that begin at a cache line."""
    room = np.zeros(n + 8)
    first = (-room.ctypes.data // 8) % 8
    return room[first : first + n]
