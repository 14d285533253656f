"""A shard on the local disk of the worker that read it: columns in flat files, from which blocks are mapped.

Names of features and labels are numbered as the shard meets them, so that it is read once, before anybody knows the
others'; numbers become those of all shards when a block is made (``Stored.part``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

from mssvm.core.arrays import AnyArray, Bools, Ints
from mssvm.core.errors import InputError
from mssvm.core.topology import offsets
from mssvm.data.dataset import Dataset
from mssvm.data.features import FeatureRows, FeatureSchema
from mssvm.data.labels import CANDIDATES, Labels, LabelVocabulary, check_label, flat_sites, is_missing, plain
from mssvm.data.shards import Shard
from mssvm.structures import Encoder, Schema, Structure
from mssvm.structures.base import SOURCE_TITLES, Parsed


class Column:
    """Numbers of one type in a file that grows while it is written and is mapped piece by piece afterwards."""

    def __init__(self, path: Path, dtype: Any) -> None:
        self.path, self.dtype, self.n = path, np.dtype(dtype), 0
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"")

    def append(self, values: AnyArray) -> None:
        with self.path.open("ab") as file:
            np.ascontiguousarray(values, dtype=self.dtype).tofile(file)
        self.n += values.size

    def __getitem__(self, span: slice) -> AnyArray:
        """A part of the file as an array that can be written to without changing the file: kernels are compiled for
        such arrays alone."""
        start, stop = span.start or 0, self.n if span.stop is None else span.stop
        if start >= stop:
            return np.zeros(0, self.dtype)
        mapped = np.memmap(self.path, self.dtype, "c", start * self.dtype.itemsize, (stop - start,))
        return mapped.view(np.ndarray)


@dataclass(eq=False)
class Source:
    """Features of one source; ``names`` are the columns of named features, ``ptr`` the rows of each instance."""

    folder: Path
    what: str
    kind: str = ""
    width: int = 0
    names: dict[str, int] = field(default_factory=dict)
    sizes: list[Ints] = field(default_factory=list)
    ptr: Ints = field(default_factory=lambda: np.zeros(1, np.int64))

    def __post_init__(self) -> None:
        self.values = Column(self.folder / "values", np.float64)
        self.columns = Column(self.folder / "columns", np.int32)
        self.counts = Column(self.folder / "counts", np.int32)

    def add(self, items: Sequence[Any]) -> None:
        schema, rows = FeatureSchema.learn(items, self.what)
        matrix, kind = rows.matrix, schema.kind
        if self.kind not in ("", kind):
            raise InputError(f"{kind} features, but {self.kind} ones before; use one kind.", what=self.what, instance=0)
        if kind != "named" and self.width not in (0, schema.n_features):
            reason = f"{schema.n_features} features per site, but the instances before have {self.width}."
            raise InputError(reason, what=self.what, instance=0)
        self.kind, self.width = kind, schema.n_features
        if kind == "dense":
            self.values.append(matrix)
        else:
            numbers = np.arange(matrix.shape[1])
            if kind == "named":
                table = self.names
                numbers = np.array([table.setdefault(name, len(table)) for name in schema.vocabulary] or [0])
            self.values.append(matrix.data)
            self.columns.append(numbers[matrix.indices])
            self.counts.append(np.diff(matrix.indptr))
        self.sizes.append(np.diff(rows.ptr))

    def close(self) -> None:
        self.ptr = offsets(np.concatenate(self.sizes))
        self.at = None if self.kind == "dense" else offsets(self.counts[:].astype(np.int64))

    def rows(self, first: int, last: int, schema: FeatureSchema, columns: Ints) -> FeatureRows:
        """The rows of some instances in the columns of all shards; ``columns`` gives the shard's theirs (-1: none)."""
        a, b = int(self.ptr[first]), int(self.ptr[last])
        ptr = self.ptr[first : last + 1] - a
        if self.at is None:
            return FeatureRows(self.values[a * self.width : b * self.width].reshape(-1, self.width), ptr)
        c, d = int(self.at[a]), int(self.at[b])
        data, indices, indptr = self.values[c:d], columns[self.columns[c:d]], self.at[a : b + 1] - c
        if (indices < 0).any():
            known = indices >= 0
            indptr = offsets(known.astype(np.int64))[indptr]
            data, indices = data[known], indices[known]
        parts = (data, indices.astype(np.int32), indptr.astype(np.int32 if len(data) < 1 << 31 else np.int64))
        matrix = sparse.csr_array(parts, shape=(b - a, schema.n_features))
        matrix.sum_duplicates()
        return FeatureRows(matrix.toarray() if schema.kind == "dense" else matrix, ptr)


@dataclass(frozen=True, eq=False)
class Survey:
    """What a shard tells of itself: small beside it."""

    features: Mapping[str, FeatureSchema]
    types: Mapping[str, tuple[str, ...]]
    labels: Mapping[Any, int]
    keys: Mapping[Hashable, int]
    n_sites: int


class Stored:
    """A shard that was read: features, labels, topologies and lines of its instances."""

    def __init__(self, shard: Shard, structure: Structure, missing_label: Hashable, folder: Path) -> None:
        self.name, self.folder = shard.name, folder
        self.sources: dict[str, Source] = {}
        self.types: dict[str, tuple[str, ...]] = {}
        self.values: dict[Any, int] = {}
        self.kinds: dict[Hashable, int] = {}
        self.codes = Column(folder / "codes", np.int32)
        self.unit = "line"
        keys: list[int] = []
        sites: list[Ints] = []
        lines: list[int] = []
        observed: list[Bools] = []
        structure.check()
        for part in shard.parts():
            with part.places():
                keys += self._features(structure, part)
                codes, ptr = self._labels(structure, part, missing_label)
            self.codes.append(codes)
            sites.append(np.diff(ptr))
            observed.append(np.add.reduceat(np.append(codes, -1) >= 0, ptr[:-1]) > 0)
            lines += part.lines
            self.unit = part.unit
        for source in self.sources.values():
            source.close()
        self.keys, self.lines = np.array(keys, np.int64), np.array(lines, np.int64)
        self.labelled = np.concatenate(observed)
        self.site_ptr = offsets(np.concatenate(sites))

    def __len__(self) -> int:
        return len(self.keys)

    def _features(self, structure: Structure, part: Dataset) -> list[int]:
        raw = structure.read(structure.instances(part.X))
        if self.sources and raw.sources.keys() != self.sources.keys():
            raise InputError("edge features are missing, but other instances have them.", instance=0)
        sizes: list[int] = []
        for name, items in raw.sources.items():
            source = self.sources.get(name) or Source(self.folder / name, SOURCE_TITLES.get(name, name))
            self.sources[name] = source
            source.add(items)
            sizes = source.sizes[-1].tolist() if name == "node" else sizes
        self.types = merged_types([self.types, raw.types])
        return [self.kinds.setdefault(key, len(self.kinds)) for key in (sizes if raw.keys is None else raw.keys)]

    def _labels(self, structure: Structure, part: Dataset, missing_label: Hashable) -> tuple[Ints, Ints]:
        """The number of every site's label (or candidates) in order of first use, -1 where it is missing."""
        codes: list[int] = []
        ptr = [0]
        shapes = part.shapes
        for b, shape in enumerate(shapes):
            item = None if part.y is None else part.y[b]
            for s, value in enumerate(flat_sites(item, structure.depth, b, "y", shape)):
                codes.append(-1 if is_missing(value, missing_label) else self._code(value, b, s))
            ptr.append(len(codes))
            if ptr[-1] == ptr[-2]:
                raise InputError("there is no site to label; leave empty instances out.", instance=b)
        return np.array(codes, np.int32), np.array(ptr, np.int64)

    def _code(self, value: Any, b: int, s: int) -> int:
        several = isinstance(value, CANDIDATES)
        if several and not len(value):
            reason = "the candidate set is empty; list at least one label, or mark the site as MISSING."
            raise InputError(reason, what="y", instance=b, site=s)
        for label in value if several else (value,):
            check_label(label, "y")
        key = frozenset(map(plain, value)) if several else plain(value)
        return self.values.setdefault((type(key), key), len(self.values))

    def survey(self) -> Survey:
        """For the vocabularies of all shards."""
        features = {
            name: FeatureSchema(source.kind, source.width, tuple(source.names), source.what)  # type: ignore[arg-type]
            for name, source in self.sources.items()
        }
        codes = self.codes[:]
        times = np.bincount(codes[codes >= 0], minlength=len(self.values)).tolist()
        labels = {key: n for (_, key), n in zip(self.values, times, strict=True)}
        keys = Counter(dict(zip(self.kinds, np.bincount(self.keys).tolist(), strict=True)))
        return Survey(features, self.types, labels, keys, self.codes.n)

    def place(self, b: int) -> str:
        """Where instance ``b`` was read."""
        return f"{self.name}, {self.unit} {self.lines[b]}"

    def part(self, first: int, last: int, schema: Schema, vocabulary: LabelVocabulary) -> tuple[Parsed, Labels]:
        """Some instances in the columns and classes of all shards."""
        rows = {}
        for name, source in self.sources.items():
            known = schema.features[name]
            columns = known.columns(source.names) if known.kind == "named" else np.arange(known.n_features)
            rows[name] = source.rows(first, last, known, columns)
        keys = list(self.kinds)
        parsed = Parsed(rows, [keys[k] for k in self.keys[first:last]])
        ptr = self.site_ptr[first : last + 1]
        codes = self.codes[int(ptr[0]) : int(ptr[-1])]
        values = [sorted(key, key=repr) if isinstance(key, frozenset) else key for _, key in self.values]
        table = vocabulary.encode([[*values, None]], [(len(values) + 1,)]).mask  # the last is that of code -1: missing
        return parsed, Labels(codes >= 0, table[codes], ptr - ptr[0])


def merged_types(many: Iterable[Mapping[str, tuple[str, ...]]]) -> dict[str, tuple[str, ...]]:
    """Names of types met in several places; where they differ, in sorted order, as a structure reads them at once."""
    out: dict[str, tuple[str, ...]] = {}
    for types in many:
        for name, met in types.items():
            known = out.setdefault(name, met)
            if met != known:
                out[name] = tuple(sorted({*known, *met}))
    return out


def agreed(
    surveys: Sequence[Survey], names: Sequence[str], structure: Structure, labels: LabelVocabulary, hashed: int | None
) -> Encoder:
    """The encoder of all shards: features in order of first use, as one machine would have met them."""
    features: dict[str, FeatureSchema] = {}
    for survey, shard in zip(surveys, names, strict=True):
        if survey.features.keys() != surveys[0].features.keys():
            raise InputError(f"{shard} has edge features and {names[0]} has not, or the other way round.")
        for name, found in survey.features.items():
            known = features.setdefault(name, found)
            if "named" in (found.kind, known.kind) and found.kind != known.kind:
                raise InputError(f"{shard} holds {found.kind} features and {names[0]} {known.kind} ones; use one kind.")
            if found.kind != "named" and found.n_features != known.n_features:
                raise InputError(f"{shard} has {found.n_features} features per site and {names[0]} {known.n_features}.")
            if known.kind == "sparse" and found.kind == "dense":
                features[name] = found
    for name, known in features.items():
        if known.kind == "named":
            table = dict.fromkeys(chain.from_iterable(survey.features[name].vocabulary for survey in surveys))
            n, vocabulary = (max(len(table), 1), tuple(table)) if hashed is None else (hashed, ())
            features[name] = FeatureSchema("named", n, vocabulary, known.what)
    schema = Schema(features, merged_types(survey.types for survey in surveys))
    none = np.zeros(1, np.int64)
    nothing = {name: FeatureRows(np.zeros((0, part.n_features)), none) for name, part in features.items()}
    return Encoder(structure, structure.derive(schema, Parsed(nothing, []))[0], labels)
