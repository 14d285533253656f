"""The compiled messages against those of the reference engine, and against published results of another library."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise, product
from pathlib import Path

import numpy as np
import pytest

from builders import grid_scopes
from mssvm.core.arrays import Bools, Floats, Ints
from mssvm.core.errors import MssvmError
from mssvm.core.potentials import Marginals, Potentials, Query
from mssvm.core.threads import Workers
from mssvm.core.topology import Batch, Topology, offsets
from mssvm.engines.messages import MessageModel, MessageRun, Schedule, Temperatures
from mssvm.engines.native import messages as native
from mssvm.engines.native.messages import NativeMessageModel, NativeMessagePlan, NativeRun
from mssvm.engines.reference.messages import ReferenceMessagePlan
from mssvm.inference.enumerate import Enumerate, entries
from mssvm.inference.propagation.propagate import Propagate
from mssvm.uai import read_fg

SCHEDULES = [Schedule(), Schedule(0.5), Schedule(0.3), Schedule(flooding=True), Schedule(0.5, True)]
KINDS = ["sum", "max", "mixed", "colder outputs", "colder hidden"]


def loaded(batch: Batch, theta: Potentials, query: Query, threads: int = 1) -> NativeMessageModel:
    noise = np.random.default_rng(0).random(batch.n_states)
    return NativeMessagePlan(batch, Workers(threads)).load(theta, query, noise)


def temperatures(kind: str, query: Query, eps: float) -> Temperatures:
    n = len(query.output)
    if kind in ("sum", "max"):
        return Temperatures.one(n, eps if kind == "sum" else 0.0)
    eps_y = {"mixed": 0.0, "colder outputs": 0.5 * eps, "colder hidden": 2.0 * eps}[kind]
    return Temperatures(query.output, eps_y, eps)


GRAPHS = {
    "grid": lambda k: Topology((k,) * 6, tuple(grid_scopes(2, 3))),
    "dense": lambda k: Topology((2, k, 3, k), tuple((i, j) for i in range(4) for j in range(i))),
    "star": lambda k: Topology((k,) * 18, tuple((0, i) for i in range(1, 18))),
    "higher": lambda k: Topology((2, 3, 2, k, 2), ((0, 1, 2), (2, 3), (3, 0), (4, 1, 3, 0))),
    "single states": lambda k: Topology((1, k, 1, 2), ((0, 1), (1, 2), (0, 2), (3, 1))),
    "tied square": lambda k: Topology((k,) * 72, tuple(grid_scopes(9, 8))),
    "tied wide": lambda k: Topology((k,) * 60, tuple(grid_scopes(5, 12))),
}


@dataclass(frozen=True)
class Setup:
    """A batch with masks and roles of its own in every instance, states to hold, and messages to start from."""

    batch: Batch
    theta: Potentials
    query: Query
    outside: Bools
    y: Ints
    warm: Floats

    @classmethod
    def of(cls, graph: str, k: int, count: int, strength: float, seed: int, forbidden: bool = False) -> Setup:
        rng = np.random.default_rng(seed)
        topology = GRAPHS[graph](k)
        if graph.startswith("tied"):  # one table across and one down
            kinds = [int(abs(i - j) > 1) for i, j in topology.scopes]
            turned = (rng.random(2) < 0.5)[kinds]
            names: list[list[int]] | None = [kinds] * count
        else:
            turned = rng.random(topology.n_factors) < 0.5
            names = [list(range(topology.n_factors))] * count if rng.random() < 0.7 else None
        scopes = tuple(s[::-1] if turn else s for s, turn in zip(topology.scopes, turned, strict=True))
        topology = Topology(topology.cards, scopes)
        batch = Batch.build([topology] * count, names)
        theta = Potentials(
            strength * rng.normal(size=batch.n_states), strength * rng.normal(size=batch.n_table_entries)
        )
        if forbidden:
            theta.tables[rng.random(batch.n_table_entries) < 0.03] = -np.inf
        allowed = np.ones(batch.n_states, dtype=bool)
        allowed[batch.unary_ptr[:-1][(rng.random(batch.n_vars) < 0.3) & (batch.cards > 1)]] = False
        y = np.array([rng.choice(np.flatnonzero(allowed[a:b])) for a, b in pairwise(batch.unary_ptr)])
        warm = -strength * rng.random(int(batch.cards[batch.scope_vars].sum()))
        query = Query(rng.random(batch.n_vars) < 0.5, allowed)
        return cls(batch, theta, query, rng.random(batch.n_vars) < 0.3, y, warm)

    def models(self) -> tuple[MessageModel, MessageModel]:
        noise = np.random.default_rng(0).random(self.batch.n_states)
        native = NativeMessagePlan(self.batch, Workers()).load(self.theta, self.query, noise)
        reference = ReferenceMessagePlan(self.batch).load(self.theta, self.query, noise)
        return native, reference

    def normalised(self, messages: Floats) -> Floats:
        """Log-messages with maximum zero over the states that matter: those the mask allows."""
        at = offsets(self.batch.cards[self.batch.scope_vars])
        out = np.zeros(len(messages))
        for s, v in enumerate(self.batch.scope_vars):
            allowed = self.query.allowed[self.batch.unary_ptr[v] : self.batch.unary_ptr[v + 1]]
            part = np.where(allowed, messages[at[s] : at[s + 1]], -np.inf)
            out[at[s] : at[s + 1]] = np.where(allowed, part - part.max(), 0.0)
        return out


@dataclass(frozen=True)
class Said:
    """Everything a run says."""

    states: Ints
    messages: Floats
    value: Floats
    unary: Floats
    tables: Floats


def said(setup: Setup, run: MessageRun, t: Temperatures) -> Said:
    """Beliefs at the temperature of hidden variables where outputs are maximal."""
    batch = setup.batch
    every = np.arange(len(setup.batch))
    states = np.zeros(batch.n_vars, dtype=np.int64)
    value = np.zeros(len(batch))
    mu = Marginals.zeros(batch)
    run.decode(every, states)
    messages = setup.normalised(run.log_messages(every))
    run.beliefs(every, t if t.eps_y > 0.0 else Temperatures.one(batch.n_vars, 1.0), value, mu)
    return Said(states, messages, value, mu.unary, mu.tables)


def assert_same(one: Said, two: Said, strength: float) -> None:
    np.testing.assert_array_equal(one.states, two.states)
    np.testing.assert_allclose(one.messages, two.messages, rtol=1e-9, atol=1e-9 * strength)
    np.testing.assert_allclose(one.value, two.value, rtol=1e-9, atol=1e-9 * strength)
    np.testing.assert_allclose(one.unary, two.unary, atol=1e-8)
    np.testing.assert_allclose(one.tables, two.tables, atol=1e-8)


@pytest.mark.parametrize("strength", [1.0, 30.0, 100.0, 300.0])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("graph", "k", "count"),
    [
        ("grid", 2, 9),
        ("grid", 5, 4),
        ("grid", 8, 6),
        ("grid", 3, 1),
        ("grid", 9, 6),
        ("grid", 21, 1),
        ("dense", 4, 3),
        ("dense", 9, 1),
        ("star", 3, 4),
        ("star", 13, 1),
        ("higher", 4, 2),
        ("single states", 3, 3),
        ("tied square", 2, 1),
        ("tied square", 6, 3),
        ("tied wide", 4, 2),
        ("tied wide", 8, 1),
    ],
)
def test_a_few_sweeps_send_the_messages_of_the_reference(
    graph: str, k: int, count: int, kind: str, strength: float
) -> None:
    """Lanes, single instances, many states, hubs, factors of higher order; schedules in turn, cold and warm."""
    setup = Setup.of(graph, k, count, strength, seed=k + count)
    t = temperatures(kind, setup.query, 1.0)
    every = np.arange(count)
    turn = int(strength) + k + count
    for number, schedule in ((turn % 5, SCHEDULES[turn % 5]), ((turn + 2) % 5, SCHEDULES[(turn + 2) % 5])):
        found = []
        for model in setup.models():
            (group,) = model.groups(every, t, True)
            run = group.run(True)
            run.start(every, setup.warm if number % 2 else None)
            run.advance(every, t, 3, replace(schedule, tolerance=-1.0))
            found.append(said(setup, run, t))
        assert_same(*found, strength)


@pytest.mark.parametrize("kind", KINDS)
def test_forbidden_entries(kind: str) -> None:
    for graph, seed in product(("grid", "higher"), range(3)):
        setup = Setup.of(graph, 4, 4, 1.0, seed, forbidden=True)
        t = temperatures(kind, setup.query, 1.0)
        every = np.arange(4)
        found = []
        for model in setup.models():
            run = model.groups(every, t, True)[0].run(True)
            run.start(every, None)
            run.advance(every, t, 3, Schedule(tolerance=-1.0))
            found.append(said(setup, run, t))
        assert_same(*found, 1.0)


@pytest.mark.parametrize("damping", [0.0, 0.5, 0.3])
@pytest.mark.parametrize(("graph", "k", "count"), [("grid", 3, 11), ("grid", 9, 1), ("star", 4, 5), ("higher", 3, 2)])
def test_held_variables_reach_the_same_beliefs(graph: str, k: int, count: int, damping: float) -> None:
    """Sweeps pass over what held variables say; at convergence nothing of that shows, not even in scores."""
    setup = Setup.of(graph, k, count, 1.0, seed=3)
    t = Temperatures.one(setup.batch.n_vars, 0.7)
    every = np.arange(count)
    found = []
    for model in setup.models():
        run = model.groups(every, t, True)[0].run(False)
        run.hold(every, setup.outside, setup.y)
        run.start(every, None)
        run.advance(every, t, 400, Schedule(damping, tolerance=1e-12))
        assert np.all(run.residual <= 1e-12)
        mu = Marginals.zeros(setup.batch)
        value = np.zeros(count)
        run.beliefs(every, t, value, mu)
        scores = np.where(setup.query.allowed, run.scores(every), -1e9)
        top = np.maximum.reduceat(scores, setup.batch.unary_ptr[:-1])
        found.append((value, mu.unary, mu.tables, scores - np.repeat(top, setup.batch.cards)))
    for one, two in zip(*found, strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("kind", ["sum", "max", "mixed"])
@pytest.mark.parametrize("graph", ["tied square", "tied wide"])
@pytest.mark.parametrize(("k", "held"), [(2, False), (5, True), (8, False)])
def test_waves_and_lanes_have_the_same_bits(graph: str, kind: str, k: int, held: bool) -> None:
    """Ten instances on one thread fill lanes; on five threads two each are swept in waves."""
    setup = Setup.of(graph, k, 10, 1.0, seed=k)
    t, every = temperatures(kind, setup.query, 1.0), np.arange(10)
    for schedule in SCHEDULES:
        found = []
        for threads in (1, 5):
            (group,) = loaded(setup.batch, setup.theta, setup.query, threads).groups(every, t, True)
            run = group.run(True)
            if held:
                run.hold(every, setup.outside, setup.y)
            run.start(every, None)
            run.advance(every, t, 30, replace(schedule, tolerance=1e-6))
            found.append((run.log_messages(every), run.sweeps, run.residual))
        for one, two in zip(*found, strict=True):
            np.testing.assert_array_equal(one, two)


def family(count: int, k: int = 3, seed: int = 5) -> tuple[Setup, NativeMessageModel, NativeRun]:
    """Instances that share a graph and its tables, at one temperature."""
    rng = np.random.default_rng(seed)
    topology = Topology((k,) * 12, tuple(grid_scopes(3, 4)))
    setup = Setup.of("grid", k, 1, 1.0, seed)
    batch = Batch.build([topology] * count, [[f % 4 for f in range(topology.n_factors)]] * count)
    theta = Potentials(rng.normal(size=batch.n_states), rng.normal(size=batch.n_table_entries))
    query = Query(rng.random(batch.n_vars) < 0.5, np.ones(batch.n_states, dtype=bool))
    setup = replace(setup, batch=batch, theta=theta, query=query)
    model = loaded(batch, theta, query)
    assert np.all(model.plan.family_of == 0)
    run = model.groups(np.arange(count), Temperatures.one(batch.n_vars, 0.8), True)[0].run(False)
    assert isinstance(run, NativeRun)
    return setup, model, run


@pytest.mark.parametrize("kind", ["sum", "max", "mixed"])
def test_lanes_do_not_meet(kind: str) -> None:
    """The same bits alone, among others and on several threads, in whatever order, however calls are cut."""
    setup, model, together = family(11)
    t = temperatures(kind, setup.query, 0.8)
    every = np.arange(11)
    plan = NativeMessagePlan(setup.batch, Workers(3))
    threaded = plan.load(setup.theta, setup.query, model.noise)
    apart = model.groups(every, Temperatures.one(setup.batch.n_vars, 0.8), True)[0].run(False)
    spread = threaded.groups(every, Temperatures.one(setup.batch.n_vars, 0.8), True)[0].run(False)
    runs = ((together, [every]), (apart, [every[k : k + 1] for k in every[::-1]]), (spread, [every[::-1]]))
    for run, blocks in runs:
        for block in blocks:
            run.start(block, None)
            for n in (1, 2, 40):
                run.advance(block, t, n, Schedule(tolerance=1e-6))
    for other in (apart, spread):
        np.testing.assert_array_equal(together.sweeps, other.sweeps)
        np.testing.assert_array_equal(together.residual, other.residual)
        np.testing.assert_array_equal(together.log_messages(every), other.log_messages(every))


def test_beliefs_are_added_to_marginals() -> None:
    setup, _, run = family(11)
    every = np.arange(11)
    t = Temperatures.one(setup.batch.n_vars, 0.8)
    run.start(every, None)
    run.advance(every, t, 30, Schedule())
    mu = Marginals.zeros(setup.batch)
    more = Marginals.zeros(setup.batch)
    value = np.zeros((2, 11))
    run.beliefs(every, t, value[0], mu)
    more.unary[:] = 0.5
    more.tables[:] = 0.25
    run.beliefs(every[::-1], t, value[1], more)
    np.testing.assert_array_equal(value[0], value[1])
    np.testing.assert_allclose(more.unary, mu.unary + 0.5, rtol=1e-14)
    np.testing.assert_allclose(more.tables, mu.tables + 0.25, rtol=1e-14)


def test_an_instance_that_underflows_goes_on_in_scores_beside_others() -> None:
    """Every table is within range, a product of messages is not."""
    setup, _, _ = family(11)
    theta = Potentials(setup.theta.unary.copy(), 120.0 * setup.theta.tables)
    weak = Potentials(setup.theta.unary, setup.theta.tables)
    every = np.arange(11)
    t = Temperatures.one(setup.batch.n_vars, 1.0)
    for scores in (theta, weak):
        found = []
        for model in replace(setup, theta=scores).models():
            run = model.groups(every, t, True)[0].run(False)
            run.start(every, None)
            run.advance(every, t, 4, Schedule(tolerance=-1.0))
            found.append(said(setup, run, t))
        assert_same(*found, 120.0)


def test_messages_that_cannot_be_probabilities_start_in_scores() -> None:
    setup, _, run = family(4)
    every = np.arange(4)
    t = Temperatures.one(setup.batch.n_vars, 0.8)
    given = np.zeros(int(setup.batch.message_ptr[-1]))
    given[0] = -np.inf
    reference = ReferenceMessagePlan(setup.batch).load(setup.theta, setup.query, np.zeros(setup.batch.n_states)).run()
    for each in (run, reference):
        each.start(every, given)
        each.advance(every, t, 2, Schedule(tolerance=-1.0))
    a = setup.normalised(run.log_messages(every))
    b = setup.normalised(reference.log_messages(every))
    np.testing.assert_allclose(a, b, atol=1e-9)


def test_long_runs_are_cut_into_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """An interrupt is answered between calls; here every call may do little."""
    setup = Setup.of("higher", 4, 2, 1.0, seed=0)
    every = np.arange(2)
    t = temperatures("mixed", setup.query, 1.0)
    model, _ = setup.models()
    run = model.groups(every, t, True)[0].run(True)
    calls = []
    advance = native.ADVANCE.run
    monkeypatch.setattr(native.ADVANCE, "run", lambda record: calls.append(1) or advance(record))
    run.start(every, None)
    run.advance(every, t, 300_000, Schedule(tolerance=-1.0))
    assert np.all(run.sweeps == 300_000)
    assert len(calls) > 1


def test_bad_calls_are_refused_with_a_sentence() -> None:
    setup, model, run = family(4)
    every = np.arange(4)
    t = Temperatures.one(setup.batch.n_vars, 0.8)
    run.start(every, None)
    with pytest.raises(MssvmError, match="an instance is not in the batch"):
        run.advance(np.array([2, 3]) + 0, t, 1, Schedule()) or run.decode(np.array([4]), np.zeros(48, dtype=np.int64))
    with pytest.raises(MssvmError, match="one state for every variable"):
        run.decode(every, np.zeros(3, dtype=np.int64))
    with pytest.raises(MssvmError, match="one value for every instance"):
        run.beliefs(every, t, np.zeros(2), None)
    with pytest.raises(MssvmError, match="given messages have another length"):
        run.start(every, np.zeros(5))
    with pytest.raises(MssvmError, match="outputs need a flag for every variable"):
        run.advance(every, Temperatures.one(7, 0.8), 1, Schedule())
    with pytest.raises(MssvmError, match="one state a variable"):
        model.relabel(every, np.ones(3, dtype=bool), np.zeros(48, dtype=np.int64))


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
    sweeping = Propagate("normal", schedule="sequential")(batch, theta, query, 1.0, 1.0)
    flooding = Propagate("normal", schedule="flooding")(batch, theta, query, 1.0, 1.0)
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
    query = Query.all_outputs(batch)
    eps = 1.0 if row.startswith("BP") else 0.0
    method = Propagate(
        "normal", starts=("cold",), scaled=scaled, schedule=schedule, keep_messages=True, max_sweeps=1000
    )
    belief = method(batch, theta, query, eps, eps)
    messages = belief.extras["messages"]
    assert belief.status.converged.all() and isinstance(messages, np.ndarray)
    if eps:
        mu = belief.mu
        exact = Enumerate()(batch, theta, query, 1.0, 1.0)
        reference = exact.mu
        log_z = float(exact.value[0])
        np.testing.assert_allclose(belief.value, bethe(batch, theta, mu), rtol=1e-9)
    else:
        # Max-product is judged against exact max-marginals. The printed "log Z" of the reference is a quantity of its
        # junction tree; it follows from the row of DECMAP, whose own value is the largest score.
        run = loaded(batch, theta, query).run()
        mu = Marginals.zeros(batch)
        run.start(np.arange(1), messages)
        run.beliefs(np.arange(1), Temperatures.one(batch.n_vars, 1.0), np.zeros(1), mu)
        reference, top = max_marginals(batch, theta)
        log_z = top - rows["DECMAP"][0][4]
    # Half a unit of the last digit printed.
    np.testing.assert_allclose(mu.unary.reshape(-1, 2), marginals, rtol=0.0, atol=0.51e-4)
    variables, factors = distances(batch, mu, reference)
    ours = [variables.max(), variables.mean(), factors.max(), factors.mean(), bethe(batch, theta, mu) - log_z]
    np.testing.assert_allclose([float(f"{v:.3e}") for v in ours], errors[:5], rtol=1e-9)
