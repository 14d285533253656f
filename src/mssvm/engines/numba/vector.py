"""A register of eight doubles as a value type of compiled code: eight instances side by side.

``load`` and ``store`` move a register to and from an array, ``splat`` fills one with a number; + - * / work between
registers and with numbers; ``vmax``, ``vexp``, ``vlog``, ``vabs`` and ``where`` work lane by lane, ``total`` adds the
lanes. The compiler splits a register where the machine's are shorter.
"""

from __future__ import annotations

import operator
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.extending import _Intrinsic
from numba.core.typing.templates import AbstractTemplate, infer_global, make_intrinsic_template, signature
from numba.extending import lower_builtin, models, register_model

WIDTH = 8
# No nnan and no ninf: what is infeasible must show as NaN or infinity, not as anything.
FAST = ("reassoc", "contract", "nsz", "arcp")

_I32 = ir.IntType(32)
VECTOR, _BITS = ir.VectorType(ir.DoubleType(), WIDTH), ir.VectorType(ir.IntType(64), WIDTH)
_INDEX = ir.VectorType(_I32, WIDTH)


class _Function(types.Function):
    """Numba's type of a function, which knows what it gave before: it is asked several times at every call."""

    def __init__(self, template: Any) -> None:
        self._known: dict[Any, Any] = {}
        super().__init__(template)

    def get_call_type(self, context: Any, args: Any, kws: Any) -> Any:
        key = context, tuple(args), tuple(kws.items())
        if key not in self._known:
            self._known[key] = super().get_call_type(context, args, kws)
        return self._known[key]


register_model(_Function)(models.OpaqueModel)


def _intrinsic(define: Any) -> Any:
    """As Numba's ``intrinsic``, with such a type."""
    out: Any = _Intrinsic(define.__name__, define)
    infer_global(out, _Function(make_intrinsic_template(out, define, define.__name__)))
    return out


class Register(types.Type):
    """The type of a register."""

    def __init__(self) -> None:
        super().__init__(name="Register")


REGISTER = Register()


@register_model(Register)
class _Model(models.PrimitiveModel):
    def __init__(self, dmm: Any, fe_type: Any) -> None:
        super().__init__(dmm, fe_type, VECTOR)


def constant(x: float) -> Any:
    return ir.Constant(VECTOR, [x] * WIDTH)


def _bits(x: int) -> Any:
    return ir.Constant(_BITS, [x] * WIDTH)


def spread(builder: Any, x: Any) -> Any:
    nothing = ir.Constant(VECTOR, ir.Undefined)
    first = builder.insert_element(nothing, x, ir.Constant(_I32, 0))
    return builder.shuffle_vector(first, nothing, ir.Constant(_INDEX, [0] * WIDTH))


def data(context: Any, builder: Any, array_type: Any, array: Any) -> Any:
    """Where an array begins, which may be a pointer already."""
    counted = not isinstance(array_type, types.CPointer)
    return context.make_array(array_type)(context, builder, array).data if counted else array


def pointer(context: Any, builder: Any, array_type: Any, array: Any, at: Any) -> Any:
    return builder.bitcast(builder.gep(data(context, builder, array_type, array), [at]), VECTOR.as_pointer())


def read(builder: Any, place: Any) -> Any:
    out = builder.load(place)
    out.align = 8
    return out


def write(builder: Any, value: Any, place: Any) -> None:
    builder.store(value, place).align = 8


def call(builder: Any, name: str, *x: Any) -> Any:
    kind = ir.FunctionType(VECTOR, [VECTOR] * len(x))
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, f"llvm.{name}.v{WIDTH}f64"), x)


@_intrinsic
def pointer_to(typing: Any, array: Any) -> Any:
    """Where an array begins, to be read and written by index; the array must outlive it."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return context.make_array(signature.args[0])(context, builder, args[0]).data

    # Steps between entries are not looked at.
    return types.CPointer(array.dtype)(array) if array.layout == "C" else None, code


@_intrinsic
def onward(typing: Any, place: Any, count: Any) -> Any:
    """What a pointer points to from entry ``count`` on."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.gep(args[0], [args[1]])

    return place(place, types.intp), code


_KINDS = (types.float64, types.int64, types.int32, types.uint8)


def _at(kind: Any) -> Any:
    """Numbers of a kind at an address, to be read and written by index; the array there must outlive them."""

    def numbers(typing: Any, address: Any) -> Any:
        def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            return builder.inttoptr(args[0], context.get_value_type(signature.return_type))

        return types.CPointer(kind)(types.intp), code

    return _intrinsic(numbers)


floats_at, ints_at, shorts_at, bytes_at = map(_at, _KINDS)


@_intrinsic
def load(typing: Any, array: Any, at: Any) -> Any:
    """The eight numbers of ``array`` from entry ``at`` on."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return read(builder, pointer(context, builder, signature.args[0], args[0], args[1]))

    return REGISTER(array, types.intp), code


@_intrinsic
def store(typing: Any, array: Any, at: Any, x: Any) -> Any:
    """Write eight numbers into ``array`` from entry ``at`` on."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        write(builder, args[2], pointer(context, builder, signature.args[0], args[0], args[1]))
        return context.get_dummy_value()

    return types.void(array, types.intp, REGISTER), code


@_intrinsic
def splat(typing: Any, x: Any) -> Any:
    """The number ``x`` in every lane."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return spread(builder, args[0])

    return REGISTER(types.float64), code


class _Operator(AbstractTemplate):
    """What an operator gives: of numbers of 64 bits the same as Numba says, which asks ten others before it knows."""

    metadata = {"target": "cpu"}  # noqa: RUF012  asked before all that Numba knows
    known: Any

    def generic(self, args: Any, kws: Any) -> Any:
        found = self.known.get(tuple(args))
        return signature(found, *args) if found else None


_INT, _FLOAT = (types.int64, types.int64), (types.float64, types.float64)
_MIXED = ((REGISTER, REGISTER), (REGISTER, types.float64), (types.float64, REGISTER))
_NUMBERS: dict[Any, Any] = {_INT: types.int64, _FLOAT: types.float64}
for _names, _known in (
    ("add sub mul", {**_NUMBERS, **dict.fromkeys(_MIXED, REGISTER)}),
    ("truediv", {_FLOAT: types.float64, **dict.fromkeys(_MIXED, REGISTER)}),
    ("iadd isub imul", _NUMBERS),
    ("floordiv mod and_ or_", {_INT: types.int64}),
    ("lt le gt ge eq ne", dict.fromkeys((_INT, _FLOAT), types.boolean)),
    ("getitem", {(types.CPointer(kind), types.int64): kind for kind in _KINDS}),
    ("setitem", {(types.CPointer(kind), types.int64, kind): types.none for kind in _KINDS}),
):
    for _name in _names.split():
        infer_global(getattr(operator, _name))(type(f"_{_name}", (_Operator,), {"known": _known}))
for _function, _known in (
    (bool, dict.fromkeys(((types.int64,), (types.boolean,)), types.boolean)),
    (max, _NUMBERS),
    (min, _NUMBERS),
):
    infer_global(_function)(type(f"_{_function.__name__}", (_Operator,), {"known": _known}))


def _extreme(function: Any, sign: str) -> None:
    """Code for ``max`` or ``min`` of two numbers, as Numba's: the first unless the second is beyond it."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        compare = builder.icmp_signed if signature.return_type == types.int64 else builder.fcmp_ordered
        return builder.select(compare(sign, args[1], args[0]), args[1], args[0])

    for pair in _NUMBERS:
        lower_builtin(function, *pair)(code)


_extreme(max, ">")
_extreme(min, "<")


def _arithmetic(op: Any, name: str) -> None:
    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pair = [x if isinstance(t, Register) else spread(builder, x) for x, t in zip(args, signature.args, strict=True)]
        return getattr(builder, name)(*pair, flags=FAST)

    for a, b in ((Register, Register), (Register, types.Float), (types.Float, Register)):
        lower_builtin(op, a, b)(code)


for _op, _name in ((operator.add, "fadd"), (operator.sub, "fsub"), (operator.mul, "fmul"), (operator.truediv, "fdiv")):
    _arithmetic(_op, _name)


def _exactly(name: str) -> Any:
    """An operation that is rounded by itself: the same bits whatever it is compiled together with."""

    def operation(typing: Any, a: Any, b: Any) -> Any:
        def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            return getattr(builder, name)(*args)

        return REGISTER(REGISTER, REGISTER), code

    return _intrinsic(operation)


plus, minus, times, over = (_exactly(name) for name in ("fadd", "fsub", "fmul", "fdiv"))


@_intrinsic
def vmax(typing: Any, a: Any, b: Any) -> Any:
    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.select(builder.fcmp_ordered(">", args[0], args[1]), args[0], args[1])

    return REGISTER(REGISTER, REGISTER), code


@_intrinsic
def where(typing: Any, mask: Any, a: Any, b: Any) -> Any:
    """``a`` where ``mask`` is above zero, ``b`` elsewhere."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.select(builder.fcmp_ordered(">", args[0], constant(0.0)), args[1], args[2])

    return REGISTER(REGISTER, REGISTER, REGISTER), code


@_intrinsic
def above(typing: Any, a: Any, b: Any) -> Any:
    """1 where a > b, 0 elsewhere."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.select(builder.fcmp_ordered(">", args[0], args[1]), constant(1.0), constant(0.0))

    return REGISTER(REGISTER, REGISTER), code


@_intrinsic
def lower(typing: Any, a: Any, b: Any) -> Any:
    """The lower of two; a where they cannot be compared."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.select(builder.fcmp_ordered(">", args[0], args[1]), args[1], args[0])

    return REGISTER(REGISTER, REGISTER), code


@_intrinsic
def vabs(typing: Any, a: Any) -> Any:
    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return call(builder, "fabs", args[0])

    return REGISTER(REGISTER), code


@_intrinsic
def total(typing: Any, a: Any) -> Any:
    """The sum of the lanes, always in the same order."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = ir.FunctionType(ir.DoubleType(), [ir.DoubleType(), VECTOR])
        add = cgutils.get_or_insert_function(builder.module, kind, f"llvm.vector.reduce.fadd.v{WIDTH}f64")
        return builder.call(add, [ir.Constant(ir.DoubleType(), -0.0), args[0]], fastmath=FAST)

    return types.float64(REGISTER), code


def _polynomial(builder: Any, coefficients: list[float], x: Any) -> Any:
    """Even and odd powers by themselves, so that the machine has two chains of multiply-adds to work on."""

    def in_square(some: list[float]) -> Any:
        out = constant(some[0])
        for c in some[1:]:
            out = builder.fadd(builder.fmul(out, square, flags=FAST), constant(c), flags=FAST)
        return out

    square = builder.fmul(x, x, flags=FAST)
    even, odd = in_square(coefficients[::-1][::2][::-1]), in_square(coefficients[::-1][1::2][::-1])
    return builder.fadd(builder.fmul(odd, x, flags=FAST), even, flags=FAST)


@_intrinsic
def vexp(typing: Any, a: Any) -> Any:
    """exp, exact to two units in the last place; 0 below -708."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        low, contract = constant(-708.0), ("contract",)
        inside = builder.fcmp_ordered(">", args[0], low)
        x = builder.select(inside, args[0], low)
        n = call(builder, "rint", builder.fmul(x, constant(1.4426950408889634)))
        r = builder.fsub(x, builder.fmul(n, constant(6.93147180369123816490e-01), flags=contract), flags=contract)
        r = builder.fsub(r, builder.fmul(n, constant(1.90821492927058770002e-10), flags=contract), flags=contract)
        factorials = [1.0]
        for k in range(1, 13):
            factorials.append(factorials[-1] / k)
        p = _polynomial(builder, factorials[::-1], r)
        scale = builder.shl(builder.add(builder.fptosi(n, _BITS), _bits(1023)), _bits(52))
        return builder.select(inside, builder.fmul(p, builder.bitcast(scale, VECTOR)), constant(0.0))

    return REGISTER(REGISTER), code


@_intrinsic
def vlog(typing: Any, a: Any) -> Any:
    """log of positive normal numbers."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        x = builder.bitcast(args[0], _BITS)
        e = builder.ashr(builder.sub(x, _bits(0x3FE8000000000000)), _bits(52))  # mantissas in [0.75, 1.5)
        m = builder.bitcast(builder.sub(x, builder.shl(e, _bits(52))), VECTOR)
        f = builder.fsub(m, constant(1.0))
        s = builder.fdiv(f, builder.fadd(f, constant(2.0)))
        series = _polynomial(builder, [1 / k for k in range(23, 0, -2)], builder.fmul(s, s))
        rest = builder.fmul(builder.fmul(s, constant(2.0)), series, flags=FAST)
        whole = builder.fmul(builder.sitofp(e, VECTOR), constant(0.6931471805599453), flags=FAST)
        return builder.fadd(whole, rest, flags=FAST)

    return REGISTER(REGISTER), code


@_intrinsic
def exponent(typing: Any, a: Any) -> Any:
    """The least e with a < 2^e, of positive normal numbers."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        e = builder.sub(builder.ashr(builder.bitcast(args[0], _BITS), _bits(52)), _bits(1022))
        return builder.sitofp(e, VECTOR)

    return REGISTER(REGISTER), code


@_intrinsic
def two_to_minus(typing: Any, e: Any) -> Any:
    """2^-e of whole numbers."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        bits = builder.shl(builder.sub(_bits(1023), builder.fptosi(args[0], _BITS)), _bits(52))
        return builder.bitcast(bits, VECTOR)

    return REGISTER(REGISTER), code


@_intrinsic
def two_to_minus_exponent(typing: Any, a: Any) -> Any:
    """2^-e for the least e with a < 2^e, of positive normal numbers."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        e = builder.ashr(builder.bitcast(args[0], _BITS), _bits(52))
        return builder.bitcast(builder.shl(builder.sub(_bits(2045), e), _bits(52)), VECTOR)

    return REGISTER(REGISTER), code


@_intrinsic
def vsqrt(typing: Any, a: Any) -> Any:
    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return call(builder, "sqrt", args[0])

    return REGISTER(REGISTER), code


@_intrinsic
def same(typing: Any, a: Any, b: Any) -> Any:
    """1 where a = b, 0 elsewhere."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.select(builder.fcmp_ordered("==", args[0], args[1]), constant(1.0), constant(0.0))

    return REGISTER(REGISTER, REGISTER), code


@_intrinsic
def mask_of(typing: Any, word: Any) -> Any:
    """1 in the lanes whose byte of a 64-bit ``word`` is not zero, 0 elsewhere."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.select(lanes_set(builder, args[0]), constant(1.0), constant(0.0))

    return REGISTER(types.uint64), code


def lanes_set(builder: Any, word: Any) -> Any:
    kind = ir.VectorType(ir.IntType(8), WIDTH)
    return builder.icmp_unsigned("!=", builder.bitcast(word, kind), ir.Constant(kind, [0] * WIDTH))


# --- eight rows side by side and back ---------------------------------------------------------------------------------

_TWO = ([0, 8, 2, 10, 4, 12, 6, 14], [1, 9, 3, 11, 5, 13, 7, 15])
_FOUR = ([0, 1, 8, 9, 4, 5, 12, 13], [2, 3, 10, 11, 6, 7, 14, 15])
_EIGHT = ([0, 1, 2, 3, 8, 9, 10, 11], [4, 5, 6, 7, 12, 13, 14, 15])


def _transpose(builder: Any, rows: list[Any]) -> list[Any]:
    for step, (low, high) in ((1, _TWO), (2, _FOUR), (4, _EIGHT)):
        out = list(rows)
        for k in range(WIDTH):
            if not k & step:
                for at, index in ((k, low), (k + step, high)):
                    out[at] = builder.shuffle_vector(rows[k], rows[k + step], ir.Constant(_INDEX, index))
        rows = out
    return rows


def _starts(context: Any, builder: Any, array_type: Any, array: Any, offset: Any) -> list[Any]:
    """The eight numbers of an array of integers, plus ``offset``."""
    begin = data(context, builder, array_type, array)
    places = [builder.gep(begin, [ir.Constant(offset.type, k)]) for k in range(WIDTH)]
    return [builder.add(builder.load(p), offset) for p in places]


@_intrinsic
def gather(typing: Any, rows: Any, starts: Any, at: Any, lanes: Any, to: Any, word: Any) -> Any:
    """Entries ``starts[l] + at`` to ``+ 8`` of ``rows`` into lane l of eight registers of ``lanes`` from entry ``to``
    on, in the lanes whose byte of ``word`` is not zero."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        places = _starts(context, builder, signature.args[1], args[1], args[2])
        found = [read(builder, pointer(context, builder, signature.args[0], args[0], p)) for p in places]
        chosen = lanes_set(builder, args[5])
        for k, value in enumerate(_transpose(builder, found)):
            place = builder.add(args[4], ir.Constant(args[4].type, WIDTH * k))
            into = pointer(context, builder, signature.args[3], args[3], place)
            write(builder, builder.select(chosen, value, read(builder, into)), into)
        return context.get_dummy_value()

    return types.void(rows, starts, types.intp, lanes, types.intp, types.uint64), code


@_intrinsic
def gather_allowed(typing: Any, rows: Any, more: Any, ok: Any, starts: Any, at: Any, lanes: Any, to: Any) -> Any:
    """As ``gather`` in all lanes, plus entries of ``more`` unless it is None; -1e300 where bytes of ``ok`` are zero.
    Returns zero if none of all entries is NaN or +inf."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        found, kind = [], ir.VectorType(ir.IntType(8), WIDTH)
        wrong = ir.Constant(ir.VectorType(ir.IntType(1), WIDTH), [0] * WIDTH)
        for p in _starts(context, builder, signature.args[3], args[3], args[4]):
            value = read(builder, pointer(context, builder, signature.args[0], args[0], p))
            if not isinstance(signature.args[1], types.NoneType):
                value = builder.fadd(value, read(builder, pointer(context, builder, signature.args[1], args[1], p)))
            wrong = builder.or_(wrong, builder.fcmp_unordered(">=", value, constant(float("inf"))))
            bytes_ = builder.load(builder.bitcast(builder.gep(args[2], [p]), kind.as_pointer()))
            bytes_.align = 1
            allowed = builder.icmp_unsigned("!=", bytes_, ir.Constant(kind, [0] * WIDTH))
            found.append(builder.select(allowed, value, constant(-1e300)))
        for k, value in enumerate(_transpose(builder, found)):
            place = builder.add(args[6], ir.Constant(args[6].type, WIDTH * k))
            write(builder, value, pointer(context, builder, signature.args[5], args[5], place))
        return builder.zext(builder.bitcast(wrong, ir.IntType(WIDTH)), ir.IntType(64))

    return types.int64(rows, more, ok, starts, types.intp, lanes, types.intp), code


def _scatter(less: bool) -> Any:
    """The way back from ``gather``: lane l of eight registers to entries ``starts[l] + to`` to ``+ 8`` of ``rows``, or
    off them."""

    def scatter(typing: Any, lanes: Any, at: Any, rows: Any, starts: Any, to: Any, word: Any) -> Any:
        def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            found = []
            for k in range(WIDTH):
                place = builder.add(args[1], ir.Constant(args[1].type, WIDTH * k))
                found.append(read(builder, pointer(context, builder, signature.args[0], args[0], place)))
            places = _starts(context, builder, signature.args[3], args[3], args[4])
            for k, (place, value) in enumerate(zip(places, _transpose(builder, found), strict=True)):
                lane = builder.and_(args[5], ir.Constant(args[5].type, 0xFF << (8 * k)))
                with builder.if_then(builder.icmp_unsigned("!=", lane, ir.Constant(lane.type, 0))):
                    into = pointer(context, builder, signature.args[2], args[2], place)
                    write(builder, builder.fsub(read(builder, into), value) if less else value, into)
            return context.get_dummy_value()

        return types.void(lanes, types.intp, rows, starts, types.intp, types.uint64), code

    return _intrinsic(scatter)


scatter, scatter_off = _scatter(False), _scatter(True)
