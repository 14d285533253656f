"""What runs elimination programs: many instances in lanes for values and marginals, one in log space for bounds."""

from __future__ import annotations

from dataclasses import dataclass, field
from threading import local

import numpy as np

from mssvm.core.arrays import Floats, Ints
from mssvm.core.jit import njit
from mssvm.core.potentials import Marginals
from mssvm.engines.numba.elimination.assignments import decode
from mssvm.engines.numba.elimination.rows import load, store
from mssvm.engines.numba.elimination.sweeps import forward_sweep, reverse_sweep, scratch_of
from mssvm.engines.program import Call, Program

# Products of probabilities stay normal numbers while the logarithms of their ranges sum to less than this.
MAX_SPREAD = 300.0
# Instances interleaved in one work vector: a few vector registers wide, unless the vector outgrows the cache.
LANES = 8
CACHED_ENTRIES = 1 << 19
NO_FLOATS, NO_INTS = np.zeros(0), np.zeros(0, dtype=np.int64)


class Workspace(local):
    """Two vectors of a thread that are used again: fresh memory costs a page fault per page. Copies start empty."""

    def __init__(self) -> None:
        self.vectors = np.empty((2, 0))

    def __reduce__(self) -> tuple[type[Workspace], tuple[()]]:
        return Workspace, ()

    def of(self, count: int, n: int) -> Floats:
        """One or two vectors of at least n entries; what outgrows the cache is not kept."""
        if n > CACHED_ENTRIES:
            return np.empty((count, n))
        if self.vectors.shape[1] < n:
            self.vectors = np.empty((2, n))
        return self.vectors


@dataclass(frozen=True)
class EliminationKernels:
    """Compiled elimination; ``max_spread`` is where a step switches from scaled probabilities to log space."""

    max_spread: float = MAX_SPREAD
    workspace: Workspace = field(default_factory=Workspace, repr=False, compare=False)

    def run(
        self, program: Program, call: Call, instances: Ints, value: Floats, mu: Marginals | None, states: Ints = NO_INTS
    ) -> None:
        """Write value and, where wanted, marginals and maximising states of ``instances``."""
        batch, theta = call.batch, call.theta
        most = max(1, min(LANES, CACHED_ENTRIES // program.n_work))
        lanes = -(-len(instances) // -(-len(instances) // most))  # groups of equal size, not one small remainder
        vectors = self.workspace.of(1 if mu is None else 2, program.n_work * lanes)
        layout = batch.var_ptr, batch.factor_ptr, batch.unary_ptr, batch.table_at, batch.mu_at
        scores = theta.unary, theta.tables, call.allowed, call.first
        temperature = np.where(program.output, call.eps_y, call.eps_h)
        grad, out = (NO_FLOATS, (NO_FLOATS, NO_FLOATS)) if mu is None else (vectors[1], (mu.unary, mu.tables))
        fixed = program, layout, scores, temperature, self.max_spread
        _run(*fixed, instances, lanes, value, vectors[0], grad, out, states)

    def decode(self, program: Program, call: Call, instances: Ints, value: Floats, states: Ints) -> None:
        """Write value and maximising states of ``instances`` by back-substitution, without marginals."""
        self.run(program, call, instances, value, None, states)


@njit(cache=True, nogil=True)
def _run(program, layout, scores, temperature, max_spread, instances, lanes, value, work, grad, mu, states):
    var_ptr, first = layout[0], scores[3]
    mu_unary, mu_tables = mu
    scaled = np.zeros(len(program.var), dtype=np.bool_)
    total = np.zeros(lanes)
    for k in range(0, len(instances), lanes):
        group = instances[k : k + lanes]
        n = len(group)
        scratch = scratch_of(program, n)
        for lane in range(n):
            load(program, layout, scores, group[lane], lane, n, work)
        forward_sweep(program, temperature, max_spread, False, n, work, scratch, scaled, total)
        for lane in range(n):
            value[group[lane]] = total[lane]
            if len(states):
                v0 = var_ptr[group[lane]]
                for v in range(len(program.clamped)):
                    states[v0 + v] = first[v0 + v] if program.clamped[v] else -1
                if total[lane] > -np.inf:
                    decode(program, temperature, v0, lane, n, work, states)
        if len(grad):
            reverse_sweep(program, temperature, n, scaled, total, work, grad, scratch)
            for lane in range(n):
                store(program, layout, scores, group[lane], lane, n, grad, mu_unary, mu_tables)


@njit(cache=True, nogil=True)
def bound(program, temperature, match, work):
    """Value of one loaded instance in log space; ``work`` keeps its scores and shifts and gets its messages."""
    scaled, total = np.zeros(len(program.var), dtype=np.bool_), np.zeros(1)
    forward_sweep(program, temperature, 0.0, match, 1, work, scratch_of(program, 1), scaled, total)
    return total[0]


@njit(cache=True, nogil=True)
def bound_gradient(program, temperature, work, grad, d_temperature):
    """After ``bound``: the derivatives of a feasible instance's value in ``work`` and in the steps' temperatures.

    d PS_w(x) / d w = (PS_w(x) - E[x]) / w; every table is an input of one step, so its gradient holds the weights of E.
    """
    scaled = np.zeros(len(program.var), dtype=np.bool_)
    reverse_sweep(program, temperature, 1, scaled, np.zeros(1), work, grad, scratch_of(program, 1))
    for s in range(len(program.var)):
        total = _product(grad, work, program.message_at[s], program.message_size[s])
        for i in range(program.input_ptr[s], program.input_ptr[s + 1]):
            total -= _product(grad, work, program.input_at[i], program.input_size[i])
        d_temperature[s] = total / temperature[s] if temperature[s] > 0.0 else 0.0


@njit(cache=True, nogil=True)
def _product(grad, work, at, size):
    """Inner product of a table with its gradient; what is impossible has weight zero."""
    total = 0.0
    for k in range(at, at + size):
        if grad[k] != 0.0:
            total += grad[k] * work[k]
    return total
