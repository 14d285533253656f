"""A labelled sample: inputs, roles, and the states that the labels admit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from mssvm.core.arrays import Bools, Floats, Ints
from mssvm.core.errors import InputError
from mssvm.core.potentials import Query
from mssvm.core.topology import Batch, counts, spans
from mssvm.inference.components import Components
from mssvm.models.base import Inputs


@dataclass(frozen=True, eq=False)
class Sample:
    """Instances with labels. ``truth`` marks the states a label admits: one for a label, several for a candidate set,
    all for hidden variables. ``weight`` scales each instance in the objective, ``site_weight`` each site's loss.
    ``extra_loss`` is added to the loss of each state, on hidden variables too."""

    inputs: Inputs
    query: Query
    truth: Bools
    weight: Floats
    site_weight: Floats
    extra_loss: Floats | None = None

    @classmethod
    def of(
        cls,
        inputs: Inputs,
        query: Query,
        truth: Bools,
        weight: Floats | None = None,
        site_weight: Floats | None = None,
    ) -> Sample:
        """Check and assemble a sample; weights default to one."""
        batch = inputs.batch
        query.check(batch)
        if truth.shape != (batch.n_states,):
            raise InputError(f"truth has shape {truth.shape}, the batch needs ({batch.n_states},).")
        query.restrict(truth).check(batch)
        weights = []
        for name, given, n in (("weight", weight, len(batch)), ("site_weight", site_weight, batch.n_vars)):
            weights.append(np.broadcast_to(1.0, n) if given is None else np.asarray(given, dtype=np.float64))
            if weights[-1].shape != (n,) or not np.all(np.isfinite(weights[-1])) or np.any(weights[-1] < 0):
                of = "instances" if name == "weight" else "variables"
                raise InputError(f"{name} needs one finite number >= 0 for each of the {n} {of}.")
        return cls(inputs, query, truth, *weights)

    @property
    def batch(self) -> Batch:
        return self.inputs.batch

    def __len__(self) -> int:
        return len(self.batch)

    @cached_property
    def truth_query(self) -> Query:
        """The query of U-: outputs restricted to what the labels admit."""
        return self.query.restrict(self.truth)

    @cached_property
    def components(self) -> Components:
        """The hidden components as tables over the outputs they border, the same at all temperatures."""
        return Components.of(self.batch, self.query)

    @cached_property
    def labelled(self) -> Bools:
        """Instances with at least one output site; the others contribute nothing to any objective."""
        return np.asarray(counts(self.query.output, self.batch.var_ptr) > 0)

    def log_states(self, query: Query, which: Bools) -> Floats:
        """Per instance, the log of the number of assignments of the variables ``which`` that a query allows."""
        logs = np.where(which, np.log(query.n_allowed(self.batch)), 0.0)
        return np.asarray(np.bincount(self.batch.owner, weights=logs, minlength=len(self.batch)), dtype=np.float64)

    def select(self, which: Sequence[int] | Ints) -> Sample:
        """The sub-sample of the named instances."""
        chosen = np.asarray(which, dtype=np.int64)
        batch = self.batch
        variables = spans(batch.var_ptr[chosen], np.diff(batch.var_ptr)[chosen])
        state_ptr = batch.unary_ptr[batch.var_ptr]
        states = spans(state_ptr[chosen], np.diff(state_ptr)[chosen])
        query = Query(self.query.output[variables], self.query.allowed[states])
        inputs = self.inputs.select(chosen)
        extra = None if self.extra_loss is None else self.extra_loss[states]
        weight = self.site_weight  # one number for all sites takes no memory
        weight = weight[variables] if any(weight.strides) else weight[: len(variables)]
        return Sample(inputs, query, self.truth[states], self.weight[chosen], weight, extra)
