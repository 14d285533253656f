"""UAI and libDAI files and anytime marginal MAP: what ``mssvm infer`` is.

``files`` reads and writes models, evidence, queries and solutions (``tokens`` guards against broken ones); ``model``
turns a model into one instance for inference and a task about it into temperatures and a query; ``support`` takes zeros
as constraints; ``regions`` is local search, ``conditional`` branch and bound, ``proof`` the same with bounds made tight
in every part, ``anytime`` marginal MAP by all of them within a time limit; ``answers`` answers a task exactly, by
propagation and search, or by bounds.
"""

from mssvm.uai.answers import Answer, AnswerLimits, answer
from mssvm.uai.anytime import Anytime, SearchProgress, SearchResult
from mssvm.uai.files import (
    read_evidence,
    read_fg,
    read_model,
    read_query,
    read_uai,
    write_evidence,
    write_fg,
    write_query,
    write_uai,
)
from mssvm.uai.model import UaiModel, UaiProblem, UaiTask
from mssvm.uai.tokens import Limits

__all__ = [
    "Answer", "AnswerLimits", "Anytime", "Limits", "SearchProgress", "SearchResult", "UaiModel", "UaiProblem",
    "UaiTask", "answer", "read_evidence", "read_fg", "read_model", "read_query", "read_uai", "write_evidence",
    "write_fg", "write_query", "write_uai",
]  # fmt: skip
