"""Tensors as potentials: scores of the groups of a structure, padded or ragged, laid out as a batch.

A structure names groups of variables and factors (``structures.pairwise``): "node" the labels, "edge" their links
(grids: "edge:right", "edge:down", ...), "hidden" or "between" the hidden variables, "attach", "left", "right" and
"hidden.edge" their links, "first" and "last" the ends of chains, "trigram" (K, K, K) three labels in a row where a
chain has order 2. Segments have "node", and where they are not zero "transition" (C, C), "duration" (K, C), "begin" and
"end" (C,), "boundary" (B, T, 2), "first" and "last", and for hidden states "hidden" (B, T, C, H), "attach" (C, H) and
"move" (C, H, H). The scores of a group are

    one tensor of its states, shared by all members      (K,) or (K, K)
    a padded tensor with ``lengths``                     (B, T, K), (B, T - 1, K, K); of grids (B, H, W, K), ...
    a list with a tensor for every instance              [(T_0, K), (T_1, K), ...]

A link of an undirected graph has one table, which scores both orders: table[a, b] + table[b, a].

The table of a link from site i to site j has the state of i on its first axis and that of j on its second: in
chains, edge[a, b] scores label a followed by label b, as ``transition`` of estimators does.

A name without its type ("edge") stands for the links of every type, in the order of the instance's edges.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Any, TypeVar, cast

import numpy as np
import torch

from mssvm.core.caches import LRUCache, one_each
from mssvm.core.errors import InputError, UnsupportedError
from mssvm.core.terms import Target
from mssvm.data.graphs import Graph
from mssvm.data.labels import LabelVocabulary
from mssvm.models.linear import LinearInputs
from mssvm.structures import Encoder, GraphModel, Grid, Schema, Segments, SequenceLabel, Structure
from mssvm.structures.chain import TRIGRAM
from mssvm.structures.encoded import Encoded
from mssvm.structures.layout import BatchLayout
from mssvm.torch.layouts import SEGMENT_SITES, LayoutKey, Places, ScoreLayout, Types
from mssvm.torch.lengths import checked_lengths

Scores = Any
"""A tensor (the labels' scores alone), or a mapping from names of groups to tensors or lists of tensors."""
CACHED_STATES = 1 << 22  # total number of states of cached layouts
ENCODERS = 8
LINKS = ("edge", "hidden.edge")  # groups whose tables are symmetric where the graph is undirected
SEGMENT_AXES = {"transition": 2, "duration": 2, "attach": 2, "move": 3}  # axes of tables; the other groups have one

EncoderKey = tuple[int, Types]


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
        """One row per label site, in the form of the given scores: padded with ``fill``, or a list."""
        encoded = self.layout.encoded
        if self.padded is None or encoded.labels.scalar:
            found = encoded.labels.split(per_site)
            return found
        rows = self.layout.members(self.layout.site_group, self.padded, per_site.device)
        more = per_site.shape[1:]
        if rows is None:
            return per_site.reshape(*self.padded, *more)
        out = per_site.new_full((int(np.prod(self.padded)), *more), fill)
        out[rows] = per_site
        return out.reshape(*self.padded, *more)


class Layouts:
    """Layouts of one structure, with a cache of the most recent."""

    def __init__(self, structure: Structure, all_own: bool = False, missing_label: Hashable = None) -> None:
        structure.check()
        self.structure = structure
        self.all_own = all_own
        self.missing_label = missing_label
        self._cache: LRUCache[LayoutKey, ScoreLayout] = LRUCache(CACHED_STATES, lambda layout: layout.batch.n_states)
        self._encoders: LRUCache[EncoderKey, Encoder] = LRUCache(ENCODERS, one_each)

    def lay_out(self, scores: Scores, lengths: Any = None, graphs: Any = None) -> LaidOut:
        """Scores as potentials of a batch."""
        given = dict(scores) if isinstance(scores, Mapping) else {self._main({}): scores}
        given = {name: _tensors(name, value) for name, value in given.items()}
        if isinstance(self.structure, Segments):
            given = _of_segments(given)
        main = self._main(given)
        if main not in given:
            raise InputError(f"scores lack the group {main!r}, one row for every site.")
        keys, types = self._keys(given[main], main, lengths, graphs)
        layout = self._cache.get(LayoutKey(self._n_classes(given), keys, types, self._own(given)), self._make)
        unary, tables = _fill(layout, given) if keys else _nothing(given)
        padded = None
        if torch.is_tensor(given[main]):
            padded = tuple(given[main].shape[: 1 + self._site_axes])
        return LaidOut(layout, unary, tables, padded)

    @property
    def _site_axes(self) -> int:
        """Axes of the labels after that of instances."""
        if isinstance(self.structure, SequenceLabel):
            return 0
        if isinstance(self.structure, Grid):
            return 2
        return 1

    def _main(self, given: Mapping[str, Any]) -> str:
        """The group whose rows are the sites."""
        if isinstance(self.structure, Segments):
            return SEGMENT_SITES
        if not isinstance(self.structure, SequenceLabel):
            return "node"
        return "state" if "state" in given else "label_state"

    def _n_classes(self, given: Mapping[str, Any]) -> int:
        name = SEGMENT_SITES if isinstance(self.structure, Segments) else "node"
        axis = -1
        if isinstance(self.structure, SequenceLabel):
            name, axis = ("label", -1) if "label" in given else ("label_state", -2)
        if name not in given or _first(given[name]).ndim < -axis:
            raise InputError(f"scores of {name!r} have to say how many classes there are, by their last axes.")
        return int(_first(given[name]).shape[axis])

    def _axes(self, group: str) -> int:
        """Axes of states of a group's tables."""
        base = group.partition(":")[0]
        if isinstance(self.structure, Segments):
            return SEGMENT_AXES.get(base, 1)
        if base in ("transition", TRIGRAM):
            return 3
        return 1 if base in ("node", "hidden", "between", "first", "last", "state", "label") else 2

    def _own(self, given: Mapping[str, Any]) -> frozenset[str]:
        return frozenset(
            name
            for name, value in given.items()
            if self._axes(name) > 1 and (self.all_own or not torch.is_tensor(value) or value.ndim > self._axes(name))
        )

    def _keys(self, main: Any, name: str, lengths: Any, graphs: Any) -> tuple[tuple[Hashable, ...], Types]:
        """Keys of the instances' topologies, and the types of nodes and edges."""
        axes = 2 if isinstance(self.structure, Grid) else 1
        if torch.is_tensor(main):
            if main.ndim < 1 + axes + self._axes(name):
                raise InputError(f"scores of {name!r} have shape {tuple(main.shape)}; a batch axis is missing.")
            most = tuple(main.shape[1 : 1 + axes])
            sizes = np.tile(most, (main.shape[0], 1)) if lengths is None else checked_lengths(lengths, len(main), most)
        elif lengths is not None:
            raise InputError("lengths are those of padded scores; a list of tensors says how long each is.")
        else:
            sizes = np.array([part.shape[:axes] for part in main], dtype=np.int64)
        if (graphs is None) == isinstance(self.structure, GraphModel):
            raise InputError("GraphModel, and no other structure, needs graphs=, one for every instance.")
        if graphs is None:  # instances of one size are alike
            every = list(map(tuple, sizes.tolist()))
            different = dict.fromkeys(every)
            raw = self.structure.read([np.broadcast_to(0.0, (*size, 1)) for size in different])
            of_size = dict(zip(different, raw.keys or [size[0] for size in different], strict=True))
            keys = [of_size[size] for size in every]
        else:
            if len(graphs) != len(sizes):
                raise InputError(f"there are {len(graphs)} graphs for {len(sizes)} instances.")
            nodes = [np.broadcast_to(0.0, (*size, 1)) for size in sizes.tolist()]
            raw = self.structure.read([_graph(g, x, b) for b, (g, x) in enumerate(zip(graphs, nodes, strict=True))])
            keys = list(raw.keys or ())
        return tuple(keys), tuple(sorted(raw.types.items()))

    def _make(self, key: LayoutKey) -> ScoreLayout:
        encoder = self._encoders.get((key.n_classes, key.types), self._encoder)
        numbers: dict[Hashable, int] = {}
        kind_of = np.array([numbers.setdefault(k, len(numbers)) for k in key.keys], dtype=np.int64)
        kinds = tuple(encoder.topology(k) for k in numbers)
        factor_groups = {group for kind in kinds for group in kind.factors}
        own = {g for g in factor_groups if g in key.own or g.partition(":")[0] in key.own or self.all_own}
        groups = BatchLayout(kinds, kind_of, constraints=encoder.constraints, own_tables=own)
        inputs = LinearInputs(groups.batch, (), groups.offset)
        constrained = frozenset(constraint.group for constraint in encoder.constraints)
        encoded = Encoded(inputs, groups.labels, groups.hidden, key.n_classes, groups.allowed, segments=groups.segments)
        symmetric = not getattr(self.structure, "directed", True)
        return ScoreLayout(groups, encoded, encoder, constrained, symmetric)

    def _encoder(self, key: EncoderKey) -> Encoder:
        """The encoder of a key; its cache of instance topologies is shared by batches of different lengths."""
        n_classes, types = key
        vocabulary = LabelVocabulary(tuple(range(n_classes)), self.missing_label)
        return Encoder(self.structure, Schema({}, dict(types)), vocabulary)


def _of_segments(given: Mapping[str, Any]) -> dict[str, Any]:
    """Scores by the groups of a segmentation, in which pairs of label and hidden state are states of one variable."""
    out = {}
    for name, value in given.items():
        if name == "segment":
            raise UnsupportedError("the layer takes no scores of single segments; pass segment_x to an estimator.")
        if name == "hidden" and torch.is_tensor(value):
            out[name] = value.flatten(-2)
        elif name == "hidden":
            out[name] = [part.flatten(-2) for part in value]
        else:
            out[SEGMENT_SITES if name == "node" else name] = value
    return out


def _graph(given: Any, nodes: Any, b: int) -> Graph:
    """A graph without features: of a ``Graph``, or of an (E, 2) array of edges."""
    if isinstance(given, Graph):
        return Graph(nodes, given.edges, None, given.node_types, given.edge_types)
    edges = given.cpu().numpy() if torch.is_tensor(given) else np.asarray(given, dtype=np.int64)
    if edges.size and (edges.ndim != 2 or edges.shape[1] != 2):
        raise InputError(f"graphs needs an (E, 2) array of edges, got {edges.shape}.", what="graphs", instance=b)
    return Graph(nodes, edges.reshape(-1, 2))


Method = TypeVar("Method", bound=Callable[..., Any])


def names_scores(method: Method) -> Method:
    """A method of (self, scores, ...) whose errors about potentials name the caller's scores."""

    @wraps(method)
    def named(self: Any, scores: Any, *args: Any, **settings: Any) -> Any:
        try:
            return method(self, scores, *args, **settings)
        except InputError as error:
            bad = bad_scores(scores) if "potentials." in str(error) else ""
            if not bad:
                raise
            raise InputError(bad) from None

    return cast(Method, named)


def bad_scores(scores: Scores) -> str:
    """A sentence about the first scores that are NaN or +inf; "" if there are none."""
    if isinstance(scores, LaidOut):
        return ""
    for name, value in (scores if isinstance(scores, Mapping) else {"node": scores}).items():
        for number, part in enumerate([value] if torch.is_tensor(value) else value):
            bad = torch.isnan(part) | (part == torch.inf)
            if bad.any():
                place = tuple(torch.nonzero(bad)[0].tolist())
                which = "" if torch.is_tensor(value) else f" of instance {number}"
                what = "NaN" if bool(torch.isnan(part[place])) else "+inf"
                reason = "look at the network's output, its learning rate and its inputs"
                return f"scores of {name!r}{which} hold {what} at {place}; {reason} (-inf forbids a state)."
    return ""


def _tensors(name: str, value: Any) -> Any:
    parts = [value] if torch.is_tensor(value) else value
    if not isinstance(parts, Sequence) or not len(parts) or not all(torch.is_tensor(part) for part in parts):
        raise InputError(f"scores of {name!r} must be a tensor or a list of tensors, got {type(value).__name__}.")
    if any(part.is_complex() or part.layout != torch.strided for part in parts):
        raise InputError(f"scores of {name!r} must be real numbers in a dense tensor.")
    return value if torch.is_tensor(value) else list(value)


def _first(value: Any) -> torch.Tensor:
    return value if torch.is_tensor(value) else value[0]


def _kind(given: Mapping[str, Any]) -> tuple[torch.device, torch.dtype]:
    """Device and type of the potentials: the widest of the given types, at least single precision."""
    dtype = torch.float64 if any(_first(v).dtype == torch.float64 for v in given.values()) else torch.float32
    return _first(next(iter(given.values()))).device, dtype


def _nothing(given: Mapping[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
    """The potentials of a batch without instances; every score that there is has the gradient zero."""
    device, dtype = _kind(given)
    none = torch.cat([_first(value).reshape(-1)[:0].to(device, dtype) for value in given.values()])
    return none, none


def _fill(layout: ScoreLayout, given: Mapping[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
    """Unary scores and tables of the batch."""
    batch = layout.batch
    groups = layout.groups
    names = {name for kind in groups.topologies for name in kind.groups}
    _check_names(given, names)
    device, dtype = _kind(given)
    out: dict[Target, torch.Tensor | None] = {"unary": None, "tables": None}
    sizes: dict[Target, int] = {"unary": batch.n_states, "tables": batch.n_table_entries}
    for group in sorted(names, key=_order):
        name = group if group in given else group.partition(":")[0]
        if name not in given:
            optional = group in layout.constrained or layout.encoded.segments is not None
            if group in groups.factors and not optional:
                raise InputError(f"scores lack the group {group!r}; give a table for all of its members, or one each.")
            continue
        table = given[name]
        if layout.symmetric and group.partition(":")[0] in LINKS:
            table = both_orders(table)
        target, values, places = _placed(layout, group, name, table)
        out[target] = _added(out[target], values.to(device, dtype), places, sizes[target])
    unary = out["unary"]
    if unary is None:
        unary = torch.zeros(sizes["unary"], dtype=dtype, device=device)
    tables = out["tables"]
    if tables is None:
        tables = torch.zeros(sizes["tables"], dtype=dtype, device=device)
    if layout.encoded.inputs.offset is not None:
        tables = tables + torch.as_tensor(layout.encoded.inputs.offset.tables).to(device, dtype)
    return unary, tables


def _check_names(given: Mapping[str, Any], names: set[str]) -> None:
    """Raise unless all scores are those of a group, or of all types of a group."""
    untyped = {group.partition(":")[0] for group in names}
    for name in given:
        if name not in names and name not in untyped:
            listed = ", ".join(map(repr, sorted(names)))
            raise InputError(f"scores name the group {name!r}; the structure has {listed}.")


def _added(base: torch.Tensor | None, values: torch.Tensor, places: Places, size: int) -> torch.Tensor:
    """``base`` (None: ``size`` zeros) plus the values at their places."""
    if base is None and _fills(places, size):
        return values
    if base is None:
        base = values.new_zeros(size)
    if isinstance(places, slice):
        return base.slice_scatter(base[places] + values, 0, places.start, places.stop)
    return base.index_add(0, places, values)


def both_orders(tables: Any) -> Any:
    """Tables (..., K, K), in one tensor or a list, plus themselves with the two states in the other order."""
    if torch.is_tensor(tables):
        return tables + tables.transpose(-1, -2)
    return [part + part.transpose(-1, -2) for part in tables]


def without_padding(values: Any, n_axes: int, rows: Any) -> Any:
    """Values (an array or a tensor) with ``n_axes`` leading axes, of which only the flat ``rows`` exist (None: all)."""
    flat = values.reshape(-1, *values.shape[n_axes:])
    return flat if rows is None else flat[rows]


def _order(group: str) -> tuple[bool, str]:
    return not group.startswith("node"), group


def _fills(places: Places, size: int) -> bool:
    """Whether a group fills all entries, in order."""
    return isinstance(places, slice) and places == slice(0, size)


def _n_places(places: Places) -> int:
    return places.stop - places.start if isinstance(places, slice) else len(places)


def _placed(layout: ScoreLayout, group: str, name: str, given: Any) -> tuple[Target, torch.Tensor, Places]:
    """The scores of a group's members, flat, and where they go."""
    first = _first(given)
    kinds = layout.groups.topologies
    example = next(kind for kind in kinds if group in kind.groups)
    scope = example.groups[group]
    axes = scope.shape[1]
    cards = tuple(example.cards[scope[0]].tolist()) if len(scope) else tuple(first.shape[-axes:])
    if tuple(first.shape[-axes:]) != cards:
        raise InputError(f"scores of {name!r} end in axes {tuple(first.shape[-axes:])}; the structure needs {cards}.")
    size = int(np.prod(cards))
    device = first.device
    target, places = layout.places(group, size, device)
    if torch.is_tensor(given) and given.ndim == axes:
        return target, given.reshape(1, size).expand(_n_places(places) // size, size).reshape(-1), places
    if torch.is_tensor(given):
        lead = tuple(given.shape[:-axes])
        rows = layout.members(name, lead, device)
        flat = given.reshape(-1, size)
    else:
        _check_parts(layout, name, given, cards)
        rows = None
        flat = torch.cat([part.reshape(-1, size) for part in given])
    flat = flat if rows is None else flat[rows]
    if name != group:
        flat = flat[layout.of_type(group, name, device)]
    if flat.numel() != _n_places(places):
        raise InputError(
            f"scores of {name!r} have {len(flat)} rows; the batch has {_n_places(places) // size} members."
        )
    return target, flat.reshape(-1), places


def _check_parts(layout: ScoreLayout, name: str, given: Sequence[torch.Tensor], cards: tuple[int, ...]) -> None:
    """Raise unless a list has the rows of every instance."""
    sizes = layout.sizes(name).tolist()
    size = int(np.prod(cards))
    if len(given) != len(sizes):
        raise InputError(f"scores of {name!r} are a list of {len(given)}; the batch has {len(sizes)} instances.")
    for b, (part, n) in enumerate(zip(given, sizes, strict=True)):
        if tuple(part.shape[-len(cards) :]) != cards or part.numel() != n * size:
            reason = f"scores of {name!r} have shape {tuple(part.shape)}; {n} rows of {cards} are needed."
            raise InputError(reason, what="scores", instance=b)
