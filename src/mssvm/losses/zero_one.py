"""The loss of whole labellings: 0 for a labelling that the labels admit, ``scale`` for every other.

Delta(y_i, y) = scale 1[y is not admitted by y_i]

It is no sum over sites or factors, so it has no table; ``objectives.zero_one`` computes U+ by several inference calls.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mssvm.core.arrays import Bools, Floats
from mssvm.core.errors import InputError, UnsupportedError
from mssvm.core.params import Settings
from mssvm.core.potentials import Potentials
from mssvm.core.topology import Batch

NO_TABLE = (
    "the loss ZeroOne is no sum over sites, so only the members of the unified family can be trained with it; "
    "use 'hamming' with M3E, ModLat and the PyTorch layer."
)


@dataclass(frozen=True)
class ZeroOne(Settings):
    """``scale`` if any labelled output is wrong: the loss of the paper's remark on Bayes decisions.

    An evaluation takes one inference call for every labelled site of the longest instance, which suits short sequences
    and small graphs.

    >>> ms.SSVM(ms.Chain(), loss=ms.losses.ZeroOne()).fit(X, y).score(X, y)
    1.0
    """

    scale: float = 1.0

    def __post_init__(self) -> None:
        if not (np.isfinite(self.scale) and self.scale >= 0.0):
            raise InputError(f"the scale of a loss must be a finite number >= 0, got {self.scale!r}.")

    def delta(self, batch: Batch, output: Bools, truth: Bools, site_weight: Floats) -> Potentials:
        raise UnsupportedError(NO_TABLE)
