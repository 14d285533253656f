"""Code of the messages of one pairwise factor for eight instances abreast.

``sum_product``, ``max_product`` and ``both_product`` multiply a table of any shape by a vector of registers. ``update``
is the whole of ``abreast`` for two variables with the same small number of states: everything stays in registers, and a
number of the table that is read once serves both directions.
"""

from __future__ import annotations

from functools import reduce
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from mssvm.engines.numba.vector import REGISTER, VECTOR, WIDTH, call, constant, lanes_set, pointer, read, spread, write

# The most states that ``update`` is made for: with more, registers do not suffice.
SQUARES = 5
# Roles of i and j in the lanes: both summed, both maximal, one of the two maximal or none, anything.
KINDS = ("sum", "max", "only i", "only j", "both")
_I64 = ir.IntType(64)
_intrinsic: Any = intrinsic
Values = list[Any]

# --- a table times a vector of registers ------------------------------------------------------------------------------

# Registers of results at a time.
BLOCK = 5


def larger(builder: Any, a: Any, b: Any) -> Any:
    """Lane by lane; if in doubt (NaN) b."""
    return builder.select(builder.fcmp_ordered(">", a, b), a, b)


def join(builder: Any, before: Any, a: Any, b: Any, kind: str, most: Any) -> Any:
    """before + a b, the larger of before and a b, or that where ``most`` is set; the same bits in every kind."""
    if kind == "sum":
        return call(builder, "fmuladd", a, b, before)
    most_of = larger(builder, before, builder.fmul(a, b))
    return most_of if kind == "max" else builder.select(most, most_of, call(builder, "fmuladd", a, b, before))


def _product(kind: str) -> Any:
    """``product(most, room, x, n, table, at, down, across, y, m)``: y_k = sum_j x_j table[at + j down + k across] for n
    registers from entry x of ``room`` on and m registers from entry y on; returns the sum of y. ``kind``: "sum", "max"
    (maxima in place of sums), or "both" (maxima in the lanes where the register ``most`` is positive)."""

    def product(
        typing: Any, most: Any, room: Any, x: Any, n: Any, table: Any, at: Any, down: Any, across: Any, y: Any, m: Any
    ) -> Any:
        size = types.intp

        def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            return _Product(context, builder, signature, args, kind).emit()

        return REGISTER(REGISTER, room, size, size, table, size, size, size, size, size), code

    return _intrinsic(product)


class _Product:
    """Code of ``_product``: blocks of ``BLOCK`` results, and what is left in one shorter block."""

    def __init__(self, context: Any, builder: Any, signature: Any, args: Any, kind: str) -> None:
        most, self.room, self.x, self.n, self.table, self.at, self.down, self.across, self.y, self.m = args
        self.context, self.builder, self.types, self.kind = context, builder, signature.args, kind
        self.most = builder.fcmp_ordered(">", most, constant(0.0))
        self.total = cgutils.alloca_once(builder, VECTOR)
        self.sums = [cgutils.alloca_once(builder, VECTOR) for _ in range(BLOCK)]

    def emit(self) -> Any:
        builder, integer = self.builder, self.m.type
        builder.store(constant(0.0), self.total)
        whole = builder.udiv(self.m, ir.Constant(integer, BLOCK))
        with cgutils.for_range(builder, whole) as loop:
            self._block(builder.mul(loop.index, ir.Constant(integer, BLOCK)), BLOCK)
        done = builder.mul(whole, ir.Constant(integer, BLOCK))
        end = builder.append_basic_block("end")
        choice = builder.switch(builder.sub(self.m, done), end)
        for count in range(1, BLOCK):
            block = builder.append_basic_block("rest")
            choice.add_case(ir.Constant(integer, count), block)
            builder.position_at_end(block)
            self._block(done, count)
            builder.branch(end)
        builder.position_at_end(end)
        return builder.load(self.total)

    def _block(self, first: Any, count: int) -> None:
        """Results from number ``first`` on."""
        builder, integer = self.builder, self.m.type
        column = builder.add(self.at, builder.mul(first, self.across))
        columns = [column]
        for _ in range(1, count):
            columns.append(builder.add(columns[-1], self.across))
        value, numbers = self._terms(ir.Constant(integer, 0), columns)
        for k, number in enumerate(numbers):
            builder.store(builder.fmul(value, number), self.sums[k])
        with cgutils.for_range(builder, self.n, start=ir.Constant(integer, 1)) as loop:
            row = builder.mul(loop.index, self.down)
            value, numbers = self._terms(loop.index, [builder.add(c, row) for c in columns])
            for k, number in enumerate(numbers):
                before = builder.load(self.sums[k])
                builder.store(join(builder, before, value, number, self.kind, self.most), self.sums[k])
        total = builder.load(self.total)
        for k in range(count):
            value = builder.load(self.sums[k])
            write(builder, value, self._register(self.y, builder.add(first, ir.Constant(integer, k))))
            total = builder.fadd(total, value)
        builder.store(total, self.total)

    def _terms(self, j: Any, entries: list[Any]) -> tuple[Any, Values]:
        builder = self.builder
        value = read(builder, self._register(self.x, j))
        data = self.context.make_array(self.types[4])(self.context, builder, self.table).data
        return value, [spread(builder, builder.load(builder.gep(data, [e]))) for e in entries]

    def _register(self, start: Any, k: Any) -> Any:
        place = self.builder.add(start, self.builder.mul(k, ir.Constant(k.type, WIDTH)))
        return pointer(self.context, self.builder, self.types[1], self.room, place)


sum_product, max_product, both_product = (_product(kind) for kind in ("sum", "max", "both"))


# --- small square tables ----------------------------------------------------------------------------------------------


@_intrinsic
def update(
    typing: Any, n: Any, whole: Any, tables: Any, at: Any, g: Any, g_out: Any, gi: Any, gj: Any, m: Any, m_out: Any,
    ci: Any, cj: Any, mi: Any, mj: Any, ri: Any, rj: Any, fixed: Any, damped: Any, stride: Any, peak: Any,
) -> Any:  # fmt: skip
    """Both messages between variables of ``n`` states, which lie ``stride`` numbers apart; ``damped``: by 1/2. Returns
    the largest change so far.

    The cavities are g / m if ``whole`` (g: all messages to a variable, kept up to date), g m if not (g: all messages
    but two).
    """
    size, word, flag = types.intp, types.uint64, types.boolean

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        peak = cgutils.alloca_once_value(builder, args[-1])
        kind = _kind(builder, args[14], args[15])
        end = builder.append_basic_block("end")
        choice = builder.switch(builder.add(builder.mul(args[0], ir.Constant(_I64, len(KINDS))), kind), end)
        for states in range(2, SQUARES + 1):
            for number, name in enumerate(KINDS):
                block = builder.append_basic_block(name)
                choice.add_case(ir.Constant(_I64, len(KINDS) * states + number), block)
                builder.position_at_end(block)
                _Square(context, builder, signature, args, states, peak).emit(name)
                builder.branch(end)
        builder.position_at_end(end)
        return builder.load(peak)

    places = (size, size, m, m_out, size, size, size, size, word, word, word, flag, size, REGISTER)
    return REGISTER(size, flag, tables, size, g, g_out, *places), code


def _kind(builder: Any, ri: Any, rj: Any) -> Any:
    """Which of ``KINDS`` serves all lanes."""
    none, every = ir.Constant(_I64, 0), ir.Constant(_I64, 0x0101010101010101)
    out, both = ir.Constant(_I64, 4), builder.and_(ri, rj)
    for number, (word, value) in enumerate(((builder.or_(both, ri), none), (builder.or_(both, rj), none))):
        out = builder.select(builder.icmp_unsigned("==", word, value), ir.Constant(_I64, 3 - number), out)
    out = builder.select(builder.icmp_unsigned("==", both, every), ir.Constant(_I64, 1), out)
    return builder.select(builder.icmp_unsigned("==", builder.or_(ri, rj), none), ir.Constant(_I64, 0), out)


class _Square:
    """Code of ``update`` for n states. One message is finished before the other is begun: registers are few."""

    def __init__(self, context: Any, builder: Any, signature: Any, args: Any, n: int, peak: Any) -> None:
        _, self.whole, self.tables, self.at, self.g, self.g_out, *self.states, self.m, self.m_out = args[:10]
        self.cavities, self.messages, (ri, rj, self.fixed, self.damped) = args[10:12], args[12:14], args[14:18]
        self.context, self.builder, self.types, self.n, self.peak = context, builder, signature.args, n, peak
        self.steps = [builder.mul(args[18], ir.Constant(_I64, k)) for k in range(n)]
        self.most = lanes_set(builder, builder.and_(ri, rj))
        self.only_i = lanes_set(builder, builder.and_(ri, builder.not_(rj)))
        self.only_j = lanes_set(builder, builder.and_(rj, builder.not_(ri)))

    def emit(self, kind: str) -> None:
        cavity = [self._cavity(side) for side in range(2)]
        if kind == "both":
            for side, new in enumerate(self._mixed(cavity)):
                self._finish(side, new, cavity[side])
            return
        # The one of the two that is maximal is told of the other before it answers.
        first, told = (0 if kind == "only i" else 1), None
        new = self._toward(first, cavity[1 - first], kind)
        if kind in ("only i", "only j"):
            told = self._point(self.only_j if first else self.only_i, cavity[first], new)
        self._finish(first, new, cavity[first])
        self._forget()
        self._finish(1 - first, self._toward(1 - first, told or cavity[first], kind), cavity[1 - first])

    def _cavity(self, side: int) -> Values:
        """Products of all other messages with the scores."""
        b, out = self.builder, []
        for k in range(self.n):
            x = read(b, self._place(4, self.g, self.states[side], k))
            out.append((x, read(b, self._place(8, self.m, self.cavities[side], k))))
        rooms = [cgutils.alloca_once(b, VECTOR) for _ in out]
        with b.if_else(self.whole) as (all_of_them, but_two):
            for kept, operation in ((all_of_them, b.fdiv), (but_two, b.fmul)):
                with kept:
                    for room, pair in zip(rooms, out, strict=True):
                        b.store(operation(*pair), room)
        return [b.load(room) for room in rooms]

    def _mixed(self, cavity: list[Values]) -> list[Values]:
        """Sums and maxima; in the lanes where one of the two is maximal, it tells the other its best state."""
        b, (n_i, n_j) = self.builder, cavity
        to_i, to_j = self._products(cavity, "both")
        told = [self._point(self.only_i, n_i, to_i), self._point(self.only_j, n_j, to_j)]
        self._forget()
        again_i, again_j = self._products(told, "sum")
        return [
            [b.select(chosen, x, y) for x, y in zip(again, first, strict=True)]
            for chosen, again, first in ((self.only_j, again_i, to_i), (self.only_i, again_j, to_j))
        ]

    def _products(self, cavity: list[Values], kind: str) -> list[Values]:
        """To i and to j, each number of the table read once."""
        out: list[Values] = [[None] * self.n, [None] * self.n]
        for x in range(self.n):
            for y in range(self.n):
                entry = self._entry(x, y)
                out[0][x] = self._join(out[0][x], entry, cavity[1][y], kind)
                out[1][y] = self._join(out[1][y], entry, cavity[0][x], kind)
        return out

    def _forget(self) -> None:
        """Read the table again from here on: there are too few registers to keep it."""
        self.builder.asm(ir.FunctionType(ir.VoidType(), []), "", "~{memory}", [], side_effect=True)

    def _toward(self, side: int, source: Values, kind: str) -> Values:
        """To i or j: maxima if both are maximal, else sums."""
        out: Values = [None] * self.n
        for k in range(self.n):
            for x, value in enumerate(source):
                entry = self._entry(x, k) if side else self._entry(k, x)
                out[k] = self._join(out[k], entry, value, "max" if kind == "max" else "sum")
        return out

    def _point(self, chosen: Any, cavity: Values, message: Values) -> Values:
        """1 at the first largest cavity times message and 0 elsewhere in the ``chosen`` lanes, the cavity in others."""
        b, zero, one = self.builder, constant(0.0), constant(1.0)
        product = [b.fmul(x, y) for x, y in zip(cavity, message, strict=True)]
        top = reduce(lambda x, y: larger(b, x, y), product)
        left, out = one, []
        for x, value in zip(cavity, product, strict=True):
            hit = b.select(b.fcmp_ordered("==", value, top), left, zero)
            left = b.fsub(left, hit)
            out.append(b.select(chosen, hit, x))
        return out

    def _normal(self, value: Values) -> Values:
        b = self.builder
        scale = b.fdiv(constant(1.0), reduce(b.fadd, value))
        return [b.fmul(x, scale) for x in value]

    def _finish(self, side: int, new: Values, cavity: Values) -> None:
        """Normalise, damp, and write one message."""
        b = self.builder
        rooms = [cgutils.alloca_once_value(b, x) for x in self._normal(new)]
        with b.if_then(self.damped):
            old = self._vector(8, self.m, self.messages[side])
            roots = [call(b, "sqrt", b.fmul(b.load(r), x)) for r, x in zip(rooms, old, strict=True)]
            for r, x in zip(rooms, self._normal(roots), strict=True):
                b.store(x, r)
        new, fixed = [b.load(r) for r in rooms], lanes_set(b, self.fixed)
        with b.if_else(b.icmp_unsigned("!=", self.fixed, ir.Constant(_I64, 0))) as (some, none):
            with some:
                self._store(side, new, fixed)
            with none:
                self._store(side, new, None)
        with b.if_then(self.whole):
            for k, value in enumerate(new):
                into, product = self._place(5, self.g_out, self.states[side], k), b.fmul(cavity[k], value)
                write(b, b.select(fixed, read(b, into), product), into)

    def _store(self, side: int, new: Values, fixed: Any) -> None:
        b, peak = self.builder, self.builder.load(self.peak)
        for k, value in enumerate(new):
            before = read(b, self._place(8, self.m, self.messages[side], k))
            if fixed is not None:
                value = b.select(fixed, before, value)
            peak = larger(b, peak, call(b, "fabs", b.fsub(value, before)))
            write(b, value, self._place(9, self.m_out, self.messages[side], k))
        b.store(peak, self.peak)

    def _join(self, before: Any, a: Any, b: Any, kind: str) -> Any:
        return self.builder.fmul(a, b) if before is None else join(self.builder, before, a, b, kind, self.most)

    def _entry(self, x: int, y: int) -> Any:
        data = self.context.make_array(self.types[2])(self.context, self.builder, self.tables).data
        place = self.builder.add(self.at, ir.Constant(_I64, x * self.n + y))
        return spread(self.builder, self.builder.load(self.builder.gep(data, [place])))

    def _vector(self, kind: int, array: Any, at: Any) -> Values:
        return [read(self.builder, self._place(kind, array, at, k)) for k in range(self.n)]

    def _place(self, kind: int, array: Any, at: Any, k: int) -> Any:
        return pointer(self.context, self.builder, self.types[kind], array, self.builder.add(at, self.steps[k]))
