"""Structures: what the variables of an instance are, how they hang together, and which weights score them.

A structure describes (``base``); with data it compiles into an ``Encoder`` (``encoder``), which turns X into batches
(``encoded``) and names the weights. Chains, grids, graphs and several labels of one instance have a common part,
``pairwise``; ``FactorModel`` takes factors of any order, ``SequenceClass`` one label for a whole sequence.
"""

from mssvm.structures.base import Structure
from mssvm.structures.chain import Chain
from mssvm.structures.encoder import Encoder, Schema, Weight
from mssvm.structures.factors import FactorModel
from mssvm.structures.graphmodel import GraphModel
from mssvm.structures.grid import Grid
from mssvm.structures.multilabel import MultiLabel
from mssvm.structures.sequence import SequenceClass

__all__ = [
    "Chain", "Encoder", "FactorModel", "GraphModel", "Grid", "MultiLabel", "Schema", "SequenceClass", "Structure",
    "Weight",
]  # fmt: skip
