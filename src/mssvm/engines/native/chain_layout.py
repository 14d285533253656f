"""Which variables of loopy graphs share a vector, and where their numbers are stored (``cpp/trws.hpp``).

A sweep visits variables in the order of their levels. The level of a variable is the length of the longest monotone
chain that ends at it, so neighbours have different levels, and variables of one level may be updated together: on a
grid they are a diagonal. The kind of a variable says which code its update needs: its number of states, and for each of
its factors the neighbour's number of states, the direction, and where the chain continues; at two temperatures also the
variable's role. A group is as many variables of one level and one kind as a vector has lanes, from one instance or
from several instances of one graph. The roles of neighbours may differ from lane to lane; the group's update then
takes longer. So variables of one kind are sorted by their neighbours' roles, in the order of a Gray code, which leaves
few such groups.

The groups of a level are divided among bands, which threads run at the same time. Bands depend on graphs and roles
only. At one temperature bands are ranges of variables such that neighbours are in one band or in adjacent ones: some
rows of a grid. At two temperatures there are many kinds, and rows of a band would not fill vectors: a band has a part
of the groups of every level, and neighbours may be in any band.

A slot is one factor of one variable. The k-th slots of all variables of a group form the k-th slot of the group.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from mssvm.core.arrays import AnyArray, Bools, Floats, Ints, sum_by
from mssvm.core.errors import UnsupportedError
from mssvm.core.library import BYTES, FLOATS, INT, INTS, MASK, SHORTS, Function, Record, RecordType, lanes
from mssvm.core.topology import Batch, Topology, offsets, ranks, spans
from mssvm.engines.native.chains import chain_cover

TASK_VARIABLES = 1 << 14  # variables of a task; a single vector of instances may have more
BAND_ROWS = 8  # the most lanes of a vector: the variables of one level in a band then fill it
CELLS = 4  # least number of variables of a level in a band, on average
PARTS = 16  # largest number of bands of a task at two temperatures
PART_GROUPS = 4  # least number of groups of a level in a band, on average
SORTED_SLOTS = 16  # slots of a variable whose neighbours' roles count when variables are sorted
INDEX = np.int32  # type of indices of variables, factors and slots, which are many in large pictures
MOST = np.iinfo(INDEX).max
NO_INTS = np.zeros(0, dtype=np.int64)
MIX = np.uint64(0x9E3779B97F4A7C15)

LAYOUT = RecordType(
    "chain layout",
    {
        "task_ptr": INTS,
        "bands": INTS,
        "side_by_side": INT,
        "cell_ptr": INTS,
        "partial_ptr": INTS,
        "partial_at": INTS,
        "partial_to": INTS,
        "state_at": INTS,
        "slot_ptr": INTS,
        "in_count": INTS,
        "variable": INTS,
        "root": FLOATS,
        "left": FLOATS,
        "message_at": INTS,
        "read_at": INTS,
        "partner": INTS,
        "other_card": SHORTS,
        "transposed": MASK,
        "aligned": MASK,
        "tied": MASK,
        "reverse": SHORTS,
        "reverse_read": SHORTS,
        "table": SHORTS,
        "scaled": SHORTS,
        "other": SHORTS,
        "mu": SHORTS,
        "rho": FLOATS,
        "hidden": MASK,
        "other_hidden": BYTES,
        "shift_at": INTS,
        "widest": INT,
        "degree": INT,
    },
)
LANES = Function(
    "mssvm_chain_lanes",
    at=INTS,
    back=SHORTS,
    neighbour=SHORTS,
    factor=SHORTS,
    scaled_of=SHORTS,
    mu_of=SHORTS,
    weight=FLOATS,
    upward=MASK,
    head=INTS,
    band=INTS,
    message_at=INTS,
    read_at=INTS,
    variable=SHORTS,
    table_at=INTS,
    reverse=SHORTS,
    reverse_read=SHORTS,
    table=SHORTS,
    scaled=SHORTS,
    other=SHORTS,
    mu=SHORTS,
    rho=FLOATS,
    aligned=MASK,
    tied=MASK,
    messages=INT,
    readings=INT,
    unused=INT,
    threads=INT,
)


class GraphSlots:
    """The slots of a topology, sorted by variable; a variable's slots to lower neighbours come first.

    For every slot:    ``variable``, ``factor``, the neighbour ``other``, the neighbour's slot of the same factor
                       (``reverse``), the slot by which the chain leaves the variable (``partner``, -1: it ends), the
                       chain's ``weight``, ``transposed`` (the variable is the factor's second), and ``upward`` (the
                       neighbour has a higher number).
    For every variable: its first slot (``ptr``), its ``level``, the weight ``left`` by its chains, and a hash of its
                       ``kind``: variables of one kind can share a vector.
    """

    def __init__(self, graph: Topology) -> None:
        cover = chain_cover(graph)
        ends = graph.scope_flat.reshape(-1, 2).astype(INDEX)
        variable = ends.ravel()
        other = ends[:, ::-1].ravel()
        factor = np.repeat(np.arange(graph.n_factors, dtype=INDEX), 2)
        order = np.lexsort((factor, other > variable, variable)).astype(INDEX)
        place = np.empty_like(order)
        place[order] = np.arange(len(order), dtype=INDEX)
        self.variable = variable[order]
        self.other = other[order]
        self.factor = factor[order]
        self.transposed: Bools = order % 2 == 1
        self.upward: Bools = self.other > self.variable
        self.reverse = place[order ^ 1]
        self.weight = cover.weight[self.factor]
        self.ptr = offsets(np.bincount(variable, minlength=graph.n_vars).astype(np.int64))
        self.level = cover.level.astype(INDEX)
        self.left = cover.left
        self.partner = self._partners(cover.chain, graph.n_vars)
        self.kind = self._kinds(graph.card_array)
        band_size = self._band_size(np.abs(ends[:, 1] - ends[:, 0]), graph.n_vars)
        self.band = np.arange(graph.n_vars, dtype=INDEX) // band_size

    def _band_size(self, steps: Ints, n: int) -> int:
        """Number of variables of a band.

        Some rows, if the most frequent step beyond one is taken as the length of a row; at least the longest step; and
        so large that every level of every band has ``CELLS`` variables on average.
        """
        beyond = steps[steps > 1]
        if not len(beyond):
            return max(n, 1)
        row = int(np.bincount(beyond).argmax())
        rows = max(BAND_ROWS, -(-int(beyond.max()) // row))
        n_levels = int(self.level.max()) + 1
        most = max(1, n // (CELLS * n_levels))
        n_bands = -(-n // (row * rows))
        return row * rows * -(-n_bands // most)

    def _partners(self, chain: Ints, n: int) -> AnyArray:
        """The two slots of every variable that a chain passes: from a lower neighbour and to a higher one."""
        out = np.full(len(self.variable), -1, dtype=INDEX)
        key = chain[self.factor] * n + self.variable
        below = np.flatnonzero(~self.upward).astype(INDEX)
        above = np.flatnonzero(self.upward).astype(INDEX)
        _, i, j = np.intersect1d(key[below], key[above], assume_unique=True, return_indices=True)
        out[below[i]] = above[j]
        out[above[j]] = below[i]
        return out

    def _kinds(self, cards: Ints) -> AnyArray:
        partner = np.where(self.partner < 0, -1, self.partner - self.ptr[self.variable])
        slot = _row_hashes(cards[self.other], self.transposed, partner + 1, self.upward)
        return _row_hashes(cards) + _slot_hashes(slot, self.ptr)


@dataclass(frozen=True, eq=False)
class ScaledTables:
    """Pairs of a table and the weight of a chain that uses it: where theta is read and the scaled table is written."""

    table: Ints
    size: Ints
    weight: Floats
    scaled_at: Ints
    total: int


@dataclass(frozen=True, eq=False)
class ChainLayout:
    """The kernels' record for some instances of a batch, and the sizes of its arrays: scores (``n_states``), messages,
    shifts, marginals being read (``n_read``), numbers by group and lane, and marginals summed by band (``n_partial``);
    ``nested``: at two temperatures."""

    record: Record
    tables: ScaledTables
    nested: bool
    n_states: int
    n_messages: int
    n_shifts: int
    n_read: int
    n_lanes: int
    n_partial: int


def chain_layout(batch: Batch, instances: Ints, threads: int, hidden: Bools | None = None) -> ChainLayout:
    """The layout of some instances; with a mask ``hidden`` over the batch's variables, for two temperatures.

    Messages to hidden variables then have a row for every state of an output.
    """
    made = LayoutBuilder(batch, instances, hidden)
    n_lanes = len(made.heads) * made.width
    sizes = made.n_states, made.n_messages, made.n_shifts, made.n_read, n_lanes, made.n_partial
    return ChainLayout(made.record(threads), made.tables, made.nested, *sizes)


class LayoutBuilder:
    """Builds a layout from arrays over the variables and slots of all instances, which are freed with the builder."""

    def __init__(self, batch: Batch, instances: Ints, hidden: Bools | None = None) -> None:
        self.batch = batch
        self.width = lanes()
        self.nested = hidden is not None
        self._place_instances(instances)
        self._read_graphs(np.zeros(batch.n_vars, dtype=bool) if hidden is None else hidden)
        self._make_groups()
        self._place_slots()
        self._place_marginals()
        self.tables = self._tables()

    def _place_instances(self, instances: Ints) -> None:
        """Sort instances by graph, and cut those of one graph into tasks, at one temperature of whole vectors. At two
        temperatures variables of one instance fill vectors as well as those of several."""
        batch = self.batch
        self.instances = instances[np.argsort(batch.topology_of[instances], kind="stable")]
        kinds = batch.topology_of[self.instances]
        self.task_of_instance = np.zeros(len(kinds), dtype=np.int64)
        at = 0
        number = 0
        while at < len(kinds):
            n = max(batch.topologies[int(kinds[at])].n_vars, 1)
            at_once = 1 if self.nested else self.width
            many = max(1, TASK_VARIABLES // (n * at_once)) * at_once
            end = min(at + many, int(np.searchsorted(kinds, kinds[at], side="right")))
            self.task_of_instance[at:end] = number
            at = end
            number = number + 1
        self.n_tasks = number

    def _read_graphs(self, hidden: Bools) -> None:
        """Concatenate the variables and slots of all instances, renumbered consecutively."""
        batch = self.batch
        kinds = self.batch.topology_of[self.instances]
        n_factors = np.diff(batch.factor_ptr)[self.instances]
        if max(batch.n_vars, batch.n_factors, 2 * int(n_factors.sum())) > MOST:
            raise _too_many_messages()
        graphs = {int(k): GraphSlots(batch.topologies[int(k)]) for k in np.unique(kinds)}
        parts = [graphs[int(k)] for k in kinds]
        self.graph_weights = [np.unique(graph.weight) for graph in graphs.values()]
        n_vars = np.diff(batch.var_ptr)[self.instances]
        first = offsets(n_vars)
        self.local = ranks(first).astype(INDEX)
        self.of = np.repeat(np.arange(len(parts), dtype=INDEX), n_vars)
        self.variable = batch.var_ptr.astype(INDEX)[self.instances][self.of] + self.local
        self.card = batch.cards.astype(INDEX)[self.variable]
        self.hidden = hidden[self.variable]
        self.level = _concatenated([p.level for p in parts])
        self.band = np.zeros_like(self.level) if self.nested else _concatenated([p.band for p in parts])
        self.left = _concatenated([p.left for p in parts], np.float64)
        self.degree = _concatenated([np.diff(p.ptr) for p in parts])

        begin = offsets(np.array([len(p.variable) for p in parts], dtype=np.int64))
        counted = list(zip(parts, first.tolist(), begin.tolist(), strict=False))
        self.mine = _concatenated([p.variable + v for p, v, _ in counted])
        self.other = _concatenated([p.other + v for p, v, _ in counted])
        self.reverse = _concatenated([p.reverse + s for p, _, s in counted])
        self.partner = _concatenated([np.where(p.partner < 0, -1, p.partner + s) for p, _, s in counted])
        first_factor = batch.factor_ptr.astype(INDEX)[self.instances]
        self.factor = first_factor[self.of[self.mine]] + _concatenated([p.factor for p in parts])
        self.weight = _concatenated([p.weight for p in parts], np.float64)
        self.transposed = _concatenated([p.transposed for p in parts], bool)
        self.upward = _concatenated([p.upward for p in parts], bool)
        self.rank = ranks(offsets(self.degree)).astype(INDEX)
        self.kind = _concatenated([p.kind for p in parts], np.uint64) + _row_hashes(self.hidden)

    def _roles_around(self) -> Ints:
        """By variable, the place of its neighbours' roles in the order of a Gray code."""
        hidden = np.flatnonzero(self.hidden[self.other] & (self.rank < SORTED_SLOTS))
        place = _bit_masks(self.mine[hidden], self.rank[hidden], len(self.local))
        for shift in (1, 2, 4, 8):
            place ^= place >> shift
        return place

    def _make_groups(self) -> None:
        """Sort variables by task, level, band and kind, and cut equal ones into groups of the width of a vector."""
        task = self.task_of_instance[self.of]
        n_levels = int(self.level.max(initial=0)) + 1
        n_bands = int(self.band.max(initial=0)) + 1
        cell = (task * n_levels + self.level) * n_bands + self.band
        within_kind = (self.local, self._roles_around()) if self.nested else (self.local,)
        order = _order((*within_kind, self.kind, cell))  # instances are in order already
        new = np.zeros(len(order), dtype=bool)
        new[:1] = True
        for column in (cell, self.kind):
            ordered = column[order]
            new[1:] |= ordered[1:] != ordered[:-1]
        begin = np.flatnonzero(new)
        in_run = (np.arange(len(order)) - np.repeat(begin, np.diff(np.append(begin, len(order))))).astype(INDEX)
        starts = in_run % self.width == 0
        self.group = np.empty_like(order)
        self.lane = np.empty_like(order)
        self.group[order] = np.cumsum(starts) - 1
        self.lane[order] = in_run % self.width
        self.heads = order[starts]
        if self.nested:
            self._share_out_groups(task)
        self.bands = _sizes_by_task(self.band, task, self.n_tasks)
        self.task_ptr = offsets(_sizes_by_task(self.level, task, self.n_tasks) * self.bands)
        cell = (self.task_ptr[task] + self.level * self.bands[task] + self.band)[self.heads]
        self.cell_ptr = np.searchsorted(cell, np.arange(self.task_ptr[-1] + 1)).astype(np.int64)
        self.first_band = offsets(self.bands)
        self.slot_ptr = offsets(self.degree[self.heads])

    def _share_out_groups(self, task: Ints) -> None:
        """Number the groups of every level by their first variables, and cut them into bands of equal size."""
        heads = self.heads
        order = np.lexsort((self.local[heads], self.level[heads], task[heads]))
        number = np.empty(len(order), dtype=INDEX)
        number[order] = np.arange(len(order))
        self.group = number[self.group]
        self.heads = heads = heads[order]
        n_levels = _sizes_by_task(self.level, task, self.n_tasks)
        n_groups = np.bincount(task[heads], minlength=self.n_tasks)
        n_bands = np.clip(n_groups // (n_levels * PART_GROUPS), 1, PARTS)
        level = offsets(n_levels)[task[heads]] + self.level[heads]
        in_level = np.bincount(level, minlength=int(n_levels.sum()))
        rank = np.arange(len(heads)) - offsets(in_level)[level]
        self.band = (rank * n_bands[task[heads]] // in_level[level])[self.group]

    def _place_slots(self) -> None:
        """Offsets, in vectors, of the messages, shifts and readings of every slot."""
        self.slot = self.slot_ptr.astype(INDEX)[self.group[self.mine]] + self.rank
        self.n_slots = int(self.slot_ptr[-1])
        self.at = self.slot.astype(np.int64) * self.width + self.lane[self.mine]
        # The slots of the groups' first variables; numbers that are equal in all lanes are read from these.
        heads = self.heads
        self.head_slots = spans(offsets(self.degree)[heads], self.degree[heads])
        mine = self.mine[self.head_slots]
        other = self.other[self.head_slots]
        upward = self.upward[self.head_slots]
        partner = self.partner[self.head_slots]
        self.widest = int(self.card.max(initial=1))
        # Rows of messages to and from hidden variables have a level beside their entries.
        with_rows = self.widest * (self.card + 1)
        self.message_at = offsets(np.where(self.hidden, with_rows, self.card)[mine])
        self.other_hidden = self._lanes_with_hidden_neighbours(self.hidden[other])
        if self.nested:
            readings = np.where(self.other_hidden > 0, with_rows[other], self.card[other])
        else:
            readings = self.card[mine] + self.card[other]
        self.read_at = offsets(np.where(upward, 0, readings))
        owns = ~upward | (partner < 0)
        shift_at = offsets(np.where(owns, self.card[mine], 0))
        first_of_chain = np.where(owns, self.head_slots, partner)
        self.shift_at = shift_at[self.slot[first_of_chain]]
        width = self.width
        largest_message = self.widest * (self.widest + 1 if self.nested else 2)
        self.n_states = int(self.card[self.heads].sum()) * width
        # Lanes without a variable write to a dummy place, one for every band, as bands run at the same time.
        self.unused = largest_message * width
        n_bands = int(self.first_band[-1])
        self.n_messages = int(self.message_at[-1]) * width + self.unused * n_bands
        self.n_read = int(self.read_at[-1]) * width + self.unused * n_bands
        self.n_shifts = int(shift_at[-1]) * width
        batch = self.batch
        most_numbers = max(self.n_messages, self.n_read, batch.n_table_entries, batch.n_mu_entries, batch.n_vars)
        if most_numbers > MOST:
            raise _too_many_messages()

    def _lanes_with_hidden_neighbours(self, of_first: Bools) -> AnyArray:
        """By slot of a group, a mask with a bit for every lane whose neighbour is hidden; lanes without a variable are
        as the first, of which ``of_first`` says it."""
        width = self.width
        if not self.nested:
            return np.zeros(self.n_slots, dtype=np.uint8)
        hidden = np.flatnonzero(self.hidden[self.other])
        mask = _bit_masks(self.slot[hidden], self.lane[self.mine[hidden]], self.n_slots)
        used = np.bincount(self.group, minlength=len(self.heads))
        unused = ((1 << width) - (1 << used))[self.group[self.mine[self.head_slots]]]
        return (mask | np.where(of_first, unused, 0)).astype(np.uint8)

    def _place_marginals(self) -> None:
        """Where the marginals of slots to lower neighbours are summed: with those of the batch, or, for factors that
        share their marginals and lie in several bands of a task, in a sum for every band that is added later."""
        batch = self.batch
        down = np.flatnonzero(~self.upward)
        task = self.task_of_instance[self.of[self.mine[down]]]
        band = self.first_band[task] + self.band[self.mine[down]]
        factor = self.factor[down]
        at = batch.mu_at[factor]
        key = band * max(batch.n_mu_entries, 1) + at
        first, number = _numbered(key)
        sums = np.bincount(at[first], minlength=batch.n_mu_entries)
        several = sums[at[first]] > 1
        size = np.where(several, batch.table_sizes[factor[first]], 0)
        begin = offsets(size)
        self.mu = np.zeros(len(self.mine), dtype=INDEX)
        self.mu[down] = np.where(several, batch.n_mu_entries + begin[:-1], at[first])[number]
        kept = first[several]
        self.partial_to = at[kept]
        self.partial_at = offsets(size[several])
        self.partial_ptr = np.searchsorted(task[kept], np.arange(self.n_tasks + 1)).astype(np.int64)
        self.n_partial = int(begin[-1])

    def _tables(self) -> ScaledTables:
        batch = self.batch
        at = batch.table_at[self.factor]
        weights = np.unique(np.concatenate([np.zeros(0), *self.graph_weights]))
        key = at * max(len(weights), 1) + np.searchsorted(weights, self.weight)
        where, inverse = _numbered(key)
        sizes = batch.table_sizes[self.factor[where]] if len(where) else NO_INTS
        begin = offsets(sizes + 1)
        self.scaled = begin[:-1].astype(INDEX)[inverse]
        return ScaledTables(at[where], sizes, self.weight[where], begin[:-1], int(begin[-1]))

    def record(self, threads: int) -> Record:
        """The layout as the kernels take it."""
        mine = self.mine[self.head_slots]
        other = self.other[self.head_slots]
        partner = self.partner[self.head_slots]
        begins = (self.partner < 0) & self.upward
        starting = np.bincount(self.mine[begins], weights=self.weight[begins], minlength=len(self.left))
        return LAYOUT(
            task_ptr=self.task_ptr,
            bands=self.bands,
            side_by_side=int(not self.nested),
            cell_ptr=self.cell_ptr,
            partial_ptr=self.partial_ptr,
            partial_at=self.partial_at,
            partial_to=self.partial_to,
            state_at=offsets(self.card[self.heads]),
            slot_ptr=self.slot_ptr,
            in_count=np.bincount(self.mine[~self.upward], minlength=len(self.left))[self.heads],
            variable=self._by_group(self.variable, -1, np.int64),
            root=self._by_group(self.left + starting, 0.0, np.float64),
            left=self._by_group(self.left, 0.0, np.float64),
            message_at=self.message_at[:-1],
            read_at=self.read_at[:-1],
            partner=np.where(partner < 0, -1, self.slot[partner]).astype(np.int64),
            other_card=self.card[other],
            transposed=self.transposed[self.head_slots],
            hidden=self.hidden[self.heads],
            other_hidden=self.other_hidden,
            shift_at=self.shift_at,
            widest=self.widest,
            degree=int(self.degree.max(initial=0)),
            **self._by_lane(self.first_band[self.task_of_instance[self.of[mine]]] + self.band[mine], threads),
        )

    def _by_lane(self, band: Ints, threads: int) -> dict[str, AnyArray]:
        """The columns by slot and lane; ``band`` is that of every slot of a group."""
        size = self.n_slots * self.width
        names = ("reverse", "reverse_read", "table", "scaled", "other", "mu")
        columns: dict[str, AnyArray] = {name: np.empty(size, dtype=np.int32) for name in names}
        columns["rho"] = np.empty(size)
        columns["aligned"] = np.empty(self.n_slots, dtype=bool)
        columns["tied"] = np.empty(self.n_slots, dtype=bool)
        LANES(
            at=self.at,
            back=self.reverse,
            neighbour=self.other,
            factor=self.factor,
            scaled_of=self.scaled,
            mu_of=self.mu,
            weight=self.weight,
            upward=self.upward,
            head=self.head_slots,
            band=band,
            message_at=self.message_at[:-1],
            read_at=self.read_at[:-1],
            variable=self.variable,
            table_at=self.batch.table_at,
            messages=int(self.message_at[-1]) * self.width,
            readings=int(self.read_at[-1]) * self.width,
            unused=self.unused,
            threads=threads,
            **columns,
        )
        return columns

    def _by_group(self, values: AnyArray, empty: float, dtype: Any) -> AnyArray:
        """Values of variables by group and lane; lanes without a variable have ``empty``."""
        out = np.full(len(self.heads) * self.width, empty, dtype=dtype)
        out[self.group * self.width + self.lane] = values
        return out


def _sizes_by_task(numbers: Ints, task: Ints, n_tasks: int) -> Ints:
    """For every task, one more than its largest number, or one if it has none; ``task`` is ascending."""
    out = np.ones(n_tasks, dtype=np.int64)
    begin = np.searchsorted(task, np.arange(n_tasks + 1))
    some = np.flatnonzero(np.diff(begin))
    out[some] = np.maximum.reduceat(numbers + 1, begin[some]) if len(some) else 1
    return out


def _numbered(keys: Ints) -> tuple[Ints, Ints]:
    """The first position of every distinct key, in ascending order of keys, and the number of every key in that
    order."""
    most = int(keys.max(initial=-1)) + 1
    if most > 4 * len(keys) or keys.min(initial=0) < 0:
        _, first, number = np.unique(keys, return_index=True, return_inverse=True)
        return first, number
    first = np.full(most, -1, dtype=np.int64)
    first[keys[::-1]] = np.arange(len(keys))[::-1]  # reversed, so that the first position of equal keys remains
    used = first >= 0
    return first[used], (np.cumsum(used) - 1)[keys]


def _order(keys: tuple[AnyArray, ...]) -> AnyArray:
    """``np.lexsort`` of whole numbers from 0, by digits of 16 bits: these are sorted in linear time."""
    out = np.arange(len(keys[0]), dtype=INDEX)
    for key in keys:
        for shift in range(0, int(key.max(initial=0)).bit_length(), 16):
            digit = (key >> key.dtype.type(shift)).astype(np.uint16)
            out = out[np.argsort(digit[out], kind="stable")]
    return out


def _too_many_messages() -> UnsupportedError:
    return UnsupportedError(
        "the messages of one batch of chains have more than 2^31 numbers; use fewer instances at a time, or "
        "fewer classes or hidden states."
    )


def _concatenated(parts: list[AnyArray], dtype: Any = INDEX) -> AnyArray:
    return np.concatenate(parts).astype(dtype, copy=False) if parts else np.zeros(0, dtype=dtype)


def _bit_masks(number: AnyArray, bit: AnyArray, n: int) -> Ints:
    """For each of n numbers a mask of its bits, which are less than 53 and given once."""
    bits = np.left_shift(1, bit).astype(np.float64)
    return sum_by(number, bits, n).astype(np.int64)


def _row_hashes(*columns: AnyArray) -> AnyArray:
    """A hash of every row of some columns of whole numbers."""
    out = np.zeros(len(columns[0]), dtype=np.uint64)
    with np.errstate(over="ignore"):
        for column in columns:
            out = (out + column.astype(np.uint64) + np.uint64(1)) * MIX
            out ^= out >> np.uint64(29)
    return out


def _slot_hashes(numbers: AnyArray, ptr: Ints) -> AnyArray:
    """By variable, a hash of the numbers of its slots in their order."""
    out = np.zeros(len(ptr) - 1, dtype=np.uint64)
    some = np.flatnonzero(np.diff(ptr))
    if len(some):
        with np.errstate(over="ignore"):
            out[some] = np.add.reduceat(_row_hashes(numbers, ranks(ptr)), ptr[some])
    return out
