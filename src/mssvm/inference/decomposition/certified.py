"""A plan whose difference of two bounds is itself a bound: U+ from above, U- from below.

    U+ - U-  <=  (decomposition bound of U+)  -  (mean field of U-)

The decomposition bound subtracts an upper bound of U- instead, so its difference may be below the objective. Where an
answer is exact, it is taken as it is.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from mssvm.core.arrays import Floats, Ints
from mssvm.core.potentials import Belief, Marginals, Potentials, Query, Status
from mssvm.core.topology import Batch
from mssvm.engines.base import BoundQuery, Pair, Plan, Remembering, TwoCalls
from mssvm.inference.decomposition.mean_field import MeanField

METHOD = "mean field"
COLD_SWEEPS = 4  # most sweeps of the first call
WARM_SWEEPS = 3  # most sweeps of every later call
SETTLED = 1e-4  # probabilities have converged when a sweep changes none by more than this


@dataclass(eq=False)
class AscentState:
    """The state from which the next call of mean field continues: the product ``q`` (None: there was no call), and
    whether any answer of the last call was ``exact``; if none was, later calls do not compute exact answers."""

    q: Floats | None = None
    exact: bool = True
    ascent: MeanField | None = None


@dataclass(frozen=True, eq=False)
class CertifiedPlan:
    """A plan of decomposition bounds; pairs have mean field as their second query."""

    plan: Plan
    batch: Batch
    state: AscentState = field(default_factory=AscentState, repr=False)

    def bind(self, query: Query, eps_y: float, eps_h: float, instances: Ints | None = None) -> BoundQuery:
        return self.plan.bind(query, eps_y, eps_h, instances)

    def pair(self, query: Query, narrower: Query, eps_y: float, eps_h: float) -> Pair:
        pair = self.plan.pair(query, narrower, eps_y, eps_h)
        return TwoCalls(pair.plus, LowerBound(self, pair.minus, self._ascent(narrower), eps_y, eps_h))

    def _ascent(self, query: Query) -> MeanField:
        """Mean field for a query; its colours are found once for all temperatures."""
        state = self.state
        if state.ascent is None or state.ascent.query is not query:
            state.ascent = MeanField(self.batch, query)
        return state.ascent

    def memory(self) -> dict[str, Floats]:
        arrays = self.plan.memory() if isinstance(self.plan, Remembering) else {}
        if self.state.q is None:
            return arrays
        return arrays | {"mean-field": self.state.q, "mean-field-exact": np.array([float(self.state.exact)])}

    def recall(self, name: str, messages: Floats) -> None:
        if name == "mean-field":
            self.state.q = messages.copy()
        elif name == "mean-field-exact":
            self.state.exact = bool(messages[0])
        elif isinstance(self.plan, Remembering):
            self.plan.recall(name, messages)


@dataclass(frozen=True, eq=False)
class LowerBound:
    """Exact values where ``upper`` computes them, mean field elsewhere.

    The first call starts from the marginals of ``upper``, later ones from the product of the last call.
    """

    plan: CertifiedPlan
    upper: BoundQuery
    ascent: MeanField
    eps_y: float
    eps_h: float

    def __call__(self, theta: Potentials) -> Belief:
        state = self.plan.state
        exactly: Belief | None = None
        sweeps = WARM_SWEEPS
        if state.q is None or state.exact:
            exactly = self.upper(theta)
            state.exact = bool(exactly.status.exact.any())
            if exactly.status.exact.all():
                return exactly
            if state.q is None:
                state.q = self.ascent.start(exactly.mu)
                sweeps = COLD_SWEEPS
            if not state.exact:
                exactly = None  # frees its marginals
        belief = self._climb(Potentials(theta.unary, theta.tables), state.q, sweeps)
        return belief if exactly is None else _with_exact(self.plan.batch, belief, exactly)

    def _climb(self, theta: Potentials, q: Floats, most: int) -> Belief:
        """Mean field after some sweeps, which change ``q`` in place."""
        batch = self.plan.batch
        ascent = self.ascent
        sweeps = 0
        change = np.inf
        while sweeps < most and change > SETTLED:
            change = ascent.sweep(theta, self.eps_y, self.eps_h, q)
            sweeps += 1
        value, mu = ascent.bound(theta, self.eps_y, self.eps_h, q)
        nothing = np.full(len(batch), np.nan)
        no = np.zeros(len(batch), dtype=bool)
        settled = np.full(len(batch), change <= SETTLED)
        count = np.full(len(batch), sweeps)
        status = Status((METHOD,) * len(batch), no, settled, count, nothing, value, nothing)
        return Belief(value, mu, status)


def _with_exact(batch: Batch, belief: Belief, exactly: Belief) -> Belief:
    """``belief``, with the answers of ``exactly`` where these are exact."""
    exact = exactly.status.exact
    states = exact[batch.owner][batch.state_var]
    mu = Marginals(
        np.where(states, exactly.mu.unary, belief.mu.unary),
        np.where(exact[batch.mu_owner], exactly.mu.tables, belief.mu.tables),
    )
    value = np.where(exact, exactly.value, belief.value)
    methods = zip(exact.tolist(), exactly.status.method, belief.status.method, strict=True)
    status = replace(
        belief.status,
        method=tuple(one if mine else two for mine, one, two in methods),
        exact=exact,
        converged=exact | belief.status.converged,
        lower=value,
        upper=np.where(exact, value, np.nan),
    )
    return Belief(value, mu, status)
