"""Random models for the tests: topologies, potentials, masks and roles; a dense linear model with labelled samples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mssvm.core.arrays import Bools, Floats, Ints
from mssvm.core.errors import InputError
from mssvm.core.potentials import Marginals, Potentials, Query, Term
from mssvm.core.topology import Batch, Topology, spans
from mssvm.engines import engine_of
from mssvm.inference.base import Planner
from mssvm.inference.enumerate import entries
from mssvm.objectives.sample import Sample

MAX_ASSIGNMENTS = 700
KINDS = ("nodes", "chains", "trees", "loops", "grids", "higher", "disconnected", "tied", "uniform", "mixed")


@dataclass(frozen=True, eq=False)
class Case:
    """Everything an inference call takes, except the temperatures."""

    batch: Batch
    theta: Potentials
    query: Query

    def scaled(self, factor: float) -> Case:
        """The same case with potentials multiplied by ``factor`` (forbidden entries stay forbidden)."""
        return Case(self.batch, Potentials(self.theta.unary * factor, self.theta.tables * factor), self.query)

    def select(self, which: Sequence[int]) -> Case:
        """The named instances alone, laid out anew."""
        old, new = self.batch, self.batch.select(which)
        variables = spans(old.var_ptr[which], np.diff(old.var_ptr)[which])
        states = state_rows(old, which)
        theta = Potentials(self.theta.unary[states], self.theta.tables[table_rows(old, new, which)])
        return Case(new, theta, Query(self.query.output[variables], self.query.allowed[states]))


def state_rows(batch: Batch, which: Sequence[int]) -> Ints:
    """Entries of the named instances in an array over states."""
    return np.concatenate([np.arange(batch.n_states)[batch.state_span(int(b))] for b in which] or [np.zeros(0, int)])


def table_rows(old: Batch, new: Batch, which: Sequence[int]) -> Ints:
    """For every table entry of the sub-batch ``new`` the entry of ``old`` it came from."""
    out = np.full(new.n_table_entries, -1, dtype=np.int64)
    for k, b in enumerate(which):
        for f in range(old.topology(int(b)).n_factors):
            size = int(old.topology(int(b)).table_sizes[f])
            here, there = new.table_at[new.factor_ptr[k] + f], old.table_at[old.factor_ptr[b] + f]
            out[here : here + size] = np.arange(there, there + size)
    return out


def mu_rows(old: Batch, new: Batch, which: Sequence[int]) -> Ints:
    """The same for entries of ``Marginals.tables``."""
    out = np.full(new.n_mu_entries, -1, dtype=np.int64)
    for k, b in enumerate(which):
        for f in range(old.topology(int(b)).n_factors):
            size = int(old.topology(int(b)).table_sizes[f])
            here, there = new.mu_at[new.factor_ptr[k] + f], old.mu_at[old.factor_ptr[b] + f]
            out[here : here + size] = np.arange(there, there + size)
    return out


# --------------------------------------------------------------------------------------------- topologies


def chain_scopes(n: int) -> list[tuple[int, ...]]:
    return [(i, i + 1) for i in range(n - 1)]


def tree_scopes(rng: np.random.Generator, n: int) -> list[tuple[int, ...]]:
    label = rng.permutation(n)
    return [(int(label[i]), int(label[rng.integers(i)])) for i in range(1, n)]


def loop_scopes(rng: np.random.Generator, n: int) -> list[tuple[int, ...]]:
    """A ring, sometimes with a chord, sometimes with a second factor on one of its pairs."""
    scopes: list[tuple[int, ...]] = [(i, (i + 1) % n) for i in range(n)] if n > 2 else [(0, 1), (1, 0)]
    if n > 3 and rng.random() < 0.5:
        scopes.append((0, 2))
    if rng.random() < 0.4:
        scopes.append(tuple(reversed(scopes[int(rng.integers(len(scopes)))])))
    return scopes


def grid_scopes(rows: int, columns: int) -> list[tuple[int, ...]]:
    at = np.arange(rows * columns).reshape(rows, columns)
    across = [(int(a), int(b)) for a, b in zip(at[:, :-1].ravel(), at[:, 1:].ravel(), strict=True)]
    down = [(int(a), int(b)) for a, b in zip(at[:-1].ravel(), at[1:].ravel(), strict=True)]
    return [*across, *down]


def higher_scopes(rng: np.random.Generator, n: int) -> list[tuple[int, ...]]:
    count = int(rng.integers(1, 4))
    orders = np.minimum(rng.integers(2, 5, count), n)
    orders[0] = min(n, 4 if rng.random() < 0.5 else 3)
    return [tuple(int(v) for v in rng.choice(n, size=order, replace=False)) for order in orders]


def shuffled(rng: np.random.Generator, scopes: list[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """Factors in another order, some with their axes reversed."""
    turned = [tuple(reversed(s)) if rng.random() < 0.3 else s for s in scopes]
    return [turned[i] for i in rng.permutation(len(turned))]


def random_cards(rng: np.random.Generator, n: int, low: int = 1, high: int = 4) -> tuple[int, ...]:
    """Mixed cardinalities whose product stays small enough for the oracle."""
    cards = rng.integers(low, high + 1, n)
    while np.prod(cards) > MAX_ASSIGNMENTS:
        cards[int(rng.choice(np.flatnonzero(cards == cards.max())))] -= 1
    return tuple(int(c) for c in cards)


def random_forest(rng: np.random.Generator, n: int, most_states: int) -> Topology:
    """Random trees and lone variables, factors and their ends in any order."""
    scopes = [scope for scope in tree_scopes(rng, n) if rng.random() < 0.9]
    return Topology(tuple(rng.integers(2, most_states + 1, n).tolist()), tuple(shuffled(rng, scopes)))


def random_graph(rng: np.random.Generator, kind: str) -> Topology:
    """One topology of the given kind."""
    if kind == "mixed":
        kind = str(rng.choice([k for k in KINDS if k != "mixed"]))
    if kind == "nodes":
        return Topology((int(rng.integers(1, 7)),), ())
    if kind == "chains":
        n = int(rng.integers(2, 9))
        scopes = chain_scopes(n)
        return Topology(random_cards(rng, n), tuple(scopes if rng.random() < 0.5 else shuffled(rng, scopes)))
    if kind == "trees":
        n = int(rng.integers(3, 9))
        return Topology(random_cards(rng, n), tuple(tree_scopes(rng, n)))
    if kind == "loops":
        n = int(rng.integers(2, 7))
        return Topology(random_cards(rng, n), tuple(shuffled(rng, loop_scopes(rng, n))))
    if kind == "grids":
        rows, columns = ((2, 2), (2, 3), (3, 2), (3, 3), (2, 4))[int(rng.integers(5))]
        return Topology(random_cards(rng, rows * columns), tuple(grid_scopes(rows, columns)))
    if kind == "higher":
        n = int(rng.integers(3, 7))
        return Topology(random_cards(rng, n), tuple(higher_scopes(rng, n)))
    if kind == "uniform":
        n = int(rng.integers(1, 8))
        return Topology((2 if n > 5 else int(rng.integers(2, 4)),) * n, tuple(chain_scopes(n)))
    if kind == "tied":
        n = int(rng.integers(2, 6))
        scopes = (chain_scopes(n), tree_scopes(rng, n), loop_scopes(rng, n))[int(rng.integers(3))]
        return Topology((3,) * n, tuple(scopes))
    return _disconnected(rng)


def _disconnected(rng: np.random.Generator) -> Topology:
    """Pieces without a factor between them, isolated variables included, numbered at random."""
    pieces = [chain_scopes(3), [], loop_scopes(rng, 3) if rng.random() < 0.5 else [(0, 1)]]
    sizes = [3, int(rng.integers(1, 3)), 3]
    label = rng.permutation(sum(sizes))
    start = np.cumsum([0, *sizes])
    scopes = [tuple(int(label[start[p] + v]) for v in s) for p, piece in enumerate(pieces) for s in piece]
    return Topology(random_cards(rng, sum(sizes), high=3), tuple(scopes))


# --------------------------------------------------------------------------------------------- cases


def random_query(rng: np.random.Generator, batch: Batch) -> Query:
    """Random roles (all hidden and all outputs included), random masks and clamped variables."""
    share = rng.choice([0.0, 0.3, 0.5, 0.7, 1.0], len(batch), p=[0.1, 0.25, 0.3, 0.25, 0.1])
    output = rng.random(batch.n_vars) < share[batch.owner]
    keep = rng.choice([1.0, 0.7, 0.0], batch.n_vars, p=[0.6, 0.25, 0.15])
    allowed = rng.random(batch.n_states) < keep[batch.state_var]
    always = batch.unary_ptr[:-1] + rng.integers(0, batch.cards)
    allowed[always] = True
    return Query(output, allowed)


def table_shapes(graph: Topology) -> list[tuple[int, ...]]:
    return [graph.table_shape(f) for f in range(graph.n_factors)]


def random_case(kind: str, n: int = 30, seed: int = 0, forbid: float = 0.05, integer: bool = False) -> Case:
    """A ragged batch of ``n`` models with potentials of range one, some of their entries forbidden.

    ``integer`` draws whole numbers instead, which makes maximisers tie.
    """
    rng = np.random.default_rng([seed, KINDS.index(kind)])
    pool = [random_graph(rng, kind) for _ in range(max(1, 2 * n // 3))]
    graphs = [*pool, *(pool[int(i)] for i in rng.integers(0, len(pool), n - len(pool)))]
    ids = None
    if kind == "uniform":
        # Chains 0 - 1 - 2 ... that read one table throughout, most of them the same one.
        tables = [g.cards[0] + 10 * int(rng.random() < 0.2) for g in graphs]
        ids = [[table] * g.n_factors for table, g in zip(tables, graphs, strict=True)]
    elif kind in ("tied", "mixed"):
        # Two tables for every shape, shared within and across instances.
        shapes = {shape: k for k, shape in enumerate(sorted({shape for g in graphs for shape in table_shapes(g)}))}
        ids = [[2 * shapes[shape] + int(rng.integers(2)) for shape in table_shapes(g)] for g in graphs]
    batch = Batch.build(graphs, ids)
    unary, tables = (
        rng.integers(-1, 2, size).astype(float) if integer else rng.uniform(-0.5, 0.5, size)
        for size in (batch.n_states, batch.n_table_entries)
    )
    marked = np.repeat(rng.random(batch.n_vars) < 0.2, batch.cards)
    unary[marked & (rng.random(batch.n_states) < forbid)] = -np.inf
    tables[rng.random(batch.n_table_entries) < forbid] = -np.inf
    return Case(batch, Potentials(unary, tables), random_query(rng, batch))


# --------------------------------------------------------------------------------------------- a linear model


@dataclass(frozen=True, eq=False)
class DenseInputs:
    """Explicit design: theta.unary = unary @ w, theta.tables = tables @ w."""

    batch: Batch
    unary: Floats
    tables: Floats

    def select(self, which: Sequence[int] | Ints) -> DenseInputs:
        new = self.batch.select(which)
        return DenseInputs(
            new, self.unary[state_rows(self.batch, which)], self.tables[table_rows(self.batch, new, which)]
        )


@dataclass(frozen=True)
class DenseModel:
    """The linear model of a ``DenseInputs`` design."""

    n_weights: int

    def bind(self, inputs: DenseInputs, engine: Any) -> DenseFeatures:
        return DenseFeatures(inputs)

    def forward(self, w: Floats, x: DenseInputs) -> Potentials:
        return DenseFeatures(x).forward(w)


@dataclass(frozen=True, eq=False)
class DenseFeatures:
    """A ``DenseInputs`` design as the map from weights to potentials, and its transpose."""

    x: DenseInputs

    def forward(self, w: Floats) -> Potentials:
        return Potentials(self.x.unary @ w, self.x.tables @ w)

    def adjoint(self, mu: Marginals) -> Floats:
        return np.asarray(self.x.unary.T @ mu.unary + self.x.tables.T @ self.x.batch.fold(mu.tables))


@dataclass(frozen=True)
class AsymmetricLoss:
    """A cost for every (truth, prediction) pair of states, zero on truth: truth 0 is dear, truth 2 is cheap."""

    scale: float = 1.0

    def delta(self, batch: Batch, output: Bools, truth: Bools, site_weight: Floats) -> Potentials:
        state = np.arange(batch.n_states) - batch.unary_ptr[:-1][batch.state_var]
        lowest = np.full(batch.n_vars, 99)
        np.minimum.at(lowest, batch.state_var[truth], state[truth])
        cost = self.scale * (2.0 + state) / (1.0 + lowest[batch.state_var])
        active = output[batch.state_var] & ~truth
        return Potentials(np.where(active, cost * site_weight[batch.state_var], 0.0), np.zeros(batch.n_table_entries))


@dataclass(frozen=True)
class ScaledLoss:
    """Another loss times a constant."""

    inner: object
    scale: float

    def delta(self, batch: Batch, output: Bools, truth: Bools, site_weight: Floats) -> Potentials:
        base = self.inner.delta(batch, output, truth, site_weight)  # type: ignore[attr-defined]
        return Potentials(base.unary * self.scale, base.tables * self.scale)


def design(rng: np.random.Generator, batch: Batch, n_weights: int) -> DenseInputs:
    shape_u, shape_t = (batch.n_states, n_weights), (batch.n_table_entries, n_weights)
    return DenseInputs(batch, rng.normal(size=shape_u), rng.normal(size=shape_t))


def labels_as_truth(batch: Batch, output: Bools, states: Ints) -> Bools:
    """The truth mask of single labels on the outputs; hidden variables keep every state."""
    mask = ~output[batch.state_var]
    labelled = np.flatnonzero(output)
    mask[batch.unary_ptr[labelled] + states[labelled]] = True
    return mask


def random_sample(
    rng: np.random.Generator, graphs: Sequence[Topology], output: Bools, n_weights: int, labels: Ints | None = None
) -> Sample:
    """A labelled sample on a random dense design; labels drawn at random unless given."""
    batch = Batch.build(graphs)
    states = rng.integers(0, batch.cards) if labels is None else labels
    query = Query.of(batch, output)
    return Sample.of(design(rng, batch, n_weights), query, labels_as_truth(batch, output, states))


def features(sample: Sample, b: int, z: Ints) -> Floats:
    """phi(z): joint features of full assignments (rows) of instance b."""
    unary_at, table_at, _ = entries(sample.batch, b, z)
    x = sample.inputs
    return np.asarray(x.unary[unary_at].sum(1) + x.tables[table_at].sum(1))  # type: ignore[attr-defined]


@dataclass(frozen=True)
class On:
    """An inference on an engine, called in one go."""

    inference: Any
    engine: Any

    def bind(self, batch: Batch, query: Query, eps_y: float, eps_h: float, **settings: Any) -> Any:
        return Planner(self.inference, self.engine)(batch).bind(query, eps_y, eps_h, **settings)

    def __call__(self, batch: Batch, theta: Potentials, query: Query, eps_y: float, eps_h: float) -> Any:
        return self.bind(batch, query, eps_y, eps_h)(theta)


def parts_of(objective: Any, inference: Any, sample: Sample, delta: Potentials) -> Any:
    """An objective bound to a sample."""
    planner = Planner(inference, engine_of())
    return objective.bind(sample, delta, planner(sample.batch), planner)


def node_term(batch: Batch, features: Any, block: int | Ints = 0, variables: Ints | None = None) -> Term:
    """One row of features per variable (default: all); ``block`` is one start for all, or one per row."""
    chosen = np.arange(batch.n_vars) if variables is None else np.asarray(variables, dtype=np.int64)
    width = _one_size(batch.cards[chosen], "variables", "states")
    return Term("unary", features, batch.unary_ptr[chosen], width, np.asarray(block))


def table_term(batch: Batch, features: Any = None, block: int | Ints = 0, factors: Ints | None = None) -> Term:
    """One row of features per different table of ``factors`` (default: all), in order of first use.

    Without features every row is the single feature 1: indicators of the joint states.
    """
    chosen = np.arange(batch.n_factors) if factors is None else np.asarray(factors, dtype=np.int64)
    width = _one_size(batch.table_sizes[chosen], "factors", "table entries")
    _, first = np.unique(batch.table_at[chosen], return_index=True)
    at = batch.table_at[chosen[np.sort(first)]]
    rows = np.ones((len(at), 1)) if features is None else features
    return Term("tables", rows, at, width, np.asarray(block))


def _one_size(sizes: Ints, of: str, what: str) -> int:
    kinds = np.unique(sizes)
    if len(kinds) > 1:
        raise InputError(f"the {of} of one term differ in their number of {what} ({kinds}); make one term for each.")
    return int(kinds[0]) if len(kinds) else 1
