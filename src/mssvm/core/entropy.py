"""Entropy of distributions, in nats."""

from __future__ import annotations

import numpy as np

from mssvm.core.arrays import Floats


def entropy(p: Floats) -> Floats:
    """- sum_y p(y) log p(y) along the last axis; 0 log 0 is 0."""
    return np.asarray(-(p * np.log(np.maximum(p, 1e-300))).sum(axis=-1))
