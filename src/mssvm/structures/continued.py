"""Training that continues with new data: vocabularies that grow, and weights that keep their names.

A label, a named feature or a type that appears later gets weights of its own. Every weight has a name (block, feature,
states), and ``moved_weights`` takes the weights of one encoder to those of the same name in another.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse

from mssvm.core.arrays import Bools, Floats, Ints
from mssvm.core.errors import InputError
from mssvm.data.features import FeatureRows, FeatureSchema
from mssvm.data.labels import LabelVocabulary
from mssvm.structures.base import Parsed, Schema, Structure, axis_names
from mssvm.structures.encoder import Encoder
from mssvm.structures.weights import WeightBlock


class MovedWeights(NamedTuple):
    """Weights of a larger encoder: ``w``, zero where ``new``, that is, where no earlier weight has the name."""

    w: Floats
    new: Bools


def _widened_vocabulary(earlier: LabelVocabulary, later: LabelVocabulary) -> LabelVocabulary:
    """The earlier classes, followed by those of ``later`` that are not among them: no class changes its place."""
    new = [label for label in later.classes if label not in earlier.table]
    return earlier.followed_by(new, later.missing_label)


def _widened_schema(structure: Structure, earlier: Schema, later: Schema) -> Schema:
    """The earlier features and types, followed by new ones; features of another kind or number are an error."""
    features = dict(earlier.features)
    for name, part in later.features.items():
        if name in features:
            features[name] = features[name].joined(part)
        elif structure.may_add(name, earlier):
            features[name] = part
        else:
            raise InputError(f"X comes with {name} features, unlike the data the model learned from.")
    return Schema(features, structure.joined_types(earlier.types, later.types))


def widened_encoder(
    structure: Structure, earlier: Encoder, X: Any, y: Any, classes: Iterable[Hashable] | None, missing_label: Hashable
) -> tuple[Encoder, Parsed]:
    """An earlier encoder extended by the labels and features of new data, and the new X parsed with the result."""
    vocabulary = _widened_vocabulary(earlier.vocabulary, structure.learn_labels(y, classes, missing_label))
    if any(part.hashed for part in earlier.schema.features.values()):  # a hash has a column for every name
        return Encoder(structure, earlier.schema, vocabulary), structure.parse(X, earlier.schema)
    later, parsed = structure.learn(X, vocabulary, y)
    schema = _widened_schema(structure, earlier.schema, later)
    n_instances = len(parsed.topology_keys)
    rows: dict[str, FeatureRows] = {}
    for name, part in schema.features.items():
        if name in later.features:
            rows[name] = _moved_rows(parsed.rows[name], later.features[name], part)
        else:
            rows[name] = part.encode([[]] * n_instances)
    return Encoder(structure, schema, vocabulary), Parsed(rows, parsed.keys)


def widened(structure: Structure, earlier: Encoder, later: Encoder) -> Encoder:
    """An earlier encoder extended by the labels and features of a later one."""
    vocabulary = _widened_vocabulary(earlier.vocabulary, later.vocabulary)
    if any(part.hashed for part in earlier.schema.features.values()):
        return Encoder(structure, earlier.schema, vocabulary)
    return Encoder(structure, _widened_schema(structure, earlier.schema, later.schema), vocabulary)


def moved_weights(w: Floats, earlier: Encoder, encoder: Encoder) -> MovedWeights:
    """The weights ``w`` of an earlier encoder in the places that ``encoder`` has for the same names."""
    moved = np.zeros(encoder.layout.n_weights)
    new = np.ones(encoder.layout.n_weights, dtype=bool)
    earlier_blocks = {block.name: block for block in earlier.blocks}
    for block in encoder.blocks:
        before = earlier_blocks.get(block.name)
        if before is None or before.axes != block.axes:
            continue
        old_at = []
        new_at = []
        axes = zip(_names_of_axes(earlier, before), _names_of_axes(encoder, block), strict=True)
        for old_names, new_names in axes:
            old_places, new_places = _common(old_names, new_names)
            old_at.append(old_places)
            new_at.append(new_places)
        values = earlier.layout.view(w, block.name).reshape(-1, *before.cards)[np.ix_(*old_at)]
        to = np.ix_(*new_at)
        encoder.layout.view(moved, block.name).reshape(-1, *block.cards)[to] = values
        encoder.layout.view(new, block.name).reshape(-1, *block.cards)[to] = False
    return MovedWeights(moved, new)


def _names_of_axes(encoder: Encoder, block: WeightBlock) -> list[Sequence[Hashable]]:
    """The names of a block's features, and of the states of each of its axes."""
    names: list[Sequence[Hashable]] = [encoder.feature_names(block)]
    for axis, card in zip(block.axes, block.cards, strict=True):
        names.append(axis_names(axis, card, encoder.vocabulary))
    return names


def _common(old: Sequence[Hashable], new: Sequence[Hashable]) -> tuple[Ints, Ints]:
    """The positions, in ``old`` and in ``new``, of the names that both have."""
    place = {name: k for k, name in enumerate(new)}
    old_places = [k for k, name in enumerate(old) if name in place]
    new_places = [place[old[k]] for k in old_places]
    return np.array(old_places, dtype=np.int64), np.array(new_places, dtype=np.int64)


def _moved_rows(rows: FeatureRows, learned: FeatureSchema, schema: FeatureSchema) -> FeatureRows:
    """Rows of the columns ``learned`` as rows of the columns of ``schema``, which has all of their names."""
    if not schema.vocabulary:
        return schema.as_learned(rows)
    matrix = sparse.csr_array(rows.matrix)
    column = np.zeros(learned.n_features, dtype=np.int64)  # data without any name have one column of zeros
    column[: len(learned.vocabulary)] = schema.columns(learned.vocabulary)
    shape = (matrix.shape[0], schema.n_features)
    moved = sparse.csr_array((matrix.data, column[matrix.indices], matrix.indptr), shape=shape)
    moved.sort_indices()
    return FeatureRows(moved, rows.ptr)
