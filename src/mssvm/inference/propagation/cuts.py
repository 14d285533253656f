"""Maximum a posteriori labellings of pairwise graphs by minimum cuts.

Of two labellings y and p, any mixture takes p_i where x_i = 1 and y_i where x_i = 0. Its score is that of y plus

    sum_i g_i x_i - sum_ij w_ij (1 - x_i) x_j        w_ij = t(y_i, y_j) + t(p_i, p_j) - t(y_i, p_j) - t(p_i, y_j)

and where no w_ij is negative the best mixture is a minimum cut (Greig et al. 1989, Kolmogorov & Zabih 2004). A negative
w_ij is taken as 0, which lowers the score of some mixtures and raises none: the cut is then a move that never lowers it
(Rother et al. 2005), and adding the sum of the truncated w_ij keeps the upper bound valid.

    two states a variable     one cut between the lower and the higher state of all: exact without negative w_ij
    more                      expansions: for every state in turn, some variables change to it, until no move gains

SciPy's capacities are whole numbers. The residual of their rounding is solved again on a finer scale, so that the flow
proves the cut to about ten digits.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import breadth_first_order, maximum_flow

from mssvm.core.arrays import Bools, Floats, Ints
from mssvm.core.potentials import Potentials
from mssvm.core.topology import Batch

# The largest flow in whole numbers: the sum of a capacity and of the flow against it must fit in 32 bits.
LARGEST_FLOW = 2.0**30
REFINEMENTS = 4
PRECISION = 1e-10  # refinement ends at this share of the largest possible flow
GAIN = 1e-12  # least rise of a score, relative to it, that counts as one


@dataclass(frozen=True, eq=False)
class CutModel:
    """One instance with factors of two variables; ``allowed`` are its states that have a finite score.

    ``ends`` are the variables of every factor (factor, 2), ``table_at`` where its table begins in ``tables``.
    """

    unary: Floats
    unary_ptr: Ints
    allowed: Bools
    ends: Ints
    table_at: Ints
    tables: Floats

    @classmethod
    def of(cls, batch: Batch, theta: Potentials, allowed: Bools, b: int) -> CutModel | None:
        """Instance b of a batch; None where a variable has no state or a table forbids a pair, which cuts cannot
        express."""
        graph = batch.topology(b)
        states = batch.state_span(b)
        unary = theta.unary[states]
        table_at = batch.table_at[batch.factor_ptr[b] : batch.factor_ptr[b + 1]]
        finite = allowed[states] & np.isfinite(unary)
        model = cls(unary, graph.unary_ptr, finite, graph.scope_flat.reshape(-1, 2), table_at, theta.tables)
        # Tied tables are checked once.
        first = np.unique(table_at, return_index=True)[1]
        sizes = graph.table_sizes[first]
        entries = np.repeat(table_at[first] - np.cumsum(sizes) + sizes, sizes) + np.arange(sizes.sum())
        possible = bool(np.all(model.n_allowed > 0)) and bool(np.isfinite(theta.tables[entries]).all())
        return model if possible else None

    @cached_property
    def n_allowed(self) -> Ints:
        return np.add.reduceat(self.allowed.astype(np.int64), self.unary_ptr[:-1])

    @cached_property
    def _second_card(self) -> Ints:
        return np.diff(self.unary_ptr)[self.ends[:, 1]]

    def _pairs(self, y: Ints, p: Ints) -> Floats:
        """The entry of every factor with its first variable at y and its second at p."""
        i, j = self.ends.T
        return np.asarray(self.tables[self.table_at + y[i] * self._second_card + p[j]])

    def score(self, y: Ints) -> float:
        """theta(y)."""
        return float(self.unary[self.unary_ptr[:-1] + y].sum() + self._pairs(y, y).sum())

    def extremes(self) -> tuple[Ints, Ints]:
        """The lowest and the highest allowed state of every variable."""
        state = np.arange(len(self.unary)) - np.repeat(self.unary_ptr[:-1], np.diff(self.unary_ptr))
        low = np.minimum.reduceat(np.where(self.allowed, state, len(state)), self.unary_ptr[:-1])
        high = np.maximum.reduceat(np.where(self.allowed, state, -1), self.unary_ptr[:-1])
        return low, high

    def best_alone(self) -> Ints:
        """The best state of every variable by its own score."""
        value = np.where(self.allowed, self.unary, -np.inf)
        top = np.repeat(np.maximum.reduceat(value, self.unary_ptr[:-1]), np.diff(self.unary_ptr))
        state = np.arange(len(value)) - np.repeat(self.unary_ptr[:-1], np.diff(self.unary_ptr))
        return np.minimum.reduceat(np.where(value == top, state, len(value)), self.unary_ptr[:-1])

    def mix(self, y: Ints, p: Ints, rounds: int = REFINEMENTS) -> tuple[Ints, float]:
        """A mixture of y and p that scores no less than y, the best without negative w_ij, and a bound from above on
        the score of all mixtures; both up to rounding, which ``rounds`` of refinement make small."""
        at = self.unary_ptr[:-1]
        i, j = self.ends.T
        neither = self._pairs(y, y)
        first = self._pairs(p, y)
        second = self._pairs(y, p)
        both = self._pairs(p, p)
        gain = self.unary[at + p] - self.unary[at + y]
        gain = gain + np.bincount(i, first - neither, len(y)) + np.bincount(j, both - first, len(y))
        w = neither + both - second - first
        truncated = -float(w[w < 0].sum())
        coupled = w > 0
        source = np.maximum(-gain, 0.0)
        sink = np.maximum(gain, 0.0)
        stays, flow = minimum_cut(source, sink, i[coupled], j[coupled], w[coupled], rounds)
        upper = self.score(y) + float(gain[gain > 0].sum()) - flow + truncated
        return np.where(stays, y, p), upper

    def expand(self, y: Ints, rounds: int) -> Ints:
        """y improved by expansions of every state in turn, until a round over all states no longer raises the score."""
        score = self.score(y)
        n_states = int(np.diff(self.unary_ptr).max())
        without_gain = 0
        for turn in range(rounds * n_states):
            expanded, _ = self.mix(y, self._changed_to(y, turn % n_states), rounds=1)
            expanded_score = self.score(expanded)
            without_gain += 1
            if expanded_score > score + GAIN * (1.0 + abs(score)):
                y = expanded
                score = expanded_score
                without_gain = 0
            if without_gain >= n_states:
                break
        return y

    def _changed_to(self, y: Ints, state: int) -> Ints:
        """y with every variable changed to ``state`` that allows it."""
        inside = state < np.diff(self.unary_ptr)
        at = self.unary_ptr[:-1] + np.where(inside, state, 0)
        return np.where(inside & self.allowed[at], state, y)


def minimum_cut(
    source: Floats, sink: Floats, i: Ints, j: Ints, w: Floats, rounds: int = REFINEMENTS
) -> tuple[Bools, float]:
    """The nodes on the side of the source of a minimum cut, and the flow, which bounds all cuts from below.

    Node k is joined to the source by capacity ``source[k]`` and to the sink by ``sink[k]``; arcs from i to j have w.
    """
    n = len(source)
    capacity = _capacities(source, sink, i, j, w)
    flow = 0.0
    most = min(float(source.sum()), float(sink.sum()))  # bound on the flow that is left
    negligible = PRECISION * most
    # Without any capacity left to one terminal no flow is possible: all nodes can be on one side.
    reached = np.full(n + 2, not sink.any())
    for turn in range(rounds):
        if not most > negligible:
            break
        # No arc carries more than the whole flow, so larger capacities are as good as that.
        scale = LARGEST_FLOW / most
        whole = csr_array(capacity, copy=True)
        whole.data = np.floor(np.minimum(capacity.data, most) * scale).astype(np.int32)
        maximum = maximum_flow(whole, n, n + 1)
        residual = csr_array(whole - maximum.flow)
        residual.eliminate_zeros()
        reached[:] = False
        reached[breadth_first_order(residual, n, return_predecessors=False)] = True
        flow += maximum.flow_value / scale
        if turn == rounds - 1:
            break
        capacity = csr_array(capacity - csr_array(maximum.flow, dtype=np.float64) / scale)
        capacity.data = np.maximum(capacity.data, 0.0)
        # Every arc was rounded by less than one.
        most = capacity.nnz / scale
    return reached[:n], flow


def _capacities(source: Floats, sink: Floats, i: Ints, j: Ints, w: Floats) -> csr_array:
    """Capacities of all arcs as a matrix; the last two of n + 2 nodes are source and sink."""
    n = len(source)
    fed = np.flatnonzero(source)
    drained = np.flatnonzero(sink)
    tail = np.concatenate([np.full(len(fed), n), drained, i]).astype(np.int32)
    head = np.concatenate([fed, np.full(len(drained), n + 1), j]).astype(np.int32)
    capacity = csr_array((np.concatenate([source[fed], sink[drained], w]), (tail, head)), shape=(n + 2, n + 2))
    capacity.sum_duplicates()
    return capacity
