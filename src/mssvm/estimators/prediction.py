"""Predictions of a fitted model: inference turns a request (inputs, roles, masks) into a belief.

``request`` encodes X and what is known about its labels; a ``PredictionRequest`` computes the best outputs, marginals,
or the labels of least expected loss. Inference for repeated batches is compiled once (``CompiledQueries``).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from mssvm.core.arrays import Bools, Floats, Ints
from mssvm.core.caches import LRUCache
from mssvm.core.checks import sequence_length
from mssvm.core.errors import InfeasibleError, InputError, MemoryLimitError, UnsupportedError
from mssvm.core.params import Settings
from mssvm.core.potentials import Belief, Potentials, Query, Status
from mssvm.core.topology import mask_from_indices
from mssvm.data.labels import Labels, flat_sites
from mssvm.engines.base import BoundQuery
from mssvm.inference.base import Planner
from mssvm.losses.base import inputs_for
from mssvm.models.base import Inputs, Model
from mssvm.structures import Encoder
from mssvm.structures.encoded import Encoded, to_query
from mssvm.structures.layout import Sites

CACHED_STATES = 1 << 22  # states of the queries whose compiled inference is cached

Predictor = Callable[[Planner, Inputs, Query], BoundQuery]
"""Binds a query about inputs to inference: best outputs at temperature 0, marginals above it."""


@dataclass(frozen=True)
class AtTemperatures:
    """PS_y[eps_y] PS_h[eps_h] theta: at eps_y = 0 the best outputs, at 1 the marginals of the posterior."""

    eps_y: float
    eps_h: float

    def __call__(self, planner: Planner, inputs: Inputs, query: Query) -> BoundQuery:
        """Hidden variables at temperature 0 need exact elimination; where that does not fit into memory, they are
        summed at eps_y."""
        plan = planner(inputs.batch)
        try:
            return plan.bind(query, self.eps_y, self.eps_h)
        except (UnsupportedError, MemoryLimitError):
            if self.eps_h > 0.0:
                raise
            return plan.bind(query, self.eps_y, self.eps_y)


class CompiledQuery(NamedTuple):
    """Inference bound to a query; ``n_states`` is its size in the cache."""

    bound: BoundQuery
    n_states: int


def _n_states(compiled: CompiledQuery) -> int:
    return compiled.n_states


class CompiledQueries:
    """Cache of compiled inference: predictions for batches of the same topologies need no planning.

    ``Encoder`` gives such batches the same query object (``Encoded.query``), which is part of the key, with the
    temperatures, the inference and the engine. Other queries are not cached, nor are user-defined inference objects,
    whose results may depend on more than their settings.
    """

    def __init__(self) -> None:
        self._cache = LRUCache[Hashable, CompiledQuery](CACHED_STATES, _n_states)

    def get(self, encoded: Encoded, query: Query, planner: Planner, predictor: Predictor) -> BoundQuery:
        """The predictor bound to the query, from the cache if it may be cached."""

        def compiled(key: Hashable) -> CompiledQuery:
            return CompiledQuery(predictor(planner, encoded.inputs, query), len(query.allowed))

        by_value = isinstance(predictor, AtTemperatures) and isinstance(planner.inference, Settings)
        if query is not encoded.query or not by_value:
            return predictor(planner, encoded.inputs, query)
        return self._cache.get((query, predictor, planner.inference, planner.engine), compiled).bound


@dataclass(frozen=True, eq=False)
class PredictionRequest:
    """Instances to predict, with the roles and allowed states of their variables, and the fitted model; ``compiled`` is
    the cache of the model, if it has one. ``evidence`` (one number per state) is added to the scores: soft labels.
    ``statuses`` has the status of every inference call made for this request, except for ``variants``."""

    encoded: Encoded
    query: Query
    model: Model[Any]
    w: Floats
    planner: Planner
    predictor: Predictor
    compiled: CompiledQueries | None = None
    evidence: Floats | None = None
    statuses: list[Status] = field(default_factory=list)

    @cached_property
    def theta(self) -> Potentials:
        """The scores of the model, with the evidence."""
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
        request, gain = self._gain(loss, eps_y, eps_h)
        encoded = request.encoded
        if not gain.tables.any() and encoded.segments is None:
            unary = np.where(self.query.allowed, gain.unary, -np.inf)
            return np.asarray(encoded.over_sites(unary).argmax(axis=1))
        return request.states(request._best_of(gain), encoded.labels)

    def least_risk_outputs(self, loss: Any, eps_y: float, eps_h: float) -> Belief:
        """The outputs of least expected loss, by a maximum over all of them."""
        request, gain = self._gain(loss, eps_y, eps_h)
        return request._best_of(gain)

    def _best_of(self, gain: Potentials) -> Belief:
        batch = self.encoded.batch
        all_outputs = Query(np.ones(batch.n_vars, dtype=bool), self.query.allowed)
        return self._possible(self.planner(batch).bind(all_outputs, 0.0, 0.0)(gain))

    def _gain(self, loss: Any, eps_y: float, eps_h: float) -> tuple[PredictionRequest, Potentials]:
        """Scores whose maximum has the least expected loss under the posterior, -inf at impossible states; and the
        request that they belong to."""
        encoded = self.encoded
        request = self
        inputs = inputs_for(loss, encoded.inputs)
        if inputs is not encoded.inputs:  # another batch, with a table for every factor: no compiled query fits it
            encoded = replace(encoded, inputs=inputs, query=None)
            request = replace(self, encoded=encoded)
        batch = encoded.batch
        outputs = mask_from_indices(encoded.labels.vars, batch.n_vars)
        risk = loss.expected(batch, outputs, request.posterior(eps_y, eps_h).mu)
        gain = Potentials(-risk.unary, -risk.tables)
        if encoded.inputs.offset is not None:  # only its forbidden entries matter to the risk
            gain.tables[encoded.inputs.offset.tables == -np.inf] = -np.inf
        return request, gain

    def _bound(self, predictor: Predictor) -> BoundQuery:
        """The predictor bound to this query."""
        if self.compiled is None:
            return predictor(self.planner, self.encoded.inputs, self.query)
        return self.compiled.get(self.encoded, self.query, self.planner, predictor)

    def _possible(self, belief: Belief) -> Belief:
        empty = np.diff(self.encoded.batch.var_ptr) == 0
        bad = np.flatnonzero(~np.isfinite(belief.value) & ~empty)
        if len(bad):
            reason = "no labelling satisfies the constraints; relax given, allowed or the structure."
            raise InfeasibleError(reason, instance=int(bad[0]))
        self.statuses.append(belief.status)
        return belief

    def restricted(self, labels: Labels) -> PredictionRequest:
        """The same request with only the states allowed that the labels admit."""
        return replace(self, query=self.query.restrict(self.encoded.admitted(labels, "y")))

    def variants(self, instances: Ints, query: Query) -> tuple[Belief, Ints]:
        """The best answers of the named instances (repeats allowed) under another query, and their states."""
        inputs = self.encoded.inputs.select(instances)
        theta = self.model.bind(inputs, self.planner.engine).forward(self.w)
        belief = self.predictor(self.planner, inputs, query)(theta)
        return belief, belief.decode(inputs.batch)


@dataclass(frozen=True, eq=False)
class KnownLabels:
    """The caller's knowledge about the labels of X, in the shape of y: ``given`` labels (MISSING where unknown) are
    held fixed, ``allowed`` restricts to candidates, and ``hidden_sites`` masks the sites that are hidden instead of
    outputs."""

    hidden_sites: Any = None
    given: Any = None
    allowed: Any = None

    def query(self, encoded: Encoded, encoder: Encoder) -> Query:
        sites = encoded.labels
        mask = None if self.hidden_sites is None else site_mask(self.hidden_sites, sites)
        if mask is not None and encoded.segments is not None:
            raise UnsupportedError("hidden_sites is not for segments, whose site labels all follow from one output.")
        given = None if self.given is None else encoder.encode_labels(self.given, sites.shapes, "given")
        allowed = None if self.allowed is None else encoder.encode_labels(self.allowed, sites.shapes, "allowed")
        return to_query(encoded, mask, given, allowed)


NOTHING_KNOWN = KnownLabels()


def request(
    encoder: Encoder,
    w: Floats,
    planner: Planner,
    predictor: Predictor,
    X: Any,
    known: KnownLabels = NOTHING_KNOWN,
    compiled: CompiledQueries | None = None,
) -> PredictionRequest:
    """Encode X and what is known about its labels."""
    encoded = encoder.encode(X)
    query = known.query(encoded, encoder)
    return PredictionRequest(encoded, query, encoder.model, w, planner, predictor, compiled)


def site_mask(hidden_sites: Any, sites: Sites) -> Bools:
    """One bool per site from a mask in the shape of y."""
    n = sequence_length(hidden_sites, "hidden_sites", "of masks in the shape of y")
    if n != len(sites.shapes):
        raise InputError(f"hidden_sites has {n} instances and X has {len(sites.shapes)}; they must match.")
    depth = len(sites.shapes[0])
    n_sites = np.diff(sites.ptr)
    mask: list[Any] = []
    for b, item in enumerate(hidden_sites):
        values = flat_sites(item, depth, b, "hidden_sites")
        if len(values) != n_sites[b] or not all(isinstance(v, (bool, np.bool_)) for v in values):
            raise InputError("give True or False for each of its sites.", what="hidden_sites", instance=b)
        mask.extend(values)
    return np.array(mask, dtype=bool)


def agreement(states: Ints, labels: Labels, weight: Floats) -> float:
    """Share of labelled sites whose prediction the label admits, weighted by instance."""
    per_site = np.repeat(weight, np.diff(labels.ptr)) * labels.observed
    total = per_site.sum()
    if not total > 0:
        raise InputError("score needs at least one labelled site of positive weight.")
    return float((per_site * labels.mask[np.arange(len(states)), states]).sum() / total)
