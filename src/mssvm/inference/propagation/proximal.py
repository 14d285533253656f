"""Proximal-point marginal MAP: tau_{t+1} = argmax F(tau) - eps_h KL(tau || tau_t) on the outputs, a soft alternative.

The penalty restores the entropy of y, so each step is plain sum-product with log-beliefs added to the original
potentials; with exact steps q_t(y) ~ exp(t Q(y) / eps_h), annealing without a schedule. There are no argmax messages,
hence no ties.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from mssvm.core.arrays import Ints
from mssvm.core.potentials import Marginals
from mssvm.core.topology import offsets
from mssvm.engines.numba.messages.proximal import proximal_potentials
from mssvm.inference.propagation.run import Control, LogRun, Mode, Model

# A truncated inner solve is enough: the next step continues from its messages.
INNER_SWEEPS = 6


def proximal_steps(
    model: Model, outputs: np.ndarray, eps: float, which: Ints, control: Control, steps: int
) -> Iterator[LogRun]:
    """The runs after each step, to be decoded; the same object every time."""
    w = model.plan.wiring
    sizes = np.ones(len(w.scope_ptr) - 1, dtype=np.int64)
    np.multiply.at(sizes, w.slot_factor, np.diff(w.message_at))
    own_at = offsets(sizes)
    unary, tables = np.zeros(len(model.unary)), np.zeros(int(own_at[-1]))
    own = replace(model, plan=replace(model.plan, wiring=w._replace(table_at=own_at[:-1])), unary=unary, tables=tables)
    even = Marginals(np.ones(len(unary)), np.ones(len(tables)))
    proximal_potentials(
        w,
        which,
        model.untied,
        model.tables,
        own_at,
        np.zeros_like(outputs),
        eps,
        even.unary,
        even.tables,
        unary,
        tables,
    )
    run = LogRun(own)
    run.start(which, None)
    mode = Mode(np.zeros_like(outputs), eps, eps)
    value = np.zeros(len(run.residual))
    for _ in range(steps):
        run.residual[which] = np.inf
        run.advance(which, mode, INNER_SWEEPS, control)
        yield run
        beliefs = Marginals(np.zeros(len(unary)), np.zeros(len(tables)))
        run.finish(which, mode, own_at, beliefs, value)
        proximal_potentials(
            w, which, model.untied, model.tables, own_at, outputs, eps, beliefs.unary, beliefs.tables, unary, tables
        )
