"""Exact inference on pairwise forests, instance by instance: picks the scaled or the robust recursion, root and roles.

Nothing is compiled per role pattern: roles, masks and temperatures are arguments.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from mssvm.core.arrays import Bools, Floats, Ints
from mssvm.core.jit import njit
from mssvm.engines.numba.forests.rooting import plan_forest
from mssvm.engines.numba.forests.scaled import (
    BatchPtr,
    Forest,
    Tables,
    exp_nodes,
    scaled_down,
    scaled_edges,
    scaled_up,
)
from mssvm.engines.numba.forests.tree import (
    Rooted,
    TreeRows,
    best_downward,
    best_upward,
    downward,
    make_tree_rows,
    plan_rows,
    power,
    power_weights,
    upward,
)

MIXED, AT_Y, AT_H = 0, 1, 2  # temperatures of the free variables of an instance: both, only eps_y, only eps_h
SCALED, ROBUST, BEST = 1, 2, 3


class TreeSpace(NamedTuple):
    """Workspace of one kernel call, sized for its largest instance."""

    u: Floats
    output: Bools
    free: Bools
    b: Floats
    s: Floats
    scale: Floats
    acc: Floats
    rows: TreeRows
    order: Ints
    parent: Ints
    edge: Ints
    flip: Bools
    degree: Ints


@njit(cache=True, nogil=True, error_model="numpy")
def make_workspace(n: int, widest: int, mixed: bool) -> TreeSpace:
    return TreeSpace(
        np.zeros(n * widest), np.zeros(n, np.bool_), np.zeros(n, np.bool_), np.zeros(n * widest), np.zeros(n * widest),
        np.zeros(n), np.zeros(widest * widest), make_tree_rows(n, widest, mixed), np.zeros(n, np.int64),
        np.zeros(n, np.int64), np.zeros(n, np.int64), np.zeros(n, np.bool_), np.zeros(n, np.int64),
    )  # fmt: skip


@njit(cache=True, nogil=True, error_model="numpy")
def read_roles(
    first: int, n: int, unary_ptr: Ints, allowed: Bools, output: Bools, equal: bool, space: TreeSpace
) -> int:
    """Copy the roles of n variables into ``space``; which temperatures the free ones have."""
    some_y, some_h = False, False
    for i in range(n):
        v = first + i
        count = 0
        for j in range(unary_ptr[v], unary_ptr[v + 1]):
            count += allowed[j]
        free = count > 1
        space.output[i], space.free[i] = output[v], free
        some_y = some_y or (free and output[v])
        some_h = some_h or (free and not output[v])
    if equal or not some_h:
        return AT_Y
    return MIXED if some_y else AT_H


@njit(cache=True, nogil=True, error_model="numpy")
def rooted(forest: Forest, layout: BatchPtr, g: int, b: int) -> Rooted:
    """The planned orientation of instance b (of topology g)."""
    i, j = forest.node_ptr[g], forest.node_ptr[g + 1]
    f, h = layout.factor_ptr[b], layout.factor_ptr[b + 1]
    return Rooted(
        forest.order[i:j], forest.parent[i:j], forest.edge[i:j], forest.flip[i:j], forest.card[i:j], forest.at[i:j],
        layout.table_at[f:h], layout.mu_at[f:h],
    )  # fmt: skip


@njit(cache=True, nogil=True, error_model="numpy")
def oriented(net: Rooted, ends: Ints, mode: int, space: TreeSpace) -> tuple[bool, Rooted]:
    """Whether the recursion is exact, and the orientation for it: as planned, or rooted at free outputs."""
    if mode != MIXED:
        space.free[:] = False
        return plan_rows(net, space.output, space.free, space.rows), net
    if plan_rows(net, space.output, space.free, space.rows):
        return True, net
    n = len(net.order)
    first = space.output[:n] & space.free[:n]
    rerooted = Rooted(
        space.order[:n], space.parent[:n], space.edge[:n], space.flip[:n], net.card, net.at, net.table_at, net.mu_at
    )
    work = np.zeros(3 * n + 2 * len(ends) + 1, np.int64)
    plan_forest(n, ends, rerooted.order, rerooted.parent, rerooted.edge, rerooted.flip, space.degree, first, work)
    return plan_rows(rerooted, space.output, space.free, space.rows), rerooted


@njit(cache=True, nogil=True, error_model="numpy")
def solve_up(
    net: Rooted, degree: Ints, mode: int, eps_y: float, eps_h: float, ty: Tables, th: Tables, space: TreeSpace
) -> tuple[float, int]:
    """Value of one instance whose scores are in ``space.u``, and which recursion ran."""
    n = len(net.order)
    tau = eps_h if mode == AT_H else eps_y
    tables = th if mode == AT_H else ty
    if mode != MIXED and tau > 0.0:
        wide = 0.0
        for f in range(len(net.table_at)):
            wide = max(wide, tables.span[net.table_at[f]])
        top = exp_nodes(space.u, net.at, net.card, degree, n, tau, wide, space.b)
        if not np.isnan(top):
            widest = 1
            for i in range(n):
                widest = max(widest, net.card[i])
            s = space.s[: n * widest]
            value = scaled_up(
                net.order,
                net.parent,
                net.edge,
                net.flip,
                net.at,
                net.card,
                net.table_at,
                tables,
                tau,
                space.b,
                s,
                space.scale,
            )
            return top + value, SCALED
    elif mode != MIXED:
        return best_upward(net, tables, space.u, space.rows), BEST
    ey, eh = (eps_y, eps_h) if mode == MIXED else (tau, tau)
    ty, th = (ty, th) if mode == MIXED else (tables, tables)
    return upward(net, space.u, space.output, ey, eh, ty, th, space.rows), ROBUST


@njit(cache=True, nogil=True, error_model="numpy")
def solve_down(
    net: Rooted, mode: int, eps_y: float, eps_h: float, ty: Tables, th: Tables, space: TreeSpace,
    how: int, mu_unary: Floats, mu_tables: Floats,
) -> None:  # fmt: skip
    """mu += gradient of the value that ``solve_up`` just computed."""
    n = len(net.order)
    tau = eps_h if mode == AT_H else eps_y
    tables = th if mode == AT_H else ty
    if how == BEST:
        best_downward(net, space.rows, mu_unary, mu_tables)
        return
    if how == ROBUST:
        ey, eh = (eps_y, eps_h) if mode == MIXED else (tau, tau)
        ty, th = (ty, th) if mode == MIXED else (tables, tables)
        downward(net, space.output, ey, eh, ty, th, space.rows, mu_unary, mu_tables)
        return
    widest = 1
    for i in range(n):
        widest = max(widest, net.card[i])
    s = space.s[: n * widest]
    # The scores are no longer needed: their place takes the node marginals.
    q = space.u
    scaled_down(
        net.order, net.parent, net.edge, net.flip, net.at, net.card, net.table_at, tables, space.b, s, space.scale, q
    )
    scaled_edges(
        net.order, net.parent, net.edge, net.flip, net.at, net.card, net.table_at, net.mu_at, tables, space.b, s,
        mu_tables, space.acc,
    )  # fmt: skip
    for j in range(len(mu_unary)):
        mu_unary[j] += q[j]


@njit(cache=True, nogil=True, error_model="numpy")
def sizes(forest: Forest, layout: BatchPtr, instances: Ints) -> tuple[int, int]:
    """Most nodes and most states among the named instances."""
    n, widest = 1, 1
    for b in instances:
        g = layout.topology_of[b]
        n = max(n, forest.node_ptr[g + 1] - forest.node_ptr[g])
        for i in range(forest.node_ptr[g], forest.node_ptr[g + 1]):
            widest = max(widest, forest.card[i])
    return n, widest


@njit(cache=True, nogil=True, error_model="numpy")
def check_forests(forest: Forest, layout: BatchPtr, allowed: Bools, output: Bools, equal: bool, ok: Bools) -> None:
    """Clear ``ok`` where the temperatures are mixed and some hidden component touches three free outputs or more."""
    instances = np.flatnonzero(ok).astype(np.int64)
    space = make_workspace(sizes(forest, layout, instances)[0], 1, False)
    for b in instances:
        g = layout.topology_of[b]
        first, last = layout.var_ptr[b], layout.var_ptr[b + 1]
        mode = read_roles(first, last - first, layout.unary_ptr, allowed, output, equal, space)
        ends = forest.ends[forest.edge_ptr[g] : forest.edge_ptr[g + 1]]
        if mode == MIXED:
            ok[b] = oriented(rooted(forest, layout, g, int(b)), ends, mode, space)[0]


@njit(cache=True, nogil=True, error_model="numpy")
def run_forests(
    instances: Ints, forest: Forest, layout: BatchPtr, unary: Floats, allowed: Bools, output: Bools,
    eps_y: float, eps_h: float, ty: Tables, th: Tables, value: Floats, mu_unary: Floats, mu_tables: Floats,
) -> bool:  # fmt: skip
    """Value and marginals of the named instances; False if one of them is not exact here."""
    n, widest = sizes(forest, layout, instances)
    space = make_workspace(n, widest, eps_y != eps_h)
    for b in instances:
        g = layout.topology_of[b]
        first, last = layout.var_ptr[b], layout.var_ptr[b + 1]
        lo, hi = layout.unary_ptr[first], layout.unary_ptr[last]
        for j in range(lo, hi):
            space.u[j - lo] = unary[j] if allowed[j] else -np.inf
        if last - first == 1:
            tau = eps_y if output[first] else eps_h
            value[b] = power(space.u[: hi - lo], tau)
            mu_unary[lo:hi] = 0.0
            if value[b] > -np.inf:
                power_weights(space.u[: hi - lo], tau, 1.0, mu_unary[lo:hi])
            continue
        mode = read_roles(first, last - first, layout.unary_ptr, allowed, output, eps_y == eps_h, space)
        ends = forest.ends[forest.edge_ptr[g] : forest.edge_ptr[g + 1]]
        ok, net = oriented(rooted(forest, layout, g, b), ends, mode, space)
        if not ok:
            return False
        degree = forest.degree[forest.node_ptr[g] : forest.node_ptr[g + 1]]
        value[b], how = solve_up(net, degree, mode, eps_y, eps_h, ty, th, space)
        mu_unary[lo:hi] = 0.0
        clear_tables(net, mu_tables)
        if value[b] > -np.inf:
            solve_down(net, mode, eps_y, eps_h, ty, th, space, how, mu_unary[lo:hi], mu_tables)
    return True


@njit(cache=True, nogil=True, error_model="numpy")
def clear_tables(net: Rooted, mu_tables: Floats) -> None:
    for i in net.order:
        if net.parent[i] >= 0:
            at = net.mu_at[net.edge[i]]
            mu_tables[at : at + net.card[i] * net.card[net.parent[i]]] = 0.0
