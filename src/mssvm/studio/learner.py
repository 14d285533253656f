"""The training thread: it continues from the last weights, restarts after every mark, and predicts the shown item
before others."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from threading import Condition, Thread
from time import perf_counter
from typing import Any

from mssvm.annotators import Annotators
from mssvm.core.errors import MssvmError
from mssvm.studio.journal import Event
from mssvm.studio.project import Answer, Project

FIRST_ITERATIONS = 40  # iterations of the first training
FURTHER_ITERATIONS = 10  # iterations of every later training, which starts from the last weights
ROUNDS = 2  # rounds of training on the votes of several people
MOST_ANSWERS = 200  # items that are predicted in the background


@dataclass
class Progress:
    """What the learner does, for the page."""

    doing: str = "waiting for marks of two classes"
    version: int = 0
    seconds: float = 0.0
    status: str = ""
    error: str = ""
    agreement: list[tuple[int, float]] = field(default_factory=list)


class Learner:
    """Trains whenever the project has changed, and keeps answers of the model for its items."""

    def __init__(self, project: Project, notify: Callable[[], None]) -> None:
        self.project = project
        self.notify = notify
        self.model: Any = None
        self.answers: dict[int, tuple[int, Answer]] = {}  # by item: the version learned, and its answer
        self.progress = Progress()
        self.shown_item = 0
        self._learned: tuple[list[Any], bool] = ([], False)  # classes, and whether from votes
        self._changed = Condition()
        self._wanted = -1
        self._stopping = False
        self._thread = Thread(target=self._run, name="studio-learner", daemon=True)

    def start(self) -> None:
        self._thread.start()
        self.wake()

    def stop(self) -> None:
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        self._thread.join(timeout=10.0)

    def wake(self) -> None:
        """Called after new marks: stop the present training, and start again."""
        with self._changed:
            self._wanted = self.project.version
            self._changed.notify_all()

    def learn_now(self) -> None:
        """Learn in this thread, for scripts that did not ``start`` another one."""
        self.wake()
        self._learn(self.project.version)

    def show(self, item: int) -> None:
        """Called when the page shows an item: predict it before others."""
        with self._changed:
            self.shown_item = item
            self._changed.notify_all()

    def annotators(self) -> list[dict[str, Any]]:
        """Names, marks and, where training has compared them, estimated accuracies."""
        table = getattr(self.model, "annotators_", ())
        accuracy = {row.name: row.accuracy for row in table if row.n_votes}
        people = self.project.annotators().items()
        return [{"name": name, "marks": n, "accuracy": accuracy.get(name)} for name, n in people]

    def compare(self, event: Event) -> None:
        """Compare a new mark with the present prediction, before it is learned (prequential accuracy). This is
        pessimistic, as people mark the places that are wrong."""
        known = self.answers.get(event["item"]) if event["kind"] == "mark" else None
        if known is None:
            return
        found = self.project.agreement(event, known[1])
        if found is not None and found[1]:
            n_marks = len(self.project.history.done)
            self.progress.agreement.append((n_marks, found[0] / found[1]))

    # ------------------------------------------------------------------------------------------------ the thread

    def _run(self) -> None:
        learned = -1
        while True:
            with self._changed:
                while not self._stopping and learned == self._wanted and self._next_item(learned) is None:
                    self._changed.wait()
                if self._stopping:
                    return
                wanted = self._wanted
            try:
                if learned != wanted:
                    self._learn(wanted)
                    learned = wanted
                else:
                    self._predict(self._next_item(learned), learned)
            except MssvmError as error:
                learned = wanted
                self._say(doing="stopped", error=str(error))

    def _interrupted(self) -> bool:
        return self._stopping or self._wanted != self.progress.version

    def _learn(self, version: int) -> None:
        began = perf_counter()
        self.progress.version = version
        data = self.project.training_set()
        if data is None:
            self.model = None
            self.answers.clear()
            self._say(doing="waiting for marks of two classes")
            return
        self._say(doing="learning", error="")
        model = self.model
        if model is None or (data.classes, data.votes) != self._learned:
            model = self.project.new_model()
        goes_on = hasattr(model, "coef_") and not data.votes
        model.set_params(classes=data.classes, max_iter=FURTHER_ITERATIONS if goes_on else FIRST_ITERATIONS)
        if data.votes:
            model.set_params(annotators=Annotators(max_iter=ROUNDS))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # training on a small budget of iterations is intended here
            model.fit(data.X, data.y, callback=lambda row, w: self._interrupted())
        self.model = model
        self._learned = (data.classes, data.votes)
        if self._interrupted():
            return
        self._predict(self.shown_item, version)
        self._say(doing="", seconds=perf_counter() - began, status=model.status_)

    def _predict(self, item: int | None, version: int) -> None:
        if item is None or self.model is None:
            return
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.answers[item] = (version, self.project.predict(self.model, item))
        self.notify()

    def _next_item(self, version: int) -> int | None:
        """An item without an answer of this version, preferably the shown one; None if all have one."""
        if self.model is None or version < 0:
            return None
        items: list[int] = [self.shown_item, *range(min(self.project.n_items, MOST_ANSWERS))]
        for item in items:
            if item not in self.answers or self.answers[item][0] != version:
                return item
        return None

    def _say(self, **changes: Any) -> None:
        for name, value in changes.items():
            setattr(self.progress, name, value)
        self.notify()
