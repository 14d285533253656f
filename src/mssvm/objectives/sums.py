"""Sums over blocks in an order that depends on the number of blocks alone, not on the machines that sum them.

Blocks are the leaves of a tree: ``FAN`` neighbours have one parent, whose value is the sum of theirs from left to
right, and so on to the root. A ``Stretch`` is a partial sum: of one node, or of the first few children of one parent.
``joined`` gives the same bits for every division of the blocks into stretches and machines. Up to ``FAN``
blocks are simply summed from left to right.
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
        """Whether the first node is the first child of its parent."""
        return bool(self.first % FAN ** (self.level + 1) == 0)


def joined(stretches: Iterable[Stretch], n_blocks: int) -> list[Stretch]:
    """Neighbouring stretches, in order, summed as far as the tree allows: to one if they cover all of ``n_blocks``."""
    stack: list[Stretch] = []
    for stretch in stretches:
        stack.append(stretch)
        while True:
            if _completes_parent(stack[-1], n_blocks):
                children = stack.pop()
                stack.append(Stretch(children.first, children.last, children.part, children.level + 1))
            elif len(stack) > 1 and _adjoin(stack[-2], stack[-1]):
                child = stack.pop()
                siblings = stack.pop()
                part = Evaluation.union([siblings.part, child.part])
                stack.append(Stretch(siblings.first, child.last, part, child.level, siblings.count + 1))
            else:
                break
    return stack


def _completes_parent(stretch: Stretch, n_blocks: int) -> bool:
    """Whether the stretch is the sum of all children of a parent and can be replaced by that parent."""
    is_root = stretch.last - stretch.first == n_blocks
    has_all_children = stretch.count == FAN or stretch.last == n_blocks
    return stretch.leads and has_all_children and not is_root


def _adjoin(siblings: Stretch, child: Stretch) -> bool:
    """Whether ``siblings`` is the sum of the first children of a parent and ``child`` is its next one."""
    same_level = siblings.level == child.level
    return same_level and siblings.leads and siblings.last == child.first and not child.leads


def in_order(parts: Sequence[Evaluation]) -> Evaluation:
    """The sum of all blocks, by the tree."""
    while len(parts) > 1:
        parts = [Evaluation.union(parts[k : k + FAN]) for k in range(0, len(parts), FAN)]
    return parts[0]
