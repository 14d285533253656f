"""The exact methods under test, one row each, and the temperatures and models they are tested on."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from builders import Case, random_case
from mssvm.core.potentials import Belief
from mssvm.engines.numba.elimination import EliminationKernels
from mssvm.engines.reference import ReferenceEngine
from mssvm.inference.base import Inference
from mssvm.inference.enumerate import Enumerate
from mssvm.inference.exact.eliminate import Eliminate
from mssvm.inference.exact.exact import Exact

# A new exact method is one row here: its name, and how to build it for a number of threads.
METHODS: dict[str, Callable[[int], Inference]] = {
    "exact": lambda threads: Exact(threads=threads),
    "eliminate-reference": lambda threads: Eliminate(engine=ReferenceEngine(), threads=threads),
    "eliminate-numba": lambda threads: Eliminate(engine=EliminationKernels(), threads=threads),
    "eliminate-numba-log-space": lambda threads: Eliminate(engine=EliminationKernels(max_spread=0.0), threads=threads),
}

PAIRS = [(y, h) for y in (0.0, 0.5, 1.0) for h in (0.0, 0.5, 1.0)]
TINY = 1e-6
TINY_PAIRS = [(TINY, TINY), (TINY, 0.0), (0.0, TINY), (TINY, 1.0), (1.0, TINY)]
RANGES = (1.0, 1e3)
N_EACH = 28


@cache
def build(method: str, threads: int = 1) -> Inference:
    return METHODS[method](threads)


@cache
def case_of(kind: str, scale: float = 1.0, integer: bool = False) -> Case:
    """The random models of one kind, their potentials spread over a range of ``scale``."""
    return random_case(kind, N_EACH, integer=integer).scaled(scale)


@cache
def expected(kind: str, scale: float, integer: bool, eps_y: float, eps_h: float) -> Belief:
    """Brute force on the same models, computed once for all methods."""
    case = case_of(kind, scale, integer)
    return Enumerate()(case.batch, case.theta, case.query, eps_y, eps_h)


def infer(method: str, case: Case, eps_y: float, eps_h: float, threads: int = 1) -> Belief:
    return build(method, threads)(case.batch, case.theta, case.query, eps_y, eps_h)
