"""An append-only file of events: JSON lines, each flushed to disk before ``append`` returns."""

from __future__ import annotations

import json
import os
from pathlib import Path
from threading import Lock
from typing import Any

from mssvm.core.errors import InputError

Event = dict[str, Any]


class Journal:
    """The journal at ``path``, which is made if it does not exist."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = Lock()
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        self._drop_torn_line()

    def _drop_torn_line(self) -> None:
        """Cut off a last line that a killed process left incomplete: its request was never answered."""
        content = self.path.read_bytes()
        whole = content.rfind(b"\n") + 1
        if whole < len(content):
            with self.path.open("r+b") as file:
                file.truncate(whole)

    def read(self) -> list[Event]:
        """All events so far."""
        events = []
        for number, line in enumerate(self.path.read_text(encoding="utf-8").splitlines(), start=1):
            try:
                event = json.loads(line)
            except ValueError:
                raise InputError(f"{self.path}, line {number} is damaged; restore it, or delete the line.") from None
            events.append(event)
        return events

    def append(self, event: Event) -> None:
        """Write an event; it is on disk when this returns."""
        line = json.dumps(event, ensure_ascii=False, separators=(",", ":")) + "\n"
        with self._lock, self.path.open("ab") as file:
            file.write(line.encode())
            file.flush()
            os.fsync(file.fileno())
