"""A shard on the local disk of the worker that read it: columns in flat files, which blocks map into memory.

A shard numbers its features and labels in order of first use, so that it is read once, before the vocabularies of the
other shards are known. ``Stored.part`` translates its numbers into those of all shards when a block is made.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
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
from mssvm.structures.base import SOURCE_TITLES, Parsed, merged_types


class Column:
    """A file of numbers of one type: appended to while the shard is read, mapped piece by piece afterwards."""

    def __init__(self, path: Path, dtype: Any) -> None:
        self.path = path
        self.dtype = np.dtype(dtype)
        self.n = 0
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"")

    def append(self, values: AnyArray) -> None:
        with self.path.open("ab") as file:
            np.ascontiguousarray(values, dtype=self.dtype).tofile(file)
        self.n += values.size

    def __getitem__(self, span: slice) -> AnyArray:
        """A part of the file as an array. It is mapped copy-on-write, because kernels take writable arrays only."""
        start = span.start or 0
        stop = self.n if span.stop is None else span.stop
        if start >= stop:
            return np.zeros(0, self.dtype)
        mapped = np.memmap(self.path, self.dtype, "c", start * self.dtype.itemsize, (stop - start,))
        return mapped.view(np.ndarray)


@dataclass(eq=False)
class Source:
    """The features of one source (nodes, edges, ...): a dense matrix, or the parts of a sparse one, as columns.

    ``names`` numbers the columns of named features, ``ptr`` delimits the rows of each instance.
    """

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
        """Append the features of further instances."""
        schema, rows = FeatureSchema.learn(items, self.what)
        matrix = rows.matrix
        kind = schema.kind
        if self.kind not in ("", kind):
            raise InputError(f"{kind} features, but {self.kind} ones before; use one kind.", what=self.what, instance=0)
        if kind != "named" and self.width not in (0, schema.n_features):
            reason = f"{schema.n_features} features per site, but the instances before have {self.width}."
            raise InputError(reason, what=self.what, instance=0)
        self.kind = kind
        self.width = schema.n_features
        if kind == "dense":
            self.values.append(matrix)
        else:
            columns = np.arange(matrix.shape[1])
            if kind == "named":
                columns = self._columns_of(schema.vocabulary)
            self.values.append(matrix.data)
            self.columns.append(columns[matrix.indices])
            self.counts.append(np.diff(matrix.indptr))
        self.sizes.append(np.diff(rows.ptr))

    def _columns_of(self, vocabulary: Sequence[str]) -> Ints:
        """The shard's columns of these names; new names get the next ones."""
        columns = [self.names.setdefault(name, len(self.names)) for name in vocabulary]
        return np.array(columns or [0])

    def close(self) -> None:
        """Compute offsets, after the last instance."""
        self.ptr = offsets(np.concatenate(self.sizes))
        self.entry_ptr = None if self.kind == "dense" else offsets(self.counts[:].astype(np.int64))

    def rows(self, first: int, last: int, schema: FeatureSchema, columns: Ints) -> FeatureRows:
        """The rows of instances ``first : last`` in the columns of all shards.

        ``columns`` translates the shard's columns into those of all shards, -1 for a column that these leave out.
        """
        first_row = int(self.ptr[first])
        last_row = int(self.ptr[last])
        ptr = self.ptr[first : last + 1] - first_row
        if self.entry_ptr is None:
            values = self.values[first_row * self.width : last_row * self.width]
            return FeatureRows(values.reshape(-1, self.width), ptr)
        first_entry = int(self.entry_ptr[first_row])
        last_entry = int(self.entry_ptr[last_row])
        data = self.values[first_entry:last_entry]
        indices = columns[self.columns[first_entry:last_entry]]
        indptr = self.entry_ptr[first_row : last_row + 1] - first_entry
        known = indices >= 0
        if not known.all():
            indptr = offsets(known.astype(np.int64))[indptr]
            data = data[known]
            indices = indices[known]
        index_type = np.int32 if len(data) < 1 << 31 else np.int64
        parts = (data, indices.astype(np.int32), indptr.astype(index_type))
        matrix = sparse.csr_array(parts, shape=(last_row - first_row, schema.n_features))
        matrix.sum_duplicates()
        if schema.kind == "dense":
            return FeatureRows(matrix.toarray(), ptr)
        return FeatureRows(matrix, ptr)


@dataclass(frozen=True, eq=False)
class Survey:
    """A summary of a shard, small beside it: schemas of features, types, label counts, topology counts."""

    features: Mapping[str, FeatureSchema]
    types: Mapping[str, tuple[str, ...]]
    labels: Mapping[Any, int]
    keys: Mapping[Hashable, int]
    n_sites: int


class Stored:
    """A shard on disk: features, labels, topologies and line numbers of its instances."""

    def __init__(self, shard: Shard, structure: Structure, missing_label: Hashable, folder: Path) -> None:
        self.name = shard.name
        self.folder = folder
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
        self.keys = np.array(keys, np.int64)
        self.lines = np.array(lines, np.int64)
        self.labelled = np.concatenate(observed)
        self.site_ptr = offsets(np.concatenate(sites))

    def __len__(self) -> int:
        return len(self.keys)

    def _features(self, structure: Structure, part: Dataset) -> list[int]:
        """Store the features of a part; returns the number of each instance's topology in order of first use."""
        raw = structure.read(structure.instances(part.X))
        if self.sources and raw.sources.keys() != self.sources.keys():
            raise InputError("edge features are missing, but other instances have them.", instance=0)
        sizes: list[int] = []
        for name, items in raw.sources.items():
            if name not in self.sources:
                self.sources[name] = Source(self.folder / name, SOURCE_TITLES.get(name, name))
            self.sources[name].add(items)
            if name == "node":
                sizes = self.sources[name].sizes[-1].tolist()
        self.types = merged_types([self.types, raw.types])
        keys = sizes if raw.keys is None else raw.keys
        return [self.kinds.setdefault(key, len(self.kinds)) for key in keys]

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
        """The number of a label or candidate set, at site s of instance b."""
        key: Hashable
        if isinstance(value, CANDIDATES):
            if not len(value):
                reason = "the candidate set is empty; list at least one label, or mark the site as MISSING."
                raise InputError(reason, what="y", instance=b, site=s)
            for label in value:
                check_label(label, "y")
            key = frozenset(plain(label) for label in value)
        else:
            check_label(value, "y")
            key = plain(value)
        return self.values.setdefault((type(key), key), len(self.values))

    def survey(self) -> Survey:
        """The summary from which ``agreed`` makes the vocabularies of all shards."""
        features = {
            name: FeatureSchema(source.kind, source.width, tuple(source.names), source.what)  # type: ignore[arg-type]
            for name, source in self.sources.items()
        }
        codes = self.codes[:]
        label_counts = np.bincount(codes[codes >= 0], minlength=len(self.values)).tolist()
        labels = {key: n for (_, key), n in zip(self.values, label_counts, strict=True)}
        keys = Counter(dict(zip(self.kinds, np.bincount(self.keys).tolist(), strict=True)))
        return Survey(features, self.types, labels, keys, self.codes.n)

    def place(self, b: int) -> str:
        """File and line of instance ``b``."""
        return f"{self.name}, {self.unit} {self.lines[b]}"

    def part(self, first: int, last: int, schema: Schema, vocabulary: LabelVocabulary) -> tuple[Parsed, Labels]:
        """Instances ``first : last`` in the columns and classes of all shards."""
        rows = {}
        for name, source in self.sources.items():
            features = schema.features[name]
            columns = features.columns(source.names) if features.kind == "named" else np.arange(features.n_features)
            rows[name] = source.rows(first, last, features, columns)
        keys = list(self.kinds)
        parsed = Parsed(rows, [keys[k] for k in self.keys[first:last]])
        ptr = self.site_ptr[first : last + 1]
        codes = self.codes[int(ptr[0]) : int(ptr[-1])]
        values = [sorted(key, key=repr) if isinstance(key, frozenset) else key for _, key in self.values]
        # The last row, which code -1 picks, is that of a missing label.
        mask_of_code = vocabulary.encode([[*values, None]], [(len(values) + 1,)]).mask
        return parsed, Labels(codes >= 0, mask_of_code[codes], ptr - ptr[0])


def agreed(
    surveys: Sequence[Survey], names: Sequence[str], structure: Structure, labels: LabelVocabulary, hashed: int | None
) -> Encoder:
    """The encoder of all shards: features in order of first use, as on one machine, or hashed to ``hashed`` columns."""
    features = _common_features(surveys, names)
    for name, schema in features.items():
        if schema.kind != "named":
            continue
        if hashed is None:
            vocabulary = tuple(
                dict.fromkeys(chain.from_iterable(survey.features[name].vocabulary for survey in surveys))
            )
            features[name] = FeatureSchema("named", max(len(vocabulary), 1), vocabulary, schema.what)
        else:
            features[name] = FeatureSchema("named", hashed, (), schema.what)
    types = merged_types(survey.types for survey in surveys)
    no_rows = np.zeros(1, np.int64)
    empty = {name: FeatureRows(np.zeros((0, part.n_features)), no_rows) for name, part in features.items()}
    derived, _ = structure.derive(Schema(features, types), Parsed(empty, []))
    return Encoder(structure, derived, labels)


def _common_features(surveys: Sequence[Survey], names: Sequence[str]) -> dict[str, FeatureSchema]:
    """One schema per source, or an error that names the shard that differs from the first."""
    common: dict[str, FeatureSchema] = {}
    for survey, shard in zip(surveys, names, strict=True):
        if survey.features.keys() != surveys[0].features.keys():
            raise InputError(f"{shard} has edge features and {names[0]} has none, or the other way round.")
        for name, own in survey.features.items():
            first = common.setdefault(name, own)
            if "named" in (own.kind, first.kind) and own.kind != first.kind:
                raise InputError(f"{shard} holds {own.kind} features and {names[0]} {first.kind} ones; use one kind.")
            if own.kind != "named" and own.n_features != first.n_features:
                raise InputError(f"{shard} has {own.n_features} features per site and {names[0]} {first.n_features}.")
            if first.kind == "sparse" and own.kind == "dense":
                common[name] = own
    return common
