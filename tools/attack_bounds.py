"""Random small graphs: the decomposition bound against all assignments, at nine pairs of temperatures.

    python tools/attack_bounds.py [--graphs N] [--seed S] [--json FILE]

Graphs of three to six variables with cycles, two or three states, weak to very strong scores, masks, forbidden pairs
and both roles. The upper bound is never below the value, the lower one never above, a labelling has the score that is
reported, and no sweep raises the bound.
"""

from __future__ import annotations

import sys
from collections import Counter
from itertools import product

import numpy as np
from attack import options, report

from mssvm.core.potentials import Potentials, Query
from mssvm.core.topology import Batch, Topology
from mssvm.engines import engine_of
from mssvm.engines.decomposition import chains_of
from mssvm.inference import Decompose
from mssvm.inference.enumerate import score

AT_ONCE = 50
SWEEPS = 6
PAIRS = ((0.0, 0.0), (0.0, 0.5), (0.0, 1.0), (0.25, 0.25), (0.25, 1.0), (1.0, 0.5), (1.0, 1.0), (0.1, 2.0), (3.0, 1.0))


def graph(rng: np.random.Generator) -> Topology:
    """A cycle through all variables and some further pairs; factors name their ends in either order."""
    n = int(rng.integers(3, 7))
    cycle = [(i, (i + 1) % n) for i in range(n)]
    others = [(i, j) for i in range(n) for j in range(i + 2, n) if (i, j) != (0, n - 1) and rng.random() < 0.4]
    scopes = [pair if rng.random() < 0.5 else pair[::-1] for pair in cycle + others]
    cards = rng.integers(2, 4, n) if rng.random() < 0.5 else np.full(n, rng.integers(2, 4))
    return Topology(tuple(cards.tolist()), tuple(scopes))


def draw(rng: np.random.Generator) -> tuple[Batch, Potentials, Query]:
    shared = graph(rng)
    batch = Batch.build([shared if rng.random() < 0.5 else graph(rng) for _ in range(AT_ONCE)])
    strength = float(rng.choice([0.3, 1.0, 5.0, 300.0, 3e4]))
    unary = strength * rng.normal(size=batch.n_states)
    tables = strength * rng.normal(size=batch.n_table_entries)
    if rng.random() < 0.3:
        tables[rng.random(len(tables)) < 0.1] = -np.inf
    allowed = rng.random(batch.n_states) < rng.choice([0.8, 1.0])
    allowed[batch.unary_ptr[:-1]] = True
    output = rng.random(batch.n_vars) < rng.choice([0.5, 1.0])
    return batch, Potentials(unary, tables), Query(output, allowed)


def power_sum(scores: np.ndarray, eps: float) -> np.ndarray:
    """PS[eps] over the last axis."""
    top = scores.max(axis=-1)
    if eps == 0.0:
        return np.asarray(top)
    low = np.where(np.isfinite(top), top, 0.0)
    with np.errstate(divide="ignore"):
        return np.asarray(low + eps * np.log(np.exp((scores - low[..., None]) / eps).sum(axis=-1)))


def values(batch: Batch, theta: Potentials, query: Query) -> np.ndarray:
    """PS_y[eps_y] PS_h[eps_h] theta by listing, (instances, pairs)."""
    out = np.zeros((len(batch), len(PAIRS)))
    for b in range(len(batch)):
        first, end = batch.var_ptr[b], batch.var_ptr[b + 1]
        outputs = [v for v in range(first, end) if query.output[v]]
        order = outputs + [v for v in range(first, end) if not query.output[v]]
        listed = np.array(list(product(*(range(batch.cards[v]) for v in order))))
        states = np.empty_like(listed)
        states[:, np.array(order) - first] = listed
        at = batch.unary_ptr[first:end] + states
        total = np.where(query.allowed[at], theta.unary[at], -np.inf).sum(axis=1)
        for f in range(batch.factor_ptr[b], batch.factor_ptr[b + 1]):
            i, j = batch.scope_vars[batch.scope_ptr[f] : batch.scope_ptr[f] + 2]
            total = (
                total + theta.tables[batch.table_at[f] + states[:, i - first] * batch.cards[j] + states[:, j - first]]
            )
        by_output = total.reshape(int(np.prod([batch.cards[v] for v in outputs])), -1)
        for k, (eps_y, eps_h) in enumerate(PAIRS):
            out[b, k] = power_sum(power_sum(by_output, eps_h), eps_y)
    return out


def slack(numbers: np.ndarray) -> np.ndarray:
    return np.asarray(1e-9 * (1.0 + np.abs(np.where(np.isfinite(numbers), numbers, 0.0))))


def answers(batch: Batch, theta: Potentials, query: Query) -> list[str]:
    """What is wrong with bounds and labellings."""
    wrong = []
    want = values(batch, theta, query)
    plan = Decompose(sweeps=30).plan(batch)
    for k, (eps_y, eps_h) in enumerate(PAIRS):
        belief = plan.bind(query, eps_y, eps_h)(theta)
        upper, lower = belief.status.upper, belief.status.lower
        exact = want[:, k]
        upper = np.where(np.isnan(upper), belief.value, upper)
        if not np.all(upper >= exact - slack(exact)):
            wrong.append(f"upper bound below the value at {eps_y}, {eps_h}")
        if not np.all(np.isnan(lower) | (lower <= exact + slack(exact))):
            wrong.append(f"lower bound above the value at {eps_y}, {eps_h}")
        proven = belief.status.exact & np.isfinite(exact)
        if not np.all(np.abs(belief.value - exact)[proven] <= slack(exact)[proven]):
            wrong.append(f"not exact at {eps_y}, {eps_h}")
        if eps_y == eps_h == 0.0:
            found = score(batch, theta, belief.decode(batch))
            if not np.all(np.abs(found - lower)[np.isfinite(lower)] <= slack(lower)[np.isfinite(lower)]):
                wrong.append("a labelling has another score than is reported")
    return wrong


def sweeps(batch: Batch, theta: Potentials, query: Query) -> list[str]:
    """What rises."""
    wrong = []
    hidden = ~query.output & (query.n_allowed(batch) > 1)
    every = np.arange(len(batch))
    for eps_y, eps_h in PAIRS:
        if eps_y == 0.0 < eps_h:
            continue
        nested = eps_y != eps_h
        run = chains_of(engine_of("native"), batch, every, hidden if nested else None).run()
        run.load(theta, query.allowed, eps_y, eps_h)
        last = np.full(len(batch), np.inf)
        for _ in range(SWEEPS):
            value = run.sweep(1)
            if not np.all(value <= last + 10 * slack(value)):
                wrong.append(f"a sweep raised the bound at {eps_y}, {eps_h}")
            last = value
    return wrong


def main() -> int:
    parser = options(__doc__)
    parser.add_argument("--graphs", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    counts: Counter[str] = Counter()
    failed: list[str] = []
    for k in range(-(-args.graphs // AT_ONCE)):
        batch, theta, query = draw(np.random.default_rng([args.seed, k]))
        counts["graphs"] += len(batch)
        counts["answers"] += len(PAIRS) * len(batch)
        failed += [f"batch {k}: {text}" for text in (*answers(batch, theta, query), *sweeps(batch, theta, query))]
    return report({"counts": dict(counts), "failed": failed}, args.json)


if __name__ == "__main__":
    sys.exit(main())
