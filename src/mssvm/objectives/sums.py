"""Sums over blocks in an order that depends on the number of blocks alone, whoever sums which of them where.

Blocks are the leaves of a tree: ``FAN`` neighbours have one parent, whose sum is theirs from left to right, and so on
to the root. A ``Stretch`` is the sum of a first few children of one parent, or of one child; whatever stretches the
blocks were summed to before, on whatever machines, ``joined`` makes of them carries the same bits. Up to ``FAN`` blocks
are plainly summed from left to right.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from mssvm.objectives.problem import Evaluation

FAN = 4


@dataclass(frozen=True, eq=False)
class Stretch:
    """The sum of ``count`` neighbouring nodes of a ``level`` (0: blocks), from block ``first`` to before ``last``."""

    first: int
    last: int
    part: Evaluation
    level: int = 0
    count: int = 1

    @property
    def leads(self) -> bool:
        """Whether its first node is the first child of its parent."""
        return bool(self.first % FAN ** (self.level + 1) == 0)


def joined(stretches: Iterable[Stretch], n_blocks: int) -> list[Stretch]:
    """Neighbouring stretches, in order, summed as far as the tree allows: to one if they are all of ``n_blocks``."""
    out: list[Stretch] = []
    for stretch in stretches:
        out.append(stretch)
        while True:
            last = out[-1]
            if last.leads and (last.count == FAN or last.last == n_blocks) and last.last - last.first < n_blocks:
                out[-1] = Stretch(last.first, last.last, last.part, last.level + 1)
            elif len(out) > 1 and _adjoin(out[-2], last):
                before = out[-2]
                part = Evaluation.union([before.part, last.part])
                out[-2:] = [Stretch(before.first, last.last, part, last.level, before.count + 1)]
            else:
                break
    return out


def _adjoin(before: Stretch, last: Stretch) -> bool:
    """Whether ``last`` is the next child of the parent whose first children ``before`` is the sum of."""
    return before.level == last.level and before.leads and before.last == last.first and not last.leads


def in_order(parts: Sequence[Evaluation]) -> Evaluation:
    """The sum of all blocks."""
    while len(parts) > 1:
        parts = [Evaluation.union(parts[k : k + FAN]) for k in range(0, len(parts), FAN)]
    return parts[0]
