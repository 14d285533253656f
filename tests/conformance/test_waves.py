"""Sweeps of one large grid in waves, against long double: sweep by sweep on any grid, exactly where the free variables
form a forest.

A grid is swept in waves while it holds probabilities. Forbidden entries of tables, and scores too strong for
probabilities, send it on in scores from where it is; these rows hold on either way.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pytest

from builders import grid_scopes
from conformance.oracle import Long, answer
from conformance.sweeps import Sweeps, normalised
from mssvm.core.arrays import Bools, Floats
from mssvm.core.components import acyclic
from mssvm.core.potentials import Marginals, Potentials, Query
from mssvm.core.threads import Workers
from mssvm.core.topology import Batch, Topology, offsets
from mssvm.engines.messages import Schedule, Temperatures
from mssvm.engines.native.messages import NativeMessagePlan, NativeRun

# Rows, columns and states of the grids of a batch; the smallest that has waves is 4 x 7.
BATCHES = {
    "one": [(4, 7, 3)],
    "two sizes": [(5, 8, 2), (4, 9, 2)],
    "five states": [(4, 8, 5)],
    "eight states": [(4, 7, 8)],
    "seventeen alike": [(4, 7, 2)] * 17,
}
SETTINGS = ("plain", "masks", "forbidden states", "forbidden pairs", "everything")
STRENGTHS = (1.0, 300.0, 3e4)  # in temperatures
KINDS = ("sum", "max", "mixed")
THREADS = 5  # of seventeen grids a thread has four at most: fewer than lanes


@dataclass(frozen=True, eq=False)
class Grids:
    """Grids with one table across and one down, which all assignments of state 0 may use."""

    batch: Batch
    theta: Potentials
    query: Query

    @property
    def possible(self) -> Bools:
        """States that neither the mask nor a score forbids."""
        return self.query.allowed & np.isfinite(self.theta.unary)

    def run(self, temperatures: Temperatures) -> NativeRun:
        plan = NativeMessagePlan(self.batch, Workers(THREADS))
        assert plan.in_waves.all()
        model = plan.load(self.theta, self.query, np.full(self.batch.n_states, 0.5))
        run = model.run(scaled_at=temperatures)
        run.start(np.arange(len(self.batch)), None)
        return run


def grids(name: str, setting: str, strength: float, seed: int = 0) -> Grids:
    rng = np.random.default_rng([seed, *name.encode(), *setting.encode(), int(strength)])
    turned = rng.random(2) < 0.5
    graphs, ids = [], []
    for rows, columns, states in BATCHES[name]:
        kinds = [int(j - i > 1) for i, j in grid_scopes(rows, columns)]
        scopes = [
            scope[::-1] if turned[kind] else scope
            for scope, kind in zip(grid_scopes(rows, columns), kinds, strict=True)
        ]
        graphs.append(Topology((states,) * (rows * columns), tuple(scopes)))
        ids.append(kinds)
    batch = Batch.build(graphs, ids)
    unary = strength * rng.uniform(-1.0, 1.0, batch.n_states)
    tables = strength * rng.uniform(-1.0, 1.0, batch.n_table_entries)
    first = np.zeros(batch.n_states, dtype=bool)
    first[batch.unary_ptr[:-1]] = True
    allowed = np.ones(batch.n_states, dtype=bool)
    if setting in ("masks", "everything"):
        allowed = (rng.random(batch.n_states) < 0.7) | first
    if setting in ("forbidden states", "everything"):
        unary[(rng.random(batch.n_states) < 0.2) & ~first] = -np.inf
    if setting in ("forbidden pairs", "everything"):
        pairs = rng.random(batch.n_table_entries) < 0.3
        pairs[-1] = True  # at least one
        pairs[np.unique(batch.table_at)] = False
        tables[pairs] = -np.inf
    return Grids(batch, Potentials(unary, tables), Query(rng.random(batch.n_vars) < 0.5, allowed))


def temperatures_of(kind: str, query: Query) -> Temperatures:
    n = len(query.output)
    return Temperatures(query.output, 0.0, 1.0) if kind == "mixed" else Temperatures.one(n, float(kind == "sum"))


def shown(batch: Batch, messages: Long, meant: Bools) -> Floats:
    """Log-messages with maximum zero over the entries that have a meaning, zero at the others."""
    at = offsets(batch.cards[batch.scope_vars])
    out = np.zeros(len(messages))
    for start, end in pairwise(at):
        out[start:end] = normalised(messages[start:end], meant[start:end])
    return out


@pytest.mark.parametrize("strength", STRENGTHS)
@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", BATCHES)
def test_sweeps_are_those_of_long_double(name: str, kind: str, setting: str, strength: float) -> None:
    case = grids(name, setting, strength)
    batch, every = case.batch, np.arange(len(case.batch))
    t = temperatures_of(kind, case.query)
    run = case.run(t)
    by_hand = [Sweeps(batch, b, case.theta, case.query, t.maximal, t.eps_h) for b in every]
    # Rounding of a score grows with the number of scores in it, which sweeps add up.
    close = 1e-12 * strength
    for _ in range(3):
        run.advance(every, t, 1, Schedule(tolerance=-1.0))
        got = run.log_messages(every)
        assert not np.isnan(got).any()
        for one in by_hand:
            one.sweep()
        if any(one.contradicted for one in by_hand):
            assert kind == "mixed" and not np.isfinite(case.theta.tables).all()
            return
        want = np.concatenate([one.log_messages() for one in by_hand])
        meant = np.concatenate([one.meant() for one in by_hand])
        np.testing.assert_allclose(shown(batch, got, meant), shown(batch, want, meant), rtol=0, atol=close)
    if kind == "mixed":
        return  # the free energy of one temperature is not that of these messages
    value = np.zeros(len(batch))
    mu = Marginals.zeros(batch)
    run.beliefs(every, t, value, mu)
    for b, one in enumerate(by_hand):
        free_energy, marginals = one.beliefs()
        assert value[b] == pytest.approx(float(free_energy), rel=1e-12, abs=100 * close)
        want_unary = np.concatenate(marginals).astype(float)
        np.testing.assert_allclose(mu.unary[batch.state_span(b)], want_unary, rtol=0, atol=10 * close)


@pytest.mark.parametrize(("setting", "strength"), [("plain", 1.0), ("masks", 1.0), ("forbidden states", 1.0)])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", BATCHES)
def test_grids_stay_in_waves(name: str, kind: str, setting: str, strength: float) -> None:
    """Rows above run in waves: these hold probabilities from the first sweep to the last."""
    case = grids(name, setting, strength)
    every = np.arange(len(case.batch))
    t = temperatures_of(kind, case.query)
    run = case.run(t)
    assert run._scaled.all()
    run.advance(every, t, 3, Schedule(tolerance=-1.0))
    assert run._scaled.all()


def with_forest(case: Grids, seed: int) -> Query:
    """The query with variables given, in random order, until the free ones form a forest in every grid."""
    batch = case.batch
    fixed = np.zeros(batch.n_vars, dtype=bool)
    for v in np.random.default_rng(seed).permutation(batch.n_vars):
        if acyclic(batch, ~fixed)[batch.owner[v]]:
            continue
        fixed[v] = True
    first = np.zeros(batch.n_states, dtype=bool)
    first[batch.unary_ptr[:-1]] = True
    return Query(case.query.output, np.where(fixed[batch.state_var], first, case.query.allowed))


@pytest.mark.parametrize("strength", STRENGTHS)
@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("kind", ["sum", "max"])
@pytest.mark.parametrize("name", BATCHES)
def test_grids_whose_free_variables_form_a_forest_are_exact(
    name: str, kind: str, setting: str, strength: float
) -> None:
    case = grids(name, setting, strength, seed=1)
    case = Grids(case.batch, case.theta, with_forest(case, seed=2))
    batch, every = case.batch, np.arange(len(case.batch))
    t = temperatures_of(kind, case.query)
    run = case.run(t)
    run.advance(every, t, 200, Schedule(tolerance=1e-9))
    assert np.all(run.residual <= 1e-9)
    value = np.zeros(len(batch))
    mu = Marginals.zeros(batch)
    run.beliefs(every, t, value, mu)
    want = answer(batch, case.theta, case.query, t.eps_y, t.eps_h)
    assert np.all(np.abs(value - want.value) <= want.rounding + 1e-9 * np.abs(want.value))
    slack = want.moved[batch.owner[batch.state_var]] + 1e-9
    assert np.all(np.abs(mu.unary - want.unary) <= slack)
    assert not mu.unary[~case.possible].any()
    if kind == "max":
        states = np.zeros(batch.n_vars, dtype=np.int64)
        run.decode(every, states)
        clear = want.moved[batch.owner] == 0.0
        best = want.unary[batch.unary_ptr[:-1] + states]
        np.testing.assert_array_equal(best[clear].astype(float), 1.0)
