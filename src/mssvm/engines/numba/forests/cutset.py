"""Graphs that become forests when one variable is fixed: solve the forest for each of its states, then combine.

PS over the cut variable c of [theta_c + value of the forest given c], at c's own temperature. Tables have the cut
variable as their first axis, so that a state of it selects a contiguous slice.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from mssvm.core.arrays import Bools, Floats, Ints
from mssvm.core.jit import njit
from mssvm.engines.numba.forests.chain import Lanes, chains_down, chains_up, make_lanes, padded
from mssvm.engines.numba.forests.forest import (
    MIXED,
    TreeSpace,
    make_workspace,
    oriented,
    read_roles,
    sizes,
    solve_down,
    solve_up,
)
from mssvm.engines.numba.forests.scaled import BatchPtr, Forest, Tables
from mssvm.engines.numba.forests.tree import Rooted, power, power_weights


class Cut(NamedTuple):
    """Per topology g: the cut variable, its states, and which factors are edges of the rest or attached to one node."""

    variable: Ints
    states: Ints
    edge_factor: Ints  # at Forest.edge_ptr[g]
    edge_cut: Bools  # the factor holds the cut variable too
    attached_ptr: Ints
    attached_factor: Ints
    attached_node: Ints


@njit(cache=True, nogil=True, error_model="numpy")
def read_cut(
    cut: Cut, forest: Forest, layout: BatchPtr, b: int, allowed: Bools, output: Bools, equal: bool, space: TreeSpace
) -> tuple[int, bool]:
    """Temperature mode of the rest, and whether eliminating the cut variable last is legal."""
    g = layout.topology_of[b]
    first = layout.var_ptr[b]
    v = first + cut.variable[g]
    n = forest.node_ptr[g + 1] - forest.node_ptr[g]
    mode = read_roles(first, n, v, layout.unary_ptr, allowed, output, equal, space)
    outputs = False
    for i in range(n):
        outputs |= space.output[i] and space.free[i]
    count = 0
    for j in range(layout.unary_ptr[v], layout.unary_ptr[v + 1]):
        count += allowed[j]
    return mode, equal or output[v] or count < 2 or not outputs


@njit(cache=True, nogil=True, error_model="numpy")
def plain_net(forest: Forest, g: int) -> Rooted:
    """The rooted forest of topology g with space for the offsets of its tables and marginals."""
    i, j = forest.node_ptr[g], forest.node_ptr[g + 1]
    m = forest.edge_ptr[g + 1] - forest.edge_ptr[g]
    return Rooted(
        forest.order[i:j], forest.parent[i:j], forest.edge[i:j], forest.flip[i:j], forest.card[i:j], forest.at[i:j],
        np.zeros(m, np.int64), np.zeros(m, np.int64),
    )  # fmt: skip


@njit(cache=True, nogil=True, error_model="numpy")
def check_cuts(cut: Cut, forest: Forest, layout: BatchPtr, allowed: Bools, output: Bools, ok: Bools) -> None:
    """Clear ``ok`` where different temperatures make conditioning wrong."""
    instances = np.flatnonzero(ok).astype(np.int64)
    space = make_workspace(int(sizes(forest, layout, instances)[0]), 1, False)
    for b in instances:
        g = layout.topology_of[b]
        mode, legal = read_cut(cut, forest, layout, int(b), allowed, output, False, space)
        ok[b] = legal
        if legal and mode == MIXED:
            ends = forest.ends[forest.edge_ptr[g] : forest.edge_ptr[g + 1]]
            ok[b] = oriented(plain_net(forest, g), ends, mode, space)[0]


@njit(cache=True, nogil=True, error_model="numpy")
def place(
    cut: Cut,
    forest: Forest,
    layout: BatchPtr,
    b: int,
    c: int,
    unary: Floats,
    allowed: Bools,
    raw: Floats,
    net: Rooted,
    u: Floats,
) -> None:
    """Scores, table and marginal offsets of instance b given state c of its cut variable."""
    g = layout.topology_of[b]
    f0, e0 = layout.factor_ptr[b], forest.edge_ptr[g]
    for i in range(len(net.card)):
        v = layout.var_ptr[b] + i + (i >= cut.variable[g])
        at = layout.unary_ptr[v]
        for x in range(net.card[i]):
            u[net.at[i] + x] = unary[at + x] if allowed[at + x] else -np.inf
    for h in range(cut.attached_ptr[g], cut.attached_ptr[g + 1]):
        i = cut.attached_node[h]
        at = layout.table_at[f0 + cut.attached_factor[h]] + c * net.card[i]
        for x in range(net.card[i]):
            u[net.at[i] + x] += raw[at + x]
    for e in range(len(net.table_at)):
        f = f0 + cut.edge_factor[e0 + e]
        size = net.card[forest.ends[e0 + e, 0]] * net.card[forest.ends[e0 + e, 1]]
        jump = c * size if cut.edge_cut[e0 + e] else 0
        net.table_at[e], net.mu_at[e] = layout.table_at[f] + jump, layout.mu_at[f] + jump


@njit(cache=True, nogil=True, error_model="numpy")
def clear(cut: Cut, forest: Forest, layout: BatchPtr, b: int, net: Rooted, mu_unary: Floats, mu_tables: Floats) -> None:
    """Zero the marginals of instance b."""
    g = layout.topology_of[b]
    f0, e0 = layout.factor_ptr[b], forest.edge_ptr[g]
    mu_unary[layout.unary_ptr[layout.var_ptr[b]] : layout.unary_ptr[layout.var_ptr[b + 1]]] = 0.0
    for h in range(cut.attached_ptr[g], cut.attached_ptr[g + 1]):
        at = layout.mu_at[f0 + cut.attached_factor[h]]
        mu_tables[at : at + cut.states[g] * net.card[cut.attached_node[h]]] = 0.0
    for e in range(len(net.table_at)):
        at = layout.mu_at[f0 + cut.edge_factor[e0 + e]]
        size = net.card[forest.ends[e0 + e, 0]] * net.card[forest.ends[e0 + e, 1]]
        mu_tables[at : at + (size * cut.states[g] if cut.edge_cut[e0 + e] else size)] = 0.0


@njit(cache=True, nogil=True, error_model="numpy")
def run_cuts(
    instances: Ints, cut: Cut, forest: Forest, layout: BatchPtr, unary: Floats, allowed: Bools, output: Bools,
    eps_y: float, eps_h: float, ty: Tables, th: Tables, value: Floats, want: bool, mu_unary: Floats, mu_tables: Floats,
) -> bool:  # fmt: skip
    """Value and (if wanted) marginals of the named instances; False if one of them is not exact here."""
    n, widest = sizes(forest, layout, instances)
    space = make_workspace(n, widest, eps_y != eps_h)
    local = np.zeros(n * widest)
    for b in instances:
        g = layout.topology_of[b]
        v = layout.var_ptr[b] + cut.variable[g]
        at, states = layout.unary_ptr[v], cut.states[g]
        mode, legal = read_cut(cut, forest, layout, b, allowed, output, eps_y == eps_h, space)
        ends = forest.ends[forest.edge_ptr[g] : forest.edge_ptr[g + 1]]
        ok, net = oriented(plain_net(forest, g), ends, mode, space)
        if not (ok and legal):
            return False
        degree = forest.degree[forest.node_ptr[g] : forest.node_ptr[g + 1]]
        values, share = np.full(states, -np.inf), np.zeros(states)
        how = 0
        for c in range(states):
            if allowed[at + c] and unary[at + c] > -np.inf:
                place(cut, forest, layout, b, c, unary, allowed, ty.raw, net, space.u)
                values[c], how = solve_up(net, degree, mode, eps_y, eps_h, ty, th, space)
                values[c] += unary[at + c]
        tau = eps_y if output[v] else eps_h
        value[b] = power(values, tau)
        if not want:
            continue
        clear(cut, forest, layout, b, net, mu_unary, mu_tables)
        power_weights(values, tau, 1.0, share)
        for c in range(states):
            if share[c] > 0.0:
                place(cut, forest, layout, b, c, unary, allowed, ty.raw, net, space.u)
                _, how = solve_up(net, degree, mode, eps_y, eps_h, ty, th, space)
                local[:] = 0.0
                size = net.at[-1] + net.card[-1] if len(net.card) else 0
                solve_down(net, mode, eps_y, eps_h, ty, th, space, how, share[c], local[:size], mu_tables)
                mu_unary[at + c] = share[c]
                _spread(cut, layout, b, c, net, local, mu_unary, mu_tables)
    return True


@njit(cache=True, nogil=True, error_model="numpy")
def _spread(
    cut: Cut, layout: BatchPtr, b: int, c: int, net: Rooted, local: Floats, mu_unary: Floats, mu_tables: Floats
) -> None:
    """Add the node marginals given c to the variables and to the factors attached to them."""
    g = layout.topology_of[b]
    for i in range(len(net.card)):
        at = layout.unary_ptr[layout.var_ptr[b] + i + (i >= cut.variable[g])]
        for x in range(net.card[i]):
            mu_unary[at + x] += local[net.at[i] + x]
    for h in range(cut.attached_ptr[g], cut.attached_ptr[g + 1]):
        i = cut.attached_node[h]
        at = layout.mu_at[layout.factor_ptr[b] + cut.attached_factor[h]] + c * net.card[i]
        for x in range(net.card[i]):
            mu_tables[at + x] += local[net.at[i] + x]


@njit(cache=True, nogil=True, error_model="numpy")
def run_cut_chains(
    ptr: Ints, members: Ints, cut: Cut, forest: Forest, layout: BatchPtr, unary: Floats, allowed: Bools,
    eps: float, eps_cut: float, tables: Tables, value: Floats, want: bool, mu_unary: Floats, mu_tables: Floats,
    done: Bools, given: Bools, low: Floats,
) -> None:  # fmt: skip
    """The same for groups of chains whose edges share one three-way table, all chains of a group side by side.

    Where ``given`` has entries, they are the states of the cut variables under a narrower mask: ``low`` gets the values
    under it, and the marginals are those of ``value`` less those of ``low``.
    """
    for index in range(len(ptr) - 1):
        real, group = ptr[index + 1] - ptr[index], padded(members[ptr[index] : ptr[index + 1]])
        lanes = len(group)
        g = layout.topology_of[group[0]]
        k, states = forest.card[forest.node_ptr[g]], cut.states[g]
        first, count, cut_at = np.empty(lanes, np.int64), np.empty(lanes, np.int64), np.empty(lanes, np.int64)
        for lane in range(lanes):
            b = group[lane]
            v = layout.var_ptr[b] + cut.variable[layout.topology_of[b]]
            cut_at[lane] = layout.unary_ptr[v]
            count[lane] = layout.var_ptr[b + 1] - layout.var_ptr[b] - 1
            first[lane] = layout.unary_ptr[layout.var_ptr[b] + (v == layout.var_ptr[b])]
        length = count.max()
        work = make_lanes(first, count, length, k, states)
        extra, extra_mu = _attached(group, cut, layout, length, work.begin)
        e_at = layout.table_at[layout.factor_ptr[group[0]] + cut.edge_factor[forest.edge_ptr[g]]]
        values, share = np.full((lanes, states), -np.inf), np.zeros((lanes, states))
        result, safe, good = np.empty(lanes), np.empty(lanes, np.bool_), np.ones(lanes, np.bool_)
        for c in range(states):
            if allowed[cut_at + c].any():
                chains_up(c, length, k, eps, unary, allowed, extra, c * k, tables, e_at + c * k * k, work, result, safe)
                for lane in range(lanes):
                    if allowed[cut_at[lane] + c]:
                        good[lane] &= safe[lane]
                        values[lane, c] = result[lane] + unary[cut_at[lane] + c]
        for lane in range(real):
            done[group[lane]] = good[lane]
        weigh_states(group[:real], values, good, eps_cut, cut_at, given, value, low, share)
        if want:
            add_cut_marginals(
                group, real, cut, forest, layout, share, cut_at, length, k, tables.e, e_at, work, extra_mu, mu_unary,
                mu_tables,
            )  # fmt: skip


@njit(cache=True, nogil=True, error_model="numpy")
def weigh_states(
    group: Ints, values: Floats, good: Bools, eps_cut: float, cut_at: Ints, given: Bools, value: Floats, low: Floats,
    share: Floats,
) -> None:  # fmt: skip
    """Values of the chains of a group, and the weight of every state of their cut variables: its probability, less
    that under the narrower mask ``given`` where there is one."""
    for lane in range(len(group)):
        value[group[lane]] = power(values[lane], eps_cut)
        if good[lane]:
            power_weights(values[lane], eps_cut, 1.0, share[lane])
        if good[lane] and len(given):
            for c in range(values.shape[1]):
                if not given[cut_at[lane] + c]:
                    values[lane, c] = -np.inf
            low[group[lane]] = power(values[lane], eps_cut)
            power_weights(values[lane], eps_cut, -1.0, share[lane])


@njit(cache=True, nogil=True, error_model="numpy")
def add_cut_marginals(
    group: Ints, real: int, cut: Cut, forest: Forest, layout: BatchPtr, share: Floats, cut_at: Ints, length: int,
    k: int, e: Floats, e_at: int, work: Lanes, extra_mu: Ints, mu_unary: Floats, mu_tables: Floats,
) -> None:  # fmt: skip
    """Marginals of the first ``real`` chains of a group, every state of the cut variable by its weight in ``share``."""
    lanes, states = share.shape
    acc = np.empty((k * k, lanes))
    for lane in range(lanes):
        b = group[lane]
        mu_unary[layout.unary_ptr[layout.var_ptr[b]] : layout.unary_ptr[layout.var_ptr[b + 1]]] = 0.0
        for t in range(work.begin[lane], length):
            if len(extra_mu):
                mu_tables[extra_mu[lane, t] : extra_mu[lane, t] + states * k] = 0.0
    for c in range(states):
        weight = share[:, c].copy()
        active = np.abs(weight).max() > 0.0
        if active:
            chains_down(c, length, k, e, e_at + c * k * k, work, acc, weight, mu_unary, extra_mu, c * k, mu_tables)
        for lane in range(real):
            g, b = layout.topology_of[group[lane]], group[lane]
            mu_unary[cut_at[lane] + c] = weight[lane]
            at = layout.mu_at[layout.factor_ptr[b] + cut.edge_factor[forest.edge_ptr[g]]] + c * k * k
            for j in range(k * k):
                mu_tables[at + j] = acc[j, lane] if active and weight[lane] != 0.0 else 0.0


@njit(cache=True, nogil=True, error_model="numpy")
def _attached(group: Ints, cut: Cut, layout: BatchPtr, length: int, begin: Ints) -> tuple[Ints, Ints]:
    """Where the tables and marginals attached to the nodes lie, by (lane, position); no rows if there are none."""
    g = layout.topology_of[group[0]]
    lanes = len(group) if cut.attached_ptr[g + 1] > cut.attached_ptr[g] else 0
    extra, extra_mu = np.zeros((lanes, length), np.int64), np.zeros((lanes, length), np.int64)
    for lane in range(lanes):
        b = group[lane]
        g = layout.topology_of[b]
        for h in range(cut.attached_ptr[g], cut.attached_ptr[g + 1]):
            f, t = layout.factor_ptr[b] + cut.attached_factor[h], begin[lane] + cut.attached_node[h]
            extra[lane, t], extra_mu[lane, t] = layout.table_at[f], layout.mu_at[f]
    return extra, extra_mu
