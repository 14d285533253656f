"""What a worker does: it reads shards, makes blocks of them, and evaluates stretches of blocks.

A ``Shelf`` holds what a worker has read and made; everything on it can be made again from the shards, on any worker.
Blocks are those that one machine would make of the same data: they may begin in one shard and end in the next.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from threading import RLock
from typing import Any, NamedTuple

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

KEPT = 0.5  # share of a worker's free memory for blocks that stay bound; the others are bound anew at every visit
STATE_BYTES = 160  # of a bound block beside its features: potentials, marginals, masks, plans

Weigh = Callable[[Labels], tuple[Floats | None, Floats | None]]
"""Weights of instances and of sites, from their labels."""


class Piece(NamedTuple):
    """Instances ``first : last`` of a shard."""

    shard: int
    first: int
    last: int


@dataclass(frozen=True, eq=False)
class Posed:
    """A training problem as workers are told of it. ``pieces`` has those of every block, ``whole`` is as in
    ``Encoder.encode_parsed``; ``uncut``: the sample is one block without instances to leave out."""

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

    def names(self, first: int, last: int) -> str:
        """The shards that some blocks are made of."""
        met = sorted({piece.shard for block in self.pieces[first:last] for piece in block})
        shown = [self.shards[k].name for k in met]
        return shown[0] if len(shown) == 1 else f"{shown[0]} to {shown[-1]}"


@dataclass(frozen=True, eq=False)
class Made:
    """A block as a problem of its own, and which of its variables the structure hides."""

    problem: TrainingProblem
    hidden: Bools
    bytes: int


class Shelf:
    """What a worker has: shards on disk, blocks in memory as far as the ``free`` bytes (0: not known) allow."""

    def __init__(self, folder: Path, free: int = 0, threads: int = 1) -> None:
        self.folder, self.budget, self.threads = folder, KEPT * (free or 1 << 62), threads
        self._stored: dict[str, Stored] = {}
        self._made: dict[tuple[str, int], Made] = {}
        self._lock, self._encoders = RLock(), dict[str, Encoder]()

    def close(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)

    def stored(self, shard: Shard, structure: Structure, missing_label: Any) -> Stored:
        """The shard on disk, read now unless it is there."""
        key = f"{shard.name} {shard.version} {shard.options} {structure!r} {missing_label!r}"
        if key not in self._stored:
            folder = self.folder / f"shard-{len(self._stored)}-{abs(hash(key))}"
            with named_memory(shard.name):
                self._stored[key] = Stored(shard, structure, missing_label, folder)
        return self._stored[key]

    def tidy(self, posed: Posed, first: int, last: int) -> None:
        """Forget the blocks that are not among those named."""
        with self._lock:
            for token, j in list(self._made):
                if token != posed.token or not first <= j < last:
                    del self._made[token, j]

    def block(self, posed: Posed, j: int) -> Made:
        found = self._made.get((posed.token, j))
        if found is None:
            with named_memory(posed.names(j, j + 1)):
                found = self._make(posed, j)
            with self._lock:
                if found.bytes + sum(made.bytes for made in self._made.values()) <= self.budget:
                    self._made[posed.token, j] = found
        return found

    def engine(self, posed: Posed) -> Engine:
        """The problem's engine with the threads of this worker."""
        own = any(field.name == "threads" for field in fields(posed.engine))  # type: ignore[arg-type]
        return replace(posed.engine, threads=self.threads) if own else posed.engine  # type: ignore[type-var]

    def encoder(self, posed: Posed) -> Encoder:
        with self._lock:
            if posed.token not in self._encoders:
                self._encoders = {posed.token: Encoder(posed.structure, posed.schema, posed.vocabulary)}
            return self._encoders[posed.token]

    def _make(self, posed: Posed, j: int) -> Made:
        encoder = self.encoder(posed)
        with self._lock:  # a shard is read once
            read = [self.stored(posed.shards[p.shard], posed.structure, posed.missing_label) for p in posed.pieces[j]]
        found = list(zip(read, posed.pieces[j], strict=True))
        parts = [stored.part(p.first, p.last, posed.schema, posed.vocabulary) for stored, p in found]
        parsed, labels = joined_parsed([part[0] for part in parts]), joined_labels([part[1] for part in parts])
        with placed([(stored, b) for stored, p in found for b in range(p.first, p.last)]):
            encoded = encoder.encode_parsed(posed.structure.derive(posed.schema, parsed)[1], posed.whole)
            weight, per_site = posed.weigh(labels)
            sample = to_sample(encoded, labels, weight, per_site, None, posed.objective.loss)
        sites = encoded.hidden
        if not posed.uncut:
            labelled = np.flatnonzero(sample.labelled)
            sample = sample.select(labelled)
            sites = sites.select(labelled, encoded.batch, sample.batch)
        hidden = mask_from_indices(sites.vars, sample.batch.n_vars)
        problem = TrainingProblem(
            posed.objective, encoder.model, sample, posed.inference, posed.C, self.engine(posed), one_block=True
        )
        return Made(problem, hidden, feature_bytes(encoded) + STATE_BYTES * sample.batch.n_states)


def joined_parsed(parts: Sequence[Parsed]) -> Parsed:
    """Instances of several shards as one."""
    if len(parts) == 1:
        return parts[0]
    rows = {}
    for name in parts[0].rows:
        mine = [part.rows[name] for part in parts]
        sizes = np.concatenate([np.diff(row.ptr) for row in mine])
        stack = sparse.vstack if sparse.issparse(mine[0].matrix) else np.concatenate
        matrix = stack([row.matrix for row in mine])
        rows[name] = FeatureRows(sparse.csr_array(matrix) if sparse.issparse(matrix) else matrix, offsets(sizes))
    return Parsed(rows, [key for part in parts for key in part.keys or ()])


def joined_labels(parts: Sequence[Labels]) -> Labels:
    sizes = np.concatenate([np.diff(part.ptr) for part in parts])
    observed, mask = (np.concatenate([getattr(part, name) for part in parts]) for name in ("observed", "mask"))
    return Labels(observed, mask, offsets(sizes))


def feature_bytes(encoded: Encoded) -> int:
    features = [term.features for term in encoded.inputs.terms]
    return sum(f.data.nbytes + f.indices.nbytes if sparse.issparse(f) else f.nbytes for f in features)


@contextmanager
def placed(places: Sequence[tuple[Stored, int]]) -> Iterator[None]:
    """Errors about instance b speak of its file and line."""
    try:
        yield
    except MssvmError as error:
        if error.instance is None:
            raise
        stored, b = places[error.instance]
        raise type(error)(f"{stored.place(b)}: {error.reason}") from None


@contextmanager
def named_memory(name: str) -> Iterator[None]:
    """Says which shard was too large."""
    try:
        yield
    except MemoryError as error:
        if isinstance(error, MssvmError):
            raise
        hint = "cut it into smaller shards, or give workers more memory"
        raise InputError(f"a worker ran out of memory on {name}; {hint}.") from None


# ----------------------------------------------------------------------------------------- what workers are asked


def survey(shelf: Shelf, shard: Shard, structure: Structure, missing_label: Any) -> tuple[Survey, Bools, Ints]:
    """Read a shard: what it tells of itself, which instances have labels, and the number of each's topology among
    those of the survey."""
    stored = shelf.stored(shard, structure, missing_label)
    return stored.survey(), stored.labelled, stored.keys


def evaluate(shelf: Shelf, posed: Posed, what: str, eps: tuple[float, float], first: int, last: int, w: Floats) -> Any:
    """``what`` ("plus", "minus" or "difference") of blocks ``first : last``, summed as far as the tree allows."""
    shelf.tidy(posed, first, last)

    def one(j: int) -> Evaluation:
        part: Evaluation = getattr(shelf.block(posed, j).problem.at(*eps), what)(w)
        return replace(part, values=np.zeros(0))  # one number an instance is more than the gradient, and nobody looks

    out: list[Stretch] = []
    with ONE_BLAS_THREAD:
        engine = shelf.engine(posed)
        for a in range(first, last, shelf.threads):
            each = range(a, min(a + shelf.threads, last))
            parts = engine.parallel_map(one, each)
            out = joined([*out, *(Stretch(j, j + 1, p) for j, p in zip(each, parts, strict=True))], len(posed.pieces))
    return [packed(stretch) for stretch in out]


def reduce(*lists: Any, n_blocks: int) -> list[Stretch]:
    """Neighbouring lists of stretches as one."""
    return [packed(s) for s in joined((unpacked(s) for one in lists for s in one), n_blocks)]


@dataclass(frozen=True, eq=False)
class SparseVector:
    """A gradient of mostly zeros."""

    n: int
    at: Ints
    values: Floats


def packed(stretch: Stretch) -> Stretch:
    """The stretch for a journey: a sparse gradient without its zeros (but with negative ones, to keep all bits)."""
    g = stretch.part.gradient
    at = np.flatnonzero((g != 0) | np.signbit(g))
    if 2 * len(at) >= len(g):
        return stretch
    small: Any = SparseVector(len(g), at, g[at])
    return replace(stretch, part=replace(stretch.part, gradient=small))


def unpacked(stretch: Stretch) -> Stretch:
    small: Any = stretch.part.gradient
    if not isinstance(small, SparseVector):
        return stretch
    gradient = np.zeros(small.n)
    gradient[small.at] = small.values
    return replace(stretch, part=replace(stretch.part, gradient=gradient))


def singles(shelf: Shelf, posed: Posed, what: str, eps: tuple[float, float], asked: Any, w: Floats) -> list[Stretch]:
    """The same of single instances, given as pairs of a block and a number in it; each by itself."""
    with ONE_BLAS_THREAD:
        found = [getattr(shelf.block(posed, j).problem.at(*eps), what)(w, np.array([i])) for j, i in asked]
    return [packed(Stretch(0, 0, replace(part, values=np.zeros(0)))) for part in found]


class Instances(NamedTuple):
    """Per instance what solvers ask of a problem beside its value, and of all of them what they sum to."""

    weight: Floats
    log_outputs: Floats
    log_hidden: Floats
    log_truth: Floats
    n_sites: int
    convex: bool


def instances(shelf: Shelf, posed: Posed, first: int, last: int) -> list[Instances]:
    """Of every block; all of them are made here for the first time."""
    shelf.tidy(posed, first, last)
    out = []
    for j in range(first, last):
        problem = shelf.block(posed, j).problem
        s = problem.sample
        output = s.query.output
        logs = problem.log_outputs, s.log_states(s.query, ~output), s.log_states(s.truth_query, output)
        out.append(Instances(s.weight, *logs, problem.n_sites, problem.convex))
    return out


def look(shelf: Shelf, posed: Posed, first: int, last: int, w: Floats) -> list[InferenceSummary]:
    """The closing look at every block."""

    def one(j: int) -> InferenceSummary:
        made = shelf.block(posed, j)
        return made.problem.bound[0].look(w, made.hidden, made.problem.sample.batch.var_ptr)

    with ONE_BLAS_THREAD:
        return shelf.engine(posed).parallel_map(one, range(first, last))
