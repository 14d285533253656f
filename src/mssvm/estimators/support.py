"""Which weights training sees: all of them, or those whose feature and label were seen together."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from mssvm.core.arrays import Bools
from mssvm.core.errors import InputError
from mssvm.core.potentials import Marginals
from mssvm.core.terms import Term
from mssvm.core.topology import spans
from mssvm.data.labels import Labels
from mssvm.models.linear import LinearInputs, LinearModel
from mssvm.models.partial import ActiveWeights, FixedWeights, has_optional_weights
from mssvm.structures.encoded import Encoded

CHOICES = ("all", "seen")


def check_support(choice: Any) -> bool:
    """Whether to keep only what was seen."""
    if choice not in CHOICES:
        raise InputError(f"support must be one of {', '.join(map(repr, CHOICES))}, got {choice!r}.")
    return bool(choice == "seen")


def supported(model: LinearModel | FixedWeights, encoded: Encoded, labels: Labels) -> ActiveWeights:
    """The model with the weights that ``labels`` support; known weights stay, seen or not."""
    keep = seen(model.n_weights, encoded, labels)
    return ActiveWeights.of(model, encoded.inputs, keep | model.known if isinstance(model, FixedWeights) else keep)


def seen(n_weights: int, encoded: Encoded, labels: Labels) -> Bools:
    """False on the weights of sparse features of sites for labels that are not among those given to any such site."""
    batch = encoded.batch
    of_labels = encoded.labels.mask(batch.n_vars)
    thin: list[Term] = []
    whole: list[Term] = []
    for term in encoded.inputs.terms:
        mine = term.target == "unary" and has_optional_weights(term) and of_labels[batch.state_var[term.at]].all()
        (thin if mine else whole).append(term)
    keep = np.ones(n_weights, dtype=bool)
    for terms, kept in ((thin, False), (whole, True)):
        for term in terms:
            starts = np.unique(term.block)
            keep[spans(starts, np.full(len(starts), term.block_size))] = kept
    given = np.zeros(batch.n_states)
    given[encoded.states_at] = labels.mask & labels.observed[:, None]
    met = LinearInputs(batch, tuple(replace(term, features=abs(term.features)) for term in thin))
    count = LinearModel(n_weights).adjoint(Marginals(given, np.zeros(batch.n_mu_entries)), met)
    return np.asarray(keep | (count > 0))
