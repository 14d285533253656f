"""The unified objective with the zero-one loss, which charges s for every labelling that the labels do not admit.

    U+ = PS_y[eps_y] ( g(y) + s 1[y not admitted] ),        g(y) = PS_h[eps_h] theta(y, .)

The loss is no table. But the labellings that are not admitted fall into disjoint sets by the first labelled site that
is wrong,

    Y_k = { y : labelled sites 1 .. k-1 are admitted, site k is not },

and each of them is a mask of allowed states. With Y_0 the admitted labellings, as power sums over disjoint sets nest,

    U+ = PS_k[eps_y] ( s 1[k > 0] + PS_{y in Y_k}[eps_y] g(y) ).

So an evaluation takes one inference call for each labelled site of the longest instance and one more. It is exact where
these calls are, at any temperatures and on any structure. In segmentations boundaries that are known count as sites.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from mssvm.core.arrays import AnyArray, Bools, Floats
from mssvm.core.potentials import Belief, Potentials, Status
from mssvm.core.power import power_sum
from mssvm.core.topology import Batch, mask_from_indices
from mssvm.engines.base import BoundQuery, Plan
from mssvm.losses.base import refuse_site_weights
from mssvm.objectives.base import Parts
from mssvm.objectives.sample import Sample


@dataclass(frozen=True, eq=False)
class Branch:
    """Inference over Y_k, for the ``instances`` (mask) that have a k-th labelled site; ``loss`` is 0 for k = 0."""

    inference: BoundQuery
    instances: Bools
    loss: float

    def __call__(self, theta: Potentials) -> Belief:
        """Values with the loss, -inf for the other instances."""
        belief = self.inference(theta)
        found = belief.status
        here = self.instances
        status = Status(
            method=found.method,
            exact=found.exact | ~here,
            converged=found.converged | ~here,
            sweeps=np.where(here, found.sweeps, 0),
            residual=np.where(here, found.residual, 0.0),
            lower=np.where(here, found.lower + self.loss, -np.inf),
            upper=np.where(here, found.upper + self.loss, -np.inf),
        )
        return Belief(np.where(here, belief.value + self.loss, -np.inf), belief.mu, status)


@dataclass(frozen=True, eq=False)
class ZeroOneParts(Parts):
    """U+ and U- on a sample."""

    sample: Sample
    eps_y: float
    branches: tuple[Branch, ...]
    labels: BoundQuery
    delta: Potentials

    @classmethod
    def of(
        cls, sample: Sample, delta: Potentials, plan: Plan, eps_y: float, eps_h: float, scale: float
    ) -> ZeroOneParts:
        """All masks bound to the plan; ``delta`` holds the tables of further costs of labellings."""
        refuse_site_weights("ZeroOne", sample.query.output, sample.site_weight)
        batch = sample.batch
        admitted = sample.truth | ~sample.at_eps_y[batch.state_var]
        everywhere = np.ones(len(batch), dtype=bool)
        labels = plan.bind(sample.truth_query, eps_y, eps_h)
        right = labels  # unless labels also hold hidden variables, which U+ leaves free
        if not np.array_equal(admitted, sample.truth):
            right = plan.bind(sample.query.restrict(admitted), eps_y, eps_h)
        branches = [Branch(right, everywhere, 0.0)]
        for mask, instances in first_errors(batch, sample.query.allowed, admitted):
            query = sample.query.restrict(mask)
            branches.append(Branch(plan.bind(query, eps_y, eps_h, np.flatnonzero(instances)), instances, scale))
        return cls(sample, eps_y, tuple(branches), labels, delta)

    def minus(self, theta: Potentials) -> Belief:
        evidence = self.sample.evidence
        observed = theta if evidence is None else replace(theta, unary=theta.unary + evidence)
        return self.labels(observed)

    def plus(self, theta: Potentials) -> tuple[Belief, int]:
        """U+ and its gradient; never below U-, whose labellings are among those of the first branch."""
        batch = self.sample.batch
        augmented = theta + self.delta
        total = self.branches[0](augmented)
        for branch in self.branches[1:]:
            total = united(batch, total, branch(augmented), self.eps_y)
        return total, 0


def first_errors(batch: Batch, allowed: Bools, admitted: Bools) -> list[tuple[Bools, Bools]]:
    """The masks of Y_1, Y_2, ...: for each k the states, and the instances that have a k-th site that can be wrong.

    In an instance without one, the mask leaves all states."""
    sites = np.unique(batch.state_var[allowed & ~admitted])
    owners = batch.owner[sites]
    position = np.arange(len(sites)) - np.searchsorted(owners, owners)
    out = []
    for k in range(int(position.max(initial=-1)) + 1):
        wrong_sites = sites[position == k]
        has_site = mask_from_indices(batch.owner[wrong_sites], len(batch))
        is_before = mask_from_indices(sites[position < k], batch.n_vars)
        is_wrong = mask_from_indices(wrong_sites, batch.n_vars)
        mask = np.where(is_before[batch.state_var], admitted, True)
        mask = np.where(is_wrong[batch.state_var], ~admitted, mask)
        is_unused = ~has_site[batch.owner]
        out.append((mask | is_unused[batch.state_var], has_site))
    return out


def united(batch: Batch, first: Belief, second: Belief, eps: float) -> Belief:
    """The power sum of two disjoint sets of labellings, instance by instance."""
    value, (of_first, of_second) = power_sum(np.stack([first.value, second.value]), eps, axis=0)
    mu = first.mu.scaled(batch, of_first)
    mu.add(second.mu.scaled(batch, of_second))
    one = first.status
    other = second.status
    status = Status(
        method=one.method,
        exact=one.exact & other.exact,
        converged=one.converged & other.converged,
        sweeps=one.sweeps + other.sweeps,
        residual=np.maximum(one.residual, other.residual),
        lower=_of_bounds(one.lower, other.lower, eps),
        upper=_of_bounds(one.upper, other.upper, eps),
    )
    return Belief(value, mu, status)


def _of_bounds(first: Floats, second: Floats, eps: float) -> AnyArray:
    """The power sum of two bounds, NaN where one is not known; it rises with both, so it is a bound again."""
    unknown = np.isnan(first) | np.isnan(second)
    bounds = np.where(unknown, 0.0, np.stack([first, second]))
    return np.where(unknown, np.nan, power_sum(bounds, eps, axis=0)[0])
