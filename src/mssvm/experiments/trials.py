"""Trials in parallel processes; each result is written to disk as soon as it is known, so that a run can be resumed.

A task is one experiment's name and its parameters; its seed and everything else follow from these and the protocol, so
results do not depend on the number of processes or the order in which they finish.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from itertools import product
from multiprocessing import active_children, get_context
from pathlib import Path
from time import monotonic
from typing import Any

from threadpoolctl import threadpool_limits

from mssvm.experiments.protocol import Params, Protocol

Result = dict[str, Any]
Function = Callable[[Protocol, Params], Result]
"""One trial; a function at the top level of a module, so that other processes can find it."""


@dataclass(frozen=True)
class Trial:
    """A finished trial; ``when`` it ended (UTC) and by which ``version`` of the library. Older trials have neither."""

    params: Params
    result: Result
    seconds: float
    when: str = ""
    version: str = ""


class Store:
    """Finished trials of one experiment, one JSON line each with a fingerprint of the settings it was run with."""

    def __init__(self, path: Path, fingerprint: Callable[[Params], str]) -> None:
        self.path = path
        self.fingerprint = fingerprint

    def open(self, resume: bool) -> dict[str, Trial]:
        """The trials that are stored already; without ``resume`` an older file is set aside and there are none."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if self.path.exists() and not resume:
            self.path.replace(self.path.with_suffix(".previous.jsonl"))
        return self.read()

    def read(self) -> dict[str, Trial]:
        """Stored trials by key. Those run with other settings are left out, so they are run again."""
        if not self.path.exists():
            return {}
        lines = self.path.read_bytes().split(b"\n")
        if lines[-1]:
            # The last line was cut off by a kill; drop it, so that the next one starts on a line of its own.
            os.truncate(self.path, self.path.stat().st_size - len(lines[-1]))
        records = [json.loads(line) for line in lines[:-1]]
        return {
            key(r["params"]): Trial(r["params"], r["result"], r["seconds"], r.get("when", ""), r.get("version", ""))
            for r in records
            if r["fingerprint"] == self.fingerprint(r["params"])
        }

    def add(self, trial: Trial) -> None:
        """Append a line in one write, on disk before this returns."""
        record = asdict(trial) | {"seconds": round(trial.seconds, 3), "fingerprint": self.fingerprint(trial.params)}
        line = json.dumps(record, sort_keys=True, allow_nan=False) + "\n"
        handle = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(handle, line.encode())
            os.fsync(handle)
        finally:
            os.close(handle)


def cross(**axes: Iterable[Any]) -> list[Params]:
    """Tasks for every combination of the named values, the last name varying fastest."""
    return [dict(zip(axes, values, strict=True)) for values in product(*axes.values())]


def key(params: Params) -> str:
    """The name of a task within its experiment."""
    return json.dumps(params, sort_keys=True)


def run_trials(
    function: Function, protocol: Protocol, tasks: Sequence[Params], store: Store, jobs: int, resume: bool
) -> Iterator[Trial]:
    """Yield every task's trial, stored ones first and new ones as they finish."""
    stored = store.open(resume)
    missing = []
    for name, params in {key(params): params for params in tasks}.items():
        trial = stored.get(name)
        if trial is None:
            missing.append(params)
        else:
            yield trial
    if jobs == 1:
        trials: Iterable[Trial] = (timed(function, protocol, params) for params in missing)
    else:
        trials = _pool(function, protocol, missing, jobs)
    for trial in trials:
        store.add(trial)
        yield trial


def _pool(function: Function, protocol: Protocol, tasks: Sequence[Params], jobs: int) -> Iterator[Trial]:
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        try:
            running = {pool.submit(timed, function, protocol, params) for params in tasks}
            while running:
                # With a time limit, so that an interruption is noticed while no trial ends.
                done, running = wait(running, timeout=0.2, return_when=FIRST_COMPLETED)
                yield from (future.result() for future in done)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for process in active_children():
                process.terminate()
            raise


def timed(function: Function, protocol: Protocol, params: Params) -> Trial:
    """Run one trial."""
    began = monotonic()
    # One BLAS thread: processes share the cores already, and results must not depend on their number.
    with threadpool_limits(1):
        result = function(protocol, params)
    seconds = monotonic() - began
    return Trial(params, result, seconds, datetime.now(UTC).isoformat(timespec="seconds"), version("mssvm"))
