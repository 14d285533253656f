"""Run by the tests in a process of its own: train with a checkpoint, and die by SIGKILL at the n-th evaluation."""

from __future__ import annotations

import os
import signal
import sys
from dataclasses import dataclass
from typing import Any

import numpy as np

from mssvm.core.arrays import Floats, Ints
from mssvm.objectives.problem import Evaluation
from mssvm.optim import BCFW, CCCP, LBFGS, Checkpoint, CuttingPlane, Subgradient, random_start
from mssvm.optim.solver import Solver
from optim_problems import Toy

SOLVERS: dict[str, tuple[Solver, dict]] = {
    "algorithm 1": (Subgradient.literal(0.02, 40), {"n_hidden": 3, "eps_h": 1.0}),
    "subgradient": (Subgradient(max_iter=6), {"n_hidden": 3, "eps_h": 1.0}),
    "l-bfgs": (LBFGS(), {"n_hidden": 3, "eps_h": 1.0}),
    "cccp": (CCCP(BCFW(), max_iter=6), {"n_hidden": 3, "eps_h": 1.0}),
    "cccp, cutting planes": (CCCP(CuttingPlane(n_slack=True), max_iter=6), {"n_hidden": 3, "eps_h": 1.0}),
    "bcfw": (BCFW(max_iter=20), {}),
    "cutting planes": (CuttingPlane(max_iter=20), {}),
    "cutting planes, n slacks": (CuttingPlane(n_slack=True), {}),
}


@dataclass
class Fuse:
    left: int
    press: bool = False  # Ctrl-C instead of a kill


class Deadly:
    """A problem that kills its process, with no chance to clean up, when its fuse has burnt."""

    def __init__(self, problem: Toy, fuse: Fuse) -> None:
        self.problem = problem
        self.fuse = fuse

    def __getattr__(self, name: str) -> Any:
        return getattr(self.problem, name)

    def at(self, eps_y: float, eps_h: float) -> Deadly:
        return Deadly(self.problem.at(eps_y, eps_h), self.fuse)

    def _burn(self) -> None:
        self.fuse.left -= 1
        if self.fuse.left == 0 and self.fuse.press:
            raise KeyboardInterrupt
        if self.fuse.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def plus(self, w: Floats, instances: Ints | None = None) -> Evaluation:
        self._burn()
        return self.problem.plus(w, instances)

    def difference(self, w: Floats, instances: Ints | None = None) -> Evaluation:
        self._burn()
        return self.problem.difference(w, instances)

    def atom(self, w: Floats, i: int) -> tuple[float, Floats]:
        self._burn()
        return self.problem.atom(w, i)


def task(name: str, fuse: int = -1) -> tuple[Solver, Deadly, Floats]:
    solver, settings = SOLVERS[name]
    problem = Deadly(Toy.draw(**settings), Fuse(fuse))
    return solver, problem, random_start(problem.n_weights, seed=1)


if __name__ == "__main__":
    np.seterr(all="raise", under="ignore")
    solver, problem, w0 = task(sys.argv[1], int(sys.argv[3]))
    solver.minimize(problem, w0, checkpoint=Checkpoint(sys.argv[2], every_seconds=0.0))
