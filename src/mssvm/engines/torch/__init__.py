"""The engine on PyTorch: the CPU or a GPU, in double or single precision.

``exact`` eliminates variables of many instances at once, ``messages`` passes all messages of a colour at once,
``features`` are matrix products; ``arrays`` keeps potentials and marginals on the device until they are read. On GPUs
``kernels`` replaces the recursions that matter most (chains, grids) by CUDA source compiled at first use. Everything
else, and every machine without these kernels, runs plain PyTorch, against which the kernels are tested, or the CPU
engine: hidden trees given outputs, segments, the bound by chains, and factors of three or more variables.

chains, trees                   the kernels of exact inference, on chains and on forests
grids, pairs, convergence       those of belief propagation, on grids and on any pairwise graph
decomposition, cover            that of the bound by chains
segments, padded                those of semi-Markov models, and of padded chains in training
conditional                     scores given the outputs
nvrtc, cache                    compilation of kernels, and where the results are kept
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mssvm.core.arrays import Bools, Ints
from mssvm.core.errors import InputError, MissingExtraError
from mssvm.core.potentials import Marginals, Potentials
from mssvm.core.segments import SegmentLayout
from mssvm.core.terms import Term
from mssvm.core.threads import Workers
from mssvm.core.topology import Batch
from mssvm.engines.base import ExactSettings, Features, ParallelMap
from mssvm.engines.decomposition import ChainPlan
from mssvm.engines.messages import MessagePlan

try:
    import torch
except ImportError:
    raise MissingExtraError('the torch engine needs PyTorch; run pip install "mssvm[torch]".') from None

from mssvm.engines.torch.arrays import Device
from mssvm.engines.torch.decomposition import chain_plan, device_marginals
from mssvm.engines.torch.exact import TorchPlan
from mssvm.engines.torch.features import TorchFeatures
from mssvm.engines.torch.messages import TorchMessagePlan
from mssvm.engines.torch.nvrtc import available
from mssvm.engines.torch.segments import TorchSegmentPlan


@dataclass(frozen=True)
class TorchEngine:
    """Inference on a PyTorch ``device`` in ``precision`` "double" or "single"; ``plain`` leaves CUDA kernels out."""

    device: str = "cpu"
    precision: str = "double"
    plain: bool = False
    name = "torch"
    threads = 1
    idle = 1
    block_states = 1 << 27  # states of a block in training: a GPU needs large batches

    def __post_init__(self) -> None:
        if self.precision not in ("double", "single"):
            raise InputError(f"precision must be 'double' or 'single', got {self.precision!r}.")
        if torch.device(self.device).type == "cuda" and not torch.cuda.is_available():
            raise InputError(f"device {self.device!r} needs a GPU that PyTorch can use, and there is none here.")

    @property
    def where(self) -> Device:
        dtype = torch.float64 if self.precision == "double" else torch.float32
        # A tensor's device has a number, which "cuda" leaves open.
        return Device(torch.empty(0, device=self.device).device, dtype, self.plain)

    @property
    def parallel_map(self) -> ParallelMap:
        return Workers(1).parallel_map

    def exact(self, batch: Batch, settings: ExactSettings) -> TorchPlan:
        return TorchPlan(batch, settings, self.where)

    def messages(self, batch: Batch) -> MessagePlan:
        return TorchMessagePlan.of(batch, self.where)

    def chains(self, batch: Batch, instances: Ints, hidden: Bools | None) -> ChainPlan:
        return chain_plan(batch, instances, hidden, self.where)

    def marginals(self, batch: Batch) -> Marginals:
        """Marginals of zero, which chains replace: on a GPU they stay there."""
        return device_marginals(batch, self.where) if available(self.where.device) else Marginals.zeros(batch)

    def segments(self, batch: Batch, layout: SegmentLayout) -> TorchSegmentPlan:
        return TorchSegmentPlan(batch, layout, self.where)

    def linear(self, batch: Batch, terms: Sequence[Term], offset: Potentials | None, n_weights: int) -> Features:
        return TorchFeatures.of(batch, terms, offset, n_weights, self.where)
