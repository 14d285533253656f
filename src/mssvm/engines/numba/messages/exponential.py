"""exp(x) for x <= 0 in plain arithmetic, so that loops over it vectorise."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from mssvm.core.jit import njit

_LOG2E = 1.4426950408889634
_LN2_HI = 0.6931471803691238
_LN2_LO = 1.9082149292705877e-10
_MAGIC = 6755399441055744.0  # 1.5 * 2**52: adding it leaves the nearest integer in the low mantissa bits


@intrinsic
def _bits(typingctx: Any, x: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], ir.IntType(64))

    return types.int64(types.float64), codegen


@intrinsic
def _float(typingctx: Any, x: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], ir.DoubleType())

    return types.float64(types.int64), codegen


@njit(cache=True, error_model="numpy", inline="always", no_rewrites=True)
def exp_neg(x: float) -> float:
    """exp(x) for x <= 0 (0 below -700) in plain arithmetic, so that loops over it vectorise."""
    z = x if x > -700.0 else -700.0
    t = z * _LOG2E + _MAGIC
    k = t - _MAGIC
    r = (z - k * _LN2_HI) - k * _LN2_LO
    p = 1.0 / 479001600.0
    p = p * r + 1.0 / 39916800.0
    p = p * r + 1.0 / 3628800.0
    p = p * r + 1.0 / 362880.0
    p = p * r + 1.0 / 40320.0
    p = p * r + 1.0 / 5040.0
    p = p * r + 1.0 / 720.0
    p = p * r + 1.0 / 120.0
    p = p * r + 1.0 / 24.0
    p = p * r + 1.0 / 6.0
    p = p * r + 0.5
    p = p * r + 1.0
    p = p * r + 1.0
    scale: float = _float((_bits(t) << 52) + (1023 << 52))  # type: ignore[call-arg]
    return p * scale if x > -700.0 else 0.0
