"""Proofs for layered models: search over choices, layer by layer, on the exact belief that they lead to.

A node is the belief b after some choices. Its bound is b · V_t with V_t of ``Layers.bounds``: what follows would be no
worse if each choice could depend on the state. Choices that lead to the same belief are one node.

A round keeps the best nodes of every layer, up to a width, and goes on with all their choices. The highest bound of
the nodes that it leaves out is an upper bound on all outputs not seen; a round that leaves out none is a proof.
Otherwise the next round is wider.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from mssvm.core.arrays import Floats, Ints
from mssvm.uai.layers import Layers

if TYPE_CHECKING:
    from mssvm.uai.search import AnytimeSearch

# The first width, and its growth from one round to the next.
WIDTH = 256
GROWTH = 4
# Beliefs and bounds are at most one. Nodes with a bound below this number are not followed, and no proof counts them as
# searched: their bounds may lack terms that were lost to underflow. Such terms are far smaller than this number.
LEAST = 1e-200
# Beliefs whose mantissas agree in this number of bits (of 52), so to one part in 10^13, are one node.
EQUAL_BITS = 44
# Largest number of entries in the beliefs of the children that are computed at once.
ENTRIES = 1 << 22


class Step(NamedTuple):
    """The nodes kept in a layer: their beliefs, their parents among the nodes before, and the choices from there."""

    beliefs: Floats
    parent: Ints
    choice: Ints


class LayeredSearch:
    """Rounds of growing width; every ``run`` continues the last one."""

    def __init__(self, search: AnytimeSearch, layers: Layers) -> None:
        self.search = search
        self.layers = layers
        self.width = WIDTH
        self.done = False
        self._begin_round()
        search.improve_upper(max(search.threshold, self._value(float(layers.bounds[0].sum()))))

    def _begin_round(self) -> None:
        self.steps = [Step(np.ones((1, 1)), np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64))]
        self.left_out = 0.0

    def _value(self, probability: float) -> float:
        """The value of a probability (a product of transitions); an upper bound for one below ``LEAST``."""
        return self.layers.constant + self.search.eps_h * float(np.log(max(probability, LEAST)))

    @property
    def _enough(self) -> float:
        """The largest bound (a probability) that rules out outputs better than the incumbent."""
        return float(np.exp((self.search.threshold - self.layers.constant) / self.search.eps_h))

    @property
    def _bytes(self) -> int:
        """Memory of a round's beliefs, and of as many again while a layer is computed."""
        return 2 * 8 * self.width * sum(len(after) for after in self.layers.bounds)

    def run(self, deadline: float) -> None:
        """Continue until the deadline, by at least one layer."""
        search = self.search
        search.phase = "layers"
        while not (self.done or search.proven):
            self._step()
            if len(self.steps[-1].beliefs) == 0 or len(self.steps) > len(self.layers.layers):
                self._end_round()
            if search.out_of_time(deadline):
                return

    def _step(self) -> None:
        """From the nodes of a layer to those of the next."""
        t = len(self.steps) - 1
        layer = self.layers.layers[t]
        after = self.layers.bounds[t + 1]
        beliefs = self.steps[-1].beliefs
        n_choices = len(layer.choices)
        at_once = max(1, ENTRIES // max(1, n_choices * layer.n_targets))
        least = max(self._enough, LEAST)
        parts: list[tuple[Floats, Floats, Ints]] = []
        for first in range(0, len(beliefs), at_once):
            children = (beliefs[first : first + at_once] @ layer.arcs).reshape(-1, layer.n_targets)
            bounds = children @ after
            kept = np.flatnonzero(bounds > least)
            different = kept[_different(children[kept])]
            parts.append((children[different], bounds[different], first * n_choices + different))
        children, bounds, origin = (np.concatenate(part) for part in zip(*parts, strict=True))
        different = _different(children)
        best = different[np.argsort(-bounds[different], kind="stable")]
        if len(best) > self.width:
            self.left_out = max(self.left_out, float(bounds[best[self.width]]))
            best = best[: self.width]
        self.steps.append(Step(children[best], origin[best] // n_choices, origin[best] % n_choices))

    def _end_round(self) -> None:
        """Offer the best outputs of the round; the bound is that of the nodes left out."""
        search = self.search
        if len(self.steps[-1].beliefs):
            search.offer(self._states(), self._value(float(self.steps[-1].beliefs[0, 0])))
        hopeful = self._enough < LEAST  # what was below LEAST may be better than the incumbent
        complete = self.left_out == 0.0
        if complete and not hopeful:
            search.improve_upper(search.threshold)
        else:
            search.improve_upper(max(search.threshold, self._value(self.left_out)))
        self.width *= GROWTH
        self.done = complete or self._bytes > search.memory_limit
        self._begin_round()

    def _states(self) -> Ints:
        """The outputs of the first node of the last layer, which is the best."""
        states = self.search.instance.states.copy()
        node = 0
        for layer, step in zip(reversed(self.layers.layers), reversed(self.steps), strict=False):
            states[list(layer.outputs)] = layer.choices[step.choice[node]]
            node = int(step.parent[node])
        return states


def _different(beliefs: Floats) -> Ints:
    """One row of each set of rows that are equal but for rounding."""
    half = np.int64(1) << (51 - EQUAL_BITS)
    rounded = (np.ascontiguousarray(beliefs).view(np.int64) + half) >> (52 - EQUAL_BITS)
    keys = rounded.view(np.dtype((np.void, 8 * beliefs.shape[1]))).ravel()
    return np.sort(np.unique(keys, return_index=True)[1])
