"""From templates to a batch: topologies with named groups, blocks of weights on them, and their joint layout.

Everything is laid out by index arithmetic over the different topologies of a batch, never instance by instance.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from typing import Any

import numpy as np

from mssvm.core.arrays import Bools, Ints
from mssvm.core.potentials import Potentials
from mssvm.core.terms import Term
from mssvm.core.topology import Batch, Topology, offsets, spans
from mssvm.data.features import Rows
from mssvm.models.layout import WeightLayout
from mssvm.models.linear import LinearInputs
from mssvm.structures.encoded import Encoded, Sites


@dataclass(frozen=True)
class Block:
    """Named weights (n_features, states...) that act on every member of a group of variables or factors.

    ``axes`` says of every state axis whether it is "label" or "hidden"; ``source`` names the features, None is one
    constant feature. ``rows`` names where a wiring keeps the feature row of each member (None: rows in order).
    """

    name: str
    group: str
    axes: tuple[str, ...]
    cards: tuple[int, ...]
    source: str | None = None
    rows: str | None = None

    @property
    def width(self) -> int:
        return prod(self.cards)

    @property
    def touches_hidden(self) -> bool:
        return "hidden" in self.axes


@dataclass(frozen=True, eq=False)
class Ban:
    """Joint states (a mask of the shape of the group's tables) that no member of the group may take."""

    group: str
    mask: Bools


@dataclass(frozen=True, eq=False)
class Wiring:
    """One topology: its graph, the user's sites, and groups of variables and factors by name (local numbers).

    ``sizes`` is the number of feature rows expected from each source; ``rows`` see ``Block``.
    """

    graph: Topology
    labels: Ints
    hidden: Ints
    shape: tuple[int, ...]
    hidden_shape: tuple[int, ...]
    variables: Mapping[str, Ints]
    factors: Mapping[str, Ints]
    sizes: Mapping[str, int]
    rows: Mapping[str, Ints] = field(default_factory=dict)


NONE = np.zeros(0, dtype=np.int64)


@dataclass(frozen=True, eq=False)
class Frames:
    """The topologies of a batch: ``kinds[which[b]]`` is that of instance b."""

    kinds: tuple[Wiring, ...]
    which: Ints

    def gather(self, parts: Sequence[Ints], shift: Ints) -> Ints:
        """``parts[kind of b] + shift[b]`` of all instances one after the other."""
        ptr = offsets(np.array([len(p) for p in parts], dtype=np.int64))
        flat = np.concatenate([NONE, *parts])
        sizes = np.diff(ptr)[self.which]
        return np.asarray(flat[spans(ptr[:-1][self.which], sizes)] + np.repeat(shift, sizes))

    @cached_property
    def groups(self) -> tuple[str, ...]:
        """Names of all groups of factors, in order of first use."""
        return tuple(dict.fromkeys(name for kind in self.kinds for name in kind.factors))

    def batch(self, own: set[str]) -> Batch:
        """Factors of one group share one table; those of the groups ``own`` have one each."""
        graphs = [self.kinds[k].graph for k in self.which]
        group = []
        for kind in self.kinds:
            of = np.zeros(kind.graph.n_factors, dtype=np.int64)
            for name, members in kind.factors.items():
                of[members] = self.groups.index(name)
            group.append(of)
        of_factor = self.gather(group, np.zeros(len(graphs), dtype=np.int64))
        apart = np.array([name in own for name in self.groups], dtype=bool)
        ids = of_factor
        if apart.any():
            ids = np.where(apart[of_factor], len(self.groups) + np.arange(len(of_factor)), of_factor)
        ptr = offsets(np.array([len(g) for g in group], dtype=np.int64)[self.which])
        return Batch.build(graphs, [ids[a:b] for a, b in zip(ptr[:-1], ptr[1:], strict=True)])

    def sites(self, batch: Batch, parts: Sequence[Ints], shapes: Sequence[tuple[int, ...]]) -> Sites:
        sizes = np.array([len(p) for p in parts], dtype=np.int64)[self.which]
        variables = self.gather(parts, batch.var_ptr[:-1])
        return Sites(variables, offsets(sizes), tuple(shapes[k] for k in self.which))


@dataclass(frozen=True, eq=False)
class Places:
    """Where the members of a group lie in an array over states or over table entries."""

    unary: bool
    at: Ints


def places(frames: Frames, batch: Batch, group: str) -> Places:
    """Variables of a group by their states, factors by their (different) tables."""
    variables = [kind.variables.get(group, NONE) for kind in frames.kinds]
    if group in frames.groups:
        members = frames.gather([k.factors.get(group, NONE) for k in frames.kinds], batch.factor_ptr[:-1])
        at = batch.table_at[members]
        # A tied group has one table; more than one only where every factor has its own.
        return Places(False, at[:1] if len(at) and np.all(at == at[0]) else at)
    return Places(True, batch.unary_ptr[frames.gather(variables, batch.var_ptr[:-1])])


def assemble(
    frames: Frames,
    rows: Mapping[str, Rows],
    blocks: Sequence[Block],
    layout: WeightLayout,
    bans: Sequence[Ban],
    n_classes: int,
) -> Encoded:
    """The encoded batch of the given topologies, features, weights and constraints."""
    known = {name for kind in frames.kinds for name in (*kind.variables, *kind.factors)}
    batch = frames.batch({block.group for block in blocks if block.source is not None})
    terms = []
    for block in blocks:
        where = places(frames, batch, block.group) if block.group in known else Places(True, NONE)
        if len(where.at):
            features = _features(frames, rows, block, len(where.at))
            target = "unary" if where.unary else "tables"
            start = np.asarray(layout[block.name].start)
            terms.append(Term(target, features, where.at, block.width, start))  # type: ignore[arg-type]
    allowed, offset = _constrain(frames, batch, [ban for ban in bans if ban.group in known])
    labels = frames.sites(batch, [k.labels for k in frames.kinds], [k.shape for k in frames.kinds])
    hidden = frames.sites(batch, [k.hidden for k in frames.kinds], [k.hidden_shape for k in frames.kinds])
    return Encoded(LinearInputs(batch, tuple(terms), offset), labels, hidden, n_classes, allowed)


def _features(frames: Frames, rows: Mapping[str, Rows], block: Block, n: int) -> Any:
    if block.source is None:
        return np.ones((n, 1))
    source = rows[block.source]
    if block.rows is None:
        return source.matrix
    chosen = frames.gather([kind.rows.get(block.rows, NONE) for kind in frames.kinds], source.ptr[:-1])
    if len(chosen) == source.matrix.shape[0] and np.array_equal(chosen, np.arange(len(chosen))):
        return source.matrix
    return source.matrix[chosen]


def _constrain(frames: Frames, batch: Batch, bans: Sequence[Ban]) -> tuple[Bools | None, Potentials | None]:
    """Banned states of variables as a mask of what is allowed, banned entries of tables as -inf in the offset."""
    allowed: Bools | None = None
    offset: Potentials | None = None
    for ban in bans:
        where = places(frames, batch, ban.group)
        entries = (where.at[:, None] + np.flatnonzero(ban.mask)).ravel()
        if where.unary:
            allowed = np.ones(batch.n_states, dtype=bool) if allowed is None else allowed
            allowed[entries] = False
        else:
            offset = Potentials.zeros(batch) if offset is None else offset
            offset.tables[entries] = -np.inf
    return allowed, offset
