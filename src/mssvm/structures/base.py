"""What every structure is: a description of weights and wiring that turns the user's X into a batch and back.

space, parsed = structure.learn(X)                 at fit: vocabularies and types, and X itself parsed
encoded = structure.assemble(parsed, space, labels)
encoded = structure.encode(X, space, labels)       at prediction
model = structure.model(space, labels)             theta = Phi(x) w (paper eq. 1), with named weights
"""

from __future__ import annotations

import warnings
from abc import abstractmethod
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from scipy import sparse
from sklearn.base import BaseEstimator

from mssvm.core.arrays import Bools, Floats
from mssvm.core.errors import InputError, MssvmWarning
from mssvm.data.features import FeatureSpace, Rows
from mssvm.data.labels import LabelSpace
from mssvm.models.layout import WeightLayout
from mssvm.models.linear import LinearModel
from mssvm.models.partial import FixedWeights
from mssvm.structures.encoded import Encoded
from mssvm.structures.wiring import Ban, Block, Frames, Wiring, assemble

LARGE_WEIGHTS = 1 << 31  # bytes of one weight vector; solvers keep several


@dataclass(frozen=True, eq=False)
class Space:
    """What a structure learned from X: a feature space per source, and the names of types it met."""

    features: Mapping[str, FeatureSpace]
    types: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def n_features(self) -> int:
        """Number of features of a site (0 where sites have none)."""
        return self.features["node"].n_features if "node" in self.features else 0

    def to_json(self) -> dict[str, Any]:
        features = {name: space.to_json() for name, space in self.features.items()}
        return {"features": features, "types": {name: list(types) for name, types in self.types.items()}}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Space:
        features = {name: FeatureSpace.from_json(part) for name, part in data["features"].items()}
        return cls(features, {name: tuple(types) for name, types in data["types"].items()})


@dataclass(frozen=True, eq=False)
class Raw:
    """X taken apart: what each source of features holds per instance, and what the topology depends on.

    ``keys`` is None where the number of rows of the source "node" is the topology.
    """

    sources: Mapping[str, list[Any]]
    keys: Sequence[Hashable] | None = None
    types: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Parsed:
    """X with its features as matrices."""

    rows: Mapping[str, Rows]
    keys: Sequence[Hashable]


@dataclass(frozen=True)
class Weight:
    """One weight by name: its block, its feature, and the states (labels; numbers of hidden states) it belongs to."""

    block: str
    feature: str
    states: tuple[Hashable, ...]
    value: float


class Structure(BaseEstimator):
    """Base of all structures; subclasses say how to read X, which blocks of weights there are, and the wiring."""

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
    def blocks(self, space: Space, labels: LabelSpace) -> tuple[Block, ...]:
        """The weights."""

    @abstractmethod
    def wiring(self, key: Any, space: Space, labels: LabelSpace) -> Wiring:
        """The topology of an instance with the given key."""

    def bans(self, space: Space, labels: LabelSpace) -> list[Ban]:
        """What is forbidden."""
        return []

    # ------------------------------------------------------------------------------------- for estimators

    def learn(self, X: Sequence[Any]) -> tuple[Space, Parsed]:
        """The space of X, and X parsed with it."""
        self.check()
        raw = self.read(_instances(X))
        if not len(X):
            raise InputError("X is empty; there must be at least one instance.")
        learned = {name: FeatureSpace.learn(items, _WHAT.get(name, name)) for name, items in raw.sources.items()}
        rows = {name: rows for name, (_, rows) in learned.items()}
        return Space({name: space for name, (space, _) in learned.items()}, raw.types), _parsed(raw, rows)

    def space(self, X: Sequence[Any]) -> Space:
        """The space of X alone."""
        return self.learn(X)[0]

    def parse(self, X: Sequence[Any], space: Space) -> Parsed:
        """New X as the space sees it."""
        self.check()
        raw = self.read(_instances(X))
        for name in raw.sources:
            if name not in space.features:
                raise InputError(f"X comes with {name} features, unlike the data the model learned from.")
        for name, types in raw.types.items():
            new = [t for t in types if t not in space.types.get(name, ())]
            if new:
                known = ", ".join(repr(t) for t in space.types.get(name, ()))
                raise InputError(f"X has the {name} type {new[0]!r}, but the model learned only {known}.")
        nothing: list[Any] = [[]] * len(X)
        return _parsed(raw, {name: s.encode(raw.sources.get(name, nothing)) for name, s in space.features.items()})

    def encode(self, X: Sequence[Any], space: Space, labels: LabelSpace) -> Encoded:
        """X as a batch."""
        return self.assemble(self.parse(X, space), space, labels)

    def assemble(self, parsed: Parsed, space: Space, labels: LabelSpace) -> Encoded:
        """Parsed X as a batch."""
        numbers: dict[Hashable, int] = {}
        which = np.array([numbers.setdefault(key, len(numbers)) for key in parsed.keys], dtype=np.int64)
        frames = Frames(tuple(self.wiring(key, space, labels) for key in numbers), which)
        _check_sizes(frames, parsed)
        blocks = self.blocks(space, labels)
        layout = self.layout(space, labels)
        return assemble(frames, parsed.rows, blocks, layout, self.bans(space, labels), labels.n_classes)

    def layout(self, space: Space, labels: LabelSpace) -> WeightLayout:
        """The blocks as consecutive stretches of w."""
        sizes: dict[str | None, int] = {name: part.n_features for name, part in space.features.items()}
        sizes[None] = 1
        shapes = {block.name: (sizes[block.source], block.width) for block in self.blocks(space, labels)}
        layout = WeightLayout.of(shapes)
        if layout.n_weights * 8 > LARGE_WEIGHTS:
            warnings.warn(
                f"the model has {layout.n_weights:,} weights, {layout.n_weights * 8 / 2**30:.1f} GiB for each of the "
                "several vectors that training keeps; fewer features, classes or hidden states need less.",
                MssvmWarning,
                stacklevel=2,
            )
        return layout

    def model(self, space: Space, labels: LabelSpace) -> LinearModel | FixedWeights:
        """theta = Phi(x) w with named weights; known ones (parameter ``fixed``) put in."""
        model = LinearModel.named(self.layout(space, labels))
        if self.fixed is not None and not isinstance(self.fixed, Mapping):
            raise InputError(f"fixed must map names of blocks to weights, got {type(self.fixed).__name__}.")
        return FixedWeights(model, self._fixed_values(model, space, labels)) if self.fixed else model

    def hidden_weights(self, space: Space, labels: LabelSpace) -> Bools:
        """The weights that touch hidden variables: those that a start at zero would leave symmetric."""
        blocks = {block.name: float(block.touches_hidden) for block in self.blocks(space, labels)}
        return self.layout(space, labels).per_weight(blocks, 0.0) > 0

    def weights(self, w: Floats, space: Space, labels: LabelSpace) -> Iterator[Weight]:
        """Every weight with its name."""
        layout = self.layout(space, labels)
        for block in self.blocks(space, labels):
            values = layout.view(w, block.name).reshape(-1, *block.cards)
            features = _feature_names(block, space)
            states = [_state_names(axis, card, labels) for axis, card in zip(block.axes, block.cards, strict=True)]
            for place in np.ndindex(values.shape):
                named = tuple(names[k] for names, k in zip(states, place[1:], strict=True))
                yield Weight(block.name, features[place[0]], named, float(values[place]))

    def _fixed_values(self, model: LinearModel, space: Space, labels: LabelSpace) -> Floats:
        """The known weights, NaN where free."""
        assert self.fixed is not None and model.layout is not None
        values = np.full(model.n_weights, np.nan)
        blocks = {block.name: block for block in self.blocks(space, labels)}
        for name, given in self.fixed.items():
            view = model.layout.view(values, name)  # raises on an unknown name
            block = blocks[name]
            table = view.reshape(-1, *block.cards)
            if isinstance(given, Mapping):
                for key, value in given.items():
                    table[_locate(key, block, space, labels)] = value
                continue
            array = np.asarray(given, dtype=np.float64)
            if array.shape not in ((), table.shape, table.shape[1:]):
                raise InputError(f"fixed[{name!r}] has shape {array.shape}; the weights have {table.shape}.")
            table[...] = array
        return values


_WHAT = {"node": "X", "edge": "edge"}


def _instances(X: Any) -> Sequence[Any]:
    if isinstance(X, (str, bytes, Mapping)) or sparse.issparse(X) or not hasattr(X, "__len__"):
        raise InputError(f"X must be a sequence of instances, got {type(X).__name__}.")
    items: Sequence[Any] = X
    return items


def _parsed(raw: Raw, rows: Mapping[str, Rows]) -> Parsed:
    keys = raw.keys if raw.keys is not None else rows["node"].sizes.tolist()
    return Parsed(rows, keys)


def _check_sizes(frames: Frames, parsed: Parsed) -> None:
    for name, rows in parsed.rows.items():
        expected = np.array([kind.sizes[name] for kind in frames.kinds], dtype=np.int64)[frames.which]
        bad = np.flatnonzero(rows.sizes != expected)
        if len(bad):
            b = int(bad[0])
            raise InputError(
                f"X, instance {b}: {int(rows.sizes[b])} rows of {name} features "
                f"where there should be {int(expected[b])}."
            )
    empty = np.flatnonzero(np.array([not len(kind.labels) for kind in frames.kinds], dtype=bool)[frames.which])
    if len(empty):
        raise InputError(f"X, instance {int(empty[0])}: there is no site to label; leave empty instances out.")


def _feature_names(block: Block, space: Space) -> tuple[str, ...]:
    return ("1",) if block.source is None else space.features[block.source].names


def _state_names(axis: str, card: int, labels: LabelSpace) -> Sequence[Hashable]:
    return labels.classes if axis == "label" else range(card)


def _locate(key: Any, block: Block, space: Space, labels: LabelSpace) -> tuple[int, ...]:
    """Position (feature, states...) of a weight by name; the feature may be left out where there is only one."""
    parts = key if isinstance(key, tuple) else (key,)
    features = _feature_names(block, space)
    if len(features) == 1 and len(parts) == len(block.cards):
        parts = (features[0], *parts)
    if len(parts) != 1 + len(block.cards) or parts[0] not in features:
        raise InputError(
            f"fixed[{block.name!r}] names {key!r}; a weight is (feature, {', '.join(block.axes)}) with a known feature."
        )
    place = [features.index(parts[0])]
    for axis, card, state in zip(block.axes, block.cards, parts[1:], strict=True):
        place.append(state_index(axis, card, state, labels, f"fixed[{block.name!r}]"))
    return tuple(place)


def state_index(axis: str, card: int, state: Any, labels: LabelSpace, where: str) -> int:
    """The number of a state named in a parameter: a label, or the number of a hidden state."""
    if axis == "label":
        return labels.index(state, where)
    if isinstance(state, (int, np.integer)) and 0 <= state < card:
        return int(state)
    raise InputError(f"{where} names hidden state {state!r}; they run from 0 to {card - 1}.")


def check_count(value: Any, name: str, low: int) -> int:
    """A whole number >= ``low``, or an error."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < low:
        raise InputError(f"{name} must be a whole number >= {low}, got {value!r}.")
    return int(value)


def check_flag(value: Any, name: str) -> bool:
    if not isinstance(value, (bool, np.bool_)):
        raise InputError(f"{name} must be True or False, got {value!r}.")
    return bool(value)


def pair_mask(pairs: Any, labels: LabelSpace, where: str) -> Bools:
    """A mask over pairs of classes from an iterable of label pairs."""
    mask = np.zeros((labels.n_classes, labels.n_classes), dtype=bool)
    for pair in pairs:
        if not isinstance(pair, (tuple, list)) or len(pair) != 2:
            raise InputError(f"{where} holds {pair!r}; it needs pairs of labels.")
        mask[labels.index(pair[0], where), labels.index(pair[1], where)] = True
    return mask


def label_mask(members: Any, labels: LabelSpace, where: str) -> Bools:
    """A mask over the classes from labels."""
    mask = np.zeros(labels.n_classes, dtype=bool)
    mask[[labels.index(label, where) for label in members]] = True
    return mask
