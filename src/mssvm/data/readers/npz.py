"""NumPy archives: ``x`` and ``y`` of all instances, stacked, or concatenated with ``ptr``.

x (n, T, d) with y (n, T) are chains of one length, with y (n,) sequences; x (n, H, W, d) with y (n, H, W) are grids;
x (n, d) with y (n, L) are instances with L labels each.
x (sites, d) with ptr (n + 1,), rows of instance b being ptr[b] : ptr[b+1], are chains (y (sites,)) or sequences
(y (n,)) of any length. Missing labels are "" in text, NaN in floats, and ``Options.missing_label`` in whole numbers:
without it -1, with a warning, for one more release.
"""

from __future__ import annotations

import io
import warnings
import zipfile
import zlib
from collections.abc import Hashable, Iterator
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from mssvm.core.arrays import AnyArray
from mssvm.core.errors import InputError
from mssvm.data.dataset import Kind, Record
from mssvm.data.readers.stream import STDIN, UNPACK, Opened, Options, Stream


def open_npz(stream: Stream, options: Options) -> Opened:
    """Chains, sequences, grids or several labels, by the shapes of the arrays."""
    reader = NpzReader(stream, options.structure, options.missing_label)
    return Opened(reader.kind, iter(reader), "instance")


class NpzReader:
    """An archive, opened and checked; ``kind`` is that asked for, or guessed from the shapes."""

    def __init__(self, stream: Stream, kind: Kind | None, missing_label: Hashable = None) -> None:
        self.name = stream.name
        self.x, self.y, self.ptr = self._load(stream)
        self.missing_label = self._missing_label(missing_label)
        self.kind = kind or self._guess()
        self._check()

    def __iter__(self) -> Iterator[Record]:
        for b in range(self._n):
            rows = b if self.ptr is None else slice(int(self.ptr[b]), int(self.ptr[b + 1]))
            x = self.x[rows]
            bad = ~np.isfinite(x).reshape(len(x), -1).all(axis=1)
            if bad.any():
                self._fail(b, f"row {int(bad.argmax())} of x holds NaN or infinity; impute it")
            y = None
            if self.y is not None:
                y = _plain(self.y[b] if self.kind == "sequence" else self.y[rows], self.missing_label)
            yield Record(b, x, y)

    @property
    def _n(self) -> int:
        if self.ptr is None:
            return len(self.x)
        return len(self.ptr) - 1

    def _missing_label(self, given: Hashable) -> Hashable:
        """The label that stands for a missing one."""
        if given is not None or self.y is None or self.y.dtype.kind not in "iu" or not np.any(self.y == -1):
            return given
        warnings.warn(
            f"{self.name}: labels of -1 are read as missing; say so with missing_label=-1 in Options (--missing-label "
            "-1): the next release will refuse labels below zero unless it is told what they are.",
            FutureWarning,
            stacklevel=2,
        )
        return -1

    def _load(self, stream: Stream) -> tuple[AnyArray, AnyArray | None, AnyArray | None]:
        gzipped = str(stream.path) == STDIN or str(stream.path).endswith(".gz")
        try:
            file: Any = io.BytesIO(stream.content()) if gzipped else Path(stream.path)
            _check_declared(file, stream)
            with np.load(file, allow_pickle=False) as archive:
                if not hasattr(archive, "files") or "x" not in archive.files:
                    raise InputError(f"{self.name} has no array 'x'; save it with np.savez(file, x=..., y=...).")
                x = archive["x"]
                y = archive["y"] if "y" in archive.files else None
                ptr = archive["ptr"] if "ptr" in archive.files else None
        except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error, RuntimeError) as error:
            if isinstance(error, InputError):
                raise
            reason = "it is not a NumPy archive of plain arrays, or it is damaged"
            if isinstance(error, FileNotFoundError):
                reason = "no such file"
            raise InputError(f"{self.name} cannot be read: {reason}; save it with np.savez.") from None
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
        if self.y is not None and len(self.y) == self._n and self.y.ndim == 1:
            return "sequence"
        return "chain"

    def _check(self) -> None:
        self._check_x()
        if self.ptr is not None:
            self._check_ptr(self.ptr)
        if self.y is not None:
            self._check_y(self.y)

    def _check_x(self) -> None:
        multilabel = self.kind == "multilabel"
        axes = 3
        if self.kind == "grid":
            axes = 4
        elif multilabel or self.ptr is not None:
            axes = 2
        if self.kind == "graph" or self.x.ndim != axes or (multilabel and self.ptr is not None):
            raise InputError(
                f"{self.name}: array 'x' of shape {self.x.shape} does not make {self.kind}s; stack instances, or give "
                "rows of sites and 'ptr' (see the page on data formats)."
            )

    def _check_ptr(self, ptr: AnyArray) -> None:
        n_rows = len(self.x)
        if ptr.ndim != 1 or ptr.dtype.kind not in "iu" or len(ptr) < 1 or ptr[0] != 0 or ptr[-1] != n_rows:
            raise InputError(f"{self.name}: 'ptr' must be whole numbers that run from 0 to {n_rows}.")
        empty = np.flatnonzero(np.diff(ptr.astype(np.int64)) <= 0)
        if len(empty):
            self._fail(int(empty[0]), "'ptr' gives it no rows; leave it out")

    def _check_y(self, y: AnyArray) -> None:
        expected: tuple[int, ...] = self.x.shape[:-1]
        if self.kind == "sequence":
            expected = (self._n,)
        elif self.kind == "multilabel":
            expected = (self._n, *y.shape[1:2])
        if y.shape != expected:
            raise InputError(f"{self.name}: 'y' has shape {y.shape}, but 'x' needs {expected}; label every site.")
        if y.dtype.kind not in "iubfU":
            raise InputError(f"{self.name}: 'y' holds {y.dtype}; labels are whole numbers or text.")
        if y.dtype.kind != "f":
            return
        fraction = (np.round(y) != y) & ~np.isnan(y)
        if np.any(fraction | np.isinf(y)):
            raise InputError(f"{self.name}: 'y' holds fractions; labels are whole numbers or text, NaN where missing.")

    def _fail(self, b: int, reason: str) -> None:
        raise InputError(f"{self.name}, instance {b}: {reason}.")


def _check_declared(file: Any, stream: Stream) -> None:
    """Raise if the arrays declare more bytes than the file can account for, before memory is allocated for them."""
    size = file.getbuffer().nbytes if isinstance(file, io.BytesIO) else file.stat().st_size
    most = stream.unpacked_limit(size)
    name = stream.name
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


def _plain(y: Any, missing_label: Hashable) -> Any:
    """Labels as Python values, missing ones None."""
    if np.ndim(y) > 1:
        return [_plain(row, missing_label) for row in y]
    if np.ndim(y) == 0:
        return _plain_label(y.item(), missing_label)
    return [_plain_label(label, missing_label) for label in y.tolist()]


def _plain_label(label: Any, missing_label: Hashable) -> Any:
    """A label, None if it is missing. Floats are whole numbers."""
    if isinstance(label, bool):
        return label
    if isinstance(label, float):
        label = None if np.isnan(label) else int(label)
    return None if label in ("", missing_label) else label
