"""Kernels that call other kernels where their code lies, instead of taking it in: nothing is compiled twice, and work
that leaves Python does not come back between its steps."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from mssvm.engines.numba.vector import data

_intrinsic: Any = intrinsic


def _call(returned: Any) -> Any:
    def call(typing: Any, address: Any, *arguments: Any) -> Any:
        """Call the kernel at an address (``Kernel.address``) with arguments that have exactly its types."""
        kinds = tuple(map(types.unliteral, arguments))

        def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            convention = context.call_conv
            kind = convention.get_function_type(returned, kinds)
            callee = builder.inttoptr(args[0], kind.as_pointer())
            values = cgutils.unpack_tuple(builder, args[1])
            status, out = convention.call_function(builder, callee, returned, kinds, values)
            with cgutils.if_unlikely(builder, status.is_error):
                convention.return_status_propagate(builder, status)
            return out

        return returned(types.intp, types.StarArgTuple(kinds)), code

    return _intrinsic(call)


call_at, count_at = _call(types.none), _call(types.int64)


@_intrinsic
def take(typing: Any, counter: Any) -> Any:
    """The first number of an array, which is one more from then on: no two threads are given the same."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        place = data(context, builder, signature.args[0], args[0])
        return builder.atomic_rmw("add", place, ir.Constant(ir.IntType(64), 1), "monotonic")

    return types.int64(counter), code
