"""Tensors as potentials: scores of the groups of a structure, padded or ragged, laid out as a batch.

A structure names groups of variables and factors (``structures.pairwise``): "node" the labels, "edge" their links
(grids: "edge:right", "edge:down", ...), "hidden" or "between" the hidden variables, "attach", "left", "right" and
"hidden.edge" their links, "first" and "last" the ends of chains. The scores of a group are

    one tensor of its states, shared by all members      (K,) or (K, K)
    a padded tensor with ``lengths``                     (B, T, K), (B, T - 1, K, K); of grids (B, H, W, K), ...
    a list with a tensor for every instance              [(T_0, K), (T_1, K), ...]

A name without its type ("edge") stands for the links of every type, in the order of the instance's edges.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from operator import attrgetter
from typing import Any

import numpy as np
import torch

from mssvm.core.arrays import Ints
from mssvm.core.errors import InputError
from mssvm.core.potentials import Target
from mssvm.core.recent import Recent
from mssvm.core.topology import Batch, gather
from mssvm.data.graphs import Graph
from mssvm.data.labels import LabelVocabulary
from mssvm.models.linear import LinearInputs
from mssvm.structures import Grid, SequenceClass, Structure
from mssvm.structures.base import Encoder, Schema
from mssvm.structures.encoded import Encoded, Frames, GroupedTopology

Scores = Any
"""A tensor (the labels' scores alone), or a mapping from names of groups to tensors or lists of tensors."""
KEPT = 1 << 22  # states of layouts that are kept
NODES = ("node", "hidden", "attach")  # groups with a member for every node; the others have one for every edge
BY_DIRECTION = {"right": (0, 1), "down": (1, 0), "down_right": (1, 1), "down_left": (1, 1)}


@dataclass(frozen=True)
class LayoutKey:
    """What a layout depends on; ``own`` are the groups whose members have tables of their own."""

    n_classes: int
    keys: tuple[Hashable, ...]
    types: tuple[tuple[str, tuple[str, ...]], ...]
    own: frozenset[str]


@dataclass(frozen=True, eq=False)
class ScoreLayout:
    """Instances as a batch, and where the scores of every group go."""

    frames: Frames
    encoded: Encoded
    vocabulary: LabelVocabulary
    constrained: frozenset[str] = frozenset()
    plans: dict[Any, Any] = field(default_factory=dict)  # what was planned for the batch, by what it is for
    _kept: dict[Any, Any] = field(default_factory=dict)

    @property
    def batch(self) -> Batch:
        return self.encoded.batch

    def index(self, name: str, device: torch.device) -> torch.Tensor:
        """``owner``: instance of every state; ``mu_owner``, ``mu_source``: of every entry of table marginals."""
        key = (name, device)
        if key not in self._kept:
            batch = self.batch
            found = batch.owner[batch.state_var] if name == "owner" else getattr(batch, name)
            self._kept[key] = torch.from_numpy(np.ascontiguousarray(found, dtype=np.int64)).to(device)
        return self._kept[key]

    @cached_property
    def tables_as_marginals(self) -> bool:
        """Whether tables and their marginals lie alike."""
        batch = self.batch
        return batch.n_mu_entries == batch.n_table_entries and np.array_equal(batch.mu_at, batch.table_at)

    def places(self, group: str, card: int, device: torch.device) -> tuple[Target, torch.Tensor]:
        """Entries of the unary scores or tables that the members of a group fill, one after the other."""
        key = ("places", group, device)
        if key not in self._kept:
            target, at = self.frames.locate(group)
            entries = (at[:, None] + np.arange(card)).ravel()
            self._kept[key] = target, torch.from_numpy(np.ascontiguousarray(entries, dtype=np.int64)).to(device)
        found: tuple[Target, torch.Tensor] = self._kept[key]
        return found

    def members(self, name: str, lead: tuple[int, ...], device: torch.device) -> torch.Tensor | None:
        """Rows of a tensor with the leading axes ``lead`` (one axis: of all members in a row) that are no padding;
        None: all of them."""
        key = ("members", name, lead, device)
        if key not in self._kept:
            rows = self._rows(name, lead)
            self._kept[key] = None if len(rows) == int(np.prod(lead)) else torch.from_numpy(rows).to(device)
        return self._kept[key]

    def _rows(self, name: str, lead: tuple[int, ...]) -> Ints:
        """Rows that lie in the extent of their instance."""
        if len(lead) == 1:
            return np.arange(lead[0])
        extents = np.array([_extent(kind, name, len(lead) - 1) for kind in self.frames.kinds])[self.frames.kind_of]
        if lead[0] != len(extents) or np.any(extents > lead[1:]):
            raise InputError(f"scores of {name!r} have leading axes {lead}; the batch needs {_need(extents)}.")
        inside = np.ones(lead, dtype=bool)
        for axis, size in enumerate(lead[1:]):
            here = np.arange(size) < extents[:, axis, None]
            inside &= here.reshape([len(extents)] + [size if a == axis else 1 for a in range(len(lead) - 1)])
        return np.flatnonzero(inside)

    def of_type(self, group: str, name: str, device: torch.device) -> torch.Tensor:
        """The rows of ``name`` (all types) that belong to a group of one type."""
        key = ("type", group, device)
        if key not in self._kept:
            base, _, kind_name = group.partition(":")
            rows = ("node" if base in NODES else "edge") + (f":{kind_name}" if kind_name else "")
            kinds, kind_of = self.frames.kinds, self.frames.kind_of
            sizes = np.array([_size(kind, name) for kind in kinds], dtype=np.int64)[kind_of]
            found = gather([kind.rows[rows] for kind in kinds], kind_of, np.cumsum(sizes) - sizes)
            self._kept[key] = torch.from_numpy(found).to(device)
        return self._kept[key]


def _size(kind: GroupedTopology, name: str) -> int:
    """Members of a group, or of all groups of a name without a type."""
    own = kind.groups.get(name)
    return len(own) if own is not None else sum(len(g) for n, g in kind.groups.items() if n.partition(":")[0] == name)


def _extent(kind: GroupedTopology, name: str, axes: int) -> tuple[int, ...]:
    """Sizes of the leading axes of a group's scores: the grid's for grids, otherwise the number of members."""
    if axes == 1:
        return (_size(kind, name),)
    less = BY_DIRECTION.get(name.partition(":")[2], (0, 0))
    return tuple(n - k for n, k in zip(kind.shape, less, strict=True))


def _need(extents: Ints) -> str:
    return f"({', '.join(map(str, (len(extents), *extents.max(axis=0))))})"


@dataclass(frozen=True, eq=False)
class LaidOut:
    """Scores of a batch in the layout of ``Batch``; ``padded`` are the axes of the sites where they were padded."""

    layout: ScoreLayout
    unary: torch.Tensor
    tables: torch.Tensor
    padded: tuple[int, ...] | None = None

    @property
    def device(self) -> torch.device:
        return self.unary.device

    def back(self, per_site: torch.Tensor, fill: float) -> Any:
        """One row per label site in the shape in which scores came: padded with ``fill``, or a list."""
        encoded = self.layout.encoded
        if self.padded is None or encoded.labels.scalar:
            found = encoded.labels.split(per_site)
            return found
        rows = self.layout.members("node", self.padded, per_site.device)
        more = per_site.shape[1:]
        if rows is None:
            return per_site.reshape(*self.padded, *more)
        out = per_site.new_full((int(np.prod(self.padded)), *more), fill)
        out[rows] = per_site
        return out.reshape(*self.padded, *more)


class Layouts:
    """Layouts of one structure, the most recent kept."""

    def __init__(self, structure: Structure, all_own: bool = False) -> None:
        structure.check()
        self.structure, self.all_own = structure, all_own
        self._kept: Recent[LayoutKey, ScoreLayout] = Recent(KEPT, attrgetter("batch.n_states"))

    def lay_out(self, scores: Scores, lengths: Any = None, graphs: Any = None) -> LaidOut:
        """Scores as potentials of a batch."""
        given = dict(scores) if isinstance(scores, Mapping) else {self._main({}): scores}
        given = {name: _tensors(name, value) for name, value in given.items()}
        main = self._main(given)
        if main not in given:
            raise InputError(f"scores lack the group {main!r}, one row for every site.")
        keys, types = self._keys(given[main], main, lengths, graphs)
        layout = self._kept.get(LayoutKey(self._n_classes(given), keys, types, self._own(given)), self._make)
        unary, tables = _fill(layout, given)
        padded = None
        if torch.is_tensor(given[main]):
            padded = tuple(given[main].shape[: 1 + (2 if isinstance(self.structure, Grid) else 1)])
        return LaidOut(layout, unary, tables, padded)

    def _main(self, given: Mapping[str, Any]) -> str:
        """The group whose rows are the sites."""
        if not isinstance(self.structure, SequenceClass):
            return "node"
        return "state" if "state" in given else "label_state"

    def _n_classes(self, given: Mapping[str, Any]) -> int:
        if isinstance(self.structure, SequenceClass):
            name, axis = ("label", -1) if "label" in given else ("label_state", -2)
        else:
            name, axis = "node", -1
        return int(_first(given[name]).shape[axis])

    def _axes(self, group: str) -> int:
        """Axes of states of a group's tables."""
        base = group.partition(":")[0]
        if base == "transition":
            return 3
        return 1 if base in ("node", "hidden", "between", "first", "last", "state", "label") else 2

    def _own(self, given: Mapping[str, Any]) -> frozenset[str]:
        return frozenset(
            name for name, value in given.items()
            if self._axes(name) > 1 and (self.all_own or not torch.is_tensor(value) or value.ndim > self._axes(name))
        )  # fmt: skip

    def _keys(self, main: Any, name: str, lengths: Any, graphs: Any) -> tuple[tuple[Hashable, ...], Any]:
        """What the topology of every instance depends on, and the types of nodes and edges."""
        axes = 2 if isinstance(self.structure, Grid) else 1
        if torch.is_tensor(main):
            if main.ndim < 1 + axes + self._axes(name):
                raise InputError(f"scores of {name!r} have shape {tuple(main.shape)}; a batch axis is missing.")
            sizes = np.tile(main.shape[1 : 1 + axes], (main.shape[0], 1))
            if lengths is not None:
                sizes = np.asarray(torch.as_tensor(lengths).cpu(), dtype=np.int64).reshape(len(sizes), axes)
        else:
            sizes = np.array([part.shape[:axes] for part in main], dtype=np.int64)
        items: list[Any] = [np.broadcast_to(0.0, (*size, 1)) for size in sizes.tolist()]
        if graphs is not None:
            items = [_graph(g, x, b) for b, (g, x) in enumerate(zip(graphs, items, strict=True))]
        raw = self.structure.read(items)
        keys = sizes[:, 0].tolist() if raw.keys is None else raw.keys
        return tuple(keys), tuple(sorted(raw.types.items()))

    def _make(self, key: LayoutKey) -> ScoreLayout:
        vocabulary = LabelVocabulary(tuple(range(key.n_classes)))
        encoder = Encoder(self.structure, Schema({}, dict(key.types)), vocabulary)
        numbers: dict[Hashable, int] = {}
        kind_of = np.array([numbers.setdefault(k, len(numbers)) for k in key.keys], dtype=np.int64)
        kinds = tuple(self.structure.topology(k, encoder) for k in numbers)
        groups = {group for kind in kinds for group in kind.factors}
        own = {g for g in groups if g in key.own or g.partition(":")[0] in key.own or self.all_own}
        frames = Frames(kinds, kind_of, own)
        allowed, offset = frames.constrain(encoder.constraints)
        labels, hidden = frames.sites(), frames.sites(hidden=True)
        inputs = LinearInputs(frames.batch, (), offset)
        constrained = frozenset(constraint.group for constraint in encoder.constraints)
        return ScoreLayout(frames, Encoded(inputs, labels, hidden, key.n_classes, allowed), vocabulary, constrained)


def _graph(given: Any, nodes: Any, b: int) -> Graph:
    """A graph without features: of a ``Graph``, or of an (E, 2) array of edges."""
    if isinstance(given, Graph):
        return Graph(nodes, given.edges, None, given.node_types, given.edge_types)
    edges = given.cpu().numpy() if torch.is_tensor(given) else np.asarray(given, dtype=np.int64)
    if edges.size and (edges.ndim != 2 or edges.shape[1] != 2):
        raise InputError(f"graphs needs an (E, 2) array of edges, got {edges.shape}.", what="graphs", instance=b)
    return Graph(nodes, edges.reshape(-1, 2))


def _tensors(name: str, value: Any) -> Any:
    if torch.is_tensor(value):
        return value
    if isinstance(value, Sequence) and len(value) and all(torch.is_tensor(part) for part in value):
        return list(value)
    raise InputError(f"scores of {name!r} must be a tensor or a list of tensors, got {type(value).__name__}.")


def _first(value: Any) -> torch.Tensor:
    return value if torch.is_tensor(value) else value[0]


def _fill(layout: ScoreLayout, given: Mapping[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
    """Unary scores and tables of the batch, in the widest of the given types (at least single precision)."""
    batch, frames = layout.batch, layout.frames
    known = {name for kind in frames.kinds for name in kind.groups}
    for name in given:
        if name not in known and not any(group.partition(":")[0] == name for group in known):
            listed = ", ".join(map(repr, sorted(known)))
            raise InputError(f"scores name the group {name!r}; the structure has {listed}.")
    dtype = torch.float64 if any(_first(v).dtype == torch.float64 for v in given.values()) else torch.float32
    device = _first(next(iter(given.values()))).device
    out: dict[Target, torch.Tensor | None] = {"unary": None, "tables": None}
    sizes: dict[Target, int] = {"unary": batch.n_states, "tables": batch.n_table_entries}
    for group in sorted(known, key=_order):
        name = group if group in given else group.partition(":")[0]
        if name not in given:
            if group in frames.factors and group not in layout.constrained:
                raise InputError(f"scores lack the group {group!r}; give a table for all of its members, or one each.")
            continue
        target, values, places = _placed(layout, group, name, given[name])
        values = values.to(device, dtype)
        if out[target] is None and len(places) == sizes[target] and _in_order(layout, group, places):
            out[target] = values
            continue
        base = out[target]
        base = values.new_zeros(sizes[target]) if base is None else base
        out[target] = base.index_add(0, places, values)
    unary, tables = (
        torch.zeros(sizes[t], dtype=dtype, device=device) if out[t] is None else out[t] for t in ("unary", "tables")
    )
    if layout.encoded.inputs.offset is not None:
        tables = tables + torch.as_tensor(layout.encoded.inputs.offset.tables).to(device, dtype)
    return unary, tables


def _order(group: str) -> tuple[bool, str]:
    return not group.startswith("node"), group


def _in_order(layout: ScoreLayout, group: str, places: torch.Tensor) -> bool:
    key = ("in order", group)
    if key not in layout._kept:
        layout._kept[key] = bool((places == torch.arange(len(places), device=places.device)).all())
    return bool(layout._kept[key])


def _placed(layout: ScoreLayout, group: str, name: str, given: Any) -> tuple[Target, torch.Tensor, torch.Tensor]:
    """The scores of a group's members, flat, and where they go."""
    first, kinds = _first(given), layout.frames.kinds
    example = next(kind for kind in kinds if group in kind.groups)
    scope = example.groups[group]
    axes = scope.shape[1]
    cards = tuple(example.cards[scope[0]].tolist()) if len(scope) else tuple(first.shape[-axes:])
    if tuple(first.shape[-axes:]) != cards:
        raise InputError(f"scores of {name!r} end in axes {tuple(first.shape[-axes:])}; the structure needs {cards}.")
    size, device = int(np.prod(cards)), first.device
    target, places = layout.places(group, size, device)
    if torch.is_tensor(given) and given.ndim == axes:
        return target, given.reshape(1, size).expand(len(places) // size, size).reshape(-1), places
    if torch.is_tensor(given):
        lead = tuple(given.shape[:-axes])
        rows = layout.members(name, lead, device)
        flat = given.reshape(-1, size)
    else:
        rows, flat = None, torch.cat([part.reshape(-1, size) for part in given])
    flat = flat if rows is None else flat[rows]
    if name != group:
        flat = flat[layout.of_type(group, name, device)]
    if flat.numel() != len(places):
        raise InputError(f"scores of {name!r} have {len(flat)} rows; the batch has {len(places) // size} members.")
    return target, flat.reshape(-1), places
