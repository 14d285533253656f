"""Linear models on forests: U+ - U- and its gradient from weights, in one call (``cpp/joined.cpp``)."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from mssvm.core.arrays import Floats
from mssvm.core.library import FLOATS, INT, Function, Record, RecordKind
from mssvm.core.potentials import Potentials
from mssvm.core.topology import Batch
from mssvm.engines.base import Joined, Pair, TwoCalls
from mssvm.engines.native.exact import GIVEN, GivenStates, NativeBoundQuery
from mssvm.engines.native.forests import FORESTS, NO_NUMBERS, NO_VALUES, UNFINISHED, ForestCall, ForestRoute
from mssvm.engines.native.terms import ADJOINT, FORWARD

JOINED = Function(
    "mssvm_joined",
    forward=RecordKind(FORWARD.record),
    forests=RecordKind(FORESTS.record),
    given=RecordKind(GIVEN.record),
    adjoint=RecordKind(ADJOINT.record),
    w=FLOATS,
    value=FLOATS,
    gradient=FLOATS,
    workspace=FLOATS,
    threads=INT,
    side=INT,
    task=INT,
)


class WeightMap(Protocol):
    """Scores from weights and the transpose (``features.LinearFeatures``), as records of calls."""

    batch: Batch
    n_weights: int
    forward_record: Record

    @property
    def adjoint_record(self) -> Record: ...

    def weights(self, w: Floats) -> Floats: ...


class JoinedInference:
    """Forests under a query and a narrower one, or with given states, from weights to values and a gradient."""

    def __init__(
        self, features: WeightMap, sides: list[ForestRoute], given: GivenStates | None, cost: Potentials | None
    ) -> None:
        self.features = features
        self.workers = sides[0].workers
        batch = features.batch
        records = [record for k, side in enumerate(sides) for record in side.records(k)]
        self._forests = ForestCall(batch, records, cost)
        # Scores, marginals, and tables of the adjoint, in a workspace of the thread.
        self._workspace_size = 2 * batch.n_states + 2 * batch.n_table_entries + batch.n_mu_entries
        self._record = JOINED.record(
            forward=features.forward_record,
            forests=self._forests.record,
            given=None if given is None else given.record.changed(subtract=1),
            adjoint=features.adjoint_record,
            w=NO_VALUES,
            value=NO_VALUES,
            gradient=NO_VALUES,
            workspace=NO_VALUES,
            threads=1,
            side=0,
            task=0,
        )

    def __call__(self, w: Floats) -> tuple[Floats, Floats, Floats]:
        value = np.zeros((2, len(self.features.batch)))
        gradient = np.empty(self.features.n_weights)
        workspace = self.workers.workspace("joined", self._workspace_size)
        record = self._record.changed(
            w=self.features.weights(w), value=value, gradient=gradient, workspace=workspace, threads=self.workers.idle
        )
        outcome = UNFINISHED
        while outcome == UNFINISHED:  # called again until it is done, as in ``ForestCall``
            outcome = JOINED.run(record)
        if outcome == NO_NUMBERS:
            batch = self.features.batch
            states = batch.n_states
            self._forests.check(Potentials(workspace[:states], workspace[states : states + batch.n_table_entries]))
        return value[0], value[1], gradient


def joined(features: WeightMap, pair: Pair, cost: Potentials | None) -> Joined | None:
    """U+ - U- from weights in one call, where both are forests or given states; else None."""
    if not isinstance(pair, TwoCalls) or not isinstance(pair.plus, NativeBoundQuery):
        return None
    assert isinstance(pair.minus, NativeBoundQuery)
    plus = pair.plus.routes
    minus = pair.minus.routes
    if len(plus) != 1 or not isinstance(plus[0], ForestRoute):
        return None
    if not all(isinstance(route, (ForestRoute, GivenStates)) for route in minus):
        return None
    forests = [plus[0], *(route for route in minus if isinstance(route, ForestRoute))]
    given = next((route for route in minus if isinstance(route, GivenStates)), None)
    return JoinedInference(features, forests, given, cost)
