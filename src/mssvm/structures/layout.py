"""Lay out: instances, by their topologies, become a batch, and named groups become positions in its arrays.

A batch has many instances and few different topologies, so everything here is index arithmetic over the topologies;
nothing loops over instances. Features are not known yet: ``Encoder.encode_parsed`` adds them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from math import prod
from typing import Any, NamedTuple

import numpy as np

from mssvm.core.arrays import AnyArray, Bools, Floats, Ints
from mssvm.core.potentials import Potentials, Query
from mssvm.core.terms import Target
from mssvm.core.topology import NONE, Batch, Topology, gather, mask_from_indices, offsets, spans
from mssvm.structures.weights import HardConstraint, KnownScores, WeightBlock


@dataclass(frozen=True, eq=False)
class InstanceTopology:
    """Variables and factors of one instance, in named groups.

    ``cards`` are the numbers of states of the variables; ``labels`` the variables with labels, in C order of ``shape``,
    the shape of the instance's y. A group lists the scopes of its members, one row each: rows of one number are
    variables, longer ones factors. ``sizes`` is the number of feature rows of every source; ``rows``: see
    ``WeightBlock``. ``hidden_shape`` is the shape of the hidden states that users get (None: flat). ``table``: all
    instances have the same labels, so that the labels of many instances are one array. ``auxiliary`` variables are
    functions of the labelled ones, or only hold scores; they are neither labels nor hidden.
    """

    cards: Ints
    labels: Ints
    shape: tuple[int, ...]
    groups: Mapping[str, Ints]
    sizes: Mapping[str, int]
    rows: Mapping[str, Ints] = field(default_factory=dict)
    hidden_shape: tuple[int, ...] | None = None
    table: bool = False
    auxiliary: Ints = field(default_factory=NONE.copy)

    @cached_property
    def hidden(self) -> Ints:
        """The variables without labels that are not auxiliary."""
        hidden = np.ones(len(self.cards), dtype=bool)
        hidden[self.labels] = False
        hidden[self.auxiliary] = False
        return np.flatnonzero(hidden)

    @cached_property
    def variables(self) -> dict[str, Ints]:
        """The members of every group of variables."""
        return {name: members[:, 0] for name, members in self.groups.items() if members.shape[1] == 1}

    @cached_property
    def factors(self) -> dict[str, Ints]:
        """The members of every group of factors, numbered in the order of ``graph``."""
        numbers = {}
        n_factors = 0
        for name, members in self.groups.items():
            if members.shape[1] > 1 and len(members):
                numbers[name] = np.arange(n_factors, n_factors + len(members))
                n_factors += len(members)
        return numbers

    @cached_property
    def graph(self) -> Topology:
        """The topology without names; factors of one group follow each other."""
        return Topology.of_arrays(self.cards, [self.groups[name] for name in self.factors])


@dataclass(frozen=True, eq=False)
class Sites:
    """Some variables of a batch in the order the user lists them, instance by instance.

    ``vars`` are numbers within the batch, those of instance b at ``ptr[b] : ptr[b+1]``, laid out in C order of
    ``shapes[b]``: (T,) for a sequence, (H, W) for a grid, () for one variable an instance. ``table``: all instances
    have the same shape, and their values are one array.
    """

    vars: Ints
    ptr: Ints
    shapes: tuple[tuple[int, ...], ...]
    table: bool = False

    @property
    def scalar(self) -> bool:
        """Whether an instance has one site and no axis, so that its labels are one flat array."""
        return bool(self.shapes) and self.shapes[0] == ()

    def split(self, values: AnyArray) -> Any:
        """Values (sites, ...) by instance: a list of arrays in the user's shapes, or one array if ``scalar`` or
        ``table``."""
        if self.scalar:
            return values
        if self.table:
            return values.reshape(len(self.shapes), *self.shapes[0], *values.shape[1:])
        parts = [values[first:last] for first, last in pairwise(self.ptr.tolist())]
        if len(self.shapes) and len(self.shapes[0]) == 1:
            return parts
        further_axes = values.shape[1:]
        return [part.reshape(*shape, *further_axes) for part, shape in zip(parts, self.shapes, strict=True)]

    def select(self, instances: Ints, old: Batch, new: Batch) -> Sites:
        """The sites of the named instances, renumbered for the sub-batch."""
        sizes = np.diff(self.ptr)[instances]
        shift = np.repeat(new.var_ptr[:-1] - old.var_ptr[instances], sizes)
        variables = self.vars[spans(self.ptr[instances], sizes)] + shift
        shapes = tuple(self.shapes[b] for b in instances.tolist())
        return Sites(variables, offsets(sizes), shapes, self.table)


def first_sites(ptr: Ints) -> Ints:
    """The first site of every instance ``ptr[b] : ptr[b+1]`` that has one."""
    return np.asarray(ptr[:-1][np.diff(ptr) > 0])


class SegmentStates(NamedTuple):
    """First states, in the batch, of the variables that a segmentation has beside the labels of sites: ``boundary`` of
    every site, ``begin`` and ``end`` of every instance (``core.segments``)."""

    boundary: Ints
    begin: Ints
    end: Ints


@dataclass(frozen=True)
class BlockRows:
    """Number of feature rows of a block of weights, and whether they are ``listed``, that is, copied from the source
    row by row (see ``BatchLayout``). The decision is made once for all parts of a larger data set, so that the parts
    yield the same bits as the data in one piece."""

    n: int
    listed: bool


@dataclass(frozen=True, eq=False)
class BlockPlacement:
    """Where a block of weights acts in a batch: the scores of feature row r go to the entries of ``target`` from
    ``at[r]`` on (-1: nowhere). ``rows`` are the rows of the source that are the features; None: all, in order."""

    target: Target
    at: Ints
    rows: Ints | None


class BatchLayout:
    """Instances as a batch: ``topologies[topology_of[b]]`` is the topology of instance b.

    Factors of a group share one table, except in the groups ``own_tables``, where each has its own. For every one of
    the ``blocks`` of weights there is a placement; ``constraints`` become ``allowed``, the mask of permitted states
    (None: all), and ``offset``, -inf at the forbidden entries of tables (None: there are none), to which ``known``
    scores of tables are added. ``segments`` are the states of a segmentation's variables (None: there are no segments).
    ``whole`` is ``Encoder.rows_of`` where the batch is a part of larger data.

    The feature rows of a block are listed (copied) only where they are few or out of order; otherwise all rows of the
    source are used, and those without a member of the group are placed nowhere.
    """

    def __init__(
        self,
        topologies: tuple[InstanceTopology, ...],
        topology_of: Ints,
        blocks: Sequence[WeightBlock] = (),
        constraints: Sequence[HardConstraint] = (),
        known: Sequence[KnownScores] = (),
        own_tables: Set[str] = frozenset(),
        whole: Mapping[str, BlockRows] | None = None,
    ) -> None:
        self.topologies = topologies
        self.topology_of = topology_of
        self.own_tables = own_tables
        self.whole = whole
        self.variables = _by_name([topology.variables for topology in topologies])
        self.factors = _by_name([topology.factors for topology in topologies])
        self._feature_rows = _by_name([topology.rows for topology in topologies])
        self._empty = [NONE] * len(topologies)
        self.batch = self._build_batch()
        self.placements = tuple(self._place(block) for block in blocks)
        self.labels = self._sites([t.labels for t in topologies], [t.shape for t in topologies])
        self.hidden = self._sites([t.hidden for t in topologies], [_hidden_shape(t) for t in topologies])
        self.segments: SegmentStates | None = None
        if "boundary" in self.variables:
            first_states = (self.locate(group)[1] for group in ("boundary", "begin", "end"))
            self.segments = SegmentStates(*first_states)
        self.allowed: Bools | None = None
        self.offset: Potentials | None = None
        for constraint in constraints:
            self._forbid(constraint)
        for scores in known:
            self._add(scores)

    @cached_property
    def query(self) -> Query:
        """Every label is an output, every other variable hidden, and every state allowed that the structure permits."""
        output = mask_from_indices(self.labels.vars, self.batch.n_vars)
        if self.allowed is None:
            return Query.of(self.batch, output)
        return Query(output, self.allowed)

    def expected_rows(self, source: str) -> Ints:
        """Feature rows of a source that every instance needs."""
        return self._rows_by_topology(source)[self.topology_of]

    def locate(self, group: str) -> tuple[Target, Ints]:
        """Where the scores of a group's members begin: for variables the first state of each, for factors the first
        entry of each different table."""
        batch = self.batch
        if group not in self.factors:
            members = self.variables.get(group, self._empty)
            return "unary", batch.unary_ptr[gather(members, self.topology_of, batch.var_ptr[:-1])]
        factors = gather(self.factors[group], self.topology_of, batch.factor_ptr[:-1])
        at = batch.table_at[factors]
        if len(at) and np.all(at == at[0]):  # one table for all members, or one member
            return "tables", at[:1].copy()
        return "tables", at

    def count_rows(self, block: WeightBlock, times: Sequence[int]) -> BlockRows:
        """The feature rows of a block in data with ``times[k]`` instances of topology k."""
        if block.group in self.factors and block.group not in self.own_tables:
            n = 1
        else:
            members = self.factors.get(block.group, self.variables.get(block.group, self._empty))
            n = sum(count * len(part) for count, part in zip(times, members, strict=True))
        listed = False
        if block.source is not None and block.rows is not None:
            n_source = int(self._rows_by_topology(block.source) @ times)
            rows = self._feature_rows.get(block.rows, self._empty)
            n_listed = sum(count * len(part) for count, part in zip(times, rows, strict=True))
            listed = 2 * n_listed < n_source or any(_out_of_order(part) for part in rows)
            if not listed:
                n = n_source
        return BlockRows(n * max(block.agree, block.n_rows, 1), listed)

    def _build_batch(self) -> Batch:
        """The disjoint union of the instances; equal graphs of different topologies are one."""
        numbers = dict[Topology, int]()
        graph_numbers = []
        for topology in self.topologies:
            graph_numbers.append(numbers.setdefault(topology.graph, len(numbers)))
        n_factors = np.array([topology.graph.n_factors for topology in self.topologies], dtype=np.int64)
        factor_ptr = offsets(n_factors[self.topology_of])
        table_ids = np.empty(factor_ptr[-1], dtype=np.int64)
        for number, (group, factors) in enumerate(self.factors.items()):
            at = gather(factors, self.topology_of, factor_ptr[:-1])
            table_ids[at] = len(self.factors) + at if group in self.own_tables else number
        graph_of = np.array(graph_numbers, dtype=np.int64)[self.topology_of]
        return Batch.of_kinds(tuple(numbers), graph_of, table_ids)

    def _sites(self, variables: Sequence[Ints], shapes: Sequence[tuple[int, ...]]) -> Sites:
        """Variables of every topology, in their shapes, as sites of the batch."""
        sizes = np.array([len(part) for part in variables], dtype=np.int64)[self.topology_of]
        at = gather(variables, self.topology_of, self.batch.var_ptr[:-1])
        table = bool(self.topologies) and self.topologies[0].table
        return Sites(at, offsets(sizes), tuple(shapes[k] for k in self.topology_of.tolist()), table)

    def _rows_by_topology(self, source: str) -> Ints:
        return np.array([topology.sizes.get(source, 0) for topology in self.topologies], dtype=np.int64)

    def _place(self, block: WeightBlock) -> BlockPlacement:
        target, at = self.locate(block.group)
        rows: Ints | None = None
        if block.basis is not None:
            at = (at[:, None] + np.arange(block.n_rows) * prod(block.cards)).ravel()
        if block.source is not None and block.rows is not None:
            first = offsets(self.expected_rows(block.source))
            n_source = int(first[-1])
            rows = gather(self._feature_rows.get(block.rows, self._empty), self.topology_of, first[:-1])
            if not self._is_listed(block, rows, n_source):
                places = np.full(n_source, -1, dtype=np.int64)
                places[rows] = at
                rows = None
                at = places
        if not block.agree:
            return BlockPlacement(target, at, rows)
        # A feature row serves every state in which both ends may agree: the diagonal of the table.
        diagonal = np.arange(block.agree) * (block.agree + 1)
        if block.source is not None:
            rows = np.repeat(np.arange(len(at)) if rows is None else rows, block.agree)
        at = np.where(at[:, None] < 0, -1, at[:, None] + diagonal).ravel()
        return BlockPlacement(target, at, rows)

    def _is_listed(self, block: WeightBlock, rows: Ints, n_source: int) -> bool:
        if self.whole is not None:
            return self.whole[block.name].listed
        return 2 * len(rows) < n_source or _out_of_order(rows)

    def _forbid(self, constraint: HardConstraint) -> None:
        """Forbidden states of variables go into ``allowed``, forbidden entries of tables into ``offset``."""
        target, at = self.locate(constraint.group)
        entries = (at[:, None] + np.flatnonzero(constraint.mask)).ravel()
        if not len(entries):
            return
        if target == "unary":
            if self.allowed is None:
                self.allowed = np.ones(self.batch.n_states, dtype=bool)
            self.allowed[entries] = False
        else:
            self._offset_tables()[entries] = -np.inf

    def _add(self, known: KnownScores) -> None:
        """Known scores of tables go into ``offset``."""
        _, at = self.locate(known.group)
        self._offset_tables()[(at[:, None] + np.arange(known.scores.size)).ravel()] += np.tile(
            known.scores.ravel(), len(at)
        )

    def _offset_tables(self) -> Floats:
        if self.offset is None:
            self.offset = Potentials.zeros(self.batch)
        return self.offset.tables


def _by_name(tables: Sequence[Mapping[str, Ints]]) -> dict[str, list[Ints]]:
    """For every name that some topology has: the entries of all topologies, empty where one lacks the name."""
    out = dict[str, list[Ints]]()
    for k, table in enumerate(tables):
        for name, members in table.items():
            if name not in out:
                out[name] = [NONE] * len(tables)
            out[name][k] = members
    return out


def _hidden_shape(topology: InstanceTopology) -> tuple[int, ...]:
    if topology.hidden_shape is None:
        return (len(topology.hidden),)
    return topology.hidden_shape


def _out_of_order(rows: Ints) -> bool:
    return bool(np.any(rows[1:] <= rows[:-1]))
