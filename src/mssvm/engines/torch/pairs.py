"""Any pairwise graphs on a GPU at one temperature, a kernel for all messages of a sweep (``kernels/pairs.cu``)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from mssvm.core.topology import Batch, offsets
from mssvm.engines.messages import Schedule
from mssvm.engines.torch.arrays import Device
from mssvm.engines.torch.grids import SAFE, finest
from mssvm.engines.torch.nvrtc import available, kernel

MOST_STATES, MOST_SHARED, LOOK = 32, 14 << 10, 8


@dataclass(frozen=True, eq=False)
class PairKernel:
    """Wiring of a batch whose variables all have as many states."""

    states: int
    n_vars: int
    at: Device
    number: torch.Tensor
    ends: torch.Tensor
    owner: torch.Tensor
    colours: torch.Tensor
    slot_ptr: torch.Tensor
    slots: torch.Tensor

    @classmethod
    def of(cls, batch: Batch, number: torch.Tensor, colours: torch.Tensor, at: Device) -> PairKernel | None:
        cards = np.unique(batch.cards)
        if at.plain or len(cards) != 1 or not 1 < cards[0] <= MOST_STATES or not available(at.device):
            return None
        order = np.argsort(batch.scope_vars, kind="stable")
        ptr = offsets(np.bincount(batch.scope_vars, minlength=batch.n_vars).astype(np.int64))

        def short(array: np.ndarray) -> torch.Tensor:
            return at.ints(array).to(torch.int32)

        return cls(
            int(cards[0]), batch.n_vars, at, number.to(torch.int32), short(batch.scope_vars), short(batch.factor_owner),
            colours.to(torch.int8), short(ptr), short(order),
        )  # fmt: skip

    def safe(self, tables: torch.Tensor, eps: float) -> bool:
        """Whether tables, as exp(theta / eps), stay in the range of numbers (for maxima a unit is chosen)."""
        most = float((tables.amax(dim=(1, 2)) - tables.amin(dim=(1, 2))).amax()) if len(tables) else torch.inf
        return bool(most < torch.inf and (eps == 0.0 or most / eps < SAFE[self.at.dtype]))

    def sweep(
        self, unary: torch.Tensor, tables: torch.Tensor, mine: torch.Tensor, messages: torch.Tensor, eps: float,
        n_sweeps: int, schedule: Schedule, residual: torch.Tensor,
    ) -> torch.Tensor:  # fmt: skip
        """Up to ``n_sweeps`` sweeps of the named instances, each until it converges; returns how many of each."""
        top = tables.amax(dim=(1, 2), keepdim=True)
        maxima, unit = eps == 0.0, eps
        if maxima:
            unit = max(float((top - tables.amin(dim=(1, 2), keepdim=True)).amax()) / (0.5 * SAFE[self.at.dtype]), 1e-30)
        scaled = torch.exp((tables - top) / unit).contiguous()
        size, threads = scaled.element_size(), 512 // scaled.element_size()
        few = scaled.numel() * size <= MOST_SHARED
        staged = not few and threads * scaled[0].numel() * size <= MOST_SHARED
        constants = f"constexpr int S = {self.states}, THREADS = {threads}, TABLES = {len(tables) if few else 0};"
        constants += f"constexpr bool MAXIMA = {str(maxima).lower()}, STAGED = {str(staged).lower()};"
        index = self.at.device.index or 0
        fields, send = (kernel("pairs.cu", k, index, self.at.dtype, constants) for k in ("fields", "messages"))
        tolerance = finest(schedule.tolerance, unit, self.at.dtype)
        field = torch.empty_like(unary)
        swept = torch.zeros(len(residual), dtype=torch.int32, device=messages.device)
        active, change = torch.zeros_like(swept, dtype=torch.int8), torch.zeros_like(residual)
        active[mine] = (~(residual[mine] <= tolerance)).to(torch.int8)
        n = len(self.owner)
        for sweep in range(n_sweeps):
            look = sweep + 1 == n_sweeps or (sweep + 1) % LOOK == 0
            swept += active
            for colour in (-1,) if schedule.flooding else (0, 1):
                fields(-(-unary.numel() // 128), 128, unary, messages, self.slot_ptr, self.slots, field, self.n_vars)
                send(
                    -(-n // threads), threads, field, messages, scaled, self.number, self.ends, self.owner,
                    self.colours, active, change, float(unit), float(schedule.damping), colour, int(look), n,
                )  # fmt: skip
            if look:
                residual.copy_(torch.where(active.bool(), change, residual))
                change.zero_()
                active &= (~(residual <= tolerance)).to(torch.int8)
                if not bool(active.any()):
                    break
        return swept
