"""Exact nested power sums over segmentations (``cpp/segments.hpp``): planned once, bound once, run often."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from mssvm.core.arrays import Floats, Ints
from mssvm.core.checks import temperature
from mssvm.core.library import FLOAT, FLOATS, INT, INTS, MASK, Function
from mssvm.core.potentials import Belief, Marginals, Potentials, Query, Status
from mssvm.core.segments import SegmentLayout, SpanPotentials, Spans
from mssvm.core.threads import Workers
from mssvm.core.topology import Batch, offsets
from mssvm.engines.base import Pair, TwoCalls, check_decodable, decoded

METHOD = "segment recursion"
OPERATIONS_AT_ONCE = 1 << 30  # operations of one call; between calls the interpreter checks for Ctrl-C
NO_FLOATS = np.zeros(0)
NO_INTS = np.zeros(0, dtype=np.int64)

SEGMENTS = Function(
    "mssvm_segments",
    labels=INT,
    longest=INT,
    hidden=INT,
    moving=INT,
    borders=INT,
    wide=INT,
    eps_y=FLOAT,
    eps_h=FLOAT,
    instances=INTS,
    sites=INTS,
    unary_at=INTS,
    table_at=INTS,
    mu_at=INTS,
    unary=FLOATS,
    tables=FLOATS,
    allowed=MASK,
    span_ptr=INTS,
    span_start=INTS,
    span_stop=INTS,
    span_label=INTS,
    span_score=FLOATS,
    value=FLOATS,
    mu_unary=FLOATS,
    mu_tables=FLOATS,
    mu_span=FLOATS,
    draws=INT,
    seed=INT,
    drawn_at=INTS,
    drawn=INTS,
    threads=INT,
)


@dataclass(frozen=True, eq=False)
class SegmentPlan:
    """Inference on a batch of semi-Markov models; instances run on threads, each whole, so that threads never change a
    result."""

    batch: Batch
    layout: SegmentLayout
    workers: Workers

    @cached_property
    def sites(self) -> Ints:
        return self.layout.sites(self.batch)

    @cached_property
    def unary_at(self) -> Ints:
        return np.ascontiguousarray(self.batch.unary_ptr[self.batch.var_ptr[:-1]])

    @cached_property
    def groups(self) -> list[Ints]:
        """Instances in order, in groups that run in one call."""
        cost = self.sites.astype(np.float64) * self.layout.longest * self.layout.labels
        if self.layout.hidden or self.layout.wide:  # cells may be rows of exponentials
            cost *= 16 * max(self.layout.hidden, 1)
        group = (np.cumsum(cost) // OPERATIONS_AT_ONCE).astype(np.int64)
        instances = np.flatnonzero(self.sites > 0)
        return [part for part in np.split(instances, np.flatnonzero(np.diff(group[instances])) + 1) if len(part)]

    def bind(self, query: Query, eps_y: float, eps_h: float, instances: Ints | None = None) -> SegmentBound:
        query.check(self.batch)
        groups = self.groups
        if instances is not None:
            groups = [np.ascontiguousarray(np.intersect1d(group, instances)) for group in groups]
        return SegmentBound(self, query, temperature(eps_y, "eps_y"), temperature(eps_h, "eps_h"), groups)

    def pair(self, query: Query, narrower: Query, eps_y: float, eps_h: float) -> Pair:
        return TwoCalls(self.bind(query, eps_y, eps_h), self.bind(narrower, eps_y, eps_h))


@dataclass(frozen=True, eq=False)
class SegmentBound:
    """PS_segmentations[eps_y] PS_hidden[eps_h] theta of every instance; roles of variables are ignored."""

    plan: SegmentPlan
    query: Query
    eps_y: float
    eps_h: float
    groups: list[Ints]

    def __call__(self, theta: Potentials) -> Belief:
        batch = self.plan.batch
        mu = Marginals.zeros(batch)
        spans = len(theta.spans) if isinstance(theta, SpanPotentials) else 0
        mu_span = np.zeros(spans)
        value = self._run(theta, mu, mu_span)
        extras: dict[str, object] = {"spans": mu_span} if spans else {}
        return Belief(value, mu, Status.exactly(value, METHOD), extras)

    def value(self, theta: Potentials) -> Floats:
        return self._run(theta, None, NO_FLOATS)

    def decode(self, theta: Potentials) -> tuple[Floats, Ints]:
        check_decodable(self.eps_y)
        belief = self(theta)
        return belief.value, decoded(self.plan.batch, self.query, belief, self.eps_h)

    def sample(self, theta: Potentials, draws: int, seed: int) -> list[Ints]:
        """Segmentations from p ~ exp(PS_h[eps_h] theta / eps_y), an array (draws, T) per instance: the label of every
        site, plus the number of labels where a segment begins."""
        sites = self.plan.sites
        drawn_at = offsets(sites * draws)
        drawn = np.zeros(int(drawn_at[-1]), dtype=np.int64)
        self._run(theta, None, NO_FLOATS, draws, seed, drawn_at[:-1].copy(), drawn)
        return [drawn[drawn_at[b] : drawn_at[b + 1]].reshape(draws, -1) for b in range(len(sites))]

    def _run(
        self,
        theta: Potentials,
        mu: Marginals | None,
        mu_span: Floats,
        draws: int = 0,
        seed: int = 0,
        drawn_at: Ints = NO_INTS,
        drawn: Ints = NO_INTS,
    ) -> Floats:
        plan = self.plan
        batch = plan.batch
        layout = plan.layout
        theta.check(batch)
        value = np.zeros(len(batch))
        spans = Spans(NO_INTS, NO_INTS, NO_INTS, NO_INTS)
        scores = NO_FLOATS
        order = NO_INTS
        if isinstance(theta, SpanPotentials):
            spans, order = theta.spans.sorted()
            scores = np.ascontiguousarray(theta.scores[order])
        mu_sorted = np.zeros(len(spans))
        record = SEGMENTS.record(
            labels=layout.labels,
            longest=layout.longest,
            hidden=layout.hidden,
            moving=int(layout.moving),
            borders=int(layout.borders),
            wide=int(layout.wide),
            eps_y=self.eps_y,
            eps_h=self.eps_h,
            instances=NO_INTS,
            sites=plan.sites,
            unary_at=plan.unary_at,
            table_at=np.ascontiguousarray(batch.table_at, dtype=np.int64),
            mu_at=np.ascontiguousarray(batch.mu_at, dtype=np.int64),
            unary=np.ascontiguousarray(theta.unary, dtype=np.float64),
            tables=np.ascontiguousarray(theta.tables, dtype=np.float64),
            allowed=np.ascontiguousarray(self.query.allowed, dtype=bool),
            span_ptr=offsets(np.bincount(spans.instance, minlength=len(batch)).astype(np.int64)),
            span_start=spans.start,
            span_stop=spans.stop,
            span_label=spans.label,
            span_score=scores,
            value=value,
            mu_unary=NO_FLOATS if mu is None else mu.unary,
            mu_tables=NO_FLOATS if mu is None else mu.tables,
            mu_span=mu_sorted,
            draws=draws,
            seed=seed,
            drawn_at=drawn_at,
            drawn=drawn,
            threads=plan.workers.idle,
        )
        for group in self.groups:
            SEGMENTS.run(record.changed(instances=np.ascontiguousarray(group)))
        if len(mu_span):
            mu_span[order] = mu_sorted
        return value
