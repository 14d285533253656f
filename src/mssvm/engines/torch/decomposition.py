"""The decomposition bound on a GPU: one block per instance (``kernels/trws.cu``, ``kernels/trws_nested.cu``).

Numbers are double on every device. An evaluation is one launch, and nothing is fetched before it is asked for. On other
devices, and for models that the kernels do not take, the native engine's chains run on the host (``HostRun``).
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch

from mssvm.core.arrays import Bools, Floats, Ints
from mssvm.core.errors import InputError
from mssvm.core.potentials import Marginals, Potentials, Query
from mssvm.core.topology import Batch
from mssvm.engines import engine_of
from mssvm.engines.decomposition import ChainPlan, ChainRun, Waiting
from mssvm.engines.native.chains import factor_weights
from mssvm.engines.torch.arrays import Device, DeviceMarginals, DevicePotentials, cached_for, fetched
from mssvm.engines.torch.cover import BatchItems
from mssvm.engines.torch.nvrtc import available, constants, kernel

MOST_STATES = 64
MOST_NESTED = 8  # states at two temperatures, where a variable's work grows with their cube
PADDING = 4  # padding to equal numbers of states may multiply the memory of messages by this factor
FEW_STATES = 4  # with at most these numbers of states and chains a thread has all numbers in registers
FEW_CHAINS = 4
SHARED = 28 << 10  # bytes of shared memory for messages on their way
MOST_NUMBERS = 1 << 31  # most numbers of one array


def able(batch: Batch, instances: Ints, hidden: Bools | None, at: Device) -> bool:
    """Whether the kernels can run these instances of a batch."""
    if at.plain or not available(at.device) or not len(instances):
        return False
    widest = int(batch.cards.max(initial=1))
    mean = float(batch.cards.mean()) if batch.n_vars else 1.0
    most = MOST_STATES if hidden is None else MOST_NESTED
    sizes = batch.n_states, batch.n_table_entries, batch.n_mu_entries, batch.n_factors * 4 * widest**2
    return widest <= most and widest <= PADDING * mean and max(sizes) < MOST_NUMBERS


def chain_plan(batch: Batch, instances: Ints, hidden: Bools | None, at: Device) -> ChainPlan:
    """The chains of some instances: by the kernels where they can, else by the native engine's on the host."""
    if able(batch, instances, hidden, at):
        return TorchChainPlan(batch, instances, at, hidden)
    host = engine_of("auto")
    plan: ChainPlan = host.chains(batch, instances, hidden)  # type: ignore[attr-defined]
    return HostPlan(plan, at)


@dataclass(frozen=True, eq=False)
class HostPlan:
    """Chains of an engine of the host, whose marginals are uploaded."""

    plan: ChainPlan
    at: Device

    def factor_weights(self) -> Floats:
        return self.plan.factor_weights()

    def run(self) -> ChainRun:
        return HostRun(self.plan.run(), self.at.device.type != "cpu")


@dataclass(frozen=True, eq=False)
class HostRun:
    """A run on the host that takes scores from a device and adds marginals to those there."""

    run: ChainRun
    elsewhere: bool

    @property
    def state(self) -> Floats:
        return self.run.state

    def restore(self, state: Floats) -> None:
        self.run.restore(state)

    def load(self, theta: Potentials, allowed: Bools, eps_y: float, eps_h: float) -> None:
        self.run.load(Potentials(theta.unary, theta.tables), allowed, eps_y, eps_h)

    def sweep(self, n: int) -> Floats:
        return self.run.sweep(n)

    def read(self, mu: Marginals) -> Floats:
        if not isinstance(mu, DeviceMarginals):
            return self.run.read(mu)
        own = Marginals(np.zeros(len(mu.parts[0])), np.zeros(len(mu.parts[1])))
        residual = self.run.read(own)
        mu.add(own)
        return residual

    def answer(self, n: int, mu: Marginals | None) -> Waiting:
        wait = self.run.answer(n, None)
        residual = None if mu is None else self.read(mu)
        if residual is None:
            return wait
        before, value, _ = wait()
        return lambda: (before, value, residual)

    def decode(self, states: Ints) -> None:
        self.run.decode(states)


@dataclass(frozen=True, eq=False)
class PlacedItems:
    """The items of some instances, and the same on a device by their names in ``Cover``."""

    items: BatchItems
    arrays: dict[str, torch.Tensor]


class TorchChainPlan:
    """The bound on some instances of a batch, all of them pairwise. With a mask of ``hidden`` variables it has two
    temperatures."""

    def __init__(self, batch: Batch, instances: Ints, at: Device, hidden: Bools | None = None) -> None:
        self.batch = batch
        self.instances = np.asarray(instances, dtype=np.int64)
        self.device = Device(at.device, torch.float64)
        self.hidden = hidden
        self.widest = int(batch.cards.max(initial=1))
        self.placed = cached_for(batch, ("items", at.device), self.instances, self._place)
        self.items = self.placed.items

    @property
    def nested(self) -> bool:
        return self.hidden is not None

    def factor_weights(self) -> Floats:
        return factor_weights(self.batch, self.instances)

    def run(self) -> TorchChainRun:
        return TorchChainRun(self)

    @cached_property
    def lanes(self) -> int:
        """Threads that share a message of many states."""
        if self.nested or self.widest <= 4:
            return 1
        return min(32, 1 << (self.widest - 1).bit_length())

    @cached_property
    def threads(self) -> int:
        most = 256 if self.nested or self.widest > 4 else 512
        return int(np.clip(-(-self.items.busiest * self.lanes // 32) * 32, 128, most))

    @cached_property
    def numbers(self) -> str:
        same = bool(np.all(self.batch.cards == self.widest))
        items = self.items
        few = self.widest <= FEW_STATES and items.chains <= FEW_CHAINS
        rows = self.widest if self.nested else 1
        fits = 8 * items.ring * items.busiest * self.widest * rows <= SHARED
        ring = items.ring if fits else 0
        return constants(
            W=self.widest,
            SAME=int(same),
            LANES=self.lanes,
            THREADS=self.threads,
            CHAINS=2 if items.chains <= 2 else max(items.chains, FEW_CHAINS),
            FEW=int(few),
            RING=ring,
            SLOTS=ring * items.busiest,
        )

    def kernel(self, source: str, name: str) -> Any:
        return kernel(source, name, self.device.device, torch.float64, self.numbers)

    def _place(self) -> PlacedItems:
        items = BatchItems.of(self.batch, self.instances)
        longs = ("places", "group_at")
        floats = ("left", "rho")
        names = (*longs, *floats, "levels", "variables", "items", "table", "table_before", "mu")
        found = {}
        for name in (*names, "group_items", "group_size", "group_mu"):
            array = getattr(items, name)
            if name in floats:
                found[name] = self.device.floats(array)
            elif name in longs:
                found[name] = self.device.ints(array)
            else:
                found[name] = self.device.shorts(array)
        return PlacedItems(items, found)

    @cached_property
    def hidden_on_device(self) -> torch.Tensor | None:
        return None if self.hidden is None else self.by_level(self.hidden)

    @cached_property
    def roles(self) -> torch.Tensor | None:
        """At two temperatures, by item: is it hidden, and are those before and after it?"""
        if self.hidden is None:
            return None
        items = self.items
        mine = self.hidden[items.number][items.variable].astype(np.uint8)
        found = mine + 2 * mine[items.before] + 4 * mine[items.after]
        return torch.from_numpy(found).to(self.device.device)

    def by_level(self, mask: Bools) -> torch.Tensor:
        """A mask of variables in the order of the kernels."""
        return self.device.bools(mask[self.items.number])

    def spread(self, answers: torch.Tensor) -> Floats:
        """The three numbers of every instance of the batch, 0 outside the plan."""
        out = np.zeros((3, len(self.batch)))
        out[:, self.instances] = fetched(answers).reshape(-1, 3).T
        return out


class TorchChainRun:
    """Messages of a plan in progress, or at two temperatures shifts."""

    elsewhere = False

    def __init__(self, plan: TorchChainPlan) -> None:
        self.plan = plan
        n = plan.widest * plan.items.n_items
        rows = plan.widest if plan.nested else 1
        zeros = plan.device.floats(np.zeros(1)).new_zeros
        self.forward = zeros(max(rows * n, 1))
        self.backward = zeros(max(rows * n, 1))
        self.shifts = zeros(max(n, 1)) if plan.nested else self.forward
        self.scores = zeros(max(plan.widest * plan.items.n_vars, 1))
        self._answers = zeros(3 * len(plan.instances))
        # The two sides of a training run at the same time; both have half a GPU's blocks.
        self._stream = torch.cuda.Stream(plan.device.device) if plan.device.device.type == "cuda" else None
        self._work: dict[str, torch.Tensor] = {}
        self._allowed: tuple[Bools, torch.Tensor] | None = None
        self._stale = True  # scores on the device are those of an earlier load
        self._ready = False  # messages from later variables are up to date with the shifts

    @property
    def state(self) -> Floats:
        """The messages, or shifts, from which the next sweep continues."""
        if self.plan.nested:
            return fetched(self.shifts)
        return fetched(torch.cat([self.forward, self.backward]))

    def restore(self, state: Floats) -> None:
        parts = [self.shifts] if self.plan.nested else [self.forward, self.backward]
        if state.shape != (sum(len(part) for part in parts),):
            raise InputError(
                f"the messages of the checkpoint have {state.size} numbers, and this engine's have "
                f"{sum(len(part) for part in parts)}; continue on the device on which the training began."
            )
        for part, piece in zip(parts, np.split(state, len(parts)), strict=True):
            part.copy_(self.plan.device.floats(piece))

    def load(self, theta: Potentials, allowed: Bools, eps_y: float, eps_h: float) -> None:
        plan = self.plan
        at = plan.device
        if isinstance(theta, DevicePotentials) and theta.parts[0].device == at.device:
            self._theta = tuple(part.to(torch.float64).contiguous() for part in theta.parts)
        else:
            self._theta = (at.floats(theta.unary), at.floats(theta.tables))
        if self._allowed is None or self._allowed[0] is not allowed:
            self._allowed = (allowed, at.bools(allowed))
        self._eps = (float(eps_y), float(eps_h))
        self._stale = True
        self._ready = False

    def _record(self, **outputs: torch.Tensor | None) -> Any:
        """The struct ``Cover`` of the kernels: the addresses of its arrays, 0 for those without a tensor."""
        assert self._allowed is not None
        plan = self.plan
        found = dict[str, torch.Tensor | None](plan.placed.arrays)
        found |= {"unary": self._theta[0], "tables": self._theta[1], "allowed": self._allowed[1]}
        found |= {"hidden": plan.hidden_on_device, "roles": plan.roles, "scores": self.scores, "forward": self.forward}
        found |= {"backward": self.backward, "shifts": self.shifts, "answer": self._answers, **outputs}
        names = (
            *("places", "levels", "variables", "left", "items", "rho", "table", "table_before", "mu", "roles"),
            *("group_at", "group_items", "group_size", "group_mu", "unary", "tables", "allowed", "hidden", "scores"),
            *("forward", "backward", "read", "sent", "pairs", "shifts", "logs", "rest", "answer"),
            *("mu_unary", "mu_tables", "states"),
        )
        tensors = [found.get(name) for name in names]
        pointers = [0 if tensor is None else tensor.data_ptr() for tensor in tensors]
        return (ctypes.c_longlong * len(names))(*pointers)

    def _launch(self, name: str, record: Any, *arguments: Any) -> None:
        plan = self.plan
        source = "trws_nested.cu" if name == "nested" else "trws.cu"
        device = Device(plan.device.device, torch.float64)
        with device.current:
            plan.kernel(source, name)(len(plan.instances), plan.threads, record, *arguments)

    def sweep(self, n: int) -> Floats:
        return self.answer(n, None)()[1]

    def read(self, mu: Marginals) -> Floats:
        return self.answer(0, mu)()[2]

    def answer(self, n: int, mu: Marginals | None) -> Waiting:
        """One launch that makes n sweeps, which may be none, and then reads marginals unless ``mu`` is None."""
        plan = self.plan
        on_device = None
        outputs: dict[str, torch.Tensor | None] = {}
        if mu is not None:
            on_device = mu if isinstance(mu, DeviceMarginals) else self._zeros()
            outputs |= self._workspace(on_device)
        sweeps = (int(n), int(mu is not None))
        if plan.nested:
            # Where scores have changed, the launch also computes the messages from later variables.
            outputs |= {"logs": self._space("logs", plan.widest), "rest": self._space("rest", plan.widest)}
            swept = (int(self._ready), int(n > 0 or mu is None), *sweeps)
            self._launch_on_stream("nested", self._record(**outputs), *self._eps, int(self._stale), *swept)
            self._ready = True
        else:
            self._launch_on_stream("trws", self._record(**outputs), self._eps[0], int(self._stale), *sweeps)
        self._stale = False
        if on_device is not None:
            on_device.changed()

        def wait() -> tuple[Floats, Floats, Floats]:
            if self._stream is not None:
                torch.cuda.current_stream(plan.device.device).wait_stream(self._stream)
            if on_device is not None and on_device is not mu:
                assert mu is not None
                mu.add(on_device)
            before, value, residual = plan.spread(self._answers)
            return np.full_like(before, np.inf) if n < 2 else before, value, residual

        return wait

    def _launch_on_stream(self, name: str, record: Any, *arguments: Any) -> None:
        """Launch on the run's own stream, after all work of the present stream. Memory that the kernel uses must not be
        freed before the present stream has waited for the run's."""
        if self._stream is None:
            self._launch(name, record, *arguments)
            return
        self._stream.wait_stream(torch.cuda.current_stream(self.plan.device.device))
        with torch.cuda.stream(self._stream):
            self._launch(name, record, *arguments)

    def _space(self, name: str, each: int) -> torch.Tensor:
        """Workspace of ``each`` numbers for every item, or for every variable if there are more."""
        if name not in self._work:
            n = max(self.plan.items.n_items, self.plan.items.n_vars, 1)
            self._work[name] = self.scores.new_empty(each * n)
        return self._work[name]

    def _zeros(self) -> DeviceMarginals:
        return device_marginals(self.plan.batch, self.plan.device)

    def _workspace(self, mu: DeviceMarginals) -> dict[str, torch.Tensor | None]:
        plan = self.plan
        each = plan.widest * (plan.widest if plan.nested else 1)
        return {
            "read": self._space("read", each),
            "sent": self._space("sent", each),
            "pairs": self._space("pairs", plan.widest**2) if plan.items.shared else None,
            "mu_unary": mu.parts[0],
            "mu_tables": mu.parts[1],
        }

    def product(self, query: Query, eps_y: float, eps_h: float, mu: Marginals) -> Floats | None:
        """The mean-field bound of every instance, by a kernel."""
        if not isinstance(mu, DeviceMarginals):
            return None
        plan = self.plan
        answer = torch.zeros_like(self._answers)
        record = self._record(hidden=plan.by_level(~query.output), mu_unary=mu.parts[0], answer=answer)
        self._launch("product", record, float(eps_y), float(eps_h))
        return np.asarray(plan.spread(answer)[1])

    def decode(self, states: Ints) -> None:
        found = torch.from_numpy(states).to(self.plan.device.device)
        self._launch("decode", self._record(states=found), self._eps[0], int(self._stale))
        self._stale = False
        states[:] = found.cpu().numpy()


def device_marginals(batch: Batch, at: Device) -> DeviceMarginals:
    """Marginals of zero."""
    zeros = [torch.zeros(n, dtype=torch.float64, device=at.device) for n in (batch.n_states, batch.n_mu_entries)]
    return DeviceMarginals(zeros[0], zeros[1])
