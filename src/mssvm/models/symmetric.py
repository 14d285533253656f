"""Tables that do not depend on the order of their two variables: undirected edges.

The table of an undirected edge is edge[a, b] + edge[b, a], one factor that holds both orders. Two factors with the same
ends would be a loop of length two, whose evidence message passing would count twice.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from mssvm.core.arrays import Floats, Ints
from mssvm.engines.base import Engine, Features
from mssvm.models.linear import LinearInputs, LinearModel, WeightLayout
from mssvm.models.mapped import MappedFeatures, SameWeights


@dataclass(frozen=True, eq=False)
class SymmetricTables(SameWeights):
    """theta = Phi(x) S w, with (S w)_j = w_j + w_mirror(j) for the weights of symmetric tables, w_j for all others.

    ``mirror[j]`` is the weight of the same feature and the states in the other order (j itself on the diagonal), -1 for
    weights of anything else.
    """

    model: LinearModel
    mirror: Ints

    @cached_property
    def mirrored(self) -> Ints:
        """The weights of symmetric tables."""
        return np.flatnonzero(self.mirror >= 0)

    @cached_property
    def _partners(self) -> Ints:
        return self.mirror[self.mirrored]

    def fill(self, w: Floats) -> Floats:
        """The weights by name: all of ``w``."""
        return w

    def both_orders(self, values: Floats) -> Floats:
        """S values; S is its own transpose, so this is the map of weights and also that of gradients."""
        out = values.copy()
        out[self.mirrored] += values[self._partners]
        return out

    def select(self, numbers: Ints) -> SymmetricTables:
        """The model over some of the weights, ascending; a weight and its mirror image are selected together."""
        mirror = self.mirror[numbers]
        return SymmetricTables(
            LinearModel(len(numbers)), np.where(mirror < 0, -1, np.searchsorted(numbers, mirror)).astype(np.int64)
        )

    def bind(self, inputs: LinearInputs, engine: Engine) -> Features:
        return MappedFeatures(self.model.bind(inputs, engine), self.both_orders, self.both_orders)


def mirror_of(layout: WeightLayout, blocks: dict[str, int]) -> Ints:
    """``SymmetricTables.mirror`` for the named blocks, each with its number of states."""
    mirror = np.full(layout.n_weights, -1, dtype=np.int64)
    for name, n_states in blocks.items():
        span = layout.groups[name].span
        numbers = np.arange(span.start, span.stop).reshape(-1, n_states, n_states)
        mirror[span] = numbers.transpose(0, 2, 1).ravel()
    return mirror
