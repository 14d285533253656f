"""Structures: what the variables of an instance are, how they hang together, and which weights score them."""

from mssvm.estimators.structures.base import Space, Structure, Weight
from mssvm.estimators.structures.chain import Chain
from mssvm.estimators.structures.factors import FactorModel
from mssvm.estimators.structures.graphmodel import GraphModel
from mssvm.estimators.structures.grid import Grid
from mssvm.estimators.structures.sequence import SequenceClass

__all__ = ["Chain", "FactorModel", "GraphModel", "Grid", "SequenceClass", "Space", "Structure", "Weight"]
