"""Named features of sites, as crfsuite users have them, to columns and values.

Sites of the common kinds are read in bulk, by loops inside the interpreter: dicts with the same names lie under each
other, so that a name is looked up once for all of them and each value is one step of a ``map``. Whatever else is given
(nested dicts, lists of values, sets, mappings of other types) is read site by site, which also finds the words for what
is wrong. Both give the same columns, values and order.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import chain, count, repeat
from operator import getitem
from typing import Any, Final
from zlib import crc32

import numpy as np
from scipy import sparse

from mssvm.core.arrays import AnyArray, Ints
from mssvm.core.checks import LARGEST, shown
from mssvm.core.errors import InputError
from mssvm.core.topology import offsets, spans

Part = tuple[AnyArray, AnyArray, AnyArray]
"""Columns (-1: none) and values of features of some sites, and how many each site has."""

NUMBERS: Final = frozenset({float, int, np.float64, np.float32, np.int64})
SITES_AT_ONCE = 1 << 15
PROBE = 64  # sites whose names are compared before those of all
ALIKE = 32  # sites with the same names from which these are read name by name: NumPy's calls cost as much as some sites


class Known(dict[str, int]):
    """Columns by name; names that were not learned get -1."""

    def __missing__(self, name: str) -> int:
        return -1


class Hashed(dict[str, int]):
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
    """The indicators of a name."""

    def __init__(self, table: Mapping[str, int]) -> None:
        super().__init__()
        self.table = table

    def __missing__(self, name: str) -> _Indicators:
        self[name] = made = _Indicators(name, self.table)
        return made


class Columns:
    """The columns of names: ``table`` gives a name its column, or -1 to leave it out."""

    def __init__(self, table: Mapping[str, int]) -> None:
        self.table = table
        self.indicators = _ByName(table)

    def parts(self, items: Sequence[Any], what: str) -> tuple[Ints, list[Part]]:
        """All sites of all instances: where those of each begin, and their features."""
        ptr = offsets(np.fromiter(map(len, items), np.int64, len(items)))
        ends = np.searchsorted(ptr, np.arange(SITES_AT_ONCE, ptr[-1], SITES_AT_ONCE))
        cuts = sorted({0, *ends.tolist(), len(items)})
        return ptr, [self._part(items, a, b, what) for a, b in zip(cuts[:-1], cuts[1:], strict=True)]

    def matrix(self, parts: list[Part]) -> Any:
        """The parts under each other as compressed rows, a column as often as a site has it."""
        columns, data, counts = (np.concatenate([part[k] for part in parts]) for k in range(3))
        indptr = offsets(counts)
        known = columns >= 0
        if not known.all():
            indptr = offsets(known.astype(np.int64))[indptr]
            kept = np.flatnonzero(known)
            columns = columns[kept]
            data = data[kept]
        if len(columns) <= np.iinfo(np.int32).max:
            indptr = indptr.astype(np.int32)
        return sparse.csr_array((data, columns, indptr), shape=(len(counts), max(len(self.table), 1)))

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

    # ------------------------------------------------------------------------------------- in bulk

    def _in_bulk(self, sites: list[Any]) -> Part:
        """Sites of the common kinds; TypeError where one is of another kind."""
        if type(sites[0]) is dict and len(sites[0]) == 1:
            with suppress(TypeError):  # where a site has another name, or is no dict
                return self._of_one_name(sites)
        types = set(map(type, sites))
        if types == {dict}:
            return self._dicts(sites)
        if not types <= {list, tuple}:
            raise TypeError
        names = list(chain.from_iterable(sites))
        _check_names(names)
        counts = np.fromiter(map(len, sites), np.int32, len(sites))
        return np.fromiter(map(self.table.__getitem__, names), np.int32, len(names)), np.ones(len(names)), counts

    def _of_one_name(self, sites: list[Any]) -> Part:
        """Dicts with one name, the same in all of them; TypeError where there are others."""
        n = len(sites)
        (name,) = sites[0]
        _check_names([name])
        if sum(map(len, sites)) != n:
            raise TypeError
        # A dict without the name has None here, which is of no kind that can be read.
        values = list(map(dict.get, sites, repeat(name)))
        columns = np.empty(n, dtype=np.int32)
        data = np.ones(n)
        columns[:], data[:] = self._column(name, values)
        return columns, data, np.ones(n, dtype=np.int32)

    def _dicts(self, sites: list[dict[str, Any]]) -> Part:
        """Dicts: those that share their names with many others name by name, the rest together."""
        n = len(sites)
        first = tuple(sites[0])
        # Sites differ within the first sentence or not at all, as a rule. (No name is in a dict twice, so that names
        # which repeat the first ones n times are those of n dicts alike.)
        if {first}.issuperset(map(tuple, sites[:PROBE])) and list(chain.from_iterable(sites)) == [*first] * n:
            _check_names(first)
            columns, data = self._alike(first, sites)
            return columns.ravel(), data.ravel(), np.full(n, len(first), dtype=np.int32)
        numbers = defaultdict[tuple[str, ...], int](count().__next__)
        kind = np.fromiter(map(numbers.__getitem__, map(tuple, sites)), np.int64, n)
        kinds = list(numbers)
        _check_names(chain.from_iterable(kinds))
        counts = np.fromiter(map(len, kinds), np.int64, len(kinds))[kind]
        ptr = offsets(counts)
        columns = np.empty(ptr[-1], dtype=np.int32)
        data = np.empty(ptr[-1])
        members = np.argsort(kind, kind="stable")
        of_kind = offsets(np.bincount(kind))
        rest: list[Ints] = []
        for k, names in enumerate(kinds):
            those = members[of_kind[k] : of_kind[k + 1]]
            if len(those) < ALIKE:
                rest.append(those)
                continue
            at = ptr[those][:, None] + np.arange(len(names))
            columns[at], data[at] = self._alike(names, [sites[s] for s in those.tolist()])
        if rest:
            those = np.concatenate(rest)
            at = spans(ptr[those], counts[those])
            columns[at], data[at] = self._unlike([sites[s] for s in those.tolist()])
        return columns, data, counts

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
        types, table, indicators = set(map(type, values)), self.table, self.indicators
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
        data = values if types <= NUMBERS else [1.0 if value.__class__ is str else value for value in values]
        return np.array(columns, np.int32), np.array(data, np.float64)

    # ------------------------------------------------------------------------------------- one by one

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


def _check_names(names: Iterable[Any]) -> None:
    """TypeError unless all names are strings, and not of a subclass."""
    if not set(map(type, names)) <= {str}:
        raise TypeError


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
