"""Segmentations on a GPU (``kernels/segments.cu``), one block per instance.

Models with hidden states or scores of single spans run on the native engine.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from mssvm.core.arrays import Floats, Ints
from mssvm.core.checks import temperature
from mssvm.core.potentials import Belief, Potentials, Query, Status
from mssvm.core.segments import SegmentLayout, SpanPotentials
from mssvm.core.threads import Workers
from mssvm.core.topology import Batch, offsets
from mssvm.engines.base import Pair, TwoCalls, check_decodable, decoded
from mssvm.engines.native.segments import SegmentBound, SegmentPlan
from mssvm.engines.torch.arrays import Device, DeviceMarginals, DeviceQuery, fetched
from mssvm.engines.torch.nvrtc import available, constants, kernel

METHOD = "segment kernel"
MOST_LABELS = 32


@dataclass(frozen=True, eq=False)
class TorchSegmentPlan:
    """Inference on a batch of semi-Markov models on a device."""

    batch: Batch
    layout: SegmentLayout
    at: Device

    @cached_property
    def host(self) -> SegmentPlan:
        """The same plan on the native engine."""
        return SegmentPlan(self.batch, self.layout, Workers(1))

    @cached_property
    def able(self) -> bool:
        """Whether the kernel runs this model."""
        layout = self.layout
        if self.at.plain or not available(self.at.device) or not len(self.batch) or not self.host.sites.all():
            return False
        return not layout.hidden and not layout.wide and layout.labels <= MOST_LABELS

    @cached_property
    def work_at(self) -> Ints:
        """Offsets of the instances' workspaces, in doubles.

        A workspace has two numbers for every position and label (the recursion's A and G), expected counts of lengths,
        weights of the last K + 1 positions, and limits of lengths as 32-bit integers.
        """
        labels = self.layout.labels
        positions = self.host.sites + 1
        limits = (positions * labels + 1) // 2
        return offsets(2 * positions * labels + labels * (2 * self.layout.longest + 1) + limits)

    @cached_property
    def places(self) -> tuple[torch.Tensor, ...]:
        """Index tensors as the kernel takes them."""
        batch = self.batch
        arrays = (self.host.sites, self.host.unary_at, batch.table_at, batch.mu_at, self.work_at[:-1])
        return tuple(self.at.ints(array) for array in arrays)

    def bind(
        self, query: Query, eps_y: float, eps_h: float, instances: Ints | None = None
    ) -> TorchSegmentBound | SegmentBound:
        if not self.able or instances is not None:
            return self.host.bind(query, eps_y, eps_h, instances)
        query.check(self.batch)
        on_device = DeviceQuery.on(self.at, query)
        return TorchSegmentBound(self, query, on_device, temperature(eps_y, "eps_y"), temperature(eps_h, "eps_h"))

    def pair(self, query: Query, narrower: Query, eps_y: float, eps_h: float) -> Pair:
        return TwoCalls(self.bind(query, eps_y, eps_h), self.bind(narrower, eps_y, eps_h))


@dataclass(frozen=True, eq=False)
class TorchSegmentBound:
    """PS_segmentations[eps_y] theta of every instance; roles of variables are ignored."""

    plan: TorchSegmentPlan
    query: Query
    on_device: DeviceQuery
    eps_y: float
    eps_h: float

    @cached_property
    def host(self) -> SegmentBound:
        return self.plan.host.bind(self.query, self.eps_y, self.eps_h)

    def __call__(self, theta: Potentials) -> Belief:
        if isinstance(theta, SpanPotentials):
            return self.host(theta)
        value, mu = self._run(theta, marginals=True)
        assert mu is not None
        return Belief(value, mu, Status.exactly(value, METHOD))

    def value(self, theta: Potentials) -> Floats:
        if isinstance(theta, SpanPotentials):
            return self.host.value(theta)
        return self._run(theta, marginals=False)[0]

    def decode(self, theta: Potentials) -> tuple[Floats, Ints]:
        check_decodable(self.eps_y)
        belief = self(theta)
        return belief.value, decoded(self.plan.batch, self.query, belief, self.eps_h)

    def sample(self, theta: Potentials, draws: int, seed: int) -> list[Ints]:
        """Draws of segmentations, made by the native engine."""
        return self.host.sample(theta, draws, seed)

    def _run(self, theta: Potentials, marginals: bool) -> tuple[Floats, DeviceMarginals | None]:
        plan = self.plan
        at = plan.at
        batch = plan.batch
        unary, tables = at.theta(theta, batch)
        mu = None
        outputs: list[Any] = [0, 0]
        if marginals:
            mu = DeviceMarginals(unary.new_zeros(batch.n_states), unary.new_zeros(batch.n_mu_entries))
            outputs = [part.data_ptr() for part in mu.parts]
        value = torch.empty(len(batch), dtype=torch.float64, device=at.device)
        work = torch.empty(int(plan.work_at[-1]), dtype=torch.float64, device=at.device)
        inputs = [tensor.data_ptr() for tensor in (unary, tables, self.on_device.parts[1], *plan.places)]
        sizes = (plan.layout.longest, int(plan.layout.borders))
        struct = (ctypes.c_longlong * 14)(*inputs, *outputs, work.data_ptr(), value.data_ptr(), *sizes)
        labels = plan.layout.labels
        with at.current:
            run = kernel("segments.cu", "segments", at.device, at.dtype, constants(C=labels))
            run(len(batch), 32 * labels, struct, float(self.eps_y), len(batch))
        return fetched(value), mu
