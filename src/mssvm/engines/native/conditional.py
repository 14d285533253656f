"""Hidden trees given the outputs by the compiled library (``cpp/conditional.cpp``)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from mssvm.core.arrays import AnyArray, Bools, Floats, Ints
from mssvm.core.components import HiddenComponents
from mssvm.core.library import (
    FLOAT,
    FLOATS,
    INT,
    INTS,
    MASK,
    FieldKind,
    Function,
    Record,
    RecordKind,
    RecordType,
)
from mssvm.core.potentials import Marginals
from mssvm.engines.messages import Annealing, Borders
from mssvm.engines.native.wiring import WIRING

if TYPE_CHECKING:
    from mssvm.engines.native.messages import NativeMessageModel

# Instances per thread in one call that may take long: interrupts are noticed between calls.
PORTION = 8
NO_FLOATS = np.zeros(0)
NO_ANNEALING = Annealing(hot=NO_FLOATS, cold=NO_FLOATS, rounds=0, budget=0.0, draws=NO_FLOATS)

_HIDDEN: dict[str, FieldKind] = {
    "wiring": RecordKind(WIRING),
    "outside": MASK,
    "forest": MASK,
    "component": INTS,
    "ptr": INTS,
    "member_ptr": INTS,
    "visit": INTS,
    "up": INTS,
    "parent": INTS,
    "inside": INTS,
    "unary": FLOATS,
    "tables": FLOATS,
    "eps": FLOAT,
}
HIDDEN = RecordType("hidden", _HIDDEN)
SHARED_FIELDS: dict[str, FieldKind] = {"hidden": RecordKind(HIDDEN), "instances": INTS, "y": INTS}
EVALUATE = Function("mssvm_conditional_evaluate", **SHARED_FIELDS, value=FLOATS, threads=INT)
MARGINALS = Function("mssvm_conditional_marginals", **SHARED_FIELDS, mu_unary=FLOATS, mu_tables=FLOATS, threads=INT)
ANNEAL = Function(
    "mssvm_conditional_anneal",
    **SHARED_FIELDS,
    free=MASK,
    hot=FLOATS,
    cold=FLOATS,
    draws=FLOATS,
    rounds=INT,
    budget=FLOAT,
    threads=INT,
)
BORDERS = Function(
    "mssvm_conditional_borders",
    hidden=RecordKind(HIDDEN),
    ptr=INTS,
    var=INTS,
    entry_ptr=INTS,
    instances=INTS,
    y=INTS,
    values=FLOATS,
    weights=FLOATS,
    mu_unary=FLOATS,
    mu_tables=FLOATS,
    threads=INT,
)


@dataclass(frozen=True, eq=False)
class NativeConditional:
    """Q(y) on the potentials of a model."""

    model: NativeMessageModel
    hidden: Record

    @classmethod
    def of(cls, model: NativeMessageModel, components: HiddenComponents, eps_h: float) -> NativeConditional:
        """For the components of the hidden variables, at their temperature."""
        arrays: dict[str, AnyArray] = {}
        for name in ("component", "ptr", "member_ptr", "visit", "up", "parent", "inside"):
            arrays[name] = np.ascontiguousarray(getattr(components, name), dtype=np.int64)
        for name in ("outside", "forest"):
            arrays[name] = np.ascontiguousarray(getattr(components, name), dtype=np.bool_)
        record = HIDDEN(wiring=model.plan.wiring, **arrays, unary=model.unary, tables=model.tables, eps=float(eps_h))
        return cls(model, record)

    def evaluate(self, instances: Ints, y: Ints, value: Floats) -> None:
        EVALUATE(**self._shared_fields(instances, y), value=value)

    def marginals(self, instances: Ints, y: Ints, mu: Marginals) -> None:
        MARGINALS(**self._shared_fields(instances, y), mu_unary=mu.unary, mu_tables=mu.tables)

    def improve(self, instances: Ints, free: Bools, y: Ints, annealing: Annealing | None = None) -> None:
        chain = annealing or NO_ANNEALING
        for portion in self._in_portions(instances):
            ANNEAL(
                **self._shared_fields(portion, y),
                free=np.ascontiguousarray(free),
                hot=chain.hot,
                cold=chain.cold,
                draws=chain.draws,
                rounds=chain.rounds,
                budget=float(chain.budget),
            )

    def tabulate(self, borders: Borders, instances: Ints, y: Ints, values: Floats) -> None:
        self._at_borders(borders, instances, y, values, NO_FLOATS, Marginals(NO_FLOATS, NO_FLOATS))

    def expect(self, borders: Borders, instances: Ints, y: Ints, weights: Floats, mu: Marginals) -> None:
        self._at_borders(borders, instances, y, NO_FLOATS, weights, mu)

    def _at_borders(
        self, borders: Borders, instances: Ints, y: Ints, values: Floats, weights: Floats, mu: Marginals
    ) -> None:
        trial = y.copy()  # borders run through all their states
        for portion in self._in_portions(instances):
            BORDERS(
                **self._shared_fields(portion, trial),
                ptr=borders.ptr,
                var=borders.var,
                entry_ptr=borders.entry_ptr,
                values=values,
                weights=weights,
                mu_unary=mu.unary,
                mu_tables=mu.tables,
            )

    def _shared_fields(self, instances: Ints, y: Ints) -> dict[str, Any]:
        """The fields that all calls share."""
        index = np.ascontiguousarray(instances, dtype=np.int64)
        return {"hidden": self.hidden, "instances": index, "y": y, "threads": self.model.threads}

    def _in_portions(self, instances: Ints) -> Iterator[Ints]:
        size = PORTION * self.model.threads
        for first in range(0, len(instances), size):
            yield instances[first : first + size]
