"""Limits as promises: time within a second or 5%, whichever is more, memory within 10%."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import warnings
from functools import lru_cache
from typing import Any

import numpy as np
import pytest

import mssvm as ms

RUNS = [
    ("CRF", 0, "lbfgs"),
    ("MSSVM", 2, "lbfgs"),
    ("LSSVM", 2, "cccp"),
    ("SSVM", 0, "bcfw"),
    ("SSVM", 0, "cutting-plane"),
    ("MSSVM", 2, "subgradient"),
    ("MSSVM", 2, "adam"),
    ("ModLat", 2, "auto"),
    ("MSSVM", 2, "auto"),
    ("M3E", 2, "auto"),
]


@lru_cache
def chains(n: int) -> tuple[list[Any], list[Any]]:
    rng = np.random.default_rng(0)
    labels = [rng.integers(0, 6, 30) for _ in range(n)]
    return [np.eye(6)[y] + rng.normal(size=(30, 6)) for y in labels], [y.tolist() for y in labels]


@pytest.mark.slow
@pytest.mark.parametrize(("member", "hidden", "solver"), RUNS)
def test_training_ends_within_its_time(member: str, hidden: int, solver: str) -> None:
    """A pass over these data takes a tenth of a second, one of BCFW's over its planes many seconds; M3E has
    fewer data, as it looks at each hidden variable under all states around it."""

    def fit(n: int, max_iter: int, **more: Any) -> Any:
        made = getattr(ms, member)(ms.Chain(hidden=hidden), solver=solver, tol=1e-13, max_iter=max_iter, random_state=0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return made.fit(*chains(n), **more)

    limit = 1.0
    seconds: list[float] = []
    while len(seconds) < 3 and min(seconds, default=np.inf) > 2.0 * limit:  # a machine busy with other work is late
        began = time.monotonic()
        model = fit(200 if member == "M3E" else 2000, 10**6, time_limit=limit)
        seconds.append(time.monotonic() - began)
    assert min(seconds) <= limit + max(1.0, 0.05 * limit)
    assert model.training_["outcome"] in ("time", "converged") and np.isfinite(model.coef_).all()
    assert np.isfinite(model.training_["objective"])


@pytest.mark.slow
def test_images_too_large_for_exact_inference_cost_what_propagation_does() -> None:
    """Learning that exact inference does not fit must not take longer than doing without it."""
    rng = np.random.default_rng(0)
    X, y = [rng.normal(size=(8, 8, 2)) for _ in range(4)], [rng.integers(0, 2, (8, 8)) for _ in range(4)]
    large, seconds = [rng.normal(size=(200, 200, 2))], {}
    for name in ("auto", "propagate"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = ms.CRF(ms.Grid(), max_iter=5, inference=name).fit(X, y)
            model.predict(large)  # compiles
            began = time.process_time()
            model.predict(large)
            seconds[name] = time.process_time() - began
    assert seconds["auto"] <= 1.5 * seconds["propagate"] + 1.0


@pytest.mark.slow
def test_small_grids_with_hidden_variables_train_m3e_at_once() -> None:
    """3 iterations on 3x3 grids, which bordering outputs in all their states once made 20 s."""
    rng = np.random.default_rng(0)
    X, y = [rng.normal(size=(3, 3, 2)) for _ in range(4)], [rng.integers(0, 2, (3, 3)) for _ in range(4)]
    seconds = []
    for _ in range(2):  # the first compiles
        began = time.process_time()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ms.M3E(ms.Grid(hidden=2), max_iter=3, random_state=0).fit(X, y)
        seconds.append(time.process_time() - began)
    assert seconds[1] < 5.0


MEMORY = """
import json, sys
import numpy as np
from pathlib import Path
from mssvm.core.potentials import Potentials, Query
from mssvm.core.topology import Batch, Topology
from mssvm.inference.exact import Exact

def grid(rows, columns, states=2):
    at = lambda i, j: i * columns + j
    scopes = [(at(i, j), at(i, j + 1)) for i in range(rows) for j in range(columns - 1)]
    scopes += [(at(i, j), at(i + 1, j)) for i in range(rows - 1) for j in range(columns)]
    batch = Batch.build([Topology((states,) * (rows * columns), tuple(scopes))])
    rng = np.random.default_rng(0)
    theta = Potentials(rng.normal(size=batch.n_states), rng.normal(size=batch.n_table_entries))
    return batch, theta, Query.all_outputs(batch)

def held(key):
    return 1024 * int(next(l for l in open("/proc/self/status") if l.startswith(key)).split()[1])

methods = (sys.argv[1],)
batch, theta, query = grid(3, 3)
Exact(methods=methods)(batch, theta, query, 1.0, 1.0)
batch, theta, query = grid(17, 17)
plan = Exact(methods=methods).plan(batch)
needed = int(plan.costs(query, 1.0, 1.0).bytes[0])
bound = Exact(needed, methods=methods).plan(batch).bind(query, 1.0, 1.0)
Path("/proc/self/clear_refs").write_text("5")
before = held("VmRSS")
bound(theta)
print(json.dumps([needed, held("VmHWM") - before]))
"""


@pytest.mark.slow
def test_memory_stays_within_its_limit() -> None:
    """A grid that takes about as much as the limit allows: what it took, beside what it was said to."""
    run = subprocess.run([sys.executable, "-c", MEMORY, "elimination"], capture_output=True, text=True, check=True)
    needed, taken = json.loads(run.stdout)
    assert needed > 50e6 and taken <= 1.1 * needed
