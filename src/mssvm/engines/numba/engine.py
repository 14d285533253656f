"""The engine for CPUs: kernels compiled by Numba when first used, cached on disk."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

from mssvm.core.threads import Workers
from mssvm.core.topology import Batch
from mssvm.engines.base import ExactPlan
from mssvm.engines.messages import MessagePlan

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

    def messages(self, batch: Batch) -> MessagePlan:
        from mssvm.engines.numba.messages.plan import NumbaMessagePlan

        return NumbaMessagePlan.of(batch, self)
