"""Linear models on CPUs: theta = Phi w + offset and Phi^T mu, every term by the loop that suits its layout.

BLAS is not used: its threads compete with ours for the cores, which makes small products many times slower. The loops
are those of ``cpp/features.hpp``.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np
from scipy import sparse

from mssvm.core.arrays import AnyArray, Floats, Ints
from mssvm.core.errors import InputError
from mssvm.core.library import FLOATS, INT, INTS, SHORTS, Function, Record, RecordKind, RecordType
from mssvm.core.potentials import Marginals, Potentials
from mssvm.core.terms import Term
from mssvm.core.topology import Batch
from mssvm.engines.base import Joined, Pair
from mssvm.engines.native.exact import joined

CONSTANT, DENSE, SPARSE = range(3)
PACKED_FROM = 1 << 14  # multiplications of a term from which packing its weights pays
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


class LinearFeatures:
    """theta = Phi w + offset and Phi^T mu on one batch."""

    def __init__(
        self,
        batch: Batch,
        terms: Sequence[Term],
        offset: Potentials | None,
        n_weights: int,
        packed_from: int = PACKED_FROM,
    ) -> None:
        self.batch = batch
        self.n_weights = n_weights
        self._offset = (NO_FLOATS, NO_FLOATS)
        if offset is not None:
            self._offset = _doubles(offset.unary), _doubles(offset.tables)
        self._terms = [_term_record(term) for term in terms]
        addresses = np.array([term.address for term in self._terms], dtype=np.int64)
        self.model = MODEL(
            terms=addresses,
            weights=n_weights,
            states=batch.n_states,
            entries=batch.n_table_entries,
            packed_from=packed_from,
        )
        CHECK.run(self.model)

    def forward(self, w: Floats, into: Potentials | None = None) -> Potentials:
        """theta at the weights, in new arrays or in ``into``."""
        theta = into or Potentials(np.empty(self.batch.n_states), np.empty(self.batch.n_table_entries))
        if w.shape != (self.n_weights,):
            raise InputError(f"the model has {self.n_weights} weights, but w has shape {w.shape}.")
        offset_unary, offset_tables = self._offset
        FORWARD(
            model=self.model,
            w=_doubles(w),
            offset_unary=offset_unary,
            offset_tables=offset_tables,
            unary=theta.unary,
            tables=theta.tables,
        )
        return theta

    def adjoint(self, mu: Marginals) -> Floats:
        batch = self.batch
        if mu.unary.shape != (batch.n_states,) or mu.tables.shape != (batch.n_mu_entries,):
            raise InputError(
                f"marginals have shapes {mu.unary.shape} and {mu.tables.shape}; "
                f"the batch needs ({batch.n_states},) and ({batch.n_mu_entries},)."
            )
        gradient = np.empty(self.n_weights)
        ADJOINT(
            model=self.model,
            mu_unary=_doubles(mu.unary),
            mu_tables=_doubles(mu.tables),
            runs=self._runs,
            tables=np.empty(batch.n_table_entries),
            gradient=gradient,
        )
        return gradient

    @cached_property
    def _runs(self) -> Ints:
        """Rows (from, to, length): contiguous runs of marginals that belong to contiguous tables."""
        n = self.batch.n_table_entries
        size = self.batch.n_mu_entries
        if not size:
            return NO_INTS
        if self.batch.whole_copies:
            first = np.arange(0, size, n)
            return np.stack([first, np.zeros_like(first), np.full_like(first, n)], axis=1)
        source = self.batch.mu_source
        first = np.flatnonzero(np.append(True, np.diff(source) != 1))
        return np.stack([first, source[first], np.diff(np.append(first, size))], axis=1)

    def joined(self, pair: Pair, cost: Potentials | None) -> Joined | None:
        """Values of both sides and the gradient from weights in one call; None unless both are forests or given."""
        return joined(self, pair, cost)


def _term_record(term: Term) -> Record:
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
        x=_doubles(x),
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


def _doubles(values: AnyArray) -> Floats:
    """Contiguous doubles: the array itself if it is that already."""
    return np.ascontiguousarray(values, dtype=np.float64)
