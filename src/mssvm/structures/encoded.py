"""A batch of the user's instances as the layers below see it, and the way back to the user's shapes."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

from mssvm.core.arrays import AnyArray, Bools, Floats, Ints
from mssvm.core.errors import InputError, at_row
from mssvm.core.potentials import Query
from mssvm.core.recent import Recent
from mssvm.core.topology import Batch, offsets, spans, spread
from mssvm.data.labels import Labels
from mssvm.engines.base import Bound
from mssvm.losses.losses import Loss, inputs_for
from mssvm.models.linear import LinearInputs
from mssvm.objectives.sample import Sample

BOUNDS = 4  # kept of one query


@dataclass(frozen=True, eq=False)
class Sites:
    """Some variables of a batch in the order the user lists them, instance by instance.

    ``vars`` are numbers within the batch, those of instance b at ``ptr[b] : ptr[b+1]``, laid out in C order of
    ``shapes[b]``: (T,) for a sequence, (H, W) for a grid, () for one variable an instance. ``table``: all instances
    have the same.
    """

    vars: Ints
    ptr: Ints
    shapes: tuple[tuple[int, ...], ...]
    table: bool = False

    @property
    def scalar(self) -> bool:
        """Whether an instance has one site and no axis, so that its labels are one flat array."""
        return bool(self.shapes) and self.shapes[0] == ()

    def split(self, values: AnyArray) -> Any:
        """One entry per site, further axes kept: a list of arrays in the user's shapes, or one array if ``scalar`` or
        ``table``."""
        if self.scalar:
            return values
        if self.table:
            return values.reshape(len(self.shapes), *self.shapes[0], *values.shape[1:])
        parts = [values[a:b] for a, b in pairwise(self.ptr.tolist())]
        if len(self.shapes) and len(self.shapes[0]) == 1:
            return parts
        more = values.shape[1:]
        return [part.reshape(*shape, *more) for part, shape in zip(parts, self.shapes, strict=True)]

    def select(self, instances: Ints, old: Batch, new: Batch) -> Sites:
        """The sites of the named instances, renumbered for the sub-batch."""
        sizes = np.diff(self.ptr)[instances]
        shift = np.repeat(new.var_ptr[:-1] - old.var_ptr[instances], sizes)
        variables = self.vars[spans(self.ptr[instances], sizes)] + shift
        return Sites(variables, offsets(sizes), tuple(map(self.shapes.__getitem__, instances.tolist())), self.table)


@dataclass(frozen=True, eq=False)
class Plain:
    """The query for all labels of a batch, none known, and what it was bound to, by what that depends on."""

    query: Query
    bounds: Recent[Hashable, Bound] = field(default_factory=lambda: Recent(BOUNDS, bool))


@dataclass(frozen=True, eq=False)
class Encoded:
    """Inputs of the model, the variables that carry labels, and those that are hidden whatever the labels say.

    ``allowed`` marks the states that the structure permits (over all states of the batch; None: all); ``plain`` is
    there where the layout of the batch is kept.
    """

    inputs: LinearInputs
    labels: Sites
    hidden: Sites
    n_classes: int
    allowed: Bools | None = None
    plain: Plain | None = None

    @property
    def batch(self) -> Batch:
        return self.inputs.batch

    @property
    def states_at(self) -> slice | Ints:
        """Where the classes of the label sites lie, site by site, in an array over the states of the batch."""
        first, k = self.batch.unary_ptr[self.labels.vars], self.n_classes
        if len(first) and np.array_equal(first, np.arange(first[0], first[0] + k * len(first), k)):
            return slice(int(first[0]), int(first[0]) + k * len(first))
        return (first[:, None] + np.arange(k)).ravel()

    def over_sites(self, values: AnyArray) -> AnyArray:
        """An array over the states of the batch as (sites, classes)."""
        return values[self.states_at].reshape(-1, self.n_classes)

    def select(self, instances: Sequence[int] | Ints) -> Encoded:
        """The named instances."""
        chosen = np.asarray(instances, dtype=np.int64)
        inputs, old = self.inputs.select(chosen), self.batch
        allowed = None
        if self.allowed is not None:
            ptr = old.unary_ptr[old.var_ptr]
            allowed = self.allowed[spans(ptr[chosen], np.diff(ptr)[chosen])]
        labels, hidden = (s.select(chosen, old, inputs.batch) for s in (self.labels, self.hidden))
        return Encoded(inputs, labels, hidden, self.n_classes, allowed)

    def over_states(self, mask: Bools, what: str) -> Bools:
        """A mask (sites, classes) as a mask over the states of the batch, True on all other variables."""
        n_sites = len(self.labels.vars)
        if mask.shape != (n_sites, self.n_classes):
            raise InputError(
                f"{what} covers {mask.shape[0]} sites and {mask.shape[1]} classes; "
                f"X has {n_sites} sites and the model {self.n_classes} classes."
            )
        if mask.size == self.batch.n_states and isinstance(self.states_at, slice):
            return np.asarray(mask.ravel())
        out = np.ones(self.batch.n_states, dtype=bool)
        out[self.states_at] = mask.ravel()
        return out


def to_query(
    encoded: Encoded, hidden_sites: Bools | None = None, given: Labels | None = None, allowed: Labels | None = None
) -> Query:
    """The query of prediction: label sites are outputs unless ``hidden_sites`` marks them; the rest stays hidden.

    ``given`` clamps observed sites to their label or restricts them to their candidate set; ``allowed`` restricts too.
    Both are ``LabelVocabulary.encode`` of labels in the shape of y.
    """
    batch, sites = encoded.batch, encoded.labels
    if encoded.plain is not None and hidden_sites is None and given is None and allowed is None:
        return encoded.plain.query
    output = spread(sites.vars, batch.n_vars)
    if hidden_sites is not None:
        if hidden_sites.shape != sites.vars.shape:
            raise InputError(f"hidden_sites has shape {hidden_sites.shape}; there are {len(sites.vars)} label sites.")
        output[sites.vars[hidden_sites]] = False
    query = Query(output, np.ones(batch.n_states, dtype=bool) if encoded.allowed is None else encoded.allowed)
    for name, labels in (("allowed", allowed), ("given", given)):
        if labels is not None:
            query = query.restrict(encoded.over_states(labels.mask, name))
    if encoded.allowed is not None or allowed is not None or given is not None:
        _check(encoded, query, "given" if given is not None else "allowed")
    return query


def to_sample(
    encoded: Encoded, labels: Labels, weight: Floats | None = None, site_weight: Floats | None = None,
    allowed: Labels | None = None, loss: Loss | None = None,
) -> Sample:  # fmt: skip
    """The training sample: missing sites become hidden, candidate sets become truth masks (paper section 7.2).

    ``weight`` is per instance; ``site_weight`` is per label site and scales that site's loss. Where the ``loss`` needs
    it, factors get tables of their own.
    """
    for b in np.flatnonzero(np.diff(encoded.labels.ptr) == 0)[:1].tolist():
        raise InputError("there is no site to label; leave empty instances out.", instance=b)
    truth = encoded.over_states(labels.mask, "y")
    query = to_query(encoded, ~labels.observed, None, allowed)
    _check(encoded, query.restrict(truth), "y")
    per_variable = None
    if site_weight is not None:
        n_sites = len(encoded.labels.vars)
        if np.shape(site_weight) != (n_sites,):
            raise InputError(f"site weights have shape {np.shape(site_weight)}; there are {n_sites} sites.")
        per_variable = np.ones(encoded.batch.n_vars)
        per_variable[encoded.labels.vars] = site_weight
    return Sample.of(inputs_for(loss, encoded.inputs), query, truth, weight, per_variable)


def _check(encoded: Encoded, query: Query, what: str) -> None:
    """Raise if some variable has no state left, naming the user's site where it is one."""
    empty = query.n_allowed(encoded.batch)[encoded.labels.vars] == 0
    for s in np.flatnonzero(empty)[:1].tolist():
        reason = "no label is left that the constraints allow; change the label or the constraint."
        raise InputError(reason, what=what, **at_row(s, encoded.labels.ptr))
