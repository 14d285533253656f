"""NumPy archives: ``x`` and ``y`` of all instances, stacked or under each other with ``ptr``.

x (n, T, d) with y (n, T) are chains of one length, with y (n,) sequences; x (n, H, W, d) with y (n, H, W) are grids;
x (n, d) with y (n, L) are instances with L labels each.
x (sites, d) with ptr (n + 1,), rows of instance b being ptr[b] : ptr[b+1], are chains (y (sites,)) or sequences
(y (n,)) of any length. Missing labels are -1 in whole numbers, "" in text and NaN in floats.
"""

from __future__ import annotations

import io
import zipfile
import zlib
from collections.abc import Iterator
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from mssvm.core.arrays import AnyArray
from mssvm.core.errors import InputError
from mssvm.data.dataset import Kind, Record
from mssvm.data.readers.stream import STDIN, UNPACK, Opened, Options, Stream


def open_npz(stream: Stream, options: Options) -> Opened:
    """Chains, sequences or grids, as the shapes say."""
    reader = NpzReader(stream, options.structure)
    return Opened(reader.kind, iter(reader), "instance")


class NpzReader:
    """An archive, opened and checked; ``kind`` is what its shapes say."""

    def __init__(self, stream: Stream, kind: Kind | None) -> None:
        self.name = stream.name
        self.x, self.y, self.ptr = self._load(stream)
        self.kind = kind or self._guess()
        self._check()

    def __iter__(self) -> Iterator[Record]:
        for b in range(self._n):
            here = slice(int(self.ptr[b]), int(self.ptr[b + 1])) if self.ptr is not None else b
            x = self.x[here]
            bad = ~np.isfinite(x).reshape(len(x), -1).all(axis=1)
            if bad.any():
                self._fail(b, f"row {int(bad.argmax())} of x holds NaN or infinity; impute it")
            y = None
            if self.y is not None:
                y = _plain(self.y[b] if self.kind == "sequence" else self.y[here])
            yield Record(b, x, y)

    @property
    def _n(self) -> int:
        return len(self.ptr) - 1 if self.ptr is not None else len(self.x)

    def _load(self, stream: Stream) -> tuple[AnyArray, AnyArray | None, AnyArray | None]:
        gzipped = str(stream.path) == STDIN or str(stream.path).endswith(".gz")
        try:
            file: Any = io.BytesIO(stream.content()) if gzipped else Path(stream.path)
            _check_declared(file, stream)
            with np.load(file, allow_pickle=False) as archive:
                if not hasattr(archive, "files") or "x" not in archive.files:
                    raise InputError(f"{self.name} has no array 'x'; save it with np.savez(file, x=..., y=...).")
                arrays = [archive[key] if key in archive.files else None for key in ("x", "y", "ptr")]
        except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error, RuntimeError) as error:
            if isinstance(error, InputError):
                raise
            missing = isinstance(error, FileNotFoundError)
            reason = "no such file" if missing else "it is no NumPy archive of plain arrays, or damaged"
            raise InputError(f"{self.name} cannot be read: {reason}; save it with np.savez.") from None
        x, y, ptr = arrays
        assert x is not None
        if x.dtype.kind not in "fiub":
            raise InputError(f"{self.name}: array 'x' holds {x.dtype}; features must be numbers.")
        for name, array in (("x", x), ("y", y)):
            if array is not None and array.ndim == 0:
                raise InputError(f"{self.name}: array {name!r} is a single value; it needs an entry per instance.")
        return x, y, ptr

    def _guess(self) -> Kind:
        if self.x.ndim == 4:
            return "grid"
        if self.x.ndim == 2 and self.ptr is None:
            return "multilabel"
        return "sequence" if self.y is not None and len(self.y) == self._n and self.y.ndim == 1 else "chain"

    def _check(self) -> None:
        several = self.kind == "multilabel"
        axes = 4 if self.kind == "grid" else 3 if self.ptr is None and not several else 2
        if self.kind == "graph" or self.x.ndim != axes or (several and self.ptr is not None):
            raise InputError(
                f"{self.name}: array 'x' of shape {self.x.shape} does not make {self.kind}s; stack instances, or give "
                "rows of sites and 'ptr' (see the page on data formats)."
            )
        if self.ptr is not None:
            p = self.ptr
            if p.ndim != 1 or p.dtype.kind not in "iu" or len(p) < 1 or p[0] != 0 or p[-1] != len(self.x):
                raise InputError(f"{self.name}: 'ptr' must be whole numbers that run from 0 to {len(self.x)}.")
            if (np.diff(p.astype(np.int64)) <= 0).any():
                self._fail(int((np.diff(p.astype(np.int64)) <= 0).argmax()), "'ptr' gives it no rows; leave it out")
        if self.y is None:
            return
        expected: tuple[int, ...] = (self._n,)
        if several:
            expected = (self._n, *self.y.shape[1:2])
        elif self.kind != "sequence":
            expected = (len(self.x),) if self.ptr is not None else self.x.shape[:-1]
        if self.y.shape != expected:
            raise InputError(f"{self.name}: 'y' has shape {self.y.shape}, but 'x' needs {expected}; label every site.")
        if self.y.dtype.kind not in "iubfU":
            raise InputError(f"{self.name}: 'y' holds {self.y.dtype}; labels are whole numbers or text.")
        if self.y.dtype.kind == "f" and np.any((np.round(self.y) != self.y) & ~np.isnan(self.y) | np.isinf(self.y)):
            raise InputError(f"{self.name}: 'y' holds fractions; labels are whole numbers or text, NaN where missing.")

    def _fail(self, b: int, reason: str) -> None:
        raise InputError(f"{self.name}, instance {b}: {reason}.")


def _check_declared(file: Any, stream: Stream) -> None:
    """Raise if the arrays say that they are larger than the file can account for, before room is made for them."""
    size = file.getbuffer().nbytes if isinstance(file, io.BytesIO) else file.stat().st_size
    most, name = stream.most(size), stream.name
    with zipfile.ZipFile(file) as archive:
        for entry in archive.infolist():
            if entry.file_size > most:
                raise InputError(f"{name}: {entry.filename} unpacks to {entry.file_size >> 20} MiB; {UNPACK}.")
            with archive.open(entry) as part:
                major, _ = np.lib.format.read_magic(part)
                read = np.lib.format.read_array_header_1_0 if major == 1 else np.lib.format.read_array_header_2_0
                shape, _, dtype = read(part)
            if prod(shape) * dtype.itemsize > most:
                raise InputError(f"{name}: {entry.filename} declares {shape} entries, too many; {UNPACK}.")
    if isinstance(file, io.BytesIO):
        file.seek(0)


def _plain(y: Any) -> Any:
    """Labels as Python values, missing ones None."""
    if np.ndim(y) > 1:
        return [_plain(row) for row in y]
    kind = np.asarray(y).dtype.kind
    if kind == "f":
        return _each(y, lambda v: None if v != v else int(v))
    return _each(y, lambda v: None if v == ("" if kind == "U" else -1) and kind != "b" else v)


def _each(y: Any, act: Any) -> Any:
    values = y.tolist()
    return [act(v) for v in values] if isinstance(values, list) else act(values)
