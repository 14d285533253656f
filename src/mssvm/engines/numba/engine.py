"""The engine for CPUs: kernels compiled by Numba when first used, cached on disk."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

from mssvm.core.potentials import Potentials
from mssvm.core.terms import Term
from mssvm.core.threads import Workers
from mssvm.core.topology import Batch
from mssvm.engines.base import ExactPlan, Features
from mssvm.engines.numba.features import LinearFeatures

T = TypeVar("T")


@dataclass(frozen=True)
class NumbaEngine:
    """Scaled probabilities in vector lanes where they are safe, log space elsewhere; threads never change a result."""

    threads: int = 1
    name = "numba"

    @cached_property
    def _workers(self) -> Workers:
        return Workers(self.threads)

    def each(self, function: Callable[..., T], *columns: Iterable[Any]) -> list[T]:
        return self._workers.each(function, *columns)

    def exact(self, batch: Batch, memory_limit: int) -> ExactPlan:
        raise NotImplementedError

    def messages(self, batch: Batch) -> Any:
        raise NotImplementedError

    def linear(self, batch: Batch, terms: Sequence[Term], offset: Potentials | None, n_weights: int) -> Features:
        return LinearFeatures(batch, terms, offset, n_weights)
