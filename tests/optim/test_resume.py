"""Interruptions: kill -9 and resume, Ctrl-C, callbacks, early stopping, files of other runs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest

from mssvm.core.errors import InputError
from mssvm.optim import (
    BCFW,
    CCCP,
    LBFGS,
    Checkpoint,
    Outcome,
    Regulariser,
    Row,
    Solution,
    Subgradient,
    Validation,
    random_start,
)
from optim.kill_and_resume import SOLVERS, task
from optim_problems import Toy

SCRIPT = Path(__file__).with_name("kill_and_resume.py")


@lru_cache
def uninterrupted(name: str) -> tuple[Solution, int]:
    """The whole run, and how many evaluations it makes."""
    solver, problem, w0 = task(name)
    solution = solver.minimize(problem, w0)
    return solution, -1 - problem.fuse.left


@pytest.mark.slow
@pytest.mark.parametrize("name", SOLVERS)
def test_killed_and_resumed_equals_uninterrupted(name: str, tmp_path: Path) -> None:
    whole, n_evaluations = uninterrupted(name)
    file = tmp_path / "run.safetensors"
    fuse = (2 * n_evaluations) // 3
    command = [sys.executable, str(SCRIPT), name, str(file), str(fuse)]
    path = {"PYTHONPATH": os.pathsep.join(sys.path)}
    dead = subprocess.run(command, timeout=120, check=False, env=os.environ | path)
    assert dead.returncode == -signal.SIGKILL
    solver, problem, w0 = task(name)
    resumed = solver.minimize(problem, w0, checkpoint=Checkpoint(file, every_seconds=0.0))
    assert -1 - problem.fuse.left < n_evaluations, "nothing was resumed"
    np.testing.assert_array_equal(resumed.w, whole.w)
    assert resumed.outcome is whole.outcome
    assert [row.objective for row in resumed.trace] == pytest.approx([row.objective for row in whole.trace], abs=1e-12)
    assert (resumed.plus_calls, resumed.minus_calls) == (whole.plus_calls, whole.minus_calls)


@pytest.mark.slow
@pytest.mark.parametrize("name", SOLVERS)
def test_ctrl_c_returns_the_best_iterate_and_can_be_resumed(name: str, tmp_path: Path) -> None:
    solver, problem, w0 = task(name)
    whole, _ = uninterrupted(name)
    at = max(1, len(whole.trace) // 2)

    def press(row: Row, w: np.ndarray) -> None:
        if row.iteration == at:
            raise KeyboardInterrupt

    file = Checkpoint(tmp_path / "run.safetensors", every_seconds=0.0)
    cut = solver.minimize(problem, w0, callback=press, checkpoint=file)
    assert cut.outcome is Outcome.INTERRUPTED
    target = [row.objective for row in cut.trace if (row.eps_y, row.eps_h) == problem.temperatures]
    last = SOLVERS[name][0] == Subgradient.literal(0.02, 40)
    assert cut.objective == pytest.approx(target[-1] if last else min(target))
    assert len(cut.trace) <= len(whole.trace) + 1
    resumed = solver.minimize(problem, w0, checkpoint=file)
    np.testing.assert_array_equal(resumed.w, whole.w)
    assert resumed.history["objective"].tolist() == whole.history["objective"].tolist()
    assert (resumed.plus_calls, resumed.minus_calls) == (whole.plus_calls, whole.minus_calls)


@pytest.mark.parametrize("name", SOLVERS)
def test_a_time_limit_returns_the_best_so_far_and_can_be_resumed(name: str, tmp_path: Path) -> None:
    solver, problem, w0 = task(name)
    whole, _ = uninterrupted(name)
    file = Checkpoint(tmp_path / "run.safetensors", every_seconds=0.0)
    cut = solver.minimize(problem, w0, checkpoint=file, time_limit=0.0)
    assert cut.outcome is Outcome.TIME and "time limit" in cut.message
    assert 1 <= len(cut.trace) < len(whole.trace) and np.isfinite(cut.objective)
    resumed = solver.minimize(problem, w0, checkpoint=file, time_limit=1e9)
    assert resumed.outcome is whole.outcome
    assert resumed.objective == pytest.approx(whole.objective, rel=1e-12)


@pytest.mark.parametrize("at", [3, 20, 41, 60])
def test_ctrl_c_at_any_evaluation_of_lbfgs_changes_nothing(at: int, tmp_path: Path) -> None:
    """Also in the middle of a line search, and while a validation score is computed."""
    solver, problem, w0 = task("l-bfgs")
    scored: list[float] = []

    def score(w: np.ndarray) -> float:
        scored.append(float(w @ w))
        if len(scored) == at + 7:
            raise KeyboardInterrupt
        return -abs(scored[-1] - 3.0)

    given = {
        "checkpoint": Checkpoint(tmp_path / "run", every_seconds=1e9),
        "validation": Validation(score, patience=999),
    }
    problem.fuse.left = at
    problem.fuse.press = True
    assert solver.minimize(problem, w0, **given).outcome is Outcome.INTERRUPTED
    while (resumed := solver.minimize(problem, w0, **given)).outcome is Outcome.INTERRUPTED:
        pass
    whole = solver.minimize(problem, w0, validation=given["validation"])
    np.testing.assert_array_equal(resumed.w, whole.w)
    np.testing.assert_array_equal([row[:6] for row in resumed.trace], [row[:6] for row in whole.trace])


def test_what_is_known_at_the_start_is_not_computed_again() -> None:
    solver, problem, w0 = task("l-bfgs")
    first = problem.difference(w0)
    again = uninterrupted("l-bfgs")
    problem.fuse.left = -1
    found = solver.minimize(problem, w0, first=first)
    assert found.trace[-1][:6] == again[0].trace[-1][:6]
    assert -1 - problem.fuse.left == again[1] - 1


def test_interruption_inside_an_inner_solver_ends_cccp() -> None:
    class Nervous(Toy):
        calls = 0

        def atom(self, w: np.ndarray, i: int) -> tuple[float, np.ndarray]:
            Nervous.calls += 1
            if Nervous.calls == 200:
                raise KeyboardInterrupt
            return super().atom(w, i)

    problem = Nervous.draw(n_hidden=3, eps_h=1.0)
    w0 = random_start(problem.n_weights, seed=1)
    cut = CCCP(BCFW()).minimize(problem, w0)
    assert cut.outcome is Outcome.INTERRUPTED
    assert cut.objective < cut.trace[0].objective
    assert cut.objective == pytest.approx(0.5 * cut.w @ cut.w + problem.difference(cut.w).total)


def test_a_finished_run_is_not_repeated(tmp_path: Path) -> None:
    problem = Toy.draw(n_hidden=3, eps_h=1.0)
    w0 = random_start(problem.n_weights)
    file = Checkpoint(tmp_path / "run", every_seconds=1e9)
    first = LBFGS().minimize(problem, w0, checkpoint=file)

    def never(row: Row, w: np.ndarray) -> None:
        raise AssertionError("an iteration was run")

    again = LBFGS().minimize(problem, w0, checkpoint=file, callback=never)
    assert again.outcome is first.outcome and again.message == first.message
    np.testing.assert_array_equal(again.w, first.w)


def test_files_of_other_runs_are_refused(tmp_path: Path) -> None:
    problem = Toy.draw()
    w0 = random_start(problem.n_weights)
    file = Checkpoint(tmp_path / "run")
    Subgradient(max_iter=2).minimize(problem, w0, checkpoint=file)
    with pytest.raises(InputError, match="another solver, problem or start"):
        Subgradient(max_iter=3).minimize(problem, w0, checkpoint=file)
    with pytest.raises(InputError, match="another solver, problem or start"):
        Subgradient(max_iter=2).minimize(problem, w0 + 1e-9, checkpoint=file)
    with pytest.raises(InputError, match="another solver, problem or start"):
        Subgradient(max_iter=2).minimize(problem, w0, regulariser=Regulariser(center=w0), checkpoint=file)
    (tmp_path / "run").write_bytes(b"not a checkpoint")
    with pytest.raises(InputError, match="cannot be read"):
        Subgradient(max_iter=2).minimize(problem, w0, checkpoint=file)
    with pytest.raises(InputError, match="cannot be written: No such file"):
        Subgradient(max_iter=2).minimize(problem, w0, checkpoint=Checkpoint(tmp_path / "nowhere" / "run"))


def test_the_same_sizes_with_other_data_are_refused(tmp_path: Path) -> None:
    """At w = 0 the objective depends on sizes alone; a run that ended must not answer for changed data."""
    problem = Toy.draw(n_hidden=2, eps_h=1.0)
    file = Checkpoint(tmp_path / "run")
    w0 = np.zeros(problem.n_weights)
    first = LBFGS().minimize(problem, w0, checkpoint=file)
    assert first.plus_calls == LBFGS().minimize(problem, w0).plus_calls
    for other in (replace(problem, x=problem.x + 0.1), replace(problem, y=problem.y[::-1])):
        with pytest.raises(InputError, match="saved with other data"):
            LBFGS().minimize(other, w0, checkpoint=file)


def test_callback_stops_a_run() -> None:
    problem = Toy.draw()
    stopped = BCFW(tolerance=1e-9).minimize(
        problem, np.zeros(problem.n_weights), callback=lambda row, w: row.iteration == 2
    )
    assert stopped.outcome is Outcome.STOPPED and len(stopped.trace) == 3


def test_early_stopping_returns_the_weights_with_the_highest_score() -> None:
    problem = Toy.draw()
    seen: list[np.ndarray] = []

    def score(w: np.ndarray) -> float:
        seen.append(w)
        return -abs(len(seen) - 4.0)

    early = Subgradient.literal(0.02, 100).minimize(
        problem, np.zeros(problem.n_weights), validation=Validation(score, patience=3)
    )
    assert early.outcome is Outcome.EARLY and len(seen) == 7
    np.testing.assert_array_equal(early.w, seen[3])
    assert early.objective == early.trace[3].objective
    plain = LBFGS().minimize(problem, np.zeros(problem.n_weights), validation=Validation(lambda w: -float(w @ w)))
    np.testing.assert_array_equal(plain.w, np.zeros(problem.n_weights))
    assert plain.objective == pytest.approx(problem.difference(plain.w).total)


def test_divergence_is_an_outcome_and_the_best_point_survives() -> None:
    problem = Toy.draw()
    far = Subgradient(max_iter=500, rate=30.0, full_batch=True, adaptive=False, average=False).minimize(
        problem, np.zeros(problem.n_weights)
    )
    assert far.outcome is Outcome.DIVERGED
    assert np.all(np.isfinite(far.w)) and np.isfinite(far.objective)
