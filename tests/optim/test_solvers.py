"""Solvers: optima and certificates on convex problems, monotone CCCP, refusals, determinism, starts."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
import pytest
from scipy.optimize import Bounds, LinearConstraint
from scipy.optimize import minimize as scipy_minimize

from mssvm.engines.native.engine import NativeEngine
from mssvm.optim import (
    BCFW,
    CCCP,
    LBFGS,
    CuttingPlane,
    Outcome,
    Regulariser,
    Solver,
    Stopping,
    Subgradient,
    dual,
    random_start,
)
from mssvm.optim.cccp import Linearised
from optim_problems import Toy, latent_chain, objective, visible_chain

CONVEX = {"toy": Toy.draw, "weighted toy": lambda: Toy.draw(n=60, n_labels=4), "chain": visible_chain}
CERTIFYING = [BCFW(), CuttingPlane(), CuttingPlane(n_slack=True), CCCP(BCFW()), CCCP(CuttingPlane())]


@lru_cache
def optimum(name: str) -> float:
    """By cutting planes to a much smaller gap than is tested for, certified."""
    problem = CONVEX[name]()
    best = CuttingPlane(tolerance=1e-7, max_iter=2000).minimize(problem, np.zeros(problem.n_weights))
    assert best.outcome is Outcome.CONVERGED
    return best.objective


@lru_cache
def written_out(bounded: bool) -> tuple[Toy, Regulariser, Any]:
    """The constraint form of the toy with all its constraints, min |w|^2/2 + c.xi, solved by SLSQP; ``bounded`` keeps
    every other weight >= 0."""
    problem = Toy.draw(n=12, d=2)
    n = problem.n_instances
    p = problem.n_weights
    kept = np.arange(p) % 2 == 0
    rows = []
    rhs = []
    for i in range(n):
        for y in range(problem.n_labels):
            if y != problem.y[i]:
                a = np.zeros((problem.n_labels, problem.x.shape[1]))
                a[problem.y[i]] = problem.x[i]
                a[y] = -problem.x[i]
                rows.append(np.concatenate([a.ravel(), np.eye(n)[i]]))
                rhs.append(1.0)
    rows += list(np.eye(p + n)[p:])
    rhs += [0.0] * n
    z = scipy_minimize(
        lambda z: 0.5 * z[:p] @ z[:p] + problem.scale @ z[p:],
        np.concatenate([np.zeros(p), np.ones(n)]),
        jac=lambda z: np.concatenate([z[:p], problem.scale]),
        constraints=LinearConstraint(np.array(rows), rhs, np.inf),
        bounds=Bounds(np.where(bounded & np.append(kept, np.zeros(n, dtype=bool)), 0.0, -np.inf), np.inf),
        method="SLSQP",
        options={"ftol": 1e-12, "maxiter": 500},
    )
    return problem, Regulariser(nonnegative=kept if bounded else None), z


def test_cutting_planes_find_the_optimum_of_an_independent_solver() -> None:
    problem, _, z = written_out(False)
    ours = CuttingPlane(tolerance=1e-9).minimize(problem, np.zeros(problem.n_weights))
    assert ours.objective == pytest.approx(z.fun, rel=1e-6)


@pytest.mark.parametrize("solver", [*CERTIFYING, LBFGS(schedule=(1, 0.1, 0.01)), Subgradient()], ids=repr)
def test_every_solver_keeps_weights_non_negative(solver: Solver) -> None:
    """At the optimum of SLSQP with bounds, which hold some weights at zero; certificates are true there too."""
    problem, regulariser, z = written_out(True)
    assert written_out(False)[2].fun < z.fun - 1e-3
    found = solver.minimize(problem, random_start(problem.n_weights, seed=1), regulariser=regulariser)
    assert 0.0 <= found.w[regulariser.nonnegative].min() < 0.02
    assert z.fun * (1 - 1e-6) <= found.objective <= z.fun * 1.01
    if solver in CERTIFYING:
        assert found.outcome is Outcome.CONVERGED
        assert found.objective - found.certificate.gap <= z.fun * (1 + 1e-6)
        assert found.certificate.gap <= 1e-3 * found.objective


@pytest.mark.parametrize("name", CONVEX)
@pytest.mark.parametrize("solver", CERTIFYING, ids=repr)
def test_certified_solvers_agree_on_convex_problems(solver: Solver, name: str) -> None:
    problem = CONVEX[name]()
    found = solver.minimize(problem, random_start(problem.n_weights, seed=2))
    assert found.outcome is Outcome.CONVERGED
    assert found.certificate.certifies
    assert found.objective == pytest.approx(objective(problem, found.w))
    assert 0 <= found.certificate.gap <= 1e-3 * found.objective
    assert optimum(name) * (1 - 1e-6) <= found.objective <= optimum(name) + found.certificate.gap + 1e-6


@pytest.mark.parametrize("name", CONVEX)
def test_default_subgradient_comes_within_one_per_cent(name: str) -> None:
    problem = CONVEX[name]()
    found = Subgradient().minimize(problem, random_start(problem.n_weights, seed=2))
    assert found.objective == pytest.approx(objective(problem, found.w))
    assert found.objective <= 1.01 * optimum(name)


@pytest.mark.parametrize("name", CONVEX)
def test_slacks_of_the_constraint_form_equal_the_losses(name: str) -> None:
    problem = CONVEX[name]()
    found = CuttingPlane(n_slack=True, tolerance=1e-4).minimize(problem, np.zeros(problem.n_weights))
    losses = problem.difference(found.w).values
    slack = found.certificate.slack
    assert slack is not None
    short = problem.scale * (losses - slack)
    assert np.all(short >= -1e-9) and short.sum() <= found.certificate.gap + 1e-9


def test_literal_subgradient_is_algorithm_1() -> None:
    problem = Toy.draw(n_hidden=3, eps_h=1.0)
    w = random_start(problem.n_weights)
    found = Subgradient.literal(0.02, 25).minimize(problem, w)
    for _ in range(25):
        w = (1 - 0.02) * w - 0.02 * problem.difference(w).gradient
    np.testing.assert_allclose(found.w, w, atol=1e-13)
    assert found.objective == pytest.approx(objective(problem, w))
    assert (found.plus_calls, found.minus_calls) == (26 * problem.n_instances,) * 2


def test_stopping_as_printed_and_as_corrected() -> None:
    problem = Toy.draw(eps_y=1.0, eps_h=1.0)
    w0 = np.zeros(problem.n_weights)
    corrected = Subgradient.literal(0.02, 5000, 1e-3).minimize(problem, w0)
    assert corrected.outcome is Outcome.CONVERGED
    assert np.linalg.norm(corrected.w + problem.difference(corrected.w).gradient) <= 1e-3
    printed = Subgradient.literal(0.02, 500, 1e-3, Stopping.PRINTED).minimize(problem, w0)
    assert printed.outcome is Outcome.BUDGET, "the loss gradient alone does not vanish at the minimum"


def test_printed_cccp_is_algorithm_2() -> None:
    problem = Toy.draw(n_hidden=3, eps_h=1.0)
    w = random_start(problem.n_weights)
    found = CCCP.printed(0.02, n_outer=4, n_inner=6, tolerance=1e-9).minimize(problem, w)
    for _ in range(4):
        u = problem.minus(w).gradient
        for _ in range(6):
            w = (1 - 0.02) * w - 0.02 * (problem.plus(w).gradient - u)
    np.testing.assert_allclose(found.w, w, atol=1e-13)


INNERS = [
    BCFW(),
    CuttingPlane(),
    CuttingPlane(n_slack=True),
    LBFGS(),
    Subgradient(max_iter=5),
    Subgradient.literal(0.1, 9),
]


@pytest.mark.parametrize("member", ["mssvm", "lssvm", "hcrf"])
@pytest.mark.parametrize("inner", INNERS, ids=repr)
def test_cccp_never_rises(inner: Solver, member: str) -> None:
    problem = latent_chain(member)
    found = CCCP(inner, max_iter=6, tolerance=1e-3).minimize(problem, random_start(problem.n_weights))
    steps = np.diff(found.history["objective"])
    assert np.all(steps <= 1e-9)
    assert found.objective < found.trace[0].objective
    assert found.objective == pytest.approx(objective(problem, found.w))
    assert not found.certificate.certifies and np.isnan(found.certificate.gap)


def test_cccp_by_falling_eps_h_ends_at_the_target() -> None:
    problem = Toy.draw(n_hidden=3)
    found = CCCP(eps_h_schedule=(1.0, 0.3)).minimize(problem, random_start(problem.n_weights))
    temperatures = found.history["eps_h"]
    assert set(temperatures) == {1.0, 0.3, 0.0} and np.all(np.diff(temperatures) <= 0)
    for eps_h in set(temperatures):
        assert np.all(np.diff(found.history["objective"][temperatures == eps_h]) <= 1e-9)
    assert found.objective == pytest.approx(objective(problem, found.w))


def test_linearised_problem_majorises_and_touches() -> None:
    problem = Toy.draw(n_hidden=3, eps_h=1.0)
    w = random_start(problem.n_weights)
    inner = Linearised(problem, w, problem.minus(w))
    assert inner.difference(w).total == pytest.approx(problem.difference(w).total)
    np.testing.assert_allclose(inner.difference(w).gradient, problem.difference(w).gradient, atol=1e-12)
    for seed in range(20):
        v = random_start(problem.n_weights, seed=seed, scale=1.0)
        assert inner.difference(v).total >= problem.difference(v).total - 1e-9
        halves = [inner.difference(v, which) for which in (np.arange(10), np.arange(10, 30))]
        assert sum(part.total for part in halves) == pytest.approx(inner.difference(v).total)
        assert problem.scale @ inner.difference(v).values == pytest.approx(inner.difference(v).total)


@pytest.mark.parametrize("eps", [(0.0, 0.0), (0.0, 1.0)])
def test_lbfgs_states_the_bias_of_its_smoothing(eps: tuple[float, float]) -> None:
    problem = Toy.draw(n_hidden=3, eps_y=eps[0], eps_h=eps[1])
    found = LBFGS(schedule=(1.0, 0.1)).minimize(problem, random_start(problem.n_weights))
    hidden = 2 * 0.1 * np.log(3) if eps[1] == 0 else 0.0
    assert found.certificate.bias == pytest.approx(problem.scale.sum() * (0.1 * np.log(3) + hidden))
    smooth = problem.at(0.1, max(0.1, eps[1]))
    for seed in range(10):
        v = random_start(problem.n_weights, seed=seed, scale=1.0)
        assert abs(smooth.difference(v).total - problem.difference(v).total) <= found.certificate.bias
    assert found.objective == pytest.approx(objective(problem, found.w))


def test_lbfgs_certifies_smooth_convex_problems() -> None:
    problem = Toy.draw(eps_y=1.0, eps_h=1.0)
    found = LBFGS().minimize(problem, np.zeros(problem.n_weights))
    best = CuttingPlane(tolerance=1e-9).minimize(problem, np.zeros(problem.n_weights))
    assert found.certificate.certifies and found.certificate.gap < 1e-6 * found.objective
    assert found.objective - found.certificate.gap <= best.objective + 1e-9
    assert found.objective == pytest.approx(best.objective, rel=1e-6)


def test_gaps_of_inexact_inference_are_estimates() -> None:
    problem = replace(Toy.draw(), exact=False)
    for solver in (BCFW(), CuttingPlane(), CCCP()):
        certificate = solver.minimize(problem, np.zeros(problem.n_weights)).certificate
        assert not certificate.certifies and "estimate" in certificate.sentence


def test_negative_gaps_are_counted() -> None:
    class Liar(Toy):
        def atom(self, w: np.ndarray, i: int) -> tuple[float, np.ndarray]:
            value, mu = super().atom(w, i)
            return value - 0.5 * (w @ w > 0.1), mu

    problem = replace(Liar.draw(), exact=False)
    found = BCFW(max_iter=10).minimize(problem, np.zeros(problem.n_weights))
    assert found.certificate.negative_gaps > 0


@pytest.mark.parametrize("solver", [Subgradient(max_iter=4), BCFW(max_iter=10)], ids=repr)
def test_seeds_decide(solver: Any) -> None:
    problem = Toy.draw()
    w0 = random_start(problem.n_weights)
    first = solver.minimize(problem, w0)
    again = solver.minimize(problem, w0)
    np.testing.assert_array_equal(first.w, again.w)
    assert not np.array_equal(first.w, replace(solver, seed=1).minimize(problem, w0).w)


@pytest.mark.parametrize("solver", [LBFGS(), CCCP(max_iter=2), Subgradient(max_iter=2)], ids=repr)
def test_threads_do_not_change_a_bit(solver: Solver) -> None:
    problem = latent_chain("mssvm")
    w0 = random_start(problem.n_weights)
    one = solver.minimize(replace(problem, engine=NativeEngine(1)), w0).w
    two = solver.minimize(replace(problem, engine=NativeEngine(2)), w0).w
    np.testing.assert_array_equal(one, two)


def test_coordinates_of_real_instances() -> None:
    """features_of and scores_of are transposes, and atoms are tangents of plus."""
    problem = latent_chain("mssvm")
    w = random_start(problem.n_weights)
    v = random_start(problem.n_weights, seed=1, scale=1.0)
    total = np.zeros(problem.n_weights)
    for i in range(problem.n_instances):
        value, mu = problem.atom(w, i)
        assert problem.features_of(i, mu) @ v == pytest.approx(mu @ problem.scores_of(i, v))
        higher, _ = problem.atom(v, i)
        assert higher >= value + problem.features_of(i, mu) @ (v - w) - 1e-9
        total += problem.features_of(i, mu)
    np.testing.assert_allclose(total, problem.plus(w).gradient, atol=1e-10)
    assert not problem.convex and visible_chain().convex


def test_cutting_planes_survive_a_failing_qp_solver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dual, "_interior_point", lambda *args: None)
    problem = Toy.draw()
    found = CuttingPlane().minimize(problem, np.zeros(problem.n_weights))
    assert found.certificate.gap <= 1e-3 * found.objective
    assert found.objective <= optimum("toy") * 1.001 + 1e-9


def test_full_batches_may_choose_their_rate() -> None:
    """The trials of rates need the objective at the start, which other full-batch runs do not record."""
    problem = latent_chain("mssvm")
    found = Subgradient(max_iter=12, full_batch=True).minimize(problem, random_start(problem.n_weights))
    assert found.objective < found.trace[0].objective
    assert found.trace[-1].iteration <= Subgradient(max_iter=12, full_batch=True).limit(problem.temperatures) + 1
