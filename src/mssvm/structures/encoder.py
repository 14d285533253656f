"""A structure with what it learned: the encoder turns X into batches and names the weights.

encoder, parsed = Encoder.learn(structure, X, vocabulary, y)   at fit: the schema of X learned, and X itself parsed
encoded = encoder.encode_parsed(parsed)
encoded = encoder.encode(X)                                    at prediction
theta = encoder.model.forward(w, encoded.inputs)               theta = Phi(x) w (paper eq. 1), with named weights
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from math import prod
from typing import Any, Self

import numpy as np

from mssvm.core.arrays import AnyArray, Floats
from mssvm.core.caches import LRUCache
from mssvm.core.checks import shown
from mssvm.core.errors import InputError, MssvmWarning
from mssvm.core.memory import check_memory
from mssvm.core.terms import Term, fused
from mssvm.data.labels import Labels, LabelVocabulary, Shapes
from mssvm.models.linear import LinearInputs, LinearModel, WeightLayout
from mssvm.models.partial import AllWeights, FixedWeights
from mssvm.models.symmetric import SymmetricTables, mirror_of
from mssvm.structures.base import Parsed, Schema, Structure, axis_names, state_index
from mssvm.structures.encoded import Encoded
from mssvm.structures.layout import BatchLayout, BlockRows, InstanceTopology
from mssvm.structures.weights import HardConstraint, KnownScores, Weight, WeightBlock, WeightMasks

LARGE_WEIGHTS = 1 << 31  # bytes of one weight vector; solvers keep several
SMALL_BATCH = 256  # instances of a batch whose layout is cached
SMALL_SOURCE = 1 << 18  # feature rows of a batch whose layout is cached
CACHED_VARIABLES = 1 << 20  # capacity of the cache of topologies
CACHED_STATES = 1 << 20  # capacity of the cache of layouts


def _n_variables(topology: InstanceTopology) -> int:
    return len(topology.cards)


def _n_states(layout: BatchLayout) -> int:
    return layout.batch.n_states


@dataclass(frozen=True, eq=False)
class Encoder:
    """A structure with the features and labels it learned; blocks, constraints and model are made once.

    Factors of the groups ``own_tables`` have features, hence a table each.
    """

    structure: Structure
    schema: Schema
    vocabulary: LabelVocabulary
    _topologies: LRUCache[Hashable, InstanceTopology] = field(
        init=False, repr=False, default_factory=partial(LRUCache, CACHED_VARIABLES, _n_variables)
    )
    _layouts: LRUCache[tuple[Hashable, ...], BatchLayout] = field(
        init=False, repr=False, default_factory=partial(LRUCache, CACHED_STATES, _n_states)
    )

    @classmethod
    def learn(cls, structure: Structure, X: Any, vocabulary: LabelVocabulary, y: Any = None) -> tuple[Self, Parsed]:
        """Learn the schema of X: the encoder of the structure, and X parsed with it."""
        schema, parsed = structure.learn(X, vocabulary, y)
        return cls(structure, schema, vocabulary), parsed

    def __post_init__(self) -> None:
        # Both check the structure's parameters, so an encoder that exists is a usable one.
        _ = self.blocks
        _ = self.constraints

    # ------------------------------------------------------------------------------------- weights

    @cached_property
    def blocks(self) -> tuple[WeightBlock, ...]:
        return self.structure.blocks(self.schema, self.vocabulary)

    @cached_property
    def constraints(self) -> tuple[HardConstraint, ...]:
        return tuple(self.structure.constraints(self.schema, self.vocabulary))

    @cached_property
    def known_scores(self) -> tuple[KnownScores, ...]:
        return tuple(self.structure.known_scores(self.schema, self.vocabulary))

    @cached_property
    def own_tables(self) -> frozenset[str]:
        return frozenset(block.group for block in self.blocks if block.source is not None)

    @cached_property
    def layout(self) -> WeightLayout:
        """The blocks as consecutive ranges of w (a PyTorch layer takes scores, and has neither features nor w)."""
        shapes = {}
        for block in self.blocks:
            shapes[block.name] = len(self.feature_names(block)), prod(block.cards)
        layout = WeightLayout.of(shapes)
        remedy = "fewer features, classes or hidden states need fewer weights"
        check_memory(8.0 * layout.n_weights, f"one vector of {layout.n_weights:,} weights", remedy)
        if layout.n_weights * 8 > LARGE_WEIGHTS:
            warn_large(layout.n_weights)
        return layout

    @cached_property
    def model(self) -> AllWeights:
        """theta = Phi(x) w with named weights; those of the structure's parameter ``fixed`` are constants."""
        linear = LinearModel(self.layout.n_weights, self.layout)
        model: LinearModel | SymmetricTables = linear
        symmetric = {block.name: block.cards[0] for block in self.blocks if block.symmetric}
        if symmetric:
            model = SymmetricTables(linear, mirror_of(self.layout, symmetric))
        fixed = self.structure.fixed
        if fixed is not None and not isinstance(fixed, Mapping):
            raise InputError(f"fixed must map names of blocks to weights, got {type(fixed).__name__}.")
        if not fixed:
            return model
        return FixedWeights(model, self._fixed_values(fixed))

    @cached_property
    def weight_masks(self) -> WeightMasks:
        hidden = np.zeros(self.layout.n_weights, dtype=bool)
        nonnegative = np.zeros(self.layout.n_weights, dtype=bool)
        for block in self.blocks:
            span = self.layout.groups[block.name].span
            hidden[span] = "hidden" in block.axes
            nonnegative[span] = block.agree > 0
        return WeightMasks(hidden, nonnegative)

    @property
    def n_features(self) -> int:
        return self.schema.n_features

    # ------------------------------------------------------------------------------------- from X to inputs

    def encode(self, X: Sequence[Any]) -> Encoded:
        """New X as a batch."""
        return self.encode_parsed(self.structure.parse(X, self.schema))

    def encode_parsed(self, parsed: Parsed, whole: Mapping[str, BlockRows] | None = None) -> Encoded:
        """Parsed X as a batch. If it is a part of a larger data set, ``whole`` is ``rows_of`` that data set."""
        keys = parsed.topology_keys
        cached = whole is None and self._is_small(parsed, keys)
        layout = self._layouts.get(keys, self._lay_out) if cached else self._lay_out(keys, whole)
        _check_rows(parsed, layout)
        terms = []
        sizes = []
        for block, placement in zip(self.blocks, layout.placements, strict=True):
            n_rows = len(placement.at)
            if not n_rows:
                continue
            features: AnyArray = np.broadcast_to(1.0, (n_rows, 1))  # takes no memory
            if block.source is not None:
                features = parsed.rows[block.source].matrix
                if placement.rows is not None:
                    features = features[placement.rows]
            if block.basis is not None:
                features = np.tile(block.basis, (n_rows // block.n_rows, 1))
            weights = self.layout.groups[block.name]
            first_weight = np.asarray(weights.span.start)
            terms.append(Term(placement.target, features, placement.at, weights.shape[1], first_weight))
            sizes.append(n_rows if whole is None else whole[block.name].n)
        inputs = LinearInputs(layout.batch, fused(terms, sizes), layout.offset)
        query = layout.query if cached else None
        n_classes = self.vocabulary.n_classes
        return Encoded(inputs, layout.labels, layout.hidden, n_classes, layout.allowed, query, layout.segments)

    def encode_labels(self, y: Any, shapes: Shapes, what: str = "y") -> Labels:
        """Labels in the forms that the structure reads; ``shapes`` says how many sites each instance of X has."""
        return self.structure.encode_labels(y, shapes, what, self)

    def _check_memory(self, keys: tuple[Hashable, ...]) -> None:
        """Raise if the scores of a batch do not fit into the machine: those of all states, and a table for every member
        of the groups that have features."""
        states = 0
        entries = 0.0
        for key, times in Counter(keys).items():
            topology = self.topology(key)
            states += times * int(topology.cards.sum())
            for group in self.own_tables:
                members = topology.groups.get(group)
                if members is not None and members.shape[1] > 1 and len(members):
                    sizes = topology.cards[members].astype(np.float64).prod(axis=1)
                    entries += times * float(sizes.sum())
        shared = max((float(prod(block.cards)) for block in self.blocks), default=0.0)
        n_classes = self.vocabulary.n_classes
        remedy = f"there are {n_classes:,} classes: use fewer classes, fewer instances at a time or fewer edge features"
        check_memory(8.0 * (states + entries + shared), f"the scores of {len(keys):,} instances", remedy)

    def rows_of(self, times: Mapping[Hashable, int]) -> dict[str, BlockRows]:
        """Rows of each block in data with ``times[key]`` instances of a topology; they decide how blocks are stored."""
        topologies = tuple(self.topology(key) for key in times)
        layout = BatchLayout(topologies, np.arange(len(topologies)), own_tables=self.own_tables)
        counts = list(times.values())
        return {block.name: layout.count_rows(block, counts) for block in self.blocks}

    def topology(self, key: Hashable) -> InstanceTopology:
        """The topology of an instance with the given key."""
        return self._topologies.get(key, self._make_topology)

    def _make_topology(self, key: Hashable) -> InstanceTopology:
        return self.structure.topology(key, self)

    def _is_small(self, parsed: Parsed, keys: tuple[Hashable, ...]) -> bool:
        """Whether the layout of a batch is cached: predictions repeat small batches of the same topologies."""
        if len(keys) > SMALL_BATCH:
            return False
        return all(rows.ptr[-1] <= SMALL_SOURCE for rows in parsed.rows.values())

    def _lay_out(self, keys: tuple[Hashable, ...], whole: Mapping[str, BlockRows] | None = None) -> BatchLayout:
        self._check_memory(keys)
        numbers = {key: k for k, key in enumerate(dict.fromkeys(keys))}
        topologies = tuple(self.topology(key) for key in numbers)
        topology_of = np.array([numbers[key] for key in keys], dtype=np.int64)
        known = self.known_scores
        return BatchLayout(topologies, topology_of, self.blocks, self.constraints, known, self.own_tables, whole)

    # ------------------------------------------------------------------------------------- names of weights

    def weights(self, w: Floats) -> Iterator[Weight]:
        """Every weight with its name."""
        for block in self.blocks:
            values = self.layout.view(w, block.name).reshape(-1, *block.cards)
            features = self.feature_names(block)
            state_names: list[Sequence[Hashable]] = []
            for axis, card in zip(block.axes, block.cards, strict=True):
                state_names.append(axis_names(axis, card, self.vocabulary))
            for index in np.ndindex(values.shape):
                states = tuple(names[k] for names, k in zip(state_names, index[1:], strict=True))
                yield Weight(block.name, features[index[0]], states, float(values[index]))

    def feature_names(self, block: WeightBlock) -> tuple[str, ...]:
        """The names of a block's features."""
        if block.basis is not None:
            return block.basis_names
        if block.source is None:
            return ("1",)
        return self.schema.features[block.source].names

    def _fixed_values(self, fixed: Mapping[str, Any]) -> Floats:
        """The fixed weights, NaN where free."""
        values = np.full(self.layout.n_weights, np.nan)
        blocks = {block.name: block for block in self.blocks}
        for name, weights in fixed.items():
            view = self.layout.view(values, name)  # raises on an unknown name
            table = view.reshape(-1, *blocks[name].cards)
            if isinstance(weights, Mapping):
                for key, value in weights.items():
                    table[self._weight_index(key, blocks[name])] = _fixed_array(value, name)
                continue
            array = _fixed_array(weights, name)
            if array.shape not in ((), table.shape, table.shape[1:]):
                raise InputError(f"fixed[{name!r}] has shape {array.shape}; the weights have {table.shape}.")
            table[...] = array
        return values

    def _weight_index(self, key: Any, block: WeightBlock) -> tuple[int, ...]:
        """Position (feature, states...) of a weight by name; the feature may be left out where there is only one."""
        parts = key if isinstance(key, tuple) else (key,)
        features = self.feature_names(block)
        where = f"fixed[{block.name!r}]"
        if len(features) == 1 and len(parts) == len(block.cards):
            parts = (features[0], *parts)
        if len(parts) != 1 + len(block.cards) or parts[0] not in features:
            axes = ", ".join(block.axes)
            raise InputError(f"{where} names {key!r}; a weight is (feature, {axes}) with a known feature.")
        index = [features.index(parts[0])]
        for axis, card, state in zip(block.axes, block.cards, parts[1:], strict=True):
            index.append(state_index(axis, card, state, self.vocabulary, where))
        return tuple(index)


def _check_rows(parsed: Parsed, layout: BatchLayout) -> None:
    """Raise if an instance has another number of feature rows than its topology needs."""
    for source, rows in parsed.rows.items():
        n_rows = np.diff(rows.ptr)
        expected = layout.expected_rows(source)
        wrong = np.flatnonzero(n_rows != expected)
        if len(wrong):
            b = int(wrong[0])
            reason = f"{int(n_rows[b])} rows of {source} features where there should be {int(expected[b])}."
            raise InputError(reason, instance=b)


def warn_large(n_weights: int) -> None:
    """Warn of the memory that a model with this number of weights needs."""
    warnings.warn(
        f"the model has {n_weights:,} weights, {n_weights * 8 / 2**30:.1f} GiB for each of the several vectors "
        "that training keeps; fewer features, classes or hidden states need less.",
        MssvmWarning,
        stacklevel=2,
    )


def _fixed_array(weights: Any, name: str) -> Floats:
    """Fixed weights of a block as an array."""
    try:
        return np.asarray(weights, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        raise InputError(f"fixed[{name!r}] holds {shown(weights)}; weights are numbers, NaN where free.") from None
