"""The methods that are compared, each with its own objective, training procedure and decoder."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from mssvm.core.arrays import Floats
from mssvm.engines import engine_of
from mssvm.experiments.simulate import Simulation, accuracy, decoded_accuracy
from mssvm.inference.base import Inference, plan_of
from mssvm.objectives.base import Objective
from mssvm.objectives.m3e import RenyiMargin
from mssvm.objectives.modlat import ModLatProblems
from mssvm.objectives.training import TrainingProblem
from mssvm.objectives.unified import hcrf, lssvm, mssvm
from mssvm.optim import Callback, Solution, Solver
from mssvm.optim.alternate import alternate

NAMES = {"M": "MSSVM", "L": "LSSVM", "H": "HCRF", "M3E": "M3E", "ModLat": "ModLat"}
UNIFIED: dict[str, Callable[[], Objective]] = {"M": mssvm, "L": lssvm, "H": hcrf}


@dataclass(frozen=True, eq=False)
class Arena:
    """What all methods of a trial share: data, initial weights, inference and C."""

    simulation: Simulation
    w0: Floats
    inference: Inference
    C: float = 1.0

    @classmethod
    def of(cls, sim: Simulation, std: float, inference: Inference, C: float, rng: np.random.Generator) -> Arena:
        """Random initial weights of the given standard deviation."""
        return cls(sim, std * rng.standard_normal(sim.model.n_weights), inference, C)

    def problem(self, objective: Objective) -> TrainingProblem:
        return TrainingProblem(objective, self.simulation.model, self.simulation.train, self.inference, self.C)

    def train(self, member: str, solver: Solver[Any], callback: Callback | None = None) -> Solution:
        """The member's weights by the given solver; ModLat uses it for both of its problems."""
        if member == "ModLat":
            blocks = ModLatProblems(self.simulation.model, self.simulation.train, self.inference, engine_of(), self.C)
            return alternate(blocks, solver.minimize, self.w0, self.w0)[0]
        objective = RenyiMargin() if member == "M3E" else UNIFIED[member]()
        return solver.minimize(self.problem(objective), self.w0, callback=callback)

    def accuracy(self, member: str, w: Floats) -> float:
        """Test accuracy in per cent of the member: marginal MAP (M, H), joint MAP (L, ModLat), own score."""
        sim = self.simulation
        if member == "M3E":
            theta = sim.model.forward(w, sim.test.inputs)
            parts = RenyiMargin().decoder(sim.test.batch, sim.test.query, partial(plan_of, self.inference))
            return 100 * accuracy(sim.test, parts.decode(theta).decode(sim.test.batch))
        eps_h = 0.0 if member in ("L", "ModLat") else 1.0
        return 100 * decoded_accuracy(sim.model, w, sim.test, self.inference, eps_h)

    def bayes(self) -> float:
        """Accuracy of marginal MAP with the generating weights."""
        return self.accuracy("M", self.simulation.weights)

    def test_log_likelihood(self, w: Floats) -> float:
        """Mean log p(y | x; w) of the test instances, hidden variables summed out."""
        sim = self.simulation
        theta = sim.model.forward(w, sim.test.inputs)
        given = self.inference(sim.test.batch, theta, sim.test.truth_query, 1.0, 1.0).value
        total = self.inference(sim.test.batch, theta, sim.test.query, 1.0, 1.0).value
        return float(np.mean(given - total))
