"""``mssvm infer``: partition function, marginals, MAP and marginal MAP of UAI and libDAI models."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from enum import StrEnum
from math import inf, isfinite
from pathlib import Path
from time import monotonic
from typing import Annotated

import typer

from mssvm.cli.interrupt import by
from mssvm.core.errors import InfeasibleError, InputError, MemoryLimitError
from mssvm.core.progress import ProgressLine
from mssvm.core.stopping import began
from mssvm.uai import Answer, AnswerLimits, UaiTask, answer, read_evidence, read_model, read_query
from mssvm.uai.anytime import SearchProgress

ROOM = 64 << 20  # bytes beyond the limit for threads, and for kernels that are still to be loaded
GRACE = 0.3  # seconds after the limit in which a search that ends in good order is waited for


class TaskName(StrEnum):
    PR, MAR, MAP, MMAP = "PR", "MAR", "MAP", "MMAP"


class MethodName(StrEnum):
    auto, exact, bp, bound = "auto", "exact", "bp", "bound"


def infer(
    model: Annotated[Path, typer.Argument(help="UAI model (MARKOV or BAYES) or libDAI .fg file.")],
    task: Annotated[
        TaskName, typer.Option(case_sensitive=False, help="log partition function, marginals, MAP or marginal MAP.")
    ],
    evid: Annotated[Path | None, typer.Option(help="Evidence file: count, then pairs of variable and state.")] = None,
    query: Annotated[Path | None, typer.Option(help="MAP variables of MMAP: count, then variables.")] = None,
    method: Annotated[MethodName, typer.Option(help="auto: exact if it fits in time and memory.")] = MethodName.auto,
    time_limit: Annotated[
        float, typer.Option(min=0.0, help="Seconds from the start of the process; exact takes its time.")
    ] = 60.0,
    memory_limit: Annotated[
        float, typer.Option(min=0.001, help="GiB of the process, beyond what it takes to start.")
    ] = 4.0,
    seed: Annotated[int, typer.Option(min=0, help="Seed of random choices.")] = 0,
    json_output: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    progress: Annotated[
        bool, typer.Option("--progress", help="Tell of better bounds on standard error, each on a line.")
    ] = False,
) -> None:
    """Answer one inference task about a model, in the UAI solution format or as JSON.

    Ctrl-C prints the best answer found so far.
    """
    if not (isfinite(time_limit) and isfinite(memory_limit * (1 << 30))):
        raise InputError("time-limit and memory-limit must be finite numbers, in bytes too.")
    asked = _read(model, task, evid, query)
    with ProgressLine(f"{task.value} {model.name}", quiet=0.0, terminal_only=True) as line:
        limits = AnswerLimits(
            began() + time_limit, int(memory_limit * (1 << 30)), seed, lambda at: line.say(_where(at))
        )
        with _allocating(limits.memory_limit):
            found = _timely(asked, method, limits, _teller(json_output) if progress else None)
    fields = {**found.fields(asked), "seconds": monotonic() - began()}
    print(json.dumps(fields) if json_output else found.solution(asked))


@contextmanager
def _allocating(most: int) -> Iterator[None]:
    """Where the system has such limits (Linux), let allocations beyond ``most`` bytes fail meanwhile: methods predict
    what they take, and this holds where they are wrong."""
    try:
        import resource

        with open("/proc/self/statm", encoding="ascii") as file:
            taken = int(file.read().split()[5]) * resource.getpagesize()
    except (ImportError, OSError):
        yield
        return
    before = resource.getrlimit(resource.RLIMIT_DATA)
    room = taken + most + ROOM
    resource.setrlimit(resource.RLIMIT_DATA, (room if before[1] < 0 else min(room, before[1]), before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)


def _teller(json_output: bool) -> Callable[[Answer], None]:
    """Writes down when which bounds were known, in words or as JSON objects."""

    def tell(found: Answer) -> None:
        bounds = {"lower_bound_ln": found.lower, "upper_bound_ln": found.upper}
        fields = {k: v if isfinite(v) else None for k, v in {"seconds": monotonic() - began(), **bounds}.items()}
        words = f"{fields['seconds']:.2f} s: {found.lower:.6g} to {found.upper:.6g}, {found.method}"
        print(json.dumps(fields) if json_output else words, file=sys.stderr, flush=True)

    return tell


def _timely(asked: UaiTask, method: MethodName, limits: AnswerLimits, tell: Callable[[Answer], None] | None) -> Answer:
    """The answer, or the best one so far when time is up."""
    kept: list[Answer] = []

    def keep(found: Answer) -> None:
        kept.append(found)
        if tell is not None:
            tell(found)

    limits = replace(limits, keep=keep)
    late = inf if method is MethodName.exact else limits.deadline + GRACE
    try:
        found = by(late, lambda: answer(asked, method.value, limits))
    except MemoryLimitError:
        raise
    except MemoryError:
        if not kept:
            raise MemoryLimitError("the answer needs more memory; raise --memory-limit.") from None
        return kept[-1]
    if found is None and not kept and monotonic() < late:
        raise KeyboardInterrupt
    if found is None and not kept:
        raise InfeasibleError("no assignment of positive probability was found in the time given; raise --time-limit.")
    return kept[-1] if found is None else found


def _where(at: SearchProgress) -> str:
    """Where a search stands."""
    return f"{at.seconds:.1f} s, {at.phase}: value {at.lower:.6g}, bound {at.upper:.6g}"


def _read(path: Path, task: TaskName, evid: Path | None, query: Path | None) -> UaiTask:
    if (task is TaskName.MMAP) != (query is not None):
        needs = "needs --query with its MAP variables" if query is None else "takes no --query; only MMAP does"
        raise InputError(f"task {task.value} {needs}.")
    model = read_model(path)
    evidence = read_evidence(evid, model) if evid is not None else {}
    return UaiTask.of(task.value, model, evidence, read_query(query, model) if query is not None else ())
