"""Training that can be watched, interrupted and resumed: what the command line adds to a solver."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from mssvm.cli.meter import Meter, left
from mssvm.core.arrays import Floats
from mssvm.data.dataset import Dataset
from mssvm.data.labels import LabelSpace
from mssvm.estimators import decoding, resolve
from mssvm.objectives.problem import Problem
from mssvm.optim import LBFGS, Checkpoint, Outcome, Regulariser, Row, Solution, Solver, Validation
from mssvm.optim.run import Callback, Run

SAVED_EVERY = 1.0  # seconds


@dataclass
class Supervised:
    """A solver by name that reports to ``meter`` and saves itself; the k-th call of ``minimize`` has file number k.

    A resumed run repeats no finished call: its checkpoint holds the end of it.
    """

    name: str
    max_iter: int | None
    tol: float | None
    seed: int
    meter: Meter
    checkpoints: Path | None = None
    validation: Validation | None = None
    calls: int = 0

    def minimize(
        self, problem: Problem, w0: Floats, *, regulariser: Regulariser, callback: Callback | None = None
    ) -> Solution:
        exact = self.name != "auto" or problem.difference(w0).exact
        solver = resolve.solver_of(self.name, exact, self.max_iter, self.tol, self.seed)
        self.calls += 1
        checkpoint = None
        if self.checkpoints is not None:
            # L-BFGS takes few steps (its stages), so that each is worth saving; other solvers save by the clock.
            checkpoint = Checkpoint(numbered(self.checkpoints, self.calls), 0.0 if _by_stages(solver) else SAVED_EVERY)
        latest: list[Floats] = []

        def watch(row: Row, w: Floats) -> bool | None:
            latest[:] = [w]
            self.meter.say(self._line(row, solver))
            return callback(row, w) if callback is not None else None

        solution = solver.minimize(
            problem, w0, regulariser=regulariser, callback=watch, checkpoint=checkpoint, validation=self.validation
        )
        if solution.outcome is Outcome.INTERRUPTED and checkpoint is not None and latest and _by_stages(solver):
            _advance(checkpoint, Run(problem, w0, regulariser, None, None).fingerprint(solver), latest[0])
        return solution

    def _line(self, row: Row, solver: Any) -> str:
        seconds = max(self.meter.seconds, 1e-9)
        text = f"iteration {row.iteration}, {row.iteration / seconds:.3g}/s, objective {row.objective:.6g}"
        limit = next((getattr(solver, n) for n in _LIMITS if hasattr(solver, n)), None)
        if limit and row.iteration:
            stages = len(getattr(solver, "floors", (1,)))
            text += f", at most {left(seconds, min(row.iteration / (limit * stages), 1.0))} left"
        return text


_LIMITS = tuple(named.iterations for named in resolve.SOLVERS.values())
Solver.register(Supervised)  # the estimators take solver objects; this one only wraps ``minimize``


def numbered(path: Path, k: int) -> Path:
    return path.with_name(f"{path.name}-{k}")


def checkpoints_of(path: Path) -> list[Path]:
    """Files of an interrupted run."""
    return sorted(path.parent.glob(f"{path.name}-[0-9]*"))


def scorer(estimator: Any, train: Dataset, valid: Dataset) -> Callable[[Floats], float]:
    """Accuracy on ``valid`` as a function of the weights, with the features and classes of ``train``."""
    structure = resolve.structure_of(estimator.structure)
    with train.places():
        labels = LabelSpace.learn(train.labels, structure.depth, estimator.classes, estimator.missing_label)
        encoder, _ = structure.compile(train.X, labels)
    inference = resolve.inference_of(
        estimator.inference, estimator.memory_limit, resolve.threads_of(estimator.n_jobs)
    )
    start = np.zeros(encoder.layout.n_weights)
    with valid.places():
        question = decoding.ask(
            structure, encoder.schema, labels, valid.X, valid.hidden, None, None, start, inference, estimator._best
        )
        truth = labels.encode(valid.labels, question.encoded.labels.shapes)
    weight = np.ones(len(question))

    def score(w: Floats) -> float:
        theta = question.model.forward(w, question.encoded.inputs)
        states = decoding.map_states(replace(question, w=w, theta=theta))
        return decoding.agreement(states, truth.observed, truth.mask, truth.ptr, weight)

    return score


def _by_stages(solver: Any) -> bool:
    return isinstance(solver, LBFGS)


def _advance(checkpoint: Checkpoint, fingerprint: str, w: Floats) -> None:
    """Let the interrupted stage of L-BFGS be repeated from where it was instead of from its start."""
    tree = checkpoint.load(fingerprint)
    if tree is not None:
        tree["state"]["w"] = w
        checkpoint.save(fingerprint, tree)
