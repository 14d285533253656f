"""Labels on the nodes of a graph with scores on nodes and edges: the common part of chains, grids and graphs.

Without hidden variables

    theta(x, y) = sum_i x_i . node[:, y_i] + bias[y_i] + sum_(i,j) edge[y_i, y_j] + x_ij . edge.x[:, y_i, y_j]

Hidden variables, one per edge (``linked=False``, the paper's chain: y_i - h_ij - y_j), see the features of both ends:

    + sum_(i,j) left[y_i, h_ij] + right[h_ij, y_j]
    + sum_(i,j) x_i . left.x[:, h_ij] + x_j . right.x[:, h_ij] + x_ij . between.x[:, h_ij]

or one per node (``linked=True``: a copy of the graph made of hidden variables under the labels):

    + sum_i x_i . hidden.node[:, h_i] + attach[y_i, h_i]
    + sum_(i,j) hidden.edge[h_i, h_j] + x_ij . hidden.edge.x[:, h_i, h_j]

With hidden variables the labels have no edges of their own unless ``direct=True``. Every block exists once per node
type or edge type.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from mssvm.core.arrays import Ints
from mssvm.core.errors import InputError
from mssvm.core.topology import Topology
from mssvm.data.labels import LabelSpace
from mssvm.structures.base import Space, Structure, check_count, check_flag, pair_mask
from mssvm.structures.wiring import NONE, Ban, Block, Wiring


@dataclass(frozen=True, eq=False)
class Frame:
    """Sites and edges of one topology; types are positions in the space's lists of types."""

    shape: tuple[int, ...]
    edges: Ints
    node_type: Ints
    edge_type: Ints
    marks: Mapping[str, Ints] = field(default_factory=dict)

    @property
    def n(self) -> int:
        return len(self.node_type)


class Pairwise(Structure):
    """Base of structures whose labels sit on the nodes of a graph."""

    edge_name = "edge"
    hidden: int
    linked: bool
    direct: bool
    forbidden: Any

    @abstractmethod
    def frame(self, key: Any, space: Space) -> Frame:
        """Sites and edges of an instance with the given key."""

    def check(self) -> None:
        check_count(self.hidden, "hidden", 0)
        check_flag(self.linked, "linked")
        check_flag(self.direct, "direct")

    def forbidden_pairs(self, space: Space, labels: LabelSpace) -> dict[str, Any]:
        """A mask of forbidden label pairs per edge type that has any."""
        if not self.forbidden:
            return {}
        kinds = types_of(space, "edge")
        if not isinstance(self.forbidden, Mapping):
            mask = pair_mask(self.forbidden, labels, "forbidden")
            return dict.fromkeys(kinds, mask)
        for name in self.forbidden:
            if str(name) not in kinds:
                raise InputError(f"forbidden names the edge type {name!r}; there are {', '.join(map(repr, kinds))}.")
        return {str(name): pair_mask(pairs, labels, "forbidden") for name, pairs in self.forbidden.items()}

    def bans(self, space: Space, labels: LabelSpace) -> list[Ban]:
        return [Ban(tag("edge", t), mask) for t, mask in self.forbidden_pairs(space, labels).items()]

    # ------------------------------------------------------------------------------------- weights

    def blocks(self, space: Space, labels: LabelSpace) -> tuple[Block, ...]:
        n, edge = labels.n_classes, self.edge_name
        out = []
        for t in types_of(space, "node"):
            out.append(Block(tag("node", t), tag("node", t), ("label",), (n,), "node", tag("node", t)))
            out.append(Block(tag("bias", t), tag("node", t), ("label",), (n,)))
        for t in types_of(space, "edge"):
            if self._direct:
                out += self._pair(edge, "edge", t, ("label", "label"), (n, n), space)
        if self.hidden:
            out += self._linked_blocks(space, n) if self.linked else self._between_blocks(space, n)
        return tuple(out)

    @property
    def _direct(self) -> bool:
        return not self.hidden or self.direct

    def _pair(
        self, name: str, group: str, t: str, axes: tuple[str, ...], cards: tuple[int, ...], space: Space
    ) -> list[Block]:
        """A table for all pairs of the type, and one per edge feature."""
        out = [Block(tag(name, t), tag(group, t), axes, cards)]
        if "edge" in space.features:
            out.append(Block(tag(f"{name}.x", t), tag(group, t), axes, cards, "edge", tag("edge", t)))
        return out

    def _linked_blocks(self, space: Space, n: int) -> list[Block]:
        k = self.hidden
        out = []
        for t in types_of(space, "node"):
            out.append(Block(tag("hidden.node", t), tag("hidden", t), ("hidden",), (k,), "node", tag("node", t)))
            out.append(Block(tag("attach", t), tag("attach", t), ("label", "hidden"), (n, k)))
        for t in types_of(space, "edge"):
            out += self._pair(f"hidden.{self.edge_name}", "hidden.edge", t, ("hidden", "hidden"), (k, k), space)
        return out

    def _between_blocks(self, space: Space, n: int) -> list[Block]:
        k = self.hidden
        out = []
        for t in types_of(space, "edge"):
            between = tag("between", t)
            out.append(Block(tag("left", t), tag("left", t), ("label", "hidden"), (n, k)))
            out.append(Block(tag("right", t), tag("right", t), ("hidden", "label"), (k, n)))
            out.append(Block(tag("left.x", t), between, ("hidden",), (k,), "node", tag("left", t)))
            out.append(Block(tag("right.x", t), between, ("hidden",), (k,), "node", tag("right", t)))
            if "edge" in space.features:
                out.append(Block(tag("between.x", t), between, ("hidden",), (k,), "edge", tag("edge", t)))
        return out

    # ------------------------------------------------------------------------------------- topology

    def wiring(self, key: Any, space: Space, labels: LabelSpace) -> Wiring:
        frame = self.frame(key, space)
        n, edges = frame.n, frame.edges
        banned = self.forbidden_pairs(space, labels)
        build = Builder(np.full(n, labels.n_classes))
        variables: dict[str, Ints] = {}
        rows: dict[str, Ints] = {}
        for c, t in enumerate(types_of(space, "node")):
            variables[tag("node", t)] = rows[tag("node", t)] = np.flatnonzero(frame.node_type == c)
        of_type = {t: np.flatnonzero(frame.edge_type == c) for c, t in enumerate(types_of(space, "edge"))}
        for t, chosen in of_type.items():
            rows[tag("edge", t)] = chosen
            rows[tag("left", t)], rows[tag("right", t)] = edges[chosen, 0], edges[chosen, 1]
            if self._direct or t in banned:
                build.add(tag("edge", t), edges[chosen])
        hidden_shape: tuple[int, ...] = (0,)
        if self.hidden and self.linked:
            below = build.variables(n, self.hidden)
            hidden_shape = frame.shape
            for c, t in enumerate(types_of(space, "node")):
                chosen = np.flatnonzero(frame.node_type == c)
                variables[tag("hidden", t)] = below[chosen]
                build.add(tag("attach", t), np.stack([chosen, below[chosen]], axis=1))
            for t, chosen in of_type.items():
                build.add(tag("hidden.edge", t), below[edges[chosen]])
        elif self.hidden:
            between = build.variables(len(edges), self.hidden)
            hidden_shape = (len(edges),)
            for t, chosen in of_type.items():
                variables[tag("between", t)] = between[chosen]
                build.add(tag("left", t), np.stack([edges[chosen, 0], between[chosen]], axis=1))
                build.add(tag("right", t), np.stack([between[chosen], edges[chosen, 1]], axis=1))
        sizes = {"node": n, "edge": len(edges)}
        hidden = np.arange(n, len(build.cards))
        variables.update(frame.marks)
        shape = frame.shape
        return Wiring(build.graph(), np.arange(n), hidden, shape, hidden_shape, variables, build.factors, sizes, rows)


class Builder:
    """Variables and groups of factors, collected into a graph."""

    def __init__(self, cards: Ints) -> None:
        self.cards = cards
        self.factors: dict[str, Ints] = {}
        self._scopes: list[tuple[int, ...]] = []

    def variables(self, n: int, card: int) -> Ints:
        """Numbers of n new variables."""
        first = len(self.cards)
        self.cards = np.concatenate([self.cards, np.full(n, card)])
        return np.arange(first, first + n)

    def add(self, group: str, scopes: Ints) -> None:
        """One factor per row of ``scopes``."""
        first = len(self._scopes)
        self._scopes.extend(map(tuple, scopes.tolist()))
        self.factors[group] = np.arange(first, len(self._scopes)) if len(scopes) else NONE

    def graph(self) -> Topology:
        return Topology(tuple(self.cards.tolist()), tuple(self._scopes))


def types_of(space: Space, what: str) -> tuple[str, ...]:
    """Names of the types; the one type of untyped things is the empty name."""
    return space.types.get(what, ("",))


def tag(name: str, kind: str) -> str:
    return f"{name}:{kind}" if kind else name
