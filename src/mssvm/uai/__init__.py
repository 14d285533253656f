"""UAI and libDAI files and anytime marginal MAP: the library behind ``mssvm infer``.

files, tokens      read and write models, evidence, queries and solutions; reject broken ones
model              a model as one instance for inference; a task as temperatures and a query
answers            a task answered exactly, by propagation and search, or by bounds
partition          log Z and marginals within a time limit, with bounds from both sides
anytime, search    marginal MAP within a time limit, by everything below
incumbent          the best outputs known and both bounds, which only ever improve
portfolio          the threads of a search
reduction          the same task on a smaller model
quick_bound        a bound by one pass over the tables
layers             plans and the like as sequences of layers; ``layered_search`` searches them
enumeration        all possible outputs one by one, where they are few
support            zeros as constraints: arc consistency, possible assignments
local_search       better outputs by ``regions`` and by conditioned elimination
branching          branch and bound over the outputs, with the bounds of ``conditional``
proof              the same with bounds tightened in every part of the output space
"""

from mssvm.uai.answers import Answer, AnswerLimits, answer
from mssvm.uai.anytime import Anytime
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
from mssvm.uai.incumbent import SearchProgress
from mssvm.uai.model import UaiModel, UaiProblem, UaiTask
from mssvm.uai.search import SearchResult
from mssvm.uai.tokens import Limits

__all__ = [
    "Answer",
    "AnswerLimits",
    "Anytime",
    "Limits",
    "SearchProgress",
    "SearchResult",
    "UaiModel",
    "UaiProblem",
    "UaiTask",
    "answer",
    "read_evidence",
    "read_fg",
    "read_model",
    "read_query",
    "read_uai",
    "write_evidence",
    "write_fg",
    "write_query",
    "write_uai",
]
