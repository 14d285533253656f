"""One run of the recursion on a batch: scaled probabilities where they cannot underflow, log space elsewhere."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from mssvm.core.arrays import Bools, Floats, Ints
from mssvm.core.potentials import Marginals
from mssvm.core.topology import offsets
from mssvm.engines.numba.messages import log as messages_factor
from mssvm.engines.numba.messages import scaled as messages
from mssvm.engines.numba.messages.polish import clamp, decode
from mssvm.engines.numba.messages.regions import ascend_regions, messages_at
from mssvm.engines.numba.messages.vector import LONGEST
from mssvm.inference.propagation.plan import Plan
from mssvm.inference.propagation.threads import Each, in_turn

# exp(-600) leaves room for products of a table entry, a cavity and a normaliser in double precision.
SAFE_RANGE = 600.0
# Table entries looked at or exponentiated by one thread at a time.
CHUNK = 1 << 16
# Below this many table entries a kernel made for one cardinality is not worth compiling.
WORTH_COMPILING = 20_000


@dataclass(frozen=True, eq=False)
class Model:
    """Potentials of a batch with forbidden states at -inf, and who varies in which role.

    ``untied`` are the unaries shifted by seeded amounts near 1e-10, which decide between equal maxima.
    """

    plan: Plan
    unary: Floats
    untied: Floats
    tables: Floats
    allowed: Bools
    output: Bools
    free: Bools


@dataclass(frozen=True, eq=False)
class Mode:
    """Temperatures of a run and the variables eliminated at ``eps_y``; the others have ``eps_h``."""

    outputs: Bools
    eps_y: float
    eps_h: float


@dataclass(frozen=True)
class Control:
    """How sweeps are made."""

    damping: float = 0.0
    flood: bool = False
    tolerance: float = 1e-9
    opening: int = 10
    retry: bool = True


def open_gently(run: Run, which: Ints, mode: Mode, control: Control) -> None:
    """The opening of a cold start on graphs with cycles.

    On strongly coupled grids the first sweep in a fixed order drags the states of one corner across the whole graph,
    and messages settle there. Damped updates of all messages at once let every region form its own opinion first.
    """
    if len(which):
        run.advance(which, mode, control.opening, replace(control, damping=max(0.5, control.damping), flood=True))


def settle(run: Run, which: Ints, loopy: Ints, mode: Mode, control: Control, sweeps: int) -> None:
    """Sweep from the messages present to convergence; on ``retry``, from even ones with damping where it does not come.

    U- and the judgement of a y both come through here, so that the same y has the same value in both.
    """
    open_gently(run, loopy, mode, control)
    run.advance(which, mode, sweeps, control)
    stuck = which[~(run.residual[which] <= control.tolerance)]
    if control.retry and len(stuck) and control.damping < 0.5:
        before = run.sweeps[stuck]
        run.start(stuck, None)
        run.sweeps[stuck] = before
        run.advance(stuck, mode, sweeps, replace(control, damping=0.5))


def by_regions(model: Model, which: Ints, z: Ints) -> tuple[Ints, Floats]:
    """Improve z by relabelling regions; the instances that changed, and the messages of all variables at z."""
    moved = ascend_regions(model.plan.wiring, which, model.free, model.unary, model.tables, z)
    log_messages = np.zeros(model.plan.n_messages)
    messages_at(model.plan.wiring, moved, model.tables, z, log_messages)
    return moved, log_messages


class Run(Protocol):
    """Messages of a batch in progress. ``sweeps`` and ``residual`` are per instance."""

    sweeps: Ints
    residual: Floats

    def start(self, which: Ints, log_messages: Floats | None) -> None: ...
    def advance(self, which: Ints, mode: Mode, n_sweeps: int, control: Control) -> None: ...
    def decode(self, which: Ints, y: Ints) -> None: ...
    def given(self, which: Ints, outside: Bools, y: Ints) -> None: ...
    def open_score(self, which: Ints, out: Floats) -> None: ...
    def log_messages(self, which: Ints) -> Floats: ...
    def finish(self, which: Ints, mode: Mode, mu_at: Ints, mu: Marginals | None, value: Floats) -> None: ...


@dataclass(frozen=True, eq=False)
class Spans:
    """Largest entry of every distinct table and unary, and the range of all scores that meet at a variable."""

    table_top: Floats
    unary_top: Floats
    at_variable: Floats

    @classmethod
    def of(cls, model: Model, each: Each = in_turn) -> Spans:
        plan, w = model.plan, model.plan.wiring
        top, low = np.empty(len(plan.table_starts)), np.empty(len(plan.table_starts))

        def look(part: slice) -> None:
            messages.extremes(model.tables, plan.table_starts[part], plan.table_sizes[part], top[part], low[part])

        each(look, _parts(offsets(plan.table_sizes)))
        high, least, unused = np.empty((3, len(w.state_ptr) - 1))
        cards = np.diff(w.state_ptr)
        # What breaks ties counts too: at temperatures below it, it is all there is to the range.
        messages.extremes(model.untied, w.state_ptr[:-1], cards, high, unused)
        messages.extremes(model.unary, w.state_ptr[:-1], cards, unused, least)
        if np.any(least == -np.inf):
            kept = np.where(model.unary == -np.inf, np.repeat(high, cards), model.unary)
            messages.extremes(kept, w.state_ptr[:-1], cards, unused, least)
        with np.errstate(invalid="ignore"):
            span = (top - low)[plan.table_of[w.slot_factor]]
            around = high - least + np.bincount(w.scope, weights=span, minlength=len(cards))
        return cls(top, high, around)

    def per_instance(self, var_ptr: Ints) -> Floats:
        """Largest range at any variable of each instance; infinite where scores are infinite."""
        out = np.zeros(len(var_ptr) - 1)
        some = np.diff(var_ptr) > 0
        clean = np.where(np.isnan(self.at_variable), np.inf, self.at_variable)
        if some.any():
            out[some] = np.maximum.reduceat(clean, var_ptr[:-1][some])
        return out


def _parts(at: Ints) -> list[slice]:
    """Tables that start at ``at`` in portions of about ``CHUNK`` entries."""
    cuts = [0]
    while cuts[-1] < len(at) - 1:
        end = int(np.searchsorted(at, at[cuts[-1]] + CHUNK, side="right")) - 1
        cuts.append(max(cuts[-1] + 1, end))
    return [slice(first, last) for first, last in zip(cuts[:-1], cuts[1:], strict=True)]


@dataclass(frozen=True, eq=False)
class ScaledTables:
    """exp((theta - max theta) / unit) of every distinct table, laid out in the order sweeps meet them, and of unaries.

    ``untied_psi`` has the scores of outputs shifted by a hair, so that a maximum is never shared.
    """

    unit: float
    entries: Floats
    at: Ints
    top: Floats
    unary_top: Floats
    psi: Floats
    untied_psi: Floats

    @classmethod
    def of(cls, model: Model, spans: Spans, unit: float, each: Each = in_turn) -> ScaledTables:
        plan = model.plan
        at = offsets(plan.table_sizes)
        entries, psi, untied = np.empty(int(at[-1])), np.empty(len(model.unary)), np.empty(len(model.unary))

        def fill(part: slice) -> None:
            out = entries[at[part.start] : at[part.stop]]
            starts, sizes = plan.table_starts[part], plan.table_sizes[part]
            messages.exponentiate(model.tables, starts, sizes, spans.table_top[part], unit, out)

        def fill_nodes(scores: Floats, out: Floats) -> None:
            shift = np.repeat(spans.unary_top, np.diff(plan.wiring.state_ptr))
            with np.errstate(invalid="ignore"):
                np.exp((scores - shift) / unit, out=out)

        each(fill, _parts(at))
        each(fill_nodes, (model.unary, model.untied), (psi, untied))
        top = spans.table_top[plan.table_of]
        return cls(unit, entries, at[plan.table_of], top, spans.unary_top, psi, untied)


class ScaledRun:
    """Pairwise factors, and one temperature (or none beside eps_y = 0) a run."""

    def __init__(self, model: Model, tables: ScaledTables, untied: bool = False) -> None:
        w = model.plan.wiring
        self.model, self.tables = model, tables
        self.psi = self.open_psi = tables.untied_psi if untied else tables.psi
        self.g = np.empty(len(self.psi))
        self.alive = np.zeros(len(self.psi), dtype=np.int64)
        self.held = np.zeros(0, dtype=bool)
        # Zeros are given out untouched: every thread is the first to write those of its instances.
        self.m = np.zeros(model.plan.n_messages)
        self.sweeps = np.zeros(len(w.var_ptr) - 1, dtype=np.int64)
        self.residual = np.full(len(w.var_ptr) - 1, np.inf)
        worth = 0 < model.plan.one_card <= LONGEST and len(tables.at) * model.plan.one_card**2 >= WORTH_COMPILING
        self.kk = (0,) * model.plan.one_card if worth else ()

    def start(self, which: Ints, log_messages: Floats | None) -> None:
        w = self.model.plan.wiring
        if log_messages is None:
            messages.even(w, which, self.m)
        else:
            messages.load(w, which, log_messages, 1.0 / self.tables.unit, self.m)
        messages.collect(w, which, self.psi, self.m, self.g)
        self._refresh(which)
        self.sweeps[which] = 0
        self.residual[which] = np.inf

    def advance(self, which: Ints, mode: Mode, n_sweeps: int, control: Control) -> None:
        maximal = mode.outputs if mode.eps_y == 0.0 else np.zeros(len(mode.outputs), dtype=bool)
        messages.run(
            self.kk, self.model.plan.wiring, which, self.tables.entries, self.tables.at, self.psi, self.g, self.m,
            maximal, self.held, control.damping, control.flood, n_sweeps, control.tolerance, self.sweeps, self.residual,
        )  # fmt: skip

    def _refresh(self, which: Ints) -> None:
        """Bring messages at held variables up to date; sweeps pass them over."""
        if len(self.held):
            plan, t = self.model.plan, self.tables
            messages.refresh(self.kk, plan.wiring, which, t.entries, t.at, self.g, self.m, self.held)

    def decode(self, which: Ints, y: Ints) -> None:
        decode(self.model.plan.wiring, which, self.g, self.alive, self.model.allowed, y)

    def given(self, which: Ints, outside: Bools, y: Ints) -> None:
        """Hold the variables ``outside`` at y from the next start on."""
        if self.psi is self.open_psi:
            self.psi = np.empty(len(self.psi))
        self.held = outside
        clamp(self.model.plan.wiring, which, outside, y, self.open_psi, 0.0, self.psi)

    def open_score(self, which: Ints, out: Floats) -> None:
        """theta_i plus all messages to i (up to a constant), also at states that ``given`` forbids."""
        self._refresh(which)
        messages.collect(self.model.plan.wiring, which, self.open_psi, self.m, out)
        messages.logarithm(self.model.plan.wiring, which, self.tables.unit, out)

    def log_messages(self, which: Ints) -> Floats:
        out = np.zeros(len(self.m))
        messages.unload(self.model.plan.wiring, which, self.m, self.tables.unit, out)
        return out

    def finish(self, which: Ints, mode: Mode, mu_at: Ints, mu: Marginals | None, value: Floats) -> None:
        """Bethe value and beliefs at the one temperature ``unit``."""
        self._refresh(which)
        none = np.zeros(0)
        messages.beliefs(
            self.model.plan.wiring, which, self.tables.entries, self.tables.at, self.tables.top, self.tables.unit,
            self.g, self.m, self.tables.unary_top, mu_at, none if mu is None else mu.unary,
            none if mu is None else mu.tables, mu is not None, value,
        )  # fmt: skip


class LogRun:
    """Factors of any order, any temperatures, any ranges, forbidden entries."""

    def __init__(self, model: Model, untied: bool = False) -> None:
        w = model.plan.wiring
        self.model = model
        self.unary = self.open_unary = model.untied if untied else model.unary
        self.field = np.empty(len(model.unary))
        self.dead = np.zeros(len(model.unary), dtype=np.int64)
        self.m = np.empty(model.plan.n_messages)
        self.sweeps = np.zeros(len(w.var_ptr) - 1, dtype=np.int64)
        self.residual = np.full(len(w.var_ptr) - 1, np.inf)

    def start(self, which: Ints, log_messages: Floats | None) -> None:
        w = self.model.plan.wiring
        messages.load(w, which, np.zeros(len(self.m)) if log_messages is None else log_messages, 0.0, self.m)
        self.sweeps[which] = 0
        self.residual[which] = np.inf

    def advance(self, which: Ints, mode: Mode, n_sweeps: int, control: Control) -> None:
        messages_factor.run_log(
            self.model.plan.wiring, which, self.model.tables, self.unary, self.field, self.dead, self.m, mode.outputs,
            mode.eps_y, mode.eps_h, control.damping, control.flood, n_sweeps, control.tolerance, self.sweeps,
            self.residual,
        )  # fmt: skip

    def decode(self, which: Ints, y: Ints) -> None:
        decode(self.model.plan.wiring, which, self.field, self.dead, self.model.allowed, y)

    def given(self, which: Ints, outside: Bools, y: Ints) -> None:
        """Hold the variables ``outside`` at y from the next start on."""
        if self.unary is self.open_unary:
            self.unary = np.empty(len(self.unary))
        clamp(self.model.plan.wiring, which, outside, y, self.open_unary, -np.inf, self.unary)

    def open_score(self, which: Ints, out: Floats) -> None:
        """theta_i plus all messages to i, also at states that ``given`` forbids."""
        w = self.model.plan.wiring
        messages_factor.collect_log(w, which, self.open_unary, self.m, out, self.dead)
        messages.bury(w, which, self.dead, out)

    def log_messages(self, which: Ints) -> Floats:
        out = np.zeros(len(self.m))
        messages.load(self.model.plan.wiring, which, self.m, 0.0, out)
        return out

    def finish(self, which: Ints, mode: Mode, mu_at: Ints, mu: Marginals | None, value: Floats) -> None:
        """Region free energy and beliefs."""
        none = np.zeros(0)
        messages_factor.beliefs_log(
            self.model.plan.wiring, which, self.model.tables, self.unary, self.field, self.dead, self.m, mode.outputs,
            mode.eps_y, mode.eps_h, mu_at, none if mu is None else mu.unary, none if mu is None else mu.tables,
            mu is not None, value,
        )  # fmt: skip
