"""Exact inference in plain NumPy.

It eliminates one variable after the other from a list of tables, hidden variables before outputs:

    message(rest) = PS_eps over x_v of the sum of all tables that hold v,      eps = eps_y for outputs, eps_h for hidden

and the derivative of each power sum, its weights, carries the gradient back to the tables (paper eq. 5, Lemma 2).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from math import prod

import numpy as np

from mssvm.core.arrays import Floats, Ints
from mssvm.core.checks import temperature
from mssvm.core.potentials import Belief, Marginals, Potentials, Query, Status
from mssvm.core.power import power_sum
from mssvm.core.topology import Batch
from mssvm.engines.base import Costs, ExactSettings, Pair, TwoCalls, check_decodable, decoded, too_large

Table = tuple[tuple[int, ...], Floats]
"""Scores over the variables of a scope, one axis each."""


@dataclass(frozen=True, eq=False)
class ReferencePlan:
    """Exact inference on one batch by elimination."""

    batch: Batch
    settings: ExactSettings

    def bind(
        self, query: Query, eps_y: float, eps_h: float, instances: Ints | None = None, marginals: bool = True
    ) -> ReferenceBound:
        temperature(eps_y, "eps_y")
        temperature(eps_h, "eps_h")
        query.check(self.batch)
        chosen = np.arange(len(self.batch)) if instances is None else instances
        orders = {int(b): self._order(int(b), query, eps_y, eps_h) for b in chosen}
        for b, cliques in orders.items():
            if self._bytes(b, cliques) > self.settings.memory_limit:
                width = max(len(clique) for _, clique in cliques) - 1
                raise too_large(b, width, self._bytes(b, cliques), self.settings.memory_limit)
        return ReferenceBound(self.batch, query, (eps_y, eps_h), {b: [v for v, _ in c] for b, c in orders.items()})

    def pair(self, query: Query, narrower: Query, eps_y: float, eps_h: float) -> Pair:
        return TwoCalls(self.bind(query, eps_y, eps_h), self.bind(narrower, eps_y, eps_h))

    def costs(self, query: Query, eps_y: float, eps_h: float, marginals: bool = True) -> Costs:
        orders = [self._order(b, query, eps_y, eps_h) for b in range(len(self.batch))]
        width = np.array([max((len(c) - 1 for _, c in cliques), default=0) for cliques in orders], dtype=np.int64)
        size = np.array([float(self._bytes(b, cliques)) for b, cliques in enumerate(orders)])
        return Costs(width, size, size / 16)

    def _bytes(self, b: int, cliques: list[tuple[int, set[int]]]) -> int:
        cards = self.batch.topology(b).cards
        return 16 * sum(prod(cards[u] for u in clique) for _, clique in cliques)

    def _order(self, b: int, query: Query, eps_y: float, eps_h: float) -> list[tuple[int, set[int]]]:
        """Variables with their cliques: smallest clique first, hidden before outputs unless temperatures are equal."""
        topology = self.batch.topology(b)
        first = int(self.batch.var_ptr[b])
        near = [{v} for v in range(topology.n_vars)]
        for scope in topology.scopes:
            for v in scope:
                near[v] |= set(scope)
        late = [bool(query.output[first + v]) and eps_y != eps_h for v in range(topology.n_vars)]
        left = set(range(topology.n_vars))
        out = []
        while left:
            v = min(left, key=lambda u: (late[u], prod(topology.cards[a] for a in near[u]), u))
            left.remove(v)
            out.append((v, near[v]))
            for u in near[v] - {v}:
                near[u] = (near[u] | near[v]) - {v}
        return out


@dataclass(frozen=True, eq=False)
class ReferenceBound:
    """Orders of the instances of a query, at a pair of temperatures."""

    batch: Batch
    query: Query
    temperatures: tuple[float, float]
    orders: dict[int, list[int]]

    def __call__(self, theta: Potentials) -> Belief:
        theta.check(self.batch)
        value = np.zeros(len(self.batch))
        mu = Marginals.zeros(self.batch)
        for b in self.orders:
            value[b] = self._one(b, theta, mu)
        names = tuple("elimination" if b in self.orders else "" for b in range(len(self.batch)))
        return Belief(value, mu, Status.exactly(value, names))

    def value(self, theta: Potentials) -> Floats:
        return self(theta).value

    def decode(self, theta: Potentials) -> tuple[Floats, Ints]:
        eps_y, eps_h = self.temperatures
        check_decodable(eps_y)
        belief = self(theta)
        return belief.value, decoded(self.batch, self.query, belief, eps_h)

    def _one(self, b: int, theta: Potentials, mu: Marginals) -> float:
        """Eliminate, then walk back: the gradient of a message, spread by its weights, is that of its tables."""
        tables, places = self._tables(b, theta)
        first = int(self.batch.var_ptr[b])
        steps = []
        alive = set(range(len(tables)))
        for v in self.orders[b]:
            eps = self.temperatures[0] if self.query.output[first + v] else self.temperatures[1]
            inputs = [k for k in sorted(alive) if v in tables[k][0]]
            scope = (*dict.fromkeys(u for k in inputs for u in tables[k][0] if u != v), v)
            joint = reduce(np.add, [_over(scope, tables[k]) for k in inputs])
            message, weights = power_sum(joint, eps)
            steps.append((inputs, scope, weights, len(tables)))
            alive = alive - set(inputs) | {len(tables)}
            tables.append((scope[:-1], message))
        value = float(sum(tables[k][1] for k in alive))
        if value == -np.inf:
            return value
        gradient = {k: np.ones(()) for k in alive}
        for inputs, scope, weights, k in reversed(steps):
            spread = weights * gradient[k][..., None]
            for i in inputs:
                inside = spread.sum(axis=tuple(a for a, u in enumerate(scope) if u not in tables[i][0]))
                kept = [u for u in scope if u in tables[i][0]]
                gradient[i] = np.transpose(inside, [kept.index(u) for u in tables[i][0]])
        for k, (target, at) in enumerate(places):
            array = mu.unary if target else mu.tables
            array[at : at + gradient[k].size] += gradient[k].ravel()
        return value

    def _tables(self, b: int, theta: Potentials) -> tuple[list[Table], list[tuple[bool, int]]]:
        """Masked unaries and tables of an instance, and where the marginal of each goes (unary or not, offset)."""
        batch = self.batch
        topology = self.batch.topology(b)
        tables: list[Table] = []
        places: list[tuple[bool, int]] = []
        for v in range(topology.n_vars):
            at, end = batch.unary_ptr[batch.var_ptr[b] + v : batch.var_ptr[b] + v + 2]
            tables.append(((v,), np.where(self.query.allowed[at:end], theta.unary[at:end], -np.inf)))
            places.append((True, int(at)))
        for f, scope in enumerate(topology.scopes):
            at = int(batch.table_at[batch.factor_ptr[b] + f])
            shape = topology.table_shape(f)
            tables.append((scope, theta.tables[at : at + prod(shape)].reshape(shape)))
            places.append((False, int(batch.mu_at[batch.factor_ptr[b] + f])))
        return tables, places


def _over(scope: tuple[int, ...], table: Table) -> Floats:
    """The table with the axes of ``scope``, of length one where it does not depend on the variable."""
    axes, array = table
    ordered = np.transpose(array, np.argsort([scope.index(u) for u in axes]))
    sizes = iter(ordered.shape)
    return ordered.reshape([next(sizes) if u in axes else 1 for u in scope])
