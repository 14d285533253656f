"""Records that nobody should send to the C boundary, for every native function; a process of its own: it may crash.

    python tests/native_records.py SEED TRIALS [DIRECTORY]     # directory of the libraries

Random records first: sizes are anything, arrays may be one and the same, records that others point to are missing, of
another size, or empty. Then records of sound calls (small models through the native engine) with one thing wrong: an
array an entry shorter or longer, or empty, a number off by one, negative or enormous, a record missing or of another
size. A function computes something or refuses with a sentence. Where it trusts indices that were checked when a plan
was made, random ones are zero and sound ones stay.
"""

from __future__ import annotations

import struct
import sys
from collections import Counter
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages
from typing import Any

import numpy as np

import mssvm
from builders import KINDS, On, random_case
from mssvm.core import library
from mssvm.core.library import FUNCTIONS, ArrayKind, Function, NumberKind, Record, RecordKind, RecordType
from mssvm.engines.base import METHODS
from mssvm.engines.native.engine import NativeEngine
from mssvm.inference.exact import Exact
from mssvm.inference.propagation.propagate import Propagate

SIZES = (0, 0, 1, 1, 2, 2, 3, 4, 6, 9, 17)
WHOLE = (0, 0, 1, 1, 2, 3, 4, -1, 17, -(1 << 62), 1 << 62)
REAL = (0.0, 1.0, 0.5, -1.0, 1e300, np.inf, -np.inf, np.nan)
# How long a function may go on; the rest of the numbers are sizes and places.
PATIENCE = ("budget", "groups", "most_rounds", "most", "terms")
# These look at every index of a call.
CHECKED = ("mssvm_order_", "mssvm_png_", "mssvm_dual_", "mssvm_support_", "mssvm_pool_")
POOL = Function("mssvm_pool_sums", threads=library.INT, terms=library.INT, failing=library.INT, sums=library.FLOATS)

KEPT: list[Any] = []


def declare_all() -> list[Function]:
    """The functions of all modules but those of extras, which need further packages and call nothing native."""
    extras = ("mssvm.torch", "mssvm.engines.torch", "mssvm.hf", "mssvm.spacy")
    for module in walk_packages(mssvm.__path__, "mssvm."):
        if not module.name.startswith((*extras, "mssvm.__main__")):
            import_module(module.name)
    return sorted(FUNCTIONS, key=lambda function: function.symbol)


class Draw:
    """Random fields, by kind."""

    def __init__(self, seed: int, symbol: str) -> None:
        self.rng = np.random.default_rng([seed, *symbol.encode()])
        self.checked = symbol.startswith(CHECKED)
        self.alive: list[Any] = []

    def array(self, kind: ArrayKind, size: int) -> Any:
        if kind.dtype == np.float64:
            return self.rng.choice([*REAL, *self.rng.normal(size=8)], size=size)
        if kind.dtype == np.bool_ or kind.dtype == np.uint8:
            return self.rng.integers(0, 2, size=size).astype(kind.dtype)
        if not self.checked:
            return np.zeros(size, dtype=kind.dtype)
        if self.rng.random() < 0.4:
            return np.minimum(np.arange(size), self.rng.integers(1, 6)).astype(kind.dtype)
        return self.rng.integers(-1, 5, size=size).astype(kind.dtype)

    def number(self, kind: NumberKind) -> Any:
        if kind.code == "d":
            return float(self.rng.choice(REAL))
        return WHOLE[self.rng.integers(len(WHOLE))]

    def nested(self, kind: RecordType) -> Record | None:
        draw = self.rng.random()
        if draw < 0.15:
            return None
        empty = not self.checked or draw < 0.4
        record = self.record(kind, empty)
        if draw > 0.85:
            struct.pack_into("@q", record._buffer, 0, kind.layout.size + 8 * int(self.rng.integers(-1, 1)) or 8)
        return record

    def record(self, kind: RecordType, empty: bool = False) -> Record:
        values: dict[str, Any] = {}
        arrays: dict[np.dtype[Any], list[Any]] = {}
        usual = int(self.rng.choice(SIZES))
        for name, field in kind.fields.items():
            if isinstance(field, RecordKind):
                values[name] = self.nested(field.kind)
            elif isinstance(field, NumberKind):
                values[name] = 0 if empty else self.number(field)
                if name in PATIENCE:
                    values[name] = min(values[name], 17)
            else:
                size = usual + int(self.rng.integers(0, 2)) if self.rng.random() < 0.6 else int(self.rng.choice(SIZES))
                same = arrays.setdefault(field.dtype, [])
                if same and self.rng.random() < 0.1:  # overlapping: one array for two fields
                    values[name] = same[-1]
                    continue
                values[name] = self.array(field, 0 if empty else size)
                same.append(values[name])
        self.alive.append(values)
        return Record(kind, values)


def attempt(function: Function, record: Record) -> str:
    """Call a function; what came of it."""
    try:
        function.run(record)
    except (library.MssvmError, RuntimeError) as error:
        assert str(error).removeprefix(f"{function.symbol}: "), "a refusal without a sentence"
        return "refused"
    return "computed"


def sound_calls() -> dict[str, Record]:
    """The first record of every function that small models reach, and through ``KEPT`` whatever addresses point to."""
    found: dict[str, Record] = {}
    run, make = Function.run, Record.__init__

    def keep(record: Record, kind: RecordType, values: dict[str, Any]) -> None:
        make(record, kind, values)
        KEPT.append(record)

    def note(function: Function, record: Record) -> int:
        found.setdefault(function.symbol, duplicate(record))
        return run(function, record)

    Function.run, Record.__init__ = note, keep  # type: ignore[method-assign]
    try:
        for kind in KINDS:
            case = random_case(kind, 3)
            for methods in (METHODS, ("conditioning", "elimination"), ("clustering", "elimination"), ("elimination",)):
                inference = On(Exact(methods=methods), NativeEngine())
                for eps in ((0.0, 1.0), (0.5, 1.0)):
                    KEPT.append(inference(case.batch, case.theta, case.query, *eps))
            for eps in ((0.0, 1.0), (1.0, 1.0)):
                KEPT.append(On(Propagate(), NativeEngine())(case.batch, case.theta, case.query, *eps))
        x = np.eye(3)[[[0, 1, 2, 0], [2, 1, 0, 1]]]
        KEPT.append(mssvm.HCRF(mssvm.Chain(hidden=2), max_iter=200).fit(x, [[0, 1, 1, 0], [1, 1, 0, 0]]))
    finally:
        Function.run, Record.__init__ = run, make  # type: ignore[method-assign]
    return found


def duplicate(record: Record) -> Record:
    """The record with arrays and records of its own."""
    values: dict[str, Any] = {}
    for name, value in record._held.items():
        values[name] = value
        if isinstance(value, np.ndarray):
            values[name] = value.copy()
        if isinstance(value, Record):
            values[name] = duplicate(value)
    return Record(record.kind, values)


def damaged(record: Record) -> Iterator[Record]:
    """The record with one thing wrong, in every place."""
    for name, value in record._held.items():
        if isinstance(value, np.ndarray) and value.size:
            flat = value.ravel()
            for other in (flat[:-1], flat[:0], np.append(flat, flat[-1])):
                yield duplicate(record).changed(**{name: np.ascontiguousarray(other)})
        elif isinstance(value, Record):
            yield duplicate(record).changed(**{name: None})
            yield from (duplicate(record).changed(**{name: other}) for other in damaged(value))
            short = duplicate(value)
            struct.pack_into("@q", short._buffer, 0, value.kind.layout.size - 8)
            yield duplicate(record).changed(**{name: short})
        elif isinstance(record.kind.fields[name], NumberKind):
            is_float = isinstance(value, float)
            others = (-1.0, np.nan, np.inf) if is_float else (value - 1, value + 1, -1, -(1 << 62), 1 << 62)
            for other in others:
                if name not in PATIENCE or other < 18:
                    yield duplicate(record).changed(**{name: other})


def main(seed: int, trials: int, directory: str = "") -> None:
    if directory:
        library.DIRECTORY = Path(directory)
    for function in declare_all():
        draw, found = Draw(seed, function.symbol), Counter[str]()
        print(function.symbol, end=" ", flush=True)  # whose turn it is, should the process end
        for _ in range(trials):
            found[attempt(function, draw.record(function.record))] += 1
            draw.alive.clear()
        print(*(f"{kind} {count}" for kind, count in sorted(found.items())), flush=True)
    functions = {function.symbol: function for function in FUNCTIONS}
    for symbol, sound in sorted(sound_calls().items()):
        print(symbol, "damaged", end=" ", flush=True)
        found = Counter(attempt(functions[symbol], record) for record in damaged(sound))
        print(*(f"{kind} {count}" for kind, count in sorted(found.items())), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:])
