"""What conditioning works out about a batch once: cut variables, the forests that are left, where their tables lie."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from mssvm.core.arrays import Bools, Ints
from mssvm.core.potentials import Query
from mssvm.core.topology import Batch, Topology, offsets, spans
from mssvm.engines.numba.forests.cutset import Cut
from mssvm.engines.numba.forests.scaled import Forest, Layout
from mssvm.inference.exact.trees import LANE_STATES, Rooting, stack_forests, tables_of
from mssvm.inference.remember import WhileAlive


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
    def of(cls, graph: Topology) -> Conditioned:
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
    def at(cls, graph: Topology, v: int) -> Conditioned:
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
    narrowed: WhileAlive[Query, WhileAlive[Query, tuple[bool]]] = field(default_factory=WhileAlive, repr=False)

    def narrows_cuts(self, batch: Batch, query: Query, given: Query) -> bool:
        """Whether all instances are chains for the side-by-side kernel and the two queries differ in cut variables."""

        def look() -> tuple[bool]:
            differs = query.allowed != given.allowed
            differs[spans(self.cut_at, self.cut.states[batch.topology_of])] = False
            same = np.array_equal(query.output, given.output) and not differs.any()
            return (bool(same and len(self.chains) == len(batch)),)

        return self.narrowed.get(query, WhileAlive).get(given, look)[0]

    @classmethod
    def of(cls, batch: Batch, condition: Callable[[Topology], Conditioned]) -> CutPlan:
        found = [condition(g) for g in batch.topologies]
        cards = [
            np.delete(g.card_array, c.variable) if c.variable >= 0 else g.card_array
            for g, c in zip(batch.topologies, found, strict=True)
        ]
        ok = np.array([c.rooting.valid for c in found], dtype=bool)[batch.topology_of]
        cut = _stack(batch, found)
        shape = [_shapes(g, c) for g, c in zip(batch.topologies, found, strict=True)]
        rows = np.concatenate([np.zeros((0, 5), dtype=np.int64), *[shape[g] for g in batch.topology_of]])
        used = np.flatnonzero(rows[:, 0] > 0)
        at, first, _, odd = tables_of(batch, used, rows, ok)
        edges = rows[used][first][:, 4] > 1
        kind, at = rows[used][first][edges], at[edges]
        starts = _slices(at, kind)
        repeat = kind[:, 0]
        b = batch
        layout = Layout(b.topology_of, b.var_ptr, b.factor_ptr, b.unary_ptr, b.table_at, b.mu_at)
        even = used[~odd]
        turned = bool(np.any(rows[even, 3] > 0))
        chains = np.flatnonzero(
            ok & np.array([c.chain for c in found], dtype=bool)[batch.topology_of] & _one_table(batch, found)
        )
        variable = np.maximum(cut.variable[batch.topology_of], 0)
        return cls(
            ok, cut, stack_forests([c.rooting for c in found], cards), layout,
            starts, np.repeat(kind[:, 1], repeat), np.repeat(kind[:, 2], repeat),
            _turn(batch.table_at[even], rows[even], batch.n_table_entries) if turned else None,
            _turn(batch.mu_at[even], rows[even], batch.n_mu_entries) if turned else None,
            chains, batch.unary_ptr[batch.var_ptr[:-1] + variable],
        )  # fmt: skip


def _slices(at: Ints, kind: Ints) -> Ints:
    """Starts of the slices of each table, one per state of the cut variable."""
    size = kind[:, 1] * kind[:, 2]
    index = spans(np.zeros(len(at), dtype=np.int64), kind[:, 0])
    return np.repeat(at, kind[:, 0]) + index * np.repeat(size, kind[:, 0])


def _shapes(graph: Topology, found: Conditioned) -> Ints:
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
            [g.cards[c.variable] if c.variable >= 0 else 0 for g, c in zip(batch.topologies, found, strict=True)],
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
    count = np.array([len(c.edge_factor) for c in found], dtype=np.int64)[batch.topology_of]
    edges = np.concatenate([np.zeros(0, dtype=np.int64), *[found[g].edge_factor for g in batch.topology_of]])
    at = batch.table_at[np.repeat(batch.factor_ptr[:-1], count) + edges]
    first = np.repeat(at[np.minimum(offsets(count)[:-1], max(len(at) - 1, 0))], count) if len(at) else at
    same = np.ones(len(batch), dtype=bool)
    same[np.repeat(np.arange(len(batch)), count)[at != first]] = False
    return same
