"""Array type names used throughout the package, and the sum by group."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
AnyArray = npt.NDArray[Any]


def sum_by(group: AnyArray, values: AnyArray, n: int) -> Floats:
    """The sums (n,) of ``values`` by group: ``group`` has the group, 0 .. n-1, of every value. Values are added in
    their order."""
    return np.asarray(np.bincount(group, weights=values, minlength=n), dtype=np.float64)
