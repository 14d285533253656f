"""Exact maxima on loopy graphs by toulbar2 (extra ``map``): max_z theta(z), paper eq. 5 at eps_y = eps_h = 0.

The solver keeps its state in globals and ends on signals, so it runs in processes of its own (``toulbar2_child``).
"""

from __future__ import annotations

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.util import find_spec
from math import ceil
from pathlib import Path
from typing import Any
from warnings import warn

import numpy as np

from mssvm.core.arrays import Ints
from mssvm.core.errors import InputError, MssvmWarning, UnsupportedError
from mssvm.core.params import Settings
from mssvm.core.potentials import Belief, Marginals, Potentials, Query, Status
from mssvm.core.topology import Batch
from mssvm.inference.base import Auto, joined
from mssvm.inference.bounds.relaxation import OneInstance
from mssvm.inference.enumerate import entries
from mssvm.inference.toulbar2_child import DIGITS

CHILD = Path(__file__).with_name("toulbar2_child.py")
# Wall-clock seconds beyond its processor time that an instance is waited for, and that a process takes to start.
PATIENCE, STARTING = 3.0, 20.0


@dataclass(frozen=True)
class Toulbar2(Settings):
    """Maxima by toulbar2, proven where time allows (``Status.exact``); eps_y = eps_h = 0 only.

    An instance for which nothing is found in time, and every instance where the solver is not installed
    (``pip install "mssvm[map]"``), is answered by ``Auto``, with a warning.

    Parameters
    ----------
    time_limit : seconds of processor time on an instance.
    threads : instances that are solved at the same time.

    >>> sure = ms.SSVM(ms.Grid(), inference=ms.inference.Toulbar2(time_limit=2.0))       # or inference="toulbar2"
    >>> sure.inference.time_limit
    2.0
    """

    time_limit: float = 10.0
    threads: int = 1

    def __post_init__(self) -> None:
        if not (0.0 < self.time_limit < float("inf") and self.threads >= 1):
            raise InputError(
                f"time_limit must be positive, threads 1 or more, got {self.time_limit} and {self.threads}."
            )

    def __call__(self, batch: Batch, theta: Potentials, query: Query, eps_y: float, eps_h: float) -> Belief:
        if eps_y != 0.0 or eps_h != 0.0:
            raise UnsupportedError(
                f"toulbar2 maximises over everything: eps_y = eps_h = 0 (SSVM, LSSVM), got {eps_y} and {eps_h}."
            )
        theta.check(batch)
        query.check(batch)
        belief, missing = self.attempt(batch, theta, query)
        if not missing:
            return belief
        installed = find_spec("pytoulbar2") is not None
        nothing = f"found nothing for {len(missing)} instances in {self.time_limit:g} s"
        why = nothing if installed else 'is not installed (pip install "mssvm[map]")'
        warn(f'toulbar2 {why}: "auto" answers.', MssvmWarning, stacklevel=2)
        others = Auto(threads=self.threads).plan(batch).bind(query, 0.0, 0.0, np.array(missing))(theta)
        return joined(belief, others, ~np.isin(np.arange(len(batch)), missing))

    def attempt(self, batch: Batch, theta: Potentials, query: Query) -> tuple[Belief, list[int]]:
        """What the solver finds, and the instances without an answer, for which everything is zero."""
        if find_spec("pytoulbar2") is None:
            found: list[tuple[Ints, float] | None] = [None] * len(batch)
        else:
            problems = [_problem(batch, b, theta, query, self.time_limit) for b in range(len(batch))]
            with ThreadPoolExecutor(self.threads) as pool:
                parts = pool.map(self._share, [problems[k :: self.threads] for k in range(self.threads)])
                shares = [iter(part) for part in parts]
            found = [next(shares[k % self.threads]) for k in range(len(problems))]
        return _belief(batch, theta, found), [b for b, answer in enumerate(found) if answer is None]

    def _share(self, problems: list[dict[str, Any]]) -> list[tuple[Ints, float] | None]:
        """Of one process after another: one ends at an instance that it could not prove."""
        found: list[tuple[Ints, float] | None] = []
        while len(found) < len(problems):
            rest = problems[len(found) :]
            text = "\n".join(json.dumps({k: p[k] for k in ("cards", "functions", "seconds", "most")}) for p in rest)
            wait = STARTING + PATIENCE * self.time_limit * len(rest)
            try:
                command = [sys.executable, str(CHILD)]
                done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=wait).stdout
            except subprocess.TimeoutExpired as late:
                done = (late.stdout or b"").decode()
            answers = [json.loads(line) for line in done.splitlines() if line.startswith("{")]
            found += [_read(problem, answer) for problem, answer in zip(rest, answers, strict=False)]
            if not answers:
                found.append(None)
        return found


def _problem(batch: Batch, b: int, theta: Potentials, query: Query, seconds: float) -> dict[str, Any]:
    """Costs are scores below the best entry of their table; forbidden ones cost more than all others together."""
    i = OneInstance.of(batch, b, theta, query)
    graph = i.topology
    tables = zip(graph.scopes, i.table_at, graph.table_sizes, strict=True)
    parts = [([v], i.unary[graph.unary_ptr[v] : graph.unary_ptr[v + 1]]) for v in range(graph.n_vars)]
    parts += [(list(scope), i.tables[at : at + n]) for scope, at, n in tables]
    best = [float(part.max()) for _, part in parts]
    costs = [np.where(part > -np.inf, top - part, np.inf) for (_, part), top in zip(parts, best, strict=True)]
    most = sum(float(c[c < np.inf].max(initial=0.0)) for c in costs) + 1.0
    functions = [[scope, np.minimum(c, most).tolist()] for (scope, _), c in zip(parts, costs, strict=True)]
    known = {"cards": graph.cards, "functions": functions, "seconds": ceil(seconds)}
    return {**known, "best": sum(best), "most": most}


def _read(problem: dict[str, Any], answer: dict[str, Any]) -> tuple[Ints, float] | None:
    """States and upper bound; what is forbidden is no answer."""
    if answer["states"] is None or answer["dual"] >= problem["most"]:
        return None
    slack = (len(problem["functions"]) + 1) * 10.0**-DIGITS
    return np.array(answer["states"], dtype=np.int64), problem["best"] - answer["dual"] + slack


def _belief(batch: Batch, theta: Potentials, found: list[tuple[Ints, float] | None]) -> Belief:
    """Scores and one-hot marginals of what was found; zero where nothing was."""
    value, upper, mu = np.zeros(len(batch)), np.zeros(len(batch)), Marginals.zeros(batch)
    for b, answer in enumerate(found):
        if answer is not None:
            unary_at, table_at, mu_at = entries(batch, b, answer[0][None])
            value[b] = theta.unary[unary_at].sum() + theta.tables[table_at].sum()
            upper[b] = max(value[b], answer[1])
            np.add.at(mu.unary, unary_at, 1.0)
            np.add.at(mu.tables, mu_at, 1.0)
    # Costs are rounded to DIGITS, one function each: what lies within that is proven.
    room = np.array([2.0 * (1 + g.n_vars + g.n_factors) for g in map(batch.topology, range(len(batch)))])
    exact = upper - value <= room * 10.0**-DIGITS
    steps = np.ones(len(batch), dtype=np.int64)
    return Belief(
        value, mu, Status(("toulbar2",) * len(batch), exact, exact, steps, upper - value, value.copy(), upper)
    )
