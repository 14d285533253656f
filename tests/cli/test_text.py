"""Columns in and out, several labels at once, pages of models, capitals, completion and odd characters."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cli.test_compare import Page
from mssvm.cli import COMMANDS, main
from mssvm.core.progress import ProgressLine
from mssvm.data.embedded import write_chunking


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    code = main([str(a) for a in arguments])
    out = capsys.readouterr()
    return code, out.out, out.err


@pytest.fixture(scope="module")
def tagged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sentences in columns, and a model of them."""
    folder = tmp_path_factory.mktemp("text")
    train, _ = write_chunking(folder)
    assert main(["fit", str(train), "-o", str(folder / "m.st"), "--method", "CRF", "--max-iter", "15"]) == 0
    return folder


def chunks(tags: list[str]) -> set[tuple[int, int, str]]:
    """Chunks by the rules of conlleval: one ends before O, B and another name, and begins at what is left."""
    found = set()
    start = None
    for t, tag in enumerate([*tags, "O"]):
        before = tags[t - 1] if t else "O"
        here = tag
        if start is not None and (here == "O" or here[0] == "B" or here[1:] != before[1:]):
            found.add((start, t, before[2:]))
            start = None
        if here != "O" and start is None:
            start = t
    return found


# ----------------------------------------------------------------------------------------- columns


def test_columns_come_back_with_one_more_that_scores_the_same(tagged: Path, capsys: pytest.CaptureFixture[str]) -> None:
    test = next(tagged.glob("*test*"))
    code, out, _ = run(capsys, "predict", tagged / "m.st", test, "--format", "conll")
    assert code == 0
    sentences = [[line.split() for line in part.split("\n")] for part in out.strip().split("\n\n")]
    text = "\n".join(line for line in test.read_text().splitlines() if not line.startswith("# "))
    given = [[line.split() for line in part.split("\n")] for part in text.strip().split("\n\n")]
    assert [[row[:-1] for row in rows] for rows in sentences] == given
    gold = [chunks([row[-2] for row in rows]) for rows in sentences]
    said = [chunks([row[-1] for row in rows]) for rows in sentences]
    right = sum(len(a & b) for a, b in zip(gold, said, strict=True))
    f1 = 2 * right / (sum(map(len, gold)) + sum(map(len, said)))
    found = json.loads(run(capsys, "evaluate", tagged / "m.st", test, "--json")[1])
    assert 0.3 < f1 < 1 and found["span_f1"]["f1"] == pytest.approx(f1, abs=1e-12)
    assert found["span_f1"]["support"] == sum(map(len, gold))


def test_the_ending_of_the_output_says_columns_too(tagged: Path, capsys: pytest.CaptureFixture[str]) -> None:
    new = tagged / "new.tsv"
    new.write_text("# text\nThe\tDT\ncat\tNN\n\n\nIt\tPRP\n")
    for name, lines in (("out.bio.gz", 0), ("out.jsonl", 2), ("out.conll", 5)):
        code, *_ = run(capsys, "predict", tagged / "m.st", new, "--unlabelled", "-o", tagged / name)
        assert code == 0 and (not lines or len((tagged / name).read_text().splitlines()) == lines)
    rows = (tagged / "out.conll").read_text().splitlines()
    assert [row.split("\t")[:2] for row in rows] == [["The", "DT"], ["cat", "NN"], [""], ["It", "PRP"], [""]]
    assert all(len(row.split("\t")) == 3 for row in rows if row)


def test_columns_cannot_hold_everything(tagged: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "predict", tagged / "m.st", tagged / "x.txt", "--format", "conll", "--marginals")
    assert (code, out) == (2, "") and "need JSON lines" in err
    (tmp_path / "a.jsonl").write_text('{"x": ["a", "b"], "y": ["New York", "B"]}\n')
    (tmp_path / "a.txt").write_text("a\nb\n")
    assert run(capsys, "fit", tmp_path / "a.jsonl", "-o", tmp_path / "m.st", "--method", "crf")[0] == 0
    code, _, err = run(capsys, "predict", tmp_path / "m.st", tmp_path / "a.txt", "-o", tmp_path / "out.conll")
    assert code == 2 and "'New York' has blanks" in err and not (tmp_path / "out.conll").exists()


def test_names_may_be_in_capitals(tagged: Path, capsys: pytest.CaptureFixture[str]) -> None:
    test = next(tagged.glob("*test*"))
    code, out, _ = run(
        capsys, "compare", test, "--methods", "CRF,Ssvm,crf", "--cv", "2", "--no-curves", "--max-iter", "2"
    )
    assert code == 0 and "CRF" in out and "SSVM" in out
    code, _, err = run(capsys, "fit", test, "-o", tagged / "no.st", "--method", "svm")
    assert code == 2 and "'svm' is not one of 'mssvm'" in err


# ----------------------------------------------------------------------------------------- pages


def test_the_page_of_a_model(tagged: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "inspect", tagged / "m.st", "--html", tagged / "model.html", "--top", 5)
    page = Page((tagged / "model.html").read_text())
    assert code == 0 and "Page:" in out and page.open == [] and page.counts["section"] == 4
    assert page.counts["svg"] == page.counts["figure"] == 2  # the objective, and the table of transitions
    assert "The 5 largest of" in (tagged / "model.html").read_text() and all(a.startswith("#") for a in page.addresses)
    code, _, err = run(capsys, "inspect", tagged / "m.st", "--html", tagged / "no" / "model.html")
    assert code == 2 and "no folder" in err


def test_a_curve_of_one_point_is_not_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, test = write_chunking(tmp_path)
    options = ("--methods", "crf", "--cv", 2, "--html", tmp_path / "r.html")
    found = {}
    for name, more in (
        ("one", ("--no-curves",)),
        ("short", ("--no-curves", "--solver", "bcfw", "--max-iter", 1)),
        ("all", ()),
    ):
        method = ("--methods", "ssvm") if name == "short" else ()
        assert run(capsys, "compare", test, *options, *more, *method)[0] == 0
        found[name] = (tmp_path / "r.html").read_text()
    drawn = {name: re.findall(r'<text class="t"[^>]*>([^<]*)<', text) for name, text in found.items()}
    assert drawn["all"][:2] == ["Accuracy by size of the training set", "Objective in training, first fold"]
    assert drawn["one"] == ["Objective in training, first fold", "F1 by class, %"] and "Training</h2>" in found["one"]
    assert "F1 by class, %" in drawn["short"] and "Accuracy by size of the training set" not in drawn["short"]


# ----------------------------------------------------------------------------------------- what terminals obey


ODD = "\x1b[31mred\x1b[0m\x9b2J\u202e"


def test_odd_characters_do_not_reach_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    labels = [ODD, "B"]
    lines = [json.dumps({"x": [[k % 2], [1]], "y": [labels[k % 2], "B"]}) for k in range(8)]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    (tmp_path / "b.jsonl").write_text(json.dumps({"x": [[1], [1]], "y": ["B", ODD + "?"]}))
    data = tmp_path / "a.jsonl"
    model = tmp_path / "m.st"
    said = [run(capsys, "fit", data, "-o", model, "--method", "crf")]
    said += [
        run(capsys, "inspect", model),
        run(capsys, "evaluate", model, data, "--by-class"),
        run(capsys, "check", data),
    ]
    said += [run(capsys, "compare", data, "--methods", "crf", "--cv", 2, "--no-curves")]
    said += [run(capsys, "evaluate", model, tmp_path / "b.jsonl")]
    for _, out, err in said:
        assert not set("\x1b\x9b\u202e") & set(out + err)
    # rich folds long cells, so the words are looked for without its frames.
    assert all(r"\x1b[31mred" in re.sub(r"[\s│┃]", "", said[k][1]) for k in (1, 2, 3))


# ----------------------------------------------------------------------------------------- stopping


@pytest.mark.slow
@pytest.mark.parametrize(("number", "line", "code"), [("SIGINT", "interrupted", 130), ("SIGTERM", "terminated", 143)])
def test_a_signal_during_imports_is_one_line(number: str, line: str, code: int) -> None:
    script = (
        "import builtins, os, signal, sys\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from mssvm.__main__ import main\n"
        "before = builtins.__import__\n"
        "def stop(name, *rest, **more):\n"
        f"    if name == 'rich.table': os.kill(os.getpid(), signal.{number})\n"
        "    return before(name, *rest, **more)\n"
        "builtins.__import__ = stop\n"
        "sys.argv = ['mssvm', 'check', 'nothing.jsonl']\n"
        "sys.exit(main())\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (code, "", f"mssvm: {line}.\n")


def wait() -> None:
    """Until the signal, which goes to the main thread, has made its way back."""
    for _ in range(500):
        time.sleep(0.01)


def test_signals_while_a_command_runs(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def stop() -> dict[str, str]:
        os.kill(os.getpid(), signal.SIGTERM)
        wait()
        return {}

    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(sys.modules["mssvm.cli"], "versions", stop)
    assert run(capsys, "--version") == (143, "", "mssvm: terminated.\n")
    assert signal.getsignal(signal.SIGTERM) == before


def test_a_training_that_is_terminated_keeps_its_checkpoint(tagged: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def stop(self: ProgressLine, text: str) -> None:
        if text.startswith("iteration 4"):
            os.kill(os.getpid(), signal.SIGTERM)
            wait()

    arguments = ["fit", next(tagged.glob("*test*")), "-o", tagged / "stopped.st", "--method", "crf"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ProgressLine, "say", stop)
        code, _, err = run(capsys, *arguments)
    assert code == 143 and "--resume goes on" in err and not (tagged / "stopped.st").exists()
    assert run(capsys, *arguments, "--resume")[0] == 0


# ----------------------------------------------------------------------------------------- completion


def completed(script: Path, *words: str) -> list[str]:
    line = f'source {script}; COMP_WORDS=("$@"); COMP_CWORD=$(($#-1)); _mssvm; printf "%s\\n" "${{COMPREPLY[@]}}"'
    done = subprocess.run(["bash", "-c", line, "bash", *words], capture_output=True, text=True, check=True)
    return done.stdout.split()


def test_bash_completes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = tmp_path / "c.bash"
    script.write_text(run(capsys, "completion", "bash")[1])
    assert completed(script, "mssvm", "comp") == ["compare", "completion"]
    assert completed(script, "mssvm", "fit", "x", "--method", "ms") == ["mssvm"]
    assert completed(script, "mssvm", "predict", "--form") == ["--format"]
    assert completed(script, "mssvm", "predict", "--format", "con") == ["conll"]
    assert completed(script, "mssvm", "compare", "--no") == ["--no-curves"]
    assert completed(script, "mssvm", "fit", str(script)[:-2]) == [str(script)]
    assert completed(script, "mssvm", "completion", "") == ["bash", "zsh", "fish"]


def test_scripts_of_other_shells(capsys: pytest.CaptureFixture[str]) -> None:
    zsh, fish = (run(capsys, "completion", shell)[1] for shell in ("ZSH", "fish"))
    assert zsh.startswith("autoload -U +X bashcompinit") and "complete -o filenames -F _mssvm mssvm" in zsh
    assert "complete -c mssvm -n '__fish_seen_subcommand_from fit' -s o -l output -r -d 'Model file to write.'" in fish
    assert fish.count("__fish_use_subcommand") == len(COMMANDS) + 1
    assert run(capsys, "completion", "tcsh")[0] == 2
