"""Marks on ranges of sequences: spans of words, which become BIO tags, or labels of the sites of series.

In text, class 0 is "O", outside of all spans, and the other classes are types of spans: a mark on a range of words is
one span. In series every class is a label.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from mssvm.core.errors import InputError
from mssvm.core.files import replacing
from mssvm.data.dataset import Dataset
from mssvm.data.metrics import is_bio, span_tags
from mssvm.data.readers import Options, read
from mssvm.data.readers.read import format_of
from mssvm.estimators import HCRF
from mssvm.estimators.plots import entropy
from mssvm.structures import Chain
from mssvm.studio.journal import Event
from mssvm.studio.project import Answer, Project, TrainingSet, named_classes

MOST_ITEMS = 20_000
LONGEST = 20_000  # sites of an item
PLOTTED = 8  # features of a series that are drawn
OUTSIDE = "O"
POOL = 500  # items that suggestions are chosen from


class SequenceProject(Project):
    """The sentences or series of a file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.words, self.dataset = _read(path)
        self.kind = "text" if self.words is not None else "series"
        if len(self.dataset) > MOST_ITEMS:
            raise InputError(f"{path} has more than {MOST_ITEMS} sequences; split it.")
        self._given = self._from_file()
        super().__init__(path.with_name(f".{path.name}.mssvm-studio"), named_classes(self._first_classes()))

    def _from_file(self) -> list[list[Any]]:
        """Labels of the file; tags or plain labels, None where there is none."""
        if self.dataset.y is None:
            return [[None] * self._length(x) for x in self.dataset.X]
        return [[label if isinstance(label, str) else None for label in labels] for labels in self.dataset.y]

    def _first_classes(self) -> list[str]:
        """Classes of the labels in the file, or one to begin with."""
        labels = sorted({label for labels in self._given for label in labels if label is not None})
        if self.kind == "series":
            return labels or ["a", "b"]
        kinds = sorted({label.partition("-")[2] or label for label in labels if label != OUTSIDE})
        if labels and not is_bio(labels):
            raise InputError(f"{self.path} has tags that are not BIO; the studio marks spans.")
        return [OUTSIDE, *(kinds or ["span"])]

    @staticmethod
    def _length(x: Any) -> int:
        return len(x["x"]) if isinstance(x, dict) else len(x)

    @property
    def n_items(self) -> int:
        return len(self.dataset)

    def describe(self, item: int) -> dict[str, Any]:
        out: dict[str, Any] = {"name": str(self.dataset.ids[item] or item + 1), "labels": self.labels(item)}
        if self.words is not None:
            out["words"] = self.words[item]
        else:
            values = np.asarray(self.dataset.X[item], dtype=np.float64)[:, :PLOTTED]
            out["values"] = values.round(6).T.tolist()
        return out

    def check_mark(self, event: Event) -> Event:
        start = event.get("start")
        stop = event.get("stop")
        length = self._length(self.dataset.X[event["item"]])
        if type(start) is not int or type(stop) is not int or not 0 <= start < stop <= length:
            raise InputError(f"a mark needs a range of sites between 0 and {length}.")
        return {"start": start, "stop": stop}

    # ------------------------------------------------------------------------------------------------ labels

    def labels(self, item: int) -> list[str | None]:
        """Tags (text) or labels (series) of the sites of an item, None where there is none."""
        labels: list[str | None] = list(self._given[item])
        for event in self.marks(item):
            start = event["start"]
            stop = event["stop"]
            if self.kind == "text" and stop < len(labels):
                labels[stop] = _opened(labels[stop])
            labels[start:stop] = self._of_mark(event["class"], stop - start)
        return labels

    def _of_mark(self, label: int | None, length: int) -> list[str | None]:
        if label is None:
            return [None] * length
        name = self.classes[label].name
        if self.kind == "series" or name == OUTSIDE:
            return [name] * length
        return [*span_tags(name, length)]

    def tags(self) -> list[str]:
        """All labels that can occur."""
        names = [info.name for info in self.classes]
        if self.kind == "series":
            return names
        return [OUTSIDE, *(f"{part}-{name}" for name in names if name != OUTSIDE for part in "BI")]

    # ------------------------------------------------------------------------------------------------ learning

    def training_set(self) -> TrainingSet | None:
        with self.lock:
            everything = [self.labels(item) for item in range(self.n_items)]
            tags = self.tags()
        labelled = [item for item, labels in enumerate(everything) if any(label is not None for label in labels)]
        seen = {label for item in labelled for label in everything[item] if label is not None}
        if len(seen) < 2:
            return None
        return TrainingSet([self.dataset.X[item] for item in labelled], [everything[item] for item in labelled], tags)

    def new_model(self) -> HCRF:
        structure = Chain(forbidden="bio") if self.kind == "text" else Chain()
        return HCRF(structure, warm_start=True, random_state=0, n_jobs=-1)

    def predict(self, model: Any, item: int) -> Answer:
        with self.lock:
            given = self.labels(item)
        X = [self.dataset.X[item]]
        p = model.predict_marginals(X, given=[given])[0]
        best = model.predict(X, given=[given])[0]
        return Answer([str(label) for label in best.tolist()], entropy(p))

    def suggest(self, model: Any) -> dict[str, Any] | None:
        """The least certain site, of items with few labels first."""
        with self.lock:
            everything = [self.labels(item) for item in range(self.n_items)]
        open_items = [item for item, labels in enumerate(everything) if None in labels][:POOL]
        if not open_items:
            return None
        found = model.suggest(
            [self.dataset.X[item] for item in open_items], n=1, given=[everything[item] for item in open_items]
        )
        if not found:
            return None
        (site,) = found[0].site
        return {"item": open_items[found[0].instance], "site": site, "gain": found[0].gain}

    def agreement(self, event: Event, answer: Answer) -> tuple[int, int] | None:
        if event["class"] is None:
            return None
        wanted = self._of_mark(event["class"], event["stop"] - event["start"])
        found = answer.labels[event["start"] : event["stop"]]
        return sum(a == b for a, b in zip(wanted, found, strict=True)), len(wanted)

    # ------------------------------------------------------------------------------------------------ files

    def export(self, model: Any, answers: dict[int, Answer]) -> list[Path]:
        """NAME.labels.jsonl and, of text, NAME.labels.conll: labels given, and predicted ones beside them."""
        records = []
        lines = []
        for item in range(self.n_items):
            labels = self.labels(item)
            found = answers[item].labels if item in answers else [None] * len(labels)
            x = self.words[item] if self.words is not None else np.asarray(self.dataset.X[item]).tolist()
            records.append(json.dumps({"x": x, "y": labels, "predicted": found}, ensure_ascii=False))
            if self.words is not None:
                for word, label, guess in zip(self.words[item], labels, found, strict=True):
                    lines.append(f"{word}\t{label or '_'}\t{guess or '_'}")
                lines.append("")
        written = [self._write(".labels.jsonl", records)]
        if self.words is not None:
            written.append(self._write(".labels.conll", lines))
        return written

    def _write(self, ending: str, lines: list[str]) -> Path:
        path = self.path.with_name(self.path.name.partition(".")[0] + ending)
        with replacing(path) as file:
            file.write(("\n".join(lines) + "\n").encode())
        return path

    def recipe(self) -> dict[str, str]:
        name = self.path.name.partition(".")[0] + ".labels.jsonl"
        constraint = ' forbidden="bio"' if self.kind == "text" else ""
        return {
            "command": f"mssvm studio {self.path.name} --write",
            "python": "\n".join(
                (
                    "import mssvm as ms",
                    "",
                    f'data = ms.data.read("{name}")',
                    f"clf = ms.HCRF(ms.Chain({constraint.strip()})).fit(data.X, data.labels)",
                    "tags = clf.predict(data.X, given=data.labels)",
                    'clf.save("model.safetensors")',
                )
            ),
        }


def _opened(label: str | None) -> str | None:
    """A tag behind a new span: what went on with an earlier span begins one."""
    if label is None or not label.startswith("I-"):
        return label
    return f"B-{label[2:]}"


def _read(path: Path) -> tuple[list[list[str]] | None, Dataset]:
    """The words of the sentences (None for series), and the data set."""
    if path.suffix == ".txt" and not any("\t" in line for line in _first_lines(path)):
        sentences = [line.split() for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
        if not sentences:
            raise InputError(f"{path} holds no sentences.")
        return sentences, _dataset(path, sentences)
    form = format_of(path)
    if form == "conll":
        dataset = read(path, Options(format="conll", sources=True))
        return [[line.split()[0] for line in lines] for lines in dataset.sources or []], dataset
    dataset = read(path)
    if dataset.kind not in ("chain", "sequence"):
        raise InputError(f"{path} holds {dataset.kind}s; the studio takes pictures, sentences and series.")
    if all(isinstance(x, np.ndarray) for x in dataset.X):
        return None, dataset
    return _words_of(path), dataset


def _first_lines(path: Path) -> list[str]:
    with path.open(encoding="utf-8", errors="replace") as file:
        return [line for _, line in zip(range(50), file, strict=False)]


def _dataset(path: Path, sentences: list[list[str]]) -> Dataset:
    from mssvm.data.words import words

    n = len(sentences)
    return Dataset(str(path), "chain", words(sentences), None, list(range(1, n + 1)), [None] * n)


def _words_of(path: Path) -> list[list[str]]:
    """The words of JSON lines whose ``x`` are lists of words."""
    out = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        if not line.strip():
            continue
        x = json.loads(line).get("x")
        if not isinstance(x, list) or not all(isinstance(word, str) for word in x):
            raise InputError(f"{path}, line {number}: the studio shows words; give 'x' as a list of words.")
        out.append(x)
    return out
