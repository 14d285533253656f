"""Exact inference where fixing one variable (the cutset) leaves a pairwise forest, such as the class of a hidden chain.

value = PS over the cutset (at its own temperature) of [its score + nested power sum of the forest given it].
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from mssvm.core.arrays import Bools, Floats, Ints
from mssvm.core.errors import UnsupportedError
from mssvm.core.potentials import Marginals, Potentials, Query, Status
from mssvm.core.threads import Workers
from mssvm.core.topology import Batch, Topology, offsets, spans
from mssvm.engines.base import Bound, Pair, Paired
from mssvm.engines.numba.forests.cutset import Cut, check_cuts, run_cut_chains, run_cuts
from mssvm.engines.numba.forests.forest import AT_H, AT_Y
from mssvm.engines.numba.forests.plan import (
    BLOCK,
    LANE_STATES,
    blocks,
    group_lanes,
    layout_of,
    read_modes,
    stack_forests,
    tables_of,
)
from mssvm.engines.numba.forests.rooting import Rooting
from mssvm.engines.numba.forests.scaled import Tables, TableSet

NAME = "conditioning"
NO_MASK = np.zeros(0, dtype=bool)


@dataclass(frozen=True, eq=False)
class CutTopology:
    """A topology with its cut variable (-1 if there is none) and the forest that is left."""

    variable: int
    rooting: Rooting
    edge_factor: Ints
    edge_cut: Bools
    attached_factor: Ints
    attached_node: Ints
    chain: bool  # the rest is a chain 0 - 1 - 2 ... of one cardinality, every edge holds the cut variable

    @classmethod
    def at(cls, topology: Topology, v: int) -> CutTopology:
        rest = [tuple(u - (u > v) for u in s if u != v) for s in topology.scopes]
        edges = [f for f, s in enumerate(rest) if len(s) >= 2]
        single = [f for f, s in enumerate(rest) if len(s) == 1]
        scopes = tuple(rest[f] for f in edges)
        cards = set(topology.cards[:v] + topology.cards[v + 1 :])
        n = topology.n_vars - 1
        whole = all(v in topology.scopes[f] for f in edges)
        at_end = v in (0, n) and len(cards) == 1 and min(cards) <= LANE_STATES
        nodes = [rest[f][0] for f in single]
        path = n > 1 and scopes == tuple((t, t + 1) for t in range(n - 1)) and sorted(nodes) in ([], list(range(n)))
        return cls(
            v,
            Rooting.of(n, scopes),
            np.array(edges, dtype=np.int64),
            np.array([v in topology.scopes[f] for f in edges], dtype=bool),
            np.array(single, dtype=np.int64),
            np.array(nodes, dtype=np.int64),
            whole and at_end and path,
        )


@lru_cache(4096)
def cut_of(topology: Topology) -> CutTopology:
    """The topology cut at the variable in most factors that leaves a pairwise forest."""
    large = [set(s) for s in topology.scopes if len(s) > 2]
    candidates = set.intersection(*large) if large else set(range(topology.n_vars))
    degree = np.bincount(topology.scope_flat, minlength=topology.n_vars)
    if topology.n_factors - degree.max(initial=0) > topology.n_vars - 2:
        candidates = set()  # whichever goes, more factors are left than a forest of the others has
    for v in sorted(candidates, key=lambda i: (-int(degree[i]), i))[:8]:
        found = CutTopology.at(topology, v)
        if found.rooting.valid:
            return found
    none = np.zeros(0, dtype=np.int64)
    return CutTopology(-1, Rooting.of(0, ((0, 0, 0),)), none, none.astype(bool), none, none, False)


class CutsetPlan:
    """Exact inference on graphs that one variable separates into a pairwise forest (factors up to order three).

    Exact when that variable is an output, is clamped, or the temperatures of all free variables agree with its own.
    """

    def __init__(self, batch: Batch) -> None:
        found = [cut_of(t) for t in batch.topologies]
        pairs = list(zip(batch.topologies, found, strict=True))
        self.batch, self.layout = batch, layout_of(batch)
        cards = [np.delete(t.card_array, c.variable) if c.variable >= 0 else t.card_array for t, c in pairs]
        self.cut = _stack(pairs)
        self.forest = stack_forests([c.rooting for c in found], cards)
        self.ok = np.array([c.rooting.valid for c in found], dtype=bool)[batch.topology_of]
        shape = [_shapes(t, c) for t, c in pairs]
        rows = np.concatenate([np.zeros((0, 5), dtype=np.int64), *[shape[g] for g in batch.topology_of]])
        used = np.flatnonzero(rows[:, 0] > 0)
        at, first, _, odd = tables_of(batch, used, rows, self.ok)
        edges = rows[used][first][:, 4] > 1
        kind, at = rows[used][first][edges], at[edges]
        slices = kind[:, 0]
        self.tables = TableSet(_slices(at, kind), np.repeat(kind[:, 1], slices), np.repeat(kind[:, 2], slices))
        alike = used[~odd]
        moved = bool(np.any(rows[alike, 3] > 0))
        # Entry of a table with the cut variable first -> entry of the table as it is; None where they are the same.
        self.transpose = _transpose(batch.table_at[alike], rows[alike], batch.n_table_entries) if moved else None
        self.transpose_mu = _transpose(batch.mu_at[alike], rows[alike], batch.n_mu_entries) if moved else None
        chain = np.array([c.chain for c in found], dtype=bool)[batch.topology_of]
        self.chains = np.flatnonzero(self.ok & chain & _one_table(batch, found))
        self.cut_at = batch.unary_ptr[batch.var_ptr[:-1] + np.maximum(self.cut.variable[batch.topology_of], 0)]

    def supports(self, query: Query, eps_y: float, eps_h: float) -> Bools:
        """Per instance: does one variable separate it into a forest on which these roles and temperatures are exact?"""
        ok = self.ok.copy()
        if eps_y != eps_h and ok.any():
            check_cuts(self.cut, self.forest, self.layout, query.allowed, query.output, ok)
        return ok

    def narrows_cuts(self, query: Query, narrower: Query) -> bool:
        """Whether all instances are chains for the side-by-side kernel and the queries differ in cut variables."""
        if self.transpose is not None or len(self.chains) != len(self.batch):
            return False
        differs = query.allowed != narrower.allowed
        differs[spans(self.cut_at, self.cut.states[self.batch.topology_of])] = False
        return np.array_equal(query.output, narrower.output) and not differs.any()


class CutLane(NamedTuple):
    """Hidden chains that run side by side: group offsets, members, and the temperatures of chain and cut variable."""

    ptr: Ints
    members: Ints
    at_y: bool
    eps: float
    eps_cut: float


class CutsetRoute:
    """Conditioning at given roles, masks and temperatures."""

    def __init__(
        self, plan: CutsetPlan, query: Query, eps_y: float, eps_h: float, instances: Ints, workers: Workers
    ) -> None:
        self.plan, self.query, self.eps_y, self.eps_h = plan, query, eps_y, eps_h
        self.instances, self.workers = instances, workers
        self.lanes = self._lanes()

    def infer_into(self, theta: Potentials, value: Floats, mu: Marginals) -> None:
        """Write value and marginals of the instances."""
        plan, query = self.plan, self.query
        raw = theta.tables if plan.transpose is None else theta.tables[plan.transpose]
        ty, th = plan.tables.at_both(raw, self.eps_y, self.eps_h)
        out = mu if plan.transpose_mu is None else Marginals(mu.unary, mu.tables[plan.transpose_mu])
        done = self.run_lanes(theta, (ty, th), value, out)

        def one_by_one(part: Ints) -> bool:
            exact: bool = run_cuts(
                part, plan.cut, plan.forest, plan.layout, theta.unary, query.allowed, query.output, self.eps_y,
                self.eps_h, ty, th, value, True, out.unary, out.tables,
            )  # fmt: skip
            return exact

        rest = self.instances[~done[self.instances]]
        parts = blocks(rest, BLOCK, self.workers.idle) if len(rest) else []
        if not (plan.ok[self.instances].all() and all(self.workers.each(one_by_one, parts))):
            raise UnsupportedError(
                "no single variable separates an instance into an exactly solvable forest; use general elimination."
            )
        if plan.transpose_mu is not None:
            mu.tables[plan.transpose_mu] = out.tables

    def run_lanes(
        self, theta: Potentials, tables: tuple[Tables, Tables], value: Floats, mu: Marginals,
        narrower: Bools | None = None, minus: Floats | None = None,
    ) -> Bools:  # fmt: skip
        """Hidden chains under one cut variable side by side; which instances are done. With a mask ``narrower`` of the
        cut variables, ``minus`` gets the values under it and mu is the difference of marginals."""
        plan, (ty, th) = self.plan, tables
        done = np.zeros(len(value), dtype=bool)
        mask, low = (NO_MASK, value) if narrower is None or minus is None else (narrower, minus)

        def chains(lane: CutLane, part: Ints) -> None:
            run_cut_chains(
                lane.ptr[part[0] : part[-1] + 2], lane.members, plan.cut, plan.forest, plan.layout, theta.unary,
                self.query.allowed, lane.eps, lane.eps_cut, ty if lane.at_y else th, value, True, mu.unary, mu.tables,
                done, mask, low,
            )  # fmt: skip

        for lane in self.lanes:
            parts = blocks(np.arange(len(lane.ptr) - 1), 1, self.workers.idle)
            self.workers.each(chains, [lane] * len(parts), parts)
        return done

    def _lanes(self) -> list[CutLane]:
        """Which chains run side by side, by temperatures, table, label and length."""
        plan, layout, cut = self.plan, self.plan.layout, self.plan.cut
        members = np.intersect1d(plan.chains, self.instances)
        g = layout.topology_of[members]
        cut_var = layout.var_ptr[members] + cut.variable[g]
        modes, role, states = self._modes(members, cut_var), self.query.output[cut_var], cut.states[g]
        label, free = _label(self.query.allowed, plan.cut_at[members], states)
        k = plan.forest.card[plan.forest.node_ptr[g]]
        table = layout.table_at[layout.factor_ptr[members] + cut.edge_factor[plan.forest.edge_ptr[g]]]
        attached = cut.attached_ptr[g + 1] > cut.attached_ptr[g]
        count = layout.var_ptr[members + 1] - layout.var_ptr[members] - 1
        keys = (count, label, attached, table, states, k)
        out = []
        for mode, eps in ((AT_Y, self.eps_y), (AT_H, self.eps_h)):
            for output in (True, False):
                legal = output | ~free | (mode == AT_H) | (self.eps_y == self.eps_h)
                chosen = np.flatnonzero((modes == mode) & (role == output) & legal)
                if eps == 0.0 or not len(chosen):
                    continue
                chosen = chosen[np.lexsort([key[chosen] for key in keys])]
                sorted_keys = tuple(key[chosen].astype(np.int64) for key in keys[1:])
                ptr = group_lanes(sorted_keys, (k * states)[chosen], count[chosen])
                out.append(CutLane(ptr, members[chosen], mode == AT_Y, eps, self.eps_y if output else self.eps_h))
        return out

    def _modes(self, members: Ints, cut_var: Ints) -> Ints:
        """Temperature mode of each chain, its cut variable left out."""
        layout = self.plan.layout
        modes = np.full(len(layout.topology_of), AT_Y, dtype=np.int64)
        if self.eps_y != self.eps_h:
            # A variable without two allowed states does not count as free: hide the cut variables that way.
            allowed = self.query.allowed.copy()
            allowed[spans(layout.unary_ptr[cut_var], np.diff(layout.unary_ptr)[cut_var])] = False
            read_modes(members, layout, allowed, self.query.output, modes)
        return modes[members]


@dataclass(frozen=True, eq=False)
class CutsetPair:
    """Paired inference in one pass, where the narrower query restricts cut variables (labels) alone and both have the
    same potentials; ``apart`` answers wherever that does not do."""

    route: CutsetRoute
    narrower: Query
    apart: Pair

    @property
    def plus(self) -> Bound:
        return self.apart.plus

    @property
    def minus(self) -> Bound:
        return self.apart.minus

    def __call__(self, theta_plus: Potentials, theta_minus: Potentials) -> Paired:
        batch = self.route.plan.batch
        if theta_plus is theta_minus:
            n, mu = len(batch), Marginals.zeros(batch)
            plus, minus = np.empty(n), np.empty(n)
            theta_plus.check(batch)
            tables = self.route.plan.tables.at_both(theta_plus.tables, self.route.eps_y, self.route.eps_h)
            if self.route.run_lanes(theta_plus, (tables[0], tables[1]), plus, mu, self.narrower.allowed, minus).all():
                return Paired(plus, minus, mu, Status.exactly(plus, NAME), Status.exactly(minus, NAME))
        return self.apart(theta_plus, theta_minus)


def _label(allowed: Bools, at: Ints, states: Ints) -> tuple[Ints, Bools]:
    """The only allowed state of each block ``at : at + states`` (-1 if several), and whether there are several."""
    out, seen = np.full(len(at), -1, dtype=np.int64), np.zeros(len(at), dtype=np.int64)
    for c in range(int(states.max(initial=0))):
        hit = np.flatnonzero(c < states)
        hit = hit[allowed[at[hit] + c]]
        out[hit] = c
        seen[hit] += 1
    return np.where(seen > 1, -1, out), seen > 1


def _slices(at: Ints, kind: Ints) -> Ints:
    """Starts of the slices of each table, one per state of the cut variable."""
    size = kind[:, 1] * kind[:, 2]
    index = spans(np.zeros(len(at), dtype=np.int64), kind[:, 0])
    return np.repeat(at, kind[:, 0]) + index * np.repeat(size, kind[:, 0])


def _shapes(topology: Topology, found: CutTopology) -> Ints:
    """Per factor: slices, rows, columns, axis of the cut variable, order of a slice; zeros if there is no cut."""
    out = np.zeros((topology.n_factors, 5), dtype=np.int64)
    for f, scope in enumerate(topology.scopes if found.variable >= 0 else ()):
        rest = [topology.cards[u] for u in scope if u != found.variable]
        inside = found.variable in scope
        states = topology.cards[found.variable] if inside else 1
        n = rest[0] if len(rest) > 1 else 1
        out[f] = states, n, rest[-1], scope.index(found.variable) if inside else 0, len(rest)
    return out


def _transpose(at: Ints, rows: Ints, size: int) -> Ints:
    """Index array that reads tables as if the cut variable were their first axis."""
    out = np.arange(size)
    for start, (states, n, m, axis, order) in zip(at.tolist(), rows.tolist(), strict=True):
        if axis > 0:
            shape = [n, m] if order == 2 else [m]
            shape.insert(axis, states)
            inside = np.moveaxis(np.arange(states * n * m).reshape(shape), axis, 0)
            out[start : start + states * n * m] = start + inside.ravel()
    return out


def _stack(pairs: list[tuple[Topology, CutTopology]]) -> Cut:
    """The cut topologies of a batch side by side; those without a cut are empty."""
    empty = np.zeros(0, dtype=np.int64)
    cuts = [c for _, c in pairs if c.variable >= 0]
    return Cut(
        np.array([c.variable for _, c in pairs], dtype=np.int64),
        np.array([t.cards[c.variable] if c.variable >= 0 else 0 for t, c in pairs], dtype=np.int64),
        np.concatenate([empty, *[c.edge_factor for c in cuts]]),
        np.concatenate([empty.astype(bool), *[c.edge_cut for c in cuts]]),
        offsets(np.array([len(c.attached_factor) for _, c in pairs], dtype=np.int64)),
        np.concatenate([empty, *[c.attached_factor for c in cuts]]),
        np.concatenate([empty, *[c.attached_node for c in cuts]]),
    )


def _one_table(batch: Batch, found: list[CutTopology]) -> Bools:
    """Instances all of whose edges read the same table."""
    count = np.array([len(c.edge_factor) for c in found], dtype=np.int64)[batch.topology_of]
    edges = np.concatenate([np.zeros(0, dtype=np.int64), *[found[g].edge_factor for g in batch.topology_of]])
    at = batch.table_at[np.repeat(batch.factor_ptr[:-1], count) + edges]
    first = np.repeat(at[np.minimum(offsets(count)[:-1], max(len(at) - 1, 0))], count) if len(at) else at
    same = np.ones(len(batch), dtype=bool)
    same[np.repeat(np.arange(len(batch)), count)[at != first]] = False
    return same
