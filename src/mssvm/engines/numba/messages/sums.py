"""Sums of whole blocks of instances, from uniform messages to beliefs, in one kernel: threads that leave Python and
come back for every step wait for each other.

The steps are those of ``ScaledRun``, called where they lie; ``inference.propagation.call`` says why they are taken.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from mssvm.core.arrays import Bools, Floats, Ints
from mssvm.core.jit import njit
from mssvm.engines.messages import PRODUCT_RANGE, SAFE_RANGE, SumRequest, Temperatures
from mssvm.engines.numba.calls import call_at, count_at, take
from mssvm.engines.numba.messages import abreast, scaled, waves
from mssvm.engines.numba.messages.abreast import MessageFamily
from mssvm.engines.numba.messages.regions import ascend_regions
from mssvm.engines.numba.messages.runs import ScaledRun, ScaledTables, clamp, decode
from mssvm.engines.numba.messages.waves import MOST, NO_LATTICE, L, Lattice
from mssvm.engines.numba.messages.wiring import MessageWiring
from mssvm.engines.rest import look

if TYPE_CHECKING:
    from mssvm.engines.numba.messages.plan import NumbaMessageModel

_NONE = np.zeros(0)


class Steps(NamedTuple):
    """Where the kernels lie; 0: not used."""

    mask: int
    ranges: int
    begin: int
    clamp: int
    collect: int
    sweep: int
    wave: int
    decode: int
    relabel: int
    beliefs: int


NO_STEPS = Steps(*[0] * len(Steps._fields))


class Progress(NamedTuple):
    """Messages of one run, see ``MessageRun``."""

    field: Floats
    m: Floats
    sweeps: Ints
    residual: Floats


class Sums(NamedTuple):
    """All that blocks of one family share. ``open_psi`` and ``psi``: before and after variables are held."""

    steps: Steps
    w: MessageWiring
    family: MessageFamily
    grid: Lattice
    first: Progress
    second: Progress
    given_scores: Floats
    scores: Floats
    unary_top: Floats
    unary_least: Floats
    near_table: Ints
    spread: Floats
    range: Floats
    dilution: Floats
    limit: float
    known: Bools
    noise: Floats
    unit: float
    open_psi: Floats
    psi: Floats
    entries: Floats
    table_of: Ints
    tops: Floats
    tables: Floats
    allowed: Bools
    masked: Ints
    sent: Floats
    maximal: Bools
    held: Bools
    only: Ints
    free: Bools
    given: Floats
    loopy: Bools
    movable: Bools
    warm_up: int
    n_sweeps: int
    retry: bool
    damping: float
    flooding: bool
    tolerance: float
    y: Ints
    mu_at: Ints
    mu_unary: Floats
    mu_tables: Floats
    value: Floats
    sweeps: Ints
    residual: Floats
    second_value: Floats
    flags: Bools


@njit(cache=True, nogil=True, no_rewrites=True)
def _among(some, flags, out):
    """The flagged ones of some instances, in ``out``."""
    n = 0
    for b in some:
        if flags[b]:
            out[n] = b
            n += 1
    return out[:n]


@njit(cache=True, nogil=True, no_rewrites=True)
def _clear(numbers, first, count):
    for e in range(first, first + count):
        numbers[e] = 0.0


@njit(cache=True, nogil=True, no_rewrites=True, unroll=False)
def blocks(s, instances, ends, counter, space, lists):
    """As ``PropagationCall._sum`` for one block of instances after another, from ``ends[k]`` to ``ends[k + 1]``, as
    long as there are any left: threads that share ``counter`` share the blocks. ``lists``: room for eight blocks.
    Instances whose scores have a range above ``limit``, or that might underflow, are left, with an infinite ``range``;
    a ``limit`` below 0: it is known that there are none.

    Steps are called in one place each, or two: a call with so many arguments takes long to compile.
    """
    mask, ranges, begin, clamp, collect, sweep, wave, decode, relabel, beliefs = s.steps
    w, family, grid, entries, psi, maximal = s.w, s.family, s.grid, s.entries, s.psi, s.maximal
    held, tolerance, flags = s.held, s.tolerance, s.flags
    while True:
        k = take(counter)
        if k + 1 >= len(ends):
            return
        block = instances[ends[k] : ends[k + 1]]
        size = len(block)
        for b in block if s.limit > 0.0 else block[:0]:
            i, j = w.var_ptr[b], w.var_ptr[b + 1]
            call_at(
                mask, s.given_scores, s.allowed, s.noise, w.state_ptr, i, j, s.scores, s.unary_top, s.unary_least
            )
            call_at(ranges, w, b, b + 1, s.near_table, s.spread, s.unary_top, s.unary_least, s.range)
            for e in range(w.state_ptr[i], w.state_ptr[j]):
                if not s.scores[e] < np.inf:
                    s.range[b] = np.inf
            flags[b] = s.range[b] <= s.limit and 2.0 * (s.range[b] / s.unit + s.dilution[b]) <= PRODUCT_RANGE
            if not flags[b]:
                s.range[b] = np.inf
        if s.limit > 0.0:
            block = _among(block, flags, lists[7 * size :])
        if len(block) == 0:
            continue
        before, moved = lists[:size], lists[size : 2 * size]
        some, messages, cold = block, s.given, _among(block, s.loopy, lists[2 * size :])
        for turn in range(2):
            field, m, swept, residual = s.first if turn == 0 else s.second
            todo = some
            for attempt in range(2):
                for e in range(len(todo)):
                    before[e] = swept[todo[e]] if attempt else 0
                call_at(
                    begin, w, todo, s.known, s.scores, s.noise, False, s.unary_top, s.unit, s.open_psi, messages, m,
                    s.table_of, s.spread, s.range, s.dilution,
                )  # fmt: skip
                if len(held):
                    call_at(clamp, w, todo, held, s.only, s.open_psi, 0.0, psi)
                if len(family.paths) == 0:
                    call_at(collect, w, todo, psi, m, field)
                for stage in range(3):  # messages at held variables; the warm-up; sweeps
                    now, border, flooding, damping, n = todo, False, s.flooding, s.damping, s.n_sweeps
                    if stage == 0:
                        now, border, flooding, damping, n = todo if len(held) else todo[:0], True, False, 0.0, 1
                    elif stage == 1:
                        now, flooding, damping, n = cold, True, damping if damping > 0.5 else 0.5, s.warm_up
                    elif attempt:
                        damping = 0.5
                    if wave != 0 and 0 < len(now) <= MOST and not border and (damping == 0.0 or damping == 0.5):
                        call_at(
                            wave, grid, w, now, entries, psi, field, m, maximal, held, damping, flooding, n, tolerance,
                            swept, residual, space,
                        )  # fmt: skip
                    elif len(now):
                        call_at(
                            sweep, family, w, now, entries, psi, field, m, maximal, held, border, damping, flooding, n,
                            tolerance, swept, residual, space,
                        )  # fmt: skip
                    if stage == 0:
                        for e in range(len(todo)):
                            swept[todo[e]], residual[todo[e]] = before[e], np.inf
                for b in todo:
                    flags[b] = not residual[b] <= tolerance
                todo, messages, cold = _among(todo, flags, lists[(3 + turn) * size :]), messages[:0], cold[:0]
                if len(todo) == 0 or not s.retry or s.damping >= 0.5:
                    break
            for b in some:
                s.sweeps[b] += swept[b]
            if turn == 0:
                for b in some:
                    s.residual[b] = residual[b]
                movable, n_moved = _among(block, s.movable, lists[5 * size :]), 0
                if len(movable):
                    call_at(decode, w, movable, field, s.masked, s.allowed, s.y)
                    n_moved = count_at(relabel, w, movable, s.free, s.scores, s.tables, s.y, s.sent, moved)
                moved = moved[:n_moved]
            # Messages at held variables are rounded whenever they are brought up to date: only where they count.
            early = len(moved) == 0 or len(held) == 0
            for part in range(turn, 3 * turn + 1):  # of the first run; values of the second; of the better ones
                who, marginals, into, g, messages = block, True, s.value, field, m
                if part == 0 and not early:
                    who, marginals = moved, False
                elif part == 1:
                    who, marginals, into = moved, False, s.second_value
                elif part == 2:
                    for b in block:
                        flags[b] = True
                    for b in moved:
                        flags[b] = not s.second_value[b] > s.value[b]
                    who, g, messages = _among(block, flags, lists[5 * size :]), s.first.field, s.first.m
                    if early:
                        continue
                elif part == 3:
                    for b in block:
                        flags[b] = not flags[b]
                    who = _among(block, flags, lists[6 * size :])
                    for b in who:
                        s.residual[b] = residual[b]
                        _clear(s.mu_unary, w.state_ptr[w.var_ptr[b]], family.n_states)
                        _clear(s.mu_tables, s.mu_at[w.factor_ptr[b]], family.n_mu)
                if len(held):
                    call_at(
                        sweep, family, w, who, entries, psi, g, messages, maximal, held, True, 0.0, False, 1, tolerance,
                        swept, residual, space,
                    )  # fmt: skip
                call_at(
                    beliefs, family, w, who, entries, s.table_of, s.tops, s.unit, g, messages, s.unary_top, s.mu_at,
                    s.mu_unary if marginals else s.mu_unary[:0], s.mu_tables, into, space,
                )  # fmt: skip
            if len(moved) == 0:
                break
            some, messages = moved, s.sent


class Kernels(NamedTuple):
    """``blocks`` for arguments of the types at hand, called without looking at them again, and its steps."""

    blocks: Callable[..., None]
    steps: Steps


def kernels_of(s: Sums) -> Kernels:
    """The kernels for arguments of these types."""
    some, run, space = s.table_of[:0], s.first, s.entries
    graph, ends = (s.w, some), (s.unary_top, s.unary_least)
    state = s.entries, s.psi, run.field, run.m, s.maximal, s.held
    limits = s.flooding, s.n_sweeps, s.tolerance, run.sweeps, run.residual, space
    begin = s.known, s.scores, s.noise, False, s.unary_top, s.unit, s.open_psi, s.given, run.m, s.table_of, s.spread
    found = s.entries, s.table_of, s.tops, s.unit, run.field, run.m, s.unary_top, s.mu_at, s.mu_unary, s.mu_tables
    steps = Steps(
        scaled.mask.address(s.given_scores, s.allowed, s.noise, s.w.state_ptr, 0, 0, s.scores, *ends),
        scaled.ranges.address(s.w, 0, 0, s.near_table, s.spread, *ends, s.range),
        scaled.begin.address(*graph, *begin, s.range, s.dilution),
        clamp.address(*graph, s.held, s.only, s.open_psi, 0.0, s.psi) if len(s.held) else 0,
        scaled.collect.address(*graph, s.psi, run.m, run.field) if len(s.family.paths) == 0 else 0,
        abreast.run.address(s.family, *graph, *state, False, s.damping, *limits),
        waves.run.address(s.grid, *graph, *state, s.damping, *limits) if s.grid.rows else 0,
        decode.address(*graph, run.field, s.masked, s.allowed, s.y),
        ascend_regions.address(*graph, s.free, s.scores, s.tables, s.y, s.sent, some),
        abreast.beliefs.address(s.family, *graph, *found, s.value, space),
    )
    return Kernels(blocks.ready(s, some, some, some, space, some), steps)


def settle(model: NumbaMessageModel, t: Temperatures, request: SumRequest) -> Ints:
    """The sums of all instances that belong to families and on which scaled probabilities cannot underflow; returns the
    others."""
    members, _ = model.plan.by_family(request.instances)
    if not members:
        return request.instances
    tables = ScaledTables.of(model, t.eps_h)
    runs = [ScaledRun(model, tables) for _ in range(1 + bool(request.movable.any()))]
    ranges, limit = np.full(len(request.value), np.inf), SAFE_RANGE * t.eps_h
    if not request.free.all():
        runs[0].hold_at(~request.free)
        for run in runs[1:]:
            run.held, run.unary = runs[0].held, runs[0].unary
    n_sweeps = request.n_sweeps.copy()
    _run(runs, members, t, request, ranges, limit)
    done = request.instances[np.isfinite(ranges[request.instances])]
    restless = _restless(runs, done, t, request)
    if len(restless):
        ranges[restless] = np.inf
        request.n_sweeps[restless] = n_sweeps[restless]
        moving = np.zeros(len(ranges), dtype=bool)
        moving[restless] = True
        request.mu.clear(model.plan.batch, moving)
    return np.asarray(request.instances[np.isinf(ranges[request.instances])])


def _restless(runs: list[ScaledRun], done: Ints, t: Temperatures, request: SumRequest) -> Ints:
    """The instances that converged by residuals but not by log-messages, in any of the runs."""
    moving = np.zeros(len(request.value), dtype=bool)
    tolerance = request.schedule.tolerance
    for run in runs:
        some = done[~run.shown[done] & (request.residual[done] <= tolerance)]
        # The second run has only some of the instances.
        some = some[run.sweeps[some] > 0]
        if len(some):
            look(run, some, t, 1, request.schedule)
            request.residual[some] = np.maximum(request.residual[some], run.residual[some])
            request.n_sweeps[some] += 1
            moving[some] |= ~(run.residual[some] <= tolerance)
    return done[moving[done]]


def settle_run(run: ScaledRun, t: Temperatures, request: SumRequest) -> Ints:
    """The same for a run whose variables are held already, on instances that are known to be safe."""
    members, alone = run.model.plan.by_family(request.instances)
    if not members:
        return alone
    _run([run], members, t, request, run.model.range, -1.0)
    done = np.concatenate([some for _, some in members])
    run.stale[done] = False
    restless = _restless([run], done, t, request)
    return np.union1d(alone, restless)


def _run(
    runs: list[ScaledRun], members: list[tuple[int, Ints]], t: Temperatures, request: SumRequest, ranges: Floats,
    limit: float,
) -> None:  # fmt: skip
    workers, rows = runs[0].model.plan.workers, []
    for k, some in members:
        kernels, shared = _shared(runs, k, t, request, ranges, limit)
        some = np.ascontiguousarray(some, dtype=np.int64)
        ends = np.append(np.arange(0, len(some), request.size), len(some))
        row = kernels.blocks, shared, some, ends, np.zeros(1, dtype=np.int64)
        rows += [row] * min(workers.idle, len(ends) - 1)
    floats = max(max(s.family.space(), s.grid.space()) for _, s, *_ in rows)

    def work(kernel: Callable[..., None], *given: Any) -> None:
        kernel(*given, *workers.scratch(floats, 8 * request.size))

    workers.each(work, *zip(*rows, strict=True))


def _shared(
    runs: list[ScaledRun], k: int, t: Temperatures, request: SumRequest, ranges: Floats, limit: float
) -> tuple[Kernels, Sums]:
    """What the blocks of family k share, and the kernels for that."""
    run, schedule, mu, n = runs[0], request.schedule, request.mu, len(request.value)
    model, plan, tables = run.model, run.model.plan, run.tables
    unary, top, least = model.room
    first, second = (Progress(r.field, r.m, r.sweeps, r.residual) for r in (run, runs[-1]))
    held, psi, open_psi = run.held, run.unary, run.open_unary
    grid = plan.lattices[k] if request.size <= L else None
    given = _NONE if request.messages is None else np.ascontiguousarray(request.messages, np.float64)
    out = Sums(
        NO_STEPS, run.w, run.families[k], grid or NO_LATTICE, first, second, model.scores, unary, top,
        least, plan.near_table, model.spread, ranges, plan.most_diluted, float(limit), tables.known[0], model.noise,
        float(tables.unit), open_psi, psi, tables.entries, plan.table_of, tables.tops, model.tables, model.allowed,
        run.masked, model.sent, t.maximal, held, request.only, request.free, given, request.loopy, request.movable,
        int(request.warm_up), int(request.sweeps), bool(request.retry), float(schedule.damping),
        bool(schedule.flooding), float(schedule.tolerance), request.y, plan.batch.mu_at, mu.unary, mu.tables,
        request.value, request.n_sweeps, request.residual, np.empty(n), np.empty(n, dtype=bool),
    )  # fmt: skip
    kernels = plan.kernels((grid is not None, len(held) > 0, len(out.family.paths) > 0), out)
    return kernels, out._replace(steps=kernels.steps)
