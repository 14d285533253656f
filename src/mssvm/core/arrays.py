"""Array type names used throughout the package, the sum by group, and memory that is handed out again."""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from sys import getrefcount
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
AnyArray = npt.NDArray[Any]


def sum_by(group: AnyArray, values: AnyArray, n: int) -> Floats:
    """Sums of ``values`` over equal entries of ``group``, for the groups 0 .. n-1, in order of appearance."""
    return np.asarray(np.bincount(group, weights=values, minlength=n), dtype=np.float64)


class Spare:
    """Arrays that are handed out again once nobody else has them, or a view of them: the system takes longer to give
    memory anew than some kernels run. Two sets, as many callers hold one result until they have the next."""

    def __init__(self) -> None:
        self._kept = deque[list[Floats]](maxlen=2)

    def empty(self, *sizes: int) -> list[Floats]:
        """Arrays of so many numbers, which may be anything."""
        with suppress(IndexError):
            for _ in range(2):
                arrays = self._kept.popleft()  # nobody else's while this one looks at them
                # Of an array in a list that nobody else has there are two references while it is counted.
                free = all(getrefcount(arrays[k]) == 2 for k in range(len(arrays)))
                self._kept.append(arrays)
                if free and tuple(map(len, arrays)) == sizes:
                    return list(arrays)
        arrays = [np.empty(n) for n in sizes]
        self._kept.append(arrays)
        return list(arrays)
