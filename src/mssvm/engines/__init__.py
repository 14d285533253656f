"""Engines: ``base`` is the protocol, ``numba`` runs it on CPUs, ``torch`` on GPUs, ``reference`` defines it in NumPy.

``engine_of`` is the table of names that estimators read; a new engine is one package and one line in it.
"""

from __future__ import annotations

from typing import Any

from mssvm.core.errors import InputError
from mssvm.core.registry import Entry
from mssvm.engines.base import Engine

__all__ = ["Engine", "engine_of"]


ENGINES = {
    "auto": Entry("mssvm.engines.numba.engine", "NumbaEngine"),
    "numba": Entry("mssvm.engines.numba.engine", "NumbaEngine"),
    "reference": Entry("mssvm.engines.reference", "ReferenceEngine"),
    "torch": Entry("mssvm.engines.torch", "TorchEngine"),
}


def engine_of(engine: Any = "auto", threads: int = 1) -> Engine:
    """An engine by name with so many threads, or an engine object as it is.

    >>> engine = ms.engines.engine_of("reference", threads=1)
    >>> engine.name, ms.CRF(ms.Chain(), engine=engine).fit(X, y).score(X, y)
    ('reference', 1.0)
    """
    if isinstance(engine, str) and engine in ENGINES:
        made: Engine = ENGINES[engine].load()(**({} if engine == "torch" else {"threads": threads}))
        return made
    if not isinstance(engine, Engine):
        raise InputError(f"engine must be one of {', '.join(map(repr, ENGINES))} or an engine object, got {engine!r}.")
    return engine
