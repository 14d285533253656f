"""The training problem of sharded data as solvers see it: workers evaluate stretches of blocks; the sum comes back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NoReturn
from uuid import uuid4

import numpy as np

from mssvm.core.arrays import Bools, Floats, Ints
from mssvm.core.errors import InputError, UnsupportedError
from mssvm.data.shards import ShardedDataset
from mssvm.engines.base import Engine
from mssvm.inference.base import Inference
from mssvm.objectives.base import Objective
from mssvm.objectives.blocks import block_ptr
from mssvm.objectives.problem import Evaluation
from mssvm.objectives.summary import InferenceSummary
from mssvm.objectives.unified import hcrf
from mssvm.parallel import work
from mssvm.parallel.store import Survey
from mssvm.parallel.work import Instances, Piece, Posed, Weigh
from mssvm.structures import Encoder, Structure

if TYPE_CHECKING:
    from mssvm.parallel.cluster import Cluster


@dataclass(frozen=True, eq=False)
class Surveyed:
    """Shards that workers have read, and what these told."""

    cluster: Cluster
    data: ShardedDataset
    missing_label: Hashable
    surveys: Sequence[Survey]
    labelled: Sequence[Bools]
    keys: Sequence[Ints]

    @classmethod
    def of(cls, cluster: Cluster, data: ShardedDataset, structure: Structure, missing_label: Hashable) -> Surveyed:
        """Have every shard read, neighbours by the same worker as far as that goes."""
        if structure.learns_from_labels:
            name = type(structure).__name__
            raise UnsupportedError(f"{name} learns its links from all labels at once; fit it on one machine.")
        shards = data.shards

        def begin() -> Any:
            at = {k: address for address, a, b in cluster.dealt(len(shards), 1) for k in range(a, b)}
            args = (structure, missing_label)
            return [cluster.submit(work.survey, s, *args, at=at[k], name=str(k)) for k, s in enumerate(shards)]

        found = cluster.result(begin, lambda task: shards[int(task.split("-")[2])].name)
        surveys, labelled, keys = zip(*found, strict=True)
        return cls(cluster, data, missing_label, surveys, labelled, keys)

    @property
    def names(self) -> list[str]:
        return [shard.name for shard in self.data.shards]

    @property
    def n_instances(self) -> int:
        return sum(map(len, self.keys))

    @cached_property
    def labels(self) -> Counter[Any]:
        """How often every label, or set of candidates, is met."""
        total: Counter[Any] = Counter()
        for survey in self.surveys:
            total.update(survey.labels)
        return total

    @cached_property
    def kinds(self) -> Counter[Hashable]:
        """How often every topology is met."""
        total: Counter[Hashable] = Counter()
        for survey in self.surveys:
            total.update(survey.keys)
        return total

    def blocks(self, encoder: Encoder, engine: Engine) -> tuple[tuple[tuple[Piece, ...], ...], Ints]:
        """The pieces of every block that one machine would make, and where blocks begin among labelled instances."""
        size = {key: int(encoder.topology(key).cards.sum()) for key in self.kinds}
        sizes, shard_of, number = [], [], []
        for k, (survey, labelled, keys) in enumerate(zip(self.surveys, self.labelled, self.keys, strict=True)):
            chosen = np.flatnonzero(labelled)
            sizes.append(np.array([size[key] for key in survey.keys], np.int64)[keys[chosen]])
            shard_of.append(np.full(len(chosen), k))
            number.append(chosen)
        ends = np.cumsum(np.concatenate(sizes))
        if not len(ends):
            raise InputError("no site of y is labelled; training needs at least one label.")
        ptr = block_ptr(ends, encoder.model, engine)
        shards, numbers = np.concatenate(shard_of), np.concatenate(number)
        blocks = [self._pieces(shards[a:b], numbers[a:b]) for a, b in zip(ptr[:-1], ptr[1:], strict=True)]
        return tuple(blocks), ptr

    def _pieces(self, shards: Ints, numbers: Ints) -> tuple[Piece, ...]:
        """From the first labelled instance to the last, with those between them that have no label."""
        out = []
        for k in range(int(shards[0]), int(shards[-1]) + 1):
            first = int(numbers[0]) if k == shards[0] else 0
            last = int(numbers[-1]) + 1 if k == shards[-1] else len(self.keys[k])
            out.append(Piece(k, first, last))
        return tuple(out)

    def pose(
        self, encoder: Encoder, objective: Objective, inference: Inference, C: float, engine: Engine, weigh: Weigh
    ) -> ShardedProblem:
        """The training problem of these data."""
        pieces, ptr = self.blocks(encoder, engine)
        fresh = encoder.structure, encoder.schema, encoder.vocabulary
        uncut = len(pieces) == 1 and all(bool(labelled.all()) for labelled in self.labelled)
        posed = Posed(
            uuid4().hex, self.data.shards, self.missing_label, *fresh, objective, inference, C, engine, weigh,
            encoder.rows_of(self.kinds), pieces, uncut,
        )  # fmt: skip
        return ShardedProblem(self.cluster, posed, encoder.model, ptr)


@dataclass(frozen=True, eq=False)
class ShardedProblem:
    """``TrainingProblem`` on a cluster, with the same bits; single instances have no values and no coordinates here."""

    cluster: Cluster
    posed: Posed
    model: Any
    ptr: Ints
    sent: dict[str, Any] = field(default_factory=dict)
    eps: tuple[float, float] | None = None
    has_atoms = False  # the coordinates of every instance would travel at every visit

    @property
    def n_instances(self) -> int:
        return int(self.ptr[-1])

    @property
    def n_weights(self) -> int:
        return int(self.model.n_weights)

    @property
    def n_blocks(self) -> int:
        return len(self.posed.pieces)

    @property
    def temperatures(self) -> tuple[float, float]:
        return self.eps or (self.posed.objective.eps_y, self.posed.objective.eps_h)

    def at(self, eps_y: float, eps_h: float) -> ShardedProblem:
        return replace(self, eps=(eps_y, eps_h))

    def likelihood(self) -> ShardedProblem:
        return replace(self, posed=replace(self.posed, token=uuid4().hex, objective=hcrf()), sent={}, eps=None)

    def plus(self, w: Floats, instances: Ints | None = None) -> Evaluation:
        return self._sum("plus", w, instances)

    def minus(self, w: Floats, instances: Ints | None = None) -> Evaluation:
        return self._sum("minus", w, instances)

    def difference(self, w: Floats, instances: Ints | None = None) -> Evaluation:
        return self._sum("difference", w, instances)

    def atom(self, w: Floats, i: int) -> NoReturn:
        """Refuses: solvers of this library ask ``has_atoms`` first, and say what to use instead."""
        raise UnsupportedError("a cluster does not evaluate single instances; use a solver that does not call atom.")

    features_of = scores_of = atom

    @cached_property
    def _instances(self) -> list[Instances]:
        if "instances" not in self.sent:
            self.sent["instances"] = [one for part in self._each(work.instances) for one in part]
        found: list[Instances] = self.sent["instances"]
        return found

    def _column(self, name: str) -> Floats:
        return np.concatenate([getattr(block, name) for block in self._instances])

    @cached_property
    def scale(self) -> Floats:
        return self.posed.C * self._column("weight")

    @cached_property
    def log_outputs(self) -> Floats:
        return self._column("log_outputs")

    @property
    def n_sites(self) -> int:
        return sum(block.n_sites for block in self._instances)

    @property
    def convex(self) -> bool:
        return all(block.convex for block in self._instances)

    def tempering(self, eps_y: float, eps_h: float) -> tuple[Floats, Floats]:
        rise_y, rise_h = (max(b - a, 0.0) for a, b in zip(self.temperatures, (eps_y, eps_h), strict=True))
        hidden = rise_h * self._column("log_hidden")
        return rise_y * self.log_outputs + hidden, rise_y * self._column("log_truth") + hidden

    def look(self, w: Floats) -> list[InferenceSummary]:
        """The closing look at every block."""
        return [one for part in self._each(work.look, w) for one in part]

    def _blame(self, task: str) -> str:
        """The shards of a task by its name, mssvm-FUNCTION-FIRST_LAST-NUMBER."""
        span = task.split("-")[2].split("_") if task.startswith("mssvm-") else ["0", str(self.n_blocks)]
        return self.posed.names(int(span[0]), int(span[1]))

    def _posed(self) -> Any:
        """The problem on the workers, sent once, and again where it was lost."""
        known = self.sent.get("posed")
        if known is None or not self.cluster.has(known):
            self.sent["posed"] = known = self.cluster.spread(self.posed)
        return known

    def _each(self, function: Any, *args: Any) -> list[Any]:
        """A function of stretches of blocks, in order."""

        def begin() -> Any:
            posed, more = self._posed(), [self.cluster.spread(arg) for arg in args]
            dealt = self.cluster.dealt(self.n_blocks)
            return [self.cluster.submit(function, posed, a, b, *more, at=at, name=f"{a}_{b}") for at, a, b in dealt]

        found: list[Any] = self.cluster.result(begin, self._blame)
        return found

    def _sum(self, what: str, w: Floats, instances: Ints | None) -> Evaluation:
        if instances is not None:
            return self._singles(what, w, instances)

        def begin() -> Any:
            dealt, posed, sent = self.cluster.dealt(self.n_blocks), self._posed(), self.cluster.spread(w)
            args = (posed, what, self.temperatures)
            futures = [
                self.cluster.submit(work.evaluate, *args, a, b, sent, at=at, name=f"{a}_{b}") for at, a, b in dealt
            ]
            self.cluster.sent = 2 * w.nbytes * len(dealt)
            return self.cluster.reduced(futures, self.n_blocks)

        (whole,) = self.cluster.result(begin, self._blame)
        return self._complete(work.unpacked(whole).part, self.n_instances)

    def _singles(self, what: str, w: Floats, instances: Ints) -> Evaluation:
        """Each instance by itself, where its block is; their sum in the order given."""
        if not len(instances):
            return Evaluation(np.zeros(0), 0.0, np.zeros(self.n_weights))
        block = np.searchsorted(self.ptr, instances, side="right") - 1
        asked = [(int(j), int(i - self.ptr[j])) for j, i in zip(block, instances, strict=True)]

        def begin() -> Any:
            posed, sent = self._posed(), self.cluster.spread(w)
            out = []
            for at, a, b in self.cluster.dealt(self.n_blocks):
                mine = [k for k, (j, _) in enumerate(asked) if a <= j < b]
                args = (posed, what, self.temperatures, [asked[k] for k in mine], sent)
                out.append((mine, self.cluster.submit(work.singles, *args, at=at, name=f"{a}_{b}")))
            return out

        found: dict[int, Evaluation] = {}
        for mine, stretches in self.cluster.result(begin, self._blame):
            found |= dict(zip(mine, (work.unpacked(s).part for s in stretches), strict=True))
        return self._complete(Evaluation.union([found[k] for k in range(len(asked))]), len(asked))

    @staticmethod
    def _complete(part: Evaluation, n: int) -> Evaluation:
        """With values of the right number that say that they are not known."""
        return replace(part, values=np.broadcast_to(np.nan, n))
