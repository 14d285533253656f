"""A project: classes with colours, items to label, and the marks on them, replayed from the journal.

A mark gives a class to a part of an item, or removes labels (class None); later marks cover earlier ones. Undo removes
the latest mark of the project, redo restores it. A mark may carry the name of a person (``by``): where several people
mark the same place, their labels are votes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from pathlib import Path
from threading import RLock
from typing import Any

from mssvm.core.arrays import Floats
from mssvm.core.errors import InputError
from mssvm.studio.journal import Event, Journal
from mssvm.studio.votes import UNNAMED

MOST_CLASSES = 20
LONGEST_NAME = 40
COLOURS = (
    "#e69f00",
    "#56b4e9",
    "#009e73",
    "#d55e00",
    "#cc79a7",
    "#0072b2",
    "#f0e442",
    "#999999",
    "#8c564b",
    "#17becf",
)


@dataclass(frozen=True)
class ClassInfo:
    """Name and colour of a class."""

    name: str
    colour: str


@dataclass
class History:
    """Active marks (all, and by item), and undone marks."""

    done: list[Event] = field(default_factory=list)
    undone: list[Event] = field(default_factory=list)
    of_item: dict[int, list[Event]] = field(default_factory=dict)

    def apply(self, event: Event) -> bool:
        """Apply a mark, an undo or a redo; returns whether anything changed."""
        if event["kind"] == "undo":
            if not self.done:
                return False
            mark = self.done.pop()
            self.of_item[mark["item"]].pop()
            self.undone.append(mark)
            return True
        if event["kind"] == "redo":
            if not self.undone:
                return False
            self._give(self.undone.pop())
            return True
        self._give(event)
        self.undone.clear()
        return True

    def _give(self, mark: Event) -> None:
        self.done.append(mark)
        self.of_item.setdefault(mark["item"], []).append(mark)


@dataclass(frozen=True, eq=False)
class TrainingSet:
    """The training data of a model: ``X`` and ``y``, and the labels that can occur. Where several people have marked,
    ``y`` are votes (``annotators``)."""

    X: list[Any]
    y: list[Any]
    classes: list[Any]
    votes: bool = False


@dataclass(frozen=True, eq=False)
class Answer:
    """The model's answer for one item: a class index for every site, and its uncertainty (0 to 1)."""

    labels: Any
    uncertainty: Floats


class Project(ABC):
    """Items of one kind with their marks. ``version`` grows with every change."""

    kind: str

    def __init__(self, home: Path, classes: list[ClassInfo]) -> None:
        self.lock = RLock()
        self.home = home
        self.journal = Journal(home / "journal.jsonl")
        self.classes = list(classes)
        self.history = History()
        self.version = 0
        for event in self.journal.read():
            self._replay(event)

    # ------------------------------------------------------------------------------------------------ what kinds define

    @property
    @abstractmethod
    def n_items(self) -> int:
        """The number of items."""

    @abstractmethod
    def describe(self, item: int) -> dict[str, Any]:
        """The data with which the page draws an item, as JSON values."""

    @abstractmethod
    def check_mark(self, event: Event) -> Event:
        """The event reduced to the fields of a mark of this kind; raises ``InputError`` for a bad one."""

    @abstractmethod
    def training_set(self) -> TrainingSet | None:
        """The training data; None while fewer than two classes are marked."""

    @abstractmethod
    def new_model(self) -> Any:
        """An estimator that has learned nothing yet."""

    @abstractmethod
    def predict(self, model: Any, item: int) -> Answer:
        """The model's answer for an item."""

    @abstractmethod
    def suggestions(self, model: Any, n: int) -> list[dict[str, Any]]:
        """Up to n places where a label would help, the most useful first: the item, and the place in it."""

    @abstractmethod
    def agreement(self, event: Event, answer: Answer) -> tuple[int, int] | None:
        """The number of a mark's sites that the answer predicted right, and the number of its sites; None for marks
        without a class."""

    @abstractmethod
    def disputed(self, item: int) -> Any:
        """The sites of an item to which people give different labels; empty if there are none."""

    @abstractmethod
    def export(self, model: Any, answers: dict[int, Answer]) -> list[Path]:
        """Write labels and predictions beside the data; returns the files."""

    @abstractmethod
    def recipe(self) -> dict[str, str]:
        """The command and the lines of Python that do the same without the studio."""

    # ------------------------------------------------------------------------------------------------ changes

    def marks(self, item: int, by: str | None = None) -> list[Event]:
        """The marks on an item, in their order; with ``by`` those of one person."""
        found = self.history.of_item.get(item, [])
        if by is None:
            return list(found)
        return [event for event in found if name_of(event) == by]

    def annotators(self, item: int | None = None) -> dict[str, int]:
        """Everyone who has marked (an item, or anything), in the order of first marks, and how many marks each gave."""
        counts: dict[str, int] = {}
        for event in self.history.done if item is None else self.marks(item):
            counts[name_of(event)] = counts.get(name_of(event), 0) + 1
        return counts

    def suggest(self, model: Any) -> dict[str, Any] | None:
        """The place where a label would help most; None if everything has one."""
        found = self.suggestions(model, 1)
        return found[0] if found else None

    def disputed_items(self) -> list[int]:
        """Items with sites to which people give different labels."""
        if len(self.annotators()) < 2:
            return []
        shared = [item for item in self.history.of_item if len(self.annotators(item)) > 1]
        return sorted(item for item in shared if len(self.disputed(item)))

    def record(self, event: Event) -> Event | None:
        """Check an event, write it to disk and apply it; returns it as it was written, None if it changed nothing."""
        with self.lock:
            checked = self._checked(event)
            self.journal.append(checked)
            return checked if self._replay(checked) else None

    def _checked(self, event: Event) -> Event:
        kind = event.get("kind")
        if kind in ("undo", "redo"):
            return {"kind": kind}
        if kind == "class":
            return self._checked_class(event)
        if kind != "mark":
            raise InputError(f"there is no event of kind {kind!r}.")
        item = event.get("item")
        if type(item) is not int or not 0 <= item < self.n_items:
            raise InputError(f"there is no item {item!r}.")
        label = event.get("class")
        if label is not None and (type(label) is not int or not 0 <= label < len(self.classes)):
            raise InputError(f"there is no class {label!r}.")
        checked = {"kind": "mark", "item": item, "class": label, **self.check_mark(event)}
        name = _checked_name(event.get("by", ""))
        return {**checked, "by": name} if name else checked

    def _checked_class(self, event: Event) -> Event:
        name = event.get("name")
        if not isinstance(name, str) or not name.strip() or len(name) > LONGEST_NAME or not name.isprintable():
            raise InputError(f"a class needs a name of at most {LONGEST_NAME} characters.")
        if len(self.classes) >= MOST_CLASSES:
            raise InputError(f"there can be at most {MOST_CLASSES} classes.")
        if any(known.name == name.strip() for known in self.classes):
            raise InputError(f"there is a class {name.strip()!r} already.")
        return {"kind": "class", "name": name.strip()}

    def _replay(self, event: Event) -> bool:
        if event["kind"] == "class":
            self.classes.append(ClassInfo(event["name"], COLOURS[len(self.classes) % len(COLOURS)]))
            changed = True
        else:
            changed = self.history.apply(event)
        self.version += changed
        return changed


def name_of(event: Event) -> str:
    """Who made a mark."""
    return str(event.get("by") or UNNAMED)


def _checked_name(name: Any) -> str:
    if not isinstance(name, str) or len(name) > LONGEST_NAME or not name.isprintable():
        raise InputError(f"a name of an annotator has at most {LONGEST_NAME} printable characters.")
    return name.strip()


def named_classes(names: list[str]) -> list[ClassInfo]:
    """Classes with colours of a palette that colour-blind readers can tell apart."""
    return [ClassInfo(name, COLOURS[k % len(COLOURS)]) for k, name in enumerate(names)]
