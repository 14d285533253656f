"""The methods that are compared, by the letters of the protocol: public estimators on data that they share."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from sklearn.exceptions import ConvergenceWarning

from mssvm.core.arrays import Floats
from mssvm.estimators import HCRF, LSSVM, M3E, MSSVM, ModLat
from mssvm.estimators.base import StructuredEstimator
from mssvm.experiments.simulate import PartlyLabelled, Simulation, Truth
from mssvm.inference.base import Inference
from mssvm.optim import Callback, Outcome, Solver
from mssvm.optim.outcome import Stop
from mssvm.optim.run import SolverRun

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
    decode: str = "map"

    @classmethod
    def of(cls, sim: Simulation, std: float, rng: np.random.Generator, inference: Inference, **settings: Any) -> Arena:
        """Random initial weights of the given standard deviation."""
        w0 = std * rng.standard_normal(len(sim.truth.weights))
        return cls(sim.train, sim.test, sim.truth, w0, inference, **settings)

    def fit(self, member: Any, solver: Solver[Any], callback: Callback | None = None, **settings: Any) -> Any:
        """A member, by letter or as a class, trained by the given solver; ``settings`` override what is shared."""
        kind: Any = MEMBERS[member] if isinstance(member, str) else member
        shared = {"C": self.C, "inference": self.inference, "init": self.w0, "classes": range(self.truth.n_states)}
        given = shared | self.own.get(kind.__name__, {}) | settings
        estimator = kind(self.truth.structure, solver=solver, **given)
        with warnings.catch_warnings():  # how many iterations a solver has is part of the experiment
            warnings.simplefilter("ignore", ConvergenceWarning)
            return estimator.fit(self.train.X, self.train.y, callback=callback)

    def accuracy(self, fitted: Any) -> float:
        """Test accuracy in per cent by the member's own decoder: marginal MAP (M, H), joint MAP (L, ModLat), M3E's."""
        return self.test.accuracy(fitted, self.decode)

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

    problem: Any

    def begin(self, run: SolverRun, warm: dict[str, Any]) -> None:
        self.problem = run.problem
        run.record(run.w0, run.objective(run.w0)[0])

    def step(self, run: SolverRun, state: None) -> None:
        raise Stop(Outcome.BUDGET, "The weights were given.")
