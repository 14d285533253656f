"""Values of inference as differentiable functions of potentials: d value / d theta = mu, nothing is unrolled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.autograd.function import once_differentiable

from mssvm.core.arrays import Floats
from mssvm.core.errors import InfeasibleError
from mssvm.core.potentials import Marginals, Potentials
from mssvm.engines.torch.arrays import DeviceMarginals, DevicePotentials
from mssvm.torch.scores import LaidOut, ScoreLayout

Question = Callable[[Potentials], tuple[Floats, Marginals]]
"""Values of every instance and their gradient, by inference that is bound already."""
STEP = 1e-4  # relative, of the difference quotient along theta in the gradient of an entropy


def potentials(unary: torch.Tensor, tables: torch.Tensor) -> Potentials:
    """Tensors as an engine takes them: on a GPU as they are, on the CPU as float64 arrays, which share memory."""
    if unary.device.type != "cpu":
        return DevicePotentials(unary.detach(), tables.detach())
    return Potentials(*(part.detach().to(torch.float64).contiguous().numpy() for part in (unary, tables)))


def on(like: torch.Tensor, found: Floats) -> torch.Tensor:
    """An array of an engine as a tensor of another one's type and device."""
    return torch.from_numpy(np.ascontiguousarray(found)).to(like.device, like.dtype)


def marginals_on(like: torch.Tensor, mu: Marginals) -> tuple[torch.Tensor, torch.Tensor]:
    """Unary and table marginals as tensors of another one's type and device."""
    if isinstance(mu, DeviceMarginals):
        return mu.parts[0].to(like), mu.parts[1].to(like)
    return on(like, mu.unary), on(like, mu.tables)


def evaluate(question: Question, laid: LaidOut) -> torch.Tensor:
    """The values of every instance, differentiable in the scores."""
    value: torch.Tensor = _Value.apply(laid.unary, laid.tables, question, laid.layout)
    return value


def entropy(question: Question, laid: LaidOut) -> torch.Tensor:
    """log Z - <theta, mu> of every instance, for a question at temperature one."""
    value: torch.Tensor = _Entropy.apply(laid.unary, laid.tables, question, laid.layout)
    return value


def checked(value: Floats) -> Floats:
    """The values, or an error where an instance has no allowed assignment."""
    bad = np.flatnonzero(~np.isfinite(value))
    if len(bad):
        reason = "no labelling satisfies labels and constraints; relax one of them."
        raise InfeasibleError(reason, what="scores", instance=int(bad[0]))
    return value


def _weighted(layout: ScoreLayout, weight: torch.Tensor, mu: tuple[torch.Tensor, torch.Tensor]) -> Any:
    """Marginals times the weight of their instance, tables of the same entries summed."""
    unary = mu[0] * weight[layout.index("owner", weight.device)]
    tables = mu[1] * weight[layout.index("mu_owner", weight.device)]
    if not layout.tables_as_marginals:
        into = tables.new_zeros(layout.batch.n_table_entries)
        tables = into.index_add_(0, layout.index("mu_source", weight.device), tables)
    return unary, tables


class _Value(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, unary: torch.Tensor, tables: torch.Tensor, question: Question, layout: ScoreLayout) -> Any:
        value, mu = question(potentials(unary, tables))
        ctx.layout = layout
        ctx.save_for_backward(*marginals_on(unary, mu))
        return on(unary, checked(value))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return *_weighted(ctx.layout, grad, ctx.saved_tensors), None, None


class _Entropy(torch.autograd.Function):
    """d/dtheta (log Z - <theta, mu>) = -(d mu / d theta) theta, a derivative of mu along theta itself."""

    @staticmethod
    def forward(ctx: Any, unary: torch.Tensor, tables: torch.Tensor, question: Question, layout: ScoreLayout) -> Any:
        theta, batch = potentials(unary, tables), layout.batch
        value, mu = question(theta)
        checked(value)
        parts = (
            (mu.unary, theta.unary, batch.owner[batch.state_var]),
            (mu.tables, theta.tables[batch.mu_source], batch.mu_owner),
        )
        for p, score, owner in parts:
            value = value - np.bincount(owner, p * np.where(p > 0.0, score, 0.0), minlength=len(value))
        ctx.layout, ctx.question = layout, question
        ctx.save_for_backward(unary, tables)
        return on(unary, np.maximum(value, 0.0))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        theta = potentials(*ctx.saved_tensors)
        above, below = (ctx.question(Potentials(s * theta.unary, s * theta.tables))[1] for s in (1 + STEP, 1 - STEP))
        unary, tables = ((b - a) / (2 * STEP) for a, b in zip(_arrays(above), _arrays(below), strict=True))
        return *_weighted(ctx.layout, grad, (on(grad, unary), on(grad, tables))), None, None


def _arrays(mu: Marginals) -> tuple[Floats, Floats]:
    return mu.unary, mu.tables
