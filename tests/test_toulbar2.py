"""Exact maxima by toulbar2: against brute force, within its time, and what is said where it has no answer."""

from __future__ import annotations

import numpy as np
import pytest

import mssvm as ms
from mssvm.core.errors import InputError, MssvmWarning, UnsupportedError
from mssvm.core.potentials import Potentials, Query
from mssvm.core.topology import Batch, Topology
from mssvm.inference import toulbar2
from mssvm.inference.enumerate import Enumerate
from mssvm.inference.toulbar2 import Toulbar2


def case(seed: int = 0, zeros: float = 0.2) -> tuple[Batch, Potentials, Query]:
    """Three instances, two of them with the same tables, masks and forbidden entries among them."""
    rng = np.random.default_rng(seed)
    loop = Topology((2, 3, 2, 2), ((0, 1), (1, 2), (2, 3), (3, 0), (0, 1, 2)))
    batch = Batch.build([loop, loop, Topology((3, 3), ((1, 0),))], [[0, 1, 2, 2, 3], [0, 1, 2, 2, 3], [4]])
    theta = Potentials(rng.normal(size=batch.n_states), 3.0 * rng.normal(size=batch.n_table_entries))
    theta.tables[rng.random(batch.n_table_entries) < zeros] = -np.inf
    query = Query.of(batch, rng.random(batch.n_vars) < 0.5).clamp(batch, np.array([5]), np.array([2]))
    return batch, theta, query


@pytest.mark.parametrize("threads", [1, 2])
def test_maxima_and_marginals_are_those_of_brute_force(threads: int) -> None:
    for seed in range(2):
        batch, theta, query = case(seed)
        expected = Enumerate()(batch, theta, query, 0.0, 0.0)
        assert np.isfinite(expected.value).all()
        belief = Toulbar2(threads=threads)(batch, theta, query, 0.0, 0.0)
        assert belief.value == pytest.approx(expected.value)
        assert np.allclose(belief.mu.unary, expected.mu.unary) and np.allclose(belief.mu.tables, expected.mu.tables)
        assert belief.status.exact.all() and belief.status.method == ("toulbar2",) * 3
        assert (belief.status.lower <= expected.value + 1e-9).all() and (belief.status.upper >= expected.value).all()


def test_what_has_no_answer_is_answered_by_auto_with_a_word(monkeypatch: pytest.MonkeyPatch) -> None:
    batch, theta, query = case()
    expected = Enumerate()(batch, theta, query, 0.0, 0.0)
    solve = toulbar2._read
    monkeypatch.setattr(toulbar2, "_read", lambda p, a: None if len(p["cards"]) == 2 else solve(p, a))
    with pytest.warns(MssvmWarning, match="found nothing for 1 instances"):
        belief = Toulbar2()(batch, theta, query, 0.0, 0.0)
    assert belief.value == pytest.approx(expected.value) and np.allclose(belief.mu.tables, expected.mu.tables)
    assert belief.status.method[:2] == ("toulbar2",) * 2 and belief.status.method[2] != "toulbar2"


def test_without_the_solver_auto_answers_with_a_word(monkeypatch: pytest.MonkeyPatch) -> None:
    batch, theta, query = case()
    monkeypatch.setattr(toulbar2, "find_spec", lambda name: None)
    with pytest.warns(MssvmWarning, match="not installed"):
        belief = Toulbar2()(batch, theta, query, 0.0, 0.0)
    assert belief.value == pytest.approx(Enumerate()(batch, theta, query, 0.0, 0.0).value)


def test_a_limit_that_is_too_short_leaves_bounds_and_the_next_instance_is_solved() -> None:
    rng = np.random.default_rng(0)
    n, pairs = 60, tuple((i, j) for i in range(60) for j in range(i) if rng.random() < 0.5)
    batch = Batch.build([Topology((4,) * n, pairs), Topology((2, 2), ((0, 1),))])
    theta = Potentials(rng.normal(size=batch.n_states), rng.normal(size=batch.n_table_entries))
    belief = Toulbar2(time_limit=1.0)(batch, theta, Query.all_outputs(batch), 0.0, 0.0)
    status = belief.status
    assert status.exact.tolist() == [False, True] and status.upper[0] > belief.value[0] == status.lower[0]


def test_refusals() -> None:
    batch, theta, query = case()
    with pytest.raises(UnsupportedError, match="eps_y = eps_h = 0"):
        Toulbar2()(batch, theta, query, 0.0, 1.0)
    with pytest.raises(InputError, match="time_limit"):
        Toulbar2(time_limit=0.0)


def test_cutting_planes_certify_on_a_loopy_graph() -> None:
    """Trained by name with proven maxima, the gap is that of exact inference."""
    rng = np.random.default_rng(1)
    y = [(rng.random((4, 4)) < 0.5).astype(int) for _ in range(3)]
    X = [np.dstack([label, np.ones((4, 4))]) + 0.7 * rng.normal(size=(4, 4, 2)) for label in y]
    fits = [
        ms.SSVM(ms.Grid(), C=1.0, solver="cutting-plane", inference=inference, max_iter=40).fit(X, y)
        for inference in ("exact", "toulbar2")
    ]
    values = [fit.objective_ for fit in fits]
    assert values[1] == pytest.approx(values[0], rel=1e-3)
