"""The paper's simulated data (section 7.1): pairwise models over inputs x, outputs y and hidden h, sampled exactly.

    p(x, y, h) ~ exp[ sum_i w_i(s_i) + sum_i (w_xi(x_i) + w_xs(x_i, s_i)) + sum_(i,j) w_ij(s_i, s_j) ]

Sites s are outputs and hidden variables in alternation; each input x_i belongs to one site, so it is summed out there,
the sites are drawn by elimination and backward sampling, and then the inputs are drawn given the sites. Weights are
normal and differ between sites and edges. The learner is a ``FactorModel`` that sees one-hot inputs, with a type of
factor for every site and every edge; the true weights are one of its weight vectors (w_x cancels given x).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from mssvm.core.arrays import Bools, Floats, Ints
from mssvm.core.errors import InputError
from mssvm.core.power import power_sum
from mssvm.core.topology import Topology
from mssvm.data.graphs import FactorInput
from mssvm.structures import FactorModel


@dataclass(frozen=True)
class Recipe:
    """Settings of the generator; the defaults are the paper's. ``inputs`` says which sites carry an input."""

    inputs: Literal["all", "hidden"] = "all"
    pair_std: float = 2.0
    sigma_x: float = 0.1
    sigma_y: float = 0.1
    sigma_h: float = 0.1
    n_states: int = 4
    n_train: int = 20
    n_test: int = 100

    def __post_init__(self) -> None:
        if self.inputs not in ("all", "hidden"):
            raise InputError(f"inputs is 'all' or 'hidden', not {self.inputs!r}.")


@dataclass(frozen=True, eq=False)
class PartlyLabelled:
    """Instances as an estimator takes them, the true labels of all sites, and masks of sites whose label is missing."""

    X: Sequence[Any]
    states: Sequence[Ints]
    hidden: Sequence[Bools]

    def __len__(self) -> int:
        return len(self.X)

    @property
    def y(self) -> list[list[int | None]]:
        """Labels for ``fit``: None where they are missing."""
        labels = []
        for states, hidden in zip(self.states, self.hidden, strict=True):
            pairs = zip(states.tolist(), hidden.tolist(), strict=True)
            labels.append([None if missing else state for state, missing in pairs])
        return labels

    def select(self, instances: Ints) -> PartlyLabelled:
        return PartlyLabelled(
            [self.X[i] for i in instances],
            [self.states[i] for i in instances],
            [self.hidden[i] for i in instances],
        )

    def revealed(self) -> PartlyLabelled:
        """The same with every site an output."""
        return PartlyLabelled(self.X, self.states, [np.zeros_like(mask) for mask in self.hidden])

    def accuracy(self, fitted: Any, decode: str = "map") -> float:
        """Share of the labelled sites, in per cent, that a fitted estimator predicts right; the others are hidden."""
        predicted = fitted.predict(self.X, hidden_sites=self.hidden, decode=decode)
        labelled = ~np.concatenate(self.hidden)
        right = np.concatenate(predicted) == np.concatenate(self.states)
        return 100 * float(np.mean(right[labelled]))


@dataclass(frozen=True, eq=False)
class Truth:
    """The generating weights: ``site[i, s]``, ``x[i, r]``, ``x_site[i, r, s]`` (0 without input), ``edge[e, s, t]``."""

    graph: Topology
    output: Bools
    has_input: Bools
    site: Floats
    x: Floats
    x_site: Floats
    edge: Floats

    @classmethod
    def draw(cls, graph: Topology, output: Bools, recipe: Recipe, rng: np.random.Generator) -> Truth:
        """Normal weights; standard normals are drawn first, so that other scales reuse the same draws."""
        n = graph.n_vars
        k = recipe.n_states
        has_input = ~output if recipe.inputs == "hidden" else np.ones(n, dtype=bool)
        site = rng.standard_normal((n, k)) * np.where(output, recipe.sigma_y, recipe.sigma_h)[:, None]
        x = rng.standard_normal((n, k)) * recipe.sigma_x
        x_site = rng.standard_normal((n, k, k)) * recipe.pair_std * has_input[:, None, None]
        edge = rng.standard_normal((graph.n_factors, k, k)) * recipe.pair_std
        return cls(graph, output, has_input, site, x, x_site, edge)

    def sample(self, n: int, rng: np.random.Generator) -> tuple[Ints, Ints]:
        """``n`` exact joint draws: inputs and states of the sites, each (n, sites)."""
        joint = self.x[:, :, None] + self.x_site
        without_inputs, p_x = power_sum(joint, 1.0, axis=1)
        states = draw_states(self.graph, self.site + without_inputs, self.edge, n, rng)
        p_x_given_state = p_x.transpose(0, 2, 1)[np.arange(self.graph.n_vars), states]
        return pick(p_x_given_state, rng), states

    @property
    def n_states(self) -> int:
        return int(self.site.shape[1])

    @property
    def structure(self) -> FactorModel:
        return FactorModel(hidden={"h": self.n_states})

    def labelled(self, x: Ints, states: Ints) -> PartlyLabelled:
        """Drawn instances as the learner sees them: one-hot features on sites with an input, labels of the outputs."""
        onehot = np.eye(self.n_states)[x.T]
        with_input = np.flatnonzero(self.has_input).tolist()
        without_input = np.flatnonzero(~self.has_input).tolist()
        factors: dict[str, Any] = {f"site {i}": [[i]] for i in with_input}
        factors |= {f"edge {e}": [scope] for e, scope in enumerate(self.graph.scopes)}
        factors |= {f"site {i}": [[i]] for i in without_input}
        bare = FactorInput(["y" if output else "h" for output in self.output], factors)
        X = [bare.with_features({f"site {i}": onehot[i, b : b + 1] for i in with_input}) for b in range(len(x))]
        labels = list(states[:, self.output])
        return PartlyLabelled(X, labels, [np.zeros_like(z, dtype=bool) for z in labels])

    @property
    def weights(self) -> Floats:
        """The same model in the learner's weights, in the order of its factors; a site's bias is before its input."""
        sites = np.concatenate([self.site[:, None, :], self.x_site], axis=1)[self.has_input]
        return np.concatenate([sites.ravel(), self.edge.ravel(), self.site[~self.has_input].ravel()])


@dataclass(frozen=True, eq=False)
class Simulation:
    """One draw of a model, with data for training and test."""

    truth: Truth
    train: PartlyLabelled
    test: PartlyLabelled


def hidden_chain(rng: np.random.Generator, recipe: Recipe | None = None, n_sites: int = 20) -> Simulation:
    """A chain of sites y h y h ... that starts with an output."""
    graph_edges = [(i, i + 1) for i in range(n_sites - 1)]
    return simulate(graph_edges, np.arange(n_sites) % 2 == 0, recipe or Recipe(), rng)


def checkerboard(
    rng: np.random.Generator, recipe: Recipe | None = None, n_rows: int = 6, n_columns: int = 6
) -> Simulation:
    """A grid of sites whose outputs and hidden variables alternate like the squares of a chess board."""
    output = np.indices((n_rows, n_columns)).sum(0).ravel() % 2 == 0
    return simulate(grid_edges(n_rows, n_columns), output, recipe or Recipe(), rng)


def grid_edges(n_rows: int, n_columns: int) -> list[tuple[int, int]]:
    """Sites numbered by rows, joined to their neighbours on the right, then to those below."""
    at = np.arange(n_rows * n_columns).reshape(n_rows, n_columns)
    pairs = [(at[:, :-1], at[:, 1:]), (at[:-1], at[1:])]
    return [(int(a), int(b)) for one, two in pairs for a, b in zip(one.ravel(), two.ravel(), strict=True)]


def simulate(edges: Sequence[tuple[int, int]], output: Bools, recipe: Recipe, rng: np.random.Generator) -> Simulation:
    """A model on any graph of sites. Model, training and test sets have streams of their own."""
    graph = Topology((recipe.n_states,) * len(output), tuple(edges))
    for_model, for_train, for_test = rng.spawn(3)
    truth = Truth.draw(graph, output, recipe, for_model)
    train = truth.labelled(*truth.sample(recipe.n_train, for_train))
    test = truth.labelled(*truth.sample(recipe.n_test, for_test))
    return Simulation(truth, train, test)


def draw_states(graph: Topology, unary: Floats, edge: Floats, n: int, rng: np.random.Generator) -> Ints:
    """``n`` exact draws from a pairwise model: eliminate the variables in order, then sample them in reverse.

    Exponential only in the frontier of the order: one variable on a chain, a row of a grid numbered by rows.
    """
    k = unary.shape[1]
    factors: list[tuple[tuple[int, ...], Floats]] = [((i,), unary[i]) for i in range(graph.n_vars)]
    factors += [((i, j), edge[e]) if i < j else ((j, i), edge[e].T) for e, (i, j) in enumerate(graph.scopes)]
    conditionals: list[tuple[list[int], Floats]] = []
    for i in range(graph.n_vars):
        bucket = [f for f in factors if f[0][0] == i]
        scope = sorted({v for variables, _ in bucket for v in variables})
        total = np.zeros((k,) * len(scope))
        for variables, table in bucket:
            total = total + table.reshape([k if v in variables else 1 for v in scope])
        message, p = power_sum(total, 1.0, axis=0)
        factors = [f for f in factors if f[0][0] != i]
        if len(scope) > 1:
            factors.append((tuple(scope[1:]), message))
        conditionals.append((scope[1:], np.moveaxis(p, 0, -1)))
    states = np.zeros((n, graph.n_vars), dtype=np.int64)
    for i in reversed(range(graph.n_vars)):
        later, p = conditionals[i]
        conditional = p[tuple(states[:, v] for v in later)]
        states[:, i] = pick(np.broadcast_to(conditional, (n, k)), rng)
    return states


def pick(p: Floats, rng: np.random.Generator) -> Ints:
    """One state from each distribution along the last axis of ``p``."""
    steps = np.cumsum(p, axis=-1)
    threshold = rng.random((*p.shape[:-1], 1)) * steps[..., -1:]
    return np.asarray((steps <= threshold).sum(axis=-1), dtype=np.int64)
