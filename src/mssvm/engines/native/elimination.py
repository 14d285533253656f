"""Exact inference on any graph by bucket elimination: PS_outputs[eps_y] PS_hidden[eps_h] theta (paper eq. 5).

Hidden variables are eliminated before outputs, each with the power sum of its temperature; when the two temperatures
are equal the order is free. The reverse sweep through the power sums gives mu = d value / d theta. The sweeps are those
of ``cpp/elimination.hpp``; ``ScoreSweep`` runs them on one instance whose messages stay scores, for mini-bucket bounds.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from threading import Event
from typing import Any

import numpy as np

from mssvm.core.arrays import AnyArray, Bools, Floats, Ints
from mssvm.core.caches import cached_by_size
from mssvm.core.library import FLOAT, FLOATS, INT, INTS, MASK, Function, Record, RecordKind, RecordType, lanes
from mssvm.core.orders import Limits
from mssvm.core.potentials import Marginals, Potentials, Query, segment_argmax
from mssvm.core.threads import Workers
from mssvm.core.topology import Batch, Topology, shared, size_in_cache
from mssvm.engines.base import Costs, ExactSettings, in_bytes, too_large
from mssvm.engines.elimination import EliminationPlan, pattern_of
from mssvm.engines.program import Program

# Products of probabilities stay normal numbers while the logarithms of their ranges sum to less than this.
MAX_SPREAD = 300.0
# Largest work vector, in doubles, with which several instances run side by side, one per lane: larger ones overflow the
# caches.
SHARED_DOUBLES = 1 << 19
# Table entries of one block's buckets from which the block is run in slices of time, in memory of its own.
LONG_BLOCK = 1 << 21
SLICE = 0.2  # seconds of a native call; Ctrl-C is noticed between calls
PLANNED_PARTS = 1 << 17  # variables and factors of the topologies and role patterns whose plans are cached
NO_FLOATS = np.zeros(0)
NO_INTS = np.zeros(0, dtype=np.int64)

_SCALARS = ("n_slots", "n_work", "n_hidden", "max_axes", "max_inputs", "max_card")
_INDICES = tuple(name for name in Program._fields if name != "clamped" and name not in _SCALARS)

CHECK = Function(
    "mssvm_elimination_check", clamped=MASK, **dict.fromkeys(_INDICES, INTS), **dict.fromkeys(_SCALARS, INT)
)
PROGRAM = CHECK.record
INSTANCES = RecordType(
    "Instances",
    {
        **dict.fromkeys(("var_ptr", "factor_ptr", "unary_ptr", "table_at", "mu_at"), INTS),
        "allowed": MASK,
        "first": INTS,
    },
)
JOB = RecordType("Job", {"program": RecordKind(PROGRAM), "temperature": FLOATS, "instances": INTS, "max_spread": FLOAT})
CALL = RecordType(
    "Call",
    {
        "instances": RecordKind(INSTANCES),
        "marginals": INT,
        "decode": INT,
        **dict.fromkeys(("unary", "tables", "value", "mu_unary", "mu_tables"), FLOATS),
        "states": INTS,
    },
)
BLOCKS = RecordType("Blocks", {"jobs": INTS, "job": INTS, "first": INTS, "count": INTS})
RUN = Function(
    "mssvm_elimination_run",
    call=RecordKind(CALL),
    blocks=RecordKind(BLOCKS),
    begin=INT,
    threads=INT,
    seconds=FLOAT,
)
RESUME = Function(
    "mssvm_elimination_resume",
    call=RecordKind(CALL),
    job=RecordKind(JOB),
    first=INT,
    count=INT,
    doubles=FLOATS,
    ints=INTS,
    seconds=FLOAT,
)
LOAD = Function(
    "mssvm_elimination_load",
    program=RecordKind(PROGRAM),
    instances=RecordKind(INSTANCES),
    unary=FLOATS,
    tables=FLOATS,
    work=FLOATS,
)
BOUND = Function(
    "mssvm_elimination_bound",
    program=RecordKind(PROGRAM),
    match=INT,
    temperature=FLOATS,
    work=FLOATS,
    value=FLOATS,
    cursor=INTS,
    seconds=FLOAT,
)
GRADIENT = Function(
    "mssvm_elimination_gradient",
    program=RecordKind(PROGRAM),
    temperature=FLOATS,
    work=FLOATS,
    grad=FLOATS,
    d_temperature=FLOATS,
    cursor=INTS,
    seconds=FLOAT,
)
DECODE = Function("mssvm_elimination_decode", program=RecordKind(PROGRAM), temperature=FLOATS, work=FLOATS, states=INTS)


def program_record(program: Program) -> Record:
    """The C struct of a program, every index of which is checked."""
    record = PROGRAM(**program._asdict())
    CHECK.run(record)
    return record


def instances_record(
    var_ptr: Ints, factor_ptr: Ints, unary_ptr: Ints, table_at: Ints, mu_at: Ints, allowed: Bools, first: Ints
) -> Record:
    """The C struct of a batch's layout, its masks and every variable's first allowed state."""
    return INSTANCES(
        var_ptr=_contiguous(var_ptr),
        factor_ptr=_contiguous(factor_ptr),
        unary_ptr=_contiguous(unary_ptr),
        table_at=_contiguous(table_at),
        mu_at=_contiguous(mu_at),
        allowed=np.ascontiguousarray(allowed),
        first=_contiguous(first),
    )


def _contiguous(values: AnyArray) -> Ints:
    return np.ascontiguousarray(values, dtype=np.int64)


def _doubles(values: AnyArray) -> Floats:
    return np.ascontiguousarray(values, dtype=np.float64)


@cached_by_size(PLANNED_PARTS, size_in_cache)
def plan_of(topology: Topology, pattern: bytes, restarts: int, seed: int, limits: Limits) -> EliminationPlan | None:
    """The plan of a topology and role pattern, if one was found within ``limits``; cached for all batches."""
    return EliminationPlan.of(topology, pattern, restarts, seed, limits)


class EliminationPlanner:
    """Elimination on one batch: orders are searched when a query is bound or measured.

    ``max_spread`` is the range of scores at which a step changes from scaled probabilities to log space; zero keeps all
    steps in log space.
    """

    def __init__(self, batch: Batch, settings: ExactSettings, workers: Workers, log_space: bool) -> None:
        self.batch = batch
        self.settings = settings
        self.workers = workers
        self.max_spread = 0.0 if log_space else MAX_SPREAD

    def measure(self, query: Query, eps_y: float, eps_h: float, instances: Ints, costs: Costs, marginals: bool) -> None:
        """Enter the costs of the named instances, computed from orders only; infinity if no order is within limits."""
        for plan, members in self.groups(query, eps_y, eps_h, instances, self._limits):
            if plan is None:
                costs.bytes[members] = costs.operations[members] = np.inf
                continue
            cost = plan.cost(marginals)
            costs.width[members] = cost.width
            costs.bytes[members] = float(cost.bytes)
            costs.operations[members] = float(cost.operations)

    def bind(self, query: Query, eps_y: float, eps_h: float, instances: Ints, marginals: bool) -> EliminationRoute:
        """Compiled programs; raises before more memory than allowed would be needed."""
        threads = self.workers.threads
        jobs = list[tuple[Program, Ints]]()
        for plan, members in self._planned(query, eps_y, eps_h, instances):
            needed = self._admit(plan, query, (eps_y, eps_h), members, marginals)
            threads = max(1, min(threads, self.settings.memory_limit // needed))
            jobs.append((plan.program, members))
        workers = self.workers if threads == self.workers.threads else Workers(threads)
        return EliminationRoute(self, query, (eps_y, eps_h), instances, jobs, workers, marginals)

    @cached_property
    def _limits(self) -> Limits:
        """Limits of the search for orders: none, unless costs beyond ``operations_limit`` need not be known."""
        settings = self.settings
        if settings.operations_limit == np.inf:
            return Limits()
        return Limits(settings.operations_limit, settings.memory_limit / 8)

    def _planned(
        self, query: Query, eps_y: float, eps_h: float, instances: Ints
    ) -> Iterator[tuple[EliminationPlan, Ints]]:
        """Instances with their plans, at any cost; a plan within the limits is preferred, as in ``measure``."""
        for limited, members in self.groups(query, eps_y, eps_h, instances, self._limits):
            if limited is not None:
                yield limited, members
            else:
                for plan, _ in self.groups(query, eps_y, eps_h, members, Limits()):
                    assert plan is not None, "without limits there is always an order"
                    yield plan, members

    def groups(
        self, query: Query, eps_y: float, eps_h: float, instances: Ints, limits: Limits
    ) -> Iterator[tuple[EliminationPlan | None, Ints]]:
        """Instances that share a plan: same topology, same variables clamped and, unless eps_y = eps_h, same roles."""
        batch = self.batch
        settings = self.settings
        pattern = pattern_of(batch, query, eps_y, eps_h)
        for g, topology in enumerate(batch.topologies):
            members = instances[batch.topology_of[instances] == g]
            if not len(members):
                continue
            alike: dict[bytes, list[int]] = {}
            for b in members:
                alike.setdefault(pattern[batch.var_ptr[b] : batch.var_ptr[b + 1]].tobytes(), []).append(int(b))
            for kind in sorted(alike):
                yield plan_of(shared(topology), kind, settings.restarts, settings.seed, limits), np.array(alike[kind])

    def _admit(
        self, plan: EliminationPlan, query: Query, eps: tuple[float, float], members: Ints, marginals: bool
    ) -> int:
        """Bytes one instance of the plan needs; raises when they exceed the limit."""
        eps_y, eps_h = eps
        cost = plan.cost(marginals)
        limit = self.settings.memory_limit
        if cost.bytes <= limit:
            return max(1, cost.bytes)
        advice = ""
        if eps_y != eps_h:
            free = next(self._planned(query, eps_h, eps_h, members[:1]))[0].cost(marginals)
            if free.bytes <= limit:
                advice = f", or set eps_y = eps_h (free order: width {free.width}, {in_bytes(free.bytes)})"
        raise too_large(int(members[0]), cost.width, cost.bytes, limit, advice)


@dataclass(frozen=True, eq=False)
class Block:
    """Instances of one job that run side by side, one per lane; ``doubles`` and ``ints`` are the memory they need."""

    job: int
    first: int
    count: int
    doubles: int
    ints: int


class EliminationRoute:
    """Programs of a query, each with the instances it is run on; without ``marginals`` only values are written.

    Blocks of instances are fixed, so results have the same bits on any number of threads. Short blocks run on the
    native pool; long ones, one per thread, in slices of time.
    """

    def __init__(
        self,
        planner: EliminationPlanner,
        query: Query,
        eps: tuple[float, float],
        instances: Ints,
        jobs: list[tuple[Program, Ints]],
        workers: Workers,
        marginals: bool,
    ) -> None:
        batch = planner.batch
        self._made_of = planner, query, eps, instances, jobs, workers, marginals
        self.instances = instances
        self.workers = workers
        self.marginals = marginals
        first = segment_argmax(query.allowed.astype(np.float64), batch.unary_ptr)
        layout = batch.var_ptr, batch.factor_ptr, batch.unary_ptr, batch.table_at, batch.mu_at
        self._layout = instances_record(*layout, query.allowed, first)
        self._jobs = list[Record]()
        self._long = list[Block]()
        short = list[Block]()
        for program, members in jobs:
            blocks = _blocks_of(program, len(self._jobs), len(members), marginals)
            (self._long if _is_long(program, blocks[0].count) else short).extend(blocks)
            temperature = np.where(program.output != 0, *eps).astype(np.float64)
            record = program_record(program)
            self._jobs.append(
                JOB(program=record, temperature=temperature, instances=members, max_spread=planner.max_spread)
            )
        self._n_short = len(short)
        self._short = BLOCKS(
            jobs=np.array([job.address for job in self._jobs], dtype=np.int64),
            job=np.array([block.job for block in short], dtype=np.int64),
            first=np.array([block.first for block in short], dtype=np.int64),
            count=np.array([block.count for block in short], dtype=np.int64),
        )

    def __reduce__(self) -> tuple[type[EliminationRoute], tuple[Any, ...]]:
        """A copy makes its own records, because records hold addresses."""
        return EliminationRoute, self._made_of

    def infer_into(self, theta: Potentials, value: Floats, mu: Marginals) -> None:
        """Write value and marginals of the instances."""
        self._run(theta, value, mu if self.marginals else None, None)

    def decode_into(self, theta: Potentials, value: Floats, states: Ints) -> None:
        """Write value and maximising states by back-substitution, without marginals."""
        self._run(theta, value, None, states)

    def _run(self, theta: Potentials, value: Floats, mu: Marginals | None, states: Ints | None) -> None:
        call = CALL(
            instances=self._layout,
            marginals=int(mu is not None),
            decode=int(states is not None),
            unary=_doubles(theta.unary),
            tables=_doubles(theta.tables),
            value=value,
            mu_unary=NO_FLOATS if mu is None else mu.unary,
            mu_tables=NO_FLOATS if mu is None else mu.tables,
            states=NO_INTS if states is None else states,
        )
        done = 0
        while done < self._n_short:
            done = RUN(call=call, blocks=self._short, begin=done, threads=self.workers.idle, seconds=SLICE)
        if not self._long:
            return
        stopped = Event()
        try:
            self.workers.parallel_map(lambda block: self._run_long(call, block, stopped), self._long)
        finally:
            stopped.set()

    def _run_long(self, call: Record, block: Block, stopped: Event) -> None:
        """One block, slice by slice; an interrupt or error in a block stops those of other threads."""
        record = RESUME.record(
            call=call,
            job=self._jobs[block.job],
            first=block.first,
            count=block.count,
            doubles=np.empty(block.doubles),
            ints=np.zeros(block.ints, dtype=np.int64),
            seconds=SLICE,
        )
        try:
            while not stopped.is_set() and not RESUME.run(record):
                pass
        except BaseException:
            stopped.set()
            raise


def _blocks_of(program: Program, job: int, n_instances: int, marginals: bool) -> list[Block]:
    """The instances of a job in blocks: as many as a vector has lanes while their work vectors fit into a cache."""
    width = lanes() if program.n_work * lanes() <= SHARED_DOUBLES else 1
    blocks = []
    for first in range(0, n_instances, width):
        count = min(width, n_instances - first)
        used = 1 if count == 1 else lanes()
        inputs = len(program.level)
        doubles = 8 + used * (program.n_work * (1 + marginals) + inputs + 1) + inputs + 1
        blocks.append(Block(job, first, count, doubles, 3 + len(program.var)))
    return blocks


def _is_long(program: Program, count: int) -> bool:
    return int(program.message_size @ program.card) * count > LONG_BLOCK


class ScoreSweep:
    """A program on one instance whose scores, shifts and messages stay as they are in ``work``: mini-bucket bounds."""

    def __init__(self, program: Program) -> None:
        self.work = np.zeros(program.n_work)
        self._steps = len(program.var)
        self.program = program_record(program)

    def load(self, instances: Record, unary: Floats, tables: Floats) -> None:
        """Load the scores of the only instance of a layout; the shifts stay."""
        LOAD(program=self.program, instances=instances, unary=_doubles(unary), tables=_doubles(tables), work=self.work)

    def bound(self, temperature: Floats, match: bool) -> float:
        """The value at the steps' temperatures; with ``match`` the shifts of split variables are improved."""
        value = np.zeros(1)
        record = BOUND.record(
            program=self.program,
            match=int(match),
            temperature=_doubles(temperature),
            work=self.work,
            value=value,
            cursor=np.zeros(2, dtype=np.int64),
            seconds=SLICE,
        )
        while not BOUND.run(record):
            pass
        return float(value[0])

    def gradient(self, temperature: Floats, grad: Floats, d_temperature: Floats) -> None:
        """After ``bound``: derivatives of a feasible instance's value in ``work`` and in the steps' temperatures."""
        record = GRADIENT.record(
            program=self.program,
            temperature=_doubles(temperature),
            work=self.work,
            grad=grad,
            d_temperature=d_temperature,
            cursor=np.array([self._steps, 0]),
            seconds=SLICE,
        )
        while not GRADIENT.run(record):
            pass

    def decode(self, temperature: Floats, states: Ints) -> None:
        """After ``bound``: write the first maximisers of the variables at temperature zero into ``states``."""
        DECODE(program=self.program, temperature=_doubles(temperature), work=self.work, states=states)
