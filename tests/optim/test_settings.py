"""Solvers: regularisers and what refuses them, the QP of the cutting planes, starts."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy.optimize import LinearConstraint
from scipy.optimize import minimize as scipy_minimize

from mssvm.core.errors import InputError, MssvmWarning, UnsupportedError
from mssvm.estimators.plan import hcrf_start, starts, zero_start
from mssvm.optim import (
    BCFW,
    CCCP,
    LBFGS,
    CuttingPlane,
    Regulariser,
    Subgradient,
    dual,
    random_start,
)
from mssvm.optim.dual import solve_simplices
from optim_problems import Toy, latent_chain, objective


@pytest.mark.parametrize("solver", [Subgradient(), LBFGS(), CCCP(), BCFW(), CuttingPlane()])
def test_a_problem_without_instances_is_refused(solver) -> None:
    whole = Toy.draw()
    empty = replace(whole, x=whole.x[:0], y=whole.y[:0], scale=whole.scale[:0])
    with pytest.raises(InputError, match="nothing to learn from"):
        solver.minimize(empty, np.zeros(empty.n_weights))


def test_groups_of_strengths_and_free_weights() -> None:
    problem = Toy.draw(eps_y=1.0, eps_h=1.0)
    strength = np.ones(problem.n_weights)
    strength[::6] = 0.0
    strength[1::6] = 5.0
    mixed = Regulariser(strength)
    found = LBFGS(tolerance=1e-13).minimize(problem, np.zeros(problem.n_weights), regulariser=mixed)
    assert np.abs(strength * found.w + problem.difference(found.w).gradient).max() < 1e-3
    positive = Regulariser(np.where(strength > 0, strength, 0.1))
    by_planes = CuttingPlane(tolerance=1e-8).minimize(problem, np.zeros(problem.n_weights), regulariser=positive)
    by_bcfw = BCFW(tolerance=1e-6).minimize(problem, np.zeros(problem.n_weights), regulariser=positive)
    again = LBFGS(tolerance=1e-13).minimize(problem, np.zeros(problem.n_weights), regulariser=positive)
    assert by_planes.objective == pytest.approx(again.objective, rel=1e-6)
    assert by_bcfw.objective == pytest.approx(again.objective, rel=1e-5)
    for solver in (BCFW(), CuttingPlane()):
        with pytest.raises(UnsupportedError, match="LBFGS or Subgradient"):
            solver.minimize(problem, np.zeros(problem.n_weights), regulariser=mixed)


def test_lambda_is_a_scaling_of_c() -> None:
    problem = Toy.draw()
    divided = replace(problem, scale=problem.scale / 0.25)
    one = CuttingPlane(tolerance=1e-8).minimize(problem, np.zeros(problem.n_weights), regulariser=Regulariser(0.25))
    other = CuttingPlane(tolerance=1e-8).minimize(divided, np.zeros(problem.n_weights))
    assert one.objective == pytest.approx(0.25 * other.objective, rel=1e-6)


def test_non_negative_weights() -> None:
    problem = Toy.draw(eps_y=1.0, eps_h=1.0)
    mask = np.arange(problem.n_weights) % 2 == 0
    bounded = Regulariser(1.0, mask)
    exact = LBFGS(tolerance=1e-12).minimize(problem, -np.ones(problem.n_weights), regulariser=bounded)
    gradient = exact.w + problem.difference(exact.w).gradient
    assert np.all(exact.w[mask] >= 0) and np.any(exact.w[mask] == 0) and np.any(exact.w[~mask] < 0)
    assert np.abs(gradient[~mask]).max() < 1e-3 and gradient[mask].min() > -1e-3
    rough = Subgradient().minimize(problem, np.zeros(problem.n_weights), regulariser=bounded)
    assert np.all(rough.w[mask] >= 0) and rough.objective <= 1.01 * exact.objective


def test_convex_solvers_refuse_hidden_variables() -> None:
    problem = latent_chain("mssvm")
    for solver in (BCFW(), CuttingPlane()):
        with pytest.raises(UnsupportedError, match=f"CCCP\\(inner={type(solver).__name__}"):
            solver.minimize(problem, np.zeros(problem.n_weights))


@pytest.mark.parametrize("broken", [False, True])
def test_master_problem(broken: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The QP over simplices against SLSQP, by the interior-point solver and by what replaces it when it fails."""
    if broken:
        monkeypatch.setattr(dual, "_interior_point", lambda *args: None)
    rng = np.random.default_rng(0)
    a = rng.normal(size=(9, 4))
    q = rng.normal(size=9)
    group = np.array([0, 0, 0, 2, 2, 5, 5, 5, 5])
    H = a @ a.T
    start = np.array([1.0, 0, 0, 0, 1.0, 0, 1.0, 0, 0])
    alpha, solved = solve_simplices(H, q, group, start)
    assert solved is not broken
    assert np.all(alpha >= 0)
    for g in np.unique(group):
        assert alpha[group == g].sum() == pytest.approx(1.0, abs=1e-12)
    sums = LinearConstraint((group[None] == np.unique(group)[:, None]).astype(float), 1.0, 1.0)
    reference = scipy_minimize(
        lambda x: 0.5 * x @ H @ x - q @ x,
        start,
        jac=lambda x: H @ x - q,
        bounds=[(0, 1)] * 9,
        constraints=sums,
        method="SLSQP",
        options={"ftol": 1e-14, "maxiter": 1000},
    )
    assert 0.5 * alpha @ H @ alpha - q @ alpha == pytest.approx(reference.fun, abs=1e-7)


def test_zero_start_warns_only_where_it_freezes_hidden_states() -> None:
    hidden = np.ones(latent_chain("mssvm").n_weights, dtype=bool)
    with pytest.warns(MssvmWarning, match="stay identical"):
        zero_start(latent_chain("mssvm"), hidden)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not zero_start(latent_chain("lssvm"), hidden).any()
        assert not zero_start(latent_chain("mssvm"), np.zeros_like(hidden)).any()


def test_zero_start_freezes_hidden_states_and_a_random_one_does_not() -> None:
    problem = Toy.draw(n_hidden=3, eps_h=1.0)

    def differs(w0: np.ndarray) -> float:
        w = Subgradient.literal(0.02, 40).minimize(problem, w0).w.reshape(problem.n_labels, problem.n_hidden, -1)
        return float(np.abs(w - w[:, :1]).max())

    assert differs(np.zeros(problem.n_weights)) == 0.0
    assert differs(random_start(problem.n_weights)) > 0.1


def test_random_starts() -> None:
    problem = Toy.draw(n_hidden=3, eps_h=1.0)
    mask = np.arange(problem.n_weights) < 20
    start = random_start(problem.n_weights, hidden=mask)
    assert np.all(start[~mask] == 0) and np.all(start[mask] != 0) and 0.03 < start[mask].std() < 0.3
    rng = np.random.RandomState(0)
    several = list(starts("auto", problem, mask, 3, rng, Regulariser()))
    assert len(several) == 3 and not any(w[~mask].any() for w in several)
    assert len({float(w[0]) for w in several}) == 3
    assert len(list(starts("auto", Toy.draw(), mask[:18], 3, rng, Regulariser()))) == 1
    with pytest.raises(InputError, match="has shape"):
        random_start(problem.n_weights, hidden=mask[:3])


def test_hcrf_start_lowers_the_likelihood_objective() -> None:
    problem = latent_chain("mssvm")
    w0 = random_start(problem.n_weights)
    w = hcrf_start(problem, w0)
    likelihood = problem.likelihood()
    assert likelihood.temperatures == (1.0, 1.0)
    assert objective(likelihood, w) < 0.9 * objective(likelihood, w0)
    assert objective(problem, w) < objective(problem, w0)


def test_wrong_arguments_are_refused() -> None:
    problem = Toy.draw()
    with pytest.raises(InputError, match="w0 needs"):
        LBFGS().minimize(problem, np.zeros(3))
    with pytest.raises(InputError, match="strengths for"):
        LBFGS().minimize(problem, np.zeros(problem.n_weights), regulariser=Regulariser(np.ones(2)))
    with pytest.raises(InputError, match="finite numbers >= 0"):
        Regulariser(-1.0)
    with pytest.raises(InputError, match="falling temperatures"):
        LBFGS(schedule=(0.1, 1.0))
    with pytest.warns(FutureWarning, match="LBFGS\\(schedule="):
        assert LBFGS(floors=(1.0, 0.5)) == LBFGS(schedule=(1.0, 0.5))
    with pytest.raises(InputError, match="scaling must be one of"):
        Subgradient(scaling="newton")
    with pytest.raises(InputError, match="name the fixed rate"):
        Subgradient(adaptive=False)
    with pytest.raises(InputError, match="evaluate_every must be at least 1"):
        Subgradient(evaluate_every=0)


@pytest.mark.parametrize(
    ("solver", "former"),
    [
        (LBFGS, "max_iterations"),
        (CCCP, "max_outer"),
        (BCFW, "max_passes"),
        (CuttingPlane, "max_rounds"),
        (Subgradient, "n_epochs"),
    ],
)
def test_former_names_of_the_budget_warn(solver: Any, former: str) -> None:
    now = f"{solver.__name__}.max_iter"
    with pytest.warns(FutureWarning, match=f"is now {solver.__name__}\\(max_iter=") as caught:
        given = solver(**{former: 7})
    assert given == solver(max_iter=7) and caught[0].filename == __file__
    with pytest.warns(FutureWarning, match=f"is now {now}"):
        assert getattr(given, former) == 7
    with pytest.warns(FutureWarning, match=f"is now {solver.__name__}\\(max_iter="):
        assert solver().set_params(**{former: 8}).max_iter == 8
    assert former not in repr(given) and former not in given.get_params()


@pytest.mark.parametrize("bounded", [False, True])
def test_the_least_of_a_regulariser_and_a_slope_by_scipy(bounded: bool) -> None:
    rng = np.random.default_rng(0)
    n = 6
    slope = 3.0 * rng.normal(size=n)
    mask = np.arange(n) % 2 == 0 if bounded else None
    bounds = [(0.0 if bounded and k % 2 == 0 else None, None) for k in range(n)]
    for center in (None, 2.0 * rng.normal(size=n)):
        regulariser = Regulariser(strength=rng.uniform(0.5, 2.0, n), nonnegative=mask, center=center)

        def objective(w: Any, regulariser: Regulariser = regulariser) -> float:
            return regulariser.value(w) + float(slope @ w)

        found = scipy_minimize(objective, np.ones(n), bounds=bounds, method="L-BFGS-B", options={"ftol": 1e-15})
        assert regulariser.least_with(slope) == pytest.approx(found.fun, abs=1e-6)


@pytest.mark.parametrize("max_iter", [1, 4, 7])
def test_bcfw_runs_no_more_passes_than_it_may(max_iter: int) -> None:
    problem = Toy.draw()
    visits: list[int] = []
    atom = Toy.atom

    class Counting(Toy):
        def atom(self, w: Any, i: int) -> Any:
            visits.append(i)
            return atom(self, w, i)

    counting = Counting(**{name: getattr(problem, name) for name in problem.__dataclass_fields__})
    solver = BCFW(max_iter=max_iter, tolerance=1e-15, cached_passes=0)
    found = solver.minimize(counting, np.zeros(problem.n_weights))
    assert f"All {max_iter} passes were run" in found.message
    assert len(visits) <= (1 + max_iter) * problem.n_instances


def test_bcfw_mixes_planes_in_two_slots_and_refuses_one() -> None:
    found = BCFW(n_planes=2, tolerance=1e-3).minimize(Toy.draw(), np.zeros(Toy.draw().n_weights))
    assert "duality gap fell" in found.message
    with pytest.raises(InputError, match="n_planes >= 2"):
        BCFW(n_planes=1)
