"""Structures: what the variables of an instance are, how they hang together, and which weights score them.

A structure describes; with data it compiles into an ``Encoder`` (both ``base``), which turns X into batches
(``encoded``) and names the weights. Chains, grids, graphs and several labels of one instance have a common part,
``pairwise``, which holds the chains, too; ``FactorModel`` takes factors of any order, ``SequenceClass`` one label for a
whole sequence.
"""

from mssvm.structures.base import Encoder, Schema, Structure, Weight
from mssvm.structures.factors import FactorModel
from mssvm.structures.graphmodel import GraphModel
from mssvm.structures.grid import Grid
from mssvm.structures.multilabel import MultiLabel
from mssvm.structures.pairwise import Chain
from mssvm.structures.sequence import SequenceClass

__all__ = [
    "Chain", "Encoder", "FactorModel", "GraphModel", "Grid", "MultiLabel", "Schema", "SequenceClass", "Structure",
    "Weight",
]  # fmt: skip
