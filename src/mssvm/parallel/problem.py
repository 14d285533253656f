"""The training problem of sharded data: workers evaluate ranges of blocks, and solvers see the sum."""

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
from mssvm.parallel.work import BlockConstants, Piece, ProblemDefinition, Share, Weigh, task_index
from mssvm.structures import Encoder, Structure

if TYPE_CHECKING:
    from mssvm.parallel.cluster import Cluster


@dataclass(frozen=True, eq=False)
class Surveyed:
    """Shards that workers have read, and their surveys: vocabularies, counts, labelled instances, topologies."""

    cluster: Cluster
    data: ShardedDataset
    missing_label: Hashable
    surveys: Sequence[Survey]
    labelled: Sequence[Bools]
    keys: Sequence[Ints]

    @classmethod
    def of(cls, cluster: Cluster, data: ShardedDataset, structure: Structure, missing_label: Hashable) -> Surveyed:
        """Let workers read every shard, neighbouring shards on the same worker."""
        if structure.learns_from_labels:
            name = type(structure).__name__
            raise UnsupportedError(f"{name} learns its links from all labels at once; fit it on one machine.")
        shards = data.shards

        def begin() -> Any:
            futures = []
            for share in cluster.divide(len(shards), 1):
                for k in range(share.first, share.last):
                    args = (shards[k], structure, missing_label)
                    futures.append(cluster.submit(work.survey, *args, at=share.address, name=str(k)))
            return futures

        results = cluster.result(begin, lambda task: shards[task_index(task)].name)
        surveys, labelled, keys = zip(*results, strict=True)
        return cls(cluster, data, missing_label, surveys, labelled, keys)

    @property
    def names(self) -> list[str]:
        return [shard.name for shard in self.data.shards]

    @property
    def n_instances(self) -> int:
        return sum(len(keys) for keys in self.keys)

    @cached_property
    def labels(self) -> Counter[Any]:
        """Number of occurrences of every label and candidate set."""
        total: Counter[Any] = Counter()
        for survey in self.surveys:
            total.update(survey.labels)
        return total

    @cached_property
    def kinds(self) -> Counter[Hashable]:
        """Number of instances of every topology."""
        total: Counter[Hashable] = Counter()
        for survey in self.surveys:
            total.update(survey.keys)
        return total

    def blocks(self, encoder: Encoder, engine: Engine) -> tuple[tuple[tuple[Piece, ...], ...], Ints]:
        """The pieces of the blocks that one machine would make, and the first labelled instance of every block."""
        size = {key: int(encoder.topology(key).cards.sum()) for key in self.kinds}
        sizes = []
        shard_of = []
        number = []
        for k, (survey, labelled, keys) in enumerate(zip(self.surveys, self.labelled, self.keys, strict=True)):
            instances = np.flatnonzero(labelled)
            size_of_key = np.array([size[key] for key in survey.keys], np.int64)
            sizes.append(size_of_key[keys[instances]])
            shard_of.append(np.full(len(instances), k))
            number.append(instances)
        ends = np.cumsum(np.concatenate(sizes))
        if not len(ends):
            raise InputError("no site of y is labelled; training needs at least one label.")
        ptr = block_ptr(ends, encoder.model, engine)
        shards = np.concatenate(shard_of)
        numbers = np.concatenate(number)
        blocks = [self._pieces(shards[a:b], numbers[a:b]) for a, b in zip(ptr[:-1], ptr[1:], strict=True)]
        return tuple(blocks), ptr

    def _pieces(self, shards: Ints, numbers: Ints) -> tuple[Piece, ...]:
        """Ranges of instances from the first labelled one to the last, unlabelled ones between them included."""
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
        definition = ProblemDefinition(
            token=uuid4().hex,
            shards=self.data.shards,
            missing_label=self.missing_label,
            structure=encoder.structure,
            schema=encoder.schema,
            vocabulary=encoder.vocabulary,
            objective=objective,
            inference=inference,
            C=C,
            engine=engine,
            weigh=weigh,
            whole=encoder.rows_of(self.kinds),
            pieces=pieces,
            uncut=len(pieces) == 1 and all(bool(labelled.all()) for labelled in self.labelled),
        )
        return ShardedProblem(self.cluster, definition, encoder.model, ptr)


@dataclass(frozen=True, eq=False)
class ShardedProblem:
    """``TrainingProblem`` on a cluster, with the same bits; single instances have no values and no coordinates here."""

    cluster: Cluster
    definition: ProblemDefinition
    model: Any
    ptr: Ints
    eps: tuple[float, float] | None = None
    cache: dict[str, Any] = field(default_factory=dict)  # shared by all temperatures: "definition", "constants"
    has_atoms = False  # every visit would send the coordinates of an instance over the network

    @property
    def n_instances(self) -> int:
        return int(self.ptr[-1])

    @property
    def n_weights(self) -> int:
        return int(self.model.n_weights)

    @property
    def n_blocks(self) -> int:
        return len(self.definition.pieces)

    @property
    def temperatures(self) -> tuple[float, float]:
        return self.eps or (self.definition.objective.eps_y, self.definition.objective.eps_h)

    def at(self, eps_y: float, eps_h: float) -> ShardedProblem:
        return replace(self, eps=(eps_y, eps_h))

    def likelihood(self) -> ShardedProblem:
        definition = replace(self.definition, token=uuid4().hex, objective=hcrf())
        return replace(self, definition=definition, cache={}, eps=None)

    def plus(self, w: Floats, instances: Ints | None = None) -> Evaluation:
        return self._sum("plus", w, instances)

    def minus(self, w: Floats, instances: Ints | None = None) -> Evaluation:
        return self._sum("minus", w, instances)

    def difference(self, w: Floats, instances: Ints | None = None) -> Evaluation:
        return self._sum("difference", w, instances)

    def atom(self, w: Floats, i: int) -> NoReturn:
        """Always raises: solvers of this library check ``has_atoms`` first, and say what to use instead."""
        raise UnsupportedError("a cluster does not evaluate single instances; use a solver that does not call atom.")

    features_of = scores_of = atom

    @cached_property
    def _constants(self) -> list[BlockConstants]:
        if "constants" not in self.cache:
            self.cache["constants"] = [block for share in self._each(work.block_constants) for block in share]
        constants: list[BlockConstants] = self.cache["constants"]
        return constants

    def _column(self, name: str) -> Floats:
        return np.concatenate([getattr(block, name) for block in self._constants])

    @cached_property
    def scale(self) -> Floats:
        return self.definition.C * self._column("weight")

    @cached_property
    def log_outputs(self) -> Floats:
        return self._column("log_outputs")

    @property
    def n_sites(self) -> int:
        return sum(block.n_sites for block in self._constants)

    @property
    def convex(self) -> bool:
        return all(block.convex for block in self._constants)

    def tempering(self, eps_y: float, eps_h: float) -> tuple[Floats, Floats]:
        own_eps_y, own_eps_h = self.temperatures
        rise_y = max(eps_y - own_eps_y, 0.0)
        rise_h = max(eps_h - own_eps_h, 0.0)
        hidden = rise_h * self._column("log_hidden")
        return rise_y * self.log_outputs + hidden, rise_y * self._column("log_truth") + hidden

    def summaries(self, w: Floats) -> list[InferenceSummary]:
        """Summaries of inference on every block, at the end of training."""
        return [summary for share in self._each(work.summarize, w) for summary in share]

    def _blame(self, task: str) -> str:
        """The shards of a task by its name, mssvm-FUNCTION-FIRST_LAST-NUMBER."""
        first = 0
        last = self.n_blocks
        if task.startswith("mssvm-"):
            first, last = (int(number) for number in task.split("-")[2].split("_"))
        return self.definition.shard_names(first, last)

    def _broadcast_definition(self) -> Any:
        """The future of the problem on the workers, sent once, and again if it was lost."""
        future = self.cache.get("definition")
        if future is None or not self.cluster.has(future):
            future = self.cluster.broadcast(self.definition)
            self.cache["definition"] = future
        return future

    def _each(self, function: Any, *args: Any) -> list[Any]:
        """``function(shelf, definition, first, last, *args)`` for every share of the blocks, in order."""

        def begin() -> Any:
            definition = self._broadcast_definition()
            sent_args = [self.cluster.broadcast(arg) for arg in args]
            futures = []
            for share in self.cluster.divide(self.n_blocks):
                call = (function, definition, share.first, share.last, *sent_args)
                futures.append(self.cluster.submit(*call, at=share.address, name=_block_range(share)))
            return futures

        results: list[Any] = self.cluster.result(begin, self._blame)
        return results

    def _sum(self, what: str, w: Floats, instances: Ints | None) -> Evaluation:
        if instances is not None:
            return self._sum_single_instances(what, w, instances)

        def begin() -> Any:
            shares = self.cluster.divide(self.n_blocks)
            definition = self._broadcast_definition()
            sent_w = self.cluster.broadcast(w)
            futures = []
            for share in shares:
                call = (work.evaluate, definition, what, self.temperatures, share.first, share.last, sent_w)
                futures.append(self.cluster.submit(*call, at=share.address, name=_block_range(share)))
            self.cluster.sent = 2 * w.nbytes * len(shares)
            return self.cluster.reduce(futures, self.n_blocks)

        (whole,) = self.cluster.result(begin, self._blame)
        return self._without_values(work.unpacked(whole).part, self.n_instances)

    def _sum_single_instances(self, what: str, w: Floats, instances: Ints) -> Evaluation:
        """Each instance by itself, on the worker that has its block; summed in the order of ``instances``."""
        if not len(instances):
            return Evaluation(np.zeros(0), 0.0, np.zeros(self.n_weights))
        block = np.searchsorted(self.ptr, instances, side="right") - 1
        places = [(int(j), int(i - self.ptr[j])) for j, i in zip(block, instances, strict=True)]

        def begin() -> Any:
            definition = self._broadcast_definition()
            sent_w = self.cluster.broadcast(w)
            futures = []
            for share in self.cluster.divide(self.n_blocks):
                numbers = [k for k, (j, _) in enumerate(places) if share.first <= j < share.last]
                own_places = [places[k] for k in numbers]
                call = (work.singles, definition, what, self.temperatures, own_places, sent_w)
                future = self.cluster.submit(*call, at=share.address, name=_block_range(share))
                futures.append((numbers, future))
            return futures

        evaluations: dict[int, Evaluation] = {}
        for numbers, stretches in self.cluster.result(begin, self._blame):
            for k, stretch in zip(numbers, stretches, strict=True):
                evaluations[k] = work.unpacked(stretch).part
        union = Evaluation.union([evaluations[k] for k in range(len(places))])
        return self._without_values(union, len(places))

    @staticmethod
    def _without_values(part: Evaluation, n: int) -> Evaluation:
        """The evaluation with n values of NaN: single values stay on the workers."""
        return replace(part, values=np.broadcast_to(np.nan, n))


def _block_range(share: Share) -> str:
    """The part of a task's name that ``_blame`` reads."""
    return f"{share.first}_{share.last}"
