"""Starts of the search for outputs that messages decode: each is a function of the search and the open instances."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from mssvm.core.arrays import Floats, Ints
from mssvm.engines.messages import MessageRun, Temperatures
from mssvm.inference.propagation.judge import score_range
from mssvm.inference.propagation.uniforms import uniforms

if TYPE_CHECKING:
    from mssvm.inference.propagation.search import OutputSearch

# The lowest eps_y of annealing, relative to eps_h; mixed-product, the limit at zero, continues from there.
COLDEST = 0.02
ANNEALING_SWEEPS = 4  # at each temperature
ANNEALING_DAMPING = 0.2
DAMPING = 0.5
# Restarts use streams of random numbers from this one on.
RANDOM_STREAM = 100


def marginals(search: OutputSearch, instances: Ints) -> None:
    """Sum-product on instances that the start ``regions`` continues with; on all others ``sum_first``."""
    movable = _movable(search, instances)
    sums = search.judge.sums
    search.follow(_warmed_up(search, movable, sums), sums, movable, "max-marginals")
    rest = np.setdiff1d(instances, movable)
    if len(rest):
        sum_first(search, rest)


def sum_first(search: OutputSearch, instances: Ints) -> None:
    """Sum-product, then mixed-product from its messages."""
    run = _warmed_up(search, instances, search.judge.sums)
    _sum_then_mixed(search, run, instances, "max-marginals", "sum-product, then mixed-product")


def regions(search: OutputSearch, instances: Ints) -> None:
    """Relabel whole regions of the best states so far, then continue as ``sum_first`` from messages of the result."""
    loopy = _movable(search, instances)
    relabel = search.call.model.relabel
    if relabel is None or not len(loopy):
        return
    search.judge.take_best(loopy)
    moved, messages = relabel(loopy, search.call.bound_query.free, search.judge.y)
    if not len(moved):
        return
    if search.call.effort.judge_moves:
        search.judge.judge(moved)
    search.messages.start(moved, messages)
    _sum_then_mixed(search, search.messages, moved, "max-marginals by regions", "regions, then mixed-product")


def cold(search: OutputSearch, instances: Ints) -> None:
    """Mixed-product from uniform messages, or from those of the caller."""
    _mixed(search, instances, search.call.messages, "mixed-product")


def damped(search: OutputSearch, instances: Ints) -> None:
    """Mixed-product from uniform messages with damping."""
    _mixed(search, instances, None, "damped mixed-product", damping=DAMPING)


def annealed(search: OutputSearch, instances: Ints) -> None:
    """eps_y falls from eps_h, messages carried over; then mixed-product."""
    target = search.task.temperatures
    if target.eps_h == 0.0:
        # Both temperatures would have to fall together; max-product is their limit.
        cold(search, instances)
        return
    call = search.call
    run = call.model.run()
    run.start(instances, None)
    schedule = call.effort.schedule
    schedule = replace(schedule, damping=max(ANNEALING_DAMPING, schedule.damping))
    eps_y = target.eps_h
    while eps_y > COLDEST * target.eps_h:
        run.residual[instances] = np.inf
        run.advance(instances, Temperatures(target.outputs, eps_y, target.eps_h), ANNEALING_SWEEPS, schedule)
        run.decode(instances, search.judge.y)
        search.judge.judge(instances)
        eps_y *= 0.5
    call.sweeps[instances] += run.sweeps[instances]
    _mixed(search, instances, run.log_messages(instances), "annealed mixed-product")


def joint(search: OutputSearch, instances: Ints) -> None:
    """Max-product over all variables; the outputs that it decodes are judged."""
    maxima = Temperatures.one(len(search.call.y), 0.0)
    search.follow(_warmed_up(search, instances, maxima), maxima, instances, "joint max-product")


def random(search: OutputSearch, instances: Ints, k: int) -> None:
    """Mixed-product from the k-th draw of random messages."""
    call = search.call
    ptr = call.bound_query.batch.message_ptr
    rows = call.message_rows(instances)
    counts = np.diff(ptr)[instances]
    messages = np.zeros(ptr[-1])
    place = rows - np.repeat(ptr[instances], counts)
    draws = uniforms(place, call.bound_query.plan.settings.seed, RANDOM_STREAM + k)
    half_range = 0.5 * score_range(call.model.range)[instances]
    messages[rows] = -np.repeat(half_range, counts) * draws
    _mixed(search, instances, messages, "mixed-product from random messages")


def _movable(search: OutputSearch, instances: Ints) -> Ints:
    """The instances whose regions can be relabelled: they have cycles and their factors join pairs; none if the engine
    cannot relabel."""
    if search.call.model.relabel is None:
        return instances[:0]
    bound_query = search.call.bound_query
    return instances[~bound_query.forest[instances] & bound_query.batch.pairwise[instances]]


def _warmed_up(search: OutputSearch, instances: Ints, temperatures: Temperatures) -> MessageRun:
    """The run from uniform messages, after the warm-up on graphs with cycles."""
    call = search.call
    run = search.messages
    run.start(instances, None)
    call.effort.warm(run, instances[~call.bound_query.forest[instances]], temperatures)
    call.sweeps[instances] += run.sweeps[instances]
    return run


def _sum_then_mixed(search: OutputSearch, run: MessageRun, instances: Ints, first: str, second: str) -> None:
    """Sum-product to convergence, then mixed-product from its messages; both decode candidates."""
    search.follow(run, search.judge.sums, instances, first)
    run.residual[instances] = np.inf
    search.follow(run, search.task.temperatures, instances, second)


def _mixed(search: OutputSearch, instances: Ints, messages: Floats | None, name: str, damping: float = 0.0) -> None:
    """Mixed-product from the given messages (None: uniform)."""
    run = search.messages
    schedule = search.call.effort.schedule
    run.start(instances, messages)
    schedule = replace(schedule, damping=max(damping, schedule.damping))
    search.follow(run, search.task.temperatures, instances, name, schedule)
    search.call.keep(run, instances)
