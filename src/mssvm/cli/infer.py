"""``mssvm infer``: partition function, marginals, MAP and marginal MAP of UAI and libDAI models."""

from __future__ import annotations

import json
from enum import StrEnum
from math import isfinite, log
from pathlib import Path
from time import monotonic
from typing import Annotated

import typer

from mssvm.cli.answers import Answer, Settings, auto, bound, bp, exact
from mssvm.core.errors import InfeasibleError, InputError
from mssvm.core.progress import ProgressLine
from mssvm.uai import read_evidence, read_model, read_query
from mssvm.uai.files import format_map, format_mar, format_mmap, format_pr
from mssvm.uai.search import Progress
from mssvm.uai.task import Task

METHODS = {"auto": auto, "exact": exact, "bp": bp, "bound": bound}


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
    task: Annotated[TaskName, typer.Option(help="log partition function, marginals, MAP, or marginal MAP.")],
    evid: Annotated[Path | None, typer.Option(help="Evidence file: count, then pairs of variable and state.")] = None,
    query: Annotated[Path | None, typer.Option(help="MAP variables of MMAP: count, then variables.")] = None,
    method: Annotated[MethodName, typer.Option(help="auto: exact if it fits in time and memory.")] = MethodName.auto,
    time_limit: Annotated[float, typer.Option(min=0.0, help="Seconds for approximate methods.")] = 60.0,
    memory_limit: Annotated[float, typer.Option(min=0.001, help="GiB for exact methods.")] = 4.0,
    seed: Annotated[int, typer.Option(min=0, help="Seed of random choices.")] = 0,
    json_output: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Answer one inference task about a model, in the UAI solution format or as JSON.

    Ctrl-C during a search prints the best answer found so far.
    """
    began = monotonic()
    if not (isfinite(time_limit) and isfinite(memory_limit)):
        raise InputError("time-limit and memory-limit must be finite numbers.")
    problem = _read(model, task, evid, query)
    with ProgressLine(f"{task.value} {model.name}", quiet=0.0, terminal_only=True) as line:
        settings = Settings(time_limit, int(memory_limit * (1 << 30)), seed, lambda at: line.say(_where(at)))
        answer = METHODS[method.value](problem, settings)
    if answer.value == float("-inf"):
        raise InfeasibleError(
            "no assignment has positive probability under this model and evidence."
            if answer.exact or answer.upper == float("-inf")
            else "no assignment of positive probability was found in the time given; raise --time-limit."
        )
    text = json.dumps(_fields(problem, answer, monotonic() - began)) if json_output else _solution(problem, answer)
    print(text)


def _where(at: Progress) -> str:
    """Where a search stands."""
    return f"{at.seconds:.1f} s, {at.phase}: value {at.lower:.6g}, bound {at.upper:.6g}"


def _read(path: Path, task: TaskName, evid: Path | None, query: Path | None) -> Task:
    if (task is TaskName.MMAP) != (query is not None):
        needs = "needs --query with its MAP variables" if query is None else "takes no --query; only MMAP does"
        raise InputError(f"task {task.value} {needs}.")
    model = read_model(path)
    evidence = read_evidence(evid, model) if evid is not None else {}
    asked = read_query(query, model) if query is not None else None
    return Task.of(task.value, model, evidence, asked)


def _solution(task: Task, answer: Answer) -> str:
    if task.name == "PR":
        return format_pr(answer.value / log(10.0))
    if task.name == "MAR":
        assert answer.marginals is not None
        return format_mar(answer.marginals)
    assert answer.states is not None
    if task.name == "MAP":
        return format_map(answer.states)
    return format_mmap([(v, int(answer.states[v])) for v in task.asked])


def _fields(task: Task, answer: Answer, seconds: float) -> dict[str, object]:
    states, marginals = answer.states, answer.marginals
    return {
        "task": task.name,
        "value_ln": answer.value,
        "value_log10": answer.value / log(10.0),
        "assignment": None if states is None else [[v, int(states[v])] for v in task.asked],
        "marginals": None if marginals is None else [[float(x) for x in p] for p in marginals],
        "exact": answer.exact,
        "converged": answer.converged,
        "lower_bound_ln": _finite(answer.lower),
        "upper_bound_ln": _finite(answer.upper),
        "method": answer.method,
        "seconds": seconds,
    }


def _finite(x: float) -> float | None:
    return x if isfinite(x) else None
