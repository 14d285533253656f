"""Answers of a fitted model: a request (inputs, roles, masks) goes to inference, a belief comes back.

The k best outputs are found by partitioning (Lawler 1972), exactly wherever inference is, whatever the graph and the
temperatures. The outputs other than the best one, y*, fall into disjoint sets: set t agrees with y* before output t and
differs from it there. Each is a mask of allowed states, so its best member is one call of the same inference; taking
the best of all sets and splitting that set further gives the next best, and so on. All instances and sets of a round
run in one batch.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from mssvm.core.arrays import Bools, Floats, Ints
from mssvm.core.checks import count, sequence
from mssvm.core.errors import InfeasibleError, InputError, MemoryLimitError, UnsupportedError
from mssvm.core.params import Settings
from mssvm.core.potentials import Belief, Potentials, Query
from mssvm.core.topology import Batch, mask_from_indices
from mssvm.data.labels import Labels, flat_sites
from mssvm.data.metrics import log_loss
from mssvm.engines.base import Bound
from mssvm.inference.base import Planner
from mssvm.losses.base import inputs_for
from mssvm.models.base import Inputs, Model
from mssvm.structures import Encoder
from mssvm.structures.encoded import Encoded, Sites, to_query

STATES_AT_ONCE = 1 << 20
LOG_TEMPERATURES = tuple(0.5 * np.log(2.0) * k for k in range(-10, 11))  # the grid of calibration: 1/32 to 32

Predictor = Callable[[Planner, Inputs, Query], Bound]
"""The maximising outputs of a query, their score, and hidden variables given them, as a function of the potentials."""


@dataclass(frozen=True)
class AtTemperatures:
    """PS_y[eps_y] PS_h[eps_h] theta: at eps_y = 0 the best outputs, at 1 the marginals of the posterior."""

    eps_y: float
    eps_h: float

    def __call__(self, planner: Planner, inputs: Inputs, query: Query) -> Bound:
        """Hidden variables at temperature 0 need exact elimination, and are summed at eps_y where that does not fit."""
        plan = planner(inputs.batch)
        try:
            return plan.bind(query, self.eps_y, self.eps_h)
        except (UnsupportedError, MemoryLimitError):
            if self.eps_h > 0.0:
                raise
            return plan.bind(query, self.eps_y, self.eps_y)


@dataclass(frozen=True, eq=False)
class PredictionRequest:
    """Instances to answer for (what is an output, hidden, allowed) and the fitted model that answers."""

    encoded: Encoded
    query: Query
    model: Model[Any]
    w: Floats
    planner: Planner
    predictor: Predictor
    evidence: Floats | None = None

    @cached_property
    def theta(self) -> Potentials:
        """The scores of the model, with the evidence of soft labels (over states) where there is some."""
        theta = self.model.bind(self.encoded.inputs, self.planner.engine).forward(self.w)
        if self.evidence is None:
            return theta
        return Potentials(theta.unary + self.evidence, theta.tables)

    def map(self) -> Belief:
        """The best outputs (marginal MAP at the member's eps_h), and hidden variables given them."""
        return self._possible(self._bound(self.predictor)(self.theta))

    def states(self, belief: Belief, sites: Sites) -> Ints:
        """The best state of every site; hidden ones are the most probable given the best outputs."""
        if sites is self.encoded.labels:
            return np.asarray(self.encoded.over_sites(belief.mu.unary).argmax(axis=1))
        return belief.decode(self.encoded.batch)[sites.vars]

    def posterior(self, eps_y: float, eps_h: float) -> Belief:
        """Marginals under p(y | x) ~ exp(PS_h[eps_h] theta(x, y, h) / eps_y)."""
        return self._possible(self._bound(AtTemperatures(eps_y, eps_h))(self.theta))

    def marginals(self, eps_y: float = 1.0, eps_h: float = 1.0) -> Floats:
        """(sites, classes): probabilities of the labels, by default under p(y, h | x) ~ exp theta(x, y, h)."""
        return self.encoded.over_sites(self.posterior(eps_y, eps_h).mu.unary)

    def least_risk(self, loss: Any, eps_y: float, eps_h: float) -> Ints:
        """The states of the label sites whose expected loss under the posterior is least, among the labellings that the
        hard constraints permit: site by site where neither the loss nor a constraint couples sites, else by a maximum
        over labellings."""
        own, inputs = self, inputs_for(loss, self.encoded.inputs)
        if inputs is not self.encoded.inputs:
            own = replace(self, encoded=replace(self.encoded, inputs=inputs, layout=None))
        encoded, batch, offset = own.encoded, own.encoded.batch, own.encoded.inputs.offset
        risk = loss.expected(
            batch, mask_from_indices(encoded.labels.vars, batch.n_vars), own.posterior(eps_y, eps_h).mu
        )
        gain = Potentials(np.where(self.query.allowed, -risk.unary, -np.inf), -risk.tables)
        gain = gain if offset is None else gain + offset
        if not gain.tables.any():
            return np.asarray(encoded.over_sites(gain.unary).argmax(axis=1))
        every = Query(np.ones(batch.n_vars, dtype=bool), self.query.allowed)
        best = self._possible(self.planner(batch).bind(every, 0.0, 0.0)(gain))
        return best.decode(batch)[encoded.labels.vars]

    def _bound(self, predictor: Predictor) -> Bound:
        """The predictor of this query. That of all labels is kept with the layout of the batch, where this is kept, by
        temperatures, inference and engine; but no inference of which only its owner knows what it depends on."""
        layout, planner = self.encoded.layout, self.planner
        by_value = isinstance(predictor, AtTemperatures) and isinstance(planner.inference, Settings)
        if layout is None or self.query is not layout.query or not by_value:
            return predictor(planner, self.encoded.inputs, self.query)
        key = predictor, planner.inference, planner.engine
        return layout.bounds.get(key, lambda _: predictor(planner, self.encoded.inputs, self.query))

    def _possible(self, belief: Belief) -> Belief:
        empty = np.diff(self.encoded.batch.var_ptr) == 0
        bad = np.flatnonzero(~np.isfinite(belief.value) & ~empty)
        if len(bad):
            reason = "no labelling satisfies the constraints; relax given, allowed or the structure."
            raise InfeasibleError(reason, instance=int(bad[0]))
        return belief

    def restricted(self, mask: Bools) -> PredictionRequest:
        """The same request with fewer labels allowed (mask over sites and classes)."""
        return replace(self, query=self.query.restrict(self.encoded.over_states(mask, "the mask")))

    def variants(self, instances: Ints, query: Query) -> tuple[Belief, Ints]:
        """The best answers of the named instances (repeats allowed) under another query, and their states."""
        inputs = self.encoded.inputs.select(instances)
        theta = self.model.bind(inputs, self.planner.engine).forward(self.w)
        belief = self.predictor(self.planner, inputs, query)(theta)
        return belief, belief.decode(inputs.batch)


def request(
    encoder: Encoder,
    w: Floats,
    planner: Planner,
    predictor: Predictor,
    X: Any,
    hidden: Any = None,
    given: Any = None,
    allowed: Any = None,
) -> PredictionRequest:
    """Encode X and what is known about its labels."""
    encoded, labels = encoder.encode(X), encoder.vocabulary
    shapes = encoded.labels.shapes
    clamped = None if given is None else labels.encode(given, shapes, "given")
    permitted = None if allowed is None else labels.encode(allowed, shapes, "allowed")
    mask = None if hidden is None else site_mask(hidden, encoded.labels)
    query = to_query(encoded, mask, clamped, permitted)
    return PredictionRequest(encoded, query, encoder.model, w, planner, predictor)


@dataclass(frozen=True)
class CalibratedTemperature:
    """The temperature of least log loss among those searched; ``at_edge``: the loss still falls where the search ends,
    so that a temperature beyond may be better."""

    temperature: float
    log_loss: float
    at_edge: bool


def best_temperature(request: PredictionRequest, labels: Labels, eps_h: float) -> CalibratedTemperature:
    """The T of least log loss of the labels under p(y | x) ~ exp(PS_h[eps_h] (theta / T)).

    The loss of structured marginals can have several minima in T. So it is evaluated on a grid first, and every local
    minimum of the grid is refined between its neighbours. Among equally good temperatures the one closest to 1 is kept.
    """
    from scipy.optimize import minimize_scalar  # takes longer to import than most calls of predict

    def loss(log_t: float) -> float:
        return log_loss(request.marginals(np.exp(log_t), eps_h * np.exp(log_t)), labels)

    found = [(loss(log_t), log_t) for log_t in LOG_TEMPERATURES]
    around = [np.inf, *(value for value, _ in found), np.inf]
    last = len(LOG_TEMPERATURES) - 1
    for k in range(last + 1):
        if around[k] > around[k + 1] <= around[k + 2]:
            bounds = LOG_TEMPERATURES[max(k - 1, 0)], LOG_TEMPERATURES[min(k + 1, last)]
            refined = minimize_scalar(loss, bounds=bounds, method="bounded", options={"xatol": 0.03})
            found.append((float(refined.fun), float(refined.x)))
    least, log_t = min(found, key=lambda pair: (pair[0], abs(pair[1])))
    return CalibratedTemperature(float(np.exp(log_t)), least, bool(abs(log_t) == LOG_TEMPERATURES[-1]))


def site_mask(hidden: Any, sites: Sites) -> Bools:
    """One bool per site from a mask in the shape of y."""
    n = sequence(hidden, "hidden", "of masks in the shape of y")
    if n != len(sites.shapes):
        raise InputError(f"hidden has {n} instances and X has {len(sites.shapes)}; they must match.")
    depth = len(sites.shapes[0])
    flat: list[Any] = []
    for b, item in enumerate(hidden):
        values = flat_sites(item, depth, b, "hidden")
        if len(values) != sites.ptr[b + 1] - sites.ptr[b] or not all(isinstance(v, (bool, np.bool_)) for v in values):
            raise InputError("give True or False for each of its sites.", what="hidden", instance=b)
        flat.extend(values)
    return np.array(flat, dtype=bool)


def agreement(states: Ints, labels: Labels, weight: Floats) -> float:
    """Share of labelled sites whose prediction the label admits, weighted by instance."""
    per_site = np.repeat(weight, np.diff(labels.ptr)) * labels.observed
    total = per_site.sum()
    if not total > 0:
        raise InputError("score needs at least one labelled site of positive weight.")
    return float((per_site * labels.mask[np.arange(len(states)), states]).sum() / total)


# ----------------------------------------------------------------------------------------- the k best


@dataclass(order=True)
class Leaf:
    """The best member of a set of outputs; ordered so that the best comes first."""

    cost: float
    number: int
    states: Ints = field(compare=False)
    allowed: Bools = field(compare=False)


def k_best(request: PredictionRequest, k: int) -> list[list[tuple[float, Ints]]]:
    """Per instance up to k pairs (score, states of all variables) of different outputs, best first."""
    batch = request.encoded.batch
    spans = [batch.state_span(b) for b in range(len(batch))]
    heaps: list[list[Leaf]] = [[] for _ in spans]
    found: list[list[tuple[float, Ints]]] = [[] for _ in spans]
    sets = [(b, request.query.allowed[span]) for b, span in enumerate(spans)]
    for _ in range(k):
        if not sets and not any(heaps):
            break  # every output has been found
        sizes = np.array([len(mask) for _, mask in sets], dtype=np.int64)
        call = (np.cumsum(sizes) - sizes) // STATES_AT_ONCE
        for part in np.split(np.arange(len(sets)), np.flatnonzero(np.diff(call)) + 1):
            _evaluate(request, [sets[s] for s in part], heaps)
        sets = []
        for b, heap in enumerate(heaps):
            if heap:
                leaf = heapq.heappop(heap)
                found[b].append((-leaf.cost, leaf.states))
                if len(found[b]) < k:
                    sets += [(b, mask) for mask in _split(batch, request.query.output, b, leaf)]
    return found


def _evaluate(request: PredictionRequest, sets: list[tuple[int, Bools]], heaps: list[list[Leaf]]) -> None:
    """Find the best member of every set and put it on its instance's heap."""
    if not sets:
        return
    batch = request.encoded.batch
    instances = np.array([b for b, _ in sets], dtype=np.int64)
    roles = [request.query.output[batch.var_ptr[b] : batch.var_ptr[b + 1]] for b in instances]
    query = Query(np.concatenate(roles), np.concatenate([mask for _, mask in sets]))
    belief, states = request.variants(instances, query)
    inexact = np.flatnonzero(~belief.status.exact)
    if len(inexact):
        raise UnsupportedError(
            f"instance {int(instances[inexact[0]])}: the k best outputs need exact inference, which this structure and "
            "member do not have here; use a chain or a tree without linked hidden variables, or raise memory_limit."
        )
    ends = np.cumsum([len(r) for r in roles])[:-1]
    for (b, mask), value, part in zip(sets, belief.value, np.split(states, ends), strict=True):
        if np.isfinite(value):
            heapq.heappush(heaps[b], Leaf(-float(value), len(heaps[b]), part, mask))


def _split(batch: Batch, output: Bools, b: int, leaf: Leaf) -> list[Bools]:
    """The sets of outputs left in the leaf's set without its best member."""
    first = int(batch.var_ptr[b])
    at = batch.unary_ptr[first : int(batch.var_ptr[b + 1]) + 1] - batch.unary_ptr[first]
    out = []
    agreed = leaf.allowed.copy()
    for i in np.flatnonzero(output[first : first + len(leaf.states)]):
        best = int(at[i] + leaf.states[i])
        if np.count_nonzero(agreed[at[i] : at[i + 1]]) > 1:
            child = agreed.copy()
            child[best] = False
            out.append(child)
        agreed[at[i] : at[i + 1]] = False
        agreed[best] = True
    return out


def gap_to_second(request: PredictionRequest) -> Floats:
    """Score of the best output minus that of the second best; inf where there is only one."""
    pairs = k_best(request, 2)
    return np.array([pair[0][0] - pair[1][0] if len(pair) > 1 else np.inf for pair in pairs])


def check_k(k: object) -> int:
    """A whole number >= 1, or an error."""
    return count(k, "k", 1)
