"""Labellings of pairwise instances with their scores, improved by moves of regions, minimum cuts and annealing."""

from __future__ import annotations

import numpy as np

from mssvm.core.arrays import Bools, Floats, Ints, sum_by
from mssvm.core.potentials import Marginals, Potentials, Query, segment_argmax
from mssvm.core.topology import Batch, mask_from_indices
from mssvm.engines.base import Engine
from mssvm.engines.decomposition import anneal
from mssvm.inference.propagation import Propagate
from mssvm.inference.propagation.cuts import CutModel

EXPANSIONS = 3  # most rounds of expansions over all states
SEARCHED = 1 << 14  # instances with at most this many variables are worth a search
OPEN = 1e-9  # relative gaps above this are worth more work
ANNEALED = 1e-5  # relative gaps above this are worth annealing
ENTRIES = 8e7  # table entries that annealing visits in an instance
ROUNDS = 8000  # most rounds of annealing over an instance


class Labelling:
    """The best labelling so far of some instances; ``score`` has one number for each of them."""

    def __init__(self, engine: Engine, batch: Batch, theta: Potentials, query: Query, instances: Ints) -> None:
        self.engine = engine
        self.batch = batch
        self.theta = theta
        self.query = query
        self.instances = instances
        self.states = segment_argmax(query.allowed.astype(np.float64), batch.unary_ptr)
        self.score = np.full(len(instances), -np.inf)
        self._mine = mask_from_indices(instances, len(batch))

    def take(self, states: Ints) -> None:
        """Replace the labelling of every instance whose score rises with the given states."""
        score = self._scores(states)
        better = score > self.score
        self.score = np.where(better, score, self.score)
        chosen = mask_from_indices(self.instances[better], len(self.batch))[self.batch.owner]
        self.states = np.where(chosen, states, self.states)

    def improve(self, upper: Floats) -> Floats:
        """Search for better labellings of the instances whose score is below ``upper``; returns ``upper``, lowered
        where minimum cuts prove a tighter bound."""
        self._relabel(self._open(upper))
        upper = self._cut(upper)
        self._search(self._open(upper))
        self._anneal(self._open(upper, ANNEALED))
        return upper

    def mark(self, mu: Marginals) -> None:
        """Write the labelling as marginals: point masses."""
        batch = self.batch
        mine = self._mine
        variables = np.flatnonzero(mine[batch.owner])
        mu.unary[batch.unary_ptr[variables] + self.states[variables]] = 1.0
        factors = np.flatnonzero(mine[batch.factor_owner])
        np.add.at(mu.tables, batch.mu_at[factors] + self._table_entries(self.states, factors), 1.0)

    def _open(self, upper: Floats, worth: float = OPEN) -> Ints:
        """The instances whose score is below ``upper`` by a relative gap above ``worth``."""
        possible = upper > -np.inf
        enough = np.where(possible, upper, 0.0)
        return np.asarray(self.instances[possible & (enough - self.score > worth * (1.0 + np.abs(enough)))])

    def _table_entries(self, states: Ints, factors: Ints) -> Ints:
        """The entry of every factor's table that the states of its variables select."""
        batch = self.batch
        ends = batch.scope_vars[batch.scope_ptr[factors][:, None] + np.arange(2)]
        return np.asarray(states[ends[:, 0]] * batch.cards[ends[:, 1]] + states[ends[:, 1]])

    def _scores(self, states: Ints) -> Floats:
        """theta of a labelling; -inf where the query forbids it."""
        batch = self.batch
        mine = self._mine
        variables = np.flatnonzero(mine[batch.owner])
        at = batch.unary_ptr[variables] + states[variables]
        unary = np.where(self.query.allowed[at], self.theta.unary[at], -np.inf)
        factors = np.flatnonzero(mine[batch.factor_owner])
        tables = self.theta.tables[batch.table_at[factors] + self._table_entries(states, factors)]
        total = sum_by(batch.owner[variables], unary, len(batch))
        return np.asarray((total + sum_by(batch.factor_owner[factors], tables, len(batch)))[self.instances])

    def _relabel(self, instances: Ints) -> None:
        """Moves of single variables and of regions of equal states."""
        if not len(instances):
            return
        noise = np.full(self.batch.n_states, 0.5)
        model = self.engine.messages(self.batch).load(self.theta, self.query, noise)
        if model.relabel is None:
            return
        free: Bools = self.query.n_allowed(self.batch) > 1
        states = self.states.copy()
        model.relabel(instances, free, states)
        self.take(states)

    def _search(self, instances: Ints) -> None:
        """The search of propagation over starts, on graphs that are not too large."""
        small = instances[np.diff(self.batch.var_ptr)[instances] <= SEARCHED]
        if not len(small):
            return
        search = Propagate().plan(self.batch, self.engine).bind(self.query, 0.0, 0.0, small)
        self.take(search(self.theta).decode(self.batch))

    def _anneal(self, instances: Ints) -> None:
        """Simulated annealing, a random induced forest in a window of the graph at a time."""
        if not len(instances):
            return
        batch = self.batch
        entries = sum_by(batch.factor_owner, batch.table_sizes.astype(np.float64), len(batch))[instances]
        rounds = np.minimum(ENTRIES / np.maximum(entries, 1.0), ROUNDS).astype(np.int64)
        states = self.states.copy()
        anneal(self.engine, batch, self.theta, self.query.allowed, instances, rounds, states)
        self.take(states)

    def _cut(self, upper: Floats) -> Floats:
        """Cuts between two states are exact where neighbours attract each other; else expansions of every state."""
        upper = upper.copy()
        states = self.states.copy()
        place = {int(b): k for k, b in enumerate(self.instances.tolist())}
        for b in self._open(upper).tolist():
            model = CutModel.of(self.batch, self.theta, self.query.allowed, b)
            if model is None:
                continue
            mine = slice(int(self.batch.var_ptr[b]), int(self.batch.var_ptr[b + 1]))
            if model.n_allowed.max(initial=1) <= 2:
                found, above = model.mix(*model.extremes())
                upper[place[b]] = min(upper[place[b]], above)
                found = found if model.score(found) > model.score(states[mine]) else states[mine]
            else:
                found = states[mine]
            states[mine] = model.expand(found, EXPANSIONS)
        self.take(states)
        return upper
