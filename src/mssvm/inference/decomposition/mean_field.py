"""Mean field: the best lower bound by independent variables, found by coordinate ascent.

    PS_y[eps_y] PS_h[eps_h] theta  >=  <theta, q> + sum_v eps_v H(q_v)

for every product q of distributions over single variables (variational form of paper eq. 5), at temperature zero too.
Given its neighbours, the best q_v is proportional to exp(field_v / eps_v), the field being the expected score of every
state; at eps_v = 0 it is the state of the highest field. Variables of one colour are not neighbours and are updated at
once, so no update lowers the bound. Its gradient with respect to theta at fixed q is q itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from mssvm.core.arrays import Bools, Floats, Ints, sum_by
from mssvm.core.potentials import Marginals, Potentials, Query, segment_argmax
from mssvm.core.topology import Batch, offsets, spans

FACTORS_AT_ONCE = 1 << 16
FEW_TABLES = 16


@dataclass(frozen=True, eq=False)
class Incoming:
    """Factors of one shape from neighbours to variables of one colour.

    ``to`` has the first entry of the receiving variable among the states of its colour, ``sender`` the first state of
    the neighbour. ``entries`` (states of the receiver, states of the sender) are relative to ``table_at``, which has
    the table of every factor, or one that all of them share.
    """

    to: Ints
    sender: Ints
    table_at: Ints
    entries: Ints

    def add_to(self, field: Floats, tables: Floats, q: Floats) -> None:
        """Add the scores expected under the neighbours' distributions."""
        n_to, n_from = self.entries.shape
        shared = len(self.table_at) == 1
        for begin in range(0, len(self.to), FACTORS_AT_ONCE):
            some = slice(begin, begin + FACTORS_AT_ONCE)
            weight = q[self.sender[some, None] + np.arange(n_from)]
            table_at = self.table_at if shared else self.table_at[some]
            expected = _expected(tables[table_at[:, None, None] + self.entries], weight)
            at = self.to[some, None] + np.arange(n_to)
            field += sum_by(at.ravel(), expected.ravel(), len(field))


def _expected(scores: Floats, weight: Floats) -> Floats:
    """sum_l scores(k, l) weight(l) for every factor. A forbidden entry (-inf) counts only where l has probability."""
    if np.isfinite(scores).all():
        if len(scores) == 1:
            return np.asarray(np.einsum("kl,nl->nk", scores[0], weight))
        return np.asarray(np.einsum("nkl,nl->nk", scores, weight))
    weights = np.broadcast_to(weight[:, None, :], (len(weight), *scores.shape[1:]))
    products = np.multiply(scores, weights, out=np.zeros(weights.shape), where=weights > 0.0)
    return np.asarray(products.sum(axis=2))


@dataclass(frozen=True, eq=False)
class Colour:
    """Free variables that are not neighbours, with their states side by side from ``ptr`` on."""

    variables: Ints
    states: Ints
    ptr: Ints
    incoming: tuple[Incoming, ...]


@dataclass(frozen=True, eq=False)
class MeanField:
    """Coordinate ascent on the pairwise instances of a batch, with the roles and masks of a query."""

    batch: Batch
    query: Query

    @cached_property
    def colours(self) -> tuple[Colour, ...]:
        batch = self.batch
        free = self.query.n_allowed(batch) > 1
        first, second = self._ends
        joined = free[first] & free[second]
        number = coloured(batch.n_vars, free, first[joined], second[joined])
        return tuple(self._colour(np.flatnonzero(number == c)) for c in range(int(number.max(initial=-1)) + 1))

    @cached_property
    def _ends(self) -> tuple[Ints, Ints]:
        pairs = self.batch.scope_vars.reshape(-1, 2)
        return pairs[:, 0], pairs[:, 1]

    def _colour(self, variables: Ints) -> Colour:
        batch = self.batch
        sizes = batch.cards[variables]
        ptr = offsets(sizes)
        place = np.full(batch.n_vars, -1)
        place[variables] = ptr[:-1]
        incoming: list[Incoming] = []
        first, second = self._ends
        for alike, n_first, n_second in self._alike:
            entries = np.arange(n_first * n_second).reshape(n_first, n_second)
            for receiver, sender, of_receiver in ((first, second, entries), (second, first, entries.T)):
                some = alike[place[receiver[alike]] >= 0]
                for factors, table_at in self._by_table(some):
                    states = batch.unary_ptr[sender[factors]]
                    incoming.append(Incoming(place[receiver[factors]], states, table_at, of_receiver))
        return Colour(variables, spans(batch.unary_ptr[variables], sizes), ptr, tuple(incoming))

    def _by_table(self, factors: Ints) -> Iterator[tuple[Ints, Ints]]:
        """Groups of factors and where their tables begin: one place for a whole group where few tables are shared."""
        table_at = self.batch.table_at[factors]
        tables = np.unique(table_at)
        if len(tables) > FEW_TABLES:
            yield factors, table_at
            return
        for at in tables:
            yield factors[table_at == at], np.array([at])

    @cached_property
    def _alike(self) -> list[tuple[Ints, int, int]]:
        """Factors by the numbers of states of their two variables."""
        first, second = (self.batch.cards[ends] for ends in self._ends)
        most = int(self.batch.cards.max(initial=1)) + 1
        shape = first * most + second
        return [(np.flatnonzero(shape == code), *divmod(int(code), most)) for code in np.unique(shape)]

    def start(self, mu: Marginals) -> Floats:
        """Distributions like the unary marginals of ``mu``; uniform where these are zero."""
        batch = self.batch
        q = np.where(self.query.allowed, np.maximum(mu.unary, 0.0), 0.0)
        empty = sum_by(batch.state_var, q, batch.n_vars) <= 0.0
        q = np.where(empty[batch.state_var], self.query.allowed, q)
        return np.asarray(q / sum_by(batch.state_var, q, batch.n_vars)[batch.state_var])

    def sweep(self, theta: Potentials, eps_y: float, eps_h: float, q: Floats) -> float:
        """Update every free variable once, in place; returns the largest change of a probability."""
        largest = 0.0
        unary = np.where(self.query.allowed, theta.unary, -np.inf)
        for colour in self.colours:
            field = unary[colour.states]
            for incoming in colour.incoming:
                incoming.add_to(field, theta.tables, q)
            eps = np.where(self.query.output[colour.variables], eps_y, eps_h)
            before = q[colour.states]
            after = _best(field, colour.ptr, eps, before)
            largest = max(largest, float(np.abs(after - before).max(initial=0.0)))
            q[colour.states] = after
        return largest

    def bound(self, theta: Potentials, eps_y: float, eps_h: float, q: Floats) -> tuple[Floats, Marginals]:
        """The lower bound of every instance, and q as marginals."""
        batch = self.batch
        eps = np.where(self.query.output, eps_y, eps_h)
        possible = np.flatnonzero(q > 0.0)
        weight = q[possible]
        variable = batch.state_var[possible]
        gain = weight * (theta.unary[possible] - eps[variable] * np.log(weight))
        value = sum_by(batch.owner[variable], gain, len(batch))
        tables = np.zeros(batch.n_mu_entries)
        first, second = self._ends
        for alike, n_first, n_second in self._alike:
            size = np.arange(n_first * n_second)
            for begin in range(0, len(alike), FACTORS_AT_ONCE):
                factors = alike[begin : begin + FACTORS_AT_ONCE]
                one = q[batch.unary_ptr[first[factors], None] + np.arange(n_first)]
                two = q[batch.unary_ptr[second[factors], None] + np.arange(n_second)]
                pairs = (one[:, :, None] * two[:, None, :]).reshape(len(factors), -1)
                scores = theta.tables[batch.table_at[factors, None] + size]
                expected = np.multiply(pairs, scores, out=np.zeros_like(pairs), where=pairs > 0.0).sum(axis=1)
                value += sum_by(batch.factor_owner[factors], expected, len(batch))
                np.add.at(tables, (batch.mu_at[factors, None] + size).ravel(), pairs.ravel())
        return value, Marginals(q.copy(), tables)


def _best(field: Floats, ptr: Ints, eps: Floats, before: Floats) -> Floats:
    """The best distributions given the fields; those of ``before`` where every state is forbidden."""
    sizes = np.diff(ptr)
    top = np.maximum.reduceat(field, ptr[:-1])
    open_ = top > -np.inf
    warm = (eps > 0.0) & open_
    scale = np.where(warm, eps, 1.0)
    base = np.where(open_, top, 0.0)
    weight = np.exp((field - np.repeat(base, sizes)) / np.repeat(scale, sizes))
    cold = np.zeros(len(field))
    cold[ptr[:-1] + segment_argmax(field, ptr)] = 1.0
    weight = np.where(np.repeat(warm, sizes), weight, cold)
    weight /= np.repeat(np.add.reduceat(weight, ptr[:-1]), sizes)
    return np.where(np.repeat(open_, sizes), weight, before)


def coloured(n: int, members: Bools, first: Ints, second: Ints) -> Ints:
    """A colour for each of the members among ``n`` variables (-1: none), such that no edge joins two of one colour.

    Colours are maximal independent sets, by random priorities (Luby 1986) that are the same in every call.
    """
    colour = np.full(n, -1)
    remaining = members.copy()
    priority = np.random.default_rng(0).permutation(n)
    number = 0
    while remaining.any():
        among = remaining[first] & remaining[second]
        first = first[among]
        second = second[among]
        candidates = remaining.copy()
        one = first
        two = second
        while candidates.any():
            inside = candidates[one] & candidates[two]
            one = one[inside]
            two = two[inside]
            lower = np.where(priority[one] < priority[two], one, two)
            chosen = candidates.copy()
            chosen[lower] = False
            colour[chosen] = number
            candidates &= ~chosen
            # Neighbours of the chosen ones wait for another colour.
            candidates[two[chosen[one]]] = False
            candidates[one[chosen[two]]] = False
        remaining = members & (colour < 0)
        number += 1
    return colour
