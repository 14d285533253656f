"""L1: U_i bounds the loss of the decoder that matches its eps_h, for every w and every temperature."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings

from builders import DenseInputs, DenseModel, labels_as_truth
from mssvm.core.arrays import Floats
from mssvm.core.potentials import Query
from mssvm.core.topology import Batch, Topology
from mssvm.losses import Hamming, Loss
from mssvm.objectives.sample import Sample
from mssvm.objectives.training import TrainingProblem
from mssvm.objectives.unified import mssvm
from properties.strategies import BRUTE, EXACT, Draw, decoded_outputs, delta_of, draws, losses, temperature


def decode_losses(draw: Draw, loss: Loss, eps_h: float) -> Floats:
    """Delta(y_i, argmax_y Q_{eps_h}(y)) of every instance."""
    sample = draw.sample
    theta = DenseModel(len(draw.w)).forward(draw.w, sample.inputs)
    z = EXACT(sample.batch, theta, sample.query, 0.0, eps_h).decode(sample.batch)
    found = [decoded_outputs(sample.batch, sample.query.output, z, b) for b in range(len(sample))]
    return np.array([delta_of(sample, loss, b, y) for b, y in enumerate(found)])


@settings(max_examples=150)
@given(draws(), temperature, temperature, losses)
def test_bound_with_the_matching_decoder(draw: Draw, eps_y: float, eps_h: float, loss: Loss) -> None:
    values = draw.problem(eps_y, eps_h, loss).difference(draw.w).values
    assert np.all(values >= -1e-12)
    assert np.all(values >= decode_losses(draw, loss, eps_h) - 1e-9)


@settings(max_examples=40)
@given(draws(weighted=True), temperature, temperature)
def test_bound_with_site_weights(draw: Draw, eps_y: float, eps_h: float) -> None:
    values = draw.problem(eps_y, eps_h, Hamming()).difference(draw.w).values
    assert np.all(values >= decode_losses(draw, Hamming(), eps_h) - 1e-9)


def test_joint_map_does_not_match_the_marginal_bound() -> None:
    """Label 0 has one hidden explanation and label 1 has three just below it: summed, label 1 wins by a margin of
    log 3 - 0.01 > 1, so U_i = 0; the single best pair belongs to label 0, so joint MAP errs with loss 1."""
    batch = Batch.build([Topology((2, 3), ((0, 1),))])
    table = np.array([[0.0, -50.0, -50.0], [-0.01, -0.01, -0.01]])
    inputs = DenseInputs(batch, np.zeros((5, 1)), table.reshape(6, 1))
    query = Query.of(batch, np.array([True, False]))
    sample = Sample.of(inputs, query, labels_as_truth(batch, query.output, np.array([1, 0])))
    w = np.ones(1)
    problem = TrainingProblem(mssvm(), DenseModel(1), sample, EXACT)
    theta = problem.model.forward(w, inputs)
    joint = BRUTE(batch, theta, query, 0.0, 0.0).decode(batch)[0]
    marginal = BRUTE(batch, theta, query, 0.0, 1.0).decode(batch)[0]
    bound = problem.difference(w).values[0]
    assert (joint, marginal) == (0, 1)
    assert delta_of(sample, Hamming(), 0, (int(joint),)) == 1.0
    assert 0.0 <= bound < 1e-12
