"""Tables of scores over seeds, with 95% intervals of the differences from the first row, paired by seed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from scipy import stats


def table(title: str, scores: Mapping[str, Sequence[float]]) -> str:
    """One line a method: mean, and how far the first method is ahead."""
    first = np.array(next(iter(scores.values())))
    lines = [title]
    for name, values in scores.items():
        ahead = first - np.array(values)
        line = f"  {name:<34}{np.mean(values):7.2f}"
        if ahead.any() and len(ahead) > 1:
            half = stats.t.ppf(0.975, len(ahead) - 1) * ahead.std(ddof=1) / np.sqrt(len(ahead))
            line += f"   first ahead by {ahead.mean():+.2f} [{ahead.mean() - half:+.2f}, {ahead.mean() + half:+.2f}]"
        lines.append(line)
    return "\n".join(lines)
