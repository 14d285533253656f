"""L-BFGS: what "converged" promises, and absolute values in the regulariser against independent computations."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from mssvm.core.errors import InputError, UnsupportedError
from mssvm.optim import BCFW, CCCP, LBFGS, CuttingPlane, Outcome, Regulariser, Subgradient, random_start
from optim_problems import Toy, latent_chain, objective, visible_chain

PROBLEMS = {
    "svm": lambda: Toy.draw(n=60),
    "crf": lambda: Toy.draw(n=60, eps_y=1.0, eps_h=1.0),
    "mssvm": lambda: Toy.draw(n=60, n_hidden=3, eps_h=1.0),
    "lssvm": lambda: Toy.draw(n=60, n_hidden=3),
    "visible chain": visible_chain,
    "mssvm chain": lambda: latent_chain("mssvm"),
    "lssvm chain": lambda: latent_chain("lssvm"),
    "hcrf chain": lambda: latent_chain("hcrf"),
}


@pytest.mark.parametrize("schedule", [(1.0, 0.25), (1.0, 1 / 4, 1 / 16, 1 / 32)], ids=["as auto", "as lbfgs"])
@pytest.mark.parametrize("name", PROBLEMS)
def test_converged_is_within_a_thousandth_of_what_ten_times_the_iterations_reach(name: str, schedule) -> None:
    problem = PROBLEMS[name]()
    solver = LBFGS(schedule=schedule)
    w0 = random_start(problem.n_weights)
    found = solver.minimize(problem, w0)
    assert found.outcome is Outcome.CONVERGED
    # From the same point, since another path could lead to another minimum.
    longer = replace(solver.for_warm_start(), max_iter=10 * len(found.trace), tolerance=1e-15, gradient_tolerance=1e-15)
    further = longer.minimize(problem, found.w)
    assert found.objective <= further.objective * (1 + 1e-3)


def proximal(problem: Toy, squares: float, absolute: float, nonnegative: bool = False) -> np.ndarray:
    """FISTA with a constant step: an independent solution of the same problem."""
    w = z = np.zeros(problem.n_weights)
    step = 1.0 / (squares + 2.0 * float(problem.scale @ (problem.x**2).sum(axis=1)))
    t = 1.0
    for _ in range(20000):
        moved = z - step * (squares * z + problem.difference(z).gradient)
        new = np.sign(moved) * np.maximum(np.abs(moved) - step * absolute, 0.0)
        new = np.maximum(new, 0.0) if nonnegative else new
        faster = (1 + np.sqrt(1 + 4 * t * t)) / 2
        z = new + (t - 1) / faster * (new - w)
        w = new
        t = faster
    return w


@pytest.mark.parametrize("bounded", [False, True])
@pytest.mark.parametrize(("squares", "absolute"), [(0.0, 2.0), (0.5, 0.5), (0.1, 1.8)])
def test_l1_and_elastic_net_agree_with_proximal_steps(squares: float, absolute: float, bounded: bool) -> None:
    problem = Toy.draw(eps_y=1.0, eps_h=1.0)
    mask = np.full(problem.n_weights, bounded)
    regulariser = Regulariser(squares, mask if bounded else None, absolute)
    found = LBFGS(tolerance=1e-14, gradient_tolerance=1e-9).minimize(
        problem, random_start(problem.n_weights), regulariser=regulariser
    )
    reference = proximal(problem, squares, absolute, bounded)
    assert found.objective == pytest.approx(objective(problem, reference, regulariser), rel=1e-9)
    np.testing.assert_allclose(found.w, reference, atol=1e-4)
    assert 0 < np.sum(found.w == 0) < len(found.w) and np.array_equal(found.w == 0, reference == 0)


@pytest.mark.parametrize("name", ["hcrf chain", "mssvm"])
def test_l1_meets_the_conditions_of_a_minimum_with_hidden_variables(name: str) -> None:
    problem = PROBLEMS[name]().at(1.0, 1.0)
    strengths = np.where(np.arange(problem.n_weights) % 5 == 0, 0.0, 0.8)
    regulariser = Regulariser(0.2, absolute=strengths)
    found = LBFGS(tolerance=1e-14, gradient_tolerance=1e-9, max_iter=2000).minimize(
        problem, random_start(problem.n_weights), regulariser=regulariser
    )
    slope = 0.2 * found.w + problem.difference(found.w).gradient
    zero = found.w == 0
    assert zero.any() and not zero.all()
    np.testing.assert_allclose(slope[~zero], -(strengths * np.sign(found.w))[~zero], atol=1e-3)
    assert np.all(np.abs(slope[zero]) <= strengths[zero] + 1e-3)


def test_solvers_that_cannot_handle_absolute_values_refuse_them() -> None:
    problem = Toy.draw(eps_y=1.0, eps_h=1.0)
    for solver in (BCFW(), CuttingPlane(), CCCP(), Subgradient()):
        with pytest.raises(UnsupportedError, match="L1 penalty; use LBFGS"):
            solver.minimize(problem, np.zeros(problem.n_weights), regulariser=Regulariser(absolute=0.1))
    with pytest.raises(InputError, match="absolute of a regulariser"):
        Regulariser(absolute=-1.0)
    with pytest.raises(InputError, match="strengths for"):
        LBFGS().minimize(problem, np.zeros(problem.n_weights), regulariser=Regulariser(absolute=np.ones(2)))
