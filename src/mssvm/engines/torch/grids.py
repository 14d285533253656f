"""Grids on a GPU: batches of grids of one size with a table for each direction, by one kernel (``kernels/grid.cu``)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from mssvm.core.topology import Batch, Topology
from mssvm.engines.messages import Schedule
from mssvm.engines.torch.arrays import Device
from mssvm.engines.torch.nvrtc import available, kernel

MOST_SHARED, MOST_STATES = 220 << 10, 8
LOOK = 16  # sweeps between two looks at convergence, on the device
SAFE = {torch.float32: 75.0, torch.float64: 600.0}


def finest(tolerance: float, unit: float, dtype: torch.dtype) -> float:
    """The tolerance that is not below rounding (a negative one means that all sweeps are wanted)."""
    return tolerance if tolerance < 0.0 or dtype == torch.float64 else max(tolerance, 3e-6 * unit)


@dataclass(frozen=True, eq=False)
class GridKernel:
    """The kernel for one size of grid and number of states."""

    shape: tuple[int, int]
    states: int
    table_at: torch.Tensor
    at: Device

    @classmethod
    def of(cls, batch: Batch, at: Device) -> GridKernel | None:
        """For a batch of such grids, or None."""
        if at.plain or len(batch.topologies) != 1 or not available(at.device):
            return None
        g = batch.topologies[0]
        shape = _grid_shape(g)
        if shape is None or len(set(g.cards)) != 1 or not 1 < g.cards[0] <= MOST_STATES:
            return None
        across = shape[0] * (shape[1] - 1)
        per_grid = batch.table_at.reshape(len(batch), -1)
        first = per_grid[:, [0, across]]
        tied = np.all(per_grid[:, :across] == first[:, :1]) and np.all(per_grid[:, across:] == first[:, 1:])
        size = 4 * g.cards[0] * g.n_vars * (8 if at.dtype == torch.float64 else 4)
        return cls(shape, g.cards[0], at.ints(first), at) if tied and size <= MOST_SHARED else None

    def sweep(
        self, unary: torch.Tensor, tables: torch.Tensor, grids: torch.Tensor, messages: torch.Tensor, eps: float,
        n_sweeps: int, schedule: Schedule, residual: torch.Tensor,
    ) -> torch.Tensor:  # fmt: skip
        """Up to ``n_sweeps`` sweeps of the named grids, each until it converges; returns how many of each."""
        maxima, unit = eps == 0.0, eps
        if maxima:  # any unit does for a maximum: the one that keeps the range of scores safe
            unit = max(spread(unary, tables) / (0.5 * SAFE[self.at.dtype]), 1e-30)
        (h, w), dtype = self.shape, self.at.dtype
        threads, blocks = self._threads(schedule.flooding, len(grids))
        flags = f"constexpr bool MAXIMA = {str(maxima).lower()}, FLOODING = {str(schedule.flooding).lower()};"
        sizes = f"constexpr int H = {h}, W = {w}, S = {self.states}, T = {threads}, BLOCKS = {blocks};"
        shared = 4 * self.states * h * w * messages.element_size()
        run = kernel("grid.cu", "sweep", self.at.device.index or 0, dtype, f"{sizes}\n{flags}", shared)
        swept = torch.zeros(len(residual), dtype=torch.int32, device=messages.device)
        tolerance = finest(schedule.tolerance, unit, dtype)
        run(
            len(grids), threads, unary, tables, self.table_at, grids.to(torch.int32), messages, residual, swept,
            float(unit), float(schedule.damping), float(tolerance / unit), n_sweeps, LOOK,
        )  # fmt: skip
        residual[grids] *= unit
        return swept

    def _threads(self, flooding: bool, n_grids: int) -> tuple[int, int]:
        """Threads of a block and blocks of a multiprocessor, as measured on 20x40 grids of 5 states: many small blocks
        hide each other's waiting, a few grids are done soonest by large ones."""
        h, w = self.shape
        most = 800 if flooding else 416
        if not flooding and self.at.dtype == torch.float32 and n_grids > 264:
            return min(224, 32 * -(-h * w // 64)), 3
        return min(most if self.at.dtype == torch.float32 else 416, 32 * -(-h * w // (32 if flooding else 64))), 1

    def safe(self, unary: torch.Tensor, tables: torch.Tensor, eps: float) -> bool:
        """Whether products of a score and four messages stay in the range of numbers (for maxima a unit is chosen)."""
        most = spread(unary, tables)
        return bool(most < torch.inf and (eps == 0.0 or most / eps < SAFE[self.at.dtype]))


def spread(unary: torch.Tensor, tables: torch.Tensor) -> float:
    """The range of the unary scores that are allowed plus four times that of the tables (infinite if one is)."""
    low = torch.where(unary > -torch.inf, unary, torch.inf).amin(dim=-1)
    return float((unary.amax(dim=-1) - low).amax() + 4.0 * (tables.amax() - tables.amin()))


def _grid_shape(g: Topology) -> tuple[int, int] | None:
    """Height and width if the factors are those of a grid, across and then down, in C order."""
    if g.n_factors < 4:
        return None
    w = next((b - a for a, b in reversed(g.scopes)), 0)
    if w < 2 or g.n_vars % w:
        return None
    at = np.arange(g.n_vars).reshape(-1, w)
    pairs = np.concatenate(
        [np.stack([a.ravel(), b.ravel()], 1) for a, b in ((at[:, :-1], at[:, 1:]), (at[:-1], at[1:]))]
    )
    if len(at) < 2 or not np.array_equal(pairs.ravel(), g.scope_flat):
        return None
    return len(at), w
