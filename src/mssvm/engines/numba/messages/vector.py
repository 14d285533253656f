"""Both messages of one pairwise factor in vector registers: one read of the table serves the two directions.

With cavities n_i = g_i / m_i (g_i: the unary times all incoming messages) and the table E = exp(theta / eps)

    m_i(x_i) ~ sum_{x_j} E(x_i, x_j) n_j(x_j),        m_j(x_j) ~ sum_{x_i} E(x_i, x_j) n_i(x_i),

or max in place of sum; between a max and a sum variable the message to the latter is the table at the maximiser of the
former. The number of states is the length of a tuple type, hence a compile-time constant.
"""

from __future__ import annotations

from itertools import product
from typing import Any

from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from mssvm.engines.numba.messages.lanes import REGISTER, VectorCode, address

# Rows longer than this would not stay in registers.
LONGEST = 32


@intrinsic
def update(
    _context: Any, kk: Any, down: Any, damped: Any, max_i: Any, max_j: Any, tables: Any, at: Any, g: Any, g_out: Any,
    gi: Any, gj: Any, m: Any, mi: Any, mj: Any, peak: Any,
) -> Any:  # fmt: skip
    """Write m, g_out and, lane by lane, the largest change so far into ``peak``; one body of code for every kind.

    ``down``: the sweep goes through memory backwards; ``damped``: by 1/2, geometrically.
    """
    # Short tables come in a line or a few of the cache: their rows need no order.
    flags = [(False, True) if kk.count > REGISTER else (False,), *[(False, True)] * 3]

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        key = ir.Constant(ir.IntType(8), 0)
        for flag in args[1:5]:
            bit = builder.icmp_unsigned("!=", flag, ir.Constant(flag.type, 0))
            key = builder.or_(builder.shl(key, ir.Constant(key.type, 1)), builder.zext(bit, key.type))
        if len(flags[0]) == 1:
            key = builder.and_(key, ir.Constant(key.type, 7))
        end = builder.append_basic_block("end")
        choice = builder.switch(key, end)
        for number, kind in enumerate(product(*flags)):
            block = builder.append_basic_block("kind")
            choice.add_case(ir.Constant(key.type, number), block)
            builder.position_at_end(block)
            _body(context, builder, sig, args, kk.count, *kind)
            builder.branch(end)
        builder.position_at_end(end)
        return context.get_dummy_value()

    return types.void(kk, down, damped, max_i, max_j, tables, at, g, g_out, gi, gj, m, mi, mj, peak), codegen


def _body(
    context: Any, builder: Any, sig: Any, args: Any, n: int, down: bool, damped: bool, max_i: bool, max_j: bool
) -> None:
    *_, at, _, _, gi, gj, _, mi, mj, _ = args
    tables, g, g_out, m, peak = 5, 7, 8, 11, 14
    lanes = VectorCode(builder, n)

    def pointer(array: int, offset: Any) -> Any:
        return address(builder, context, sig.args[array], args[array], offset)

    table = pointer(tables, at)
    old_i, old_j = lanes.load(pointer(m, mi)), lanes.load(pointer(m, mj))
    n_j = lanes.divide(lanes.load(pointer(g, gj)), old_j)
    n_i = lanes.divide(lanes.load(pointer(g, gi)), old_i)
    new_i, new_j = lanes.products(table, n_i, n_j, max_i, max_j, down)
    if max_i and not max_j:
        best = lanes.argmax(lanes.multiply(n_i, new_i))
        new_j = lanes.load(builder.gep(table, [builder.mul(best, ir.Constant(best.type, n))]))
    elif max_j and not max_i:
        best = lanes.argmax(lanes.multiply(n_j, new_j))
        new_i = lanes.column(builder.gep(table, [best]))
    new_i, new_j = lanes.unit_sums(new_i, new_j)
    if damped:
        new_i, new_j = (lanes.call("sqrt", lanes.multiply(x, old)) for x, old in ((new_i, old_i), (new_j, old_j)))
        new_i, new_j = lanes.unit_sums(new_i, new_j)
    for new, cavity, g_at, m_at in ((new_i, n_i, gi, mi), (new_j, n_j, gj, mj)):
        lanes.store(new, pointer(m, m_at))
        lanes.store(lanes.multiply(cavity, new), pointer(g_out, g_at))
    changes = [lanes.call("fabs", lanes.subtract(new, old)) for new, old in ((new_i, old_i), (new_j, old_j))]
    lanes.raise_peak([*changes[0], *changes[1]], pointer(peak, ir.Constant(at.type, 0)))
