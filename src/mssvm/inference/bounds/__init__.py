"""Certificates: upper and lower bounds on the nested power sum where exact inference is out of reach.

``relaxation`` is weighted mini-bucket elimination of one instance, with shifts and weights to be optimised; ``upper``
applies it to a whole batch (``MiniBucket``, ``FactorDecomposition``); ``conditioning`` fixes the states of some
variables so that the others can be eliminated exactly, which is a lower bound; ``Bounded`` adds both to the answers of
any inference. The bound used for training and prediction on images is another one: ``inference.decomposition``.
"""

import warnings

from mssvm.inference.bounds.bounded import Bounded
from mssvm.inference.bounds.upper import FactorDecomposition, MiniBucket, UpperBound

__all__ = ["Bounded", "FactorDecomposition", "MiniBucket", "UpperBound"]


def __getattr__(name: str) -> type[FactorDecomposition]:
    if name == "Decomposition":
        warnings.warn(
            "Decomposition is now FactorDecomposition; the old name goes in 0.4.", FutureWarning, stacklevel=2
        )
        return FactorDecomposition
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
