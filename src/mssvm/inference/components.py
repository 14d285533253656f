"""Hidden components as tables over the outputs they border.

Given the outputs, a model with hidden variables falls apart into its hidden components. ``Components`` is a batch with
one instance per component and per joint state of its bordering outputs: the component's hidden variables with the
tables sliced at that state. So any function of a component given its border (a power sum at some temperature, say) is
one batched inference call. It also holds the graph over outputs alone on which those functions are tables. The index
arrays are computed by ``component_layout``; potentials are gathered and marginals scattered through them, over
[unary | tables].
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from mssvm.core.arrays import Floats, Ints, sum_by
from mssvm.core.potentials import Marginals, Potentials, Query
from mssvm.core.topology import Batch, spans
from mssvm.inference.component_layout import ComponentLayout


@dataclass(frozen=True, eq=False)
class Components:
    """Components as a batch, the batch over outputs, and index arrays that map entries between them.

    A function of components given their borders has one value for each component and state of its border: ``slot``
    says which score over outputs the value is added to, ``weight`` which marginal of the outputs is its probability.
    """

    source: Batch
    batch: Batch  # one instance per component and border state
    query: Query
    states: tuple[Ints, Ints, Ints]  # entries of the components' unary scores, and the matching entries of theta and mu
    tables: tuple[Ints, Ints]  # for every entry of the components' tables, the entry of theta; likewise of mu
    owner: Ints  # instance of the source of each component and border state
    slot: Ints  # target of each value: an entry of [outputs' unary | outputs' tables | one per instance]
    weight: Ints  # place of each probability: an entry of [outputs' mu.unary | mu.tables | one]
    outputs: Batch
    output_states: Ints  # entries of theta.unary that are states of outputs, in the order of ``outputs``
    output_tables: tuple[Ints, Ints]  # entries of theta.tables, and of the outputs' tables
    output_mu: tuple[Ints, Ints]  # entries of Marginals.tables, and of the outputs' table marginals

    def component_theta(self, theta: Potentials) -> Potentials:
        """The potentials of the components."""
        scores = np.concatenate([theta.unary, theta.tables])
        entry, source, _ = self.states
        return Potentials(sum_by(entry, scores[source], self.batch.n_states), scores[self.tables[0]])

    def output_theta(self, theta: Potentials, values: Floats) -> tuple[Potentials, Floats]:
        """Potentials over outputs with the values of components added, and a constant per instance."""
        n = self.outputs.n_states
        m = self.outputs.n_table_entries
        added = sum_by(self.slot, values, n + m + len(self.source))
        tables = added[n : n + m]
        table_from, table_to = self.output_tables
        tables[table_to] += theta.tables[table_from]
        return Potentials(added[:n] + theta.unary[self.output_states], tables), added[n + m :]

    def output_query(self, query: Query) -> Query:
        """The part of a query that concerns outputs."""
        return Query(query.output[query.output], query.allowed[self.output_states])

    def weights(self, mu: Marginals) -> Floats:
        """Probability of each component's border state under marginals of the outputs."""
        return np.concatenate([mu.unary, mu.tables, [1.0]])[self.weight]

    @cached_property
    def _targets(self) -> Ints:
        """Entries of [mu.unary | mu.tables] of the source that marginals of the components add to."""
        _, _, state_mu = self.states
        _, table_mu = self.tables
        return np.append(state_mu, table_mu)

    @cached_property
    def _state_owner(self) -> Ints:
        """The component of each of their states."""
        return self.batch.owner[self.batch.state_var]

    def scatter(self, inner: Sequence[tuple[Marginals, Floats]], outer: Marginals) -> Marginals:
        """Marginals in the layout of the source: those of the outputs, plus those of the components times weights.

        ``inner`` are pairs of marginals and weights, one weight for each component and state of its border.
        """
        n = self.source.n_states
        total = np.zeros(n + self.source.n_mu_entries)
        total[self.output_states] = outer.unary
        mu_to, mu_from = self.output_mu
        total[n + mu_to] = outer.tables[mu_from]
        entry, _, _ = self.states
        for mu, weights in inner:
            unary = mu.unary * weights[self._state_owner]
            tables = mu.tables * weights[self.batch.mu_owner]
            total += sum_by(self._targets, np.append(unary[entry], tables), len(total))
        return Marginals(total[:n], total[n:])

    @classmethod
    def of(cls, batch: Batch, query: Query) -> Components:
        """Find the components of every instance and lay everything out."""
        layout = ComponentLayout(batch, query)
        inner, allowed, states, tables = layout.inner()
        slot, weight = layout.slots()
        outputs = layout.outputs
        return cls(
            source=batch,
            batch=inner,
            query=Query(np.zeros(inner.n_vars, dtype=bool), allowed),
            states=states,
            tables=tables,
            owner=np.repeat(layout.owner, layout.n_states),
            slot=slot,
            weight=weight,
            outputs=outputs,
            output_states=np.flatnonzero(query.output[batch.state_var]),
            output_tables=_shared_entries(layout, batch.table_at, outputs.table_at),
            output_mu=_shared_entries(layout, batch.mu_at, outputs.mu_at),
        )


def _shared_entries(layout: ComponentLayout, before: Ints, after: Ints) -> tuple[Ints, Ints]:
    """Table entries of the factors among outputs, in the source and in the batch over outputs; tied tables once."""
    factors = layout.output_factors
    _, first = np.unique(before[factors], return_index=True)
    sizes = layout.batch.table_sizes[factors[first]]
    return spans(before[factors[first]], sizes), spans(after[layout.output_factors_after[first]], sizes)
