"""Compiled elimination, exact and by mini-buckets: one family of kernels for one kind of ``Program``.

``rows`` loads and stores scores and takes power sums of rows; ``sweeps`` walks the buckets of a program forwards
(messages, and shifts where buckets are split) and backwards (gradients); ``assignments`` goes back through the messages
to decode, or to bound partial assignments; ``kernels`` puts these together: ``EliminationKernels`` for batches of
instances in lanes, ``bound`` and ``bound_gradient`` for one instance whose work vector is kept.
"""

from mssvm.engines.numba.elimination.assignments import decode, extend
from mssvm.engines.numba.elimination.kernels import EliminationKernels, bound, bound_gradient
from mssvm.engines.numba.elimination.rows import load

__all__ = ["EliminationKernels", "bound", "bound_gradient", "decode", "extend", "load"]
