"""Hidden components as tables over the outputs they border.

Given the outputs, a model with hidden variables falls apart into its hidden components. ``Components`` is a batch with
one instance per component and per joint state of its bordering outputs: the component's hidden variables with the
tables sliced at that state. So any function of a component given its border (a power sum at some temperature, say) is
one batched inference call. It also lays out the graph over outputs alone on which those functions are tables. Wiring
only; potentials are gathered and marginals scattered through index arrays over [unary | tables].
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from mssvm.core.arrays import Bools, Floats, Ints, sum_by
from mssvm.core.components import hidden_components
from mssvm.core.errors import MemoryLimitError
from mssvm.core.potentials import Marginals, Potentials, Query
from mssvm.core.topology import Batch, Topology, spans

LIMIT = 1 << 20  # components times border states, in all


@dataclass(frozen=True, eq=False)
class Component:
    """Hidden variables connected with each other, the outputs they border, and their factors (all instance-local)."""

    hidden: tuple[int, ...]
    border: tuple[int, ...]
    factors: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Components:
    """Components as a batch, the batch over outputs, and where entries of each come from."""

    source: Batch
    batch: Batch  # one instance per component and border state
    query: Query
    states: tuple[Ints, Ints, Ints]  # entries of the components' unary scores, and the theta and mu behind them
    tables: tuple[Ints, Ints]  # for entries of the components' tables and table marginals: theta and mu
    owner: Ints  # instance of the source behind each
    slot: Ints  # where each one's number goes: an entry of [outputs' unary | outputs' tables | one per instance]
    weight: Ints  # where each one's probability is read: an entry of [outputs' mu.unary | mu.tables | one]
    outputs: Batch
    output_states: Ints  # entries of theta.unary that are states of outputs, in the order of ``outputs``
    output_tables: tuple[Ints, Ints]  # entries of theta.tables, and where they go in the outputs' tables
    output_mu: tuple[Ints, Ints]  # entries of Marginals.tables, and of the outputs' table marginals

    def component_theta(self, theta: Potentials) -> Potentials:
        """The potentials of the components."""
        scores = np.concatenate([theta.unary, theta.tables])
        entry, source, _ = self.states
        return Potentials(sum_by(entry, scores[source], self.batch.n_states), scores[self.tables[0]])

    def output_theta(self, theta: Potentials, numbers: Floats) -> tuple[Potentials, Floats]:
        """Potentials over outputs with one number per component added, and a constant per instance."""
        n, m = self.outputs.n_states, self.outputs.n_table_entries
        added = sum_by(self.slot, numbers, n + m + len(self.source))
        tables = added[n : n + m]
        tables[self.output_tables[1]] += theta.tables[self.output_tables[0]]
        return Potentials(added[:n] + theta.unary[self.output_states], tables), added[n + m :]

    def output_query(self, query: Query) -> Query:
        """The part of a query that concerns outputs."""
        return Query(query.output[query.output], query.allowed[self.output_states])

    def weights(self, mu: Marginals) -> Floats:
        """Probability of each component's border state under marginals of the outputs."""
        return np.concatenate([mu.unary, mu.tables, [1.0]])[self.weight]

    def scatter(self, inner: Marginals, numbers: Floats, outer: Marginals | None) -> Marginals:
        """Marginals of the components times ``numbers`` (one each), plus those of the outputs, in theta's layout."""
        n = self.source.n_states
        entry, _, target = self.states
        unary = inner.unary * numbers[self.batch.owner[self.batch.state_var]]
        tables = inner.tables * numbers[self.batch.mu_owner]
        into, added = np.append(target, self.tables[1]), np.append(unary[entry], tables)
        unary, tables = np.split(sum_by(into, added, n + self.source.n_mu_entries), [n])
        if outer is not None:
            unary[self.output_states] += outer.unary
            tables[self.output_mu[0]] += outer.tables[self.output_mu[1]]
        return Marginals(unary, tables)

    @classmethod
    def of(cls, batch: Batch, query: Query) -> Components:
        """Find the components of every instance and lay everything out."""
        found = components(batch, query.output)
        _check_size(batch, found)
        outputs, first_factor = _outputs(batch, query, found)
        return _ComponentLayout(batch, query, found, outputs, first_factor).build()


def components(batch: Batch, output: Bools) -> list[list[Component]]:
    """Connected components of the hidden variables of every instance."""
    g = hidden_components(batch, output)
    factors = np.argsort(g.factor_component, kind="stable")
    factor_ptr = np.searchsorted(g.factor_component[factors], np.arange(len(g.tree) + 1))
    found: list[list[Component]] = [[] for _ in range(len(batch))]
    for c in range(len(g.tree)):
        hidden = np.sort(g.visit[g.member_ptr[c] : g.member_ptr[c + 1]])
        b = int(batch.owner[hidden[0]])
        own = (factors[factor_ptr[c] : factor_ptr[c + 1]] - batch.factor_ptr[b]).tolist()
        around = (v for f in own for v in batch.topology(b).scopes[f] if output[batch.var_ptr[b] + v])
        members = tuple((hidden - batch.var_ptr[b]).tolist())
        found[b].append(Component(members, tuple(dict.fromkeys(around)), tuple(own)))
    return found


def _check_size(batch: Batch, found: list[list[Component]]) -> None:
    total = 0.0
    for b, parts in enumerate(found):
        cards = batch.topology(b).cards
        total += sum(float(np.prod([float(cards[v]) for v in part.border])) for part in parts)
        if total > LIMIT:
            worst = max(parts, key=lambda part: len(part.border))
            raise MemoryLimitError(
                f"instance {b}: a hidden component borders {len(worst.border)} outputs, and tables over such borders "
                f"would need more than {LIMIT} entries; use a member that propagation can train, such as MSSVM."
            )


def _outputs(batch: Batch, query: Query, found: list[list[Component]]) -> tuple[Batch, list[dict[int, int]]]:
    """The batch over outputs: factors among outputs keep their tables, each component with two or more gets one."""
    graphs, ids, places = [], [], []
    fresh = batch.n_table_entries
    for b, parts in enumerate(found):
        graph, place = batch.topology(b), _renumber(batch, query, b)
        scopes, row = [], []
        for f, scope in enumerate(graph.scopes):
            if all(v in place for v in scope):
                scopes.append(tuple(place[v] for v in scope))
                row.append(int(batch.table_at[batch.factor_ptr[b] + f]))
        factor_of: dict[int, int] = {}
        for c, part in enumerate(parts):
            if len(part.border) > 1:
                factor_of[c] = len(scopes)
                scopes.append(tuple(place[v] for v in part.border))
                row.append(fresh)
                fresh += 1
        graphs.append(Topology(tuple(graph.cards[v] for v in place), tuple(scopes)))
        ids.append(row)
        places.append(factor_of)
    return Batch.build(graphs, ids), places


def _renumber(batch: Batch, query: Query, b: int) -> dict[int, int]:
    chosen = np.flatnonzero(query.output[batch.var_ptr[b] : batch.var_ptr[b + 1]])
    return {int(v): k for k, v in enumerate(chosen)}


class _ComponentLayout:
    """Builds the index arrays of a ``Components``."""

    def __init__(
        self, batch: Batch, query: Query, found: list[list[Component]], outputs: Batch, factor_of: list[dict[int, int]]
    ) -> None:
        self.batch, self.query, self.found, self.outputs, self.factor_of = batch, query, found, outputs, factor_of
        self.graphs: list[Topology] = []
        self.ids: list[list[int]] = []
        self.known: dict[tuple[int, ...], int] = {}  # a slice of a table: its name in the components
        self.n_entries = 0
        self.states: list[tuple[Ints, Ints, Ints]] = []
        self.tables: list[tuple[Ints, Ints]] = []
        self.allowed: list[Bools] = []
        self.owner: list[int] = []
        self.slot: list[int] = []
        self.weight: list[int] = []

    def build(self) -> Components:
        for b, parts in enumerate(self.found):
            for c, part in enumerate(parts):
                self._add(b, c, part)
        inner = Batch.build(self.graphs, self.ids)
        tables, mu = np.zeros(inner.n_table_entries, dtype=np.int64), np.zeros(inner.n_mu_entries, dtype=np.int64)
        tables[spans(inner.table_at, inner.table_sizes)] = _join([source for source, _ in self.tables])
        mu[spans(inner.mu_at, inner.table_sizes)] = _join([target for _, target in self.tables])
        entry, source, target = (_join([arrays[k] for arrays in self.states]) for k in range(3))
        allowed = np.concatenate(self.allowed) if self.allowed else np.zeros(0, dtype=bool)
        states = self.query.output[self.batch.state_var]
        outer_source, place, mu_source, mu_place = self._kept()
        return Components(
            self.batch, inner, Query(np.zeros(inner.n_vars, dtype=bool), allowed), (entry, source, target),
            (tables, mu), np.array(self.owner, dtype=np.int64), np.array(self.slot, dtype=np.int64),
            np.array(self.weight, dtype=np.int64), self.outputs, np.flatnonzero(states), (outer_source, place),
            (mu_source, mu_place),
        )  # fmt: skip

    def _add(self, b: int, c: int, part: Component) -> None:
        """One component, once for each joint state of its border."""
        batch, graph = self.batch, self.batch.topology(b)
        hidden = batch.var_ptr[b] + np.array(part.hidden, dtype=np.int64)
        cards = batch.cards[hidden]
        own, first = spans(batch.unary_ptr[hidden], cards), np.cumsum(cards) - cards
        local = {v: k for k, v in enumerate(part.hidden)}
        inner = [[local[v] for v in graph.scopes[f] if v in local] for f in part.factors]
        wiring = Topology(tuple(cards.tolist()), tuple(tuple(scope) for scope in inner if len(scope) > 1))
        offset = batch.n_states
        for at, state in zip(self._slots(b, c, part), np.ndindex(*[graph.cards[v] for v in part.border]), strict=True):
            here, ids = dict(zip(part.border, state, strict=True)), []
            self.states.append((self.n_entries + np.arange(len(own)), own, own))
            for f, scope in zip(part.factors, inner, strict=True):
                key, entries = _slice(graph, f, here)
                table, mu = batch.table_at[batch.factor_ptr[b] + f], batch.mu_at[batch.factor_ptr[b] + f]
                source, target = offset + table + entries, offset + mu + entries
                if len(scope) > 1:
                    ids.append(self.known.setdefault((int(table), *key), len(self.known)))
                    self.tables.append((source, target))
                else:
                    k = scope[0]
                    self.states.append((self.n_entries + first[k] + np.arange(cards[k]), source, target))
            self.graphs.append(wiring)
            self.ids.append(ids)
            self.allowed.append(self.query.allowed[own])
            self.n_entries += len(own)
            self.owner.append(b)
            self.slot.append(at[0])
            self.weight.append(at[1])

    def _slots(self, b: int, c: int, part: Component) -> Iterator[tuple[int, int]]:
        """For each joint state of the border: where its number goes, and where its probability is read."""
        out = self.outputs
        n, m = out.n_states, out.n_table_entries
        if not part.border:
            yield n + m + b, n + out.n_mu_entries
        elif len(part.border) == 1:
            v = int(out.var_ptr[b]) + _renumber(self.batch, self.query, b)[part.border[0]]
            first = int(out.unary_ptr[v])
            yield from ((first + s, first + s) for s in range(int(out.cards[v])))
        else:
            f = int(out.factor_ptr[b]) + self.factor_of[b][c]
            for s in range(int(out.table_sizes[f])):
                yield n + int(out.table_at[f]) + s, n + int(out.mu_at[f]) + s

    def _kept(self) -> tuple[Ints, Ints, Ints, Ints]:
        """Where factors among outputs read their tables and write their marginals, before and after."""
        old, new = [], []
        for b in range(len(self.batch)):
            visible = self.query.output[self.batch.var_ptr[b] : self.batch.var_ptr[b + 1]]
            kept = [f for f, scope in enumerate(self.batch.topology(b).scopes) if all(visible[v] for v in scope)]
            old += [int(self.batch.factor_ptr[b]) + f for f in kept]
            new += [int(self.outputs.factor_ptr[b]) + k for k in range(len(kept))]
        before, after = np.array(old, dtype=np.int64), np.array(new, dtype=np.int64)
        _, first = np.unique(self.batch.table_at[before], return_index=True)
        _, mu_first = np.unique(self.batch.mu_at[before], return_index=True)
        sizes = self.batch.table_sizes[before]
        return (
            spans(self.batch.table_at[before][first], sizes[first]),
            spans(self.outputs.table_at[after][first], sizes[first]),
            spans(self.batch.mu_at[before][mu_first], sizes[mu_first]),
            spans(self.outputs.mu_at[after][mu_first], sizes[mu_first]),
        )


def _slice(graph: Topology, f: int, here: dict[int, int]) -> tuple[tuple[int, ...], Ints]:
    """The states of factor f's border variables (-1 for others), and the entries of its table at these states."""
    scope = graph.scopes[f]
    at = tuple(here.get(v, -1) for v in scope)
    entries = np.arange(graph.table_sizes[f]).reshape([graph.cards[v] for v in scope])
    return at, entries[tuple(slice(None) if s < 0 else s for s in at)].ravel()


def _join(parts: list[Ints]) -> Ints:
    return np.concatenate(parts).astype(np.int64) if parts else np.zeros(0, dtype=np.int64)
