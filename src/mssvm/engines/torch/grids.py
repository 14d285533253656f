"""Grids on a GPU: batches of grids of one size, whose edges share tables or have one each (``kernels/grid.cu``)."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from mssvm.core.arrays import Ints
from mssvm.core.topology import Batch, Topology
from mssvm.engines.messages import Schedule, Temperatures
from mssvm.engines.torch.arrays import SAFE, Device, fetched
from mssvm.engines.torch.nvrtc import available, constants, kernel

MOST_SHARED = 226 << 10
MOST_STATES = 32
FEW_STATES = 8
CHECK_EVERY = 16  # sweeps between two tests of convergence, on the device
SUMS, MAXIMA, MIXED, TEMPERED = range(4)  # the kernels' PRODUCT
# which factors share a table: the kernel's TABLES
FOR_ALL = 0
EACH_GRID = 1
EDGES = 2
STEPS = float(2**22)  # per unit of a log: maxima in single precision are computed on whole numbers of such steps


def finest(tolerance: float, unit: float, dtype: torch.dtype) -> float:
    """The tolerance, raised to the rounding of single precision; a negative one (never stop early) is unchanged."""
    if tolerance < 0.0 or dtype == torch.float64:
        return tolerance
    return max(tolerance, 3e-6 * unit)


def product_of(t: Temperatures) -> int:
    """The kind of product at these temperatures: the kernels' PRODUCT."""
    if t.eps_y == t.eps_h:
        return SUMS if t.eps_h > 0.0 else MAXIMA
    return TEMPERED if t.eps_y > 0.0 else MIXED


@dataclass(frozen=True, eq=False)
class GridKernel:
    """The kernel for grids of one size and number of states.

    ``kind`` says which factors share a table (FOR_ALL grids one per direction, EACH_GRID its own two, or all EDGES
    differ). With EDGES, ``stride`` is the distance between the tables of consecutive grids (0: all grids share them).
    """

    shape: tuple[int, int]
    states: int
    kind: int
    stride: int
    table_at: Ints
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
        per_grid = batch.table_at.reshape(len(batch), -1)
        states = g.cards[0]
        across = shape[0] * (shape[1] - 1)
        first = per_grid[:, [0, across]]
        if np.all(per_grid[:, :across] == first[:, :1]) and np.all(per_grid[:, across:] == first[:, 1:]):
            kind = FOR_ALL if states <= FEW_STATES and np.all(first == first[0]) else EACH_GRID
            found = cls(shape, states, kind, 0, first, at)
        else:
            stride = int(per_grid[1, 0] - per_grid[0, 0]) if len(batch) > 1 else 0
            regular = np.arange(len(batch))[:, None] * stride + np.arange(g.n_factors) * states**2 + per_grid[0, 0]
            if states > FEW_STATES or stride not in (0, regular.shape[1] * states**2) or np.any(per_grid != regular):
                return None
            found = cls(shape, states, EDGES, stride, first, at)
        return found if found.fits(False) else None

    def sweep(
        self,
        unary: torch.Tensor,
        tables: torch.Tensor,
        grids: torch.Tensor,
        messages: torch.Tensor,
        t: Temperatures,
        n_sweeps: int,
        schedule: Schedule,
        residual: torch.Tensor,
    ) -> torch.Tensor:
        """Up to ``n_sweeps`` sweeps of the named grids, each until it converges; returns how many of each."""
        product = product_of(t)
        unit = t.eps_h
        if product == MAXIMA:  # a maximum does not depend on the unit: choose one that keeps the range of scores safe
            unit = max(spread(unary, tables) / (0.5 * SAFE[self.at.dtype]), 1e-30)
        h, w = self.shape
        dtype = self.at.dtype
        threads, split, blocks = self._threads(product, schedule.flooding, len(grids))
        by_value, table_values, table_at = self._tables(tables, unit, product)
        numbers = constants(
            H=h,
            W=w,
            S=self.states,
            T=threads,
            SPLIT=split,
            BLOCKS=blocks,
            TABLES=self.kind,
            PRODUCT=product,
            FLOODING=schedule.flooding,
        )
        run = kernel("grid.cu", "sweep", self.at.device, dtype, numbers, self._shared(schedule.flooding))
        swept = torch.zeros(len(residual), dtype=torch.int32, device=messages.device)
        tolerance = finest(schedule.tolerance, unit, dtype)
        fields = unary.new_empty(len(grids) * self.states * self.places if self.states > FEW_STATES else 0)
        outputs = self.at.bools(t.outputs if product >= MIXED else np.zeros(0)).to(torch.uint8)
        ratio = float(t.eps_h / t.eps_y) if t.eps_y > 0.0 else 1.0
        run(
            len(grids),
            threads,
            by_value,
            unary,
            table_values,
            table_at,
            grids.to(torch.int32),
            fields,
            messages,
            residual,
            swept,
            outputs,
            float(unit),
            ratio,
            float(schedule.damping),
            float(tolerance / unit),
            n_sweeps,
            CHECK_EVERY,
        )
        residual[grids] *= unit
        return swept

    def _tables(self, tables: torch.Tensor, unit: float, product: int) -> tuple[Any, torch.Tensor, torch.Tensor]:
        """The tables as the kernel takes them: by value, as they are, or laid out by position; and where they begin."""
        h, w = self.shape
        size = self.states**2
        n = len(self.table_at)
        whole = product == MAXIMA and self.at.dtype == torch.float32
        real: Any = ctypes.c_float
        if self.at.dtype == torch.float64:
            real = ctypes.c_double
        elif whole:
            real = ctypes.c_int
        none = (real * 1)(0)
        first = self.at.ints(self.table_at)
        if self.kind == EACH_GRID:
            return none, tables, first
        if self.kind == FOR_ALL:
            both = np.concatenate([fetched(tables[k : k + size]) for k in self.table_at[0].tolist()])
            logs = (both - both.max()) / unit
            entries = np.rint(STEPS * logs).astype(np.int32) if whole else np.exp(logs)
            return (real * (2 * size))(*entries.tolist()), tables, first
        different = n if self.stride else 1
        across = h * (w - 1)
        rows = tables[self.table_at[0, 0] :][: different * size * (across + (h - 1) * w)].reshape(different, -1, size)
        logs = ((rows - rows.max()) / unit).transpose(1, 2)
        scaled = torch.round(STEPS * logs).to(torch.int32) if whole else torch.exp(logs)
        out = scaled.new_zeros(different, 2, size, self.places)
        i, j = np.indices(self.shape)
        at = (i + j) % 2 * (self.places // 2) + i * -(-w // 2) + j // 2
        out[:, 0][..., self.at.ints(at[:, :-1].ravel())] = scaled[:, :, :across]
        out[:, 1][..., self.at.ints(at[:-1].ravel())] = scaled[:, :, across:]
        step = 2 * size * self.places if self.stride else 0
        return none, out, self.at.ints(np.arange(n) * step)

    @property
    def places(self) -> int:
        """Positions of variables in the kernel's memory: those of one colour, then those of the other."""
        return 2 * self.shape[0] * -(-self.shape[1] // 2)

    def _shared(self, flooding: bool) -> int:
        """Bytes of a block's messages."""
        return int((2 if flooding else 1) * 4 * (self.states - 1) * self.places * self.at.dtype.itemsize)

    def able(self, t: Temperatures, flooding: bool) -> bool:
        """Whether such sweeps have a kernel."""
        return self.fits(flooding) and (self.states <= FEW_STATES or product_of(t) <= MIXED)

    def fits(self, flooding: bool) -> bool:
        """Whether a multiprocessor has room for a grid's messages and its tables."""
        tables = 2 * self.states * (self.states + 3) * self.at.dtype.itemsize
        return bool(self._shared(flooding) + tables <= MOST_SHARED)

    def _threads(self, product: int, flooding: bool, n_grids: int) -> tuple[int, bool, int]:
        """Threads of a block, whether each axis has its own, and blocks of a multiprocessor, as measured on grids of
        20 x 40: many small blocks hide each other's latency, while a few grids finish soonest in large blocks."""
        colour = 32 * -(-self.places // 64)
        single = self.at.dtype == torch.float32
        if self.states > FEW_STATES:
            return min(2 * colour, 640 if single else 320), True, 1
        if n_grids <= 264:
            return min(2 * colour, 832), True, 1
        if single and product <= MIXED and not flooding and self.kind != EDGES:
            return min(32 * -(-colour // 64), 224), False, min(4, MOST_SHARED // self._shared(flooding))
        return min(colour, 416), False, 2 if single else 1

    def safe(self, unary: torch.Tensor, tables: torch.Tensor, eps: float) -> bool:
        """Whether products of a score and four messages are safe from overflow (for maxima a unit is chosen)."""
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
