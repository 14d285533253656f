"""A labelled sample: inputs, the states that labels admit, and weights of instances and sites."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from mssvm.core.arrays import Bools, Floats, Ints
from mssvm.core.errors import InputError
from mssvm.core.potentials import Query
from mssvm.core.topology import Batch, counts, entries_of
from mssvm.inference.components import Components
from mssvm.models.base import Inputs


@dataclass(frozen=True, eq=False)
class Sample:
    """Instances with labels.

    ``truth`` (states) marks the states that a label admits: one for a label, several for a candidate set, all for
    hidden variables. ``weight`` (instances) scales each instance in the objective, ``site_weight`` (variables) each
    site's loss. ``extra_loss`` (states) is added to the loss, on hidden variables too. ``evidence`` (states, at most 0)
    is a soft label: log p(what was observed | state), up to a constant per variable, added to the scores of U-.
    ``segmented`` (variables) marks the variables of a segmentation, all of which are eliminated at eps_y, whether they
    have labels or not (None: there are no segments).
    """

    inputs: Inputs
    query: Query
    truth: Bools
    weight: Floats
    site_weight: Floats
    extra_loss: Floats | None = None
    evidence: Floats | None = None
    segmented: Bools | None = None

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
        instance_weight = _checked_weights(weight, "weight", len(batch), "instances")
        per_site = _checked_weights(site_weight, "site_weight", batch.n_vars, "variables")
        return cls(inputs, query, truth, instance_weight, per_site)

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
        """Mask of the instances with at least one output site or known boundary; others contribute nothing to any
        objective."""
        known = self.query.output
        if self.segmented is not None:  # spans without a label say where segments begin
            narrowed = np.zeros(self.batch.n_vars, dtype=bool)
            narrowed[self.batch.state_var[self.query.allowed & ~self.truth]] = True
            known = known | (narrowed & self.segmented)
        return np.asarray(counts(known, self.batch.var_ptr) > 0)

    @property
    def at_eps_y(self) -> Bools:
        """The variables that are eliminated at eps_y."""
        return self.query.output if self.segmented is None else self.segmented

    def log_states(self, query: Query, which: Bools) -> Floats:
        """Per instance, the log of the number of assignments of the variables ``which`` that a query allows."""
        logs = np.where(which, np.log(query.n_allowed(self.batch)), 0.0)
        return np.asarray(np.bincount(self.batch.owner, weights=logs, minlength=len(self.batch)), dtype=np.float64)

    def select(self, which: Sequence[int] | Ints) -> Sample:
        """The sub-sample of the named instances."""
        chosen = np.asarray(which, dtype=np.int64)
        variables = entries_of(self.batch.var_ptr, chosen)
        states = entries_of(self.batch.unary_ptr[self.batch.var_ptr], chosen)
        query = Query(self.query.output[variables], self.query.allowed[states])
        is_broadcast = not any(self.site_weight.strides)  # one number for all sites takes no memory
        return Sample(
            inputs=self.inputs.select(chosen),
            query=query,
            truth=self.truth[states],
            weight=self.weight[chosen],
            site_weight=self.site_weight[: len(query.output)] if is_broadcast else self.site_weight[variables],
            extra_loss=None if self.extra_loss is None else self.extra_loss[states],
            evidence=None if self.evidence is None else self.evidence[states],
            segmented=None if self.segmented is None else self.segmented[variables],
        )


def _checked_weights(weights: Floats | None, name: str, n: int, counted: str) -> Floats:
    """``weights`` as n finite numbers >= 0; default ones, which take no memory."""
    if weights is None:
        return np.broadcast_to(1.0, n)
    array = np.asarray(weights, dtype=np.float64)
    if array.shape != (n,) or not np.all(np.isfinite(array)) or np.any(array < 0):
        raise InputError(f"{name} needs one finite number >= 0 for each of the {n} {counted}.")
    return array
