"""The methods that are compared, by the letters of the protocol: public estimators on data that they share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from mssvm.core.arrays import Floats
from mssvm.estimators import HCRF, LSSVM, M3E, MSSVM, ModLat
from mssvm.estimators.base import StructuredEstimator
from mssvm.experiments.simulate import PartlyLabelled, Simulation, Truth
from mssvm.inference.base import Inference
from mssvm.objectives.problem import Problem
from mssvm.optim import Callback, Outcome, Solution, Solver
from mssvm.optim.run import Run, Stop

MEMBERS: dict[str, type[StructuredEstimator]] = {"M": MSSVM, "L": LSSVM, "H": HCRF, "M3E": M3E, "ModLat": ModLat}
NAMES = {letter: member.__name__ for letter, member in MEMBERS.items()}


@dataclass(frozen=True, eq=False)
class Arena:
    """What all members of a trial share: structure, data, initial and generating weights, inference, C; ``own`` are the
    members' own settings (alpha of M3E, say)."""

    train: PartlyLabelled
    test: PartlyLabelled
    truth: Truth
    w0: Floats
    inference: Inference
    C: float = 1.0
    own: Mapping[str, dict[str, Any]] = field(default_factory=dict)

    @classmethod
    def of(cls, sim: Simulation, std: float, rng: np.random.Generator, inference: Inference, **settings: Any) -> Arena:
        """Random initial weights of the given standard deviation."""
        w0 = std * rng.standard_normal(len(sim.truth.weights))
        return cls(sim.train, sim.test, sim.truth, w0, inference, **settings)

    def fit(self, member: Any, solver: Solver[Any], watch: Callback | None = None, **settings: Any) -> Any:
        """A member, by letter or as a class, trained by the given solver; ``settings`` override what is shared."""
        kind = MEMBERS[member] if isinstance(member, str) else member
        classes, watched = range(self.truth.n_states), solver if watch is None else Watched(solver, watch)
        shared: dict[str, Any] = {"C": self.C, "inference": self.inference, "init": self.w0, "classes": classes}
        given = shared | self.own.get(kind.__name__, {}) | settings
        return kind(self.truth.structure, solver=watched, **given).fit(self.train.X, self.train.y)

    def accuracy(self, fitted: Any) -> float:
        """Test accuracy in per cent by the member's own decoder: marginal MAP (M, H), joint MAP (L, ModLat), M3E's."""
        return self.test.accuracy(fitted)

    def bayes(self) -> float:
        """Accuracy of marginal MAP with the generating weights."""
        return self.accuracy(self.fit("M", Untrained(), init=self.truth.weights))

    def report(self, fitted: Any, *names: str) -> dict[str, Any]:
        """The named figures of a trained member."""
        last = fitted.history_[-1]
        known = {
            "objective": float(fitted.objective_),
            "calls": int(last["plus_calls"] + last["minus_calls"]),
            "outcome": fitted.training_["outcome"],
        }
        return {name: self.accuracy(fitted) if name == "accuracy" else known[name] for name in names}


class Untrained(Solver[None]):
    """Leaves the initial weights as they are, so that the estimator has exactly these, and notes their objective;
    ``problem`` is what the estimator would have solved."""

    problem: Problem

    def begin(self, run: Run, warm: dict[str, Any]) -> None:
        self.problem = run.problem.problem
        run.record(run.w0, run.objective(run.w0)[0])

    def step(self, run: Run, state: None) -> None:
        raise Stop(Outcome.BUDGET, "The weights were given.")


@dataclass(frozen=True, eq=False)
class Watched(Solver[Any]):
    """``solver`` with a callback of its own beside the one that it is called with."""

    solver: Solver[Any]
    watch: Callback

    def begin(self, run: Run, warm: dict[str, Any]) -> Any:
        return self.solver.begin(run, warm)

    def step(self, run: Run, state: Any) -> None:
        self.solver.step(run, state)

    def minimize(self, problem: Problem, w0: Floats, *, callback: Callback | None = None, **options: Any) -> Solution:
        def both(row: Any, w: Floats) -> bool | None:
            self.watch(row, w)
            return callback(row, w) if callback is not None else None

        return self.solver.minimize(problem, w0, callback=both, **options)
