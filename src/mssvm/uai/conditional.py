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
from typing import NamedTuple

import numpy as np

from mssvm.core.arrays import Floats, Ints
from mssvm.core.jit import njit
from mssvm.core.orders import find_order
from mssvm.core.topology import offsets
from mssvm.engines.program import Program
from mssvm.inference.bounds.relaxation import OneInstance

# Clique entries of all buckets together; beyond it a node takes milliseconds and more.
MOST_ENTRIES = 1 << 17
# Products of probabilities whose logarithms sum to less than this may underflow.
UNDERFLOW = -640.0
SMALLEST = 1e-300


class Buckets(NamedTuple):
    """Where everything lies; s runs over steps, i over their inputs, v over variables, f over tables, unary ones last.

    Input i reads table f (``source[i]`` = f) or a message (-1 - step); entry k of a clique is its entry
    ``gather[gather_at[i] + k]``, the eliminated variable last. Tables of given variables alone (``whole``) are read in
    no bucket. ``near`` are the tables of a variable, ``step`` how far it moves in them, next version included.
    """

    input_ptr: Ints
    source: Ints
    gather_at: Ints
    gather: Ints
    card: Ints
    message_at: Ints
    message_size: Ints
    path_ptr: Ints
    path: Ints
    near_ptr: Ints
    near: Ints
    stride: Ints
    version: Ints
    whole: Ints
    log: Floats
    prob: Floats
    floor: Floats


class State(NamedTuple):
    """What changes: places of the tables; messages, their scales and smallest entries; which are to be made again."""

    place: Ints
    messages: Floats
    scale: Floats
    least: Floats
    clique: Floats
    dirty: Ints


class ConditionalBound:
    """The bound of outputs given one after the other in ``order``; ``fits`` says whether buckets are small enough."""

    def __init__(self, instance: OneInstance, order: Sequence[int], eps_h: float) -> None:
        hidden, graph = set(instance.free[0].tolist()), instance.topology
        inside = [[v for v in scope if v in hidden] for scope in graph.scopes]
        found = find_order(graph.cards, [s for s in inside if len(s) > 1], [sorted(hidden)], 4, 0)
        self.eps_h, self.fits = eps_h, found.total <= MOST_ENTRIES
        # Without buckets nothing is known of the hidden part, and every node is unbounded.
        self.buckets, self.state = _compiled(instance, found.variables if self.fits else (), order, eps_h)


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
) -> tuple[Buckets, State]:
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
    buckets = Buckets(
        _ptr(sources), _flat(sources), _ptr(gathers)[:-1], np.concatenate([_ints([]), *gathers]), card,
        offsets(size)[:-1], size, _ptr(path), _flat(path), _ptr(wiring.near), near, stride, version,
        _ints(wiring.whole), log, np.exp(log / warmth), floor,
    )  # fmt: skip
    n, most = len(size), int((size * card).max(initial=1))
    messages = np.zeros(int(size.sum())), np.zeros(n), np.zeros(n)
    return buckets, State(wiring.place, *messages, np.zeros(most), np.ones(n, dtype=np.int64))


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


@njit(cache=True, nogil=True)
def give(b: Buckets, state: State, v: int, value: int, sign: int) -> None:
    """Give an output its state (sign 1), or take that back (-1)."""
    for e in range(b.near_ptr[v], b.near_ptr[v + 1]):
        state.place[b.near[e]] += sign * (b.version[e] + b.stride[e] * value)
    for k in range(b.path_ptr[v], b.path_ptr[v + 1]):
        state.dirty[b.path[k]] = 1


@njit(cache=True, nogil=True)
def _eliminate(b: Buckets, state: State, s: int, maximise: bool) -> None:
    """Make the message of step s again."""
    n, x, first, card = b.message_size[s] * b.card[s], state.clique, b.input_ptr[s], b.card[s]
    least = 0.0
    for i in range(first, b.input_ptr[s + 1]):
        source, g = b.source[i], b.gather_at[i]
        if source >= 0:
            values, at = b.prob, state.place[source]
            least += b.floor[source]
        else:
            values, at = state.messages, b.message_at[-1 - source]
            least += state.least[-1 - source]
        if i == first:
            for k in range(n):
                x[k] = values[at + b.gather[g + k]]
        else:
            for k in range(n):
                x[k] *= values[at + b.gather[g + k]]
    at, top, low = b.message_at[s], 0.0, 1.0
    for k in range(b.message_size[s]):
        total = 0.0
        for j in range(card):
            total = max(total, x[k * card + j]) if maximise else total + x[k * card + j]
        state.messages[at + k] = total
        top = max(top, total)
    if top > 0.0:
        for k in range(b.message_size[s]):
            state.messages[at + k] /= top
            if state.messages[at + k] > 0.0:
                low = min(low, state.messages[at + k])
    state.scale[s] = np.log(top) if top > 0.0 else -np.inf
    state.least[s] = np.log(low) if least > UNDERFLOW else -np.inf


@njit(cache=True, nogil=True)
def value_of(b: Buckets, state: State, eps: float) -> float:
    """The bound with what is given, the value itself where all is; infinite where it might underflow."""
    total, direct, safe = 0.0, 0.0, True
    for s in range(len(b.card)):
        if state.dirty[s]:
            state.dirty[s] = 0
            _eliminate(b, state, s, eps == 0.0)
        total += state.scale[s]
        safe &= state.least[s] > -np.inf
    if not safe:
        return np.inf
    for f in b.whole:
        direct += b.log[state.place[f]]
    return direct + (eps if eps > 0.0 else 1.0) * total


@njit(cache=True, nogil=True)
def _add_row(program: Program, s: int, states: Ints, work: Floats, at: Ints, x: Floats) -> int:
    """Add to x the scores of step s's states, its separator being as in ``states``; returns the message's entry."""
    place = 0
    for k in range(program.separator_ptr[s], program.separator_ptr[s + 1]):
        place += states[program.separator[k]] * program.separator_stride[k]
    i0, n_inputs = program.input_ptr[s], program.input_ptr[s + 1] - program.input_ptr[s]
    a0, n_axes = program.axis_ptr[s], program.axis_ptr[s + 1] - program.axis_ptr[s]
    for i in range(n_inputs):
        at[i] = program.input_at[i0 + i]
    rest = place
    for d in range(n_axes - 1, -1, -1):
        size = program.axis_size[a0 + d]
        digit = rest % size
        rest //= size
        for i in range(n_inputs):
            at[i] += digit * program.stride[program.stride_ptr[i0 + i] + d]
    for i in range(n_inputs):
        for j in range(program.card[s]):
            x[j] += work[at[i] + j]
    found: int = program.message_at[s] + place
    return found


@njit(cache=True, nogil=True)
def extend(program: Program, p: int, bound: float, work: Floats, states: Ints, at: Ints, out: Floats) -> None:
    """Bounds of a partial assignment of all later positions, extended by each state of position p's variable."""
    first, last = program.position_ptr[p], program.position_ptr[p + 1]
    out[:] = -np.inf
    out[: program.card[first]] = bound
    for s in range(first, last):
        message = _add_row(program, s, states, work, at, out)
        for j in range(program.card[first]):
            out[j] -= work[message]


@njit(cache=True, nogil=True)
def descend(
    program: Program, work: Floats, states: Ints, depth: int, bound: Floats, open_bounds: Floats, lower: float,
    budget: int, b: Buckets, state: State, eps: float, known: bool,
) -> tuple[int, bool]:  # fmt: skip
    """Depth-first branch and bound over the outputs, last eliminated first, best state first.

    ``open_bounds[d]`` holds the bounds of the untried states at depth d, ``bound[d]`` that of the assignment down to
    it. Call with ``depth = -1`` to begin and with the depth returned to go on. Returns ``(depth, leaf)``: at a leaf
    all outputs are assigned in ``states``, and its bound is its value where the buckets are ``known``; ``depth = -1``
    without a leaf means that the tree is exhausted.
    """
    at = np.zeros(program.max_inputs, dtype=np.int64)
    last = len(program.position_ptr) - 2
    n_levels = last + 1 - program.n_hidden
    if n_levels == 0:
        return 0, True
    if depth < 0:
        depth = 0
        extend(program, last, bound[0], work, states, at, open_bounds[0])
    elif depth == n_levels:
        depth -= 1
        v = program.var[program.position_ptr[last - depth]]
        give(b, state, v, states[v], -1)
    for _ in range(budget):
        best = np.argmax(open_bounds[depth])
        f = open_bounds[depth, best]
        v = program.var[program.position_ptr[last - depth]]
        if not f > lower:
            depth -= 1
            if depth < 0:
                return -1, False
            v = program.var[program.position_ptr[last - depth]]
            give(b, state, v, states[v], -1)
            continue
        open_bounds[depth, best] = -np.inf
        states[v] = best
        give(b, state, v, best, 1)
        if known:
            f = min(f, value_of(b, state, eps))
            if not f > lower:
                give(b, state, v, best, -1)
                continue
        depth += 1
        bound[depth] = f
        if depth == n_levels:
            return depth, True
        extend(program, last - depth, f, work, states, at, open_bounds[depth])
    return depth, False
