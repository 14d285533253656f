"""Fit, predict, save and load from many threads for minutes: memory, threads and open files stay, and so do answers.

    python tools/attack_soak.py [--minutes M] [--threads N] [--json FILE]

All threads do one task each, then meet; what the process holds is measured while they rest. Every member is fitted on
every structure in turn, and must get the weights that it got alone.
"""

from __future__ import annotations

import gc
import os
import sys
import tempfile
import threading
import time
import traceback
import warnings
from itertools import cycle
from pathlib import Path
from typing import Any

import attack_matrix
import numpy as np
from attack import options, report

import mssvm as ms

PAGE = os.sysconf("SC_PAGE_SIZE")
GROWTH = 1.03  # of the median of memory from the second third of the time to the last


class Soak:
    """One run: its tasks, the measurements at every rest (seconds, MB, threads, files), and the failures."""

    def __init__(self, folder: Path, minutes: float, threads: int) -> None:
        self.folder = folder
        self.until = time.monotonic() + 60 * minutes
        self.n = threads
        self.began = time.monotonic()
        kinds = attack_matrix.kinds()
        self.tasks = [(member, kind) for kind in kinds for member in attack_matrix.members_of(kind)]
        self.alone = {(member, kind.name): self.fitted(member, kind).coef_.tobytes() for member, kind in self.tasks}
        self.rests: list[tuple[float, float, int, int]] = []
        self.failed: list[str] = []
        self.meeting = threading.Barrier(threads, action=self.measure)

    @staticmethod
    def fitted(member: str, kind: Any) -> Any:
        return attack_matrix.estimator(member, kind).fit(kind.X, kind.y)

    def measure(self) -> None:
        gc.collect()
        memory = int(Path("/proc/self/statm").read_text().split()[1]) * PAGE / 1e6
        threads = len(os.listdir("/proc/self/task"))
        files = len(os.listdir("/proc/self/fd"))
        self.rests.append((time.monotonic() - self.began, memory, threads, files))

    def task(self, k: int, member: str, kind: Any) -> None:
        model = self.fitted(member, kind)
        path = self.folder / f"{k}.safetensors"
        model.save(path)
        loaded = ms.load(path)
        same = model.coef_.tobytes() == self.alone[member, kind.name] == loaded.coef_.tobytes()
        if not same or repr(model.predict(kind.X)) != repr(loaded.predict(kind.X)):
            self.failed.append(f"{member}, {kind.name}: other weights or answers in thread {k}")

    def work(self, k: int) -> None:
        for member, kind in cycle(self.tasks[k:] + self.tasks[:k]):
            try:
                self.task(k, member, kind)
            except Exception:
                self.failed.append(f"{member}, {kind.name}: {traceback.format_exc()[-300:]}")
            self.meeting.wait()
            if self.rests[-1][0] + self.began > self.until:
                return

    def run(self) -> dict[str, Any]:
        """Counts and the medians of the thirds of the time."""
        threads = [threading.Thread(target=self.work, args=(k,)) for k in range(self.n)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        third = len(self.rests) // 3
        parts = np.array([np.median(self.rests[k * third : (k + 1) * third], axis=0) for k in range(3)])
        _, memory, held, files = parts.round(1).T.tolist()
        if memory[2] > GROWTH * memory[1] or held[2] > held[1] or files[2] > files[1]:
            self.failed.append(f"it grows: MB {memory}, threads {held}, files {files}")
        counts = {"rounds": len(self.rests), "tasks": self.n * len(self.rests), "failed": len(self.failed)}
        return {
            "counts": counts,
            "threads": self.n,
            "seconds": round(self.rests[-1][0], 1),
            "failed": self.failed,
            "thirds": {"megabytes": memory, "threads": held, "files": files},
        }


def main() -> int:
    parser = options(__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--threads", type=int, default=16)
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    attack_matrix.warm_up()
    with tempfile.TemporaryDirectory() as folder:
        return report(Soak(Path(folder), args.minutes, args.threads).run(), args.json)


if __name__ == "__main__":
    sys.exit(main())
