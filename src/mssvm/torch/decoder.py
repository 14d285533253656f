"""A chain's best labels and marginals as a module that can be exported with the network in front of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from mssvm.core.checks import temperature
from mssvm.core.errors import InputError, UnsupportedError
from mssvm.data.labels import LabelVocabulary
from mssvm.structures import Chain, Schema
from mssvm.torch.recursions import best_paths, constant, inside, is_last, power_sum, site_marginals

PADDING = -100  # as in ``StructuredLoss.decode``
DECODINGS = ("map", "marginal")


class ChainDecoder(torch.nn.Module):
    """Best labels and marginals of chains by operators that ``torch.export`` and ONNX know, for any batch and length.

    ``decoder(scores, lengths)`` returns what ``StructuredLoss.decode`` and ``StructuredLoss.marginals`` do for scores
    in padded tensors: labels (B, T), -100 beyond the length, and probabilities (B, T, K), zero there. It has no
    gradients and does not check the scores; use the layer for training. Scores of links may be (B, T, ...) instead of
    (B, T - 1, ...), with a last row that is not read: then an exported program takes sequences of any length.

    Parameters
    ----------
    structure : Chain
        With its hidden variables and forbidden transitions. Hidden variables between labels are eliminated exactly. If
        they are ``linked`` (a chain of their own), only joint maxima and marginals at one temperature are supported.
    classes : int or sequence of labels
        Labels in the order of the scores' last axis, which ``forbidden`` may name; a number K stands for 0 .. K-1.
    eps_h : float
        Temperature of the hidden variables in ``decode="map"``: argmax_y PS_h[eps_h] theta.
    temperatures : pair of floats
        Of outputs and of hidden variables, for marginals: p(y) ~ exp(PS_h[second] theta / first).
    decode : "map" or "marginal"
        The best labelling, or the labelling without forbidden transitions that has the most probable labels.

    >>> decoder = ms.torch.ChainDecoder(ms.Chain(), classes=2)
    >>> labels, marginals = decoder(scores, torch.tensor([2]))
    >>> labels.tolist(), torch.allclose(marginals, layer.marginals(scores))
    ([[0, 1]], True)
    """

    forbidden_pairs: torch.Tensor
    forbidden_first: torch.Tensor
    forbidden_last: torch.Tensor

    def __init__(
        self,
        structure: Chain,
        classes: int | Sequence[Any],
        eps_h: float = 1.0,
        temperatures: tuple[float, float] = (1.0, 1.0),
        decode: str = "map",
    ) -> None:
        super().__init__()
        if type(structure) is not Chain:
            raise UnsupportedError(f"only chains can be exported, not {type(structure).__name__}.")
        structure.check()
        if structure.order > 1:
            raise UnsupportedError("only chains of first order can be exported; use save and mssvm.load for others.")
        if decode not in DECODINGS:
            raise InputError(f"decode must be 'map' or 'marginal', got {decode!r}.")
        labels = range(classes) if isinstance(classes, int) else classes
        self.structure = structure
        self.n_classes = len(labels)
        self.eps_h = temperature(eps_h, "eps_h")
        self.temperatures = (temperature(temperatures[0], "temperatures"), temperature(temperatures[1], "temperatures"))
        self.decode = decode
        if self.temperatures[0] == 0.0:
            raise InputError("the first of temperatures divides the scores; it must be above zero.")
        if self._joint:
            self._check_joint()
        forbidden = self._forbidden(LabelVocabulary(tuple(labels)))
        self._constrained = any(bool(mask.any()) for mask in forbidden.values())
        for name, mask in forbidden.items():
            self.register_buffer(f"forbidden_{name}", mask, persistent=False)

    @property
    def _joint(self) -> bool:
        """Whether states of the recursion are pairs of a label and a hidden state."""
        return bool(self.structure.hidden) and self.structure.linked

    def _check_joint(self) -> None:
        if self.decode == "map" and self.eps_h != 0.0:
            raise UnsupportedError(
                "the best labels over a chain of hidden variables that are summed have no exact recursion to export; "
                "use decode='marginal', eps_h=0 or Chain(linked=False)."
            )
        if self.temperatures[0] != self.temperatures[1]:
            raise UnsupportedError(
                "marginals over a chain of hidden variables at another temperature have no exact recursion to export; "
                "use eps_h=1 or Chain(linked=False)."
            )

    def _forbidden(self, vocabulary: LabelVocabulary) -> dict[str, torch.Tensor]:
        """Masks of forbidden pairs, first labels and last labels."""
        n = self.n_classes
        masks = {"edge": np.zeros((n, n), bool), "first": np.zeros(n, bool), "last": np.zeros(n, bool)}
        for constraint in self.structure.constraints(Schema({}), vocabulary):
            masks[constraint.group] |= constraint.mask
        names = {"edge": "pairs", "first": "first", "last": "last"}
        return {names[group]: torch.from_numpy(mask) for group, mask in masks.items()}

    def forward(
        self, scores: Mapping[str, torch.Tensor], lengths: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Labels (B, T) and marginals (B, T, K); ``scores`` are as in ``StructuredLoss``, ``lengths`` (B,) of them."""
        scores = {name: value.detach() for name, value in scores.items()}
        node = self._node(scores)
        if lengths is None:
            lengths = torch.full((node.shape[0],), node.shape[1], device=node.device)
        real = inside(node, lengths)
        if node.shape[1] == 0:
            return real.to(torch.int64), node
        node = self._with_ends(scores, torch.where(real[:, :, None], node, 0.0), lengths)
        marginals = self._marginals(scores, node, lengths)
        marginals = torch.where(real[:, :, None], marginals, 0.0)
        if self.decode == "map":
            labels = self._best(scores, node, lengths)
        else:
            labels = self._least_risk(marginals, lengths)
        return torch.where(real, labels, PADDING), marginals

    # ------------------------------------------------------------------------------------- answers

    def _best(self, scores: Mapping[str, torch.Tensor], node: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        if not self._joint:
            return best_paths(node, self._pairs(scores, node, self.eps_h), lengths)
        states = best_paths(self._joint_nodes(scores, node), self._joint_pairs(scores, node), lengths)
        return states // self.structure.hidden

    def _marginals(self, scores: Mapping[str, torch.Tensor], node: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        eps_y, eps_h = self.temperatures
        scale = constant(eps_y, node)
        if not self._joint:
            return site_marginals(node / scale, self._pairs(scores, node, eps_h) / scale, lengths)
        nodes = self._joint_nodes(scores, node) / scale
        joint = site_marginals(nodes, self._joint_pairs(scores, node) / scale, lengths)
        return joint.unflatten(-1, (self.n_classes, self.structure.hidden)).sum(dim=-1)

    def _least_risk(self, marginals: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        """The labelling without forbidden transitions with the largest sum of probabilities (least expected errors)."""
        if not self._constrained:
            return marginals.argmax(dim=2)
        gain = self._with_ends({}, marginals, lengths)
        zeros = marginals.new_zeros((self.n_classes, self.n_classes))
        return best_paths(gain, zeros.masked_fill(self.forbidden_pairs, -torch.inf), lengths)

    # ------------------------------------------------------------------------------------- scores

    def _node(self, scores: Mapping[str, torch.Tensor]) -> torch.Tensor:
        if "node" not in scores or scores["node"].ndim != 3 or scores["node"].shape[2] != self.n_classes:
            shape = tuple(scores["node"].shape) if "node" in scores else None
            raise InputError(f"scores of 'node' must have the shape (B, T, {self.n_classes}), got {shape}.")
        return _at_least_single(scores["node"])

    def _with_ends(self, scores: Mapping[str, torch.Tensor], node: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        """Scores of the sites, with those of the first and the last label added, -inf where these are forbidden."""
        zeros = node.new_zeros(self.n_classes)
        first = zeros.masked_fill(self.forbidden_first, -torch.inf)
        last = zeros.masked_fill(self.forbidden_last, -torch.inf)
        if self.structure.ends and scores:
            first = first + scores["first"].to(node.dtype)
            last = last + scores["last"].to(node.dtype)
        starts = (torch.arange(node.shape[1], device=node.device) == 0)[None, :, None]
        ends = is_last(node, lengths).transpose(0, 1)[:, :, None]
        return node + torch.where(starts, first, 0.0) + torch.where(ends, last, 0.0)

    def _pairs(self, scores: Mapping[str, torch.Tensor], node: torch.Tensor, eps_h: float) -> torch.Tensor:
        """(K, K) or (B, T, K, K): scores of neighbouring labels, hidden variables between them eliminated."""
        pairs = self._label_pairs(scores, node)
        if not self.structure.hidden:
            return pairs
        left = _after_sites(scores["left"], node, 2)
        right = _after_sites(scores["right"], node, 2)
        through = left[..., :, :, None] + right[..., None, :, :]
        if "between" in scores:
            through = through + _after_sites(scores["between"], node, 1)[..., None, :, None]
        return pairs + power_sum(through, -2, eps_h)

    def _label_pairs(self, scores: Mapping[str, torch.Tensor], node: torch.Tensor) -> torch.Tensor:
        """Direct transitions, -inf where forbidden."""
        forbidden = node.new_zeros((self.n_classes, self.n_classes)).masked_fill(self.forbidden_pairs, -torch.inf)
        if self.structure.hidden and not self.structure.direct:
            return forbidden
        if "edge" not in scores:
            raise InputError("scores lack the group 'edge': (K, K), or (B, T - 1, K, K) with a table for every link.")
        return _after_sites(scores["edge"], node, 2) + forbidden

    def _joint_nodes(self, scores: Mapping[str, torch.Tensor], node: torch.Tensor) -> torch.Tensor:
        """(B, T, K H): scores of a label together with the hidden state of its site."""
        both = node[..., :, None] + scores["attach"].to(node.dtype)
        if "hidden" in scores:
            both = both + scores["hidden"].to(node.dtype)[..., None, :]
        return both.flatten(-2)

    def _joint_pairs(self, scores: Mapping[str, torch.Tensor], node: torch.Tensor) -> torch.Tensor:
        """(K H, K H), or (B, T, K H, K H): scores of neighbouring pairs of label and hidden state."""
        labels = self._label_pairs(scores, node)
        hidden = _after_sites(scores["hidden.edge"], node, 2)
        both = labels[..., :, None, :, None] + hidden[..., None, :, None, :]
        return both.flatten(-4, -3).flatten(-2)


def _after_sites(table: torch.Tensor, node: torch.Tensor, n_axes: int) -> torch.Tensor:
    """A table after every site: tables (B, T - 1, ...) of links get a row of zeros after the last site.

    A table that all links share, and tables that have this row, are returned as they are.
    """
    table = table.to(node.dtype)
    if table.ndim == n_axes or table.shape[1] == node.shape[1]:
        return table
    zeros = table.new_zeros((table.shape[0], 1, *table.shape[2:]))
    return torch.cat([table, zeros], dim=1)


def _at_least_single(scores: torch.Tensor) -> torch.Tensor:
    if scores.dtype in (torch.float16, torch.bfloat16):
        return scores.float()
    return scores
