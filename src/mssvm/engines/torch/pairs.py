"""Any pairwise graphs on a GPU, by a kernel for all messages of a sweep (``kernels/pairs.cu``)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from mssvm.core.arrays import Ints
from mssvm.core.collector import gc_paused
from mssvm.core.topology import Batch, offsets
from mssvm.engines.messages import Schedule, Temperatures
from mssvm.engines.torch.arrays import SAFE, Device
from mssvm.engines.torch.grids import FEW_STATES, MAXIMA, MIXED, finest, product_of
from mssvm.engines.torch.nvrtc import available, constants, kernel

MOST_STATES = 32
MOST_SHARED = 14 << 10
CHECK_EVERY = 8
# threads that add up the messages to a variable, and how many of them each reads at once
LANES = 4
AT_ONCE = 2
RECORDED = 8  # multiples of CHECK_EVERY sweeps from which on a CUDA graph is recorded


@dataclass(frozen=True, eq=False)
class PairKernel:
    """Wiring of a batch whose variables all have the same number of states.

    ``order`` sorts factors by their first end. ``variables`` are sorted by colour, each with the rows of the messages
    to it as a first end, and where those to it as a second end begin in ``slots``. ``in_colour`` counts the variables
    of each colour.
    """

    states: int
    in_colour: tuple[int, int]
    at: Device
    order: torch.Tensor
    variables: torch.Tensor
    slots: torch.Tensor
    number: torch.Tensor
    ends: torch.Tensor
    owner: torch.Tensor
    colours: torch.Tensor

    @classmethod
    def of(cls, batch: Batch, number: torch.Tensor, colours: Ints, at: Device) -> PairKernel | None:
        cards = np.unique(batch.cards)
        if at.plain or len(cards) != 1 or not 1 < cards[0] <= MOST_STATES or not available(at.device):
            return None
        order = np.argsort(batch.scope_vars[::2], kind="stable")
        ends = batch.scope_vars.reshape(-1, 2)[order]
        colour = colours.reshape(-1, 2)[order]
        kind = np.zeros(batch.n_vars, dtype=np.int64)
        kind[ends] = colour
        variables = np.argsort(kind, kind="stable")
        own = np.searchsorted(ends[:, 0], np.stack([variables, variables + 1], axis=1))
        slots = np.lexsort((ends[:, 1], kind[ends[:, 1]]))
        behind = offsets(np.bincount(ends[:, 1], minlength=batch.n_vars)[variables])
        rows = np.concatenate([np.column_stack([variables, own, behind[:-1]]), [[0, 0, 0, behind[-1]]]])
        zeros = int(np.sum(kind == 0))
        return cls(
            int(cards[0]),
            (zeros, batch.n_vars - zeros),
            at,
            at.ints(order),
            at.shorts(rows),
            at.shorts(slots),
            number[at.ints(order)].to(torch.int32),
            at.shorts(ends),
            at.shorts(batch.factor_owner[order]),
            (4 * at.ints(colour[:, 0]) + 8 * at.ints(colour[:, 1])).to(torch.uint8),
        )

    def few(self, tables: torch.Tensor) -> bool:
        """Whether all tables fit into the shared memory of a block."""
        return len(tables) * self.states * (self.states + 3) * int(self.at.dtype.itemsize) <= MOST_SHARED

    def able(self, t: Temperatures, tables: torch.Tensor) -> bool:
        """Whether a thread has enough registers for such sweeps, and scaling by eps_h loses nothing that matters at
        eps_y."""
        product = product_of(t)
        if product > MIXED and t.eps_y > t.eps_h:
            return False
        return self.states <= FEW_STATES or product < MIXED or (product == MIXED and self.few(tables))

    def safe(self, tables: torch.Tensor, eps: float) -> bool:
        """Whether tables, as exp(theta / eps), stay in the range of numbers (for maxima a unit is chosen)."""
        most = float((tables.amax(dim=(1, 2)) - tables.amin(dim=(1, 2))).amax()) if len(tables) else torch.inf
        return bool(most < torch.inf and (eps == 0.0 or most / eps < SAFE[self.at.dtype]))

    def sweep(
        self,
        unary: torch.Tensor,
        tables: torch.Tensor,
        mine: torch.Tensor,
        messages: torch.Tensor,
        t: Temperatures,
        n_sweeps: int,
        schedule: Schedule,
        residual: torch.Tensor,
    ) -> torch.Tensor:
        """Up to ``n_sweeps`` sweeps of the named instances, each until it converges; returns how many of each."""
        top = tables.amax(dim=(1, 2), keepdim=True)
        product = product_of(t)
        unit = t.eps_h
        if product == MAXIMA:
            unit = max(float((top - tables.amin(dim=(1, 2), keepdim=True)).amax()) / (0.5 * SAFE[self.at.dtype]), 1e-30)
        tolerance = finest(schedule.tolerance, unit, self.at.dtype)
        swept = torch.zeros(len(residual), dtype=torch.int32, device=messages.device)
        active = torch.zeros_like(swept, dtype=torch.int8)
        active[mine] = (~(residual[mine] <= tolerance)).to(torch.int8)
        kinds = self.colours
        if product >= MIXED:
            outputs = self.at.bools(t.outputs)[self.ends]
            kinds = kinds + outputs[:, 0].to(torch.uint8) + 2 * outputs[:, 1].to(torch.uint8)
        scaled = torch.exp((tables - top) / unit).contiguous()
        state = _Sweeps(self, unary, scaled, kinds, active, messages, unit, t, schedule)

        def part(count: int) -> None:
            """A number of sweeps, the last of which measures residuals."""
            for k in range(count):
                state.sweep(k + 1 == count)
            swept.add_(count * active)
            residual.copy_(torch.where(active.bool(), state.change, residual))
            state.change.zero_()
            active.bitwise_and_((~(residual <= tolerance)).to(torch.int8))

        parts, rest = divmod(n_sweeps, CHECK_EVERY)
        check = _DelayedCheck()
        run: Callable[[int], None] = part
        for k in range(parts):
            if k == 1 and parts >= RECORDED:
                run = _recorded(part)
            run(CHECK_EVERY)
            if check.none_active(active):
                break
        else:
            if rest:
                part(rest)
        state.save(messages)
        return swept


def _recorded(part: Callable[[int], None]) -> Callable[[int], None]:
    """``CHECK_EVERY`` sweeps as a recorded CUDA graph: on small graphs a launch by the host takes as long as its
    kernel."""
    graph = torch.cuda.CUDAGraph()
    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    # Freeing another recording would invalidate this one. (torch.cuda.graph would also empty the allocator's cache.)
    with gc_paused(), torch.cuda.stream(aside):
        graph.capture_begin(capture_error_mode="thread_local")
        part(CHECK_EVERY)
        graph.capture_end()
    return lambda _: graph.replay()


class _DelayedCheck:
    """Tells whether any instance is active, with the answer of the previous check: the host need not wait for the
    device."""

    def __init__(self) -> None:
        self._answer = torch.ones(1, dtype=torch.int8, pin_memory=True)
        self._written: torch.cuda.Event | None = None

    def none_active(self, active: torch.Tensor) -> bool:
        if self._written is not None:
            self._written.synchronize()  # does not wait: several sweeps were launched since
            if not bool(self._answer[0]):
                return True
        self._answer.copy_(active.amax(0, keepdim=True), non_blocking=True)
        self._written = torch.cuda.Event()
        self._written.record()
        return False


class _Sweeps:
    """Messages of a call in the kernel's own order, and the launches of a sweep."""

    def __init__(
        self,
        plan: PairKernel,
        unary: torch.Tensor,
        tables: torch.Tensor,
        kinds: torch.Tensor,
        active: torch.Tensor,
        messages: torch.Tensor,
        unit: float,
        t: Temperatures,
        schedule: Schedule,
    ) -> None:
        self._plan = plan
        self._unit = unit
        n = len(plan.order)
        threads = 512 // tables.element_size()
        self._rows = self._compressed(messages)
        self.change = messages.new_zeros(len(active))
        narrow = bool((unary[:, 0] > -torch.inf).all())
        scores = _padded((unary - unary[:, :1])[:, 1:] / unit) if narrow else _padded(unary / unit, 1)
        field = torch.empty_like(scores)
        numbers = self._constants(threads, tables, t, schedule, one=len(active) == 1, narrow=narrow)
        fields = kernel("pairs.cu", "fields", plan.at.device, plan.at.dtype, numbers)
        send = kernel("pairs.cu", "messages", plan.at.device, plan.at.dtype, numbers)

        def gather(first: int, count: int) -> Callable[[], None]:
            given = (scores, self._rows, plan.variables, plan.slots, field, first, count, n)
            return fields.ready(-(-LANES * count // threads), threads, *given) if count else _nothing

        ratio = t.eps_h / t.eps_y if t.eps_y > 0.0 else 1.0
        given = (
            field,
            self._rows,
            tables,
            plan.number,
            plan.ends,
            plan.owner,
            kinds,
            active,
            self.change,
            float(unit),
            float(schedule.damping),
            float(ratio),
        )
        zeros, ones = plan.in_colour
        phases = ((-1, 0, zeros + ones),) if schedule.flooding else ((0, 0, zeros), (1, zeros, ones))

        def launches(measure: bool) -> list[tuple[Callable[[], None], Callable[[], None]]]:
            """By phase of a sweep, the launch that sends messages and the one that adds them up."""
            blocks = -(-n // threads)
            return [
                (send.ready(blocks, threads, *given, colour, int(measure), n), gather(first, count))
                for colour, first, count in phases
            ]

        self._phases = {False: launches(measure=False), True: launches(measure=True)}
        gather(0, zeros + ones)()

    def _compressed(self, messages: torch.Tensor) -> torch.Tensor:
        """Messages in the kernel's order, as entries relative to the first, which is left out."""
        plan = self._plan
        rows = messages.reshape(len(plan.order), 2, plan.states)[plan.order]
        rows = torch.where(rows > -torch.inf, rows, 0.0)  # entries of forbidden states are arbitrary
        return _padded(((rows - rows[..., :1]) / self._unit)[..., 1:].transpose(0, 1))

    def _constants(
        self, threads: int, tables: torch.Tensor, t: Temperatures, schedule: Schedule, one: bool, narrow: bool
    ) -> str:
        """The numbers that the kernels are compiled with."""
        plan = self._plan
        few = plan.few(tables)
        return constants(
            S=plan.states,
            THREADS=threads,
            TABLES=len(tables) if few else 0,
            STAGED=not few and threads * plan.states**2 * tables.element_size() <= MOST_SHARED,
            PRODUCT=product_of(t),
            COLOURED=not schedule.flooding,
            ONE=one,
            NARROW=narrow,
            LANES=LANES,
            AT_ONCE=AT_ONCE,
        )

    def sweep(self, measure: bool) -> None:
        """Update all messages; with ``measure`` also the largest changes."""
        for send, gather in self._phases[measure]:
            send()
            gather()

    def save(self, messages: torch.Tensor) -> None:
        """Write the messages in the order of the batch, the largest entry of each 0."""
        ratios = self._rows[..., : self._plan.states - 1]
        rows = torch.cat([torch.zeros_like(ratios[..., :1]), ratios], dim=-1)
        rows = self._unit * (rows - rows.amax(dim=-1, keepdim=True))
        messages.reshape(rows.shape[1], 2, -1)[self._plan.order] = rows.transpose(0, 1)


def _padded(rows: torch.Tensor, few: int = 3) -> torch.Tensor:
    """Rows as the kernel reads them: four numbers at a time where a row has at least ``few``."""
    n = rows.shape[-1]
    out = rows.new_zeros(*rows.shape[:-1], n if n < few else -(-n // 4) * 4)
    out[..., :n] = rows
    return out


def _nothing() -> None:
    """The launch for a colour without variables."""
