"""Readers and writers: files in, models, batches and data sets out."""

from mssvm.data.dataset import Dataset
from mssvm.data.embedded import chunking, weak_pictures
from mssvm.data.factor_model import FactorModel, Problem
from mssvm.data.libdai import read_fg, read_model, write_fg
from mssvm.data.readers import Options, check, read, read_parts
from mssvm.data.tokens import Limits
from mssvm.data.uai import read_evidence, read_query, read_uai, write_evidence, write_query, write_uai

__all__ = [
    "Dataset",
    "FactorModel",
    "Limits",
    "Options",
    "Problem",
    "check",
    "chunking",
    "read",
    "read_evidence",
    "read_fg",
    "read_model",
    "read_parts",
    "read_query",
    "read_uai",
    "weak_pictures",
    "write_evidence",
    "write_fg",
    "write_query",
    "write_uai",
]
