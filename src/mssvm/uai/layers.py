"""A model as a sequence of layers with few possible states, by sparse tables along a sweep over its variables.

Going through the variables in an order, a *cut* is the set of variables that have factors on both sides. Where a cut
has no outputs, what was decided before it matters only through its *belief*, the vector over the cut's joint states x

    b(x) = sum over the hidden variables before the cut of exp(theta / eps_h), theta of the factors before the cut

Between two cuts lies a layer: a choice of its outputs' states takes the belief b to b' = b P, where P is sparse because
only states of positive probability are stored. Deterministic networks and plans have few of these, however many
variables a cut has: facts exclude each other, and effects follow from actions.

Tables are joined a variable at a time: next is the one whose factors leave the fewest rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from time import monotonic

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from mssvm.core.arrays import Floats, Ints
from mssvm.inference.bounds.relaxation import OneInstance

# A model is refused if a sparse table has more rows than this, or a weight that is close to underflow.
MOST_ROWS = 1 << 19
LEAST_WEIGHT = 1e-280
# Memory of a row while a variable is appended, when two tables exist: STATE_BYTES for every column, and as much as
# OTHER_COLUMNS columns for its source, choice, weight and keys.
STATE_BYTES = 4
OTHER_COLUMNS = 20
# Rows in the sample that estimates how many states of a variable its factors leave.
SAMPLE = 64
# Equal rows are joined after a variable was summed out, if the table has grown by this factor since they last were.
GROUPING = 4


@dataclass(frozen=True, eq=False)
class Layer:
    """The choices between two cuts: row c of ``choices`` has states of ``outputs``.

    ``arcs`` has the states of the first cut as rows, and the states of the second cut for each choice as columns:
    beliefs (n, sources) times ``arcs`` are the beliefs (n, choices * targets) after every choice.
    """

    outputs: tuple[int, ...]
    choices: Ints
    arcs: csr_array
    n_targets: int

    def values(self, after: Floats) -> Floats:
        """The values of every choice (columns) at every state of the first cut, given the values of the states of the
        second cut."""
        weighted = self.arcs.copy()
        weighted.data = weighted.data * after[weighted.indices % self.n_targets]
        pooled = csr_array((weighted.data, weighted.indices // self.n_targets, weighted.indptr), self._shape)
        return np.asarray(pooled.toarray())

    @property
    def _shape(self) -> tuple[int, int]:
        """States of the first cut, and choices."""
        return self.arcs.shape[0], len(self.choices)

    def restricted(self, sources: Ints, targets: Ints) -> Layer:
        """The layer between these states of its cuts."""
        columns = (np.arange(len(self.choices))[:, None] * self.n_targets + targets).ravel()
        arcs = csr_array(self.arcs[sources][:, columns])
        return replace(self, arcs=arcs, n_targets=len(targets))


@dataclass(frozen=True, eq=False)
class Layers:
    """A layered model: the value of outputs is ``constant`` + eps_h log (1 P_1 P_2 .. 1).

    ``bounds[t]`` are upper bounds on what comes after a state of cut t: there, each choice may depend on the state. No
    choice has a sum above one, so that beliefs and bounds are at most one.
    """

    layers: tuple[Layer, ...]
    bounds: tuple[Floats, ...]
    constant: float


def layers_of(instance: OneInstance, eps_h: float, deadline: float, memory_limit: int) -> Layers | None:
    """The layers along the order in which the variables are numbered; None if there are fewer than two, if they are too
    large, or if time is up."""
    if eps_h == 0.0:
        return None
    order = np.flatnonzero(~instance.clamped).tolist()
    join = _Join(instance, eps_h, memory_limit)
    blocks = _blocks(order, list(join.scopes.values()), instance.output.tolist())
    if len(blocks) < 2:
        return None
    layers: list[Layer] = []
    for block in blocks:
        layer = join.layer(block, deadline)
        if layer is None:
            return None
        highest = float(layer.values(np.ones(layer.n_targets)).max(initial=0.0))
        if highest == 0.0:
            return None
        layer.arcs.data /= highest
        join.constant += float(np.log(highest))
        layers.append(layer)
    return _bounded(layers, eps_h * join.constant)


def _bounded(layers: Sequence[Layer], constant: float) -> Layers:
    """Layers with bounds, by dynamic programming; states without a possible continuation are removed."""
    bounds = [np.ones(layers[-1].n_targets)]
    for layer in reversed(layers):
        bounds.insert(0, layer.values(bounds[0]).max(axis=1))
    possible = [np.flatnonzero(after > 0.0) for after in bounds]
    restricted = [layer.restricted(possible[t], possible[t + 1]) for t, layer in enumerate(layers)]
    return Layers(tuple(restricted), tuple(after[kept] for after, kept in zip(bounds, possible, strict=True)), constant)


def _blocks(order: Sequence[int], scopes: Sequence[tuple[int, ...]], output: Sequence[bool]) -> list[list[int]]:
    """The order in pieces, each of which has outputs if possible: cuts share no outputs and few variables."""
    position = {v: k for k, v in enumerate(order)}
    last = list(range(len(order)))
    for scope in scopes:
        end = max(position[v] for v in scope)
        for v in scope:
            last[position[v]] = max(last[position[v]], end)
    ends: list[int] = []
    fewest = 0  # variables of the last cut
    fresh = False  # outputs since the last cut
    alive: set[int] = set()
    for k, v in enumerate(order):
        alive.add(k)
        alive = {j for j in alive if last[j] > k}
        fresh = fresh or output[v]
        if any(output[order[j]] for j in alive) or not (fresh or ends):
            continue
        if fresh:
            ends.append(k)
            fewest = len(alive)
            fresh = False
        elif len(alive) < fewest:  # without outputs in between, the last cut may as well be here
            ends[-1] = k
            fewest = len(alive)
    if not ends:
        return []
    ends[-1] = len(order) - 1
    starts = [0, *(end + 1 for end in ends[:-1])]
    return [list(order[start : end + 1]) for start, end in zip(starts, ends, strict=True)]


class _Join:
    """A sparse table that grows by a variable at a time, and begins anew at every cut.

    A row has a state of the last cut (``source``), a choice of the outputs since then (``choice``, a row of
    ``choices``), states of the variables with factors to come (``columns``, by variable) and a weight.
    """

    def __init__(self, instance: OneInstance, eps_h: float, memory_limit: int) -> None:
        self.memory_limit = memory_limit
        self.instance = instance
        self.cards = instance.topology.cards
        self.constant = 0.0
        self.scopes: dict[int, tuple[int, ...]] = {}
        self.tables: dict[int, Floats] = {}
        self.near: dict[int, list[int]] = {int(v): [] for v in np.flatnonzero(~instance.clamped)}
        for f, scope in enumerate(instance.topology.scopes):
            index = tuple(int(instance.states[v]) if instance.clamped[v] else slice(None) for v in scope)
            self._add(f, [v for v in scope if not instance.clamped[v]], instance.masked_table(f)[index], eps_h)
        for v in range(instance.topology.n_vars):
            scores = instance.scores_of(v)
            if instance.clamped[v]:
                self._add(-1, [], scores[instance.states[v]], eps_h)
            else:
                self._add(-1 - v, [v], scores, eps_h)
        self.columns: dict[int, NDArray[np.int16]] = {}
        self._begin(1)

    def _begin(self, n_sources: int) -> None:
        """A row for every state of the cut."""
        self.n_sources = n_sources
        self.source: Ints = np.arange(n_sources)
        self.weight: Floats = np.ones(n_sources)
        self.grouped = n_sources
        self.outputs: tuple[int, ...] = ()
        self.choice: Ints = np.zeros(n_sources, dtype=np.int64)
        self.choices: Ints = np.zeros((1, 0), dtype=np.int64)

    def _add(self, f: int, scope: Sequence[int], scores: Floats, eps_h: float) -> None:
        """Store a factor as probabilities, the largest of them one; its largest score is added to the constant."""
        highest = float(scores.max())
        self.constant += highest / eps_h
        if scope and highest > -np.inf:
            self.scopes[f] = tuple(scope)
            self.tables[f] = np.exp((scores - highest) / eps_h)
            for v in scope:
                self.near[v].append(f)

    def layer(self, block: Sequence[int], deadline: float) -> Layer | None:
        """Join the variables of a block, and group the rows by choice and by the cut's state."""
        ready = {v: self._ready(v) for v in block}
        rows_each = {v: self._rows_each(v, ready[v]) for v in block}
        while rows_each:
            v = min(rows_each, key=lambda u: max(rows_each[u], 1.0))  # a variable that adds no rows comes first
            neighbours = {u for f in self.near[v] for u in self.scopes[f]}
            if not self._append(v, ready[v]) or monotonic() >= deadline:
                return None
            del rows_each[v]
            for u in neighbours.intersection(rows_each):
                factors = self._ready(u)
                if len(factors) > len(ready[u]):
                    ready[u] = factors
                    rows_each[u] = self._rows_each(u, factors)
        return self._cut()

    def _ready(self, v: int) -> list[int]:
        """Factors of v whose other variables all have columns."""
        return [f for f in self.near[v] if all(u == v or u in self.columns for u in self.scopes[f])]

    def _rows_each(self, v: int, factors: Sequence[int]) -> float:
        """The factor by which appending v multiplies the number of rows, estimated on a sample of them."""
        n = len(self.weight)
        rows = np.unique(np.linspace(0, n - 1, min(n, SAMPLE)).astype(np.int64))
        return float((self._product(v, factors, rows) > 0.0).sum() / max(len(rows), 1))

    def _product(self, v: int, factors: Sequence[int], rows: Ints | slice) -> Floats:
        """The product of the factors at every state of v (columns), row by row."""
        product = np.ones((len(self.weight[rows]), self.cards[v]))
        for f in factors:
            table = np.moveaxis(self.tables[f], self.scopes[f].index(v), -1)
            entry = np.zeros(len(product), dtype=np.int64)
            for u in self.scopes[f]:
                if u != v:
                    entry = entry * self.cards[u] + self.columns[u][rows]
            product *= table.reshape(-1, self.cards[v])[entry]
        return product

    def _append(self, v: int, factors: Sequence[int]) -> bool:
        """Multiply by v's factors, and sum out variables without further factors; False if the table gets too large."""
        product = self._product(v, factors, slice(None))
        row, state = np.nonzero(product)
        if len(row) > MOST_ROWS or STATE_BYTES * len(row) * (len(self.columns) + OTHER_COLUMNS) > self.memory_limit:
            return False
        weight = self.weight[row] * product[row, state]
        if weight.min(initial=1.0) < LEAST_WEIGHT:
            return False
        for f in factors:
            for u in self.scopes[f]:
                self.near[u].remove(f)
        summed = [u for u in (*self.columns, v) if not self.near[u]]
        self.columns = {u: column for u, column in self.columns.items() if self.near[u]}
        if len(row) != len(self.weight) or (row != np.arange(len(row))).any():
            self._take(row)
        self.weight = weight
        if self.near[v]:
            self.columns[v] = state.astype(np.int16)
        if self.instance.output[v]:
            self._choose(v, state)
        if len(self.weight) > GROUPING * self.grouped and not all(self.instance.output[u] for u in summed):
            self._group()
        return True

    def _choose(self, v: int, state: Ints) -> None:
        """Extend every choice by the states of output v that occur with it."""
        both, self.choice = np.unique(self.choice * self.cards[v] + state, return_inverse=True)
        self.choices = np.column_stack([self.choices[both // self.cards[v]], both % self.cards[v]])
        self.outputs = (*self.outputs, v)

    def _take(self, rows: Ints) -> None:
        """Replace the table by these rows of it."""
        self.source = self.source[rows]
        self.choice = self.choice[rows]
        self.weight = self.weight[rows]
        self.columns = {v: column[rows] for v, column in self.columns.items()}

    def _group(self) -> None:
        """Add up the weights of equal rows."""
        origin = (self.source * len(self.choices) + self.choice).view(np.int16).reshape(-1, 4)
        first, group = _groups([*origin.T, *self.columns.values()], len(self.weight))
        weight = np.asarray(np.bincount(group, weights=self.weight, minlength=len(first)), dtype=np.float64)
        self._take(first)
        self.weight = weight
        self.grouped = len(weight)

    def _cut(self) -> Layer:
        """The layer that ends here; its last states are the sources of the next one."""
        first, target = _groups(list(self.columns.values()), len(self.weight))
        n_targets = len(first)
        shape = (self.n_sources, len(self.choices) * n_targets)
        arcs = csr_array((self.weight, (self.source, self.choice * n_targets + target)), shape)
        arcs.sum_duplicates()
        layer = Layer(self.outputs, self.choices, arcs, n_targets)
        self.columns = {v: column[first] for v, column in self.columns.items()}
        self._begin(n_targets)
        return layer


def _groups(columns: Sequence[NDArray[np.int16]], n_rows: int) -> tuple[Ints, Ints]:
    """Equal rows: the first of every group, and the group of every row."""
    if not columns:
        return np.zeros(min(n_rows, 1), dtype=np.int64), np.zeros(n_rows, dtype=np.int64)
    rows = np.stack(columns, axis=1)
    keys = rows.view(np.dtype((np.void, rows.dtype.itemsize * rows.shape[1]))).ravel()
    _, first, group = np.unique(keys, return_index=True, return_inverse=True)
    return first, group
