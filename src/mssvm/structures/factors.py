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
from mssvm.structures.base import MOST_STATES, Encoder, Raw, Schema, Structure, label_mask, state_index, type_names
from mssvm.structures.encoded import GroupedTopology, HardConstraint, WeightBlock


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
            count(card, f"hidden[{name!r}]", 1, MOST_STATES)

    @property
    def _hidden(self) -> dict[str, int]:
        return {str(name): int(card) for name, card in (self.hidden or {}).items()}

    def read(self, X: Sequence[Any]) -> Raw:
        for b, item in enumerate(X):
            if not isinstance(item, FactorInput):
                raise InputError(f"expected a FactorInput, got {type(item).__name__}.", instance=b)
        names = tuple(dict.fromkeys(name for item in X for name in item.scopes))
        types = {"variable": type_names(t for item in X for t in item.variables), "factor": names}
        sources = {f"factor:{name}": _rows(X, name) for name in names if any(name in item.features for item in X)}
        axes: dict[str, tuple[str, ...]] = {}
        keys: list[Hashable] = []
        met: dict[tuple[int, int], Hashable] = {}  # instances may share their factors and differ in features only
        for b, item in enumerate(X):
            shared = id(item.variables), id(item.scopes)
            if shared in met:
                keys.append(met[shared])
                continue
            kinds = tuple(str(t) for t in item.variables)
            for name, scopes in item.scopes.items():
                for scope in scopes.tolist():
                    here = self._joined(kinds, scope)
                    if axes.setdefault(name, here) != here:
                        raise InputError(
                            f"a factor {name!r} joins {here}, another one {axes[name]}; "
                            "factors of one type must join the same kinds of variables in the same order.",
                            instance=b,
                        )
            keys.append((kinds, tuple((n, s.shape[1], s.tobytes()) for n, s in item.scopes.items())))
            met[shared] = keys[-1]
        return Raw(sources, keys, {**types, **{f"axes of {name}": axes[name] for name in names if name in axes}})

    def _joined(self, kinds: tuple[str, ...], scope: list[int]) -> tuple[str, ...]:
        return tuple(kinds[v] if kinds[v] in self._hidden else "label" for v in scope)

    def _axes(self, schema: Schema, name: str, vocabulary: LabelVocabulary) -> tuple[tuple[str, ...], tuple[int, ...]]:
        kinds = schema.types.get(f"axes of {name}", ())
        cards = tuple(vocabulary.n_classes if kind == "label" else self._hidden[kind] for kind in kinds)
        return tuple("label" if kind == "label" else "hidden" for kind in kinds), cards

    def blocks(self, schema: Schema, vocabulary: LabelVocabulary) -> tuple[WeightBlock, ...]:
        out = []
        for name in schema.types["factor"]:
            axes, cards = self._axes(schema, name, vocabulary)
            if not axes:
                continue
            out.append(WeightBlock(name, f"factor:{name}", axes, cards))
            if f"factor:{name}" in schema.features:
                out.append(WeightBlock(f"{name}.x", f"factor:{name}", axes, cards, f"factor:{name}"))
        return tuple(out)

    def constraints(self, schema: Schema, vocabulary: LabelVocabulary) -> list[HardConstraint]:
        out = []
        for kind, members in mapping(self.allowed, "allowed", "variable types to labels").items():
            if str(kind) not in schema.types["variable"] or str(kind) in self._hidden:
                raise InputError(f"allowed names {kind!r}, which is not a type of label variables.")
            out.append(HardConstraint(f"variable:{kind}", ~label_mask(members, vocabulary, "allowed")))
        for name, joint in mapping(self.forbidden, "forbidden", "factor types to joint states").items():
            axes, cards = self._axes(schema, name, vocabulary)
            if not axes:
                raise InputError(f"forbidden names {name!r}; there are {', '.join(schema.types['factor'])}.")
            mask = np.zeros(cards, dtype=bool)
            for states in several(joint, f"forbidden[{name!r}]", "joint states"):
                if not isinstance(states, (tuple, list)) or len(states) != len(axes):
                    raise InputError(f"forbidden[{name!r}] holds {states!r}; it needs {len(axes)} states.")
                where = f"forbidden[{name!r}]"
                named = zip(axes, cards, states, strict=True)
                mask[tuple(state_index(*state, vocabulary, where) for state in named)] = True
            out.append(HardConstraint(f"factor:{name}", mask))
        return out

    def topology(self, key: Any, encoder: Encoder) -> GroupedTopology:
        kinds, packed = key
        schema, n_classes = encoder.schema, encoder.vocabulary.n_classes
        cards = np.array([self._hidden.get(kind, n_classes) for kind in kinds], dtype=np.int64)
        groups: dict[str, Ints] = {}
        for name, order, raw in packed:
            scopes = np.frombuffer(raw, dtype=np.int64).reshape(-1, order)
            learned = schema.types.get(f"axes of {name}", ())
            if len(scopes) and (here := self._joined(kinds, scopes[0].tolist())) != learned:
                raise InputError(f"factors {name!r} join {here}, but the model learned {learned}.")
            groups[f"factor:{name}"] = scopes
        sizes = {source: len(groups.get(source, ())) for source in schema.features}
        for kind in set(kinds):
            groups[f"variable:{kind}"] = np.flatnonzero(np.array([k == kind for k in kinds]))[:, None]
        labels = np.flatnonzero(np.array([kind not in self._hidden for kind in kinds], dtype=bool))
        return GroupedTopology(cards, labels, (len(labels),), groups, sizes)


def _rows(X: Sequence[FactorInput], name: str) -> list[Any]:
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
