"""Both messages of one pairwise factor in vector registers: one read of the table serves the two directions.

With cavities n_i = g_i / m_i (g_i: the unary times all incoming messages) and the table E = exp(theta / eps)

    m_i(x_i) ~ sum_{x_j} E(x_i, x_j) n_j(x_j),        m_j(x_j) ~ sum_{x_i} E(x_i, x_j) n_i(x_i),

or max in place of sum; between a max and a sum variable the message to the latter is the table at the maximiser of the
former. The number of states is the length of a tuple type, hence a compile-time constant; the rows of the table are
LLVM vectors of exactly that length, which the compiler splits into the registers of the machine.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

# Rows longer than this would not stay in registers.
LONGEST = 32

_F64 = ir.DoubleType()
_I32 = ir.IntType(32)
# No nnan/ninf: an infeasible model must show as NaN or zero, not as anything.
_FAST = ("reassoc", "contract", "nsz", "arcp")


def _address(builder: Any, context: Any, array_type: Any, array: Any, at: Any, vector: Any) -> Any:
    data = context.make_array(array_type)(context, builder, array).data
    return builder.bitcast(builder.gep(data, [at]), vector.as_pointer())


def _load(builder: Any, pointer: Any) -> Any:
    value = builder.load(pointer)
    value.align = 8
    return value


def _store(builder: Any, value: Any, pointer: Any) -> None:
    builder.store(value, pointer).align = 8


def _splat(builder: Any, x: Any, n: int) -> Any:
    undefined = ir.Constant(ir.VectorType(_F64, n), ir.Undefined)
    first = builder.insert_element(undefined, x, ir.Constant(_I32, 0))
    return builder.shuffle_vector(first, undefined, ir.Constant(ir.VectorType(_I32, n), [0] * n))


def _reduce(builder: Any, value: Any, n: int, maximum: bool) -> Any:
    vector = ir.VectorType(_F64, n)
    if maximum:
        kind = ir.FunctionType(_F64, [vector])
        function = cgutils.get_or_insert_function(builder.module, kind, f"llvm.vector.reduce.fmax.v{n}f64")
        return builder.call(function, [value], fastmath=(*_FAST, "nnan"))
    kind = ir.FunctionType(_F64, [_F64, vector])
    function = cgutils.get_or_insert_function(builder.module, kind, f"llvm.vector.reduce.fadd.v{n}f64")
    return builder.call(function, [ir.Constant(_F64, -0.0), value], fastmath=_FAST)


def _products(
    builder: Any, row_at: Callable[[int], Any], n_i: Any, n_j: Any, n: int, max_i: bool, max_j: bool
) -> tuple[Any, Any]:
    """Table times n_j (to i) and transposed table times n_i (to j), each row loaded once; one only if roles differ."""
    to_i: Any = ir.Constant(ir.VectorType(_F64, n), ir.Undefined)
    to_j: Any = None
    for r in range(n):
        row = _load(builder, row_at(r))
        if max_j or not max_i:
            scaled = builder.fmul(
                row, _splat(builder, builder.extract_element(n_i, ir.Constant(_I32, r)), n), flags=_FAST
            )
            if to_j is None:
                to_j = scaled
            elif max_i:
                to_j = builder.select(builder.fcmp_ordered(">", scaled, to_j), scaled, to_j)
            else:
                to_j = builder.fadd(to_j, scaled, flags=_FAST)
        if max_i or not max_j:
            entry = _reduce(builder, builder.fmul(row, n_j, flags=_FAST), n, max_j)
            to_i = builder.insert_element(to_i, entry, ir.Constant(_I32, r))
    return to_i, to_j


def _argmax(builder: Any, value: Any, n: int) -> Any:
    """Index of the first largest entry."""
    top = _splat(builder, _reduce(builder, value, n, True), n)
    bits = builder.bitcast(builder.fcmp_ordered("==", value, top), ir.IntType(n))
    # One bit more marks the end, so that a vector of NaN cannot lead outside the table.
    wide = ir.IntType(64)
    marked = builder.or_(builder.zext(bits, wide), ir.Constant(wide, 1 << (n - 1)))
    return builder.cttz(marked, ir.Constant(ir.IntType(1), 1))


def _unit_sum(builder: Any, raw: Any, n: int) -> Any:
    inverse = builder.fdiv(ir.Constant(_F64, 1.0), _reduce(builder, raw, n, False), flags=_FAST)
    return builder.fmul(raw, _splat(builder, inverse, n), flags=_FAST)


def _normalised(builder: Any, raw: Any, old: Any, n: int, damped: bool) -> tuple[Any, Any]:
    """The message scaled to sum one (``damped``: after its geometric mean with the old one), and its largest change."""
    vector = ir.VectorType(_F64, n)
    new = _unit_sum(builder, raw, n)
    if damped:
        root = cgutils.get_or_insert_function(builder.module, ir.FunctionType(vector, [vector]), f"llvm.sqrt.v{n}f64")
        new = _unit_sum(builder, builder.call(root, [builder.fmul(new, old, flags=_FAST)]), n)
    absolute = cgutils.get_or_insert_function(builder.module, ir.FunctionType(vector, [vector]), f"llvm.fabs.v{n}f64")
    change = builder.call(absolute, [builder.fsub(new, old, flags=_FAST)])
    return new, _reduce(builder, change, n, True)


def _update(max_i: bool, max_j: bool, damped: bool = False) -> Any:
    """Intrinsic (kk, tables, at, g, g_out, gi, gj, m, mi, mj) -> largest change; writes m and g_out in place."""

    def update(
        _context: Any, kk: Any, tables: Any, at: Any, g: Any, g_out: Any, gi: Any, gj: Any, m: Any, mi: Any, mj: Any
    ) -> Any:
        n = kk.count

        def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            _, _, at, _, _, gi, gj, _, mi, mj = args
            tables, g, g_out, m = 1, 3, 4, 7

            def pointer(array: int, offset: Any, type_: Any = ir.VectorType(_F64, n)) -> Any:  # noqa: B008
                return _address(builder, context, sig.args[array], args[array], offset, type_)

            def entry(r: Any) -> Any:
                return builder.add(at, r if isinstance(r, ir.Value) else ir.Constant(at.type, r))

            old_i, old_j = _load(builder, pointer(m, mi)), _load(builder, pointer(m, mj))
            n_i = builder.fdiv(_load(builder, pointer(g, gi)), old_i, flags=_FAST)
            n_j = builder.fdiv(_load(builder, pointer(g, gj)), old_j, flags=_FAST)
            raw_i, raw_j = _products(builder, lambda r: pointer(tables, entry(r * n)), n_i, n_j, n, max_i, max_j)
            if max_i and not max_j:
                best = _argmax(builder, builder.fmul(n_i, raw_i, flags=_FAST), n)
                raw_j = _load(builder, pointer(tables, entry(builder.mul(best, ir.Constant(at.type, n)))))
            elif max_j and not max_i:
                best = _argmax(builder, builder.fmul(n_j, raw_j, flags=_FAST), n)
                for r in range(n):
                    where = pointer(tables, entry(builder.add(best, ir.Constant(at.type, r * n))), _F64)
                    raw_i = builder.insert_element(raw_i, _load(builder, where), ir.Constant(_I32, r))
            new_i, change_i = _normalised(builder, raw_i, old_i, n, damped)
            new_j, change_j = _normalised(builder, raw_j, old_j, n, damped)
            for new, cavity, g_at, m_at in ((new_i, n_i, gi, mi), (new_j, n_j, gj, mj)):
                _store(builder, new, pointer(m, m_at))
                _store(builder, builder.fmul(cavity, new, flags=_FAST), pointer(g_out, g_at))
            return builder.select(builder.fcmp_ordered(">", change_i, change_j), change_i, change_j)

        return types.float64(kk, tables, at, g, g_out, gi, gj, m, mi, mj), codegen

    return intrinsic(update)


update_sum = _update(max_i=False, max_j=False)
update_max = _update(max_i=True, max_j=True)
update_max_sum = _update(max_i=True, max_j=False)
update_sum_max = _update(max_i=False, max_j=True)
# The same with damping 1/2, which the opening of a cold start and runs that do not settle use.
damped_sum = _update(max_i=False, max_j=False, damped=True)
damped_max = _update(max_i=True, max_j=True, damped=True)
damped_max_sum = _update(max_i=True, max_j=False, damped=True)
damped_sum_max = _update(max_i=False, max_j=True, damped=True)
