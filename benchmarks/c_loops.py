"""The hand-written C loops of ``benchmarks/limits``: built when asked for, where there is a compiler, and called."""

from __future__ import annotations

import ctypes
import hashlib
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent
BUILT = HERE.parent / "build" / "limits"
FLAGS = ("-O3", "-march=native", "-fno-math-errno", "-fno-trapping-math", "-shared", "-fPIC")
LANES = 8
Array = np.ndarray[Any, Any]


class NoCompilerError(Exception):
    """There is no C compiler, or it refuses the loop."""


@cache
def library(name: str) -> ctypes.CDLL:
    """The loop, compiled for this machine under a name that changes with source and flags."""
    compiler = next(filter(None, map(shutil.which, ("gcc", "cc", "clang"))), None)
    if compiler is None:
        raise NoCompilerError("no C compiler on PATH")
    source = HERE / "limits" / f"{name}.c"
    key = hashlib.sha256(source.read_bytes() + " ".join((compiler, *FLAGS)).encode()).hexdigest()[:12]
    target = BUILT / f"{name}-{key}.so"
    if not target.is_file():
        BUILT.mkdir(parents=True, exist_ok=True)
        done = subprocess.run(
            [compiler, *FLAGS, str(source), "-o", str(target), "-lm"], capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise NoCompilerError(f"{compiler} refuses {source.name}: {_error(done.stderr)}")
    return ctypes.CDLL(str(target))


def _error(output: str) -> str:
    """The first complaint of a compiler."""
    lines = [line for line in output.splitlines() if "error" in line] or output.splitlines() or ["no word why"]
    return lines[0]


def _at(array: Array) -> ctypes.c_void_p:
    return array.ctypes.data_as(ctypes.c_void_p)


def repeated_sum(numbers: Array, times: int) -> float:
    """The sum of an array, taken many times; without the interpreter lock."""
    loop = library("sums").repeated_sum
    loop.argtypes = [ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64]
    loop.restype = ctypes.c_double
    total: float = loop(numbers.ctypes.data, numbers.size, times)
    return total


class HiddenChains:
    """A pass over chains with hidden variables: ``kind`` is "links" or "leaves", ``eps`` the labels' temperature."""

    def __init__(self, kind: str, eps: float, scores: dict[str, Array]) -> None:
        u = scores["u"]
        n, length, k = u.shape
        if n % LANES or k != 10 or scores["v"].shape[2] != 2:
            raise ValueError("the loop takes multiples of 8 chains with 10 labels and 2 hidden states.")
        v = scores["v"][:, : length - 1] if kind == "links" else scores["v"]
        first, second = ("left", "right") if kind == "links" else ("table", "leaf")
        given = [np.ascontiguousarray(a) for a in (u, v, scores[first], scores[second])]
        head: list[Any] = [ctypes.c_int(n), ctypes.c_int(length), *map(_at, given)]
        self.value = np.empty(n)
        self.hidden = np.empty_like(given[1])
        self.labels: Array
        if eps == 0:
            self.labels = np.empty((n, length), dtype=np.int32)
            out: list[Array] = []
        else:
            self.labels = np.empty_like(u)
            out = self.tables = [np.empty_like(a) for a in given[2:]]
            head.append(ctypes.c_double(eps))
        self._function = getattr(library("hidden_chain"), kind + ("_max" if eps == 0 else ""))
        self._arguments = [*head, *map(_at, (self.value, self.labels, self.hidden, *out))]
        self._given = given  # kept alive

    def __call__(self) -> None:
        self._function(*self._arguments)


class GridSweeps:
    """Sum-product sweeps on grids with one table across and one down; ``beliefs`` (count, nodes, states)."""

    def __init__(self, unary: Array, tables: Array, height: int, width: int, sweeps: int) -> None:
        count, nodes, states = unary.shape
        if count % LANES or states != 5 or nodes != height * width:
            raise ValueError("the loop takes multiples of 8 grids with 5 states.")
        self._function = library("grid_sweeps").sweeps
        self._across, self._down = (np.ascontiguousarray(np.exp(t)) for t in tables)
        self._size = [ctypes.c_int(v) for v in (height, width, sweeps)]
        self._unary = unary
        self.scores = aligned((count // LANES, nodes, states, LANES))
        self.messages = aligned((count // LANES, nodes, 4, states, LANES))
        self.gap = np.empty(LANES)

    def __call__(self) -> None:
        lanes = self._unary.reshape(-1, LANES, *self._unary.shape[1:])
        np.exp(lanes.transpose(0, 2, 3, 1), out=self.scores)
        self.messages[...] = 1.0
        for m, e in zip(self.messages, self.scores, strict=True):
            self._function(*self._size, _at(m), _at(e), _at(self._across), _at(self._down), _at(self.gap))

    def beliefs(self) -> Array:
        b = self.scores * self.messages.prod(axis=2)
        b /= b.sum(axis=2, keepdims=True)
        return np.asarray(b.transpose(0, 3, 1, 2).reshape(self._unary.shape))


def aligned(shape: tuple[int, ...]) -> Array:
    """Doubles that start at a multiple of 64 bytes."""
    n = int(np.prod(shape))
    raw = np.empty(n + 8)
    start = (-raw.ctypes.data // 8) % 8
    return raw[start : start + n].reshape(shape)
