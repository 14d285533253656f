"""Random models for every strategy that a plan can choose, with what has made numbers go wrong before.

Forbidden entries, masks, roles that differ by instance, ragged sizes, 1 to 17 instances, temperatures from 1e-6 to 1e3
in both orders and exact zeros, and scores of one to 3e4 temperatures of either kind. Where hidden variables are much
colder than outputs, a number that underflows at eps_h may count at eps_y: exp(-800) becomes exp(-0.8).

A ``Strategy`` names the methods that a plan may use (engines that have only one ignore them) and draws batches on which
it is the one chosen; ``strategies_of`` tells which ran. Nothing here knows an engine: it is a parameter.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from builders import Case, chain_scopes, loop_scopes, random_cards, shuffled, tree_scopes
from conformance.oracle import RELATIVE, Error, answer, error_of
from mssvm.core.arrays import Bools, Floats
from mssvm.core.potentials import Potentials, Query
from mssvm.core.topology import Batch, Topology
from mssvm.engines import engine_of
from mssvm.engines.base import METHODS, ExactSettings

Rng = np.random.Generator
LOWEST, HIGHEST = 1e-6, 1e3  # temperatures
STRONGEST = 3e4  # scores, in temperatures
MOST_INSTANCES = 17
MANY_STATES = 160  # where tables become matrix products


@dataclass(frozen=True, eq=False)
class Draw:
    """A case and its temperatures."""

    case: Case
    eps_y: float
    eps_h: float


@dataclass(frozen=True)
class Strategy:
    """A way in which a plan may run a batch, and batches on which it does."""

    name: str
    draw: Callable[[Rng], Draw]
    methods: tuple[str, ...]
    runs: str  # what the engine reports for most instances, "" for anything
    graphs: bool = False  # pairwise graphs, not forests
    logs: bool = False
    share: float = 1.0  # of the draws, beside others of its sort


# --------------------------------------------------------------------------------------------- temperatures and scores


def temperature(rng: Rng) -> float:
    return float(np.exp(rng.uniform(np.log(LOWEST), np.log(HIGHEST))))


def one_temperature(rng: Rng) -> tuple[float, float]:
    eps = temperature(rng)
    return eps, eps


def no_temperature(rng: Rng) -> tuple[float, float]:
    return 0.0, 0.0


def two_temperatures(rng: Rng) -> tuple[float, float]:
    """In either order, close or far apart, sometimes a power of two apart, sometimes one of them zero."""
    eps_y, kind = temperature(rng), rng.random()
    if kind < 0.15:
        return 0.0, eps_y
    if kind < 0.3:
        return eps_y, 0.0
    if kind < 0.45:
        return eps_y, eps_y * 2.0 ** int(rng.integers(-12, 13))
    if kind < 0.85:  # cold hidden variables most often: what underflows among them may count at eps_y
        return eps_y, max(eps_y * float(np.exp(rng.uniform(-10.0, 4.0))), LOWEST)
    return eps_y, temperature(rng)


def any_temperatures(rng: Rng) -> tuple[float, float]:
    kind = rng.random()
    if kind < 0.05:
        return no_temperature(rng)
    return one_temperature(rng) if kind < 0.3 else two_temperatures(rng)


def strength(rng: Rng, eps: Sequence[float]) -> float:
    """Nothing, some temperatures of one kind, or very many."""
    unit, kind = float(rng.choice([e for e in eps if e > 0.0] or [1.0])), rng.random()
    if kind < 0.1:
        return 0.0
    low, high = (0.1, 30.0) if kind < 0.5 else (10.0, STRONGEST)
    return unit * float(np.exp(rng.uniform(np.log(low), np.log(high))))


def scores(rng: Rng, size: int, eps: Sequence[float]) -> Floats:
    """Of one strength, or each of one of two strengths: weak ones beside strong ones are what underflows and counts."""
    strengths = np.where(rng.random(size) < rng.choice([0.0, 0.3, 0.7]), strength(rng, eps), strength(rng, eps))
    return strengths * rng.uniform(-1.0, 1.0, size)


def apart(rng: Rng, size: int, unit: float) -> Floats:
    """Scores of a few temperatures of one kind."""
    return unit * float(np.exp(rng.uniform(np.log(0.3), np.log(10.0)))) * rng.uniform(-1.0, 1.0, size)


def balanced(rng: Rng, batch: Batch, unit: float) -> Floats:
    """Every variable prefers one state, by hundreds of temperatures: what underflow takes at one of them, preferences
    of others that are each within range may bring back together."""
    out = np.zeros(batch.n_states)
    state = rng.integers(0, 2, batch.n_vars)
    level = rng.choice([0.0, 150.0, 270.0, 330.0, 900.0], batch.n_vars)
    if rng.random() < 0.6:  # one against all others
        state, level = np.ones(batch.n_vars, dtype=np.int64), rng.uniform(200.0, 340.0, batch.n_vars)
        one = batch.var_ptr[:-1] + rng.integers(0, np.diff(batch.var_ptr))
        state[one], level[one] = 0, rng.uniform(720.0, 900.0)
    out[batch.unary_ptr[:-1] + np.minimum(state, batch.cards - 1)] = unit * level
    return out + 0.1 * unit * rng.uniform(-1.0, 1.0, batch.n_states)


def potentials(rng: Rng, batch: Batch, eps: Sequence[float]) -> Potentials:
    """Scores, some of them forbidden. Where those of variables are of one temperature and those of tables of the other,
    every number of either may be harmless and their products not."""
    sizes = (batch.n_states, batch.n_table_entries)
    positive = [e for e in eps if e > 0.0]
    regime = rng.random()
    if positive and regime < 0.25:
        unit = min(positive) if rng.random() < 0.7 else max(positive)
        tables = apart(rng, sizes[1], unit)
        forbid(rng, batch, tables, rng.random() < 0.3)
        return Potentials(balanced(rng, batch, unit), tables)
    if positive and regime < 0.6:
        low, high = min(positive), max(positive)
        units = (high, low * (rng.random() < 0.6)) if rng.random() < 0.7 else (low, high)
        unary, tables = apart(rng, sizes[0], units[0]), apart(rng, sizes[1], units[1])
    else:
        unary, tables = scores(rng, sizes[0], eps), scores(rng, sizes[1], eps)
    if rng.random() < 0.6:  # some variables have no scores to speak of, so that others are the only ones that are wide
        faint = rng.choice([0.0, 1e-4, 1.0], batch.n_vars, p=[0.4, 0.2, 0.4])
        unary *= faint[batch.state_var]
    if rng.random() < 0.3:
        marked = np.repeat(rng.random(batch.n_vars) < 0.3, batch.cards)
        unary[marked & (rng.random(batch.n_states) < 0.4)] = -np.inf
    kind = rng.random()
    if kind < 0.4:
        tables[rng.random(batch.n_table_entries) < rng.choice([0.1, 0.25, 0.5])] = -np.inf
    elif kind < 0.8:
        forbid(rng, batch, tables, kind < 0.6)
    return Potentials(unary, tables)


def forbid(rng: Rng, batch: Batch, tables: Floats, above: bool) -> None:
    """Forbid what is above the diagonals of all tables, or nearly all that is beside them."""
    for f in batch.mu_first:
        shape = batch.pair_cards(np.array([f]))[0]
        at = int(batch.table_at[f])
        table = tables[at : at + shape.prod()].reshape(shape)
        if above:
            table[np.triu_indices(shape[0], 1, shape[1])] = -np.inf
        else:
            keep = np.eye(*shape, dtype=bool)
            if rng.random() < 0.7:
                np.put_along_axis(keep, rng.integers(0, shape[1], (shape[0], 1)), True, axis=1)
            table[~keep] = -np.inf


def masks(rng: Rng, batch: Batch) -> Bools:
    """Everything allowed, or some variables narrowed or given."""
    if rng.random() < 0.5:
        return np.ones(batch.n_states, dtype=bool)
    keep = rng.choice([1.0, 0.6, 0.0], batch.n_vars, p=[0.7, 0.2, 0.1])
    allowed = rng.random(batch.n_states) < keep[batch.state_var]
    allowed[batch.unary_ptr[:-1] + rng.integers(0, batch.cards)] = True
    return allowed


def roles(rng: Rng, batch: Batch) -> Bools:
    """One pattern for all, a few patterns, or one for each instance."""
    share = rng.choice([0.2, 0.5, 0.8])
    output = rng.random(batch.n_vars) < share
    if rng.random() < 0.4:
        place = np.arange(batch.n_vars) - batch.var_ptr[batch.owner]
        patterns = rng.random((int(rng.integers(1, 4)), int(place.max()) + 1)) < share
        output = patterns[rng.integers(0, len(patterns), len(batch))[batch.owner], place]
    return output


def drawn(
    rng: Rng, batch: Batch, eps: tuple[float, float], output: Bools | None = None, allowed: Bools | None = None
) -> Draw:
    """Potentials and a query on a batch."""
    output = roles(rng, batch) if output is None else output
    allowed = masks(rng, batch) if allowed is None else allowed
    return Draw(Case(batch, potentials(rng, batch, eps), Query(output, allowed)), *eps)


# --------------------------------------------------------------------------------------------- batches


def small_cards(rng: Rng, n: int) -> tuple[int, ...]:
    """Few enough assignments to list, all alike or not."""
    if rng.random() < 0.5:
        return (2 if n > 4 else int(rng.integers(2, 4 + (n < 4))),) * n
    return random_cards(rng, n, low=1 if rng.random() < 0.2 else 2)


def one_forest(rng: Rng) -> Topology:
    """A chain, a tree, or several, with factors in any order."""
    n = int(rng.choice([1, 2, 3, 4, 5, 6], p=[0.05, 0.25, 0.25, 0.2, 0.15, 0.1]))
    scopes = chain_scopes(n) if rng.random() < 0.5 else tree_scopes(rng, n)
    scopes = [scope for scope in scopes if rng.random() < 0.95]
    return Topology(small_cards(rng, n), tuple(shuffled(rng, scopes) if rng.random() < 0.5 else scopes))


def count(rng: Rng) -> int:
    return int(rng.integers(1, MOST_INSTANCES + 1))


def loose_forests(rng: Rng) -> Batch:
    """Forests of any shapes, a table to every factor."""
    return Batch.build([one_forest(rng) for _ in range(count(rng))])


def forests_alike(rng: Rng) -> Batch:
    """Forests of one shape, or chains of one kind and many lengths, that share tables: they run side by side."""
    many = max(3, count(rng))
    if rng.random() < 0.5:
        graph = one_forest(rng)
        ids = rng.integers(0, graph.n_factors, graph.n_factors) if _square(graph) else np.arange(graph.n_factors)
        return Batch.build([graph] * many, [ids] * many)
    longest = int(rng.choice([2, 3, 4, 5, 6]))
    card, tied = (2 if longest > 4 else int(rng.integers(2, 4))), rng.random() < 0.5
    sizes = rng.integers(1, longest + 1, many)
    graphs = [Topology((card,) * int(n), tuple(chain_scopes(int(n)))) for n in sizes]
    ids = [np.zeros(n - 1, dtype=np.int64) if tied else np.arange(longest - n, longest - 1) for n in sizes]
    return Batch.build(graphs, ids)


def long_chains(rng: Rng) -> Batch:
    """Chains of up to 25 sites that share one table: too long to list."""
    card = int(rng.integers(2, 4))
    sizes = rng.integers(1, 26, int(rng.integers(3, 6)))
    graphs = [Topology((card,) * int(n), tuple(chain_scopes(int(n)))) for n in sizes]
    return Batch.build(graphs, [np.zeros(n - 1, dtype=np.int64) for n in sizes])


def _square(graph: Topology) -> bool:
    return len(set(graph.cards)) == 1 and graph.n_factors > 0


def hidden_paths(rng: Rng) -> Draw:
    """Labels and hidden variables in turn at eps_y = eps_h / n: hidden variables are copied n times."""
    copies, labels = [(2, 3), (2, 4), (3, 4), (4, 5)][int(rng.integers(4))]
    longest, many = int(rng.integers(2, 4)), max(3, count(rng))
    sizes = 2 * rng.integers(2, longest + 1, many) - 1
    graphs = [Topology(tuple(labels if v % 2 == 0 else 2 for v in range(n)), tuple(chain_scopes(n))) for n in sizes]
    tied = rng.random() < 0.5
    most = 2 * longest - 1
    ids = [np.arange(n - 1) % 2 if tied else np.arange(most - n, most - 1) for n in sizes]
    batch = Batch.build(graphs, ids)
    place = np.arange(batch.n_vars) - batch.var_ptr[batch.owner]
    missing = rng.random(batch.n_vars) < rng.choice([0.0, 0.3])
    eps_h = temperature(rng)
    return drawn(rng, batch, (eps_h / copies, eps_h), (place % 2 == 0) & ~missing)


def many_states(rng: Rng) -> Draw:
    """Short chains of many states that share a table, at one temperature."""
    n, many = int(rng.integers(1, 4)), int(rng.integers(3, 6))
    sizes = rng.integers(1, n + 1, many)
    graphs = [Topology((MANY_STATES,) * int(k), tuple(chain_scopes(int(k)))) for k in sizes]
    batch = Batch.build(graphs, [np.zeros(k - 1, dtype=np.int64) for k in sizes])
    return drawn(rng, batch, one_temperature(rng))


def hub_graph(rng: Rng) -> Topology:
    """A forest and one more variable, in factors with some of the others: the class of a hidden chain, a ring."""
    n = int(rng.integers(2, 6))
    scopes = chain_scopes(n) if rng.random() < 0.5 else tree_scopes(rng, n)
    near = [v for v in range(n) if rng.random() < 0.8] or [0]
    return Topology(small_cards(rng, n + 1), (*scopes, *((v, n) for v in near)))


def hubs(rng: Rng) -> Draw:
    if rng.random() < 0.6:
        graph, many = hub_graph(rng), count(rng)
        batch = Batch.build([graph] * many, [np.arange(graph.n_factors)] * many)
    else:
        batch = Batch.build([hub_graph(rng) for _ in range(count(rng))])
    last = np.zeros(batch.n_vars, dtype=bool)
    last[batch.var_ptr[1:] - 1] = True
    output = roles(rng, batch)
    if rng.random() < 0.7:
        output = last if rng.random() < 0.5 else output | last
    return drawn(rng, batch, any_temperatures(rng), output)


def triangle_chain(rng: Rng) -> tuple[Topology, Bools]:
    """Labels in a row with edges of their own and a hidden variable between each two, and the labels."""
    sites = int(rng.integers(2, 4))
    labels, states = int(rng.integers(2, 4)), 2
    cards, scopes = [labels], list[tuple[int, ...]]()
    for t in range(1, sites):
        y, before = 2 * t, 2 * t - 2
        cards += [states, labels]
        scopes += [(before, before + 1), (before + 1, y), (before, y)]
    return Topology(tuple(cards), tuple(scopes)), np.arange(len(cards)) % 2 == 0


def ladder(rng: Rng) -> tuple[Topology, Bools]:
    """Two chains side by side with rungs: layers of two variables."""
    sites = int(rng.integers(2, 5))
    scopes: list[tuple[int, ...]] = []
    for t in range(sites):
        scopes.append((2 * t, 2 * t + 1))
        if t:
            scopes += [(2 * t - 2, 2 * t), (2 * t - 1, 2 * t + 1)]
    return Topology((2,) * (2 * sites), tuple(scopes)), rng.random(2 * sites) < 0.5


def clusters(rng: Rng) -> Draw:
    graph, output = triangle_chain(rng) if rng.random() < 0.7 else ladder(rng)
    many = max(3, count(rng))
    tied = np.arange(graph.n_factors) % 3 if rng.random() < 0.5 and graph.n_vars % 2 else np.arange(graph.n_factors)
    batch = Batch.build([graph] * many, [tied] * many)
    labels = np.tile(output, many)
    if rng.random() < 0.4:
        labels &= rng.random(batch.n_vars) < 0.8
    return drawn(rng, batch, any_temperatures(rng), labels)


def loopy_graph(rng: Rng) -> Topology:
    """Any pairwise graph: rings with chords, or edges at random."""
    n = int(rng.integers(2, 7))
    scopes = loop_scopes(rng, n)
    if rng.random() < 0.5:
        scopes = [(i, j) for j in range(n) for i in range(j) if rng.random() < 0.6]
    return Topology(small_cards(rng, n), tuple(shuffled(rng, scopes)))


def loops(rng: Rng) -> Draw:
    if rng.random() < 0.5:
        graph, many = loopy_graph(rng), count(rng)
        batch = Batch.build([graph] * many, [np.arange(graph.n_factors)] * many)
    else:
        batch = Batch.build([loopy_graph(rng) for _ in range(count(rng))])
    return drawn(rng, batch, any_temperatures(rng))


def forests(batches: Callable[[Rng], Batch], temperatures: Callable[[Rng], tuple[float, float]]) -> Any:
    """A draw of forests at such temperatures."""
    return lambda rng: drawn(rng, batches(rng), temperatures(rng))


ALONE = ("given states", "tree recursion", "elimination")
STRATEGIES = (
    Strategy("one at a time", forests(loose_forests, any_temperatures), ALONE, "alone: one temperature"),
    Strategy("one at a time, alike", forests(forests_alike, any_temperatures), ALONE, "alone: two temperatures"),
    Strategy("lanes, one temperature", forests(forests_alike, one_temperature), METHODS, "abreast: one temperature"),
    Strategy("lanes, maxima", forests(forests_alike, no_temperature), METHODS, "abreast: one temperature"),
    Strategy(
        "lanes, two temperatures",
        forests(forests_alike, two_temperatures),
        METHODS,
        "abreast: two temperatures",
        share=4.0,
    ),
    Strategy(
        "lanes, long chains", forests(long_chains, any_temperatures), METHODS, "abreast: one temperature", share=0.3
    ),
    Strategy("copies", hidden_paths, METHODS, "abreast: copies"),
    Strategy("many states", many_states, METHODS, "abreast: one temperature", share=0.1),
    Strategy("any forests", forests(loose_forests, any_temperatures), METHODS, ""),
    Strategy("elimination of forests", forests(forests_alike, any_temperatures), METHODS[-1:], "elimination"),
    Strategy("conditioning", hubs, ("conditioning", "elimination"), "conditioning", graphs=True),
    Strategy("clusters", clusters, ("side by side", "clustering", "elimination"), "clustering", graphs=True),
    Strategy("elimination", loops, METHODS[-1:], "elimination", graphs=True),
    Strategy("elimination in logs", loops, METHODS[-1:], "elimination", graphs=True, logs=True),
    Strategy("any graphs", loops, METHODS, "", graphs=True),
)
BY_NAME = {strategy.name: strategy for strategy in STRATEGIES}


# --------------------------------------------------------------------------------------------- running and shrinking


@dataclass(frozen=True, eq=False)
class Outcome:
    """Errors by instance, and which strategy ran each."""

    error: Error
    ran: tuple[str, ...]
    exact: Bools

    @property
    def failed(self) -> Bools:
        return self.exact & ~(self.error.worst <= RELATIVE)


def engine_for(strategy: Strategy, name: str) -> Any:
    """The engine of that name; in log space throughout if the strategy asks for it and the engine has such a mode."""
    engine = engine_of(name)
    return replace(engine, log_space=True) if strategy.logs and hasattr(engine, "log_space") else engine


def draw_of(strategy: Strategy, seed: int) -> Draw:
    """The draw of that number."""
    return strategy.draw(np.random.default_rng([seed, *strategy.name.encode()]))


def run(draw: Draw, strategy: Strategy, engine: str = "auto") -> Outcome:
    """A draw through a plan, held against the oracle."""
    case = draw.case
    plan = engine_for(strategy, engine).exact(case.batch, ExactSettings(restarts=1, methods=strategy.methods))
    bound = plan.bind(case.query, draw.eps_y, draw.eps_h)
    got = bound(case.theta)
    want = answer(case.batch, case.theta, case.query, draw.eps_y, draw.eps_h)
    return Outcome(error_of(case.batch, got, want), getattr(bound, "strategies", got.status.method), got.status.exact)


def fails(draw: Draw, strategy: Strategy, engine: str) -> bool:
    return bool(run(draw, strategy, engine).failed.any())


def shrunk(draw: Draw, strategy: Strategy, engine: str = "auto") -> Draw:
    """A smaller draw that fails as well: fewer instances, nothing masked, zeros and round numbers for scores."""
    while (better := _smaller(draw, strategy, engine)) is not None:
        draw = better
    return draw


def _smaller(draw: Draw, strategy: Strategy, engine: str) -> Draw | None:
    """The first candidate that still fails, None if there is none."""
    for candidate in _candidates(draw):
        if fails(candidate, strategy, engine):
            return candidate
    return None


def _candidates(draw: Draw) -> Any:
    case = draw.case
    n = len(case.batch)
    for b in range(n if n > 1 else 0):
        yield replace(draw, case=case.select(np.delete(np.arange(n), b)))
    if not case.query.allowed.all():
        every = Query(case.query.output, np.ones_like(case.query.allowed))
        yield replace(draw, case=replace(case, query=every))
    for name in ("eps_y", "eps_h"):
        rounded = float(f"{getattr(draw, name):.0e}")
        if rounded != getattr(draw, name):
            yield replace(draw, **{name: rounded})
    for name in ("unary", "tables"):
        array = getattr(case.theta, name)
        for k in np.flatnonzero(array != 0.0):
            rounded = (float(f"{array[k]:.0e}"), float(f"{array[k]:.1e}"))
            for value in (0.0, *(v for v in rounded if v != array[k])):
                changed = array.copy()
                changed[k] = value
                yield replace(draw, case=replace(case, theta=replace(case.theta, **{name: changed})))


def as_code(draw: Draw) -> str:
    """A draw as the arguments of ``rebuilt``."""
    case, batch = draw.case, draw.case.batch
    graphs = [(batch.topology(b).cards, batch.topology(b).scopes) for b in range(len(batch))]
    ids = [batch.table_at[batch.factor_ptr[b] : batch.factor_ptr[b + 1]].tolist() for b in range(len(batch))]
    parts = (
        graphs,
        ids,
        case.theta.unary.tolist(),
        case.theta.tables.tolist(),
        case.query.output.astype(int).tolist(),
        case.query.allowed.astype(int).tolist(),
        draw.eps_y,
        draw.eps_h,
    )
    return repr(parts)


def rebuilt(
    graphs: Sequence[tuple[Any, Any]],
    ids: Sequence[Sequence[int]],
    unary: Any,
    tables: Any,
    output: Any,
    allowed: Any,
    eps_y: float,
    eps_h: float,
) -> Draw:
    batch = Batch.build([Topology(cards, scopes) for cards, scopes in graphs], ids)
    theta = Potentials(np.array(unary, dtype=float), np.array(tables, dtype=float))
    return Draw(Case(batch, theta, Query(np.array(output, dtype=bool), np.array(allowed, dtype=bool))), eps_y, eps_h)
