"""The functions that run on workers: read shards, make blocks of instances, evaluate ranges of blocks.

A ``Shelf`` is a worker's cache of shards and blocks; all of it can be rebuilt from the shards, on any worker. Blocks
are those that one machine would make of the same data: they may begin in one shard and end in the next.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from threading import RLock
from typing import Any, NamedTuple, cast

import numpy as np
from scipy import sparse

from mssvm.core.arrays import Bools, Floats, Ints
from mssvm.core.errors import InputError, MssvmError
from mssvm.core.threads import ONE_BLAS_THREAD
from mssvm.core.topology import mask_from_indices, offsets
from mssvm.data.features import FeatureRows
from mssvm.data.labels import Labels, LabelVocabulary
from mssvm.data.shards import Shard
from mssvm.engines.base import Engine
from mssvm.inference.base import Inference
from mssvm.objectives.base import Objective
from mssvm.objectives.problem import Evaluation
from mssvm.objectives.summary import InferenceSummary
from mssvm.objectives.sums import Stretch, joined
from mssvm.objectives.training import TrainingProblem
from mssvm.parallel.store import Stored, Survey
from mssvm.structures import Encoder, Schema, Structure
from mssvm.structures.base import Parsed
from mssvm.structures.encoded import Encoded, to_sample
from mssvm.structures.layout import BlockRows

CACHE_SHARE = 0.5  # share of a worker's free memory for blocks to stay bound; others are bound again each time
STATE_BYTES = 160  # bytes per state of a bound block without its features: potentials, marginals, masks, plans

Weigh = Callable[[Labels], tuple[Floats | None, Floats | None]]
"""Weights of instances and of sites, from their labels."""


class Share(NamedTuple):
    """Items ``first : last`` of a list, for the worker at an address."""

    address: str
    first: int
    last: int


def task_index(task: str) -> int:
    """The number k in the name of a task that was submitted with ``name=str(k)``."""
    return int(task.split("-")[2])


class Piece(NamedTuple):
    """Instances ``first : last`` of a shard."""

    shard: int
    first: int
    last: int


@dataclass(frozen=True, eq=False)
class ProblemDefinition:
    """A training problem in the form that is sent to workers.

    ``token`` identifies it, ``pieces`` are those of every block, ``whole`` is as in ``Encoder.encode_parsed``, and
    ``uncut`` says that the sample is one block whose instances all have labels.
    """

    token: str
    shards: tuple[Shard, ...]
    missing_label: Any
    structure: Structure
    schema: Schema
    vocabulary: LabelVocabulary
    objective: Objective
    inference: Inference
    C: float
    engine: Engine
    weigh: Weigh
    whole: dict[str, BlockRows]
    pieces: tuple[tuple[Piece, ...], ...]
    uncut: bool

    def shard_names(self, first: int, last: int) -> str:
        """The shards of blocks ``first : last``, for messages."""
        numbers = sorted({piece.shard for block in self.pieces[first:last] for piece in block})
        names = [self.shards[k].name for k in numbers]
        if len(names) == 1:
            return names[0]
        return f"{names[0]} to {names[-1]}"


@dataclass(frozen=True, eq=False)
class Block:
    """A block as a training problem of its own, with a mask of its hidden variables and its size in memory."""

    problem: TrainingProblem
    hidden: Bools
    bytes: int


class Shelf:
    """A worker's cache: shards on disk, blocks in memory as far as the ``free`` bytes (0: unknown) allow."""

    def __init__(self, folder: Path, free: int = 0, threads: int = 1) -> None:
        self.folder = folder
        self.budget = CACHE_SHARE * (free or 1 << 62)
        self.threads = threads
        self._stored: dict[str, Stored] = {}
        self._blocks: dict[tuple[str, int], Block] = {}
        self._encoders: dict[str, Encoder] = {}
        self._lock = RLock()

    def close(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)

    def stored(self, shard: Shard, structure: Structure, missing_label: Any) -> Stored:
        """The shard on disk, read on the first call."""
        key = f"{shard.name} {shard.version} {shard.options} {structure!r} {missing_label!r}"
        if key not in self._stored:
            folder = self.folder / f"shard-{len(self._stored)}-{abs(hash(key))}"
            with memory_errors_name(shard.name):
                self._stored[key] = Stored(shard, structure, missing_label, folder)
        return self._stored[key]

    def drop_other_blocks(self, definition: ProblemDefinition, first: int, last: int) -> None:
        """Remove all blocks from memory but ``first : last`` of this problem."""
        with self._lock:
            for token, j in list(self._blocks):
                if token != definition.token or not first <= j < last:
                    del self._blocks[token, j]

    def block(self, definition: ProblemDefinition, j: int) -> Block:
        """Block j, from memory if it is there; it stays there if the budget allows."""
        block = self._blocks.get((definition.token, j))
        if block is not None:
            return block
        with memory_errors_name(definition.shard_names(j, j + 1)):
            block = self._make_block(definition, j)
        with self._lock:
            used = sum(other.bytes for other in self._blocks.values())
            if used + block.bytes <= self.budget:
                self._blocks[definition.token, j] = block
        return block

    def engine(self, definition: ProblemDefinition) -> Engine:
        """The problem's engine with the threads of this worker."""
        engine: Any = definition.engine
        if any(field.name == "threads" for field in fields(engine)):
            engine = replace(engine, threads=self.threads)
        return cast(Engine, engine)

    def encoder(self, definition: ProblemDefinition) -> Encoder:
        with self._lock:
            if definition.token not in self._encoders:
                self._encoders = {
                    definition.token: Encoder(definition.structure, definition.schema, definition.vocabulary)
                }
            return self._encoders[definition.token]

    def _make_block(self, definition: ProblemDefinition, j: int) -> Block:
        encoder = self.encoder(definition)
        pieces = definition.pieces[j]
        with self._lock:  # a shard is read once
            shards = [
                self.stored(definition.shards[piece.shard], definition.structure, definition.missing_label)
                for piece in pieces
            ]
        parts = []
        places = []
        for stored, piece in zip(shards, pieces, strict=True):
            parts.append(stored.part(piece.first, piece.last, definition.schema, definition.vocabulary))
            places += [(stored, b) for b in range(piece.first, piece.last)]
        parsed = joined_parsed([parsed for parsed, _ in parts])
        labels = joined_labels([labels for _, labels in parts])
        with errors_name_places(places):
            _, derived = definition.structure.derive(definition.schema, parsed)
            encoded = encoder.encode_parsed(derived, definition.whole)
            weight, per_site = definition.weigh(labels)
            sample = to_sample(encoded, labels, weight, per_site, None, definition.objective.loss)
        hidden_sites = encoded.hidden
        if not definition.uncut:
            labelled = np.flatnonzero(sample.labelled)
            sample = sample.select(labelled)
            hidden_sites = hidden_sites.select(labelled, encoded.batch, sample.batch)
        hidden = mask_from_indices(hidden_sites.vars, sample.batch.n_vars)
        problem = TrainingProblem(
            definition.objective,
            encoder.model,
            sample,
            definition.inference,
            definition.C,
            self.engine(definition),
            one_block=True,
        )
        return Block(problem, hidden, feature_bytes(encoded) + STATE_BYTES * sample.batch.n_states)


def joined_parsed(parts: Sequence[Parsed]) -> Parsed:
    """Parsed instances of several shards, concatenated."""
    if len(parts) == 1:
        return parts[0]
    rows = {}
    for name in parts[0].rows:
        pieces = [part.rows[name] for part in parts]
        ptr = offsets(np.concatenate([np.diff(piece.ptr) for piece in pieces]))
        matrices = [piece.matrix for piece in pieces]
        if sparse.issparse(matrices[0]):
            rows[name] = FeatureRows(sparse.csr_array(sparse.vstack(matrices)), ptr)
        else:
            rows[name] = FeatureRows(np.concatenate(matrices), ptr)
    return Parsed(rows, [key for part in parts for key in part.keys or ()])


def joined_labels(parts: Sequence[Labels]) -> Labels:
    sizes = np.concatenate([np.diff(part.ptr) for part in parts])
    observed = np.concatenate([part.observed for part in parts])
    mask = np.concatenate([part.mask for part in parts])
    return Labels(observed, mask, offsets(sizes))


def feature_bytes(encoded: Encoded) -> int:
    """Memory of the features of an encoded batch."""
    total = 0
    for term in encoded.inputs.terms:
        features = term.features
        if sparse.issparse(features):
            total += features.data.nbytes + features.indices.nbytes
        else:
            total += features.nbytes
    return total


@contextmanager
def errors_name_places(places: Sequence[tuple[Stored, int]]) -> Iterator[None]:
    """Within this context errors about an instance name its file and line."""
    try:
        yield
    except MssvmError as error:
        if error.instance is None:
            raise
        stored, b = places[error.instance]
        raise type(error)(f"{stored.place(b)}: {error.reason}") from None


@contextmanager
def memory_errors_name(name: str) -> Iterator[None]:
    """Within this context running out of memory is an error that names the shard."""
    try:
        yield
    except MemoryError as error:
        if isinstance(error, MssvmError):
            raise
        hint = "cut it into smaller shards, or give workers more memory"
        raise InputError(f"a worker ran out of memory on {name}; {hint}.") from None


# Below are the functions that ``Cluster.submit`` runs; each has the worker's shelf as its first argument.


def survey(shelf: Shelf, shard: Shard, structure: Structure, missing_label: Any) -> tuple[Survey, Bools, Ints]:
    """Read a shard: its survey, a mask of instances with labels, and the index of each instance's topology in the
    survey."""
    stored = shelf.stored(shard, structure, missing_label)
    return stored.survey(), stored.labelled, stored.keys


def evaluate(
    shelf: Shelf,
    definition: ProblemDefinition,
    what: str,
    eps: tuple[float, float],
    first: int,
    last: int,
    w: Floats,
) -> list[Stretch]:
    """``what`` ("plus", "minus" or "difference") of blocks ``first : last``, summed as far as the tree allows."""
    shelf.drop_other_blocks(definition, first, last)

    def evaluate_block(j: int) -> Evaluation:
        part = _evaluate(shelf, definition, what, eps, j, w, None)
        return replace(part, values=np.zeros(0))  # one value per instance would be larger than the gradient

    stretches: list[Stretch] = []
    with ONE_BLAS_THREAD:
        engine = shelf.engine(definition)
        for start in range(first, last, shelf.threads):
            blocks = range(start, min(start + shelf.threads, last))
            parts = engine.parallel_map(evaluate_block, blocks)
            stretches += [Stretch(j, j + 1, part) for j, part in zip(blocks, parts, strict=True)]
            stretches = joined(stretches, len(definition.pieces))
    return [packed(stretch) for stretch in stretches]


def _evaluate(
    shelf: Shelf,
    definition: ProblemDefinition,
    what: str,
    eps: tuple[float, float],
    j: int,
    w: Floats,
    instances: Ints | None,
) -> Evaluation:
    """``what`` of block j, or of some of its instances."""
    problem = shelf.block(definition, j).problem.at(*eps)
    evaluation: Evaluation = getattr(problem, what)(w, instances)
    return evaluation


def reduce(*lists: Any, n_blocks: int) -> list[Stretch]:
    """Join neighbouring lists of partial sums, and sum as far as the tree allows."""
    stretches = [unpacked(stretch) for stretches in lists for stretch in stretches]
    return [packed(stretch) for stretch in joined(stretches, n_blocks)]


@dataclass(frozen=True, eq=False)
class SparseVector:
    """A gradient of mostly zeros."""

    n: int
    at: Ints
    values: Floats


def packed(stretch: Stretch) -> Stretch:
    """The stretch to send: a gradient of mostly zeros as a sparse vector (negative zeros are entries: same bits)."""
    gradient = stretch.part.gradient
    at = np.flatnonzero((gradient != 0) | np.signbit(gradient))
    if 2 * len(at) >= len(gradient):
        return stretch
    sparse_gradient: Any = SparseVector(len(gradient), at, gradient[at])
    return replace(stretch, part=replace(stretch.part, gradient=sparse_gradient))


def unpacked(stretch: Stretch) -> Stretch:
    """The stretch with its gradient as an array again."""
    sparse_gradient: Any = stretch.part.gradient
    if not isinstance(sparse_gradient, SparseVector):
        return stretch
    gradient = np.zeros(sparse_gradient.n)
    gradient[sparse_gradient.at] = sparse_gradient.values
    return replace(stretch, part=replace(stretch.part, gradient=gradient))


def singles(
    shelf: Shelf,
    definition: ProblemDefinition,
    what: str,
    eps: tuple[float, float],
    places: Sequence[tuple[int, int]],
    w: Floats,
) -> list[Stretch]:
    """``what`` of single instances, each by itself; a place is a block and a number in it."""
    stretches = []
    with ONE_BLAS_THREAD:
        for j, i in places:
            part = _evaluate(shelf, definition, what, eps, j, w, np.array([i]))
            stretches.append(packed(Stretch(0, 0, replace(part, values=np.zeros(0)))))
    return stretches


class BlockConstants(NamedTuple):
    """Constants of a block that solvers need: arrays with one number per instance, and two for the whole block."""

    weight: Floats
    log_outputs: Floats
    log_hidden: Floats
    log_truth: Floats
    n_sites: int
    convex: bool


def block_constants(shelf: Shelf, definition: ProblemDefinition, first: int, last: int) -> list[BlockConstants]:
    """The constants of every block; this makes the blocks for the first time."""
    shelf.drop_other_blocks(definition, first, last)
    out = []
    for j in range(first, last):
        problem = shelf.block(definition, j).problem
        sample = problem.sample
        output = sample.at_eps_y  # as `TrainingProblem.tempering`
        constants = BlockConstants(
            weight=sample.weight,
            log_outputs=problem.log_outputs,
            log_hidden=sample.log_states(sample.query, ~output),
            log_truth=sample.log_states(sample.truth_query, output),
            n_sites=problem.n_sites,
            convex=problem.convex,
        )
        out.append(constants)
    return out


def summarize(shelf: Shelf, definition: ProblemDefinition, first: int, last: int, w: Floats) -> list[InferenceSummary]:
    """A summary of inference on every block, at the end of training."""

    def summarize_block(j: int) -> InferenceSummary:
        block = shelf.block(definition, j)
        return block.problem.bound[0].summarize(w, block.hidden, block.problem.sample.batch.var_ptr)

    with ONE_BLAS_THREAD:
        return shelf.engine(definition).parallel_map(summarize_block, range(first, last))
