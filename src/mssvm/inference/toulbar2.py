"""Exact maxima on loopy graphs by toulbar2 (extra ``map``): max_z theta(z), paper eq. 5 at eps_y = eps_h = 0.

The solver keeps its state in globals and ends on signals, so it runs in processes of its own (``toulbar2_child``).

It minimises whole numbers. The cost of an entry is its distance below the best of its table, in steps of 2^-k, rounded
down; k is the largest at which the sum of all costs stays below 2^BITS. With top_f the best entry of table f and D the
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
PATIENCE = 3.0  # wall-clock seconds to wait for an instance, per second of its processor time
STARTING = 20.0  # wall-clock seconds for a process to start


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
        if find_spec("pytoulbar2") is None:
            reason = 'is not installed (pip install "mssvm[map]")'
        else:
            reason = f"found nothing for {len(missing)} instances in {self.time_limit:g} s"
        warn(f'toulbar2 {reason}: "auto" is used instead.', MssvmWarning, stacklevel=2)
        substitute = Auto(threads=self.threads).plan(batch).bind(query, 0.0, 0.0, np.array(missing))(theta)
        return merge_beliefs(belief, substitute, ~np.isin(np.arange(len(batch)), missing))

    def attempt(self, batch: Batch, theta: Potentials, query: Query) -> tuple[Belief, list[int]]:
        """The solver's belief, zero for instances without an answer, and the list of these."""
        labellings: list[BoundedLabelling | None] = [None] * len(batch)
        if find_spec("pytoulbar2") is not None:
            problems = [WholeCosts.of(batch, b, theta, query) for b in range(len(batch))]
            shares = [problems[k :: self.threads] for k in range(self.threads)]
            with ThreadPoolExecutor(self.threads) as pool:
                for k, solved in enumerate(pool.map(self._solve, shares)):
                    labellings[k :: self.threads] = solved
        missing = [b for b, labelling in enumerate(labellings) if labelling is None]
        return _belief(batch, theta, query, labellings), missing

    def _solve(self, problems: list[WholeCosts]) -> list[BoundedLabelling | None]:
        """Solve in one process after another: a process ends at an instance that it could not prove."""
        solved: list[BoundedLabelling | None] = []
        while len(solved) < len(problems):
            rest = problems[len(solved) :]
            answers = self._run_process(rest)
            solved += [problem.read(answer) for problem, answer in zip(rest, answers, strict=False)]
            if not answers:
                solved.append(None)
        return solved

    def _run_process(self, problems: list[WholeCosts]) -> list[dict[str, Any]]:
        """The answers of one process, in the order of the problems; perhaps fewer than these."""
        text = "\n".join(problem.line(self.time_limit) for problem in problems)
        wait = STARTING + PATIENCE * self.time_limit * len(problems)
        try:
            command = [sys.executable, str(CHILD)]
            output = subprocess.run(command, input=text, capture_output=True, text=True, timeout=wait).stdout
        except subprocess.TimeoutExpired as late:
            output = (late.stdout or b"").decode()
        return [json.loads(line) for line in output.splitlines() if line.startswith("{")]


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
    rounding: float  # rounding error of the differences of scores from which costs are made

    @classmethod
    def of(cls, batch: Batch, b: int, theta: Potentials, query: Query) -> WholeCosts:
        parts = _parts(OneInstance.of(batch, b, theta, query))
        scopes = [scope for scope, _ in parts]
        tops = [float(scores.max()) for _, scores in parts]
        costs = [_costs(scores) for _, scores in parts]
        largest = fsum(_largest(cost) for cost in costs)
        shift = BITS - frexp(largest)[1]
        whole = [np.floor(np.ldexp(cost, shift)) for cost in costs]
        most = int(sum(_largest(cost) for cost in whole)) + 1
        capped = [np.minimum(cost, most).astype(np.int64) for cost in whole]
        return cls(
            cards=tuple(batch.topology(b).cards),
            functions=list(zip(scopes, capped, strict=True)),
            most=most,
            shift=shift,
            tops=tops,
            rounding=ldexp(largest, -53),
        )

    def line(self, seconds: float) -> str:
        """As JSON for the solver's process."""
        functions = [[scope, costs.tolist()] for scope, costs in self.functions]
        problem = {"cards": self.cards, "functions": functions, "seconds": ceil(seconds), "most": self.most}
        return json.dumps(problem)

    def upper(self, dual: float) -> float:
        """Upper bound on the score of every labelling, given a lower bound on its whole costs."""
        return nextafter(fsum([*self.tops, -ldexp(dual, -self.shift), self.rounding]), inf)

    def read(self, answer: dict[str, Any]) -> BoundedLabelling | None:
        """States and upper bound; None for a forbidden labelling."""
        if answer["states"] is None or answer["dual"] >= self.most:
            return None
        return BoundedLabelling(np.array(answer["states"], dtype=np.int64), self.upper(answer["dual"]))


class BoundedLabelling(NamedTuple):
    """A labelling, and an upper bound on the score of all labellings."""

    states: Ints
    upper: float


def _parts(instance: OneInstance) -> list[tuple[list[int], Floats]]:
    """Variables and factors of an instance as (scope, scores)."""
    graph = instance.topology
    tables = zip(graph.scopes, instance.table_at, graph.table_sizes, strict=True)
    parts = [([v], instance.unary[graph.unary_ptr[v] : graph.unary_ptr[v + 1]]) for v in range(graph.n_vars)]
    return parts + [(list(scope), instance.tables[at : at + n]) for scope, at, n in tables]


def _costs(scores: Floats) -> Floats:
    """Distance of each score below the best; infinite where forbidden."""
    return np.where(scores > -np.inf, float(scores.max()) - scores, np.inf)


def _largest(values: Floats) -> float:
    """The largest finite value; 0 if there is none."""
    return float(values[np.isfinite(values)].max(initial=0.0))


def resolution(batch: Batch, b: int, theta: Potentials, query: Query) -> float:
    """The precision of theta(z), a sum of one score per variable and factor, in double precision.

    A sum of n scores is rounded by up to n 2^-53 times the sum of their magnitudes. This is eight times as much, with
    the largest magnitude of every table, as whole costs need it: n steps of at most 2^(1 - BITS) times the range of all
    tables.
    """
    parts = _parts(OneInstance.of(batch, b, theta, query))
    return ldexp(len(parts) + 1.0, 2 - BITS) * fsum(_largest(np.abs(scores)) for _, scores in parts)


def _belief(batch: Batch, theta: Potentials, query: Query, labellings: list[BoundedLabelling | None]) -> Belief:
    """Scores and one-hot marginals of the labellings; zero where there is none."""
    value = np.zeros(len(batch))
    upper = np.zeros(len(batch))
    exact = np.zeros(len(batch), dtype=bool)
    mu = Marginals.zeros(batch)
    for b, labelling in enumerate(labellings):
        if labelling is None:
            continue
        unary_at, table_at, mu_at = entries(batch, b, labelling.states[None])
        value[b] = fsum([*theta.unary[unary_at].ravel(), *theta.tables[table_at].ravel()])
        upper[b] = max(value[b], labelling.upper)
        exact[b] = upper[b] - value[b] <= resolution(batch, b, theta, query)
        np.add.at(mu.unary, unary_at, 1.0)
        np.add.at(mu.tables, mu_at, 1.0)
    status = Status(
        method=("toulbar2",) * len(batch),
        exact=exact,
        converged=exact,
        sweeps=np.ones(len(batch), dtype=np.int64),
        residual=upper - value,
        lower=value.copy(),
        upper=upper,
    )
    return Belief(value, mu, status)
