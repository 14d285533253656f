"""Layout of a batch of scores: where the scores of every group go, as index tensors that are made once."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, TypeAlias

import numpy as np
import torch

from mssvm.core.arrays import Ints
from mssvm.core.caches import LRUCache, one_each
from mssvm.core.errors import InputError
from mssvm.core.potentials import Query
from mssvm.core.terms import Target
from mssvm.core.topology import Batch, gather
from mssvm.engines.base import BoundQuery
from mssvm.structures import Encoder
from mssvm.structures.encoded import Encoded, to_query
from mssvm.structures.layout import BatchLayout, InstanceTopology

SEGMENT_SITES = "label"  # the group of segmentations that users call "node"
NODES = ("node", "hidden", "attach")  # groups with a member for every node; the others have one for every edge
BY_DIRECTION = {"right": (0, 1), "down": (1, 0), "down_right": (1, 1), "down_left": (1, 1)}
CACHED_BOUNDS = 4  # bound queries cached with a layout, for different temperatures and engines

Places: TypeAlias = "slice | torch.Tensor"
Types = tuple[tuple[str, tuple[str, ...]], ...]


@dataclass(frozen=True)
class LayoutKey:
    """Key of a layout; ``own`` are the groups whose members have tables of their own."""

    n_classes: int
    keys: tuple[Hashable, ...]
    types: Types
    own: frozenset[str]


@dataclass(frozen=True, eq=False)
class ScoreLayout:
    """Instances as a batch, and where the scores of every group go."""

    groups: BatchLayout
    encoded: Encoded
    encoder: Encoder
    constrained: frozenset[str] = frozenset()
    symmetric: bool = False
    plans: dict[Any, Any] = field(default_factory=dict)  # plans of inference for the batch, by purpose
    # ``query`` bound to inference, by temperatures, inference and engine.
    bounds: LRUCache[Hashable, BoundQuery] = field(
        default_factory=partial(LRUCache[Hashable, BoundQuery], CACHED_BOUNDS, one_each)
    )
    _cache: dict[Any, Any] = field(default_factory=dict)

    @property
    def batch(self) -> Batch:
        return self.encoded.batch

    @property
    def site_group(self) -> str:
        """The group with a member for every site."""
        return SEGMENT_SITES if self.encoded.segments is not None else "node"

    @cached_property
    def query(self) -> Query:
        """The query for all labels, none of them given."""
        return to_query(self.encoded)

    def cached(self, key: Hashable, make: Callable[[], Any]) -> Any:
        """The cached result of ``make``; made outside inference mode, so that autograd may save it."""
        if key not in self._cache:
            with torch.inference_mode(False):
                self._cache[key] = make()
        return self._cache[key]

    def index(self, name: str, device: torch.device) -> torch.Tensor:
        """``state_var``, ``state_owner``: variable and instance of every state; ``owner``: instance of every variable;
        ``mu_owner``, ``mu_source``: instance and table entry of every table marginal; ``sites``: variables with
        labels."""

        def make() -> torch.Tensor:
            batch = self.batch
            if name == "sites":
                return _ints(self.encoded.labels.vars, device)
            return _ints(batch.owner[batch.state_var] if name == "state_owner" else getattr(batch, name), device)

        found: torch.Tensor = self.cached((name, device), make)
        return found

    def states_of_sites(self, device: torch.device) -> slice | torch.Tensor:
        """Index of the classes of label sites among all states."""

        def make() -> slice | torch.Tensor:
            found = self.encoded.states_at
            return found if isinstance(found, slice) else _ints(found, device)

        at: slice | torch.Tensor = self.cached(("states of sites", device), make)
        return at

    @cached_property
    def tables_as_marginals(self) -> bool:
        """Whether tables and their marginals have the same layout."""
        batch = self.batch
        return batch.n_mu_entries == batch.n_table_entries and np.array_equal(batch.mu_at, batch.table_at)

    def places(self, group: str, card: int, device: torch.device) -> tuple[Target, Places]:
        """Entries of the unary scores or tables that the members of a group fill, one after the other; a slice where
        they are neighbours, as those of one long sequence are."""

        def make() -> tuple[Target, Places]:
            target, at = self.groups.locate(group)
            if len(at) and np.array_equal(at, at[0] + card * np.arange(len(at))):
                return target, slice(int(at[0]), int(at[0]) + card * len(at))
            return target, _ints((at[:, None] + np.arange(card)).ravel(), device)

        found: tuple[Target, Places] = self.cached(("places", group, device), make)
        return found

    def members(self, name: str, lead: tuple[int, ...], device: torch.device) -> torch.Tensor | None:
        """Rows of a tensor with the leading axes ``lead`` (one axis: all members, concatenated) that are not padding;
        None: all of them."""

        def make() -> torch.Tensor | None:
            rows = self.rows(name, lead)
            return None if rows is None else _ints(rows, device)

        found: torch.Tensor | None = self.cached(("members", name, lead, device), make)
        return found

    def rows(self, name: str, lead: tuple[int, ...]) -> Ints | None:
        """``members`` as an array."""

        def make() -> Ints | None:
            rows = self._inside(name, lead)
            return None if len(rows) == int(np.prod(lead)) else rows

        found: Ints | None = self.cached(("rows", name, lead), make)
        return found

    def _inside(self, name: str, lead: tuple[int, ...]) -> Ints:
        """Rows inside the extent of their instance (not padding)."""
        if len(lead) == 1:
            return np.arange(lead[0])
        kinds = self.groups.topologies
        kind_of = self.groups.topology_of
        extents = np.array([_extent(kind, name, len(lead) - 1) for kind in kinds], dtype=np.int64)
        extents = extents.reshape(len(kinds), len(lead) - 1)[kind_of]
        if lead[0] != len(extents) or np.any(extents > lead[1:]):
            raise InputError(f"scores of {name!r} have leading axes {lead}; the batch needs {_need(extents)}.")
        inside = np.ones(lead, dtype=bool)
        for axis, size in enumerate(lead[1:]):
            here = np.arange(size) < extents[:, axis, None]
            others = tuple(other + 1 for other in range(len(lead) - 1) if other != axis)
            inside &= np.expand_dims(here, others)
        return np.flatnonzero(inside)

    def sizes(self, name: str) -> Ints:
        """Members that every instance has of a group."""
        of_kind = np.array([_size(kind, name) for kind in self.groups.topologies], dtype=np.int64)
        return of_kind[self.groups.topology_of]

    def of_type(self, group: str, name: str, device: torch.device) -> torch.Tensor:
        """The rows of ``name`` (all types) that belong to a group of one type."""

        def make() -> torch.Tensor:
            base, _, kind_name = group.partition(":")
            rows = ("node" if base in NODES else "edge") + (f":{kind_name}" if kind_name else "")
            kinds = self.groups.topologies
            sizes = self.sizes(name)
            found = gather([kind.rows[rows] for kind in kinds], self.groups.topology_of, np.cumsum(sizes) - sizes)
            return _ints(found, device)

        chosen: torch.Tensor = self.cached(("type", group, device), make)
        return chosen


def _ints(found: Any, device: torch.device) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(found, dtype=np.int64)).to(device)


def _size(kind: InstanceTopology, name: str) -> int:
    """Members of a group, or of all groups of a name without a type."""
    own = kind.groups.get(name)
    return len(own) if own is not None else sum(len(g) for n, g in kind.groups.items() if n.partition(":")[0] == name)


def _extent(kind: InstanceTopology, name: str, axes: int) -> tuple[int, ...]:
    """Sizes of the leading axes of a group's scores: the grid's for grids, otherwise the number of members."""
    if axes == 1:
        return (_size(kind, name),)
    base, _, direction = name.partition(":")
    if direction not in BY_DIRECTION and base not in NODES:
        raise InputError(
            f"scores of {name!r} are those of all directions: give a row for every edge, or padded scores for each of "
            f"{', '.join(f'{base}:{way}' for way in BY_DIRECTION)} that the grid has."
        )
    less = BY_DIRECTION.get(direction, (0, 0))
    return tuple(n - k for n, k in zip(kind.shape, less, strict=True))


def _need(extents: Ints) -> str:
    return f"({', '.join(map(str, (len(extents), *extents.max(axis=0, initial=0))))})"
