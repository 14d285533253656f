"""What every structure is, a description of weights and topologies, and what it compiles to: an ``Encoder`` that holds
everything built once and turns X into batches (``encoded``).

    encoder, parsed = structure.compile(X, vocabulary)   at fit: schemas of features learned, and X itself parsed
    encoded = encoder.assemble(parsed)
    encoded = encoder.encode(X)                           at prediction
    theta = encoder.model.forward(w, encoded.inputs)      theta = Phi(x) w (paper eq. 1), with named weights
"""

from __future__ import annotations

import warnings
from abc import abstractmethod
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import count
from math import prod
from operator import attrgetter
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple

import numpy as np
from sklearn.base import BaseEstimator

from mssvm.core import checks
from mssvm.core.arrays import Bools, Floats, Ints
from mssvm.core.caches import LRUCache
from mssvm.core.errors import InputError, MssvmWarning
from mssvm.core.terms import Target, Term, fused
from mssvm.data.features import FeatureRows, FeatureSchema
from mssvm.data.graphs import FactorInput, Graph
from mssvm.data.labels import LabelVocabulary
from mssvm.models.linear import LinearInputs, LinearModel, WeightLayout
from mssvm.models.partial import FixedWeights
from mssvm.structures.encoded import Encoded, Frames, GroupedTopology, HardConstraint, Layout, Rows, WeightBlock

LARGE_WEIGHTS = 1 << 31  # bytes of one weight vector; solvers keep several
FEW, SITES = 256, 1 << 18  # instances and rows of a batch whose layout is kept for the next of the same topologies
KEPT = 1 << 20  # variables of topologies, and states of layouts, that are kept
NO_TYPES: Mapping[str, tuple[str, ...]] = MappingProxyType({})


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


@dataclass(frozen=True, eq=False)
class Raw:
    """X taken apart: what each source of features holds per instance, and what the topology depends on (``keys`` as in
    ``Parsed``)."""

    sources: Mapping[str, list[Any]]
    keys: Sequence[Hashable] | None = None
    types: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


class Structure(BaseEstimator):
    """Base of all structures; subclasses say how to read X, which blocks of weights there are, and the topologies."""

    depth: ClassVar[int] = 1  # axes of one instance's labels
    fixed: Mapping[str, Any] | None

    # ------------------------------------------------------------------------------------- for subclasses

    @abstractmethod
    def check(self) -> None:
        """Raise ``InputError`` if a parameter is unusable."""

    @abstractmethod
    def read(self, X: Sequence[Any]) -> Raw:
        """Take X apart."""

    @abstractmethod
    def blocks(self, schema: Schema, vocabulary: LabelVocabulary) -> tuple[WeightBlock, ...]:
        """The weights."""

    @abstractmethod
    def topology(self, key: Any, encoder: Encoder) -> GroupedTopology:
        """The topology of an instance with the given key."""

    def constraints(self, schema: Schema, vocabulary: LabelVocabulary) -> list[HardConstraint]:
        """What can never be."""
        return []

    def instances(self, X: Any) -> Sequence[Any]:
        """X as a sequence of instances."""
        checks.sequence(X, "X", "of instances")
        if isinstance(X, INSTANCES):
            raise InputError(f"X must be a sequence of instances, got one {type(X).__name__}; put it into a list.")
        given: Sequence[Any] = X
        return given

    def derive(self, schema: Schema, parsed: Parsed) -> tuple[Schema, Parsed]:
        """Add sources of features that are computed from others."""
        return schema, parsed

    # ------------------------------------------------------------------------------------- for estimators

    def compile(
        self, X: Any, vocabulary: LabelVocabulary, y: Any = None, types: Mapping[str, tuple[str, ...]] = NO_TYPES
    ) -> tuple[Encoder, Parsed]:
        """Learn the schema of X: the encoder of this structure, and X parsed with it. A structure whose topology
        depends on the labels y, too, gives the names of ``types`` that they tell."""
        self.check()
        X = self.instances(X)
        raw = self.read(X)
        if not len(X):
            raise InputError("X is empty; there must be at least one instance.")
        features, rows = dict[str, FeatureSchema](), dict[str, FeatureRows]()
        for name, items in raw.sources.items():
            features[name], rows[name] = FeatureSchema.learn(items, WHAT.get(name, name))
        schema, parsed = self.derive(Schema(features, {**raw.types, **types}), Parsed(rows, raw.keys))
        return Encoder(self, schema, vocabulary), parsed

    def parse(self, X: Any, schema: Schema) -> Parsed:
        """New X as the schema sees it."""
        self.check()
        X = self.instances(X)
        raw = self.read(X)
        for name in raw.sources:
            if name not in schema.features:
                raise InputError(f"X comes with {name} features, unlike the data the model learned from.")
        for name, types in raw.types.items():
            new = [t for t in types if t not in schema.types.get(name, ())]
            if new:
                known = ", ".join(repr(t) for t in schema.types.get(name, ()))
                raise InputError(f"X has the {name} type {new[0]!r}, but the model learned only {known}.")
        nothing: list[Any] = [[]] * len(X)
        rows = {name: part.encode(raw.sources.get(name, nothing)) for name, part in schema.features.items()}
        return self.derive(schema, Parsed(rows, raw.keys))[1]


INSTANCES = (Graph, FactorInput)
MOST_STATES = 1 << 15  # a table of two such variables has 2**30 entries
WHAT = {"node": "X", "edge": "edge"}  # what messages call the sources


def type_names(types: Iterable[Hashable]) -> tuple[str, ...]:
    """Types of nodes, edges or variables by their names in sorted order; different ones must read differently."""
    named: dict[str, Hashable] = {}
    for t in dict.fromkeys(types):
        if named.setdefault(str(t), t) != t:
            raise InputError(f"the types {named[str(t)]!r} and {t!r} have the same name; name one of them otherwise.")
    return tuple(sorted(named))


def check_flag(value: Any, name: str) -> bool:
    if not isinstance(value, (bool, np.bool_)):
        raise InputError(f"{name} must be True or False, got {value!r}.")
    return bool(value)


def label_mask(members: Iterable[Any], vocabulary: LabelVocabulary, where: str) -> Bools:
    """A mask over the classes from labels."""
    mask = np.zeros(vocabulary.n_classes, dtype=bool)
    mask[[vocabulary.index(label, where) for label in checks.several(members, where, "labels")]] = True
    return mask


@dataclass(frozen=True)
class Weight:
    """One weight by name: its block, its feature, and the states (labels; numbers of hidden states) it belongs to."""

    block: str
    feature: str
    states: tuple[Hashable, ...]
    value: float


class WeightMasks(NamedTuple):
    """The weights that touch hidden variables, which a start at zero would leave symmetric; those that must not fall
    below 0."""

    hidden: Bools
    nonnegative: Bools


@dataclass(frozen=True, eq=False)
class Encoder:
    """A structure with the features and labels it learned; blocks, constraints and model are made once. Factors of the
    groups ``own`` have features, hence tables of their own."""

    structure: Structure
    schema: Schema
    vocabulary: LabelVocabulary
    blocks: tuple[WeightBlock, ...] = field(init=False, repr=False)
    constraints: tuple[HardConstraint, ...] = field(init=False, repr=False)
    own: frozenset[str] = field(init=False, repr=False)
    _topologies: LRUCache[Hashable, GroupedTopology] = field(
        init=False, repr=False, default_factory=partial(LRUCache, KEPT, attrgetter("graph.n_vars"))
    )
    _layouts: LRUCache[tuple[Hashable, ...], Layout] = field(
        init=False, repr=False, default_factory=partial(LRUCache, KEPT, attrgetter("frames.batch.n_states"))
    )

    def __post_init__(self) -> None:
        blocks, own = self.structure.blocks(self.schema, self.vocabulary), set[str]()
        for block in blocks:
            if block.source is not None:
                own.add(block.group)
        object.__setattr__(self, "blocks", blocks)
        object.__setattr__(self, "own", frozenset(own))
        object.__setattr__(self, "constraints", tuple(self.structure.constraints(self.schema, self.vocabulary)))

    @cached_property
    def layout(self) -> WeightLayout:
        """The blocks as consecutive stretches of w (a layer, which is given scores, has no features and no w)."""
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
    def weight_masks(self) -> WeightMasks:
        masks = WeightMasks(*np.zeros((2, self.layout.n_weights), dtype=bool))
        for block in self.blocks:
            span = self.layout.groups[block.name].span
            masks.hidden[span], masks.nonnegative[span] = "hidden" in block.axes, block.agree > 0
        return masks

    @property
    def n_features(self) -> int:
        return self.schema.n_features

    def encode(self, X: Sequence[Any]) -> Encoded:
        """New X as a batch."""
        return self.assemble(self.structure.parse(X, self.schema))

    def assemble(self, parsed: Parsed, whole: Mapping[str, Rows] | None = None) -> Encoded:
        """Parsed X as a batch; where it is a part of more data, ``whole`` (``rows_of``) tells of all of them."""
        keys = tuple(np.diff(parsed.rows["node"].ptr).tolist() if parsed.keys is None else parsed.keys)
        kept = whole is None and len(keys) <= FEW
        for rows in parsed.rows.values():
            kept = kept and bool(rows.ptr[-1] <= SITES)
        layout = self._layouts.get(keys, self._lay_out) if kept else self._lay_out(keys, whole)
        for name, rows in parsed.rows.items():
            given, expected = np.diff(rows.ptr), layout.frames.sizes[name][layout.frames.kind_of]
            for b in np.flatnonzero(given != expected)[:1].tolist():
                reason = f"{int(given[b])} rows of {name} features where there should be {int(expected[b])}."
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
        inputs = LinearInputs(layout.frames.batch, fused(terms, sizes), layout.offset)
        n, free = self.vocabulary.n_classes, kept and layout.allowed is None
        return Encoded(inputs, layout.labels, layout.hidden, n, layout.allowed, layout if free else None)

    def rows_of(self, keys: Mapping[Hashable, int]) -> dict[str, Rows]:
        """What ``assemble`` decides by the number of rows, of data with so many instances of each topology."""
        frames = Frames(tuple(map(self.kind, keys)), np.arange(len(keys)), self.own)
        return {block.name: frames.count(block, list(keys.values())) for block in self.blocks}

    def kind(self, key: Hashable) -> GroupedTopology:
        """The topology of an instance with the given key."""
        return self._topologies.get(key, partial(self.structure.topology, encoder=self))

    def _lay_out(self, keys: tuple[Hashable, ...], whole: Mapping[str, Rows] | None = None) -> Layout:
        numbers = dict(zip(dict.fromkeys(keys), count(), strict=False))
        kind_of = np.fromiter(map(numbers.__getitem__, keys), np.int64, len(keys))
        frames = Frames(tuple(map(self.kind, numbers)), kind_of, self.own, whole)
        places, rows = list[tuple[Target, Ints]](), list[Ints | None]()
        for block in self.blocks:
            target, at = frames.locate(block.group)
            chosen, at = frames.choose(block, at)
            places.append((target, at))
            rows.append(chosen)
        sites, limits = (frames.sites(), frames.sites(hidden=True)), frames.constrain(self.constraints)
        return Layout(frames, tuple(places), tuple(rows), *sites, *limits)

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
