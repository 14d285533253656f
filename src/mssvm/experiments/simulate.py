"""The paper's simulated data (section 7.1): pairwise models over inputs x, outputs y and hidden h, sampled exactly.

    p(x, y, h) ~ exp[ sum_i w_i(s_i) + sum_i (w_xi(x_i) + w_xs(x_i, s_i)) + sum_(i,j) w_ij(s_i, s_j) ]

Sites s are outputs and hidden variables in alternation; each input x_i hangs on one site, so it is summed out locally,
the sites are drawn by elimination and backward sampling, and then the inputs are drawn given the sites. Weights are
normal and differ between sites and edges. The learner sees one-hot inputs: a block [1, onehot(x)] per site and a table
per edge, in which the true weights are one weight vector (w_x cancels given x).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from mssvm.core.arrays import Bools, Floats, Ints
from mssvm.core.errors import InputError
from mssvm.core.potentials import Query
from mssvm.core.power import power_sum
from mssvm.core.terms import node_term, table_term
from mssvm.core.topology import Batch, Topology
from mssvm.inference.base import Inference
from mssvm.models.layout import WeightLayout
from mssvm.models.linear import LinearInputs, LinearModel
from mssvm.objectives.sample import Sample


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
        n, k = graph.n_vars, recipe.n_states
        has_input = ~output if recipe.inputs == "hidden" else np.ones(n, dtype=bool)
        site = rng.standard_normal((n, k)) * np.where(output, recipe.sigma_y, recipe.sigma_h)[:, None]
        x = rng.standard_normal((n, k)) * recipe.sigma_x
        x_site = rng.standard_normal((n, k, k)) * recipe.pair_std * has_input[:, None, None]
        edge = rng.standard_normal((graph.n_factors, k, k)) * recipe.pair_std
        return cls(graph, output, has_input, site, x, x_site, edge)

    def sample(self, n: int, rng: np.random.Generator) -> tuple[Ints, Ints]:
        """``n`` exact joint draws: inputs and states of the sites, each (n, sites)."""
        joint = self.x[:, :, None] + self.x_site
        inputs_out, p_x = power_sum(joint, 1.0, axis=1)
        states = draw_states(self.graph, self.site + inputs_out, self.edge, n, rng)
        given = p_x.transpose(0, 2, 1)[np.arange(self.graph.n_vars), states]
        return pick(given, rng), states

    def weights(self, layout: WeightLayout) -> Floats:
        """The same model in the learner's weights."""
        w = np.zeros(layout.n_weights)
        rows = np.concatenate([self.site[:, None, :], self.x_site], axis=1)
        layout.view(w, "site")[:] = rows[self.has_input]
        layout.view(w, "edge")[:] = self.edge.reshape(len(self.edge), 1, -1)
        if not self.has_input.all():
            layout.view(w, "bias")[:] = self.site[~self.has_input][:, None, :]
        return w


@dataclass(frozen=True, eq=False)
class Simulation:
    """One draw of a model with its training and test samples; ``weights`` are the true ones."""

    truth: Truth
    model: LinearModel
    weights: Floats
    train: Sample
    test: Sample
    train_states: Ints
    test_states: Ints


def hidden_chain(rng: np.random.Generator, recipe: Recipe | None = None, n_sites: int = 20) -> Simulation:
    """A chain of sites y h y h ... that starts with an output."""
    graph_edges = [(i, i + 1) for i in range(n_sites - 1)]
    return simulate(graph_edges, np.arange(n_sites) % 2 == 0, recipe or Recipe(), rng)


def checkerboard(
    rng: np.random.Generator, recipe: Recipe | None = None, n_rows: int = 6, n_columns: int = 6
) -> Simulation:
    """A grid of sites whose outputs and hidden variables alternate like the squares of a chess board."""
    at = np.arange(n_rows * n_columns).reshape(n_rows, n_columns)
    pairs = [(at[:, :-1], at[:, 1:]), (at[:-1], at[1:])]
    edges = [(int(a), int(b)) for one, two in pairs for a, b in zip(one.ravel(), two.ravel(), strict=True)]
    return simulate(edges, np.indices(at.shape).sum(0).ravel() % 2 == 0, recipe or Recipe(), rng)


def simulate(edges: Sequence[tuple[int, int]], output: Bools, recipe: Recipe, rng: np.random.Generator) -> Simulation:
    """A model on any graph of sites. Model, training and test sets have streams of their own."""
    graph = Topology((recipe.n_states,) * len(output), tuple(edges))
    for_model, for_train, for_test = rng.spawn(3)
    truth = Truth.draw(graph, output, recipe, for_model)
    layout = learner_layout(truth)
    x_train, train = truth.sample(recipe.n_train, for_train)
    x_test, test = truth.sample(recipe.n_test, for_test)
    samples = labelled(truth, layout, x_train, train), labelled(truth, layout, x_test, test)
    return Simulation(truth, LinearModel.named(layout), truth.weights(layout), *samples, train.ravel(), test.ravel())


def learner_layout(truth: Truth) -> WeightLayout:
    """Weights of the learner: [1, onehot(x)] per site with an input, a bias for other sites, a table per edge."""
    k, with_input = truth.site.shape[1], int(truth.has_input.sum())
    shapes: dict[str, tuple[int, ...]] = {"site": (with_input, 1 + k, k), "edge": (truth.graph.n_factors, 1, k * k)}
    if with_input < len(truth.has_input):
        shapes["bias"] = (len(truth.has_input) - with_input, 1, k)
    return WeightLayout.of(shapes)


def labelled(truth: Truth, layout: WeightLayout, x: Ints, states: Ints) -> Sample:
    """The learner's view of drawn instances: features of x, labels of the outputs, hidden sites free."""
    n, k = len(states), truth.site.shape[1]
    batch = Batch.build([truth.graph] * n, [range(truth.graph.n_factors)] * n)
    onehot = np.concatenate([np.ones((batch.n_vars, 1)), np.eye(k)[x.ravel()]], axis=1)
    seen, blind = (np.flatnonzero(np.tile(mask, n)) for mask in (truth.has_input, ~truth.has_input))
    terms = [
        node_term(batch, onehot[seen], np.tile(layout["site"].blocks, n), seen),
        table_term(batch, None, layout["edge"].blocks),
    ]
    if len(blind):
        terms.append(node_term(batch, np.ones((len(blind), 1)), np.tile(layout["bias"].blocks, n), blind))
    output = np.tile(truth.output, n)
    admitted = ~output[:, None] | (np.arange(k) == states.reshape(-1, 1))
    return Sample.of(LinearInputs(batch, tuple(terms)), Query.of(batch, output), admitted.ravel())


def draw_states(graph: Topology, unary: Floats, edge: Floats, n: int, rng: np.random.Generator) -> Ints:
    """``n`` exact draws from a pairwise model: eliminate the variables in order, then sample them in reverse.

    Exponential only in the frontier of the order: one variable on a chain, a row of a grid numbered by rows.
    """
    k = unary.shape[1]
    factors: list[tuple[tuple[int, ...], Floats]] = [((i,), unary[i]) for i in range(graph.n_vars)]
    factors += [((i, j), edge[e]) if i < j else ((j, i), edge[e].T) for e, (i, j) in enumerate(graph.scopes)]
    conditionals: list[tuple[list[int], Floats]] = []
    for i in range(graph.n_vars):
        mine = [f for f in factors if f[0][0] == i]
        scope = sorted({v for variables, _ in mine for v in variables})
        total = np.zeros((k,) * len(scope))
        for variables, table in mine:
            total = total + table.reshape([k if v in variables else 1 for v in scope])
        message, p = power_sum(total, 1.0, axis=0)
        factors = [f for f in factors if f[0][0] != i]
        if len(scope) > 1:
            factors.append((tuple(scope[1:]), message))
        conditionals.append((scope[1:], np.moveaxis(p, 0, -1)))
    states = np.zeros((n, graph.n_vars), dtype=np.int64)
    for i in reversed(range(graph.n_vars)):
        given, p = conditionals[i]
        states[:, i] = pick(np.broadcast_to(p[tuple(states[:, v] for v in given)], (n, k)), rng)
    return states


def pick(p: Floats, rng: np.random.Generator) -> Ints:
    """One state from each distribution along the last axis of ``p``."""
    steps = np.cumsum(p, axis=-1)
    threshold = rng.random((*p.shape[:-1], 1)) * steps[..., -1:]
    return np.asarray((steps <= threshold).sum(axis=-1), dtype=np.int64)


def accuracy(sample: Sample, decoded: Ints) -> float:
    """Share of output sites whose decoded state is one that the label admits."""
    right = sample.truth[sample.batch.unary_ptr[:-1] + decoded]
    return float(right[sample.query.output].mean())


def decoded_accuracy(model: LinearModel, w: Floats, sample: Sample, inference: Inference, eps_h: float = 1.0) -> float:
    """Accuracy of max over y of PS_h[eps_h] theta: marginal MAP at eps_h = 1, joint MAP at 0."""
    assert isinstance(sample.inputs, LinearInputs)
    belief = inference(sample.batch, model.forward(w, sample.inputs), sample.query, 0.0, eps_h)
    return accuracy(sample, belief.decode(sample.batch))
