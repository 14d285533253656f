"""One step of the proximal-point scheme for marginal MAP: the potentials whose sum-product is the next iterate."""

from __future__ import annotations

import numpy as np
from numba import njit

# log of a belief that has vanished: far below any other, but finite, so that products stay defined.
_FLOOR = 1e-300


@njit(cache=True, nogil=True)
def proximal_potentials(w, which, unary, tables, own_at, outputs, eps, node, factor, new_unary, new_tables):  # type: ignore[no-untyped-def]
    """theta_i + eps log b_i on outputs; theta_a + eps log [b_a(x_B) / prod_B b_i] on factors of two or more outputs."""
    for b in which:
        for i in range(w.var_ptr[b], w.var_ptr[b + 1]):
            for e in range(w.state_ptr[i], w.state_ptr[i + 1]):
                new_unary[e] = unary[e] + (eps * np.log(max(node[e], _FLOOR)) if outputs[i] else 0.0)
        for f in range(w.factor_ptr[b], w.factor_ptr[b + 1]):
            size, n_outputs, groups = 1, 0, 1
            for s in range(w.scope_ptr[f], w.scope_ptr[f + 1]):
                card = w.message_at[s + 1] - w.message_at[s]
                size *= card
                if outputs[w.scope[s]]:
                    n_outputs += 1
                    groups *= card
            for t in range(size):
                new_tables[own_at[f] + t] = tables[w.table_at[f] + t]
            if n_outputs > 1:
                _add_dependence(w, f, size, groups, outputs, eps, node, factor, own_at[f], new_tables)


@njit(cache=True, nogil=True)
def _add_dependence(w, f, size, groups, outputs, eps, node, factor, at, new_tables):  # type: ignore[no-untyped-def]
    group, alone, together = np.zeros(size, dtype=np.int64), np.zeros(size), np.zeros(groups)
    stride, step = 1, 1
    for s in range(w.scope_ptr[f + 1] - 1, w.scope_ptr[f] - 1, -1):
        i = w.scope[s]
        card = w.message_at[s + 1] - w.message_at[s]
        if outputs[i]:
            for t in range(size):
                x = (t // stride) % card
                group[t] += x * step
                alone[t] += np.log(max(node[w.state_ptr[i] + x], _FLOOR))
            step *= card
        stride *= card
    for t in range(size):
        together[group[t]] += factor[at + t]
    for t in range(size):
        new_tables[at + t] += eps * (np.log(max(together[group[t]], _FLOOR)) - alone[t])
