"""Potentials, marginals and queries that stay on a device; their NumPy arrays are fetched at first access."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

import numpy as np
import torch

from mssvm.core.arrays import AnyArray, Bools, Floats, Ints
from mssvm.core.caches import LRUCache
from mssvm.core.errors import InputError
from mssvm.core.potentials import Marginals, Potentials, Query, ScoreIndex
from mssvm.core.topology import Batch

T = TypeVar("T")
Parts = tuple[torch.Tensor, torch.Tensor]
Index: TypeAlias = "torch.Tensor | slice"
CACHED_SUBSETS = 8  # subsets of a batch whose index tensors are cached
# Largest exponents: exp of them, and products of a few such numbers, stay in the range of the type.
SAFE = {torch.float32: 75.0, torch.float64: 600.0}


@dataclass(frozen=True)
class Device:
    """Device and type of tensors; ``plain``: PyTorch only, without the CUDA kernels."""

    device: torch.device
    dtype: torch.dtype
    plain: bool = False

    @property
    def current(self) -> AbstractContextManager[Any]:
        """Makes this GPU the current one, on which kernels of our own are loaded and launched."""
        if self.device.type != "cuda":
            return nullcontext()
        device: AbstractContextManager[Any] = torch.cuda.device(self.device)
        return device

    def floats(self, array: AnyArray) -> torch.Tensor:
        # torch.from_numpy needs a writeable array without broadcast axes; a loss of zero is broadcast.
        usable = array.flags.writeable and all(array.strides)
        array = np.ascontiguousarray(array) if usable else np.array(array, order="C")
        return torch.from_numpy(array).to(self.device, self.dtype)

    def ints(self, array: AnyArray) -> torch.Tensor:
        return torch.from_numpy(np.array(array, dtype=np.int64, order="C")).to(self.device)

    def shorts(self, array: AnyArray) -> torch.Tensor:
        """32-bit integers, the type of most index arrays of the kernels."""
        return self.ints(array).to(torch.int32)

    def bools(self, array: AnyArray) -> torch.Tensor:
        return torch.from_numpy(np.array(array, dtype=bool, order="C")).to(self.device)

    def theta(self, theta: Potentials, batch: Batch) -> Parts:
        """Potentials on this device, checked."""
        if isinstance(theta, DevicePotentials) and theta.parts[0].device == self.device:
            theta.check(batch)
            return theta.parts[0].to(self.dtype), theta.parts[1].to(self.dtype)
        theta.check(batch)
        return self.floats(theta.unary), self.floats(theta.tables)


def fetched(tensor: torch.Tensor) -> Floats:
    return np.asarray(tensor.detach().to("cpu", torch.float64).numpy())


def as_it_is(tensor: torch.Tensor) -> Any:
    """A tensor of any type as an array of the same type."""
    return tensor.cpu().numpy()


class _OnDevice:
    """Two tensors on a device (``parts``), with their NumPy copies as lazy attributes named in ``fields``."""

    parts: Parts
    fields = ("unary", "tables")

    def __init__(self, first: torch.Tensor, second: torch.Tensor) -> None:
        object.__setattr__(self, "parts", (first, second))

    def __getattr__(self, name: str) -> Any:
        if name not in type(self).fields:
            raise AttributeError(name)
        part = self.parts[type(self).fields.index(name)]
        object.__setattr__(self, name, as_it_is(part) if part.dtype == torch.bool else fetched(part))
        return self.__dict__[name]


class DevicePotentials(_OnDevice, Potentials):
    """theta on a device."""

    def __add__(self, other: Potentials) -> Potentials:
        like = Device(self.parts[0].device, self.parts[0].dtype)
        theirs = other.parts if isinstance(other, DevicePotentials) else _uploaded(other, like)
        return DevicePotentials(self.parts[0] + theirs[0], self.parts[1] + theirs[1])

    def sums(self, index: ScoreIndex, n: int) -> Floats:
        """Sums of indexed scores, which are sorted by instance: sums over segments, of which only the results are
        fetched."""
        at = Device(self.parts[0].device, self.parts[0].dtype)
        (states, n_states), (tables, n_tables), count = cached_on(index, at, lambda: _uploaded_index(index, n, at))
        unary = torch.segment_reduce(self.parts[0][states], "sum", lengths=n_states, unsafe=True)
        table = torch.segment_reduce(count * self.parts[1][tables], "sum", lengths=n_tables, unsafe=True)
        return fetched(unary + table)

    def check(self, batch: Batch) -> None:
        sizes = ("unary", batch.n_states), ("tables", batch.n_table_entries)
        for part, (name, size) in zip(self.parts, sizes, strict=True):
            if part.shape != (size,):
                raise InputError(f"potentials.{name} has shape {tuple(part.shape)}, the batch needs ({size},).")
            if not torch.isfinite(part.sum()) and bool((torch.isnan(part) | (part == torch.inf)).any()):
                raise InputError(f"potentials.{name} holds NaN or +inf; scores must be finite or -inf (forbidden).")


def _uploaded(theta: Potentials, to: Device) -> Parts:
    return cached_on(theta, to, lambda: (to.floats(theta.unary), to.floats(theta.tables)))


def _uploaded_index(index: ScoreIndex, n: int, to: Device) -> tuple[Parts, Parts, torch.Tensor]:
    """Entries and their number per instance, of states and of tables; and the counts of table entries."""
    states = (to.ints(index.states), to.ints(np.bincount(index.owner, minlength=n)))
    tables = (to.ints(index.tables), to.ints(np.bincount(index.table_owner, minlength=n)))
    return states, tables, to.floats(index.count)


def cached_on(host: Any, name: Hashable, upload: Callable[[], T]) -> T:
    """The result of ``upload`` for an object on the host, cached on that object for later iterations."""
    uploads: dict[Hashable, T] = host.__dict__.setdefault("_on_devices", {})
    if name not in uploads:
        uploads[name] = upload()
    return uploads[name]


def one_size(batch: Batch) -> bool:
    """Whether a batch has variables, and all have the same number of states."""
    return cached_on(batch, "one size", lambda: bool(batch.n_states and np.all(batch.cards == batch.cards[0])))


def cached_for(batch: Batch, name: Hashable, instances: Ints, make: Callable[[], T]) -> T:
    """The result of ``make`` for a subset of a batch, cached on the batch for the last few subsets."""
    recent: LRUCache[bytes, T] = cached_on(batch, ("subsets", name), lambda: LRUCache(CACHED_SUBSETS, lambda _: 1))
    return recent.get(instances.tobytes(), lambda _: make())


class DeviceMarginals(_OnDevice, Marginals):
    """mu on a device."""

    def __sub__(self, other: Marginals) -> Marginals:
        if not isinstance(other, DeviceMarginals):
            return Marginals(self.unary - other.unary, self.tables - other.tables)
        return DeviceMarginals(self.parts[0] - other.parts[0], self.parts[1] - other.parts[1])

    def add(self, other: Marginals) -> None:
        at = Device(self.parts[0].device, self.parts[0].dtype)
        if isinstance(other, DeviceMarginals):
            theirs = other.parts
        else:
            theirs = (at.floats(other.unary), at.floats(other.tables))
        for part, more in zip(self.parts, theirs, strict=True):
            part.add_(more)
        self.changed()

    def changed(self) -> None:
        """Forget the NumPy copies: the tensors have new values."""
        for name in self.fields:
            self.__dict__.pop(name, None)

    def clear(self, batch: Batch, instances: Bools) -> None:
        marked = (instances[batch.owner][batch.state_var], instances[batch.mu_owner])
        for part, mark in zip(self.parts, marked, strict=True):
            part.masked_fill_(Device(part.device, part.dtype).bools(mark), 0.0)
        self.changed()

    def scaled(self, batch: Batch, weight: Floats) -> Marginals:
        at = Device(self.parts[0].device, self.parts[0].dtype)
        weights = at.floats(weight)
        owners = at.ints(batch.owner[batch.state_var]), at.ints(batch.mu_owner)
        return DeviceMarginals(*(part * weights[owner] for part, owner in zip(self.parts, owners, strict=True)))

    def best(self, batch: Batch) -> Ints:
        if not one_size(batch):
            return super().best(batch)
        states: Ints = as_it_is(self.parts[0].reshape(batch.n_vars, -1).argmax(dim=1))
        return states


class DeviceQuery(_OnDevice, Query):
    """Roles and masks on a device."""

    fields = ("output", "allowed")

    @classmethod
    def on(cls, to: Device, query: Query) -> DeviceQuery:
        """A query on this device, with the host's arrays as its NumPy copies."""
        if isinstance(query, DeviceQuery) and query.parts[0].device == to.device:
            return query

        def upload() -> DeviceQuery:
            found = cls(to.bools(query.output), to.bools(query.allowed))
            found.__dict__.update(output=query.output, allowed=query.allowed)
            return found

        return cached_on(query, to.device, upload)

    def restrict(self, mask: Any) -> DeviceQuery:
        output, allowed = self.parts
        return DeviceQuery(output, allowed & (mask if torch.is_tensor(mask) else torch.from_numpy(mask).to(allowed)))

    def counts(self, batch: Batch) -> torch.Tensor:
        """Number of allowed states of each variable, on the device."""
        if "_counts" not in self.__dict__:
            allowed = self.parts[1]
            n = batch.n_vars
            if one_size(batch):
                found = allowed.reshape(n, -1).sum(dim=1, dtype=torch.int32)
            else:
                at = Device(allowed.device, torch.float64)
                of = cached_on(batch, ("state_var", allowed.device), lambda: at.ints(batch.state_var))
                found = torch.zeros(n, dtype=torch.int32, device=of.device).index_add_(0, of, allowed.to(torch.int32))
            self.__dict__["_counts"] = found
        counts: torch.Tensor = self.__dict__["_counts"]
        return counts

    def n_allowed(self, batch: Batch) -> Ints:
        return np.asarray(as_it_is(self.counts(batch)), dtype=np.int64)

    def check(self, batch: Batch) -> None:
        shapes = tuple(len(part) for part in self.parts)
        if shapes != (batch.n_vars, batch.n_states) or bool((self.counts(batch) == 0).any()):
            super().check(batch)

    def has_free(self, batch: Batch) -> tuple[Bools, Bools]:
        """Per instance: whether it has free outputs, and whether it has free hidden variables."""
        free = self.counts(batch) > 1
        output = self.parts[0]
        at = Device(output.device, torch.float64)
        owner = cached_on(batch, ("owner", output.device), lambda: at.ints(batch.owner))
        both = torch.stack([free & output, free & ~output], dim=1).to(torch.int32)
        found = torch.zeros((len(batch), 2), dtype=torch.int32, device=output.device).index_add_(0, owner, both)
        has: Bools = as_it_is(found > 0)
        return has[:, 0], has[:, 1]
