"""Weights as a structure names them: blocks of weights, single weights, and joint states that are forbidden."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import NamedTuple

from mssvm.core.arrays import Bools, Floats


@dataclass(frozen=True)
class WeightBlock:
    """Named weights (n_features, states...) that act on every member of a group of variables or factors.

    ``axes`` says for every state axis whether it is "label", "hidden" or "length", ``cards`` how many states it has.
    ``source`` names the features; None is one constant feature. ``rows`` names the entry of ``InstanceTopology.rows``
    with the feature row of each member; None: member i has row i. A block with ``agree`` states has one weight per
    feature, kept >= 0, which scores that both ends of a pair are in the same state. A block with a ``basis`` (rows,
    n_features) acts on tables with that many rows of ``cards`` states: row r has the features ``basis[r]``, named
    ``basis_names``. The table of a ``symmetric`` block scores a pair of states in both orders.
    """

    name: str
    group: str
    axes: tuple[str, ...]
    cards: tuple[int, ...]
    source: str | None = None
    rows: str | None = None
    agree: int = 0
    symmetric: bool = False
    basis: Floats | None = field(default=None, compare=False)
    basis_names: tuple[str, ...] = ()

    @property
    def n_rows(self) -> int:
        """Rows of the basis; 0 without one."""
        return 0 if self.basis is None else len(self.basis)


@dataclass(frozen=True, eq=False)
class HardConstraint:
    """Joint states (a mask of the shape of the group's tables) that no member of the group may take."""

    group: str
    mask: Bools


@dataclass(frozen=True, eq=False)
class KnownScores:
    """Scores without weights (of the shape of the group's tables) that every member of the group has."""

    group: str
    scores: Floats


@dataclass(frozen=True)
class Weight:
    """One weight by name: its block, its feature, and the states (labels; numbers of hidden states) it belongs to."""

    block: str
    feature: str
    states: tuple[Hashable, ...]
    value: float


class WeightMasks(NamedTuple):
    """Masks over the weights: ``hidden`` marks those of hidden variables, which would stay symmetric if they started at
    zero; ``nonnegative`` those with a lower bound of 0."""

    hidden: Bools
    nonnegative: Bools
