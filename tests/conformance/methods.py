"""The exact methods under test, one row each, and the temperatures and models they are tested on."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from builders import Case, On, random_case
from mssvm.core.potentials import Belief
from mssvm.engines.base import METHODS as ROUTES
from mssvm.engines.native.engine import NativeEngine
from mssvm.engines.reference import ReferenceEngine
from mssvm.inference.base import Inference
from mssvm.inference.enumerate import Enumerate
from mssvm.inference.exact import Exact

ELIMINATION = Exact(methods=ROUTES[-1:])

# A new engine or method is one row here: its name, and how to build it for a number of threads.
METHODS: dict[str, Callable[[int], Inference]] = {
    "native": lambda threads: On(Exact(), NativeEngine(threads)),
    "native, one by one": lambda threads: On(Exact(methods=("given states", *ROUTES[2:])), NativeEngine(threads)),
    "native, conditioning": lambda threads: On(Exact(methods=("conditioning", "elimination")), NativeEngine(threads)),
    "native, clustering": lambda threads: On(
        Exact(methods=("side by side", "clustering", "elimination")), NativeEngine(threads)
    ),
    "native, elimination": lambda threads: On(ELIMINATION, NativeEngine(threads)),
    "native, elimination in log space": lambda threads: On(ELIMINATION, NativeEngine(threads, log_space=True)),
    "reference": lambda threads: On(Exact(), ReferenceEngine(threads)),
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
