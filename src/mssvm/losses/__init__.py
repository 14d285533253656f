"""Losses Delta(truth, prediction): each makes a table of costs that is added to the potentials of U+ (paper eq. 3).

``Hamming`` counts wrong sites, ``WeightedHamming`` weighs them by true and predicted class, ``TableLoss`` scores whole
factors, ``SpanLoss`` counts wrong and missed segments, and ``Zero`` is the absence of a loss (likelihoods). Any object
with the method ``delta`` of ``Loss`` will do. ``ZeroOne`` charges whole labellings and has no table.
"""

from mssvm.losses.base import Loss, Zero
from mssvm.losses.hamming import Hamming, WeightedHamming
from mssvm.losses.spans import SpanLoss
from mssvm.losses.table import TableLoss
from mssvm.losses.zero_one import ZeroOne

__all__ = ["Hamming", "Loss", "SpanLoss", "TableLoss", "WeightedHamming", "Zero", "ZeroOne"]
