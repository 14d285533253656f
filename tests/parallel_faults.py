"""Data in shards for the tests of clusters, and what goes wrong on workers: they import this module."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np


def write_shards(folder: Path, named: bool = False, n: int = 150, n_shards: int = 5) -> tuple[list[Any], list[Any]]:
    """Chains with missing labels, candidate sets and instances without any label; X and y as one machine has them."""
    rng = np.random.default_rng(0)
    means, X, y = rng.normal(size=(3, 4)), [], []
    for k in range(n_shards):
        lines = []
        for _ in range(n // n_shards + 7 * (k == 1)):
            tags = rng.integers(0, 3, size=rng.integers(1, 12))
            x: Any = (means[tags] + rng.normal(size=(len(tags), 4))).round(3).tolist()
            if named:
                x = [{"a": f"{int(2 * u)}", "b": f"{int(2 * v)}", "c": s} for u, v, s, _ in x]
            known, sets = rng.random(len(tags)) < 0.7 * (rng.random() < 0.95), rng.random(len(tags)) < 0.1
            labels: list[Any] = [["A", "B"] if s else "ABC"[t] for t, s in zip(tags, sets, strict=True)]
            labels = [label if o else None for label, o in zip(labels, known, strict=True)]
            lines.append(json.dumps({"x": x, "y": labels}))
            X.append(x if named else np.array(x))
            y.append(labels)
        (folder / f"part-{k}.jsonl").write_text("\n".join(lines) + "\n")
    return X, y


def arm(name: str, flag: str, calls: int) -> None:
    """Have this process die by SIGKILL in the given call of a function of ``work``; once for all that share a flag."""
    from mssvm.parallel import work

    original, left = getattr(work, name), [calls]

    def deadly(*args: Any, **kwargs: Any) -> Any:
        left[0] -= 1
        if left[0] == 0:
            try:
                os.close(os.open(flag, os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                return original(*args, **kwargs)
            os.kill(os.getpid(), signal.SIGKILL)
        return original(*args, **kwargs)

    setattr(work, name, deadly)


class Fatal:
    """A loader that ends the worker that calls it, or runs out of memory there."""

    def __init__(self, kills: bool) -> None:
        self.kills = kills

    def __call__(self) -> Any:
        if self.kills:
            os.kill(os.getpid(), signal.SIGKILL)
        raise MemoryError


class Loaded:
    """A loader of data that it carries."""

    def __init__(self, X: list[Any], y: list[Any]) -> None:
        self.pair = X, y

    def __call__(self) -> Any:
        return self.pair
