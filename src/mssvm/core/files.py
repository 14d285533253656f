"""Atomic writing of files, and a safe encoding of values in them.

A ``Writer`` turns plain values, containers, arrays (stored as tensors) and objects of a fixed list of classes into
JSON; a ``Reader`` turns them back without running code from the file. Models and checkpoints are both safetensors files
with such a JSON text in their header.
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
from mssvm.core.errors import InputError, MssvmError

CONTAINERS: dict[str, Any] = {"tuple": tuple, "list": list, "set": set, "frozenset": frozenset}


def is_device(path: Path) -> bool:
    """Whether ``path`` is a device or a pipe, such as /dev/null: a place to write to, but no file to replace."""
    return path.exists() and not path.is_file() and not path.is_dir()


@contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """A file written beside ``path``, flushed to disk and renamed at the end: readers see the old or the new one.

    Where ``path`` is a link, the file that it names is replaced. Devices and pipes, such as /dev/null, are written to.
    """
    try:
        if is_device(path):
            with path.open("wb") as file:
                yield file
            return
        target = Path(os.path.realpath(path))  # unlike resolve, without an error for links that lead in a circle
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=target.parent)
        try:
            with os.fdopen(handle, "wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            os.chmod(name, _usual_mode())
            os.replace(name, target)
        finally:
            with suppress(FileNotFoundError):
                os.unlink(name)
    except MssvmError:  # of what is to be written, not of the file
        raise
    except (OSError, ValueError) as error:
        raise _unwritable(path, error) from None


@contextmanager
def exclusive_lock(path: Path) -> Iterator[None]:
    """Refuse other processes that want to write ``path`` under this lock.

    It locks a file beside ``path``; the system releases the lock however the process ends. On systems without such
    locks nothing is refused.
    """
    if is_device(path):
        yield
        return
    lock_path = path.with_name(f".{path.name}.lock")
    try:
        file = lock_path.open("ab")
    except OSError as error:
        raise _unwritable(path, error) from None
    with file:
        if not _locked(file, lock_path):
            raise InputError(f"{path} is being written by another process; wait for its end, or name another file.")
        try:
            yield
        finally:
            with suppress(OSError):
                lock_path.unlink()


def left_behind(path: Path) -> list[Path]:
    """Temporary files of ``path`` and its checkpoints that killed processes left behind.

    Only the holder of the ``exclusive_lock`` may delete them.
    """
    name = re.compile(re.escape(f".{path.name}.") + r"(checkpoint-\d+\.)?[a-z0-9_]{8}")
    return [file for file in path.resolve().parent.iterdir() if name.fullmatch(file.name)]


def _locked(file: IO[bytes], path: Path) -> bool:
    """Lock an open file; False if another process has it, or if the file is no longer the one at ``path``."""
    if sys.platform == "win32":
        return True
    import fcntl

    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except (BlockingIOError, FileNotFoundError):  # the latter: the holder has just ended and deleted the file
        return False
    except OSError:  # a file system without locks
        return True


def _unwritable(path: Path, error: Exception) -> InputError:
    return InputError(f"{path} cannot be written: {getattr(error, 'strerror', None) or error}.")


def digest_of(text: str, tensors: Mapping[str, AnyArray]) -> str:
    """A checksum of a file's contents: it detects damage and careless edits, but is not a signature."""
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
    """Encodes values as JSON; arrays are added to ``tensors``.

    ``names`` maps names to the classes, enums and singletons (such as the mark of a missing label) that a file may
    hold.
    """

    def __init__(self, tensors: dict[str, AnyArray], names: Mapping[str, Any]) -> None:
        self.tensors = tensors
        self._names = names

    def encode(self, value: Any, what: str) -> Any:
        """JSON for ``value``; ``InputError`` if it has a type that files do not hold."""
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
            is_set = isinstance(value, (set, frozenset))
            items = sorted(value, key=repr) if is_set else value
            return {"$": name, "items": [self.encode(item, what) for item in items]}
        if isinstance(value, np.ndarray):
            return {"$": "list", "items": [self.encode(item, what) for item in value.tolist()]}
        if isinstance(value, Mapping):
            pairs = [[self.encode(key, what), self.encode(item, what)] for key, item in value.items()]
            return {"$": "dict", "items": pairs}
        if self._names.get(name) is type(value):
            parts = {"value": value.value} if isinstance(value, Enum) else settings_of(value)
            parameters = {key: self.encode(part, f"{what}.{key}") for key, part in parts.items()}
            return {"$": "object", "name": name, "parameters": parameters}
        for singleton_name, singleton in self._names.items():
            if singleton is value:
                return {"$": singleton_name}
        raise InputError(
            f"{what} holds {value!r}, which a model file cannot keep; use plain labels and the library's own objects."
        )


def settings_of(value: Any) -> dict[str, Any]:
    """Constructor arguments of an object: the fields of a dataclass, or its scikit-learn parameters."""
    if is_dataclass(value):
        return {f.name: getattr(value, f.name) for f in fields(value) if f.init and not f.name.startswith("_")}
    parameters: dict[str, Any] = value.get_params(deep=False)
    return parameters


class Reader:
    """Decodes values from JSON; objects only of the classes in ``names``, built by their constructors.

    ``renamed`` maps, by class, the names of settings in earlier versions to their present names.
    """

    def __init__(
        self, tensors: Mapping[str, AnyArray], names: Mapping[str, Any], renamed: Mapping[str, Mapping[str, str]]
    ) -> None:
        self.tensors = tensors
        self._names = names
        self._renamed = renamed

    def decode(self, data: Any) -> Any:
        """The value that ``Writer.encode`` was given."""
        if data is None or isinstance(data, (bool, str, int)):
            return data
        kind = data["$"]
        if kind == "int":
            return int(data["text"])
        if kind == "float":
            return float(data["text"])
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
            return CONTAINERS[kind](self.decode(item) for item in data["items"])
        if kind == "dict":
            return {self.decode(key): self.decode(item) for key, item in data["items"]}
        if kind == "object" and data["name"] in self._names:
            return self._object(self._names[data["name"]], data["parameters"])
        if kind in self._names and not isinstance(self._names[kind], type):
            return self._names[kind]
        raise InputError(f"the file holds an object of kind {kind!r}, which this version of mssvm does not know.")

    def _object(self, cls: Any, parameters: Mapping[str, Any]) -> Any:
        new_names = self._renamed.get(cls.__name__, {})
        decoded = {new_names.get(name, name): self.decode(data) for name, data in parameters.items()}
        if issubclass(cls, Enum):
            return cls(decoded["value"])
        return cls(**decoded)
