"""``mssvm infer`` as a user meets it: answers against brute force, output formats, refusals."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from time import monotonic, sleep

import numpy as np
import pytest

from mssvm.cli import main
from mssvm.core.progress import ProgressLine
from mssvm.inference.enumerate import Enumerate
from mssvm.uai import (
    Answer,
    AnswerLimits,
    UaiModel,
    UaiTask,
    read_model,
    write_evidence,
    write_query,
    write_uai,
)
from mssvm.uai.files import read_mar

DATA = Path(os.environ.get("MSSVM_DATA", Path(__file__).parents[3] / "shared" / "data"))
needs_data = pytest.mark.skipif(not DATA.is_dir(), reason="MSSVM_DATA is absent")

FIELDS = [
    "task",
    "value_ln",
    "value_log10",
    "assignment",
    "marginals",
    "marginals_lower",
    "marginals_upper",
    "exact",
    "converged",
    "lower_bound_ln",
    "upper_bound_ln",
    "method",
    "seconds",
]
TASKS = {"PR": (1.0, 1.0), "MAR": (1.0, 1.0), "MAP": (0.0, 0.0), "MMAP": (0.0, 1.0)}


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """A 3 x 3 grid with unaries, a constant and a zero; variable 4 observed, and one of four MAP variables."""
    rng = np.random.default_rng(0)
    at = np.arange(9).reshape(3, 3)
    scopes: list[tuple[int, ...]] = [(int(v),) for v in range(9)]
    scopes += [*zip(at[:, :-1].ravel().tolist(), at[:, 1:].ravel().tolist(), strict=True)]
    scopes += [*zip(at[:-1].ravel().tolist(), at[1:].ravel().tolist(), strict=True), ()]
    tables = [np.exp(rng.normal(size=2 ** len(scope))) for scope in scopes]
    tables[10][1] = 0.0
    write_uai(tmp_path / "m.uai", UaiModel((2,) * 9, tuple(scopes), tuple(tables)))
    write_evidence(tmp_path / "m.evid", {4: 1})
    write_query(tmp_path / "m.query", [7, 0, 4, 2])
    return tmp_path


def truth(files: Path, task: str) -> tuple[float, np.ndarray, np.ndarray]:
    problem = read_model(files / "m.uai").problem()
    outputs = {"MAP": range(9), "MMAP": (0, 2, 4, 7)}.get(task, ())
    eps_y, eps_h = TASKS[task]
    belief = Enumerate()(problem.batch, problem.theta, problem.query(tuple(outputs), {4: 1}), eps_y, eps_h)
    return float(belief.value[0]) + problem.constant, belief.mu.unary, belief.decode(problem.batch)


def command(files: Path, task: str, *more: str) -> list[str]:
    out = ["infer", str(files / "m.uai"), "--task", task, "--evid", str(files / "m.evid"), *more]
    return [*out, "--query", str(files / "m.query")] if task == "MMAP" else out


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("method", ["auto", "exact", "bp", "bound"])
def test_json_answers(files: Path, capsys: pytest.CaptureFixture[str], task: str, method: str) -> None:
    assert main(command(files, task, "--method", method, "--time-limit", "20", "--json")) == 0
    answer = json.loads(capsys.readouterr().out)
    assert list(answer) == FIELDS
    value, marginals, states = truth(files, task)
    assert answer["task"] == task
    assert answer["value_log10"] == pytest.approx(answer["value_ln"] / np.log(10.0))
    assert answer["lower_bound_ln"] <= value + 1e-6 and answer["upper_bound_ln"] >= value - 1e-6
    assert answer["lower_bound_ln"] - 1e-9 <= answer["value_ln"] <= answer["upper_bound_ln"] + 1e-9
    if method in ("auto", "exact"):
        assert answer["exact"] and answer["converged"] and answer["method"] == "elimination"
    if answer["exact"] or task in ("MAP", "MMAP"):
        assert answer["value_ln"] == pytest.approx(value, abs=1e-6)
    if task in ("MAP", "MMAP"):
        asked = range(9) if task == "MAP" else (0, 2, 4, 7)
        assert answer["assignment"] == [[v, int(states[v])] for v in asked]
        assert answer["marginals"] is None
    else:
        assert answer["assignment"] is None
    if task == "MAR":
        found = np.concatenate([np.array(p) for p in answer["marginals"]])
        assert np.allclose(found, marginals, atol=1e-9 if answer["exact"] else 0.2)


@pytest.mark.parametrize("jobs", ["1", "2", "4", "-1"])
def test_any_number_of_threads_gives_the_same_proven_value(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], jobs: str
) -> None:
    """A chain of cliques, which elimination solves; the search's progress is monotone and told in order."""
    rng = np.random.default_rng(5)
    scopes = tuple((i, j) for i in range(24) for j in range(max(0, i - 4), i))
    tables = tuple(np.exp(rng.normal(size=4)) for _ in scopes)
    write_uai(tmp_path / "m.uai", UaiModel((2,) * 24, scopes, tables))
    write_query(tmp_path / "m.query", list(range(0, 24, 2)))
    arguments = ["infer", str(tmp_path / "m.uai"), "--task", "MMAP", "--query", str(tmp_path / "m.query"), "--json"]
    assert main([*arguments, "--method", "exact"]) == 0
    truth = json.loads(capsys.readouterr().out)
    assert main([*arguments, "--method", "bp", "--time-limit", "30", "--progress", "--jobs", jobs]) == 0
    out, err = capsys.readouterr()
    answer = json.loads(out)
    told = [json.loads(line) for line in err.splitlines()]
    lower = [t["lower_bound_ln"] for t in told if t["lower_bound_ln"] is not None]
    upper = [t["upper_bound_ln"] for t in told if t["upper_bound_ln"] is not None]
    assert answer["exact"] and answer["value_ln"] == pytest.approx(truth["value_ln"])
    assert answer["assignment"] == truth["assignment"]
    assert lower == sorted(lower) and upper == sorted(upper, reverse=True)
    seconds = [t["seconds"] for t in told]
    assert seconds == sorted(seconds) and min(seconds) > 0.0
    assert max(lower) <= truth["value_ln"] + 1e-9 and min(upper) >= truth["value_ln"] - 1e-9


def test_uai_solution_formats(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for task in TASKS:
        assert main(command(files, task)) == 0
        first, second = capsys.readouterr().out.splitlines()
        numbers = second.split()
        value, marginals, states = truth(files, task)
        assert first == task
        if task == "PR":
            assert float(second) == pytest.approx(value / np.log(10.0))
        elif task == "MAR":
            assert numbers[:2] == ["9", "2"] and len(numbers) == 28
            assert float(numbers[2]) == pytest.approx(marginals[0])
        elif task == "MAP":
            assert numbers == ["9", *(str(s) for s in states)]
        else:
            assert numbers == ["4", *(str(x) for v in (0, 2, 4, 7) for x in (v, states[v]))]


def test_search_answers_when_memory_is_short(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With no time for exact work, auto searches, or says what it has; the certificate must say so."""
    assert main(command(files, "MMAP", "--time-limit", "0", "--json")) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["method"] in ("propagation and search", "first assignment")
    upper = np.inf if answer["upper_bound_ln"] is None else answer["upper_bound_ln"]
    assert answer["lower_bound_ln"] <= answer["value_ln"] <= truth(files, "MMAP")[0] + 1e-9 <= upper + 2e-9


@pytest.mark.slow
@pytest.mark.parametrize(
    ("task", "method"), [("MMAP", "auto"), ("MMAP", "bound"), ("MAP", "bp"), ("PR", "bp"), ("MAR", "bound")]
)
@pytest.mark.parametrize("jobs", ["1", "3"])
def test_limits_are_kept_on_a_large_grid(tmp_path: Path, task: str, method: str, jobs: str) -> None:
    """The whole process, imports and all; where kernels must be compiled first, another answer is early enough."""
    rng = np.random.default_rng(0)
    at = np.arange(3600).reshape(60, 60)
    scopes = [*zip(at[:, :-1].ravel().tolist(), at[:, 1:].ravel().tolist(), strict=True)]
    scopes += [*zip(at[:-1].ravel().tolist(), at[1:].ravel().tolist(), strict=True)]
    model = UaiModel((2,) * 3600, tuple(scopes), tuple(np.exp(rng.normal(size=4)) for _ in scopes))
    write_uai(tmp_path / "m.uai", model)
    write_query(tmp_path / "m.query", list(range(0, 3600, 2)))
    more = ["--query", str(tmp_path / "m.query")] if task == "MMAP" else []
    command = [sys.executable, "-m", "mssvm", "infer", str(tmp_path / "m.uai"), "--task", task, "--method", method]
    began = monotonic()
    limits = ["--time-limit", "3", "--jobs", jobs]
    done = subprocess.run([*command, *limits, "--json", *more], capture_output=True, text=True)
    assert monotonic() - began < 4.0
    assert done.returncode == 0 and not done.stderr
    answer = json.loads(done.stdout)
    assert np.isfinite(answer["value_ln"])
    assert len(answer["assignment"] or answer["marginals"] or []) == {"PR": 0, "MMAP": 1800}.get(task, 3600)


@pytest.mark.slow
@pytest.mark.parametrize("jobs", ["1", "3"])
def test_ctrl_c_prints_the_best_so_far(files: Path, jobs: str) -> None:
    """At whatever time: compiling, searching, or in a kernel."""
    n = 60
    scopes = tuple((i, j) for i in range(n) for j in range(i))
    tables = tuple(np.exp(np.random.default_rng(0).normal(size=(len(scopes), 4))))
    write_uai(files / "m.uai", UaiModel((2,) * n, scopes, tables))
    started = [sys.executable, "-m", "mssvm", *command(files, "MMAP", "--json", "--jobs", jobs)]
    heard = {"preexec_fn": lambda: signal.signal(signal.SIGINT, signal.default_int_handler)}
    with subprocess.Popen(started, stdout=subprocess.PIPE, text=True, **heard) as process:  # type: ignore[call-overload]
        sleep(4.0)
        process.send_signal(signal.SIGINT)
        out = process.communicate(timeout=5.0)[0]
    assert process.returncode == 0
    assert len(json.loads(out)["assignment"]) == 4


def test_interrupting_prints_the_best_so_far(
    files: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(self: ProgressLine, text: str) -> None:
        if "value -inf" not in text:
            raise KeyboardInterrupt

    monkeypatch.setattr(ProgressLine, "say", interrupt)
    assert main(command(files, "MMAP", "--method", "bp", "--json")) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["value_ln"] <= truth(files, "MMAP")[0] + 1e-9
    assert len(answer["assignment"]) == 4


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["infer", "absent.uai", "--task", "PR"], "absent.uai cannot be read"),
        (["infer", "{m}", "--task", "MMAP"], "needs --query"),
        (["infer", "{m}", "--task", "PR", "--query", "{q}"], "takes no --query"),
        (["infer", "{m}", "--task", "PR", "--evid", "{q}"], "line 1"),
        (["infer", "{m}", "--task", "MAXIMISE"], "MAXIMISE"),
        (["infer", "{m}", "--task", "PR", "--method", "magic"], "magic"),
        (["infer", "{m}", "--task", "PR", "--time-limit", "-1"], "--time-limit"),
        (["infer", "{m}", "--task", "PR", "--memory-limit", "inf"], "finite"),
        (["infer", "{m}", "--task", "MAP", "--jobs", "0"], "threads"),
        (["infer", "{m}"], "--task"),
        (["infer", "{m}", "--task", "MAP", "--evid", "{z}"], "no assignment has positive probability"),
        (["conjure"], "conjure"),
    ],
)
def test_refusals(files: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], reason: str) -> None:
    # Factor 10 forbids (1, 2) = (0, 1).
    write_evidence(files / "z.evid", {1: 0, 2: 1})
    (files / "m.query").write_text("2 0 1 5\n" if "--evid" in arguments else "1 0\n")
    places = {"{m}": "m.uai", "{q}": "m.query", "{z}": "z.evid"}
    found = [str(files / places[a]) if a in places else a for a in arguments]
    assert main(found) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("mssvm: ") and reason in err
    assert len(err.splitlines()) == 1


def test_too_little_memory_for_exact_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    n = 22
    scopes = tuple((i, j) for i in range(n) for j in range(i))
    write_uai(tmp_path / "dense.uai", UaiModel((2,) * n, scopes, tuple(np.arange(1.0, 5.0) for _ in scopes)))
    arguments = ["infer", str(tmp_path / "dense.uai"), "--task", "PR", "--method", "exact", "--memory-limit", "0.01"]
    assert main(arguments) == 2
    assert "memory_limit" in capsys.readouterr().err


@pytest.mark.slow
def test_installed_command_exits_with_two(tmp_path: Path) -> None:
    (tmp_path / "bad.uai").write_text("MARKOV\n3\n2 2\n")
    code = "import sys; from mssvm.cli import main; sys.exit(main())"
    done = subprocess.run(
        [sys.executable, "-c", code, "infer", str(tmp_path / "bad.uai"), "--task", "PR"], capture_output=True, text=True
    )
    assert done.returncode == 2
    assert done.stderr == "mssvm: bad.uai, line 2: 3 variables are declared but only 2 numbers follow.\n"


def test_the_example_of_the_docs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Joint MAP and marginal MAP of the two-variable model differ, and the commands print what the page says."""
    page = (Path(__file__).parents[2] / "docs" / "marginal-map.md").read_text()
    monkeypatch.chdir(tmp_path)
    Path("two.uai").write_text(page.split("```uai\n")[1].split("```")[0])
    Path("two.query").write_text("1 0\n")
    lines = page.splitlines()
    commands = [k for k, line in enumerate(lines) if line.startswith("    $ mssvm ")]
    assert len(commands) == 2
    for k in commands:
        assert main(lines[k].split()[2:]) == 0
        assert capsys.readouterr().out.splitlines() == [line.strip() for line in lines[k + 1 : k + 3]]
    scope: dict[str, object] = {}
    exec(page.split("```python\n")[1].split("```")[0], scope)
    belief = scope["belief"]
    assert belief.value[0] == pytest.approx(np.log(0.6))  # type: ignore[attr-defined]


@pytest.mark.slow
@pytest.mark.parametrize("memory", ["4", "0.001"])
def test_a_hidden_part_too_wide_for_small_tables(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], memory: str
) -> None:
    """Eighteen hidden variables all joined: exact where memory allows, else an estimate that claims no lower bound."""
    rng = np.random.default_rng(1)
    n = 20
    scopes = tuple((i, j) for i in range(n) for j in range(i))
    tables = tuple(np.exp(0.2 * rng.normal(size=4)) for _ in scopes)
    write_uai(tmp_path / "wide.uai", UaiModel((2,) * n, scopes, tables))
    write_query(tmp_path / "wide.query", [3, 4])
    model = str(tmp_path / "wide.uai")
    query = str(tmp_path / "wide.query")
    arguments = ["infer", model, "--task", "MMAP", "--query", query, "--json"]
    assert main([*arguments, "--method", "exact"]) == 0
    truth = json.loads(capsys.readouterr().out)
    limit = "20" if memory == "4" else "3"  # the first ends with a proof
    assert main([*arguments, "--method", "bp", "--time-limit", limit, "--memory-limit", memory]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["upper_bound_ln"] >= truth["value_ln"] - 1e-9
    if memory == "4":
        assert answer["exact"] and answer["value_ln"] == pytest.approx(truth["value_ln"])
    else:
        assert not answer["exact"] and answer["lower_bound_ln"] is None
        assert answer["value_ln"] == pytest.approx(truth["value_ln"], abs=0.5)


@needs_data
def test_public_model_with_evidence(capsys: pytest.CaptureFixture[str]) -> None:
    model = DATA / "uai2014" / "Promedus_33.uai"
    reference = json.loads((DATA / "uai_reference_values.json").read_text())["Promedus_33"]
    arguments = ["infer", str(model), "--evid", f"{model}.evid", "--method", "exact", "--json", "--task"]
    assert main([*arguments, "PR"]) == 0
    assert json.loads(capsys.readouterr().out)["value_log10"] == pytest.approx(reference["log10Z_recomputed"], abs=1e-5)
    assert main([*arguments, "MAP"]) == 0
    assert json.loads(capsys.readouterr().out)["value_ln"] == pytest.approx(reference["ln_MPE_recomputed"], abs=1e-6)
    assert main([*arguments, "MAR"]) == 0
    marginals = json.loads(capsys.readouterr().out)["marginals"]
    assert np.allclose(np.concatenate(marginals), np.concatenate(read_mar(f"{model}.MAR")), atol=1e-3)


@needs_data
@pytest.mark.parametrize("method", ["exact", "bp", "auto"])
@pytest.mark.parametrize("name", ["1502.Q0.5.I0", "or_chain_225.fg.Q0.5.I0"])
def test_public_marginal_map(capsys: pytest.CaptureFixture[str], name: str, method: str) -> None:
    model = DATA / "uai_mmap_dechterlab" / f"{name}.uai"
    reference = json.loads((DATA / "uai_reference_values.json").read_text())[f"dechterlab/{name}"]["exact_lnMMAP"]
    arguments = ["infer", str(model), "--task", "MMAP", "--query", str(model.with_suffix(".map")), "--method", method]
    assert main([*arguments, "--time-limit", "20", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["value_ln"] == pytest.approx(reference, abs=1e-4)
    assert answer["exact"]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the system has no such limit")
@pytest.mark.parametrize("known", [True, False])
def test_memory_beyond_the_limit_is_not_had_and_the_best_so_far_is_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, known: bool
) -> None:
    write_uai(tmp_path / "m.uai", UaiModel((2, 2), ((0, 1),), (np.ones(4),)))

    def hungry(task: UaiTask, method: str, limits: AnswerLimits) -> Answer:
        if known:
            limits.keep_possible(Answer(-1.5, False, False, -1.5, np.nan, "so far", np.array([1, 0])))
        return Answer(float(np.ones(1 << 27).sum()), True, True, 0.0, 0.0, "a gibibyte")

    monkeypatch.setattr("mssvm.cli.infer.answer", hungry)
    arguments = ["infer", str(tmp_path / "m.uai"), "--task", "MAP", "--json", "--progress"]
    assert main([*arguments, "--memory-limit", "0.1"]) == (0 if known else 2)
    out, err = capsys.readouterr()
    if known:
        assert json.loads(out)["method"] == "so far" and json.loads(err)["lower_bound_ln"] == -1.5
        assert json.loads(err)["upper_bound_ln"] is None
    else:
        assert "raise --memory-limit" in err
    assert main([*arguments, "--memory-limit", "2"]) == 0
    assert json.loads(capsys.readouterr().out)["method"] == "a gibibyte"
