"""Summaries of annotators: accuracy, confusion, coverage and bias, with intervals."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from mssvm.annotators.confusion import expected_counts
from mssvm.annotators.votes import Votes
from mssvm.core.arrays import Floats

Z_95 = 1.959963984540054  # two-sided 95% quantile of the standard normal
LEAST_BIAS = 5e-4  # what is less would be shown as 0.0%


@dataclass(frozen=True, eq=False)
class AnnotatorSummary:
    """One annotator, called ``name``, who gave ``n_votes`` votes.

    ``accuracy`` is the expected share of votes for the true label, ``interval`` a 95% Wilson interval of it,
    ``coverage`` the share of sites with a vote; ``confusion[y, v]`` estimates p(vote v | truth y), and ``bias[v]`` is
    how much more often v is voted for than true.

    >>> fitted = ms.HCRF(ms.Chain(), annotators=ms.Annotators(), random_state=0).fit(X, [{"ann": y[0]}, {"ann": y[1]}])
    >>> row = fitted.annotators_["ann"]
    >>> row.n_votes, row.coverage, row.confusion.shape
    (7, 1.0, (3, 3))
    """

    name: Hashable
    n_votes: int
    coverage: float
    accuracy: float
    interval: tuple[float, float]
    confusion: Floats
    bias: Floats


@dataclass(frozen=True, eq=False)
class AnnotatorTable:
    """All annotators (``rows``), in the order of their first votes; prints as a table, the least accurate first.

    ``classes`` are the labels, in the order of the axes of confusion tables.

    >>> fitted = ms.HCRF(ms.Chain(), annotators=ms.Annotators(), random_state=0).fit(X, [{"ann": y[0]}, {"ann": y[1]}])
    >>> fitted.annotators_["ann"].accuracy > 0.9
    True
    """

    classes: tuple[Hashable, ...]
    rows: tuple[AnnotatorSummary, ...]

    @classmethod
    def of(cls, votes: Votes, posterior: Floats, classes: Sequence[Hashable]) -> AnnotatorTable:
        """The table for the probabilities (sites, classes) of the true labels."""
        counts = expected_counts(votes, posterior, sequential=False)[:, 0]
        rows = []
        for name, table in zip(votes.names, counts, strict=True):
            n_votes = float(table.sum())
            right = float(np.trace(table))
            truth = table.sum(axis=1)
            per_row = np.where(truth[:, None] > 0, table / np.maximum(truth[:, None], 1e-300), 0.0)
            bias = (table.sum(axis=0) - truth) / max(n_votes, 1e-300)
            rows.append(
                AnnotatorSummary(
                    name=name,
                    n_votes=round(n_votes),
                    coverage=round(n_votes) / max(votes.n_sites, 1),
                    accuracy=right / n_votes if n_votes else float("nan"),
                    interval=wilson(right, n_votes),
                    confusion=per_row,
                    bias=bias,
                )
            )
        return cls(tuple(classes), tuple(rows))

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[AnnotatorSummary]:
        return iter(self.rows)

    def __getitem__(self, name: Hashable) -> AnnotatorSummary:
        for row in self.rows:
            if row.name == name:
                return row
        raise KeyError(name)

    def __str__(self) -> str:
        return self.to_text()

    def to_text(self, most: int | None = None) -> str:
        """The table as text, the least accurate first; at most ``most`` rows, then a line that counts the others.

        >>> crowd = ms.annotators.simulate(20, 10, seed=0)
        >>> fitted = ms.HCRF(ms.Chain(), annotators=ms.Annotators(max_iter=2, tol=1.0), random_state=0)
        >>> fitted.fit(crowd.X, crowd.votes).annotators_.to_text(most=1).splitlines()[-1]
        'and 2 more, each more accurate'
        """
        lines = [f"{'annotator':20} {'votes':>8} {'coverage':>8} {'accuracy':>8}  95% interval     votes too often for"]
        for row in sorted(self.rows, key=lambda row: row.accuracy)[:most]:
            lines.append(
                f"{row.name!s:20.20} {row.n_votes:8d} {row.coverage:8.1%} {row.accuracy:8.1%}  "
                f"[{row.interval[0]:.1%}, {row.interval[1]:.1%}]   {favoured(row, self.classes)}"
            )
        if most is not None and most < len(self.rows):
            lines.append(f"and {len(self.rows) - most} more, each more accurate")
        return "\n".join(lines)


def favoured(row: AnnotatorSummary, classes: Sequence[Hashable]) -> str:
    """The class that an annotator votes for too often, and how much more often than it is true."""
    if row.bias.max() < LEAST_BIAS:
        return "nothing"
    return f"{classes[int(row.bias.argmax())]} ({row.bias.max():+.1%})"


def wilson(right: float, n: float) -> tuple[float, float]:
    """The 95% Wilson interval of a share; (0, 1) without observations."""
    if n <= 0:
        return 0.0, 1.0
    share = right / n
    centre = share + Z_95**2 / (2 * n)
    half = Z_95 * float(np.sqrt(share * (1 - share) / n + Z_95**2 / (4 * n * n)))
    scale = 1 + Z_95**2 / n
    return max((centre - half) / scale, 0.0), min((centre + half) / scale, 1.0)
