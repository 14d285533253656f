"""Readers and writers: files in, models and batches out."""

from mssvm.data.factor_model import FactorModel, Problem
from mssvm.data.libdai import read_fg, read_model, write_fg
from mssvm.data.tokens import Limits
from mssvm.data.uai import read_evidence, read_query, read_uai, write_evidence, write_query, write_uai

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
