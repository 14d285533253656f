"""The torch engine: messages against the CPU engine's and the reference, features, estimators on a device."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from scipy.sparse import csr_array

import mssvm as ms
from builders import Case, grid_scopes, random_case, random_forest
from mssvm.core.components import hidden_components
from mssvm.core.errors import InputError
from mssvm.core.potentials import Marginals, Potentials, Query
from mssvm.core.terms import Term
from mssvm.core.topology import Batch, Topology
from mssvm.engines import engine_of
from mssvm.engines.messages import Schedule, Temperatures
from mssvm.engines.reference import ReferenceEngine
from mssvm.engines.torch import TorchEngine
from mssvm.engines.torch.arrays import DevicePotentials
from mssvm.inference.enumerate import Enumerate, score
from mssvm.inference.propagation.propagate import Propagate
from mssvm.objectives.difference import LinearMinus
from mssvm.torch import StructuredLoss
from with_torch.models import MODELS

PAIRS = [(0.0, 0.0), (0.0, 1.0), (0.5, 0.5), (0.5, 1.0), (1.0, 0.5), (1.0, 1.0)]
DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("eps_y", "eps_h"), PAIRS)
@pytest.mark.parametrize("kind", ["chains", "trees", "disconnected", "tied"])
def test_propagation_agrees_at_convergence(kind: str, eps_y: float, eps_h: float, device: str) -> None:
    case = random_case(kind, 10)
    starts = ("cold", "damped") if eps_h == 0.0 else ("sum_first", "annealed", "joint")
    method = Propagate("normal", starts=starts, tolerance=1e-12)
    engines = (engine_of(), TorchEngine(device))
    one, two = (method.plan(case.batch, e).bind(case.query, eps_y, eps_h)(case.theta) for e in engines)
    np.testing.assert_allclose(two.value, one.value, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(two.mu.unary, one.mu.unary, atol=1e-8)
    np.testing.assert_allclose(two.mu.tables, one.mu.tables, atol=1e-8)


def grid_case(n: int, rows: int, columns: int, states: int, own: bool = False) -> Case:
    rng = np.random.default_rng(n)
    scopes = grid_scopes(rows, columns)
    across = rows * (columns - 1)
    ids = None if own else [np.repeat([0, 1], [across, len(scopes) - across])] * n
    batch = Batch.build([Topology((states,) * (rows * columns), tuple(scopes))] * n, ids)
    theta = Potentials(rng.normal(size=batch.n_states), 0.5 * rng.normal(size=batch.n_table_entries))
    return Case(batch, theta, Query.all_outputs(batch))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("eps_y", "eps_h"), [(0.5, 1.0), (0.0, 1.0), (1.0, 1.0)])
def test_flooding_agrees_with_the_reference_message_by_message(eps_y: float, eps_h: float, device: str) -> None:
    case = grid_case(3, 3, 3, 3)
    rng = np.random.default_rng(2)
    case.theta.tables[rng.random(case.batch.n_table_entries) < 0.1] = -np.inf
    query = Query(rng.random(case.batch.n_vars) < 0.5, rng.random(case.batch.n_states) < 0.8)
    query.allowed[case.batch.unary_ptr[:-1]] = True
    t = Temperatures(query.output, eps_y, eps_h) if eps_y != eps_h else Temperatures.one(case.batch.n_vars, 1.0)
    every, found = np.arange(3), []
    for engine in (ReferenceEngine(), TorchEngine(device)):
        model = engine.messages(case.batch).load(case.theta, query, rng.random(case.batch.n_states))
        run = model.run()
        run.start(every, None)
        run.advance(every, t, 3, Schedule(0.2, flooding=True))
        messages, y = run.log_messages(every), np.zeros(case.batch.n_vars, dtype=np.int64)
        value, mu = np.zeros(3), Marginals.zeros(case.batch)
        run.decode(every, y)
        run.beliefs(every, t, value, mu)
        run.hold(every, query.output, np.zeros_like(y))
        run.start(every, messages)
        run.advance(every[:2], t, 2, Schedule(flooding=True))
        found.append((messages, y, value, mu.unary, mu.tables, run.scores(every), run.residual, run.sweeps))
    for one, two in zip(*found, strict=True):
        np.testing.assert_allclose(two, one, atol=1e-9)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("eps", [0.0, 1.0])
def test_colours_converge_to_the_same_messages_as_the_sequential_order(eps: float, device: str) -> None:
    case, found = grid_case(4, 4, 5, 3), []
    t, every = Temperatures.one(case.batch.n_vars, eps), np.arange(4)
    for engine in (engine_of(), TorchEngine(device)):
        run = engine.messages(case.batch).load(case.theta, case.query, np.zeros(case.batch.n_states)).run()
        run.start(every, None)
        run.advance(every, t, 500, Schedule(0.3, tolerance=1e-12))
        assert np.all(run.residual <= 1e-12)
        value = np.zeros(4)
        run.beliefs(every, t, value, None)
        found.append((run.log_messages(every), value))
    for one, two in zip(*found, strict=True):
        np.testing.assert_allclose(two, one, atol=1e-9)


def data(kind: str) -> tuple[list[Any], list[Any]]:
    rng = np.random.default_rng(3)
    if kind == "grid":
        X: list[Any] = [rng.normal(size=(2, 2, 2)) for _ in range(3)]
        return X, [np.where(rng.random((2, 2)) < 0.2, None, x[..., 0] > 0) for x in X]
    X = [rng.normal(size=(n, 2)) for n in (3, 4, 2, 3)]
    if kind == "named":
        y = [[None if rng.random() < 0.2 else "ab"[int(v)] for v in x[:, 0] > 0] for x in X]
        return [[{f"f{k}": float(v) for k, v in enumerate(row)} for row in x] for x in X], y
    return X, [[None if rng.random() < 0.2 else "ab"[int(v)] for v in x[:, 0] > 0] for x in X]


@pytest.mark.parametrize("kind", ["chain", "named", "grid"])
@pytest.mark.parametrize("member", ["MSSVM", "LSSVM", "HCRF", "CRF", "M3E", "ModLat", "EpsilonSSVM"])
def test_members_train_on_the_engine(member: str, kind: str) -> None:
    X, y = data(kind)
    hidden = 0 if member == "CRF" else 2
    structure = ms.Grid() if kind == "grid" else ms.Chain(hidden=hidden)
    settings = {"max_iter": 4, "random_state": 0}
    theirs = getattr(ms, member)(structure, **settings).fit(X, y)
    ours = getattr(ms, member)(structure, device=DEVICES[-1], **settings).fit(X, y)
    assert ours.objective_ == pytest.approx(theirs.objective_, rel=1e-6)
    ours.coef_ = theirs.coef_
    for one, two in zip(ours.predict(X), theirs.predict(X), strict=True):
        np.testing.assert_array_equal(one, two)


def test_device_and_engine_together_are_refused() -> None:
    X, y = data("chain")
    with pytest.raises(InputError, match="device"):
        ms.CRF(engine="native", device="cpu").fit(X, y)
    if not torch.cuda.is_available():
        with pytest.raises(InputError, match="GPU"):
            ms.CRF(device="cuda").fit(X, y)
    with pytest.raises(InputError, match="precision"):
        TorchEngine(precision="half")


@pytest.mark.parametrize("device", DEVICES)
def test_single_precision_is_close(device: str) -> None:
    for kind in ("chains", "trees", "loops"):
        case = random_case(kind, 20)
        plan = [
            e.exact(case.batch, ms.engines.base.ExactSettings()) for e in (engine_of(), TorchEngine(device, "single"))
        ]
        for pair in PAIRS:
            one, two = (p.bind(case.query, *pair)(case.theta) for p in plan)
            np.testing.assert_allclose(two.value, one.value, rtol=1e-4, atol=1e-4)
            np.testing.assert_allclose(two.mu.unary, one.mu.unary, atol=1e-4)
            if pair == (0.0, 0.0):
                # Where the margin is above rounding the decode is the same, so its score never falls short by more.
                z = np.maximum(two.decode(case.batch), 0)
                feasible = np.isfinite(one.value)
                assert np.all(score(case.batch, case.theta, z)[feasible] >= one.value[feasible] - 1e-3)
    assert replace(TorchEngine(device), precision="single").where.dtype == torch.float32


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", MODELS)
def test_the_layer_gives_the_same_on_every_device(name: str, device: str) -> None:
    model, found = MODELS[name](), []
    loss = StructuredLoss(model.structure, 0.5, 1.0, inference="exact")
    for where, dtype in (("cpu", torch.float64), (device, torch.float64), (device, torch.float32)):
        tensors = [t.detach().to(where, dtype).requires_grad_() for t in model.tensors]
        value = loss(model.with_tensors(tuple(tensors)), model.y, **model.shape)
        value.backward()
        found.append([value.detach().cpu().double(), *(t.grad.cpu().double() for t in tensors)])
    for want, double, single in zip(*found, strict=True):
        torch.testing.assert_close(double, want, rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(single, want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("device", DEVICES)
def test_scores_of_labels_are_added_up_on_the_device(device: str) -> None:
    """Ragged forests, one without factors and one whose instances share tables."""
    rng = np.random.default_rng(2)
    graphs = [random_forest(rng, n, 4) for n in (5, 1, 9, 3)] + [Topology((2, 2, 2), ((0, 1), (1, 2)))] * 3
    batch = Batch.build(graphs)
    theta = Potentials(rng.normal(size=batch.n_states), rng.normal(size=batch.n_table_entries))
    y = rng.integers(batch.cards)
    query = Query(np.ones(batch.n_vars, dtype=bool), np.zeros(batch.n_states, dtype=bool))
    query.allowed[batch.unary_ptr[:-1] + y] = True
    mu = engine_of().exact(batch, ms.engines.base.ExactSettings()).bind(query, 1.0, 1.0)(theta).mu
    minus = LinearMinus(batch, mu)
    parts = (torch.from_numpy(part).to(device) for part in (theta.unary, theta.tables))
    for given in (theta, DevicePotentials(*parts)):
        np.testing.assert_allclose(minus.value(given, len(batch)), score(batch, theta, y), rtol=1e-12)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("hidden", [0.0, 0.4, 1.0])
def test_states_are_judged_as_on_the_cpu(hidden: float, device: str) -> None:
    """Values, marginals given y and beliefs of some of the instances: nothing hidden, trees, cycles."""
    rng = np.random.default_rng(5)
    ring = Topology((2, 3, 3, 4), ((0, 1), (1, 2), (2, 3), (0, 3)))
    batch = Batch.build([random_forest(rng, 6, 4), ring, random_forest(rng, 1, 3), ring], None)
    theta = Potentials(rng.normal(size=batch.n_states), rng.normal(size=batch.n_table_entries))
    query = Query(np.ones(batch.n_vars, dtype=bool), rng.random(batch.n_states) < 0.8)
    query.allowed[batch.unary_ptr[:-1]] = True
    components = hidden_components(batch, rng.random(batch.n_vars) >= hidden)
    y, some, found = rng.integers(batch.cards), np.array([0, 2, 3]), []
    assert components.forest.all() == (hidden < 1.0)
    for engine in (engine_of(), TorchEngine(device)):
        model = engine.messages(batch).load(theta, query, np.zeros(batch.n_states))
        value, mu, given = np.zeros(4), model.marginals(), model.given(components, 1.0)
        given.evaluate(some, y, value)
        given.marginals(some[components.forest[some]], y, mu)
        run, t = model.run(), Temperatures.one(batch.n_vars, 1.0)
        run.start(some, None)
        run.advance(some, t, 60, Schedule(0.3, tolerance=1e-12))
        run.beliefs(some, t, np.zeros(4), mu)
        mu.clear(batch, np.arange(4) == 3)
        found.append((value, mu.unary, mu.tables))
    for one, two in zip(*found, strict=True):
        np.testing.assert_allclose(two, one, rtol=1e-9, atol=1e-9)


def same_as_the_cpu_engine(batch: Batch, theta: Potentials, rng: np.random.Generator, eps: float, device: str) -> None:
    """Exact inference with masks and an instance, number 5, that is infeasible."""
    allowed = rng.random(batch.n_states) < 0.9
    allowed[batch.unary_ptr[:-1]] = True
    theta.unary[batch.state_span(5)] = -np.inf
    query = Query(np.ones(batch.n_vars, dtype=bool), allowed)
    settings = ms.engines.base.ExactSettings()
    for precision, close in (("double", 1e-10), ("single", 2e-3)):
        one, two = (
            e.exact(batch, settings).bind(query, eps, eps)(theta) for e in (engine_of(), TorchEngine(device, precision))
        )
        assert two.value[5] == -np.inf
        np.testing.assert_allclose(two.value, one.value, rtol=close)
        np.testing.assert_allclose(two.mu.unary, one.mu.unary, atol=close)
        np.testing.assert_allclose(two.mu.tables, one.mu.tables, atol=50 * close)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("eps", [0.0, 0.3, 1.0])
def test_chains_of_all_sizes_and_ranges(eps: float, device: str) -> None:
    """Ragged chains with masks and forbidden entries, scores beyond what scaled probabilities hold, one that is
    infeasible: by kernel on a GPU."""
    rng = np.random.default_rng(0)
    for states in (2, 5, 20, 31, 32):
        lengths = rng.integers(2, 40, 40)
        graphs = [Topology((states,) * int(n), tuple((t, t + 1) for t in range(n - 1))) for n in lengths]
        batch = Batch.build(graphs, [[int(n) % 2] * (int(n) - 1) for n in lengths])
        theta = Potentials(rng.normal(size=batch.n_states), rng.normal(size=batch.n_table_entries))
        theta.unary[batch.state_span(3)] *= 500.0
        theta.tables[rng.random(batch.n_table_entries) < 0.02] = -np.inf
        same_as_the_cpu_engine(batch, theta, rng, eps, device)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("precision", ["double", "single"])
@pytest.mark.parametrize("flooding", [True, False])
@pytest.mark.parametrize("own", [True, False])
@pytest.mark.parametrize("eps", [0.0, 1.0])
def test_sweeps_on_grids_are_those_of_plain_torch(
    eps: float, own: bool, flooding: bool, precision: str, device: str
) -> None:
    """By kernel on a GPU: the same messages, damped and not, and the same fixed points."""
    case = grid_case(5, 6, 7, 4, own)
    t, every, found = Temperatures.one(case.batch.n_vars, eps), np.arange(5), []
    close = 1e-9 if precision == "double" else 2e-4
    for engine in (TorchEngine("cpu", precision), TorchEngine(device, precision)):
        run = engine.messages(case.batch).load(case.theta, case.query, np.zeros(case.batch.n_states)).run()
        run.start(every, None)
        run.advance(every, t, 3, Schedule(0.0, flooding, tolerance=1e-12))
        found.append([run.log_messages(every), run.residual.copy()])
        run.advance(every[1:4], t, 2, Schedule(0.3, flooding, tolerance=1e-12))
        damped = run.log_messages(every).reshape(-1, 4)  # a constant of a message is nobody's: kernels take it off
        found[-1].append((damped - damped.max(axis=1, keepdims=True)).ravel())
        if eps == 1.0:  # maxima need not converge
            run.advance(every, t, 400, Schedule(0.5, flooding, tolerance=1e-5))
            value = np.zeros(5)
            run.beliefs(every, t, value, None)
            assert np.all(run.residual <= 1e-5)
            converged = run.log_messages(every).reshape(-1, 4)
            found[-1] += [(converged - converged.max(axis=1, keepdims=True)).ravel(), value]
    for k, (one, two) in enumerate(zip(*found, strict=True)):
        np.testing.assert_allclose(two, one, atol=close if k < 3 else 1e-3)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("precision", ["double", "single"])
@pytest.mark.parametrize("eps", [(0.0, 0.0), (1.0, 1.0), (0.0, 1.0)])
def test_sweeps_of_many_states_and_tables_far_from_zero(eps: tuple[float, float], precision: str, device: str) -> None:
    """Twelve states, tables with a large constant, half of the variables outputs: the same messages as plain torch,
    and the same after many sweeps, which a GPU records."""
    case = grid_case(3, 4, 5, 12)
    batch = case.batch
    rng = np.random.default_rng(3)
    every = np.arange(3)
    found = []
    theta = Potentials(case.theta.unary, 0.3 * case.theta.tables + 150.0)
    outputs = rng.random(batch.n_vars) < 0.5
    t = Temperatures.one(batch.n_vars, eps[0]) if eps[0] == eps[1] else Temperatures(outputs, *eps)
    close = 1e-9 if precision == "double" else 1e-3
    for engine in (TorchEngine("cpu", precision), TorchEngine(device, precision)):
        run = engine.messages(batch).load(theta, case.query, np.zeros(batch.n_states)).run()
        run.start(every, None)
        run.advance(every, t, 3, Schedule(tolerance=1e-12))
        found.append([run.log_messages(every)])
        run.advance(every, t, 300, Schedule(0.3, tolerance=1e-12 if precision == "double" else 1e-5))
        found[-1].append(run.log_messages(every))
        found[-1] = [m.reshape(-1, 12) - m.reshape(-1, 12).max(axis=1, keepdims=True) for m in found[-1]]
    first = 0 if eps[0] == eps[1] else 1  # on its way a mixed product hears its neighbours a sweep later
    for one, two in zip(*(messages[first:] for messages in found), strict=True):
        np.testing.assert_allclose(two, one, atol=close)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("eps", [0.0, 0.3, 1.0])
def test_forests_of_all_sizes_and_ranges(eps: float, device: str) -> None:
    """Trees and lone variables with masks, forbidden entries, tables beyond what scaled probabilities hold, one
    instance that is infeasible: by kernel on a GPU."""
    rng = np.random.default_rng(1)
    batch = Batch.build([random_forest(rng, int(n), 11) for n in rng.integers(1, 30, 40)])
    theta = Potentials(3.0 * rng.normal(size=batch.n_states), rng.normal(size=batch.n_table_entries))
    theta.unary[batch.state_span(3)] *= 500.0
    theta.tables[rng.random(batch.n_table_entries) < 0.02] = -np.inf
    chosen = np.flatnonzero(batch.factor_owner == 7)
    for f in chosen:
        theta.tables[batch.table_at[f]] = 900.0
    same_as_the_cpu_engine(batch, theta, rng, eps, device)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("scale", [1.0, 60.0, 400.0])
def test_states_that_scaled_numbers_lose_are_heard_again(scale: float, tied: bool, device: str) -> None:
    """A state far below the others at first is the best one in the end: by a wide table, or since the labels fall into
    two groups between which nothing is allowed."""
    rng, n = np.random.default_rng(6), 12
    chain = Topology((4,) * n, tuple((t, t + 1) for t in range(n - 1)))
    batch = Batch.build([chain] * 6, [[k] * (n - 1) if tied else list(range(10 * k, 10 * k + n - 1)) for k in range(6)])
    theta = Potentials(rng.normal(size=batch.n_states), rng.normal(size=batch.n_table_entries))
    unary, tables = theta.unary.reshape(6, n, 4), theta.tables.reshape(-1, 4, 4)
    unary[:, 0, 2:] -= 3.0 * scale  # lost ...
    unary[3:, 1:, 2:] += scale  # ... and later the best
    wide, grouped = batch.table_at[batch.factor_ptr[:3]] // 16, np.unique(batch.table_at[batch.factor_ptr[3] :]) // 16
    tables[wide, :2] -= 2.0 * scale
    tables[wide, 2:] += 2.0 * scale
    for a, b in ((slice(0, 2), slice(2, 4)), (slice(2, 4), slice(0, 2))):
        tables[grouped, a, b] = -np.inf
    same_as_the_cpu_engine(batch, theta, rng, 1.0, device)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("shape", ["grid", "grid, own tables", "graph", "graph, own tables"])
@pytest.mark.parametrize("eps", [(0.0, 1.0), (0.2, 1.0), (1.0, 1.0), (0.0, 0.0)])
def test_products_have_the_same_fixed_points(eps: tuple[float, float], shape: str, device: str) -> None:
    """Weak tables, so that messages converge: by kernel on a GPU, with masks and roles, against the CPU engine."""
    rng = np.random.default_rng(4)
    own = "own" in shape
    case = grid_case(4, 5, 7, 3, own)
    batch = case.batch
    if "graph" in shape:
        ends = rng.permuted(np.tile(np.arange(12), (20, 1)), axis=1)[:, :2]
        graph = Topology((3,) * 12, tuple(map(tuple, np.unique(ends, axis=0).tolist())))
        batch = Batch.build([graph] * 4, None if own else [[0] * graph.n_factors] * 4)
    theta = Potentials(2.0 * rng.normal(size=batch.n_states), 0.2 * rng.normal(size=batch.n_table_entries))
    query = Query(rng.random(batch.n_vars) < 0.5, rng.random(batch.n_states) < 0.9)
    query.allowed[batch.unary_ptr[:-1] + (0 if own else 1)] = True  # graphs whose first states are all allowed, or not
    t = Temperatures.one(batch.n_vars, eps[0]) if eps[0] == eps[1] else Temperatures(query.output, *eps)
    every, found = np.arange(4), []
    for engine in (engine_of(), TorchEngine(device)):
        run = engine.messages(batch).load(theta, query, np.zeros(batch.n_states)).run()
        run.start(every, None)
        run.advance(every, t, 400, Schedule(0.3, False, tolerance=1e-10))
        assert np.all(run.residual <= 1e-10)
        value, mu = np.zeros(4), ms.core.potentials.Marginals.zeros(batch)
        run.beliefs(every, t, value, mu)
        found.append((value, mu.unary, mu.tables))
    for one, two in zip(*found, strict=True):
        np.testing.assert_allclose(two, one, rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("eps_y", "eps_h"), [(0.0, 0.0), (0.0, 1.0), (1.0, 1.0)])
def test_all_instances_at_once_with_scores_on_the_device(eps_y: float, eps_h: float, device: str) -> None:
    """Outputs alone, and graphs without a factor: the states found are counted on the device."""
    rng = np.random.default_rng(8)
    path = Topology((2, 3, 3), ((0, 1), (2, 1)))
    for graphs in ([path, path, Topology((3,), ())], [Topology((3, 2), ())] * 2):
        batch = Batch.build(graphs)
        theta = Potentials(rng.normal(size=batch.n_states), rng.normal(size=batch.n_table_entries))
        parts = (torch.from_numpy(part).to(device) for part in (theta.unary, theta.tables))
        query, method = Query.all_outputs(batch), Propagate("fast")
        one = Enumerate()(batch, theta, query, eps_y, eps_h)
        two = method.plan(batch, TorchEngine(device)).bind(query, eps_y, eps_h)(DevicePotentials(*parts))
        np.testing.assert_allclose(two.value, one.value, atol=1e-8)
        np.testing.assert_allclose(two.mu.unary, one.mu.unary, atol=1e-8)
        np.testing.assert_allclose(two.mu.tables, one.mu.tables, atol=1e-8)


@pytest.mark.parametrize("form", [np.asarray, csr_array])
def test_features_of_rows_that_add_nothing(form: Any) -> None:
    """Places of -1, dense and sparse, in the reference and on the engine."""
    rng = np.random.default_rng(9)
    batch = Batch.build([Topology((2,) * 4, ((0, 1),))])
    rows, at, w = rng.normal(size=(4, 3)), np.array([-1, 4, -1, 0]), rng.normal(size=6)
    term = Term("unary", form(rows), at, 2, np.zeros(4, dtype=np.int64))
    want = np.zeros(8)
    want[4:6], want[0:2] = rows[1] @ w.reshape(3, 2), rows[3] @ w.reshape(3, 2)
    mu = Marginals(rng.normal(size=8), np.zeros(4))
    for engine in (ReferenceEngine(), TorchEngine()):
        features = engine.linear(batch, [term], None, 6)
        np.testing.assert_allclose(features.forward(w).unary, want, atol=1e-12)
        assert features.adjoint(mu) @ w == pytest.approx(mu.unary @ want, rel=1e-12)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("scale", [1.0, 30.0])
@pytest.mark.parametrize(("eps_y", "eps_h"), [(0.0, 0.0), (0.0, 1.0), (1.0, 1.0)])
def test_single_precision_knows_when_it_has_converged(eps_y: float, eps_h: float, scale: float, device: str) -> None:
    """Rounding moves messages by more than the tolerance for ever: instances would all be run again, damped."""
    rng = np.random.default_rng(0)
    for cards in ((3,) * 12, tuple(2 + v % 2 for v in range(12))):
        batch = Batch.build([Topology(cards, tuple(grid_scopes(3, 4)))] * 5)
        unary, tables = scale * rng.normal(size=batch.n_states), 0.2 * scale * rng.normal(size=batch.n_table_entries)
        theta, query = Potentials(unary, tables), Query.of(batch, np.arange(batch.n_vars) % 2 == 0)
        one, two = (
            Propagate("fast", merging=False).plan(batch, TorchEngine(device, p)).bind(query, eps_y, eps_h)(theta)
            for p in ("double", "single")
        )
        assert one.status.converged.all() and two.status.converged.all()
        assert np.all(two.status.sweeps <= one.status.sweeps + 16)  # kernels look every so many
        np.testing.assert_allclose(two.value, one.value, rtol=1e-5)


@pytest.mark.parametrize("hidden", [0, 2])
def test_a_known_hub_links_nothing(hidden: int) -> None:
    """A label at the middle of a star, its leaves outputs (and two hidden): no table over all leaves, which would take
    gigabytes, and the same values as at any other order."""
    rng = np.random.default_rng(7)
    star = Topology((4,) * 7, tuple((0, v) for v in range(1, 7)))
    batch = Batch.build([star] * 3)
    theta = Potentials(rng.normal(size=batch.n_states), rng.normal(size=batch.n_table_entries))
    place = np.arange(batch.n_vars) % 7
    query = Query.of(batch, place < 7 - hidden).clamp(batch, np.flatnonzero(place == 0), np.array([1, 3, 0]))
    bound = TorchEngine(plain=True).exact(batch, ms.engines.base.ExactSettings()).bind(query, 1.0, 0.5)
    assert [group.width for group in bound.groups] == [1]
    one, two = bound(theta), Enumerate()(batch, theta, query, 1.0, 0.5)
    np.testing.assert_allclose(one.value, two.value, rtol=1e-12)
    np.testing.assert_allclose(one.mu.unary, two.mu.unary, atol=1e-12)
    np.testing.assert_allclose(one.mu.tables, two.mu.tables, atol=1e-12)
