"""The decomposition bound on an engine: a pairwise graph as monotone chains that share the scores of their variables.

    chains_of(engine, batch, instances, hidden)  -> ChainPlan    chains and layout, from the graphs alone
    plan.run()                                   -> ChainRun     messages: load scores, sweep, read marginals, decode

    PS[eps] theta  <=  sum_c PS[eps rho_c] theta_c  +  sum_i PS[eps l_i] theta_i,    l_i = 1 - sum of rho_c through i

is the bound at one temperature: a sum at eps > 0, a maximum at 0. At two temperatures (with a mask of ``hidden``
variables) PS is the nested power sum, which is exact on every chain. Messages are scores, valid at any temperature.
An engine without chains of its own (``Engine.chains``) uses those of the native engine, or of the reference engine
where the library is not compiled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol, runtime_checkable

import numpy as np

from mssvm.core.arrays import Bools, Floats, Ints
from mssvm.core.potentials import Marginals, Potentials, Query
from mssvm.core.topology import Batch
from mssvm.engines import engine_of
from mssvm.engines.base import Engine

Waiting = Callable[[], tuple[Floats, Floats, Floats]]
"""Waits for an answer: bounds before and after its last sweep (infinite: there was one sweep), and residuals."""


class ChainRun(Protocol):
    """Messages between the variables of chains, changed by sweeps."""

    @property
    def elsewhere(self) -> bool:
        """Whether sweeps run on the host although the engine's device is another."""

    @property
    def state(self) -> Floats:
        """The array of messages from which the next sweep continues; a checkpoint stores it."""

    def restore(self, state: Floats) -> None:
        """Continue from these messages."""

    def load(self, theta: Potentials, allowed: Bools, eps_y: float, eps_h: float) -> None:
        """Replace the scores and temperatures; messages stay as they are."""

    def sweep(self, n: int) -> Floats:
        """The bound of every instance (0 outside the plan) after n sweeps, each one forwards and backwards.

        With n = 0 at two temperatures it is the bound of the messages as they are.
        """

    def read(self, mu: Marginals) -> Floats:
        """After a sweep at eps > 0: write the gradient of the bound with respect to the scores into ``mu``.

        Returns, for every instance, the largest difference between marginals of one variable in two chains.
        """

    def answer(self, n: int, mu: Marginals | None) -> Waiting:
        """Begin n > 0 sweeps, then ``read`` unless ``mu`` is None; a device may go on computing after the call returns.

        Calling the result waits for it: the bounds before the last sweep and after it, and what ``read`` returns.
        """

    def decode(self, states: Ints) -> None:
        """Write a state for every variable, in order: the best given the states of earlier neighbours and the messages
        of later ones."""


@runtime_checkable
class Joinable(Protocol):
    """A deferred answer: computed when its result is requested, or earlier, together with another answer."""

    def __call__(self) -> tuple[Floats, Floats, Floats]: ...

    def join(self, other: Waiting) -> None:
        """Compute both, as far as they can be computed at the same time."""


def compute_together(ones: Iterable[Waiting], others: Iterable[Waiting]) -> None:
    """Compute the answers of two queries pair by pair where the engine can; the rest are computed when waited for."""
    for one, other in zip(ones, others, strict=False):
        if isinstance(one, Joinable):
            one.join(other)


class AtOnce:
    """``ChainRun.answer`` of engines whose sweeps are finished when the call returns."""

    elsewhere: bool = False

    def answer(self: ChainRun, n: int, mu: Marginals | None) -> Waiting:
        first = self.sweep(n - 1) if n > 1 else None
        value = self.sweep(1)
        before = np.full(len(value), np.inf) if first is None else first
        residual = np.zeros(len(value)) if mu is None else self.read(mu)
        return lambda: (before, value, residual)


@runtime_checkable
class Bounding(Protocol):
    """A run that also bounds power sums from below, by independent variables with given marginals."""

    def product(self, query: Query, eps_y: float, eps_h: float, mu: Marginals) -> Floats | None:
        """``inference.decomposition.product`` of every instance (0 outside the plan); None: the marginals are not on
        the device."""


class ChainPlan(Protocol):
    """Chains of some instances of a batch."""

    def factor_weights(self) -> Floats:
        """By factor of the batch, rho of its chain; 0 in other instances."""

    def run(self) -> ChainRun:
        """A run that begins with messages of zero."""


def chains_of(engine: Engine, batch: Batch, instances: Ints, hidden: Bools | None = None) -> ChainPlan:
    """The chains of some instances on an engine; variables of the mask ``hidden`` have the temperature eps_h."""
    with_chains = engine if hasattr(engine, "chains") else engine_of("auto", engine.threads)
    plan: ChainPlan = with_chains.chains(batch, instances, hidden)  # type: ignore[attr-defined]
    return plan


def marginals_of(engine: Engine, batch: Batch) -> Marginals:
    """Marginals of zero where the engine's chains write them."""
    make: Callable[[Batch], Marginals] = getattr(engine, "marginals", Marginals.zeros)
    return make(batch)


def anneal(
    engine: Engine, batch: Batch, theta: Potentials, allowed: Bools, instances: Ints, rounds: Ints, states: Ints
) -> None:
    """Replace the ``states`` of some pairwise ``instances`` by labellings that score no less, by annealing.

    ``rounds`` says how long, for each of them. Without the compiled library states stay as they are.
    """
    annealer = engine if hasattr(engine, "anneal") else engine_of("auto", engine.threads)
    improve = getattr(annealer, "anneal", None)
    if improve is not None:
        improve(batch, theta, allowed, instances, rounds, states)
