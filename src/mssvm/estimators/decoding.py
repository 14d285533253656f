"""Answers of a fitted model: a question (inputs, roles, masks) goes to inference, a belief comes back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from mssvm.core.arrays import Bools, Floats, Ints
from mssvm.core.errors import InfeasibleError, InputError
from mssvm.core.potentials import Belief, Potentials, Query
from mssvm.data.labels import LabelSpace, flat_sites
from mssvm.inference.base import Inference
from mssvm.models.base import Model
from mssvm.objectives.sample import Sample
from mssvm.structures.encoded import Encoded, Sites, to_query

Best = Callable[[Inference, Sample, Potentials], Belief]
"""The maximising outputs of a sample's query, their score, and hidden variables given them."""


@dataclass(frozen=True, eq=False)
class Question:
    """Instances to answer for: what is an output, what is hidden, what is allowed; and the scores of a fitted model."""

    encoded: Encoded
    query: Query
    theta: Potentials
    model: Model[Any]
    w: Floats
    inference: Inference
    best: Best

    def __len__(self) -> int:
        return len(self.encoded)

    def map(self) -> Belief:
        """The best outputs (marginal MAP at the member's eps_h), and hidden variables given them."""
        belief = self.best(self.inference, _sample(self.encoded.inputs, self.query), self.theta)
        _check(belief)
        return belief

    def marginals(self, eps_y: float = 1.0, eps_h: float = 1.0) -> Floats:
        """(sites, classes): probabilities of the labels, by default under p(y, h | x) ~ exp theta(x, y, h)."""
        belief = self.inference(self.encoded.batch, self.theta, self.query, eps_y, eps_h)
        _check(belief)
        return belief.mu.unary[self.encoded.states_at]

    def restricted(self, mask: Bools) -> Question:
        """The same question with fewer labels allowed (mask over sites and classes)."""
        query = self.query.restrict(self.encoded.over_states(mask))
        return Question(self.encoded, query, self.theta, self.model, self.w, self.inference, self.best)

    def variants(self, which: Ints, query: Query) -> tuple[Belief, Ints]:
        """The best answers of the named instances (repeats allowed) under another query, and their states."""
        inputs = self.encoded.inputs.select(which)
        belief = self.best(self.inference, _sample(inputs, query), self.model.forward(self.w, inputs))
        return belief, belief.decode(inputs.batch)


def ask(
    structure: Any,
    space: Any,
    labels: LabelSpace,
    X: Any,
    hidden: Any,
    given: Any,
    allowed: Any,
    w: Floats,
    inference: Inference,
    best: Best,
) -> Question:
    """Encode X and what is known about its labels."""
    encoder = structure.encoder(space, labels)
    encoded = encoder.encode(X)
    shapes = encoded.labels.shapes
    clamped = None if given is None else labels.encode(given, shapes, "given")
    permitted = None if allowed is None else labels.encode(allowed, shapes, "allowed")
    mask = None if hidden is None else site_mask(hidden, encoded.labels)
    model = encoder.model
    query = to_query(encoded, mask, clamped, permitted)
    return Question(encoded, query, model.forward(w, encoded.inputs), model, w, inference, best)


def site_mask(hidden: Any, sites: Sites) -> Bools:
    """One bool per site from a mask in the shape of y."""
    if len(hidden) != len(sites.shapes):
        raise InputError(f"hidden has {len(hidden)} instances and X has {len(sites.shapes)}; they must match.")
    depth = len(sites.shapes[0])
    flat: list[Any] = []
    for b, item in enumerate(hidden):
        values = flat_sites(item, depth, b, "hidden")
        if len(values) != sites.ptr[b + 1] - sites.ptr[b] or not all(isinstance(v, (bool, np.bool_)) for v in values):
            raise InputError("give True or False for each of its sites.", what="hidden", instance=b)
        flat.extend(values)
    return np.array(flat, dtype=bool)


def map_states(question: Question) -> Ints:
    """The predicted class of every label site; hidden ones get the most probable class given the rest."""
    decoded = question.map().decode(question.encoded.batch)
    return decoded[question.encoded.labels.vars]


def hidden_states(question: Question) -> Any:
    """States of the structure's hidden variables, most probable given the best outputs."""
    decoded = question.map().decode(question.encoded.batch)
    return question.encoded.hidden.split(decoded[question.encoded.hidden.vars])


def agreement(states: Ints, observed: Bools, mask: Bools, ptr: Ints, weight: Floats) -> float:
    """Share of labelled sites whose prediction the label admits, weighted by instance."""
    per_site = np.repeat(weight, np.diff(ptr)) * observed
    total = per_site.sum()
    if not total > 0:
        raise InputError("score needs at least one labelled site of positive weight.")
    return float((per_site * mask[np.arange(len(states)), states]).sum() / total)


def _sample(inputs: Any, query: Query) -> Sample:
    """A sample without labels."""
    return Sample.of(inputs, query, np.ones(inputs.batch.n_states, dtype=bool))


def _check(belief: Belief) -> None:
    bad = np.flatnonzero(~np.isfinite(belief.value))
    if len(bad):
        reason = "no labelling satisfies the constraints; relax given, allowed or the structure."
        raise InfeasibleError(reason, instance=int(bad[0]))
