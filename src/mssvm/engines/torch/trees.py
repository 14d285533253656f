"""Forests on a GPU: pairwise factors of any tables without cycles, in one launch at one temperature
(``kernels/tree.cu``) and in one at two, in logs (``kernels/nested.cu``)."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import torch

from mssvm.core.arrays import Bools, Ints
from mssvm.core.topology import Batch, Topology, offsets
from mssvm.engines.rooting import rooting_of
from mssvm.engines.torch.arrays import SAFE, Device, DeviceQuery, Parts, as_it_is, cached_for, cached_on
from mssvm.engines.torch.chains import longest_first
from mssvm.engines.torch.nvrtc import available, constants, kernel

MOST_STATES = 32
THREADS = 128
# roles of variables: those that may vary are free
OUTPUT = 1
FREE = 2
# flags of `Visit` in common.cu
LEAF = 1 << 16
FIRST_CHILD = 1 << 17
SECOND_VARIABLE = 1 << 18
MOST_WORK = 1 << 30  # bytes of workspace of one launch
CACHED_ORDERS = 1 << 10  # topologies whose orders are cached: batches share them


@dataclass(frozen=True, eq=False)
class Postorder:
    """The order in which a kernel visits the ``variables``: children first, a parent directly after a child.

    ``rows`` are the kernel's structs: first state, first state of the parent, position of the parent, then numbers of
    states and flags. ``factors`` has the factor to the parent.
    """

    rows: Ints
    factors: Ints
    variables: Ints

    @classmethod
    def of(cls, topology: Topology, preferred: bytes = b"") -> Postorder | None:
        """Rooted at variables that ``preferred`` marks, else at leaves.

        None unless the topology is a pairwise forest with at most ``MOST_STATES`` states a variable.
        """
        cards = topology.card_array
        if int(cards.max(initial=0)) > MOST_STATES:
            return None
        leaves = np.bincount(topology.scope_flat, minlength=topology.n_vars) <= 1
        rooting = rooting_of(topology, preferred or leaves.tobytes())
        if not rooting.valid:
            return None
        variables = rooting.postorder()
        position = np.empty_like(variables)
        position[variables] = np.arange(len(variables))
        has_parent = rooting.parent >= 0
        parent = np.maximum(rooting.parent, 0)
        is_leaf = np.ones(len(variables), dtype=bool)
        is_leaf[parent[has_parent]] = False
        first_child = np.full(len(variables), len(variables))
        np.minimum.at(first_child, parent[has_parent], position[has_parent])
        flags = is_leaf * LEAF
        flags += (has_parent & (first_child[parent] == position)) * FIRST_CHILD
        flags += rooting.flip * SECOND_VARIABLE
        begin = topology.unary_ptr[:-1]
        parent_begin = np.where(has_parent, begin[parent], -1)
        numbers = cards + (cards[parent] << 8) + flags
        rows = np.stack([begin, parent_begin, position[parent], numbers], axis=1)
        factors = np.maximum(rooting.edge, 0)
        return cls(rows[variables], factors[variables], variables)

    @cached_property
    def is_path(self) -> bool:
        """Whether no variable has two children."""
        above = self.rows[self.rows[:, 1] >= 0, 2]
        return len(np.unique(above)) == len(above)

    def carries_one(self, roles: Ints) -> bool:
        """Whether every free hidden variable has at most one open output below it.

        An output is open if no other output is on the path between the two.
        """
        mine = roles[self.variables].tolist()
        above = np.where(self.rows[:, 1] >= 0, self.rows[:, 2], -1).tolist()
        carried = [0] * len(mine)
        for role, parent, open_ in zip(mine, above, carried, strict=True):  # parents come later in the list
            if parent >= 0 and mine[parent] == FREE:
                carried[parent] += 1 if role == OUTPUT | FREE else open_
                if carried[parent] > 1:
                    return False
        return True


EMPTY = Postorder(np.zeros((0, 4), dtype=np.int64), np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64))


postorder_of = lru_cache(maxsize=CACHED_ORDERS)(Postorder.of)


def postorders(batch: Batch, at: Device) -> tuple[Postorder | None, ...]:
    """The postorder of every topology of a batch; None where the kernel cannot run it."""
    if at.plain or not available(at.device):
        return (None,) * len(batch.topologies)
    return tuple(map(postorder_of, batch.topologies))


def able_trees(batch: Batch, orders: Sequence[Postorder | None]) -> Bools:
    """Per instance: may the kernel run it?"""
    found: Bools = np.array([t is not None for t in orders], dtype=bool)[batch.topology_of]
    return found


@dataclass(frozen=True, eq=False)
class Forests:
    """Instances whose variables have at most ``wide`` states, longest first, with their index tensors."""

    instances: Ints
    wide: int
    orders: tuple[torch.Tensor, ...]
    places: tuple[torch.Tensor, ...]
    factors: tuple[torch.Tensor, ...]
    n_visits: int
    where: torch.Tensor

    @classmethod
    def of(
        cls, batch: Batch, instances: Ints, wide: int, kinds: Sequence[Postorder], kind_of: Ints, at: Device
    ) -> Forests:
        """``kinds[kind_of[b]]`` is the postorder of instance b of the batch."""
        instances, length = longest_first(batch, instances)
        begin = offsets(np.array([len(t.factors) for t in kinds]))
        work = offsets(length)
        orders = (
            np.concatenate([t.rows for t in kinds]),
            np.concatenate([t.factors for t in kinds]),
            np.concatenate([t.variables for t in kinds]),
        )
        places = (
            at.ints(batch.unary_ptr[batch.var_ptr[instances]]),
            at.shorts(length),
            at.shorts(begin[kind_of[instances]]),
            at.ints(batch.factor_ptr[instances]),
            at.ints(batch.var_ptr[instances]),
            at.ints(work[:-1]),
        )
        factors = cached_on(batch, ("factors", at.device), lambda: (at.ints(batch.table_at), at.ints(batch.mu_at)))
        return cls(instances, wide, tuple(map(at.shorts, orders)), places, factors, int(work[-1]), at.ints(instances))

    @classmethod
    def planned(
        cls, batch: Batch, instances: Ints, wide: int, orders: Sequence[Postorder | None], at: Device
    ) -> Forests:
        """Forests in the postorders of their topologies, cached with the batch."""
        kinds = [t or EMPTY for t in orders]
        return cached_for(
            batch,
            ("forests", at.device),
            instances,
            lambda: cls.of(batch, instances, wide, kinds, batch.topology_of, at),
        )

    @property
    def blocks(self) -> int:
        return -(-len(self.instances) * self.wide // THREADS)

    @property
    def as_struct(self) -> Any:
        """The struct ``Forests`` of the kernels."""
        pointers = [tensor.data_ptr() for tensor in (*self.orders, *self.places, *self.factors)]
        return (ctypes.c_void_p * len(pointers))(*pointers)


def by_width(batch: Batch, instances: Ints) -> Iterator[tuple[int, Ints]]:
    """Instances by the number of lanes (a power of two) that holds the states of each of their variables."""
    most = np.array([g.card_array.max(initial=2) for g in batch.topologies])[batch.topology_of[instances]]
    wide = 2 ** np.ceil(np.log2(np.maximum(most, 2))).astype(np.int64)
    for w in np.unique(wide).tolist():
        yield w, instances[wide == w]


@dataclass(frozen=True, eq=False)
class OnForests:
    """Base of the routes: a kernel bound to forests."""

    forests: Forests

    @property
    def instances(self) -> Ints:
        return self.forests.instances

    @property
    def where(self) -> torch.Tensor:
        return self.forests.where


@dataclass(frozen=True, eq=False)
class TreeRoute(OnForests):
    """Forests at one temperature."""

    eps: float
    method = "tree kernel"

    @classmethod
    def all_of(
        cls, batch: Batch, instances: Ints, eps: float, at: Device, orders: Sequence[Postorder | None]
    ) -> list[TreeRoute]:
        return [cls(Forests.planned(batch, some, wide, orders, at), eps) for wide, some in by_width(batch, instances)]

    def infer_into(self, unary: torch.Tensor, tables: torch.Tensor, mu: Parts) -> torch.Tensor:
        """Values of the instances (NaN where they need log space); their marginals are written."""
        mine = self.forests
        sums = self.eps > 0.0
        dtype = unary.dtype
        value = unary.new_empty(len(mine.instances))
        work = unary.new_empty(mine.n_visits * 2 * mine.wide)
        if sums:
            scaled = tables / self.eps
            outside = (scaled.abs() > SAFE[dtype] / 4) & (scaled > -torch.inf)
            tables = torch.exp(scaled).masked_fill(outside, torch.nan)
        numbers = constants(WIDE=mine.wide, THREADS=THREADS)
        run = kernel("tree.cu", "sums" if sums else "maxima", unary.device, dtype, numbers)
        run(mine.blocks, THREADS, mine.as_struct, unary, tables, work, value, *mu, float(self.eps), len(value))
        return value


@dataclass(frozen=True, eq=False)
class NestedRoute(OnForests):
    """Forests at any two temperatures in which a hidden component touches two free outputs at most."""

    eps: tuple[float, float]
    most: int
    roles: torch.Tensor
    method = "nested tree kernel"

    @classmethod
    def all_of(
        cls,
        batch: Batch,
        instances: Ints,
        query: DeviceQuery,
        eps: tuple[float, float],
        at: Device,
        orders: Sequence[Postorder | None],
    ) -> list[NestedRoute]:
        """Routes of the named forests that can be rooted for these roles; at one temperature all can."""
        if not len(instances):
            return []
        free = query.counts(batch) > 1
        output = query.parts[0] | (eps[0] == eps[1])
        roles = OUTPUT * output.to(torch.uint8) + FREE * free.to(torch.uint8)
        out = list[NestedRoute]()
        kinds, kind_of = rooted_for(batch, instances, roles, orders)
        for wide, some in by_width(batch, instances[kind_of[instances] >= 0]):
            most = max(int(batch.topologies[g].card_array.max(initial=2)) for g in np.unique(batch.topology_of[some]))
            for part in _parts(batch, some, MOST_WORK // (at.dtype.itemsize * 2 * most * (most + 1))):
                if kind_of is batch.topology_of:
                    out.append(cls(Forests.planned(batch, part, wide, orders, at), eps, most, roles))
                else:
                    out.append(cls(Forests.of(batch, part, wide, kinds, kind_of, at), eps, most, roles))
        return out

    def infer_into(self, unary: torch.Tensor, tables: torch.Tensor, mu: Parts) -> torch.Tensor:
        """Values of the instances; their marginals are written, those of pairs added."""
        mine = self.forests
        most = self.most
        value = unary.new_empty(len(mine.instances))
        work = unary.new_empty(mine.n_visits * (most + 2 * most * most))
        rows = torch.empty(mine.n_visits, dtype=torch.int32, device=unary.device)
        run = kernel("nested.cu", "nested", unary.device, unary.dtype, constants(WIDE=mine.wide, THREADS=THREADS))
        given = (self.roles, work, rows, value, *mu, *map(float, self.eps), most, len(value))
        run(mine.blocks, THREADS, mine.as_struct, unary, tables, *given)
        return value


def rooted_for(
    batch: Batch, instances: Ints, roles: torch.Tensor, orders: Sequence[Postorder | None]
) -> tuple[list[Postorder], Ints]:
    """Postorders in which a hidden variable carries one free output at most, and their numbers by instance (-1: none).

    Paths satisfy this when rooted at either end; other forests are rooted at free outputs if necessary.
    """
    kinds = [t or EMPTY for t in orders]
    kind_of = batch.topology_of
    others = instances[~np.array([t.is_path for t in kinds])[kind_of[instances]]]
    if not len(others):
        return kinds, kind_of
    kind_of = kind_of.copy()
    on_host = as_it_is(roles)
    known_as = dict[tuple[int, bytes], int]()
    for b in others.tolist():
        g = int(batch.topology_of[b])
        mine = on_host[batch.var_ptr[b] : batch.var_ptr[b + 1]]
        key = g, mine.tobytes()
        if key not in known_as and kinds[g].carries_one(mine):
            known_as[key] = g
        elif key not in known_as:
            other = Postorder.of(batch.topologies[g], bytes(mine == OUTPUT | FREE)) or EMPTY
            known_as[key] = len(kinds) if other.carries_one(mine) else -1
            kinds += [other] if known_as[key] >= 0 else []
        kind_of[b] = known_as[key]
    return kinds, kind_of


def _parts(batch: Batch, instances: Ints, most_visits: int) -> list[Ints]:
    """Instances in parts of at most ``most_visits`` variables (or of one instance)."""
    before = offsets(np.diff(batch.var_ptr)[instances])[:-1]
    return np.split(instances, np.flatnonzero(np.diff(before // max(most_visits, 1))) + 1)
