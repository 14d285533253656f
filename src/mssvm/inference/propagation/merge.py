"""The model with hidden components summed out: an ordinary model over outputs at the one temperature eps_y."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mssvm.core.arrays import Floats, Ints
from mssvm.core.potentials import Marginals
from mssvm.core.topology import offsets
from mssvm.engines.numba.messages import merge as messages_merge
from mssvm.engines.numba.messages.given import Given
from mssvm.inference.propagation.plan import Plan, wire
from mssvm.inference.propagation.run import Model


@dataclass(frozen=True)
class MergeLimit:
    """What summing out may cost an instance: table entries, and operations to fill them."""

    entries: float
    work: float


@dataclass(frozen=True, eq=False)
class Merged:
    """``model`` has the same variables; hidden ones are left isolated with one state. ``which`` could be merged."""

    model: Model
    which: Ints
    origin: Model
    given: Given
    eps_h: float

    def marginals(self, which: Ints, node: Floats, factor: Floats, factor_at: Ints, mu_at: Ints, mu: Marginals) -> None:
        """Add the marginals of the original model, from beliefs of the merged one."""
        origin, w = self.origin, self.origin.plan.wiring
        y = given_states(origin)
        messages_merge.unmerge(
            w, which, self.given, origin.free, origin.unary, origin.tables, y, self.eps_h, np.empty(len(origin.unary)),
            self.model.plan.wiring, node, factor, factor_at, mu_at, mu.unary, mu.tables,
        )  # fmt: skip


def given_states(model: Model) -> Ints:
    """The only allowed state of every variable that has one, 0 elsewhere."""
    y = np.zeros(len(model.free), dtype=np.int64)
    at = np.flatnonzero(model.allowed)
    owner = np.repeat(np.arange(len(y)), np.diff(model.plan.wiring.state_ptr))[at]
    y[owner] = at - model.plan.wiring.state_ptr[owner]
    return np.where(model.free, 0, y)


def merge(model: Model, given: Given, which: Ints, eps_h: float, limit: MergeLimit) -> Merged | None:
    """Sum out every hidden component of the named instances where all of them fit the limit; None where none does."""
    w = model.plan.wiring
    n = len(w.var_ptr) - 1
    entries, work = np.zeros(n), np.zeros(n)
    n_factors, n_slots = np.zeros(n, dtype=np.int64), np.zeros(n, dtype=np.int64)
    messages_merge.measure(w, which, given, model.free, entries, n_factors, n_slots, work)
    ok = which[(entries[which] <= limit.entries) & (work[which] <= limit.work)]
    if not len(ok):
        return None
    chosen = np.zeros(n, dtype=bool)
    chosen[ok] = True
    factor_ptr = offsets(np.where(chosen, n_factors, 0))
    slot_from = offsets(np.where(chosen, n_slots, 0))
    table_from = offsets(np.where(chosen, entries, 0.0).astype(np.int64))
    total = int(factor_ptr[-1])
    scope_ptr, scope = np.zeros(total + 1, dtype=np.int64), np.zeros(int(slot_from[-1]), dtype=np.int64)
    scope_ptr[factor_ptr[:-1][ok]] = slot_from[:-1][ok]
    table_at = np.zeros(total, dtype=np.int64)
    unary, new_tables = _isolated(model, given), np.zeros(int(table_from[-1]))
    messages_merge.merge(
        w, ok, given, model.free, model.unary, model.tables, given_states(model), eps_h, np.empty(len(unary)),
        scope_ptr, scope, table_at, factor_ptr, unary, new_tables, table_from,
    )  # fmt: skip
    wiring = wire(w.var_ptr, factor_ptr, w.state_ptr, scope_ptr, scope, table_at)
    none = np.zeros(0, dtype=np.int64)
    plan = Plan(wiring, none, none, none, np.zeros(n, dtype=bool), 0)
    inside = np.repeat(~given.outside, np.diff(w.state_ptr))
    allowed = np.where(inside, unary > -np.inf, model.allowed)
    tables = np.concatenate([model.tables, new_tables])
    # Ties stay: a shift would spoil the value of the maximum, which is the proof that a decoded y is optimal.
    merged = Model(plan, unary, unary, tables, allowed, given.outside, model.free & given.outside)
    return Merged(merged, ok, model, given, eps_h)


def _isolated(model: Model, given: Given) -> Floats:
    """Unaries with every hidden variable reduced to its state 0 at score 0."""
    w = model.plan.wiring
    inside = np.repeat(~given.outside, np.diff(w.state_ptr))
    unary = np.where(inside, -np.inf, model.unary)
    unary[w.state_ptr[:-1][~given.outside]] = 0.0
    return unary
