"""From weights to U+ - U- and its gradient in a few compiled calls, in memory that every thread keeps."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from mssvm.core.arrays import Floats, Ints
from mssvm.core.jit import njit
from mssvm.core.potentials import Marginals, Potentials
from mssvm.core.topology import offsets, spread
from mssvm.engines.base import Pair, TwoCalls
from mssvm.engines.numba.exact import GivenStates, NumbaBound
from mssvm.engines.numba.forests.lane_groups import parts_of
from mssvm.engines.numba.forests.plan import BLOCK, NO_COST, NO_SETS, ForestRoute
from mssvm.engines.numba.forests.registers import BASE, NUMBER, SIDE, TABLE_PARTS
from mssvm.engines.numba.vector import WIDTH

if TYPE_CHECKING:
    from mssvm.engines.numba.features import LinearFeatures


class JoinedInference:
    """Forests that run in registers, nearly all of them, under a query and a narrower one, or with given states."""

    def __init__(
        self, features: LinearFeatures, plus: ForestRoute, minus: ForestRoute | None, given: GivenStates | None,
        cost: Potentials | None,
    ) -> None:  # fmt: skip
        self.features, self.workers, self.given = features, plus.workers, given
        unary, tables = (NO_COST, NO_COST) if cost is None else (cost.unary, cost.tables)
        # One type: a kernel is compiled for it.
        self.cost = [np.require(unary, np.float64, ["C", "W"]), np.require(tables, np.float64, ["C", "W"])]
        batch, sides = features.batch, [plus] if minus is None else [plus, minus]
        rows, heads, tails = [], [], list[Floats]()
        self.missing = np.ones((len(sides), len(batch)), dtype=bool)
        for k, side in enumerate(sides):
            own = side.registers.rows.copy()
            own[:, SIDE], own[:, NUMBER] = k, own[:, NUMBER] - 1 + len(sides) + sum(map(len, tails))
            own[:, BASE : BASE + 4] += k * TABLE_PARTS * batch.n_table_entries
            rows.append(own)
            heads.append(side.registers.numbers[:1])
            tails.append(side.registers.numbers[1:])
            self.missing[k, side.instances] = False
        numbers = [*heads, *tails]
        self.sides = sides  # what the addresses point to
        self.kernel = plus.registers.run
        self.rows, self.numbers = np.concatenate(rows), np.concatenate(numbers)
        self.sets = np.concatenate([side.registers.sets for side in sides])
        scratch, self.counts = map(max, zip(*(side.registers.needs for side in sides), strict=True))
        sizes = [batch.n_states, batch.n_states, batch.n_table_entries, batch.n_mu_entries]
        sizes += [len(sides) * TABLE_PARTS * batch.n_table_entries, scratch]
        self.at = offsets(-(-np.array(sizes) // WIDTH) * WIDTH).tolist()
        self.spans = [slice(at, at + n) for at, n in zip(self.at, sizes, strict=False)]
        self.wanted = int(np.count_nonzero(~self.missing))

    @classmethod
    def of(cls, features: LinearFeatures, pair: Pair, cost: Potentials | None) -> JoinedInference | None:
        if not isinstance(pair, TwoCalls) or not isinstance(pair.plus, NumbaBound):
            return None
        assert isinstance(pair.minus, NumbaBound)
        plus, minus = pair.plus.routes, pair.minus.routes
        given, forests = list[GivenStates](), list[ForestRoute]()
        for route in (*plus, *minus):
            if isinstance(route, GivenStates):
                given.append(route)
            elif isinstance(route, ForestRoute) and route.mostly_in_registers:
                forests.append(route)
        if len(plus) != 1 or len(forests) + len(given) != 1 + len(minus) or plus[0] not in forests:
            return None
        assert all(forest.registers.run is forests[0].registers.run for forest in forests)
        return cls(features, forests[0], forests[1] if forests[1:] else None, given[0] if given else None, cost)

    def __call__(self, w: Floats) -> tuple[Floats, Floats, Floats]:
        batch, given, size = self.features.batch, self.given, (self.at[-1], self.counts)
        space = self.workers.scratch(*size)[0]
        unary, mu, raw, mu_tables, made, _ = (space[span] for span in self.spans)
        self.features.forward_into(w, Potentials(unary, raw))
        value, done = np.zeros((2, len(batch))), np.zeros((len(self.sides), len(batch)), dtype=bool)

        def run(rows: Ints, sets: Ints = NO_SETS) -> int:
            rest, counts = self.workers.scratch(*size)  # behind the arrays above, on whichever thread
            count: int = self.kernel(
                rows, self.numbers, sets, made, raw, self.cost[1], unary, self.cost[0], value, mu, mu_tables, done,
                rest[self.at[-2] :], counts,
            )  # fmt: skip
            return count

        if self.workers.idle == 1:
            count = run(self.rows, self.sets)
        else:
            count = run(self.rows[:0], self.sets)
            for side in range(len(self.sides)):  # one after the other: the second is subtracted
                count += sum(self.workers.each(run, parts_of(self.rows[self.rows[:, SIDE] == side], BLOCK // WIDTH)))
        theta, marginals = Potentials(unary, raw), Marginals(mu, mu_tables)
        if count < self.wanted:
            self._one_by_one(np.flatnonzero(~np.all(done | self.missing, axis=0)), theta, value, marginals)
        if given is not None:
            subtract_given(
                given.unary, given.unary_owner, given.tables, given.table_owner, given.mu, unary, raw, value[1],
                np.zeros(len(batch)), mu, mu_tables,
            )  # fmt: skip
        return value[0], value[1], self.features.adjoint(marginals)

    def _one_by_one(self, rest: Ints, theta: Potentials, value: Floats, mu: Marginals) -> None:
        """Instances that do not run in registers, or whose sums are not safe there."""
        batch, chosen = self.features.batch, spread(rest, len(self.features.batch))
        found = [Marginals.zeros(batch) for _ in self.sides]
        for k, side in enumerate(self.sides):
            scores = theta + Potentials(*self.cost) if k == 0 and len(self.cost[0]) else theta
            scores.check(batch)
            side.one_by_one(rest[~self.missing[k, rest]], scores, value[k], found[k])
        states, entries = chosen[batch.owner][batch.state_var], chosen[batch.mu_owner]
        difference = found[0] if len(found) == 1 else found[0] - found[1]
        mu.unary[states], mu.tables[entries] = difference.unary[states], difference.tables[entries]


@njit(cache=True, nogil=True, error_model="numpy")
def subtract_given(
    states: Ints, owner: Ints, entries: Ints, table_owner: Ints, places: Ints, unary: Floats, tables: Floats,
    value: Floats, table_value: Floats, mu: Floats, mu_tables: Floats,
) -> None:  # fmt: skip
    """Values of given states, added up as ``sum_by`` does, and their marginals off those of another query."""
    for i in range(len(states)):
        value[owner[i]] += unary[states[i]]
        mu[states[i]] -= 1.0
    for i in range(len(entries)):
        table_value[table_owner[i]] += tables[entries[i]]
        mu_tables[places[i]] -= 1.0
    for b in range(len(value)):
        value[b] += table_value[b]
