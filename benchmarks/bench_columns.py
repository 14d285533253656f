"""CoNLL-2000 by the command line alone: columns in and out, scored by seqeval, beside crfsuite on the same features.

The first 7,000 sentences of the file train, the other 1,936 test. The features are those that the command line makes of
words and columns (``ms.features.words``), the weights and the objective those of both libraries: C = 1 is c2 = 0.5.

Run: python benchmarks/bench_columns.py --peer-python PYTHON_WITH_CRFSUITE_AND_SEQEVAL
"""

from __future__ import annotations

import argparse
import json
import tempfile
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

from bench_conll import N_TRAIN, f1, sentences
from common_data import Clock, peer, write
from rich.console import Console

import mssvm as ms
from mssvm.cli import main as mssvm


def columns(read: list[list[list[str]]]) -> str:
    return "\n\n".join("\n".join(" ".join(row) for row in sentence) for sentence in read) + "\n"


def ours(read: list[list[list[str]]], folder: Path) -> dict[str, Any]:
    """Fit, predict and evaluate as a user would."""
    train = folder / "train.conll"
    test = folder / "test.conll"
    model = folder / "m.safetensors"
    out = folder / "out.conll"
    train.write_text(columns(read[:N_TRAIN]))
    test.write_text(columns(read[N_TRAIN:]))
    said = StringIO()
    with redirect_stdout(said), Clock() as clock:
        code = mssvm(["fit", str(train), "-o", str(model), "--method", "crf"])
    assert code == 0 and mssvm(["predict", str(model), str(test), "--format", "conll", "-o", str(out)]) == 0
    with redirect_stdout(StringIO()) as told:
        assert mssvm(["evaluate", str(model), str(test), "--json"]) == 0
    found = json.loads(told.getvalue())
    status = ms.load(model).status_
    return {"f1": 100 * found["span_f1"]["f1"], "accuracy": 100 * found["accuracy"], "cpu": clock.cpu, "status": status}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peer-python", required=True, help="an interpreter with python-crfsuite and seqeval")
    parser.add_argument("--iterations", type=int, default=1000, help="of crfsuite, at most")
    args = parser.parse_args()
    read = sentences()
    known = {row[-1] for sentence in read[:N_TRAIN] for row in sentence}
    unseen = sum(row[-1] not in known for sentence in read[N_TRAIN:] for row in sentence)
    with tempfile.TemporaryDirectory() as folder:
        result: dict[str, Any] = {"mssvm": ours(read, Path(folder)), "tokens_with_unseen_tags": unseen}
        lines = (Path(folder) / "out.conll").read_text().split("\n")
    result["seqeval"] = peer(args.peer_python, "seqeval_f1.py", {"lines": lines})
    X = ms.features.words([[tuple(row[:-1]) for row in sentence] for sentence in read])
    y = [[row[-1] for row in sentence] for sentence in read]
    biased = [[[*names, "bias"] for names in x] for x in X]
    theirs = peer(
        args.peer_python,
        "crfsuite.py",
        {
            "train": [list(pair) for pair in zip(biased[:N_TRAIN], y[:N_TRAIN], strict=True)],
            "test": biased[N_TRAIN:],
            "c2": 0.5,
            "iterations": args.iterations,
            "possible_states": True,
            "possible_transitions": True,
        },
    )
    result["crfsuite"] = {"f1": f1(theirs["labels"], y[N_TRAIN:]), "seconds": theirs["seconds"]}
    write("columns", result)
    Console().print(result)


if __name__ == "__main__":
    main()
