"""What every structure is: a description of weights and topologies, compiled with data into an ``Encoder``."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from sklearn.base import BaseEstimator

from mssvm.core import checks
from mssvm.core.arrays import Bools
from mssvm.core.errors import InputError
from mssvm.data.features import FeatureRows, FeatureSchema
from mssvm.data.graphs import FactorInput, Graph
from mssvm.data.labels import LabelVocabulary
from mssvm.structures.encoder import Encoder, GroupedTopology, HardConstraint, Parsed, Schema, WeightBlock


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

    def learn(self, y: Any, vocabulary: LabelVocabulary) -> dict[str, tuple[str, ...]]:
        """Names of types that the labels tell, where the topology depends on them."""
        return {}

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

    def compile(self, X: Any, vocabulary: LabelVocabulary, y: Any = None) -> tuple[Encoder, Parsed]:
        """Learn the schema of X and y: the encoder of this structure, and X parsed with it."""
        self.check()
        X = self.instances(X)
        raw = self.read(X)
        if not len(X):
            raise InputError("X is empty; there must be at least one instance.")
        features, rows = dict[str, FeatureSchema](), dict[str, FeatureRows]()
        for name, items in raw.sources.items():
            features[name], rows[name] = FeatureSchema.learn(items, WHAT.get(name, name))
        types = {**raw.types, **self.learn(y, vocabulary)}
        schema, parsed = self.derive(Schema(features, types), Parsed(rows, raw.keys))
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
