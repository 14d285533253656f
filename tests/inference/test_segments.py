"""Inference on semi-Markov models against brute force over segmentations."""

from __future__ import annotations

import numpy as np
import pytest

import mssvm as ms
from mssvm.core.potentials import Marginals, Potentials, Query
from mssvm.core.power import power_sum
from mssvm.core.segments import SegmentLayout, SpanPotentials, Spans, segmentation_of
from mssvm.core.topology import Batch, Topology
from mssvm.engines import engine_of
from mssvm.inference.exact import Exact
from mssvm.inference.segments import SegmentInference
from segments_oracle import Oracle, segment_batch

TEMPERATURES = [(y, h) for y in (0.0, 0.5, 1.0) for h in (0.0, 0.5, 1.0)]
LAYOUTS = {
    "plain": SegmentLayout(3, 3),
    "borders": SegmentLayout(2, 4, borders=True),
    "hidden": SegmentLayout(2, 3, hidden=2),
    "one hidden state": SegmentLayout(2, 3, hidden=1),
    "hidden, borders": SegmentLayout(2, 3, hidden=3, borders=True),
    "moving": SegmentLayout(2, 3, hidden=2, moving=True),
    "moving, borders": SegmentLayout(2, 4, hidden=2, moving=True, borders=True),
    "wide": SegmentLayout(2, 3, wide=True),
    "wide, hidden": SegmentLayout(2, 3, hidden=2, wide=True),
    "everything": SegmentLayout(2, 3, hidden=2, moving=True, borders=True, wide=True),
    "length 1": SegmentLayout(3, 1),
    "one label": SegmentLayout(1, 3),
}
LENGTHS = [4, 1, 5, 3]
DRAWS = ("plain", "masks", "forbidden", "strong", "stronger", "spans")


def draw(layout, kind, seed):
    """A batch, potentials and the mask of allowed states."""
    rng = np.random.default_rng(seed)
    batch = segment_batch(layout, LENGTHS)
    scale = {"strong": 300.0, "stronger": 3e4}.get(kind, 1.0)
    theta = Potentials(scale * rng.normal(size=batch.n_states), scale * rng.normal(size=batch.n_table_entries))
    allowed = np.ones(batch.n_states, dtype=bool)
    if kind == "forbidden":
        theta.tables[rng.random(batch.n_table_entries) < 0.2] = -np.inf
        theta.tables[int(batch.table_at[1]) :][: layout.labels] = 0.3  # length 1 is possible
    if kind == "masks":
        for b, n in enumerate(LENGTHS):
            members = layout.members(n)
            for name in ("label", "boundary"):
                for v in members[name][name == "boundary" :]:
                    at = batch.unary_ptr[batch.var_ptr[b] + v]
                    states = batch.cards[batch.var_ptr[b] + v]
                    out = rng.random(states) < 0.25
                    out[rng.integers(states)] = False
                    allowed[at : at + states] = ~out
    if kind == "spans":
        spans = Spans(
            instance=np.array([0, 0, 2, 2, 3]),
            start=np.array([1, 0, 2, 0, 0]),
            stop=np.array([3, 1, 5, 1, 3]),
            label=np.array([0, layout.labels - 1, 0, 0, 0]),
        )
        theta = SpanPotentials(theta.unary, theta.tables, spans, rng.normal(size=5))
    return batch, theta, allowed


@pytest.mark.parametrize("kind", DRAWS)
@pytest.mark.parametrize("name", LAYOUTS)
def test_value_and_marginals_equal_brute_force_at_nine_temperature_pairs(name, kind):
    layout = LAYOUTS[name]
    batch, theta, allowed = draw(layout, kind, seed=3)
    query = Query(np.ones(batch.n_vars, dtype=bool), allowed)
    plan = SegmentInference(layout).plan(batch)
    for eps_y, eps_h in TEMPERATURES:
        bound = plan.bind(query, eps_y, eps_h)
        belief = bound(theta)
        mu = Marginals.zeros(batch)
        value = [Oracle(layout, batch, b).run(theta, allowed, eps_y, eps_h, mu) for b in range(len(batch))]
        scale = max(1.0, np.abs(theta.unary).max())
        np.testing.assert_allclose(belief.value, value, rtol=0, atol=1e-9 * scale)
        np.testing.assert_allclose(bound.value(theta), value, rtol=0, atol=1e-9 * scale)
        ignored = np.zeros(batch.n_states, dtype=bool)
        for b, n in enumerate(LENGTHS):
            for axis in ("length", "state", "next"):
                if axis in layout.members(n):
                    v = batch.var_ptr[b] + layout.members(n)[axis][0]
                    ignored[batch.unary_ptr[v] : batch.unary_ptr[v + 1]] = True
        assert not belief.mu.unary[ignored].any()
        tolerance = 1e-9 if scale < 1e3 else 1e-7  # scores of 3e4 have last digits of 1e-11, and their sums more
        np.testing.assert_allclose(belief.mu.unary, mu.unary, rtol=0, atol=tolerance)
        np.testing.assert_allclose(belief.mu.tables, mu.tables, rtol=0, atol=tolerance)
        assert belief.status.exact.all()
        assert set(belief.status.method) == {"segment recursion"}


def slow_value(layout, theta, n):
    """The log-partition function of one instance by the plain recursion, in long double."""
    C, K = layout.labels, layout.longest
    at = 0
    site = theta.unary[: n * C].reshape(n, C).astype(np.longdouble)
    at += n * C
    boundary = theta.unary[at : at + 2 * n].reshape(n, 2).astype(np.longdouble)
    at += 2 * n
    begin = theta.unary[at : at + C].astype(np.longdouble)
    end = theta.unary[at + C : at + 2 * C].astype(np.longdouble)
    transition = theta.tables[: C * C].reshape(C, C)
    duration = theta.tables[C * C : C * C + K * C].reshape(K, C)
    alpha = np.full((n + 1, C), -np.inf, dtype=np.longdouble)

    def log_sum(a, axis=0):
        top = a.max(axis=axis)
        return top + np.log(np.exp(a - np.expand_dims(top, axis)).sum(axis=axis))

    entry = np.zeros((n, C), dtype=np.longdouble)
    entry[0] = begin
    for b in range(1, n + 1):
        rows = []
        for a in range(max(0, b - K), b):
            score = site[a:b].sum(axis=0) + boundary[a, 1] + boundary[a + 1 : b, 0].sum() + duration[b - a - 1]
            rows.append(entry[a] + score)
        alpha[b] = log_sum(np.array(rows))
        if b < n:
            entry[b] = log_sum(alpha[b][:, None] + transition)
    return log_sum(alpha[n] + end)


@pytest.mark.slow
@pytest.mark.parametrize(("n", "longest", "scale"), [(300, 7, 1.0), (200, 40, 30.0), (150, 20, 3e3), (90, 200, 1.0)])
def test_long_sequences_slide_their_windows(n, longest, scale):
    """Windows of K positions move many times; steep scores leave the range of scaled numbers."""
    rng = np.random.default_rng(n)
    layout = SegmentLayout(3, longest)
    batch = segment_batch(layout, [n])
    theta = Potentials(scale * rng.normal(size=batch.n_states), scale * rng.normal(size=batch.n_table_entries))
    theta.unary[: n // 2 * 3] -= 5.0 * scale  # a drift that scaled numbers must follow
    bound = SegmentInference(layout).plan(batch).bind(Query.all_outputs(batch), 1.0, 1.0)
    belief = bound(theta)
    expected = slow_value(layout, theta, n)
    assert abs(belief.value[0] - expected) <= 1e-9 * max(1.0, abs(float(expected)))
    step = np.longdouble(1e-4)
    for target, mu in (("unary", belief.mu.unary), ("tables", belief.mu.tables)):
        for k in rng.choice(len(mu), size=12, replace=False):
            up, down = (getattr(theta, target).astype(np.longdouble) for _ in range(2))
            up[k] += step
            down[k] -= step
            values = []
            for scores in (up, down):
                moved = Potentials(**{"unary": theta.unary, "tables": theta.tables, target: scores})
                values.append(slow_value(layout, moved, n))
            slope = (values[0] - values[1]) / (2 * step)
            assert abs(mu[k] - slope) < 1e-5
    sites = belief.mu.unary[: n * 3].reshape(n, 3)
    np.testing.assert_allclose(sites.sum(axis=1), 1.0, atol=1e-9)


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("temperatures", [(1.0, 1.0), (0.5, 1.0), (1.0, 0.0)])
def test_marginals_are_the_gradient_of_the_value(name, temperatures):
    layout = LAYOUTS[name]
    batch, theta, allowed = draw(layout, "plain", seed=5)
    bound = SegmentInference(layout).plan(batch).bind(Query(np.ones(batch.n_vars, dtype=bool), allowed), *temperatures)
    belief = bound(theta)
    rng = np.random.default_rng(0)
    step = 1e-6
    direction = Potentials(rng.normal(size=batch.n_states), rng.normal(size=batch.n_table_entries))
    values = []
    for sign in (1, -1):
        moved = Potentials(theta.unary + sign * step * direction.unary, theta.tables + sign * step * direction.tables)
        values.append(bound.value(moved).sum())
    slope = belief.mu.unary @ direction.unary + batch.fold(belief.mu.tables) @ direction.tables
    assert (values[0] - values[1]) / (2 * step) == pytest.approx(slope, abs=1e-6)


def chain_of(layout, theta, n, stay):
    """The chain of the same scores: staying in a label costs ``stay[c]``, changing it the transition."""
    C = layout.labels
    batch = Batch.build([Topology([C] * n, [(t, t + 1) for t in range(n - 1)])], [[0] * (n - 1)])
    unary = theta.unary[: n * C].reshape(n, C).copy()
    at = n * C + 2 * n
    unary[0] += theta.unary[at : at + C]
    unary[-1] += theta.unary[at + C : at + 2 * C]
    table = theta.tables[: C * C].reshape(C, C).copy()
    table[np.arange(C), np.arange(C)] = stay
    return batch, Potentials(unary.ravel(), table.ravel()[: batch.n_table_entries])


@pytest.mark.parametrize(("eps_y", "n"), [(0.0, 9), (0.3, 9), (1.0, 9), (1.0, 1), (1.0, 2)])
def test_geometric_durations_equal_a_chain(eps_y, n):
    """With duration[d, c] = b_c (d - 1) and no label behind itself, a segment is a run of a chain."""
    rng = np.random.default_rng(2)
    layout = SegmentLayout(3, 12)
    batch = segment_batch(layout, [n])
    theta = Potentials(rng.normal(size=batch.n_states), rng.normal(size=batch.n_table_entries))
    theta.unary[n * 3 : n * 3 + 2 * n] = 0.0
    stay = rng.normal(size=3)
    theta.tables[[0, 4, 8]] = -np.inf
    theta.tables[9:] = (np.arange(12)[:, None] * stay).ravel()
    belief = SegmentInference(layout).plan(batch).bind(Query.all_outputs(batch), eps_y, 0.0)(theta)
    chain, scores = chain_of(layout, theta, n, stay)
    expected = Exact().plan(chain).bind(Query.all_outputs(chain), eps_y, 0.0)(scores)
    assert belief.value[0] == pytest.approx(expected.value[0], abs=1e-10)
    np.testing.assert_allclose(belief.mu.unary[: n * 3], expected.mu.unary, atol=1e-10)
    if n > 1:
        changes = expected.mu.tables.reshape(3, 3) * (1 - np.eye(3))
        np.testing.assert_allclose(belief.mu.tables[:9].reshape(3, 3), changes, atol=1e-10)


@pytest.mark.parametrize("eps_y", [0.0, 0.3, 1.0])
def test_segments_of_one_site_are_a_chain(eps_y):
    rng = np.random.default_rng(4)
    n = 8
    layout = SegmentLayout(3, 1)
    batch = segment_batch(layout, [n])
    theta = Potentials(rng.normal(size=batch.n_states), rng.normal(size=batch.n_table_entries))
    belief = SegmentInference(layout).plan(batch).bind(Query.all_outputs(batch), eps_y, 0.0)(theta)
    chain, scores = chain_of(layout, theta, n, theta.tables[[0, 4, 8]])
    scores.unary[:] += np.tile(theta.tables[9:], n)  # every site has length 1, and begins a segment
    starts = theta.unary[n * 3 + 1 : n * 3 + 2 * n : 2].sum()
    expected = Exact().plan(chain).bind(Query.all_outputs(chain), eps_y, 0.0)(scores)
    assert belief.value[0] == pytest.approx(expected.value[0] + starts, abs=1e-10)
    np.testing.assert_allclose(belief.mu.unary[: n * 3], expected.mu.unary, atol=1e-10)
    np.testing.assert_allclose(belief.mu.tables[:9], expected.mu.tables, atol=1e-10)


@pytest.mark.parametrize("name", ["plain", "hidden", "moving", "wide"])
def test_threads_leave_every_bit(name):
    layout = LAYOUTS[name]
    batch, theta, allowed = draw(layout, "masks", seed=8)
    query = Query(np.ones(batch.n_vars, dtype=bool), allowed)
    one, four = (
        SegmentInference(layout).plan(batch, engine_of("native", threads)).bind(query, 0.5, 1.0)(theta)
        for threads in (1, 4)
    )
    assert np.array_equal(one.value, four.value)
    assert np.array_equal(one.mu.unary, four.mu.unary)
    assert np.array_equal(one.mu.tables, four.mu.tables)


@pytest.mark.parametrize("name", ["plain", "hidden", "moving", "wide", "borders"])
def test_samples_have_the_probabilities_of_the_oracle(name):
    layout = LAYOUTS[name]
    batch, theta, allowed = draw(layout, "plain", seed=1)
    plan = SegmentInference(layout).plan(batch)
    bound = plan.bind(Query(np.ones(batch.n_vars, dtype=bool), allowed), 1.0, 0.5)
    draws = 4000
    rows = bound.sample(theta, draws, seed=7)[3]
    assert rows.shape == (draws, LENGTHS[3])
    count = {}
    for row in rows:
        count[tuple(row.tolist())] = count.get(tuple(row.tolist()), 0) + 1
    listed = Oracle(layout, batch, 3).scores(theta, allowed)
    inner = [power_sum(np.array([score for score, _, _ in scored]), 0.5, axis=0)[0] for _, scored in listed]
    _, weights = power_sum(np.array(inner, dtype=float), 1.0, axis=0)
    for (segments, _), p in zip(listed, weights, strict=True):
        key = []
        for a, b, c in segments:
            key += [c + layout.labels] + [c] * (b - a - 1)
        found = count.pop(tuple(key), 0) / draws
        assert abs(found - p) < 5 * np.sqrt(p * (1 - p) / draws) + 1e-3
    assert not count  # nothing that the oracle does not list


def test_spans_of_the_best_segmentation_and_their_probabilities():
    layout = LAYOUTS["hidden"]
    batch, theta, allowed = draw(layout, "plain", seed=6)
    plan = SegmentInference(layout).plan(batch)
    query = Query(np.ones(batch.n_vars, dtype=bool), allowed)
    best = segmentation_of(layout, batch, plan.bind(query, 0.0, 1.0)(theta).mu.unary)
    scored = SpanPotentials(theta.unary, theta.tables, best, np.zeros(len(best)))
    belief = plan.bind(query, 1.0, 1.0)(scored)
    for b in range(len(batch)):
        listed = Oracle(layout, batch, b).scores(theta, allowed)
        inner = [power_sum(np.array([s for s, _, _ in rows]), 1.0, axis=0)[0] for _, rows in listed]
        _, weights = power_sum(np.array(inner, dtype=float), 1.0, axis=0)
        chosen = np.flatnonzero(best.instance == b)
        spans = [(int(best.start[k]), int(best.stop[k]), int(best.label[k])) for k in chosen]
        assert spans == listed[int(np.argmax(inner))][0]
        for k, span in zip(chosen, spans, strict=True):
            p = sum(w for w, (segments, _) in zip(weights, listed, strict=True) if span in segments)
            assert belief.extras["spans"][k] == pytest.approx(p, abs=1e-9)


def test_an_engine_without_kernels_is_refused_in_a_sentence():
    layout = LAYOUTS["plain"]
    with pytest.raises(ms.errors.UnsupportedError, match="native and torch engines only"):
        SegmentInference(layout).plan(segment_batch(layout, [3]), engine_of("reference"))
