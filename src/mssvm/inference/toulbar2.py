"""Exact maxima on loopy graphs by toulbar2 (extra ``map``): max_z theta(z), paper eq. 5 at eps_y = eps_h = 0.

The solver keeps its state in globals and ends on signals, so it runs in processes of its own (``toulbar2_child``).

It minimises whole numbers. The cost of an entry is how far it lies below the best of its table, in steps of 2^-k,
rounded down; k is as large as lets all costs together stay below 2^BITS. With top_f the best entry of table f and D the
proven bound on the whole costs,

    theta(z) = sum_f top_f - sum_f cost_f(z) <= sum_f top_f - 2^-k D        for every z,

which is computed with one rounding, upwards. A proven answer misses it by less than one step a table: that is at most
the ``resolution`` below, and the answer is called exact only then.
"""

from __future__ import annotations

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.util import find_spec
from math import ceil, frexp, fsum, inf, ldexp, nextafter
from pathlib import Path
from typing import Any, NamedTuple
from warnings import warn

import numpy as np

from mssvm.core.arrays import Floats, Ints
from mssvm.core.errors import InputError, MssvmWarning, UnsupportedError
from mssvm.core.params import Settings
from mssvm.core.potentials import Belief, Marginals, Potentials, Query, Status
from mssvm.core.topology import Batch
from mssvm.inference.auto import Auto, merge_beliefs
from mssvm.inference.bounds.relaxation import OneInstance
from mssvm.inference.enumerate import entries

CHILD = Path(__file__).with_name("toulbar2_child.py")
# All costs together are below 2**BITS, so that doubles hold every one of their sums.
BITS = 52
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
        return merge_beliefs(belief, others, ~np.isin(np.arange(len(batch)), missing))

    def attempt(self, batch: Batch, theta: Potentials, query: Query) -> tuple[Belief, list[int]]:
        """What the solver finds, and the instances without an answer, for which everything is zero."""
        if find_spec("pytoulbar2") is None:
            found: list[Found | None] = [None] * len(batch)
        else:
            problems = [WholeCosts.of(batch, b, theta, query) for b in range(len(batch))]
            with ThreadPoolExecutor(self.threads) as pool:
                parts = pool.map(self._share, [problems[k :: self.threads] for k in range(self.threads)])
                shares = [iter(part) for part in parts]
            found = [next(shares[k % self.threads]) for k in range(len(problems))]
        return _belief(batch, theta, query, found), [b for b, answer in enumerate(found) if answer is None]

    def _share(self, problems: list[WholeCosts]) -> list[Found | None]:
        """Of one process after another: one ends at an instance that it could not prove."""
        found: list[Found | None] = []
        while len(found) < len(problems):
            rest = problems[len(found) :]
            text = "\n".join(problem.line(self.time_limit) for problem in rest)
            wait = STARTING + PATIENCE * self.time_limit * len(rest)
            try:
                command = [sys.executable, str(CHILD)]
                done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=wait).stdout
            except subprocess.TimeoutExpired as late:
                done = (late.stdout or b"").decode()
            answers = [json.loads(line) for line in done.splitlines() if line.startswith("{")]
            found += [problem.read(answer) for problem, answer in zip(rest, answers, strict=False)]
            if not answers:
                found.append(None)
        return found


@dataclass(frozen=True, eq=False)
class WholeCosts:
    """One instance in whole costs, in steps of 2**-``shift``; ``functions`` are (scope, costs).

    A forbidden entry costs ``most``, more than any labelling without one.
    """

    cards: tuple[int, ...]
    functions: list[tuple[list[int], Ints]]
    most: int
    shift: int
    tops: list[float]
    rounding: float  # of the differences of scores that costs are

    @classmethod
    def of(cls, batch: Batch, b: int, theta: Potentials, query: Query) -> WholeCosts:
        parts = _parts(OneInstance.of(batch, b, theta, query))
        tops = [float(scores.max()) for _, scores in parts]
        costs = [np.where(scores > -np.inf, top - scores, np.inf) for (_, scores), top in zip(parts, tops, strict=True)]
        largest = fsum(_largest(cost) for cost in costs)
        shift = BITS - frexp(largest)[1]
        whole = [np.floor(np.ldexp(cost, shift)) for cost in costs]
        most = int(sum(_largest(cost) for cost in whole)) + 1
        functions = [
            (scope, np.minimum(cost, most).astype(np.int64)) for (scope, _), cost in zip(parts, whole, strict=True)
        ]
        return cls(tuple(batch.topology(b).cards), functions, most, shift, tops, ldexp(largest, -53))

    def line(self, seconds: float) -> str:
        """As JSON for the solver's process."""
        functions = [[scope, costs.tolist()] for scope, costs in self.functions]
        known = {"cards": self.cards, "functions": functions, "seconds": ceil(seconds), "most": self.most}
        return json.dumps(known)

    def upper(self, dual: float) -> float:
        """Upper bound on the score of every labelling, given a lower bound on its whole costs."""
        return nextafter(fsum([*self.tops, -ldexp(dual, -self.shift), self.rounding]), inf)

    def read(self, answer: dict[str, Any]) -> Found | None:
        """States and upper bound; what is forbidden is no answer."""
        if answer["states"] is None or answer["dual"] >= self.most:
            return None
        return Found(np.array(answer["states"], dtype=np.int64), self.upper(answer["dual"]))


class Found(NamedTuple):
    """A labelling, and an upper bound on the score of all."""

    states: Ints
    upper: float


def _parts(instance: OneInstance) -> list[tuple[list[int], Floats]]:
    """Variables and factors of an instance as (scope, scores)."""
    graph = instance.topology
    tables = zip(graph.scopes, instance.table_at, graph.table_sizes, strict=True)
    parts = [([v], instance.unary[graph.unary_ptr[v] : graph.unary_ptr[v + 1]]) for v in range(graph.n_vars)]
    return parts + [(list(scope), instance.tables[at : at + n]) for scope, at, n in tables]


def _largest(values: Floats) -> float:
    """The largest finite value; 0 if there is none."""
    return float(values[np.isfinite(values)].max(initial=0.0))


def resolution(batch: Batch, b: int, theta: Potentials, query: Query) -> float:
    """What sums of one score a variable and factor are known to in double precision.

    A sum of n scores is rounded by up to n 2^-53 times the sum of their magnitudes. This is eight times as much, with
    the largest magnitude of every table, which is what whole costs need: n steps of at most 2^(1 - BITS) times the
    range of all tables.
    """
    parts = _parts(OneInstance.of(batch, b, theta, query))
    return ldexp(len(parts) + 1.0, 2 - BITS) * fsum(_largest(np.abs(scores)) for _, scores in parts)


def _belief(batch: Batch, theta: Potentials, query: Query, found: list[Found | None]) -> Belief:
    """Scores and one-hot marginals of what was found; zero where nothing was."""
    value, upper, mu = np.zeros(len(batch)), np.zeros(len(batch)), Marginals.zeros(batch)
    exact = np.zeros(len(batch), dtype=bool)
    for b, answer in enumerate(found):
        if answer is not None:
            unary_at, table_at, mu_at = entries(batch, b, answer.states[None])
            value[b] = fsum([*theta.unary[unary_at].ravel(), *theta.tables[table_at].ravel()])
            upper[b] = max(value[b], answer.upper)
            exact[b] = upper[b] - value[b] <= resolution(batch, b, theta, query)
            np.add.at(mu.unary, unary_at, 1.0)
            np.add.at(mu.tables, mu_at, 1.0)
    steps = np.ones(len(batch), dtype=np.int64)
    return Belief(
        value, mu, Status(("toulbar2",) * len(batch), exact, exact, steps, upper - value, value.copy(), upper)
    )
