"""Learning with two models of the hidden variables (Kumar, Packer, Koller, ICML 2012), called ModLat in the paper.

A conditional model P_theta(h | x, y) represents the uncertainty about h in training; the predictor is the joint maximum
of w. The loss is Hamming on outputs plus ``latent_weight`` times Hamming on hidden variables. The two are fitted
alternately:

    w      min R(w) + C sum_i max_{y,h} {w.phi + E_{h'~P_theta} Delta(y_i, h', y, h)} - max_h w.phi(x_i, y_i, h)
    theta  min R(theta) + C sum_i E_{h~P_theta} Delta(h, h_i(w)) - beta E_{h,h'~P_theta} Delta(h, h')

The first is the latent structured SVM with an expected loss 1 - p(h_k = s) on every hidden state, and bounds the loss
between the two models. ``latent_weight`` = 0 leaves exactly the latent structured SVM.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from mssvm.core.arrays import Bools, Floats, sum_by
from mssvm.core.checks import number
from mssvm.core.errors import UnsupportedError
from mssvm.core.potentials import Belief, Marginals, Potentials, Status
from mssvm.core.topology import Batch
from mssvm.engines.base import BoundQuery, Engine, Features, Plan
from mssvm.inference.base import Inference, Planner
from mssvm.losses import Hamming, Loss, Zero, ZeroOne
from mssvm.losses.zero_one import NO_TABLE
from mssvm.models.base import Model
from mssvm.objectives.base import Objective, Parts
from mssvm.objectives.sample import Sample
from mssvm.objectives.training import TrainingProblem
from mssvm.objectives.unified import lssvm

STEP = 1e-3  # of the fourth-order central difference, whose truncation error is of order STEP**4 / 30


@dataclass(frozen=True, eq=False)
class ModLatProblems:
    """The two problems that training alternates between."""

    model: Model[Any]
    sample: Sample
    inference: Inference
    engine: Engine
    C: float = 1.0
    beta: float = 0.1
    latent_weight: float = 1.0
    loss: Loss = field(default_factory=Hamming)

    def __post_init__(self) -> None:
        number(self.beta, "beta", low=0.0, high=1.0)
        number(self.latent_weight, "latent_weight", low=0.0)
        if isinstance(self.loss, ZeroOne):
            raise UnsupportedError(NO_TABLE)

    def prediction_problem(self, theta: Floats) -> TrainingProblem:
        """The problem in w, given the conditional model."""
        p = self._conditional(theta).mu.unary
        return self._problem(lssvm(self.loss), np.where(self._hidden, self.latent_weight * (1.0 - p), 0.0))

    def conditional_problem(self, w: Floats) -> TrainingProblem:
        """The problem in theta, given the predictor."""
        best = self._joint(w).mu.unary
        agreement = Agreement(self.beta, self.latent_weight)
        return self._problem(agreement, np.where(self._hidden, self.latent_weight * (1.0 - best), 0.0))

    def dissimilarity(self, w: Floats, theta: Floats) -> Floats:
        """Per instance: expected loss between conditional model and predictor, less beta times the model's own."""
        batch = self.sample.batch
        hidden = self._hidden
        p = self._conditional(theta).mu.unary
        best = self._joint(w).mu.unary
        delta = self.loss.delta(batch, self.sample.query.output, self.sample.truth, self.sample.site_weight)
        cross = np.where(hidden, self.latent_weight * p * (1.0 - best), delta.unary * best)
        return _per_instance(batch, cross) - self.beta * _diversity(batch, hidden, self.latent_weight, p)

    @property
    def _hidden(self) -> Bools:
        """Mask of the states of hidden variables."""
        return ~self.sample.query.output[self.sample.batch.state_var]

    def _conditional(self, theta: Floats) -> Belief:
        return self._conditional_bound(self._features.forward(theta))

    def _joint(self, w: Floats) -> Belief:
        return self._joint_bound(self._features.forward(w))

    @cached_property
    def _features(self) -> Features:
        return self.model.bind(self.sample.inputs, self.engine)

    @cached_property
    def _plan(self) -> Plan:
        return Planner(self.inference, self.engine)(self.sample.batch)

    @cached_property
    def _conditional_bound(self) -> BoundQuery:
        return self._plan.bind(self.sample.truth_query, 1.0, 1.0)

    @cached_property
    def _joint_bound(self) -> BoundQuery:
        return self._plan.bind(self.sample.query, 0.0, 0.0)

    def _problem(self, objective: Objective, extra_loss: Floats) -> TrainingProblem:
        sample = replace(self.sample, extra_loss=extra_loss)
        return TrainingProblem(objective, self.model, sample, self.inference, self.C, self.engine)


@dataclass(frozen=True)
class Agreement:
    """The objective of the conditional model: E_P[f] - beta E_P E_P' [Delta(h, h')], f given as the loss of each state.

    It is not a difference of convex functions: only ``difference`` of its problem is meaningful. Its gradient is
    Cov_P(phi, f + 2 beta latent_weight p), the derivative of P's marginals along that direction, by a fourth-order
    difference.
    """

    beta: float
    latent_weight: float
    loss: Loss = field(default_factory=Zero)
    eps_y: float = 1.0
    eps_h: float = 1.0

    def at(self, eps_y: float, eps_h: float) -> Agreement:
        """Itself: the conditional model is a likelihood, always at temperature one."""
        return self

    def bind(self, sample: Sample, delta: Potentials, plan: Plan, planner: Planner) -> AgreementParts:
        return AgreementParts(self, sample, delta, plan.bind(sample.truth_query, 1.0, 1.0))


@dataclass(frozen=True, eq=False)
class AgreementParts(Parts):
    """The agreement on a sample; its subtracted part is zero."""

    objective: Agreement
    sample: Sample
    delta: Potentials
    bound: BoundQuery

    def minus(self, theta: Potentials) -> Belief:
        """Zero."""
        zero = np.zeros(len(self.sample))
        return Belief(zero, Marginals.zeros(self.sample.batch), Status.exactly(zero, "nothing to infer"))

    def plus(self, theta: Potentials) -> tuple[Belief, int]:
        batch = self.sample.batch
        beta = self.objective.beta
        latent_weight = self.objective.latent_weight
        belief = self.bound(theta)
        p = belief.mu.unary
        hidden = ~self.sample.query.output[batch.state_var]
        value = _per_instance(batch, np.where(hidden, p * self.delta.unary, 0.0))
        value -= beta * _diversity(batch, hidden, latent_weight, p)
        direction = np.where(hidden, self.delta.unary + 2 * beta * latent_weight * p, 0.0)
        return replace(belief, value=value, mu=self._derivative(theta, direction)), 0

    def _derivative(self, theta: Potentials, direction: Floats) -> Marginals:
        """d mu / dt of the conditional model at theta + t * direction (on unaries), at t = 0."""
        batch = self.sample.batch
        unary = np.zeros(batch.n_states)
        tables = np.zeros(batch.n_mu_entries)
        for k, coefficient in ((-2, 1.0), (-1, -8.0), (1, 8.0), (2, -1.0)):
            mu = self.bound(Potentials(theta.unary + k * STEP * direction, theta.tables)).mu
            unary += coefficient * mu.unary
            tables += coefficient * mu.tables
        return Marginals(unary / (12 * STEP), tables / (12 * STEP))


def _diversity(batch: Batch, hidden: Bools, latent_weight: float, p: Floats) -> Floats:
    """E_P E_P' of the Hamming distance on hidden variables: sum_k 1 - sum_s p_k(s)^2."""
    return latent_weight * _per_instance(batch, np.where(hidden, p * (1.0 - p), 0.0))


def _per_instance(batch: Batch, values: Floats) -> Floats:
    """Sum of ``values`` (states) over each instance."""
    return sum_by(batch.owner[batch.state_var], values, len(batch))
