"""Branch and bound over the outputs of one instance, with the hidden variables summed exactly as outputs become known.

Once outputs are given, elimination of the hidden variables is a forest of small buckets (their width is that of the
hidden variables alone). An output that is not given yet is maximised in every table for itself, which bounds

    max_y PS_h [sum_f theta_f]  <=  PS_h [sum_f max_{y_f} theta_f]              (paper eq. 5 at eps_y = 0)

and is exact when all are given: what mini-buckets lose on the hidden part, this does not. Outputs are given in one
order, so that every table has one version per output given. A change touches the buckets of its own tables
and those on their way to the roots, nothing else: hundreds of thousands of nodes a second.

Buckets work on scaled probabilities; where these might underflow, a node counts as unbounded.
"""

from __future__ import annotations

from collections.abc import Sequence, Sized
from math import prod

import numpy as np

from mssvm.core.arrays import Floats, Ints
from mssvm.core.library import FLOAT, FLOATS, INT, INTS, Function, Record, RecordKind, RecordType
from mssvm.core.orders import find_order
from mssvm.core.topology import offsets
from mssvm.engines.native.elimination import PROGRAM, ScoreSweep
from mssvm.engines.program import Program
from mssvm.inference.bounds.relaxation import OneInstance

# Clique entries of all buckets together; beyond it a node takes milliseconds and more.
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
GIVE = Function(
    "mssvm_branching_give",
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
    """The bound of outputs given one after the other in ``order``; ``fits`` says whether buckets are small enough."""

    def __init__(self, instance: OneInstance, order: Sequence[int], eps_h: float) -> None:
        hidden, graph = set(instance.free[0].tolist()), instance.topology
        inside = [[v for v in scope if v in hidden] for scope in graph.scopes]
        found = find_order(graph.cards, [s for s in inside if len(s) > 1], [sorted(hidden)], 4, 0)
        self.eps_h, self.fits = eps_h, found.total <= MOST_ENTRIES
        # Without buckets nothing is known of the hidden part, and every node is unbounded.
        self._buckets, self._state = _compiled(instance, found.variables if self.fits else (), order, eps_h)

    def give(self, v: int, state: int) -> None:
        """Decide an output."""
        GIVE(buckets=self._buckets, state=self._state, variable=v, value=state, sign=1)

    def take_back(self, v: int, state: int) -> None:
        """Open an output again, which was given this state."""
        GIVE(buckets=self._buckets, state=self._state, variable=v, value=state, sign=-1)

    def value(self) -> float:
        """The bound with what is given, the value itself where all is; infinite where it might underflow."""
        value = np.zeros(1)
        VALUE(buckets=self._buckets, state=self._state, eps=self.eps_h, value=value)
        return float(value[0])

    def descend(self, sweep: ScoreSweep, tree: Tree, lower: float, budget: int) -> bool:
        """Go on with a depth-first search for outputs above ``lower``, by so many steps; whether it is at a leaf.

        A leaf's bound is its value where the buckets fit. ``tree.exhausted`` says whether nothing is left.
        """
        return bool(
            DESCEND(
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
                depth=tree.place,
            )
        )


class Tree:
    """Where a depth-first search over outputs is, last eliminated first, best state first.

    ``bound[d]`` is that of the assignment down to depth d, ``open[d]`` those of the untried states there.
    """

    def __init__(self, program: Program, states: Ints, bound: float) -> None:
        levels = len(program.position_ptr) - 1 - program.n_hidden
        self.states = states.copy()
        self.bound = np.full(levels + 1, bound)
        self.open = np.full((max(levels, 1), program.max_card), -np.inf)
        self.place = np.full(1, -1, dtype=np.int64)

    @property
    def exhausted(self) -> bool:
        return int(self.place[0]) < 0

    @property
    def upper(self) -> float:
        """The largest bound of what is untried down to where the search is."""
        return float(self.open[: int(self.place[0]) + 1].max())


def _tables(instance: OneInstance, order: Sequence[int]) -> list[Floats]:
    """Every table, then the unary scores, one version after the other: for 0, 1, .. of its ordered variables given."""
    graph, rank, tables = instance.topology, {v: k for k, v in enumerate(order)}, []
    for f, scope in enumerate([*graph.scopes, *((v,) for v in range(graph.n_vars))]):
        if f < graph.n_factors:
            at = int(instance.table_at[f])
            full = instance.tables[at : at + int(graph.table_sizes[f])].reshape(graph.table_shape(f))
            for k, v in enumerate(scope):
                allowed = instance.unary[graph.unary_ptr[v] : graph.unary_ptr[v + 1]] > -np.inf
                full = np.where(allowed.reshape([-1 if a == k else 1 for a in range(len(scope))]), full, -np.inf)
        else:
            full = instance.unary[graph.unary_ptr[scope[0]] : graph.unary_ptr[scope[0] + 1]]
        given = sorted((v for v in scope if v in rank), key=rank.__getitem__)
        versions = []
        for k in range(len(given) + 1):
            axes = tuple(scope.index(v) for v in given[k:])
            versions.append(np.broadcast_to(full.max(axis=axes, keepdims=True), full.shape).ravel())
        tables.append(np.concatenate(versions))
    return tables


class _Wiring:
    """Which bucket reads which table, and what an output moves."""

    def __init__(self, instance: OneInstance, hidden: Sequence[int], order: Sequence[int], at: Ints) -> None:
        graph, given = instance.topology, set(order)
        self.rank, self.place = {v: p for p, v in enumerate(hidden)}, at.copy()
        self.waiting: list[list[tuple[int, dict[int, int]]]] = [[] for _ in hidden]
        self.near: list[list[tuple[int, int, int]]] = [[] for _ in graph.cards]
        self.touched: list[set[int]] = [set() for _ in graph.cards]
        self.whole = []
        for f, scope in enumerate([*graph.scopes, *((v,) for v in range(graph.n_vars))]):
            cards = [graph.cards[v] for v in scope]
            step = dict(zip(scope, _c_strides(cards), strict=True))
            inside = [v for v in scope if v in self.rank]
            first = min((self.rank[v] for v in inside), default=-1)
            held = (v for v in scope if v not in self.rank and v not in given)
            self.place[f] += sum(step[v] * int(instance.states[v]) for v in held)
            for v in given.intersection(scope):
                self.near[v].append((f, step[v], prod(cards)))
                self.touched[v].update([first] if inside else [])
            if inside:
                self.waiting[first].append((f, {v: step[v] for v in inside}))
            elif all(v in given or instance.clamped[v] for v in scope):
                self.whole.append(f)


def _compiled(
    instance: OneInstance, hidden: Sequence[int], order: Sequence[int], eps_h: float
) -> tuple[Record, Record]:
    all_cards, tables = instance.topology.cards, _tables(instance, order)
    wiring = _Wiring(instance, hidden, order, _ptr(tables)[:-1])
    rank, waiting = wiring.rank, wiring.waiting
    sources, gathers, sizes, parent = list[list[int]](), list[Ints](), list[int](), list[int]()
    for s, v in enumerate(hidden):
        axes = sorted({u for _, step in waiting[s] for u in step} - {v}, key=rank.__getitem__, reverse=True)
        cards = [all_cards[u] for u in axes]
        for _, step in waiting[s]:
            index = np.zeros(1, dtype=np.int64)
            for u in (*axes, v):
                index = (index[:, None] + step.get(u, 0) * np.arange(all_cards[u])).ravel()
            gathers.append(index)
        sources.append([source for source, _ in waiting[s]])
        sizes.append(prod(cards))
        parent.append(rank[axes[-1]] if axes else -1)
        if axes:
            waiting[parent[s]].append((-1 - s, dict(zip(axes, _c_strides(cards), strict=True))))
    path = [_path(steps, parent) for steps in wiring.touched]
    log, warmth = np.concatenate([np.zeros(0), *tables]), eps_h or 1.0
    floor = np.array([min(0.0, t[t > -np.inf].min(initial=0.0)) / warmth for t in tables])
    size, card = _ints(sizes), _ints([all_cards[v] for v in hidden])
    near, stride, version = (_flat([[entry[k] for entry in row] for row in wiring.near]) for k in range(3))
    buckets = BUCKETS(
        input_ptr=_ptr(sources),
        source=_flat(sources),
        gather_at=_ptr(gathers)[:-1],
        gather=np.concatenate([_ints([]), *gathers]),
        card=card,
        message_at=offsets(size)[:-1],
        message_size=size,
        path_ptr=_ptr(path),
        path=_flat(path),
        near_ptr=_ptr(wiring.near),
        near=near,
        stride=stride,
        version=version,
        whole=_ints(wiring.whole),
        log=log,
        prob=np.exp(log / warmth),
        floor=floor,
    )
    steps, most = len(size), int((size * card).max(initial=1))
    state = STATE(
        place=wiring.place,
        messages=np.zeros(int(size.sum())),
        scale=np.zeros(steps),
        least=np.zeros(steps),
        clique=np.zeros(most),
        stale=np.ones(steps, dtype=np.int64),
    )
    return buckets, state


def _c_strides(cards: Sequence[int]) -> list[int]:
    return [prod(cards[k + 1 :]) for k in range(len(cards))]


def _path(steps: set[int], parent: Sequence[int]) -> list[int]:
    """These steps and all on their way to the roots, in order."""
    found = set[int]()
    for s in steps:
        while s >= 0 and s not in found:
            found.add(s)
            s = parent[s]
    return sorted(found)


def _ints(values: Sequence[int]) -> Ints:
    return np.array(values, dtype=np.int64)


def _ptr(rows: Sequence[Sized]) -> Ints:
    return offsets(_ints([len(row) for row in rows]))


def _flat(rows: Sequence[Sequence[int]]) -> Ints:
    return _ints([x for row in rows for x in row])
