"""Structures: what the variables of an instance are, how they hang together, and which weights score them."""

from mssvm.estimators.structures.base import Space, Structure, Weight
from mssvm.estimators.structures.chain import Chain
from mssvm.estimators.structures.sequence import SequenceClass

__all__ = ["Chain", "SequenceClass", "Space", "Structure", "Weight"]
