"""Random numbers that depend on seed, stream and position alone, so that no order of evaluation changes a result."""

from __future__ import annotations

import numpy as np

from mssvm.core.arrays import AnyArray, Floats, Ints


def uniforms(position: Ints, seed: int, stream: int) -> Floats:
    """Numbers in (0, 1) at the given positions of the pseudo-random sequence (SplitMix64) of a seed and stream."""
    word = _splitmix(np.array([seed % (1 << 64)], dtype=np.uint64) + _STEP)
    word = _splitmix((word ^ np.uint64(stream)) + _STEP)
    bits = _splitmix(word + (position.astype(np.uint64) + np.uint64(1)) * _STEP)
    return ((bits >> np.uint64(11)).astype(np.float64) + 0.5) / 2.0**53


_STEP = np.uint64(0x9E3779B97F4A7C15)


def _splitmix(z: AnyArray) -> AnyArray:
    """The output function of SplitMix64."""
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(z ^ (z >> np.uint64(31)))
