"""Message passing in plain NumPy, one factor and one variable at a time: the definition of ``engines.messages``.

There is one message per slot (a variable of a factor). Cavities are sums of the other messages, never differences, so
that no infinity is ever subtracted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from mssvm.core.arrays import Bools, Floats, Ints
from mssvm.core.components import HiddenComponents
from mssvm.core.potentials import Marginals, Potentials, Query
from mssvm.core.power import power_sum
from mssvm.core.topology import Batch, offsets
from mssvm.engines.messages import (
    Annealing,
    Borders,
    Schedule,
    Temperatures,
    sweep_order,
    sweep_places,
    with_noise,
)

# A change of a message by at most this many roundings of the largest score counts as none.
ROUNDINGS = 8.0


@dataclass(frozen=True, eq=False)
class ReferenceMessagePlan:
    """Index arrays of a batch."""

    batch: Batch

    @cached_property
    def order(self) -> Ints:
        return sweep_order(self.batch, sweep_places(self.batch))

    @cached_property
    def slots(self) -> list[Ints]:
        """The slots of every variable."""
        return [np.flatnonzero(self.batch.scope_vars == i) for i in range(self.batch.n_vars)]

    @cached_property
    def message_at(self) -> Ints:
        return offsets(self.batch.cards[self.batch.scope_vars])

    def load(self, theta: Potentials, query: Query, noise: Floats) -> ReferenceMessageModel:
        unary = np.where(query.allowed, theta.unary, -np.inf)
        return ReferenceMessageModel(self, unary, with_noise(unary, noise), theta.tables, query.allowed)

    def variables(self, instances: Iterable[int]) -> Iterator[int]:
        for b in instances:
            yield from range(self.batch.var_ptr[b], self.batch.var_ptr[b + 1])

    def factors(self, instances: Iterable[int]) -> Iterator[int]:
        for b in instances:
            yield from range(self.batch.factor_ptr[b], self.batch.factor_ptr[b + 1])

    def states(self, i: int) -> slice:
        return slice(self.batch.unary_ptr[i], self.batch.unary_ptr[i + 1])

    def scope(self, f: int) -> Ints:
        return self.batch.scope_vars[self.batch.scope_ptr[f] : self.batch.scope_ptr[f + 1]]

    def part(self, array: Floats, at: Ints, f: int, keep: tuple[int, ...], y: Ints | None = None) -> Floats:
        """The table of factor f (at ``at[f]`` of an array) with every variable but ``keep`` fixed at y.

        A view with axes in the order of ``keep``.
        """
        scope = self.scope(f).tolist()
        shape = self.batch.cards[scope]
        table = array[at[f] : at[f] + int(shape.prod())].reshape(shape)
        index: list[Any] = [slice(None) if y is None or v in keep else y[v] for v in scope]
        view = table[(*index, ...)]
        return view.transpose(np.argsort(np.argsort([scope.index(v) for v in keep])))


@dataclass(frozen=True, eq=False)
class ReferenceMessageModel:
    """Potentials with forbidden states at -inf; ``noisy`` are the unaries with tie-breaking noise."""

    plan: ReferenceMessagePlan
    unary: Floats
    noisy: Floats
    tables: Floats
    allowed: Bools
    relabel = None

    @cached_property
    def range(self) -> Floats:
        plan = self.plan
        batch = self.plan.batch
        out = np.zeros(len(self.plan.batch))
        with np.errstate(invalid="ignore"):
            for i in range(batch.n_vars):
                scores = self.unary[plan.states(i)]
                total = np.ptp(scores[scores > -np.inf]) if np.any(scores > -np.inf) else np.inf
                for s in plan.slots[i]:
                    total += np.ptp(self.table(int(batch.slot_factor[s])))
                out[batch.owner[i]] = np.fmax(out[batch.owner[i]], np.inf if np.isnan(total) else total)
        return out

    def table(self, f: int) -> Floats:
        return self.plan.part(self.tables, self.plan.batch.table_at, f, tuple(self.plan.scope(f)))

    def run(
        self, instances: Ints | None = None, scaled_at: Temperatures | None = None, noisy: bool = False
    ) -> ReferenceRun:
        return ReferenceRun(self, self.noisy if noisy else self.unary)

    def marginals(self) -> Marginals:
        return Marginals.zeros(self.plan.batch)

    def given(self, components: HiddenComponents, eps_h: float) -> ReferenceConditional:
        return ReferenceConditional(self, components, eps_h)


class ReferenceRun:
    """Messages in log space, the largest entry of each 0."""

    unit = 1.0

    def __init__(self, model: ReferenceMessageModel, unary: Floats) -> None:
        self.model = model
        self.plan = model.plan
        self.batch = model.plan.batch
        self.unary = unary.copy()
        self.open_unary = unary
        self.m = np.zeros(int(self.plan.message_at[-1]))
        self.sweeps = np.zeros(len(self.plan.batch), dtype=np.int64)
        self.residual = np.full(len(self.plan.batch), np.inf)

    def _message(self, s: int) -> slice:
        return slice(self.plan.message_at[s], self.plan.message_at[s + 1])

    def _field(self, i: int, unary: Floats, m: Floats, without: int = -1) -> Floats:
        """theta_i plus all messages to i, except that of the slot ``without``."""
        return sum((m[self._message(s)] for s in self.plan.slots[i] if s != without), unary[self.plan.states(i)])

    def start(self, instances: Ints, messages: Floats | None) -> None:
        for f in self.plan.factors(instances):
            at = slice(*self.plan.message_at[self.plan.batch.scope_ptr[f : f + 2]])
            self.m[at] = 0.0 if messages is None else messages[at]
        self.sweeps[instances] = 0
        self.residual[instances] = np.inf

    def hold(self, instances: Ints, outside: Bools, y: Ints) -> None:
        for i in self.plan.variables(instances):
            at = self.plan.states(i)
            other = np.arange(self.plan.batch.cards[i]) != y[i]
            self.unary[at] = np.where(outside[i] & other, -np.inf, self.open_unary[at])

    def advance(self, instances: Ints, temperatures: Temperatures, n_sweeps: int, schedule: Schedule) -> None:
        batch = self.plan.batch
        for b in instances:
            order = self.plan.order[batch.factor_ptr[b] : batch.factor_ptr[b + 1]]
            for _ in range(n_sweeps):
                if self.residual[b] <= schedule.tolerance:
                    break
                seen = self.m.copy() if schedule.flooding else self.m
                ordered = order[::-1] if self.sweeps[b] % 2 else order
                changes = [self._update(f, seen, temperatures, schedule.damping) for f in ordered]
                self.residual[b] = self._residual(int(b), max(changes, default=0.0), temperatures)
                self.sweeps[b] += 1

    def _residual(self, b: int, change: float, t: Temperatures) -> float:
        """The largest change of a message in units of the temperature; 0 if it is rounding."""
        fields = [self._field(i, self.unary, self.m) for i in self.plan.variables([b])]
        largest = max((float(np.abs(v[np.isfinite(v)]).max(initial=0.0)) for v in fields), default=0.0)
        if change <= ROUNDINGS * np.finfo(np.float64).eps * largest:
            return 0.0
        return change / (t.lowest or self.unit)

    def _factor(self, f: int, m: Floats, t: Temperatures) -> tuple[list[Floats], Floats, Floats, Floats, Floats]:
        """Cavities n_i; S_a, R_a and PS_{eps_y} R_a with summed axes of length one; eps_h log b_a."""
        scope = self.plan.scope(f)
        first = int(self.plan.batch.scope_ptr[f])
        cavities = [self._field(i, self.unary, m, first + k) for k, i in enumerate(scope)]
        scores = self.model.table(f)
        for k, cavity in enumerate(cavities):
            others = tuple(d for d in range(len(scope)) if d != k)
            scores = scores + np.expand_dims(cavity, others)
        partial = _power_sum_over(scores, t.eps_h, np.flatnonzero(~t.outputs[scope]))
        top = _power_sum_over(partial, t.eps_y, range(scores.ndim))
        with np.errstate(invalid="ignore"):
            if partial.size == 1:
                share = np.zeros(partial.shape)
            elif t.eps_y > 0.0:
                share = (partial - top) * (t.eps_h / t.eps_y)
            else:
                share = np.where(partial == top, 0.0, -np.inf)
            belief = np.where(scores > -np.inf, scores - partial + share, -np.inf)
        return cavities, scores, partial, top, belief

    def _update(self, f: int, m: Floats, t: Temperatures, damping: float) -> float:
        """All messages of a factor; returns the largest change."""
        cavities, _, partial, _, belief = self._factor(f, m, t)
        change = 0.0
        for k, i in enumerate(self.plan.scope(f)):
            others = [d for d in range(partial.ndim) if d != k]
            to_i = _power_sum_over(partial if t.outputs[i] else belief, t.eps_y if t.outputs[i] else t.eps_h, others)
            known = cavities[k] > -np.inf
            at = self._message(int(self.plan.batch.scope_ptr[f]) + k)
            new = np.full(len(known), -np.inf)
            old = self.m[at].copy()
            new[known] = to_i.ravel()[known] - cavities[k][known]
            new = np.where(known & (new.max() > -np.inf), new - max(new.max(), -1e300), 0.0)
            finite = (new > -np.inf) & (old > -np.inf)
            new[finite] = (1.0 - damping) * new[finite] + damping * old[finite]
            self.m[at] = new
            moved = new != old
            change = max(change, *np.where(finite[moved], np.abs(new[moved] - old[moved]), np.inf), 0.0)
        return change

    def decode(self, instances: Ints, y: Ints) -> None:
        for i in self.plan.variables(instances):
            allowed = np.flatnonzero(self.model.allowed[self.plan.states(i)])
            y[i] = allowed[np.argmax(self._field(i, self.unary, self.m)[allowed])] if len(allowed) else -1

    def scores(self, instances: Ints) -> Floats:
        out = np.zeros(len(self.unary))
        for i in self.plan.variables(instances):
            out[self.plan.states(i)] = self._field(i, self.open_unary, self.m)
        return out

    def log_messages(self, instances: Ints) -> Floats:
        mine = np.isin(self.plan.batch.factor_owner[self.plan.batch.slot_factor], instances)
        return np.where(np.repeat(mine, np.diff(self.plan.message_at)), self.m, 0.0)

    def beliefs(self, instances: Ints, temperatures: Temperatures, value: Floats, mu: Marginals | None) -> None:
        plan = self.plan
        t = temperatures
        value[instances] = 0.0
        for i in plan.variables(instances):
            top, weights = power_sum(self._field(i, self.unary, self.m), t.eps_y if t.outputs[i] else t.eps_h)
            # An infeasible variable makes its instance infeasible, whatever its degree.
            value[plan.batch.owner[i]] += (1 - len(plan.slots[i])) * top if top > -np.inf else -np.inf
            if mu is not None:
                mu.unary[plan.states(i)] += weights
        for f in plan.factors(instances):
            _, scores, partial, top, _ = self._factor(f, self.m, t)
            value[plan.batch.factor_owner[f]] += float(top.item())
            if mu is not None and top > -np.inf:
                with np.errstate(invalid="ignore"):
                    b = np.exp((partial - top) / t.eps_y) if t.eps_y > 0.0 else 1.0 * (partial == top)
                    b = b * np.exp((scores - partial) / t.eps_h) if partial.size < scores.size else b
                b = np.where(scores > -np.inf, b, 0.0)
                plan.part(mu.tables, plan.batch.mu_at, f, tuple(plan.scope(f)))[...] += b / b.sum()


def _power_sum_over(table: Floats, eps: float, axes: Iterable[int]) -> Floats:
    """PS_eps over some axes jointly, which stay with length one."""
    over = set(axes)
    rest = [d for d in range(table.ndim) if d not in over]
    flat = table.transpose([*rest, *over]).reshape([*(table.shape[d] for d in rest), -1])
    return power_sum(flat, eps)[0].reshape([1 if d in over else table.shape[d] for d in range(table.ndim)])


@dataclass(frozen=True, eq=False)
class ReferenceConditional:
    """Hidden trees given the outputs, by the tree recursion; its weights are conditional marginals."""

    model: ReferenceMessageModel
    components: HiddenComponents
    eps_h: float

    def _component(self, c: int, y: Ints, weight: float = 0.0, mu: Marginals | None = None) -> float:
        """PS_{eps_h} over component c given y; adds ``weight`` times its marginals to ``mu``."""
        plan = self.model.plan
        batch = plan.batch
        tables = self.model.tables
        hidden = self.components
        members = hidden.visit[hidden.member_ptr[c] : hidden.member_ptr[c + 1]].tolist()
        root = members[0]
        slots = [(h, int(batch.slot_factor[s])) for h in members for s in plan.slots[h]]
        at_border = [(h, f) for h, f in slots if hidden.inside[f] == 1]

        # Upward: scores of each variable plus its factors at the border, plus the messages of its children.
        scores = {h: self.model.unary[plan.states(h)].copy() for h in members}
        for h, f in at_border:
            scores[h] += plan.part(tables, batch.table_at, f, (h,), y)
        given_parent = {}
        for h in reversed(members[1:]):
            parent = int(hidden.parent[h])
            table = plan.part(tables, batch.table_at, int(hidden.up[h]), (h, parent), y)
            message, given_parent[h] = power_sum(scores[h][:, None] + table, self.eps_h, axis=0)
            scores[parent] += message
        value, root_weights = power_sum(scores[root], self.eps_h)
        if mu is None:
            return float(value)

        # Downward: the derivatives of power sums are conditional probabilities given the parent.
        belief = {root: weight * root_weights}
        for h in members[1:]:
            parent = int(hidden.parent[h])
            joint = given_parent[h] * belief[parent]
            belief[h] = joint.sum(axis=1)
            plan.part(mu.tables, batch.mu_at, int(hidden.up[h]), (h, parent), y)[...] += joint
        for h in members:
            mu.unary[plan.states(h)] += belief[h]
        for h, f in at_border:
            plan.part(mu.tables, batch.mu_at, f, (h,), y)[...] += belief[h]
        return float(value)

    def _outside(self, b: int) -> tuple[list[int], list[int]]:
        """Variables and factors of b that hold no hidden variable."""
        plan = self.model.plan
        components = self.components
        variables = [i for i in plan.variables([b]) if components.outside[i]]
        factors = [f for f in plan.factors([b]) if components.inside[f] == 0]
        return variables, factors

    def evaluate(self, instances: Ints, y: Ints, value: Floats) -> None:
        plan = self.model.plan
        components = self.components
        for b in instances:
            given, factors = self._outside(b)
            total = sum(self.model.unary[plan.batch.unary_ptr[i] + y[i]] for i in given)
            total += sum(plan.part(self.model.tables, plan.batch.table_at, f, (), y) for f in factors)
            if components.forest[b]:
                total += sum(self._component(c, y) for c in range(components.ptr[b], components.ptr[b + 1]))
            else:
                total = np.nan
            value[b] = total

    def marginals(self, instances: Ints, y: Ints, mu: Marginals) -> None:
        plan = self.model.plan
        components = self.components
        for b in instances[components.forest[instances]]:
            given, factors = self._outside(b)
            mu.unary[[plan.batch.unary_ptr[i] + y[i] for i in given]] += 1.0
            for f in factors:
                plan.part(mu.tables, plan.batch.mu_at, f, (), y)[...] += 1.0
            for c in range(components.ptr[b], components.ptr[b + 1]):
                self._component(c, y, 1.0, mu)

    def _options(self, b: int, i: int, y: Ints) -> Floats:
        """Q(y with y_i = x) for every state x."""
        old = y[i]
        out = []
        value = np.zeros(len(self.model.plan.batch))
        for x in range(self.model.plan.batch.cards[i]):
            y[i] = x
            self.evaluate(np.array([b]), y, value)
            out.append(value[b])
        y[i] = old
        return np.array(out)

    def improve(self, instances: Ints, free: Bools, y: Ints, annealing: Annealing | None = None) -> None:
        """Ascent only: annealing is skipped, however large its budget."""
        for b in instances[self.components.forest[instances]]:
            moving = True
            while moving:
                moving = False
                for i in [i for i in self.model.plan.variables([b]) if free[i]]:
                    q = self._options(b, i, y)
                    best = q.max()
                    now = q[y[i]]
                    if best > now and best - now > 1e-11 * (1.0 + abs(best)):
                        y[i] = int(np.argmax(q))
                        moving = True

    def _border_states(self, borders: Borders, instances: Ints, y: Ints) -> Iterator[tuple[int, int, Ints, Ints]]:
        """Component, entry, border and y for every border state."""
        components = self.components
        cards = self.model.plan.batch.cards
        for b in instances:
            for c in range(components.ptr[b], components.ptr[b + 1]):
                around = borders.var[borders.ptr[c] : borders.ptr[c + 1]]
                here = y.copy()
                for k, state in enumerate(np.ndindex(*cards[around])):
                    here[around] = state
                    yield c, int(borders.entry_ptr[c]) + k, around, here

    def tabulate(self, borders: Borders, instances: Ints, y: Ints, values: Floats) -> None:
        for c, entry, around, here in self._border_states(borders, instances, y):
            allowed = np.all(self.model.unary[self.model.plan.batch.unary_ptr[around] + here[around]] > -np.inf)
            values[entry] = self._component(c, here) if allowed else 0.0

    def expect(self, borders: Borders, instances: Ints, y: Ints, weights: Floats, mu: Marginals) -> None:
        for c, entry, _, here in self._border_states(borders, instances, y):
            if weights[entry] > 0.0:
                self._component(c, here, float(weights[entry]), mu)
