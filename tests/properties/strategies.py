"""Hypothesis strategies: small labelled samples on a dense linear model, and the weights to evaluate them at."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product

import numpy as np
from hypothesis import strategies as st

from builders import AsymmetricLoss, DenseModel, ScaledLoss, features, random_sample
from mssvm.core.arrays import Floats, Ints
from mssvm.core.topology import Batch, Topology
from mssvm.inference.base import Inference
from mssvm.inference.enumerate import Enumerate
from mssvm.inference.exact import Exact
from mssvm.losses import Hamming, Loss, Zero
from mssvm.objectives.sample import Sample
from mssvm.objectives.training import TrainingProblem
from mssvm.objectives.unified import Unified

N_WEIGHTS = 4
EXACT: Inference = Exact()
WIRINGS: tuple[tuple[tuple[int, ...], ...], ...] = (
    (),
    ((0, 1),),
    ((0, 1), (1, 2)),
    ((1, 0), (1, 2), (3, 1)),
    ((0, 1), (1, 2), (2, 0)),
    ((0, 1, 2), (2, 3)),
)

temperature = st.sampled_from([0.0, 0.05, 0.3, 0.5, 1.0, 2.5])
positive_temperature = st.sampled_from([0.2, 0.5, 1.0, 2.5])
losses = st.sampled_from([Hamming(), Zero(), AsymmetricLoss(), ScaledLoss(Hamming(), 3.0)])


@dataclass(frozen=True, eq=False)
class Draw:
    """A sample and a point w."""

    sample: Sample
    w: Floats
    rng: np.random.Generator

    def problem(self, eps_y: float, eps_h: float, loss: Loss, inference: Inference = EXACT) -> TrainingProblem:
        return TrainingProblem(Unified(eps_y, eps_h, loss), DenseModel(N_WEIGHTS), self.sample, inference)


@st.composite
def draws(draw: st.DrawFn, hidden: bool | None = None, max_instances: int = 3, weighted: bool = False) -> Draw:
    """One to three instances, each with an output; ``hidden`` forces hidden variables in or out."""
    graphs = []
    roles = []
    for _ in range(draw(st.integers(1, max_instances))):
        scopes = draw(st.sampled_from(WIRINGS))
        least = 1 + max((v for s in scopes for v in s), default=0)
        n = max(least, 2) if hidden else draw(st.integers(least, least + 1))
        graphs.append(Topology(tuple(draw(st.lists(st.integers(1, 3), min_size=n, max_size=n))), scopes))
        role = [hidden is False or draw(st.booleans()) for _ in range(n)]
        spare = draw(st.integers(0, n - 1))
        role[spare] = True
        if hidden:
            role[(spare + 1) % n] = False
        roles.extend(role)
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    sample = random_sample(rng, graphs, np.array(roles), N_WEIGHTS)
    if weighted:
        sample = replace(
            sample, weight=rng.uniform(0.0, 2.0, len(sample)), site_weight=rng.uniform(0.0, 2.0, sample.batch.n_vars)
        )
    size = draw(st.sampled_from([0.0, 0.3, 1.0, 3.0]))
    return Draw(sample, size * rng.normal(size=N_WEIGHTS), rng)


def assignments(sample: Sample, b: int) -> tuple[list[tuple[int, ...]], list[tuple[int, ...]], Ints, Ints]:
    """All output and all hidden assignments of instance b, and which variables they are of."""
    graph = sample.batch.topology(b)
    first = sample.batch.var_ptr[b]
    role = sample.query.output[first : first + graph.n_vars]
    y_vars = np.flatnonzero(role)
    h_vars = np.flatnonzero(~role)
    ys = list(product(*(range(graph.cards[v]) for v in y_vars)))
    hs = list(product(*(range(graph.cards[v]) for v in h_vars)))
    return ys, hs, y_vars, h_vars


def joint_features(sample: Sample, b: int) -> tuple[list[tuple[int, ...]], Floats]:
    """The output assignments of instance b, and phi(y, h) as an array (outputs, hidden, weights)."""
    ys, hs, y_vars, h_vars = assignments(sample, b)
    z = np.zeros((len(ys), len(hs), sample.batch.topology(b).n_vars), dtype=np.int64)
    z[:, :, y_vars] = np.array(ys).reshape(len(ys), 1, -1)
    z[:, :, h_vars] = np.array(hs).reshape(1, len(hs), -1)
    flat = features(sample, b, z.reshape(-1, z.shape[-1]))
    return ys, flat.reshape(len(ys), len(hs), -1)


def label_of(sample: Sample, b: int) -> tuple[int, ...]:
    """The labelled states of the outputs of instance b, in order."""
    batch = sample.batch
    variables = [i for i in range(batch.var_ptr[b], batch.var_ptr[b + 1]) if sample.query.output[i]]
    return tuple(int(np.flatnonzero(sample.truth[batch.unary_ptr[i] : batch.unary_ptr[i + 1]])[0]) for i in variables)


def delta_of(sample: Sample, loss: Loss, b: int, y: tuple[int, ...]) -> float:
    """Delta(y_i, y) of one instance, read off the loss's score for each output state."""
    batch = sample.batch
    delta = loss.delta(batch, sample.query.output, sample.truth, sample.site_weight)
    outputs = [i for i in range(batch.var_ptr[b], batch.var_ptr[b + 1]) if sample.query.output[i]]
    return float(sum(delta.unary[batch.unary_ptr[i] + s] for i, s in zip(outputs, y, strict=True)))


def decoded_outputs(batch: Batch, output: np.ndarray, z: Ints, b: int) -> tuple[int, ...]:
    return tuple(int(z[i]) for i in range(batch.var_ptr[b], batch.var_ptr[b + 1]) if output[i])


BRUTE: Inference = Enumerate()
