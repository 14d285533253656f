"""Values of inference as differentiable functions of potentials: d value / d theta = mu, without unrolling any
iteration."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from mssvm.core.arrays import Floats
from mssvm.core.errors import InfeasibleError, UnsupportedError
from mssvm.core.potentials import Marginals, Potentials
from mssvm.engines.torch.arrays import DeviceMarginals, DevicePotentials, Parts
from mssvm.torch.layouts import ScoreLayout
from mssvm.torch.scores import LaidOut

ValueFunction = Callable[[Potentials], tuple[Floats, Marginals]]
"""Inference bound to a batch and a query: potentials to the value of every instance and its gradient."""
STEP = 1e-4  # relative, of the difference quotient along theta in the gradient of an entropy


def potentials(unary: torch.Tensor, tables: torch.Tensor) -> Potentials:
    """Tensors as an engine takes them: on a GPU as they are, on the CPU as float64 arrays, which share memory."""
    if unary.device.type != "cpu":
        return DevicePotentials(unary.detach(), tables.detach())
    return Potentials(*(part.detach().to(torch.float64).contiguous().numpy() for part in (unary, tables)))


def on(like: torch.Tensor, found: Floats) -> torch.Tensor:
    """An engine's array as a tensor with the type and device of ``like``."""
    return torch.from_numpy(np.ascontiguousarray(found)).to(like.device, like.dtype)


def marginals_on(like: torch.Tensor, mu: Marginals) -> tuple[torch.Tensor, torch.Tensor]:
    """Unary and table marginals as tensors with the type and device of ``like``."""
    if isinstance(mu, DeviceMarginals):
        return mu.parts[0].to(like), mu.parts[1].to(like)
    return on(like, mu.unary), on(like, mu.tables)


def evaluate(value_function: ValueFunction, laid: LaidOut) -> torch.Tensor:
    """The values of every instance, differentiable in the scores."""
    value: torch.Tensor = _Value.apply(laid.unary, laid.tables, value_function, laid.layout)[0]
    return value


def entropy(value_function: ValueFunction, laid: LaidOut) -> torch.Tensor:
    """log Z - <theta, mu> of every instance, for a value_function at temperature one in double precision."""
    value: torch.Tensor = _Entropy.apply(laid.unary, laid.tables, value_function, laid.layout)
    return value


def checked(value: Floats) -> Floats:
    """The values, or an error where an instance has no allowed assignment."""
    bad = np.flatnonzero(~np.isfinite(value))
    if len(bad):
        reason = "no labelling satisfies labels and constraints; relax one of them."
        raise InfeasibleError(reason, what="scores", instance=int(bad[0]))
    return value


def _weighted(layout: ScoreLayout, weight: torch.Tensor, mu: Parts) -> Parts:
    """Marginals times the weight of their instance, summed over factors that share a table."""
    if len(weight) == 1:  # one long sequence needs no index as long as itself
        unary = mu[0] * weight
        tables = mu[1] * weight
    else:
        unary = mu[0] * weight[layout.index("state_owner", weight.device)]
        tables = mu[1] * weight[layout.index("mu_owner", weight.device)]
    if not layout.tables_as_marginals:
        into = tables.new_zeros(layout.batch.n_table_entries)
        tables = into.index_add_(0, layout.index("mu_source", weight.device), tables)
    return unary, tables


class _Once(torch.autograd.Function):
    """Copies of the first ``n`` tensors, which depend on the others; differentiating the copies raises an error."""

    @staticmethod
    def forward(n: int, *tensors: torch.Tensor) -> Any:
        return tuple(tensor.clone() for tensor in tensors[:n])

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        raise UnsupportedError("the gradient of this layer is made of marginals and cannot be differentiated again.")


def differentiated_once(found: tuple[torch.Tensor, ...], *scores: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The gradients of a backward pass; with ``create_graph=True``, gradients that raise when differentiated again."""
    if not torch.is_grad_enabled():
        return found
    recorded: tuple[torch.Tensor, ...] = _Once.apply(len(found), *found, *scores)
    return recorded


class _Value(torch.autograd.Function):
    @staticmethod
    def forward(unary: torch.Tensor, tables: torch.Tensor, value_function: ValueFunction, layout: ScoreLayout) -> Any:
        value, mu = value_function(potentials(unary, tables))
        return on(unary, checked(value)), *marginals_on(unary, mu)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.layout = inputs[3]
        ctx.mark_non_differentiable(*output[1:])
        ctx.save_for_backward(*inputs[:2], *output[1:])

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor, *_: Any) -> Any:
        *scores, unary, tables = ctx.saved_tensors
        with torch.no_grad():
            found = _weighted(ctx.layout, grad, (unary, tables))
        return *differentiated_once(found, *scores, grad), None, None


class _Entropy(torch.autograd.Function):
    """d/dtheta (log Z - <theta, mu>) = -(d mu / d theta) theta, a derivative of mu along theta itself."""

    @staticmethod
    def forward(unary: torch.Tensor, tables: torch.Tensor, value_function: ValueFunction, layout: ScoreLayout) -> Any:
        theta = unary.to(torch.float64), tables.to(torch.float64)
        found, mu = value_function(potentials(*theta))
        value = on(theta[0], checked(found))
        source = layout.index("mu_source", unary.device)
        owners = ("state_owner", "mu_owner")
        for p, score, owner in zip(marginals_on(theta[0], mu), (theta[0], theta[1][source]), owners, strict=True):
            expected = p * torch.where(p > 0.0, score, 0.0)
            value = value.index_add(0, layout.index(owner, unary.device), expected, alpha=-1)
        return value.clamp(min=0.0).to(unary.dtype)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.value_function, ctx.layout = inputs[2:]
        ctx.save_for_backward(*inputs[:2])

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        scores = ctx.saved_tensors
        with torch.no_grad():
            theta = tuple(part.to(torch.float64) for part in scores)
            stretched = potentials((1 + STEP) * theta[0], (1 + STEP) * theta[1])
            shrunk = potentials((1 - STEP) * theta[0], (1 - STEP) * theta[1])
            above = marginals_on(theta[0], ctx.value_function(stretched)[1])
            below = marginals_on(theta[0], ctx.value_function(shrunk)[1])
            change_unary = (below[0] - above[0]) / (2 * STEP)
            change_tables = (below[1] - above[1]) / (2 * STEP)
            unary, tables = _weighted(ctx.layout, grad.to(torch.float64), (change_unary, change_tables))
        return *differentiated_once((unary.to(grad), tables.to(grad)), *scores, grad), None, None
