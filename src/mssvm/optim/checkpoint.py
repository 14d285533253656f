"""Checkpoints of a running solver: arrays in safetensors, the rest as JSON in its header, replaced atomically."""

from __future__ import annotations

import dataclasses
import json
import time
from dataclasses import dataclass
from glob import escape
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from mssvm.core.arrays import AnyArray
from mssvm.core.errors import InputError
from mssvm.core.files import Reader, Writer, digest_of, replacing

FORMAT = "mssvm-checkpoint-5"


@dataclass(frozen=True)
class Checkpoint:
    """Where (``path``) and how often to save. If the file exists when a solver starts, the solver resumes from it.

    The state is saved between iterations, after the first iteration that ends at least ``every_seconds`` after the last
    save.

    >>> saved = ms.solvers.Checkpoint(folder / "run", every_seconds=0.0)
    >>> ms.HCRF(ms.Chain(), random_state=0).fit(X, y, checkpoint=saved).score(X, y)
    1.0
    """

    path: str | Path
    every_seconds: float = 30.0

    def numbered(self, k: int) -> Checkpoint:
        """The checkpoint of the k-th of several runs."""
        path = Path(self.path)
        return dataclasses.replace(self, path=path.with_name(f"{path.name}-{k}"))


def checkpoints_of(path: str | Path) -> list[Path]:
    """The numbered files of an interrupted series of runs with checkpoints at ``path``.

    >>> ms.solvers.checkpoints_of(folder / "never-run")
    []
    """
    path = Path(path)
    return sorted(path.parent.glob(f"{escape(path.name)}-[0-9]*"))


@dataclass
class Saver:
    """Reads and writes the checkpoint of one run, identified by its fingerprint."""

    checkpoint: Checkpoint
    fingerprint: str
    last: float = dataclasses.field(default_factory=time.monotonic)

    @property
    def path(self) -> Path:
        return Path(self.checkpoint.path)

    @property
    def due(self) -> bool:
        """Whether the state between two iterations should be saved now."""
        return time.monotonic() - self.last >= self.checkpoint.every_seconds

    def load(self) -> dict[str, Any] | None:
        """The saved run and state, or None without a file; refuses a file that belongs to another run."""
        if not self.path.exists():
            return None
        header, arrays = _read(self.path)
        if header.get("fingerprint") != self.fingerprint:
            raise InputError(
                f"{self.path} was saved by another solver, problem or start; delete it or name another file."
            )
        tree: dict[str, Any] = Reader(arrays, {}, {}).decode(header["tree"])
        return tree

    def save(self, run: dict[str, Any], state: Any, outcome: str = "", message: str = "") -> None:
        """Write the run, its state and how it ended."""
        arrays: dict[str, AnyArray] = {}
        fields = {f.name: getattr(state, f.name) for f in dataclasses.fields(state)}
        tree = {"run": run, "state": fields, "outcome": outcome, "message": message}
        header = {"fingerprint": self.fingerprint, "tree": Writer(arrays, {}).encode(tree, "the state of a solver")}
        text = json.dumps(header)
        with replacing(self.path) as file:
            file.write(save(arrays, {"format": FORMAT, "mssvm": text, "digest": digest_of(text, arrays)}))
        self.last = time.monotonic()


def digest(*parts: object) -> str:
    """A short fingerprint of arrays and of anything with a faithful repr."""
    h = blake2b(digest_size=12)
    for part in parts:
        h.update(np.ascontiguousarray(part).tobytes() if isinstance(part, np.ndarray) else repr(part).encode())
        h.update(b"\0")
    return h.hexdigest()


def _read(path: Path) -> tuple[dict[str, Any], dict[str, AnyArray]]:
    """Header and arrays of a checkpoint file; refuses a damaged one and other formats."""
    try:
        with safe_open(path, framework="numpy") as file:
            meta = file.metadata() or {}
            if meta.get("format") != FORMAT:
                raise InputError(f"{path} is not a checkpoint of format {FORMAT}; delete it or name another file.")
            text = meta.get("mssvm", "")
            arrays = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise InputError(f"{path} cannot be read as a checkpoint ({error}); delete it or name another file.") from error
    if meta.get("digest") != digest_of(text, arrays):
        raise InputError(f"{path} is damaged; delete it to start anew, or restore it from a copy.")
    header: dict[str, Any] = json.loads(text)
    return header, arrays
