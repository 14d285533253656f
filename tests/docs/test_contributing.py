"""The walks of CONTRIBUTING.md from ``fit`` and ``predict`` to a kernel: every step exists in the file that it names,
and every Python function among the steps is called."""

from __future__ import annotations

import re
import sys
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import mssvm as ms

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ROOT / "src" / "mssvm"
ENDINGS = r"\S+\.(?:py|hpp|cpp)"


class Step(NamedTuple):
    """A line of a walk: names of functions or classes, and the files that they are in."""

    names: list[str]
    files: list[Path]


def path_of(name: str) -> Path:
    """A file as the walks write it: ``native/`` and ``cpp/`` are folders of the native engine."""
    if name.startswith("native/"):
        return SOURCES / "engines" / name
    if name.startswith("cpp/"):
        return SOURCES / "engines" / "native" / name
    return SOURCES / name


def steps() -> list[Step]:
    found = []
    for line in (ROOT / "CONTRIBUTING.md").read_text("utf-8").splitlines():
        match = re.match(rf"^    +(\S.*?)  +.*?  +({ENDINGS}(?:, {ENDINGS})*)$", line)
        if match:
            files = [path_of(name) for name in match.group(2).split(", ")]
            found.append(Step(match.group(1).split(", "), files))
    return found


def last_part(name: str) -> str:
    """The name without its class."""
    return re.split(r"\.|::", name)[-1]


def test_every_step_is_in_its_file() -> None:
    found = steps()
    assert len(found) > 60
    for step in found:
        text = "\n".join(path.read_text("utf-8") for path in step.files)
        for name in step.names:
            assert re.search(rf"\b{re.escape(last_part(name))}\b", text), f"{name} is not in {step.files}"


def test_every_name_in_the_picture_is_one_of_the_code() -> None:
    picture = (ROOT / "docs" / "_static" / "flow.svg").read_text("utf-8")
    paths = [path for kind in ("py", "hpp", "cpp") for path in SOURCES.rglob(f"*.{kind}")]
    words = set(re.findall(r"\w+", "\n".join(path.read_text("utf-8") for path in paths)))
    boxes = re.findall(r'class="name"[^>]*>([^<]+)<', picture)
    assert len(boxes) > 20
    for box in boxes:
        for name in box.split(", "):
            last = last_part(name)
            found = any(word.startswith(last) for word in words) if last.endswith("_") else last in words
            assert found, f"{name} is in the picture, but not in the code"


def chains() -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    y = [rng.integers(2, size=6) for _ in range(8)]
    return [np.eye(2)[labels] + rng.normal(size=(6, 2)) for labels in y], y


def grids() -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    truth = [np.kron(rng.integers(3, size=(4, 4)), np.ones((5, 5), dtype=int)) for _ in range(2)]
    X = [np.eye(3)[labels] + 0.5 * rng.normal(size=(20, 20, 3)) for labels in truth]
    missing = [[[ms.MISSING if rng.random() < 0.5 else int(v) for v in row] for row in labels] for labels in truth]
    return X, missing


@pytest.mark.slow
def test_every_python_function_of_the_walks_is_called() -> None:
    called: set[tuple[str, str]] = set()

    def note(frame: Any, event: str, argument: Any) -> None:
        if event == "call":
            called.add((frame.f_code.co_filename, frame.f_code.co_name))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        sys.setprofile(note)
        try:
            X, y = chains()
            ms.MSSVM(ms.Chain(hidden=2), random_state=0).fit(X, y).predict(X)
            for X, y in (grids(), (grids()[0], [np.zeros((20, 20), dtype=int) + np.arange(20) % 3] * 2)):
                ms.MSSVM(ms.Grid(), max_iter=3).fit(X, y).predict(X, decode="map")
                ms.MSSVM(ms.Grid(), max_iter=3).fit(X, y).predict(X)
        finally:
            sys.setprofile(None)
    missed = []
    for step in steps():
        python = [str(path) for path in step.files if path.suffix == ".py"]
        for name in step.names:
            last = last_part(name)
            names = (
                {last} if last[:1].islower() or last[:1] == "_" else {"__init__", "__call__", "__post_init__", "run"}
            )
            if python and last[:6] != "mssvm_" and not any((path, one) in called for path in python for one in names):
                missed.append(f"{name} in {step.files[0].name}")
    assert missed == []
