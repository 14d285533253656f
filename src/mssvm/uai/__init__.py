"""UAI and libDAI files and anytime marginal MAP: what ``mssvm infer`` is."""

from mssvm.uai.files import read_evidence, read_query, read_uai, write_evidence, write_query, write_uai
from mssvm.uai.libdai import read_fg, read_model, write_fg
from mssvm.uai.model import FactorModel, Problem
from mssvm.uai.tokens import Limits

__all__ = [
    "FactorModel",
    "Limits",
    "Problem",
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
