"""Training that is killed, stopped, refused by the disk or disturbed: nothing is lost, and ``--resume`` ends as if
nothing had happened.

    python tools/attack_faults.py [--runs NAME ...] [--kills N] [--stops N] [--spells N] [--json FILE]

Commands run in children forked from this process, which has imported everything, so that a case takes as long as its
training; every tenth starts a Python of its own. Checkpoints are written between any two iterations. A case fails if
the final model differs in any weight from that of the undisturbed run, if it prints anything but a sentence, or if it
leaves a file behind.
"""

from __future__ import annotations

import ctypes
import errno
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from attack import options, report

import mssvm as ms
from mssvm.cli import main
from mssvm.core import files
from mssvm.core.stopping import stop_at_once
from mssvm.experiments import demo

FIT = import_module("mssvm.cli.fit")
NOBODY = 65534
# Numbers of Linux's prctl: without this capability permissions hold for root, too.
PR_CAPBSET_DROP = 24
CAP_DAC_OVERRIDE = 1
RUNS: dict[str, tuple[str, ...]] = {
    "lbfgs": ("--method", "crf", "--solver", "lbfgs"),
    "lbfgs, falling temperatures": ("--method", "mssvm", "--hidden", "2", "--solver", "lbfgs", "--max-iter", "10"),
    "cccp": ("--method", "lssvm", "--hidden", "2", "--solver", "cccp", "--max-iter", "6"),
    "bcfw": ("--method", "ssvm", "--solver", "bcfw"),
    "cutting-plane": ("--method", "ssvm", "--solver", "cutting-plane"),
    "subgradient": ("--method", "mssvm", "--hidden", "2", "--solver", "subgradient", "--max-iter", "25"),
    "adam": ("--method", "mssvm", "--hidden", "2", "--solver", "adam", "--max-iter", "25"),
    "m3e": ("--method", "m3e", "--hidden", "2", "--max-iter", "8"),
    "modlat": ("--method", "modlat", "--hidden", "2", "--max-iter", "4"),
    "n-init": ("--method", "hcrf", "--hidden", "2", "--n-init", "4", "--max-iter", "8"),
}


def write_data(path: Path) -> None:
    """Small chains, fully labelled, since some solvers need that."""
    rng = np.random.default_rng(0)
    rows = []
    for _ in range(12):
        y = rng.integers(0, 3, 8)
        rows.append({"x": (np.eye(3)[y] + rng.normal(size=(8, 3))).tolist(), "y": [f"c{k}" for k in y]})
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


@dataclass
class Ended:
    """How a command ended: its exit code (negative: the signal), its standard error, its time."""

    code: int
    said: str
    seconds: float

    @property
    def raw(self) -> bool:
        """Whether it printed a traceback instead of a sentence."""
        return "Traceback" in self.said


@dataclass
class Bench:
    """A folder with data, the undisturbed models, and how long each took."""

    folder: Path
    runs: list[str]
    rng: np.random.Generator
    whole: dict[str, tuple[bytes, float]] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    failed: list[str] = field(default_factory=list)

    def prepare(self) -> None:
        """Import everything here, then run everything once without disturbance."""
        vars(FIT)["SAVED_EVERY"] = 0.0
        write_data(self.folder / "d.jsonl")
        with open(os.devnull, "w") as quiet:
            before = sys.stdout
            sys.stdout = quiet
            for run in self.runs:
                if main(self.command(run, "warm")):
                    raise SystemExit(f"{run} does not run undisturbed")
                (self.folder / "warm").unlink()
            sys.stdout = before
        for run in self.runs:
            ended = self.forked(self.command(run, "whole"))
            if ended.code:
                raise SystemExit(f"{run} does not run undisturbed: {ended}")
            self.whole[run] = (self.weights("whole"), ended.seconds)

    def command(self, run: str, model: str, *more: str) -> list[str]:
        return ["fit", str(self.folder / "d.jsonl"), "-o", str(self.folder / model), "--jobs", "1", *RUNS[run], *more]

    def weights(self, model: str) -> bytes:
        return ms.load(self.folder / model).coef_.tobytes()

    def started(self, command: list[str], before: Callable[[], Any] | None = None) -> int:
        """The id of a child that runs the command, after ``before``."""
        heeded = (signal.SIGINT, signal.SIGTERM)
        sys.stdout.flush()
        signal.pthread_sigmask(signal.SIG_BLOCK, heeded)  # until the child can answer as a command does
        child = os.fork()
        if child:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, heeded)
            return child
        code = 70
        try:
            os.setpgid(0, 0)
            for number in heeded:
                signal.signal(number, signal.SIG_DFL)
            os.dup2(os.open(self.folder / f"said-{os.getpid()}", os.O_CREAT | os.O_WRONLY, 0o666), 2)
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            stop_at_once()
            if before is not None:
                before()
            signal.pthread_sigmask(signal.SIG_UNBLOCK, heeded)
            code = main(command)
        finally:
            sys.stderr.flush()
            os._exit(code)  # what this process would do at its end is not the child's to do

    def finished(self, child: int, began: float) -> Ended:
        _, status = os.waitpid(child, 0)
        said = self.folder / f"said-{child}"
        text = said.read_text(errors="replace") if said.exists() else ""
        said.unlink(missing_ok=True)
        return Ended(os.waitstatus_to_exitcode(status), text, time.monotonic() - began)

    def forked(
        self, command: list[str], before: Callable[[], Any] | None = None, after: float = 0.0, signal_: int = 0
    ) -> Ended:
        """Run in a child, which gets the signal after ``after`` seconds."""
        began = time.monotonic()
        child = self.started(command, before)
        if signal_:
            time.sleep(after)
            os.kill(child, signal_)
        return self.finished(child, began)

    def spawned(self, command: list[str], after: float, signal_: int) -> Ended:
        """Run in a Python of its own."""
        began = time.monotonic()
        process = subprocess.Popen(
            [sys.executable, "-m", "mssvm", *command],
            stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            text=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )
        time.sleep(after)
        process.send_signal(signal_)
        return Ended(process.wait(), process.communicate()[1], time.monotonic() - began)

    def judge(self, kind: str, case: str, problem: str) -> None:
        """Count a case and remove its files."""
        self.counts[f"{kind}: {'failed' if problem else 'held'}"] += 1
        if problem:
            self.failed.append(f"{kind}, {case}: {problem}")
        for file in (*self.folder.glob("m*"), *self.folder.glob(".m*")):
            file.unlink()

    def resumed(self, run: str, ended: Ended) -> str:
        """Resume if the run was cut short; returns what is wrong with the final model, empty if nothing."""
        if ended.raw:
            return f"a traceback: {ended.said[-300:]}"
        if ended.code:
            resumed = self.forked(self.command(run, "m", "--resume"))
            if resumed.code or resumed.raw:
                return f"--resume ended with {resumed.code}: {resumed.said[-300:]}"
        if self.weights("m") != self.whole[run][0]:
            return "another model"
        left = [p.name for p in self.folder.glob("*m*") if p.name not in ("m", "d.jsonl")]
        return f"left over: {left}" if left else ""


def stops(bench: Bench, n: int, signals: tuple[int, ...], kind: str) -> None:
    """Signals at random times, some twice, over every run."""
    for k, run in zip(range(n), itertools.cycle(bench.runs), strict=False):
        chosen = signals[(k // len(bench.runs)) % len(signals)]
        seconds = bench.whole[run][1]
        command = bench.command(run, "m")
        if k % 10 == k // 10 % 10:
            ended = bench.spawned(command, float(bench.rng.uniform(0, 2 + 4 * seconds)), chosen)
        else:
            ended = bench.forked(command, None, float(bench.rng.uniform(0, 1.1 * seconds)), chosen)
        if ended.code and bench.rng.random() < 0.3 and not ended.raw:
            ended = bench.forked([*command, "--resume"], None, float(bench.rng.uniform(0, seconds)), chosen)
        bench.counts[f"{kind}: {'cut short' if ended.code else 'had ended before'}"] += 1
        unheard = chosen in (signal.SIGKILL, signal.SIGTERM) and not ended.said  # the latter: before Python runs
        expected = (0, -chosen) if unheard else (0, 128 + chosen)
        problem = "" if ended.code in expected else f"exit code {ended.code}: {ended.said[-200:]}"
        bench.judge(kind, f"{run} {k}", problem or bench.resumed(run, ended))


class Full:
    """A disk that is full after k operations: creating, writing, flushing or renaming a file.

    The number of operations is written to the file ``counter``.
    """

    def __init__(self, k: float, counter: Path | None = None) -> None:
        self.most = k
        self.counter = counter
        self.done = 0

    def install(self) -> None:
        """Patch the functions that ``replacing`` uses, in a child."""
        opened = os.fdopen
        for module, name in ((tempfile, "mkstemp"), (os, "fsync"), (os, "replace")):
            setattr(module, name, self.counted(getattr(module, name)))
        files.os.fdopen = lambda *arguments: Written(opened(*arguments), self.counted)

    def counted(self, act: Callable[..., Any]) -> Callable[..., Any]:
        def acted(*arguments: Any, **named: Any) -> Any:
            self.done += 1
            if self.counter is not None:
                self.counter.write_text(str(self.done))
            if self.done > self.most:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return act(*arguments, **named)

        return acted


class Written:
    """A file whose writes are counted."""

    def __init__(self, file: Any, counted: Callable[..., Any]) -> None:
        self.file = file
        self.write = counted(file.write)

    def __enter__(self) -> Written:
        return self

    def __exit__(self, *_: Any) -> None:
        self.file.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)


def full_disks(bench: Bench, most: int) -> None:
    """The disk is full from the k-th operation on, for every k up to ``most`` (spread over longer runs)."""
    counter = bench.folder / "operations"
    for run in bench.runs:
        ended = bench.forked(bench.command(run, "m"), Full(float("inf"), counter).install)
        total = int(counter.read_text())
        bench.judge("disk with room", run, bench.resumed(run, ended))
        for k in sorted({int(v) for v in np.linspace(0, total - 1, min(most, total))}):
            ended = bench.forked(bench.command(run, "m"), Full(k).install)
            problem = "" if ended.code == 2 and "No space left" in ended.said else f"{ended.code}: {ended.said[-200:]}"
            bench.judge("disk full", f"{run}, operation {k} of {total}", problem or bench.resumed(run, ended))


def read_only(bench: Bench) -> None:
    """A folder that may not be written: one sentence, before any work, and the old model stays."""
    for run in bench.runs:
        folder = bench.folder / "closed"
        folder.mkdir(exist_ok=True)
        (folder / "m").write_bytes(b"old")
        folder.chmod(0o555)
        command = bench.command(run, "closed/m")
        ended = bench.forked(command, (lambda: os.setuid(NOBODY)) if os.getuid() == 0 else None)
        untouched = (folder / "m").read_bytes() == b"old" and len(list(folder.iterdir())) == 1
        wrong = ended.raw or ended.code != 2 or "does not allow it" not in ended.said or not untouched
        bench.judge("read-only folder", run, f"{ended.code}: {ended.said[-200:]}" if wrong else "")
        folder.chmod(0o755)


def two_writers(bench: Bench) -> None:
    """Two commands write one model: one of them is refused in a sentence, or both end, one after the other."""
    for run in bench.runs:
        began = time.monotonic()
        children = []
        for _ in range(2):
            children.append(bench.started(bench.command(run, "m")))
            time.sleep(float(bench.rng.uniform(0, 0.5 * bench.whole[run][1])))
        ends = [bench.finished(child, began) for child in children]
        refused = [e for e in ends if e.code == 2 and "another process" in e.said and not e.raw]
        bench.counts[f"two writers: {len(refused)} refused"] += 1
        wrong = len(refused) + sum(e.code == 0 for e in ends) < 2 or len(refused) == 2
        problem = f"{[(e.code, e.said[-200:]) for e in ends]}" if wrong else ""
        bench.judge("two writers", run, problem or bench.resumed(run, Ended(0, "", 0.0)))


def jumping_clocks(bench: Bench) -> None:
    """The wall clock jumps by years between any two readings; nothing depends on it."""
    for run in bench.runs:

        def jump(seed: int = len(run)) -> None:
            rng = np.random.default_rng(seed)
            real = time.time
            time.time = lambda: real() + float(rng.normal() * 1e8)

        ended = bench.forked(bench.command(run, "m"), jump, 0.5 * bench.whole[run][1], signal.SIGINT)
        problem = "" if ended.code in (0, 130) else f"exit code {ended.code}: {ended.said[-200:]}"
        bench.judge("clock", run, problem or bench.resumed(run, ended))


def bare_install(bench: Bench) -> None:
    """A copy of the package that may not be written, and no home: the demo's first fit runs."""
    copy = bench.folder / "installed"
    out = bench.folder / "out"
    shutil.copytree(Path(ms.__file__).parent, copy / "mssvm", ignore=shutil.ignore_patterns("__pycache__"))
    for path in (copy, *copy.rglob("*")):
        path.chmod(0o555 if path.is_dir() else 0o444)
    out.mkdir()
    out.chmod(0o777)
    arguments = demo.commands(demo.write_files(bench.folder), out)[1][1]
    run = subprocess.run(
        [sys.executable, "-m", "mssvm", *arguments],
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
        env={"PYTHONPATH": str(copy), "PATH": os.environ["PATH"], "HOME": os.devnull},
        cwd="/",
        check=False,
        preexec_fn=lambda: ctypes.CDLL(None).prctl(PR_CAPBSET_DROP, CAP_DAC_OVERRIDE, 0, 0, 0),
    )
    written = list(copy.rglob("__pycache__"))
    problem = ""
    if run.returncode or written:
        problem = f"{run.returncode}: {run.stderr[-300:]} {written}"
    bench.judge("read-only install without a home", "fit", problem)
    for path in (copy, *(p for p in copy.rglob("*") if p.is_dir())):
        path.chmod(0o755)


def attack(runs: list[str], kills: int, stopped: int, spells: int, seed: int) -> dict[str, Any]:
    """Counts of the cases that held and failed, and the failures."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        bench = Bench(Path(folder), runs, np.random.default_rng(seed))
        bench.prepare()
        stops(bench, kills, (signal.SIGKILL,), "kill -9")
        stops(bench, stopped, (signal.SIGINT, signal.SIGTERM), "Ctrl-C and SIGTERM")
        if spells:
            full_disks(bench, spells)
            read_only(bench)
            two_writers(bench)
            jumping_clocks(bench)
            bare_install(bench)
    seconds = round(time.monotonic() - began, 1)
    return {"counts": dict(sorted(bench.counts.items())), "failed": bench.failed, "seconds": seconds}


def command_line() -> int:
    parser = options(__doc__)
    parser.add_argument("--runs", nargs="+", choices=RUNS, default=list(RUNS))
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--stops", type=int, default=100)
    parser.add_argument("--spells", type=int, default=10**6, help="full disks a run; 0 leaves out all but signals")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    return report(attack(args.runs, args.kills, args.stops, args.spells, args.seed), args.json)


if __name__ == "__main__":
    sys.exit(command_line())
