"""Messages in progress: scaled probabilities where they cannot underflow, log space elsewhere."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from mssvm.core.arrays import Bools, Floats, Ints
from mssvm.core.jit import njit
from mssvm.core.potentials import Marginals
from mssvm.core.topology import offsets
from mssvm.engines.messages import SHOWN, Schedule, SumRequest, Temperatures
from mssvm.engines.numba.messages import abreast, log, scaled, waves
from mssvm.engines.numba.messages.abreast import MessageFamily
from mssvm.engines.numba.messages.waves import Lattice

if TYPE_CHECKING:
    from mssvm.engines.numba.messages.plan import NumbaMessageModel

_NONE = np.zeros(0)
_NO_MARGINALS = Marginals(_NONE, _NONE)


@njit(cache=True, nogil=True)
def decode(w, instances, score, masked, allowed, y):
    """First allowed state of the highest score, for every variable of the named instances."""
    for b in instances:
        for i in range(w.var_ptr[b], w.var_ptr[b + 1]):
            at = w.state_ptr[i]
            best, top = -1, -np.inf
            for x in range(w.state_ptr[i + 1] - at):
                if allowed[at + x]:
                    v = -np.inf if masked[at + x] > 0 else score[at + x]
                    if best < 0 or v > top:
                        best, top = x, v
            y[i] = best


@njit(cache=True, nogil=True)
def clamp(w, instances, outside, y, source, forbidden, out):
    """Copy ``source``, with ``forbidden`` at every state of a variable outside except y."""
    for b in instances:
        for i in range(w.var_ptr[b], w.var_ptr[b + 1]):
            for x in range(w.state_ptr[i + 1] - w.state_ptr[i]):
                e = w.state_ptr[i] + x
                out[e] = forbidden if outside[i] and x != y[i] else source[e]


class _NumbaRun:
    """What both kinds share. ``field`` holds the unary with all messages to a variable, ``m`` the messages."""

    forbidden: float
    unit = 1.0

    def __init__(self, model: NumbaMessageModel, unary: Floats) -> None:
        self.model, self.w, self.batch = model, model.plan.wiring, model.plan.batch
        self.unary = self.open_unary = unary
        self.m, self.field = model.plan.memory("messages", model.plan.n_messages, len(unary))
        self.masked = model.plan.unmasked
        self.held = np.zeros(0, dtype=bool)
        self.sweeps = np.zeros(len(model.plan.batch), dtype=np.int64)
        self.residual = np.full(len(model.plan.batch), np.inf)

    def decode(self, instances: Ints, y: Ints) -> None:
        decode(self.w, instances, self.field, self.masked, self.model.allowed, y)

    def hold(self, instances: Ints, outside: Bools, y: Ints) -> None:
        plan = self.model.plan
        self.hold_at(outside)

        def hold(some: Ints) -> None:
            self._prepare(some)
            clamp(self.w, some, outside, y, self.open_unary, self.forbidden, self.unary)

        plan.workers.each(hold, plan.blocks(instances))

    def hold_at(self, outside: Bools) -> None:
        """Have memory for scores of which some are forbidden, and know of which variables."""
        if self.unary is self.open_unary:
            # One array for all blocks, whichever comes first.
            self.unary = self.__dict__.setdefault("_clamped", self.model.plan.memory("clamped", len(self.unary))[0])
        self.held = outside

    def sums(self, temperatures: Temperatures, request: SumRequest) -> Ints:
        return request.instances

    def _prepare(self, instances: Ints) -> None:
        """What has to be there before scores are read."""

    def _reset(self, instances: Ints) -> None:
        self.sweeps[instances] = 0
        self.residual[instances] = np.inf

    def _convert(self, instances: Ints, messages: Floats, scale: float) -> Floats:
        out = np.zeros(len(messages))
        scaled.convert(self.w, instances, messages, scale, out)
        return out


@dataclass(frozen=True, eq=False)
class ScaledTables:
    """exp((theta - max theta) / unit) of every distinct table, laid out in the order sweeps meet them, and of unaries
    (``noisy_psi``: with tie-breaking noise). ``at``: where the tables of factors begin, ``tops``: maxima of distinct
    ones. ``known``: the instances whose unaries are there, without noise and with it."""

    model: NumbaMessageModel
    unit: float
    entries: Floats
    at: Ints
    tops: Floats
    psi: Floats
    noisy_psi: Floats
    known: Bools

    @classmethod
    def of(cls, model: NumbaMessageModel, unit: float) -> ScaledTables:
        plan, tops = model.plan, model.tops
        at = offsets(plan.table_sizes)
        entries = np.empty(int(at[-1]))

        def exponentiate(part: slice) -> None:
            out = entries[at[part.start] : at[part.stop]]
            scaled.exponentiate(model.tables, plan.table_starts[part], plan.table_sizes[part], tops[part], unit, out)

        plan.workers.each(exponentiate, plan.chunks)
        n, known = plan.batch.n_states, np.zeros((2, len(plan.batch)), dtype=bool)
        psi, noisy = plan.memory("exponentials", n, n)
        return cls(model, unit, entries, plan.table_at, tops, psi, noisy, known)

    def prepare(self, instances: Ints, noise: bool, messages: Floats, m: Floats) -> None:
        """See to it that the unaries of some instances are there, as every block does for its own, and begin with
        ``messages``, uniform ones if there are none, in ``m``, if there is room."""
        of, out = self.model, self.noisy_psi if noise else self.psi
        scaled.begin(
            of.plan.wiring, instances, self.known[int(noise)], of.unary, of.noise, noise, of.unary_top, self.unit, out,
            messages, m, of.plan.table_of, of.spread, of.range, of.plan.most_diluted,
        )  # fmt: skip


class ScaledRun(_NumbaRun):
    """Pairwise factors, and one temperature (or none beside eps_y = 0) a run."""

    forbidden = 0.0

    def __init__(self, model: NumbaMessageModel, tables: ScaledTables, noise: bool = False) -> None:
        super().__init__(model, tables.noisy_psi if noise else tables.psi)
        self.tables, self.noise, self.kk = tables, noise, model.plan.states
        self.families, self.family_of = model.plan.families
        self.lattices = model.plan.lattices
        # Instances whose products await their messages: sweeps abreast begin without them.
        self.stale = np.zeros(len(self.family_of), dtype=bool)
        self.unit = tables.unit

    @property
    def shown(self) -> Bools:
        """Instances whose messages have no entry of a small probability: they stay within the ranges of tables."""
        return self.model.widest_table <= SHOWN * self.unit

    def _prepare(self, instances: Ints) -> None:
        self.tables.prepare(instances, self.noise, _NONE, _NONE)

    def start(self, instances: Ints, messages: Floats | None) -> None:
        self.tables.prepare(instances, self.noise, _NONE if messages is None else messages, self.m)
        self.stale[instances] = True
        self._collect(instances[self.family_of[instances] < 0])
        for k, some in self.model.plan.by_family(instances)[0]:
            if not len(self.families[k].paths):
                self._collect(some)
        self._refresh(instances)
        self._reset(instances)

    def _collect(self, instances: Ints) -> None:
        """Bring products up to date."""
        instances = instances[self.stale[instances]]
        if len(instances):
            scaled.collect(self.w, instances, self.unary, self.m, self.field)
            self.stale[instances] = False

    def decode(self, instances: Ints, y: Ints) -> None:
        self._collect(instances)
        super().decode(instances, y)

    def advance(self, instances: Ints, temperatures: Temperatures, n_sweeps: int, schedule: Schedule) -> None:
        alone = self._abreast(instances, temperatures.maximal, False, n_sweeps, schedule)
        if len(alone):
            scaled.run(
                self.kk, self.w, alone, self.tables.entries, self.tables.at, self.unary, self.field, self.m,
                temperatures.maximal, self.held, schedule.damping, schedule.flooding, n_sweeps, schedule.tolerance,
                self.sweeps, self.residual,
            )  # fmt: skip

    def last_change(self, instances: Ints, temperatures: Temperatures, schedule: Schedule) -> Floats:
        before, change = self._convert(instances, self.m, 0.0), np.empty(len(instances))
        self.advance(instances, temperatures, 1, replace(schedule, tolerance=-1.0))
        scaled.moves(self.w, instances, before, self.m, change)
        return self.unit * change

    def sums(self, temperatures: Temperatures, request: SumRequest) -> Ints:
        if not len(self.held):
            self.hold_at(~request.free)
        return self.model.sums_of(self, temperatures, request)

    def _refresh(self, instances: Ints) -> None:
        """Bring messages at held variables up to date; sweeps pass them over."""
        if len(self.held):
            t = self.tables
            alone = self._abreast(instances, self.held, True, 1, Schedule())
            if len(alone):
                scaled.refresh(self.kk, self.w, alone, t.entries, t.at, self.field, self.m, self.held)

    def _abreast(self, instances: Ints, maximal: Bools, border: bool, n_sweeps: int, schedule: Schedule) -> Ints:
        """Run the families among the instances; returns the others."""
        members, alone = self.model.plan.by_family(instances)
        for k, some in members:
            given = (self.w, some, self.tables.entries, self.unary, self.field, self.m, maximal, self.held)
            limits = (schedule.flooding, n_sweeps, schedule.tolerance, self.sweeps, self.residual)
            few = len(some) <= waves.MOST and not border and schedule.damping in (0.0, 0.5)
            grid = self.lattices[k] if few else None
            if grid is None:
                family = self.families[k]
                abreast.run(family, *given, border, schedule.damping, *limits, self._space(family))
            else:
                waves.run(grid, *given, schedule.damping, *limits, self._space(grid))
            self.stale[some] &= not n_sweeps
        return alone

    def _space(self, family: MessageFamily | Lattice) -> Floats:
        return self.model.plan.workers.scratch(family.space(), 0)[0]

    def scores(self, instances: Ints) -> Floats:
        self._refresh(instances)
        out = np.zeros(len(self.field))
        scaled.collect(self.w, instances, self.open_unary, self.m, out)
        with np.errstate(divide="ignore"):
            return np.asarray(self.tables.unit * np.log(out))

    def log_messages(self, instances: Ints) -> Floats:
        return self._convert(instances, self.m, -self.tables.unit)

    def beliefs(self, instances: Ints, temperatures: Temperatures, value: Floats, mu: Marginals | None) -> None:
        self._collect(instances)
        self._refresh(instances)
        into, t, plan = mu or _NO_MARGINALS, self.tables, self.model.plan
        mu_at, table_of = plan.batch.mu_at, plan.table_of
        members, alone = self.model.plan.by_family(instances)
        for k, some in members:
            family = self.families[k]
            abreast.beliefs(
                family, self.w, some, t.entries, table_of, t.tops, t.unit, self.field, self.m, self.model.unary_top,
                mu_at, into.unary, into.tables, value, self._space(family),
            )  # fmt: skip
        if len(alone):
            scaled.beliefs(
                self.w, alone, t.entries, t.at, table_of, t.tops, t.unit, self.field, self.m, self.model.unary_top,
                mu_at, into.unary, into.tables, value,
            )  # fmt: skip


class LogRun(_NumbaRun):
    """Factors of any order, any temperatures, any ranges, forbidden entries."""

    forbidden = -np.inf
    shown = None

    def __init__(self, model: NumbaMessageModel, unary: Floats | None = None) -> None:
        super().__init__(model, model.unary if unary is None else unary)
        self.masked = np.zeros(len(self.unary), dtype=np.int64)

    def start(self, instances: Ints, messages: Floats | None) -> None:
        scaled.convert(self.w, instances, np.zeros(len(self.m)) if messages is None else messages, 0.0, self.m)
        self._reset(instances)

    def advance(self, instances: Ints, temperatures: Temperatures, n_sweeps: int, schedule: Schedule) -> None:
        t = temperatures
        log.run_log(
            self.w, instances, self.model.tables, self.unary, self.field, self.masked, self.m, t.outputs, t.eps_y,
            t.eps_h, schedule.damping, schedule.flooding, n_sweeps, schedule.tolerance, self.sweeps, self.residual,
        )  # fmt: skip

    def last_change(self, instances: Ints, temperatures: Temperatures, schedule: Schedule) -> Floats:
        self.advance(instances, temperatures, 1, replace(schedule, tolerance=-1.0))
        return np.asarray(self.residual[instances])

    def scores(self, instances: Ints) -> Floats:
        out, masked = np.zeros(len(self.field)), np.zeros(len(self.field), dtype=np.int64)
        log.collect_log(self.w, instances, self.open_unary, self.m, out, masked)
        return np.where(masked > 0, -np.inf, out)

    def log_messages(self, instances: Ints) -> Floats:
        return self._convert(instances, self.m, 0.0)

    def beliefs(self, instances: Ints, temperatures: Temperatures, value: Floats, mu: Marginals | None) -> None:
        into, t = mu or _NO_MARGINALS, temperatures
        log.beliefs_log(
            self.w, instances, self.model.tables, self.unary, self.field, self.masked, self.m, t.outputs, t.eps_y,
            t.eps_h, self.model.plan.batch.mu_at, into.unary, into.tables, value,
        )  # fmt: skip
