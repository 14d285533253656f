"""The kernels against each other, message by message, and against the published results of another library."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from builders import grid_scopes
from mssvm.core.arrays import Floats, Ints
from mssvm.core.potentials import Marginals, Potentials, Query
from mssvm.core.threads import Workers
from mssvm.core.topology import Batch, Topology
from mssvm.engines.messages import SHOWN, Schedule, Temperatures
from mssvm.engines.numba.messages import waves
from mssvm.engines.numba.messages.plan import NumbaMessageModel, NumbaMessagePlan
from mssvm.engines.numba.messages.runs import LogRun, ScaledRun, ScaledTables
from mssvm.engines.numba.messages.scaled import exponentiate
from mssvm.inference.enumerate import Enumerate, entries
from mssvm.inference.propagation.propagate import Propagate
from mssvm.uai import read_fg


def loaded(batch: Batch, theta: Potentials, query: Query, threads: int = 1) -> NumbaMessageModel:
    noise = np.random.default_rng(0).random(batch.n_states)
    return NumbaMessagePlan.of(batch, Workers(threads)).load(theta, query, noise)


def grid_model(cards: tuple[int, ...], seed: int, tied: bool = False) -> tuple[Batch, Query, NumbaMessageModel]:
    rng = np.random.default_rng(seed)
    scopes = [s if rng.random() < 0.5 else s[::-1] for s in grid_scopes(3, 4)]
    batch = Batch.build([Topology(cards, tuple(scopes))] * 2, [[0] * len(scopes)] * 2 if tied else None)
    theta = Potentials(rng.normal(size=batch.n_states), rng.normal(size=batch.n_table_entries))
    allowed = np.ones(batch.n_states, dtype=bool)
    allowed[batch.unary_ptr[[3, 8, 15]]] = False
    query = Query(rng.random(batch.n_vars) < 0.5, allowed)
    return batch, query, loaded(batch, theta, query)


def normalised(model: NumbaMessageModel, messages: Floats) -> Floats:
    """Log messages with maximum zero over the states that matter: those the mask allows."""
    w = model.plan.wiring
    out = np.full(len(messages), np.nan)
    for s, v in enumerate(w.scope):
        at = slice(int(w.message_at[s]), int(w.message_at[s + 1]))
        allowed = model.allowed[w.state_ptr[v] : w.state_ptr[v + 1]]
        part = np.where(allowed, messages[at], -np.inf)
        out[at] = np.where(allowed, part - part.max(), 0.0)
    return out


def modes(query: Query, eps: float) -> dict[str, Temperatures]:
    n = len(query.output)
    mixed = Temperatures(query.output, 0.0, eps)
    return {"sum": Temperatures.one(n, eps), "max": Temperatures.one(n, 0.0), "mixed": mixed}


MIXED_CARDS = (2, 3, 4, 2, 3, 5, 2, 4, 3, 2, 3, 2)


@pytest.mark.parametrize("schedule", [Schedule(), Schedule(0.4), Schedule(flooding=True), Schedule(0.3, True)])
@pytest.mark.parametrize("kind", ["sum", "max", "mixed"])
@pytest.mark.parametrize("tied", [False, True])
def test_scaled_pairwise_and_log_space_factors_send_the_same_messages(
    kind: str, schedule: Schedule, tied: bool
) -> None:
    batch, query, model = grid_model((3,) * 12 if tied else MIXED_CARDS, 1, tied)
    eps, which = 0.8, np.arange(2)
    mode = modes(query, eps)[kind]
    runs = (ScaledRun(model, ScaledTables.of(model, eps)), LogRun(model))
    for run in runs:
        run.start(which, None)
    for _ in range(6):
        for run in runs:
            run.advance(which, mode, 1, schedule)
        a, b = (normalised(model, run.log_messages(which)) for run in runs)
        np.testing.assert_allclose(a, b, atol=1e-10)
        decoded: list[Ints] = []
        for run in runs:
            decoded.append(np.zeros(batch.n_vars, dtype=np.int64))
            run.decode(which, decoded[-1])
        np.testing.assert_array_equal(decoded[0], decoded[1])


@pytest.mark.parametrize("card", [2, 5, 15, 21, 24])
@pytest.mark.parametrize("kind", ["sum", "max", "mixed"])
@pytest.mark.parametrize("schedule", [Schedule(), Schedule(0.5), Schedule(0.5, True)])
def test_vector_kernels_equal_plain_ones(card: int, kind: str, schedule: Schedule) -> None:
    _, query, model = grid_model((card,) * 12, 2)
    which, mode = np.arange(2), modes(query, 1.0)[kind]
    tables = ScaledTables.of(model, 1.0)
    plain, vector = ScaledRun(model, tables), ScaledRun(model, tables)
    plain.kk, vector.kk = (), (0,) * card
    for run in (plain, vector):
        run.start(which, None)
        run.advance(which, mode, 5, schedule)
    np.testing.assert_allclose(vector.m, plain.m, rtol=1e-11)
    np.testing.assert_allclose(vector.residual, plain.residual, rtol=1e-6, atol=1e-14)


def tied_model(
    cards: tuple[int, ...], count: int, seed: int, more: tuple[tuple[int, int], ...] = (), tables: int = 99
) -> tuple[Batch, Query, NumbaMessageModel]:
    """Grids (and ``more`` pairs) with the same tables, at most so many, each with its own masks and roles."""
    rng = np.random.default_rng(seed)
    scopes = tuple(s if rng.random() < 0.5 else s[::-1] for s in (*grid_scopes(3, 4), *more))
    batch = Batch.build([Topology(cards, scopes)] * count, [[f % tables for f in range(len(scopes))]] * count)
    theta = Potentials(rng.normal(size=batch.n_states), rng.normal(size=batch.n_table_entries))
    allowed = np.ones(batch.n_states, dtype=bool)
    allowed[batch.unary_ptr[:-1][rng.random(batch.n_vars) < 0.3]] = False
    query = Query(rng.random(batch.n_vars) < 0.5, allowed)
    return batch, query, loaded(batch, theta, query)


def abreast_and_alone(model: NumbaMessageModel) -> tuple[ScaledRun, ScaledRun]:
    tables = ScaledTables.of(model, 0.8)
    abreast, alone = ScaledRun(model, tables), ScaledRun(model, tables)
    assert np.all(abreast.family_of >= 0)
    alone.family_of, alone.one_family = np.full_like(alone.family_of, -1), False
    return abreast, alone


SCHEDULES = [Schedule(), Schedule(0.5), Schedule(0.3), Schedule(flooding=True), Schedule(0.5, True)]


@pytest.mark.parametrize("cards", [(2,) * 12, (3,) * 12, (5,) * 12, (7,) * 12, MIXED_CARDS])
@pytest.mark.parametrize("kind", ["sum", "max", "mixed", "same roles"])
@pytest.mark.parametrize("held", [False, True])
def test_instances_abreast_equal_instances_alone(cards: tuple[int, ...], kind: str, held: bool) -> None:
    """More instances than lanes, some of which converge before others; messages, products, sweeps and residuals."""
    count = 11
    # Seeds without ties in mixed-product, which rounding would decide.
    batch, query, model = tied_model(cards, count, 1 + len(cards) + sum(cards))
    roles = query.output if kind != "same roles" else np.tile(query.output[:12], count)
    mode = modes(query, 0.8)[kind] if kind in ("sum", "max") else Temperatures(roles, 0.0, 0.8)
    rng, every = np.random.default_rng(9), np.arange(count)
    y = (rng.random((batch.n_vars, max(cards))) * (np.arange(max(cards)) < batch.cards[:, None])).argmax(axis=1)
    y[~model.allowed[batch.unary_ptr[:-1] + y]] = 1
    outside = rng.random(batch.n_vars) < 0.3
    for schedule in SCHEDULES:
        runs = abreast_and_alone(model)
        for run in runs:
            if held:
                run.hold(every, outside, y)
            run.start(every, None)
            run.advance(np.array([1, 4, 9]), mode, 1, schedule)
            run.advance(every, mode, 9, replace(schedule, tolerance=1e-3))
            run.advance(every[::-1], mode, 8, replace(schedule, tolerance=1e-6))
        a, b = runs
        np.testing.assert_array_equal(a.sweeps, b.sweeps)
        np.testing.assert_allclose(a.m, b.m, rtol=1e-9, atol=1e-300)
        np.testing.assert_allclose(a.field, b.field, rtol=1e-9, atol=1e-300)
        np.testing.assert_allclose(a.residual, b.residual, rtol=1e-6, atol=1e-13)


@pytest.mark.parametrize("more", [(), ((0, 5), (0, 11), (2, 7), (2, 8))])
@pytest.mark.parametrize("held", [False, True])
def test_beliefs_abreast_equal_beliefs_alone(more: tuple[tuple[int, int], ...], held: bool) -> None:
    """Few factors at a variable and many, tied tables, marginals added to."""
    batch, query, model = tied_model((3,) * 12, 11, 4, more, tables=5)
    every, mode = np.arange(11), modes(query, 0.8)["sum"]
    found = []
    for run in abreast_and_alone(model):
        assert (len(run.families[0].paths) > 0) == (not more)
        if held:
            run.hold(every, query.output, np.full(batch.n_vars, 1))
        run.start(every, None)
        run.advance(every, mode, 30, Schedule(tolerance=1e-6))
        mu, values = Marginals.zeros(batch), np.zeros((2, 11))
        mu.unary[:], mu.tables[:] = 0.5, 0.25
        run.beliefs(every[::-1], mode, values[0], mu)
        run.beliefs(every[:3], mode, values[1], None)
        np.testing.assert_allclose(values[1], np.where(every < 3, values[0], 0.0), rtol=1e-11)
        found.append((run.sweeps, run.m, values[0], mu.unary, mu.tables))
    for a, b in zip(*found, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-13)


def grid_family(
    shape: tuple[int, int], card: int, orders: tuple[int, int, int], count: int = 4, tables: int = 2
) -> tuple[Batch, Query, NumbaMessageModel]:
    """Grids with one table across and one down. ``orders``: whether factors down come first, and which of the two kinds
    name the later variable first."""
    rows, columns = shape
    at, rng = np.arange(rows * columns).reshape(shape), np.random.default_rng(rows * columns + card)
    ends = ((at[:, :-1], at[:, 1:]), (at[:-1], at[1:]))
    kinds = [np.stack([one.ravel(), two.ravel()], axis=1) for one, two in ends]
    pairs = [kind[:, ::-1] if turned else kind for kind, turned in zip(kinds, orders[1:], strict=True)]
    names = [np.full(len(kind), k) for k, kind in enumerate(kinds)]
    if orders[0]:
        pairs, names = pairs[::-1], names[::-1]
    scopes, which = np.concatenate(pairs).tolist(), np.concatenate(names) % tables
    batch = Batch.build([Topology((card,) * at.size, tuple(map(tuple, scopes)))] * count, [which.tolist()] * count)
    theta = Potentials(rng.normal(size=batch.n_states), rng.normal(size=batch.n_table_entries))
    allowed = np.ones(batch.n_states, dtype=bool)
    allowed[batch.unary_ptr[:-1][rng.random(batch.n_vars) < 0.2]] = False
    query = Query(rng.random(batch.n_vars) < 0.5, allowed)
    return batch, query, loaded(batch, theta, query, waves.THREADS)


GRIDS = [((2, 2), 2), ((2, 9), 3), ((7, 2), 5), ((5, 5), 4), ((12, 4), 5), ((4, 13), 5)]


@pytest.mark.parametrize(("shape", "card"), GRIDS)
@pytest.mark.parametrize("kind", ["sum", "max", "mixed"])
@pytest.mark.parametrize("held", [False, True])
def test_waves_send_the_messages_of_sweeps_bit_by_bit(
    shape: tuple[int, int], card: int, kind: str, held: bool
) -> None:
    """One to four instances, that have made even and odd numbers of sweeps, and converge one before the other."""
    for orders in ((0, 0, 0), (1, 0, 0), (0, 1, 0), (1, 0, 1), (0, 1, 1)):
        batch, query, model = grid_family(shape, card, orders)
        mode, y, every = modes(query, 0.8)[kind], np.full(batch.n_vars, 1), np.arange(4)
        outside = np.random.default_rng(9).random(batch.n_vars) < 0.3
        # Where they are wider than high, and factors down come first, sweeps begin along the columns.
        assert (model.plan.lattices[0] is not None) == (not orders[0] or shape[0] >= shape[1])
        tables = ScaledTables.of(model, 0.8)
        for schedule in (Schedule(), Schedule(0.5), Schedule(flooding=True), Schedule(0.5, True)):
            runs = ScaledRun(model, tables), ScaledRun(model, tables)
            runs[1].lattices = [None]
            for run in runs:
                if held:
                    run.hold(every, outside, y)
                run.start(every, None)
                run.advance(np.array([2]), mode, 1, schedule)
                run.advance(np.array([0, 3]), mode, 2, schedule)
                run.advance(every, mode, 9, replace(schedule, tolerance=1e-2))
                run.advance(every[1:], mode, 5, replace(schedule, tolerance=1e-4))
            for name in ("m", "field", "sweeps", "residual"):
                np.testing.assert_array_equal(getattr(runs[0], name), getattr(runs[1], name))


def test_waves_are_for_grids_with_a_table_a_direction() -> None:
    def found(scopes: list[tuple[int, ...]], tables: list[int], card: int = 3, threads: int = waves.THREADS) -> bool:
        batch = Batch.build([Topology((card,) * 12, tuple(scopes))] * 8, [tables] * 8)
        return NumbaMessagePlan.of(batch, Workers(threads)).lattices[0] is not None

    scopes = grid_scopes(3, 4)
    down = [int(b - a > 1) for a, b in scopes]
    assert found(scopes, down) and found(scopes, [0] * 17)
    assert not found(scopes, [f % 2 for f in range(17)])  # tables that alternate
    assert not found(scopes, down, card=6)  # more states than registers hold
    assert not found(scopes[1:], down[1:])  # a factor is missing
    assert not found([s[::-1] if f % 3 else s for f, s in enumerate(scopes)], down)  # tables lie either way
    assert not found([(k, k + 1) for k in range(11)], [0] * 11)  # a chain
    assert not found([*scopes, (0, 5)], [*down, 0])  # a diagonal
    order = np.random.default_rng(0).permutation(17)
    assert not found([scopes[k] for k in order], [down[k] for k in order])  # messages lie in no order
    assert not found(scopes, down, threads=1)  # whole registers are likely


@pytest.mark.parametrize("kind", ["sum", "mixed"])
def test_lanes_do_not_meet(kind: str) -> None:
    """The same bits alone, among others, and next to an instance without any allowed state."""
    batch, query, model = tied_model((3,) * 12, 11, 5)
    mode, every = modes(query, 0.8)[kind], np.arange(11)
    model.unary[batch.state_span(6)] = -np.inf
    tables = ScaledTables.of(model, 0.8)
    together, apart = ScaledRun(model, tables), ScaledRun(model, tables)
    for run, blocks in ((together, [every]), (apart, [every[k : k + 1] for k in every])):
        for block in blocks:
            run.start(block, None)
            run.advance(block, mode, 40, Schedule(tolerance=1e-6))
    assert len(set(together.sweeps)) > 2 and together.sweeps[6] == 40
    np.testing.assert_array_equal(together.sweeps, apart.sweeps)
    np.testing.assert_array_equal(together.m, apart.m)
    np.testing.assert_array_equal(together.residual, apart.residual)
    assert np.isfinite(np.delete(together.residual, 6)).all() and not together.residual[6] <= 1e-6
    value = np.zeros(11)
    together.beliefs(every, mode, value, None)
    np.testing.assert_array_equal(np.isfinite(value), every != 6)


def test_exponentiated_tables() -> None:
    """Against numpy; a forbidden table is all zero, whatever its top."""
    rng = np.random.default_rng(8)
    tables, starts, sizes = -600.0 * rng.random(50), np.array([30, 0, 12]), np.array([20, 12, 7])
    tables[0:12] = -np.inf
    tops = np.array([tables[30:].max(), -np.inf, 3.0])
    out = np.full(39, np.nan)
    exponentiate(tables, starts, sizes, tops, 1.5, out)
    np.testing.assert_allclose(out[:20], np.exp((tables[30:] - tops[0]) / 1.5), rtol=1e-13)
    np.testing.assert_array_equal(out[20:32], 0.0)
    np.testing.assert_allclose(out[32:], np.exp((tables[12:19] - 3.0) / 1.5), rtol=1e-13)


@pytest.mark.parametrize("damping", [0.0, 0.5])
def test_sweeps_that_pass_over_given_variables_reach_the_same_beliefs(damping: float) -> None:
    """Against sweeps over all messages."""
    batch, query, model = grid_model((3,) * 12, 6)
    which, mode = np.arange(2), modes(query, 0.7)["sum"]
    outside = query.output | (query.n_allowed(batch) == 1)
    preference = np.random.default_rng(7).random((batch.n_vars, 3)) + model.allowed.reshape(-1, 3)
    y = preference.argmax(axis=1)
    results = []
    for passing_over in (True, False):
        run = ScaledRun(model, ScaledTables.of(model, 0.7))
        run.hold(which, outside, y)
        if not passing_over:
            run.held = np.zeros(0, dtype=bool)
        run.start(which, None)
        run.advance(which, mode, 200, Schedule(damping, tolerance=1e-13))
        mu, value, score = Marginals.zeros(batch), np.zeros(2), run.scores(which)
        run.beliefs(which, mode, value, mu)
        score = (score.reshape(-1, 3) - score.reshape(-1, 3).max(axis=1, keepdims=True)).ravel()
        results.append((value, mu.unary, mu.tables, score[np.isfinite(score)]))
        assert np.all(run.residual[which] <= 1e-13)
    for a, b in zip(*results, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-10)


def test_scaled_beliefs_and_value_equal_log_space_ones() -> None:
    batch, query, model = grid_model(MIXED_CARDS, 3)
    which, mode = np.arange(2), modes(query, 0.7)["sum"]
    results = []
    for run in (ScaledRun(model, ScaledTables.of(model, 0.7)), LogRun(model)):
        run.start(which, None)
        run.advance(which, mode, 3, Schedule())
        mu, value = Marginals.zeros(batch), np.zeros(2)
        run.beliefs(which, mode, value, mu)
        results.append((value, mu.unary, mu.tables))
    for a, b in zip(*results, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-11, atol=1e-13)


SETTINGS: dict[str, dict] = {
    "regions": {"effort": "fast", "max_sweeps": 9},
    "retried": {"effort": "normal", "max_sweeps": 2, "tolerance": 1e-12},
    "converged": {"effort": "normal", "tolerance": 1e-3},
    "flooding": {"effort": "fast", "schedule": "flooding", "damping": 0.3},
}


@pytest.mark.parametrize("threads", [1, 4])
@pytest.mark.parametrize("held", [False, True])
@pytest.mark.parametrize("settings", SETTINGS)
def test_sums_in_one_kernel_are_those_of_its_steps_bit_by_bit(settings: str, held: bool, threads: int) -> None:
    """Families of grids and of a graph without paths, and instances that are alone, in one batch.

    Tables are weak enough for residuals to show every change; see ``test_strong_sums_in_one_kernel`` for others.
    """
    rng = np.random.default_rng(5)
    star = Topology((3,) * 5, ((0, 4), (1, 4), (2, 4), (3, 4), (0, 1)))
    grids = [Topology((k,) * 12, tuple(grid_scopes(3, 4))) for k in (3, 4)]
    topologies = [grids[0]] * 11 + [star] * 4 + [grids[1]] * 3 + [Topology((2,) * 4, tuple(grid_scopes(2, 2)))]
    batch = Batch.build(topologies, [[25 * t.cards[0]] * len(t.scopes) for t in topologies])
    tables = np.clip(2.0 * rng.normal(size=batch.n_table_entries), -0.5 * SHOWN, 0.5 * SHOWN)
    theta = Potentials(2.0 * rng.normal(size=batch.n_states), tables)
    allowed = np.ones(batch.n_states, dtype=bool)
    for i in np.flatnonzero(rng.random(batch.n_vars) < 0.3 * held):
        allowed[batch.unary_ptr[i] : batch.unary_ptr[i + 1] - 1] = False
    query = Query(rng.random(batch.n_vars) < 0.5, allowed)
    for messages in (None, -rng.random(int(batch.cards[batch.scope_vars].sum()))):
        answers = []
        for keep in (False, True):  # messages that are kept come from the steps
            propagate = Propagate(**SETTINGS[settings], keep_messages=keep, threads=threads)
            found = propagate(batch, theta, query, 1.0, 1.0, messages=messages)
            mu, of = found.mu, found.status
            answers.append([found.value, mu.unary, mu.tables, of.sweeps, of.residual, of.converged, of.exact])
        for whole, steps in zip(*answers, strict=True):
            np.testing.assert_array_equal(whole, steps)


@pytest.mark.parametrize("strength", [2.0, 10.0, 40.0])
@pytest.mark.parametrize("held", [False, True])
def test_strong_sums_in_one_kernel_agree_with_its_steps(held: bool, strength: float) -> None:
    """One more sweep confirms that messages rest, after beliefs or before them."""
    rng = np.random.default_rng(7)
    batch = Batch.build([Topology((3,) * 12, tuple(grid_scopes(3, 4)))] * 40, [[0] * 17] * 40)
    theta = Potentials(strength * rng.normal(size=batch.n_states), strength * rng.normal(size=batch.n_table_entries))
    allowed = np.ones(batch.n_states, dtype=bool)
    for i in np.flatnonzero(rng.random(batch.n_vars) < 0.3 * held):
        allowed[batch.unary_ptr[i] : batch.unary_ptr[i + 1] - 1] = False
    query = Query(rng.random(batch.n_vars) < 0.5, allowed)
    whole, steps = (Propagate(keep_messages=keep)(batch, theta, query, 1.0, 1.0) for keep in (False, True))
    np.testing.assert_array_equal(whole.status.converged, steps.status.converged)
    converged = whole.status.converged
    assert converged.mean() > 0.5
    np.testing.assert_allclose(whole.value[converged], steps.value[converged], rtol=1e-9)
    states = converged[batch.owner][batch.state_var]
    np.testing.assert_allclose(whole.mu.unary[states], steps.mu.unary[states], atol=1e-7)
    np.testing.assert_allclose(whole.mu.unary.reshape(-1, 3).sum(axis=1), 1.0)


@pytest.mark.parametrize("effort", ["fast", "normal"])
def test_states_judged_in_one_kernel_have_the_values_of_its_steps(effort: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A search on grids whose hidden variables have cycles, one of them alone."""
    rng = np.random.default_rng(6)
    topologies = [Topology((k,) * 16, tuple(grid_scopes(4, 4))) for k in (3, 3, 3, 3, 2)]
    batch = Batch.build(topologies, [[9 * (k == 2)] * 24 for k in (3, 3, 3, 3, 2)])
    theta = Potentials(rng.normal(size=batch.n_states), rng.normal(size=batch.n_table_entries))
    query = Query.of(batch, rng.random(batch.n_vars) < 0.3)
    found = [Propagate(effort, max_sweeps=6)(batch, theta, query, 0.0, 1.0)]
    monkeypatch.setattr(ScaledRun, "sums", lambda self, temperatures, request: request.instances)
    found.append(Propagate(effort, max_sweeps=6)(batch, theta, query, 0.0, 1.0))
    for get in (lambda b: b.value, lambda b: b.mu.unary, lambda b: b.mu.tables, lambda b: b.status.residual):
        np.testing.assert_array_equal(*map(get, found))


@pytest.mark.parametrize("strength", [50.0, 150.0, 290.0, 310.0, 650.0, 1e4])
def test_ranges_around_the_switch_to_log_space(strength: float) -> None:
    """Strong opposed factors at one variable: every message is in range, their product is not."""
    rng = np.random.default_rng(4)
    batch = Batch.build([Topology((3,) * 7, tuple((0, i) for i in range(1, 7)))])
    theta = Potentials(rng.normal(size=batch.n_states), strength * rng.uniform(-0.5, 0.5, batch.n_table_entries))
    query = Query.of(batch, np.arange(7) % 2 == 1)
    for eps_y, eps_h in ((1.0, 1.0), (0.0, 1.0), (0.0, 0.0)):
        want = Enumerate()(batch, theta, query, eps_y, eps_h)
        for merging in (True, False):
            got = Propagate("normal", merging=merging)(batch, theta, query, eps_y, eps_h)
            np.testing.assert_allclose(got.value, want.value, rtol=1e-9)
            np.testing.assert_allclose(got.mu.unary, want.mu.unary, atol=1e-9 * max(1.0, strength / 100))


def test_flooding_and_sweeping_agree_where_they_converge() -> None:
    rng = np.random.default_rng(5)
    batch = Batch.build([Topology((3,) * 16, tuple(grid_scopes(4, 4)))] * 3)
    theta = Potentials(rng.normal(size=batch.n_states), 0.5 * rng.normal(size=batch.n_table_entries))
    query = Query.of(batch, np.zeros(batch.n_vars, dtype=bool))
    sweeping, flooding = (
        Propagate("normal", schedule=s)(batch, theta, query, 1.0, 1.0) for s in ("sequential", "flooding")
    )
    assert sweeping.status.converged.all() and flooding.status.converged.all()
    np.testing.assert_allclose(sweeping.mu.tables, flooding.mu.tables, atol=1e-8)
    assert np.all(sweeping.status.sweeps < flooding.status.sweeps)


# --- libDAI ----------------------------------------------------------------------------------------------------------


def published(path: Path) -> dict[str, tuple[list[float], Floats]]:
    """Rows of a libDAI test output: the printed errors of a method and the variable marginals below it."""
    rows: dict[str, tuple[list[float], list[list[float]]]] = {}
    name = ""
    for line in path.read_text(encoding="ascii").splitlines():
        if line.startswith("# ({x") and name:
            rows[name][1].append([float(v) for v in line.split("(")[2].strip(") ").split(",")])
        elif line and not line.startswith("#"):
            name, *numbers = line.split()
            rows[name] = ([float(v.replace("N/A", "nan")) for v in numbers], [])
    return {key: (errors, np.array(marginals)) for key, (errors, marginals) in rows.items()}


def distances(batch: Batch, a: Marginals, b: Marginals) -> tuple[Floats, Floats]:
    """Total variation of variable beliefs, and of factor beliefs with a factor of order one on every variable."""
    variables = 0.5 * np.add.reduceat(np.abs(a.unary - b.unary), batch.unary_ptr[:-1])
    pairs = 0.5 * np.add.reduceat(np.abs(a.tables - b.tables), batch.mu_at)
    return variables, np.concatenate([pairs, variables])


def bethe(batch: Batch, theta: Potentials, mu: Marginals) -> float:
    """Bethe free energy of given beliefs."""
    graph = batch.topology(0)
    degree = np.bincount(np.concatenate(graph.scopes), minlength=graph.n_vars)
    entropy = np.add.reduceat(-mu.unary * np.log(mu.unary), batch.unary_ptr[:-1])
    energy = mu.unary @ theta.unary + mu.tables @ theta.tables - mu.tables @ np.log(mu.tables)
    return float(energy + ((1 - degree) * entropy).sum())


def max_marginals(batch: Batch, theta: Potentials) -> tuple[Marginals, float]:
    """Normalised max-marginals of variables and factors by brute force, and the largest score."""
    z = np.array(list(product(range(2), repeat=batch.n_vars)))
    unary_at, table_at, mu_at = entries(batch, 0, z)
    score = theta.unary[unary_at].sum(1) + theta.tables[table_at].sum(1)
    mu = Marginals(np.full(batch.n_states, -np.inf), np.full(batch.n_mu_entries, -np.inf))
    np.maximum.at(mu.unary, unary_at, score[:, None])
    np.maximum.at(mu.tables, mu_at, score[:, None])
    for array, ptr in ((mu.unary, batch.unary_ptr[:-1]), (mu.tables, batch.mu_at)):
        np.exp(array - score.max(), out=array)
        array /= np.repeat(np.add.reduceat(array, ptr), np.diff([*ptr, len(array)]))
    return mu, float(score.max())


@pytest.fixture(scope="module")
def testfast(data_dir: Path) -> tuple[Batch, Potentials, dict[str, tuple[list[float], Floats]]]:
    folder = data_dir / "libdai_tests" / "tests"
    if not (folder / "testfast.fg").is_file():
        pytest.skip(f"no testfast.fg under {folder}")
    problem = read_fg(folder / "testfast.fg").problem()
    return problem.batch, problem.theta, published(folder / "testfast.out")


ROWS = ["BP", "BP_SEQRND_LOG", "MP_SEQFIX", "MP_SEQRND", "MP_PARALL", "MP_SEQFIX_LOG", "MP_SEQRND_LOG", "MP_PARALL_LOG"]


@pytest.mark.parametrize("schedule", ["sequential", "flooding"])
@pytest.mark.parametrize("scaled", [True, False])
@pytest.mark.parametrize("row", ROWS)
def test_libdai_testfast(testfast: tuple[Batch, Potentials, dict], row: str, scaled: bool, schedule: str) -> None:
    batch, theta, rows = testfast
    errors, marginals = rows[row]
    query, eps = Query.all_outputs(batch), 1.0 if row.startswith("BP") else 0.0
    method = Propagate(
        "normal", starts=("cold",), scaled=scaled, schedule=schedule, keep_messages=True, max_sweeps=1000
    )
    belief = method(batch, theta, query, eps, eps)
    messages = belief.extras["messages"]
    assert belief.status.converged.all() and isinstance(messages, np.ndarray)
    if eps:
        mu, exact = belief.mu, Enumerate()(batch, theta, query, 1.0, 1.0)
        reference, log_z = exact.mu, float(exact.value[0])
        np.testing.assert_allclose(belief.value, bethe(batch, theta, mu), rtol=1e-9)
    else:
        # Max-product is judged against exact max-marginals. The printed "log Z" of the reference is a quantity of its
        # junction tree; it follows from the row of DECMAP, whose own value is the largest score.
        run, mu = loaded(batch, theta, query).run(), Marginals.zeros(batch)
        run.start(np.arange(1), messages)
        run.beliefs(np.arange(1), Temperatures.one(batch.n_vars, 1.0), np.zeros(1), mu)
        reference, top = max_marginals(batch, theta)
        log_z = top - rows["DECMAP"][0][4]
    # Half a unit of the last digit printed.
    np.testing.assert_allclose(mu.unary.reshape(-1, 2), marginals, rtol=0.0, atol=0.51e-4)
    variables, factors = distances(batch, mu, reference)
    ours = [variables.max(), variables.mean(), factors.max(), factors.mean(), bethe(batch, theta, mu) - log_z]
    np.testing.assert_allclose([float(f"{v:.3e}") for v in ours], errors[:5], rtol=1e-9)
