"""Layout of hidden components: index arrays for ``components.Components``.

A component is described by its hidden variables, its factors and the outputs at its border. Components that are equal
in these up to renaming have one ``ComponentShape``; the layout is computed once a shape and then repeated.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np

from mssvm.core.arrays import Bools, Ints, sum_by
from mssvm.core.components import hidden_components
from mssvm.core.errors import MemoryLimitError
from mssvm.core.potentials import Query
from mssvm.core.topology import Batch, Topology, offsets, ranks, spans

LIMIT = 1 << 20  # most pairs of a component and a border state in a layout
NO_INTS: Ints = np.zeros(0, dtype=np.int64)


@dataclass(frozen=True, eq=False)
class EntryIndex:
    """Entries of the scores of a component.

    ``factor`` (entries) is a factor of the component, -1 for the unary scores of its variables; ``entry`` (border
    states, entries) the position in the factor's table, for every state of the border.
    """

    factor: Ints
    entry: Ints

    @classmethod
    def concatenate(cls, parts: list[EntryIndex]) -> EntryIndex:
        return cls(np.concatenate([part.factor for part in parts]), np.hstack([part.entry for part in parts]))


@dataclass(frozen=True, eq=False)
class ComponentShape:
    """Index arrays that all components of one shape share.

    ``wiring`` joins the hidden variables. ``states`` are the entries that add up to the unary scores ``into``,
    ``tables`` the entries of the tables, ``slices`` the first entry of each table.
    """

    wiring: Topology
    into: Ints
    states: EntryIndex
    tables: EntryIndex
    slices: EntryIndex
    patterns: Ints  # by table, a bit mask of the factor's hidden variables

    @classmethod
    def of(cls, cards: Ints, border: Ints, scopes: list[Ints]) -> ComponentShape:
        """The shape of a component from the numbers of states of its hidden variables (``cards``) and of its
        ``border``; in ``scopes`` the k-th hidden variable is k, and the j-th variable of the border is -1 - j."""
        n = int(np.prod(border))
        unary_ptr = offsets(cards)
        n_unary = unary_ptr[-1]
        into = [np.arange(n_unary)]
        states = [EntryIndex(np.full(n_unary, -1), np.tile(np.arange(n_unary), (n, 1)))]
        nothing = EntryIndex(NO_INTS, np.zeros((n, 0), dtype=np.int64))
        tables = [nothing]
        slices = [nothing]
        wired: list[tuple[int, ...]] = []
        patterns: list[int] = []
        for f, scope in enumerate(scopes):
            entries = _entries_by_border_state(cards, border, scope)
            index = EntryIndex(np.full(entries.shape[1], f), entries)
            hidden = scope[scope >= 0]
            if len(hidden) > 1:
                wired.append(tuple(hidden.tolist()))
                tables.append(index)
                slices.append(EntryIndex(index.factor[:1], entries[:, :1]))
                patterns.append(sum(1 << i for i, k in enumerate(scope.tolist()) if k >= 0))
            else:
                into.append(unary_ptr[hidden[0]] + np.arange(cards[hidden[0]]))
                states.append(index)
        return cls(
            wiring=Topology(tuple(cards.tolist()), tuple(wired)),
            into=np.concatenate(into),
            states=EntryIndex.concatenate(states),
            tables=EntryIndex.concatenate(tables),
            slices=EntryIndex.concatenate(slices),
            patterns=np.array(patterns, dtype=np.int64),
        )


def _entries_by_border_state(cards: Ints, border: Ints, scope: Ints) -> Ints:
    """Entries of a factor's table by state of the border: (border state, joint state of its hidden variables)."""
    n = int(np.prod(border))
    border_states = np.indices(tuple(border.tolist())).reshape(len(border), n)
    entries = np.zeros((n, 1), dtype=np.int64)
    for k in scope.tolist():
        if k < 0:
            entries = entries * border[-1 - k] + border_states[-1 - k][:, None]
        else:
            entries = (entries[:, :, None] * cards[k] + np.arange(cards[k])).reshape(n, -1)
    return entries


class ComponentLayout:
    """The components of a batch one after the other: hidden variables, factors and bordering outputs of each.

    ``code`` has the scopes of the ``factors`` as ``ComponentShape`` names their variables; ``own`` are the unary
    entries of the hidden variables; ``owner`` is the instance and ``n_states`` the border states of each component.
    """

    def __init__(self, batch: Batch, query: Query) -> None:
        self.batch = batch
        self.query = query
        components = hidden_components(batch, query.output)
        n = len(components.tree)
        self.output_factors = np.flatnonzero(components.inside == 0)

        hidden = np.flatnonzero(~query.output)
        self.hidden = hidden[np.argsort(components.component[hidden], kind="stable")]
        self.hidden_ptr = components.member_ptr
        self.owner = batch.owner[self.hidden[self.hidden_ptr[:-1]]]

        factors = np.flatnonzero(components.factor_component >= 0)
        self.factors = factors[np.argsort(components.factor_component[factors], kind="stable")]
        self.factor_ptr = np.searchsorted(components.factor_component[self.factors], np.arange(n + 1))

        sizes = np.diff(batch.scope_ptr)[self.factors]
        self.scope_ptr = offsets(sizes)
        scope = batch.scope_vars[spans(batch.scope_ptr[self.factors], sizes)]
        outside = query.output[scope]
        component = np.repeat(components.factor_component[self.factors], sizes)[outside]
        pairs = component * batch.n_vars + scope[outside]
        _, first_slot, pair = np.unique(pairs, return_index=True, return_inverse=True)
        order = np.argsort(first_slot)  # outputs of a component in the order in which its factors name them
        self.border = scope[outside][first_slot[order]]
        self.border_ptr = np.searchsorted(component[first_slot[order]], np.arange(n + 1))

        hidden_rank = np.empty(batch.n_vars, dtype=np.int64)
        hidden_rank[self.hidden] = ranks(self.hidden_ptr)
        border_rank = np.empty(len(order), dtype=np.int64)
        border_rank[order] = ranks(self.border_ptr)
        self.code = hidden_rank[scope]
        self.code[outside] = -1 - border_rank[pair]

        cards = batch.cards[self.hidden]
        self.own = spans(batch.unary_ptr[self.hidden], cards)
        self.own_ptr = offsets(cards)[self.hidden_ptr]
        self.n_states = self._border_states()

    def _border_states(self) -> Ints:
        """Joint states of each component's border."""
        n = len(self.owner)
        component = np.repeat(np.arange(n), np.diff(self.border_ptr))
        log_states = sum_by(component, np.log(self.batch.cards[self.border]), n)
        n_states = np.rint(np.exp(np.minimum(log_states, 700.0)))
        too_many = np.cumsum(n_states) > LIMIT
        if too_many.any():
            instance = self.owner[np.argmax(too_many)]
            most = int(np.diff(self.border_ptr)[self.owner == instance].max())
            raise MemoryLimitError(
                f"instance {instance}: a hidden component borders {most} outputs, and tables over such borders "
                f"would need more than {LIMIT} entries; use a member that propagation can train, such as MSSVM."
            )
        return n_states.astype(np.int64)

    # ------------------------------------------------------------------------------------- the graph over outputs

    @cached_property
    def wide(self) -> Ints:
        """Components that border two or more outputs: each is a factor among outputs."""
        return np.flatnonzero(np.diff(self.border_ptr) > 1)

    @cached_property
    def output_number(self) -> Ints:
        """For every variable, the number of outputs before it, which numbers the outputs; last, the number of all."""
        return offsets(self.query.output.astype(np.int64))

    @cached_property
    def outputs(self) -> Batch:
        """The batch over outputs: factors among outputs keep their tables, and wide components get one each."""
        batch = self.batch
        instances = np.arange(len(batch) + 1)
        var_ptr = self.output_number[batch.var_ptr]
        factor_ptr = np.searchsorted(batch.factor_owner[self.output_factors], instances)
        wide_ptr = np.searchsorted(self.owner[self.wide], instances)
        all_cards = batch.cards[self.query.output]
        topologies: dict[tuple[bytes, ...], Topology] = {}
        graphs = []
        table_ids = []
        for b in range(len(batch)):
            factors = self.output_factors[factor_ptr[b] : factor_ptr[b + 1]]
            wide = self.wide[wide_ptr[b] : wide_ptr[b + 1]]
            scopes = [batch.scope_vars[batch.scope_ptr[f] : batch.scope_ptr[f + 1]] for f in factors.tolist()]
            scopes += [self.border[self.border_ptr[c] : self.border_ptr[c + 1]] for c in wide.tolist()]
            local = [self.output_number[scope] - var_ptr[b] for scope in scopes]
            cards = all_cards[var_ptr[b] : var_ptr[b + 1]]
            key = cards.tobytes(), *(scope.tobytes() for scope in local)
            if key not in topologies:
                topologies[key] = Topology(tuple(cards.tolist()), tuple(tuple(scope.tolist()) for scope in local))
            graphs.append(topologies[key])
            table_ids.append(np.append(batch.table_at[factors], batch.n_table_entries + wide))
        return Batch.build(graphs, table_ids)

    @property
    def output_factors_after(self) -> Ints:
        """The numbers that ``output_factors`` have in ``outputs``, where they come first in every instance."""
        owner = self.batch.factor_owner[self.output_factors]
        return self.outputs.factor_ptr[owner] + np.arange(len(owner)) - np.searchsorted(owner, owner)

    def slots(self) -> tuple[Ints, Ints]:
        """``Components.slot`` and ``Components.weight``."""
        outputs = self.outputs
        n = outputs.n_states
        slot = n + outputs.n_table_entries + self.owner
        weight = np.full(len(self.owner), n + outputs.n_mu_entries)

        single = np.flatnonzero(np.diff(self.border_ptr) == 1)
        unary = outputs.unary_ptr[self.output_number[self.border[self.border_ptr[single]]]]
        slot[single] = unary
        weight[single] = unary

        owner = self.owner[self.wide]
        factor = outputs.factor_ptr[owner + 1] - np.searchsorted(owner, owner, side="right") + np.arange(len(owner))
        slot[self.wide] = n + outputs.table_at[factor]
        weight[self.wide] = n + outputs.mu_at[factor]
        return spans(slot, self.n_states), spans(weight, self.n_states)

    # ------------------------------------------------------------------------------------- the components

    def inner(self) -> tuple[Batch, Bools, tuple[Ints, Ints, Ints], tuple[Ints, Ints]]:
        """The batch of components by border state, the states it allows, and ``states`` and ``tables``.

        Components of one shape are laid out together, and all of it is then put in the order of the components.
        """
        batch = self.batch
        n_unary = np.diff(self.own_ptr)
        first_instance = offsets(self.n_states)
        first_unary = offsets(np.repeat(n_unary, self.n_states))
        topologies: dict[Topology, int] = {}
        kind = np.empty(len(self.owner), dtype=np.int64)
        into = _Column()
        state_theta = _Column()
        state_mu = _Column()
        table_theta = _Column()
        table_mu = _Column()
        table_id = _Column()
        for shape, chosen in self._shapes():
            kind[chosen] = topologies.setdefault(shape.wiring, len(topologies))
            instance = (first_instance[chosen][:, None] + np.arange(self.n_states[chosen[0]]))[:, :, None]
            into.add(instance, first_unary[instance] + shape.into)
            state_theta.add(instance, self._entries(chosen, shape.states, batch.table_at))
            state_mu.add(instance, self._entries(chosen, shape.states, batch.mu_at))
            table_theta.add(instance, self._entries(chosen, shape.tables, batch.table_at))
            table_mu.add(instance, self._entries(chosen, shape.tables, batch.mu_at))
            first_entries = self._entries(chosen, shape.slices, batch.table_at)
            table_id.add(instance, shape.patterns * batch.n_table_entries + first_entries)

        inner = Batch.of_kinds(tuple(topologies), np.repeat(kind, self.n_states), table_id.in_order())
        tables = np.zeros(inner.n_table_entries, dtype=np.int64)
        tables[spans(inner.table_at, inner.table_sizes)] = table_theta.in_order()
        mu = np.zeros(inner.n_mu_entries, dtype=np.int64)
        mu[spans(inner.mu_at, inner.table_sizes)] = table_mu.in_order()
        unary = spans(np.repeat(self.own_ptr[:-1], self.n_states), np.repeat(n_unary, self.n_states))
        allowed = self.query.allowed[self.own[unary]]
        states = (into.in_order(), state_theta.in_order(), state_mu.in_order())
        return inner, allowed, states, (tables, mu)

    def _shapes(self) -> Iterator[tuple[ComponentShape, Ints]]:
        """Every shape with its components."""
        hidden_cards = _pieces(self.batch.cards[self.hidden], self.hidden_ptr)
        border_cards = _pieces(self.batch.cards[self.border], self.border_ptr)
        scope_sizes = _pieces(np.diff(self.scope_ptr), self.factor_ptr)
        codes = _pieces(self.code, self.scope_ptr[self.factor_ptr])
        by_shape: dict[tuple[bytes, ...], list[int]] = {}
        for c, description in enumerate(zip(hidden_cards, border_cards, scope_sizes, codes, strict=True)):
            by_shape.setdefault(tuple(array.tobytes() for array in description), []).append(c)
        for members in by_shape.values():
            c = members[0]
            scopes = _pieces(codes[c], offsets(scope_sizes[c]))
            yield ComponentShape.of(hidden_cards[c], border_cards[c], scopes), np.array(members)

    def _entries(self, chosen: Ints, index: EntryIndex, start: Ints) -> Ints:
        """Positions in [unary | tables] of the indexed entries, by chosen component and state of the border.

        ``start`` is the first entry of every factor's table.
        """
        is_unary = index.factor < 0
        factor = self.factor_ptr[chosen][:, None] + np.maximum(index.factor, 0)
        # A component without factors points to the next one's, or at the end to this sentinel; nothing reads it.
        factors = np.append(self.factors, len(start))[factor]
        unary = self.own[self.own_ptr[chosen][:, None, None] + np.where(is_unary, index.entry, 0)]
        tables = self.batch.n_states + np.append(start, 0)[factors][:, None, :] + index.entry
        return np.where(is_unary, unary, tables)


class _Column:
    """Numbers collected shape by shape, to be put in the order of the component instances they belong to."""

    def __init__(self) -> None:
        self._instances = [NO_INTS]
        self._numbers = [NO_INTS]

    def add(self, instances: Ints, numbers: Ints) -> None:
        """``instances`` broadcasts to the shape of ``numbers``."""
        self._instances.append(np.broadcast_to(instances, numbers.shape).ravel())
        self._numbers.append(numbers.ravel())

    def in_order(self) -> Ints:
        order = np.argsort(np.concatenate(self._instances), kind="stable")
        return np.concatenate(self._numbers)[order]


def _pieces(array: Ints, ptr: Ints) -> list[Ints]:
    """The slices of an array between consecutive offsets."""
    return [array[begin:end] for begin, end in pairwise(ptr.tolist())]
