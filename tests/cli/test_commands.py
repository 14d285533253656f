"""The command line as a user meets it: files in, models, predictions, scores and pages out; faults in one sentence."""

from __future__ import annotations

import gzip
import io
import json
import re
import signal
import subprocess
import sys
import time
import warnings
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone

import mssvm as ms
from mssvm.cli import main
from mssvm.core.errors import MssvmWarning
from mssvm.core.progress import ProgressLine, remaining_time
from mssvm.data import read
from mssvm.data.embedded import write_chunking
from mssvm.optim import checkpoints_of

COMMANDS = ("fit", "predict", "evaluate", "compare", "inspect", "check", "demo")


def write_chains(
    path: Path, n: int, seed: int, missing: float = 0.4, classes: tuple[str, ...] = ("B", "I", "O")
) -> Path:
    rng = np.random.default_rng(seed)
    with path.open("w") as file:
        for k in range(n):
            tags = rng.integers(len(classes), size=rng.integers(3, 8))
            x = (rng.normal(size=(len(tags), 3)) + 2.5 * np.eye(3)[tags]).round(3)
            y = [None if rng.random() < missing else classes[t] for t in tags]
            file.write(json.dumps({"x": x.tolist(), "y": y, "id": k}) + "\n")
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Training and test chains, and a model."""
    folder = tmp_path_factory.mktemp("cli")
    write_chains(folder / "train.jsonl", 40, 0)
    write_chains(folder / "test.jsonl", 20, 1, missing=0.0)
    assert main(["fit", str(folder / "train.jsonl"), "-o", str(folder / "m.st"), "--method", "hcrf"]) == 0
    return folder


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    code = main([str(a) for a in arguments])
    out = capsys.readouterr()
    return code, out.out, out.err


def test_fit_is_what_the_estimator_does(folder: Path) -> None:
    model = ms.load(folder / "m.st")
    train = read(folder / "train.jsonl")
    same = ms.HCRF(ms.Chain(), random_state=0).fit(train.X, train.labels)
    assert np.allclose(model.coef_, same.coef_) and model.solver == "auto" and model.max_iter is None
    assert not checkpoints_of(folder / "m.st.checkpoint")


def test_predict_with_marginals_and_top_k(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = folder / "p.jsonl.gz"
    code, _, _ = run(capsys, "predict", folder / "m.st", folder / "test.jsonl", "--marginals", "--top-k", 3, "-o", out)
    assert code == 0
    records = [json.loads(line) for line in gzip.decompress(out.read_bytes()).splitlines()]
    model = ms.load(folder / "m.st")
    test = read(folder / "test.jsonl")
    for b, record in enumerate(records):
        x = [test.X[b]]
        assert record["id"] == b and record["y"] == model.predict(x)[0].tolist()
        assert record["classes"] == ["B", "I", "O"]
        assert np.allclose(record["marginals"], model.predict_marginals(x)[0], atol=1e-6)
        assert record["top"][0]["y"] == model.predict(x, decode="map")[0].tolist()
        scores = [t["score"] for t in record["top"]]
        assert scores == sorted(scores, reverse=True) and len(scores) == 3


def test_standard_input_and_output(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO((folder / "test.jsonl").read_bytes())))
    code, out, _ = run(capsys, "predict", folder / "m.st", "-")
    assert code == 0 and len(out.splitlines()) == 20


def test_evaluate_json(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "evaluate", folder / "m.st", folder / "test.jsonl", "--json")
    found = json.loads(out)
    test = read(folder / "test.jsonl")
    assert code == 0
    assert found["accuracy"] == pytest.approx(ms.load(folder / "m.st").score(test.X, test.labels))
    assert found["n_sites"] == sum(map(len, test.labels)) and found["n_unlabelled"] == 0
    assert set(found["by_class"]) == {"B", "I", "O"}
    assert sum(c["support"] for c in found["by_class"].values()) == found["n_sites"]
    assert 0 < found["span_f1"]["f1"] <= 1
    code, out, _ = run(capsys, "evaluate", folder / "m.st", folder / "test.jsonl", "--by-class")
    assert code == 0 and "span F1" in out and "precision" in out


def test_evaluate_counts_labelled_instances_alone(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    records = [json.loads(line) for line in (folder / "test.jsonl").read_text().splitlines()]
    blank = [{**record, "y": [None] * len(record["y"])} for record in records]
    some = tmp_path / "some.jsonl"
    none = tmp_path / "none.jsonl"
    some.write_text("".join(json.dumps(record) + "\n" for record in [*records[:3], *blank[3:]]))
    none.write_text("".join(json.dumps(record) + "\n" for record in blank))
    code, out, _ = run(capsys, "evaluate", folder / "m.st", some)
    assert code == 0 and re.search(r"instances all right\D+[\d.]+% of 3\b", out)
    code, _, said = run(capsys, "evaluate", folder / "m.st", none)
    assert code != 0 and "no labelled site" in said


def test_inspect_and_check(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "inspect", folder / "m.st", "--json", "--top", 4)
    fields = json.loads(out)
    assert code == 0 and fields["method"] == "HCRF" and len(fields["weights"]) == 4
    assert fields["classes"] == ["B", "I", "O"] and fields["n_weights"] == len(ms.load(folder / "m.st").coef_)
    assert "HCRF" in run(capsys, "inspect", folder / "m.st")[1]
    code, out, _ = run(capsys, "check", folder / "train.jsonl", "--json")
    found = json.loads(out)
    train = read(folder / "train.jsonl")
    flat = [v for y in train.labels for v in y]
    assert code == 0 and found["problems"] == [] and found["sites"] == len(flat)
    assert found["missing"] == flat.count(None) and found["classes"]["B"] == flat.count("B")
    code, out, _ = run(capsys, "check", folder / "train.jsonl")
    assert code == 0 and "No problems found." in out


def test_sequence_grid_and_graph_data(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rng = np.random.default_rng(0)
    sequences = []
    graphs = []
    for k in range(12):
        label = k % 2
        sequences.append({"x": (rng.normal(size=(4, 1)) + 3 * label).tolist(), "y": ["low", "high"][label]})
        graphs.append({"nodes": [[label], [1 - label]], "edges": [[0, 1]], "y": [label, 1 - label]})
    grids = [{"x": [[[0], [1]], [[1], [0]]], "y": [[0, 1], [1, None]]}] * 3
    for name, records in (("sequence", sequences), ("graph", graphs), ("grid", grids)):
        path = tmp_path / f"{name}.jsonl"
        path.write_text("".join(json.dumps(r) + "\n" for r in records))
        model = tmp_path / f"{name}.st"
        assert run(capsys, "fit", path, "-o", model, "--structure", name, "--method", "hcrf", "--hidden", "1")[0] == 0
        code, out, _ = run(capsys, "evaluate", model, path, "--json")
        assert code == 0 and json.loads(out)["accuracy"] > 0.9
        code, out, _ = run(capsys, "predict", model, path, "--marginals")
        assert code == 0 and len(out.splitlines()) == len(records)


def test_hidden_sites_are_no_outputs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from mssvm.experiments.demo import write_chain

    path = write_chain(tmp_path / "chain.jsonl", 30)
    assert run(capsys, "fit", path, "-o", tmp_path / "m.st", "--method", "hcrf", "-C", "0.3")[0] == 0
    model = ms.load(tmp_path / "m.st")
    data = read(path)
    found = json.loads(run(capsys, "evaluate", tmp_path / "m.st", path, "--json")[1])
    predicted = model.predict(data.X, hidden_sites=data.hidden)
    pairs = [pair for row, y in zip(predicted, data.labels, strict=True) for pair in zip(row, y, strict=True)]
    right = [p == y for p, y in pairs if y is not None]
    assert found["n_sites"] == 300 and found["accuracy"] == pytest.approx(np.mean(right))
    assert found["accuracy"] > 0.5


def test_early_stopping_on_validation_data(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["fit", folder / "train.jsonl", "-o", tmp_path / "v.st", "--method", "hcrf"]
    code, out, _ = run(capsys, *arguments, "--valid", folder / "test.jsonl", "--patience", 3)
    assert code == 0 and "stopped early" in out and "test.jsonl" in out
    assert ms.load(tmp_path / "v.st").training_["outcome"] == "early"


def test_other_solvers_and_starts(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["fit", folder / "train.jsonl", "-o", tmp_path / "s.st", "--hidden", 2, "--solver", "subgradient"]
    assert run(capsys, *arguments, "--max-iter", 5, "--n-init", 2, "--balanced")[0] == 0
    model = ms.load(tmp_path / "s.st")
    assert model.solver == "subgradient" and model.max_iter == 5 and len(model.training_["restarts"]) == 2


@pytest.mark.slow
def test_an_interrupted_run_is_resumed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = write_chains(tmp_path / "d.jsonl", 300, 2)
    model = tmp_path / "m.st"
    arguments = ["fit", data, "-o", model, "--solver", "subgradient", "--max-iter", "100000", "--jobs", "1"]
    code = "import sys; from mssvm.cli import main; sys.exit(main(sys.argv[1:]))"
    process = subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)],
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # tests in the background may inherit "ignore"
    )
    checkpoint = tmp_path / "m.st.checkpoint"
    deadline = time.monotonic() + 120
    while not checkpoints_of(checkpoint) and time.monotonic() < deadline and process.poll() is None:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130 and "--resume goes on" in err and "Traceback" not in err
    assert checkpoints_of(checkpoint) and not model.exists()
    code_, _, err = run(capsys, *arguments)
    assert code_ == 2 and "--resume" in err and not model.exists()


def test_resuming_gives_the_same_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A run stopped after the first start, whose checkpoints are kept, ends like one that was never stopped."""
    data = write_chains(tmp_path / "d.jsonl", 30, 3)
    arguments = ["fit", data, "--solver", "subgradient", "--max-iter", 10, "--hidden", 2]
    assert run(capsys, *arguments, "-o", tmp_path / "whole.st")[0] == 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(import_module("mssvm.cli.fit"), "SAVED_EVERY", 0.0)
        steps = []

        def stop(self: ProgressLine, text: str) -> None:
            steps.append(text)
            if len(steps) == 5:
                raise KeyboardInterrupt

        patch.setattr(ProgressLine, "say", stop)
        assert run(capsys, *arguments, "-o", tmp_path / "part.st")[0] == 130
        assert not (tmp_path / "part.st").exists()
    assert run(capsys, *arguments, "-o", tmp_path / "part.st", "--resume")[0] == 0
    whole = ms.load(tmp_path / "whole.st")
    part = ms.load(tmp_path / "part.st")
    assert np.array_equal(whole.coef_, part.coef_) and whole.n_iter_ == part.n_iter_
    assert not checkpoints_of(tmp_path / "part.st.checkpoint")


def test_an_interrupted_stage_of_lbfgs_goes_on_where_it_was(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = write_chains(tmp_path / "d.jsonl", 30, 3)
    arguments = ["fit", data, "--method", "hcrf", "-o", tmp_path / "m.st"]
    said: list[str] = []

    def stop(self: ProgressLine, text: str) -> None:
        if text.startswith("iteration"):
            said.append(text)
        if len(said) == 8:
            raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ProgressLine, "say", stop)
        assert run(capsys, *arguments)[0] == 130
    assert run(capsys, *arguments, "--resume")[0] == 0
    history = ms.load(tmp_path / "m.st").history_
    seventh = float(re.search(r"objective ([\d.]+)", said[6])[1])  # type: ignore[index]
    assert history["iteration"].tolist() == list(range(len(history))) and len(history) > 8
    assert history["objective"][6] == pytest.approx(seventh, rel=1e-5) and max(history["objective"][7:]) <= seventh


BAD = [
    ("missing.jsonl", None, "No such file"),
    ("a.jsonl", "hello\n", "line 1: this is not JSON"),
    ("a.jsonl", '{"x": [[1, 2, NaN]], "y": ["B"]}\n', "line 1: site 0"),
    ("a.jsonl", "", "holds no instances"),
    ("a.jsonl", '{"x": [[1, 2, 3]], "y": ["B", "I"]}\n', "line 1: 2 labels for 1 sites"),
    ("a.jsonl", '{"x": [[1, 2, 3]], "y": ["B"]}\n{"x": [[1, 2, 3]], "y": [4]}\n', "line 2: label 4"),
    ("a.jsonl", '{"x": [[1, 2, 3]], "y": [7]}\n', "line 1, site 0: label 7"),
    ("a.jsonl", '{"x": [[1, 2]], "y": ["B"]}\n', "2 features"),
]


@pytest.mark.parametrize(("name", "text", "words"), BAD)
def test_bad_data_is_one_sentence_and_exit_code_two(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, text: str | None, words: str
) -> None:
    path = tmp_path / name
    if text is not None:
        path.write_text(text)
    before = sorted(tmp_path.iterdir())
    for arguments in (
        ["evaluate", folder / "m.st", path, "--json"],
        ["predict", folder / "m.st", path, "-o", tmp_path / "out.jsonl"],
        ["fit", path, "-o", tmp_path / "new.st"],
    ):
        code, out, err = run(capsys, *arguments)
        if arguments[0] != "evaluate" and code == 0:
            # Labels of another type and fewer features are no fault of data to train on, nor labels of data to predict.
            assert words.startswith(("line 1, site 0", "2 features"))
            for made in ("out.jsonl", "new.st"):
                (tmp_path / made).unlink(missing_ok=True)
            continue
        assert code == 2 and out == "" and err.count("\n") == 1 and words in err
        assert name in err and "cannot be written" not in err and not err.endswith("..\n")
        assert sorted(tmp_path.iterdir()) == before


def test_a_negative_edge_and_a_cut_gzip(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "g.jsonl"
    path.write_text('{"nodes": [[1], [2]], "edges": [[0, -1]], "y": ["a", "b"]}\n')
    code, out, err = run(capsys, "fit", path, "-o", tmp_path / "m.st", "--structure", "graph")
    assert code == 2 and out == "" and "g.jsonl, line 1: edge 0 names nodes (0, -1)" in err
    packed = tmp_path / "c.jsonl.gz"
    packed.write_bytes(gzip.compress(write_chains(tmp_path / "c.jsonl", 50, 0).read_bytes())[:-100])
    code, out, err = run(capsys, "fit", packed, "-o", tmp_path / "m.st")
    assert code == 2 and out == "" and "c.jsonl.gz, line " in err and "ends in the middle" in err
    assert not (tmp_path / "m.st").exists()


def test_wrong_models_targets_and_options(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    test = folder / "test.jsonl"
    for words, arguments in (
        ("is damaged or not a model", ["predict", test, test]),
        ("is not a file", ["predict", tmp_path / "no.st", test]),
        ("no folder", ["fit", test, "-o", tmp_path / "no" / "m.st"]),
        ("it is a folder", ["fit", test, "-o", tmp_path]),
        ("cannot go to standard output", ["fit", test, "-o", "-"]),
        ("no method 'magic'", ["compare", test, "--methods", "magic"]),
        ("--cv needs", ["compare", test, "--cv", "99"]),
        ("Missing option", ["fit", test]),
        ("--missing-colour", ["check", test, "--missing-colour", "red"]),
        ("No such option: --c (Possible options: --cost). Add", ["fit", test, "-o", tmp_path / "m.st", "--c", "0"]),
        ("must be a finite number > 0", ["fit", test, "-o", tmp_path / "m.st", "-C", "0"]),
    ):
        code, out, err = run(capsys, *arguments)
        assert code == 2 and out == "" and words in err and err.count("\n") == 1


def test_results_do_not_take_the_place_of_inputs(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = write_chains(tmp_path / "d.jsonl", 5, 0)
    link = tmp_path / "link.jsonl"
    link.symlink_to(data)
    model = tmp_path / "m.st"
    model.write_bytes((folder / "m.st").read_bytes())
    kept = {path: path.read_bytes() for path in (data, model)}
    for arguments in (
        ["predict", model, data, "-o", data],
        ["predict", model, data, "-o", link],
        ["predict", model, data, "-o", model],
        ["fit", data, "-o", data],
        ["fit", folder / "train.jsonl", "--valid", data, "-o", data],
        ["fit", folder / "train.jsonl", "--calibrate", data, "-o", data],
        ["inspect", model, "--html", model],
        ["compare", data, "--html", data],
        ["aggregate", model, data, "-o", data],
    ):
        code, out, err = run(capsys, *arguments)
        assert code == 2 and out == "" and "it is an input of this command; name another file" in err
        assert {path: path.read_bytes() for path in kept} == kept


def test_check_lists_problems_with_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"x": [[1]], "y": ["a"]}\nnonsense\n{"x": [[1]], "y": []}\n')
    code, out, err = run(capsys, "check", path)
    assert code == 2 and "line 2" in err and "line 3" in err and "instances" in out


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (['{"x": [[1], [2]], "edge_x": [[1]], "y": ["a", "b"]}', '{"x": [[1], [2]], "y": ["a", "b"]}'], "line 2: edge"),
        (['{"x": [["a"], ["b"]], "y": ["a", "\\ud800"]}'], "lone surrogate"),
        (
            [
                '{"x": [[1], [2]], "edge_x": [[1]], "y": ["a", "b"]}',
                '{"x": [[1], [2]], "edge_x": [[1, 2]], "y": [null, "b"]}',
            ],
            "line 2: 2 features",
        ),
    ],
)
def test_check_finds_what_fit_refuses(
    lines: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text("\n".join(lines) + "\n")
    for command in (["check", path], ["fit", path, "-o", tmp_path / "m.st", "--method", "crf"]):
        code, _, err = run(capsys, *command)
        assert code == 2 and words in err and err.count("\n") == 1


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_an_example(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, command, "--help")
    assert code == 0 and f"Example: mssvm {command}" in out


def test_version_and_bare_command(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "--version")
    assert code == 0 and {"mssvm", "python", "numpy", "scipy"} <= {line.split()[0] for line in out.splitlines()}
    code, out, _ = run(capsys)
    assert code == 0 and all(command in out for command in COMMANDS)


def test_progress_has_a_rate_and_the_time_left() -> None:
    file = io.StringIO()
    meter = ProgressLine("Reading a.jsonl", file=file, quiet=0.0)
    meter(2e6, 8e6)
    assert re.match(r"Reading a\.jsonl: 2 of 8 MB, [\d.e+]+ MB/s, \d+ s left\n", file.getvalue())
    assert meter.line(5e6, None, 2.0) == "Reading a.jsonl: 5 MB, 2.5 MB/s"
    assert remaining_time(10.0, 0.5) == "10 s"
    assert remaining_time(600.0, 0.5) == "10 min"
    assert remaining_time(7200.0, 0.5) == "2.0 h"
    quiet = io.StringIO()
    ProgressLine("Reading", file=quiet)(1.0, 2.0)
    assert quiet.getvalue() == ""


class InNotebook(io.StringIO):
    """As the standard error of a kernel."""


InNotebook.__module__ = "ipykernel.iostream"


def test_progress_in_a_notebook_is_one_line_rewritten() -> None:
    file = InNotebook()
    with ProgressLine("Reading", quiet=0.0, file=file) as line:
        line.say("a long state of affairs")
        line._last = 0.0
        line.say("short")
    *lines, end = file.getvalue().split("\r")[1:]
    first, second, cleared = lines
    assert len(first) == len(second) and second.rstrip() == "Reading: short" and not cleared.strip() and end == ""


def test_sentences_from_columns(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train, test = write_chunking(tmp_path)
    assert run(capsys, "fit", train, "-o", tmp_path / "m.st", "--method", "crf")[0] == 0
    found = json.loads(run(capsys, "evaluate", tmp_path / "m.st", test, "--json")[1])
    assert found["accuracy"] > 0.9 and found["span_f1"]["support"] == 79


def test_warnings_are_one_line(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def warn() -> dict[str, str]:
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            warnings.warn("features are scaled oddly.", MssvmWarning, stacklevel=1)
        return {}

    monkeypatch.setattr(sys.modules["mssvm.cli"], "versions", warn)
    code, _, err = run(capsys, "--version")
    assert code == 0 and err == "mssvm: features are scaled oddly.\n"


def test_decoding_is_chosen_in_every_command(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    weak = tmp_path / "weak.jsonl"
    model = tmp_path / "m.st"
    rng = np.random.default_rng(0)
    with weak.open("w") as file:
        for _ in range(30):
            tags = np.repeat(rng.integers(3, size=8), 4)
            x = (np.eye(3)[tags] + rng.normal(0, 2.0, (32, 3))).round(3)
            file.write(json.dumps({"x": x.tolist(), "y": ["XYZ"[t] for t in tags]}) + "\n")
    assert run(capsys, "fit", weak, "-o", model, "--method", "crf", "--decode", "marginal")[0] == 0
    fitted = ms.load(model)
    data = read(weak)
    assert fitted.decode == "marginal"
    expected = {how: [z.tolist() for z in fitted.predict(data.X, decode=how)] for how in ("map", "marginal")}
    assert expected["map"] != expected["marginal"]
    for how, arguments in (("marginal", []), ("map", ["--decode", "map"]), ("marginal", ["--decode", "auto"])):
        lines = run(capsys, "predict", model, weak, *arguments)[1].splitlines()
        assert [json.loads(line)["y"] for line in lines] == expected[how]
        found = json.loads(run(capsys, "evaluate", model, weak, "--json", *arguments)[1])
        assert found["accuracy"] == pytest.approx(fitted.score(data.X, data.labels, decode=how))
    scores = []
    for how in ("map", "marginal"):
        code, out, _ = run(
            capsys, "compare", weak, "--methods", "crf", "--cv", 2, "--no-curves", "--json", "--decode", how
        )
        scores.append(json.loads(out)["methods"]["CRF"]["accuracy"])
    assert code == 0 and scores[0] != scores[1]
    code, _, err = run(capsys, "predict", model, weak, "--decode", "viterbi")
    assert code == 2 and "'viterbi' is not one of 'map', 'marginal', 'auto'" in " ".join(err.split())


def test_fit_calibrates_on_other_data(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    test = read(folder / "test.jsonl")
    arguments = ("fit", folder / "train.jsonl", "-o", tmp_path / "m.st", "--method", "ssvm")
    assert run(capsys, *arguments, "--calibrate", folder / "test.jsonl")[0] == 0
    model = ms.load(tmp_path / "m.st")
    assert model.temperatures_[0] != 1.0
    assert clone(model).fit(*train_of(folder)).calibrate(test.X, test.labels).temperatures_ == model.temperatures_


def test_calibration_data_are_read_before_training(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    began: list[Any] = []
    monkeypatch.setattr("mssvm.cli.fit._train", lambda *_: began.append(_))
    arguments = ("fit", folder / "train.jsonl", "-o", tmp_path / "m.st", "--calibrate", tmp_path / "no.jsonl")
    code, _, err = run(capsys, *arguments)
    assert code == 2 and "no.jsonl cannot be read" in err and not began


def train_of(folder: Path) -> tuple[list[Any], list[Any]]:
    train = read(folder / "train.jsonl")
    return train.X, train.labels


def test_labels_that_training_never_met(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """They count as wrong and are named; classes can be named beforehand."""
    test = folder / "test.jsonl"
    changed = tmp_path / "changed.jsonl"
    records = [json.loads(line) for line in test.read_text().splitlines()]
    for record in records[:3]:
        record["y"][0] = "B-LST"
    changed.write_text("".join(json.dumps(record) + "\n" for record in records))
    fields = json.loads(run(capsys, "evaluate", folder / "m.st", changed, "--json")[1])
    before = json.loads(run(capsys, "evaluate", folder / "m.st", test, "--json")[1])
    assert fields["n_sites"] == before["n_sites"] and fields["accuracy"] < before["accuracy"]
    assert fields["by_class"]["B-LST"] == {"precision": 0.0, "recall": 0.0, "f1": 0.0, "support": 3, "predicted": 0}
    code, out, _ = run(capsys, "evaluate", folder / "m.st", changed)
    assert code == 0 and "never seen in training" in out and "B-LST (3): counted as wrong" in out
    arguments = ("fit", folder / "train.jsonl", "-o", tmp_path / "m.st", "--method", "crf", "--max-iter", 2)
    assert run(capsys, *arguments, "--valid", changed)[0] == 0
    assert run(capsys, *arguments, "--classes", "O, I,B,B-LST")[0] == 0
    assert ms.load(tmp_path / "m.st").classes_.tolist() == ["O", "I", "B", "B-LST"]


def test_classes_are_of_the_type_of_the_labels(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = tmp_path / "d.jsonl"
    model = tmp_path / "m.st"
    data.write_text('{"x": [[0.5], [1.0]], "y": [1, 2]}\n{"x": [[0.1]], "y": [2]}\n')
    assert run(capsys, "fit", data, "-o", model, "--method", "crf", "--classes", "3,2,1")[0] == 0
    assert ms.load(model).classes_.tolist() == [3, 2, 1]
    code, _, err = run(capsys, "fit", data, "-o", model, "--classes", "a,b")
    assert code == 2 and "the labels of the data are numbers" in err
    arguments = ("compare", data, "--methods", "crf", "--cv", 2, "--no-curves", "--json")
    found = run(capsys, *arguments, "--classes", "1,2,3")[1]
    assert "3" in json.loads(found)["methods"]["CRF"]["pooled"]["by_class"]


def test_segments_are_fitted_predicted_and_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rng = np.random.default_rng(0)
    lines = []
    for _ in range(12):
        y = list("aabbbbaaabbbb")
        x = [[float(c == "a") + rng.normal(), rng.normal()] for c in y]
        lines.append(json.dumps({"x": x, "y": [None if rng.random() < 0.2 else c for c in y]}))
    data = tmp_path / "train.jsonl"
    data.write_text("\n".join(lines) + "\n")
    model = tmp_path / "m.safetensors"
    named = ("--structure", "segments", "--max-length", "5")
    assert run(capsys, "fit", data, "-o", model, *named, "--hidden", "2")[0] == 0
    out = tmp_path / "out.jsonl"
    assert run(capsys, "predict", model, data, "-o", out)[0] == 0
    first = json.loads(out.read_text().splitlines()[0])
    assert first["segments"][-1][1] == len(first["y"]) == 13
    assert all(stop - start <= 5 for start, stop, _, _ in first["segments"])
    assert run(capsys, "evaluate", model, data)[0] == 0
    assert run(capsys, "compare", data, "--methods", "crf,hcrf", "--cv", "2", *named)[0] == 0
    code, _, error = run(capsys, "fit", data, "-o", tmp_path / "n.safetensors", "--max-length", "5")
    assert code == 2
    assert "--structure segments" in error
