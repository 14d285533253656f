"""Solvers. Each minimises R(w) + sum_i c_i (plus_i(w) - minus_i(w)) seeing numbers only, and says what it certifies.

    LBFGS          smooth members, and others by falling temperatures; the default where inference is exact or a bound
    Subgradient    Algorithm 1 of the paper, and stochastic forms of it; the default elsewhere if not convex
    CCCP           Algorithm 2 of the paper around any other solver: the objective never rises
    BCFW           block-coordinate Frank-Wolfe: convex problems, with a certified gap
    CuttingPlane   the constraint form of the paper's supplement: convex problems, with a certified gap

``solver`` is their common loop, ``run`` the state they share during a call (``trace``, callbacks, early stopping, time
limit), ``solution`` and ``outcome`` the result, ``dual`` the convex form of the last two, ``checkpoint`` resumes
interrupted runs, ``alternate`` trains two sets of weights alternately, ``regulariser`` is R. A new solver is one file:
a state, ``begin`` and ``step``.
"""

from mssvm.optim.bcfw import BCFW
from mssvm.optim.cccp import CCCP
from mssvm.optim.checkpoint import Checkpoint, checkpoints_of
from mssvm.optim.cutting import CuttingPlane
from mssvm.optim.lbfgs import LBFGS
from mssvm.optim.outcome import Outcome
from mssvm.optim.regulariser import Regulariser
from mssvm.optim.run import Validation
from mssvm.optim.solution import Certificate, Solution
from mssvm.optim.solver import Solver
from mssvm.optim.starts import random_start
from mssvm.optim.subgradient import Scaling, Stopping, Subgradient
from mssvm.optim.trace import Callback, Row

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
    "Row",
    "Scaling",
    "Solution",
    "Solver",
    "Stopping",
    "Subgradient",
    "Validation",
    "checkpoints_of",
    "random_start",
]
