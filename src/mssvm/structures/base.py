"""The base of all structures: a structure describes how X is parsed, which weights there are, and the topology of an
instance.

From X to inputs of the model there are three steps, which ``Encoder`` (``encoder``) runs:

    parse     X to matrices of features and a topology key per instance    ``Structure.parse``, ``Parsed``
    lay out   topologies to a batch, by index arithmetic                   ``layout.BatchLayout``
    encode    feature rows and batch to inputs of the model                ``encoded.Encoded``
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from sklearn.base import BaseEstimator

from mssvm.core import checks
from mssvm.core.arrays import Bools, Ints
from mssvm.core.errors import InputError
from mssvm.data.dataset import Dataset
from mssvm.data.features import FeatureRows, FeatureSchema
from mssvm.data.graphs import FactorInput, Graph
from mssvm.data.labels import Labels, LabelVocabulary, Shapes
from mssvm.inference.base import Inference
from mssvm.structures.layout import InstanceTopology
from mssvm.structures.weights import HardConstraint, KnownScores, WeightBlock

if TYPE_CHECKING:
    from mssvm.structures.encoder import Encoder

INSTANCES = (Graph, FactorInput)  # types of single instances, as opposed to sequences of them
MOST_STATES = 1 << 15  # a table of two such variables has 2**30 entries
SOURCE_TITLES = {"node": "X", "edge": "edge"}  # names of the sources in messages


@dataclass(frozen=True, eq=False)
class Schema:
    """The result of learning from X: a schema of features per source, and the names of the types that occur."""

    features: Mapping[str, FeatureSchema]
    types: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def n_features(self) -> int:
        """Number of features of a site (0 where sites have none)."""
        if "node" not in self.features:
            return 0
        return self.features["node"].n_features

    def types_of(self, what: str) -> tuple[str, ...]:
        """Names of the types; where nothing has a type there is one, with the empty name."""
        return self.types.get(what, ("",))

    def to_json(self) -> dict[str, Any]:
        features = {name: part.to_json() for name, part in self.features.items()}
        return {"features": features, "types": {name: list(types) for name, types in self.types.items()}}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Schema:
        features = {name: FeatureSchema.from_json(part) for name, part in data["features"].items()}
        return cls(features, {name: tuple(types) for name, types in data["types"].items()})


@dataclass(frozen=True, eq=False)
class Sources:
    """X by source of features, as the user gave them: ``sources[name][b]`` belongs to instance b.

    ``keys`` are the topology keys of the instances (None: their numbers of sites), ``types`` the names of the types of
    nodes, edges or variables in X.
    """

    sources: Mapping[str, list[Any]]
    keys: Sequence[Hashable] | None = None
    types: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Parsed:
    """X parsed: a matrix of features per source, and a topology key per instance (None: the number of its rows in the
    source "node")."""

    rows: Mapping[str, FeatureRows]
    keys: Sequence[Hashable] | None

    @property
    def topology_keys(self) -> tuple[Hashable, ...]:
        """One key per instance: everything that its topology depends on."""
        if self.keys is None:
            return tuple(np.diff(self.rows["node"].ptr).tolist())
        return tuple(self.keys)


class Structure(BaseEstimator):
    """Base class of all structures; subclasses define how X is read, the blocks of weights, and the topologies."""

    depth: ClassVar[int] = 1  # axes of one instance's labels
    learns_from_labels: ClassVar[bool] = False  # whether ``types_from_labels`` needs all training labels
    fixed: Mapping[str, Any] | None

    # ------------------------------------------------------------------------------------- for subclasses

    @abstractmethod
    def check(self) -> None:
        """Raise ``InputError`` if a parameter is unusable."""

    @abstractmethod
    def read(self, X: Sequence[Any]) -> Sources:
        """X as sources of features (nodes, edges, ...) with a topology key per instance."""

    @abstractmethod
    def blocks(self, schema: Schema, vocabulary: LabelVocabulary) -> tuple[WeightBlock, ...]:
        """The weights."""

    @abstractmethod
    def topology(self, key: Any, encoder: Encoder) -> InstanceTopology:
        """The topology of an instance with the given key."""

    def constraints(self, schema: Schema, vocabulary: LabelVocabulary) -> list[HardConstraint]:
        """Joint states that are impossible."""
        return []

    def known_scores(self, schema: Schema, vocabulary: LabelVocabulary) -> list[KnownScores]:
        """Scores of tables that no weight changes."""
        return []

    def inference(self, encoder: Encoder) -> Inference | None:
        """The structure's own inference; None: it uses that of graphs."""
        return None

    def learn_labels(self, y: Any, classes: Any, missing_label: Hashable) -> LabelVocabulary:
        """The vocabulary of the labels of the training data."""
        return LabelVocabulary.learn(y, self.depth, classes, missing_label, places=True)

    def site_labels(self, y: Any, shapes: Shapes, what: str = "y") -> Any:
        """Labels of every site, from the forms of y that the structure reads."""
        return y

    def encode_labels(self, y: Any, shapes: Shapes, what: str, encoder: Encoder) -> Labels:
        """Labels as masks over the classes."""
        return encoder.vocabulary.encode(y, shapes, what)

    def hidden_states(self, states: Ints) -> Ints:
        """Hidden states as the user counts them, from the states of the hidden variables."""
        return states

    def instances(self, X: Any) -> Sequence[Any]:
        """X as a sequence of instances."""
        checks.sequence_length(X, "X", "of instances")
        if isinstance(X, INSTANCES):
            raise InputError(f"X must be a sequence of instances, got one {type(X).__name__}; put it into a list.")
        if isinstance(X, Dataset):
            raise InputError("X is a Dataset; pass its parts, as in fit(data.X, data.labels).")
        instances: Sequence[Any] = X
        return instances

    def types_from_labels(self, y: Any, vocabulary: LabelVocabulary) -> Mapping[str, tuple[str, ...]]:
        """Names of types that a structure learns from the labels of the training data, not from X."""
        return {}

    def unlearned(self, what: str, new: str, learned: Sequence[str]) -> InputError:
        """The error for a type of nodes, edges, factors or variables that the model did not learn."""
        listed = ", ".join(repr(t) for t in learned)
        return InputError(f"X has the {what} type {new!r}, but the model learned only {listed}.")

    def may_add(self, source: str, earlier: Schema) -> bool:
        """Whether further data may have a source of features that the ``earlier`` data did not have."""
        return False

    def joined_types(
        self, earlier: Mapping[str, tuple[str, ...]], later: Mapping[str, tuple[str, ...]]
    ) -> dict[str, tuple[str, ...]]:
        """The union of the types' names that were learned and of those in further data, in sorted order if they
        differ."""
        return merged_types((earlier, later))

    def derive(self, schema: Schema, parsed: Parsed) -> tuple[Schema, Parsed]:
        """Add sources of features that are computed from others."""
        return schema, parsed

    # ------------------------------------------------------------------------------------- for encoders

    def learn(self, X: Any, vocabulary: LabelVocabulary, y: Any = None) -> tuple[Schema, Parsed]:
        """Parse the training data: learn the schema of X, and return it with X parsed by it."""
        self.check()
        label_types = self.types_from_labels(y, vocabulary)
        instances = self.instances(X)
        read = self.read(instances)
        if not len(instances):
            raise InputError("X is empty; there must be at least one instance.")
        features = dict[str, FeatureSchema]()
        rows = dict[str, FeatureRows]()
        for name, items in read.sources.items():
            features[name], rows[name] = FeatureSchema.learn(items, SOURCE_TITLES.get(name, name))
        return self.derive(Schema(features, {**read.types, **label_types}), Parsed(rows, read.keys))

    def parse(self, X: Any, schema: Schema) -> Parsed:
        """Parse new X with the schema of the training data."""
        self.check()
        instances = self.instances(X)
        read = self.read(instances)
        for name in read.sources:
            if name not in schema.features:
                raise InputError(f"X comes with {name} features, unlike the data the model learned from.")
        for name, types in read.types.items():
            learned = schema.types.get(name, ())
            new = [t for t in types if t not in learned]
            if new:
                raise self.unlearned(name, new[0], learned)
        rows = {}
        for name, feature_schema in schema.features.items():
            items = read.sources.get(name)
            if items is None:
                items = [[]] * len(instances)
            rows[name] = feature_schema.encode(items)
        return self.derive(schema, Parsed(rows, read.keys))[1]


def merged_types(many: Iterable[Mapping[str, tuple[str, ...]]]) -> dict[str, tuple[str, ...]]:
    """The union of the names of types, in sorted order if they differ: the order of a structure that read all data."""
    merged: dict[str, tuple[str, ...]] = {}
    for types in many:
        for name, names in types.items():
            before = merged.setdefault(name, names)
            if names != before:
                merged[name] = tuple(sorted({*before, *names}))
    return merged


def type_names(types: Iterable[Hashable]) -> tuple[str, ...]:
    """Types of nodes, edges or variables by their names in sorted order; different types must have different names."""
    type_of_name: dict[str, Hashable] = {}
    for t in dict.fromkeys(types):
        first = type_of_name.setdefault(str(t), t)
        if first != t:
            raise InputError(f"the types {first!r} and {t!r} have the same name; name one of them otherwise.")
    return tuple(sorted(type_of_name))


def check_flag(value: Any, name: str) -> bool:
    if not isinstance(value, (bool, np.bool_)):
        raise InputError(f"{name} must be True or False, got {value!r}.")
    return bool(value)


def label_mask(members: Iterable[Any], vocabulary: LabelVocabulary, where: str) -> Bools:
    """A mask over the classes from labels."""
    mask = np.zeros(vocabulary.n_classes, dtype=bool)
    for label in checks.several(members, where, "labels"):
        mask[vocabulary.index(label, where)] = True
    return mask


def state_index(axis: str, card: int, state: Any, vocabulary: LabelVocabulary, where: str) -> int:
    """The number of a state named in a parameter: a label, or the number of a hidden state."""
    if axis == "label":
        return vocabulary.index(state, where)
    if isinstance(state, (int, np.integer)) and state in axis_names(axis, card, vocabulary):
        return int(state) - int(axis == "length")
    names = axis_names(axis, card, vocabulary)
    raise InputError(f"{where} names {axis} state {state!r}; they run from {names[0]} to {names[-1]}.")


def axis_names(axis: str, card: int, vocabulary: LabelVocabulary) -> Sequence[Hashable]:
    """Names of the states of an axis of weights: labels, lengths from 1, or numbers of hidden states."""
    if axis == "label":
        return vocabulary.classes
    return range(1, card + 1) if axis == "length" else range(card)
