"""Simulated annealing of labellings of pairwise graphs, a random induced forest at a time (``cpp/anneal.cpp``)."""

from __future__ import annotations

import numpy as np

from mssvm.core.arrays import Bools, Floats, Ints
from mssvm.core.library import FLOATS, INT, INTS, Function
from mssvm.core.potentials import Potentials
from mssvm.core.topology import Batch

_ANNEAL = Function(
    "mssvm_anneal",
    instances=INTS,
    rounds=INTS,
    var_ptr=INTS,
    factor_ptr=INTS,
    unary_ptr=INTS,
    ends=INTS,
    table=INTS,
    unary=FLOATS,
    tables=FLOATS,
    states=INTS,
    threads=INT,
)


def anneal(
    batch: Batch, theta: Potentials, allowed: Bools, instances: Ints, rounds: Ints, states: Ints, threads: int
) -> None:
    """Replace the ``states`` of some pairwise ``instances`` by labellings that score no less.

    ``rounds`` says for each of them how many moves the windows around a variable make, on average. Results do not
    depend on the number of threads, nor on the other instances.
    """
    first = batch.scope_ptr[:-1]
    ends = np.stack([batch.scope_vars[first], batch.scope_vars[first + 1]], axis=1)
    unary: Floats = np.where(allowed, theta.unary, -np.inf)
    _ANNEAL(
        instances=np.ascontiguousarray(instances, dtype=np.int64),
        rounds=np.ascontiguousarray(rounds, dtype=np.int64),
        var_ptr=batch.var_ptr,
        factor_ptr=batch.factor_ptr,
        unary_ptr=batch.unary_ptr,
        ends=np.ascontiguousarray(ends.ravel(), dtype=np.int64),
        table=np.ascontiguousarray(batch.table_at, dtype=np.int64),
        unary=unary,
        tables=np.ascontiguousarray(theta.tables, dtype=np.float64),
        states=states,
        threads=threads,
    )
