"""L6: from w = 0 hidden states stay exchangeable for ever when eps_h > 0; at eps_h = 0 ties break the symmetry."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builders import DenseInputs, DenseModel, labels_as_truth
from mssvm.core.arrays import Floats
from mssvm.core.potentials import Query
from mssvm.core.topology import Batch, Topology
from mssvm.losses import Hamming
from mssvm.objectives.sample import Sample
from mssvm.objectives.training import TrainingProblem
from mssvm.objectives.unified import Unified
from properties.strategies import EXACT, temperature

K_Y = 2
K_H = 3
D = 2
AT_Y = K_H * D + K_Y * K_H
N_WEIGHTS = AT_Y + K_Y * D


def hidden_sample(seed: int, n: int = 6) -> Sample:
    """y - h pairs: labels and hidden states have weights on the features of x, and each pair of them one weight."""
    rng = np.random.default_rng(seed)
    batch = Batch.build([Topology((K_Y, K_H), ((0, 1),))] * n)
    unary = np.zeros((n, K_Y + K_H, N_WEIGHTS))
    tables = np.zeros((n, K_Y * K_H, N_WEIGHTS))
    for i, x in enumerate(rng.normal(size=(n, D))):
        for h in range(K_H):
            unary[i, K_Y + h, h * D : (h + 1) * D] = x
        for y in range(K_Y):
            unary[i, y, AT_Y + y * D : AT_Y + (y + 1) * D] = x
    tables[:, np.arange(K_Y * K_H), K_H * D + np.arange(K_Y * K_H)] = 1.0
    inputs = DenseInputs(batch, unary.reshape(-1, N_WEIGHTS), tables.reshape(-1, N_WEIGHTS))
    query = Query.of(batch, np.arange(2 * n) % 2 == 0)
    return Sample.of(inputs, query, labels_as_truth(batch, query.output, (rng.random(2 * n) < 0.3).astype(int)))


def spread(w: Floats) -> float:
    """Largest difference between the weights of two hidden states."""
    of_x = w[: K_H * D].reshape(K_H, D)
    with_y = w[K_H * D : AT_Y].reshape(K_Y, K_H)
    return float(max(np.ptp(of_x, axis=0).max(), np.ptp(with_y, axis=1).max()))


def descend(problem: TrainingProblem, w: Floats, steps: int = 25) -> Floats:
    for _ in range(steps):
        w = w - 0.1 * (w + problem.difference(w).gradient)
    return w


@settings(max_examples=30)
@given(st.integers(0, 1000), temperature, st.sampled_from([0.05, 0.5, 1.0, 2.0]))
def test_zero_initialisation_keeps_hidden_states_exchangeable(seed: int, eps_y: float, eps_h: float) -> None:
    problem = TrainingProblem(Unified(eps_y, eps_h, Hamming()), DenseModel(N_WEIGHTS), hidden_sample(seed), EXACT)
    w = descend(problem, np.zeros(N_WEIGHTS))
    assert np.abs(w).max() > 1e-3
    assert spread(w) < 1e-12


@pytest.mark.parametrize("eps_y", [0.0, 1.0])
def test_maximising_over_hidden_states_breaks_the_symmetry(eps_y: float) -> None:
    problem = TrainingProblem(Unified(eps_y, 0.0, Hamming()), DenseModel(N_WEIGHTS), hidden_sample(0), EXACT)
    assert spread(descend(problem, np.zeros(N_WEIGHTS))) > 0.1


def test_a_small_random_start_breaks_the_symmetry() -> None:
    problem = TrainingProblem(Unified(0.0, 1.0, Hamming()), DenseModel(N_WEIGHTS), hidden_sample(0), EXACT)
    assert spread(descend(problem, 0.1 * np.random.default_rng(0).normal(size=N_WEIGHTS))) > 0.01
