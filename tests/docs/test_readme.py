"""The claims of README.md: every figure is in a kept results file, every name and command that it mentions works.

Behaviour that has tests of its own elsewhere is not repeated: status of predictions (tests/estimators), formats of
files and --resume (tests/data, tests/cli), the layer (tests/with_torch), annotators, suggest and conformal sets.
"""

from __future__ import annotations

import json
import re
import shlex
import tomllib
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.base import BaseEstimator, clone

import mssvm as ms
from mssvm.cli import COMMANDS, main

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text("utf-8")
RESULTS = ROOT / "benchmarks" / "results"


def kept(name: str) -> Any:
    return json.loads((RESULTS / f"{name}.json").read_text("utf-8"))


def test_every_kept_file_names_its_script() -> None:
    page = (RESULTS / "README.md").read_text("utf-8")
    for path in sorted(RESULTS.glob("*.json")):
        assert f"`{path.stem}`" in page or f"`{path.name}`" in page, path.name


def table_row(start: str) -> str:
    return next(line for line in README.splitlines() if line.startswith(f"| {start}"))


def test_the_example_runs_as_it_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib").use("Agg")
    monkeypatch.chdir(tmp_path)
    example = re.search(r"```python\n(.*?)```", README, re.DOTALL)
    assert example is not None
    names: dict[str, Any] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        exec(compile(example.group(1), "README.md", "exec"), names)
    clf, same, X = names["clf"], names["same"], names["X"]
    assert np.array_equal(np.concatenate(clf.predict(X)), np.concatenate(same.predict(X)))
    assert clf.score(X[40:], names["y"][40:]) > 0.8
    assert clf.predict_marginals(X[40:])[0].shape == (len(X[40]), 3)


def test_conll_figures_are_kept() -> None:
    full = kept("conll")["full"]
    ours, theirs = full["seen"], full["crfsuite"]
    assert ours["weights"] == theirs["weights"]
    told = f"| F1 {ours['f1']:.2f} in {ours['seconds']:.0f} s | python-crfsuite F1 {theirs['f1']:.2f} in "
    assert f"{told}{theirs['seconds']:.0f} s |" in table_row("CoNLL-2000 chunks")


@pytest.mark.parametrize(("percent", "row"), [(50, "handwritten letters, half"), (90, "the same, 90% missing")])
def test_letter_figures_are_kept(percent: int, row: str) -> None:
    right = next(r["accuracy"] for r in kept("letters")["rows"] if r["missing"] == percent)
    ours = ", ".join(f"{name} {right[name]:.2f}" for name in ("HCRF", "MSSVM", "LSSVM"))
    theirs = f"CRF on labelled runs {right['CRF-runs']:.2f}, SSVM {right['SSVM-runs']:.2f}"
    assert f"| {ours} | {theirs} |" in table_row(row)


def test_gesture_figures_are_kept() -> None:
    found = kept("timeseries")["NATOPS"]["summary"]
    told = {name: f"{name} {100 * row['mean']:.1f} ± {100 * row['se']:.1f}" for name, row in found.items()}
    assert f"| {told['HCRF']}, {told['MSSVM']} | {told['pyhcrf']} |" in table_row("NATOPS")


def test_differences_to_the_paper_are_those_of_its_page() -> None:
    """The page itself is written from ``results/`` (tests/experiments)."""
    page = (ROOT / "docs" / "paper.md").read_text("utf-8")
    claim = next(line for line in page.splitlines() if line.startswith("| 1a |"))
    tuned = next(line for line in page.splitlines() if line.startswith("| 11a |"))
    start = next(line for line in page.splitlines() if line.startswith("**The printed start.**"))
    text = " ".join(README.split())
    sentence = text[text.index("MSSVM - LSSVM at C = 1") : text.index("**Margins learn little")]
    for figure in re.findall(r"[+-]\d\.\d\d \[[^]]+\]", sentence):
        signed = re.sub(r"(?<=[\[ ])(?=\d)", "+", figure)
        assert any(signed in line for line in (claim, tuned, start)), figure
    assert "(+1.73)" in sentence and "| +1.73; z" in claim


def test_margins_and_likelihoods_where_no_label_dominates() -> None:
    found = kept("phase")
    text = json.dumps(found)
    told = re.search(r"\(MSSVM (\d+), HCRF (\d+) of 100\)", README)
    assert told is not None and "MSSVM" in text
    row = next(
        line for line in (ROOT / "docs" / "which-model.md").read_text("utf-8").splitlines() if "phase.json" in line
    )
    mssvm, hcrf = re.search(r"MSSVM ([\d.]+)", row), re.search(r"HCRF ([\d.]+)", row)
    assert mssvm is not None and hcrf is not None
    assert f"{float(mssvm.group(1)):.0f}" == told.group(1) and f"{float(hcrf.group(1)):.0f}" == told.group(2)


def family_rows() -> list[tuple[str, str, str, str]]:
    names = {
        "latent structured SVM (LSSVM)": "LSSVM",
        "marginal structured SVM (MSSVM)": "MSSVM",
        "hidden conditional random field (HCRF)": "HCRF",
        "loss-augmented likelihood": "LossAugmentedCRF",
        "structured SVM (SSVM)": "SSVM",
        "conditional random field (CRF)": "CRF",
    }
    rows = []
    for line in README.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 5 and cells[0] in names:
            rows.append((names[cells[0]], cells[1], cells[2], cells[3]))
    return rows


@pytest.mark.parametrize(("name", "eps_y", "eps_h", "loss"), family_rows())
def test_members_have_the_temperatures_of_the_table(name: str, eps_y: str, eps_h: str, loss: str) -> None:
    member = getattr(ms, name)()
    assert member.eps_y == float(eps_y)
    assert eps_h == "no hidden variables" or member.eps_h == float(eps_h)
    assert (type(member._loss()).__name__ != "Zero") == (loss == "yes")
    assert isinstance(member, BaseEstimator) and clone(member).get_params().keys() == member.get_params().keys()


@pytest.mark.parametrize(("name", "eps_y", "eps_h", "loss"), family_rows())
def test_members_are_the_unified_objective(name: str, eps_y: str, eps_h: str, loss: str) -> None:
    rng = np.random.default_rng(0)
    y = [rng.integers(3, size=6) for _ in range(6)]
    X = [np.eye(3)[labels] + 0.3 * rng.normal(size=(6, 3)) for labels in y]
    hidden = 0 if eps_h == "no hidden variables" else 2
    structure = ms.Chain(hidden=hidden)
    settings: dict[str, Any] = {"random_state": 0, "max_iter": 20, "tol": 1e-8}
    delta = "hamming" if loss == "yes" else "zero"
    dials = {"eps_y": float(eps_y), "eps_h": 1.0 if hidden == 0 else float(eps_h)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        member = getattr(ms, name)(structure, solver="lbfgs", **settings).fit(X, y)
        unified = ms.UnifiedSSVM(structure, solver="lbfgs", loss=delta, **dials, **settings).fit(X, y)
    assert unified.objective_ == pytest.approx(member.objective_, rel=1e-6)


def test_all_members_of_the_table_were_read() -> None:
    assert [row[0] for row in family_rows()] == ["LSSVM", "MSSVM", "HCRF", "LossAugmentedCRF", "SSVM", "CRF"]


def test_names_in_code_exist() -> None:
    for name in re.findall(r"`ms\.([\w.]+)", README):
        target: Any = ms
        for part in name.split("."):
            if part in ("torch", "hf"):  # extras
                break
            target = getattr(target, part)
    for name in (
        "MSSVM",
        "LSSVM",
        "HCRF",
        "EpsilonSSVM",
        "LossAugmentedCRF",
        "SSVM",
        "CRF",
        "UnifiedSSVM",
        "M3E",
        "ModLat",
    ):
        assert f"`{name}" in README and name in ms.__all__
    for name in ("Chain", "Segments", "SequenceLabel", "Grid", "GraphModel", "MultiLabel", "FactorModel"):
        assert f"`{name}`" in README and name in ms.__all__


def test_extras_and_targets_exist() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    named = re.search(r"with extras\s+(.*?)\(", README, re.DOTALL)
    assert named is not None
    assert set(re.findall(r"`(\w+)`", named.group(1))) <= set(project["optional-dependencies"])
    assert project["requires-python"] == ">=3.11"
    makefile = (ROOT / "Makefile").read_text("utf-8")
    for target in set(re.findall(r"\bmake ([a-z-]+)", README)):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


def test_commands_and_options_exist(capsys: pytest.CaptureFixture[str]) -> None:
    lines = re.findall(r"^    mssvm (.+?)(?:\s+#.*)?$", README, re.MULTILINE)
    assert len(lines) >= 9
    for line in lines:
        words = shlex.split(line)
        assert words[0] in COMMANDS
        assert main([words[0], "--help"]) == 0
        text = capsys.readouterr().out
        for option in (word for word in words if word.startswith("--")):
            assert option in text, line


@pytest.mark.slow
def test_commands_run_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Those on one file of sequences, on the two lines that the page shows, repeated."""
    monkeypatch.chdir(tmp_path)
    shown = [line.strip() for line in README.splitlines() if line.startswith('    {"x"')]
    assert len(shown) == 2
    for name in ("train.jsonl", "new.jsonl", "test.jsonl"):
        Path(name).write_text("\n".join(shown * 10) + "\n")
    for line in re.findall(r"^    mssvm (.+?)(?:\s+#.*)?$", README, re.MULTILINE):
        if any(word in line for word in ("FOLDER", "votes.jsonl", "demo")):
            continue
        assert main(shlex.split(line)) == 0, line
        capsys.readouterr()
    answers = [json.loads(line) for line in Path("out.jsonl").read_text().splitlines()]
    assert len(answers) == 20 and len(answers[0]["y"]) == 3
    assert Path("report.html").is_file() and Path("model.html").is_file()


def test_bad_input_is_one_sentence_with_its_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data, model = tmp_path / "train.jsonl", tmp_path / "model.safetensors"
    data.write_text('{"x": [[0.1, 2.0]], "y": ["B"]}\n{"x": [[0.2]], "y": ["B"]}\n')
    assert main(["fit", str(data), "-o", str(model)]) == 2
    told = capsys.readouterr().err.strip()
    assert "train.jsonl" in told and "2" in told and "\n" not in told and not model.exists()


def test_links_lead_somewhere() -> None:
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", README):
        assert (ROOT / target).exists(), target


def test_completion_of_three_shells(capsys: pytest.CaptureFixture[str]) -> None:
    for shell in ("bash", "zsh", "fish"):
        assert main(["completion", shell]) == 0
        assert "mssvm" in capsys.readouterr().out
