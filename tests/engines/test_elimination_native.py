"""Native elimination: every digit against long double, slices of time that change no bit, refusals at the boundary."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass
from threading import Event
from typing import Any

import numpy as np
import pytest

import builders
from mssvm.core.errors import MssvmError
from mssvm.core.library import Record, lanes
from mssvm.core.potentials import Belief, Marginals, Potentials, Query
from mssvm.core.threads import Workers
from mssvm.core.topology import Batch, Topology
from mssvm.engines.base import METHODS
from mssvm.engines.elimination import compile_elimination
from mssvm.engines.native import elimination
from mssvm.engines.native.engine import NativeEngine
from mssvm.inference.bounds.relaxation import OneInstance, Relaxation
from mssvm.inference.enumerate import entries
from mssvm.inference.exact import Exact

ELIMINATION = Exact(methods=METHODS[-1:])
ENGINES = {"scaled where safe": NativeEngine(), "log space": NativeEngine(log_space=True)}
TEMPERATURES = (0.0, 1e-6, 1e-3, 0.3, 1.0, 30.0, 1e3)
STRENGTHS = (1.0, 30.0, 100.0, 300.0, 3e3, 3e4)
ROUNDING = 64 * 2.0**-53


# --- against long double ----------------------------------------------------------------------------------------------


def power_sum(a: Any, eps: float) -> tuple[Any, Any]:
    """PS_eps(a) and its gradient in long double."""
    top = a.max()
    if top == -np.inf:
        return top, np.zeros_like(a)
    if eps == 0.0:
        weights = np.zeros_like(a)
        weights[np.argmax(a)] = 1.0
        return top, weights
    weights = np.exp((a - top) / np.longdouble(eps))
    total = weights.sum()
    return top + np.longdouble(eps) * np.log(total), weights / total


@dataclass(frozen=True)
class Truth:
    """Value and marginals of one instance in long double; ``tables`` are those of its own entries, ``own``.

    Scores cannot be told apart closer than rounding, nor can the values of outputs: ``scores`` and ``outputs`` are
    their magnitudes.
    """

    value: Any
    unary: Any
    own: Any
    tables: Any
    scores: float
    outputs: float


def truth(batch: Batch, theta: Potentials, query: Query, b: int, eps: tuple[float, float]) -> Truth:
    graph = batch.topology(b)
    output = query.output[batch.var_ptr[b] : batch.var_ptr[b + 1]]
    eps_y, eps_h = eps
    z = np.stack(np.meshgrid(*map(np.arange, graph.cards), indexing="ij"), axis=-1).reshape(-1, graph.n_vars)
    unary_at, table_at, mu_at = entries(batch, b, z)
    allowed = np.where(query.allowed[unary_at], theta.unary[unary_at], -np.inf)
    parts = np.concatenate([allowed, theta.tables[table_at]], axis=1)
    scores = parts.astype(np.longdouble).sum(axis=1)
    magnitude = np.where(np.isfinite(parts), np.abs(parts), 0.0).max(axis=0).sum()
    outputs, of = np.unique(z[:, output], axis=0, return_inverse=True)
    inner, weights = np.zeros(len(outputs), dtype=np.longdouble), np.zeros(len(z), dtype=np.longdouble)
    for k in range(len(outputs)):
        inner[k], weights[of.ravel() == k] = power_sum(scores[of.ravel() == k], eps_h if not output.all() else eps_y)
    value, of_outputs = power_sum(inner, eps_y)
    weights *= of_outputs[of.ravel()]
    unary, own = np.zeros(batch.n_states, dtype=np.longdouble), np.unique(mu_at)
    tables = np.zeros(batch.n_mu_entries, dtype=np.longdouble)
    np.add.at(unary, unary_at, weights[:, None])
    np.add.at(tables, mu_at, weights[:, None])
    greatest = float(np.abs(inner[inner > -np.inf]).max(initial=0.0))
    return Truth(value, unary[batch.state_span(b)], own, tables[own], float(magnitude), greatest)


def assert_every_digit(found: Belief, batch: Batch, theta: Potentials, query: Query, eps: tuple[float, float]) -> None:
    """1e-9, relative for values, and what the rounding of scores makes of it at the temperatures."""
    for b in range(len(batch)):
        expected = truth(batch, theta, query, b, eps)
        span = batch.state_span(b)
        if expected.value == -np.inf:
            assert found.value[b] == -np.inf and not found.mu.unary[span].any()
            continue
        wide = expected.scores + expected.outputs
        assert abs(found.value[b] - expected.value) <= 1e-9 * abs(expected.value) + ROUNDING * wide
        slack = sum(wide / t for t in eps if t > 0.0)
        off = [np.abs(found.mu.unary[span] - expected.unary), np.abs(found.mu.tables[expected.own] - expected.tables)]
        assert max(float(x.max(initial=0.0)) for x in off) <= 1e-9 + ROUNDING * slack


def random_graph(rng: np.random.Generator) -> tuple[tuple[int, ...], list[tuple[int, ...]]]:
    """Up to six variables with loops and factors of up to four of them."""
    n = int(rng.integers(1, 7))
    orders = [int(k) for k in rng.integers(2, 5, int(rng.integers(0, 2 * n))) if k <= n]
    return tuple(map(int, rng.integers(1, 4, n))), [tuple(map(int, rng.permutation(n)[:k])) for k in orders]


def random_case(
    rng: np.random.Generator, temperatures: tuple[float, ...] = TEMPERATURES
) -> tuple[Batch, Potentials, Query, tuple[float, float]]:
    """1 to 17 alike instances with masks and forbidden entries, in half of which outputs determine hidden variables."""
    cards, scopes = random_graph(rng)
    output = rng.random(len(cards)) < 0.5
    hidden = np.flatnonzero(~output).tolist() if output.any() and rng.random() < 0.5 else []
    links = [(int(rng.choice(np.flatnonzero(output))), h) for h in hidden]
    batch = Batch.build([Topology(cards, (*scopes, *links))] * int(rng.choice([1, 2, 3, 8, 9, 17])))
    eps = float(rng.choice(temperatures)), float(rng.choice(temperatures))
    scale = float(rng.choice(STRENGTHS) * rng.choice([t for t in (*eps, 1.0) if t > 0.0]))
    theta = Potentials(scale * rng.normal(size=batch.n_states), scale * rng.normal(size=batch.n_table_entries))
    theta.tables[:] *= rng.choice([0.0, 0.01, 1.0])
    if rng.random() < 0.4:
        theta.tables[rng.random(batch.n_table_entries) < 0.2] = -np.inf
    for b in range(len(batch)):
        for f, (y, h) in enumerate(links, start=int(batch.factor_ptr[b]) + len(scopes)):
            only = np.full((cards[y], cards[h]), -np.inf)
            only[np.arange(cards[y]), rng.integers(0, cards[h], cards[y])] = 0.0
            theta.tables[batch.table_at[f] : batch.table_at[f] + only.size] = only.ravel()
    allowed = rng.random(batch.n_states) < rng.choice([0.8, 1.0])
    allowed[batch.unary_ptr[:-1]] = True
    return batch, theta, Query(np.tile(output, len(batch)), allowed), eps


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("seed", range(4))
def test_random_graphs_at_any_two_temperatures(engine: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    for _ in range(120):
        batch, theta, query, eps = random_case(rng)
        found = builders.On(ELIMINATION, ENGINES[engine])(batch, theta, query, *eps)
        assert_every_digit(found, batch, theta, query, eps)


@pytest.mark.parametrize("pair", [(1e-6, 1e3), (1e-6, 30.0), (1e-3, 1e3), (0.0, 1e3), (1e3, 1e-6), (1e3, 1e3)])
def test_scores_far_below_a_temperature_are_kept(pair: tuple[float, float]) -> None:
    """Outputs determine the hidden variable, so nothing is summed: only probabilities near one would lose digits."""
    rng = np.random.default_rng(0)
    batch = Batch.build([Topology((3, 3, 3), ((0, 1), (2, 1), (0, 2)))] * 9)
    theta = Potentials(1e-6 * rng.normal(size=batch.n_states), 1e-6 * rng.normal(size=batch.n_table_entries))
    for b in range(len(batch)):
        at = batch.table_at[batch.factor_ptr[b]]
        theta.tables[at : at + 9] = np.where(np.eye(3) > 0.0, 0.0, -np.inf).ravel()
    query = Query.of(batch, np.tile([True, False, True], 9))
    assert_every_digit(ELIMINATION(batch, theta, query, *pair), batch, theta, query, pair)


def test_scores_of_a_large_graph_do_not_add_up_to_rounding() -> None:
    """What all entries of a message share is moved aside: a constant in all scores costs no digits but its own."""
    rng = np.random.default_rng(1)
    batch = Batch.build([Topology((2,) * 400, tuple(builders.grid_scopes(2, 200)))] * 2)
    theta = Potentials(rng.normal(size=batch.n_states), rng.normal(size=batch.n_table_entries))
    theta.unary[:] = np.round(theta.unary * 2.0**20) / 2.0**20
    raised = Potentials(theta.unary + 2.0**20, theta.tables)  # exactly; the value is 2^20 times 400
    query = Query.all_outputs(batch)
    log_space = builders.On(ELIMINATION, NativeEngine(log_space=True))
    plain, high = log_space(batch, theta, query, 1.0, 1.0), log_space(batch, raised, query, 1.0, 1.0)
    np.testing.assert_allclose(high.mu.unary, plain.mu.unary, atol=2e-9)
    np.testing.assert_allclose(high.mu.tables, plain.mu.tables, atol=2e-9)


# --- slices of time and threads ---------------------------------------------------------------------------------------


def grid_case(side: int, card: int, copies: int) -> tuple[Batch, Potentials, Query]:
    batch = Batch.build([Topology((card,) * side**2, tuple(builders.grid_scopes(side, side)))] * copies)
    rng = np.random.default_rng(2)
    theta = Potentials(rng.normal(size=batch.n_states), rng.normal(size=batch.n_table_entries))
    return batch, theta, Query.of(batch, np.tile(rng.random(side**2) < 0.5, copies))


def assert_same_bits(found: Belief, expected: Belief) -> None:
    np.testing.assert_array_equal(found.value, expected.value)
    np.testing.assert_array_equal(found.mu.unary, expected.mu.unary)
    np.testing.assert_array_equal(found.mu.tables, expected.mu.tables)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Names of the native functions called in slices."""
    made: list[str] = []
    for function in (elimination.RUN, elimination.RESUME, elimination.BOUND, elimination.GRADIENT):

        def run(record: Record, function: Any = function, inner: Any = function.run) -> int:
            made.append(function.symbol.removeprefix("mssvm_elimination_"))
            code: int = inner(record)
            return code

        monkeypatch.setattr(function, "run", run)
    yield made


def test_slices_change_no_bit(monkeypatch: pytest.MonkeyPatch, calls: list[str]) -> None:
    """A wide instance, in which single steps are interrupted, and several that share a vector."""
    monkeypatch.setattr(elimination, "LONG_BLOCK", 0)
    for batch, theta, query in (grid_case(7, 5, 1), grid_case(5, 4, 5)):
        for eps in ((1.0, 1.0), (0.0, 1.0) if len(batch) > 1 else (0.0, 0.0)):
            found, counts = [], []
            for seconds in (1e9, 0.0):
                monkeypatch.setattr(elimination, "SLICE", seconds)
                calls.clear()
                found.append(ELIMINATION(batch, theta, query, *eps))
                counts.append(len(calls))
            if len(batch) == 1 or lanes() > 2:  # else blocks are so small that the clock is not read
                assert counts[1] > counts[0]
            assert_same_bits(found[1], found[0])


def test_blocks_are_done_in_slices(monkeypatch: pytest.MonkeyPatch, calls: list[str]) -> None:
    batch, theta, query = grid_case(3, 3, 70)
    whole = ELIMINATION(batch, theta, query, 0.5, 1.0)
    assert calls == ["run"]
    monkeypatch.setattr(elimination, "SLICE", 0.0)
    assert_same_bits(builders.On(ELIMINATION, NativeEngine(3))(batch, theta, query, 0.5, 1.0), whole)
    assert len(calls) > 3


def test_long_blocks_are_as_short_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    batch, theta, query = grid_case(4, 3, 21)
    short = ELIMINATION(batch, theta, query, 0.5, 1.0)
    monkeypatch.setattr(elimination, "LONG_BLOCK", 0)
    for threads in (1, 2, 16):
        assert_same_bits(builders.On(ELIMINATION, NativeEngine(threads))(batch, theta, query, 0.5, 1.0), short)


def test_bounds_and_their_gradients_in_slices(monkeypatch: pytest.MonkeyPatch, calls: list[str]) -> None:
    batch, theta, query = grid_case(12, 3, 1)
    instance = OneInstance.of(batch, 0, theta, query)
    found = []
    for seconds in (1e9, 0.0):
        monkeypatch.setattr(elimination, "SLICE", seconds)
        relaxation = Relaxation(instance, instance.order(False, restarts=0), 3**8, 0.5, 1.0)
        grad, d_weight = np.zeros(len(relaxation.work)), np.zeros(len(relaxation.weight))
        value = relaxation.run(match=True)
        relaxation.sweep.gradient(relaxation.weight, grad, d_weight)
        found.append((value, grad, d_weight))
    assert calls.count("bound") > 2 and calls.count("gradient") > 2
    for one, other in zip(*found, strict=True):
        np.testing.assert_array_equal(one, other)


def test_an_interrupt_stops_the_long_blocks_of_all_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """What one thread's slice raises ends the others after theirs."""
    monkeypatch.setattr(elimination, "LONG_BLOCK", 0)
    batch, theta, query = grid_case(3, 3, 40)
    planner = elimination.EliminationPlanner(batch, ELIMINATION.plan(batch).settings, Workers(2), False)
    route = planner.bind(query, 1.0, 1.0, np.arange(40), True)
    raised = Event()

    def run(record: Record) -> int:
        if raised.is_set():
            return 0  # never done: only the flag ends it
        raised.set()
        raise KeyboardInterrupt

    monkeypatch.setattr(elimination.RESUME, "run", run)
    with pytest.raises(KeyboardInterrupt):
        route.infer_into(theta, np.zeros(40), Marginals.zeros(batch))


def test_copies_of_a_bound_plan_give_the_same() -> None:
    batch, theta, query = grid_case(3, 3, 5)
    bound = ELIMINATION.plan(batch).bind(query, 0.5, 1.0)
    expected = bound(theta)
    assert_same_bits(deepcopy(bound)(theta), expected)


# --- the boundary -----------------------------------------------------------------------------------------------------


def triangle() -> dict[str, Any]:
    """Fields of a sound program: two variables of a triangle are eliminated, the third is clamped."""
    graph = Topology((2, 3, 2), ((0, 1), (1, 2), (0, 2)))
    return compile_elimination(graph, (0, 1), np.ones(3, dtype=bool))._asdict()


def changed(array: Any, index: int, value: int) -> Any:
    out = array.copy()
    out[index] = value
    return out


def test_a_sound_program_is_accepted() -> None:
    assert elimination.CHECK(**triangle()) == 0


@pytest.mark.parametrize(
    ("field", "index", "value", "sentence"),
    [
        ("unary_slot", 0, 1000, "slot lies beyond"),
        ("factor_slot", 0, 1000, "factor's slot"),
        ("factor_size", 0, -1, "larger than all slots"),
        ("entry_at", 0, 1 << 60, "list of entries"),
        ("clamp_ptr", 1, 7, "counted wrong"),
        ("clamp_var", 0, 3, "clamped variable is not there"),
        ("position_ptr", 0, 1, "positions are counted wrong"),
        ("var", 0, 9, "eliminates no variable"),
        ("card", 0, 0, "states than the program says, or none"),
        ("message_at", 0, 1 << 60, "message lies beyond"),
        ("message_size", 0, 5, "another size than the axes"),
        ("message_input", 0, 50, "goes to no input"),
        ("shift_at", 0, 1 << 60, "shift is no input"),
        ("separator", 0, -1, "separator's variable is not there"),
        ("axis_size", 0, 1 << 60, "longer than a table"),
        ("input_at", 0, -1, "beyond the work vector"),
        ("input_size", -1, 1, "beyond its table"),
        ("level", -1, 7, "innermost axis"),
        ("stride", -1, -4, "strides do not fit"),
    ],
)
def test_an_unsound_program_is_refused_with_a_sentence(field: str, index: int, value: int, sentence: str) -> None:
    fields = triangle()
    with pytest.raises(MssvmError, match=sentence):
        elimination.CHECK(**(fields | {field: changed(fields[field], index, value)}))


def test_random_changes_of_a_program_are_refused_or_run_in_bounds() -> None:
    """Whatever is accepted can be run: places are inside the work vector (which the sanitizers see)."""
    rng = np.random.default_rng(3)
    sound = triangle()
    arrays = [name for name, value in sound.items() if isinstance(value, np.ndarray) and value.dtype == np.int64]
    refused = 0
    for _ in range(500):
        name = str(rng.choice(arrays))
        if not len(sound[name]):
            continue
        place, value = int(rng.integers(len(sound[name]))), int(rng.integers(-3, 30))
        fields = sound | {name: changed(sound[name], place, value)}
        program = elimination.PROGRAM(**fields)
        try:
            elimination.CHECK.run(program)
        except MssvmError:
            refused += 1
            continue
        elimination.BOUND(
            program=program,
            match=1,
            temperature=np.ones(2),
            work=np.zeros(sound["n_work"]),
            value=np.zeros(1),
            cursor=np.zeros(2, dtype=np.int64),
            seconds=1.0,
        )
    assert refused > 100


def test_calls_of_other_sizes_are_refused() -> None:
    batch, theta, query = grid_case(2, 2, 2)
    planner = elimination.EliminationPlanner(batch, ELIMINATION.plan(batch).settings, Workers(), False)
    route = planner.bind(query, 1.0, 1.0, np.arange(2), True)
    mu = Marginals.zeros(batch)
    with pytest.raises(MssvmError, match="value for every instance"):
        route.infer_into(theta, np.zeros(1), mu)
    with pytest.raises(MssvmError, match="another number of states"):
        route.infer_into(Potentials(theta.unary[1:], theta.tables), np.zeros(2), mu)
    with pytest.raises(MssvmError, match="beyond the tables"):
        route.infer_into(Potentials(theta.unary, theta.tables[:2]), np.zeros(2), mu)
    with pytest.raises(MssvmError, match="state for every variable"):
        route.decode_into(theta, np.zeros(2), np.zeros(3, dtype=np.int64))
    sweep = elimination.ScoreSweep(compile_elimination(batch.topologies[0], (0, 1, 2, 3), query.output[:4]))
    with pytest.raises(MssvmError, match="temperature for every step"):
        sweep.bound(np.ones(3), False)
    with pytest.raises(MssvmError, match="another size"):
        sweep.gradient(np.ones(4), np.zeros(3), np.zeros(4))
