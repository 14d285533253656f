"""Hidden components summed out into factors over the outputs around them, so that no hidden variable is left.

    V_c(y_border) = PS_{eps_h} over component c of (theta of its unaries and factors)

A tree of outputs and hidden variables becomes a tree of outputs, on which the recursion is exact.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from mssvm.core.arrays import Bools, Floats, Ints
from mssvm.core.components import HiddenComponents, acyclic
from mssvm.core.potentials import Marginals, Potentials, Query
from mssvm.core.topology import Batch, Topology, offsets, spans
from mssvm.engines.messages import Borders, Conditional, MessageModel, MessagePlan

if TYPE_CHECKING:
    from mssvm.inference.propagation.plan import PropagationBoundQuery


@dataclass(frozen=True, eq=False)
class Merging:
    """The merged model: a batch over the same variables at the one temperature eps_y.

    Hidden variables are isolated and have one state. Only ``instances``, those that fit the limits, have factors;
    ``forest`` masks those of them without cycles.

    Components with two or more outputs at their border become factors, others add to a unary. Every component has one
    value for each state of its border (a border value, at ``Borders.entry_ptr``). Index arrays map between entries of
    the merged batch, of the original one, and border values.
    """

    instances: Ints
    forest: Bools
    batch: Batch
    query: Query
    plan: MessagePlan
    borders: Borders
    given: Ints  # states of the variables that have only one
    hidden_states: Bools
    tables_from: Ints  # source of every entry of the merged tables: an entry of [original tables | border values]
    added: tuple[Ints, Ints]  # border values that add to a unary, and where
    weights_from: Ints  # probability of every border value: an entry of the merged [mu.unary | mu.tables | 1]
    output_mu: tuple[Ints, Ints]  # entries of the original and of the merged mu.tables, of factors of outputs alone

    @classmethod
    def of(cls, bound_query: PropagationBoundQuery, components: HiddenComponents, instances: Ints) -> Merging | None:
        """Sum out the hidden components of every named instance in which all fit the limits of the effort; None if
        there is no such instance."""
        batch = bound_query.batch
        ptr, var, size, fits = _measure(bound_query, components)
        instances = instances[fits[instances]]
        if not len(instances):
            return None
        chosen = np.zeros(len(batch), dtype=bool)
        chosen[instances] = True
        roots = components.visit[components.member_ptr[:-1]]
        summed = chosen[batch.owner[roots]]
        borders = Borders(ptr, var, offsets(np.where(summed, size, 0.0).astype(np.int64)))
        entry_at = borders.entry_ptr[:-1]
        n_entries = np.diff(borders.entry_ptr)
        n_border = np.diff(ptr)
        output_factors = np.flatnonzero((components.inside == 0) & chosen[batch.factor_owner])
        wide = np.flatnonzero(summed & (n_border > 1))
        narrow = np.flatnonzero(summed & (n_border < 2))
        merged, source = _wire(bound_query, borders, output_factors, wide)
        is_new = source >= batch.n_table_entries
        tables_from = np.zeros(merged.n_table_entries, dtype=np.int64)
        tables_from[spans(merged.table_at, merged.table_sizes)] = spans(source, merged.table_sizes)
        # A narrow component adds to the unary of its one output, or of its root where it borders none.
        receiver = roots.copy()
        receiver[n_border == 1] = var[ptr[:-1][n_border == 1]]
        added_from = spans(entry_at[narrow], n_entries[narrow])
        added_to = spans(batch.unary_ptr[receiver[narrow]], n_entries[narrow])
        weights_from = np.full(borders.entry_ptr[-1], batch.n_states + merged.n_mu_entries)
        at_output = components.outside[batch.state_var[added_to]]
        weights_from[added_from[at_output]] = added_to[at_output]
        of_wide = spans(entry_at[wide], n_entries[wide])
        weights_from[of_wide] = batch.n_states + spans(merged.mu_at[is_new], n_entries[wide])
        hidden_states = ~components.outside[batch.state_var]
        first_states = np.zeros(batch.n_states, dtype=bool)
        first_states[batch.unary_ptr[:-1]] = True
        query = Query(components.outside, np.where(hidden_states, first_states, bound_query.query.allowed))
        sizes = batch.table_sizes[output_factors]
        return cls(
            instances=instances,
            forest=acyclic(merged, bound_query.free & components.outside),
            batch=merged,
            query=query,
            plan=bound_query.plan.engine.messages(merged),
            borders=borders,
            given=np.where(bound_query.free, 0, bound_query.only_state),
            hidden_states=hidden_states,
            tables_from=tables_from,
            added=(added_from, added_to),
            weights_from=weights_from,
            output_mu=(spans(batch.mu_at[output_factors], sizes), spans(merged.mu_at[~is_new], sizes)),
        )

    def load(self, theta: Potentials, conditional: Conditional) -> MessageModel:
        """The merged model, without tie-breaking noise: noise would change the maximum, which is the proof that a
        decoded y is optimal."""
        values = np.zeros(self.borders.entry_ptr[-1])
        conditional.tabulate(self.borders, self.instances, self.given, values)
        unary = np.where(self.hidden_states, 0.0, theta.unary)
        added_from, added_to = self.added
        np.add.at(unary, added_to, values[added_from])
        tables = np.concatenate([theta.tables, values])[self.tables_from]
        return self.plan.load(Potentials(unary, tables), self.query, np.zeros(len(unary)))

    def expect(self, beliefs: Marginals, conditional: Conditional, mu: Marginals) -> None:
        """Add the marginals of the original model: the expectation, under the merged beliefs of the border, of the
        marginals given the border."""
        mu.unary[~self.hidden_states] += beliefs.unary[~self.hidden_states]
        original, merged = self.output_mu
        mu.tables[original] = beliefs.tables[merged]
        weights = np.concatenate([beliefs.unary, beliefs.tables, [1.0]])[self.weights_from]
        conditional.expect(self.borders, self.instances, self.given, weights, mu)


def _measure(bound_query: PropagationBoundQuery, components: HiddenComponents) -> tuple[Ints, Ints, Floats, Bools]:
    """The outputs around every component (offsets and variables), their joint states, and the instances that fit."""
    batch = bound_query.batch
    n = max(batch.n_vars, 1)
    touching = (components.inside[batch.slot_factor] > 0) & (components.outside & bound_query.free)[batch.scope_vars]
    around = np.unique(components.factor_component[batch.slot_factor[touching]] * n + batch.scope_vars[touching])
    component, var = np.divmod(around, n)
    n_border = np.bincount(component, minlength=len(components.tree))
    size = np.ones(len(components.tree))
    with np.errstate(over="ignore"):  # an overflowed product is infinite, which exceeds every limit
        np.multiply.at(size, component, batch.cards[var])
    card = batch.cards[components.visit]
    degree = np.bincount(batch.scope_vars, minlength=n)[components.visit]
    single = np.diff(components.member_ptr)[components.component[components.visit]] == 1
    cost = np.bincount(
        components.component[components.visit],
        card * (degree + np.where(single, 1, card)),
        minlength=len(components.tree),
    )
    owner = batch.owner[components.visit[components.member_ptr[:-1]]]
    entries = np.bincount(owner, np.where(n_border > 1, size, 0.0), minlength=len(batch))
    with np.errstate(over="ignore"):
        work = np.bincount(owner, np.where(components.tree, size * cost, np.inf), minlength=len(batch))
    fits = (entries <= bound_query.effort.merge_entries) & (work <= bound_query.effort.merge_work)
    return offsets(n_border), var, size, fits


def _wire(bound_query: PropagationBoundQuery, borders: Borders, output_factors: Ints, wide: Ints) -> tuple[Batch, Ints]:
    """The batch with the ``output_factors`` and one factor per ``wide`` component, and the source of its tables."""
    batch = bound_query.batch
    around = [borders.var[borders.ptr[c] : borders.ptr[c + 1]] for c in wide]
    owner = np.append(batch.factor_owner[output_factors], [batch.owner[v[0]] for v in around]).astype(np.int64)
    source = np.append(batch.table_at[output_factors], batch.n_table_entries + borders.entry_ptr[wide])
    order = np.argsort(owner, kind="stable")
    graphs: list[Topology] = []
    rows = np.split(order, np.searchsorted(owner[order], np.arange(1, len(batch))))
    for b, row in enumerate(rows):
        graph = batch.topology(b)
        first = int(batch.factor_ptr[b])
        old = row[row < len(output_factors)]
        new = row[row >= len(output_factors)] - len(output_factors)
        scopes = [graph.scopes[output_factors[k] - first] for k in old]
        scopes += [tuple(around[k] - batch.var_ptr[b]) for k in new]
        graphs.append(Topology(graph.cards, tuple(scopes)))
    return Batch.build(graphs, [source[row] for row in rows]), source[order]
