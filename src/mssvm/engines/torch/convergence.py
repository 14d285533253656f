"""Convergence at low temperatures: sweeps until log-messages, in units of the temperature, stop changing.

The run itself measures changes in scores.

At low temperatures a tolerance in units of the temperature may be below the rounding of scores: changes by
rounding count as none.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol

import numpy as np

from mssvm.core.arrays import Floats, Ints
from mssvm.core.topology import Batch, spans
from mssvm.engines.messages import Schedule, Temperatures

# A change of a message by at most this many roundings of the largest score at a variable counts as none.
ROUNDINGS = 8.0


class ScoredRun(Protocol):
    """A run whose ``sweep`` leaves the largest changes of log-messages, in scores, in ``residual``."""

    batch: Batch
    sweeps: Ints
    residual: Floats
    unit: float

    def sweep(self, instances: Ints, temperatures: Temperatures, n_sweeps: int, schedule: Schedule) -> None: ...

    def scores(self, instances: Ints) -> Floats: ...


def advance(run: ScoredRun, instances: Ints, t: Temperatures, n_sweeps: int, schedule: Schedule) -> None:
    """Up to ``n_sweeps`` more sweeps, for every instance until its messages converge; residuals are in units of the
    temperature."""
    moving = instances[~(run.residual[instances] <= schedule.tolerance)]
    if not len(moving):
        return
    unit = t.lowest or run.unit
    end = run.sweeps[moving] + n_sweeps
    near = replace(schedule, tolerance=schedule.tolerance * max(unit, 1.0))
    run.residual[moving] = np.inf
    run.sweep(moving, t, n_sweeps, near)
    cold = moving[run.residual[moving] <= near.tolerance] if unit < 1.0 else moving[:0]
    end = end[np.isin(moving, cold)]
    exact = replace(schedule, tolerance=schedule.tolerance * unit)
    step = 1
    while len(cold):
        rounding = ROUNDINGS * np.finfo(np.float64).eps * _largest_scores(run, cold)
        run.residual[cold[run.residual[cold] <= rounding]] = 0.0
        count = np.minimum(end - run.sweeps[cold], step)
        going = (count > 0) & ~(run.residual[cold] <= exact.tolerance)
        cold = cold[going]
        end = end[going]
        count = count[going]
        for n in np.unique(count):
            run.sweep(cold[count == n], t, int(n), exact)
        step *= 2
    run.residual[moving] /= unit


def _largest_scores(run: ScoredRun, instances: Ints) -> Floats:
    """The largest finite score of a state, all messages included, of every instance."""
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
