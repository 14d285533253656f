"""Exact inference in plain NumPy.

It eliminates one variable after the other from a list of tables, hidden variables before outputs:

    message(rest) = PS_eps over x_v of the sum of all tables that hold v,      eps = eps_y for outputs, eps_h for hidden

and the derivative of each power sum, its weights, carries the gradient back to the tables (paper eq. 5, Lemma 2).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from math import prod
from typing import NamedTuple

import numpy as np

from mssvm.core.arrays import Floats, Ints
from mssvm.core.checks import temperature
from mssvm.core.potentials import Belief, Marginals, Potentials, Query, Status
from mssvm.core.power import power_sum
from mssvm.core.topology import Batch
from mssvm.engines.base import Costs, ExactSettings, Pair, TwoCalls, check_decodable, decoded, too_large

Table = tuple[tuple[int, ...], Floats]
"""Scores over the variables of a scope, one axis each."""


class Step(NamedTuple):
    """The elimination of the last variable of ``scope``: indices of the tables that hold it, the derivatives of the
    power sum of their total, and the index of its message."""

    inputs: list[int]
    scope: tuple[int, ...]
    weights: Floats
    message: int


@dataclass(frozen=True, eq=False)
class ReferencePlan:
    """Exact inference on one batch by elimination."""

    batch: Batch
    settings: ExactSettings

    def bind(
        self, query: Query, eps_y: float, eps_h: float, instances: Ints | None = None, marginals: bool = True
    ) -> ReferenceBoundQuery:
        temperature(eps_y, "eps_y")
        temperature(eps_h, "eps_h")
        query.check(self.batch)
        chosen = np.arange(len(self.batch)) if instances is None else instances
        orders = {int(b): self._order(int(b), query, eps_y, eps_h) for b in chosen}
        for b, cliques in orders.items():
            if self._bytes(b, cliques) > self.settings.memory_limit:
                width = max(len(clique) for _, clique in cliques) - 1
                raise too_large(b, width, self._bytes(b, cliques), self.settings.memory_limit)
        return ReferenceBoundQuery(self.batch, query, (eps_y, eps_h), {b: [v for v, _ in c] for b, c in orders.items()})

    def pair(self, query: Query, narrower: Query, eps_y: float, eps_h: float) -> Pair:
        return TwoCalls(self.bind(query, eps_y, eps_h), self.bind(narrower, eps_y, eps_h))

    def costs(self, query: Query, eps_y: float, eps_h: float, marginals: bool = True) -> Costs:
        orders = [self._order(b, query, eps_y, eps_h) for b in range(len(self.batch))]
        width = np.zeros(len(orders), dtype=np.int64)
        size = np.zeros(len(orders))
        for b, cliques in enumerate(orders):
            width[b] = max((len(clique) - 1 for _, clique in cliques), default=0)
            size[b] = self._bytes(b, cliques)
        return Costs(width, size, size / 16)

    def _bytes(self, b: int, cliques: list[tuple[int, set[int]]]) -> int:
        cards = self.batch.topology(b).cards
        return 16 * sum(prod(cards[u] for u in clique) for _, clique in cliques)

    def _order(self, b: int, query: Query, eps_y: float, eps_h: float) -> list[tuple[int, set[int]]]:
        """Variables with their cliques: smallest clique first, hidden before outputs unless temperatures are equal."""
        topology = self.batch.topology(b)
        first = int(self.batch.var_ptr[b])
        clique = [{v} for v in range(topology.n_vars)]
        for scope in topology.scopes:
            for v in scope:
                clique[v] |= set(scope)
        late = [bool(query.output[first + v]) and eps_y != eps_h for v in range(topology.n_vars)]
        remaining = set(range(topology.n_vars))
        order = []
        while remaining:
            v = min(remaining, key=lambda u: (late[u], prod(topology.cards[w] for w in clique[u]), u))
            remaining.remove(v)
            order.append((v, clique[v]))
            for u in clique[v] - {v}:
                clique[u] = (clique[u] | clique[v]) - {v}
        return order


@dataclass(frozen=True, eq=False)
class ReferenceBoundQuery:
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
            value[b] = self._infer(b, theta, mu)
        names = tuple("elimination" if b in self.orders else "" for b in range(len(self.batch)))
        return Belief(value, mu, Status.exactly(value, names))

    def value(self, theta: Potentials) -> Floats:
        return self(theta).value

    def decode(self, theta: Potentials) -> tuple[Floats, Ints]:
        eps_y, eps_h = self.temperatures
        check_decodable(eps_y)
        belief = self(theta)
        return belief.value, decoded(self.batch, self.query, belief, eps_h)

    def _infer(self, b: int, theta: Potentials, mu: Marginals) -> float:
        """The value of instance b; its gradient is added to ``mu``."""
        tables, places = self._tables(b, theta)
        steps, constants = self._eliminate(b, tables)
        value = float(sum(tables[k][1] for k in constants))
        if value == -np.inf:
            return value
        gradient = {k: np.ones(()) for k in constants}
        _backpropagate(tables, steps, gradient)
        for k, (is_unary, at) in enumerate(places):
            array = mu.unary if is_unary else mu.tables
            array[at : at + gradient[k].size] += gradient[k].ravel()
        return value

    def _eliminate(self, b: int, tables: list[Table]) -> tuple[list[Step], set[int]]:
        """Eliminate all variables; messages are appended to ``tables``. Returns the tables left, over no variables."""
        first = int(self.batch.var_ptr[b])
        eps_y, eps_h = self.temperatures
        steps = []
        active = set(range(len(tables)))
        for v in self.orders[b]:
            inputs = [k for k in sorted(active) if v in tables[k][0]]
            touched = dict.fromkeys(u for k in inputs for u in tables[k][0])  # without repeats, in order
            scope = (*(u for u in touched if u != v), v)
            joint = reduce(np.add, [_over(scope, tables[k]) for k in inputs])
            message, weights = power_sum(joint, eps_y if self.query.output[first + v] else eps_h)
            steps.append(Step(inputs, scope, weights, len(tables)))
            active -= set(inputs)
            active.add(len(tables))
            tables.append((scope[:-1], message))
        return steps, active

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


def _backpropagate(tables: list[Table], steps: list[Step], gradient: dict[int, Floats]) -> None:
    """The gradient of a message, times its weights, is the gradient of the sum of its inputs."""
    for inputs, scope, weights, message in reversed(steps):
        joint = weights * gradient[message][..., None]
        for k in inputs:
            axes = tables[k][0]
            summed = tuple(axis for axis, u in enumerate(scope) if u not in axes)
            rest = [u for u in scope if u in axes]
            gradient[k] = np.transpose(joint.sum(axis=summed), [rest.index(u) for u in axes])


def _over(scope: tuple[int, ...], table: Table) -> Floats:
    """The table with the axes of ``scope``, of length one where it does not depend on the variable."""
    axes, array = table
    ordered = np.transpose(array, np.argsort([scope.index(u) for u in axes]))
    absent = tuple(axis for axis, u in enumerate(scope) if u not in axes)
    return np.expand_dims(ordered, absent)
