"""Features of sites as one matrix, from arrays, scipy.sparse matrices, or named features as crfsuite users have them.

Named features of a site are a dict or an iterable of strings:

    {"word": "the"}          indicator ``word:the``            {"title": True}      ``title`` with value 1 (False: none)
    {"len": 3.0}             ``len`` with value 3              {"tags": ["a", "b"]} indicators ``tags:a``, ``tags:b``
    {"left": {"w": "on"}}    nested names: ``left:w:on``       ["w=the", "cap"]     indicators

A site that is a plain word gets the features of ``words``. Names that were not seen while learning are ignored later.
Dense features stay dense, named ones become compressed rows.
"""

from __future__ import annotations

import warnings
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from itertools import count
from typing import Any, Literal

import numpy as np
from scipy import sparse

from mssvm.core.arrays import AnyArray, Ints
from mssvm.core.checks import LARGEST
from mssvm.core.errors import InputError, MssvmWarning, at_row
from mssvm.core.topology import offsets
from mssvm.data.named import Columns, Hashed, Known
from mssvm.data.pictures import image
from mssvm.data.standardise import Standardise
from mssvm.data.words import words

__all__ = ["Standardise", "image", "words"]

Kind = Literal["dense", "sparse", "named"]
Matrix = Any
"""Rows of features: an array or a ``scipy.sparse.csr_array`` (SciPy has no type hints)."""


@dataclass(frozen=True, eq=False)
class FeatureRows:
    """One row of features per site; rows of instance b are ``ptr[b] : ptr[b+1]``."""

    matrix: Matrix
    ptr: Ints


@dataclass(frozen=True, eq=False)
class FeatureSchema:
    """Number, kind and (for named features) names of the columns; ``what`` is what messages call the data."""

    kind: Kind
    n_features: int
    vocabulary: tuple[str, ...] = ()
    what: str = "X"

    @classmethod
    def learn(cls, items: Sequence[Any], what: str = "X") -> tuple[FeatureSchema, FeatureRows]:
        """The schema of ``items`` (one entry per instance) and their rows."""
        if not len(items):
            raise InputError(f"{what} is empty; there must be at least one instance.")
        items, kind = _recognised(items, what)
        if kind == "named":
            table: defaultdict[str, int] = defaultdict(count().__next__)
            columns = Columns(table)
            ptr, parts = columns.parts(items, what)
            names = columns.by_first_use(parts)
            return cls(kind, max(len(names), 1), names, what), _named_rows(columns.matrix(parts), ptr, what)
        rows = _stack(items, what)
        if rows.matrix.shape[1] == 0:
            raise InputError(f"{what} has no features; give every site at least one (a constant 1 will do).")
        return cls(kind, int(rows.matrix.shape[1]), (), what), rows

    def encode(self, items: Sequence[Any]) -> FeatureRows:
        """The rows of new items; unseen names are ignored, a different number of columns is an error."""
        if all(_is_empty(item) for item in items):
            empty = np.zeros((0, self.n_features))
            ptr = np.zeros(len(items) + 1, dtype=np.int64)
            return FeatureRows(empty if self.kind == "dense" else sparse.csr_array(empty), ptr)
        items, kind = _recognised(items, self.what)
        if "named" in (kind, self.kind) and kind != self.kind:
            learned_from = KIND_TITLES[self.kind]
            raise InputError(f"{self.what} holds {KIND_TITLES[kind]}, but the model learned from {learned_from}.")
        if kind == "named":
            ptr, parts = self._columns.parts(items, self.what)
            return _named_rows(self._columns.matrix(parts), ptr, self.what)
        rows = _stack(items, self.what)
        n = rows.matrix.shape[1]
        if n != self.n_features:
            raise InputError(f"{self.what} has {n} features per site, but the model learned from {self.n_features}.")
        return self.as_learned(rows)

    @property
    def names(self) -> tuple[str, ...]:
        """A name for every column."""
        return self.vocabulary or tuple(f"x{j}" for j in range(self.n_features))

    @property
    def hashed(self) -> bool:
        """Whether columns are hashes of names."""
        return self.kind == "named" and not self.vocabulary and self.n_features > 1

    def joined(self, later: FeatureSchema) -> FeatureSchema:
        """These columns followed by those of ``later`` with names that are not among them; columns without names must
        be as many as before."""
        if "named" in (self.kind, later.kind) and self.kind != later.kind:
            learned_from = KIND_TITLES[self.kind]
            raise InputError(f"{self.what} holds {KIND_TITLES[later.kind]}, but the model learned from {learned_from}.")
        if self.kind == "named" or self.vocabulary or later.vocabulary:
            names = tuple(dict.fromkeys((*self.vocabulary, *later.vocabulary)))
            return replace(self, n_features=max(len(names), 1), vocabulary=names)
        if self.n_features != later.n_features:
            n = later.n_features
            raise InputError(f"{self.what} has {n} features per site, but the model learned from {self.n_features}.")
        return self

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "vocabulary": list(self.vocabulary)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> FeatureSchema:
        return cls(data["kind"], int(np.int64(data["n_features"])), tuple(data["vocabulary"]), str(data["what"]))

    def columns(self, names: Iterable[str]) -> Ints:
        """The columns of named features, -1 for names without a column."""
        return np.array([self._columns.table[name] for name in names], dtype=np.int64)

    @cached_property
    def _columns(self) -> Columns:
        if not self.vocabulary and self.n_features > 1:
            return Columns(Hashed(self.n_features))
        return Columns(Known((name, j) for j, name in enumerate(self.vocabulary)))

    def as_learned(self, rows: FeatureRows) -> FeatureRows:
        """Rows of numbers as a matrix of the kind that the schema was learned from, dense or sparse."""
        if self.kind == "sparse" and not sparse.issparse(rows.matrix):
            return FeatureRows(sparse.csr_array(rows.matrix), rows.ptr)
        if self.kind == "dense" and sparse.issparse(rows.matrix):
            size = rows.matrix.shape[0] * rows.matrix.shape[1] * 8 / 2**20
            message = f"sparse features are made dense ({size:.1f} MiB) because the model learned from dense ones."
            warnings.warn(message, MssvmWarning, stacklevel=2)
            return FeatureRows(rows.matrix.toarray(), rows.ptr)
        return rows


KIND_TITLES = {"dense": "arrays", "sparse": "sparse matrices", "named": "named features"}


def _recognised(items: Sequence[Any], what: str) -> tuple[Sequence[Any], Kind]:
    """The instances, with words turned into named features, and the kind of their features; names and numbers do not
    mix."""
    if set(map(type, items)) == {list} and {type(item[0]) for item in items if item} == {dict}:
        return items, "named"  # lists of dicts, the common case of text, are recognised without visiting every instance
    kind_of = [_kind(item, b, what) for b, item in enumerate(items)]
    kinds = set(kind_of) - {None}
    if "words" in kinds:
        for b, kind in enumerate(kind_of):
            if kind not in ("words", None):
                raise InputError("words here and other features elsewhere; use one kind.", what=what, instance=b)
        sentences = [[str(word) if isinstance(word, str) else word for word in item] for item in items]
        return words(sentences), "named"
    if kinds == {"named"}:
        return items, "named"
    if "named" in kinds:
        raise InputError(f"{what} mixes named features with arrays; use one kind for all instances.")
    if kinds == {"sparse"}:
        return items, "sparse"
    return items, "dense"


def _kind(item: Any, b: int, what: str) -> Kind | Literal["words"] | None:
    """The kind of one instance; None if it has no sites."""
    if sparse.issparse(item):
        return "sparse"
    if isinstance(item, np.ndarray) and item.dtype.kind not in "OU":
        return "dense"
    listed = hasattr(item, "__len__") and (hasattr(item, "__getitem__") or hasattr(item, "iloc"))
    if isinstance(item, (str, bytes, Mapping)) or not listed or (isinstance(item, np.ndarray) and not item.ndim):
        raise InputError(f"expected one row of features per site, got {type(item).__name__}.", what=what, instance=b)
    if not len(item):
        return None
    first = item.iloc[0] if hasattr(item, "iloc") else item[0]
    if isinstance(first, str) and getattr(item, "ndim", 1) == 1:
        return "words"
    if isinstance(first, (Mapping, set, frozenset)):
        return "named"
    if not isinstance(first, (list, tuple)):
        return "dense"
    has_strings = _any_string([first]) if first else _any_string(item)
    return "named" if has_strings else "dense"


def _any_string(sites: Iterable[Any]) -> bool:
    return any(isinstance(v, str) for site in sites if isinstance(site, (list, tuple)) for v in site)


def _stack(items: Sequence[Any], what: str) -> FeatureRows:
    """Numeric rows of all instances as one matrix, checked."""
    parts: list[Any] = []
    sizes = np.zeros(len(items), dtype=np.int64)
    width = 0
    any_sparse = False
    for b, item in enumerate(items):
        is_sparse = sparse.issparse(item)
        part = item if is_sparse else _numbers(item, b, what)
        sizes[b] = part.shape[0]
        if not parts and (sizes[b] or not width):  # without sites, [] says nothing of the width and (0, d) does
            width = part.shape[1]
        elif sizes[b] and part.shape[1] != width:
            reason = f"{part.shape[1]} features per site, but the instances before have {width}."
            raise InputError(reason, what=what, instance=b)
        if sizes[b]:
            parts.append(part)
            any_sparse |= is_sparse
    ptr = offsets(sizes)
    matrix = _stack_sparse(parts) if any_sparse else _stack_dense(parts, width)
    check_finite(matrix, ptr, what)
    return FeatureRows(matrix, ptr)


def _stack_sparse(parts: Sequence[Any]) -> Matrix:
    matrix = sparse.csr_array(sparse.vstack([sparse.csr_array(part) for part in parts], format="csr"))
    matrix = matrix.astype(np.float64, copy=False)
    matrix.sum_duplicates()
    return matrix


def _stack_dense(parts: Sequence[Any], width: int) -> AnyArray:
    if not parts:
        return np.zeros((0, width))
    view = _adjacent(parts, width)
    if view is not None:
        return view
    return np.concatenate(parts, dtype=np.float64)


def _adjacent(parts: Sequence[Any], width: int) -> AnyArray | None:
    """Parts that are adjacent in memory, as readers of files leave them, as one matrix without a copy; None for other
    parts."""
    owner = parts[0].base
    if owner is None or not isinstance(owner, np.ndarray) or owner.dtype != np.float64 or not owner.flags.c_contiguous:
        return None
    start = end = parts[0].ctypes.data
    for part in parts:
        if part.base is not owner or part.dtype != np.float64 or not part.flags.c_contiguous or part.ctypes.data != end:
            return None
        end += part.nbytes
    first = (start - owner.ctypes.data) // 8
    return np.asarray(owner.reshape(-1)[first : first + (end - start) // 8].reshape(-1, width))


def _numbers(item: Any, b: int, what: str) -> AnyArray:
    """One instance as an array (sites, features)."""
    try:
        if isinstance(item, np.ma.MaskedArray) and np.ma.is_masked(item):
            raise InputError("features are masked; impute them, or drop the site.", what=what, instance=b)
        rows = np.asarray(item)
        if rows.dtype.kind not in "fiub":
            if rows.dtype.kind in "cmM":
                raise TypeError
            rows = np.asarray(item, dtype=np.float64)
    except (ValueError, TypeError, OverflowError) as error:
        if isinstance(error, InputError):
            raise
        reason = "features are not a table of numbers; give every site the same number of them."
        raise InputError(reason, what=what, instance=b) from None
    if rows.ndim == 1 and not len(rows):
        return rows.reshape(0, 0)
    if rows.ndim != 2:
        reason = f"features have shape {rows.shape}; give one row of features per site "
        raise InputError(reason + "(reshape(-1, 1) turns single numbers into rows).", what=what, instance=b)
    return rows


def _named_rows(matrix: Matrix, ptr: Ints, what: str) -> FeatureRows:
    """Rows of named features, checked; the values of a name that a site has twice are added."""
    check_finite(matrix, ptr, what)
    matrix.sum_duplicates()
    return FeatureRows(matrix, ptr)


def _is_empty(item: Any) -> bool:
    if hasattr(item, "shape"):
        return bool(item.shape) and item.shape[0] == 0
    return hasattr(item, "__len__") and len(item) == 0


def check_finite(matrix: Matrix, ptr: Ints, what: str) -> None:
    """Raise at the first site whose features hold NaN, inf or a number beyond ``LARGEST``."""
    values = matrix.data if sparse.issparse(matrix) else matrix
    finite = np.isfinite(values)
    if finite.all():
        if not values.size or -LARGEST <= values.min() <= values.max() <= LARGEST:
            return
        finite = np.abs(values) <= LARGEST
    if sparse.issparse(matrix):
        row = int(np.searchsorted(matrix.indptr, np.flatnonzero(~finite)[0], side="right")) - 1
    else:
        row = int(np.flatnonzero(~finite.all(axis=1))[0])
    reason = f"a feature is NaN or inf or beyond {LARGEST:g}; impute, drop or scale it: features are finite numbers."
    raise InputError(reason, what=what, **at_row(row, ptr))
