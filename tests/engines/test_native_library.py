"""The boundary of the compiled library: records, refusals with a sentence, its pool of threads, and its absence."""

from __future__ import annotations

import copy
import os
import re
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import native_records
from mssvm.core import library
from mssvm.core.errors import MssvmError
from mssvm.core.library import FLOATS, INT, INTS, Function, RecordType
from mssvm.engines.native import terms

SOURCES = Path(terms.__file__).parent / "cpp"
FLOAT_ROWS = np.zeros(6)
NO_FLOATS, NO_INTS = np.zeros(0), np.zeros(0, dtype=np.int64)


def term(**changes: object) -> library.Record:
    """A sound dense term of three rows with two features, two states wide, at scores 0, 2 and 4."""
    fields: dict[str, object] = {
        "layout": terms.DENSE,
        "on_unary": 1,
        "rows": 3,
        "features": 2,
        "width": 2,
        "one_block": 1,
        "x": FLOAT_ROWS,
        "at": np.array([0, 2, 4]),
        "at_narrow": terms.NO_SHORTS,
        "block": np.array([0]),
        "indices": NO_INTS,
        "indices_narrow": terms.NO_SHORTS,
        "indptr": NO_INTS,
        "indptr_narrow": terms.NO_SHORTS,
        "active_first": NO_INTS,
        "active_states": NO_INTS,
    }
    return terms.TERM(**(fields | changes))


def check(record: library.Record, states: int = 6) -> int:
    """Check a model of one term, which outlives the call."""
    addresses = np.array([record.address])
    model = terms.MODEL(terms=addresses, weights=4, states=6, entries=0, packed_from=0)
    model.set("states", states)
    return terms.CHECK.run(model)


def test_a_sound_model_is_accepted() -> None:
    assert check(term()) == 0


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"layout": 7}, "unknown layout"),
        ({"rows": -1}, "negative size"),
        ({"at": np.array([0, 2])}, "one target for every row"),
        ({"at": np.array([0, 2, 5])}, "beyond the scores"),
        ({"x": np.zeros(5)}, "rows times features"),
        ({"block": np.array([1])}, "beyond the weights"),
        ({"block": np.array([-1])}, "negative place"),
        ({"one_block": 0}, "block of weights for every row"),
        ({"layout": terms.SPARSE}, "rows . 1 pointers"),
        ({"layout": terms.SPARSE, "indptr": np.array([0, 1, 1, 1]), "indices": np.array([2])}, "index for every"),
        (
            {"layout": terms.SPARSE, "indptr": np.array([0, 1, 1, 1]), "indices": np.array([2]), "x": np.ones(1)},
            "no feature",
        ),
    ],
)
def test_an_unsound_term_is_refused_with_a_sentence(changes: dict[str, object], sentence: str) -> None:
    with pytest.raises(MssvmError, match=sentence):
        check(term(**changes))


def test_a_record_of_another_size_is_refused() -> None:
    other = RecordType("Model", {"terms": INTS, "weights": INT})
    with pytest.raises(MssvmError, match="Python files and library differ"):
        terms.CHECK.run(other(terms=NO_INTS, weights=1))


@pytest.mark.parametrize(
    "value", [np.zeros(3, dtype=np.float32), np.zeros((3, 2))[:, 0], [1.0, 2.0], np.zeros(3, dtype=np.int64)]
)
def test_arrays_are_never_converted_in_silence(value: object) -> None:
    with pytest.raises(TypeError, match="contiguous array of float64"):
        FLOATS.encode("scores", value)


def test_fields_must_be_those_of_the_record() -> None:
    with pytest.raises(TypeError, match="needs the field 'weights'"):
        terms.MODEL(terms=NO_INTS)
    with pytest.raises(TypeError, match="has no field colour"):
        terms.MODEL(terms=NO_INTS, weights=0, states=0, entries=0, packed_from=0, colour=3)


def test_a_nested_record_must_be_of_its_kind() -> None:
    with pytest.raises(TypeError, match="model must be a record"):
        terms.FORWARD(
            model=term(),
            w=NO_FLOATS,
            offset_unary=NO_FLOATS,
            offset_tables=NO_FLOATS,
            unary=NO_FLOATS,
            tables=NO_FLOATS,
        )


def test_fields_can_be_set_again() -> None:
    with pytest.raises(MssvmError, match="beyond the scores"):
        check(term(), states=5)


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy])
def test_a_record_is_not_copied_with_the_addresses_of_another(duplicate: Callable[[object], object]) -> None:
    with pytest.raises(TypeError, match="holds addresses"):
        duplicate(term())


def test_a_symbol_that_is_not_there() -> None:
    with pytest.raises(AttributeError):
        Function("mssvm_no_such_function", n=INT)(n=1)


def test_the_chosen_variant_is_one_of_this_processor() -> None:
    assert library.missing() == ""
    assert library.lanes() in (2, 4, 8)


# --- every function, with records that nobody should send -------------------------------------------------------------


@pytest.mark.slow
def test_random_records_are_refused_with_a_sentence_or_handled() -> None:
    """Of every exported function, and sound ones with one thing wrong.

    A crash, or a report of a sanitizer, ends the process with another code.
    """
    done = subprocess.run(
        [sys.executable, native_records.__file__, "2014", "100", str(library.DIRECTORY)],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert done.returncode == 0, f"{done.stdout[-500:]}\n{done.stderr[-4000:]}"
    called = {line.split()[0] for line in done.stdout.splitlines()}
    damaged = {line.split()[0] for line in done.stdout.splitlines() if " damaged " in line}
    exported = set(re.findall(r"\b(mssvm_\w+)\(", "".join(path.read_text("utf-8") for path in SOURCES.glob("*.?pp"))))
    assert exported - called == {"mssvm_cpu_level", "mssvm_error", "mssvm_lanes", "mssvm_version"}  # take nothing
    assert len(damaged) >= 26
    assert {"mssvm_forests", "mssvm_elimination_run", "mssvm_messages_advance", "mssvm_features_forward"} <= damaged


# --- the pool of threads ----------------------------------------------------------------------------------------------


def sums(threads: int, blocks: int, failing: int = -1, terms: int = 1000) -> np.ndarray:
    """What every block adds up."""
    out = np.zeros(blocks)
    native_records.POOL(threads=threads, terms=terms, failing=failing, sums=out)
    return out


@pytest.mark.parametrize("threads", [1, 2, 3, 16])
@pytest.mark.parametrize("blocks", [0, 1, 2, 37])
def test_the_pool_runs_every_block_once(threads: int, blocks: int) -> None:
    expected = [sum(range(k, k + 1000)) for k in range(blocks)]
    for _ in range(20):
        assert sums(threads, blocks).tolist() == expected


@pytest.mark.parametrize("threads", [1, 4])
def test_an_error_of_a_block_is_the_call_s_and_the_pool_goes_on(threads: int) -> None:
    for _ in range(20):
        with pytest.raises(MssvmError, match=r"block 7 failed as it was told\."):
            sums(threads, 40, failing=7)
        assert sums(threads, 3, terms=2).tolist() == [1.0, 3.0, 5.0]


def test_calls_from_many_threads_at_once() -> None:
    expected = sums(1, 50)
    with ThreadPoolExecutor(6) as executor:
        for found in executor.map(lambda _: sums(3, 50), range(60)):
            np.testing.assert_array_equal(found, expected)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks are a matter of POSIX systems")
def test_a_forked_child_has_a_pool_of_its_own() -> None:
    expected = sums(4, 20)
    code = (
        "import os, sys\n"
        "from test_native_library import sums\n"
        "from mssvm.core import library\n"
        f"library.DIRECTORY = library.Path({str(library.DIRECTORY)!r})\n"
        "before = sums(4, 20).tolist()\n"
        "for _ in range(5):\n"
        "    child = os.fork()\n"
        "    if child == 0:\n"
        "        os._exit(0 if sums(4, 20).tolist() == before else 3)\n"
        "    assert os.waitpid(child, 0)[1] == 0\n"
        "print(sum(before))\n"
    )
    path = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env=os.environ | {"PYTHONPATH": path},
    )
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) == expected.sum()


# --- without a library ------------------------------------------------------------------------------------------------

WITHOUT = """
import sys, warnings
from pathlib import Path
from mssvm.core import library
library.DIRECTORY = Path(sys.argv[1])
import numpy as np
import mssvm as ms
from mssvm.core.orders import find_order

X = [np.eye(2)[[0, 1, 1]], np.eye(2)[[1, 0, 1]]]
y = [[0, 1, 1], [1, 0, 1]]
with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always")
    for _ in range(2):
        model = ms.CRF(ms.Chain()).fit(X, y)
        assert model.score(X, y) == 1.0
    grid = ms.CRF(ms.Grid(), inference=ms.inference.Exact()).fit([np.eye(2)[[[0, 1], [1, 0]]]], [[[0, 1], [1, 0]]])
told = [str(one.message) for one in told if one.category is ms.errors.MssvmWarning]
assert len(told) == 1, told
print(told[0])
for asked in (
    lambda: find_order([2, 2], [(0, 1)], [[0, 1]]),
    lambda: ms.CRF(ms.Chain(), engine="native").fit(X, y),
):
    try:
        asked()
    except ms.errors.MissingExtraError as error:
        print(error)
"""


def without(directory: Path) -> list[str]:
    """What is said where the libraries are those of a directory."""
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT, str(directory)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.slow
def test_without_a_library_the_reference_engine_answers_and_says_so_once(tmp_path: Path) -> None:
    remedy = "install a wheel of this platform, or run pip install . in the source directory, which compiles it."
    missing = f"mssvm has no compiled library for this machine: {remedy}"
    assert without(tmp_path) == [
        f"The reference engine is used, which is hundreds of times slower: {missing}",
        missing,
        missing,
    ]


@pytest.mark.slow
def test_a_library_that_the_system_refuses_is_as_good_as_none(tmp_path: Path) -> None:
    (tmp_path / f"libmssvm-baseline{library.SUFFIX}").write_bytes(b"not a library")
    told = without(tmp_path)
    assert len(told) == 3
    assert all(f"libmssvm-baseline{library.SUFFIX} of mssvm cannot be loaded here" in line for line in told)
