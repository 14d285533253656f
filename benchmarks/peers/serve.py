"""A peer as a process: a first line of JSON says which work, every further line asks for one timed run.

What a work's function gives back runs once and returns {"answer": ..., "units": ...}; it may time a part of itself and
add "wall" and "cpu". Replies are lines of JSON on the standard output, to which nothing else may write.
"""

import json
import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import workloads as w

__all__ = ["serve", "w"]


def serve(works):
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a library prints goes to the standard error

    def reply(message):
        replies.write(json.dumps(message) + "\n")
        replies.flush()

    asked = json.loads(sys.stdin.readline())
    run = works[asked["work"]](asked["quick"], **asked["settings"])
    reply({"ready": True})
    for _ in sys.stdin:
        wall = time.perf_counter()
        cpu = time.process_time()
        done = run()
        times = {"wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu}
        reply({"units": 1.0, **times, **done})
