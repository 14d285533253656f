"""The NumPy reference of message passing against the compiled engine, through propagation and message by message."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from builders import Case, grid_scopes, random_case
from mssvm.core.components import hidden_components
from mssvm.core.potentials import Belief, Marginals, Potentials, Query
from mssvm.core.topology import Batch, Topology
from mssvm.engines import engine_of
from mssvm.engines.messages import MessageModel, Schedule, Temperatures
from mssvm.engines.reference.messages import ReferenceMessagePlan
from mssvm.inference.enumerate import Enumerate
from mssvm.inference.propagation.propagate import Propagate

PAIRS = [(0.0, 0.0), (0.0, 0.5), (0.0, 1.0), (0.5, 0.5), (0.5, 1.0), (1.0, 0.5), (1.0, 1.0)]


@dataclass(frozen=True)
class MessagesOnly:
    """An engine of which only messages are asked for."""

    threads: int = 1
    idle: int = 1
    name = "messages only"

    def exact(self, batch: Batch, *_: Any) -> Any:
        raise AssertionError("propagation asked for exact inference")

    def messages(self, batch: Batch) -> ReferenceMessagePlan:
        return ReferenceMessagePlan(batch)

    def parallel_map(self, function: Callable[..., Any], *columns: Iterable[Any]) -> list[Any]:
        return [function(*row) for row in zip(*columns, strict=True)]


def both(case: Case, method: Propagate, eps_y: float, eps_h: float) -> tuple[Belief, Belief]:
    engines = (engine_of(), MessagesOnly())
    one, two = (method.plan(case.batch, e).bind(case.query, eps_y, eps_h)(case.theta) for e in engines)
    return one, two


def assert_close(got: Belief, want: Belief) -> None:
    np.testing.assert_allclose(got.value, want.value, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(got.mu.unary, want.mu.unary, atol=1e-9)
    np.testing.assert_allclose(got.mu.tables, want.mu.tables, atol=1e-9)


@pytest.mark.parametrize("merging", [True, False])
@pytest.mark.parametrize(("eps_y", "eps_h"), PAIRS)
@pytest.mark.parametrize("kind", ["chains", "trees", "disconnected", "tied"])
def test_propagation_agrees_at_convergence(kind: str, eps_y: float, eps_h: float, merging: bool) -> None:
    """Masks, clamped variables, forbidden entries, infeasible instances, tied tables, cycles in the last two kinds."""
    case = random_case(kind, 10)
    starts = ("cold", "damped") if eps_h == 0.0 else ("sum_first", "annealed", "joint")
    one, two = both(case, Propagate("normal", starts=starts, merging=merging, tolerance=1e-12), eps_y, eps_h)
    assert_close(two, one)
    np.testing.assert_array_equal(one.status.exact, two.status.exact)
    if merging and kind in ("chains", "trees"):
        assert two.status.exact.all()
        assert_close(two, Enumerate()(case.batch, case.theta, case.query, eps_y, eps_h))


def loopy_case() -> Case:
    rng = np.random.default_rng(3)
    graphs = [
        Topology((3,) * 9, tuple(grid_scopes(3, 3))),
        Topology((2, 3, 2, 4, 2), ((0, 1, 2), (2, 3), (3, 0), (4, 1, 3, 0))),
        Topology((2, 2, 3), ((0, 1), (1, 0), (1, 2))),
    ]
    batch = Batch.build(graphs)
    theta = Potentials(rng.normal(size=batch.n_states), rng.normal(size=batch.n_table_entries))
    theta.tables[rng.random(batch.n_table_entries) < 0.02] = -np.inf
    allowed = np.ones(batch.n_states, dtype=bool)
    allowed[batch.unary_ptr[[1, 4, 12]]] = False
    return Case(batch, theta, Query(rng.random(batch.n_vars) < 0.5, allowed))


@pytest.mark.parametrize("effort", ["fast", "normal"])
@pytest.mark.parametrize(("damping", "schedule"), [(0.0, "sequential"), (0.3, "flooding")])
@pytest.mark.parametrize(("eps_y", "eps_h"), PAIRS)
def test_propagation_agrees_after_a_few_sweeps(
    eps_y: float, eps_h: float, damping: float, schedule: str, effort: str
) -> None:
    case = loopy_case()
    starts = ("cold",) if eps_h == 0.0 else ("sum_first", "cold")
    settings = {"starts": starts, "damping": damping, "schedule": schedule, "max_sweeps": 5, "tolerance": 1e-14}
    one, two = both(case, Propagate(effort, **settings), eps_y, eps_h)
    assert_close(two, one)
    np.testing.assert_array_equal(one.status.sweeps, two.status.sweeps)


def loaded(case: Case) -> list[MessageModel]:
    noise = np.random.default_rng(0).random(case.batch.n_states)
    return [e.messages(case.batch).load(case.theta, case.query, noise) for e in (engine_of(), MessagesOnly())]


@pytest.mark.parametrize("noise", [True, False])
def test_runs_agree_message_by_message(noise: bool) -> None:
    case = loopy_case()
    batch, every, outputs = case.batch, np.arange(3), case.query.output
    y = np.where(np.arange(batch.n_vars) % 2 == 0, 1, 0)
    found = []
    for model in loaded(case):
        t = Temperatures(outputs, 0.5, 1.0)
        (group,) = model.groups(every, t, True)
        run = group.run(noise)
        run.start(every, None)
        run.advance(every, t, 3, Schedule(0.2))
        decoded, value, mu = np.zeros(batch.n_vars, dtype=np.int64), np.zeros(3), Marginals.zeros(batch)
        run.decode(every, decoded)
        run.beliefs(every, t, value, mu)
        messages = run.log_messages(every)
        run.hold(every, outputs, y)
        run.start(every, messages)
        run.advance(every, Temperatures.one(batch.n_vars, 1.0), 2, Schedule(flooding=True))
        found.append((messages, decoded, value, mu.unary, mu.tables, run.scores(every), run.residual, model.range))
    for one, two in zip(*found, strict=True):
        np.testing.assert_allclose(two, one, atol=1e-9)


def test_conditionals_agree_and_ascent_ends_where_no_output_gains() -> None:
    case = random_case("trees", 12)
    batch, every = case.batch, np.arange(12)
    free = case.query.n_allowed(batch) > 1
    components = hidden_components(batch, case.query.output | ~free)
    first = np.array(
        [np.flatnonzero(case.query.allowed[a:b])[0] for a, b in zip(batch.unary_ptr, batch.unary_ptr[1:], strict=False)]
    )
    found = []
    for model in loaded(case):
        given = model.given(components, 0.7)
        q, mu, y = np.zeros(12), Marginals.zeros(batch), first.copy()
        given.evaluate(every, first, q)
        feasible = every[q > -np.inf]
        given.marginals(feasible, first, mu)
        given.ascend(feasible, free & components.outside, y)
        better = np.zeros(12)
        given.evaluate(every, y, better)
        assert np.all(better >= q) and np.any(better > q)
        found.append((q, mu.unary, mu.tables, better))
    for one, two in zip(*found, strict=True):
        np.testing.assert_allclose(two, one, rtol=1e-12, atol=1e-12)
