"""Connected components of a batch: of its hidden variables given the others, and whether there are cycles.

Given the outputs, a model with hidden variables falls apart into its hidden components; the power sum and the
marginals of a component depend on the outputs at its border alone.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import breadth_first_order, connected_components

from mssvm.core.arrays import Bools, Ints
from mssvm.core.topology import Batch, offsets


class HiddenComponents(NamedTuple):
    """Connected components of the variables that are not ``outside`` (given), numbered by their first variable.

    component          component of each variable, -1 outside
    ptr                components of instance b: ``ptr[b] : ptr[b+1]``
    member_ptr, visit  members of component c, parents before children: ``visit[member_ptr[c] : member_ptr[c+1]]``
    up, parent         factor and variable towards the root of each variable's component; -1 at the root
    inside             number of hidden variables of each factor
    factor_component   component of each factor, -1 where it has no hidden variable
    tree               whether a component's factors have at most two hidden variables each and form no cycle
    forest             whether all components of an instance are trees
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


def _factor_graph(batch: Batch, slots: Bools) -> csr_array:
    """Adjacency matrix of the factor graph of the chosen slots.

    Nodes are the variables, then the factors, then a last one without neighbours. Neighbours keep the order of slots.
    """
    n = batch.n_vars
    m = batch.n_factors
    by_variable = batch.slots_by_variable
    var = batch.scope_vars[slots]
    factor = batch.slot_factor[slots]
    columns = np.concatenate([n + batch.slot_factor[by_variable[slots[by_variable]]], var])
    degrees = np.concatenate([np.bincount(var, minlength=n), np.bincount(factor, minlength=m), [0]])
    return csr_array((np.ones(len(columns)), columns, offsets(degrees)), shape=(n + m + 1, n + m + 1))


def _with_super_root(roots: Ints, graph: csr_array) -> csr_array:
    """The graph with ``roots`` as the neighbours of its last node."""
    columns = np.concatenate([graph.indices, roots])
    ptr = graph.indptr.copy()
    ptr[-1] += len(roots)
    return csr_array((np.ones(len(columns)), columns, ptr), shape=graph.shape)


def acyclic(batch: Batch, free: Bools) -> Bools:
    """Per instance: do its factors and the variables that can still vary form a graph without cycles?"""
    n = len(batch)
    slots = free[batch.scope_vars]
    touched = np.zeros(batch.n_factors, dtype=bool)
    touched[batch.slot_factor[slots]] = True
    edges = np.bincount(batch.factor_owner[batch.slot_factor[slots]], minlength=n)
    vertices = np.bincount(batch.owner[free], minlength=n) + np.bincount(batch.factor_owner[touched], minlength=n)
    few: Bools = (edges < vertices) | (edges == 0)  # as many edges as vertices, or more, always close a cycle
    if not few.any():
        return few
    slots &= few[batch.factor_owner[batch.slot_factor]]
    _, label = connected_components(_factor_graph(batch, slots), directed=False)
    owner = np.append(batch.owner, batch.factor_owner)
    _, first_node = np.unique(label[:-1], return_index=True)
    n_components = np.bincount(owner[first_node], minlength=n)
    n_nodes = np.bincount(owner, minlength=n)
    return np.asarray(few & (edges == n_nodes - n_components))


def hidden_components(batch: Batch, outside: Bools) -> HiddenComponents:
    """Find the components of every instance, breadth first from their first variables."""
    n = batch.n_vars
    m = batch.n_factors
    hidden_slots = ~outside[batch.scope_vars]
    inside = np.bincount(batch.slot_factor[hidden_slots], minlength=m).astype(np.int64)
    graph = _factor_graph(batch, hidden_slots & (inside[batch.slot_factor] > 1))
    _, label = connected_components(graph, directed=False)
    hidden = np.flatnonzero(~outside)
    _, first, number = np.unique(label[hidden], return_index=True, return_inverse=True)
    roots = hidden[first]

    component = np.full(n, -1, dtype=np.int64)
    component[hidden] = number
    factor_component = np.full(m, -1, dtype=np.int64)
    factor_component[batch.slot_factor[hidden_slots]] = component[batch.scope_vars[hidden_slots]]

    order, predecessor = breadth_first_order(_with_super_root(roots, graph), n + m)
    visit = order[order < n].astype(np.int64)
    visit = visit[np.argsort(component[visit], kind="stable")]
    # The predecessor of a variable is a factor (or the super-root), and that of a factor a variable.
    above = predecessor[:n].astype(np.int64)
    has_parent = (above >= n) & (above < n + m)
    up = np.where(has_parent, above - n, -1)
    parent = np.where(has_parent, predecessor[np.where(has_parent, above, 0)], -1).astype(np.int64)

    sizes = np.bincount(number, minlength=len(roots))
    n_joining = np.bincount(factor_component[inside > 1], minlength=len(roots))
    n_wide = np.bincount(factor_component[inside > 2], minlength=len(roots))
    tree = (n_joining == sizes - 1) & (n_wide == 0)
    owner = batch.owner[roots]
    return HiddenComponents(
        outside=outside,
        component=component,
        ptr=offsets(np.bincount(owner, minlength=len(batch))),
        member_ptr=offsets(sizes),
        visit=visit,
        up=up,
        parent=parent,
        inside=inside,
        factor_component=factor_component,
        tree=tree,
        forest=np.bincount(owner[~tree], minlength=len(batch)) == 0,
    )
