"""Message passing on CPUs: the plan of a batch, its potentials, and hidden trees given the outputs."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from functools import cached_property
from threading import Lock

import numpy as np

from mssvm.core.arrays import Bools, Floats, Ints
from mssvm.core.components import HiddenComponents
from mssvm.core.potentials import Marginals, Potentials, Query
from mssvm.core.recent import Spare
from mssvm.core.threads import Workers
from mssvm.core.topology import Batch, offsets
from mssvm.engines.messages import (
    PRODUCT_RANGE,
    SAFE_RANGE,
    Borders,
    MessageGroup,
    SumRequest,
    Temperatures,
    with_noise,
)
from mssvm.engines.numba.messages import conditional, scaled, waves
from mssvm.engines.numba.messages.abreast import MessageFamily, families
from mssvm.engines.numba.messages.regions import ascend_regions
from mssvm.engines.numba.messages.runs import LogRun, ScaledRun, ScaledTables
from mssvm.engines.numba.messages.sums import Kernels, Sums, kernels_of, settle, settle_run
from mssvm.engines.numba.messages.vector import LONGEST
from mssvm.engines.numba.messages.waves import Lattice, lattice
from mssvm.engines.numba.messages.wiring import MessageWiring, settling, wire

# Max-product is the same at any positive scale; this one keeps both range and precision.
MAX_PRODUCT_RANGE = 100.0
# Table entries looked at or exponentiated by one thread at a time.
CHUNK = 1 << 16
# Held while memory is looked for: it is nobody's until it is handed out.
_MEMORY = Lock()
# Below this many table entries a kernel made for one cardinality is not worth compiling.
WORTH_COMPILING = 20_000
# Portions of instances a thread, and the fewest scores of states to be looked at in one.
BLOCKS, GRAIN = 4, 1 << 17


@dataclass(frozen=True, eq=False)
class NumbaMessagePlan:
    """Wiring, distinct tables in order of first use, the one cardinality or 0."""

    batch: Batch
    wiring: MessageWiring
    table_starts: Ints
    table_sizes: Ints
    table_of: Ints
    one_card: int
    workers: Workers
    _spare: defaultdict[str, Spare] = field(init=False, repr=False, default_factory=lambda: defaultdict(Spare))

    _kernels: dict[tuple[bool, ...], Kernels] = field(init=False, repr=False, default_factory=dict)

    @classmethod
    def of(cls, batch: Batch, workers: Workers) -> NumbaMessagePlan:
        """Compile a batch."""
        wiring = wire(batch)
        order = wiring.order
        starts, first, inverse = np.unique(batch.table_at[order], return_index=True, return_inverse=True)
        by_use = np.argsort(first, kind="stable")
        rank = np.empty(len(starts), dtype=np.int64)
        rank[by_use] = np.arange(len(starts))
        table_of = np.empty(batch.n_factors, dtype=np.int64)
        table_of[order] = rank[inverse]
        sizes, cards = batch.table_sizes[order][first][by_use], np.unique(batch.cards)
        one_card = int(cards[0]) if len(cards) == 1 else 0
        return cls(batch, wiring, starts[by_use], sizes, table_of, one_card, workers)

    @property
    def n_messages(self) -> int:
        return int(self.wiring.message_at[-1])

    @cached_property
    def chunks(self) -> list[slice]:
        """Distinct tables in portions of about ``CHUNK`` entries."""
        at, cuts = offsets(self.table_sizes), [0]
        while cuts[-1] < len(at) - 1:
            end = int(np.searchsorted(at, at[cuts[-1]] + CHUNK, side="right")) - 1
            cuts.append(max(cuts[-1] + 1, end))
        return [slice(first, last) for first, last in zip(cuts[:-1], cuts[1:], strict=True)]

    @cached_property
    def table_at(self) -> Ints:
        """Where the table of every factor begins when distinct tables lie one behind the other."""
        return offsets(self.table_sizes)[self.table_of]

    @cached_property
    def near_table(self) -> Ints:
        """The tables of the factors at every variable, as ``near`` of the wiring has them."""
        return self.table_of[self.wiring.slot_factor[self.wiring.near]]

    @cached_property
    def dilution(self) -> Floats:
        """Per variable, how far a product of its messages may lie below one as they sum to one, in logarithms."""
        return np.asarray(np.diff(self.wiring.near_ptr) * np.log(self.batch.cards))

    @cached_property
    def most_diluted(self) -> Floats:
        """The largest ``dilution`` of every instance."""
        out = np.zeros(len(self.batch))
        np.maximum.at(out, self.batch.owner, self.dilution)
        return out

    @cached_property
    def families(self) -> tuple[list[MessageFamily], Ints]:
        """Instances that can run abreast."""
        return families(self.batch, self.wiring, self.table_at)

    @cached_property
    def one_family(self) -> bool:
        """Whether all instances can run abreast."""
        return len(self.families[0]) == 1 and bool(np.all(self.families[1] == 0))

    def by_family(self, instances: Ints) -> tuple[list[tuple[int, Ints]], Ints]:
        """The instances that can run abreast, by the number of their family, and the others."""
        if self.one_family and len(instances):
            return [(0, instances)], instances[:0]
        of = self.families[1][instances]
        return [(k, instances[of == k]) for k in sorted({*of.tolist()} - {-1})], instances[of < 0]

    @cached_property
    def lattices(self) -> list[Lattice | None]:
        """Of every family the grid it is, if it is one whose instances may be spread thinly over threads."""
        spread = self.workers.threads >= waves.THREADS
        return [lattice(family) if spread else None for family in self.families[0]]

    @cached_property
    def states(self) -> tuple[int, ...]:
        """As many zeros as every variable has states, if a kernel made for that is worth compiling, else none."""
        alone = self.families[1][self.batch.factor_owner] < 0
        worth = 0 < self.one_card <= LONGEST and np.count_nonzero(alone) * self.one_card**2 >= WORTH_COMPILING
        return (0,) * self.one_card if worth else ()

    @cached_property
    def unmasked(self) -> Ints:
        """Zeros, one a state."""
        return np.zeros(self.batch.n_states, dtype=np.int64)

    def kernels(self, kind: tuple[bool, ...], sums: Sums) -> Kernels:
        """The kernels of ``settle``; looking for them takes as long as some of them run."""
        if kind not in self._kernels:
            self._kernels[kind] = kernels_of(sums)
        return self._kernels[kind]

    def blocks(self, instances: Ints) -> list[Ints]:
        """Instances in portions, a few a thread."""
        count = BLOCKS * self.workers.idle if self.workers.idle > 1 else 1
        return [part for part in np.array_split(instances, count) if len(part)]

    def portions(self, n: int) -> list[slice]:
        """0 to n in portions, a few a thread where every one is worth waking a thread for."""
        most = max(1, min(n, self.batch.n_states // GRAIN))
        count = min(BLOCKS * self.workers.idle, most) if self.workers.idle > 1 else 1
        return [slice(k * n // count, (k + 1) * n // count) for k in range(count)]

    def memory(self, use: str, *sizes: int) -> list[Floats]:
        """Arrays that may hold anything: those of the last call for this ``use``, if nobody has them any more.

        Threads that fault pages in wait for each other; memory that is there already makes none wait.
        """
        with _MEMORY:
            return self._spare[use].empty(*sizes)

    def settling(self, free: Bools) -> Ints:
        out = np.zeros(len(self.batch), dtype=np.int64)
        settling(self.wiring, np.flatnonzero(self.batch.pairwise), free, out)
        return out

    def load(self, theta: Potentials, query: Query, noise: Floats) -> NumbaMessageModel:
        # Of exactly these types, as kernels that are called where they lie ask nobody.
        scores, tables = (np.ascontiguousarray(array, np.float64) for array in (theta.unary, theta.tables))
        return NumbaMessageModel(self, scores, noise, tables, np.ascontiguousarray(query.allowed, np.bool_))


@dataclass(frozen=True, eq=False)
class NumbaMessageModel:
    """Potentials as they were given."""

    plan: NumbaMessagePlan
    scores: Floats
    noise: Floats
    tables: Floats
    allowed: Bools

    @cached_property
    def room(self) -> list[Floats]:
        """Memory for what ``scaled.mask`` makes of the scores."""
        batch = self.plan.batch
        return self.plan.memory("scores", batch.n_states, batch.n_vars, batch.n_vars)

    @cached_property
    def _masked(self) -> list[Floats]:
        plan, ptr = self.plan, self.plan.batch.unary_ptr

        def mask(part: slice) -> None:
            scaled.mask(self.scores, self.allowed, self.noise, ptr, part.start, part.stop, *self.room)

        plan.workers.each(mask, plan.portions(plan.batch.n_vars))
        return self.room

    @property
    def unary(self) -> Floats:
        """Scores, -inf at forbidden states."""
        return self._masked[0]

    @property
    def unary_top(self) -> Floats:
        """The largest score of every variable, with tie-breaking noise."""
        return self._masked[1]

    def marginals(self) -> Marginals:
        return Marginals.zeros(self.plan.batch)

    def run(self) -> LogRun:
        return LogRun(self)

    @cached_property
    def _table_ends(self) -> tuple[Floats, Floats]:
        plan = self.plan
        top, low = np.empty((2, len(plan.table_starts)))

        def look(part: slice) -> None:
            scaled.extremes(self.tables, plan.table_starts[part], plan.table_sizes[part], top[part], low[part])

        plan.workers.each(look, plan.chunks)
        return top, low

    @property
    def tops(self) -> Floats:
        """Largest entry of every distinct table."""
        return self._table_ends[0]

    @cached_property
    def spread(self) -> Floats:
        """Largest less smallest entry of every distinct table."""
        top, low = self._table_ends
        with np.errstate(invalid="ignore"):
            return top - low

    @cached_property
    def widest_table(self) -> Floats:
        """Of every instance, the largest spread of a table; NaN where a table allows nothing."""
        out = np.zeros(len(self.plan.batch))
        with np.errstate(invalid="ignore"):
            np.maximum.at(out, self.plan.batch.factor_owner, self.spread[self.plan.table_of])
        return out

    @cached_property
    def noisy(self) -> Floats:
        """The scores of states with tie-breaking noise."""
        return with_noise(self.unary, self.noise)

    @cached_property
    def range(self) -> Floats:
        plan, ends = self.plan, self._masked[1:]
        out = np.empty(len(plan.batch))

        def look(part: slice) -> None:
            scaled.ranges(plan.wiring, part.start, part.stop, plan.near_table, self.spread, *ends, out)

        plan.workers.each(look, plan.portions(len(out)))
        return out

    def groups(self, instances: Ints, temperatures: Temperatures, scaled: bool) -> list[MessageGroup]:
        safe, unit = self._safe(instances, temperatures) if scaled else (instances[:0], 1.0)
        out = []
        if len(safe):
            tables = ScaledTables.of(self, unit)
            out.append(MessageGroup(safe, unit, lambda noise: ScaledRun(self, tables, noise)))
        rest = np.setdiff1d(instances, safe) if len(safe) < len(instances) else safe[:0]
        if len(rest):
            scores = (self.unary, self.noisy if temperatures.eps_y == 0.0 else self.unary)
            out.append(MessageGroup(rest, temperatures.eps_h or 1.0, lambda noise: LogRun(self, scores[noise])))
        return out

    def sums(self, temperatures: Temperatures, request: SumRequest) -> Ints:
        return settle(self, temperatures, request)

    def sums_of(self, run: ScaledRun, temperatures: Temperatures, request: SumRequest) -> Ints:
        """The sums of a run that is there already."""
        return settle_run(run, temperatures, request)

    def _safe(self, instances: Ints, temperatures: Temperatures) -> tuple[Ints, float]:
        """The instances on which scaled probabilities cannot underflow, and the temperature they are scaled by."""
        unit, pairwise = temperatures.eps_h, instances[self.plan.batch.pairwise[instances]]
        known = self.range[pairwise]
        if 0.0 < temperatures.eps_y != unit or not np.isfinite(known).any():
            return pairwise[:0], 1.0
        if unit == 0.0:
            # Per instance it would not matter; one unit for all keeps one set of tables, unless ranges differ wildly.
            most = float(known[np.isfinite(known)].max())
            few, unit = known >= 1e-9 * most, max(most / MAX_PRODUCT_RANGE, 1e-300)
            pairwise, known = pairwise[few], known[few]
        tried = known <= SAFE_RANGE * unit
        pairwise, known = pairwise[tried], known[tried]
        safe = 2.0 * (known / unit + self.plan.most_diluted[pairwise]) <= PRODUCT_RANGE
        if not safe.all():
            mixed = temperatures.eps_y < temperatures.eps_h
            safe[~safe] = self._strain(pairwise[~safe], unit, mixed) <= PRODUCT_RANGE
        return pairwise[safe], unit

    def _strain(self, instances: Ints, unit: float, mixed: bool) -> Floats:
        out, plan, ends = np.empty(len(instances)), self.plan, self._masked[1:]
        scaled.strain(
            plan.wiring, instances, plan.table_of, self.spread, self.unary, *ends, plan.dilution, unit, mixed, out
        )
        return out

    def relabel(self, instances: Ints, free: Bools, z: Ints) -> tuple[Ints, Floats]:
        moved = np.empty_like(instances)
        count = ascend_regions(self.plan.wiring, instances, free, self.unary, self.tables, z, self.sent, moved)
        return moved[:count], self.sent

    @cached_property
    def sent(self) -> Floats:
        """Messages of ``relabel``: one array for all blocks."""
        return self.plan.memory("sent", self.plan.n_messages)[0]

    def given(self, components: HiddenComponents, eps_h: float) -> NumbaConditional:
        return NumbaConditional(self, components, eps_h)


@dataclass(frozen=True, eq=False)
class NumbaConditional:
    """Kernels of ``conditional`` on the potentials of a model."""

    model: NumbaMessageModel
    components: HiddenComponents
    eps_h: float

    def evaluate(self, instances: Ints, y: Ints, value: Floats) -> None:
        m = self.model
        conditional.evaluate(m.plan.wiring, self.components, instances, m.unary, m.tables, y, self.eps_h, value)

    def marginals(self, instances: Ints, y: Ints, mu: Marginals) -> None:
        m = self.model
        conditional.marginals(
            m.plan.wiring, self.components, instances, m.unary, m.tables, y, self.eps_h, m.plan.batch.mu_at, mu.unary,
            mu.tables,
        )  # fmt: skip

    def ascend(self, instances: Ints, free: Bools, y: Ints) -> None:
        none = np.zeros(0)
        self.anneal(instances, free, y, none, none, 0, 0.0, none)

    def anneal(
        self, instances: Ints, free: Bools, y: Ints, hot: Floats, cold: Floats, rounds: int, budget: float,
        draws: Floats,
    ) -> None:  # fmt: skip
        m = self.model
        conditional.anneal(
            m.plan.wiring, self.components, instances, free, m.unary, m.tables, y, self.eps_h, hot, cold, rounds,
            budget, draws,
        )  # fmt: skip

    def tabulate(self, borders: Borders, instances: Ints, y: Ints, values: Floats) -> None:
        m = self.model

        def work(block: Ints) -> None:
            conditional.tabulate(
                m.plan.wiring, self.components, borders, block, m.unary, m.tables, y.copy(), self.eps_h, values
            )

        m.plan.workers.each(work, m.plan.blocks(instances))

    def expect(self, borders: Borders, instances: Ints, y: Ints, weights: Floats, mu: Marginals) -> None:
        m = self.model

        def work(block: Ints) -> None:
            conditional.expect(
                m.plan.wiring, self.components, borders, block, m.unary, m.tables, y.copy(), self.eps_h, weights,
                m.plan.batch.mu_at, mu.unary, mu.tables,
            )  # fmt: skip

        m.plan.workers.each(work, m.plan.blocks(instances))
