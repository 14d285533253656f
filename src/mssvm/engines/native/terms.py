"""The records of linear models: terms, a model, and its calls, as in ``cpp/linear.hpp``."""

from __future__ import annotations

import numpy as np
from scipy import sparse

from mssvm.core.arrays import AnyArray, Floats
from mssvm.core.library import FLOATS, INT, INTS, SHORTS, Function, Record, RecordKind, RecordType
from mssvm.core.terms import Term

CONSTANT, DENSE, SPARSE = range(3)
NO_FLOATS = np.zeros(0)
NO_INTS = np.zeros(0, dtype=np.int64)
NO_SHORTS = np.zeros(0, dtype=np.int32)

TERM = RecordType(
    "Term",
    {
        **dict.fromkeys(("layout", "on_unary", "rows", "features", "width", "one_block"), INT),
        "x": FLOATS,
        "at": INTS,
        "at_narrow": SHORTS,
        "block": INTS,
        "indices": INTS,
        "indices_narrow": SHORTS,
        "indptr": INTS,
        "indptr_narrow": SHORTS,
        "active_first": INTS,
        "active_states": INTS,
    },
)
CHECK = Function("mssvm_features_check", terms=INTS, weights=INT, states=INT, entries=INT, packed_from=INT)
MODEL = CHECK.record
FORWARD = Function(
    "mssvm_features_forward",
    model=RecordKind(MODEL),
    w=FLOATS,
    offset_unary=FLOATS,
    offset_tables=FLOATS,
    unary=FLOATS,
    tables=FLOATS,
)
ADJOINT = Function(
    "mssvm_features_adjoint",
    model=RecordKind(MODEL),
    mu_unary=FLOATS,
    mu_tables=FLOATS,
    runs=INTS,
    tables=FLOATS,
    gradient=FLOATS,
)


def term_record(term: Term) -> Record:
    """The C struct of a term."""
    rows = term.features
    layout = DENSE
    x = NO_FLOATS
    indices: AnyArray = NO_INTS
    indptr: AnyArray = NO_INTS
    if sparse.issparse(rows):
        layout = SPARSE
        x = rows.data
        indices = rows.indices
        indptr = rows.indptr
        if indices.dtype != indptr.dtype:
            indices = indices.astype(np.int64)
            indptr = indptr.astype(np.int64)
    elif term.constant:
        layout = CONSTANT
    else:
        x = rows
    active = term.active
    return TERM(
        layout=layout,
        on_unary=int(term.target == "unary"),
        rows=rows.shape[0],
        features=rows.shape[1],
        width=term.width,
        one_block=int(term.one_block),
        x=doubles(x),
        **_index("at", term.at),
        block=np.ascontiguousarray(term.block[:1] if term.one_block else term.block),
        **_index("indices", indices),
        **_index("indptr", indptr),
        active_first=NO_INTS if active is None else np.ascontiguousarray(active.first),
        active_states=NO_INTS if active is None else np.ascontiguousarray(active.states),
    )


def _index(name: str, values: AnyArray) -> dict[str, AnyArray]:
    """Fields of an ``Index``: the array of 64 bits and that of 32, one of them empty."""
    values = np.ascontiguousarray(values)
    if values.dtype == np.int32:
        return {name: NO_INTS, f"{name}_narrow": values}
    return {name: values.astype(np.int64, copy=False), f"{name}_narrow": NO_SHORTS}


def doubles(values: AnyArray) -> Floats:
    """Contiguous doubles: the array itself if it is that already."""
    return np.ascontiguousarray(values, dtype=np.float64)
