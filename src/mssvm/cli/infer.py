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

from mssvm.cli.interrupt import run_until
from mssvm.core.errors import InfeasibleError, InputError, MemoryLimitError
from mssvm.core.progress import ProgressLine
from mssvm.core.stopping import began
from mssvm.engines import thread_count
from mssvm.uai import Answer, AnswerLimits, SearchProgress, UaiTask, answer, read_evidence, read_model, read_query
from mssvm.uai.portfolio import MOST_THREADS

MARGIN = 64 << 20  # bytes beyond the limit for threads, and for libraries that are still to be loaded
STACK = 16 << 20  # bytes beyond the limit for each thread of a search
GRACE = 0.3  # seconds after the limit for a search to end by itself


class TaskName(StrEnum):
    PR = "PR"
    MAR = "MAR"
    MAP = "MAP"
    MMAP = "MMAP"


class MethodName(StrEnum):
    auto = "auto"
    exact = "exact"
    bp = "bp"
    bound = "bound"


def infer(
    model: Annotated[Path, typer.Argument(help="UAI model (MARKOV or BAYES) or libDAI .fg file.")],
    task: Annotated[
        TaskName, typer.Option(case_sensitive=False, help="log partition function, marginals, MAP or marginal MAP.")
    ],
    evid: Annotated[Path | None, typer.Option(help="Evidence file: count, then pairs of variable and state.")] = None,
    query: Annotated[Path | None, typer.Option(help="MAP variables of MMAP: count, then variables.")] = None,
    method: Annotated[MethodName, typer.Option(help="auto: exact if it fits in time and memory.")] = MethodName.auto,
    time_limit: Annotated[
        float, typer.Option(min=0.0, help="Seconds from the start of the process; --method exact has no limit.")
    ] = 60.0,
    memory_limit: Annotated[
        float, typer.Option(min=0.001, help="GiB of the process, beyond what it takes to start.")
    ] = 4.0,
    seed: Annotated[int, typer.Option(min=0, help="Seed of random choices.")] = 0,
    jobs: Annotated[
        int, typer.Option(help="Threads of the search for MAP and MMAP; negative numbers count back from all cores.")
    ] = 1,
    json_output: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    progress: Annotated[
        bool, typer.Option("--progress", help="Print every better bound on standard error, one per line.")
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
            deadline=began() + time_limit,
            memory_limit=int(memory_limit * (1 << 30)),
            seed=seed,
            report=lambda progress: line.say(_describe(progress)),
            threads=min(thread_count(jobs), MOST_THREADS),
        )
        with _memory_limit(limits.memory_limit + STACK * (limits.threads - 1)):
            result = _answer_in_time(asked, method, limits, _progress_printer(json_output) if progress else None)
    if json_output:
        print(json.dumps({**result.fields(asked), "seconds": monotonic() - began()}))
    else:
        print(result.solution(asked))


@contextmanager
def _memory_limit(n_bytes: int) -> Iterator[None]:
    """Within this context allocations beyond ``n_bytes`` fail, on systems with such limits (Linux).

    Methods predict their memory and stay within the limit; this one applies if a prediction is wrong.
    """
    try:
        import resource

        with open("/proc/self/statm", encoding="ascii") as file:
            used = int(file.read().split()[5]) * resource.getpagesize()
    except (ImportError, OSError):
        yield
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    limit = used + n_bytes + MARGIN
    if hard != resource.RLIM_INFINITY:
        limit = min(limit, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def _progress_printer(json_output: bool) -> Callable[[Answer], None]:
    """A callback that prints time and bounds of an answer to standard error, in words or as a JSON object."""

    def print_progress(result: Answer) -> None:
        seconds = monotonic() - began()
        line = f"{seconds:.2f} s: {result.lower:.6g} to {result.upper:.6g}, {result.method}"
        if json_output:
            fields = {"seconds": seconds, "lower_bound_ln": result.lower, "upper_bound_ln": result.upper}
            line = json.dumps({name: value if isfinite(value) else None for name, value in fields.items()})
        print(line, file=sys.stderr, flush=True)

    return print_progress


def _answer_in_time(
    asked: UaiTask, method: MethodName, limits: AnswerLimits, print_progress: Callable[[Answer], None] | None
) -> Answer:
    """The answer, or the best one so far when time or memory is used up."""
    candidates: list[Answer] = []

    def keep(candidate: Answer) -> None:
        candidates.append(candidate)
        if print_progress is not None:
            print_progress(candidate)

    limits = replace(limits, keep=keep)
    deadline = inf if method is MethodName.exact else limits.deadline + GRACE
    try:
        result = run_until(deadline, lambda: answer(asked, method.value, limits))
    except MemoryLimitError:
        raise
    except MemoryError:
        if not candidates:
            raise MemoryLimitError("the answer needs more memory; raise --memory-limit.") from None
        return candidates[-1]
    if result is not None:
        return result
    if candidates:
        return candidates[-1]
    if monotonic() < deadline:
        raise KeyboardInterrupt
    raise InfeasibleError("no assignment of positive probability was found in the time given; raise --time-limit.")


def _describe(progress: SearchProgress) -> str:
    """The state of a search in one line."""
    return f"{progress.seconds:.1f} s, {progress.phase}: value {progress.lower:.6g}, bound {progress.upper:.6g}"


def _read(path: Path, task: TaskName, evid: Path | None, query: Path | None) -> UaiTask:
    if (task is TaskName.MMAP) != (query is not None):
        needs = "needs --query with its MAP variables" if query is None else "takes no --query; only MMAP does"
        raise InputError(f"task {task.value} {needs}.")
    model = read_model(path)
    evidence = {} if evid is None else read_evidence(evid, model)
    map_variables = () if query is None else read_query(query, model)
    return UaiTask.of(task.value, model, evidence, map_variables)
