"""Power sums of padded chains with their derivatives, as one differentiable operation of PyTorch.

On a GPU it is a launch of ``engines.torch.padded``; on the CPU, where only ``torch.compile`` uses it, the estimators'
engine computes it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch

from mssvm.engines.torch import padded as engine
from mssvm.losses import Hamming, Loss, Zero
from mssvm.structures import Chain
from mssvm.torch.functions import checked, differentiated_once, marginals_on, potentials
from mssvm.torch.padded import PaddedScores, SiteLabels


@dataclass(frozen=True)
class ChainSettings:
    """Temperatures, sides (2: U+ - U-; 1: the power sum given the labels), loss, and the number of a missing label."""

    eps_y: float
    eps_h: float
    sides: int = 1
    scale: float = 0.0
    normalize: bool = False
    missing: int = -100


ChainAnswer = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]
"""Values of the chains; their derivatives in the scores of sites and, for each chain, of links; and the ``PROBLEMS``
found (as in ``Answer`` of ``engines.torch.padded``)."""


def power_sums(scores: PaddedScores, sites: SiteLabels, settings: ChainSettings) -> ChainAnswer:
    """Values of the chains, differentiable, with their derivatives.

    Calling the operation through PyTorch's registry takes a third of a millisecond longer, so only ``torch.compile``
    does.
    """
    given = (scores.node, scores.edge, scores.lengths, sites.labels, sites.candidates, sites.site_weight)
    if torch.compiler.is_compiling():
        compiled: ChainAnswer = chain_power_sums(*given, *_listed(settings))
        return compiled
    if not torch.is_grad_enabled():
        return _infer(scores, sites, settings)
    found: ChainAnswer = _PowerSums.apply(*given, settings)
    return found


def _listed(settings: ChainSettings) -> tuple[float, float, int, float, bool, int]:
    return (
        settings.eps_y,
        settings.eps_h,
        settings.sides,
        settings.scale,
        settings.normalize,
        settings.missing,
    )


def _infer(scores: PaddedScores, sites: SiteLabels, settings: ChainSettings) -> ChainAnswer:
    node = scores.node
    if not engine.available(node.device):
        return _on_host(scores, sites, settings)
    chains = engine.PaddedChains(
        node,
        scores.edge,
        scores.lengths,
        sites.labels,
        sites.candidates,
        sites.site_weight,
        missing=settings.missing,
        labels_are_outputs=settings.sides == 2,
        sides=settings.sides,
        scale=settings.scale,
        normalize=settings.normalize,
    )
    with engine.on(node.device):
        found = chains.power_sums(settings.eps_y, settings.eps_h)
    value = found.values[:, 0]
    if settings.sides == 2:
        value = value - found.values[:, 1]
    return value.to(node.dtype, copy=True), found.node, found.edge, found.problem


def _save(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*inputs[:2], *output[1:3])


def _gradient(ctx: Any, grad: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
    """The gradients of ``node`` and ``edge``: derivatives of a chain times the gradient of its value."""
    if grad is None:
        return None, None
    saved = ctx.saved_tensors
    node, edge = saved[:2]
    d_node, d_edge = saved[2:]
    by_node = grad[:, None, None] * d_node
    by_edge = grad.reshape(-1, *(1,) * (d_edge.ndim - 1)) * d_edge
    if edge.ndim == 2:
        by_edge = by_edge.sum(dim=0)
    return differentiated_once((by_node, by_edge), node, edge, grad)


class _PowerSums(torch.autograd.Function):
    @staticmethod
    def forward(*given: Any) -> Any:
        return _infer(PaddedScores(*given[:3]), SiteLabels(*given[3:6]), given[6])

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.mark_non_differentiable(*output[1:])
        _save(ctx, inputs, output)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor | None, *_: Any) -> Any:
        return *_gradient(ctx, grad), *(None,) * 5


@torch.library.custom_op("mssvm::chain_power_sums", mutates_args=())
def chain_power_sums(
    node: torch.Tensor,
    edge: torch.Tensor,
    lengths: torch.Tensor | None,
    labels: torch.Tensor | None,
    candidates: torch.Tensor | None,
    site_weight: torch.Tensor | None,
    eps_y: float,
    eps_h: float,
    sides: int,
    scale: float,
    normalize: bool,
    missing: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """``power_sums`` with arguments of the types that registered operations may have."""
    settings = ChainSettings(eps_y, eps_h, sides, scale, normalize, missing)
    return _infer(PaddedScores(node, edge, lengths), SiteLabels(labels, candidates, site_weight), settings)


@torch.library.register_fake("mssvm::chain_power_sums")
def _(node: Any, edge: Any, lengths: Any, labels: Any, candidates: Any, site_weight: Any, *settings: Any) -> Any:
    per_chain = edge.new_empty(edge.shape if edge.ndim == 4 else (len(node), *edge.shape))
    problem = node.new_empty(len(engine.PROBLEMS), dtype=torch.int32)
    return node.new_empty(len(node)), torch.empty_like(node, memory_format=torch.contiguous_format), per_chain, problem


def _backward(ctx: Any, grad: torch.Tensor | None, *_: Any) -> Any:
    return *_gradient(ctx, grad), *(None,) * 10


torch.library.register_autograd("mssvm::chain_power_sums", _backward, setup_context=_save)


def _on_host(scores: PaddedScores, sites: SiteLabels, settings: ChainSettings) -> ChainAnswer:
    """The power sums on the host, by the general path of the layer, which raises errors at once."""
    layer = _host_layer(settings)
    laid = layer.lay_out({"node": scores.node, "edge": scores.edge}, scores.lengths)
    y = sites.labels if sites.candidates is None else sites.candidates
    if settings.sides == 2:
        value_function = layer.objective(laid, y, sites.site_weight)
    else:
        value_function = layer.value_function(laid, y, settings.eps_y, settings.eps_h)
    value, mu = value_function(potentials(laid.unary, laid.tables))
    checked(value)
    unary, tables = marginals_on(scores.node, mu)
    classes = scores.node.shape[-1]
    d_node = laid.back(unary.reshape(-1, classes), 0.0)
    # Marginals of tables are one for each chain that has links, or one for each link that is not padding. ``rows`` are
    # their places (None: all).
    n, longest = scores.node.shape[:2]
    shape: tuple[int, ...] = (n, classes, classes)
    rows = _linked(laid.layout)
    if scores.edge.ndim == 4:
        shape = (n, longest - 1, classes, classes)
        rows = laid.layout.members("edge", shape[:2], tables.device)
    d_edge = scores.node.new_zeros(shape)
    d_edge.view(-1, classes, classes)[slice(None) if rows is None else rows] = tables.reshape(-1, classes, classes)
    problem = torch.zeros(len(engine.PROBLEMS), dtype=torch.int32)
    return torch.from_numpy(value).to(scores.node), d_node, d_edge, problem


def _linked(layout: Any) -> torch.Tensor:
    """Numbers of the chains that have links, and so marginals of tables."""
    return torch.from_numpy(np.flatnonzero(np.diff(layout.batch.factor_ptr)))


@lru_cache(maxsize=8)
def _host_layer(settings: ChainSettings) -> Any:
    from mssvm.torch.layer import StructuredLoss  # imported here because that module imports this one

    loss: Loss = Hamming(settings.normalize, settings.scale) if settings.scale else Zero()
    temperatures = (settings.eps_y, settings.eps_h)
    return StructuredLoss(Chain(), *temperatures, loss, reduction="none", missing_label=settings.missing)
