"""Labels of any kind as states: missing labels, single labels and candidate sets of ragged data (paper section 7.2).

A site is *missing* (its variable becomes hidden) where the label is ``MISSING``, None, NaN or ``missing_label``. A set,
frozenset or list is a *candidate set*: the site is an output, and any of its members is right. Anything else hashable
is a label; a tuple is one label. The labels of a data set are of one kind: text, numbers, true and false, or one type.

Whole numbers below zero stand for missing labels in some packages and for classes in others, so they are refused unless
``missing_label`` or ``classes`` says what they are.
"""

from __future__ import annotations

import warnings
from collections.abc import Hashable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from math import prod
from typing import Any, Final, NoReturn

import numpy as np

from mssvm.core.arrays import AnyArray, Bools, Ints
from mssvm.core.checks import sequence_length, several, shown
from mssvm.core.errors import InputError, MssvmWarning, at_row
from mssvm.core.memory import check_memory
from mssvm.core.topology import offsets, spans
from mssvm.data.tensors import as_array, is_tensor

Shapes = Sequence[tuple[int, ...]]


class _Missing:
    """The type of ``MISSING``, a singleton that survives copying and pickling.

    >>> ms.HCRF(ms.Chain()).fit(X, [["B", ms.MISSING, "O"], y[1]]).predict(X)[0].tolist()
    ['B', 'I', 'O']
    """

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

    Missing sites are not ``observed`` and admit every class. Sites of instance b are ``ptr[b] : ptr[b+1]``. In labels
    of segments ``boundaries[s]`` are two bools: whether site s may be inside a segment, whether one may begin there.
    """

    observed: Bools
    mask: Bools
    ptr: Ints
    boundaries: Bools | None = None

    @cached_property
    def states(self) -> Ints:
        """The class of every site: the first of a candidate set, -1 where missing."""
        return np.where(self.observed, self.mask.argmax(axis=1), -1).astype(np.int64)

    @cached_property
    def single(self) -> Bools:
        """Sites with exactly one label."""
        return np.asarray(self.observed & (self.mask.sum(axis=1) == 1))

    def select(self, instances: Sequence[int] | Ints) -> Labels:
        """The labels of the named instances."""
        chosen = np.asarray(instances, dtype=np.int64)
        sizes = np.diff(self.ptr)[chosen]
        sites = spans(self.ptr[chosen], sizes)
        boundaries = None if self.boundaries is None else self.boundaries[sites]
        return Labels(self.observed[sites], self.mask[sites], offsets(sizes), boundaries)


class _Codes(dict[Hashable, int]):
    """States by label, -1 for missing ones; NaN is not equal to itself, so that no lookup finds it."""

    def __missing__(self, label: Hashable) -> int:
        if label != label:
            return -1
        raise KeyError(label)


@dataclass(frozen=True, eq=False)
class LabelVocabulary:
    """The classes in a fixed order; states of label variables are positions in ``classes``."""

    classes: tuple[Hashable, ...]
    missing_label: Hashable = None
    n_classes: int = field(init=False, repr=False)
    table: dict[Hashable, int] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        classes = tuple(map(plain, self.classes))
        object.__setattr__(self, "classes", classes)
        object.__setattr__(self, "n_classes", len(classes))
        object.__setattr__(self, "missing_label", plain(self.missing_label))
        if not _hashable(self.missing_label):
            raise InputError(f"missing_label must be hashable, got {shown(self.missing_label)}.")
        for c in classes:
            check_label(c, "classes", self.missing_label)
        object.__setattr__(self, "table", dict(zip(classes, range(len(classes)), strict=True)))
        if len(self.table) != len(classes):
            raise InputError("classes names the same label twice; every class may appear once.")
        if not classes:
            raise InputError("there are no classes: every label is missing; label some sites or pass classes=.")

    @classmethod
    def learn(
        cls,
        y: Any,
        depth: int,
        classes: Iterable[Hashable] | None = None,
        missing_label: Hashable = None,
        places: bool = False,
    ) -> LabelVocabulary:
        """The classes of ``y`` in sorted order, or those given in the given order.

        ``depth`` is the number of axes of one instance's labels: 0 one label, 1 a sequence, 2 a grid. With
        ``places`` errors name instance and site; without, they do not, as y was derived from the user's labels.
        """
        if classes is None:
            found = labels_of(y, depth, missing_label)
            _refuse_negative(found, y if places else (), depth)
            _warn_of_many_classes(found)
            return cls(found, missing_label)
        listed = tuple(plain(label) for label in several(classes, "classes", "labels"))
        kind_of(listed, "classes")
        return cls(listed, missing_label)

    def widened(self, y: Any, depth: int) -> LabelVocabulary:
        """These classes followed by the labels of ``y`` that are not among them, to compare predictions with: no
        prediction equals a label that is unseen in training."""
        new = [label for label in labels_of(y, depth, self.missing_label) if label not in self.table]
        if not new:
            return self
        if kind_of(new) != kind_of(self.classes[:1]):
            self._refuse_kind(y, depth, new)
        _refuse_negative(new, y, depth)
        return LabelVocabulary((*self.classes, *new), self.missing_label)

    def followed_by(self, labels: Sequence[Hashable], missing_label: Hashable) -> LabelVocabulary:
        """These classes followed by further ones of the same kind."""
        if labels and kind_of(labels) != kind_of(self.classes[:1]):
            raise InputError(
                f"y holds {shown(labels[0])}, a label of another kind than the learned classes {self.shown}; "
                "labels are of one kind."
            )
        return LabelVocabulary((*self.classes, *labels), missing_label)

    @cached_property
    def array(self) -> AnyArray:
        """The classes as an array: of their own type where they share one that holds them unchanged (NumPy cuts zero
        characters at the end of text, and rounds whole numbers of more than 64 bits), of objects otherwise."""
        types = {type(c) for c in self.classes}
        if len(types) == 1 and types <= {int, float, bool, str}:
            array = np.array(self.classes)
            if array.tolist() == list(self.classes):
                return array
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
        if self.n_classes <= 8:
            return listed
        return f"{listed}, ... ({self.n_classes} in all)"

    def encode(self, y: Any, shapes: Shapes, what: str = "y") -> Labels:
        """States of ragged labels; ``shapes`` says how many sites each instance of X has."""
        if sequence_length(y, what, OF_LABELS) != len(shapes):
            raise InputError(f"{what} has {len(y)} instances and X has {len(shapes)}; they must match.")
        ptr = offsets(np.array([prod(shape) for shape in shapes], dtype=np.int64))
        sites = all_sites(y, len(shapes[0]) if len(shapes) else 0, what, shapes)
        what_needs = f"a mask of {len(sites):,} sites and {self.n_classes:,} classes"
        check_memory(len(sites) * self.n_classes, what_needs, "use fewer classes or instances")
        lookup = _Codes({None: -1, MISSING: -1, self.missing_label: -1})
        lookup.update(self.table)
        try:
            # ``map`` over the dict's own method takes two thirds of the time of a comprehension.
            codes = np.fromiter(map(lookup.__getitem__, sites), np.int64, int(ptr[-1]))
        except (KeyError, TypeError):
            return self._encode_slowly(sites, ptr, what)
        mask = np.zeros((len(codes), self.n_classes), dtype=bool)
        mask[np.arange(len(codes)), codes] = True
        mask[codes < 0] = True
        return Labels(codes >= 0, mask, ptr)

    def encode_seen(self, y: Any, shapes: Shapes) -> Labels:
        """As ``encode``, but labels that are not among the classes (unseen in training) count as missing."""
        labels = self.widened(y, len(shapes[0]) if len(shapes) else 0).encode(y, shapes)
        mask = labels.mask[:, : self.n_classes]
        met = labels.observed & mask.any(axis=1)
        return Labels(met, mask | ~met[:, None], labels.ptr)

    def decode(self, states: Ints) -> AnyArray:
        """Labels of states; the result has the shape of ``states``."""
        return np.asarray(self.array[states])

    def _encode_slowly(self, flat: list[Any], ptr: Ints, what: str) -> Labels:
        """Candidate sets and NaN, one site at a time; raises with the place of a site that cannot be encoded."""
        mask = np.ones((len(flat), self.n_classes), dtype=bool)
        observed = np.ones(len(flat), dtype=bool)
        for s, value in enumerate(flat):
            if is_missing(value, self.missing_label):
                observed[s] = False
                continue
            mask[s] = False
            members = value if isinstance(value, CANDIDATES) else (value,)
            if not len(members):
                reason = "the candidate set is empty; list at least one label, or mark the site as MISSING."
                raise InputError(reason, what=what, **at_row(s, ptr))
            for label in members:
                if not _hashable(label) or label not in self.table:
                    self._refuse(label, s, ptr, what)
                mask[s, self.table[label]] = True
        return Labels(observed, mask, ptr)

    def _refuse(self, label: Any, s: int, ptr: Ints, what: str) -> NoReturn:
        """Raise for a label that is none of the classes."""
        reason = f"{label!r} cannot be a label; labels must be hashable."
        if _hashable(label):
            reason = f"label {plain(label)!r} is not among the classes {self.shown}; "
            reason += _remedy(label) or "pass classes= when fitting, or mark it as MISSING."
        raise InputError(reason, what=what, **at_row(s, ptr))

    def _refuse_kind(self, y: Any, depth: int, new: list[Hashable]) -> None:
        """Raise at the first site with one of the labels ``new``, which are of another type than the classes."""
        for b, item in enumerate(y):
            for s, value in enumerate(flat_sites(item, depth, b)):
                for label in value if isinstance(value, CANDIDATES) else (value,):
                    if label in new:
                        name = shown(plain(label))
                        reason = (
                            f"label {name} is of another type than the classes {self.shown}; write all as one type."
                        )
                        raise InputError(reason, what="y", instance=b, site=s)


CANDIDATES = (set, frozenset, list)
KINDS = (((int, float), "numbers"), (bool, "true and false"), (str, "text"))  # the last match counts: True is an int
MANY_CLASSES = 1000  # with more classes a warning asks whether they are labels
OF_LABELS = "with the labels of every instance"


def is_missing(value: Any, missing_label: Hashable = None) -> bool:
    """Whether a site's value means that its label is unknown."""
    if value is None or value is MISSING:
        return True
    if isinstance(value, (float, np.floating)) and value != value:
        return True
    return missing_label is not None and _hashable(value) and bool(value == missing_label)


def labels_of(y: Any, depth: int, missing_label: Hashable) -> tuple[Hashable, ...]:
    """The different labels of ``y``, candidates included, ascending; by their repr where they do not compare."""
    sequence_length(y, "y", OF_LABELS)
    if not _hashable(missing_label):
        raise InputError(f"missing_label must be hashable, got {shown(missing_label)}.")
    sites = all_sites(y, depth)
    try:
        values: Iterable[Any] = [value for value in sites if value == value]  # leaves out NaN
    except ValueError:  # the comparison of an array has no one answer
        values = [value for value in sites if not is_missing(value)]
    # True equals 1, so that a dict below drops one of them; one value of every type is kept for the check of kinds.
    one_of_type = {type(value): value for value in values}
    with suppress(TypeError):  # sets and lists are not hashable; then every site is checked
        values = dict.fromkeys(values)
    labels: list[Any] = []
    for value in (*values, *one_of_type.values()):
        if is_missing(value, missing_label):
            continue
        for member in value if isinstance(value, CANDIDATES) else (value,):
            label = plain(member)
            check_label(label, "y", missing_label)
            labels.append(label)
    kind_of(labels)
    different = dict.fromkeys(labels)
    try:
        return tuple(sorted(different))
    except TypeError:
        return tuple(sorted(different, key=repr))


def _warn_of_many_classes(labels: Sequence[Hashable]) -> None:
    """Warn about unusually many classes: perhaps they are measurements, or pixels of a photograph."""
    if len(labels) > MANY_CLASSES:
        warnings.warn(
            f"y has {len(labels):,} classes ({shown(labels[0])}, {shown(labels[1])}, ...), and tables of label pairs "
            f"have the square of that; check that y holds labels, or pass classes= to say that it does.",
            MssvmWarning,
            stacklevel=3,
        )


def kind_of_sites(y: Any, depth: int) -> str:
    """The kind of the labels of y, as ``kind_of`` names it."""
    return kind_of(labels_of(y, depth, None))


def is_negative(label: Any) -> bool:
    """Whether a label is a whole number below zero, which may be meant as a missing label or as a class."""
    return isinstance(label, (int, float)) and label < 0 and label == int(label)


def _remedy(label: Any) -> str:
    """What to do about a whole number below zero; "" for other labels."""
    if not is_negative(label):
        return ""
    return (
        f"write None or pass missing_label={label} (on the command line --missing-label={label}) where it stands for a "
        "missing label; "
        "name it in classes= where it is a class."
    )


def _refuse_negative(labels: Iterable[Hashable], y: Any, depth: int) -> None:
    """Raise, with its place in y, if a label is a whole number below zero."""
    negative = [label for label in labels if is_negative(label)]
    if not negative:
        return
    reason = f"the label {negative[0]} is below zero; {_remedy(negative[0])}"
    for b, item in enumerate(y):
        for s, value in enumerate(flat_sites(item, depth, b)):
            if negative[0] in (value if isinstance(value, CANDIDATES) else (value,)):
                raise InputError(reason, what="y", instance=b, site=s)
    raise InputError(reason)


def kind_of(labels: Iterable[Hashable], what: str = "y") -> str:
    """The kind of the labels ("text", "numbers", ...; "" if there are none). Raises if they are of several kinds, as
    the readers of files do: 1 and "1" are rarely meant to differ."""
    example_of: dict[str, Hashable] = {}
    for label in labels:
        kind = type(label).__name__
        for types, name in KINDS:
            if isinstance(label, types):
                kind = name
        example_of.setdefault(kind, label)
    if len(example_of) > 1:
        listed = " and ".join(f"{kind} ({shown(label)})" for kind, label in example_of.items())
        raise InputError(f"the labels of {what} are of several types, {listed}; write all labels as one type.")
    return next(iter(example_of), "")


def check_label(label: Any, where: str, missing_label: Hashable = None) -> None:
    """Raise unless ``label`` can be a label, now and in a file, and does not stand for a missing one."""
    if not _hashable(label):
        raise InputError(f"{where} holds {shown(label)}, which cannot be a label; labels must be hashable.")
    if isinstance(label, str) and not label.isprintable() and any("\ud800" <= c <= "\udfff" for c in label):
        raise InputError(f"{where} holds {shown(label)}, which is no valid text (a lone surrogate); decode it anew.")
    if isinstance(label, complex):
        raise InputError(f"{where} holds {shown(label)}; labels are text, whole numbers or other names.")
    if is_missing(label, missing_label):
        raise InputError(f"{where} holds {label!r} as a label, but it stands for a missing one; leave it out.")


def _hashable(value: Any) -> bool:
    try:
        hash(value)
    except TypeError:
        return False
    return True


# ----------------------------------------------------------------------------------------- from ragged labels to sites


def plain(value: Any) -> Any:
    """NumPy scalars as the Python values they equal."""
    return value.item() if isinstance(value, np.generic) else value


def all_sites(y: Any, depth: int, what: str = "y", shapes: Shapes | None = None) -> list[Any]:
    """The sites of all instances, one after the other."""
    sites: list[Any] = []
    for b, item in enumerate(as_array(y)):
        sites += flat_sites(item, depth, b, what, None if shapes is None else shapes[b])
    return sites


def flat_sites(item: Any, depth: int, b: int, what: str = "y", shape: tuple[int, ...] | None = None) -> list[Any]:
    """The labels of one instance's sites in C order. Their number must fit ``shape``, if given; an ``item`` that is
    None or MISSING means that all labels are missing."""
    item = as_array(item)
    if depth == 0:
        return [plain(item[()]) if isinstance(item, np.ndarray) and item.ndim == 0 else item]
    if item is None or item is MISSING:
        return [MISSING] * prod(shape or (0,))
    if not isinstance(item, (list, tuple, np.ndarray)):
        if not hasattr(item, "to_numpy"):
            raise InputError(f"expected a sequence of labels, got {shown(item)}.", what=what, instance=b)
        item = item.to_numpy()
    if isinstance(item, np.ndarray):
        sites = _sites_of_array(item, depth, b, what, shape)
    elif depth == 1:
        sites = list(item)
        if sites and is_tensor(sites[0]):
            sites = [plain(as_array(site)[()]) for site in sites]
    else:
        sites = _sites_of_rows(item, depth, b, what, shape)
    if shape is not None and len(sites) != prod(shape):
        _mismatch((len(sites),), shape, b, what)
    return sites


def _sites_of_array(item: AnyArray, depth: int, b: int, what: str, shape: tuple[int, ...] | None) -> list[Any]:
    """The sites of an array whose first ``depth`` axes are those of the labels."""
    if item.ndim < depth:
        reason = f"expected {depth} axes of labels, got an array of {item.shape}."
        raise InputError(reason, what=what, instance=b)
    if shape is not None and item.shape[:depth] != shape:
        _mismatch(item.shape[:depth], shape, b, what)
    sites: list[Any] = item.reshape(-1, *item.shape[depth:]).tolist()
    return sites


def _sites_of_rows(item: Any, depth: int, b: int, what: str, shape: tuple[int, ...] | None) -> list[Any]:
    """The sites of nested lists, row by row."""
    rows = [flat_sites(row, depth - 1, b, what) for row in item]
    widths = sorted({len(row) for row in rows})
    if shape is not None and (len(rows) != shape[0] or any(width != prod(shape[1:]) for width in widths)):
        regular = len(widths) < 2
        _mismatch((len(rows), *widths) if regular else (len(rows),), shape, b, what)
    return list(chain.from_iterable(rows))


def _mismatch(got: tuple[int, ...], shape: tuple[int, ...], b: int, what: str) -> NoReturn:
    sites = " x ".join(map(str, got))
    expected = " x ".join(map(str, shape))
    reason = f"labels for {sites} sites, but X has {expected}; give one label (or MISSING) per site."
    raise InputError(reason, what=what, instance=b)
