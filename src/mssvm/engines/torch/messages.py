"""Belief propagation on pairwise graphs with all messages of a colour at once (``engines.messages`` has the formulas).

Messages, scores and tables are padded to the largest number of states; padded states are forbidden. A sweep updates the
messages to all variables (flooding), or first those to one colour and then those to the other (on bipartite graphs,
such as grids and trees, every message then uses its neighbours' newest). Converged instances are left unchanged; the
host checks every few sweeps whether all have converged. The CPU engine does local search, hidden trees given outputs,
and factors of three or more variables.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch

from mssvm.core.arrays import Bools, Floats, Ints
from mssvm.core.components import HiddenComponents, hidden_components
from mssvm.core.potentials import Marginals, Potentials, Query
from mssvm.core.topology import Batch, spans
from mssvm.engines.messages import (
    NOISE,
    Conditional,
    MessageModel,
    MessagePlan,
    Schedule,
    Temperatures,
)
from mssvm.engines.native.engine import NativeEngine
from mssvm.engines.torch.arrays import Device, DeviceMarginals, Index, cached_on, fetched
from mssvm.engines.torch.conditional import TorchConditional
from mssvm.engines.torch.convergence import advance
from mssvm.engines.torch.exact import power_sum
from mssvm.engines.torch.grids import GridKernel, finest
from mssvm.engines.torch.pairs import PairKernel

CHECK_EVERY = 8  # sweeps between two tests of convergence
ROUNDINGS = 8.0  # a change of a message by at most this many roundings of a field counts as none
INF = torch.inf
Sweep = Callable[..., torch.Tensor]


@dataclass(frozen=True, eq=False)
class TorchMessagePlan:
    """Index arrays of one batch: slot 2 f + k is variable k of factor f."""

    batch: Batch
    at: Device

    @classmethod
    def of(cls, batch: Batch, at: Device) -> MessagePlan:
        return cls(batch, at) if batch.pairwise.all() else NativeEngine().messages(batch)

    def load(self, theta: Potentials, query: Query, noise: Floats) -> TorchMessageModel:
        return TorchMessageModel(self, theta, query, noise)

    @cached_property
    def host(self) -> MessagePlan:
        return NativeEngine().messages(self.batch)

    @cached_property
    def grid(self) -> GridKernel | None:
        return GridKernel.of(self.batch, self.at)

    @cached_property
    def pairs(self) -> PairKernel | None:
        return PairKernel.of(self.batch, self.table_places[0], self.colour, self.at)

    @cached_property
    def width(self) -> int:
        return int(self.batch.cards.max(initial=1))

    @cached_property
    def inside(self) -> Bools:
        """(variables, states): which of the padded states exist."""
        found: Bools = np.arange(self.width) < self.batch.cards[:, None]
        return found

    @cached_property
    def slot_var(self) -> torch.Tensor:
        return self.at.ints(self.batch.scope_vars)

    @cached_property
    def message_inside(self) -> Bools:
        return self.inside[self.batch.scope_vars]

    @cached_property
    def colour(self) -> Ints:
        """Of every slot: that of its variable, by the parity of its distance from the first of its component."""
        found = hidden_components(self.batch, np.zeros(self.batch.n_vars, dtype=bool))
        parity = [0] * self.batch.n_vars
        parent = found.parent.tolist()
        for v in found.visit.tolist():
            parity[v] = 1 - parity[parent[v]] if parent[v] >= 0 else 0
        return np.array(parity, dtype=np.int64)[self.batch.scope_vars]

    @cached_property
    def table_places(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Table number of every factor; index of each distinct table's padded entries, and which of these exist."""
        first, number = np.unique(self.batch.table_at, return_index=True, return_inverse=True)[1:]
        return self.at.ints(number), *self._padded(self.batch.table_at, first)

    @cached_property
    def mu_places(self) -> tuple[torch.Tensor, torch.Tensor]:
        """For the padded entries of factors' beliefs the entry of ``Marginals.tables``, and whether there is one."""
        return self._padded(self.batch.mu_at, np.arange(self.batch.n_factors))

    def _padded(self, at: Ints, factors: Ints) -> tuple[torch.Tensor, torch.Tensor]:
        pairs = self.batch.scope_vars.reshape(-1, 2)[factors]
        rows = self.batch.cards[pairs[:, 0]]
        columns = self.batch.cards[pairs[:, 1]]
        i = np.arange(self.width)[:, None]
        j = np.arange(self.width)
        there = (i < rows[:, None, None]) & (j < columns[:, None, None])
        entry = np.where(there, at[factors][:, None, None] + i * columns[:, None, None] + j, 0)
        return self.at.ints(entry), self.at.bools(there)

    @cached_property
    def uniform(self) -> bool:
        """Whether nothing is padded."""
        return bool(self.inside.all())

    def padded(self, flat: torch.Tensor, fill: float) -> torch.Tensor:
        """An array over states as (variables, states)."""
        if self.uniform:
            return flat.reshape(self.inside.shape)
        out = flat.new_full(self.inside.shape, fill)
        out[self._inside] = flat
        return out

    def flat(self, padded: torch.Tensor) -> torch.Tensor:
        """The inverse of ``padded``."""
        return padded.reshape(-1) if self.uniform else padded[self._inside]

    @cached_property
    def _inside(self) -> torch.Tensor:
        return self.at.bools(self.inside)

    def rows(self, instances: Ints) -> Ints | slice:
        """Variables of the named instances (a slice where they are all of them: nothing is gathered then)."""
        if len(instances) == len(self.batch):
            return slice(None)
        return spans(self.batch.var_ptr[instances], np.diff(self.batch.var_ptr)[instances])

    def factors(self, instances: Ints) -> Ints | slice:
        if len(instances) == len(self.batch):
            return slice(None)
        return spans(self.batch.factor_ptr[instances], np.diff(self.batch.factor_ptr)[instances])

    def on_device(self, rows: Ints | slice) -> Index:
        return rows if isinstance(rows, slice) else self.at.ints(rows)

    @cached_property
    def states_at(self) -> torch.Tensor:
        return self.at.ints(self.batch.unary_ptr[:-1])

    @cached_property
    def ends(self) -> torch.Tensor:
        return self.slot_var.reshape(-1, 2)

    @cached_property
    def owner(self) -> torch.Tensor:
        return self.at.ints(self.batch.factor_owner)

    @cached_property
    def var_owner(self) -> torch.Tensor:
        return self.at.ints(self.batch.owner)

    @cached_property
    def degree(self) -> torch.Tensor:
        return self.at.ints(np.bincount(self.batch.scope_vars, minlength=self.batch.n_vars))


class TorchMessageModel:
    """Potentials of a batch on the device, with a model of the CPU engine for its parts of the protocol."""

    relabel = None

    def __init__(self, plan: TorchMessagePlan, theta: Potentials, query: Query, noise: Floats) -> None:
        self.plan = plan
        self._given = (theta, query, noise)
        batch = plan.batch
        at = plan.at
        unary, tables = at.theta(theta, batch)
        allowed = cached_on(query, at, lambda: at.bools(query.allowed))
        self.unary = plan.padded(torch.where(allowed, unary, -INF), -INF)
        self.allowed = plan.padded(allowed, False)
        self.flat_tables = tables
        number, places, there = plan.table_places
        self.tables = (
            torch.where(there, tables[places], -INF) if len(tables) else there.new_zeros(there.shape, dtype=at.dtype)
        )
        self.number = number

    @cached_property
    def host(self) -> MessageModel:
        theta, query, noise = self._given
        return self.plan.host.load(Potentials(theta.unary, theta.tables), query, noise)

    @cached_property
    def noisy(self) -> torch.Tensor:
        _, query, drawn = self._given
        at = self.plan.at
        # Every call has the same array of noise; the cache holds a reference, so that its id stays valid.
        noise = self.plan.padded(cached_on(query, (at, id(drawn)), lambda: (drawn, at.floats(drawn)))[1], 0.0)
        return self.unary + NOISE * noise * (1.0 + torch.where(self.unary > -INF, self.unary, 0.0).abs())

    def kernel_for(self, unary: torch.Tensor, t: Temperatures, flooding: bool) -> tuple[Sweep, torch.Tensor] | None:
        """The kernel that may run such sweeps at these temperatures, and the tables as it takes them."""
        if t.eps_h == 0.0 < t.eps_y:
            return None
        grid = self.plan.grid
        pairs = self.plan.pairs
        if grid and grid.able(t, flooding) and grid.safe(unary, self.flat_tables, t.eps_h):
            return grid.sweep, self.flat_tables
        able = pairs and pairs.able(t, self.tables) and pairs.safe(self.tables, t.eps_h)
        return (pairs.sweep, self.tables) if pairs and able else None

    @cached_property
    def _largest(self) -> float:
        """Estimate of the largest field: a score, plus messages from a few tables."""
        parts = ((1.0, self.unary), (4.0, self.tables))
        sizes = (k * torch.where(x > -INF, x, 0.0).abs().amax() for k, x in parts if x.numel())
        return float(sum(sizes, self.unary.new_zeros(())))

    def attainable(self, t: Temperatures, schedule: Schedule) -> Schedule:
        """The schedule with a tolerance that single precision can attain, not below its rounding."""
        if schedule.tolerance < 0.0 or self.plan.at.dtype == torch.float64:
            return schedule
        rounding = ROUNDINGS * torch.finfo(torch.float32).eps * self._largest
        return replace(schedule, tolerance=max(finest(schedule.tolerance, t.eps_h, torch.float32), rounding))

    @property
    def range(self) -> Floats:
        return self.host.range

    def run(
        self, instances: Ints | None = None, scaled_at: Temperatures | None = None, noisy: bool = False
    ) -> TorchRun:
        return TorchRun(self, self.noisy if noisy else self.unary)

    def marginals(self) -> Marginals:
        sizes = self.plan.batch.n_states, self.plan.batch.n_mu_entries
        return DeviceMarginals(*(self.unary.new_zeros(size) for size in sizes))

    def given(self, components: HiddenComponents, eps_h: float) -> Conditional:
        return TorchConditional(self, components, eps_h)


@dataclass(frozen=True, eq=False)
class Edges:
    """Factors of the named instances: indices, ends, owners, and groups by the temperatures of their ends."""

    factors: Index
    ends: torch.Tensor
    owner: torch.Tensor
    kinds: tuple[tuple[Index, bool, bool], ...]  # factors (positions here) by which of their ends are outputs


class TorchRun:
    """Messages in log space, the largest entry of each 0; in single precision a residual by rounding counts as 0."""

    unit = 1.0

    def __init__(self, model: TorchMessageModel, unary: torch.Tensor) -> None:
        plan = model.plan
        self.model = model
        self.plan = plan
        self.batch = plan.batch
        self.at = plan.at
        self.unary = unary.clone()
        self.open_unary = unary
        self.m = unary.new_zeros((len(plan.batch.scope_vars), plan.width))
        self.sweeps = np.zeros(len(plan.batch), dtype=np.int64)
        self.residual = np.full(len(plan.batch), np.inf)

    def start(self, instances: Ints, messages: Floats | None) -> None:
        mine = self.plan.on_device(self.plan.factors(instances))
        pairs = self.m.reshape(-1, 2, self.plan.width)
        if messages is None:
            pairs[mine] = 0.0
        else:
            padded = np.zeros(self.m.shape)
            padded[self.plan.message_inside] = messages
            pairs[mine] = self.at.floats(padded).reshape(pairs.shape)[mine]
        self.sweeps[instances] = 0
        self.residual[instances] = np.inf

    def hold(self, instances: Ints, outside: Bools, y: Ints) -> None:
        rows = self.plan.rows(instances)
        mine = self.plan.on_device(rows)
        state = torch.arange(self.plan.width, device=self.at.device)
        closed = self.at.bools(outside[rows])[:, None] & (state != self.at.ints(np.maximum(y[rows], 0))[:, None])
        self.unary[mine] = self.open_unary[mine].masked_fill(closed, -INF)

    # --- sweeps ------------------------------------------------------------------------------------------------------

    def advance(self, instances: Ints, temperatures: Temperatures, n_sweeps: int, schedule: Schedule) -> None:
        advance(self, instances, temperatures, n_sweeps, schedule)

    def sweep(self, instances: Ints, temperatures: Temperatures, n_sweeps: int, schedule: Schedule) -> None:
        """As ``advance``, with residuals and tolerance in scores."""
        active = instances[~(self.residual[instances] <= schedule.tolerance)]
        if not len(active):
            return
        kernel = self.model.kernel_for(self.unary, temperatures, schedule.flooding)
        wanted = schedule.tolerance
        schedule = self.model.attainable(temperatures, schedule)
        residual = self.at.floats(self.residual)
        mine = self.at.ints(active)
        if kernel is None:
            swept = self._sweeps(active, temperatures, n_sweeps, schedule, residual)
        else:
            residual[mine] = INF
            sweep, tables = kernel
            with self.at.current:
                swept = sweep(self.unary, tables, mine, self.m, temperatures, n_sweeps, schedule, residual)
        last = fetched(residual)[active]
        self.residual[active] = np.where((wanted < last) & (last <= schedule.tolerance), 0.0, last)
        self.sweeps[active] += swept.cpu().numpy()[active]

    def _sweeps(
        self, active: Ints, temperatures: Temperatures, n_sweeps: int, schedule: Schedule, residual: torch.Tensor
    ) -> torch.Tensor:
        """Sweeps of the named instances, each until it converges; returns how many of each."""
        edges = self._edges(active, temperatures)
        mine = self.at.ints(active)
        n = len(self.plan.batch)
        count = torch.zeros(n, dtype=torch.int64, device=self.at.device)
        colours = [None] if schedule.flooding else self._colours(edges)
        for k in range(n_sweeps):
            going = ~(residual[mine] <= schedule.tolerance)
            if k % CHECK_EVERY == 0 and not bool(going.any()):
                break
            count[mine] += going
            moving = (~(residual <= schedule.tolerance))[edges.owner]
            change = residual.new_zeros(n)
            for colour in colours:
                self._update(edges, temperatures, schedule.damping, moving, colour, change)
            residual[mine] = torch.where(going, change[mine], residual[mine])
        return count

    def _edges(self, instances: Ints, t: Temperatures) -> Edges:
        rows = self.plan.factors(instances)
        mine = self.plan.on_device(rows)
        kinds = list[tuple[Index, bool, bool]]()
        if t.eps_y == t.eps_h:
            kinds.append((slice(None), True, True))
        else:
            out = t.outputs[self.plan.batch.scope_vars.reshape(-1, 2)[rows]]
            for a, b in ((True, True), (True, False), (False, True), (False, False)):
                chosen = np.flatnonzero((out[:, 0] == a) & (out[:, 1] == b))
                if len(chosen):
                    kinds.append((self.at.ints(chosen), a, b))
        return Edges(mine, self.plan.ends[mine], self.plan.owner[mine], tuple(kinds))

    def _colours(self, edges: Edges) -> list[Any]:
        colour = self.at.ints(self.plan.colour).reshape(-1, 2)[edges.factors]
        return [colour == 0, colour == 1]

    def _field(self, unary: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """theta_i + all messages to i as its finite part and the number of infinities, which are never subtracted."""
        total = torch.where(unary > -INF, unary, 0.0).index_add(
            0, self.plan.slot_var, torch.where(self.m > -INF, self.m, 0.0)
        )
        missing = (unary == -INF).to(self.m.dtype).index_add(0, self.plan.slot_var, (self.m == -INF).to(self.m.dtype))
        return total, missing

    def _cavities(self, edges: Edges) -> list[torch.Tensor]:
        total, missing = self._field(self.unary)
        out = list[torch.Tensor]()
        for k in (0, 1):
            m = self.m[k::2][edges.factors]
            i = edges.ends[:, k]
            gone = m == -INF
            left = missing[i] - gone.to(m.dtype)
            out.append(torch.where(left > 0.5, -INF, total[i] - torch.where(gone, 0.0, m)))
        return out

    def _scores(self, edges: Edges, chosen: Index, cavities: list[torch.Tensor]) -> torch.Tensor:
        """S_a = theta_a + the cavities of both ends."""
        tables = self.model.tables[self.model.number[edges.factors][chosen]]
        return tables + cavities[0][chosen][:, :, None] + cavities[1][chosen][:, None, :]

    def _update(
        self,
        edges: Edges,
        t: Temperatures,
        damping: float,
        moving: torch.Tensor,
        colour: torch.Tensor | None,
        change: torch.Tensor,
    ) -> None:
        """New messages of all factors (to the variables of a colour); ``change`` is raised to the largest moves."""
        cavities = self._cavities(edges)
        for chosen, *out in edges.kinds:
            scores = self._scores(edges, chosen, cavities)
            for k in (0, 1):
                raw = _marginal(scores, k, out, t)
                self._put(edges, chosen, k, raw, cavities[k][chosen], damping, moving, colour, change)

    def _put(
        self,
        edges: Edges,
        chosen: Index,
        k: int,
        raw: torch.Tensor,
        cavity: torch.Tensor,
        damping: float,
        moving: torch.Tensor,
        colour: torch.Tensor | None,
        change: torch.Tensor,
    ) -> None:
        to = self.m[k::2]
        possible = cavity > -INF
        old = to[edges.factors][chosen]
        new = torch.where(possible, raw - torch.where(possible, cavity, 0.0), -INF)
        top = new.amax(dim=1, keepdim=True)
        new = torch.where(possible & (top > -INF), new - torch.where(top > -INF, top, 0.0), 0.0)
        finite = (new > -INF) & (old > -INF)
        new = torch.where(finite, (1.0 - damping) * new + damping * old, new) if damping else new
        write = moving[chosen] if colour is None else moving[chosen] & colour[chosen, k]
        new = torch.where(write[:, None], new, old)
        moved = torch.where(new == old, 0.0, torch.where(finite, (new - old).abs(), INF)).amax(dim=1)
        change.scatter_reduce_(0, edges.owner[chosen], moved, "amax")
        if isinstance(edges.factors, slice):
            to[chosen] = new
        else:
            to[edges.factors[chosen]] = new

    # --- answers -----------------------------------------------------------------------------------------------------

    def _full(self, unary: torch.Tensor) -> torch.Tensor:
        total, missing = self._field(unary)
        return torch.where(missing > 0.5, -INF, total)

    def decode(self, instances: Ints, y: Ints) -> None:
        rows = self.plan.rows(instances)
        at = self.plan.on_device(rows)
        allowed = self.model.allowed[at]
        field = torch.where(allowed, self._full(self.unary)[at], -INF)
        best = field.argmax(dim=1)
        # Where every score is -inf, the first allowed state.
        best = torch.where(field.amax(dim=1) > -INF, best, allowed.to(torch.int8).argmax(dim=1))
        y[rows] = best.to(torch.int32).cpu().numpy()

    def scores(self, instances: Ints) -> Floats:
        return self._over_states(instances, self._full(self.open_unary))

    def _named(self, instances: Ints) -> torch.Tensor:
        """Which variables are those of the named instances, as a column."""
        marked = np.zeros(len(self.plan.batch), dtype=bool)
        marked[instances] = True
        return self.at.bools(marked)[self.plan.var_owner][:, None]

    def _over_states(self, instances: Ints, table: torch.Tensor) -> Floats:
        """The rows of the named instances' variables as an array over states, zero elsewhere."""
        rows = self.plan.rows(instances)
        if isinstance(rows, slice) and self.plan.uniform:
            return fetched(table).reshape(-1)
        out = np.zeros(self.plan.inside.shape)
        out[rows] = fetched(table[self.plan.on_device(rows)])
        return out[self.plan.inside]

    def log_messages(self, instances: Ints) -> Floats:
        sizes = self.plan.batch.cards[self.plan.batch.scope_vars]
        mine = np.isin(self.plan.batch.factor_owner[self.plan.batch.slot_factor], instances)
        flat = fetched(self.m)[self.plan.message_inside]
        return np.where(np.repeat(mine, sizes), flat, 0.0)

    def beliefs(self, instances: Ints, temperatures: Temperatures, value: Floats, mu: Marginals | None) -> None:
        if not len(instances):
            return
        batch = self.plan.batch
        t = temperatures
        at = self.at
        mine = self.plan.on_device(self.plan.rows(instances))
        field = self._full(self.unary)
        top, weights = power_sum(field, t.eps_h)
        if t.eps_y != t.eps_h:
            output = at.bools(t.outputs)
            top_y, weights_y = power_sum(field, t.eps_y)
            top = torch.where(output, top_y, top)
            weights = torch.where(output[:, None], weights_y, weights)
        part = torch.where(top > -INF, (1 - self.plan.degree) * torch.where(top > -INF, top, 0.0), -INF)
        total = self.m.new_zeros(len(batch)).index_add_(0, self.plan.var_owner[mine], part[mine])
        if isinstance(mu, DeviceMarginals):
            mu.parts[0].add_(self.plan.flat(torch.where(self._named(instances), weights, 0.0)))
        elif mu is not None:
            mu.unary[:] += self._over_states(instances, weights)
        self._factor_beliefs(instances, t, total, mu)
        value[instances] = fetched(total)[instances]

    def _factor_beliefs(self, instances: Ints, t: Temperatures, total: torch.Tensor, mu: Marginals | None) -> None:
        edges = self._edges(instances, t)
        batch = self.plan.batch
        cavities = self._cavities(edges)
        least = 1e-300 if self.at.dtype == torch.float64 else 1e-37
        for chosen, *out in edges.kinds:
            scores = self._scores(edges, chosen, cavities)
            top, belief = _belief(scores, out, t)
            total.index_add_(0, edges.owner[chosen], top)
            if mu is not None and len(top):
                every_place, exists = self.plan.mu_places
                places = every_place[edges.factors][chosen]
                there = exists[edges.factors][chosen]
                # Where a tie leaves several maximisers the belief is spread over them.
                belief = torch.where(there, belief / belief.sum(dim=(1, 2), keepdim=True).clamp(min=least), 0.0)
                added = self.m.new_zeros(batch.n_mu_entries).index_add_(0, places.reshape(-1), belief.reshape(-1))
                if isinstance(mu, DeviceMarginals):
                    mu.parts[1].add_(added)
                else:
                    mu.tables[:] += fetched(added)


def _sum_over(scores: torch.Tensor, axis: int, eps: float) -> torch.Tensor:
    return power_sum(scores.movedim(axis, -1), eps)[0]


def _share(partial: torch.Tensor, t: Temperatures) -> tuple[torch.Tensor, torch.Tensor]:
    """PS_{eps_y} of R_a over the one output, and log of its softmax times eps_h."""
    top = power_sum(partial, t.eps_y)[0]
    safe = torch.where(top > -INF, top, 0.0)[:, None]
    if t.eps_y > 0.0:
        return top, torch.where(partial > -INF, (partial - safe) * (t.eps_h / t.eps_y), -INF)
    return top, torch.where((partial == top[:, None]) & (partial > -INF), 0.0, -INF)


def _marginal(scores: torch.Tensor, k: int, out: list[bool], t: Temperatures) -> torch.Tensor:
    """The message to end k before its cavity is subtracted: R_a or eps_h log b_a over the other end."""
    if out[0] == out[1]:
        return _sum_over(scores, 2 - k, t.eps_y if out[0] else t.eps_h)
    output = 0 if out[0] else 1
    partial = _sum_over(scores, 2 - output, t.eps_h)
    if k == output:
        return partial
    share = _share(partial, t)[1]
    spread = (share - torch.where(partial > -INF, partial, 0.0)).unsqueeze(2 - output)
    return _sum_over(scores + spread, 1 + output, t.eps_h)


def _belief(scores: torch.Tensor, out: list[bool], t: Temperatures) -> tuple[torch.Tensor, torch.Tensor]:
    """PS(S_a) and b_a, not yet normalised where maximisers tie."""
    if out[0] == out[1]:
        eps = t.eps_y if out[0] else t.eps_h
        flat = scores.flatten(1)
        top, weights = power_sum(flat, eps)
        if eps == 0.0:
            weights = ((flat == top[:, None]) & (flat > -INF)).to(scores.dtype)
        return top, weights.reshape(scores.shape)
    output = 0 if out[0] else 1
    partial, inner = power_sum(scores.movedim(2 - output, -1), t.eps_h)
    top, outer = power_sum(partial, t.eps_y)
    if t.eps_y == 0.0:
        outer = ((partial == top[:, None]) & (partial > -INF)).to(scores.dtype)
    return top, (inner * outer[:, :, None]).movedim(-1, 2 - output)
