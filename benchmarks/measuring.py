"""How a row of ``bench.py`` is measured: contestants run in turn, answers are compared before any time counts.

A contestant is prepared once, runs once to warm up (that run's answer is compared), then as often as there are repeats,
in turn with the others. Peers live in processes of their own, in their own virtual environments, and are told by lines
of JSON to run once more. Wall and processor time are kept of every run; the best of each counts.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Protocol

from environments import Unavailable, python_of

HERE = Path(__file__).resolve().parent
BUDGET = 30.0  # seconds after which a contestant is not run again


@dataclass(frozen=True)
class Outcome:
    """What one run gave: an answer to compare, how many units of work it did, and times where only a part counts."""

    answer: Mapping[str, Any]
    units: float = 1.0
    wall: float | None = None
    cpu: float | None = None


class Runner(Protocol):
    """A prepared contestant."""

    def __call__(self) -> Outcome:
        """Run once, timed."""

    def close(self) -> None:
        """Let go of processes and files."""


class Contestant(Protocol):
    def prepare(self, quick: bool) -> Runner: ...


def clocked(call: Callable[[], Any]) -> tuple[Any, float, float]:
    """What a call gives back, its wall and its processor seconds."""
    wall = time.perf_counter()
    cpu = time.process_time()
    found = call()
    return found, time.perf_counter() - wall, time.process_time() - cpu


def timed(run: Callable[[], Outcome]) -> Outcome:
    """A run with its times, unless it measured them itself."""
    done, wall, cpu = clocked(run)
    return done if done.wall is not None else Outcome(done.answer, done.units, wall, cpu)


@dataclass(frozen=True)
class Here:
    """A contestant in this process: ``make(quick)`` prepares, and gives back what is timed."""

    make: Callable[[bool], Callable[[], Outcome]]

    def prepare(self, quick: bool) -> Runner:
        return _Here(self.make(quick))


@dataclass(frozen=True)
class _Here:
    run: Callable[[], Outcome]

    def __call__(self) -> Outcome:
        return timed(self.run)

    def close(self) -> None:
        pass


@dataclass(frozen=True)
class Peer:
    """A library in its own environment: ``benchmarks/peers/bench_<environment>.py`` does ``work`` with ``settings``."""

    environment: str
    work: str
    settings: Mapping[str, Any] = field(default_factory=dict)

    def prepare(self, quick: bool) -> Runner:
        python = python_of(self.environment)
        script = HERE / "peers" / f"bench_{self.environment}.py"
        words = tempfile.TemporaryFile("w+")  # noqa: SIM115  closed with the runner
        env = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
        runner = _Peer(subprocess.Popen([python, script], stdin=-1, stdout=-1, stderr=words, text=True, env=env), words)
        runner.ask({"work": self.work, "quick": quick, "settings": dict(self.settings)})
        return runner


@dataclass(frozen=True)
class _Peer:
    process: subprocess.Popen[str]
    words: IO[str]

    def ask(self, message: dict[str, Any]) -> dict[str, Any]:
        assert self.process.stdin is not None and self.process.stdout is not None
        try:
            self.process.stdin.write(json.dumps(message) + "\n")
            self.process.stdin.flush()
            line = self.process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            self.words.seek(0)
            words = self.words.read().strip().splitlines() or ["it ended without a word"]
            raise Unavailable(words[-1])
        reply: dict[str, Any] = json.loads(line)
        return reply

    def __call__(self) -> Outcome:
        return Outcome(**self.ask({"run": True}))

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()
        self.words.close()


@dataclass(frozen=True)
class Unit:
    """How seconds and units of work become the figure of a row; ``higher`` figures may be the better ones."""

    text: str
    figure: Callable[[float, float], float]
    higher: bool = False


SECONDS = Unit("s", lambda t, n: t)
MILLISECONDS = Unit("ms", lambda t, n: 1e3 * t / n)
NANOSECONDS = Unit("ns a site", lambda t, n: 1e9 * t / n)
MESSAGES = Unit("M messages/s", lambda t, n: n / t / 1e6, higher=True)
TIMES_MEMORY = Unit("times the features' memory", lambda t, n: n)


@dataclass(frozen=True)
class Wanted:
    """What the first contestant should reach: ``kind`` is

    "faster"      other's time / ours >= bound          "slower"      ours / other's <= bound
    "at most"     figure <= bound                       "at least"    figure >= bound
    "gigabytes"   peak memory <= bound                  "accuracy"    answer's accuracy >= bound
    """

    kind: str
    bound: float
    other: str = ""
    basis: str = "wall"

    def text(self, unit: Unit) -> str:
        b = f"{self.bound:g}"
        return {
            "faster": f"at least {b} times as fast as {self.other}",
            "slower": f"at most {b} times {self.other}",
            "at most": f"at most {b} {unit.text}",
            "at least": f"at least {b} {unit.text}",
            "gigabytes": f"at most {b} GB",
            "accuracy": f"accuracy at least {100 * self.bound:g}%",
        }[self.kind] + (" of processor time" if self.basis == "cpu" else "")

    def reached(self, row: Row, found: dict[str, Any]) -> float | None:
        """The number that the bound is for; None where the other contestant did not run."""
        contestants = found["contestants"]
        ours = contestants[next(iter(row.contestants))]
        if self.kind == "gigabytes":
            return float(found["peak_gigabytes"])
        if self.kind == "accuracy":
            return float(ours["answer"]["accuracy"])
        if self.kind in ("at most", "at least"):
            return float(ours[f"figure_{self.basis}"])
        other = contestants.get(self.other, {})
        if "wall" not in other:
            return None
        mine, theirs = (c[self.basis] / c["units"] for c in (ours, other))
        return theirs / mine if self.kind == "faster" else mine / theirs

    def judge(self, row: Row, found: dict[str, Any]) -> dict[str, Any]:
        value = self.reached(row, found)
        below = self.kind in ("slower", "at most", "gigabytes")
        met = None
        if value is not None:
            met = bool(value <= self.bound) if below else bool(value >= self.bound)
        return {"text": self.text(row.unit), "value": value, "met": met}


Agree = Callable[[Mapping[str, Mapping[str, Any]]], str]
"""What is wrong with the answers by contestant, in a sentence; empty where nothing is."""


@dataclass(frozen=True)
class Row:
    """One thing a user does. The first contestant is ours and is judged; the others are what it is compared with."""

    name: str
    what: str
    unit: Unit
    contestants: Mapping[str, Contestant]
    agree: Agree
    wanted: tuple[Wanted, ...] = ()
    repeats: int = 5
    warm: bool = True  # whether a first run goes before those that count


def measure(row: Row, quick: bool, repeats: int | None) -> dict[str, Any]:
    """Prepare, warm up, compare, and run in turn."""
    found: dict[str, Any] = {"what": row.what, "unit": row.unit.text, "contestants": {}}
    runners = {}
    first = {}
    failed = {}
    for name, contestant in row.contestants.items():
        try:
            runners[name] = contestant.prepare(quick)
            first[name] = runners[name]()
        except Unavailable as error:
            failed[name] = str(error)
    ours = next(iter(row.contestants))
    if ours in failed:
        raise Unavailable(failed[ours])
    ready = [name for name in runners if name in first]
    wrong = row.agree({name: first[name].answer for name in ready})
    if row.warm or wrong:
        runs = _in_turn({name: runners[name] for name in ready}, first, 1 if wrong else repeats or row.repeats)
    else:
        runs = {name: [first[name]] for name in ready}
    for runner in runners.values():
        runner.close()
    found["contestants"] = {name: _entry(row.unit, done) for name, done in runs.items()}
    found["contestants"] |= {name: {"failed": why} for name, why in failed.items()}
    found["peak_gigabytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    if wrong:
        return {**found, "failed": f"the answers disagree: {wrong}"}
    found["wanted"] = [w.judge(row, found) for w in row.wanted]
    return found


def _in_turn(runners: Mapping[str, Runner], first: Mapping[str, Outcome], repeats: int) -> dict[str, list[Outcome]]:
    """All runs by contestant after the first, which warmed up; one at least, and no more once the budget is spent."""
    spent = {name: float(first[name].wall or 0.0) for name in runners}
    runs: dict[str, list[Outcome]] = {name: [] for name in runners}
    for _ in range(repeats):
        for name, runner in runners.items():
            if spent[name] <= BUDGET or not runs[name]:
                done = runner()
                spent[name] += float(done.wall or 0.0)
                runs[name].append(done)
    return runs


def _entry(unit: Unit, runs: list[Outcome]) -> dict[str, Any]:
    """The best of the runs. Where runs do unequal work, the best is that of the least time a unit."""
    best = {b: min(runs, key=lambda r: getattr(r, b) / r.units) for b in ("wall", "cpu")}
    units = best["wall"].units
    out: dict[str, Any] = {"runs": len(runs), "units": units}
    for basis, run in best.items():
        seconds = getattr(run, basis) * units / run.units
        out[basis] = seconds
        out[f"figure_{basis}"] = unit.figure(seconds, units)
    out["answer"] = {k: v for k, v in runs[-1].answer.items() if isinstance(v, int | float | str | bool)}
    return out


# ------------------------------------------------------------------------------------------------------- commands


@dataclass(frozen=True)
class Finished:
    """What a command took."""

    wall: float
    cpu: float
    peak: int
    output: str


def command(arguments: list[str], env: Mapping[str, str]) -> Finished:
    """Run a command to its end: wall and processor seconds and peak bytes of it alone."""
    start = time.perf_counter()
    with subprocess.Popen(arguments, stdout=-1, stderr=subprocess.STDOUT, text=True, env={**os.environ, **env}) as run:
        assert run.stdout is not None
        output = run.stdout.read()
        _, status, used = os.wait4(run.pid, 0)
        run.returncode = os.waitstatus_to_exitcode(status)
    if run.returncode:
        words = output.strip().splitlines() or ["no word why"]
        raise Unavailable(f"{' '.join(arguments[1:4])} ended with {run.returncode}: {words[-1]}")
    return Finished(time.perf_counter() - start, used.ru_utime + used.ru_stime, used.ru_maxrss * 1024, output)
