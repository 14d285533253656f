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
from numba.extending import intrinsic, lower_builtin, models, register_model, type_callable

WIDTH = 8
_intrinsic: Any = intrinsic
# No nnan and no ninf: what is infeasible must show as NaN or infinity, not as anything.
FAST = ("reassoc", "contract", "nsz", "arcp")

_I32 = ir.IntType(32)
_VECTOR, _BITS = ir.VectorType(ir.DoubleType(), WIDTH), ir.VectorType(ir.IntType(64), WIDTH)
_INDEX = ir.VectorType(_I32, WIDTH)


class Register(types.Type):
    """The type of a register."""

    def __init__(self) -> None:
        super().__init__(name="Register")


REGISTER = Register()


@register_model(Register)
class _Model(models.PrimitiveModel):
    def __init__(self, dmm: Any, fe_type: Any) -> None:
        super().__init__(dmm, fe_type, _VECTOR)


def _const(x: float) -> Any:
    return ir.Constant(_VECTOR, [x] * WIDTH)


def _bits(x: int) -> Any:
    return ir.Constant(_BITS, [x] * WIDTH)


def _splat(builder: Any, x: Any) -> Any:
    nothing = ir.Constant(_VECTOR, ir.Undefined)
    first = builder.insert_element(nothing, x, ir.Constant(_I32, 0))
    return builder.shuffle_vector(first, nothing, ir.Constant(_INDEX, [0] * WIDTH))


def _pointer(context: Any, builder: Any, array_type: Any, array: Any, at: Any) -> Any:
    data = context.make_array(array_type)(context, builder, array).data
    return builder.bitcast(builder.gep(data, [at]), _VECTOR.as_pointer())


def _read(builder: Any, pointer: Any) -> Any:
    out = builder.load(pointer)
    out.align = 8
    return out


def _write(builder: Any, value: Any, pointer: Any) -> None:
    builder.store(value, pointer).align = 8


def _unary(builder: Any, name: str, x: Any) -> Any:
    kind = ir.FunctionType(_VECTOR, [_VECTOR])
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, f"llvm.{name}.v{WIDTH}f64"), [x])


@_intrinsic
def load(typing: Any, array: Any, at: Any) -> Any:
    """The eight numbers of ``array`` from entry ``at`` on."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return _read(builder, _pointer(context, builder, signature.args[0], args[0], args[1]))

    return REGISTER(array, types.intp), code


@_intrinsic
def store(typing: Any, array: Any, at: Any, x: Any) -> Any:
    """Write eight numbers into ``array`` from entry ``at`` on."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        _write(builder, args[2], _pointer(context, builder, signature.args[0], args[0], args[1]))
        return context.get_dummy_value()

    return types.void(array, types.intp, REGISTER), code


@_intrinsic
def splat(typing: Any, x: Any) -> Any:
    """The number ``x`` in every lane."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return _splat(builder, args[0])

    return REGISTER(types.float64), code


def _arithmetic(op: Any, name: str) -> None:
    @type_callable(op)
    def result(context: Any) -> Any:
        def typer(a: Any, b: Any) -> Any:
            kinds = (isinstance(a, Register), isinstance(b, Register))
            numbers = (isinstance(a, types.Float), isinstance(b, types.Float))
            if all(k or n for k, n in zip(kinds, numbers, strict=True)) and any(kinds):
                return REGISTER
            return None

        return typer

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pair = [x if isinstance(t, Register) else _splat(builder, x) for x, t in zip(args, signature.args, strict=True)]
        return getattr(builder, name)(*pair, flags=FAST)

    for a, b in ((Register, Register), (Register, types.Float), (types.Float, Register)):
        lower_builtin(op, a, b)(code)


for _op, _name in ((operator.add, "fadd"), (operator.sub, "fsub"), (operator.mul, "fmul"), (operator.truediv, "fdiv")):
    _arithmetic(_op, _name)


@_intrinsic
def vmax(typing: Any, a: Any, b: Any) -> Any:
    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.select(builder.fcmp_ordered(">", args[0], args[1]), args[0], args[1])

    return REGISTER(REGISTER, REGISTER), code


@_intrinsic
def where(typing: Any, mask: Any, a: Any, b: Any) -> Any:
    """``a`` where ``mask`` is above zero, ``b`` elsewhere."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.select(builder.fcmp_ordered(">", args[0], _const(0.0)), args[1], args[2])

    return REGISTER(REGISTER, REGISTER, REGISTER), code


@_intrinsic
def above(typing: Any, a: Any, b: Any) -> Any:
    """1 where a > b, 0 elsewhere."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.select(builder.fcmp_ordered(">", args[0], args[1]), _const(1.0), _const(0.0))

    return REGISTER(REGISTER, REGISTER), code


@_intrinsic
def vabs(typing: Any, a: Any) -> Any:
    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return _unary(builder, "fabs", args[0])

    return REGISTER(REGISTER), code


@_intrinsic
def total(typing: Any, a: Any) -> Any:
    """The sum of the lanes, always in the same order."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = ir.FunctionType(ir.DoubleType(), [ir.DoubleType(), _VECTOR])
        add = cgutils.get_or_insert_function(builder.module, kind, f"llvm.vector.reduce.fadd.v{WIDTH}f64")
        return builder.call(add, [ir.Constant(ir.DoubleType(), -0.0), args[0]], fastmath=FAST)

    return types.float64(REGISTER), code


def _polynomial(builder: Any, coefficients: list[float], x: Any) -> Any:
    out = _const(coefficients[0])
    for c in coefficients[1:]:
        out = builder.fadd(builder.fmul(out, x, flags=FAST), _const(c), flags=FAST)
    return out


@_intrinsic
def vexp(typing: Any, a: Any) -> Any:
    """exp, exact to two units in the last place; 0 below -708."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        low, contract = _const(-708.0), ("contract",)
        inside = builder.fcmp_ordered(">", args[0], low)
        x = builder.select(inside, args[0], low)
        n = _unary(builder, "rint", builder.fmul(x, _const(1.4426950408889634)))
        r = builder.fsub(x, builder.fmul(n, _const(6.93147180369123816490e-01), flags=contract), flags=contract)
        r = builder.fsub(r, builder.fmul(n, _const(1.90821492927058770002e-10), flags=contract), flags=contract)
        factorials = [1.0]
        for k in range(1, 13):
            factorials.append(factorials[-1] / k)
        p = _polynomial(builder, factorials[::-1], r)
        scale = builder.shl(builder.add(builder.fptosi(n, _BITS), _bits(1023)), _bits(52))
        return builder.select(inside, builder.fmul(p, builder.bitcast(scale, _VECTOR)), _const(0.0))

    return REGISTER(REGISTER), code


@_intrinsic
def vlog(typing: Any, a: Any) -> Any:
    """log of positive normal numbers."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        x = builder.bitcast(args[0], _BITS)
        e = builder.ashr(builder.sub(x, _bits(0x3FE8000000000000)), _bits(52))  # mantissas in [0.75, 1.5)
        m = builder.bitcast(builder.sub(x, builder.shl(e, _bits(52))), _VECTOR)
        f = builder.fsub(m, _const(1.0))
        s = builder.fdiv(f, builder.fadd(f, _const(2.0)))
        series = _polynomial(builder, [1 / k for k in range(23, 0, -2)], builder.fmul(s, s))
        rest = builder.fmul(builder.fmul(s, _const(2.0)), series, flags=FAST)
        whole = builder.fmul(builder.sitofp(e, _VECTOR), _const(0.6931471805599453), flags=FAST)
        return builder.fadd(whole, rest, flags=FAST)

    return REGISTER(REGISTER), code
