"""Conditioning: hold a few variables at given states so that exact elimination of the others fits in small tables.

Holding variables only removes terms from the nested power sum (paper eq. 5), so the value is a lower bound for every
(eps_y, eps_h); at eps_y = 0 it is the maximum over a neighbourhood of the given outputs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import log2

import numpy as np

from mssvm.core.arrays import Ints
from mssvm.inference.bounds.relaxation import OneInstance, Relaxation


@dataclass(frozen=True, eq=False)
class ConditionedElimination:
    """Elimination along ``order`` with tables of at most ``entries`` entries, after holding enough variables.

    ``holdable`` are the variables that may be held, as bits.
    """

    instance: OneInstance
    order: Sequence[int]
    entries: int
    holdable: int
    eps_y: float
    eps_h: float

    @cached_property
    def fits(self) -> bool:
        """Whether all tables are small enough when every holdable variable is held."""
        return self.hold_all() is not None

    def hold_all(self) -> int | None:
        """All holdable variables, as bits; None if even then a table is too large."""
        nothing_to_draw = np.random.default_rng(0)
        return self._held_from(self.holdable, nothing_to_draw)

    def hold(self, rng: np.random.Generator) -> int | None:
        """Randomly chosen variables to hold, as bits, so that every table fits; None if holding all is not enough."""
        return self._held_from(0, rng)

    def _held_from(self, held: int, rng: np.random.Generator) -> int | None:
        """The variables ``held``, and more of the holdable ones, drawn at random, where a table would be too large."""
        topology = self.instance.topology
        max_size = log2(self.entries) + 1e-9
        bit_size = [log2(card) for card in topology.cards]
        waiting = sum(1 << v for v in self.order)
        adjacent = _adjacency(topology.n_vars, topology.scopes, waiting)
        for v in self.order:
            waiting &= ~(1 << v)
            if held >> v & 1:
                continue
            around = adjacent[v] & waiting & ~held
            clique = around | (1 << v)
            size = sum(bit_size[u] for u in _bits(clique))
            choices = list(_bits(clique & self.holdable))
            while size > max_size and choices:
                u = choices.pop(int(rng.integers(len(choices))))
                held |= 1 << u
                size -= bit_size[u]
            if size > max_size:
                return None
            around &= ~held
            if not held >> v & 1:
                for u in _bits(around):
                    adjacent[u] |= around & ~(1 << u)
        return held

    def relax(self, held: int, states: Ints) -> Relaxation:
        """The elimination that is left when the held variables are at the given states."""
        order = [v for v in self.order if not held >> v & 1]
        relaxation = Relaxation(self.instance, order, self.entries, self.eps_y, self.eps_h)
        relaxation.load(states)
        return relaxation

    def maximise(self, held: int, states: Ints) -> tuple[float, Ints]:
        """Exact value, and the outputs improved by back-substitution (at eps_y = 0), the held ones staying."""
        relaxation = self.relax(held, states)
        value = relaxation.run()
        improved = states.copy()
        if value > -np.inf:
            relaxation.decode(improved)
        return value, improved


def _bits(mask: int) -> Iterator[int]:
    """Positions of the set bits of a non-negative integer, ascending."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


def _adjacency(n: int, scopes: Sequence[Sequence[int]], present: int) -> list[int]:
    """Neighbours of each of n variables as bits, within the variables ``present`` (bits)."""
    adjacent = [0] * n
    for scope in scopes:
        clique = sum(1 << v for v in scope) & present
        for v in _bits(clique):
            adjacent[v] |= clique & ~(1 << v)
    return adjacent
