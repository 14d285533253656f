"""The compiled library: finds it, loads the build for this processor's instruction set, and calls its functions.

A native function takes the address of one record (a C struct of numbers and arrays, ``cpp/boundary.hpp``) and returns
an int64; negative values are errors. Fields are declared in the order of the C struct:

    UNFILTER = Function("mssvm_png_unfilter", height=INT, width=INT, step=INT, lines=BYTES, out=BYTES)
    UNFILTER(height=480, width=640, step=1, lines=lines, out=pixels)

Arrays must be contiguous and of exactly the declared type. They are never copied: a function may write into them.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Mapping
from functools import cache, cached_property
from pathlib import Path
from struct import Struct
from typing import Any, NoReturn

import numpy as np

from mssvm.core.errors import MemoryLimitError, MissingExtraError, MssvmError
from mssvm.core.memory import LESS

DIRECTORY = Path(__file__).parents[1] / "engines/native/lib"
VERSION = 1  # version of the interface; ``mssvm_version`` of the library must agree
SUFFIX = {"win32": ".dll", "darwin": ".dylib"}.get(sys.platform, ".so")
_REFUSED = -1
_NO_MEMORY = -2
_REMEDY = "install a wheel of this platform, or run pip install . in the source directory, which compiles it."

_BYTE: Any = ctypes.c_char
_EMPTY_ARRAY = ctypes.create_string_buffer(64)
_EMPTY_ADDRESS = ctypes.addressof(_EMPTY_ARRAY)  # passed for arrays without elements: null pointers are refused


class ArrayKind:
    """A field that holds an array: its address and its number of elements."""

    code = "Pq"  # format characters of ``struct``

    def __init__(self, dtype: Any) -> None:
        self.dtype = np.dtype(dtype)

    def encode(self, name: str, value: Any) -> tuple[int, int]:
        """The values to pack; TypeError if the array has another type or is not contiguous."""
        if not isinstance(value, np.ndarray):
            raise TypeError(f"{name} must be a contiguous array of {self.dtype}, got a {type(value).__name__}.")
        if value.dtype != self.dtype:
            raise TypeError(f"{name} must be a contiguous array of {self.dtype}, got a {value.dtype} array.")
        size = value.size
        if not size:
            return _EMPTY_ADDRESS, 0
        try:  # refuses what is not contiguous or not writeable; four times as fast as value.ctypes.data
            return ctypes.addressof(_BYTE.from_buffer(value)), size
        except TypeError:
            pass
        if not value.flags.c_contiguous:
            raise TypeError(f"{name} must be a contiguous array of {self.dtype}, got one with gaps.")
        return value.ctypes.data, size


class NumberKind:
    """A field that holds a whole or a real number."""

    def __init__(self, code: str) -> None:
        self.code = code

    def encode(self, name: str, value: Any) -> tuple[Any]:
        return (value,)


class RecordKind:
    """A field that holds the address of another record, or null for None."""

    code = "P"

    def __init__(self, kind: RecordType) -> None:
        self.kind = kind

    def encode(self, name: str, value: Any) -> tuple[int]:
        if value is None:
            return (0,)
        if not isinstance(value, Record) or value.kind is not self.kind:
            raise TypeError(f"{name} must be a record of {self.kind.name}, got {type(value).__name__}.")
        return (value.address,)


FieldKind = ArrayKind | NumberKind | RecordKind
FLOATS = ArrayKind(np.float64)
INTS = ArrayKind(np.int64)
SHORTS = ArrayKind(np.int32)
MASK = ArrayKind(np.bool_)
BYTES = ArrayKind(np.uint8)
INT = NumberKind("q")
FLOAT = NumberKind("d")


class RecordType:
    """The layout of a C struct: its size in bytes, then the named fields.

    All fields have 8 or 16 bytes, so that there is no padding.
    """

    def __init__(self, name: str, fields: Mapping[str, FieldKind]) -> None:
        self.name = name
        self.fields = dict(fields)
        self.layout = Struct("@q" + "".join(kind.code for kind in self.fields.values()))
        self.places: dict[str, tuple[FieldKind, Struct, int]] = {}
        at = 8
        for field, kind in self.fields.items():
            layout = Struct("@" + kind.code)
            self.places[field] = kind, layout, at
            at += layout.size

    def __call__(self, **values: Any) -> Record:
        return Record(self, values)


class Record:
    """A C struct. It keeps references to the arrays that it points to, so that addresses stay valid."""

    __slots__ = ("_buffer", "_held", "address", "kind")

    def __init__(self, kind: RecordType, values: dict[str, Any]) -> None:
        self.kind = kind
        self._held = values
        packed: list[Any] = [kind.layout.size]
        try:
            for name, field in kind.fields.items():
                packed += field.encode(name, values[name])
        except KeyError as error:
            raise TypeError(f"{kind.name} needs the field {error}.") from None
        if len(values) != len(kind.fields):
            raise TypeError(f"{kind.name} has no field {', '.join(sorted(values.keys() - kind.fields.keys()))}.")
        self._buffer = bytearray(kind.layout.pack(*packed))
        self.address: int = ctypes.addressof(_BYTE.from_buffer(self._buffer))

    def __reduce__(self) -> NoReturn:
        """Neither copied nor pickled: addresses in a record, its own included, would be those of the original."""
        raise TypeError(f"a record of {self.kind.name} holds addresses: copy what it was made from, or use changed().")

    def changed(self, **values: Any) -> Record:
        """A copy with some fields replaced; every thread uses its own."""
        other = object.__new__(Record)
        buffer = bytearray(self._buffer)
        other.kind = self.kind
        other._held = self._held | values
        other._buffer = buffer
        other.address = ctypes.addressof(_BYTE.from_buffer(buffer))
        places = self.kind.places
        for name, value in values.items():
            kind, layout, at = places[name]
            layout.pack_into(buffer, at, *kind.encode(name, value))
        return other

    def set(self, name: str, value: Any) -> None:
        """Replace one field in place; not while a call runs on this record."""
        kind, layout, at = self.kind.places[name]
        layout.pack_into(self._buffer, at, *kind.encode(name, value))
        self._held[name] = value

    def get(self, name: str) -> Any:
        """The number in a field, which a call may have written."""
        _, layout, at = self.kind.places[name]
        return layout.unpack_from(self._buffer, at)[0]


class Function:
    """A function of the library, taking one record. Calls release the GIL."""

    def __init__(self, symbol: str, **fields: FieldKind) -> None:
        self.symbol = symbol
        self.record = RecordType(symbol, fields)
        FUNCTIONS.append(self)

    def __call__(self, **values: Any) -> int:
        """Build the record and run; see ``run``."""
        return self.run(self.record(**values))

    @cached_property
    def _call(self) -> Any:
        function = getattr(load(), self.symbol)
        function.argtypes = [ctypes.c_void_p]
        function.restype = ctypes.c_int64
        return function

    def run(self, record: Record) -> int:
        """The result, which is not negative; raises MemoryLimitError, MssvmError or RuntimeError."""
        code: int = self._call(record.address)
        if code < 0:
            raise _error(self.symbol, code)
        return code


FUNCTIONS: list[Function] = []  # all declared functions; tests call each with invalid records


def _error(symbol: str, code: int) -> Exception:
    message = load().mssvm_error().decode()
    if code == _NO_MEMORY:
        return MemoryLimitError(f"there is not enough memory for {symbol}; {LESS}.")
    if code == _REFUSED:
        return MssvmError(f"{symbol}: {message}")
    return RuntimeError(f"{symbol}: {message}")


def variants() -> list[str]:
    """Builds that this processor can run, fastest first; no build on x86-64 below v2, one on other processors."""
    path = DIRECTORY / f"libmssvm-cpu{SUFFIX}"
    if not path.exists():  # only x86-64 has several
        return ["baseline"]
    level = _open(path).mssvm_cpu_level()
    return [f"x86-64-v{k}" for k in range(level, 1, -1)]


def _open(path: Path) -> Any:
    """Load a shared library; MissingExtraError if the system cannot."""
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        raise MissingExtraError(f"{path.name} of mssvm cannot be loaded here ({error}): {_REMEDY}") from None


@cache
def load() -> Any:
    """The fastest build that this processor can run, loaded once for the process."""
    paths = [DIRECTORY / f"libmssvm-{variant}{SUFFIX}" for variant in variants()]
    path = next((path for path in paths if path.exists()), None)
    if path is None:
        raise MissingExtraError(f"mssvm has no compiled library for this machine: {_REMEDY}")
    library = _open(path)
    library.mssvm_error.restype = ctypes.c_char_p
    version = library.mssvm_version()
    if version != VERSION:
        raise MssvmError(f"{path.name} is of another version of mssvm (interface {version}, not {VERSION}): {_REMEDY}")
    return library


def missing() -> str:
    """Why the library cannot be loaded, and what to do; empty if it can."""
    try:
        load()
    except MissingExtraError as error:
        return str(error)
    return ""


@cache
def lanes() -> int:
    """Doubles in one vector of the loaded build."""
    count: int = load().mssvm_lanes()
    return count
