"""Ctrl-C: heard while compiled code runs, one sentence, a checkpoint kept, the same model after --resume."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mssvm as ms
from mssvm.cli.interrupt import interruptible, on_interruption
from mssvm.data.embedded import weak_pictures, write_pictures
from mssvm.optim import checkpoints_of

COMMAND = [sys.executable, "-m", "mssvm"]
HEARD = {"preexec_fn": lambda: signal.signal(signal.SIGINT, signal.default_int_handler)}  # background jobs ignore it


@pytest.fixture
def heard() -> Any:
    """Signals as in a terminal, whatever the tests run under."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def press(after: float) -> None:
    threading.Timer(after, os.kill, (os.getpid(), signal.SIGINT)).start()


def test_results_and_errors_pass_through() -> None:
    assert interruptible(lambda: 3) == 3
    with pytest.raises(ZeroDivisionError):
        interruptible(lambda: 1 // 0)


def test_work_that_listens_stops_in_good_order(heard: Any) -> None:
    def work() -> str:
        try:
            while True:
                time.sleep(0.01)
        except KeyboardInterrupt:
            return "kept"

    press(0.1)
    assert interruptible(work) == "kept"


@pytest.mark.slow
def test_work_that_does_not_listen_is_left_behind(heard: Any) -> None:
    """A long sleep stands for a kernel: no instruction of Python's ends it."""

    def work() -> None:
        with on_interruption(lambda: "kept a file"):
            time.sleep(6.0)

    press(0.1)
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt, match="kept a file"):
        interruptible(work)
    assert time.monotonic() - began < 5.0
    for thread in threading.enumerate():
        if thread.daemon and thread.name == "mssvm-command":
            thread.join()


@pytest.mark.slow
@pytest.mark.parametrize("after", [0.0, 0.1])
def test_a_grid_is_interrupted_and_resumed_to_the_same_model(after: float, tmp_path: Path) -> None:
    data = write_pictures(tmp_path / "data", weak_pictures(6, 64, 64, share=0.2))
    fit = [*COMMAND, "fit", str(data), "--max-iter", "60", "--jobs", "1", "-o"]
    whole = tmp_path / "whole.st"
    cut = tmp_path / "cut.st"
    subprocess.run([*fit, str(whole)], check=True, capture_output=True, timeout=300)
    process = subprocess.Popen([*fit, str(cut)], stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, **HEARD)
    deadline = time.monotonic() + 120
    while not checkpoints_of(f"{cut}.checkpoint") and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.02)
    time.sleep(after)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130 and "Traceback" not in err
    assert f"mssvm: interrupted; kept {cut}.checkpoint-1; the same command with --resume goes on." in err
    assert not cut.exists()
    subprocess.run([*fit, str(cut), "--resume"], check=True, capture_output=True, timeout=300)
    assert np.array_equal(ms.load(cut).coef_, ms.load(whole).coef_)
    assert not checkpoints_of(f"{cut}.checkpoint")


@pytest.mark.slow
def test_a_stopped_reproduction_writes_the_report_of_what_is_there(tmp_path: Path) -> None:
    """SIGINT after the first trial: one sentence, a report and results of the finished trials, exit code 130."""
    out = tmp_path / "found"
    command = [*COMMAND, "reproduce", "--quick", "figure5", "start", "--jobs", "1", "--out", str(out)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, **HEARD)
    trials = out / "start.jsonl"
    while process.poll() is None and not (trials.exists() and trials.stat().st_size):
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    told = process.communicate()[1]
    assert process.returncode == 130 and "--resume goes on" in told and "Traceback" not in told
    html = (out / "report.html").read_text()
    assert 'id="figure5"' in html and 'id="start"' in html
    kept = json.loads((out / "results.json").read_text())["experiments"]
    assert kept["figure5"]["trials"] == 4 and 1 <= kept["start"]["trials"] < 50


@pytest.mark.slow
def test_a_quick_reproduction_says_how_long_it_takes_and_stops_without_a_trial(tmp_path: Path) -> None:
    """The sentence stands before the first trial."""
    command = [*COMMAND, "reproduce", "--quick", "--jobs", "1", "--out", str(tmp_path / "found")]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, **HEARD)
    assert process.stderr is not None
    first = process.stderr.readline()
    process.send_signal(signal.SIGINT)
    rest = process.communicate()[1]
    assert "minutes of processor time" in " ".join(first.split()) and process.returncode == 130
    assert "no trial was finished" in rest or "--resume goes on" in rest
