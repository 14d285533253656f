"""A sample of ``tools/attack_matrix.py``: whatever goes wrong is said in a sentence, and nothing hangs."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load, save

import mssvm as ms
from mssvm.core import checks
from mssvm.core.errors import InputError
from mssvm.core.files import digest_of
from mssvm.data.readers import read
from mssvm.optim import checkpoints_of

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))

import attack_files
import attack_matrix


@pytest.mark.slow
def test_bad_inputs_are_refused_in_words() -> None:
    counts, failed = attack_matrix.run(150, seed=0, limit=60)
    assert not failed and sum(counts.values()) == 150 and counts["refused"] > 100


def chain() -> tuple[list[np.ndarray], list[list[str]]]:
    rng = np.random.default_rng(0)
    labels = [["a", "b", "a"], ["b", "b", "a"], ["a", "a", "b"], ["b", "a", "a"]]
    return [rng.normal(size=(3, 2)) for _ in range(4)], labels


def test_more_outputs_than_there_are_end_the_search() -> None:
    X, y = chain()
    labels, scores = ms.CRF(ms.Chain(), max_iter=2).fit(X, y).predict_topk(X[:1], k=10**9)
    assert len(labels[0]) == 8 and np.all(np.diff(scores[0]) <= 0)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"X": "masked"}, "X, instance 0: features are masked"),
        ({"X": "complex"}, "X, instance 0: features are not a table of numbers"),
        ({"X": "datetime64[s]"}, "X, instance 0: features are not a table of numbers"),
        ({"X": 1e300}, "X, instance 0, site 0: a feature is NaN or inf or beyond 1e"),
        ({"C": 1e300}, "C must be a finite number > 0"),
        ({"class_weight": {"a": 0.0, "b": 0.0}}, "class_weight is zero for every class"),
        ({"missing_label": []}, "missing_label must be hashable"),
        ({"label": "\ud800"}, "lone surrogate"),
        ({"classes": 5}, "classes must list labels"),
        ({"random_state": 2**32}, "random_state must be None"),
        ({"memory_limit": 10**400}, "memory_limit must be a whole number of bytes"),
    ],
)
def test_what_used_to_pass_or_crash_is_refused(change: dict, told: str) -> None:
    X, y = chain()
    kind = change.pop("X", None)
    if kind == "masked":
        X[0] = np.ma.masked_array(X[0], X[0] > 0)
    elif isinstance(kind, str):
        X[0] = X[0].astype(kind)
    elif kind is not None:
        X[0][0, 0] = kind
    y[0][0] = change.pop("label", y[0][0])
    with pytest.raises(InputError, match=told):
        ms.CRF(ms.Chain(), max_iter=2, **change).fit(X, y)


def test_rounds_below_one_are_refused() -> None:
    X, y = chain()
    with pytest.raises(InputError, match="n_rounds must be a whole number >= 1"):
        ms.ModLat(ms.Chain(hidden=2), n_rounds=-1, max_iter=2).fit(X, y)


@pytest.mark.parametrize("value", [None, True, "1", 1j, float("nan"), 10**400, [1], object()])
def test_numbers_are_numbers(value: object) -> None:
    with pytest.raises(InputError, match="tol must be a finite number"):
        checks.number(value, "tol")
    with pytest.raises(InputError, match="k must be a whole number"):
        checks.count(value if value != 10**400 else -1, "k", 1)


def test_integers_of_any_length_can_be_told() -> None:
    assert "digits" in checks.shown(10**5000) and len(checks.shown("x" * 500)) == checks.SHOWN


@pytest.mark.slow
def test_damaged_files_are_refused_or_read() -> None:
    counts, failed = attack_files.run(40, seed=0)
    assert not failed and all(sum(c.values()) == 40 for c in counts.values()) and len(counts) == 10


def test_no_damage_to_a_checkpoint_goes_unnoticed(tmp_path: Path) -> None:
    """Whatever bit of the numbers or the text flips, training does not go on from it."""
    X, y = chain()
    ms.CRF(ms.Chain(), max_iter=2).fit(X, y, checkpoint=tmp_path / "k")
    good = (tmp_path / "k-1").read_bytes()
    for at in np.random.default_rng(0).integers(8, len(good), 40).tolist():
        (tmp_path / "k-1").write_bytes(good[:at] + bytes([good[at] ^ 4]) + good[at + 1 :])
        with pytest.raises(InputError, match="k-1"):
            ms.CRF(ms.Chain(), max_iter=2).fit(X, y, checkpoint=tmp_path / "k")


def test_types_that_read_alike_are_refused() -> None:
    X = [ms.Graph(np.ones((2, 1)), [[0, 1]], node_types=[1, "1"])]
    with pytest.raises(InputError, match="the types 1 and '1' have the same name"):
        ms.CRF(ms.GraphModel(), max_iter=2).fit(X, [["a", "b"]])


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [["fit", "x" * 300, "-o", "m"], ["fit", "x.jsonl", "-o", "x" * 300], ["--help"]])
def test_what_the_system_refuses_is_one_sentence(arguments: list[str]) -> None:
    with open("/dev/full" if arguments == ["--help"] else "/dev/null", "w") as out:
        run = subprocess.run([sys.executable, "-m", "mssvm", *arguments], stdout=out, stderr=subprocess.PIPE, text=True)
    assert run.returncode == 2 and run.stderr.count("\n") == 1 and run.stderr.startswith("mssvm: ")


def test_names_with_brackets_have_checkpoints_too(tmp_path: Path) -> None:
    X, y = chain()
    ms.CRF(ms.Chain(), max_iter=2).fit(X, y, checkpoint=tmp_path / "m[1]")
    assert [p.name for p in checkpoints_of(tmp_path / "m[1]")] == ["m[1]-1"]


@pytest.mark.slow
def test_faults_lose_nothing(tmp_path: Path) -> None:
    """A sample of ``tools/attack_faults.py``: kills, signals, full disks, a closed folder, two writers, a clock."""
    given = ["--runs", "lbfgs", "bcfw", "n-init", "--kills", "3", "--stops", "3", "--spells", "2"]
    script = Path(attack_files.__file__).with_name("attack_faults.py")
    run = subprocess.run([sys.executable, script, *given, "--json", tmp_path / "found"], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    counts = json.loads((tmp_path / "found").read_text())["counts"]
    assert sum(n for case, n in counts.items() if case.endswith(": held")) == 25


def resealed(path: Path, change: Callable[[dict], object]) -> None:
    """The file with its description changed and a digest that fits the change."""
    data = path.read_bytes()
    meta = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])["__metadata__"]
    tensors = load(data)
    (key,) = set(meta) - {"format", "digest"}
    described = json.loads(meta[key])
    change(described)
    text = json.dumps(described)
    path.write_bytes(save(tensors, {**meta, key: text, "digest": digest_of(text, tensors)}))


@pytest.mark.parametrize(
    "change",
    [
        lambda data: data["space"]["features"]["node"].update(n_features=10**400),
        lambda data: data["parameters"].update(C={"$": "float", "text": 10**400}),
        lambda data: data["training"].pop("exact"),
        lambda data: data["parameters"]["structure"].update(name="_Layout", parameters={}),
        lambda data: data["parameters"]["structure"].update(name="Encoder", parameters={}),
        lambda data: data.update(member="_Member"),
    ],
)
def test_a_model_that_a_careful_hand_changed_is_refused(change: Callable[[dict], object], tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    ms.CRF(ms.Chain(), max_iter=2).fit(*chain()).save(path)
    resealed(path, change)
    with pytest.raises(InputError):
        ms.load(path)


@pytest.mark.parametrize("stage", [10**30, -1, 7])
def test_a_checkpoint_beyond_its_stages_is_refused(stage: int, tmp_path: Path) -> None:
    def fit() -> None:
        ms.CRF(ms.Chain(), max_iter=2).fit(*chain(), checkpoint=tmp_path / "k")

    def beyond(data: dict) -> None:
        at = next(item for item in data["tree"]["items"] if item[0] == "state")[1]
        next(item for item in at["items"] if item[0] == "stage")[1] = stage

    fit()
    resealed(tmp_path / "k-1", beyond)
    with pytest.raises(InputError, match="does not hold this solver's state"):
        fit()


def test_an_archive_with_a_password_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "d.npz"
    np.savez(path, x=np.zeros((2, 3, 1)), y=np.zeros((2, 3), dtype=int))
    data = bytearray(path.read_bytes())
    for mark, at in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):  # the flag that says so, here and in the directory
        place = data.find(mark)
        while place >= 0:
            data[place + at] |= 1
            place = data.find(mark, place + 1)
    path.write_bytes(data)
    with pytest.raises(InputError, match="not a NumPy archive of plain arrays"):
        read(path)


@pytest.mark.filterwarnings("ignore")
def test_clumsy_calls_end_in_a_sentence() -> None:
    cases = list(attack_matrix._clumsy())
    assert len(cases) > 117
    for case in cases:
        outcome, text = attack_matrix.tried(case, 60)
        assert outcome in ("answered", "refused"), (case.label, text)
