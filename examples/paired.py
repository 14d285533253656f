"""What the examples share: options, and tables of scores over seeds with paired 95% intervals of the first lead."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence

import numpy as np
from scipy import stats


def options(text: str | None) -> argparse.Namespace:
    """How many seeds and steps; ``text`` says what of."""
    parser = argparse.ArgumentParser(description=text)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=150)
    return parser.parse_args()


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
