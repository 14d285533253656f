"""Solvers. Each minimises R(w) + sum_i c_i (plus_i(w) - minus_i(w)) seeing numbers only, and says what it certifies."""

from mssvm.optim.bcfw import BCFW
from mssvm.optim.cccp import CCCP
from mssvm.optim.checkpoint import Checkpoint
from mssvm.optim.cutting import CuttingPlane
from mssvm.optim.lbfgs import LBFGS
from mssvm.optim.regulariser import Regulariser
from mssvm.optim.run import Callback, Validation
from mssvm.optim.solution import Certificate, Outcome, Row, Solution
from mssvm.optim.solver import Solver
from mssvm.optim.start import Restarts, hcrf_start, random_start, random_starts, restarts, zero_start
from mssvm.optim.subgradient import Scaling, Stopping, Subgradient

__all__ = [
    "BCFW",
    "CCCP",
    "LBFGS",
    "Callback",
    "Certificate",
    "Checkpoint",
    "CuttingPlane",
    "Outcome",
    "Regulariser",
    "Restarts",
    "Row",
    "Scaling",
    "Solution",
    "Solver",
    "Stopping",
    "Subgradient",
    "Validation",
    "hcrf_start",
    "random_start",
    "random_starts",
    "restarts",
    "zero_start",
]
