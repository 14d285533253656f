"""Log-space messages for factors of any order at any two temperatures: the one recursion, zeros included.

Names are those of the recursion in ``engines.messages``. A state is masked while a message or score of -inf sits on it:
the sum of the finite parts (``field``) and the number of -inf (``masked``) are kept apart, so that cavities never
subtract infinities.
"""

from __future__ import annotations

import numpy as np

from mssvm.core.jit import njit


@njit(cache=True, nogil=True)
def collect_log(w, instances, unary, m, field, masked):
    """field_i = theta_i plus all finite messages to i; masked_i counts the infinite ones."""
    for b in instances:
        for e in range(w.state_ptr[w.var_ptr[b]], w.state_ptr[w.var_ptr[b + 1]]):
            masked[e] = 1 if unary[e] == -np.inf else 0
            field[e] = 0.0 if masked[e] else unary[e]
        for s in range(w.scope_ptr[w.factor_ptr[b]], w.scope_ptr[w.factor_ptr[b + 1]]):
            at = w.state_ptr[w.scope[s]]
            for x in range(w.message_at[s + 1] - w.message_at[s]):
                v = m[w.message_at[s] + x]
                if v == -np.inf:
                    masked[at + x] += 1
                else:
                    field[at + x] += v


@njit(cache=True, nogil=True)
def power_sum_of(values, eps):
    """PS_eps of a vector (maximum at eps = 0)."""
    top = -np.inf
    for v in values:
        top = v if v > top else top
    if eps == 0.0 or top == -np.inf:
        return top
    total = 0.0
    for v in values:
        total += np.exp((v - top) / eps)
    return top + eps * np.log(total)


@njit(cache=True, nogil=True)
def _scores(w, f, tables, at, field, masked, m, outputs, score, group, cavity):
    """Fill S_a, the index of x_B of every entry, and the cavities; returns (entries, number of x_B)."""
    first, last = w.scope_ptr[f], w.scope_ptr[f + 1]
    size, groups = 1, 1
    for s in range(first, last):
        size *= w.message_at[s + 1] - w.message_at[s]
    for t in range(size):
        score[t] = tables[at + t]
        group[t] = 0
    stride, group_stride = 1, 1
    for s in range(last - 1, first - 1, -1):
        i, base = w.scope[s], w.message_at[s]
        card = w.message_at[s + 1] - base
        offset = base - w.message_at[first]
        step = group_stride if outputs[i] else 0
        for x in range(card):
            e, v = w.state_ptr[i] + x, m[base + x]
            lost = v == -np.inf
            n = -np.inf if masked[e] - lost > 0 else field[e] - (0.0 if lost else v)
            cavity[offset + x] = n
            for t in range(x * stride, size, card * stride):
                for lo in range(t, t + stride):
                    score[lo] += n
                    group[lo] += x * step
        stride *= card
        if outputs[i]:
            group_stride *= card
            groups *= card
    return size, groups


@njit(cache=True, nogil=True)
def _partials(score, group, size, groups, eps_y, eps_h, partial, weight):
    """R_a into ``partial`` and eps_h log softmax_{eps_y}(R_a) into ``weight``; returns PS_{eps_y}(R_a)."""
    if groups == size:
        for t in range(size):
            partial[group[t]] = score[t]
    else:
        for k in range(groups):
            partial[k] = -np.inf
            weight[k] = 0.0
        for t in range(size):
            k = group[t]
            partial[k] = score[t] if score[t] > partial[k] else partial[k]
        for t in range(size):
            if score[t] > -np.inf:
                weight[group[t]] += np.exp((score[t] - partial[group[t]]) / eps_h)
        for k in range(groups):
            if partial[k] > -np.inf:
                partial[k] += eps_h * np.log(weight[k])
    value = power_sum_of(partial[:groups], eps_y)
    for k in range(groups):
        if groups == 1:
            weight[k] = 0.0
        elif eps_y > 0.0:
            weight[k] = (partial[k] - value) * (eps_h / eps_y)
        else:
            weight[k] = 0.0 if partial[k] == value else -np.inf
    return value


@njit(cache=True, nogil=True)
def _reduce(values, size, stride, card, eps, out):
    """PS_eps over everything but one axis of a C-ordered table."""
    for x in range(card):
        top = -np.inf
        for t in range(x * stride, size, card * stride):
            for lo in range(t, t + stride):
                top = values[lo] if values[lo] > top else top
        out[x] = top
        if eps > 0.0 and top > -np.inf:
            total = 0.0
            for t in range(x * stride, size, card * stride):
                for lo in range(t, t + stride):
                    total += np.exp((values[lo] - top) / eps)
            out[x] = top + eps * np.log(total)


@njit(cache=True, nogil=True)
def _accept(new, cavity, base, m, field, masked, at, card, damping, flooding):
    """Subtract the cavity, normalise, damp and store one message; returns its largest change."""
    top = -np.inf
    for x in range(card):
        if cavity[x] == -np.inf:
            continue
        new[x] -= cavity[x]
        top = new[x] if new[x] > top else top
    change = 0.0
    for x in range(card):
        old = m[base + x]
        if cavity[x] == -np.inf or top == -np.inf:
            v = 0.0
        else:
            v = new[x] - top
            if damping > 0.0 and v > -np.inf and old > -np.inf:
                v = (1.0 - damping) * v + damping * old
        if v != old:
            d = abs(v - old)
            change = change if d <= change else d
        if not flooding:
            masked[at + x] += (v == -np.inf) - (old == -np.inf)
            field[at + x] += (0.0 if v == -np.inf else v) - (0.0 if old == -np.inf else old)
        m[base + x] = v
    return change


@njit(cache=True, nogil=True)
def update_factor(w, f, tables, at, field, masked, m, outputs, eps_y, eps_h, damping, flooding, work, group):
    """All messages of factor f; returns the largest change."""
    score, partial, weight, cavity, new = work[0], work[1], work[2], work[3], work[4]
    size, groups = _scores(w, f, tables, at, field, masked, m, outputs, score, group, cavity)
    value = _partials(score, group, size, groups, eps_y, eps_h, partial, weight)
    if groups < size and value > -np.inf:
        for t in range(size):
            if score[t] > -np.inf:
                score[t] += weight[group[t]] - partial[group[t]]
    change = 0.0
    stride, group_stride = size, groups
    for s in range(w.scope_ptr[f], w.scope_ptr[f + 1]):
        i, base = w.scope[s], w.message_at[s]
        card = w.message_at[s + 1] - base
        offset = base - w.message_at[w.scope_ptr[f]]
        stride //= card
        if outputs[i]:
            group_stride //= card
            _reduce(partial, groups, group_stride, card, eps_y, new)
        else:
            _reduce(score, size, stride, card, eps_h, new)
        d = _accept(new, cavity[offset:], base, m, field, masked, w.state_ptr[i], card, damping, flooding)
        change = change if d <= change else d
    return change


@njit(cache=True, nogil=True)
def _workspace(w, instances):
    size = 1
    for b in instances:
        for f in range(w.factor_ptr[b], w.factor_ptr[b + 1]):
            entries = 1
            for s in range(w.scope_ptr[f], w.scope_ptr[f + 1]):
                entries *= w.message_at[s + 1] - w.message_at[s]
            size = max(size, entries, w.message_at[w.scope_ptr[f + 1]] - w.message_at[w.scope_ptr[f]])
    return np.empty((5, size)), np.empty(size, dtype=np.int64)


@njit(cache=True, nogil=True)
def run_log(
    w, instances, tables, unary, field, masked, m, outputs, eps_y, eps_h, damping, flooding, n_sweeps, tolerance,
    sweeps, residual,
):  # fmt: skip
    """Up to ``n_sweeps`` more sweeps of every named instance that has not converged; alternates directions."""
    work, group = _workspace(w, instances)
    one = np.empty(1, dtype=np.int64)
    for b in instances:
        one[0] = b
        first, last = w.factor_ptr[b], w.factor_ptr[b + 1]
        for _ in range(n_sweeps):
            if residual[b] <= tolerance:
                break
            # Collected afresh: adding and subtracting large scores for many sweeps would drift.
            collect_log(w, one, unary, m, field, masked)
            residual[b] = 0.0
            for e in range(last - first):
                f = w.order[last - 1 - e] if sweeps[b] % 2 == 1 else w.order[first + e]
                d = update_factor(
                    w, f, tables, w.table_at[f], field, masked, m, outputs, eps_y, eps_h, damping, flooding, work, group
                )
                residual[b] = residual[b] if d <= residual[b] else d
            if flooding:
                collect_log(w, one, unary, m, field, masked)
            sweeps[b] += 1


@njit(cache=True, nogil=True)
def _node_belief(field, masked, lo, hi, eps, out):
    """PS_eps of g_i and its weights, of which the first maximiser has all at eps = 0."""
    top, best = -np.inf, lo
    for e in range(lo, hi):
        if masked[e] == 0 and field[e] > top:
            top, best = field[e], e
    total = 0.0
    for e in range(lo, hi):
        v = 0.0
        if masked[e] == 0:
            v = np.exp((field[e] - top) / eps) if eps > 0.0 else 1.0 * (e == best)
        out[e - lo] = v
        total += v
    if top == -np.inf:
        return -np.inf
    for e in range(hi - lo):
        out[e] /= total
    return top + eps * np.log(total) if eps > 0.0 else top


@njit(cache=True, nogil=True)
def beliefs_log(
    w, instances, tables, unary, field, masked, m, outputs, eps_y, eps_h, mu_at, mu_unary, mu_tables, value
):
    """Region free energy sum_a PS(S_a) + sum_i (1 - degree_i) PS(g_i) and its beliefs, added to mu."""
    want_mu = len(mu_unary) > 0
    work, group = _workspace(w, instances)
    score, partial, weight, cavity, belief = work[0], work[1], work[2], work[3], work[4]
    node = np.empty(w.widest)
    collect_log(w, instances, unary, m, field, masked)
    for b in instances:
        total, feasible = 0.0, True
        for i in range(w.var_ptr[b], w.var_ptr[b + 1]):
            lo, hi = w.state_ptr[i], w.state_ptr[i + 1]
            v = _node_belief(field, masked, lo, hi, eps_y if outputs[i] else eps_h, node)
            degree = w.near_ptr[i + 1] - w.near_ptr[i]
            feasible &= v > -np.inf
            if degree != 1:
                total += (1.0 - degree) * v
            if want_mu:
                for e in range(lo, hi):
                    mu_unary[e] += node[e - lo]
        for f in range(w.factor_ptr[b], w.factor_ptr[b + 1]):
            size, groups = _scores(w, f, tables, w.table_at[f], field, masked, m, outputs, score, group, cavity)
            v = _partials(score, group, size, groups, eps_y, eps_h, partial, weight)
            total += v
            feasible &= v > -np.inf
            if want_mu and v > -np.inf:
                _factor_belief(score, group, size, groups, eps_y, eps_h, partial, v, belief)
                for t in range(size):
                    mu_tables[mu_at[f] + t] += belief[t]
        value[b] = total if feasible else -np.inf


@njit(cache=True, nogil=True)
def _factor_belief(score, group, size, groups, eps_y, eps_h, partial, value, out):
    """b_a = softmax_{eps_y}(R_a) * exp((S_a - R_a) / eps_h), normalised."""
    total = 0.0
    for t in range(size):
        k = group[t]
        v = 0.0
        if score[t] > -np.inf:
            v = np.exp((partial[k] - value) / eps_y) if eps_y > 0.0 else 1.0 * (partial[k] == value)
            if groups < size:
                v *= np.exp((score[t] - partial[k]) / eps_h)
        out[t] = v
        total += v
    for t in range(size):
        out[t] /= total
