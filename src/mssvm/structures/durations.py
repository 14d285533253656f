"""Scores of the lengths of segments: a table, or a family of distributions with weights as natural parameters.

"table"                      a weight for every label and length
"geometric"                  a + b (d - 1): what a chain has; log p = (d - 1) log p_stay + log(1 - p_stay)
"poisson"                    a + b (d - 1) - log (d - 1)!: d - 1 is a Poisson variable of mean exp(b)
"negative-binomial"          a + b (d - 1) + log binomial(d + r - 2, d - 1): d - 1 is the number of failures before
                             success r = 4, with exp(b) the probability of a failure; ("negative-binomial", r)
"gamma"                      a + b (d - 1) + c log d: a geometric family whose most probable length is free
an array (K, J)              features of the lengths 1 .. K, with J weights per label
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from scipy.special import gammaln

from mssvm.core.arrays import Floats
from mssvm.core.checks import number, numbers, shown
from mssvm.core.errors import InputError

FAMILIES = ("table", "geometric", "poisson", "negative-binomial", "gamma")
SUCCESSES = 4.0  # the default r of the negative binomial family


class Durations(NamedTuple):
    """Features of the lengths 1 .. K (None: a weight for every length) with their names, and known scores (K,)."""

    basis: Floats | None
    names: tuple[str, ...] = ()
    known: Floats | None = None


def durations_of(durations: Any, longest: int) -> Durations:
    """The parameter ``durations`` of ``Segments``, for segments of up to ``longest`` sites."""
    family = durations
    successes = SUCCESSES
    if isinstance(durations, (tuple, list)) and len(durations) == 2 and isinstance(durations[0], str):
        family = durations[0]
        if family != "negative-binomial":
            raise InputError(f"only 'negative-binomial' durations take a number, got {shown(durations)}.")
        successes = number(durations[1], "durations[1]", above=0.0)
    if not isinstance(family, str):
        return _of_features(durations, longest)
    if family not in FAMILIES:
        listed = ", ".join(map(repr, FAMILIES))
        raise InputError(f"durations must be {listed} or an array of features of lengths, got {shown(durations)}.")
    if family == "table":
        return Durations(None)
    beyond = np.arange(longest, dtype=np.float64)  # sites after the first
    columns = [np.ones(longest), beyond]
    names = ["1", "length"]
    known = None
    if family == "gamma":
        columns.append(np.log1p(beyond))
        names.append("log length")
    elif family == "poisson":
        known = -gammaln(beyond + 1.0)
    elif family == "negative-binomial":
        known = gammaln(beyond + successes) - gammaln(beyond + 1.0) - gammaln(successes)
    return Durations(np.stack(columns, axis=1), tuple(names), known)


def _of_features(durations: Any, longest: int) -> Durations:
    needs = f"one row of finite features for each of the {longest} lengths"
    array = numbers(durations, "durations", needs)
    if array.ndim != 2 or len(array) != longest or not array.shape[1]:
        raise InputError(f"durations has shape {array.shape}; it needs {needs}.")
    return Durations(array, tuple(f"length {j}" for j in range(array.shape[1])))
