"""Connected components of a batch: of its hidden variables given the others, and whether there are cycles.

Given the outputs, a model with hidden variables falls apart into its hidden components, and what is said about one
(a power sum, marginals) depends on the outputs at its border alone.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import breadth_first_order, connected_components

from mssvm.core.arrays import Bools, Ints
from mssvm.core.topology import Batch, offsets


class HiddenComponents(NamedTuple):
    """Components of the variables that are not ``outside`` (given), numbered by their first variable.

    Those of instance b are ``ptr[b] : ptr[b+1]``; ``visit[member_ptr[c] : member_ptr[c+1]]`` are the members of c,
    parents before children; ``up`` and ``parent`` are the factor and variable towards the root (-1 at the root).
    ``inside`` counts the hidden variables of a factor, ``factor_component`` is -1 where there are none. A component is
    a ``tree`` if its factors join two hidden variables each, without cycles; ``forest``: all of an instance are.
    """

    outside: Bools
    component: Ints
    ptr: Ints
    member_ptr: Ints
    visit: Ints
    up: Ints
    parent: Ints
    inside: Ints
    factor_component: Ints
    tree: Bools
    forest: Bools


def _joined(batch: Batch, slots: Bools) -> csr_array:
    """Adjacency of variables, then factors, by the chosen slots and in their order; a last node has no neighbours."""
    n, m, by_variable = batch.n_vars, batch.n_factors, batch.slots_by_variable
    var, factor = batch.scope_vars[slots], batch.slot_factor[slots]
    columns = np.concatenate([n + batch.slot_factor[by_variable[slots[by_variable]]], var])
    sizes = np.concatenate([np.bincount(var, minlength=n), np.bincount(factor, minlength=m), [0]])
    return csr_array((np.ones(len(columns)), columns, offsets(sizes)), shape=(n + m + 1, n + m + 1))


def _from(roots: Ints, joined: csr_array) -> csr_array:
    """The same graph with the ``roots`` as neighbours of its last node."""
    columns, ptr = np.concatenate([joined.indices, roots]), joined.indptr.copy()
    ptr[-1] += len(roots)
    return csr_array((np.ones(len(columns)), columns, ptr), shape=joined.shape)


def acyclic(batch: Batch, free: Bools) -> Bools:
    """Per instance: do its factors and the variables that can still vary form a graph without cycles?"""
    slots, n = free[batch.scope_vars], len(batch)
    touched = np.zeros(batch.n_factors, dtype=bool)
    touched[batch.slot_factor[slots]] = True
    edges = np.bincount(batch.factor_owner[batch.slot_factor[slots]], minlength=n)
    vertices = np.bincount(batch.owner[free], minlength=n) + np.bincount(batch.factor_owner[touched], minlength=n)
    few: Bools = (edges < vertices) | (edges == 0)  # more than these are a cycle, whatever they join
    if not few.any():
        return few
    slots &= few[batch.factor_owner[batch.slot_factor]]
    _, label = connected_components(_joined(batch, slots), directed=False)
    owner = np.append(batch.owner, batch.factor_owner)
    n_parts = np.bincount(owner[np.unique(label[:-1], return_index=True)[1]], minlength=n)
    found: Bools = few & (edges == np.bincount(owner, minlength=n) - n_parts)
    return found


def hidden_components(batch: Batch, outside: Bools) -> HiddenComponents:
    """Find the components of every instance, breadth first from their first variables."""
    n, m = batch.n_vars, batch.n_factors
    inner = ~outside[batch.scope_vars]
    inside = np.bincount(batch.slot_factor[inner], minlength=m).astype(np.int64)
    joins = inner & (inside[batch.slot_factor] > 1)
    hidden = np.flatnonzero(~outside)
    joined = _joined(batch, joins)
    _, label = connected_components(joined, directed=False)
    _, first, number = np.unique(label[hidden], return_index=True, return_inverse=True)
    component, factor_component = np.full(n, -1, dtype=np.int64), np.full(m, -1, dtype=np.int64)
    component[hidden] = number
    factor_component[batch.slot_factor[inner]] = component[batch.scope_vars[inner]]
    order, before = breadth_first_order(_from(hidden[first], joined), n + m)
    visit = order[order < n].astype(np.int64)
    visit = visit[np.argsort(component[visit], kind="stable")]
    above = before[:n].astype(np.int64)
    below = (above >= n) & (above < n + m)
    up, parent = np.where(below, above - n, -1), np.where(below, before[np.where(below, above, 0)], -1).astype(np.int64)
    sizes = np.bincount(number, minlength=len(first))
    n_pairs = np.bincount(factor_component[inside > 1], minlength=len(first))
    tree = (n_pairs == sizes - 1) & (np.bincount(factor_component[inside > 2], minlength=len(first)) == 0)
    owner = batch.owner[hidden[first]]
    forest = np.bincount(owner[~tree], minlength=len(batch)) == 0
    ptr = offsets(np.bincount(owner, minlength=len(batch)))
    return HiddenComponents(
        outside, component, ptr, offsets(sizes), visit, up, parent, inside, factor_component, tree, forest
    )
