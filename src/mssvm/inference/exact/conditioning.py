"""Exact inference where fixing one variable leaves a pairwise forest, such as the class label of a hidden chain.

value = PS over the cut variable (at its own temperature) of [its score + nested power sum of the forest given it].
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from mssvm.core.arrays import Bools, Floats, Ints
from mssvm.core.errors import UnsupportedError
from mssvm.core.potentials import Marginals, Potentials, Query
from mssvm.core.topology import Batch, Topology, spans
from mssvm.engines.numba.forests.cutset import check_cuts, run_cut_chains, run_cuts
from mssvm.engines.numba.forests.forest import AT_H, AT_Y, read_modes
from mssvm.engines.numba.forests.scaled import Layout, Tables
from mssvm.inference.exact.cutsets import Conditioned, CutPlan, Lanes
from mssvm.inference.exact.trees import BLOCK, group_lanes, in_blocks, make_tables
from mssvm.inference.remember import Recent, WhileAlive


@dataclass
class Conditioning:
    """Exact inference on graphs that one variable separates into a pairwise forest (factors up to order three).

    Exact when that variable is an output, is clamped, or the temperatures of all free variables agree with its own.
    """

    threads: int = 1
    _found: Recent[Topology, Conditioned] = field(default_factory=lambda: Recent(4096), init=False, repr=False)
    _plans: WhileAlive[Batch, CutPlan] = field(default_factory=WhileAlive, init=False, repr=False)

    def _plan(self, batch: Batch) -> CutPlan:
        return self._plans.get(batch, lambda: CutPlan.of(batch, lambda g: self._found.get(g, Conditioned.of)))

    def supports(self, batch: Batch, query: Query, eps_y: float, eps_h: float) -> Bools:
        """Per instance: does one variable separate it into a forest on which these roles and temperatures are exact?"""
        plan = self._plan(batch)
        ok = plan.ok.copy()
        if eps_y != eps_h and ok.any():
            check_cuts(plan.cut, plan.forest, plan.layout, query.allowed, query.output, ok)
        return ok

    def fill(
        self, batch: Batch, theta: Potentials, query: Query, eps_y: float, eps_h: float,
        which: Ints, value: Floats, mu: Marginals | None,
    ) -> None:  # fmt: skip
        """Write value and marginals of the instances ``which`` in place."""
        plan = self._plan(batch)
        raw = theta.tables if plan.turn is None else theta.tables[plan.turn]
        ty, th = _tables(plan, raw, eps_y, eps_h)
        out = mu if mu is not None else Marginals(np.zeros(0), np.zeros(0))
        turned = out if mu is None or plan.turn_mu is None else Marginals(mu.unary, mu.tables[plan.turn_mu])
        done = np.zeros(len(batch), dtype=bool)
        none = np.zeros(0, dtype=bool)
        self._chains(plan, theta, query, eps_y, eps_h, ty, th, which, value, mu is not None, turned, done, none, value)
        rest = which[~done[which]]

        def work(part: Ints) -> bool:
            return bool(
                run_cuts(
                    part, plan.cut, plan.forest, plan.layout, theta.unary, query.allowed, query.output, eps_y, eps_h,
                    ty, th, value, mu is not None, turned.unary, turned.tables,
                )
            )  # fmt: skip

        if not plan.ok[which].all() or (len(rest) and not in_blocks(rest, self.threads, BLOCK, work)):
            raise UnsupportedError(
                "no single variable separates an instance into an exactly solvable forest; use general elimination."
            )
        if mu is not None and plan.turn_mu is not None:
            mu.tables[plan.turn_mu] = turned.tables

    def contrast(
        self, batch: Batch, theta: Potentials, query: Query, given: Query, eps_y: float, eps_h: float
    ) -> tuple[Floats, Floats, Marginals] | None:
        """Values under ``query`` and under the narrower ``given``, and the difference of their marginals, in one pass.

        None unless every instance is a chain for the side-by-side kernel and ``given`` narrows cut variables alone.
        """
        plan = self._plan(batch)
        if plan.turn is not None or not plan.narrows_cuts(batch, query, given):
            return None
        ty, th = _tables(plan, theta.tables, eps_y, eps_h)
        n, mu = len(batch), Marginals.zeros(batch)
        high, low, done = np.empty(n), np.empty(n), np.zeros(n, dtype=bool)
        self._chains(plan, theta, query, eps_y, eps_h, ty, th, np.arange(n), high, True, mu, done, given.allowed, low)
        return (high, low, mu) if done.all() else None

    def _chains(
        self, plan: CutPlan, theta: Potentials, query: Query, eps_y: float, eps_h: float, ty: Tables, th: Tables,
        which: Ints, value: Floats, want: bool, mu: Marginals, done: Bools, given: Bools, low: Floats,
    ) -> None:  # fmt: skip
        """Hidden chains under one cut variable, side by side, wherever the chain has one temperature above zero."""
        known = plan.schedules.get(query, dict)
        key = (eps_y, eps_h, which.tobytes())
        if key not in known:
            known[key] = self._schedule(plan, query, eps_y, eps_h, which)
        for lanes in known[key]:
            eps, tables = (eps_y, ty) if lanes.at_y else (eps_h, th)
            eps_cut = eps_y if lanes.cut_at_y else eps_h

            def work(
                part: Ints,
                lanes: Lanes = lanes,
                at: tuple[float, float, Tables] = (eps, eps_cut, tables),
            ) -> bool:
                run_cut_chains(
                    lanes.ptr[part[0] : part[-1] + 2], lanes.rows, plan.cut, plan.forest, plan.layout, theta.unary,
                    query.allowed, *at, value, want, mu.unary, mu.tables, done, given, low,
                )  # fmt: skip
                return True

            in_blocks(np.arange(len(lanes.ptr) - 1), self.threads, 1, work)

    def _schedule(self, plan: CutPlan, query: Query, eps_y: float, eps_h: float, which: Ints) -> list[Lanes]:
        """Which chains run side by side, by temperatures, table, label and length."""
        layout, cut = plan.layout, plan.cut
        members = np.intersect1d(plan.chains, which)
        g = layout.topology_of[members]
        cut_var = layout.var_ptr[members] + cut.variable[g]
        chain_h = self._chain_mode(layout, cut_var, members, query, eps_y == eps_h)
        role = query.output[cut_var]
        states = cut.states[g]
        label, free = _label(query.allowed, plan.cut_at[members], states)
        k = plan.forest.card[plan.forest.node_ptr[g]]
        table = layout.table_at[layout.factor_ptr[members] + cut.edge_factor[plan.forest.edge_ptr[g]]]
        hangs = cut.hang_ptr[g + 1] - cut.hang_ptr[g]
        count = layout.var_ptr[members + 1] - layout.var_ptr[members] - 1
        keys = (count, label, hangs > 0, table, states, k)
        out = []
        for mode, eps in ((AT_Y, eps_y), (AT_H, eps_h)):
            for output in (True, False):
                legal = output | ~free | (mode == AT_H) | (eps_y == eps_h)
                chosen = np.flatnonzero((chain_h == mode) & (role == output) & legal)
                if eps == 0.0 or not len(chosen):
                    continue
                chosen = chosen[np.lexsort([key[chosen] for key in keys])]
                sorted_keys = tuple(key[chosen].astype(np.int64) for key in keys[1:])
                ptr = group_lanes(sorted_keys, (k * states)[chosen], count[chosen])
                out.append(Lanes(ptr, members[chosen], mode == AT_Y, output))
        return out

    def _chain_mode(self, layout: Layout, cut_var: Ints, members: Ints, query: Query, equal: bool) -> Ints:
        """Temperature mode of each chain, its cut variable left out."""
        modes = np.full(len(layout.topology_of), AT_Y, dtype=np.int64)
        if not equal:
            # A variable without two allowed states does not count as free: hide the cut variables that way.
            hidden = query.allowed.copy()
            hidden[spans(layout.unary_ptr[cut_var], layout.unary_ptr[cut_var + 1] - layout.unary_ptr[cut_var])] = False
            read_modes(members, layout, hidden, query.output, modes)
        return modes[members]


def _tables(plan: CutPlan, raw: Floats, eps_y: float, eps_h: float) -> tuple[Tables, Tables]:
    """The tables at the temperatures of outputs and of hidden variables."""
    ty = make_tables(raw, eps_y, plan.starts, plan.rows, plan.cols)
    return ty, ty if eps_h == eps_y else make_tables(raw, eps_h, plan.starts, plan.rows, plan.cols)


def _label(allowed: Bools, at: Ints, states: Ints) -> tuple[Ints, Bools]:
    """The only allowed state of each block ``at : at + states`` (-1 if several), and whether there are several."""
    out, seen = np.full(len(at), -1, dtype=np.int64), np.zeros(len(at), dtype=np.int64)
    for c in range(int(states.max(initial=0))):
        hit = np.flatnonzero(c < states)
        hit = hit[allowed[at[hit] + c]]
        out[hit] = c
        seen[hit] += 1
    return np.where(seen > 1, -1, out), seen > 1
