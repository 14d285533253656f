"""Structures: the variables of an instance, the links between them, and the weights that score them.

A structure describes (``base``). With data it becomes an ``Encoder`` (``encoder``), which parses X, lays it out as a
batch (``layout``), encodes it as inputs of the model (``encoded``), and names the weights (``weights``). ``Chain``,
``Grid``, ``GraphModel`` and ``MultiLabel`` share ``pairwise``; ``FactorModel`` takes factors of any order,
``SequenceLabel`` has one label for a whole sequence, ``Segments`` splits sequences into labelled segments, whose
lengths ``durations`` scores. ``tags`` are the rules of tagging schemes, and ``continued`` extends an encoder by new
data.
"""

from typing import Any

from mssvm._moved import moved_name
from mssvm.structures.base import Schema, Structure
from mssvm.structures.chain import Chain
from mssvm.structures.encoder import Encoder
from mssvm.structures.factors import FactorModel
from mssvm.structures.graphmodel import GraphModel
from mssvm.structures.grid import Grid
from mssvm.structures.multilabel import MultiLabel
from mssvm.structures.segments import Segments
from mssvm.structures.sequence import SequenceLabel
from mssvm.structures.weights import Weight

__all__ = [
    "Chain",
    "Encoder",
    "FactorModel",
    "GraphModel",
    "Grid",
    "MultiLabel",
    "Schema",
    "Segments",
    "SequenceLabel",
    "Structure",
    "Weight",
]


def __getattr__(name: str) -> Any:
    return moved_name(__name__, name)
