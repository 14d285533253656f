"""The nested power sum (paper eq. 5) on forests at two temperatures, robust at any scale, zero temperatures included.

One upward recursion m_i(x_p) = PS_{tau_i} over x_i of [belief_i(x_i) + theta_ip(x_i, x_p)] with tau = eps_y for outputs
and eps_h for hidden nodes. A hidden node may not be eliminated after an output, so an output below a hidden node is
carried along as an *open* row index: a message then is a matrix (state of the open output, state of the parent), and
the open output is eliminated at eps_y when the matrix reaches the next output. This is exact whenever every hidden
component touches at most two outputs, and costs O(S^3) a node between two outputs and O(S^2) elsewhere. Variables with
one allowed state separate the graph and can play either role.

Beliefs are kept in logs; each message is one exp per state, a product with exp(table / eps), and one log per state;
entries too small for that (large ranges, tiny temperatures, forbidden table entries) are redone by log-sum-exp.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from mssvm.core.arrays import Bools, Floats, Ints
from mssvm.core.jit import njit
from mssvm.engines.numba.forests.scaled import Tables, exp_neg, vec_mat

TINY = 1e-200  # below it, terms flushed to zero could matter and an entry is redone in logs


class Rooted(NamedTuple):
    """One instance: its rooted order, cardinalities, state offsets, and tables and marginals of its factors."""

    order: Ints
    parent: Ints
    edge: Ints
    flip: Bools
    card: Ints
    at: Ints
    table_at: Ints
    mu_at: Ints


class TreeRows(NamedTuple):
    """Workspace: per node the open output, the row count, and offsets of its rows and of its message."""

    open: Ints
    width: Ints
    row_at: Ints
    msg_at: Ints
    belief: Floats
    soft: Floats
    joint: Floats
    msg: Floats
    sums: Floats
    best: Ints
    line: Floats


@njit(cache=True, nogil=True, error_model="numpy")
def make_tree_rows(n: int, widest: int, mixed: bool) -> TreeRows:
    """Workspace for instances of up to n nodes and ``widest`` states."""
    k = widest + 1
    size = n * k * (k if mixed else 1) + k * k
    many = size + n * k
    return TreeRows(
        np.zeros(n, np.int64), np.zeros(n, np.int64), np.zeros(n, np.int64), np.zeros(n, np.int64),
        np.zeros(size), np.zeros(size), np.zeros(size), np.zeros(many), np.zeros(many),
        np.zeros(many, np.int64), np.zeros(2 * k),
    )  # fmt: skip


@njit(cache=True, nogil=True, error_model="numpy")
def plan_rows(net: Rooted, output: Bools, free: Bools, rows: TreeRows) -> bool:
    """Which output each node's rows carry; False if some hidden node would have to carry two.

    ``free``: more than one allowed state. An output opens only if free; outputs and clamped nodes close.
    """
    n = len(net.order)
    rows.open[:n] = -1
    row, msg = 0, 0
    for step in range(n):
        i = net.order[step]
        p, carried = net.parent[i], rows.open[i]
        rows.width[i] = net.card[carried] if carried >= 0 else 1
        rows.row_at[i], rows.msg_at[i] = row, msg
        row += rows.width[i] * net.card[i]
        msg += (rows.width[i] + 1) * (net.card[p] if p >= 0 else 1)
        if p >= 0 and free[p] and not output[p]:
            up = i if output[i] and free[i] else carried
            if up >= 0:
                if rows.open[p] >= 0:
                    return False
                rows.open[p] = up
    return True


@njit(cache=True, nogil=True, error_model="numpy")
def power(values: Floats, eps: float) -> float:
    """PS_eps of a vector."""
    top = -np.inf
    for x in range(len(values)):
        top = max(top, values[x])
    if top == -np.inf or eps == 0.0:
        return top
    total = 0.0
    for x in range(len(values)):
        total += np.exp((values[x] - top) / eps)
    return float(top + eps * np.log(total))


@njit(cache=True, nogil=True, error_model="numpy")
def power_weights(values: Floats, eps: float, scale: float, out: Floats) -> None:
    """out += scale * (gradient of PS_eps): softmax, or the first maximiser at eps = 0."""
    top, arg = -np.inf, 0
    for x in range(len(values)):
        if values[x] > top:
            top, arg = values[x], x
    if top == -np.inf:
        return
    if eps == 0.0:
        out[arg] += scale
        return
    total = 0.0
    for x in range(len(values)):
        total += np.exp((values[x] - top) / eps)
    for x in range(len(values)):
        out[x] += scale * np.exp((values[x] - top) / eps) / total


@njit(cache=True, nogil=True, error_model="numpy", fastmath={"contract"})
def _send(
    belief: Floats, soft: Floats, a: int, m: int, flip: bool, tables: Tables, tau: float,
    msg: Floats, sums: Floats, best: Ints, line: Floats,
) -> None:  # fmt: skip
    """One row of a message: msg(x_p) = PS_tau over x of belief(x) + table(x, x_p)."""
    k, e = len(belief), tables.et if flip else tables.e
    step, jump = (1, k) if flip else (m, 1)
    if tau == 0.0:
        msg[:] = -np.inf
        best[:] = 0
        for x in range(k):
            v, row = belief[x], e[a + x * m : a + x * m + m]
            for z in range(m if v > -np.inf else 0):  # without a branch, so that it vectorises
                t = v + row[z]
                best[z] = x if t > msg[z] else best[z]
                msg[z] = t if t > msg[z] else msg[z]
        return
    top = -np.inf
    for x in range(k):
        top = max(top, belief[x])
    if top == -np.inf:
        msg[:], sums[:], soft[:] = -np.inf, 0.0, 0.0
        return
    for x in range(k):
        soft[x] = exp_neg((belief[x] - top) / tau)
    vec_mat(soft, e, a, k, m, sums)
    shift = top + tables.top[a]
    for z in range(m):
        if sums[z] > TINY:
            msg[z] = shift + tau * np.log(sums[z])
        else:
            for x in range(k):
                line[x] = belief[x] + tables.raw[a + x * step + z * jump]
            msg[z] = power(line[:k], tau)


@njit(cache=True, nogil=True, error_model="numpy", fastmath={"contract"})
def _receive(
    g: Floats, belief: Floats, soft: Floats, a: int, flip: bool, tables: Tables, tau: float,
    sums: Floats, best: Ints, line: Floats, joint: Floats, mu: Floats,
) -> None:  # fmt: skip
    """Reverse of ``_send``: from g(x_p) to joint(x) and the edge's marginal."""
    k, m = len(belief), len(g)
    step, jump = (1, k) if flip else (m, 1)
    if tau == 0.0:
        for z in range(m):
            if g[z] > 0.0:
                joint[best[z]] += g[z]
                mu[best[z] * step + z * jump] += g[z]
        return
    r = line[k : k + m]
    for z in range(m):
        r[z] = 0.0
        if g[z] > 0.0 and sums[z] > TINY:
            r[z] = g[z] / sums[z]
        elif g[z] > 0.0:
            for x in range(k):
                line[x] = belief[x] + tables.raw[a + x * step + z * jump]
            part = np.zeros(k)
            power_weights(line[:k], tau, g[z], part)
            for x in range(k):
                joint[x] += part[x]
                mu[x * step + z * jump] += part[x]
    e = tables.et if flip else tables.e
    for x in range(k):
        if soft[x] > 0.0:
            row = e[a + x * m : a + x * m + m]
            total = 0.0
            for z in range(m):
                v = soft[x] * row[z] * r[z]
                total += v
                mu[x * step + z * jump] += v
            joint[x] += total


@njit(cache=True, nogil=True, error_model="numpy", fastmath={"contract"})
def best_upward(net: Rooted, tables: Tables, u: Floats, rows: TreeRows) -> float:
    """``upward`` where every temperature is 0: the beliefs take the place of the scores ``u``, and the best states of a
    node given its parent's are at ``rows.best[rows.msg_at[i]]``."""
    value, line, best = 0.0, rows.line, rows.best
    for step in range(len(net.order)):
        i = net.order[step]
        p, k, o, at = net.parent[i], net.card[i], net.at[i], rows.msg_at[i]
        a, m = (net.table_at[net.edge[i]], net.card[p]) if p >= 0 else (0, 1)
        for z in range(m):
            line[z] = -np.inf
            best[at + z] = 0
        for x in range(k):
            v, row = u[o + x], a + x * m
            for z in range(m if v > -np.inf else 0):  # without branches, so that it vectorises
                t = v
                if p >= 0:
                    t = v + (tables.et[row + z] if net.flip[i] else tables.e[row + z])
                best[at + z] = x if t > line[z] else best[at + z]
                line[z] = t if t > line[z] else line[z]
        if p < 0:
            value += line[0]
            continue
        for z in range(m):
            u[net.at[p] + z] += line[z]
    return value


@njit(cache=True, nogil=True, error_model="numpy")
def best_downward(net: Rooted, rows: TreeRows, mu_unary: Floats, mu_tables: Floats) -> None:
    """mu += the indicator of the best states, which are left in ``rows.open``."""
    state = rows.open
    for step in range(len(net.order) - 1, -1, -1):
        i = net.order[step]
        p, f = net.parent[i], net.edge[i]
        z = state[p] if p >= 0 else 0
        x = rows.best[rows.msg_at[i] + z]
        state[i] = x
        mu_unary[net.at[i] + x] += 1.0
        if p >= 0:
            mu_tables[net.mu_at[f] + (z * net.card[i] + x if net.flip[i] else x * net.card[p] + z)] += 1.0


@njit(cache=True, nogil=True, error_model="numpy")
def upward(
    net: Rooted, u: Floats, output: Bools, eps_y: float, eps_h: float, ty: Tables, th: Tables, rows: TreeRows
) -> float:
    """Value of the instance; leaves in ``rows`` what the reverse sweep needs."""
    n = len(net.order)
    for i in range(n):
        k = net.card[i]
        for w in range(rows.width[i]):
            rows.belief[rows.row_at[i] + w * k : rows.row_at[i] + w * k + k] = u[net.at[i] : net.at[i] + k]
    value = 0.0
    for step in range(n):
        i = net.order[step]
        p, k, width = net.parent[i], net.card[i], rows.width[i]
        own = rows.belief[rows.row_at[i] : rows.row_at[i] + width * k]
        tau = eps_y if output[i] else eps_h
        if p < 0:
            tops = rows.msg[rows.msg_at[i] : rows.msg_at[i] + width]
            for w in range(width):
                tops[w] = power(own[w * k : w * k + k], tau)
            value += power(tops, eps_y)
            continue
        a, m = net.table_at[net.edge[i]], net.card[p]
        target = rows.belief[rows.row_at[p] : rows.row_at[p] + rows.width[p] * m]
        if rows.open[p] == i:
            sx, sz = (1, k) if net.flip[i] else (m, 1)
            for w in range(k):
                for z in range(m):
                    target[w * m + z] += own[w] + th.raw[a + w * sx + z * sz]
            continue
        at = rows.msg_at[i]
        for w in range(width):
            lo = at + w * m
            _send(
                own[w * k : w * k + k], rows.soft[rows.row_at[i] + w * k : rows.row_at[i] + w * k + k], a, m,
                net.flip[i], ty if output[i] else th, tau,
                rows.msg[lo : lo + m], rows.sums[lo : lo + m], rows.best[lo : lo + m], rows.line,
            )  # fmt: skip
        msg = rows.msg[at : at + width * m]
        if rows.open[i] >= 0 and rows.open[p] == rows.open[i]:
            for j in range(width * m):
                target[j] += msg[j]
        elif rows.open[i] >= 0:
            for z in range(m):
                target[z] += power(msg[z::m], eps_y)
        else:
            for w in range(rows.width[p]):
                for z in range(m):
                    target[w * m + z] += msg[z]
    return value


@njit(cache=True, nogil=True, error_model="numpy")
def downward(
    net: Rooted, output: Bools, eps_y: float, eps_h: float, ty: Tables, th: Tables, rows: TreeRows,
    mu_unary: Floats, mu_tables: Floats,
) -> None:  # fmt: skip
    """mu += gradient of ``upward``'s value, by the reverse sweep."""
    g = np.zeros(len(rows.line) * len(rows.line))
    for step in range(len(net.order) - 1, -1, -1):
        i = net.order[step]
        p, k, width = net.parent[i], net.card[i], rows.width[i]
        lo = rows.row_at[i]
        own, joint = rows.belief[lo : lo + width * k], rows.joint[lo : lo + width * k]
        joint[:] = 0.0
        tau = eps_y if output[i] else eps_h
        if p < 0:
            g[:width] = 0.0
            power_weights(rows.msg[rows.msg_at[i] : rows.msg_at[i] + width], eps_y, 1.0, g[:width])
            for w in range(width):
                if g[w] > 0.0:
                    power_weights(own[w * k : w * k + k], tau, g[w], joint[w * k : w * k + k])
        else:
            m, f = net.card[p], net.edge[i]
            mu = mu_tables[net.mu_at[f] : net.mu_at[f] + k * m]
            above = rows.joint[rows.row_at[p] : rows.row_at[p] + rows.width[p] * m]
            if rows.open[p] == i:
                sx, sz = (1, k) if net.flip[i] else (m, 1)
                for w in range(k):
                    for z in range(m):
                        joint[w] += above[w * m + z]
                        mu[w * sx + z * sz] += above[w * m + z]
            else:
                _spread(rows, i, p, m, eps_y, above, g)
                for w in range(width):
                    at = rows.msg_at[i] + w * m
                    _receive(
                        g[w * m : w * m + m], own[w * k : w * k + k], rows.soft[lo + w * k : lo + w * k + k],
                        net.table_at[f], net.flip[i], ty if output[i] else th, tau,
                        rows.sums[at : at + m], rows.best[at : at + m], rows.line, joint[w * k : w * k + k], mu,
                    )  # fmt: skip
        for w in range(width):
            for x in range(k):
                mu_unary[net.at[i] + x] += joint[w * k + x]


@njit(cache=True, nogil=True, error_model="numpy")
def _spread(rows: TreeRows, i: int, p: int, m: int, eps_y: float, above: Floats, g: Floats) -> None:
    """g(w, x_p): the joint of node i's open output and its parent, from the parent's rows."""
    width = rows.width[i]
    g[: width * m] = 0.0
    if rows.open[i] >= 0 and rows.open[p] == rows.open[i]:
        g[: width * m] = above
    elif rows.open[i] >= 0:
        at = rows.msg_at[i]
        for z in range(m):
            if above[z] > 0.0:
                power_weights(rows.msg[at + z : at + width * m : m], eps_y, above[z], g[z : width * m : m])
    else:
        for w in range(rows.width[p]):
            for z in range(m):
                g[z] += above[w * m + z]
