"""Structures: what the variables of an instance are, how they hang together, and which weights score them."""

from mssvm.structures.base import Space, Structure, Weight
from mssvm.structures.chain import Chain
from mssvm.structures.factors import FactorModel
from mssvm.structures.graphmodel import GraphModel
from mssvm.structures.grid import Grid
from mssvm.structures.sequence import SequenceClass

__all__ = ["Chain", "FactorModel", "GraphModel", "Grid", "SequenceClass", "Space", "Structure", "Weight"]
