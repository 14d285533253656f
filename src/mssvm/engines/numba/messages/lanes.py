"""Code for short vectors of nonnegative numbers, and for products of a small table with two of them.

A vector of n numbers is a list of LLVM vectors: one of length n up to ``REGISTER``, above that as many of ``REGISTER``
lanes as it takes, the lanes behind the last number zero. The compiler splits them further where registers are shorter.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from llvmlite import ir
from numba.core import cgutils

# Numbers in the widest registers there are; also the side of the squares that sums along rows are taken in.
REGISTER = 8

_F64 = ir.DoubleType()
_I32 = ir.IntType(32)
_I64 = ir.IntType(64)
# No nnan/ninf: an infeasible model must show as NaN or zero, not as anything.
_FAST = ("reassoc", "contract", "nsz", "arcp")

# Lanes that fold two registers into one, by neighbours and by pairs: single instructions both.
_NEIGHBOURS = ([0, 8, 2, 10, 4, 12, 6, 14], [1, 9, 3, 11, 5, 13, 7, 15])
_PAIRS = ([0, 1, 4, 5, 8, 9, 12, 13], [2, 3, 6, 7, 10, 11, 14, 15])

Values = list[Any]


def address(builder: Any, context: Any, array_type: Any, array: Any, at: Any) -> Any:
    """Pointer to entry ``at`` of a numba array."""
    return builder.gep(context.make_array(array_type)(context, builder, array).data, [at])


class VectorCode:
    """Emits operations on vectors of ``n`` numbers."""

    def __init__(self, builder: Any, n: int) -> None:
        self.builder, self.n = builder, n
        self.width = min(n, REGISTER)
        self.count = -(-n // self.width)
        self.tail = n - (self.count - 1) * self.width
        self.vector = ir.VectorType(_F64, self.width)

    # --- memory ------------------------------------------------------------------------------------------------------

    def load(self, pointer: Any) -> Values:
        """n numbers; what lies behind them in memory is not touched."""
        out = [self._load(pointer, c * self.width, self.width) for c in range(self.count - 1)]
        at = (self.count - 1) * self.width
        if self.tail == self.width:
            return [*out, self._load(pointer, at, self.width)]
        last, lane = self.constant(0.0)[-1], 0
        for size in (4, 2, 1):
            if self.tail & size:
                part = self._load(pointer, at + lane, size)
                part = self._pick(part, part, [k if k < size else 0 for k in range(self.width)])
                index = [self.width + k - lane if lane <= k < lane + size else k for k in range(self.width)]
                last = self._pick(last, part, index)
                lane += size
        return [*out, last]

    def load_row(self, pointer: Any, beyond: bool, down: bool) -> Values:
        """n numbers; ``beyond``: with whatever follows in memory in the lanes behind them; ``down``: the last first."""
        if not beyond:
            return self.load(pointer)
        parts = range(self.count)
        out = [self._load(pointer, c * self.width, self.width) for c in (reversed(parts) if down else parts)]
        return out[::-1] if down else out

    def column(self, pointer: Any) -> Values:
        """n numbers at distance n."""
        out = self.constant(0.0)
        for r in range(self.n):
            entry = self._load(pointer, r * self.n, 0)
            c, lane = divmod(r, self.width)
            out[c] = self.builder.insert_element(out[c], entry, ir.Constant(_I32, lane))
        return out

    def store(self, value: Values, pointer: Any) -> None:
        for c in range(self.count):
            width = self.width if c < self.count - 1 else self.tail
            part = value[c]
            if width < self.width:
                index = ir.Constant(ir.VectorType(_I32, width), list(range(width)))
                part = self.builder.shuffle_vector(part, part, index)
            where = self.builder.gep(pointer, [ir.Constant(_I64, c * self.width)])
            where = self.builder.bitcast(where, ir.VectorType(_F64, width).as_pointer())
            self.builder.store(part, where).align = 8

    def _load(self, pointer: Any, offset: int, width: int) -> Any:
        """``width`` numbers, or a scalar at width 0."""
        where = self.builder.gep(pointer, [ir.Constant(_I64, offset)])
        if width:
            where = self.builder.bitcast(where, ir.VectorType(_F64, width).as_pointer())
        value = self.builder.load(where)
        value.align = 8
        return value

    # --- arithmetic --------------------------------------------------------------------------------------------------

    def constant(self, x: float) -> Values:
        return [ir.Constant(self.vector, [x] * self.width)] * self.count

    def splat(self, x: Any) -> Any:
        undefined = ir.Constant(self.vector, ir.Undefined)
        first = self.builder.insert_element(undefined, x, ir.Constant(_I32, 0))
        return self.builder.shuffle_vector(
            first, undefined, ir.Constant(ir.VectorType(_I32, self.width), [0] * self.width)
        )

    def multiply(self, a: Values, b: Values) -> Values:
        return [self.builder.fmul(x, y, flags=_FAST) for x, y in zip(a, b, strict=True)]

    def divide(self, a: Values, b: Values) -> Values:
        one = ir.Constant(self.vector, [0.0 if k < self.tail else 1.0 for k in range(self.width)])
        b = [*b[:-1], self.builder.fadd(b[-1], one)] if self.tail < self.width else b
        return [self.builder.fdiv(x, y, flags=_FAST) for x, y in zip(a, b, strict=True)]

    def subtract(self, a: Values, b: Values) -> Values:
        return [self.builder.fsub(x, y, flags=_FAST) for x, y in zip(a, b, strict=True)]

    def call(self, name: str, value: Values) -> Values:
        kind = ir.FunctionType(self.vector, [self.vector])
        function = cgutils.get_or_insert_function(self.builder.module, kind, f"llvm.{name}.v{self.width}f64")
        return [self.builder.call(function, [x]) for x in value]

    def join(self, a: Any, b: Any, maximum: bool) -> Any:
        """a + b or max(a, b) of two registers."""
        if maximum:
            return self.builder.select(self.builder.fcmp_ordered(">", a, b), a, b)
        return self.builder.fadd(a, b, flags=_FAST)

    def fold(self, value: Values, maximum: bool) -> Any:
        """Sum or maximum over registers, lane by lane."""
        whole = value[0]
        for part in value[1:]:
            whole = self.join(whole, part, maximum)
        return whole

    def reduce(self, value: Values, maximum: bool) -> Any:
        """Sum or maximum of all lanes."""
        whole, name = self.fold(value, maximum), f"llvm.vector.reduce.{'fmax' if maximum else 'fadd'}"
        kind = ir.FunctionType(_F64, [self.vector] if maximum else [_F64, self.vector])
        function = cgutils.get_or_insert_function(self.builder.module, kind, f"{name}.v{self.width}f64")
        if maximum:
            return self.builder.call(function, [whole], fastmath=(*_FAST, "nnan"))
        return self.builder.call(function, [ir.Constant(_F64, -0.0), whole], fastmath=_FAST)

    def unit_sums(self, a: Values, b: Values) -> tuple[Values, Values]:
        """Both vectors scaled to sum one: one division for the two."""
        pair = ir.VectorType(_F64, 2)
        if self.width == REGISTER:
            x, y = self.fold(a, maximum=False), self.fold(b, maximum=False)
            totals = self._halve(x, y, *_NEIGHBOURS, maximum=False)
            for half in (4, 2):
                low, high = (self._pick(totals, totals, list(range(k, k + half))) for k in (0, half))
                totals = self.builder.fadd(low, high, flags=_FAST)
        else:
            totals = ir.Constant(pair, ir.Undefined)
            for k, value in enumerate((a, b)):
                totals = self.builder.insert_element(totals, self.reduce(value, False), ir.Constant(_I32, k))
        inverse = self.builder.fdiv(ir.Constant(pair, [1.0, 1.0]), totals, flags=_FAST)
        scales = [self.splat(self.builder.extract_element(inverse, ir.Constant(_I32, k))) for k in range(2)]
        return self.multiply(a, [scales[0]] * self.count), self.multiply(b, [scales[1]] * self.count)

    def raise_peak(self, values: Values, pointer: Any) -> None:
        """Lane by lane the maximum with what memory holds; NaN wins over what was there."""
        where = self.builder.bitcast(pointer, self.vector.as_pointer())
        peak = self.builder.load(where)
        peak.align = 8
        self.builder.store(self.join(peak, self.fold(values, maximum=True), maximum=True), where).align = 8

    def argmax(self, value: Values) -> Any:
        """Index of the first largest number."""
        top = self.splat(self.reduce(value, maximum=True))
        # One bit more marks the end, so that a vector of NaN cannot lead outside the table.
        marked = ir.Constant(_I64, 1 << (self.n - 1))
        for c, part in enumerate(value):
            bits = self.builder.bitcast(self.builder.fcmp_ordered("==", part, top), ir.IntType(self.width))
            bits = self.builder.shl(self.builder.zext(bits, _I64), ir.Constant(_I64, c * self.width))
            marked = self.builder.or_(marked, bits)
        return self.builder.cttz(marked, ir.Constant(ir.IntType(1), 1))

    # --- a table times two vectors -----------------------------------------------------------------------------------

    def products(
        self, table: Any, n_i: Values, n_j: Values, max_i: bool, max_j: bool, down: bool
    ) -> tuple[Values, Values]:
        """Table times n_j (to i) and transposed table times n_i (to j), each row loaded once; one only if roles differ.

        Sums are over the variable the message comes from; with a maximum at that variable, maxima. ``down`` goes
        through memory backwards.
        """
        want_j, want_i = max_j or not max_i, max_i or not max_j
        to_i, to_j = self.constant(0.0), list[Any]()
        spread = self._spread(n_i) if want_j else []
        groups = [range(c, min(self.n, c + self.width)) for c in range(0, self.n, self.width)]
        for c, group in list(enumerate(groups))[:: -1 if down else 1]:
            dots = {}
            for r in group[:: -1 if down else 1]:
                at = self.builder.gep(table, [ir.Constant(_I64, r * self.n)])
                row = self.load_row(at, r < self.n - 1, down)
                if self.count > 1 and r % 2 == 0:
                    # Keeps the loads in the order of memory, which the processor then fetches in advance.
                    self.builder.asm(ir.FunctionType(ir.VoidType(), []), "", "~{memory}", [], side_effect=True)
                if want_i:
                    dots[r] = self.fold(self.multiply(row, n_j), max_j)
                if want_j:
                    scaled = self.multiply(row, [spread[r]()] * self.count)
                    to_j = [self.join(x, y, max_i) for x, y in zip(to_j, scaled, strict=True)] if to_j else scaled
            if want_i:
                to_i[c] = self._across([dots[r] for r in group], max_j)
        return to_i, self._cut(to_j) if want_j else []

    def _spread(self, value: Values) -> list[Callable[[], Any]]:
        """The single numbers of a vector, each to be put into all lanes of a register where it is used."""
        if self.count == 1:
            return [partial(self._lane, value[0], r) for r in range(self.n)]
        # By way of memory: a load spreads a number at no cost, from a register it takes a shuffle.
        room = cgutils.alloca_once(self.builder, ir.ArrayType(_F64, self.count * self.width))
        pointer = self.builder.bitcast(room, _F64.as_pointer())
        for c, part in enumerate(value):
            where = self.builder.gep(pointer, [ir.Constant(_I64, c * self.width)])
            self.builder.store(part, self.builder.bitcast(where, self.vector.as_pointer())).align = 8
        # Without this the optimiser sees through it and puts the shuffles back.
        kind = ir.FunctionType(ir.VoidType(), [pointer.type])
        self.builder.asm(kind, "", "r,~{memory}", [pointer], side_effect=True)
        return [partial(self._broadcast, pointer, r) for r in range(self.n)]

    def _lane(self, register: Any, r: int) -> Any:
        return self.splat(self.builder.extract_element(register, ir.Constant(_I32, r)))

    def _broadcast(self, pointer: Any, r: int) -> Any:
        return self.splat(self._load(pointer, r, 0))

    def _cut(self, value: Values) -> Values:
        """Zero in the lanes behind the last number."""
        if self.tail == self.width:
            return value
        mask = ir.Constant(self.vector, [1.0 if k < self.tail else 0.0 for k in range(self.width)])
        return [*value[:-1], self.builder.fmul(value[-1], mask, flags=_FAST)]

    def _across(self, dots: Values, maximum: bool) -> Any:
        """Sum or maximum over the lanes of every register, one number each."""
        if self.count == 1:
            out: Any = ir.Constant(self.vector, ir.Undefined)
            for r, dot in enumerate(dots):
                out = self.builder.insert_element(out, self.reduce([dot], maximum), ir.Constant(_I32, r))
            return out
        return self._square(dots + self.constant(0.0)[:1] * (REGISTER - len(dots)), maximum)

    def _square(self, rows: Values, maximum: bool) -> Any:
        """Eight registers of eight lanes into one."""
        for low, high in (_NEIGHBOURS, _PAIRS, _PAIRS):
            rows = [self._halve(a, b, low, high, maximum) for a, b in zip(rows[::2], rows[1::2], strict=True)]
        return rows[0]

    def _halve(self, a: Any, b: Any, low: list[int], high: list[int], maximum: bool) -> Any:
        """Lanes of a with lanes of a and lanes of b with lanes of b, in one register."""
        return self.join(self._pick(a, b, low), self._pick(a, b, high), maximum)

    def _pick(self, a: Any, b: Any, index: list[int]) -> Any:
        return self.builder.shuffle_vector(a, b, ir.Constant(ir.VectorType(_I32, len(index)), index))
