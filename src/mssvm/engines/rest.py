"""Sweeps until messages come to rest in logarithms: what "converged" means, whatever an engine's residuals are.

Residuals of scaled messages are changes of probabilities. With strong scores a state of probability 1e-12 does not show
in them, although its message may still move by hundreds of temperatures and turn the answer round later. An instance on
which that can happen has converged when one more sweep changes no log-message by more than the tolerance, in units of
the lowest positive temperature. Residuals of log-messages are measured in the same unit; changes that are rounding of
the scores they are made of are none.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from mssvm.core.arrays import Floats, Ints
from mssvm.core.topology import spans
from mssvm.engines.messages import MessageRun, Schedule, Temperatures

# Roundings of the largest score at a variable up to which a change of a message is none.
ROUNDINGS = 8.0


def advance_to_rest(run: MessageRun, instances: Ints, t: Temperatures, n_sweeps: int, schedule: Schedule) -> None:
    """``run.advance``, until messages rest in logarithms; residuals are in units of the temperature.

    An instance whose residual fell below the tolerance with no sweep left for a look at its log-messages has an
    infinite residual: it is unknown whether they rest.
    """
    moving = instances[~(run.residual[instances] <= schedule.tolerance)]
    if len(moving) and run.shown is None:
        _advance_logs(run, moving, t, n_sweeps, schedule)
    elif len(moving):
        _advance_probabilities(run, moving, t, n_sweeps, schedule)


def look(run: MessageRun, instances: Ints, t: Temperatures, n_sweeps: int, schedule: Schedule) -> None:
    """Sweeps without a stop; residuals are the largest changes of log-messages in the last of them."""
    run.advance(instances, t, n_sweeps - 1, replace(schedule, tolerance=-1.0))
    run.residual[instances] = run.last_change(instances, t, schedule) / (t.lowest or run.unit)


def _advance_probabilities(
    run: MessageRun, instances: Ints, t: Temperatures, n_sweeps: int, schedule: Schedule
) -> None:
    """Of a run whose residuals are those of probabilities."""
    assert run.shown is not None
    end = run.sweeps[instances] + n_sweeps
    run.advance(instances, t, n_sweeps, schedule)
    unseen = ~run.shown[instances] & (run.residual[instances] <= schedule.tolerance)
    instances, end = instances[unseen], end[unseen]
    step = 1
    while len(instances):
        run.residual[instances] = np.inf
        count = np.minimum(end - run.sweeps[instances], step)
        for n in np.unique(count[count > 0]):
            look(run, instances[count == n], t, int(n), schedule)
        going = (count > 0) & ~(run.residual[instances] <= schedule.tolerance)
        instances, end = instances[going], end[going]
        step *= 2


def _advance_logs(run: MessageRun, instances: Ints, t: Temperatures, n_sweeps: int, schedule: Schedule) -> None:
    """Of a run whose residuals are those of log-messages, in scores."""
    unit = t.lowest or run.unit
    end = run.sweeps[instances] + n_sweeps
    near = replace(schedule, tolerance=schedule.tolerance * max(unit, 1.0))
    run.advance(instances, t, n_sweeps, near)
    # At low temperatures the last digits of scores count, and there may be none left.
    cold = instances[run.residual[instances] <= near.tolerance] if unit < 1.0 else instances[:0]
    end = end[np.isin(instances, cold)]
    exact = replace(schedule, tolerance=schedule.tolerance * unit)
    step = 1
    while len(cold):
        rounding = ROUNDINGS * np.finfo(np.float64).eps * _largest_scores(run, cold)
        run.residual[cold[run.residual[cold] <= rounding]] = 0.0
        count = np.minimum(end - run.sweeps[cold], step)
        going = (count > 0) & ~(run.residual[cold] <= exact.tolerance)
        cold, end, count = cold[going], end[going], count[going]
        for n in np.unique(count):
            run.advance(cold[count == n], t, int(n), exact)
        step *= 2
    run.residual[instances] /= unit


def _largest_scores(run: MessageRun, instances: Ints) -> Floats:
    """Of every instance, the largest finite score of a state by all messages."""
    first = run.batch.unary_ptr[run.batch.var_ptr]
    counts = np.diff(first)[instances]
    scores = run.scores(instances)[spans(first[instances], counts)]
    return _largest(np.where(np.isfinite(scores), np.abs(scores), 0.0), counts)


def _largest(values: Floats, counts: Ints) -> Floats:
    """The maxima of consecutive segments, 0 of those that are empty."""
    out = np.zeros(len(counts))
    filled = counts > 0
    if filled.any():
        out[filled] = np.maximum.reduceat(values, (np.cumsum(counts) - counts)[filled])
    return out
