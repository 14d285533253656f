"""Sets of labels and of spans that contain the truth as often as promised, however good or bad the model is.

A fitted model gives every label (or span) a nonconformity score, its strangeness; held-out instances show how strange
true labels are. The promise is a theorem (conformal risk control, Angelopoulos et al. 2022) that assumes one thing:
calibration and new instances are exchangeable. ``thresholds`` implements it, ``LabelSets`` and ``SpanSets`` use it.
"""

from mssvm.conformal.labels import LabelSets
from mssvm.conformal.spans import SpanSets
from mssvm.conformal.thresholds import Coverage

__all__ = ["Coverage", "LabelSets", "SpanSets"]
