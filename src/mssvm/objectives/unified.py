"""The unified objective (paper eq. 5): the difference of two nested power sums on a labelled sample.

    U_i  = U_i+ - U_i-
    U_i+ = PS_y[eps_y] PS_h[eps_h] (theta + Delta)        all allowed states
    U_i- = PS_y[eps_y] PS_h[eps_h]  theta                 outputs restricted to what the labels admit
    dU_i/dtheta = mu+ - mu-                               (Lemma 2)

With single labels U_i- is the paper's PS_h[eps_h] theta(y_i, .); with candidate sets it is the power sum over the set.
Both parts are one call of the same inference with different masks. ``Objective`` and ``Parts`` are what the training
problem needs of this and of any other objective.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pkgutil import resolve_name
from typing import Protocol, Self

import numpy as np

from mssvm.core.arrays import Bools, Floats, Ints
from mssvm.core.checks import temperature
from mssvm.core.errors import InputError
from mssvm.core.potentials import Belief, Marginals, Potentials, Query
from mssvm.core.registry import LOSSES, MEMBERS
from mssvm.core.topology import Batch, counts, entries_of
from mssvm.engines.base import Pair, Paired, Plan
from mssvm.inference.base import Planner
from mssvm.inference.components import Components
from mssvm.losses import Hamming, Loss, Zero
from mssvm.models.base import Inputs


@dataclass(frozen=True, eq=False)
class Sample:
    """Instances with labels. ``truth`` marks the states a label admits: one for a label, several for a candidate set,
    all for hidden variables. ``weight`` scales each instance in the objective, ``site_weight`` each site's loss.
    ``extra_loss`` is added to the loss of each state, on hidden variables too. ``evidence`` <= 0 is a soft label: log
    p(what was observed | state), added to the scores of U-, up to a constant per variable; None is no evidence."""

    inputs: Inputs
    query: Query
    truth: Bools
    weight: Floats
    site_weight: Floats
    extra_loss: Floats | None = None
    evidence: Floats | None = None

    @classmethod
    def of(
        cls,
        inputs: Inputs,
        query: Query,
        truth: Bools,
        weight: Floats | None = None,
        site_weight: Floats | None = None,
    ) -> Sample:
        """Check and assemble a sample; weights default to one."""
        batch = inputs.batch
        query.check(batch)
        if truth.shape != (batch.n_states,):
            raise InputError(f"truth has shape {truth.shape}, the batch needs ({batch.n_states},).")
        query.restrict(truth).check(batch)
        weights = []
        for name, given, n in (("weight", weight, len(batch)), ("site_weight", site_weight, batch.n_vars)):
            weights.append(np.broadcast_to(1.0, n) if given is None else np.asarray(given, dtype=np.float64))
            if weights[-1].shape != (n,) or not np.all(np.isfinite(weights[-1])) or np.any(weights[-1] < 0):
                of = "instances" if name == "weight" else "variables"
                raise InputError(f"{name} needs one finite number >= 0 for each of the {n} {of}.")
        return cls(inputs, query, truth, *weights)

    @property
    def batch(self) -> Batch:
        return self.inputs.batch

    def __len__(self) -> int:
        return len(self.batch)

    @cached_property
    def truth_query(self) -> Query:
        """The query of U-: outputs restricted to what the labels admit."""
        return self.query.restrict(self.truth)

    @cached_property
    def components(self) -> Components:
        """The hidden components as tables over the outputs they border, the same at all temperatures."""
        return Components.of(self.batch, self.query)

    @cached_property
    def labelled(self) -> Bools:
        """Instances with at least one output site; the others contribute nothing to any objective."""
        return np.asarray(counts(self.query.output, self.batch.var_ptr) > 0)

    def log_states(self, query: Query, which: Bools) -> Floats:
        """Per instance, the log of the number of assignments of the variables ``which`` that a query allows."""
        logs = np.where(which, np.log(query.n_allowed(self.batch)), 0.0)
        return np.asarray(np.bincount(self.batch.owner, weights=logs, minlength=len(self.batch)), dtype=np.float64)

    def select(self, which: Sequence[int] | Ints) -> Sample:
        """The sub-sample of the named instances."""
        chosen = np.asarray(which, dtype=np.int64)
        batch = self.batch
        variables, states = entries_of(batch.var_ptr, chosen), entries_of(batch.unary_ptr[batch.var_ptr], chosen)
        query = Query(self.query.output[variables], self.query.allowed[states])
        inputs = self.inputs.select(chosen)
        extra = None if self.extra_loss is None else self.extra_loss[states]
        evidence = None if self.evidence is None else self.evidence[states]
        weight = self.site_weight  # one number for all sites takes no memory
        weight = weight[variables] if any(weight.strides) else weight[: len(query.output)]
        return Sample(inputs, query, self.truth[states], self.weight[chosen], weight, extra, evidence)


class Parts(Protocol):
    """An objective bound to instances: two functions of theta, each convex in it, evaluated by inference."""

    def plus(self, theta: Potentials) -> tuple[Belief, int]:
        """The first part and its gradient, and the number of instances that had to be raised to the second."""
        ...

    def minus(self, theta: Potentials) -> Belief:
        """The subtracted part and its gradient."""
        ...

    def difference(self, theta: Potentials) -> Paired:
        """Both parts at once; unless there is more to share, one after the other."""
        minus = self.minus(theta)
        plus, floored = self.plus(theta)
        return Paired.of(plus, minus, floored)


class Objective(Protocol):
    """A difference of two functions of theta; ``bind`` resolves everything but theta, once."""

    @property
    def eps_y(self) -> float: ...

    @property
    def eps_h(self) -> float: ...

    @property
    def loss(self) -> Loss: ...

    def at(self, eps_y: float, eps_h: float) -> Self:
        """The same objective at other temperatures."""
        ...

    def bind(self, sample: Sample, delta: Potentials, plan: Plan, planner: Planner) -> Parts:
        """The objective on a sample with the loss tables ``delta``; ``plan`` is that of the sample's batch, and
        ``planner`` plans batches made from it."""
        ...


@dataclass(frozen=True)
class Unified:
    """U(theta; eps_y, eps_h) with a loss Delta: the family's two dials."""

    eps_y: float
    eps_h: float
    loss: Loss = field(default_factory=Hamming)

    def __post_init__(self) -> None:
        temperature(self.eps_y, "eps_y")
        temperature(self.eps_h, "eps_h")

    def at(self, eps_y: float, eps_h: float) -> Unified:
        """The same objective at other temperatures."""
        return replace(self, eps_y=eps_y, eps_h=eps_h)

    def bind(self, sample: Sample, delta: Potentials, plan: Plan, planner: Planner) -> UnifiedParts:
        pair = plan.pair(sample.query, sample.truth_query, self.eps_y, self.eps_h)
        free = isinstance(self.loss, Zero) and sample.extra_loss is None
        return UnifiedParts(sample, None if free else delta, pair)


@dataclass(frozen=True, eq=False)
class UnifiedParts(Parts):
    """U+ and U- on a sample; without a loss (``delta`` None) they differ in their masks alone."""

    sample: Sample
    delta: Potentials | None
    pair: Pair

    def minus(self, theta: Potentials) -> Belief:
        """U- and its gradient."""
        return self.pair.minus(self._observed(theta))

    def _observed(self, theta: Potentials) -> Potentials:
        """The scores of U-: with the evidence of soft labels."""
        if self.sample.evidence is None:
            return theta
        return replace(theta, unary=theta.unary + self.sample.evidence)

    def plus(self, theta: Potentials) -> tuple[Belief, int]:
        """U+ and its gradient, and the number of instances floored at U-.

        U+ >= U- always, because the labels are among the states that U+ ranges over and cost no loss. Approximate
        inference can miss that; such instances take the value and gradient of U- instead, so U_i >= 0 holds.
        """
        belief = self.pair.plus(theta if self.delta is None else theta + self.delta)
        if bool(belief.status.exact.all()):
            return belief, 0
        floor = self.minus(theta)
        low = (belief.value < floor.value) & ~belief.status.exact
        return (_take(self.sample, belief, floor, low), int(low.sum())) if low.any() else (belief, 0)

    def difference(self, theta: Potentials) -> Paired:
        """U+ and U- together, floored likewise: the difference and its gradient are then 0."""
        found = self.pair(theta if self.delta is None else theta + self.delta, self._observed(theta))
        low = (found.plus < found.minus) & ~found.plus_status.exact
        if not low.any():
            return found
        mu = found.mu.scaled(self.sample.batch, (~low).astype(np.float64))
        return replace(found, plus=np.maximum(found.plus, found.minus), mu=mu, floored=int(low.sum()))


def _take(sample: Sample, belief: Belief, other: Belief, instances: Bools) -> Belief:
    """``belief`` with value and gradient of ``other`` on the masked instances."""
    states, entries = instances[sample.batch.owner][sample.batch.state_var], instances[sample.batch.mu_owner]
    mu = Marginals(
        np.where(states, other.mu.unary, belief.mu.unary), np.where(entries, other.mu.tables, belief.mu.tables)
    )
    return replace(belief, value=np.where(instances, other.value, belief.value), mu=mu)


def of_member(name: str, loss: Loss | None = None) -> Unified:
    """The objective of a member by its row of the paper's Table 1; without a loss, with the row's own."""
    row = MEMBERS[name]
    assert row.eps_y is not None and row.eps_h is not None, f"{name} has temperatures of its own"
    return Unified(row.eps_y, row.eps_h, loss or resolve_name(LOSSES[row.loss].place)())


lssvm = partial(of_member, "LSSVM")
mssvm = partial(of_member, "MSSVM")
hcrf = partial(of_member, "HCRF")
loss_augmented_likelihood = partial(of_member, "LossAugmentedCRF")


# Without hidden variables eps_h has nothing to act on, and the rows above become:
ssvm = lssvm
crf = hcrf
softmax_margin = loss_augmented_likelihood
