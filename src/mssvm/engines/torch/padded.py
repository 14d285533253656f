"""Chains in padded tensors: both sides of the objective and their derivatives in one launch (``kernels/padded.cu``).

Other routes lay a batch out on the host. This one reads lengths and labels on the device, so that the host neither
computes nor waits: the launch is queued like any other operation of a training step.
"""

from __future__ import annotations

import ctypes
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch

from mssvm.engines.torch.arrays import Device
from mssvm.engines.torch.nvrtc import available, constants, kernel

__all__ = ["PROBLEMS", "Answer", "PaddedChains", "available", "on"]

MOST_STATES = 32
THREADS = 128
MOST_WORK = 1 << 30  # bytes of workspace of one launch
# Kinds of errors, in the order of the kernel's tensor ``problem``: 0, or 1 + the number of an invalid instance.
PROBLEMS = ("label", "length", "impossible", "score", "negative")


@dataclass(frozen=True, eq=False)
class Answer:
    """Values, derivatives and errors of a batch.

    ``values`` (n, sides) in double precision, NaN for invalid instances. ``node`` and ``edge``: derivatives of the
    difference of the sides in the scores of sites, and in those of links, (n, S, S), or (n, T - 1, S, S) where every
    link has a table of its own. ``problem``: see ``PROBLEMS``.
    """

    values: torch.Tensor
    node: torch.Tensor
    edge: torch.Tensor
    problem: torch.Tensor


@dataclass(frozen=True, eq=False)
class PaddedChains:
    """Scores of sites (n, T, S) and of links, (S, S) or (n, T - 1, S, S), with the labels of the sites.

    ``labels`` (n, T) or ``candidates`` (n, T, S) restrict the states; with ``labels_are_outputs`` sites without a label
    are hidden. If ``sides`` is 2, the first side is U+ and the second U-; if 1, there is U- alone. The loss in U+ is
    ``scale`` for every wrong state, times ``site_weight``, divided by the number of labels if ``normalize``.
    """

    node: torch.Tensor
    edge: torch.Tensor
    lengths: torch.Tensor | None = None
    labels: torch.Tensor | None = None
    candidates: torch.Tensor | None = None
    site_weight: torch.Tensor | None = None
    missing: int = -100
    labels_are_outputs: bool = False
    sides: int = 1
    scale: float = 0.0
    normalize: bool = False

    def power_sums(self, eps_y: float, eps_h: float) -> Answer:
        """PS_y[eps_y] PS_h[eps_h] of every side, exactly."""
        n, longest, states = self.node.shape
        wide = max(2, 1 << (states - 1).bit_length())
        node = self.node.contiguous()
        own = self.edge.ndim == 4 and longest > 1
        edge = self._tables(own)
        tensors: list[torch.Tensor | None] = [node, edge]  # referenced until the launch, which has their addresses only
        tensors += [_long(self.lengths), _long(self.labels)]
        tensors.append(None if self.candidates is None else self.candidates.contiguous())
        tensors.append(None if self.site_weight is None else self.site_weight.to(node.dtype).contiguous())
        pointers = [0 if tensor is None else tensor.data_ptr() for tensor in tensors]
        links = (longest - 1) * states * states
        steps = (links, states * states) if own else (0, 0)
        settings = (self.missing, self.sides, self.labels_are_outputs, self.normalize)
        struct = (ctypes.c_longlong * 14)(*pointers, n, longest, *steps, *settings)
        values = torch.empty((n, self.sides), dtype=torch.float64, device=node.device)
        d_node = torch.zeros_like(node)
        shape = (n, longest - 1, states, states) if own else (n, states, states)
        d_edge = torch.zeros(shape, dtype=node.dtype, device=node.device)
        problem = torch.zeros(len(PROBLEMS), dtype=torch.int32, device=node.device)
        run = kernel(
            "padded.cu",
            "padded",
            node.device,
            node.dtype,
            constants(S=states, WIDE=wide, THREADS=THREADS),
        )
        size = states + 2 + (states * states if eps_y != eps_h else 0)
        at_once = max(1, MOST_WORK // max(1, self.sides * longest * size * node.element_size()))
        temperatures = (float(eps_y), float(eps_h), float(self.scale))
        for first in range(0, n, at_once):
            some = min(at_once, n - first) * self.sides
            work = torch.empty(some * longest * size, dtype=node.dtype, device=node.device)
            blocks = -(-some * wide // THREADS)
            out = (work, values[first:], d_node, d_edge, problem)
            run(blocks, THREADS, struct, *out, *temperatures, size, first, some)
        if self.edge.ndim == 4 and not own:
            d_edge = torch.zeros_like(self.edge)
        return Answer(values, d_node, d_edge, problem)

    def _tables(self, own: bool) -> torch.Tensor:
        """Tables as the kernel reads them; zeros for chains of one site, since the kernel always reads a table."""
        if self.edge.ndim == 4 and not own:
            states = self.node.shape[-1]
            return self.node.new_zeros((states, states))
        return self.edge.contiguous()


def on(device: torch.device) -> AbstractContextManager[Any]:
    """Context in which kernels are launched on this device."""
    return Device(device, torch.float32).current


def _long(tensor: torch.Tensor | None) -> torch.Tensor | None:
    return None if tensor is None else tensor.to(torch.int64).contiguous()
