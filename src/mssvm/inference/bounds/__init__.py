"""Certificates: upper and lower bounds on the nested power sum where exact inference is out of reach.

``relaxation`` is weighted mini-bucket elimination of one instance, with shifts and weights to be optimised; ``upper``
makes it bounds of a whole batch (``MiniBucket``, ``Decomposition``); ``conditioning`` holds some variables so that the
others can be eliminated exactly, which bounds from below; ``Bounded`` adds both to any inference's answers.
"""

from mssvm.inference.bounds.bounded import Bounded
from mssvm.inference.bounds.upper import Decomposition, MiniBucket, UpperBound

__all__ = ["Bounded", "Decomposition", "MiniBucket", "UpperBound"]
