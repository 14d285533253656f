"""The decomposition bound in plain NumPy: one variable and one message at a time (``engines.decomposition``).

Messages are scores. With G_i = u_i plus all messages to i, variable i has the scores rho G_i minus its two messages
along a chain of weight rho, whatever the messages are; a sweep sends

    M_ij(z) = PS[eps rho] over x of (rho G_i(x) - M_ji(x) + theta_ij(x, z))

from every variable to its later neighbours, in order, and then backwards.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from mssvm.core.arrays import Bools, Floats, Ints
from mssvm.core.potentials import Marginals, Potentials
from mssvm.core.power import power_sum
from mssvm.core.topology import Batch, Topology
from mssvm.engines.decomposition import AtOnce

ROUNDS = 16  # rounds of distributing the remaining weights of variables among their chains


class ReferenceCover:
    """Monotone chains of a topology: by factor the next one of its chain (-1: none) and the chain's weight."""

    def __init__(self, graph: Topology) -> None:
        self.graph = graph
        self.ends = np.sort(graph.scope_flat.reshape(-1, 2), axis=1)
        self.into: list[list[int]] = [[] for _ in range(graph.n_vars)]
        self.out_of: list[list[int]] = [[] for _ in range(graph.n_vars)]
        for f, (low, high) in enumerate(self.ends.tolist()):
            self.out_of[low].append(f)
            self.into[high].append(f)
        self.next = [-1] * graph.n_factors
        through = [self._join(v) for v in range(graph.n_vars)]
        self.weight, self.left = self._weights(through)

    def _join(self, v: int) -> int:
        """Join factors that end at v to factors that begin there, preferably factors whose ends are equally far apart.

        Returns the number of chains through v.
        """
        begin = list(self.out_of[v])
        reach = self.ends[:, 1] - self.ends[:, 0]
        chains = len(begin)
        for same in (True, False):
            for f in self.into[v]:
                if self.next[f] >= 0:
                    continue
                found = next((g for g in begin if not same or reach[g] == reach[f]), None)
                if found is not None:
                    self.next[f] = found
                    begin.remove(found)
                elif not same:
                    chains += 1
        return chains

    def chains(self) -> list[list[int]]:
        """Factors of every chain, in order."""
        out = []
        for first in sorted(set(range(len(self.next))) - set(self.next)):
            chain = [first]
            while self.next[chain[-1]] >= 0:
                chain.append(self.next[chain[-1]])
            out.append(chain)
        return out

    def _weights(self, through: list[int]) -> tuple[Floats, Floats]:
        left = np.ones(self.graph.n_vars)
        weight = np.zeros(self.graph.n_factors)
        chains = self.chains()
        members = [[int(self.ends[c[0], 0]), *self.ends[c, 1].tolist()] for c in chains]
        for _ in range(ROUNDS):
            shares = [min(left[v] / through[v] for v in m) for m in members]
            for chain, passed, share in zip(chains, members, shares, strict=True):
                weight[chain] += share
                left[passed] -= share
            left[left <= 1e-12] = 0.0
        return weight, left


@dataclass(frozen=True, eq=False)
class ReferenceChainPlan:
    """The bound on some instances of a batch."""

    batch: Batch
    instances: Ints

    @cached_property
    def covers(self) -> dict[int, ReferenceCover]:
        found = {}
        for k in np.unique(self.batch.topology_of[self.instances]).tolist():
            found[k] = ReferenceCover(self.batch.topologies[k])
        return found

    def factor_weights(self) -> Floats:
        batch = self.batch
        out = np.zeros(batch.n_factors)
        for b in self.instances.tolist():
            out[batch.factor_ptr[b] : batch.factor_ptr[b + 1]] = self.covers[int(batch.topology_of[b])].weight
        return out

    def run(self) -> ReferenceChainRun:
        return ReferenceChainRun(self)


class ReferenceChainRun(AtOnce):
    """Messages by slot, an entry of ``Batch.scope_vars``: that of its factor to its variable."""

    def __init__(self, plan: ReferenceChainPlan) -> None:
        self.plan = plan
        self.batch = plan.batch
        sizes = self.batch.cards[self.batch.scope_vars]
        self.ends = np.cumsum(sizes)[:-1]
        self.messages = np.zeros(int(sizes.sum()))

    @property
    def state(self) -> Floats:
        """The messages from which the next sweep continues."""
        return self.messages

    def restore(self, state: Floats) -> None:
        self.messages[:] = state

    @property
    def _to(self) -> list[Floats]:
        """The message of every slot, as a part of ``messages``."""
        return np.split(self.messages, self.ends)

    def load(self, theta: Potentials, allowed: Bools, eps_y: float, eps_h: float) -> None:
        """Replace scores and temperatures; messages stay as they are."""
        unary = np.where(allowed, theta.unary, -np.inf)
        self.unary = np.split(unary, self.batch.unary_ptr[1:-1])
        self.tables = theta.tables
        self.eps = eps_y

    def _table(self, slot: int) -> Floats:
        """The table of a slot's factor, its own variable along the rows."""
        batch = self.batch
        f = slot // 2
        first, second = batch.cards[batch.scope_vars[2 * f : 2 * f + 2]]
        table = self.tables[batch.table_at[f] : batch.table_at[f] + first * second].reshape(first, second)
        return table if slot % 2 == 0 else table.T

    def _slots(self, b: int) -> list[list[int]]:
        """Slots of the variables of an instance."""
        batch = self.batch
        first = int(batch.var_ptr[b])
        out: list[list[int]] = [[] for _ in range(batch.topology(b).n_vars)]
        for f in range(int(batch.factor_ptr[b]), int(batch.factor_ptr[b + 1])):
            for slot in (2 * f, 2 * f + 1):
                out[int(batch.scope_vars[slot]) - first].append(slot)
        return out

    def _rho(self, slot: int) -> float:
        batch = self.batch
        f = slot // 2
        b = int(batch.factor_owner[f])
        return float(self.plan.covers[int(batch.topology_of[b])].weight[f - batch.factor_ptr[b]])

    def _later(self, slot: int) -> bool:
        """Whether the neighbour along the slot is a later variable."""
        scope = self.batch.scope_vars
        return bool(scope[slot ^ 1] > scope[slot])

    def sweep(self, n: int) -> Floats:
        """The bound after n sweeps."""
        value = np.zeros(len(self.batch))
        for b in self.plan.instances.tolist():
            slots = self._slots(b)
            for _ in range(n):
                for i in range(len(slots)):
                    self._send(b, i, slots[i], later=True)
                value[b] = 0.0
                for i in reversed(range(len(slots))):
                    if (root := self._root(b, i)) > 0.0:
                        value[b] += root * power_sum(self._total(b, i, slots[i]), self.eps)[0]
                    value[b] += self._send(b, i, slots[i], later=False)
        return value

    def _total(self, b: int, i: int, slots: list[int]) -> Floats:
        to = self._to
        return np.asarray(self.unary[int(self.batch.var_ptr[b]) + i] + sum(to[s] for s in slots))

    def _root(self, b: int, i: int) -> float:
        """The weight of the chains that begin at a variable, plus the variable's remaining weight."""
        cover = self.plan.covers[int(self.batch.topology_of[b])]
        continued = set(cover.next)
        begins = [f for f in cover.out_of[i] if f not in continued]
        return float(cover.left[i] + cover.weight[begins].sum())

    def _send(self, b: int, i: int, slots: list[int], later: bool) -> float:
        """Send messages to the later (or the earlier) neighbours; returns the sum of the subtracted normalisers."""
        to = self._to
        total = self._total(b, i, slots)
        taken = 0.0
        for s in slots:
            if self._later(s) == later:
                message = self._message(s, _less(self._rho(s) * total, to[s]))
                top = message.max()
                taken += top
                to[s ^ 1][:] = message - (top if top > -np.inf else 0.0)
        return float(taken)

    def _message(self, slot: int, sender: Floats) -> Floats:
        scores = sender[:, None] + self._table(slot)
        return np.asarray(power_sum(scores, self.eps * self._rho(slot), axis=0)[0])

    def read(self, mu: Marginals) -> Floats:
        """Marginals of every chain, forwards with the scores of its variables held."""
        residual = np.zeros(len(self.batch))
        for b in self.plan.instances.tolist():
            slots = self._slots(b)
            totals = [self._total(b, i, mine) for i, mine in enumerate(slots)]
            beliefs = [power_sum(total, self.eps)[1] for total in totals]
            cover = self.plan.covers[int(self.batch.topology_of[b])]
            first = int(self.batch.var_ptr[b])
            for i, belief in enumerate(beliefs):
                self._unary(mu, first + i)[:] = cover.left[i] * belief
            for chain in cover.chains():
                residual[b] = max(residual[b], self._read_chain(b, chain, totals, beliefs, mu))
        return residual

    def _unary(self, mu: Marginals, v: int) -> Floats:
        return mu.unary[self.batch.unary_ptr[v] : self.batch.unary_ptr[v + 1]]

    def _read_chain(
        self, b: int, chain: list[int], totals: list[Floats], beliefs: list[Floats], mu: Marginals
    ) -> float:
        batch = self.batch
        to = self._to
        first = int(batch.var_ptr[b])
        apart = 0.0
        reading: Floats | None = None  # the chain's own message minus the message of the last sweep
        for k, f in enumerate(chain):
            slot = 2 * (int(batch.factor_ptr[b]) + f)
            slot += not self._later(slot)
            i, j = (int(batch.scope_vars[s]) - first for s in (slot, slot ^ 1))
            rho = self._rho(slot)
            if k == 0:
                self._unary(mu, first + i)[:] += rho * beliefs[i]
            sender = _less(rho * totals[i], to[slot])
            sender = sender if reading is None else sender + reading
            scores = sender[:, None] + self._table(slot)
            message, given = power_sum(scores, self.eps * rho, axis=0)
            reading = _less(message, to[slot ^ 1])
            marginal = power_sum(rho * totals[j] + reading, self.eps * rho)[1]
            self._unary(mu, first + j)[:] += rho * marginal
            apart = max(apart, float(np.abs(marginal - beliefs[j]).max()))
            pair = given * marginal
            at = batch.mu_at[slot // 2]
            mu.tables[at : at + pair.size] += (pair if slot % 2 == 0 else pair.T).ravel()
        return apart

    def decode(self, states: Ints) -> None:
        """States in order, given the earlier ones and the messages of later ones."""
        to = self._to
        for b in self.plan.instances.tolist():
            for i, slots in enumerate(self._slots(b)):
                v = int(self.batch.var_ptr[b]) + i
                score = self.unary[v].copy()
                for s in slots:
                    score += to[s] if self._later(s) else self._table(s)[:, states[self.batch.scope_vars[s ^ 1]]]
                states[v] = int(score.argmax())


def _less(scores: Floats, message: Floats) -> Floats:
    """Scores without a message that is part of them: -inf stays -inf."""
    possible = scores > -np.inf
    return np.where(possible, scores - np.where(possible, message, 0.0), -np.inf)
