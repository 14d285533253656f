"""Compiled kernels: kept under names that no edit makes wrong, read whatever state the files are in, never needed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mssvm
from mssvm.core import jit
from mssvm.core.jit import digest_of, njit, sources_of
from mssvm.engines.numba import vector
from mssvm.engines.numba.calls import call_at, take

ROOTS = """
import sys
from mssvm.core.jit import directory
from mssvm.engines.numba.messages.exponential import exp_neg
assert exp_neg(0.0) == 1.0
print(directory(), sum(exp_neg.stats.cache_hits.values()))
"""
LATER = """
from mssvm.core.jit import njit
assert exp_neg.stats.cache_hits and "numba.typed.typeddict" not in sys.modules, "what only compiling needs"
calls = njit(cache=False)(lambda x: exp_neg(x))
assert calls(0.0) == 1.0
"""


@njit(cache=False, nogil=True)
def inner(x, n):
    """Called from the next kernel and from Python."""
    for i in range(n):
        x[i] += 1.0
    return n


@njit(cache=False, nogil=True)
def outer(x):
    """Calls the kernel before."""
    return inner(x, len(x))


def test_a_kernel_within_a_kernel_is_compiled_again_when_python_calls_it() -> None:
    x = np.zeros(3)
    assert outer(x) == 3 and x.tolist() == [1.0] * 3
    (within,) = inner.overloads.values()
    assert inner(x, 2) == 2 and x.tolist() == [2.0, 2.0, 1.0]
    (own,) = inner.overloads.values()
    assert own is not within
    assert outer(x) == 3 and inner(x, 0) == 0


def test_threads_that_meet_kernels_first_together() -> None:
    within = njit(cache=False, nogil=True)(inner.py_func)
    scope = {"within": within}
    exec("def calls(x, n):\n    return within(x, n)", scope)
    calls = njit(cache=False, nogil=True)(scope["calls"])
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda k: (calls if k % 2 else within)(np.zeros(9), k), range(8)))
    assert answers == list(range(8))


def test_an_edit_of_what_is_imported_changes_the_digest(tmp_path: Path) -> None:
    package = tmp_path / "mssvm"
    (package / "room").mkdir(parents=True)
    files = {
        "a.py": "from mssvm.room import (\n    b,\n)\nfrom mssvm.d import D\n",
        "room/__init__.py": "",
        "room/b.py": "import mssvm.c\n",
        "c.py": "C = 1\n",
        "d.py": "from mssvm.a import f\nD = 2\n",
        "other.py": "",
    }
    for name, text in files.items():
        (package / name).write_text(text)

    def digest() -> str:
        return digest_of(sources_of(package / "a.py", package))

    found = {path.name for path in sources_of(package / "a.py", package)}
    assert found == {"a.py", "__init__.py", "b.py", "c.py", "d.py"}
    first = digest()
    (package / "other.py").write_text("X = 1\n")
    assert digest() == first
    (package / "c.py").write_text("C = 10\n")
    second = digest()
    (package / "d.py").write_text("D = 20\n")
    assert len({first, second, digest()}) == 3


def test_kernels_of_the_package_know_their_callees() -> None:
    room = jit.PACKAGE / "engines" / "numba" / "messages"
    assert {room / "exponential.py", room / "wiring.py"} <= set(sources_of(room / "scaled.py"))


def copied(tmp_path: Path) -> Path:
    where = tmp_path / "installed"
    shutil.copytree(Path(mssvm.__file__).parent, where / "mssvm", ignore=shutil.ignore_patterns("__pycache__"))
    return where


def roots(where: Path, *prefix: str, code: str = ROOTS, **environment: str) -> tuple[str, int]:
    """Where a process keeps compiled code, and how much of it it found."""
    variables = {"PYTHONPATH": str(where), "PATH": os.environ["PATH"], "PYTHONDONTWRITEBYTECODE": "1", **environment}
    command = [*prefix, sys.executable, "-c", code]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and not done.stderr, done.stderr
    place, hits = done.stdout.rsplit(maxsplit=1)
    return place, int(hits)


def test_kept_in_the_package_until_an_edit_or_damage(tmp_path: Path) -> None:
    where = copied(tmp_path)
    place, hits = roots(where)
    assert Path(place).parent == where / "mssvm" / "__pycache__" and hits == 0
    assert roots(where) == (place, 1)
    for file in Path(place).glob("*.nbi"):
        file.write_bytes(file.read_bytes()[:-20])  # as cut short by a full disk
    assert roots(where) == (place, 0)
    assert roots(where) == (place, 1)
    with (where / "mssvm" / "core" / "garbage.py").open("a") as file:  # as jit.py imports it
        file.write("\n# another comment\n")
    assert roots(where) == (place, 0)
    assert len(list(Path(place).glob("*.nbi"))) == 1, "what was compiled from the earlier sources is gone"


def test_what_is_kept_loads_without_the_compiler_and_serves_kernels_compiled_later(tmp_path: Path) -> None:
    where = copied(tmp_path)
    place, _ = roots(where)
    assert roots(where, code=ROOTS + LATER) == (place, 1)


def test_old_versions_are_forgotten_in_time(tmp_path: Path) -> None:
    where = copied(tmp_path)
    cache = where / "mssvm" / "__pycache__"
    for name, age in (("kernels-old", 40), ("kernels-recent", 3), ("unrelated", 40)):
        (cache / name).mkdir(parents=True)
        os.utime(cache / name, (time.time() - age * 86400,) * 2)
    roots(where)
    left = {path.name for path in cache.iterdir()}
    assert {"kernels-recent", "unrelated"} < left and "kernels-old" not in left


def test_where_nothing_can_be_written_it_still_runs(tmp_path: Path) -> None:
    where = copied(tmp_path)
    # Files where directories would be stop anybody, root too.
    (where / "mssvm" / "__pycache__").touch()
    assert roots(where, HOME="/dev/null", XDG_CACHE_HOME="/dev/null") == ("None", 0)
    home = tmp_path / "home"
    place, hits = roots(where, HOME=str(home), XDG_CACHE_HOME=str(home))
    assert Path(place).is_relative_to(home) and hits == 0
    assert roots(where, HOME=str(home), XDG_CACHE_HOME=str(home)) == (place, 1)


def test_sources_edited_after_import_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    file = jit.PACKAGE / "core" / "arrays.py"
    jit._unedited(sources_of(file))
    monkeypatch.setitem(jit._AT_START, file, (0, 0))
    with pytest.raises(OSError, match="edited"):
        jit._unedited(sources_of(file))


def test_a_number_written_out_makes_no_kernel_of_its_own() -> None:
    @njit(cache=False)
    def plus(a: int, b: int) -> int:
        return a + b

    @njit(cache=False)
    def calls(a: int) -> int:
        return int(plus(a, 1) + plus(a, b=2) + plus(3, a))

    assert calls(5) == 21 and len(plus.overloads) == 1


@njit(cache=False, nogil=True)
def shares(numbers, most):
    if most < 0:
        raise ValueError("less than nothing")
    for k in range(len(numbers)):
        numbers[k] = min(numbers[k], most)


@njit(cache=False, nogil=True)
def portions(at, numbers, counter, most):
    n = 0
    while True:
        k = take(counter)
        if k >= len(numbers) // 10:
            return n
        call_at(at, numbers[10 * k : 10 * k + 10], most)
        n += 1


def test_kernels_call_kernels_where_they_lie_and_threads_share_the_work() -> None:
    numbers, counter = np.arange(1000.0), np.zeros(1, dtype=np.int64)
    at = shares.address(numbers, 1.0)
    with ThreadPoolExecutor(4) as pool:
        done = [pool.submit(portions, at, numbers, counter, 500.0) for _ in range(4)]
        assert sum(one.result() for one in done) == 100
    assert numbers.tolist() == [min(k, 500.0) for k in range(1000)]
    with pytest.raises(ValueError, match="less than nothing"):
        portions(at, numbers, np.zeros(1, dtype=np.int64), -1.0)


def test_max_and_min_are_as_in_python() -> None:
    assert vector.WIDTH == 8  # imported, which brings the code for both

    @njit(cache=False, no_rewrites=True)
    def ends(a: Any, b: Any) -> Any:
        return max(a, b), min(a, b)

    for a, b in product((1.5, -2.0, float("nan"), float("inf"), -0.0, 0.0), repeat=2):
        assert list(map(str, ends(a, b))) == [str(max(a, b)), str(min(a, b))]
    assert ends(3, -4) == (3, -4)
    assert ends(2, 2.5) == (2.5, 2)


def test_a_kernel_may_have_a_closure_and_arrays_that_come_and_go() -> None:
    @njit(cache=False, no_rewrites=True)
    def kernel(n: int) -> Any:
        def twice(x: float) -> float:
            return 2.0 * x

        kept = np.zeros(0)
        for k in range(n):
            made = np.full(k, twice(1.0))
            if k % 2:
                continue
            kept = made
        return kept

    assert kernel(6).tolist() == [2.0] * 4
