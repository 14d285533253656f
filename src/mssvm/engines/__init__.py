"""Engines: ``base`` is the protocol, ``native`` runs it on CPUs, ``torch`` on GPUs, ``reference`` defines it in NumPy.

``messages`` and ``decomposition`` are the protocols of belief propagation and of the bound by chains. ``rooting``,
``clusters``, ``elimination`` and ``program`` plan exact inference for any engine.

``engine_of`` finds an engine by its name; a new engine is one package and one line of the table ``ENGINES``. Without a
compiled library "auto" is the reference engine, with a warning once per process.
"""

from __future__ import annotations

from functools import cache
from os import cpu_count
from pkgutil import resolve_name
from typing import Any
from warnings import warn

from mssvm.core import library
from mssvm.core.checks import count
from mssvm.core.errors import InputError, MssvmWarning
from mssvm.engines.base import Engine

__all__ = ["Engine", "engine_of"]


ENGINES = {
    "auto": "mssvm.engines.native.engine:NativeEngine",
    "native": "mssvm.engines.native.engine:NativeEngine",
    "reference": "mssvm.engines.reference:ReferenceEngine",
    "torch": "mssvm.engines.torch:TorchEngine",
}
THREADS = 4096  # more than any machine has


def engine_of(engine: Any = "auto", threads: int | None = 1, device: str | None = None) -> Engine:
    """An engine by name with a number of threads, or the torch engine on a device; an engine object is returned as is.

    ``threads``: None is one, negative numbers count back from the number of cores (-1: all).

    >>> engine = ms.engines.engine_of("reference", threads=1)
    >>> engine.name, ms.CRF(ms.Chain(), engine=engine).fit(X, y).score(X, y)
    ('reference', 1.0)
    """
    n_threads = thread_count(threads)
    if device is not None and engine != "auto":
        raise InputError(f"device={device!r} stands for an engine; leave out either it or engine={engine!r}.")
    if device is not None or (isinstance(engine, str) and engine == "torch"):
        on_device: Engine = resolve_name(ENGINES["torch"])("cpu" if device is None else str(device))
        return on_device
    if isinstance(engine, str) and engine == "numba":
        warn('engine="numba" is called "native" now; the old name ends with 0.4.', FutureWarning, stacklevel=2)
        engine = "native"
    if isinstance(engine, str) and engine == "auto" and (why := library.missing()):
        _warn_once(why)
        engine = "reference"
    if isinstance(engine, str) and engine in ENGINES:
        on_cpu: Engine = resolve_name(ENGINES[engine])(n_threads)
        return on_cpu
    if not isinstance(engine, Engine):
        raise InputError(f"engine must be one of {', '.join(map(repr, ENGINES))} or an engine object, got {engine!r}.")
    return engine


def thread_count(threads: int | None) -> int:
    """The number of threads that the parameter ``threads`` (or ``n_jobs``) stands for."""
    if threads is None:
        return 1
    number = count(threads, "threads (n_jobs)", -THREADS, THREADS)
    if number == 0:
        raise InputError("threads (n_jobs) must be None or a whole number other than 0, got 0.")
    if number > 0:
        return number
    return max(1, (cpu_count() or 1) + 1 + number)


@cache
def _warn_once(why: str) -> None:
    """Warn about the missing library, once, although a process asks for engines many times."""
    warn(f"The reference engine is used, which is hundreds of times slower: {why}", MssvmWarning, stacklevel=3)
