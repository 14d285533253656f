"""A fitted estimator as a PyTorch module, and back."""

from __future__ import annotations

from copy import copy
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch.autograd.function import once_differentiable

from mssvm.core.arrays import Floats
from mssvm.core.potentials import Marginals
from mssvm.data.labels import is_negative
from mssvm.engines import engine_of
from mssvm.engines.base import Features
from mssvm.structures.layout import BatchLayout
from mssvm.torch.functions import on
from mssvm.torch.layer import MISSING_LABEL, StructuredLoss
from mssvm.torch.layouts import ScoreLayout
from mssvm.torch.scores import LaidOut


class StructuredLinear(torch.nn.Module):
    """theta = Phi(x) w of a fitted estimator, ``coef`` being a parameter: made by ``estimator.to_torch()``.

    ``module(X)`` returns the scores that every method of ``module.loss`` takes; its gradient is Phi(x)^T mu. Labels in
    lists are the estimator's own. ``to_estimator()`` gives an estimator with the weights as they are now.

    >>> module = clf.to_torch()
    >>> round(module.loss(module(X), y).item(), 9) >= 0.0, module.to_estimator().score(X, y)
    (True, 1.0)
    """

    def __init__(self, estimator: Any) -> None:
        super().__init__()
        self._estimator = estimator
        self.coef = torch.nn.Parameter(torch.tensor(estimator.coef_))
        missing_label = estimator.labels_.missing_label
        self.loss = StructuredLoss(
            estimator.structure_,
            estimator.eps_y,
            estimator.eps_h,
            estimator._loss(),
            reduction="sum",
            inference=estimator.inference,
            memory_limit=estimator.memory_limit,
            missing_label=missing_label if is_negative(missing_label) else MISSING_LABEL,
        )

    def forward(self, X: Any) -> LaidOut:
        encoder = self._estimator.encoder_
        encoded = encoder.encode(X)
        if getattr(self.loss.loss, "needs_own_tables", False):
            encoded = replace(encoded, inputs=encoded.inputs.untied())
        features = encoder.model.bind(encoded.inputs, engine_of())
        no_groups = BatchLayout((), np.zeros(0, dtype=np.int64))  # scores are laid out already
        layout = ScoreLayout(no_groups, encoded, encoder)
        return LaidOut(layout, *_Linear.apply(self.coef, features, layout))

    def to_estimator(self) -> Any:
        """A copy of the estimator with the present weights."""
        out = copy(self._estimator)
        out.coef_ = self.coef.detach().to(torch.float64).cpu().numpy().copy()
        return out


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, coef: torch.Tensor, features: Features, layout: ScoreLayout) -> Any:
        ctx.features = features
        ctx.layout = layout
        theta = features.forward(coef.detach().to(torch.float64).cpu().numpy())
        return on(coef, theta.unary), on(coef, theta.tables)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, unary: torch.Tensor, tables: torch.Tensor) -> Any:
        batch = ctx.layout.batch
        # Each entry's gradient goes to one of the marginals that are summed for it.
        entries, first = np.unique(batch.mu_source, return_index=True)
        mu = Marginals(_array(unary), np.zeros(batch.n_mu_entries))
        mu.tables[first] = _array(tables)[entries]
        return on(unary, ctx.features.adjoint(mu)), None, None


def _array(gradient: torch.Tensor) -> Floats:
    return np.asarray(gradient.to(torch.float64).cpu().numpy())
