"""The layer's fast path: scores and labels of padded chains as tensors, without a layout on the host.

Hidden variables between two labels are summed out first, which leaves a chain of labels with a table for every link.
``chain_operation`` then computes the objective and its derivative. On a GPU nothing waits for the device, the work can
be recorded in a CUDA graph, and ``reports`` raises errors about the tensors later.

``padded_chains`` and ``site_labels`` return None for everything else, which takes the general path (``scores``,
``functions``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from mssvm.engines.torch import padded as engine
from mssvm.engines.torch.exact import power_sum
from mssvm.structures import Chain
from mssvm.torch.constraints import Constraints
from mssvm.torch.functions import differentiated_once
from mssvm.torch.lengths import checked_lengths, lengths_of


@dataclass(frozen=True, eq=False)
class PaddedScores:
    """Scores of sites (B, T, K) and of links, (K, K) or (B, T - 1, K, K), after hidden variables were summed out."""

    node: torch.Tensor
    edge: torch.Tensor
    lengths: torch.Tensor | None

    @property
    def inside(self) -> torch.Tensor | None:
        """True at sites (B, T), False at padding; None: there is no padding."""
        if self.lengths is None:
            return None
        return torch.arange(self.node.shape[1], device=self.node.device) < self.lengths[:, None]


@dataclass(frozen=True, eq=False)
class SiteLabels:
    """Labels (B, T) or candidates (B, T, K), and the weight of every site."""

    labels: torch.Tensor | None = None
    candidates: torch.Tensor | None = None
    site_weight: torch.Tensor | None = None


def may_be_padded_chains(structure: Any, inference: Any, scores: Any) -> bool:
    """Whether scores of this structure may take the fast path, judged by their types and device alone."""
    node: Any = scores.get("node") if isinstance(scores, Mapping) else scores
    if not isinstance(structure, Chain) or structure.linked or structure.order > 1:
        return False
    if inference not in ("auto", "exact"):
        return False
    if not torch.is_tensor(node) or node.ndim != 3 or 0 in node.shape:
        return False
    if node.shape[-1] > engine.MOST_STATES or not node.is_floating_point():
        return False
    return torch.compiler.is_compiling() or engine.available(node.device)


def padded_chains(
    structure: Chain, constraints: Constraints, scores: Any, lengths: Any, mask: Any, eps_h: float
) -> PaddedScores | None:
    """Scores of a batch of chains, hidden variables summed out at ``eps_h``.

    None if they are not padded tensors, or if there is a mistake in them: the general path raises the error.
    """
    given = dict(scores) if isinstance(scores, Mapping) else {"node": scores}
    node = given["node"]
    n, longest, classes = node.shape
    shapes = _shapes(structure, n, longest, classes)
    if not set(given) <= set(shapes) or not all(_fits(given[name], shapes[name], node) for name in given):
        return None
    needed = {"left", "right"} if structure.hidden else set()
    if structure.direct or not structure.hidden:
        needed.add("edge")
    if not needed <= set(given) or not constraints.known(structure, classes):
        return None
    found = _lengths(lengths, mask, node)
    if found is NotImplemented:
        return None
    dtype = torch.float64 if any(value.dtype == torch.float64 for value in given.values()) else torch.float32
    given = {name: value.to(dtype) for name, value in given.items()}
    forbidden = constraints.on(classes, node.device)
    edge = _links(structure, given, forbidden, eps_h)
    return PaddedScores(_sites(given, forbidden, found), edge, found)


def _shapes(structure: Chain, n: int, longest: int, classes: int) -> dict[str, tuple[tuple[int, ...], ...]]:
    """The admissible shapes of every group of scores."""

    def shared_or_own(*states: int) -> tuple[tuple[int, ...], ...]:
        return states, (n, longest - 1, *states)

    shapes: dict[str, tuple[tuple[int, ...], ...]] = {"node": ((n, longest, classes),)}
    if structure.hidden:
        shapes["between"] = shared_or_own(structure.hidden)
        shapes["left"] = shared_or_own(classes, structure.hidden)
        shapes["right"] = shared_or_own(structure.hidden, classes)
    if structure.direct or not structure.hidden:
        shapes["edge"] = shared_or_own(classes, classes)
    if structure.ends:
        shapes["first"] = ((classes,), (n, 1, classes))
        shapes["last"] = shapes["first"]
    return shapes


def _fits(value: Any, shapes: tuple[tuple[int, ...], ...], node: torch.Tensor) -> bool:
    if not torch.is_tensor(value) or value.device != node.device or not value.is_floating_point():
        return False
    return value.layout == torch.strided and tuple(value.shape) in shapes


def _lengths(lengths: Any, mask: Any, node: torch.Tensor) -> Any:
    """Lengths on the device of the scores; None: there is no padding; NotImplemented: they take the general path.

    A mask with holes becomes the length -1, which the operation reports as an error.
    """
    n, longest = node.shape[:2]
    if mask is None and lengths is None:
        return None
    if mask is not None and lengths is not None:
        return NotImplemented
    if mask is None and not torch.is_tensor(lengths):
        return torch.from_numpy(checked_lengths(lengths, n, (longest,))[:, 0]).to(node.device)
    if mask is None:
        whole = not lengths.is_floating_point() and lengths.dtype != torch.bool
        if not whole or tuple(lengths.shape) != (n,):
            return NotImplemented
        return lengths.to(node.device, torch.int64)
    if not torch.is_tensor(mask) or mask.dtype != torch.bool or tuple(mask.shape) != (n, longest):
        return NotImplemented
    if mask.device != node.device:
        return torch.from_numpy(lengths_of(mask)).to(node.device)
    holes = (mask[:, 1:] & ~mask[:, :-1]).any(dim=1)
    return mask.sum(dim=1).masked_fill(holes, -1)


def site_labels(given: Any, site_weight: Any, scores: PaddedScores, unknown: bool) -> SiteLabels | None:
    """Labels as the operation takes them; None if they have to take the general path.

    ``unknown``: no labels at all are valid, and mean that every site is unlabelled.
    """
    n, longest, classes = scores.node.shape
    if given is None and unknown:
        return SiteLabels()
    if not torch.is_tensor(given) or given.device != scores.node.device or given.is_complex():
        return None
    if site_weight is not None:
        same_device = torch.is_tensor(site_weight) and site_weight.device == given.device
        if not same_device or tuple(site_weight.shape) != (n, longest):
            return None
    if given.dtype == torch.bool:
        return SiteLabels(None, given, site_weight) if tuple(given.shape) == (n, longest, classes) else None
    if given.is_floating_point() or tuple(given.shape) != (n, longest):
        return None
    return SiteLabels(given, None, site_weight)


def _sites(
    given: Mapping[str, torch.Tensor], forbidden: Mapping[str, torch.Tensor], lengths: torch.Tensor | None
) -> torch.Tensor:
    """Scores of sites, with those of the first and the last site added."""
    node = given["node"]
    if not {"first", "last"} & {*given, *forbidden}:
        return node
    place = torch.arange(node.shape[1], device=node.device)
    last = node.shape[1] - 1 if lengths is None else lengths[:, None] - 1
    for name, at in (("first", (place == 0)[None]), ("last", (place == last).expand(len(node), -1))):
        if name in given:
            node = node + torch.where(at[..., None], given[name], 0.0)
        if name in forbidden:
            node = node.masked_fill(at[..., None] & forbidden[name], -torch.inf)
    return node


def _links(
    structure: Chain, given: Mapping[str, torch.Tensor], forbidden: Mapping[str, torch.Tensor], eps_h: float
) -> torch.Tensor:
    """Scores of links: PS_h[eps_h] (left + between + right), plus direct transitions between labels."""
    edge = given.get("edge")
    if structure.hidden:
        joint = given["left"].unsqueeze(-2) + given["right"].transpose(-1, -2).unsqueeze(-3)
        if "between" in given:
            joint = joint + given["between"].unsqueeze(-2).unsqueeze(-2)
        summed = last_power_sum(joint, eps_h)[0]
        edge = summed if edge is None else summed + edge
    assert edge is not None
    if "edge" in forbidden:
        edge = edge.masked_fill(forbidden["edge"], -torch.inf)
    return edge


@torch.library.custom_op("mssvm::power_sum", mutates_args=())
def last_power_sum(scores: torch.Tensor, eps: float) -> tuple[torch.Tensor, torch.Tensor]:
    """PS_eps over the last axis and its derivative, which is zero where all entries are -inf."""
    return power_sum(scores, eps)


@torch.library.register_fake("mssvm::power_sum")
def _(scores: Any, eps: Any) -> Any:
    return scores.new_empty(scores.shape[:-1]), torch.empty_like(scores)


def _save_weights(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(inputs[0], output[1])


def _backward_of_power_sum(ctx: Any, grad: torch.Tensor | None, _: Any) -> Any:
    if grad is None:
        return None, None
    scores, weights = ctx.saved_tensors
    return differentiated_once((grad.unsqueeze(-1) * weights,), scores, grad)[0], None


torch.library.register_autograd("mssvm::power_sum", _backward_of_power_sum, setup_context=_save_weights)
