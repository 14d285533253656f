"""Hidden components as tables over the outputs they border.

Given the outputs, a model with hidden variables falls apart into its hidden components. ``Components`` is a batch with
one instance per component and per joint state of its bordering outputs: the component's hidden variables with the
tables sliced at that state. So any function of a component given its border (a power sum at some temperature, say) is
one batched inference call. It also lays out the graph over outputs alone on which those functions are tables. Wiring
only; potentials are gathered and marginals scattered through index arrays over [unary | tables].
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np

from mssvm.core.arrays import Bools, Floats, Ints, sum_by
from mssvm.core.components import hidden_components
from mssvm.core.errors import MemoryLimitError
from mssvm.core.potentials import Marginals, Potentials, Query
from mssvm.core.topology import Batch, Topology, offsets, ranks, spans

LIMIT = 1 << 20  # components times border states, in all


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

    @cached_property
    def _into(self) -> tuple[Ints, Ints, Ints]:
        """Where marginals of the components go, the component of each of their states, and of each table entry."""
        state_owner = self.batch.owner[self.batch.state_var]
        return np.append(self.states[2], self.tables[1]), state_owner, self.batch.mu_owner

    def scatter(self, inner: Sequence[tuple[Marginals, Floats]], outer: Marginals) -> Marginals:
        """Sum of marginals of the components, each times its numbers (one a component), and of those of the outputs,
        in theta's layout."""
        n, (into, state_owner, table_owner) = self.source.n_states, self._into
        total = np.zeros(n + self.source.n_mu_entries)
        total[self.output_states] = outer.unary
        total[n + self.output_mu[0]] = outer.tables[self.output_mu[1]]
        for mu, numbers in inner:
            unary, tables = mu.unary * numbers[state_owner], mu.tables * numbers[table_owner]
            total += sum_by(into, np.append(unary[self.states[0]], tables), len(total))
        return Marginals(total[:n], total[n:])

    @classmethod
    def of(cls, batch: Batch, query: Query) -> Components:
        """Find the components of every instance and lay everything out."""
        layout = _Layout(batch, query)
        inner, allowed, states, tables = layout.inner()
        outputs = layout.outputs
        before, after, kept = layout.kept, layout.kept_after, []
        for old, new in ((batch.table_at, outputs.table_at), (batch.mu_at, outputs.mu_at)):
            _, first = np.unique(old[before], return_index=True)
            sizes = batch.table_sizes[before[first]]
            kept.append((spans(old[before[first]], sizes), spans(new[after[first]], sizes)))
        return cls(
            batch, inner, Query(np.zeros(inner.n_vars, dtype=bool), allowed), states, tables,
            np.repeat(layout.owner, layout.n_states), *layout.slots(), outputs,
            np.flatnonzero(query.output[batch.state_var]), kept[0], kept[1],
        )  # fmt: skip


@dataclass(frozen=True, eq=False)
class _Shape:
    """What components of one shape have in common.

    ``wiring`` joins the hidden variables. Index arrays come in pairs: a factor of the component (-1: its variables' own
    scores), and by state of the border an entry there. ``states`` are what adds up to the unary scores ``into``,
    ``tables`` the entries of the tables, ``slices`` the first entry of each table.
    """

    wiring: Topology
    into: Ints
    states: tuple[Ints, Ints]
    tables: tuple[Ints, Ints]
    slices: tuple[Ints, Ints]
    patterns: Ints  # of each table: which variables of the factor are hidden, as bits

    @classmethod
    def of(cls, cards: Ints, border: Ints, scopes: list[Ints]) -> _Shape:
        """``cards`` of hidden variables and of the ``border``; scopes name the k-th hidden variable k, the j-th of the
        border -1 - j."""
        n, first, nothing = int(np.prod(border)), offsets(cards), np.zeros(0, dtype=np.int64)
        border_states = np.indices(tuple(border.tolist())).reshape(len(border), n)
        into, states = [np.arange(first[-1])], [(np.full(first[-1], -1), np.tile(np.arange(first[-1]), (n, 1)))]
        wired, tables, slices, patterns = [], [(nothing, np.zeros((n, 0), dtype=np.int64))], [], []
        for f, scope in enumerate(scopes):
            entries = np.zeros((n, 1), dtype=np.int64)
            for k in scope.tolist():
                if k < 0:
                    entries = entries * border[-1 - k] + border_states[-1 - k][:, None]
                else:
                    entries = (entries[:, :, None] * cards[k] + np.arange(cards[k])).reshape(n, -1)
            here = np.full(entries.shape[1], f), entries
            inside = scope[scope >= 0]
            if len(inside) > 1:
                wired.append(tuple(inside.tolist()))
                tables.append(here)
                slices.append((here[0][:1], entries[:, :1]))
                patterns.append(sum(1 << i for i, k in enumerate(scope.tolist()) if k >= 0))
            else:
                into.append(first[inside[0]] + np.arange(cards[inside[0]]))
                states.append(here)
        wiring = Topology(tuple(cards.tolist()), tuple(wired))
        scored, entered, named = (
            (np.concatenate([f for f, _ in pairs]), np.hstack([at for _, at in pairs]))
            for pairs in (states, tables, [tables[0], *slices])
        )
        return cls(wiring, np.concatenate(into), scored, entered, named, np.array(patterns, dtype=np.int64))


class _Layout:
    """The components of a batch one after the other: hidden variables, factors and bordering outputs of each."""

    def __init__(self, batch: Batch, query: Query) -> None:
        self.batch, self.query = batch, query
        found = hidden_components(batch, query.output)
        n = len(found.tree)
        self.kept = np.flatnonzero(found.inside == 0)  # factors among outputs
        hidden = np.flatnonzero(~query.output)
        self.hidden, self.hidden_ptr = hidden[np.argsort(found.component[hidden], kind="stable")], found.member_ptr
        self.owner = batch.owner[self.hidden[self.hidden_ptr[:-1]]]
        factors = np.flatnonzero(found.factor_component >= 0)
        self.factors = factors[np.argsort(found.factor_component[factors], kind="stable")]
        self.factor_ptr = np.searchsorted(found.factor_component[self.factors], np.arange(n + 1))
        sizes = np.diff(batch.scope_ptr)[self.factors]
        scope = batch.scope_vars[spans(batch.scope_ptr[self.factors], sizes)]
        self.scope_ptr, outside = offsets(sizes), query.output[scope]
        component = np.repeat(found.factor_component[self.factors], sizes)[outside]
        _, met, pair = np.unique(component * batch.n_vars + scope[outside], return_index=True, return_inverse=True)
        order = np.argsort(met)  # outputs of a component in the order in which its factors meet them
        self.border = scope[outside][met[order]]
        self.border_ptr = np.searchsorted(component[met[order]], np.arange(n + 1))
        place, rank = np.empty(batch.n_vars, dtype=np.int64), np.empty(len(order), dtype=np.int64)
        place[self.hidden] = ranks(self.hidden_ptr)
        rank[order] = ranks(self.border_ptr)
        self.code = place[scope]  # scopes as ``_Shape`` names them
        self.code[outside] = -1 - rank[pair]
        cards = batch.cards[self.hidden]
        self.own, self.own_ptr = spans(batch.unary_ptr[self.hidden], cards), offsets(cards)[self.hidden_ptr]
        self.n_states = self._border_states()

    def _border_states(self) -> Ints:
        """Joint states of each component's border."""
        of, n = np.repeat(np.arange(len(self.owner)), np.diff(self.border_ptr)), len(self.owner)
        found = np.exp(np.minimum(sum_by(of, np.log(self.batch.cards[self.border]), n), 700.0))
        for c in np.flatnonzero(np.cumsum(np.rint(found)) > LIMIT)[:1].tolist():
            most = int(np.diff(self.border_ptr)[self.owner == self.owner[c]].max())
            raise MemoryLimitError(
                f"instance {self.owner[c]}: a hidden component borders {most} outputs, and tables over such borders "
                f"would need more than {LIMIT} entries; use a member that propagation can train, such as MSSVM."
            )
        return np.rint(found).astype(np.int64)

    # ------------------------------------------------------------------------------------- the graph over outputs

    @cached_property
    def wide(self) -> Ints:
        """Components that border two or more outputs: each is a factor among outputs."""
        return np.flatnonzero(np.diff(self.border_ptr) > 1)

    @cached_property
    def number(self) -> Ints:
        """How many outputs come before each variable, and all: the number of each output among them."""
        return offsets(self.query.output.astype(np.int64))

    @cached_property
    def outputs(self) -> Batch:
        """The batch over outputs: factors among outputs keep their tables, and wide components get one each."""
        batch, wide, instances = self.batch, self.wide, np.arange(len(self.batch) + 1)
        var_ptr = self.number[batch.var_ptr]
        kept_ptr = np.searchsorted(batch.factor_owner[self.kept], instances)
        wide_ptr = np.searchsorted(self.owner[wide], instances)
        cards = batch.cards[self.query.output]
        known: dict[tuple[bytes, ...], Topology] = {}
        graphs, ids = [], []
        for b in range(len(batch)):
            kept, new = self.kept[kept_ptr[b] : kept_ptr[b + 1]], wide[wide_ptr[b] : wide_ptr[b + 1]]
            scopes = [batch.scope_vars[batch.scope_ptr[f] : batch.scope_ptr[f + 1]] for f in kept.tolist()]
            scopes += [self.border[self.border_ptr[c] : self.border_ptr[c + 1]] for c in new.tolist()]
            local = [self.number[scope] - var_ptr[b] for scope in scopes]
            mine = cards[var_ptr[b] : var_ptr[b + 1]]
            key = mine.tobytes(), *(scope.tobytes() for scope in local)
            if key not in known:
                known[key] = Topology(tuple(mine.tolist()), tuple(tuple(scope.tolist()) for scope in local))
            graphs.append(known[key])
            ids.append(np.append(batch.table_at[kept], batch.n_table_entries + new))
        return Batch.build(graphs, ids)

    @property
    def kept_after(self) -> Ints:
        """Where the factors among outputs are in ``outputs``: first of their instance's."""
        owner = self.batch.factor_owner[self.kept]
        return self.outputs.factor_ptr[owner] + np.arange(len(owner)) - np.searchsorted(owner, owner)

    def slots(self) -> tuple[Ints, Ints]:
        """For each component and state of its border: where its number goes, and where its probability is read."""
        out = self.outputs
        n, m, owner = out.n_states, out.n_table_entries, self.owner[self.wide]
        slot, weight = n + m + self.owner, np.full(len(self.owner), n + out.n_mu_entries)
        single = np.flatnonzero(np.diff(self.border_ptr) == 1)
        slot[single] = weight[single] = out.unary_ptr[self.number[self.border[self.border_ptr[single]]]]
        factor = out.factor_ptr[owner + 1] - np.searchsorted(owner, owner, side="right") + np.arange(len(owner))
        slot[self.wide], weight[self.wide] = n + out.table_at[factor], n + out.mu_at[factor]
        return spans(slot, self.n_states), spans(weight, self.n_states)

    # ------------------------------------------------------------------------------------- the components

    def inner(self) -> tuple[Batch, Bools, tuple[Ints, Ints, Ints], tuple[Ints, Ints]]:
        """The batch of components by border state, the states it allows, and ``states`` and ``tables``.

        Components of one shape are laid out together, and all of it is then put in the order of the components.
        """
        batch, sizes = self.batch, np.diff(self.own_ptr)
        instance, first = offsets(self.n_states), offsets(np.repeat(sizes, self.n_states))
        kinds: dict[Topology, int] = {}
        kind = np.empty(len(self.owner), dtype=np.int64)
        numbers: list[list[Ints]] = [[], [], []]
        columns: list[list[Ints]] = [[] for _ in range(6)]
        for shape, chosen in self._shapes():
            kind[chosen] = kinds.setdefault(shape.wiring, len(kinds))
            at = (instance[chosen][:, None] + np.arange(self.n_states[chosen[0]]))[:, :, None]
            names = shape.patterns * batch.n_table_entries + self._entries(chosen, *shape.slices, batch.table_at)
            found = [first[at] + shape.into]
            found += [self._entries(chosen, *shape.states, start) for start in (batch.table_at, batch.mu_at)]
            found += [self._entries(chosen, *shape.tables, start) for start in (batch.table_at, batch.mu_at)]
            for column, array in zip(columns, (*found, names), strict=True):
                column.append(array.ravel())
            for number, array in zip(numbers, (found[0], found[3], names), strict=True):
                number.append(np.broadcast_to(at, array.shape).ravel())
        none = np.zeros(0, dtype=np.int64)
        order = [np.argsort(np.concatenate([none, *number]), kind="stable") for number in numbers]
        into, source, target, table, table_mu, ids = (
            np.concatenate([none, *column])[order[k]] for column, k in zip(columns, (0, 0, 0, 1, 1, 2), strict=True)
        )
        inner = Batch.of_kinds(tuple(kinds), np.repeat(kind, self.n_states), ids)
        tables, mu = np.zeros(inner.n_table_entries, dtype=np.int64), np.zeros(inner.n_mu_entries, dtype=np.int64)
        tables[spans(inner.table_at, inner.table_sizes)] = table
        mu[spans(inner.mu_at, inner.table_sizes)] = table_mu
        states = spans(np.repeat(self.own_ptr[:-1], self.n_states), np.repeat(sizes, self.n_states))
        return inner, self.query.allowed[self.own[states]], (into, source, target), (tables, mu)

    def _shapes(self) -> Iterator[tuple[_Shape, Ints]]:
        """Every shape with its components."""
        hidden, border = self.batch.cards[self.hidden], self.batch.cards[self.border]
        sizes, scope_ptr = np.diff(self.scope_ptr), self.scope_ptr[self.factor_ptr]
        arrays = (hidden, self.hidden_ptr), (border, self.border_ptr), (sizes, self.factor_ptr), (self.code, scope_ptr)
        pieces = [[array[i:j] for i, j in pairwise(ptr.tolist())] for array, ptr in arrays]
        alike: dict[tuple[bytes, ...], list[int]] = {}
        for c, described in enumerate(zip(*pieces, strict=True)):
            alike.setdefault(tuple(array.tobytes() for array in described), []).append(c)
        for chosen in alike.values():
            cards, around, orders, code = (piece[chosen[0]] for piece in pieces)
            scopes = [code[i:j] for i, j in pairwise(offsets(orders).tolist())]
            yield _Shape.of(cards, around, scopes), np.array(chosen)

    def _entries(self, chosen: Ints, factor: Ints, entry: Ints, start: Ints) -> Ints:
        """Of the chosen components by state of the border: where entries of their factors, which start at ``start``,
        are in [unary | tables]."""
        factors = np.append(self.factors, len(start))[self.factor_ptr[chosen][:, None] + np.maximum(factor, 0)]
        scores = self.own[self.own_ptr[chosen][:, None, None] + np.where(factor < 0, entry, 0)]
        return np.where(factor < 0, scores, self.batch.n_states + np.append(start, 0)[factors][:, None, :] + entry)
