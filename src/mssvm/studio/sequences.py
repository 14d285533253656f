"""Marks on ranges of sequences: spans of words, which become BIO tags, or labels of the sites of series.

In text, class 0 is "O", outside of all spans, and the other classes are types of spans: a mark on a range of words is
one span. In series every class is a label. A mark may also reject a class (``not``): its sites then have a set of
candidates, all labels but those of the class.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mssvm.annotators import GOLD
from mssvm.core.errors import InputError
from mssvm.core.files import replacing
from mssvm.data.chunks import is_bio, span_tags, spans
from mssvm.data.dataset import Dataset
from mssvm.data.readers import Options, read
from mssvm.data.readers.read import format_of
from mssvm.estimators import HCRF
from mssvm.estimators.plots import entropy
from mssvm.structures import Chain
from mssvm.studio.journal import Event
from mssvm.studio.project import Answer, Project, TrainingSet, name_of, named_classes
from mssvm.studio.votes import Site, consensus, single

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
        self._labelled_in_file = {item for item, labels in enumerate(self._given) if _any_label([labels])}
        super().__init__(path.with_name(f".{path.name}.mssvm-studio"), named_classes(self._first_classes()))

    def _from_file(self) -> list[list[Any]]:
        """Labels of the file; tags or plain labels, None where there is none."""
        if self.dataset.y is None:
            return [[None] * self._length(x) for x in self.dataset.X]
        return [[label if isinstance(label, str) else None for label in labels] for labels in self.dataset.y]

    def _first_classes(self) -> list[str]:
        """Classes of the labels in the file, or some to begin with."""
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
        labels = self.labels(item)
        out: dict[str, Any] = {
            "name": str(self.dataset.ids[item] or item + 1),
            "labels": [_definite(label) for label in labels],
            "rejected": [self._rejected(label) for label in labels],
            "disputed": self.disputed(item),
            "votes": {name: [_shown(label) for label in row] for name, row in self.votes(item).items()},
        }
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
        rejects = event.get("not", False)
        if type(rejects) is not bool or (rejects and event.get("class") is None):
            raise InputError("a mark that rejects needs a class, and 'not' is true or false.")
        if not rejects:
            return {"start": start, "stop": stop}
        own = self._own_labels(event["item"], name_of(event))
        for label in self._after_rejection(own[start:stop], event["class"]):
            if not label:
                raise InputError("all other classes are rejected there already; mark the right one instead.")
        return {"start": start, "stop": stop, "not": True}

    # ------------------------------------------------------------------------------------------------ labels

    def labels(self, item: int) -> list[Site]:
        """The known labels of an item's sites: tags (text) or labels (series), candidate sets, or None. Sites on which
        people disagree have None."""
        by_name = self.votes(item)
        if by_name:
            return consensus(by_name, self._unmarked(item))[0]
        return self._marked(self._given[item], self.marks(item))

    def votes(self, item: int) -> dict[str, list[Site]]:
        """The labels of everyone who has marked an item, if there are several."""
        names = self.annotators(item)
        if len(names) < 2:
            return {}
        return {name: self._own_labels(item, name) for name in names}

    def disputed(self, item: int) -> list[int]:
        """The sites to which people give different labels."""
        return consensus(self.votes(item), self._given[item])[1]

    def _own_labels(self, item: int, name: str) -> list[Site]:
        """The labels of one person."""
        return self._marked([None] * len(self._given[item]), self.marks(item, name))

    def _unmarked(self, item: int) -> list[Site]:
        """Labels of the file where nobody has marked."""
        labels: list[Site] = list(self._given[item])
        for event in self.marks(item):
            labels[event["start"] : event["stop"]] = [None] * (event["stop"] - event["start"])
        return labels

    def _votes_to_learn(self, item: int) -> dict[str, list[Any]]:
        """Votes of an item as ``fit`` takes them; labels of the file are the truth where nobody has marked."""
        votes: dict[str, list[Any]] = {GOLD: self._unmarked(item)}
        for name in self.annotators(item):
            # A person may be called like the annotator of the truth.
            votes[name] = _either(self._own_labels(item, name), votes.get(name))
        return {name: [_plain(label) for label in row] for name, row in votes.items()}

    def _marked(self, first: Sequence[Site], marks: list[Event]) -> list[Site]:
        """Labels after a sequence of marks."""
        labels: list[Site] = list(first)
        for event in marks:
            start = event["start"]
            stop = event["stop"]
            if event.get("not"):
                labels[start:stop] = self._after_rejection(labels[start:stop], event["class"])
                continue
            if self.kind == "text" and stop < len(labels):
                labels[stop] = _opened(labels[stop])
            labels[start:stop] = self._of_mark(event["class"], stop - start)
        return labels

    def _after_rejection(self, labels: list[Site], rejected: int) -> list[Site]:
        """Candidates of sites once a class is rejected; a label that was given is rejected with it."""
        without = frozenset(self._tags_of(rejected))
        every = frozenset(self.tags())
        out: list[Site] = []
        for label in labels:
            before = label if isinstance(label, frozenset) else every
            left = before - without
            out.append(single(left) if left else left)
        return out

    def _tags_of(self, label: int) -> list[str]:
        """The tags of a class."""
        name = self.classes[label].name
        if self.kind == "series" or name == OUTSIDE:
            return [name]
        return [f"B-{name}", f"I-{name}"]

    def _rejected(self, label: Site) -> list[str]:
        """Names of the classes that a candidate set leaves out."""
        if not isinstance(label, frozenset):
            return []
        return [info.name for k, info in enumerate(self.classes) if not label & set(self._tags_of(k))]

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
            tags = self.tags()
            marked = {event["item"] for event in self.history.done}
            labelled = sorted(marked | self._labelled_in_file)
            everything = {item: self.labels(item) for item in labelled}
            several = len(self.annotators()) > 1
            votes = {item: self._votes_to_learn(item) for item in labelled} if several else {}
        if several:
            rows = [row for by_name in votes.values() for row in by_name.values()]
            labelled = [item for item in labelled if _any_label(votes[item].values())]
        else:
            rows = [*everything.values()]
            labelled = [item for item in labelled if _any_label([everything[item]])]
        seen = {label for row in rows for label in row if isinstance(label, str)}
        if len(seen) < 2:
            return None
        X = [self.dataset.X[item] for item in labelled]
        if several:
            return TrainingSet(X, [votes[item] for item in labelled], tags, votes=True)
        y = [[_plain(label) for label in everything[item]] for item in labelled]
        return TrainingSet(X, y, tags)

    def new_model(self) -> HCRF:
        structure = Chain(forbidden="bio") if self.kind == "text" else Chain()
        return HCRF(structure, warm_start=True, random_state=0, n_jobs=-1)

    def predict(self, model: Any, item: int) -> Answer:
        with self.lock:
            given = [[_plain(label) for label in self.labels(item)]]
            votes = [self._votes_to_learn(item)]
        X = [self.dataset.X[item]]
        if model.annotators is None:
            p = model.predict_marginals(X, given=given)[0]
            best = model.predict(X, given=given)[0]
        else:
            found = model.aggregate(X, votes, marginals=True)
            best = found[0][0]
            p = found[1][0]
        return Answer([str(label) for label in best.tolist()], entropy(p))

    def suggestions(self, model: Any, n: int) -> list[dict[str, Any]]:
        """The least certain sites of a sample of the items that are not fully labelled."""
        with self.lock:
            everything = [[_plain(label) for label in self.labels(item)] for item in range(self.n_items)]
        open_items = [item for item, labels in enumerate(everything) if _is_open(labels)]
        if not open_items:
            return []
        if len(open_items) > POOL:
            chosen = np.random.default_rng(self.version).choice(len(open_items), POOL, replace=False)
            open_items = [open_items[k] for k in np.sort(chosen)]
        found = model.suggest(
            [self.dataset.X[item] for item in open_items], n=n, given=[everything[item] for item in open_items]
        )
        return [{"item": open_items[one.instance], "site": one.site[0], "gain": one.gain} for one in found]

    def agreement(self, event: Event, answer: Answer) -> tuple[int, int] | None:
        if event["class"] is None or event.get("not"):
            return None
        wanted = self._of_mark(event["class"], event["stop"] - event["start"])
        found = answer.labels[event["start"] : event["stop"]]
        return sum(a == b for a, b in zip(wanted, found, strict=True)), len(wanted)

    # ------------------------------------------------------------------------------------------------ files

    def export(self, model: Any, answers: dict[int, Answer]) -> list[Path]:
        """NAME.labels.jsonl and, for text, NAME.labels.conll: given labels, with predicted ones beside them."""
        records = []
        lines = []
        names = list(self.annotators())
        for item in range(self.n_items):
            labels = self.labels(item)
            found = answers[item].labels if item in answers else [None] * len(labels)
            x = self.words[item] if self.words is not None else np.asarray(self.dataset.X[item]).tolist()
            record = {"x": x, "y": [_shown(label) for label in labels], "predicted": found}
            if len(names) > 1:
                # In files with votes y is the truth (docs/data-formats.md), and people may agree and be wrong.
                record["agreed"] = record["y"]
                record["y"] = [_shown(label) for label in self._unmarked(item)]
                record["votes"] = {name: [_shown(label) for label in self._own_labels(item, name)] for name in names}
            if self.words is not None:
                record["entities"] = [list(span) for span in spans([_definite(label) for label in labels])]
                for word, label, guess in zip(self.words[item], labels, found, strict=True):
                    lines.append(f"{word}\t{_in_column(label)}\t{guess or '_'}")
                lines.append("")
            records.append(json.dumps(record, ensure_ascii=False))
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
        chain = 'ms.Chain(forbidden="bio")' if self.kind == "text" else "ms.Chain()"
        learning = [
            f"clf = ms.HCRF({chain}).fit(data.X, data.labels)",
            "tags = clf.predict(data.X, given=data.labels)",
        ]
        if len(self.annotators()) > 1:
            learning = [
                f"clf = ms.HCRF({chain}, annotators=ms.Annotators())",
                "clf.fit(data.X, data.votes)",
                "tags = clf.aggregate(data.X, data.votes)",
            ]
        lines = ["import mssvm as ms", "", f'data = ms.data.read("{name}")', *learning, 'clf.save("model.safetensors")']
        return {"command": f"mssvm studio {self.path.name} --write", "python": "\n".join(lines)}


def _any_label(rows: Iterable[Sequence[Any]]) -> bool:
    return any(label is not None for row in rows for label in row)


def _is_open(labels: list[Any]) -> bool:
    """Whether a site has no label, or several candidates."""
    return any(not isinstance(label, str) for label in labels)


def _definite(label: Site) -> str | None:
    """The label of a site, None if there are several candidates."""
    return label if isinstance(label, str) else None


def _plain(label: Site) -> Any:
    """A site as ``fit`` takes it: a label, a set of candidates, or None."""
    return set(label) if isinstance(label, frozenset) else label


def _shown(label: Site) -> Any:
    """A site in JSON: candidates are a list."""
    return sorted(label) if isinstance(label, frozenset) else label


def _in_column(label: Site) -> str:
    """A site in a CoNLL column."""
    if isinstance(label, frozenset):
        return "|".join(sorted(label))
    return label or "_"


def _either(labels: list[Site], otherwise: Sequence[Site] | None) -> list[Site]:
    """Labels, replaced by those of another row where there is none."""
    if otherwise is None:
        return labels
    return [label if label is not None else other for label, other in zip(labels, otherwise, strict=True)]


def _opened(label: Site) -> Site:
    """The tag right after a new span: I-x, the continuation of an overwritten span, becomes B-x."""
    if not isinstance(label, str) or not label.startswith("I-"):
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
