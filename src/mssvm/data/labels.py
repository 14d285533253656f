"""Labels of any kind, in states out: missing labels, single labels and candidate sets of ragged data (paper section 2).

A site is *missing* (its variable becomes hidden) where the label is ``MISSING``, None, NaN or ``missing_label``. A set,
frozenset or list is a *candidate set*: the site is an output, and any of its members is right. Anything else hashable
is a label; a tuple is one label.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any, Final

import numpy as np

from mssvm.core.arrays import AnyArray, Bools, Ints
from mssvm.core.errors import InputError
from mssvm.core.topology import offsets
from mssvm.data.sites import (
    Shapes,
    check_sequence,
    check_size,
    flat_sites,
    mismatch,
    plain,
    plain_array,
    site_place,
    site_ptr,
)


class _Missing:
    """The type of ``MISSING``; there is one of it, also after copying and pickling."""

    _one: _Missing | None = None

    def __new__(cls) -> _Missing:
        if cls._one is None:
            cls._one = super().__new__(cls)
        return cls._one

    def __repr__(self) -> str:
        return "MISSING"

    def __reduce__(self) -> str:
        return "MISSING"

    def __bool__(self) -> bool:
        return False


MISSING: Final = _Missing()


@dataclass(frozen=True, eq=False)
class Labels:
    """Labels of all sites of a sample: ``mask[s, k]`` is whether class k is admitted at site s.

    Missing sites are not ``observed`` and admit every class. Sites of instance b are ``ptr[b] : ptr[b+1]``.
    """

    observed: Bools
    mask: Bools
    ptr: Ints

    @cached_property
    def states(self) -> Ints:
        """The class of every site: the first of a candidate set, -1 where missing."""
        return np.where(self.observed, self.mask.argmax(axis=1), -1).astype(np.int64)

    @cached_property
    def single(self) -> Bools:
        """Sites with exactly one label."""
        return np.asarray(self.observed & (self.mask.sum(axis=1) == 1))

    def select(self, which: Sequence[int] | Ints) -> Labels:
        """The labels of the named instances."""
        rows = [np.arange(self.ptr[b], self.ptr[b + 1]) for b in which]
        sites = np.concatenate(rows) if rows else np.zeros(0, dtype=np.int64)
        sizes = np.array([len(r) for r in rows], dtype=np.int64)
        return Labels(self.observed[sites], self.mask[sites], offsets(sizes))


@dataclass(frozen=True, eq=False)
class LabelVocabulary:
    """The classes in a fixed order; states of label variables are positions in ``classes``."""

    classes: tuple[Hashable, ...]
    missing_label: Hashable = None

    def __post_init__(self) -> None:
        classes = tuple(plain(c) for c in self.classes)
        object.__setattr__(self, "classes", classes)
        object.__setattr__(self, "missing_label", plain(self.missing_label))
        for c in classes:
            if is_missing(c, self.missing_label):
                raise InputError(f"classes holds {c!r}, which stands for a missing label; leave it out.")
        if len(self.table) != len(classes):
            raise InputError("classes names the same label twice; every class may appear once.")
        if not classes:
            raise InputError("there are no classes: every label is missing; label some sites or pass classes=.")

    @classmethod
    def learn(
        cls, y: Any, depth: int, classes: Iterable[Hashable] | None = None, missing_label: Hashable = None
    ) -> LabelVocabulary:
        """The classes of ``y`` in sorted order, or those given in the given order.

        ``depth`` is the number of axes of one instance's labels: 0 one label, 1 a sequence, 2 a grid.
        """
        if classes is not None:
            return cls(tuple(classes), missing_label)
        check_sequence(y)
        arrays = plain_array(y, depth)
        if arrays is not None:
            values: Iterable[Any] = np.unique(arrays).tolist()
        else:
            values = list(chain.from_iterable(flat_sites(item, depth, b) for b, item in enumerate(y)))
            with suppress(TypeError):  # sets and lists are not hashable; then every site is looked at
                values = dict.fromkeys(values)
        found: dict[Hashable, None] = {}
        for value in values:
            _note(value, found, missing_label)
        return cls(ordered(found), missing_label)

    @property
    def n_classes(self) -> int:
        return len(self.classes)

    @cached_property
    def table(self) -> dict[Hashable, int]:
        return {c: k for k, c in enumerate(self.classes)}

    @cached_property
    def array(self) -> AnyArray:
        """The classes as an array: of their own type where they share one, of objects otherwise."""
        types = {type(c) for c in self.classes}
        if len(types) == 1 and types <= {int, float, bool, str}:
            return np.array(self.classes)
        out = np.empty(self.n_classes, dtype=object)
        for k, c in enumerate(self.classes):
            out[k] = c
        return out

    def index(self, label: Hashable, where: str) -> int:
        """The state of one label named in a parameter."""
        try:
            return self.table[plain(label)]
        except (KeyError, TypeError):
            raise InputError(f"{where} names {label!r}, which is not among the classes {self.shown}.") from None

    @property
    def shown(self) -> str:
        """The classes for a message, cut short if there are many."""
        listed = ", ".join(repr(c) for c in self.classes[:8])
        return listed + (f", ... ({self.n_classes} in all)" if self.n_classes > 8 else "")

    def encode(self, y: Any, shapes: Shapes, what: str = "y") -> Labels:
        """States of ragged labels; ``shapes`` says how many sites each instance of X has."""
        check_sequence(y, what)
        if len(y) != len(shapes):
            raise InputError(f"{what} has {len(y)} instances and X has {len(shapes)}; they must match.")
        depth = len(shapes[0]) if len(shapes) else 0
        codes = self._array_codes(y, shapes, depth, what)
        if codes is not None:
            return self._from_codes(codes, shapes)
        flat: list[Any] = []
        for b, (item, shape) in enumerate(zip(y, shapes, strict=True)):
            sites = flat_sites(item, depth, b, what, shape)
            check_size(sites, shape, b, what)
            flat.extend(sites)
        try:
            return self._from_codes(np.fromiter(map(self._lookup.__getitem__, flat), np.int64, len(flat)), shapes)
        except (KeyError, TypeError):
            return self._encode_slowly(flat, shapes, what)

    def decode(self, states: Ints) -> AnyArray:
        """Labels of states; the result has the shape of ``states``."""
        return np.asarray(self.array[states])

    @cached_property
    def _lookup(self) -> dict[Hashable, int]:
        marks: dict[Hashable, int] = {None: -1, MISSING: -1}
        if self.missing_label is not None:
            marks[self.missing_label] = -1
        return {**marks, **self.table}

    def _array_codes(self, y: Any, shapes: Shapes, depth: int, what: str) -> Ints | None:
        values = plain_array(y, depth)
        if values is None:
            return None
        if depth:
            for b, (item, shape) in enumerate(zip(y, shapes, strict=True)):
                if item.shape != shape:
                    raise InputError(mismatch(item.shape, shape, b, what))
        found, inverse = np.unique(values, return_inverse=True)
        codes = np.empty(len(found), dtype=np.int64)
        for k, value in enumerate(found.tolist()):
            code = -1 if is_missing(value, self.missing_label) else self.table.get(value)
            if code is None:
                site = int(np.flatnonzero(inverse.ravel() == k)[0])
                raise InputError(self._unknown(value, *site_place(site, shapes), what))
            codes[k] = code
        return codes[inverse.ravel()]

    def _from_codes(self, codes: Ints, shapes: Shapes) -> Labels:
        mask = np.zeros((len(codes), self.n_classes), dtype=bool)
        mask[np.arange(len(codes)), codes] = True
        observed = codes >= 0
        mask[~observed] = True
        return Labels(observed, mask, site_ptr(shapes))

    def _encode_slowly(self, flat: list[Any], shapes: Shapes, what: str) -> Labels:
        """One site at a time: candidate sets, NaN, and the words for what is wrong."""
        mask = np.ones((len(flat), self.n_classes), dtype=bool)
        observed = np.ones(len(flat), dtype=bool)
        for s, value in enumerate(flat):
            if is_missing(value, self.missing_label):
                observed[s] = False
                continue
            mask[s] = False
            members = value if isinstance(value, (set, frozenset, list)) else (value,)
            if not len(members):
                b, site = site_place(s, shapes)
                raise InputError(
                    f"{what}, instance {b}, site {site}: the candidate set is empty; "
                    "list at least one label, or mark the site as MISSING."
                )
            for label in members:
                code = self.table.get(label) if _hashable(label) else None
                if code is None:
                    raise InputError(self._unknown(label, *site_place(s, shapes), what))
                mask[s, code] = True
        return Labels(observed, mask, site_ptr(shapes))

    def _unknown(self, label: Any, b: int, site: int, what: str) -> str:
        if not _hashable(label):
            return f"{what}, instance {b}, site {site}: {label!r} cannot be a label; labels must be hashable."
        return (
            f"{what}, instance {b}, site {site}: label {label!r} is not among the classes {self.shown}; "
            "pass classes= when fitting, or mark it as MISSING."
        )


def is_missing(value: Any, missing_label: Hashable = None) -> bool:
    """Whether a site's value means that its label is unknown."""
    if value is None or value is MISSING:
        return True
    if isinstance(value, (float, np.floating)) and value != value:
        return True
    return missing_label is not None and _hashable(value) and bool(value == missing_label)


def ordered(labels: Iterable[Hashable]) -> tuple[Hashable, ...]:
    """Labels in ascending order; labels that do not compare are grouped by type first, then by value or by repr."""
    values = list(labels)
    try:
        return tuple(sorted(values))  # type: ignore[type-var]
    except TypeError:
        pass
    groups: dict[str, list[Any]] = {}
    for value in values:
        groups.setdefault("number" if isinstance(value, (int, float)) else type(value).__name__, []).append(value)
    out: list[Hashable] = []
    for name in sorted(groups):
        try:
            out.extend(sorted(groups[name]))
        except TypeError:
            out.extend(sorted(groups[name], key=repr))
    return tuple(out)


def _note(value: Any, found: dict[Hashable, None], missing_label: Hashable) -> None:
    """Add the label or the members of a candidate set to ``found``."""
    if is_missing(value, missing_label):
        return
    for label in value if isinstance(value, (set, frozenset, list)) else (value,):
        label = plain(label)
        if not _hashable(label):
            raise InputError(f"y holds {label!r}, which cannot be a label; labels must be hashable.")
        if is_missing(label, missing_label):
            raise InputError(f"a candidate set in y holds {label!r}, which stands for a missing label; leave it out.")
        found[label] = None


def _hashable(value: Any) -> bool:
    try:
        hash(value)
    except TypeError:
        return False
    return True


LabelSpace = LabelVocabulary  # its name before
