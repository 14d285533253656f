"""Depth-first branch and bound over the outputs, guided by one relaxation of the whole instance."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mssvm.inference.bounds.relaxation import Relaxation
from mssvm.uai.conditional import ConditionalBound, Tree

if TYPE_CHECKING:
    from mssvm.uai.search import AnytimeSearch

STEPS = 20_000  # steps of the search between two checks of the deadline


class BranchAndBound:
    """Branches on outputs in the reverse order of their elimination; resumes where the last slice stopped."""

    def __init__(self, search: AnytimeSearch, relaxation: Relaxation) -> None:
        self.search = search
        self.relaxation = relaxation
        self.done = False
        program = relaxation.program
        self.tree = Tree(program, search.instance.states, search.upper)
        self.tree.bound[0] = relaxation.run()
        order = program.var[program.position_ptr[program.n_hidden : -1]][::-1].tolist()
        self.conditional = ConditionalBound(search.instance, order, search.eps_h)

    def run(self, deadline: float) -> None:
        """Continue until the deadline, a proof, or the end of the tree."""
        search = self.search
        search.phase = "branch"
        while not search.out_of_time(deadline) and not search.proven:
            at_leaf = self.conditional.descend(self.relaxation.sweep, self.tree, search.threshold, STEPS)
            if at_leaf:
                search.offer(self.tree.states)
            if self.tree.exhausted:
                self.done = True
                search.improve_upper(search.threshold)
                return
            search.improve_upper(max(search.threshold, self.tree.upper))
