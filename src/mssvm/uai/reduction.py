"""The same task on a smaller model: evidence sliced out, and hidden variables of one table summed out.

    states      states that arc consistency rules out disappear from all tables (``possible``; for sums)
    evidence    a variable with one allowed state disappears from its tables
    leaves      a hidden variable v that is in one table f alone is eliminated there: f becomes PS_v[eps_h] (f + u_v),
                which is no larger. In a Bayesian network these are the barren variables, whose tables sum to one
    constants   a table whose entries are all equal is a number
    subsets     a table is added to another one that has all its variables
    small sums  hidden variables are eliminated as long as no table becomes large (``summed``; for joint MAP)

Values, bounds and outputs are those of the model given (paper eq. 5), and variables keep their numbers: one that was
eliminated is a hidden variable with a single state and no table.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

import numpy as np

from mssvm.core.arrays import Floats, Ints
from mssvm.core.potentials import Potentials, Query
from mssvm.core.power import power_sum
from mssvm.core.topology import Batch, Topology
from mssvm.inference.bounds.relaxation import OneInstance
from mssvm.uai.model import UaiProblem, UaiTask
from mssvm.uai.support import Support

EQUAL = 1e-13  # entries of a table that differ by less (relative to their size) are equal but for rounding


def possible(task: UaiTask) -> tuple[UaiTask, Ints]:
    """The task without the states that arc consistency rules out, and the numbers of the states that are left.

    Variables keep their numbers, states do not. Nothing changes where no assignment is possible.
    """
    problem = task.problem
    batch = problem.batch
    everything = np.arange(batch.n_states)
    if not batch.n_vars:
        return task, everything
    left = Support(OneInstance.of(batch, 0, problem.theta, task.query)).states_left()
    if left is None or left.all():
        return task, everything
    topology = batch.topology(0)
    states = [np.flatnonzero(mask) for mask in np.split(left, topology.unary_ptr[1:-1])]
    tables = [np.zeros(0)]
    for f, scope in enumerate(topology.scopes):
        first = int(batch.table_at[f])
        table = problem.theta.tables[first : first + int(topology.table_sizes[f])].reshape(topology.table_shape(f))
        tables.append(table[np.ix_(*(states[v] for v in scope))].ravel())
    smaller = Batch.build([Topology(tuple(len(s) for s in states), topology.scopes)])
    theta = Potentials(problem.theta.unary[left], np.concatenate(tables))
    query = Query(task.query.output, np.ones(smaller.n_states, dtype=bool))
    return replace(task, problem=UaiProblem(smaller, theta, problem.constant), query=query), np.flatnonzero(left)


def reduced(task: UaiTask, leaves: bool = True) -> UaiTask:
    """The task on a smaller model of the same value; without elimination of ``leaves`` also of the same marginals."""
    graph = _Graph(task)
    graph.slice_evidence()
    if leaves:
        graph.eliminate_leaves()
    graph.join_subsets()
    return graph.task()


def summed(task: UaiTask, entries: int) -> UaiTask:
    """The task with hidden variables eliminated, the smallest new table first, in tables of at most ``entries``.

    Its maximum over outputs and the remaining hidden variables is closer to marginal MAP than joint MAP of the given
    model is.
    """
    graph = _Graph(task)
    graph.slice_evidence()
    graph.eliminate_small(entries)
    graph.join_subsets()
    return graph.task()


class _Graph:
    """Tables by number, with the numbers of every variable's tables."""

    def __init__(self, task: UaiTask) -> None:
        problem = task.problem
        topology = problem.batch.topology(0)
        self.original = task
        self.cards = topology.cards
        self.constant = problem.constant
        self.output = task.query.output
        self.scopes: dict[int, tuple[int, ...]] = {}
        self.tables: dict[int, Floats] = {}
        self.near: list[set[int]] = [set() for _ in self.cards]
        first_states = problem.batch.unary_ptr[1:-1]
        self.allowed = np.split(task.query.allowed.copy(), first_states)
        self.unary = np.split(np.where(task.query.allowed, problem.theta.unary, -np.inf), first_states)
        for f, scope in enumerate(topology.scopes):
            first = int(problem.batch.table_at[f])
            table = problem.theta.tables[first : first + int(topology.table_sizes[f])]
            self._add(f, scope, table.reshape(topology.table_shape(f)))

    def _add(self, f: int, scope: tuple[int, ...], table: Floats) -> None:
        """Add a table as number ``f``; one of a single variable joins its unary scores, a number the constant."""
        finite = table[table > -np.inf]
        if not scope:
            self.constant += float(table)
        elif len(finite) == table.size and np.ptp(finite) <= EQUAL * max(1.0, float(np.abs(finite).max())):
            self.constant += float(finite.max())
        elif len(scope) == 1:
            self.unary[scope[0]] = self.unary[scope[0]] + table
        else:
            self.scopes[f] = scope
            self.tables[f] = table
            for v in scope:
                self.near[v].add(f)

    def _take(self, f: int) -> tuple[tuple[int, ...], Floats]:
        """Remove table ``f``."""
        scope = self.scopes.pop(f)
        for v in scope:
            self.near[v].discard(f)
        return scope, self.tables.pop(f)

    def slice_evidence(self) -> None:
        """Fix every variable that has one possible state in all its tables."""
        for v, unary in enumerate(self.unary):
            possible = np.flatnonzero(unary > -np.inf)
            if len(possible) != 1:
                continue
            state = int(possible[0])
            self._decide(v, state)
            for f in sorted(self.near[v]):
                scope, table = self._take(f)
                axis = scope.index(v)
                self._add(f, scope[:axis] + scope[axis + 1 :], np.take(table, state, axis))

    def _decide(self, v: int, state: int) -> None:
        """Allow one state of a variable, and add its score to the constant."""
        self.constant += float(self.unary[v][state])
        self.unary[v] = np.zeros(self.cards[v])
        self.allowed[v][:] = False
        self.allowed[v][state] = True

    def eliminate_leaves(self) -> None:
        """Sum out hidden variables of one table, until there is none left."""
        waiting = [v for v in range(len(self.cards)) if self._is_leaf(v)]
        while waiting:
            v = waiting.pop()
            if self._is_leaf(v):
                waiting += self._eliminate(v)

    def _is_leaf(self, v: int) -> bool:
        return not self.output[v] and len(self.near[v]) == 1

    def eliminate_small(self, entries: int) -> None:
        """Sum out hidden variables as long as one of them leaves a table of at most ``entries``."""
        hidden = [v for v, allowed in enumerate(self.allowed) if not self.output[v] and allowed.sum() > 1]
        sizes = {v: self._size_without(v) for v in hidden}
        while sizes:
            v = min(sizes, key=lambda u: sizes[u])
            if sizes.pop(v) > entries:
                return
            for u in self._eliminate(v):
                if u in sizes:
                    sizes[u] = self._size_without(u)

    def _scope_of(self, v: int) -> tuple[int, ...]:
        """The variables of all tables of v."""
        return tuple(sorted({v}.union(*(self.scopes[f] for f in self.near[v]))))

    def _size_without(self, v: int) -> int:
        """The size of the table that is left of the tables of v when it is summed out."""
        return prod(self.cards[u] for u in self._scope_of(v) if u != v)

    def _eliminate(self, v: int) -> list[int]:
        """Sum out ``v`` in its tables; returns the variables that shared a table with it."""
        scope = self._scope_of(v)
        f = min(self.near[v], default=-1)
        table = np.zeros([self.cards[u] for u in scope])
        for near in sorted(self.near[v]):
            one_scope, one = self._take(near)
            table = table + _aligned(one, one_scope, scope)
        axis = scope.index(v)
        shape = [1] * len(scope)
        shape[axis] = self.cards[v]
        summed = power_sum(table + self.unary[v].reshape(shape), self.original.eps_h, axis)[0]
        self.unary[v] = np.zeros(self.cards[v])
        self._decide(v, 0)
        rest = scope[:axis] + scope[axis + 1 :]
        self._add(f, rest, summed)
        return list(rest)

    def join_subsets(self) -> None:
        """Add every table to another one that has all its variables, where there is one."""
        for f in sorted(self.scopes, key=lambda f: len(self.scopes[f])):
            scope = self.scopes[f]
            shared = set.intersection(*(self.near[v] for v in scope)) - {f}
            if not shared:
                continue
            target = min(shared, key=lambda g: (len(self.scopes[g]), g))
            _, table = self._take(f)
            self.tables[target] = self.tables[target] + _aligned(table, scope, self.scopes[target])

    def task(self) -> UaiTask:
        """The task on the reduced model."""
        numbers = sorted(self.scopes)
        topology = Topology(self.cards, tuple(self.scopes[f] for f in numbers))
        batch = Batch.build([topology])
        tables = np.concatenate([np.zeros(0), *(self.tables[f].ravel() for f in numbers)])
        theta = Potentials(np.concatenate([np.zeros(0), *self.unary]), tables)
        query = Query(self.output, np.concatenate([np.zeros(0, dtype=bool), *self.allowed]))
        return replace(self.original, problem=UaiProblem(batch, theta, self.constant), query=query)


def _aligned(table: Floats, scope: tuple[int, ...], target: tuple[int, ...]) -> Floats:
    """A table over ``scope`` as one that broadcasts over ``target``."""
    order = sorted(range(len(scope)), key=lambda axis: target.index(scope[axis]))
    moved = np.transpose(table, order)
    sizes = iter(moved.shape)
    return moved.reshape([next(sizes) if v in scope else 1 for v in target])
