"""Summary of inference on a block at given weights: methods, convergence, use of hidden states, training accuracy."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

import numpy as np

from mssvm.core.arrays import Bools, Floats
from mssvm.core.potentials import Belief, Potentials, segment_argmax
from mssvm.core.topology import Batch
from mssvm.engines.base import BoundQuery
from mssvm.objectives.sample import Sample


class InferenceSummary(NamedTuple):
    """Inference on a block at some weights.

    ``methods`` counts instances by the method that answered; ``exact`` says whether all answers are exact,
    ``converged`` how many of ``n`` converged. ``usage`` has, by number of states, the sum of the marginals of the
    hidden variables of that size and their number. ``right`` counts the labelled sites whose best state is among the
    labels, ``right_alone`` those whose state of highest unary score is: the prediction of the model without its links.
    """

    methods: Counter[str]
    exact: bool
    converged: int
    n: int
    usage: dict[int, tuple[Floats, int]]
    right: int
    right_alone: int = 0


def summarize_inference(
    sample: Sample, free: BoundQuery, clamped: BoundQuery, theta: Potentials, hidden: Bools
) -> InferenceSummary:
    """The summary at ``theta``: ``free`` ranges over all states, ``clamped`` over those that the labels admit.

    ``hidden`` masks the variables whose use of states is of interest.
    """
    batch = sample.batch
    right_alone = _right_alone(sample, theta)
    belief = free(theta)
    best_state = batch.unary_ptr[:-1] + belief.decode(batch)
    right = sample.truth[best_state] & sample.query.output
    exact = belief.status.exact
    converged = belief.status.converged
    methods = Counter(belief.status.method)
    del belief  # its marginals are not needed beside those given the labels
    usage: dict[int, tuple[Floats, int]] = {}
    if hidden.any() or not exact.all():
        given_labels = clamped(theta)
        exact = np.append(exact, given_labels.status.exact)
        converged = np.append(converged, given_labels.status.converged)
        usage = _state_usage(batch, given_labels, hidden)
    return InferenceSummary(
        methods=methods,
        exact=bool(exact.all()),
        converged=int(converged.sum()),
        n=len(converged),
        usage=usage,
        right=int(right.sum()),
        right_alone=right_alone,
    )


def _right_alone(sample: Sample, theta: Potentials) -> int:
    """Labelled sites whose allowed state of highest unary score is among the labels."""
    batch = sample.batch
    unary = np.where(sample.query.allowed, np.asarray(theta.unary), -np.inf)
    best_state = batch.unary_ptr[:-1] + segment_argmax(unary, batch.unary_ptr)
    return int((sample.truth[best_state] & sample.query.output).sum())


def _state_usage(batch: Batch, belief: Belief, hidden: Bools) -> dict[int, tuple[Floats, int]]:
    """By number of states: the summed marginals of the hidden variables of that size, and their number."""
    variables = np.flatnonzero(hidden)
    cards = np.diff(batch.unary_ptr)[variables]
    usage: dict[int, tuple[Floats, int]] = {}
    for card in np.unique(cards).tolist():
        members = variables[cards == card]
        mu = belief.mu.unary[batch.unary_ptr[members][:, None] + np.arange(card)]
        usage[card] = (mu.sum(axis=0), len(members))
    return usage
