"""An upper bound from one pass over the tables: a product of conditional probabilities is at most one.

For outputs fixed at any states, give every hidden variable v a table f_v of its own such that no variable is, through
these tables, its own ancestor. Eliminating hidden variables from the last descendant to the first meets each in its own
table alone, the others being bounded by their maxima:

    max_y PS_h[eps_h] sum_f theta_f  <=  sum_v max PS_v[eps_h] (f_v + u_v)  +  sum_{other f} max f  +  ...

In a Bayesian network f_v is the table of v given its parents, and its term is log 1: what is left are the largest
entries of the tables of outputs and of evidence. A hidden variable without a table of its own has the power sum of its
unary scores, an output their maximum.
"""

from __future__ import annotations

from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter

import numpy as np

from mssvm.core.arrays import Floats
from mssvm.core.power import power_sum
from mssvm.inference.bounds.relaxation import OneInstance


def quick_bound(instance: OneInstance, eps_h: float) -> float:
    """An upper bound on max_y PS_h[eps_h] theta, by one pass over the tables."""
    return sum((float(term.max()) for term in _terms(instance, eps_h)), start=0.0)


def quick_lower_bound(instance: OneInstance) -> float:
    """A lower bound on log sum exp theta by the same pass, where all variables are hidden: minima bound from below."""
    return sum((float(term.min()) for term in _terms(instance, 1.0)), start=0.0)


def _terms(instance: OneInstance, eps_h: float) -> Iterator[Floats]:
    """The terms of the bound, one for every table and one for every variable without its own table: sums over hidden
    variables given the others."""
    hidden = set(instance.free[0].tolist())
    own = _own_tables(instance, hidden)
    child_of = {f: v for v, f in own.items()}
    possible = [np.flatnonzero(instance.scores_of(v) > -np.inf) for v in range(instance.topology.n_vars)]
    if not all(len(states) for states in possible):
        yield np.array(-np.inf)
        return
    for f, scope in enumerate(instance.topology.scopes):
        table = instance.masked_table(f)[np.ix_(*(possible[v] for v in scope))]
        child = child_of.get(f)
        if child is not None:
            axis = scope.index(child)
            shape = [1] * table.ndim
            shape[axis] = -1
            table = power_sum(table + instance.scores_of(child)[possible[child]].reshape(shape), eps_h, axis)[0]
        yield np.asarray(table)
    for v in range(instance.topology.n_vars):
        if v in own:
            continue
        scores = instance.scores_of(v)
        yield np.asarray(power_sum(scores, eps_h)[0] if v in hidden else scores.max())


def _own_tables(instance: OneInstance, hidden: set[int]) -> dict[int, int]:
    """A table for hidden variables, by variable, such that none is its own ancestor.

    Files of Bayesian networks name a table's child last. Where that makes a cycle, only tables count whose last
    variable has the largest number among the hidden ones: numbers then increase from parents to children.
    """
    scopes = instance.topology.scopes
    named_last = {scope[-1]: f for f, scope in reversed(list(enumerate(scopes))) if scope[-1] in hidden}
    parents = {v: [u for u in scopes[f] if u != v and u in hidden] for v, f in named_last.items()}
    try:
        TopologicalSorter(parents).prepare()
    except CycleError:
        return {v: f for v, f in named_last.items() if all(u < v for u in parents[v])}
    return named_last
