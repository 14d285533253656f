"""Mistakes that used to pass without a word: columns in another order, tensors, sizes beyond all memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import sparse

import mssvm as ms
from mssvm.cli import main
from mssvm.core import library, memory
from mssvm.core.errors import InputError, MemoryLimitError, MssvmWarning
from mssvm.data.labels import LabelVocabulary
from mssvm.estimators.hooks import TrainingLine
from mssvm.optim import Row


class Frame:
    """What the library uses of a data frame: the names of columns, and the numbers."""

    def __init__(self, values: Any, columns: list[Any]) -> None:
        self.values = np.asarray(values)
        self.columns = columns

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, key: Any) -> Any:
        return self.values[key]

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return self.values.astype(dtype or float)

    def to_numpy(self) -> Any:
        return self.values


def frames(columns: list[Any]) -> tuple[list[Any], list[Any]]:
    rng = np.random.default_rng(0)
    y = [rng.integers(2, size=6) for _ in range(10)]
    full = {"size": lambda t: t[:, None] * 3.0, "noise": lambda t: rng.normal(size=(6, 1))}
    X = [Frame(np.hstack([full[str(name)](tags) for name in columns]), columns) for tags in y]
    return X, y


def test_columns_in_another_order_are_refused(tmp_path: Path) -> None:
    X, y = frames(["size", "noise"])
    model = ms.CRF(ms.Chain()).fit(X, y)
    assert model.feature_names_in_.tolist() == ["size", "noise"]
    swapped, _ = frames(["noise", "size"])
    model.save(tmp_path / "m.safetensors")
    for fitted in (model, ms.load(tmp_path / "m.safetensors")):
        assert fitted.score(X, y) == 1.0
        for ask in (fitted.predict, fitted.predict_marginals):
            with pytest.raises(InputError, match="columns of X are in another order"):
                ask(swapped)
        with pytest.raises(InputError, match="columns of X are in another order"):
            fitted.score(swapped, y)
    other = [Frame(x.values, ["size", "weight"]) for x in X]
    with pytest.raises(InputError, match=r"1 unknown \('weight'\), 1 missing \('noise'\)"):
        model.predict(other)
    with pytest.raises(InputError, match="X, instance 1: the columns of X are in another order than in the first"):
        ms.CRF(ms.Chain()).fit([X[0], swapped[1]], y[:2])


def test_names_on_one_side_only_are_worth_a_warning() -> None:
    X, y = frames(["size", "noise"])
    model = ms.CRF(ms.Chain()).fit(X, y)
    with pytest.warns(MssvmWarning, match="the model has names of features and X has none"):
        model.predict([x.values for x in X])
    plain = ms.CRF(ms.Chain()).fit([x.values for x in X], y)
    assert not hasattr(plain, "feature_names_in_")
    with pytest.warns(MssvmWarning, match="X has names of features and the model has none"):
        plain.predict(X)
    model.fit([x.values for x in X], y)
    assert not hasattr(model, "feature_names_in_")
    assert not hasattr(ms.CRF(ms.Chain()).fit([Frame(x.values, [0, 1]) for x in X], y), "feature_names_in_")


def test_names_of_multi_label_rows_and_of_graphs() -> None:
    rows = Frame(np.array([[1.0, 0.0], [0.0, 1.0]] * 4), ["a", "b"])
    model = ms.CRF(ms.MultiLabel(graph="none")).fit(rows, np.array([[1, 0], [0, 1]] * 4))
    with pytest.raises(InputError, match="another order"):
        model.predict(Frame(rows.values[:, ::-1], ["b", "a"]))
    graph = ms.Graph(Frame(np.eye(2), ["a", "b"]), [[0, 1]])
    fitted = ms.CRF(ms.GraphModel()).fit([graph], [["u", "v"]])
    with pytest.raises(InputError, match="another order"):
        fitted.predict([ms.Graph(Frame(np.eye(2), ["b", "a"]), [[0, 1]])])


def test_pandas(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    X, y = frames(["size", "noise"])
    tables = [pandas.DataFrame(x.values, columns=x.columns) for x in X]
    model = ms.CRF(ms.Chain()).fit(tables, y)
    with pytest.raises(InputError, match="another order"):
        model.predict([table[["noise", "size"]] for table in tables])


def test_jpeg_masks_are_refused_by_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "images").mkdir()
    (tmp_path / "masks").mkdir()
    picture = ms.data.readers.png.encode(np.zeros((4, 4, 3), dtype=np.uint8))
    (tmp_path / "images" / "a.png").write_bytes(picture)
    (tmp_path / "masks" / "a.JPG").write_bytes(b"any")
    assert main(["check", str(tmp_path)]) == 2
    told = capsys.readouterr().err
    assert "a.JPG is a JPEG picture" in told and "save masks as PNG" in told


def test_more_classes_than_labels_have_are_questioned(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    n = 1001
    X, y = [np.zeros((1, 1))] * n, [[k] for k in range(n)]
    with pytest.warns(MssvmWarning, match=r"y has 1,001 classes \(0, 1, ...\)"):
        ms.CRF(ms.Chain(), max_iter=1).fit(X, y)
    data = tmp_path / "a.jsonl"
    data.write_text("".join(f'{{"x": [[0.0]], "y": [{k}]}}\n' for k in range(n)))
    assert main(["check", str(data)]) == 2
    assert "there are 1,001 classes; check that these are labels" in capsys.readouterr().err


def test_sizes_beyond_the_machine_are_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    X, y = [np.zeros((50, 1))], [np.arange(50) % 7]
    monkeypatch.setattr(memory, "machine_memory", lambda: 2000)
    with pytest.raises(MemoryLimitError, match="the scores of 1 instances would need"):
        ms.CRF(ms.Chain()).fit(X, y)
    model = ms.CRF(ms.Chain(), classes=[0, 1])
    with pytest.raises(MemoryLimitError, match="there are 2 classes: use fewer classes, fewer instances at a time"):
        model.fit([np.zeros((500, 1))], [np.arange(500) % 2])
    monkeypatch.setattr(memory, "machine_memory", lambda: 300)
    with pytest.raises(MemoryLimitError, match="a mask of 50 sites and 7 classes would need"):
        LabelVocabulary(tuple(range(7))).encode(y, [(50,)])


def test_weights_and_pictures_beyond_the_machine_are_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "machine_memory", lambda: 20_000)
    rows = sparse.csr_array(([1.0], ([0], [4999])), shape=(1, 5000))
    with pytest.raises(MemoryLimitError, match=r"one vector of 10,006 weights would need .* fewer features"):
        ms.CRF(ms.Chain(), classes=["a", "b"]).fit([rows], [["a"]])
    with pytest.raises(MemoryLimitError, match=r"22 features of 10,000 pixels would need .* scale the picture down"):
        ms.features.image(np.zeros((100, 100, 3)))


def test_the_limit_of_a_container_counts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    limit = tmp_path / "memory.max"
    monkeypatch.setattr(memory, "CONTAINER", limit)
    installed = memory.machine_memory.__wrapped__()
    limit.write_text("max\n")
    assert memory.machine_memory.__wrapped__() == installed
    limit.write_text("1048576\n")
    assert memory.machine_memory.__wrapped__() == 1048576


def test_kernels_without_memory_say_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    class Library:
        def mssvm_error(self) -> bytes:
            return b"out of memory."

    monkeypatch.setattr(library, "load", Library)
    error = library._error("mssvm_segments", library._NO_MEMORY)
    assert isinstance(error, MemoryLimitError)
    assert str(error).startswith("there is not enough memory for mssvm_segments; use fewer instances at a time")


def test_allocations_that_fail_are_one_sentence() -> None:
    def explode(*args: Any) -> Any:
        raise MemoryError("Unable to allocate 223. GiB for an array with shape (9, 9) and data type float64")

    sentence = r"not enough memory \(Unable to allocate 223. GiB\); use fewer"
    with pytest.raises(MemoryLimitError, match=sentence), memory.memory_errors_explained():
        explode()


def test_structure_is_an_option_of_predict(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data, model = tmp_path / "a.jsonl", tmp_path / "m.safetensors"
    data.write_text('{"x": [[[0.0], [1.0]], [[1.0], [0.0]]], "y": [["a", "b"], ["b", "a"]]}\n' * 3)
    assert main(["fit", str(data), "-o", str(model), "--structure", "grid", "--method", "crf"]) == 0
    for command in ("predict", "evaluate"):
        assert main([command, str(model), str(data), "--structure", "grid"]) == 0
        assert main([command, str(model), str(data), "--structure", "chain"]) == 2
        assert "the model labels grids, not chains" in capsys.readouterr().err


def test_a_bound_above_the_objective_is_not_told() -> None:
    rng = np.random.default_rng(0)
    y = [rng.integers(4, size=30) for _ in range(10)]
    X = [np.eye(4)[tags] for tags in y]
    model = ms.SSVM(ms.Chain(), solver="lbfgs").fit(X, y)
    told = model.training_["certificate"]
    amount = told.partition("by at most ")[2].rstrip(".")
    assert not amount or float(amount) <= model.objective_
    from mssvm.optim.lbfgs import LBFGS

    assert LBFGS._smoothing((1.0, 1.0), 1.292e4, 604.0) == (
        "How much smoothing at (1.0, 1.0) adds to the objective is not known."
    )
    assert "by at most 3" in LBFGS._smoothing((1.0, 1.0), 3.0, 604.0) and LBFGS._smoothing((1.0, 1.0), 0.0, 1.0) == ""


def test_progress_speaks_of_trials_and_does_not_count_them() -> None:
    class Line:
        def say(self, text: str) -> None:
            self.text = text

    line = TrainingLine(Line())  # type: ignore[arg-type]
    line.begin(100, 1, 1)
    blank = dict.fromkeys(Row._fields, 0.0)
    assert line.text(Row(**{**blank, "iteration": 0, "seconds": 1.0, "objective": 9.0})).startswith("iteration 0")
    told = line.text(Row(**{**blank, "iteration": 0, "seconds": 325.0, "objective": 9.0}))
    assert told.startswith("choosing the step size, 325 s, objective 9")
    told = line.text(Row(**{**blank, "iteration": 10, "seconds": 335.0, "objective": 9.0}))
    assert "iteration 10, 1/s" in told and "left" not in told  # 90 more iterations, or one
    told = line.text(Row(**{**blank, "iteration": 80, "seconds": 405.0, "objective": 9.0}))
    assert "iteration 80, 1/s" in told and "at most 20 s left" in told


class Tensor:
    """What a PyTorch tensor with a gradient, on another device, offers: nothing works before detach and cpu."""

    dtype = "torch.float32"

    def __init__(self, values: Any, ready: int = 0) -> None:
        self._values = np.asarray(values)
        self._ready = ready

    def detach(self) -> Tensor:
        return Tensor(self._values, self._ready + 1)

    def cpu(self) -> Tensor:
        return Tensor(self._values, self._ready + 1)

    def float(self) -> Tensor:
        return self

    def numpy(self) -> Any:
        if self._ready < 2:
            raise RuntimeError("Can't call numpy() on Tensor that requires grad.")
        return self._values

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        raise TypeError("can't convert cuda:0 device type tensor to numpy.")

    def __len__(self) -> int:
        return len(self._values)

    def __iter__(self) -> Any:
        return (Tensor(part) for part in self._values)


@pytest.mark.parametrize("form", ["stacked", "listed", "nested"])
def test_tensors_are_data(form: str) -> None:
    rng = np.random.default_rng(0)
    y = rng.integers(2, size=(8, 5))
    X = np.eye(2)[y]
    expected = ms.CRF(ms.Chain()).fit(list(X), list(y)).predict_marginals(list(X))
    given: Any = Tensor(X) if form == "stacked" else [Tensor(x) for x in X]
    labels: Any = Tensor(y) if form == "stacked" else [Tensor(tags) for tags in y]
    if form == "nested":
        labels = [[Tensor(tag) for tag in tags] for tags in y]
    model = ms.CRF(ms.Chain()).fit(given, labels)
    assert model.classes_.tolist() == [0, 1]
    assert np.allclose(model.predict_marginals(given), expected)
    assert model.score(given, labels) == 1.0


def test_tensors_of_rows_sequences_and_edges() -> None:
    rows, y = np.eye(2)[[0, 1] * 4], np.array([[1, 0], [0, 1]] * 4)
    model = ms.CRF(ms.MultiLabel(graph="none")).fit(Tensor(rows), Tensor(y))
    assert model.predict(Tensor(rows)).tolist() == y.tolist()
    X = [np.full((3, 1), float(k % 2)) for k in range(6)]
    one = ms.HCRF(ms.SequenceLabel(hidden=2), random_state=0).fit([Tensor(x) for x in X], Tensor([0, 1] * 3))
    assert one.classes_.tolist() == [0, 1]
    tags = [[int(x[0, 0])] * 3 for x in X]
    chains = [{"x": Tensor(x), "edge_x": Tensor(np.ones((2, 1)))} for x in X]
    assert ms.CRF(ms.Chain()).fit(chains, tags).score(chains, tags) == 1.0
