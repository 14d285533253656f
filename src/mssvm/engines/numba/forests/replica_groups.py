"""How paths of labels and hidden variables in turn lie in registers when hidden variables are copied (``replicas``)."""

from __future__ import annotations

from functools import lru_cache
from itertools import combinations_with_replacement
from math import comb, factorial, prod

import numpy as np

from mssvm.core.arrays import Bools, Ints
from mssvm.core.potentials import Query
from mssvm.core.topology import Batch, offsets
from mssvm.engines.numba.forests.lane_groups import (
    LARGEST,
    NOTHING,
    Family,
    Kinds,
    LaneGroup,
    Roles,
    members_of,
    slots_of,
)
from mssvm.engines.numba.forests.registers import CARD, COLUMNS, SLOT, B, E, S, W
from mssvm.engines.numba.forests.replicas import HEAD, JOINT, JOINT_PARTS, OPENING, SLOT_PARTS, run_copies
from mssvm.engines.numba.vector import WIDTH

MOST_COPIES = 8  # of scores that differ by 40 / eps_h all powers are far from underflow
Counts = tuple[int, ...]
Slot = tuple[int, list[int], list[int]]


def counts_of(n: int, states: int) -> list[Counts]:
    """How many of n copies are in every state: all in the first, to begin with."""
    chosen = combinations_with_replacement(range(states), n)
    return [tuple(some.count(h) for h in range(states)) for some in chosen]


def _changed(counts: Counts, state: int, by: int) -> Counts:
    return (*counts[:state], counts[state] + by, *counts[state + 1 :])


@lru_cache(64)
def multiplying_out(n: int, states: int) -> tuple[int, Ints, Ints, Ints]:
    """The products by which a polynomial sum m(k) f^k is multiplied out at f = T f', a copy at a time.

    Terms are f^k f'^l, from k = all copies to l = all copies: how many there are. Their coefficients, those of a later
    stage from the one before: by later term (earlier term, entry of T), by earlier term, the last first (later term,
    entry), and by entry (earlier, later); before every list its length. Of two states the kernel knows by itself.
    """
    if states == 2:
        return (n + 1) * (n + 4) // 2, NOTHING, NOTHING, NOTHING
    terms = [(k, ll) for i in range(n + 1) for k in counts_of(n - i, states) for ll in counts_of(i, states)]
    number = {term: i for i, term in enumerate(terms)}
    moves = []
    for (k, ll), first in number.items():
        state = next((h for h in range(states) if k[h]), None)
        for h in range(states if state is not None else 0):
            later = number[_changed(k, state or 0, -1), _changed(ll, h, 1)]
            moves.append((first, later, (state or 0) * states + h))
    K = len(counts_of(n, states))
    up = _listed([[(a, t) for a, b, t in moves if b == i] for i in range(K, len(terms))])
    back = _listed([[(b, t) for a, b, t in moves if a == i] for i in range(len(terms) - K - 1, -1, -1)])
    return len(terms), up, back, _listed([[(a, b) for a, b, t in moves if t == i] for i in range(states * states)])


def _listed(lists: list[list[tuple[int, int]]]) -> Ints:
    """Lists one after the other, each after its length, of places of registers."""
    return np.array([v for pairs in lists for v in (len(pairs), *(WIDTH * i for pair in pairs for i in pair))])


def _turns(batch: Batch, kinds: Kinds, query: Query) -> Bools | None:
    """Which positions of a path are labels, if these and hidden variables take turns and labels are at both ends."""
    lead, n = kinds.readings[0], kinds.topologies[0].n_vars
    label: Bools = np.arange(n - 1, -1, -1) % 2 == 0
    if not np.array_equal(lead.parent, np.append(np.arange(1, n), -1)):
        return None
    for topology, reading, chosen in zip(kinds.topologies, kinds.readings, kinds.instances, strict=True):
        mine = label[n - topology.n_vars :]
        output = query.output[batch.var_ptr[chosen][:, None] + reading.order]
        if not mine[0] or output[:, ~mine].any():
            return None
    return label


def _label_first(flip: Bools, label: Bools, table: Ints, count: int) -> Bools | None:
    """Whether labels are the first axis of every table; None if that depends on where the table is."""
    first, below = np.zeros(count, dtype=bool), table >= 0
    found = flip[below] != label[below]
    first[table[below]] = found
    return first if np.array_equal(first[table[below]], found) else None


def replica_group(batch: Batch, kinds: Kinds, query: Query, n: int) -> LaneGroup | None:
    """The registers of a family of paths whose hidden variables are copied n times, eps_y = eps_h / n; None if they are
    no such paths, or if there are more counts than labels: rows are as fast then."""
    lead = kinds.readings[0]
    card = kinds.topologies[0].card_array[lead.order]
    if len(card) < 3 or card[::2].min() < (K := comb(n + int(card[1]) - 1, n)):
        return None
    states, label, (start, table, shape) = int(card[1]), _turns(batch, kinds, query), slots_of(batch, kinds)
    first = None if label is None else _label_first(lead.flip, label, table, len(start))
    if label is None or first is None or np.any(card[~label] != states):
        return None
    size, square = -(-int(card.sum()) // WIDTH) * WIDTH, states * states
    parts = np.where(label, [card, 0 * card, 0 * card + K, 0 * card + 2 * square], K)
    parts[2, ~label] = card[1:][~label[:-1]]
    ends = offsets(np.append(parts.ravel(), np.full(len(card), 2)))
    at, put, below = offsets(kinds.topologies[0].card_array)[:-1][lead.order], offsets(shape.prod(axis=1)), table >= 0
    places = np.stack([
        card, np.where(below, COLUMNS * np.arange(1, len(card) + 1), -1), lead.flip, table,
        np.where(below, np.append(start, 0)[table], 0), WIDTH * np.where(below, put[table], 0),
        np.maximum(COLUMNS * np.arange(-1, len(card) - 1), -1), 0 * card - 1, 0 * card - 1,
        WIDTH * at, WIDTH * (size + at), *(WIDTH * (2 * size + ends[:-1].reshape(5, -1))),
    ], axis=1).astype(np.int64)  # fmt: skip
    slots, ragged = _slot_pairs(places, label, len(start)), len(kinds.instances) > 1
    joints = _find_joints(places, label, square, ragged)
    scratch, terms = 2 * size + int(ends[-1]), multiplying_out(n, states)[0]
    powers = (n + 1) * (n + 2) // 2  # of a sum of two, kept while polynomials of two variables are multiplied out
    numbers = scratch + max(states * (n + 1), 2 * terms + powers + max(square, int(card.max())))
    room = 4 * K * sum(slot[0] for slot in slots) + 2 * square * sum(key[2] for key in joints)
    marginals = numbers + -(-room // WIDTH)
    more, total = _more(slots, joints, first, n, states, WIDTH * numbers, WIDTH * (marginals + int(put[-1])))
    if total > WIDTH * LARGEST:
        return None
    family = Family(
        places, NOTHING, NOTHING, NOTHING, 0, size, total, WIDTH * scratch, WIDTH * marginals, len(places)
    )
    roles = Roles.of(batch, kinds, query, False)
    members = members_of(kinds, family, start, shape, roles, np.arange(len(roles.sent)))
    return LaneGroup(family, members, run_copies, more)


def _slot_pairs(places: Ints, label: Bools, count: int) -> list[Slot]:
    """For every table, after none, which is above the last label: the number of its labels, and places of beliefs and
    derivatives where labels send, and where they take."""
    card = np.full(count + 1, places[-1, CARD])
    card[places[:-1, SLOT] + 1] = np.where(label[:-1], places[:-1, CARD], places[1:, CARD])
    out: list[Slot] = [(c, [], []) for c in card.tolist()]
    for sends, (slot, *pair) in zip(label.tolist(), places[:, [SLOT, B, S]].tolist(), strict=True):
        out[slot + 1][1 if sends else 2].extend(pair if slot >= 0 else ())
    return out


def _find_joints(places: Ints, label: Bools, square: int, ragged: bool) -> dict[tuple[int, int, int], list[int]]:
    """Different tables on the two sides of labels (slots, -1 for none, and the labels' number) with the places of
    exponentials and of T. Notes in ``places`` which of them a label has, and which in lanes that begin with it."""
    found, number = dict[tuple[int, int, int], list[int]](), dict[tuple[int, int, int], int]()
    for p in np.flatnonzero(label).tolist():
        card, over, exponentials, matrix = places[p, [CARD, SLOT, E, W]].tolist()
        for way in range(1 + (ragged and p > 0)):
            key = (int(places[p - 1, SLOT]) if p and not way else -1, over, card)
            found.setdefault(key, []).extend([exponentials, matrix + way * WIDTH * square])
            places[p, OPENING if way else JOINT] = number.setdefault(key, len(number))
    return found


def _more(
    slots: list[Slot], joints: dict[tuple[int, int, int], list[int]], first: Bools, n: int, states: int,
    numbers: int, marginals: int,
) -> tuple[Ints, int]:  # fmt: skip
    """What ``replicas`` calls MORE, with powers and products of tables from ``numbers`` on and their marginals from
    ``marginals`` on, which end at the second."""
    counts, (terms, *lists) = counts_of(n, states), multiplying_out(n, states)
    K, square, flat = len(counts), states * states, [h for k in counts for h in k]
    many = [factorial(n) // prod(map(factorial, k)) for k in counts]
    rows, tail, parts = list[list[int]](), list[int](), [HEAD]
    for size in (len(flat), K, len(slots) * SLOT_PARTS, len(joints) * JOINT_PARTS, *map(len, lists)):
        parts.append(parts[-1] + size)

    def ends(pairs: list[int]) -> list[int]:
        tail.extend(pairs)
        return [parts[-1] + len(tail) - len(pairs), parts[-1] + len(tail)]

    for slot, (card, sending, taking) in enumerate(slots):
        labels_first = int(slot > 0 and first[slot - 1])
        rows.append([labels_first, card, numbers, marginals, *ends(sending), *ends(taking)])
        numbers, marginals = numbers + 4 * K * card, marginals + WIDTH * K * card
    for (under, over, card), pairs in joints.items():
        rows.append([under, over, card, numbers, marginals, *ends(pairs)])
        numbers, marginals = numbers + 2 * square * card, marginals + WIDTH * square * card
    parts[2] += SLOT_PARTS  # slots are counted from -1
    head = [n, K, states, len(joints), terms, *parts[:-1]]
    body = [flat, many, *rows, *lists, tail]
    return np.concatenate([np.array(part, dtype=np.int64) for part in (head, *body)]), marginals
