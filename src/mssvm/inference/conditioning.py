"""Exact inference where fixing one variable leaves a pairwise forest, such as the class label of a hidden chain.

value = PS over the cut variable (at its own temperature) of [its score + nested power sum of the forest given it].
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from mssvm.arrays import Bools, Floats, Ints
from mssvm.engines.cut import Cut, check_cuts, run_cut_chains, run_cuts
from mssvm.engines.forest import AT_H, AT_Y, read_modes
from mssvm.engines.scaled import Forest, Layout, Tables
from mssvm.errors import UnsupportedError
from mssvm.graph import Batch, Graph, offsets, spans
from mssvm.inference.remember import Recent, WhileAlive
from mssvm.inference.trees import (
    BLOCK,
    LANE_STATES,
    Rooting,
    group_lanes,
    in_blocks,
    make_tables,
    stack_forests,
)
from mssvm.potentials import Marginals, Potentials, Query


@dataclass(frozen=True, eq=False)
class Conditioned:
    """A topology with its cut variable (-1 if there is none) and the forest that is left."""

    variable: int
    rooting: Rooting
    edge_factor: Ints
    edge_cut: Bools
    hang_factor: Ints
    hang_node: Ints
    chain: bool  # the rest is a chain 0 - 1 - 2 ... of one cardinality, every edge holds the cut variable

    @classmethod
    def of(cls, graph: Graph) -> Conditioned:
        """Cut at the variable in most factors that leaves a pairwise forest."""
        large = [set(s) for s in graph.scopes if len(s) > 2]
        candidates = set.intersection(*large) if large else set(range(graph.n_vars))
        degree = np.bincount(graph.scope_flat, minlength=graph.n_vars)
        for v in sorted(candidates, key=lambda i: (-int(degree[i]), i))[:8]:
            found = cls.at(graph, v)
            if found.rooting.valid:
                return found
        none = np.zeros(0, dtype=np.int64)
        return cls(-1, Rooting.of(0, ((0, 0, 0),)), none, none.astype(bool), none, none, False)

    @classmethod
    def at(cls, graph: Graph, v: int) -> Conditioned:
        rest = [tuple(u - (u > v) for u in s if u != v) for s in graph.scopes]
        edges = [f for f, s in enumerate(rest) if len(s) >= 2]
        hang = [f for f, s in enumerate(rest) if len(s) == 1]
        scopes = tuple(rest[f] for f in edges)
        cards = set(graph.cards[:v] + graph.cards[v + 1 :])
        n = graph.n_vars - 1
        whole = all(v in graph.scopes[f] for f in edges)
        at_end = v in (0, n) and len(cards) == 1 and min(cards) <= LANE_STATES
        hung = [rest[f][0] for f in hang]
        tidy = n > 1 and scopes == tuple((t, t + 1) for t in range(n - 1)) and sorted(hung) in ([], list(range(n)))
        return cls(
            v,
            Rooting.of(n, scopes),
            np.array(edges, dtype=np.int64),
            np.array([v in graph.scopes[f] for f in edges], dtype=bool),
            np.array(hang, dtype=np.int64),
            np.array(hung, dtype=np.int64),
            whole and at_end and tidy,
        )


class Lanes(NamedTuple):
    """Hidden chains that run side by side: group offsets, members, and the roles' temperatures."""

    ptr: Ints
    rows: Ints
    at_y: bool
    cut_at_y: bool


@dataclass(frozen=True, eq=False)
class CutPlan:
    """Everything about a batch that does not depend on potentials, roles or masks."""

    ok: Bools
    cut: Cut
    forest: Forest
    layout: Layout
    starts: Ints
    rows: Ints
    cols: Ints
    turn: Ints | None  # entry of a table with the cut variable first -> entry of the table as it is
    turn_mu: Ints | None
    chains: Ints  # instances for the side-by-side kernel, sorted
    cut_at: Ints  # first state of each instance's cut variable
    schedules: WhileAlive[Query, dict[tuple[float, float, bytes], list[Lanes]]] = field(
        default_factory=WhileAlive, repr=False
    )

    @classmethod
    def of(cls, batch: Batch, condition: Callable[[Graph], Conditioned]) -> CutPlan:
        found = [condition(g) for g in batch.graphs]
        cards = [
            np.delete(g.card_array, c.variable) if c.variable >= 0 else g.card_array
            for g, c in zip(batch.graphs, found, strict=True)
        ]
        ok = np.array([c.rooting.valid for c in found], dtype=bool)[batch.graph_of]
        cut = _stack(batch, found)
        shape = [_shapes(g, c) for g, c in zip(batch.graphs, found, strict=True)]
        rows = np.concatenate([np.zeros((0, 5), dtype=np.int64), *[shape[g] for g in batch.graph_of]])
        used = np.flatnonzero(rows[:, 0] > 0)
        at, first, inverse = np.unique(batch.table_at[used], return_index=True, return_inverse=True)
        odd = np.any(rows[used] != rows[used][first][inverse], axis=1)
        owner = np.repeat(np.arange(len(batch)), np.diff(batch.factor_ptr))
        ok[owner[used[odd]]] = False
        edges = rows[used][first][:, 4] > 1
        kind, at = rows[used][first][edges], at[edges]
        starts = spans_of(at, kind)
        repeat = kind[:, 0]
        layout = Layout(batch.graph_of, batch.var_ptr, batch.factor_ptr, batch.unary_ptr, batch.table_at, batch.mu_at)
        even = used[~odd]
        turned = bool(np.any(rows[even, 3] > 0))
        chains = np.flatnonzero(
            ok & np.array([c.chain for c in found], dtype=bool)[batch.graph_of] & _one_table(batch, found)
        )
        variable = np.maximum(cut.variable[batch.graph_of], 0)
        return cls(
            ok, cut, stack_forests([c.rooting for c in found], cards), layout,
            starts, np.repeat(kind[:, 1], repeat), np.repeat(kind[:, 2], repeat),
            _turn(batch.table_at[even], rows[even], batch.n_table_entries) if turned else None,
            _turn(batch.mu_at[even], rows[even], batch.n_mu_entries) if turned else None,
            chains, batch.unary_ptr[batch.var_ptr[:-1] + variable],
        )  # fmt: skip


def spans_of(at: Ints, kind: Ints) -> Ints:
    """Starts of the slices of each table, one per state of the cut variable."""
    size = kind[:, 1] * kind[:, 2]
    index = spans(np.zeros(len(at), dtype=np.int64), kind[:, 0])
    return np.repeat(at, kind[:, 0]) + index * np.repeat(size, kind[:, 0])


def _shapes(graph: Graph, found: Conditioned) -> Ints:
    """Per factor: slices, rows, columns, axis of the cut variable, order of a slice; zeros if there is no cut."""
    out = np.zeros((graph.n_factors, 5), dtype=np.int64)
    for f, scope in enumerate(graph.scopes if found.variable >= 0 else ()):
        rest = [graph.cards[u] for u in scope if u != found.variable]
        held = found.variable in scope
        states = graph.cards[found.variable] if held else 1
        n = rest[0] if len(rest) > 1 else 1
        out[f] = states, n, rest[-1], scope.index(found.variable) if held else 0, len(rest)
    return out


def _turn(at: Ints, rows: Ints, size: int) -> Ints:
    """Index array that reads tables as if the cut variable were their first axis."""
    out = np.arange(size)
    for start, (states, n, m, axis, order) in zip(at.tolist(), rows.tolist(), strict=True):
        if axis > 0:
            shape = [n, m] if order == 2 else [m]
            shape.insert(axis, states)
            inside = np.moveaxis(np.arange(states * n * m).reshape(shape), axis, 0)
            out[start : start + states * n * m] = start + inside.ravel()
    return out


def _stack(batch: Batch, found: list[Conditioned]) -> Cut:
    """The conditioned topologies of a batch side by side; those without a cut are empty."""
    empty = np.zeros(0, dtype=np.int64)
    kept = [c for c in found if c.variable >= 0]
    return Cut(
        np.array([c.variable for c in found], dtype=np.int64),
        np.array(
            [g.cards[c.variable] if c.variable >= 0 else 0 for g, c in zip(batch.graphs, found, strict=True)],
            dtype=np.int64,
        ),
        np.concatenate([empty, *[c.edge_factor for c in kept]]),
        np.concatenate([empty.astype(bool), *[c.edge_cut for c in kept]]),
        offsets(np.array([len(c.hang_factor) for c in found], dtype=np.int64)),
        np.concatenate([empty, *[c.hang_factor for c in kept]]),
        np.concatenate([empty, *[c.hang_node for c in kept]]),
    )


def _one_table(batch: Batch, found: list[Conditioned]) -> Bools:
    """Instances all of whose edges read the same table."""
    count = np.array([len(c.edge_factor) for c in found], dtype=np.int64)[batch.graph_of]
    edges = np.concatenate([np.zeros(0, dtype=np.int64), *[found[g].edge_factor for g in batch.graph_of]])
    at = batch.table_at[np.repeat(batch.factor_ptr[:-1], count) + edges]
    first = np.repeat(at[np.minimum(offsets(count)[:-1], max(len(at) - 1, 0))], count) if len(at) else at
    same = np.ones(len(batch), dtype=bool)
    same[np.repeat(np.arange(len(batch)), count)[at != first]] = False
    return same


@dataclass
class Conditioning:
    """Exact inference on graphs that one variable separates into a pairwise forest (factors up to order three).

    Exact when that variable is an output, is clamped, or the temperatures of all free variables agree with its own.
    """

    threads: int = 1
    _found: Recent[Graph, Conditioned] = field(default_factory=lambda: Recent(4096), init=False, repr=False)
    _plans: WhileAlive[Batch, CutPlan] = field(default_factory=WhileAlive, init=False, repr=False)

    def _plan(self, batch: Batch) -> CutPlan:
        return self._plans.get(batch, lambda: CutPlan.of(batch, lambda g: self._found.get(g, Conditioned.of)))

    def supports(self, batch: Batch, query: Query, eps_y: float, eps_h: float) -> Bools:
        """Per instance: does one variable separate it into a forest on which these roles and temperatures are exact?"""
        plan = self._plan(batch)
        ok = plan.ok.copy()
        if eps_y != eps_h and ok.any():
            check_cuts(plan.cut, plan.forest, plan.layout, query.allowed, query.output, ok)
        return ok

    def fill(
        self, batch: Batch, theta: Potentials, query: Query, eps_y: float, eps_h: float,
        which: Ints, value: Floats, mu: Marginals | None,
    ) -> None:  # fmt: skip
        """Write value and marginals of the instances ``which`` in place."""
        plan = self._plan(batch)
        raw = theta.tables if plan.turn is None else theta.tables[plan.turn]
        ty = make_tables(raw, eps_y, plan.starts, plan.rows, plan.cols)
        th = ty if eps_h == eps_y else make_tables(raw, eps_h, plan.starts, plan.rows, plan.cols)
        out = mu if mu is not None else Marginals(np.zeros(0), np.zeros(0))
        turned = out if mu is None or plan.turn_mu is None else Marginals(mu.unary, mu.tables[plan.turn_mu])
        done = np.zeros(len(batch), dtype=bool)
        self._chains(plan, theta, query, eps_y, eps_h, ty, th, which, value, mu is not None, turned, done)
        rest = which[~done[which]]

        def work(part: Ints) -> bool:
            return bool(
                run_cuts(
                    part, plan.cut, plan.forest, plan.layout, theta.unary, query.allowed, query.output, eps_y, eps_h,
                    ty, th, value, mu is not None, turned.unary, turned.tables,
                )
            )  # fmt: skip

        if not plan.ok[which].all() or (len(rest) and not in_blocks(rest, self.threads, BLOCK, work)):
            raise UnsupportedError(
                "no single variable separates an instance into an exactly solvable forest; use general elimination."
            )
        if mu is not None and plan.turn_mu is not None:
            mu.tables[plan.turn_mu] = turned.tables

    def _chains(
        self, plan: CutPlan, theta: Potentials, query: Query, eps_y: float, eps_h: float, ty: Tables, th: Tables,
        which: Ints, value: Floats, want: bool, mu: Marginals, done: Bools,
    ) -> None:  # fmt: skip
        """Hidden chains under one cut variable, side by side, wherever the chain has one temperature above zero."""
        known = plan.schedules.get(query, dict)
        key = (eps_y, eps_h, which.tobytes())
        if key not in known:
            known[key] = self._schedule(plan, query, eps_y, eps_h, which)
        for lanes in known[key]:
            eps, tables = (eps_y, ty) if lanes.at_y else (eps_h, th)
            eps_cut = eps_y if lanes.cut_at_y else eps_h

            def work(
                part: Ints,
                lanes: Lanes = lanes,
                at: tuple[float, float, Tables] = (eps, eps_cut, tables),
            ) -> bool:
                run_cut_chains(
                    lanes.ptr[part[0] : part[-1] + 2], lanes.rows, plan.cut, plan.forest, plan.layout, theta.unary,
                    query.allowed, *at, value, want, mu.unary, mu.tables, done,
                )  # fmt: skip
                return True

            in_blocks(np.arange(len(lanes.ptr) - 1), self.threads, 1, work)

    def _schedule(self, plan: CutPlan, query: Query, eps_y: float, eps_h: float, which: Ints) -> list[Lanes]:
        """Which chains run side by side, by temperatures, table, label and length."""
        layout, cut = plan.layout, plan.cut
        members = np.intersect1d(plan.chains, which)
        g = layout.graph_of[members]
        cut_var = layout.var_ptr[members] + cut.variable[g]
        chain_h = self._chain_mode(layout, cut_var, members, query, eps_y == eps_h)
        role = query.output[cut_var]
        states = cut.states[g]
        label, free = _label(query.allowed, plan.cut_at[members], states)
        k = plan.forest.card[plan.forest.node_ptr[g]]
        table = layout.table_at[layout.factor_ptr[members] + cut.edge_factor[plan.forest.edge_ptr[g]]]
        hangs = cut.hang_ptr[g + 1] - cut.hang_ptr[g]
        count = layout.var_ptr[members + 1] - layout.var_ptr[members] - 1
        keys = (count, label, hangs > 0, table, states, k)
        out = []
        for mode, eps in ((AT_Y, eps_y), (AT_H, eps_h)):
            for output in (True, False):
                legal = output | ~free | (mode == AT_H) | (eps_y == eps_h)
                chosen = np.flatnonzero((chain_h == mode) & (role == output) & legal)
                if eps == 0.0 or not len(chosen):
                    continue
                chosen = chosen[np.lexsort([key[chosen] for key in keys])]
                sorted_keys = tuple(key[chosen].astype(np.int64) for key in keys[1:])
                ptr = group_lanes(sorted_keys, (k * states)[chosen], count[chosen])
                out.append(Lanes(ptr, members[chosen], mode == AT_Y, output))
        return out

    def _chain_mode(self, layout: Layout, cut_var: Ints, members: Ints, query: Query, equal: bool) -> Ints:
        """Temperature mode of each chain, its cut variable left out."""
        modes = np.full(len(layout.graph_of), AT_Y, dtype=np.int64)
        if not equal:
            # A variable without two allowed states does not count as free: hide the cut variables that way.
            hidden = query.allowed.copy()
            hidden[spans(layout.unary_ptr[cut_var], layout.unary_ptr[cut_var + 1] - layout.unary_ptr[cut_var])] = False
            read_modes(members, layout, hidden, query.output, modes)
        return modes[members]


def _label(allowed: Bools, at: Ints, states: Ints) -> tuple[Ints, Bools]:
    """The only allowed state of each block ``at : at + states`` (-1 if several), and whether there are several."""
    out, seen = np.full(len(at), -1, dtype=np.int64), np.zeros(len(at), dtype=np.int64)
    for c in range(int(states.max(initial=0))):
        hit = np.flatnonzero(c < states)
        hit = hit[allowed[at[hit] + c]]
        out[hit] = c
        seen[hit] += 1
    return np.where(seen > 1, -1, out), seen > 1
