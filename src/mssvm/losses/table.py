"""Losses on whole factors.

TableLoss        Delta(y_i, y) = sum_f cost_f[y_i restricted to f, y restricted to f]
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, cast

import numpy as np

from mssvm.core.arrays import AnyArray, Bools, Floats, Ints
from mssvm.core.errors import InputError
from mssvm.core.potentials import Marginals, Potentials
from mssvm.core.topology import Batch, Topology
from mssvm.losses.base import ExpectedLoss, Loss, ScaledLoss, Zero
from mssvm.losses.costs import checked_matrix, cost_against_set

FactorCosts = Mapping[tuple[int, ...], AnyArray] | Callable[[Topology, int], AnyArray | None]


@dataclass(frozen=True, eq=False)
class TableLoss(ScaledLoss):
    """A loss on the model's factors (pairs, boundaries, cliques), optionally with a further loss on single sites.

    ``costs`` maps the shape of a factor's table to an array of that shape twice over, cost[truth..., prediction...],
    or is a function of (graph, factor) that returns such an array or None. Factors without a cost, and factors that
    touch a hidden variable, carry no loss. A factor's loss is multiplied by the weights of its sites. The loss differs
    between instances, so these factors get tables of their own (``inputs_for``). ``sites`` is the loss on single sites,
    ``scale`` and ``normalize`` are as in ``Hamming``.

    >>> wrong_pair = 1.0 - np.eye(9).reshape(3, 3, 3, 3)                           # 1 unless both labels are right
    >>> ms.SSVM(ms.Chain(), loss=ms.losses.TableLoss({(3, 3): wrong_pair})).fit(X, y).score(X, y)
    1.0
    """

    needs_own_tables: ClassVar[bool] = True

    costs: FactorCosts
    sites: Loss = field(default_factory=Zero)
    normalize: bool = False
    scale: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not callable(self.costs) and not isinstance(self.costs, Mapping):
            raise InputError("TableLoss: costs must map shapes of tables to arrays; WeightedHamming takes one matrix.")

    def delta(self, batch: Batch, output: Bools, truth: Bools, site_weight: Floats) -> Potentials:
        def rows(chosen: Ints, scope: Ints, shape: tuple[int, ...], cost: Floats) -> Floats:
            return cost_against_set(_joint_mask(batch, scope, shape, truth), cost)

        return self._over_factors(batch, output, self.sites.delta(batch, output, truth, site_weight), site_weight, rows)

    def expected(self, batch: Batch, output: Bools, mu: Marginals) -> Potentials:
        def rows(chosen: Ints, scope: Ints, shape: tuple[int, ...], cost: Floats) -> Floats:
            return np.asarray(mu.tables[batch.mu_at[chosen][:, None] + np.arange(cost.shape[0])] @ cost)

        sites = cast(ExpectedLoss, self.sites)
        return self._over_factors(batch, output, sites.expected(batch, output, mu), np.ones(batch.n_vars), rows)

    def _over_factors(
        self,
        batch: Batch,
        output: Bools,
        base: Potentials,
        site_weight: Floats,
        rows: Callable[[Ints, Ints, tuple[int, ...], Floats], Floats],
    ) -> Potentials:
        """``base`` plus ``rows(factors, scopes, shape, cost)`` in the tables of factors of outputs that have a cost."""
        tables = base.tables.copy()
        per_site = self.per_variable(batch, output)
        for cost, shape, factors in self._groups(batch):
            at = batch.scope_ptr[factors][:, None] + np.arange(len(shape))
            scope = batch.scope_vars[at]
            labelled = output[scope].all(axis=1)
            scope = scope[labelled]
            chosen = factors[labelled]
            _check_own_tables(batch, chosen)
            weight = site_weight[scope].prod(axis=1) * per_site[scope[:, 0]]
            entries = batch.table_at[chosen][:, None] + np.arange(cost.shape[0])
            tables[entries] += rows(chosen, scope, shape, cost) * weight[:, None]
        return Potentials(base.unary, tables)

    def _groups(self, batch: Batch) -> list[tuple[Floats, tuple[int, ...], Ints]]:
        """Factors of the batch grouped by cost: (cost as a square matrix, table shape, factors)."""
        groups: dict[tuple[int, tuple[int, ...]], tuple[AnyArray, list[Ints]]] = {}
        for g, graph in enumerate(batch.topologies):
            starts = batch.factor_ptr[:-1][batch.topology_of == g]
            for f in range(graph.n_factors):
                shape = graph.table_shape(f)
                cost = self.costs(graph, f) if callable(self.costs) else self.costs.get(shape)
                if cost is None:
                    continue
                _, members = groups.setdefault((id(cost), shape), (cost, []))
                members.append(starts + f)
        return [
            (_square(cost, shape), shape, np.concatenate(members)) for (_, shape), (cost, members) in groups.items()
        ]


def _square(cost: AnyArray, shape: tuple[int, ...]) -> Floats:
    """The cost of a factor as a checked square matrix over the joint states of its table."""
    if cost.shape != shape + shape:
        raise InputError(
            f"the cost of a factor with table shape {shape} needs shape {shape + shape}, got {cost.shape}."
        )
    size = int(np.prod(shape))
    return checked_matrix(np.asarray(cost, dtype=np.float64).reshape(size, size))


def _joint_mask(batch: Batch, scope: Ints, shape: tuple[int, ...], truth: Bools) -> Bools:
    """Which joint states of each factor its labels admit, as rows in table order."""
    mask = np.ones((len(scope), 1), dtype=bool)
    for axis, card in enumerate(shape):
        states = truth[batch.unary_ptr[scope[:, axis]][:, None] + np.arange(card)]
        mask = (mask[:, :, None] & states[:, None, :]).reshape(len(scope), mask.shape[1] * card)
    return mask


def _check_own_tables(batch: Batch, factors: Ints) -> None:
    """Raise where factors with a loss share their tables."""
    users = np.bincount(batch.table_at, minlength=batch.n_table_entries + 1)
    if np.any(users[batch.table_at[factors]] > 1):
        raise InputError(
            "a loss on factors needs factors with tables of their own, but some share one; "
            "call untied() on the inputs first, as inputs_for(loss, inputs) does."
        )
