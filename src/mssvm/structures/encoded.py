"""Instances as the layers below see them: topologies with named groups, batches of them, and the way back to the user's
shapes.

Batches are laid out by index arithmetic over their different topologies, never instance by instance.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import pairwise
from typing import Any

import numpy as np

from mssvm.core.arrays import AnyArray, Bools, Floats, Ints
from mssvm.core.caches import LRUCache
from mssvm.core.errors import InputError, at_row
from mssvm.core.potentials import Potentials, Query, Target
from mssvm.core.topology import NONE, Batch, Topology, gather, mask_from_indices, offsets, spans
from mssvm.data.labels import Labels
from mssvm.engines.base import Bound
from mssvm.losses import Loss
from mssvm.losses.base import inputs_for
from mssvm.models.linear import LinearInputs
from mssvm.objectives.sample import Sample

Bounds = LRUCache[Hashable, Bound]
BOUNDS = 4  # kept of one query


@dataclass(frozen=True)
class WeightBlock:
    """Named weights (n_features, states...) that act on every member of a group of variables or factors.

    ``axes`` says of every state axis whether it is "label" or "hidden"; ``source`` names the features, None is one
    constant feature. ``rows`` names where a topology keeps the feature row of each member (None: rows in order).
    A block with ``agree`` states has one weight a feature, kept >= 0, for both ends of a pair being in the same one.
    """

    name: str
    group: str
    axes: tuple[str, ...]
    cards: tuple[int, ...]
    source: str | None = None
    rows: str | None = None
    agree: int = 0


@dataclass(frozen=True, eq=False)
class HardConstraint:
    """Joint states (a mask of the shape of the group's tables) that no member of the group may take."""

    group: str
    mask: Bools


@dataclass(frozen=True, eq=False)
class GroupedTopology:
    """One topology: the states of its variables, those that carry labels (in the ``shape`` of y), and named groups.

    A group lists the scopes of its members: rows of one number are variables, longer ones factors. ``sizes`` is the
    number of feature rows expected from each source; ``rows`` see ``WeightBlock``. ``table``: all instances have the
    same labels, so that those of many are one array. Worked out of these: ``hidden``, the other variables; the members
    of every group, as ``variables`` or numbers of ``factors``, which follow each other in the ``graph``.
    """

    cards: Ints
    labels: Ints
    shape: tuple[int, ...]
    groups: Mapping[str, Ints]
    sizes: Mapping[str, int]
    rows: Mapping[str, Ints] = field(default_factory=dict)
    hidden_shape: tuple[int, ...] | None = None
    table: bool = False
    hidden: Ints = field(init=False, repr=False)
    variables: dict[str, Ints] = field(init=False, repr=False)
    factors: dict[str, Ints] = field(init=False, repr=False)
    graph: Topology = field(init=False, repr=False)

    def __post_init__(self) -> None:
        variables, factors, scopes = dict[str, Ints](), dict[str, Ints](), list[tuple[int, ...]]()
        for name, members in self.groups.items():
            if members.shape[1] == 1:
                variables[name] = members[:, 0]
            elif len(members):
                factors[name] = np.arange(len(scopes), len(scopes) + len(members))
                scopes += map(tuple, members.tolist())
        hidden = np.setdiff1d(np.arange(len(self.cards)), self.labels)
        made = {"variables": variables, "factors": factors, "hidden": hidden}
        made["hidden_shape"] = self.hidden_shape or (len(hidden),)
        made["graph"] = Topology(tuple(self.cards.tolist()), tuple(scopes))
        for name, value in made.items():
            object.__setattr__(self, name, value)


@dataclass(frozen=True, eq=False)
class Sites:
    """Some variables of a batch in the order the user lists them, instance by instance.

    ``vars`` are numbers within the batch, those of instance b at ``ptr[b] : ptr[b+1]``, laid out in C order of
    ``shapes[b]``: (T,) for a sequence, (H, W) for a grid, () for one variable an instance. ``table``: all instances
    have the same.
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
        """One entry per site, further axes kept: a list of arrays in the user's shapes, or one array if ``scalar`` or
        ``table``."""
        if self.scalar:
            return values
        if self.table:
            return values.reshape(len(self.shapes), *self.shapes[0], *values.shape[1:])
        parts = [values[a:b] for a, b in pairwise(self.ptr.tolist())]
        if len(self.shapes) and len(self.shapes[0]) == 1:
            return parts
        more = values.shape[1:]
        return [part.reshape(*shape, *more) for part, shape in zip(parts, self.shapes, strict=True)]

    def select(self, instances: Ints, old: Batch, new: Batch) -> Sites:
        """The sites of the named instances, renumbered for the sub-batch."""
        sizes = np.diff(self.ptr)[instances]
        shift = np.repeat(new.var_ptr[:-1] - old.var_ptr[instances], sizes)
        variables = self.vars[spans(self.ptr[instances], sizes)] + shift
        return Sites(variables, offsets(sizes), tuple(map(self.shapes.__getitem__, instances.tolist())), self.table)


@dataclass(frozen=True, eq=False)
class Encoded:
    """Inputs of the model, the variables that carry labels, and those that are hidden whatever the labels say.

    ``allowed`` marks the states that the structure permits (over all states of the batch; None: all); ``layout`` is
    that of the batch where it is kept and all states are permitted.
    """

    inputs: LinearInputs
    labels: Sites
    hidden: Sites
    n_classes: int
    allowed: Bools | None = None
    layout: Layout | None = None

    @property
    def batch(self) -> Batch:
        return self.inputs.batch

    @property
    def states_at(self) -> slice | Ints:
        """Where the classes of the label sites lie, site by site, in an array over the states of the batch."""
        first, k = self.batch.unary_ptr[self.labels.vars], self.n_classes
        if len(first) and np.array_equal(first, np.arange(first[0], first[0] + k * len(first), k)):
            return slice(int(first[0]), int(first[0]) + k * len(first))
        return (first[:, None] + np.arange(k)).ravel()

    def over_sites(self, values: AnyArray) -> AnyArray:
        """An array over the states of the batch as (sites, classes)."""
        return values[self.states_at].reshape(-1, self.n_classes)

    def select(self, instances: Sequence[int] | Ints) -> Encoded:
        """The named instances."""
        chosen = np.asarray(instances, dtype=np.int64)
        inputs, old = self.inputs.select(chosen), self.batch
        allowed = None
        if self.allowed is not None:
            ptr = old.unary_ptr[old.var_ptr]
            allowed = self.allowed[spans(ptr[chosen], np.diff(ptr)[chosen])]
        labels, hidden = (s.select(chosen, old, inputs.batch) for s in (self.labels, self.hidden))
        return Encoded(inputs, labels, hidden, self.n_classes, allowed)

    def over_states(self, mask: Bools, what: str) -> Bools:
        """A mask (sites, classes) as a mask over the states of the batch, True on all other variables."""
        n_sites = len(self.labels.vars)
        if mask.shape != (n_sites, self.n_classes):
            raise InputError(
                f"{what} covers {mask.shape[0]} sites and {mask.shape[1]} classes; "
                f"X has {n_sites} sites and the model {self.n_classes} classes."
            )
        if mask.size == self.batch.n_states and isinstance(self.states_at, slice):
            return np.asarray(mask.ravel())
        out = np.ones(self.batch.n_states, dtype=bool)
        out[self.states_at] = mask.ravel()
        return out


def to_query(
    encoded: Encoded, hidden_sites: Bools | None = None, given: Labels | None = None, allowed: Labels | None = None
) -> Query:
    """The query of prediction: label sites are outputs unless ``hidden_sites`` marks them; the rest stays hidden.

    ``given`` clamps observed sites to their label or restricts them to their candidate set; ``allowed`` restricts too.
    Both are ``LabelVocabulary.encode`` of labels in the shape of y.
    """
    batch, sites = encoded.batch, encoded.labels
    if encoded.layout is not None and hidden_sites is None and given is None and allowed is None:
        return encoded.layout.query
    output = mask_from_indices(sites.vars, batch.n_vars)
    if hidden_sites is not None:
        if hidden_sites.shape != sites.vars.shape:
            raise InputError(f"hidden_sites has shape {hidden_sites.shape}; there are {len(sites.vars)} label sites.")
        output[sites.vars[hidden_sites]] = False
    query = Query(output, np.ones(batch.n_states, dtype=bool) if encoded.allowed is None else encoded.allowed)
    for name, labels in (("allowed", allowed), ("given", given)):
        if labels is not None:
            query = query.restrict(encoded.over_states(labels.mask, name))
    if encoded.allowed is not None or allowed is not None or given is not None:
        _check(encoded, query, "given" if given is not None else "allowed")
    return query


def to_sample(
    encoded: Encoded, labels: Labels, weight: Floats | None = None, site_weight: Floats | None = None,
    allowed: Labels | None = None, loss: Loss | None = None,
) -> Sample:  # fmt: skip
    """The training sample: missing sites become hidden, candidate sets become truth masks (paper section 7.2).

    ``weight`` is per instance; ``site_weight`` is per label site and scales that site's loss. Where the ``loss`` needs
    it, factors get tables of their own.
    """
    for b in np.flatnonzero(np.diff(encoded.labels.ptr) == 0)[:1].tolist():
        raise InputError("there is no site to label; leave empty instances out.", instance=b)
    truth = encoded.over_states(labels.mask, "y")
    query = to_query(encoded, ~labels.observed, None, allowed)
    _check(encoded, query.restrict(truth), "y")
    per_variable = None
    if site_weight is not None:
        n_sites = len(encoded.labels.vars)
        if np.shape(site_weight) != (n_sites,):
            raise InputError(f"site weights have shape {np.shape(site_weight)}; there are {n_sites} sites.")
        per_variable = np.ones(encoded.batch.n_vars)
        per_variable[encoded.labels.vars] = site_weight
    return Sample.of(inputs_for(loss, encoded.inputs), query, truth, weight, per_variable)


def _check(encoded: Encoded, query: Query, what: str) -> None:
    """Raise if some variable has no state left, naming the user's site where it is one."""
    empty = query.n_allowed(encoded.batch)[encoded.labels.vars] == 0
    for s in np.flatnonzero(empty)[:1].tolist():
        reason = "no label is left that the constraints allow; change the label or the constraint."
        raise InputError(reason, what=what, **at_row(s, encoded.labels.ptr))


@dataclass(frozen=True)
class Rows:
    """Of a block of weights: how many rows of features it has, and whether they are a list of the source's."""

    n: int
    listed: bool


class Frames:
    """A batch by its topologies: ``kinds[kind_of[b]]`` is that of instance b. The factors of a group share one table,
    or, in the groups ``own``, have one each. ``variables``, ``factors`` and ``rows`` hold, by name, what each of the
    kinds has under it, ``sizes`` the rows of features that it needs of a source; ``whole`` as in ``Encoder.assemble``.
    """

    def __init__(
        self,
        kinds: tuple[GroupedTopology, ...],
        kind_of: Ints,
        own: Set[str] = frozenset(),
        whole: Mapping[str, Rows] | None = None,
    ) -> None:
        self.kinds, self.kind_of, self.own, self.whole = kinds, kind_of, own, whole
        self._none = [NONE] * len(kinds)
        self.variables: dict[str, list[Ints]] = {}
        self.factors: dict[str, list[Ints]] = {}
        self.rows: dict[str, list[Ints]] = {}
        self.sizes = defaultdict[str, Ints](np.zeros(len(kinds), dtype=np.int64).copy)
        graphs, graph = dict[Topology, int](), np.zeros((2, len(kinds)), dtype=np.int64)
        for k, kind in enumerate(kinds):
            found = (self.variables, kind.variables), (self.factors, kind.factors), (self.rows, kind.rows)
            for table, here in found:
                for name, members in here.items():
                    table.setdefault(name, self._none.copy())[k] = members
            for source, n in kind.sizes.items():
                self.sizes[source][k] = n
            graph[:, k] = graphs.setdefault(kind.graph, len(graphs)), kind.graph.n_factors
        graph_of, count = graph[:, kind_of]
        start = offsets(count)
        ids = np.empty(start[-1], dtype=np.int64)
        for g, (name, factors) in enumerate(self.factors.items()):
            at = gather(factors, kind_of, start[:-1])
            ids[at] = len(self.factors) + at if name in own else g
        self.batch = Batch.of_kinds(tuple(graphs), graph_of, ids)

    def count(self, block: WeightBlock, times: Sequence[int]) -> Rows:
        """The rows of a block of weights where the topologies appear so many times."""
        members = self.factors.get(block.group, self.variables.get(block.group, self._none))
        tied = block.group in self.factors and block.group not in self.own
        n = 1 if tied else sum(c * len(m) for c, m in zip(times, members, strict=True))
        listed = False
        if block.source is not None and block.rows is not None:
            all_rows = int(self.sizes[block.source] @ times)
            rows = self.rows.get(block.rows, self._none)
            chosen = sum(c * len(r) for c, r in zip(times, rows, strict=True))
            listed = 2 * chosen < all_rows or any(np.any(r[1:] <= r[:-1]) for r in rows)
            n = n if listed else all_rows
        return Rows(n * max(block.agree, 1), listed)

    def sites(self, hidden: bool = False) -> Sites:
        """The variables with labels, or the hidden ones, of every topology, in their shape, as sites of the batch."""
        variables, shapes = [], []
        for kind in self.kinds:
            variables.append(kind.hidden if hidden else kind.labels)
            shapes.append(kind.hidden_shape or () if hidden else kind.shape)
        sizes = np.fromiter(map(len, variables), np.int64, len(variables))[self.kind_of]
        at = gather(variables, self.kind_of, self.batch.var_ptr[:-1])
        table = bool(self.kinds) and self.kinds[0].table
        return Sites(at, offsets(sizes), tuple(map(shapes.__getitem__, self.kind_of.tolist())), table)

    def locate(self, group: str) -> tuple[Target, Ints]:
        """Where the members of a group lie: variables by their states, factors by their (different) tables."""
        batch = self.batch
        if group not in self.factors:
            variables = self.variables.get(group, self._none)
            return "unary", batch.unary_ptr[gather(variables, self.kind_of, batch.var_ptr[:-1])]
        members = gather(self.factors[group], self.kind_of, batch.factor_ptr[:-1])
        at = batch.table_at[members]
        # A tied group has one table; more than one only where every factor has its own.
        return "tables", at[:1] if len(at) and np.all(at == at[0]) else at

    def choose(self, block: WeightBlock, at: Ints) -> tuple[Ints | None, Ints]:
        """The rows of the block's source that the members of its group, at the places ``at``, have as features (None:
        all), and the places of these rows. A row of features serves all states of a block that is for agreeing ones."""
        chosen: Ints | None = None
        if block.source is not None and block.rows is not None:
            first = offsets(self.sizes[block.source][self.kind_of])
            n, chosen = int(first[-1]), gather(self.rows.get(block.rows, self._none), self.kind_of, first[:-1])
            listed = 2 * len(chosen) < n or np.any(chosen[1:] <= chosen[:-1])
            if not (listed if self.whole is None else self.whole[block.name].listed):  # most, in order: no copy of them
                places = np.full(n, -1, dtype=np.int64)
                places[chosen] = at
                chosen, at = None, places
        if not block.agree:
            return chosen, at
        same = np.arange(block.agree) * (block.agree + 1)
        if block.source is not None:
            chosen = np.repeat(np.arange(len(at)) if chosen is None else chosen, block.agree)
        return chosen, np.where(at[:, None] < 0, -1, at[:, None] + same).ravel()

    def constrain(self, constraints: Sequence[HardConstraint]) -> tuple[Bools | None, Potentials | None]:
        """Forbidden states of variables as a mask of what is allowed, entries of tables as -inf in the offset."""
        allowed: Bools | None = None
        offset: Potentials | None = None
        for constraint in constraints:
            target, at = self.locate(constraint.group)
            entries = (at[:, None] + np.flatnonzero(constraint.mask)).ravel()
            if not len(entries):
                continue
            if target == "unary":
                allowed = np.ones(self.batch.n_states, dtype=bool) if allowed is None else allowed
                allowed[entries] = False
            else:
                offset = Potentials.zeros(self.batch) if offset is None else offset
                offset.tables[entries] = -np.inf
        return allowed, offset


@dataclass(frozen=True, eq=False)
class Layout:
    """Instances of some topologies as a batch, before their features are known: per block of weights the places of its
    group's members and the rows of features that they take (``Frames``)."""

    frames: Frames
    places: tuple[tuple[Target, Ints], ...]
    rows: tuple[Ints | None, ...]
    labels: Sites
    hidden: Sites
    allowed: Bools | None
    offset: Potentials | None
    bounds: Bounds = field(init=False, repr=False, default_factory=partial(Bounds, BOUNDS, bool))

    @cached_property
    def query(self) -> Query:
        """That for all labels, none known; ``bounds`` has what it was bound to, by what that depends on."""
        batch = self.frames.batch
        return Query.of(batch, mask_from_indices(self.labels.vars, batch.n_vars))
