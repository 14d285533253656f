"""Bounds for branching on outputs, with the hidden variables summed exactly as outputs are decided.

Once outputs are fixed, elimination of the hidden variables is a forest of small buckets (their width is that of the
hidden variables alone). An output that is still open is maximised in every table separately, which bounds

    max_y PS_h [sum_f theta_f]  <=  PS_h [sum_f max_{y_f} theta_f]              (paper eq. 5 at eps_y = 0)

and is exact when all outputs are fixed. Mini-buckets lose something on the hidden part; this bound does not. Outputs
are fixed in one order, so that every table has one version per number of its outputs fixed. Fixing an output changes
the buckets of its own tables and those between them and the roots, nothing else: hundreds of thousands of nodes a
second.

Buckets work on scaled probabilities; a node whose probabilities might underflow counts as unbounded.
"""

from __future__ import annotations

from collections.abc import Sequence, Sized
from math import prod
from typing import NamedTuple

import numpy as np

from mssvm.core.arrays import Floats, Ints
from mssvm.core.library import FLOAT, FLOATS, INT, INTS, Function, Record, RecordKind, RecordType
from mssvm.core.orders import find_order
from mssvm.core.topology import offsets
from mssvm.engines.native.elimination import PROGRAM, ScoreSweep
from mssvm.engines.program import Program
from mssvm.inference.bounds.relaxation import OneInstance

# Upper limit on the clique entries of all buckets together; with more, a node takes milliseconds.
MOST_ENTRIES = 1 << 17


BUCKETS = RecordType(
    "Buckets",
    {
        **dict.fromkeys(("input_ptr", "source", "gather_at", "gather", "card", "message_at", "message_size"), INTS),
        **dict.fromkeys(("path_ptr", "path", "near_ptr", "near", "stride", "version", "whole"), INTS),
        **dict.fromkeys(("log", "prob", "floor"), FLOATS),
    },
)
STATE = RecordType(
    "State",
    {"place": INTS, "messages": FLOATS, "scale": FLOATS, "least": FLOATS, "clique": FLOATS, "stale": INTS},
)
DECIDE = Function(
    "mssvm_branching_decide",
    buckets=RecordKind(BUCKETS),
    state=RecordKind(STATE),
    variable=INT,
    value=INT,
    sign=INT,
)
VALUE = Function("mssvm_branching_value", buckets=RecordKind(BUCKETS), state=RecordKind(STATE), eps=FLOAT, value=FLOATS)
DESCEND = Function(
    "mssvm_branching_descend",
    program=RecordKind(PROGRAM),
    work=FLOATS,
    states=INTS,
    bound=FLOATS,
    open=FLOATS,
    width=INT,
    lower=FLOAT,
    budget=INT,
    buckets=RecordKind(BUCKETS),
    state=RecordKind(STATE),
    eps=FLOAT,
    known=INT,
    depth=INTS,
)


class ConditionalBound:
    """The bound of outputs fixed one after the other in ``order``; ``fits`` says whether buckets are small enough."""

    def __init__(self, instance: OneInstance, order: Sequence[int], eps_h: float) -> None:
        hidden = set(instance.free[0].tolist())
        graph = instance.topology
        hidden_scopes = [[v for v in scope if v in hidden] for scope in graph.scopes]
        pairs_and_more = [scope for scope in hidden_scopes if len(scope) > 1]
        elimination = find_order(graph.cards, pairs_and_more, [sorted(hidden)], 4, 0)
        self.eps_h = eps_h
        self.fits = elimination.total <= MOST_ENTRIES
        # Without buckets nothing is known of the hidden part, and every node is unbounded.
        eliminated = elimination.variables if self.fits else ()
        self._buckets, self._state = _compile(instance, eliminated, order, eps_h)

    def decide(self, v: int, state: int) -> None:
        """Fix output v at a state."""
        DECIDE(buckets=self._buckets, state=self._state, variable=v, value=state, sign=1)

    def undo(self, v: int, state: int) -> None:
        """Undo ``decide`` of the same output and state."""
        DECIDE(buckets=self._buckets, state=self._state, variable=v, value=state, sign=-1)

    def value(self) -> float:
        """The bound with the outputs fixed so far, exact if all are; infinite if it might underflow."""
        value = np.zeros(1)
        VALUE(buckets=self._buckets, state=self._state, eps=self.eps_h, value=value)
        return float(value[0])

    def descend(self, sweep: ScoreSweep, tree: Tree, lower: float, budget: int) -> bool:
        """Continue a depth-first search for outputs above ``lower``, by ``budget`` steps; returns whether it stopped at
        a leaf.

        A leaf's bound is its value if the buckets fit. ``tree.exhausted`` says that the whole tree is searched.
        """
        at_leaf = DESCEND(
            program=sweep.program,
            work=sweep.work,
            states=tree.states,
            bound=tree.bound,
            open=tree.open,
            width=tree.open.shape[1],
            lower=lower,
            budget=budget,
            buckets=self._buckets,
            state=self._state,
            eps=self.eps_h,
            known=int(self.fits),
            depth=tree.depth,
        )
        return bool(at_leaf)


class Tree:
    """Position of a depth-first search over outputs: last eliminated first, best state first.

    ``bound[d]`` is the bound of the assignment down to depth d, ``open[d]`` has the bounds of the untried states at
    depth d.
    """

    def __init__(self, program: Program, states: Ints, bound: float) -> None:
        levels = len(program.position_ptr) - 1 - program.n_hidden
        self.states = states.copy()
        self.bound = np.full(levels + 1, bound)
        self.open = np.full((max(levels, 1), program.max_card), -np.inf)
        self.depth = np.full(1, -1, dtype=np.int64)  # an array: the native search writes it

    @property
    def exhausted(self) -> bool:
        return int(self.depth[0]) < 0

    @property
    def upper(self) -> float:
        """The largest bound of an untried state at the current depth or above."""
        return float(self.open[: int(self.depth[0]) + 1].max())


def _versions(instance: OneInstance, order: Sequence[int]) -> list[Floats]:
    """Every table, then the unary scores, in all its versions: with 0, 1, ... of its ordered variables fixed.

    In version k the variables after the k-th are maximised out; the shape stays, so that strides are the same.
    """
    graph = instance.topology
    rank = {v: k for k, v in enumerate(order)}
    tables = []
    for f, scope in enumerate(_all_scopes(instance)):
        table = instance.masked_table(f) if f < graph.n_factors else instance.scores_of(scope[0])
        ordered = sorted((v for v in scope if v in rank), key=lambda v: rank[v])
        versions = []
        for k in range(len(ordered) + 1):
            axes = tuple(scope.index(v) for v in ordered[k:])
            maximum = table.max(axis=axes, keepdims=True)
            versions.append(np.broadcast_to(maximum, table.shape).ravel())
        tables.append(np.concatenate(versions))
    return tables


def _all_scopes(instance: OneInstance) -> list[tuple[int, ...]]:
    """Scopes of the factors, then of the unary scores as factors of one variable."""
    graph = instance.topology
    return [*graph.scopes, *((v,) for v in range(graph.n_vars))]


class _Adjacency(NamedTuple):
    """A table of an output: its index, its stride along the output, and the size of one version."""

    table: int
    stride: int
    size: int


class _Wiring:
    """The tables that each bucket reads, and the tables and buckets that each output changes.

    ``place[f]`` is the position in table f of the clamped variables' states, ``inputs[s]`` the tables of bucket s with
    their strides by variable, ``near[v]`` the tables of output v, ``touched[v]`` their buckets, and ``whole`` the
    tables without hidden variables, whose entries are added as they are.
    """

    def __init__(self, instance: OneInstance, hidden: Sequence[int], order: Sequence[int], first: Ints) -> None:
        cards_of = instance.topology.cards
        outputs = set(order)
        self.rank = {v: s for s, v in enumerate(hidden)}
        self.place = first.copy()
        self.inputs: list[list[tuple[int, dict[int, int]]]] = [[] for _ in hidden]
        self.near: list[list[_Adjacency]] = [[] for _ in cards_of]
        self.touched: list[set[int]] = [set() for _ in cards_of]
        self.whole: list[int] = []
        for f, scope in enumerate(_all_scopes(instance)):
            cards = [cards_of[v] for v in scope]
            stride = dict(zip(scope, _c_strides(cards), strict=True))
            inside = [v for v in scope if v in self.rank]
            fixed = [v for v in scope if v not in self.rank and v not in outputs]
            self.place[f] += sum(stride[v] * int(instance.states[v]) for v in fixed)
            for v in outputs.intersection(scope):
                self.near[v].append(_Adjacency(f, stride[v], prod(cards)))
            if inside:
                bucket = min(self.rank[v] for v in inside)
                self.inputs[bucket].append((f, {v: stride[v] for v in inside}))
                for v in outputs.intersection(scope):
                    self.touched[v].add(bucket)
            elif all(v in outputs or instance.clamped[v] for v in scope):
                self.whole.append(f)


def _compile(instance: OneInstance, hidden: Sequence[int], order: Sequence[int], eps_h: float) -> tuple[Record, Record]:
    """Two records of native functions: the buckets in elimination order, which are constant, and their state."""
    cards_of = instance.topology.cards
    tables = _versions(instance, order)
    wiring = _Wiring(instance, hidden, order, _ptr(tables)[:-1])
    sources: list[list[int]] = []
    gathers: list[Ints] = []
    sizes: list[int] = []
    parent: list[int] = []
    for s, v in enumerate(hidden):
        inputs = wiring.inputs[s]
        variables = {u for _, stride in inputs for u in stride} - {v}
        axes = sorted(variables, key=lambda u: wiring.rank[u], reverse=True)
        cards = [cards_of[u] for u in axes]
        for _, stride in inputs:
            gathers.append(_gather_index((*axes, v), stride, cards_of))
        sources.append([source for source, _ in inputs])
        sizes.append(prod(cards))
        if not axes:
            parent.append(-1)
            continue
        parent.append(wiring.rank[axes[-1]])
        # A message of bucket s is source -1 - s of its parent.
        wiring.inputs[parent[s]].append((-1 - s, dict(zip(axes, _c_strides(cards), strict=True))))
    paths = [_path_to_roots(steps, parent) for steps in wiring.touched]
    log = np.concatenate([np.zeros(0), *tables])
    temperature = eps_h or 1.0
    size = _ints(sizes)
    card = _ints([cards_of[v] for v in hidden])
    buckets = BUCKETS(
        input_ptr=_ptr(sources),
        source=_flat(sources),
        gather_at=_ptr(gathers)[:-1],
        gather=np.concatenate([_ints([]), *gathers]),
        card=card,
        message_at=offsets(size)[:-1],
        message_size=size,
        path_ptr=_ptr(paths),
        path=_flat(paths),
        near_ptr=_ptr(wiring.near),
        near=_flat([[adjacency.table for adjacency in row] for row in wiring.near]),
        stride=_flat([[adjacency.stride for adjacency in row] for row in wiring.near]),
        version=_flat([[adjacency.size for adjacency in row] for row in wiring.near]),
        whole=_ints(wiring.whole),
        log=log,
        prob=np.exp(log / temperature),
        floor=np.array([_least_score(table) / temperature for table in tables]),
    )
    n_buckets = len(size)
    state = STATE(
        place=wiring.place,
        messages=np.zeros(int(size.sum())),
        scale=np.zeros(n_buckets),
        least=np.zeros(n_buckets),
        clique=np.zeros(int((size * card).max(initial=1))),
        stale=np.ones(n_buckets, dtype=np.int64),
    )
    return buckets, state


def _gather_index(axes: Sequence[int], stride: dict[int, int], cards: Sequence[int]) -> Ints:
    """Positions in a table, for every entry of a clique over ``axes``; variables without a stride do not move."""
    index = np.zeros(1, dtype=np.int64)
    for v in axes:
        steps = stride.get(v, 0) * np.arange(cards[v])
        index = (index[:, None] + steps).ravel()
    return index


def _least_score(table: Floats) -> float:
    """The least finite entry, or 0 if that is less."""
    return min(0.0, float(table[table > -np.inf].min(initial=0.0)))


def _c_strides(cards: Sequence[int]) -> list[int]:
    return [prod(cards[k + 1 :]) for k in range(len(cards))]


def _path_to_roots(steps: set[int], parent: Sequence[int]) -> list[int]:
    """These buckets and all their ancestors, in elimination order."""
    path: set[int] = set()
    for s in steps:
        while s >= 0 and s not in path:
            path.add(s)
            s = parent[s]
    return sorted(path)


def _ints(values: Sequence[int]) -> Ints:
    return np.array(values, dtype=np.int64)


def _ptr(rows: Sequence[Sized]) -> Ints:
    return offsets(_ints([len(row) for row in rows]))


def _flat(rows: Sequence[Sequence[int]]) -> Ints:
    return _ints([x for row in rows for x in row])
