"""Named features of sites, as crfsuite users have them, as columns and values of a sparse matrix.

Sites of the common kinds are read in bulk, by ``map`` over built-in methods, whose loops run inside the interpreter: in
dicts with the same names each name is looked up once, and each value costs one step of a ``map``. Sites of other kinds
(nested dicts, lists of values, sets, mappings of other types) are read one by one, which also finds the place of an
error. Both ways give the same columns, values and order.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import chain, count, pairwise, repeat
from operator import getitem
from typing import Any, Final, NamedTuple
from zlib import crc32

import numpy as np
from scipy import sparse

from mssvm.core.arrays import AnyArray, Ints
from mssvm.core.checks import LARGEST, shown
from mssvm.core.errors import InputError
from mssvm.core.topology import offsets, spans


class Part(NamedTuple):
    """Features of some sites: ``columns`` (-1: none) and ``values``, site by site, and the ``counts`` of each site."""

    columns: AnyArray
    values: AnyArray
    counts: AnyArray


NUMBERS: Final = frozenset({float, int, np.float64, np.float32, np.int64})
SITES_AT_ONCE = 1 << 15
PROBE = 64  # number of sites whose names are compared before those of all sites are
ALIKE = 32  # at least this many sites with the same names are read name by name: NumPy's calls have a fixed cost


class Known(dict[str, int]):
    """Columns by name; names that were not learned get -1."""

    def __missing__(self, name: str) -> int:
        return -1


class Hashed(dict[str, int]):
    """Columns by a hash of the name; the hashes computed so far are cached."""

    def __init__(self, n: int) -> None:
        super().__init__()
        self.n = n

    def __missing__(self, name: str) -> int:
        column = crc32(name.encode()) % self.n
        self[name] = column
        return column

    def __len__(self) -> int:
        return self.n


class _Indicators(dict[str, int]):
    """Columns of the indicators ``name:value`` by value, cached unless they have none (-1)."""

    def __init__(self, name: str, table: Mapping[str, int]) -> None:
        super().__init__()
        self.name = name
        self.table = table

    def __missing__(self, value: str) -> int:
        if type(value) is not str:
            raise TypeError
        column = self.table[f"{self.name}:{value}"]
        if column >= 0:
            self[value] = column
        return column


class _ByName(dict[str, _Indicators]):
    """The indicators of every name, made when the name is first looked up."""

    def __init__(self, table: Mapping[str, int]) -> None:
        super().__init__()
        self.table = table

    def __missing__(self, name: str) -> _Indicators:
        indicators = _Indicators(name, self.table)
        self[name] = indicators
        return indicators


class Columns:
    """The columns of names: ``table`` gives a name its column, or -1 to leave it out."""

    def __init__(self, table: Mapping[str, int]) -> None:
        self.table = table
        self.indicators = _ByName(table)

    def parts(self, items: Sequence[Any], what: str) -> tuple[Ints, list[Part]]:
        """The first site of every instance, and the features of all sites, in parts of about ``SITES_AT_ONCE``."""
        ptr = offsets(np.array([len(item) for item in items], dtype=np.int64))
        ends = np.searchsorted(ptr, np.arange(SITES_AT_ONCE, ptr[-1], SITES_AT_ONCE))
        cuts = sorted({0, *ends.tolist(), len(items)})
        return ptr, [self._part(items, first, last, what) for first, last in pairwise(cuts)]

    def matrix(self, parts: list[Part]) -> Any:
        """All parts as one matrix of compressed rows; a column appears as often as a site has it."""
        columns = np.concatenate([part.columns for part in parts])
        data = np.concatenate([part.values for part in parts])
        counts = np.concatenate([part.counts for part in parts])
        indptr = offsets(counts)
        has_column = columns >= 0
        if not has_column.all():
            indptr = offsets(has_column.astype(np.int64))[indptr]
            chosen = np.flatnonzero(has_column)
            columns = columns[chosen]
            data = data[chosen]
        if len(columns) <= np.iinfo(np.int32).max:
            indptr = indptr.astype(np.int32)
        return sparse.csr_array((data, columns, indptr), shape=(len(counts), max(len(self.table), 1)))

    def by_first_use(self, parts: list[Part]) -> tuple[str, ...]:
        """The names in the order of their first use; the columns of the parts are renumbered to match (-1 stays)."""
        names = tuple(self.table)
        order: list[int] = []
        rank = np.full(len(names) + 1, -1, dtype=np.int32)
        seen = np.zeros(len(names) + 1, dtype=bool)
        seen[-1] = True  # column -1
        for part in parts:
            new = part.columns[~seen[part.columns]]
            positions = np.arange(len(new), dtype=np.int32)
            rank[new[::-1]] = positions[::-1]  # the last write counts: reversed, that is the first use
            order += new[rank[new] == positions].tolist()
            seen[new] = True
        rank[order] = np.arange(len(names))
        for part in parts:
            part.columns[:] = rank[part.columns]
        return tuple(names[column] for column in order)

    def _part(self, items: Sequence[Any], first: int, last: int, what: str) -> Part:
        sites = list(chain.from_iterable(items[first:last]))
        with suppress(TypeError, OverflowError):  # a site or a value of another kind
            if sites:
                return self._in_bulk(sites)
        return self._one_by_one(items, first, last, what)

    # ------------------------------------------------------------------------------------- in bulk

    def _in_bulk(self, sites: list[Any]) -> Part:
        """Sites of the common kinds; TypeError where one is of another kind."""
        if type(sites[0]) is dict and len(sites[0]) == 1:
            with suppress(TypeError):  # a site has another name, or is no dict
                return self._of_one_name(sites)
        types = set(map(type, sites))
        if types == {dict}:
            return self._dicts(sites)
        if not types <= {list, tuple}:
            raise TypeError
        names = list(chain.from_iterable(sites))
        _check_names(names)
        counts = np.fromiter(map(len, sites), np.int32, len(sites))
        columns = np.fromiter(map(self.table.__getitem__, names), np.int32, len(names))
        return Part(columns, np.ones(len(names)), counts)

    def _of_one_name(self, sites: list[Any]) -> Part:
        """Dicts with one name, the same in all of them; TypeError where there are others."""
        n = len(sites)
        (name,) = sites[0]
        _check_names([name])
        if sum(map(len, sites)) != n:
            raise TypeError
        # A dict without the name gives None, which _column refuses with a TypeError.
        values = list(map(dict.get, sites, repeat(name)))
        columns = np.empty(n, dtype=np.int32)
        data = np.ones(n)
        columns[:], data[:] = self._column(name, values)
        return Part(columns, data, np.ones(n, dtype=np.int32))

    def _dicts(self, sites: list[dict[str, Any]]) -> Part:
        """Dicts: those that share their names with many others are read name by name, all others together."""
        n = len(sites)
        first = tuple(sites[0])
        # As a rule sites differ within the first sentence or not at all. (A dict has no name twice: if the names of all
        # sites, in a row, are n repetitions of the first site's, then all n sites have the same names.)
        if {first}.issuperset(map(tuple, sites[:PROBE])) and list(chain.from_iterable(sites)) == [*first] * n:
            _check_names(first)
            columns, data = self._alike(first, sites)
            return Part(columns.ravel(), data.ravel(), np.full(n, len(first), dtype=np.int32))
        numbers = defaultdict[tuple[str, ...], int](count().__next__)
        group_of = np.fromiter(map(numbers.__getitem__, map(tuple, sites)), np.int64, n)
        groups = list(numbers)  # the names of each group of sites
        _check_names(chain.from_iterable(groups))
        counts = np.array([len(names) for names in groups], dtype=np.int64)[group_of]
        ptr = offsets(counts)
        columns = np.empty(ptr[-1], dtype=np.int32)
        data = np.empty(ptr[-1])
        by_group = np.argsort(group_of, kind="stable")
        group_ptr = offsets(np.bincount(group_of))
        small_groups: list[Ints] = []
        for k, names in enumerate(groups):
            members = by_group[group_ptr[k] : group_ptr[k + 1]]
            if len(members) < ALIKE:
                small_groups.append(members)
                continue
            at = ptr[members][:, None] + np.arange(len(names))
            columns[at], data[at] = self._alike(names, [sites[s] for s in members.tolist()])
        if small_groups:
            members = np.concatenate(small_groups)
            at = spans(ptr[members], counts[members])
            columns[at], data[at] = self._unlike([sites[s] for s in members.tolist()])
        return Part(columns, data, counts)

    def _alike(self, names: tuple[str, ...], sites: list[dict[str, Any]]) -> tuple[AnyArray, AnyArray]:
        """Columns and values (sites, names) of dicts with the same names in the same order."""
        shape = (len(sites), len(names))
        columns = np.empty(shape, dtype=np.int32)
        data = np.ones(shape)
        flat = list(chain.from_iterable(map(dict.values, sites)))
        for j, name in enumerate(names):
            columns[:, j], data[:, j] = self._column(name, flat[j :: len(names)])
        return columns, data

    def _column(self, name: str, values: list[Any]) -> tuple[AnyArray | int, AnyArray | float]:
        """Columns and values of one name at many sites; a number stands for all of them."""
        if type(values[0]) is str:
            with suppress(TypeError):  # not all are strings
                return np.fromiter(map(self.indicators[name].__getitem__, values), np.int32, len(values)), 1.0
        types = set(map(type, values))
        if types == {bool}:
            true = np.array(values)
            # A name that is False everywhere is not learned.
            return np.where(true, self.table[name] if true.any() else -1, -1), 1.0
        if types <= NUMBERS:
            data = np.array(values, np.float64)
            return self.table[name], data
        return self._mixed(repeat(name), values)

    def _unlike(self, sites: list[dict[str, Any]]) -> tuple[AnyArray, AnyArray]:
        """Columns and values of dicts with names of their own."""
        names = chain.from_iterable(sites)
        return self._mixed(names, list(chain.from_iterable(map(dict.values, sites))))

    def _mixed(self, names: Iterable[str], values: list[Any]) -> tuple[AnyArray, AnyArray]:
        """Columns and values of numbers, strings and truth values."""
        types = set(map(type, values))
        table = self.table
        indicators = self.indicators
        if not types <= NUMBERS | {str, bool}:
            raise TypeError
        if types == {str}:
            columns_of = map(getitem, map(indicators.__getitem__, names), values)
            return np.fromiter(columns_of, np.int32, len(values)), np.ones(len(values))
        columns = []
        for name, value in zip(names, values, strict=False):
            if value.__class__ is str:
                columns.append(indicators[name][value])
            elif value is False:
                columns.append(-1)
            else:
                columns.append(table[name])
        data: Sequence[Any] = values
        if not types <= NUMBERS:
            data = [1.0 if value.__class__ is str else value for value in values]
        return np.array(columns, np.int32), np.array(data, np.float64)

    # ------------------------------------------------------------------------------------- one by one

    def _one_by_one(self, items: Sequence[Any], first: int, last: int, what: str) -> Part:
        features = _NamedFeatures(self.table)
        counts = []
        for b in range(first, last):
            for s, site in enumerate(items[b]):
                before = len(features.columns)
                try:
                    features.add(site)
                except (TypeError, ValueError, AttributeError):
                    reason = f"{shown(site)} is neither a dict of named features nor an iterable of strings."
                    raise InputError(reason, what=what, instance=b, site=s) from None
                counts.append(len(features.columns) - before)
        columns = np.array(features.columns, np.int32)
        return Part(columns, np.array(features.values, np.float64), np.array(counts, np.int32))


def _check_names(names: Iterable[Any]) -> None:
    """TypeError unless all names are strings, and not of a subclass."""
    if not set(map(type, names)) <= {str}:
        raise TypeError


class _NamedFeatures:
    """Columns and values of named features of any kind, site by site."""

    def __init__(self, table: Mapping[str, int]) -> None:
        self.table = table
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
        self.columns += [self.table[name] for name in names]
        self.values += [1.0] * len(names)

    def _add_value(self, name: str, value: Any) -> None:
        if isinstance(value, str):
            self.add((f"{name}:{value}",))
        elif isinstance(value, Mapping):
            for inner, part in value.items():
                self._add_value(f"{name}:{inner}", part)
        elif isinstance(value, (set, frozenset)):
            self.add([f"{name}:{part}" for part in sorted(value)])
        elif isinstance(value, (list, tuple)):
            self.add([f"{name}:{part}" for part in value])
        elif value is not False:
            too_large = isinstance(value, int) and abs(value) > LARGEST  # float() would raise; inf is refused later
            self.values.append(np.inf if too_large else float(value))
            self.columns.append(self.table[name])
