"""What a structure compiles to: an ``Encoder`` that holds everything built once and turns X into batches.

    encoder, parsed = structure.compile(X, vocabulary)   at fit: schemas of features learned, and X itself parsed
    encoded = encoder.assemble(parsed)
    encoded = encoder.encode(X)                           at prediction
    theta = encoder.model.forward(w, encoded.inputs)      theta = Phi(x) w (paper eq. 1), with named weights

Batches are laid out by index arithmetic over their different topologies, never instance by instance.
"""

from __future__ import annotations

import warnings
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import count
from math import prod
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, Any

import numpy as np

from mssvm.core.arrays import Bools, Floats, Ints
from mssvm.core.errors import InputError, MssvmWarning
from mssvm.core.potentials import Potentials, Query
from mssvm.core.recent import Recent
from mssvm.core.terms import Target, Term, fused
from mssvm.core.topology import NONE, Batch, Topology, gather, offsets, spread
from mssvm.data.features import FeatureRows, FeatureSchema
from mssvm.data.labels import LabelVocabulary
from mssvm.models.linear import LinearInputs, LinearModel, WeightLayout
from mssvm.models.partial import FixedWeights
from mssvm.structures.encoded import Encoded, Plain, Sites

if TYPE_CHECKING:
    from mssvm.structures.base import Structure

LARGE_WEIGHTS = 1 << 31  # bytes of one weight vector; solvers keep several
FEW, SITES = 256, 1 << 18  # instances and rows of a batch whose layout is kept for the next of the same topologies
KEPT = 1 << 20  # variables of topologies, and states of layouts, that are kept


@dataclass(frozen=True, eq=False)
class Schema:
    """What a structure learned from X: a schema of features per source, and the names of types it met."""

    features: Mapping[str, FeatureSchema]
    types: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def n_features(self) -> int:
        """Number of features of a site (0 where sites have none)."""
        return self.features["node"].n_features if "node" in self.features else 0

    def types_of(self, what: str) -> tuple[str, ...]:
        """Names of the types; the one type of untyped things is the empty name."""
        return self.types.get(what, ("",))

    def to_json(self) -> dict[str, Any]:
        features = {name: part.to_json() for name, part in self.features.items()}
        return {"features": features, "types": {name: list(types) for name, types in self.types.items()}}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Schema:
        features = {name: FeatureSchema.from_json(part) for name, part in data["features"].items()}
        return cls(features, {name: tuple(types) for name, types in data["types"].items()})


@dataclass(frozen=True, eq=False)
class Parsed:
    """X with its features as matrices, and what the topology of every instance depends on: ``keys``, or (None) the
    number of rows of the source "node"."""

    rows: Mapping[str, FeatureRows]
    keys: Sequence[Hashable] | None


@dataclass(frozen=True)
class WeightBlock:
    """Named weights (n_features, states...) that act on every member of a group of variables or factors.

    ``axes`` says of every state axis whether it is "label" or "hidden"; ``source`` names the features, None is one
    constant feature. ``rows`` names where a topology keeps the feature row of each member (None: rows in order).
    A block with ``agree`` states has one weight a feature, kept >= 0, for both ends of a pair being in the same one.
    """

    name: str
    group: str
    axes: tuple[str, ...]
    cards: tuple[int, ...]
    source: str | None = None
    rows: str | None = None
    agree: int = 0


@dataclass(frozen=True, eq=False)
class HardConstraint:
    """Joint states (a mask of the shape of the group's tables) that no member of the group may take."""

    group: str
    mask: Bools


@dataclass(frozen=True, eq=False)
class GroupedTopology:
    """One topology: the states of its variables, those that carry labels (in the ``shape`` of y), and named groups.

    A group lists the scopes of its members: rows of one number are variables, longer ones factors. ``sizes`` is the
    number of feature rows expected from each source; ``rows`` see ``WeightBlock``. ``table``: all instances have the
    same labels, so that those of many are one array. Worked out of these: ``hidden``, the other variables; the members
    of every group, as ``variables`` or numbers of ``factors``, which follow each other in the ``graph``.
    """

    cards: Ints
    labels: Ints
    shape: tuple[int, ...]
    groups: Mapping[str, Ints]
    sizes: Mapping[str, int]
    rows: Mapping[str, Ints] = field(default_factory=dict)
    hidden_shape: tuple[int, ...] | None = None
    table: bool = False
    hidden: Ints = field(init=False, repr=False)
    variables: dict[str, Ints] = field(init=False, repr=False)
    factors: dict[str, Ints] = field(init=False, repr=False)
    graph: Topology = field(init=False, repr=False)

    def __post_init__(self) -> None:
        variables, factors, scopes = dict[str, Ints](), dict[str, Ints](), list[tuple[int, ...]]()
        for name, members in self.groups.items():
            if members.shape[1] == 1:
                variables[name] = members[:, 0]
            elif len(members):
                factors[name] = np.arange(len(scopes), len(scopes) + len(members))
                scopes += map(tuple, members.tolist())
        hidden = np.setdiff1d(np.arange(len(self.cards)), self.labels)
        made = {"variables": variables, "factors": factors, "hidden": hidden}
        made["hidden_shape"] = self.hidden_shape or (len(hidden),)
        made["graph"] = Topology(tuple(self.cards.tolist()), tuple(scopes))
        for name, value in made.items():
            object.__setattr__(self, name, value)


@dataclass(frozen=True)
class Weight:
    """One weight by name: its block, its feature, and the states (labels; numbers of hidden states) it belongs to."""

    block: str
    feature: str
    states: tuple[Hashable, ...]
    value: float


@dataclass(frozen=True, eq=False)
class Encoder:
    """A structure with the features and labels it learned; blocks, layout, model and constraints are made once."""

    structure: Structure
    schema: Schema
    vocabulary: LabelVocabulary
    blocks: tuple[WeightBlock, ...] = field(init=False, repr=False)
    constraints: tuple[HardConstraint, ...] = field(init=False, repr=False)
    _topologies: Recent[Hashable, GroupedTopology] = field(
        init=False, repr=False, default_factory=partial(Recent, KEPT, attrgetter("graph.n_vars"))
    )
    _layouts: Recent[tuple[Hashable, ...], Layout] = field(
        init=False, repr=False, default_factory=partial(Recent, KEPT, attrgetter("batch.n_states"))
    )

    def __post_init__(self) -> None:
        object.__setattr__(self, "blocks", self.structure.blocks(self.schema, self.vocabulary))
        object.__setattr__(self, "constraints", tuple(self.structure.constraints(self.schema, self.vocabulary)))

    @cached_property
    def layout(self) -> WeightLayout:
        """The blocks as consecutive stretches of w."""
        shapes = {}
        for block in self.blocks:
            n_features = 1 if block.source is None else self.schema.features[block.source].n_features
            shapes[block.name] = n_features, prod(block.cards)
        layout = WeightLayout.of(shapes)
        if layout.n_weights * 8 > LARGE_WEIGHTS:
            warn_large(layout.n_weights)
        return layout

    @cached_property
    def model(self) -> LinearModel | FixedWeights:
        """theta = Phi(x) w with named weights; known ones (the structure's parameter ``fixed``) put in."""
        model, fixed = LinearModel(self.layout.n_weights, self.layout), self.structure.fixed
        if fixed is not None and not isinstance(fixed, Mapping):
            raise InputError(f"fixed must map names of blocks to weights, got {type(fixed).__name__}.")
        return FixedWeights(model, self._known(fixed)) if fixed else model

    @cached_property
    def hidden_weights(self) -> Bools:
        """The weights that touch hidden variables: those that a start at zero would leave symmetric."""
        mask = np.zeros(self.layout.n_weights, dtype=bool)
        for block in self.blocks:
            mask[self.layout.groups[block.name].span] = "hidden" in block.axes
        return mask

    @cached_property
    def nonnegative(self) -> Bools | None:
        """The weights that must not fall below 0 (None: there are none)."""
        mask = np.zeros(self.layout.n_weights, dtype=bool)
        for block in self.blocks:
            mask[self.layout.groups[block.name].span] = block.agree > 0
        return mask if mask.any() else None

    @property
    def n_features(self) -> int:
        return self.schema.n_features

    def encode(self, X: Sequence[Any]) -> Encoded:
        """New X as a batch."""
        return self.assemble(self.structure.parse(X, self.schema))

    def assemble(self, parsed: Parsed, whole: Mapping[str, Rows] | None = None) -> Encoded:
        """Parsed X as a batch; where it is a part of more data, ``whole`` (``rows_of``) tells of all of them."""
        keys = tuple(parsed.rows["node"].sizes.tolist() if parsed.keys is None else parsed.keys)
        few = len(keys) <= FEW and all(rows.ptr[-1] <= SITES for rows in parsed.rows.values())
        kept = whole is None and few
        layout = self._layouts.get(keys, self._lay_out) if kept else self._lay_out(keys, whole)
        for name, rows in parsed.rows.items():
            expected = layout.frames.n_rows(name)
            for b in np.flatnonzero(rows.sizes != expected)[:1].tolist():
                reason = f"{int(rows.sizes[b])} rows of {name} features where there should be {int(expected[b])}."
                raise InputError(reason, instance=b)
        terms, sizes = [], []
        for block, (target, at), chosen in zip(self.blocks, layout.places, layout.rows, strict=True):
            if len(at):
                features: Any = np.broadcast_to(1.0, (len(at), 1))  # in no memory
                if block.source is not None:
                    matrix = parsed.rows[block.source].matrix
                    features = matrix if chosen is None else matrix[chosen]
                weights = self.layout.groups[block.name]
                terms.append(Term(target, features, at, weights.shape[1], np.asarray(weights.span.start)))
                sizes.append(len(at) if whole is None else whole[block.name].n)
        inputs = LinearInputs(layout.batch, fused(terms, sizes), layout.offset)
        plain = layout.plain if kept else None
        return Encoded(inputs, layout.labels, layout.hidden, self.vocabulary.n_classes, layout.allowed, plain)

    def rows_of(self, keys: Mapping[Hashable, int]) -> dict[str, Rows]:
        """What ``assemble`` decides by the number of rows, of data with so many instances of each topology."""
        frames = Frames(tuple(map(self.kind, keys)), np.arange(len(keys)))
        own = {block.group for block in self.blocks if block.source is not None}
        return {block.name: frames.count(block, list(keys.values()), block.group in own) for block in self.blocks}

    def kind(self, key: Hashable) -> GroupedTopology:
        """The topology of an instance with the given key."""
        return self._topologies.get(key, partial(self.structure.topology, encoder=self))

    def _lay_out(self, keys: tuple[Hashable, ...], whole: Mapping[str, Rows] | None = None) -> Layout:
        numbers = dict(zip(dict.fromkeys(keys), count(), strict=False))
        kind_of = np.fromiter(map(numbers.__getitem__, keys), np.int64, len(keys))
        frames = Frames(tuple(map(self.kind, numbers)), kind_of, whole)
        own, places, rows = set[str](), list[tuple[Target, Ints]](), list[Ints | None]()
        for block in self.blocks:
            if block.source is not None:
                own.add(block.group)
        batch = frames.batch(own)
        for block in self.blocks:
            target, at = frames.locate(batch, block.group)
            chosen, at = frames.choose(block, at)
            places.append((target, at))
            rows.append(chosen)
        sites, limits = (frames.sites(batch), frames.sites(batch, True)), frames.constrain(batch, self.constraints)
        return Layout(frames, batch, tuple(places), tuple(rows), *sites, *limits)

    def weights(self, w: Floats) -> Iterator[Weight]:
        """Every weight with its name."""
        for block in self.blocks:
            values = self.layout.view(w, block.name).reshape(-1, *block.cards)
            features = self._feature_names(block)
            axes = zip(block.axes, block.cards, strict=True)
            states = [self.vocabulary.classes if axis == "label" else range(card) for axis, card in axes]
            for index in np.ndindex(values.shape):
                named = tuple(names[k] for names, k in zip(states, index[1:], strict=True))
                yield Weight(block.name, features[index[0]], named, float(values[index]))

    def _feature_names(self, block: WeightBlock) -> tuple[str, ...]:
        return ("1",) if block.source is None else self.schema.features[block.source].names

    def _known(self, fixed: Mapping[str, Any]) -> Floats:
        """The known weights, NaN where free."""
        values = np.full(self.layout.n_weights, np.nan)
        blocks = {block.name: block for block in self.blocks}
        for name, given in fixed.items():
            view = self.layout.view(values, name)  # raises on an unknown name
            table = view.reshape(-1, *blocks[name].cards)
            if isinstance(given, Mapping):
                for key, value in given.items():
                    table[self._locate(key, blocks[name])] = value
                continue
            array = np.asarray(given, dtype=np.float64)
            if array.shape not in ((), table.shape, table.shape[1:]):
                raise InputError(f"fixed[{name!r}] has shape {array.shape}; the weights have {table.shape}.")
            table[...] = array
        return values

    def _locate(self, key: Any, block: WeightBlock) -> tuple[int, ...]:
        """Position (feature, states...) of a weight by name; the feature may be left out where there is only one."""
        parts = key if isinstance(key, tuple) else (key,)
        features, where = self._feature_names(block), f"fixed[{block.name!r}]"
        if len(features) == 1 and len(parts) == len(block.cards):
            parts = (features[0], *parts)
        if len(parts) != 1 + len(block.cards) or parts[0] not in features:
            axes = ", ".join(block.axes)
            raise InputError(f"{where} names {key!r}; a weight is (feature, {axes}) with a known feature.")
        states = zip(block.axes, block.cards, parts[1:], strict=True)
        return features.index(parts[0]), *(state_index(*state, self.vocabulary, where) for state in states)


def warn_large(n_weights: int) -> None:
    """Say what a model of so many weights will need."""
    warnings.warn(
        f"the model has {n_weights:,} weights, {n_weights * 8 / 2**30:.1f} GiB for each of the several vectors "
        "that training keeps; fewer features, classes or hidden states need less.",
        MssvmWarning,
        stacklevel=2,
    )


def state_index(axis: str, card: int, state: Any, vocabulary: LabelVocabulary, where: str) -> int:
    """The number of a state named in a parameter: a label, or the number of a hidden state."""
    if axis == "label":
        return vocabulary.index(state, where)
    if isinstance(state, (int, np.integer)) and 0 <= state < card:
        return int(state)
    raise InputError(f"{where} names hidden state {state!r}; they run from 0 to {card - 1}.")


@dataclass(frozen=True)
class Rows:
    """Of a block of weights: how many rows of features it has, and whether they are a list of the source's."""

    n: int
    listed: bool


class Frames:
    """The topologies of a batch: ``kinds[kind_of[b]]`` is that of instance b; ``whole`` as in ``Encoder.assemble``.
    ``variables``, ``factors`` and ``rows`` hold, by name, what each of the kinds has under it."""

    def __init__(
        self, kinds: tuple[GroupedTopology, ...], kind_of: Ints, whole: Mapping[str, Rows] | None = None
    ) -> None:
        self.kinds, self.kind_of, self.whole, self._none = kinds, kind_of, whole, [NONE] * len(kinds)
        self.variables: dict[str, list[Ints]] = {}
        self.factors: dict[str, list[Ints]] = {}
        self.rows: dict[str, list[Ints]] = {}
        for k, kind in enumerate(kinds):
            found = (self.variables, kind.variables), (self.factors, kind.factors), (self.rows, kind.rows)
            for table, here in found:
                for name, members in here.items():
                    table.setdefault(name, self._none.copy())[k] = members

    def n_rows(self, source: str) -> Ints:
        """The rows of features that every instance needs from a source."""
        sizes = map(itemgetter(source), map(attrgetter("sizes"), self.kinds))
        return np.fromiter(sizes, np.int64, len(self.kinds))[self.kind_of]

    def count(self, block: WeightBlock, times: Sequence[int], own: bool) -> Rows:
        """The rows of a block of weights where the topologies appear so many times; ``own``: factors of its group have
        tables of their own."""
        members = self.factors.get(block.group, self.variables.get(block.group, self._none))
        tied = block.group in self.factors and not own
        n = 1 if tied else sum(c * len(m) for c, m in zip(times, members, strict=True))
        listed = False
        if block.source is not None and block.rows is not None:
            all_rows = sum(c * kind.sizes[block.source] for c, kind in zip(times, self.kinds, strict=True))
            rows = self.rows.get(block.rows, self._none)
            chosen = sum(c * len(r) for c, r in zip(times, rows, strict=True))
            listed = 2 * chosen < all_rows or any(np.any(r[1:] <= r[:-1]) for r in rows)
            n = n if listed else all_rows
        return Rows(n * max(block.agree, 1), listed)

    def batch(self, own: set[str]) -> Batch:
        """Factors of one group share one table; those of the groups ``own`` have one each."""
        graphs, number, count = dict[Topology, int](), [], []
        for kind in self.kinds:
            number.append(graphs.setdefault(kind.graph, len(graphs)))
            count.append(kind.graph.n_factors)
        start = offsets(np.array(count, dtype=np.int64)[self.kind_of])
        ids = np.empty(start[-1], dtype=np.int64)
        for g, (name, members) in enumerate(self.factors.items()):
            at = gather(members, self.kind_of, start[:-1])
            ids[at] = len(self.factors) + at if name in own else g
        return Batch.of_kinds(tuple(graphs), np.array(number, dtype=np.int64)[self.kind_of], ids)

    def sites(self, batch: Batch, hidden: bool = False) -> Sites:
        """The variables with labels, or the hidden ones, of every topology, in their shape, as sites of the batch."""
        variables, shapes = [], []
        for kind in self.kinds:
            variables.append(kind.hidden if hidden else kind.labels)
            shapes.append(kind.hidden_shape or () if hidden else kind.shape)
        sizes = np.fromiter(map(len, variables), np.int64, len(variables))[self.kind_of]
        at = gather(variables, self.kind_of, batch.var_ptr[:-1])
        table = bool(self.kinds) and self.kinds[0].table
        return Sites(at, offsets(sizes), tuple(map(shapes.__getitem__, self.kind_of.tolist())), table)

    def locate(self, batch: Batch, group: str) -> tuple[Target, Ints]:
        """Where the members of a group lie: variables by their states, factors by their (different) tables."""
        if group not in self.factors:
            variables = self.variables.get(group, self._none)
            return "unary", batch.unary_ptr[gather(variables, self.kind_of, batch.var_ptr[:-1])]
        members = gather(self.factors[group], self.kind_of, batch.factor_ptr[:-1])
        at = batch.table_at[members]
        # A tied group has one table; more than one only where every factor has its own.
        return "tables", at[:1] if len(at) and np.all(at == at[0]) else at

    def choose(self, block: WeightBlock, at: Ints) -> tuple[Ints | None, Ints]:
        """The rows of the block's source that the members of its group, at the places ``at``, have as features (None:
        all), and the places of these rows. A row of features serves all states of a block that is for agreeing ones."""
        chosen: Ints | None = None
        if block.source is not None and block.rows is not None:
            first = offsets(self.n_rows(block.source))
            n, chosen = int(first[-1]), gather(self.rows.get(block.rows, self._none), self.kind_of, first[:-1])
            listed = 2 * len(chosen) < n or np.any(chosen[1:] <= chosen[:-1])
            if not (listed if self.whole is None else self.whole[block.name].listed):  # most, in order: no copy of them
                places = np.full(n, -1, dtype=np.int64)
                places[chosen] = at
                chosen, at = None, places
        if not block.agree:
            return chosen, at
        same = np.arange(block.agree) * (block.agree + 1)
        if block.source is not None:
            chosen = np.repeat(np.arange(len(at)) if chosen is None else chosen, block.agree)
        return chosen, np.where(at[:, None] < 0, -1, at[:, None] + same).ravel()

    def constrain(self, batch: Batch, constraints: Sequence[HardConstraint]) -> tuple[Bools | None, Potentials | None]:
        """Forbidden states of variables as a mask of what is allowed, entries of tables as -inf in the offset."""
        allowed: Bools | None = None
        offset: Potentials | None = None
        for constraint in constraints:
            target, at = self.locate(batch, constraint.group)
            entries = (at[:, None] + np.flatnonzero(constraint.mask)).ravel()
            if not len(entries):
                continue
            if target == "unary":
                allowed = np.ones(batch.n_states, dtype=bool) if allowed is None else allowed
                allowed[entries] = False
            else:
                offset = Potentials.zeros(batch) if offset is None else offset
                offset.tables[entries] = -np.inf
        return allowed, offset


@dataclass(frozen=True, eq=False)
class Layout:
    """Instances of some topologies as a batch, before their features are known: per block of weights the places of its
    group's members and the rows of features that they take (``Frames``)."""

    frames: Frames
    batch: Batch
    places: tuple[tuple[Target, Ints], ...]
    rows: tuple[Ints | None, ...]
    labels: Sites
    hidden: Sites
    allowed: Bools | None
    offset: Potentials | None

    @cached_property
    def plain(self) -> Plain | None:
        """None where constraints leave some states out, which is checked with every query."""
        output = spread(self.labels.vars, self.batch.n_vars)
        return Plain(Query.of(self.batch, output)) if self.allowed is None else None
