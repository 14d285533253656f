"""Exact nested power sums (paper eq. 5) on pairwise forests, mostly chains: planned once, bound once, run often."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from mssvm.core.arrays import Bools, Floats, Ints
from mssvm.core.errors import UnsupportedError
from mssvm.core.library import FLOATS, INT, INTS, Function, Record
from mssvm.core.potentials import Marginals, Potentials, Query
from mssvm.core.threads import Workers
from mssvm.core.topology import Batch, counts
from mssvm.engines.native.copies import copies_of
from mssvm.engines.native.families import FAMILY, families_of, family_fields
from mssvm.engines.rooting import rooting_of, touch_few_outputs

NO_VALUES = np.zeros(0)
WRITTEN = ("side", "task", "copies", "scaled", "scores")  # numbers of the record that a call writes
NO_MASK = np.zeros(0, dtype=bool)
# return values of ``cpp/forests.cpp``
NO_NUMBERS = 1
UNFINISHED = 2
AT_Y, AT_H, MIXED = range(3)  # temperatures of the free variables of an instance: eps_y, eps_h, or both

FORESTS = Function(
    "mssvm_forests",
    families=INTS,
    unary=FLOATS,
    tables=FLOATS,
    cost_unary=FLOATS,
    cost_tables=FLOATS,
    value=FLOATS,
    minus=FLOATS,
    mu_unary=FLOATS,
    mu_tables=FLOATS,
    threads=INT,
    side=INT,
    task=INT,
    copies=INT,
    scaled=INT,
    scores=INT,
)


class Ran(NamedTuple):
    """Numbers of instances that ran with copies of hidden variables, in scaled probabilities, and in scores."""

    copies: int
    scaled: int
    scores: int


class ForestPlan:
    """Exact inference on pairwise forests in which every hidden component touches at most two free outputs.

    Roles and masks are free where eps_y = eps_h, and where all free variables have one role.
    """

    def __init__(self, batch: Batch, side_by_side: bool = True) -> None:
        self.batch = batch
        self.side_by_side = side_by_side
        rootings = [rooting_of(topology) for topology in batch.topologies]
        valid = np.array([rooting.valid for rooting in rootings], dtype=bool)
        path = np.array([rooting.degree.max(initial=0) <= 2 for rooting in rootings], dtype=bool)
        self.ok: Bools = valid[batch.topology_of]
        self.paths: Bools = path[batch.topology_of]

    def supports(self, query: Query, eps_y: float, eps_h: float) -> Bools:
        """Per instance: is it a pairwise forest on which these roles and temperatures are exact here?"""
        ok = self.ok.copy()
        batch = self.batch
        asked = ok & ~self.paths  # in a path every hidden component has two neighbours at most
        if eps_y == eps_h or not asked.any():
            return ok
        output = np.ascontiguousarray(query.output)
        free = query.n_allowed(batch) > 1
        for g in np.unique(batch.topology_of[asked]).tolist():
            mine = np.flatnonzero(asked & (batch.topology_of == g))
            rooting = rooting_of(batch.topologies[g])
            ok[mine] = touch_few_outputs(rooting, batch.var_ptr[mine], output, free)
        return ok


def temperatures_of(batch: Batch, query: Query, free: Bools) -> Ints:
    """Which temperatures the free variables of every instance have."""
    some_y = counts(free & query.output, batch.var_ptr) > 0
    some_h = counts(free & ~query.output, batch.var_ptr) > 0
    return np.where(some_h, np.where(some_y, MIXED, AT_H), AT_Y)


class ForestRoute:
    """Forests bound to roles, masks and temperatures, in families that run side by side."""

    def __init__(
        self, plan: ForestPlan, query: Query, eps_y: float, eps_h: float, instances: Ints, workers: Workers
    ) -> None:
        self.plan = plan
        self.query = query
        self.instances = instances
        self.workers = workers
        self._supported = bool(plan.supports(query, eps_y, eps_h)[instances].all())
        batch = plan.batch
        free = query.n_allowed(plan.batch) > 1
        allowed = NO_MASK if query.allowed.all() else np.ascontiguousarray(query.allowed)
        of = np.full(len(instances), AT_Y)
        if eps_y != eps_h:
            of = temperatures_of(batch, query, free)[instances]
        self.families = list[dict[str, Any]]()
        for mode, low, high in ((AT_Y, eps_y, eps_y), (AT_H, eps_h, eps_h), (MIXED, eps_y, eps_h)):
            some = instances[of == mode]
            roles = query if mode == MIXED else None
            for kinds in families_of(batch, some, roles) if len(some) else ():
                fields = family_fields(batch, kinds, roles, allowed, free, low, high)
                copies = 0
                if roles is not None and plan.side_by_side:
                    copies = copies_of(batch, kinds, roles, low, high)
                self.families.append(fields | {"abreast": int(plan.side_by_side), "copies": copies})
        self._call = ForestCall(batch, self.records(0), None)

    @property
    def strategies(self) -> list[tuple[Ints, str]]:
        """Instances with their first strategy; where probabilities lose precision, they run again in scores."""
        out = list[tuple[Ints, str]]()
        for family in self.families:
            name = "one temperature" if family["eps_y"] == family["eps_h"] else "two temperatures"
            if family["copies"]:
                name = "copies"
            out.append((family["instance"], f"{'abreast' if family['abreast'] else 'alone'}: {name}"))
        return out

    def records(self, side: int) -> list[Record]:
        """The families as records; marginals of side 1 are subtracted."""
        return [FAMILY(**fields, side=side) for fields in self.families]

    def infer_into(self, theta: Potentials, value: Floats, mu: Marginals) -> Ran:
        """Write value and marginals of the instances; returns how many ran in each algebra."""
        if not self._supported:
            raise UnsupportedError(
                "an instance is not a forest with hidden components that touch two outputs at most; use elimination."
            )
        return self._call(theta, value, NO_VALUES, mu, self.workers.idle)


class ForestCall:
    """Families of one or both sides, bound to a cost of side 0: marginals are those of side 0 less those of side 1."""

    def __init__(self, batch: Batch, families: list[Record], cost: Potentials | None) -> None:
        self.batch = batch
        self.families = families
        self.cost = cost
        none = NO_VALUES
        self.record = FORESTS.record(
            families=np.array([record.address for record in families], dtype=np.int64),
            unary=none,
            tables=none,
            cost_unary=none if cost is None else np.ascontiguousarray(cost.unary, dtype=np.float64),
            cost_tables=none if cost is None else np.ascontiguousarray(cost.tables, dtype=np.float64),
            value=none,
            minus=none,
            mu_unary=none,
            mu_tables=none,
            threads=1,
            **dict.fromkeys(WRITTEN, 0),
        )

    def __call__(self, theta: Potentials, value: Floats, minus: Floats, mu: Marginals, threads: int) -> Ran:
        """Write the values of the members of side 0, those of side 1 to ``minus``, and marginals."""
        record = self.record.changed(
            unary=np.ascontiguousarray(theta.unary),
            tables=np.ascontiguousarray(theta.tables),
            value=value,
            minus=minus,
            mu_unary=mu.unary,
            mu_tables=mu.tables,
            threads=threads,
        )
        outcome = UNFINISHED
        while outcome == UNFINISHED:  # calls return five times a second, so that Python notices Ctrl-C
            outcome = FORESTS.run(record)
        if outcome == NO_NUMBERS:
            self.check(theta)
        return Ran(record.get("copies"), record.get("scaled"), record.get("scores"))

    def check(self, theta: Potentials) -> None:
        """Raise the error for scores in which a kernel met NaN or +inf."""
        (theta if self.cost is None else theta + self.cost).check(self.batch)
        raise AssertionError("a kernel met NaN or +inf in scores that have none.")
