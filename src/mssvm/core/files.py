"""Files that are there whole or not at all, and values in them that no code is run to read back.

A ``Writer`` turns plain values, containers, arrays (put aside as tensors) and objects of a fixed list into JSON, a
``Reader`` turns them back: models and checkpoints are both safetensors files with such a JSON text in their header.
"""

from __future__ import annotations

import hashlib
import os
import re
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.random import Generator

from mssvm.core.arrays import AnyArray
from mssvm.core.errors import InputError

CONTAINERS: dict[str, Any] = {"tuple": tuple, "list": list, "set": set, "frozenset": frozenset}


@contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """A file written beside ``path``, flushed to disk and renamed at the end: readers see the old or the new one."""
    try:
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.resolve().parent)
        try:
            with os.fdopen(handle, "wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            os.chmod(name, _usual_mode())
            os.replace(name, path)
        finally:
            with suppress(FileNotFoundError):
                os.unlink(name)
    except (OSError, ValueError) as error:
        raise _unwritable(path, error) from None


@contextmanager
def exclusive_lock(path: Path) -> Iterator[None]:
    """While it lasts, no other process may write ``path``: it is refused. What is held is a lock on a file beside it,
    which the system lets go of however the process ends; where there are no such locks, nothing is held."""
    beside = path.with_name(f".{path.name}.lock")
    try:
        file = beside.open("ab")
    except OSError as error:
        raise _unwritable(path, error) from None
    with file:
        if not _locked(file, beside):
            raise InputError(f"{path} is being written by another process; wait for its end, or name another file.")
        try:
            yield
        finally:
            with suppress(OSError):
                beside.unlink()


def left_behind(path: Path) -> list[Path]:
    """What killed processes left half written of ``path`` and of its checkpoints; garbage to one who is ``alone``."""
    name = re.compile(re.escape(f".{path.name}.") + r"(checkpoint-\d+\.)?[a-z0-9_]{8}")
    return [file for file in path.resolve().parent.iterdir() if name.fullmatch(file.name)]


def _locked(file: IO[bytes], path: Path) -> bool:
    """Whether this process now holds the lock on a file that is still the one of its name."""
    if sys.platform == "win32":
        return True
    import fcntl

    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except (BlockingIOError, FileNotFoundError):  # the latter: whoever held it has just ended
        return False
    except OSError:  # a file system without locks
        return True


def _unwritable(path: Path, error: Exception) -> InputError:
    return InputError(f"{path} cannot be written: {getattr(error, 'strerror', None) or error}.")


def digest_of(text: str, tensors: Mapping[str, AnyArray]) -> str:
    """A digest of all that a file holds: it tells damage and careless edits, and is no signature."""
    digest = hashlib.sha256(text.encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"\n{name} {tensor.dtype} {tensor.shape}\n".encode())
        digest.update(np.ascontiguousarray(tensor).tobytes())
    return digest.hexdigest()


def _usual_mode() -> int:
    """Permissions of a file created in the ordinary way; temporary files start with fewer."""
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask


class Writer:
    """Values as JSON; arrays are added to ``tensors``. ``names`` maps every object that may be kept (classes, enums and
    single values such as the mark of a missing label) to its name."""

    def __init__(self, tensors: dict[str, AnyArray], names: Mapping[str, Any]) -> None:
        self.tensors, self._names = tensors, names

    def encode(self, value: Any, what: str) -> Any:
        """JSON for ``value``, or an ``InputError`` if it is of a kind that files do not hold."""
        if isinstance(value, np.generic):
            value = value.item()
        if value is None or isinstance(value, (bool, str)):
            return value
        if isinstance(value, int):
            return value if abs(value) < 1 << 53 else {"$": "int", "text": str(value)}
        if isinstance(value, float):
            return {"$": "float", "text": repr(value)}
        if isinstance(value, bytes):
            return {"$": "bytes", "text": value.hex()}
        if isinstance(value, Generator):
            return {"$": "generator", "state": self.encode(value.bit_generator.state, what)}
        if isinstance(value, np.ndarray) and value.dtype.kind in "fiub":
            name = f"array/{len(self.tensors)}"
            self.tensors[name] = np.ascontiguousarray(value)
            return {"$": "array", "tensor": name, "shape": list(value.shape)}
        return self._compound(value, what)

    def _compound(self, value: Any, what: str) -> dict[str, Any]:
        name = type(value).__name__
        if name in CONTAINERS and type(value) is CONTAINERS[name]:
            items = sorted(value, key=repr) if isinstance(value, (set, frozenset)) else value
            return {"$": name, "items": [self.encode(v, what) for v in items]}
        if isinstance(value, np.ndarray):
            return {"$": "list", "items": [self.encode(v, what) for v in value.tolist()]}
        if isinstance(value, Mapping):
            return {"$": "dict", "items": [[self.encode(k, what), self.encode(v, what)] for k, v in value.items()]}
        if self._names.get(name) is type(value):
            parts = {"value": value.value} if isinstance(value, Enum) else settings_of(value)
            return {
                "$": "object",
                "name": name,
                "parameters": {k: self.encode(v, f"{what}.{k}") for k, v in parts.items()},
            }
        single = next((name for name, known in self._names.items() if known is value), None)
        if single is None:
            raise InputError(
                f"{what} holds {value!r}, which a model file cannot keep; use plain labels and the library's own "
                "objects."
            )
        return {"$": single}


def settings_of(value: Any) -> dict[str, Any]:
    """What an object was constructed with: the fields of a dataclass, or what scikit-learn calls its parameters."""
    if is_dataclass(value):
        return {f.name: getattr(value, f.name) for f in fields(value) if f.init and not f.name.startswith("_")}
    found: dict[str, Any] = value.get_params(deep=False)
    return found


class Reader:
    """Values from JSON; objects only of the list ``names``, built by their constructors from decoded values.

    ``renamed`` has, by class, the settings that earlier versions called otherwise.
    """

    def __init__(
        self, tensors: Mapping[str, AnyArray], names: Mapping[str, Any], renamed: Mapping[str, Mapping[str, str]]
    ) -> None:
        self.tensors, self._names, self._renamed = tensors, names, renamed

    def decode(self, data: Any) -> Any:
        """The value that ``Writer.encode`` was given."""
        if data is None or isinstance(data, (bool, str, int)):
            return data
        kind = data["$"]
        if kind in ("int", "float"):
            return int(data["text"]) if kind == "int" else float(data["text"])
        if kind == "bytes":
            return bytes.fromhex(data["text"])
        if kind == "array":
            return np.array(self.tensors[data["tensor"]]).reshape(data["shape"])
        if kind == "generator":
            state = self.decode(data["state"])
            rng = Generator(getattr(np.random, state["bit_generator"])())
            rng.bit_generator.state = state
            return rng
        if kind in CONTAINERS:
            return CONTAINERS[kind](self.decode(v) for v in data["items"])
        if kind == "dict":
            return {self.decode(k): self.decode(v) for k, v in data["items"]}
        if kind == "object" and data["name"] in self._names:
            return self._object(self._names[data["name"]], data["parameters"])
        if kind in self._names and not isinstance(self._names[kind], type):
            return self._names[kind]
        raise InputError(f"the file holds an object of kind {kind!r}, which this version of mssvm does not know.")

    def _object(self, made: Any, parameters: Mapping[str, Any]) -> Any:
        new_names = self._renamed.get(made.__name__, {})
        decoded = {new_names.get(k, k): self.decode(v) for k, v in parameters.items()}
        return made(decoded["value"]) if issubclass(made, Enum) else made(**decoded)
