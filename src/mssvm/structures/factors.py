"""Free templates: variables of any types, labelled or hidden, and factors of any order with weights per factor type.

theta(x, z) = sum over types f, factors a of type f: f[z_a] + x_a . f.x[:, z_a]
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mssvm.core.arrays import Ints
from mssvm.core.checks import count, mapping, several
from mssvm.core.errors import InputError
from mssvm.data.graphs import FactorInput
from mssvm.data.labels import LabelVocabulary
from mssvm.structures.base import MOST_STATES, Schema, Sources, Structure, label_mask, state_index, type_names
from mssvm.structures.encoder import Encoder
from mssvm.structures.layout import InstanceTopology
from mssvm.structures.weights import HardConstraint, WeightBlock

AXES = "axes of "  # and the name of a type of factors: in the schema, the types of variables that they join
LABEL = "label"  # the axis of a table that variables with labels share, whatever their type


@dataclass(eq=False, repr=False)
class FactorModel(Structure):
    """Factor graphs described instance by instance; X is a list of ``FactorInput``.

    Parameters
    ----------
    hidden : mapping of variable type to number of states
        The types of variables that are hidden; variables of every other type carry labels. y lists the labels of an
        instance's label variables in the order of its variables.
    allowed : mapping of variable type to labels
        The labels that variables of a type can have; types not named can have all.
    forbidden : mapping of factor type to joint states
        Tuples of states (labels, or numbers of hidden states), one per variable of the factor, that never occur.
    fixed : mapping of block to weights
        Known weights that training leaves alone (see ``Chain``).

    >>> pair = ms.FactorInput(["y", "y"], {"own": ([[0], [1]], [[1.0], [-1.0]]), "both": [[0, 1]]})
    >>> ms.CRF(ms.FactorModel()).fit([pair], [["a", "b"]]).predict([pair])[0].tolist()
    ['a', 'b']
    """

    hidden: Mapping[Hashable, int] | None = None
    allowed: Mapping[Hashable, Iterable[Hashable]] | None = None
    forbidden: Mapping[str, Iterable[tuple[Hashable, ...]]] | None = None
    fixed: Mapping[str, Any] | None = None

    def check(self) -> None:
        if self.hidden is not None and not isinstance(self.hidden, Mapping):
            raise InputError(f"hidden must map variable types to numbers of states, got {self.hidden!r}.")
        for name, card in (self.hidden or {}).items():
            if str(name) == LABEL:
                raise InputError(
                    "hidden names a type 'label', which stands for variables with labels; rename the type."
                )
            count(card, f"hidden[{name!r}]", 1, MOST_STATES)

    @property
    def _hidden_cards(self) -> dict[str, int]:
        """Numbers of states of the hidden types of variables, by the names of the types."""
        return {str(name): int(card) for name, card in (self.hidden or {}).items()}

    def read(self, X: Sequence[Any]) -> Sources:
        for b, item in enumerate(X):
            if not isinstance(item, FactorInput):
                raise InputError(f"expected a FactorInput, got {type(item).__name__}.", instance=b)
        factor_names = tuple(dict.fromkeys(name for item in X for name in item.scopes))
        sources = {}
        for name in factor_names:
            if any(name in item.features for item in X):
                sources[f"factor:{name}"] = _features_of(X, name)
        joined: dict[str, tuple[str, ...]] = {}
        keys: list[Hashable] = []
        key_of: dict[tuple[int, int], Hashable] = {}  # instances may share their factors and differ in features only
        for b, item in enumerate(X):
            identity = id(item.variables), id(item.scopes)
            if identity not in key_of:
                variable_types = tuple(str(t) for t in item.variables)
                self._check_joined(item, variable_types, joined, b)
                packed = tuple((name, scopes.shape[1], scopes.tobytes()) for name, scopes in item.scopes.items())
                key_of[identity] = (variable_types, packed)
            keys.append(key_of[identity])
        types = {"variable": type_names(t for item in X for t in item.variables), "factor": factor_names}
        for name in factor_names:
            if name in joined:
                types[AXES + name] = joined[name]
        return Sources(sources, keys, types)

    def _check_joined(
        self, item: FactorInput, variable_types: tuple[str, ...], joined: dict[str, tuple[str, ...]], b: int
    ) -> None:
        """Note in ``joined`` which types of variables the factors of each type join; raise if two differ."""
        for name, scopes in item.scopes.items():
            for scope in scopes.tolist():
                axes = self._types_joined_by(variable_types, scope)
                if joined.setdefault(name, axes) != axes:
                    raise InputError(
                        f"a factor {name!r} joins {axes}, another one {joined[name]}; "
                        "factors of one type must join the same kinds of variables in the same order.",
                        instance=b,
                    )

    def _types_joined_by(self, variable_types: tuple[str, ...], scope: list[int]) -> tuple[str, ...]:
        """The hidden types of the variables in a scope, "label" for the others."""
        hidden = self._hidden_cards
        return tuple(variable_types[v] if variable_types[v] in hidden else LABEL for v in scope)

    def _axes(self, schema: Schema, name: str, vocabulary: LabelVocabulary) -> tuple[tuple[str, ...], tuple[int, ...]]:
        """Axes ("label" or "hidden") of the tables of a factor type, and their numbers of states."""
        axes = []
        cards = []
        for variable_type in schema.types.get(AXES + name, ()):
            if variable_type == LABEL:
                axes.append(LABEL)
                cards.append(vocabulary.n_classes)
            else:
                axes.append("hidden")
                cards.append(self._hidden_cards[variable_type])
        return tuple(axes), tuple(cards)

    def blocks(self, schema: Schema, vocabulary: LabelVocabulary) -> tuple[WeightBlock, ...]:
        out = []
        for name in schema.types["factor"]:
            axes, cards = self._axes(schema, name, vocabulary)
            if not axes:
                continue
            out.append(WeightBlock(name, f"factor:{name}", axes, cards))
            if f"factor:{name}" in schema.features:
                if f"{name}.x" in schema.types["factor"]:
                    raise InputError(
                        f"factors {name!r} have features, whose weights are {name + '.x'!r}, also the name "
                        "of other factors; rename one of the types."
                    )
                out.append(WeightBlock(f"{name}.x", f"factor:{name}", axes, cards, f"factor:{name}"))
        return tuple(out)

    def joined_types(
        self, earlier: Mapping[str, tuple[str, ...]], later: Mapping[str, tuple[str, ...]]
    ) -> dict[str, tuple[str, ...]]:
        """The union of the types; factors of a type must join the same variables as before."""
        for name, joined in later.items():
            learned = earlier.get(name, joined)
            if name.startswith(AXES) and joined != learned:
                factor = name.removeprefix(AXES)
                raise InputError(f"factors {factor!r} join {joined}, but the model learned {learned}.")
        return super().joined_types(earlier, later)

    def unlearned(self, what: str, new: str, learned: Sequence[str]) -> InputError:
        if what.startswith(AXES) and not learned:
            name = what.removeprefix(AXES)
            return InputError(f"X has factors {name!r}, but no instance that the model learned from has one.")
        return super().unlearned(what, new, learned)

    def may_add(self, source: str, earlier: Schema) -> bool:
        """Features of factors are new where the type of the factors is."""
        return source.removeprefix("factor:") not in earlier.types["factor"]

    def constraints(self, schema: Schema, vocabulary: LabelVocabulary) -> list[HardConstraint]:
        out = []
        for name, members in mapping(self.allowed, "allowed", "variable types to labels").items():
            if str(name) not in schema.types["variable"] or str(name) in self._hidden_cards:
                raise InputError(f"allowed names {name!r}, which is not a type of label variables.")
            out.append(HardConstraint(f"variable:{name}", ~label_mask(members, vocabulary, "allowed")))
        for name, joint in mapping(self.forbidden, "forbidden", "factor types to joint states").items():
            axes, cards = self._axes(schema, name, vocabulary)
            if not axes and name in schema.types["factor"]:
                continue  # no factor of the type has been seen, so that there is no table
            if not axes:
                raise InputError(f"forbidden names {name!r}; there are {', '.join(schema.types['factor'])}.")
            where = f"forbidden[{name!r}]"
            mask = np.zeros(cards, dtype=bool)
            for states in several(joint, where, "joint states"):
                if not isinstance(states, (tuple, list)) or len(states) != len(axes):
                    raise InputError(f"{where} holds {states!r}; it needs {len(axes)} states.")
                index = []
                for axis, card, state in zip(axes, cards, states, strict=True):
                    index.append(state_index(axis, card, state, vocabulary, where))
                mask[tuple(index)] = True
            out.append(HardConstraint(f"factor:{name}", mask))
        return out

    def topology(self, key: Any, encoder: Encoder) -> InstanceTopology:
        variable_types, packed = key
        schema = encoder.schema
        n_classes = encoder.vocabulary.n_classes
        hidden_cards = self._hidden_cards
        cards = np.array([hidden_cards.get(t, n_classes) for t in variable_types], dtype=np.int64)
        groups: dict[str, Ints] = {}
        for name, order, scope_bytes in packed:
            scopes = np.frombuffer(scope_bytes, dtype=np.int64).reshape(-1, order)
            if len(scopes):
                learned = schema.types.get(AXES + name, ())
                joined = self._types_joined_by(variable_types, scopes[0].tolist())
                if joined != learned:
                    raise InputError(f"factors {name!r} join {joined}, but the model learned {learned}.")
            groups[f"factor:{name}"] = scopes
        sizes = {source: len(groups.get(source, ())) for source in schema.features}
        for name in set(variable_types):
            of_type = np.array([t == name for t in variable_types])
            groups[f"variable:{name}"] = np.flatnonzero(of_type)[:, None]
        has_label = np.array([t not in hidden_cards for t in variable_types], dtype=bool)
        labels = np.flatnonzero(has_label)
        return InstanceTopology(cards, labels, (len(labels),), groups, sizes)


def _features_of(X: Sequence[FactorInput], name: str) -> list[Any]:
    """Features of the factors of one type, instance by instance."""
    out = []
    for b, item in enumerate(X):
        if name in item.features:
            out.append(item.features[name])
        elif len(item.scopes.get(name, ())):
            raise InputError(f"factors {name!r} come without features, but elsewhere they have them.", instance=b)
        else:
            out.append([])
    return out
