"""Small problems with closed forms for the tests of the solvers: multiclass classification with a hidden state."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

from mssvm.core.arrays import Floats, Ints
from mssvm.core.power import power_sum
from mssvm.experiments.members import Arena, Untrained
from mssvm.experiments.simulate import Recipe, Simulation, hidden_chain, simulate
from mssvm.inference.exact import Exact
from mssvm.objectives.problem import Evaluation, Problem
from mssvm.optim import Regulariser


@dataclass(frozen=True, eq=False)
class Toy:
    """theta_i(y, h) = w[y, h] . x_i, loss 1[y != y_i]; with one hidden state a multiclass SVM or CRF."""

    x: Floats
    y: Ints
    n_labels: int
    n_hidden: int
    eps_y: float
    eps_h: float
    scale: Floats
    exact: bool = True

    @classmethod
    def draw(
        cls, n: int = 30, d: int = 6, n_labels: int = 3, n_hidden: int = 1, eps_y: float = 0.0, eps_h: float = 0.0
    ) -> Toy:
        rng = np.random.default_rng(0)
        x = rng.normal(size=(n, d))
        true = rng.normal(size=(n_labels, n_hidden, d))
        y = np.einsum("khd,nd->nkh", true, x).max(axis=2).argmax(axis=1)
        flip = rng.random(n) < 0.15
        y[flip] = rng.integers(n_labels, size=int(flip.sum()))
        return cls(x, y, n_labels, n_hidden, eps_y, eps_h, rng.uniform(0.5, 1.5, n))

    @property
    def n_instances(self) -> int:
        return len(self.x)

    @property
    def n_weights(self) -> int:
        return self.n_labels * self.n_hidden * self.x.shape[1]

    @property
    def n_sites(self) -> int:
        return len(self.x)

    @property
    def temperatures(self) -> tuple[float, float]:
        return self.eps_y, self.eps_h

    @property
    def log_outputs(self) -> Floats:
        return np.full(len(self.x), np.log(self.n_labels))

    @property
    def convex(self) -> bool:
        return self.n_hidden == 1

    def at(self, eps_y: float, eps_h: float) -> Toy:
        return replace(self, eps_y=eps_y, eps_h=eps_h)

    def tempering(self, eps_y: float, eps_h: float) -> tuple[Floats, Floats]:
        hidden = np.full(len(self.x), max(eps_h - self.eps_h, 0.0) * np.log(self.n_hidden))
        return max(eps_y - self.eps_y, 0.0) * self.log_outputs + hidden, hidden

    def plus(self, w: Floats, which: Ints | None = None) -> Evaluation:
        ids = self._ids(which)
        value, mu = self._plus(w, ids)
        return self._part(ids, value, mu, plus_calls=len(ids))

    def minus(self, w: Floats, which: Ints | None = None) -> Evaluation:
        ids = self._ids(which)
        value, mu = self._minus(w, ids)
        return self._part(ids, value, mu, minus_calls=len(ids))

    def difference(self, w: Floats, which: Ints | None = None) -> Evaluation:
        ids = self._ids(which)
        (high, mu_high), (low, mu_low) = self._plus(w, ids), self._minus(w, ids)
        return self._part(ids, high - low, mu_high - mu_low, plus_calls=len(ids), minus_calls=len(ids))

    @property
    def has_atoms(self) -> bool:
        return True

    def atom(self, w: Floats, i: int) -> tuple[float, Floats]:
        value, mu = self._plus(w, np.array([i]))
        return float(value[0]), mu[0].ravel()

    def features_of(self, i: int, mu: Floats) -> Floats:
        return np.outer(mu, self.x[i]).ravel()

    def scores_of(self, i: int, w: Floats) -> Floats:
        return w.reshape(-1, self.x.shape[1]) @ self.x[i]

    def _ids(self, which: Ints | None) -> Ints:
        return np.arange(len(self.x)) if which is None else np.asarray(which)

    def _theta(self, w: Floats, ids: Ints) -> Floats:
        return np.einsum("khd,nd->nkh", w.reshape(self.n_labels, self.n_hidden, -1), self.x[ids])

    def _plus(self, w: Floats, ids: Ints) -> tuple[Floats, Floats]:
        loss = (np.arange(self.n_labels) != self.y[ids][:, None]).astype(float)
        inner, p_h = power_sum(self._theta(w, ids), self.eps_h, axis=2)
        value, p_y = power_sum(inner + loss, self.eps_y, axis=1)
        return value, p_y[:, :, None] * p_h

    def _minus(self, w: Floats, ids: Ints) -> tuple[Floats, Floats]:
        inner, p_h = power_sum(self._theta(w, ids), self.eps_h, axis=2)
        chosen = np.arange(self.n_labels) == self.y[ids][:, None]
        return inner[chosen], p_h * chosen[:, :, None]

    def _part(self, ids: Ints, value: Floats, mu: Floats, plus_calls: int = 0, minus_calls: int = 0) -> Evaluation:
        c = self.scale[ids]
        gradient = np.einsum("nkh,nd->khd", mu * c[:, None, None], self.x[ids]).ravel()
        calls = plus_calls + minus_calls
        return Evaluation(value, float(c @ value), gradient, plus_calls, minus_calls, calls, 0, self.exact)


@lru_cache
def visible_chain() -> Problem:
    """A chain of eight outputs, nothing hidden: a structured SVM."""
    recipe = Recipe(n_train=12, n_test=1, n_states=3)
    sim = simulate([(i, i + 1) for i in range(7)], np.ones(8, dtype=bool), recipe, np.random.default_rng(3))
    return posed(sim, "L")


@lru_cache
def latent_chain(name: str) -> Problem:
    """A short form of the paper's hidden chain."""
    sim = hidden_chain(np.random.default_rng(5), Recipe(n_train=10, n_test=1, n_states=3), n_sites=8)
    return posed(sim, {"mssvm": "M", "lssvm": "L", "hcrf": "H"}[name])


def posed(sim: Simulation, member: str) -> Problem:
    """The problem that a member's ``fit`` solves."""
    solver = Untrained()
    Arena.of(sim, 0.0, np.random.default_rng(0), Exact()).fit(member, solver)
    return solver.problem


def objective(problem: Any, w: np.ndarray, regulariser: Regulariser | None = None) -> float:
    return (regulariser or Regulariser()).value(w) + problem.difference(w).total
