"""Models as files: the same bits in a new process, no code run by loading, one sentence for whatever is wrong."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys

import numpy as np
import pytest

import mssvm as ms
from mssvm.core.errors import InputError, MssvmError, MssvmWarning
from mssvm.losses import WeightedHamming
from mssvm.optim import CCCP, Subgradient
from ragged import MEMBERS, QUICK, same, sequences, thinned


@pytest.fixture(scope="module")
def data():
    X, y = sequences(20)
    return X, thinned(y, 0.2)


@pytest.fixture
def saved(data, tmp_path):
    model = ms.MSSVM(ms.Chain(hidden=2, ends=True), **QUICK).fit(*data)
    model.save(tmp_path / "model.safetensors")
    return model, tmp_path / "model.safetensors"


@pytest.mark.parametrize("name", MEMBERS)
def test_every_member_comes_back(name, data, tmp_path):
    model = MEMBERS[name]().set_params(max_iter=2).fit(*data)
    model.save(tmp_path / "m")
    twin = ms.load(tmp_path / "m")
    assert repr(twin) == repr(model) and type(twin) is type(model)
    assert same(twin.predict(data[0]), model.predict(data[0]))
    assert same(twin.predict_marginals(data[0]), model.predict_marginals(data[0]))
    assert np.array_equal(twin.history_["objective"], model.history_["objective"])
    assert twin.diagnose() == model.diagnose() and twin.status_ == model.status_
    assert twin.weights_table() == model.weights_table()
    assert (twin.n_iter_, twin.n_features_in_) == (model.n_iter_, model.n_features_in_)


def test_a_new_process_predicts_the_same_bits(saved, data, tmp_path):
    model, path = saved
    flat = np.concatenate(data[0])
    np.save(tmp_path / "x.npy", flat)
    ends = np.cumsum([len(x) for x in data[0]])[:-1].tolist()
    code = (
        "import sys, numpy as np, mssvm as ms\n"
        f"X = np.split(np.load(sys.argv[2]), {ends})\n"
        "model = ms.load(sys.argv[1])\n"
        "print(np.concatenate(model.predict_marginals(X)).tobytes().hex(), *np.concatenate(model.predict(X)))"
    )
    arguments = [sys.executable, "-c", code, str(path), str(tmp_path / "x.npy")]
    bits, *labels = subprocess.run(arguments, capture_output=True, text=True, check=True).stdout.split()
    assert bits == np.concatenate(model.predict_marginals(data[0])).tobytes().hex()
    assert labels == np.concatenate(model.predict(data[0])).tolist()


def test_two_hundred_corrupted_files(saved, tmp_path, monkeypatch):
    _, path = saved
    intact = path.read_bytes()
    rng = np.random.default_rng(0)
    broken = tmp_path / "broken"

    def forbidden(*args, **kwargs):
        raise AssertionError("loading must not run code")

    for module, name in ((os, "system"), (subprocess, "Popen")):
        monkeypatch.setattr(module, name, forbidden)
    for builtin in ("exec", "eval", "__build_class__"):
        monkeypatch.setattr(f"builtins.{builtin}", forbidden)
    for k in range(200):
        content = bytearray(intact)
        if k % 4 == 0:
            del content[int(rng.integers(len(content))) :]
        elif k % 4 == 1:
            at = int(rng.integers(len(content)))
            content[at] ^= 1 << int(rng.integers(8))
        elif k % 4 == 2:
            at, size = int(rng.integers(len(content))), int(rng.integers(1, 200))
            content[at : at + size] = rng.bytes(size)
        else:
            content[:8] = struct.pack("<Q", int(rng.integers(2**63)))
        broken.write_bytes(content)
        if bytes(content) != intact:
            with pytest.raises(InputError, match=r"damaged"):
                ms.load(broken)


def rewritten(path, change):
    """The same file with its metadata changed and sealed again, as a stranger could."""
    from safetensors import safe_open
    from safetensors.numpy import save_file

    from mssvm.core.files import digest_of

    with safe_open(path, framework="numpy") as file:
        model = json.loads(file.metadata()["model"])
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  not a dict
    change(model, tensors)
    text = json.dumps(model)
    save_file(tensors, path, {"model": text, "digest": digest_of(text, tensors)})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m, t: m.update(format=99, mssvm="9.0"), "file format 99, written by mssvm 9.0"),
        (lambda m, t: m.update(member="os"), "a model called 'os'"),
        (lambda m, t: m.update(member="_WithoutHidden"), "a model called"),
        (lambda m, t: m.update(structure={"$": "object", "name": "Popen", "parameters": {}}), "kind 'object'"),
        (lambda m, t: m.pop("space"), "does not describe a model"),
        (lambda m, t: m.update(format="new"), "does not describe a model"),
        (lambda m, t: m["parameters"].update(colour=3), "does not describe a model"),
        (lambda m, t: t.update(coef=np.zeros(3)), "do not fit its structure"),
    ],
)
def test_strange_files_get_one_sentence(saved, change, message):
    rewritten(saved[1], change)
    with pytest.raises(InputError, match=message) as caught:
        ms.load(saved[1])
    assert str(caught.value).endswith(".") and "\n" not in str(caught.value)


def test_what_is_no_model_file(tmp_path):
    with pytest.raises(InputError, match="is not a file"):
        ms.load(tmp_path)
    (tmp_path / "text").write_text("hello")
    with pytest.raises(InputError, match="damaged or not a model file"):
        ms.load(tmp_path / "text")


def test_saving_replaces_a_file_whole_or_not_at_all(saved, tmp_path, monkeypatch):
    model, path = saved
    before = path.read_bytes()

    def full(*args):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(InputError, match="No space left"):
            model.save(path)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == [path.name]
    with pytest.raises(InputError, match="cannot be written"):
        model.save(tmp_path / "nowhere" / "m")


def test_parameters_of_every_kind(data, tmp_path):
    X, y = data
    model = ms.LSSVM(
        ms.Chain(hidden=2, forbidden=[("c", "b"), (None, "z")], fixed={"left": {("a", 0): 1.5}}),
        loss=WeightedHamming(np.array([1.0, 2.0, 3.0, 1.0])),
        solver=CCCP(Subgradient(max_iter=2, rate=0.1), max_iter=2),
        class_weight={"a": 2.0},
        classes=["a", "b", "c", "z"],
        missing_label="?",
        penalties={"bias": 0.5},
        random_state=0,
    )
    model.fit(X, [["?", *item[1:]] for item in y])
    model.save(tmp_path / "m")
    twin = ms.load(tmp_path / "m")
    assert twin.solver == model.solver and twin.class_weight == model.class_weight
    assert np.array_equal(twin.loss.cost, model.loss.cost)
    assert twin.structure.get_params() == model.structure.get_params()
    assert same(twin.predict(X), model.predict(X))


@pytest.mark.parametrize("labels", [(0, 1, 2), (True, False), (0.5, 1.5), (("x", 1), ("y", 2)), (b"a", b"b")])
def test_labels_of_every_kind_come_back(labels, tmp_path):
    X = [np.random.default_rng(k).normal(size=(len(labels), 2)) for k in range(4)]
    y = [list(labels) for _ in X]
    model = ms.CRF(max_iter=3).fit(X, y)
    model.save(tmp_path / "m")
    assert [type(c) for c in ms.load(tmp_path / "m").labels_.classes] == [type(c) for c in model.labels_.classes]
    assert same(ms.load(tmp_path / "m").predict(X), model.predict(X))


def test_objects_of_ones_own(data, tmp_path):
    class Own(Subgradient):
        pass

    model = ms.CRF(solver=Own(max_iter=1, rate=0.1)).fit(*data)
    with pytest.warns(MssvmWarning, match="does not keep the parameters solver"):
        model.save(tmp_path / "m")
    assert ms.load(tmp_path / "m").solver == "auto"
    named = {label: (label, object()) for label in "abc"}
    strange = ms.CRF(max_iter=2).fit(data[0], [[named.get(label) for label in item] for item in data[1]])
    with pytest.raises(MssvmError, match="cannot keep"):
        strange.save(tmp_path / "m")
