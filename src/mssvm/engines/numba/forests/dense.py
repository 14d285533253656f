"""Forests of many states at one temperature > 0, side by side as matrix products: a large table belongs to BLAS.

Recursion, scaling and what is safe are those of ``lanes``; a position holds a matrix (instance, state) here where it
holds registers there. The longest instances come first, so those that have a position are the first so many.
"""

from __future__ import annotations

import numpy as np

from mssvm.core.arrays import Bools, Floats, Ints
from mssvm.core.potentials import Marginals, Potentials
from mssvm.core.topology import Batch
from mssvm.engines.numba.forests.lane_groups import Kinds
from mssvm.engines.numba.forests.registers import RANGE, SMALLEST, TINY
from mssvm.engines.numba.forests.scaled import Tables

AT_ONCE = 64  # instances


def dense_forests(batch: Batch, kinds: Kinds) -> list[DenseForests]:
    count = sum(map(len, kinds.instances))
    return [DenseForests(batch, kinds, slice(i, i + AT_ONCE)) for i in range(0, count, AT_ONCE)]


class DenseForests:
    """Some instances of a family, the longest first, with what they read and write."""

    def __init__(self, batch: Batch, kinds: Kinds, some: slice) -> None:
        lead, n = kinds.readings[0], len(kinds.readings[0].order)
        self.parent, self.flip, self.states = lead.parent, lead.flip, kinds.topologies[0].cards[0]
        self.only = np.bincount(lead.parent[lead.parent >= 0], minlength=n)[lead.parent] == 1
        self.table = np.full(n, -1, dtype=np.int64)
        self.start, self.table[lead.factor >= 0] = np.unique(kinds.tables, return_inverse=True)
        self.members = np.concatenate(kinds.instances)[some]
        of = np.repeat(np.arange(len(kinds.instances)), [len(i) for i in kinds.instances])[some]
        readings = [kinds.readings[k] for k in of]
        self.orders, self.scores = [r.order for r in readings], [batch.state_span(b) for b in self.members]
        self.first = n - np.array([len(order) for order in self.orders])  # the first position that an instance has
        self.present = np.searchsorted(self.first, np.arange(n), side="right")
        slots = [np.flatnonzero(self.table == k) for k in range(len(self.start))]
        self.marginals = list[tuple[int, int, Ints, int]]()  # instance, slot of the table, positions, place
        for i, (b, reading) in enumerate(zip(self.members, readings, strict=True)):
            for k, every in enumerate(slots):
                positions = every[every >= self.first[i]]
                if len(positions):
                    factor = batch.factor_ptr[b] + reading.factor[positions[0] - self.first[i]]
                    self.marginals.append((i, k, positions, int(batch.mu_at[factor])))

    def __call__(
        self, theta: Potentials, allowed: Bools, tables: Tables, eps: float, value: Floats, mu: Marginals, done: Bools
    ) -> None:
        """Write value and marginals; ``done`` is set where sums were safe."""
        with np.errstate(over="ignore", invalid="ignore"):  # of instances that will not be done
            self._run(theta, allowed, tables, eps, value, mu, done)

    def _run(
        self, theta: Potentials, allowed: Bools, tables: Tables, eps: float, value: Floats, mu: Marginals, done: Bools
    ) -> None:
        size = self.states**2
        E = [tables.e[a : a + size].reshape(self.states, -1) for a in self.start]
        total, e, lowest = self._read(theta.unary, allowed, eps)
        b, s, scale = e.copy(), np.empty_like(e), np.ones(e.shape[:2])
        holes, widest = self._holes(tables)
        least = self._up(E, b, s, scale, holes)
        if holes:
            np.minimum(least, np.exp(lowest), out=least)
        edges = [(p, tables.top[self.start[k]]) for p, k in enumerate(self.table) if k >= 0]
        for p, top in edges:
            total[: self.present[p]] += top
        value[self.members] = total - eps * np.log(scale).sum(axis=1)
        done[self.members] = (least > SMALLEST) & (widest <= RANGE * eps)
        t = self._down(E, e, b, s, scale, holes)
        for i, k, positions, at in self.marginals:
            out = mu.tables[at : at + size].reshape(self.states, -1)
            self._pairs(b[i], s[i], positions, out)
            out *= E[k]
        b *= t
        for i, (order, where) in enumerate(zip(self.orders, self.scores, strict=True)):
            mu.unary[where].reshape(-1, self.states)[order] = b[i, self.first[i] :]

    def _holes(self, tables: Tables) -> tuple[bool, float]:
        """Whether tables forbid anything, and the widest range of what they allow (``registers.RANGE`` says why)."""
        return bool(np.isinf(tables.span[self.start]).any()), float(tables.within[self.start].max(initial=0.0))

    def _read(self, unary: Floats, allowed: Bools, eps: float) -> tuple[Floats, Floats, Floats]:
        """The sum of every instance's largest scores, exp((score - largest) / eps) by instance and position, and the
        lowest of these exponents that is allowed."""
        e = np.zeros((len(self.members), len(self.parent), self.states))
        for i, (order, where) in enumerate(zip(self.orders, self.scores, strict=True)):
            scores = np.where(allowed[where], unary[where], -np.inf)
            e[i, self.first[i] :] = scores.reshape(-1, self.states)[order]
        top = e.max(axis=2)
        top[top == -np.inf] = 0.0  # all terms are 0 then
        e -= top[:, :, None]
        e /= eps
        lowest = np.min(e, axis=(1, 2), initial=0.0, where=e > -np.inf)
        return top.sum(axis=1), np.exp(e, out=e), lowest

    def _up(self, E: list[Floats], b: Floats, s: Floats, scale: Floats, holes: bool) -> Floats:
        """Messages from the leaves to the roots, b divided by its sums; the smallest sum of every instance, where
        tables have ``holes`` the smallest share of a state as well."""
        least = np.ones(len(b))
        for p, here in enumerate(self.present):
            x = b[:here, p]
            z = x.sum(axis=1)
            np.minimum(least[:here], z, out=least[:here])
            scale[:here, p] = 1.0 / np.maximum(z, TINY)
            x *= scale[:here, p, None]
            if holes:
                np.minimum(least[:here], np.min(x, axis=1, initial=1.0, where=x > 0.0), out=least[:here])
            if self.parent[p] >= 0:
                table = E[self.table[p]]
                np.matmul(x, table.T if self.flip[p] else table, out=s[:here, p])
                above = b[:here, self.parent[p]]
                possible = (above > 0.0) & (s[:here, p] > 0.0) if holes else None
                above *= s[:here, p]
                if possible is not None:
                    least[:here][(possible & (above == 0.0)).any(axis=1)] = 0.0
        return least

    def _down(self, E: list[Floats], e: Floats, b: Floats, s: Floats, scale: Floats, holes: bool) -> Floats:
        """Messages back to the leaves; ``s`` becomes the d of every position. Derivatives by what is impossible, which
        may be of any size where tables have ``holes``, are left out."""
        t = np.ones_like(e)
        for p in range(len(self.present) - 1, -1, -1):
            q, here = self.parent[p], self.present[p]
            if q < 0:
                continue
            d = s[:here, p]
            if self.only[p]:
                np.multiply(e[:here, q], t[:here, q] * scale[:here, q, None], out=d)
            else:
                np.divide(b[:here, q] * t[:here, q], np.maximum(d, TINY), out=d)
            table = E[self.table[p]]
            np.matmul(d, table if self.flip[p] else table.T, out=t[:here, p])
            if holes:
                t[:here, p][b[:here, p] == 0.0] = 0.0
        return t

    def _pairs(self, b: Floats, d: Floats, positions: Ints, out: Floats) -> None:
        """out = sum over positions of the outer product of b and d, in the order of the table's axes."""
        flip = self.flip[positions]
        np.matmul(b[positions[~flip]].T, d[positions[~flip]], out=out)
        if flip.any():
            out += d[positions[flip]].T @ b[positions[flip]]
