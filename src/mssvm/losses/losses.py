"""Losses Delta(truth, prediction) as tables to add to the potentials (paper eq. 3 and section 4).

    Hamming          Delta(y_i, y) = sum_j c_j 1[y_j != y_ij]
    WeightedHamming  Delta(y_i, y) = sum_j c_j cost[y_ij, y_j]
    TableLoss        Delta(y_i, y) = sum_f cost_f[y_i restricted to f, y restricted to f]

The first index of a cost is always the truth, the second the prediction. Hidden variables carry no loss. Where the
label is a set S of states the loss is 0 inside S and min over s in S of cost[s, y] outside: a set of one is a label.
Losses are settings in scikit-learn's sense: ``loss__scale`` can be searched.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, Protocol

import numpy as np

from mssvm.core.arrays import AnyArray, Bools, Floats, Ints
from mssvm.core.errors import InputError
from mssvm.core.params import Settings
from mssvm.core.potentials import Marginals, Potentials
from mssvm.core.topology import Batch, Topology

FactorCosts = Mapping[tuple[int, ...], AnyArray] | Callable[[Topology, int], AnyArray | None]


class Loss(Protocol):
    """Delta as potentials: what a prediction costs, given the states that the labels admit.

    A loss with ``needs_own_tables = True`` adds to the tables of factors, which therefore must not be shared. A loss
    with a method ``expected(batch, output, mu)``, as all of these have, can be minimised in expectation: it gives
    E[Delta(truth, y)], truth distributed as ``mu``, as potentials of y.

    >>> class Half:                                                                # of what Hamming counts
    ...     def delta(self, batch, output, truth, site_weight):
    ...         return ms.losses.Hamming(scale=0.5).delta(batch, output, truth, site_weight)
    >>> ms.SSVM(ms.Chain(), loss=Half()).fit(X, y).score(X, y)
    1.0
    """

    def delta(self, batch: Batch, output: Bools, truth: Bools, site_weight: Floats) -> Potentials: ...


def inputs_for(loss: Loss | None, inputs: Any) -> Any:
    """The inputs of a model in the form that the loss needs: with a table of its own for every factor, or as given."""
    return inputs.untied() if getattr(loss, "needs_own_tables", False) else inputs


@dataclass(frozen=True)
class Zero(Settings):
    """No loss (hidden conditional random fields).

    >>> ms.LossAugmentedCRF(loss=ms.losses.Zero()).fit(X, y).score(X, y)            # as CRF
    1.0
    """

    def delta(self, batch: Batch, output: Bools, truth: Bools, site_weight: Floats) -> Potentials:
        return Potentials.zeros(batch)

    def expected(self, batch: Batch, output: Bools, mu: Marginals) -> Potentials:
        return Potentials.zeros(batch)


class ScaledLoss(Settings):
    """What losses share: a ``scale``, and ``normalize`` to divide by the number of outputs of the instance."""

    normalize: bool
    scale: float

    def __post_init__(self) -> None:
        if not (np.isfinite(self.scale) and self.scale >= 0.0):
            raise InputError(f"the scale of a loss must be a finite number >= 0, got {self.scale!r}.")

    def per_variable(self, batch: Batch, output: Bools) -> Floats:
        """Factor that multiplies the loss of each variable."""
        if not self.normalize:
            return np.full(batch.n_vars, self.scale)
        count = np.bincount(batch.owner, weights=output, minlength=len(batch))
        return (self.scale / np.maximum(count, 1.0))[batch.owner]


@dataclass(frozen=True)
class Hamming(ScaledLoss):
    """Number of wrong outputs times ``scale``; ``normalize`` divides by the number of outputs of the instance.

    >>> ms.SSVM(ms.Chain(), loss=ms.losses.Hamming(normalize=True, scale=2.0), C=10.0).fit(X, y).score(X, y)
    1.0
    """

    normalize: bool = False
    scale: float = 1.0

    def delta(self, batch: Batch, output: Bools, truth: Bools, site_weight: Floats) -> Potentials:
        per_site = np.where(output, site_weight, 0.0) * self.per_variable(batch, output)
        unary = np.where(truth, 0.0, np.repeat(per_site, batch.cards))
        return Potentials(unary, np.zeros(batch.n_table_entries))

    def expected(self, batch: Batch, output: Bools, mu: Marginals) -> Potentials:
        per_site = np.where(output, self.per_variable(batch, output), 0.0)
        return Potentials((1.0 - mu.unary) * np.repeat(per_site, batch.cards), np.zeros(batch.n_table_entries))


@dataclass(frozen=True, eq=False)
class WeightedHamming(ScaledLoss):
    """A cost for every pair (truth, prediction): a square matrix, or one weight per true class.

    A vector c means cost[s, y] = c[s] for y != s. ``cost`` may also be a mapping from number of states to matrix or
    vector, for models whose outputs differ in it. ``scale`` and ``normalize`` as in ``Hamming``.

    >>> loss = ms.losses.WeightedHamming([5.0, 1.0, 1.0])                          # a B that is missed costs 5
    >>> ms.SSVM(ms.Chain(), loss=loss).fit(X, y).score(X, y)
    1.0
    """

    cost: AnyArray | Mapping[int, AnyArray]
    normalize: bool = False
    scale: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        sizes = list(self.matrices)  # raises on unusable costs
        if isinstance(self.cost, Mapping) and list(self.cost) != sizes:
            raise InputError("WeightedHamming: every key of cost must be the number of states of its matrix.")

    @cached_property
    def matrices(self) -> dict[int, Floats]:
        """The cost matrix of outputs by their number of states."""
        parts = self.cost.values() if isinstance(self.cost, Mapping) else [self.cost]
        return {len(m): m for m in (_matrix(np.asarray(part, dtype=np.float64)) for part in parts)}

    def delta(self, batch: Batch, output: Bools, truth: Bools, site_weight: Floats) -> Potentials:
        return self._over_sites(batch, output, site_weight, lambda at, cost: _against_set(truth[at], cost))

    def expected(self, batch: Batch, output: Bools, mu: Marginals) -> Potentials:
        return self._over_sites(batch, output, np.ones(batch.n_vars), lambda at, cost: mu.unary[at] @ cost)

    def _over_sites(
        self, batch: Batch, output: Bools, site_weight: Floats, rows: Callable[[Ints, Floats], Floats]
    ) -> Potentials:
        """``rows`` of the states of all outputs of one number of states and of their cost matrix, as potentials."""
        unary = np.zeros(batch.n_states)
        scale = site_weight * self.per_variable(batch, output)
        for card in np.unique(batch.cards[output]).tolist():
            if card not in self.matrices:
                known = ", ".join(str(k) for k in self.matrices)
                raise InputError(
                    f"WeightedHamming has costs for {known} states, but some output has {card}; "
                    "pass a mapping from number of states to matrix."
                )
            members = np.flatnonzero(output & (batch.cards == card))
            at = batch.unary_ptr[members][:, None] + np.arange(card)
            unary[at] = rows(at, self.matrices[card]) * scale[members, None]
        return Potentials(unary, np.zeros(batch.n_table_entries))


@dataclass(frozen=True, eq=False)
class TableLoss(ScaledLoss):
    """A loss on the model's factors (pairs, boundaries, cliques), optionally with one on single sites.

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
            return _against_set(_joint_mask(batch, scope, shape, truth), cost)

        return self._over_factors(batch, output, self.sites.delta(batch, output, truth, site_weight), site_weight, rows)

    def expected(self, batch: Batch, output: Bools, mu: Marginals) -> Potentials:
        def rows(chosen: Ints, scope: Ints, shape: tuple[int, ...], cost: Floats) -> Floats:
            return np.asarray(mu.tables[batch.mu_at[chosen][:, None] + np.arange(cost.shape[0])] @ cost)

        sites: Any = self.sites
        return self._over_factors(batch, output, sites.expected(batch, output, mu), np.ones(batch.n_vars), rows)

    def _over_factors(
        self,
        batch: Batch,
        output: Bools,
        base: Potentials,
        site_weight: Floats,
        rows: Callable[[Ints, Ints, tuple[int, ...], Floats], Floats],
    ) -> Potentials:
        """``base`` with ``rows`` of the factors that have a cost and only outputs added to their tables."""
        tables = base.tables.copy()
        per_site = self.per_variable(batch, output)
        for cost, shape, factors in self._groups(batch):
            at = batch.scope_ptr[factors][:, None] + np.arange(len(shape))
            scope = batch.scope_vars[at]
            labelled = output[scope].all(axis=1)
            scope, chosen = scope[labelled], factors[labelled]
            _check_own_tables(batch, chosen)
            weight = site_weight[scope].prod(axis=1) * per_site[scope[:, 0]]
            entries = batch.table_at[chosen][:, None] + np.arange(cost.shape[0])
            tables[entries] += rows(chosen, scope, shape, cost) * weight[:, None]
        return Potentials(base.unary, tables)

    def _groups(self, batch: Batch) -> list[tuple[Floats, tuple[int, ...], Ints]]:
        """Factors of the batch grouped by cost: (cost as a square matrix, table shape, factors)."""
        found: dict[tuple[int, tuple[int, ...]], tuple[AnyArray, list[Ints]]] = {}
        for g, graph in enumerate(batch.topologies):
            starts = batch.factor_ptr[:-1][batch.topology_of == g]
            for f in range(graph.n_factors):
                shape = graph.table_shape(f)
                cost = self.costs(graph, f) if callable(self.costs) else self.costs.get(shape)
                if cost is not None:
                    found.setdefault((id(cost), shape), (cost, []))[1].append(starts + f)
        return [(_square(cost, shape), shape, np.concatenate(parts)) for (_, shape), (cost, parts) in found.items()]


def _matrix(cost: Floats) -> Floats:
    """A checked cost matrix, from a matrix or from one weight per true class."""
    if cost.ndim == 1:
        cost = np.where(np.eye(len(cost), dtype=bool), 0.0, cost[:, None])
    if cost.ndim != 2 or cost.shape[0] != cost.shape[1]:
        raise InputError(f"a cost must be a square matrix or one weight per class, got shape {cost.shape}.")
    if not np.all(np.isfinite(cost)) or np.any(cost < 0):
        raise InputError("a cost must hold finite numbers >= 0.")
    if np.any(np.diagonal(cost) != 0):
        raise InputError("a cost must be 0 on the diagonal: predicting the truth costs nothing.")
    return cost


def _square(cost: AnyArray, shape: tuple[int, ...]) -> Floats:
    if cost.shape != shape + shape:
        raise InputError(
            f"the cost of a factor with table shape {shape} needs shape {shape + shape}, got {cost.shape}."
        )
    size = int(np.prod(shape))
    return _matrix(np.asarray(cost, dtype=np.float64).reshape(size, size))


def _against_set(admitted: Bools, cost: Floats) -> Floats:
    """Rows of 0 where ``admitted`` and min over the admitted s of cost[s, y] elsewhere."""
    single = admitted.sum(axis=1) == 1
    out: Floats = cost[admitted.argmax(axis=1)]
    if not single.all():
        several = admitted[~single]
        best = np.full(several.shape, np.inf)
        for s in range(cost.shape[0]):
            np.minimum(best, cost[s], out=best, where=several[:, s, None])
        out[~single] = np.where(several, 0.0, best)
    return out


def _joint_mask(batch: Batch, scope: Ints, shape: tuple[int, ...], truth: Bools) -> Bools:
    """Which joint states of each factor its labels admit, as rows in table order."""
    mask = np.ones((len(scope), 1), dtype=bool)
    for axis, card in enumerate(shape):
        states = truth[batch.unary_ptr[scope[:, axis]][:, None] + np.arange(card)]
        mask = (mask[:, :, None] & states[:, None, :]).reshape(len(scope), mask.shape[1] * card)
    return mask


def _check_own_tables(batch: Batch, factors: Ints) -> None:
    users = np.bincount(batch.table_at, minlength=batch.n_table_entries + 1)
    if np.any(users[batch.table_at[factors]] > 1):
        raise InputError(
            "a loss on factors needs factors with tables of their own, but some share one; "
            "call untied() on the inputs first, as inputs_for(loss, inputs) does."
        )
