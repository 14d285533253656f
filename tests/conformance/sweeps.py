"""Message passing on pairwise graphs in long double: sweeps factor by factor, and the beliefs of their messages.

The recursion is that of ``mssvm.engines.messages`` for two variables, written out for the three kinds of factors. With
n_j the cavity of the other variable, and hidden variables at temperature eps > 0, the message to i is, up to a
constant,

    j summed                m_i(x_i) = PS_eps over x_j of theta(x_i, x_j) + n_j(x_j)
    j maximised, i too      m_i(x_i) = max over x_j of the same
    j maximised, i summed   m_i(x_i) = theta(x_i, x_j*),  x_j* = argmax over x_j of PS_eps over x_i of theta + n_i + n_j

A message has a meaning at the states that are possible by all other messages, those of a finite cavity n_i(x_i), and
is zero at the others. It shares no code with the library. ``Sweeps`` is one instance.
"""

from __future__ import annotations

import numpy as np

from conformance.oracle import Long, power_step, tables_of
from mssvm.core.arrays import Bools
from mssvm.core.potentials import Potentials, Query
from mssvm.core.topology import Batch


def power(a: Long, eps: float) -> Long:
    """PS_eps along the last axis."""
    return power_step(a, eps, 0.0)[0]


def normalised(message: Long, meant: Bools) -> Long:
    """With maximum zero over the entries that have a meaning, zero at the others."""
    top = message[meant].max(initial=-np.inf)
    return np.where(meant & (top > -np.inf), message - np.maximum(top, -1e300), 0.0)


class Sweeps:
    """Messages of instance b, at first zero; ``maximal`` variables are maximised, the others summed at ``eps``.

    ``contradicted``: a factor had no possible states left. To a sum each maximised neighbour sends one state of its
    own, and forbidden pairs may leave none that goes with all of these.
    """

    def __init__(self, batch: Batch, b: int, theta: Potentials, query: Query, maximal: Bools, eps: float) -> None:
        first = int(batch.var_ptr[b])
        self.topology = batch.topology(b)
        self.maximal = maximal[first : first + self.topology.n_vars].tolist()
        self.eps = eps
        every, _ = tables_of(batch, b, theta, query)
        n = self.topology.n_vars
        self.unary = [table for _, table in every[:n]]
        self.tables = [table for _, table in every[n:]]
        # By factor and end: the message to that variable.
        self.messages = [
            [np.zeros(self.topology.cards[v], dtype=np.longdouble) for v in scope] for scope in self.topology.scopes
        ]
        # In rows of a grid: by the later variable of a factor, then by the earlier one.
        self.order = sorted(range(len(self.tables)), key=lambda f: tuple(sorted(self.topology.scopes[f])[::-1]))
        self._possible = [[message == 0.0 for message in pair] for pair in self.messages]
        self.contradicted = False
        self.done = 0

    def cavity(self, v: int, without: int) -> Long:
        """The score of variable v and all messages to it but that of factor ``without``."""
        out = self.unary[v]
        for f, scope in enumerate(self.topology.scopes):
            if v in scope and f != without:
                out = out + self.messages[f][scope.index(v)]
        return out

    def sweep(self) -> None:
        """Every factor sends both its messages at once, in alternating directions."""
        for f in self.order if self.done % 2 == 0 else self.order[::-1]:
            i, j = self.topology.scopes[f]
            n_i, n_j = self.cavity(i, f), self.cavity(j, f)
            self._possible[f] = [n_i > -np.inf, n_j > -np.inf]
            self.contradicted |= (self.tables[f] + n_i[:, None] + n_j).max() == -np.inf
            self.messages[f] = [
                normalised(self.message(self.tables[f], n_i, n_j, self.maximal[i], self.maximal[j]), n_i > -np.inf),
                normalised(self.message(self.tables[f].T, n_j, n_i, self.maximal[j], self.maximal[i]), n_j > -np.inf),
            ]
        self.done += 1

    def message(self, table: Long, n_i: Long, n_j: Long, i_maximal: bool, j_maximal: bool) -> Long:
        """To the variable of the table's rows."""
        if not j_maximal:
            return power(table + n_j, self.eps)
        if i_maximal:
            return power(table + n_j, 0.0)
        over_rows = power((table + n_i[:, None]).T, self.eps) + n_j
        return table[:, int(over_rows.argmax())]

    def log_messages(self) -> Long:
        """In the format of ``MessageRun.log_messages``: one after the other, by factor and end."""
        return np.concatenate([message for pair in self.messages for message in pair])

    def meant(self) -> Bools:
        """In the same format: the entries of messages that had a meaning when they were sent."""
        return np.concatenate([states for pair in self._possible for states in pair])

    def beliefs(self) -> tuple[Long, list[Long]]:
        """At one temperature: sum_a PS(S_a) + sum_i (1 - degree_i) PS(g_i), and the marginal of every variable."""
        value = np.longdouble(0)
        degree = np.zeros(self.topology.n_vars, dtype=int)
        for f, (i, j) in enumerate(self.topology.scopes):
            score = self.tables[f] + self.cavity(i, f)[:, None] + self.cavity(j, f)
            value += power(score.ravel(), self.eps)
            degree[[i, j]] += 1
        marginals = []
        for v in range(self.topology.n_vars):
            total, weights, _ = power_step(self.cavity(v, -1), self.eps, 0.0)
            value += (1 - degree[v]) * total
            marginals.append(weights)
        return value, marginals
