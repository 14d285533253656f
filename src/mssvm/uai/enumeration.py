"""A proof by enumeration where constraints leave few possible outputs: each of them is evaluated exactly.

Output variables are decided in their order, and arc consistency removes the states that each decision rules out, so
that most branches end early. Random descents estimate the number of possible outputs beforehand: the product of the
numbers of children along a descent is an unbiased estimate (Knuth 1975).
"""

from __future__ import annotations

from collections.abc import Iterator
from time import monotonic
from typing import TYPE_CHECKING

import numpy as np

from mssvm.core.arrays import Bools
from mssvm.core.potentials import segment_argmax

if TYPE_CHECKING:
    from mssvm.uai.search import AnytimeSearch

# At most this number of random descents, within this share of the time; a product above MOST_OUTPUTS ends them all.
DESCENTS = 400
DESCENT_SHARE = 0.02
MOST_OUTPUTS = 1e7
# Ends of descents that are evaluated.
MOST_EVALUATED = 20


class Enumeration:
    """Depth-first search for all possible outputs of a search's instance; every ``run`` continues the last one."""

    def __init__(self, search: AnytimeSearch) -> None:
        self.search = search
        self.waiting = [search.instance.unary > -np.inf]

    @property
    def done(self) -> bool:
        return not self.waiting

    def expected_seconds(self) -> float:
        """An estimate of the time that enumeration takes; infinite if there are far too many outputs.

        Outputs that the descents reach are offered to the search.
        """
        began = monotonic()
        numbers: list[float] = []
        ends: list[Bools] = []
        decisions = 0
        deadline = began + DESCENT_SHARE * (self.search.deadline - began)
        while len(numbers) < DESCENTS and not (numbers and self.search.out_of_time(deadline)):
            number, depth, end = self._descend()
            if number > MOST_OUTPUTS:
                return np.inf
            numbers.append(number)
            decisions += depth
            if end is not None and len(ends) < MOST_EVALUATED:
                ends.append(end)
        seconds_a_decision = (monotonic() - began) / max(decisions, 1)
        began = monotonic()
        for end in ends:
            self._offer(end)
        seconds_an_output = (monotonic() - began) / max(len(ends), 1)
        # A tree whose inner nodes have two children or more has fewer inner nodes than leaves.
        return float(np.mean(numbers)) * (seconds_an_output + seconds_a_decision)

    def _descend(self) -> tuple[float, int, Bools | None]:
        """A random descent: the product of its numbers of children, its depth, and the states left at its leaf.

        A dead end has the product zero and no leaf; a descent whose product exceeds ``MOST_OUTPUTS`` stops without one.
        """
        left = self.waiting[0]
        number = 1.0
        for depth in range(self.search.instance.topology.n_vars + 1):
            v = self._first_open(left)
            if v is None:
                return number, depth, left
            children = list(self._children(left, v))
            if not children:
                return 0.0, depth, None
            number *= len(children)
            if number > MOST_OUTPUTS:
                break
            left = children[self.search.rng.integers(len(children))]
        return number, depth, None

    def run(self, deadline: float) -> None:
        """Continue until the deadline; once all outputs are visited, the incumbent is proven."""
        search = self.search
        search.phase = "enumerate"
        while self.waiting and not search.proven and not search.out_of_time(deadline):
            left = self.waiting.pop()
            v = self._first_open(left)
            if v is None:
                self._offer(left)
            else:
                self.waiting += self._children(left, v)
        if self.done:
            search.improve_upper(search.threshold)

    def _first_open(self, left: Bools) -> int | None:
        """The first output variable with several states left."""
        starts = self.search.instance.topology.unary_ptr[:-1]
        several = np.add.reduceat(left, starts, dtype=np.int64) > 1
        open_outputs = np.flatnonzero(several & self.search.instance.output)
        return int(open_outputs[0]) if len(open_outputs) else None

    def _children(self, left: Bools, v: int) -> Iterator[Bools]:
        """The states left after ``v`` is set to each of its states, for those that are possible."""
        search = self.search
        first, end = search.instance.topology.unary_ptr[v : v + 2]
        for state in np.flatnonzero(left[first:end]):
            within = left.copy()
            within[first:end] = False
            within[first + state] = True
            child = search.support.states_left(within=within)
            if child is not None:
                yield child

    def _offer(self, left: Bools) -> None:
        states = segment_argmax(left.astype(np.float64), self.search.instance.topology.unary_ptr)
        self.search.offer(states)
