"""Saving a solver in mid-flight: arrays in safetensors, the rest as JSON in its header, swapped in atomically."""

from __future__ import annotations

import dataclasses
import json
import os
import tempfile
import time
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from mssvm.core.arrays import AnyArray
from mssvm.core.errors import InputError

FORMAT = "mssvm-checkpoint-1"


@dataclass(frozen=True)
class Checkpoint:
    """Where and how often to save. If the file exists when a solver starts, the solver resumes from it.

    Saving happens between iterations, at the first one that ends ``every_seconds`` after the last save.
    """

    path: str | Path
    every_seconds: float = 30.0

    def load(self, fingerprint: str) -> dict[str, Any] | None:
        """The saved tree, or None where there is none; refuses a file that belongs to another run."""
        path = Path(self.path)
        if not path.exists():
            return None
        header, arrays = _read(path)
        if header.get("fingerprint") != fingerprint:
            raise InputError(f"{path} was saved by another solver, problem or start; delete it or name another file.")
        tree: dict[str, Any] = _unpack(header["tree"], arrays)
        return tree

    def save(self, fingerprint: str, tree: dict[str, Any]) -> None:
        """Write the tree beside the old file and swap the two in one step."""
        arrays: dict[str, AnyArray] = {}
        header = json.dumps({"fingerprint": fingerprint, "tree": _pack(tree, arrays)})
        blob = save(arrays, {"format": FORMAT, "mssvm": header})
        replace_file(Path(self.path), blob)


def replace_file(path: Path, content: bytes) -> None:
    """Write beside the target, flush to disk, then rename: readers see the old file or the new one."""
    try:
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.resolve().parent)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.chmod(name, usual_mode())
            os.replace(name, path)
        except BaseException:
            os.unlink(name)
            raise
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror or error}.") from None


def usual_mode() -> int:
    """Permissions of a file created in the ordinary way; temporary files start with fewer."""
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask


@dataclass
class Saver:
    """Calls ``checkpoint.save`` when it is due."""

    checkpoint: Checkpoint | None
    fingerprint: str
    last: float = dataclasses.field(default_factory=time.monotonic)

    @property
    def due(self) -> bool:
        return self.checkpoint is not None and time.monotonic() - self.last >= self.checkpoint.every_seconds

    def save(self, tree: dict[str, Any]) -> None:
        if self.checkpoint is not None:
            self.checkpoint.save(self.fingerprint, tree)
            self.last = time.monotonic()


def digest(*parts: object) -> str:
    """A short fingerprint of arrays and of anything with a faithful repr."""
    h = blake2b(digest_size=12)
    for part in parts:
        h.update(np.ascontiguousarray(part).tobytes() if isinstance(part, np.ndarray) else repr(part).encode())
        h.update(b"\0")
    return h.hexdigest()


def _read(path: Path) -> tuple[dict[str, Any], dict[str, AnyArray]]:
    try:
        with safe_open(path, framework="numpy") as file:
            meta = file.metadata() or {}
            if meta.get("format") != FORMAT:
                raise InputError(f"{path} is not a checkpoint of format {FORMAT}; delete it or name another file.")
            return json.loads(meta["mssvm"]), {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise InputError(f"{path} cannot be read as a checkpoint ({error}); delete it or name another file.") from error


def _pack(node: Any, arrays: dict[str, AnyArray]) -> Any:
    """JSON for ``node``, its arrays put aside under running numbers."""
    if isinstance(node, np.ndarray):
        key = str(len(arrays))
        arrays[key] = np.ascontiguousarray(node)
        return {"$array": key}
    if isinstance(node, np.random.Generator):
        return {"$rng": node.bit_generator.state}
    if dataclasses.is_dataclass(node) and not isinstance(node, type):
        return {f.name: _pack(getattr(node, f.name), arrays) for f in dataclasses.fields(node)}
    if isinstance(node, dict):
        return {key: _pack(value, arrays) for key, value in node.items()}
    if isinstance(node, list | tuple):
        return [_pack(value, arrays) for value in node]
    return node.item() if isinstance(node, np.generic) else node


def _unpack(node: Any, arrays: dict[str, AnyArray]) -> Any:
    if isinstance(node, dict):
        if "$array" in node:
            return arrays[node["$array"]]
        if "$rng" in node:
            rng = np.random.Generator(getattr(np.random, node["$rng"]["bit_generator"])())
            rng.bit_generator.state = node["$rng"]
            return rng
        return {key: _unpack(value, arrays) for key, value in node.items()}
    return [_unpack(value, arrays) for value in node] if isinstance(node, list) else node
