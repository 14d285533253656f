"""Message passing by the compiled library: ``cpp/messages.hpp`` and its neighbours implement ``engines.messages``.

A plan lays out index arrays, a model measures potentials, a run holds messages. The messages of an instance are
probabilities while these are precise enough (pairwise factors, one temperature) and scores otherwise; the library
reports when that changes.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from functools import cached_property
from itertools import count
from threading import Lock
from typing import Any
from weakref import finalize

import numpy as np

from mssvm.core.arrays import Bools, Floats, Ints
from mssvm.core.components import HiddenComponents
from mssvm.core.library import (
    FLOAT,
    FLOATS,
    INT,
    INTS,
    MASK,
    FieldKind,
    Function,
    Record,
    RecordKind,
    RecordType,
)
from mssvm.core.potentials import Marginals, Potentials, Query
from mssvm.core.threads import Workers
from mssvm.core.topology import Batch, entries_of, offsets
from mssvm.engines.messages import NOISE, Schedule, Temperatures, sweep_order, sweep_places
from mssvm.engines.native.conditional import NativeConditional
from mssvm.engines.native.wiring import WIRING

# Ranges of a table, in units of the temperature. Up to SAFE_RANGE probabilities are tried; up to WEAK_RANGE no
# probability is so small that its relative changes would go unnoticed.
SAFE_RANGE = 600.0
WEAK_RANGE = 4.0
# Max-product is the same at any positive unit of scores. At this range in units, nothing underflows or loses precision.
MAX_PRODUCT_RANGE = 100.0
# Least number of instances of one graph that run in lanes: FEWEST up to FEW_STATES states, FEWEST_WIDE up to
# MOST_STATES; beyond, one instance at a time is as fast.
FEW_STATES = 5
MOST_STATES = 12
FEWEST = 3
FEWEST_WIDE = 6
PADDING = 8
NUMBERS = count(1)  # numbers of plans: keys of the graphs that the library caches
NO_FLOATS = np.zeros(0)
NO_FLAGS = np.zeros(0, dtype=bool)
NO_INTS = np.zeros(0, dtype=np.int64)

RUN = RecordType(
    "run",
    dict.fromkeys(("unary", "open_unary", "potential", "messages", "residual"), FLOATS)
    | {"sweeps": INTS, "held_at": INTS, "scaled": MASK, "measuring": MASK, "held": MASK}
    | {"tables": FLOATS, "scaled_tables": FLOATS, "eligible": MASK, "weak": MASK, "unit": FLOAT},
)
SHARED_FIELDS: dict[str, FieldKind] = {"wiring": RecordKind(WIRING), "run": RecordKind(RUN), "instances": INTS}

TABLES = Function(
    "mssvm_messages_tables",
    tables=FLOATS,
    starts=INTS,
    sizes=INTS,
    at=INTS,
    unit=FLOAT,
    top=FLOATS,
    low=FLOATS,
    out=FLOATS,
    threads=INT,
)
SCORES = Function(
    "mssvm_messages_scores",
    wiring=RecordKind(WIRING),
    scores=FLOATS,
    noise=FLOATS,
    allowed=MASK,
    noise_scale=FLOAT,
    table_top=FLOATS,
    table_low=FLOATS,
    unary=FLOATS,
    noisy=FLOATS,
    range=FLOATS,
    widest_table=FLOATS,
    threads=INT,
)
START = Function(
    "mssvm_messages_start",
    **SHARED_FIELDS,
    given=FLOATS,
    threads=INT,
)
ADVANCE = Function(
    "mssvm_messages_advance",
    **SHARED_FIELDS,
    until=INTS,
    outputs=MASK,
    eps_y=FLOAT,
    eps_h=FLOAT,
    damping=FLOAT,
    tolerance=FLOAT,
    flooding=INT,
    scalable=INT,
    threads=INT,
)
BELIEFS = Function(
    "mssvm_messages_beliefs",
    **SHARED_FIELDS,
    outputs=MASK,
    table_tops=FLOATS,
    eps_y=FLOAT,
    eps_h=FLOAT,
    scalable=INT,
    value=FLOATS,
    mu_unary=FLOATS,
    mu_tables=FLOATS,
    threads=INT,
)
FORGET = Function("mssvm_messages_forget", plan=INT)
WAVES = Function("mssvm_messages_waves", wiring=RecordKind(WIRING), out=MASK)
DECODE = Function("mssvm_messages_decode", **SHARED_FIELDS, allowed=MASK, states=INTS, threads=INT)
FIELDS = Function("mssvm_messages_fields", **SHARED_FIELDS, outputs=MASK, stale=MASK, out=FLOATS, threads=INT)
LOGS = Function("mssvm_messages_logs", **SHARED_FIELDS, out=FLOATS, threads=INT)
RELABEL = Function(
    "mssvm_messages_relabel",
    wiring=RecordKind(WIRING),
    instances=INTS,
    free=MASK,
    unary=FLOATS,
    tables=FLOATS,
    states=INTS,
    sent=FLOATS,
    moved=MASK,
    threads=INT,
)


class Buffers:
    """A buffer pool: runs return their arrays when they end.

    The system takes longer to provide fresh memory than some sweeps run.
    """

    def __init__(self) -> None:
        self._free: defaultdict[int, list[Floats]] = defaultdict(list)
        self._lock = Lock()

    def acquire(self, size: int) -> Floats:
        """An array with arbitrary contents."""
        with self._lock:
            free = self._free[size]
            return free.pop() if free else np.empty(size)

    def release(self, *arrays: Floats) -> None:
        """Return unused arrays to the pool, which keeps a few of every size."""
        with self._lock:
            for array in arrays:
                if len(self._free[array.size]) < 4:
                    self._free[array.size].append(array)


@dataclass(frozen=True, eq=False)
class NativeMessagePlan:
    """Index arrays of a batch; distinct tables are ordered by their first use in a sweep."""

    batch: Batch
    workers: Workers
    buffers: Buffers = field(init=False, repr=False, default_factory=Buffers)

    @cached_property
    def order(self) -> Ints:
        return sweep_order(self.batch, sweep_places(self.batch))

    @cached_property
    def _distinct(self) -> tuple[Ints, Ints, Ints]:
        """Offsets and sizes of the distinct tables, and the table number of every factor."""
        batch = self.batch
        order = self.order
        starts, first, number = np.unique(batch.table_at[order], return_index=True, return_inverse=True)
        by_use = np.argsort(first, kind="stable")
        rank = np.empty(len(starts), dtype=np.int64)
        rank[by_use] = np.arange(len(starts))
        table_of = np.empty(batch.n_factors, dtype=np.int64)
        table_of[order] = rank[number]
        return starts[by_use], batch.table_sizes[order][first][by_use], table_of

    @property
    def table_starts(self) -> Ints:
        return self._distinct[0]

    @property
    def table_sizes(self) -> Ints:
        return self._distinct[1]

    @cached_property
    def scaled_starts(self) -> Ints:
        """Offsets of the distinct tables when they are stored one after the other, with the total appended."""
        return offsets(self.table_sizes)

    @cached_property
    def message_at(self) -> Ints:
        return offsets(self.batch.cards[self.batch.scope_vars])

    @property
    def n_messages(self) -> int:
        return int(self.message_at[-1])

    @cached_property
    def wiring(self) -> Record:
        batch = self.batch
        scope = batch.scope_vars
        table_of = self._distinct[2]
        near_ptr = offsets(np.bincount(scope, minlength=batch.n_vars).astype(np.int64))
        arrays: dict[str, Any] = {
            "var_ptr": batch.var_ptr,
            "factor_ptr": batch.factor_ptr,
            "state_ptr": batch.unary_ptr,
            "scope_ptr": batch.scope_ptr,
            "scope": scope,
            "message_at": self.message_at,
            "order": self.order,
            "near_ptr": near_ptr,
            "near": np.argsort(scope, kind="stable"),
            "slot_factor": batch.slot_factor,
            "table_at": batch.table_at,
            "scaled_at": self.scaled_starts[table_of],
            "table_of": table_of,
            "mu_at": batch.mu_at,
            "family_of": self.family_of,
        }
        widest = int(batch.cards.max(initial=1))
        whole = {name: np.ascontiguousarray(array, dtype=np.int64) for name, array in arrays.items()}
        number = next(NUMBERS)
        finalize(self, FORGET, plan=number).atexit = False
        return WIRING(**whole, widest=widest, plan=number)

    @cached_property
    def family_of(self) -> Ints:
        """Family number of each instance; families have one graph and the same tables. -1: too few for lanes."""
        batch = self.batch
        members: dict[tuple[int, bytes], list[int]] = {}
        widest = np.zeros(len(batch), dtype=np.int64)
        np.maximum.at(widest, batch.owner, batch.cards)
        for b in np.flatnonzero(batch.pairwise & (np.diff(batch.factor_ptr) > 0) & (widest <= MOST_STATES)):
            row = batch.table_at[batch.factor_ptr[b] : batch.factor_ptr[b + 1]]
            members.setdefault((int(batch.topology_of[b]), row.tobytes()), []).append(int(b))
        fewest = np.where(widest <= FEW_STATES, FEWEST, FEWEST_WIDE)
        out = np.full(len(batch), -1, dtype=np.int64)
        chosen = [instances for instances in members.values() if len(instances) >= fewest[instances[0]]]
        for number, instances in enumerate(chosen):
            out[instances] = number
        return out

    @cached_property
    def in_waves(self) -> Bools:
        """Instances whose graphs are grids that are swept in waves, several rows at a time, while they hold
        probabilities and a thread has too few of them to fill its lanes."""
        out = np.zeros(len(self.batch), dtype=bool)
        WAVES(wiring=self.wiring, out=out)
        return out

    def load(self, theta: Potentials, query: Query, noise: Floats) -> NativeMessageModel:
        scores = np.ascontiguousarray(theta.unary, np.float64)
        tables = np.ascontiguousarray(theta.tables, np.float64)
        return NativeMessageModel(self, scores, noise, tables, np.ascontiguousarray(query.allowed, np.bool_))


@dataclass(frozen=True, eq=False)
class ScaledTables:
    """exp((theta - max theta) / unit) of every distinct table, stored one after the other."""

    unit: float
    entries: Floats
    eligible: Bools  # instances on which probabilities are tried
    weak: Bools  # instances on which no probability is tiny


@dataclass(frozen=True, eq=False)
class NativeMessageModel:
    """Potentials of a batch, measured once: ranges, masks, and noisy scores."""

    plan: NativeMessagePlan
    scores: Floats
    noise: Floats
    tables: Floats
    allowed: Bools

    @property
    def threads(self) -> int:
        return self.plan.workers.idle

    @cached_property
    def table_ends(self) -> tuple[Floats, Floats]:
        """The largest and the smallest entry of every distinct table."""
        plan = self.plan
        top, low = np.empty((2, len(plan.table_starts)))
        TABLES(
            tables=self.tables,
            starts=plan.table_starts,
            sizes=plan.table_sizes,
            at=NO_INTS,
            unit=1.0,
            top=top,
            low=low,
            out=NO_FLOATS,
            threads=self.threads,
        )
        return top, low

    @cached_property
    def _measured(self) -> tuple[Floats, Floats, Floats]:
        return self._measure(NO_FLOATS)

    def _measure(self, noisy: Floats) -> tuple[Floats, Floats, Floats]:
        top, low = self.table_ends
        unary = np.empty(len(self.scores))
        n = len(self.plan.batch)
        ranges, widest_table = np.empty((2, n))
        SCORES(
            wiring=self.plan.wiring,
            scores=self.scores,
            noise=np.ascontiguousarray(self.noise),
            allowed=self.allowed,
            noise_scale=NOISE,
            table_top=top,
            table_low=low,
            unary=unary,
            noisy=noisy,
            range=ranges,
            widest_table=widest_table,
            threads=self.threads,
        )
        return unary, ranges, widest_table

    @property
    def unary(self) -> Floats:
        """Scores, -inf at forbidden states."""
        return self._measured[0]

    @cached_property
    def noisy(self) -> Floats:
        """``unary`` with tie-breaking noise."""
        out = np.empty(len(self.scores))
        self._measure(out)
        return out

    @property
    def range(self) -> Floats:
        return self._measured[1]

    @property
    def widest_table(self) -> Floats:
        """By instance, the largest range of a table; infinite or NaN where an entry is forbidden."""
        return self._measured[2]

    def marginals(self) -> Marginals:
        return Marginals.zeros(self.plan.batch)

    def run(
        self, instances: Ints | None = None, scaled_at: Temperatures | None = None, noisy: bool = False
    ) -> NativeRun:
        unary = self.noisy if noisy else self.unary
        if scaled_at is None:
            return NativeRun(self, unary, self._no_tables)
        if instances is None:
            instances = np.arange(len(self.plan.batch))
        # A search makes several runs at the same temperatures.
        key = (scaled_at.eps_y, scaled_at.eps_h, instances.tobytes())
        if key not in self._scaled_tables:
            self._scaled_tables[key] = self._scaled(instances, scaled_at)
        return NativeRun(self, unary, self._scaled_tables[key])

    @cached_property
    def _no_tables(self) -> ScaledTables:
        none = np.zeros(len(self.plan.batch), dtype=bool)
        return ScaledTables(1.0, NO_FLOATS, none, none)

    @cached_property
    def _scaled_tables(self) -> dict[tuple[float, float, bytes], ScaledTables]:
        return {}

    def _scaled(self, instances: Ints, temperatures: Temperatures) -> ScaledTables:
        """Tables for probabilities at these temperatures."""
        plan = self.plan
        unit = temperatures.eps_h
        candidates = np.zeros(len(plan.batch), dtype=bool)
        candidates[instances] = plan.batch.pairwise[instances] & (np.diff(plan.batch.factor_ptr)[instances] > 0)
        if unit == 0.0:
            # Any unit gives the same maxima. One for all needs one set of tables; tiny ranges are left out.
            ranges = self.range[instances]
            most = float(ranges[np.isfinite(ranges)].max(initial=0.0))
            unit = most / MAX_PRODUCT_RANGE if most > 0.0 else 1.0
            candidates &= self.range >= 1e-9 * most
        eligible = candidates & (self.widest_table <= SAFE_RANGE * unit)
        if 0.0 < temperatures.eps_y != temperatures.eps_h or not eligible.any():
            none = np.zeros(len(eligible), dtype=bool)
            return ScaledTables(unit, NO_FLOATS, none, none)
        top, low = self.table_ends
        entries = np.zeros(int(plan.scaled_starts[-1]) + PADDING)  # vectors read over the end of a table
        TABLES(
            tables=self.tables,
            starts=plan.table_starts,
            sizes=plan.table_sizes,
            at=plan.scaled_starts[:-1],
            unit=unit,
            top=top,
            low=low,
            out=entries,
            threads=self.threads,
        )
        return ScaledTables(unit, entries, eligible, self.widest_table <= WEAK_RANGE * unit)

    def relabel(self, instances: Ints, free: Bools, z: Ints) -> tuple[Ints, Floats]:
        named = np.ascontiguousarray(instances, dtype=np.int64)
        moved = np.zeros(len(named), dtype=bool)
        sent = np.empty(self.plan.n_messages)
        RELABEL(
            wiring=self.plan.wiring,
            instances=named,
            free=free,
            unary=self.unary,
            tables=self.tables,
            states=z,
            sent=sent,
            moved=moved,
            threads=self.threads,
        )
        return named[moved], sent

    def given(self, components: HiddenComponents, eps_h: float) -> NativeConditional:
        return NativeConditional.of(self, components, eps_h)


class NativeRun:
    """Messages of a batch. ``unit`` is the temperature of probabilities, and of residuals at temperature zero."""

    def __init__(self, model: NativeMessageModel, unary: Floats, tables: ScaledTables) -> None:
        plan = model.plan
        self.model = model
        self.batch = plan.batch
        self.unit = tables.unit
        n = len(plan.batch)
        self.sweeps = np.zeros(n, dtype=np.int64)
        self.residual = np.full(n, np.inf)
        self._until = np.zeros(n, dtype=np.int64)
        self._buffers = plan.buffers
        self._messages = self._buffers.acquire(plan.n_messages)
        self._potential = self._buffers.acquire(len(unary) if tables.eligible.any() else 0)
        self._scaled = np.zeros(n, dtype=bool)
        self._unary = unary
        self._held = NO_FLAGS
        self._held_at = NO_INTS
        self._run = RUN(
            unary=unary,
            open_unary=unary,
            potential=self._potential,
            messages=self._messages,
            residual=self.residual,
            sweeps=self.sweeps,
            held_at=NO_INTS,
            scaled=self._scaled,
            measuring=np.zeros(n, dtype=bool),
            held=NO_FLAGS,
            tables=model.tables,
            scaled_tables=tables.entries,
            eligible=tables.eligible,
            weak=tables.weak,
            unit=tables.unit,
        )

    def __del__(self) -> None:
        self._buffers.release(self._messages, self._potential)

    def _shared_fields(self, instances: Ints) -> dict[str, Any]:
        """The fields that all calls share."""
        named = np.ascontiguousarray(instances, dtype=np.int64)
        return {"wiring": self.model.plan.wiring, "run": self._run, "instances": named, "threads": self.model.threads}

    def _scalable(self, t: Temperatures) -> bool:
        """Whether scaled probabilities are exact at these temperatures."""
        outputs_fit = t.eps_y in (0.0, self.unit)
        return outputs_fit and (t.eps_h == self.unit or bool(t.outputs.all()))

    def start(self, instances: Ints, messages: Floats | None) -> None:
        given = NO_FLOATS if messages is None else np.ascontiguousarray(messages, dtype=np.float64)
        START(**self._shared_fields(instances), given=given)

    def hold(self, instances: Ints, outside: Bools, y: Ints) -> None:
        if not len(self._held_at):
            self._held_at = np.zeros(self.batch.n_vars, dtype=np.int64)
            self._held = np.ascontiguousarray(outside, dtype=np.bool_)
            self._run.set("held", self._held)
            self._run.set("held_at", self._held_at)
        rows = entries_of(self.batch.var_ptr, instances)
        self._held_at[rows] = y[rows]

    def advance(self, instances: Ints, temperatures: Temperatures, n_sweeps: int, schedule: Schedule) -> None:
        t = temperatures
        until = self._until
        until[instances] = self.sweeps[instances] + n_sweeps
        record = None
        while True:
            wanted = ~(self.residual[instances] <= schedule.tolerance) & (self.sweeps[instances] < until[instances])
            active = np.ascontiguousarray(instances[wanted], dtype=np.int64)
            if not len(active):
                return
            if record is None:
                record = ADVANCE.record(
                    **self._shared_fields(active),
                    until=until,
                    outputs=t.outputs,
                    eps_y=t.eps_y,
                    eps_h=t.eps_h,
                    damping=schedule.damping,
                    tolerance=schedule.tolerance,
                    flooding=int(schedule.flooding),
                    scalable=int(self._scalable(t)),
                )
            record.set("instances", active)
            ADVANCE.run(record)

    def decode(self, instances: Ints, y: Ints) -> None:
        DECODE(**self._shared_fields(instances), allowed=self.model.allowed, states=y)

    def scores(self, instances: Ints) -> Floats:
        out = np.zeros(self.batch.n_states)
        # On a copy in log space, in which messages to held variables are updated.
        run = self._run.changed(
            unary=self._unary,
            potential=NO_FLOATS,
            messages=self.log_messages(instances),
            scaled=np.zeros(len(self.batch), dtype=bool),
            measuring=np.zeros(len(self.batch), dtype=bool),
        )
        FIELDS(
            **(self._shared_fields(instances) | {"run": run}),
            outputs=np.zeros(self.batch.n_vars, dtype=bool),
            stale=self._scaled,
            out=out,
        )
        return out

    def log_messages(self, instances: Ints) -> Floats:
        out = np.zeros(self.model.plan.n_messages)
        LOGS(**self._shared_fields(instances), out=out)
        return out

    def beliefs(self, instances: Ints, temperatures: Temperatures, value: Floats, mu: Marginals | None) -> None:
        t = temperatures
        BELIEFS(
            **self._shared_fields(instances),
            outputs=t.outputs,
            table_tops=self.model.table_ends[0],
            eps_y=t.eps_y,
            eps_h=t.eps_h,
            scalable=int(t.eps_y == t.eps_h == self.unit),
            value=value,
            mu_unary=NO_FLOATS if mu is None else mu.unary,
            mu_tables=NO_FLOATS if mu is None else mu.tables,
        )
