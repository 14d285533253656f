"""Encode: X as inputs of the model, and labels in the user's shapes as queries and training samples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from mssvm.core.arrays import AnyArray, Bools, Floats, Ints
from mssvm.core.errors import InputError, at_row
from mssvm.core.potentials import Query
from mssvm.core.topology import Batch, mask_from_indices, spans
from mssvm.data.labels import Labels
from mssvm.losses import Loss
from mssvm.losses.base import inputs_for
from mssvm.models.linear import LinearInputs
from mssvm.objectives.sample import Sample
from mssvm.structures.layout import SegmentStates, Sites


@dataclass(frozen=True, eq=False)
class Encoded:
    """Inputs of the model, the variables that carry labels, and those that are always hidden.

    ``allowed`` marks the states that the structure permits (over all states of the batch; None: all). ``query`` is
    ``BatchLayout.query`` where the layout is cached: batches of the same topologies then have the same query object,
    which is a key in the cache of compiled inference. ``segments`` are the states of a segmentation's variables (None:
    there are no segments).
    """

    inputs: LinearInputs
    labels: Sites
    hidden: Sites
    n_classes: int
    allowed: Bools | None = None
    query: Query | None = None
    segments: SegmentStates | None = None

    @property
    def batch(self) -> Batch:
        return self.inputs.batch

    @property
    def states_at(self) -> slice | Ints:
        """Positions of the classes of the label sites, site by site, in an array over the states of the batch."""
        first = self.batch.unary_ptr[self.labels.vars]
        k = self.n_classes
        if len(first) and np.array_equal(first, np.arange(first[0], first[0] + k * len(first), k)):
            return slice(int(first[0]), int(first[0]) + k * len(first))
        return (first[:, None] + np.arange(k)).ravel()

    def over_sites(self, values: AnyArray) -> AnyArray:
        """An array over the states of the batch as (sites, classes)."""
        return values[self.states_at].reshape(-1, self.n_classes)

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

    def admitted(self, labels: Labels, what: str) -> Bools:
        """The states that labels admit, over all states of the batch."""
        states = self.over_states(labels.mask, what)
        if self.segments is None or labels.boundaries is None:
            return states
        states[self.segments.boundary[:, None] + np.arange(2)] = labels.boundaries
        classes = np.arange(self.n_classes)
        ptr = self.labels.ptr
        filled = np.diff(ptr) > 0
        states[self.segments.begin[filled, None] + classes] = labels.mask[ptr[:-1][filled]]
        states[self.segments.end[filled, None] + classes] = labels.mask[ptr[1:][filled] - 1]
        return states

    def select(self, instances: Sequence[int] | Ints) -> Encoded:
        """The named instances."""
        chosen = np.asarray(instances, dtype=np.int64)
        old = self.batch
        inputs = self.inputs.select(chosen)
        allowed = None
        if self.allowed is not None:
            ptr = old.unary_ptr[old.var_ptr]
            allowed = self.allowed[spans(ptr[chosen], np.diff(ptr)[chosen])]
        labels = self.labels.select(chosen, old, inputs.batch)
        hidden = self.hidden.select(chosen, old, inputs.batch)
        segments = None
        if self.segments is not None:
            sizes = np.diff(self.labels.ptr)[chosen]
            shift = inputs.batch.unary_ptr[inputs.batch.var_ptr[:-1]] - old.unary_ptr[old.var_ptr[chosen]]
            boundary = self.segments.boundary[spans(self.labels.ptr[chosen], sizes)] + np.repeat(shift, sizes)
            segments = SegmentStates(boundary, self.segments.begin[chosen] + shift, self.segments.end[chosen] + shift)
        return Encoded(inputs, labels, hidden, self.n_classes, allowed, segments=segments)


def to_query(
    encoded: Encoded, hidden_sites: Bools | None = None, given: Labels | None = None, allowed: Labels | None = None
) -> Query:
    """The query of prediction: label sites are outputs unless ``hidden_sites`` marks them; other variables are hidden.

    ``given`` clamps observed sites to their label or restricts them to their candidate set; ``allowed`` restricts too.
    Both are ``LabelVocabulary.encode`` of labels in the shape of y.
    """
    sites = encoded.labels
    if encoded.query is not None and hidden_sites is None:
        query = encoded.query
    else:
        output = mask_from_indices(sites.vars, encoded.batch.n_vars)
        if hidden_sites is not None:
            if hidden_sites.shape != sites.vars.shape:
                raise InputError(
                    f"hidden_sites has shape {hidden_sites.shape}; there are {len(sites.vars)} label sites."
                )
            output[sites.vars[hidden_sites]] = False
        permitted = encoded.allowed
        if permitted is None:
            permitted = np.ones(encoded.batch.n_states, dtype=bool)
        query = Query(output, permitted)
    if allowed is not None:
        query = query.restrict(encoded.admitted(allowed, "allowed"))
    if given is not None:
        query = query.restrict(encoded.admitted(given, "given"))
    if encoded.allowed is not None or allowed is not None or given is not None:
        _check_possible(encoded, query, "allowed" if given is None else "given")
    return query


def to_sample(
    encoded: Encoded,
    labels: Labels,
    weight: Floats | None = None,
    site_weight: Floats | None = None,
    allowed: Labels | None = None,
    loss: Loss | None = None,
) -> Sample:
    """The training sample: missing sites become hidden, candidate sets become truth masks (paper section 7.2).

    ``weight`` is per instance; ``site_weight`` is per label site and scales that site's loss. Where the ``loss`` needs
    it, factors get tables of their own.
    """
    empty = np.flatnonzero(np.diff(encoded.labels.ptr) == 0)
    if len(empty):
        raise InputError("there is no site to label; leave empty instances out.", instance=int(empty[0]))
    truth = encoded.admitted(labels, "y")
    query = to_query(encoded, ~labels.observed, None, allowed)
    _check_possible(encoded, query.restrict(truth), "y")
    per_variable = None
    if site_weight is not None:
        n_sites = len(encoded.labels.vars)
        if np.shape(site_weight) != (n_sites,):
            raise InputError(f"site weights have shape {np.shape(site_weight)}; there are {n_sites} sites.")
        per_variable = np.ones(encoded.batch.n_vars)
        per_variable[encoded.labels.vars] = site_weight
    sample = Sample.of(inputs_for(loss, encoded.inputs), query, truth, weight, per_variable)
    if encoded.segments is None:
        return sample
    segmented = mask_from_indices(encoded.labels.vars, encoded.batch.n_vars)
    segmented[encoded.batch.state_var[encoded.segments.boundary]] = True
    return replace(sample, segmented=segmented)


def _check_possible(encoded: Encoded, query: Query, what: str) -> None:
    """Raise if a label site, or a boundary of segments, has no state left, naming the user's site."""
    ptr = encoded.labels.ptr
    impossible = np.flatnonzero(query.n_allowed(encoded.batch)[encoded.labels.vars] == 0)
    if len(impossible):
        reason = "no label is left that the constraints allow; change the label or the constraint."
        raise InputError(reason, what=what, **at_row(int(impossible[0]), ptr))
    if encoded.segments is None:
        return
    classes = np.arange(encoded.n_classes)
    filled = np.diff(ptr) > 0
    first = ptr[:-1][filled]
    last = ptr[1:][filled] - 1
    segments = encoded.segments
    places = (
        (segments.begin[filled], classes, first, "no label is left for the first segment; change it, or forbidden."),
        (segments.end[filled], classes, last, "no label is left for the last segment; change it, or forbidden."),
        (segments.boundary, np.arange(2), np.arange(ptr[-1]), "a segment begins and may not; change it, or repeat."),
    )
    for at, states, sites, reason in places:
        impossible = np.flatnonzero(~query.allowed[at[:, None] + states].any(axis=1))
        if len(impossible):
            raise InputError(reason, what=what, **at_row(int(sites[impossible[0]]), ptr))
