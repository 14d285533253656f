"""Features of sites in, one matrix out: arrays, scipy.sparse matrices, or named features as crfsuite users have them.

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
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import chain, count, repeat
from typing import Any, Literal
from zlib import crc32

import numpy as np
from scipy import sparse

from mssvm.core.arrays import AnyArray, Ints
from mssvm.core.checks import LARGEST, shown
from mssvm.core.errors import InputError, MssvmWarning, at_row
from mssvm.core.topology import offsets
from mssvm.data.standardise import Standardise
from mssvm.data.words import words

__all__ = ["Standardise", "words"]

Kind = Literal["dense", "sparse", "named"]
Part = tuple[AnyArray, AnyArray, AnyArray]
"""Columns (-1: none) and values of features of some sites, and how many each site has."""

NUMBERS = {float, int, np.float64, np.float32, np.int64}
SITES_AT_ONCE = 1 << 15
ALIKE = 8  # sites with the same names, on the average, from which these are read name by name


@dataclass(frozen=True, eq=False)
class FeatureRows:
    """One row of features per site; rows of instance b are ``ptr[b] : ptr[b+1]``. ``matrix`` is dense or CSR."""

    matrix: Any
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
            columns = _Columns(table)
            ptr, parts = columns.parts(items, what)
            names = columns.by_first_use(parts)
            return cls(kind, max(len(names), 1), names, what), columns.rows(ptr, parts, what)
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
            raise InputError(f"{self.what} holds {_TOLD[kind]}, but the model learned from {_TOLD[self.kind]}.")
        if kind == "named":
            return self._columns.rows(*self._columns.parts(items, self.what), self.what)
        rows = _stack(items, self.what)
        n = rows.matrix.shape[1]
        if n != self.n_features:
            raise InputError(f"{self.what} has {n} features per site, but the model learned from {self.n_features}.")
        return self._as_learned(rows)

    @property
    def names(self) -> tuple[str, ...]:
        """A name for every column."""
        return self.vocabulary or tuple(f"x{j}" for j in range(self.n_features))

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "vocabulary": list(self.vocabulary)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> FeatureSchema:
        return cls(data["kind"], int(np.int64(data["n_features"])), tuple(data["vocabulary"]), str(data["what"]))

    def columns(self, names: Iterable[str]) -> Ints:
        """The columns of named features, -1 for those without one."""
        return np.array([self._columns.table[name] for name in names], dtype=np.int64)

    @cached_property
    def _columns(self) -> _Columns:
        if not self.vocabulary and self.n_features > 1:
            return _Columns(_Hashed(self.n_features))
        return _Columns(_Known((name, j) for j, name in enumerate(self.vocabulary)))

    def _as_learned(self, rows: FeatureRows) -> FeatureRows:
        if self.kind == "sparse" and not sparse.issparse(rows.matrix):
            return FeatureRows(sparse.csr_array(rows.matrix), rows.ptr)
        if self.kind == "dense" and sparse.issparse(rows.matrix):
            size = rows.matrix.shape[0] * rows.matrix.shape[1] * 8 / 2**20
            told = f"sparse features are made dense ({size:.1f} MiB) because the model learned from dense ones."
            warnings.warn(told, MssvmWarning, stacklevel=2)
            return FeatureRows(rows.matrix.toarray(), rows.ptr)
        return rows


_TOLD = {"dense": "arrays", "sparse": "sparse matrices", "named": "named features"}


def _recognised(items: Sequence[Any], what: str) -> tuple[Sequence[Any], Kind]:
    """The instances, words among them turned into named features, and whether they hold arrays, sparse matrices or
    named features; names and numbers do not mix."""
    if set(map(type, items)) == {list} and {type(item[0]) for item in items if item} == {dict}:
        return items, "named"  # the common case of text, sooner told
    found = list(map(_kind, items, count(), repeat(what)))
    kinds = set(found) - {None}
    if "words" in kinds:
        for b, kind in enumerate(found):
            if kind not in ("words", None):
                raise InputError("words here and other features elsewhere; use one kind.", what=what, instance=b)
        return words([[str(w) if isinstance(w, str) else w for w in item] for item in items]), "named"
    if "named" in kinds and len(kinds) > 1:
        raise InputError(f"{what} mixes named features with arrays; use one kind for all instances.")
    return items, "named" if "named" in kinds else "sparse" if kinds == {"sparse"} else "dense"


def _kind(item: Any, b: int, what: str) -> Kind | Literal["words"] | None:
    """The kind of one instance, or None where it has no sites to tell by."""
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
    if isinstance(first, (list, tuple)):
        strings = any(isinstance(v, str) for v in first) or (not first and _any_string(item))
        return "named" if strings else "dense"
    return "dense"


def _any_string(sites: Iterable[Any]) -> bool:
    return any(isinstance(v, str) for site in sites if isinstance(site, (list, tuple)) for v in site)


def _stack(items: Sequence[Any], what: str) -> FeatureRows:
    """Numeric rows of all instances under each other, checked."""
    parts, sizes, width, any_sparse = list[Any](), np.zeros(len(items), dtype=np.int64), 0, False
    for b, item in enumerate(items):
        packed = sparse.issparse(item)
        part = item if packed else _numbers(item, b, what)
        sizes[b] = part.shape[0]
        if not parts and (sizes[b] or not b):
            width = part.shape[1]
        elif sizes[b] and part.shape[1] != width:
            reason = f"{part.shape[1]} features per site, but the instances before have {width}."
            raise InputError(reason, what=what, instance=b)
        if sizes[b]:
            parts.append(part)
            any_sparse |= packed
    ptr, matrix = offsets(sizes), None
    if any_sparse:
        matrix = sparse.csr_array(sparse.vstack([sparse.csr_array(part) for part in parts], format="csr"))
        matrix = matrix.astype(np.float64, copy=False)
        matrix.sum_duplicates()
    else:
        matrix = _adjacent(parts, width) if parts else np.zeros((0, width))
        matrix = np.concatenate(parts, dtype=np.float64) if matrix is None else matrix
    check_finite(matrix, ptr, what)
    return FeatureRows(matrix, ptr)


def _adjacent(parts: Sequence[Any], width: int) -> AnyArray | None:
    """Parts that lie under each other in memory, as readers of files leave them, as one matrix without a copy."""
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


def _is_empty(item: Any) -> bool:
    if hasattr(item, "shape"):
        return bool(item.shape) and item.shape[0] == 0
    return hasattr(item, "__len__") and len(item) == 0


def check_finite(matrix: Any, ptr: Ints, what: str) -> None:
    """Raise at the first site whose features hold NaN or inf."""
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


class _Known(dict[str, int]):
    """Columns by name; names that were not learned get -1."""

    def __missing__(self, name: str) -> int:
        return -1


class _Hashed(dict[str, int]):
    """Columns by a hash of the name; those in use are remembered."""

    def __init__(self, n: int) -> None:
        super().__init__()
        self.n = n

    def __missing__(self, name: str) -> int:
        self[name] = column = crc32(name.encode()) % self.n
        return column

    def __len__(self) -> int:
        return self.n


class _Indicators(dict[str, int]):
    """Columns of the indicators ``name:value`` by value; those in use are remembered, others cost nothing."""

    def __init__(self, name: str, table: Mapping[str, int]) -> None:
        super().__init__()
        self.name, self.table = name, table

    def __missing__(self, value: str) -> int:
        if type(value) is not str:
            raise TypeError
        column = self.table[f"{self.name}:{value}"]
        if column >= 0:
            self[value] = column
        return column


class _ByName(dict[str, _Indicators]):
    """The indicators of a name."""

    def __init__(self, table: Mapping[str, int]) -> None:
        super().__init__()
        self.table = table

    def __missing__(self, name: str) -> _Indicators:
        self[name] = made = _Indicators(name, self.table)
        return made


class _Columns:
    """The columns of names: ``table`` gives a name its column, or -1 to leave it out."""

    def __init__(self, table: Mapping[str, int]) -> None:
        self.table, self.indicators = table, _ByName(table)

    def parts(self, items: Sequence[Any], what: str) -> tuple[Ints, list[Part]]:
        """All sites of all instances: where those of each begin, and their features."""
        ptr = offsets(np.fromiter(map(len, items), np.int64, len(items)))
        ends = np.searchsorted(ptr, np.arange(SITES_AT_ONCE, ptr[-1], SITES_AT_ONCE))
        cuts = sorted({0, *ends.tolist(), len(items)})
        return ptr, [self._part(items, a, b, what) for a, b in zip(cuts[:-1], cuts[1:], strict=True)]

    def rows(self, ptr: Ints, parts: list[Part], what: str) -> FeatureRows:
        """The same as compressed rows."""
        columns, data, counts = (np.concatenate([part[k] for part in parts]) for k in range(3))
        if (columns < 0).any():
            known = columns >= 0
            indptr = offsets(known.astype(np.int64))[offsets(counts)]
            columns, data = columns[known], data[known]
        else:
            indptr = offsets(counts)
        if len(columns) <= np.iinfo(np.int32).max:
            indptr = indptr.astype(np.int32)
        matrix = sparse.csr_array((data, columns, indptr), shape=(len(counts), max(len(self.table), 1)))
        check_finite(matrix, ptr, what)
        matrix.sum_duplicates()
        return FeatureRows(matrix, ptr)

    def by_first_use(self, parts: list[Part]) -> tuple[str, ...]:
        """The names by first use, and the columns of the parts numbered like this (-1 stays)."""
        names, order = tuple(self.table), list[int]()
        rank, seen = np.full(len(names) + 1, -1, dtype=np.int32), np.zeros(len(names) + 1, dtype=bool)
        seen[-1] = True
        for columns, _, _ in parts:
            fresh = columns[~seen[columns]]
            place = np.arange(len(fresh), dtype=np.int32)
            rank[fresh[::-1]] = place[::-1]  # what is written last, the first use, stays
            order += fresh[rank[fresh] == place].tolist()
            seen[fresh] = True
        rank[order] = np.arange(len(names))
        for columns, _, _ in parts:
            columns[:] = rank[columns]
        return tuple(map(names.__getitem__, order))

    def _part(self, items: Sequence[Any], a: int, b: int, what: str) -> Part:
        sites = list(chain.from_iterable(items[a:b]))
        with suppress(TypeError, OverflowError):  # where a site or a value is of another kind
            if sites:
                return self._in_bulk(sites)
        return self._one_by_one(items, a, b, what)

    def _in_bulk(self, sites: list[Any]) -> Part:
        """Sites of the common kinds, by loops inside the interpreter; TypeError where a site is of another kind."""
        first, n = tuple(sites[0]) if type(sites[0]) is dict else (), len(sites)
        with suppress(TypeError):  # where a site has another name, or is no dict
            if len(first) == 1 and sum(map(len, sites)) == n:
                return self._alike([(first, sites, slice(None))], n)
        types = set(map(type, sites))
        if types != {dict} and not types <= {list, tuple}:
            raise TypeError
        if types == {dict}:
            if list(chain.from_iterable(sites)) == [*first] * n:
                return self._alike([(first, sites, slice(None))], n)
            kinds = defaultdict[tuple[str, ...], list[int]](list)
            for s, site in enumerate(sites):
                kinds[tuple(site)].append(s)
            if ALIKE * len(kinds) <= n:
                return self._alike([(some, [sites[s] for s in at], at) for some, at in kinds.items()], n)
        names = list(chain.from_iterable(sites))
        if not set(map(type, names)) <= {str}:
            raise TypeError
        counts = np.fromiter(map(len, sites), np.int32, len(sites))
        if types == {dict}:
            return *self._mixed(names, list(chain.from_iterable(map(dict.values, sites)))), counts
        return np.fromiter(map(self.table.__getitem__, names), np.int32, len(names)), np.ones(len(names)), counts

    def _alike(self, kinds: list[tuple[tuple[str, ...], list[Any], Any]], n: int) -> Part:
        """Kinds of sites: names that they have in common, sites, and which of all they are. Name by name."""
        counts: AnyArray = np.empty(n, dtype=np.int32)
        for names, _, which in kinds:
            counts[which] = len(names)
        ptr = offsets(counts)
        columns, data = np.empty(ptr[-1], dtype=np.int32), np.ones(ptr[-1])
        for names, sites, which in kinds:
            if not set(map(type, names)) <= {str}:
                raise TypeError
            for j, name in enumerate(names):
                at = slice(j, None, len(names)) if len(kinds) == 1 else ptr[which] + j
                values: list[Any] = list(map(dict.get, sites, repeat(name)))
                try:
                    columns[at] = np.fromiter(map(self.indicators[name].__getitem__, values), np.int32, len(values))
                except TypeError:  # not all are strings
                    columns[at], data[at] = self._mixed(repeat(name), values)
        return columns, data, counts

    def _mixed(self, names: Iterable[str], values: list[Any]) -> tuple[AnyArray, AnyArray]:
        """Columns and values of numbers, strings and truth values."""
        types, table, indicators = set(map(type, values)), self.table, self.indicators
        if not types <= NUMBERS | {str, bool}:
            raise TypeError
        columns = [
            indicators[name][value] if value.__class__ is str else -1 if value is False else table[name]
            for name, value in zip(names, values, strict=False)
        ]
        data = values if types <= NUMBERS else [1.0 if value.__class__ is str else value for value in values]
        return np.array(columns, np.int32), np.array(data, np.float64)

    def _one_by_one(self, items: Sequence[Any], first: int, last: int, what: str) -> Part:
        made, counts = _Named(self.table), []
        for b in range(first, last):
            for s, site in enumerate(items[b]):
                before = len(made.columns)
                try:
                    made.add(site)
                except (TypeError, ValueError, AttributeError):
                    reason = f"{shown(site)} is neither a dict of named features nor an iterable of strings."
                    raise InputError(reason, what=what, instance=b, site=s) from None
                counts.append(len(made.columns) - before)
        return np.array(made.columns, np.int32), np.array(made.values, np.float64), np.array(counts, np.int32)


class _Named:
    """Columns and values of named features of any kind, site by site."""

    def __init__(self, table: Mapping[str, int]) -> None:
        self.number = table.__getitem__
        self.columns: list[int] = []
        self.values: list[float] = []

    def add(self, site: Any) -> None:
        """The features of one site."""
        if isinstance(site, Mapping):
            for name, value in site.items():
                self._add_value(str(name), value)
            return
        # Sets iterate in an order that changes from run to run, and columns are numbered by first use.
        names = sorted(site) if isinstance(site, (set, frozenset)) else list(site)
        if not all(isinstance(name, str) for name in names):
            raise TypeError
        self.columns.extend(map(self.number, names))
        self.values.extend([1.0] * len(names))

    def _add_value(self, name: str, value: Any) -> None:
        if isinstance(value, str):
            self.add((f"{name}:{value}",))
        elif isinstance(value, Mapping):
            for inner, part in value.items():
                self._add_value(f"{name}:{inner}", part)
        elif isinstance(value, (list, tuple, set, frozenset)):
            self.add([f"{name}:{part}" for part in (sorted(value) if isinstance(value, (set, frozenset)) else value)])
        elif value is not False:
            self.values.append(float(value) if not isinstance(value, int) or abs(value) <= LARGEST else np.inf)
            self.columns.append(self.number(name))
