"""Belief propagation on an engine: what a search over starts needs, in the engine's own arrays.

    engine.messages(batch)            -> MessagePlan    index arrays and sweep order, from the graphs alone
    plan.load(theta, query, noise)    -> MessageModel   masked potentials
    model.groups(...), model.run()    -> MessageRun     messages: start, advance, decode, hold, beliefs
    model.given(components, eps_h)    -> Conditional    hidden trees given the outputs, exactly: Q(y) and local search

The recursion, for a factor a with outputs a_B and hidden a_A, and cavities n_i = theta_i + the other messages to i:

    S_a = theta_a + sum_i n_i          R_a(x_B) = PS_{eps_h} over x_A of S_a
    b_a = softmax_{eps_y}(R_a)(x_B) * exp((S_a - R_a) / eps_h)
    output i   m_i(x_i) = PS_{eps_y} over the other outputs of R_a  -  n_i(x_i)
    hidden i   m_i(x_i) = eps_h log b_a(x_i)  -  n_i(x_i)

up to a constant, which is chosen so that max m_i = 0. At eps_y = 0 the softmax is uniform over the maximisers of R_a.

Potentials and messages in progress are the engine's. States y and z (one number per variable), values, residuals and
log-messages (one message per entry of ``Batch.scope_vars``, in that order) are NumPy arrays over the whole batch, of
which a method reads and writes the named ``instances`` only. Engines spread instances over threads themselves.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, Protocol

import numpy as np

from mssvm.core.arrays import Bools, Floats, Ints
from mssvm.core.components import HiddenComponents, hidden_components
from mssvm.core.potentials import Marginals, Potentials, Query
from mssvm.core.topology import Batch

# Tie-breaking noise, relative to a score.
NOISE = 1e-10


@dataclass(frozen=True, eq=False)
class Temperatures:
    """``eps_y`` for the variables in ``outputs``, ``eps_h`` for the others: sum-, max-, mixed-product or between."""

    outputs: Bools
    eps_y: float
    eps_h: float

    @classmethod
    def one(cls, n_vars: int, eps: float) -> Temperatures:
        """Sum-product at eps > 0, max-product at 0."""
        return cls(np.full(n_vars, eps == 0.0), eps, eps)

    @cached_property
    def maximal(self) -> Bools:
        """The variables that are maximised."""
        return self.outputs & (self.eps_y == 0.0)

    @property
    def lowest(self) -> float:
        """The smallest temperature that is not zero, or zero."""
        return min((eps for eps in (self.eps_y, self.eps_h) if eps > 0.0), default=0.0)


@dataclass(frozen=True)
class Schedule:
    """How sweeps are made: factor by factor in alternating directions, or all at once (``flooding``); messages are
    averaged with the old ones in log space, by the share ``damping``; residuals up to ``tolerance`` are convergence."""

    damping: float = 0.0
    flooding: bool = False
    tolerance: float = 1e-9


class Borders(NamedTuple):
    """Outputs ``var[ptr[c] : ptr[c+1]]`` at the border of component c, and where numbers about its joint border states
    (C-ordered) lie: ``entry_ptr[c] : entry_ptr[c+1]``, empty for components that are left alone."""

    ptr: Ints
    var: Ints
    entry_ptr: Ints


class MessageRun(Protocol):
    """Messages of a batch in progress; ``sweeps`` made since the start and last ``residual``, infinite at the start
    (set it to infinity to go on at other temperatures), per instance.

    A residual up to the tolerance says that log-messages have come to rest: none changed by more in the last sweep, in
    units of the lowest positive temperature (of ``unit`` where there is none), nor by more than rounding of the scores
    it is made of. An engine may measure changes of probabilities while these are larger, or where no table is so strong
    that a probability could be tiny: a state of probability 1e-12 may still move by hundreds.
    """

    batch: Batch
    sweeps: Ints
    residual: Floats
    unit: float

    def start(self, instances: Ints, messages: Floats | None) -> None:
        """Begin with the given log-messages, or uniform ones."""

    def advance(self, instances: Ints, temperatures: Temperatures, n_sweeps: int, schedule: Schedule) -> None:
        """Up to ``n_sweeps`` more sweeps of the recursion, for every instance until it converges."""

    def hold(self, instances: Ints, outside: Bools, y: Ints) -> None:
        """From the next start on, forbid every state but y of the variables ``outside``."""

    def decode(self, instances: Ints, y: Ints) -> None:
        """y_i = argmax over allowed states of theta_i + all messages to i; the first of equals."""

    def scores(self, instances: Ints) -> Floats:
        """theta_i + all messages to i, up to a constant, also at states that ``hold`` forbids."""

    def log_messages(self, instances: Ints) -> Floats:
        """The messages, as ``start`` takes them; anything for other instances."""

    def beliefs(self, instances: Ints, temperatures: Temperatures, value: Floats, mu: Marginals | None) -> None:
        """Region free energy sum_a PS(S_a) + sum_i (1 - degree_i) PS(g_i), with g_i = theta_i + all messages to i and
        PS(S_a) = PS_{eps_y} R_a; adds b_a and b_i = softmax(g_i), if wanted, to ``mu`` (at mu_at of the batch)."""


class Conditional(Protocol):
    """Q(y) = PS_{eps_h} over h of theta(y, h), a sum over the hidden components given what is outside them.

    Of y only the variables outside count. Instances with components that are not trees are passed over.
    """

    def evaluate(self, instances: Ints, y: Ints, value: Floats) -> None:
        """Q(y), or NaN where a hidden component is not a tree."""

    def marginals(self, instances: Ints, y: Ints, mu: Marginals) -> None:
        """Add the point mass on y times the marginals of h given y."""

    def ascend(self, instances: Ints, free: Bools, y: Ints) -> None:
        """Set the ``free`` outputs in turn to their best state given the others, until Q(y) rises no more."""

    def anneal(
        self, instances: Ints, free: Bools, y: Ints, hot: Floats, cold: Floats, rounds: int, budget: float,
        draws: Floats,
    ) -> None:  # fmt: skip
        """Gibbs sampling of exp(Q(y) / t) in rounds over the ``free`` outputs, then ``ascend``.

        t falls geometrically from hot[b] to cold[b], in fewer rounds (or none) where all would take more than
        ``budget`` operations. Every instance uses ``draws``, numbers in (0, 1), in order from the first.
        """

    def tabulate(self, borders: Borders, instances: Ints, y: Ints, values: Floats) -> None:
        """V_c(y_border) = PS_{eps_h} over component c, with what is outside but not at its border at y; 0 where the
        mask forbids a state of the border."""

    def expect(self, borders: Borders, instances: Ints, y: Ints, weights: Floats, mu: Marginals) -> None:
        """Add the marginals of h given the border, weighted by the probability of every border state."""


@dataclass(frozen=True, eq=False)
class MessageGroup:
    """Instances whose messages one run can hold; ``run(noise)`` makes fresh ones, with ties broken if asked.

    ``unit`` is the temperature of hidden variables, or one that suits the scores where that is zero.
    """

    instances: Ints
    unit: float
    run: Callable[[bool], MessageRun]


class MessageModel(Protocol):
    """Potentials of a batch with forbidden states at -inf. ``range`` is, per instance, the largest range of the scores
    that meet at a variable: its unary's allowed states and the tables of its factors (infinite if a score is).

    ``relabel(instances, free, z)``, which an engine may have or not, raises theta(z) by moves of single free variables
    and of whole regions (connected ones of equal state) until none gains, on pairwise factors. It returns the instances
    that changed, and the log-messages m_j(x_j) = theta_ij(z_i, x_j) that variables at z would send (anything for other
    instances).
    """

    @property
    def range(self) -> Floats: ...

    @property
    def relabel(self) -> Callable[[Ints, Bools, Ints], tuple[Ints, Floats]] | None: ...

    def marginals(self) -> Marginals:
        """Zeros, where runs add their beliefs."""

    def run(self) -> MessageRun:
        """Fresh messages for any factors and temperatures, ties as they are."""

    def groups(self, instances: Ints, temperatures: Temperatures, scaled: bool) -> list[MessageGroup]:
        """Instances sorted by the runs that hold them, at one temperature, or at eps_y = 0 and eps_h. Only log space is
        used unless ``scaled`` probabilities are allowed."""

    def given(self, components: HiddenComponents, eps_h: float) -> Conditional: ...


class MessagePlan(Protocol):
    """Message passing on one batch."""

    def load(self, theta: Potentials, query: Query, noise: Floats) -> MessageModel:
        """Take potentials over into the engine; ``noise``: numbers in (0, 1), one a state, that break ties."""


def with_noise(unary: Floats, noise: Floats) -> Floats:
    """Scores with tie-breaking noise."""
    return np.asarray(unary + NOISE * noise * (1.0 + np.abs(np.where(unary == -np.inf, 0.0, unary))))


def sweep_places(batch: Batch) -> Ints:
    """The places of variables in sweeps, breadth first: on a forest one sweep each way is enough.

    With cycles the given numbering serves instead where it keeps neighbours about as close.
    """
    n, scope = len(batch), batch.scope_vars
    found = hidden_components(batch, np.zeros(batch.n_vars, dtype=bool))
    place, natural = np.empty(batch.n_vars, dtype=np.int64), np.arange(batch.n_vars)
    place[found.visit] = natural
    step = np.flatnonzero(np.diff(batch.slot_factor, prepend=-1) == 0)
    owner = batch.factor_owner[batch.slot_factor[step]]
    reach, numbered = np.zeros((2, n), dtype=np.int64)
    np.maximum.at(reach, owner, np.abs(place[scope[step]] - place[scope[step - 1]]))
    np.maximum.at(numbered, owner, np.abs(scope[step] - scope[step - 1]))
    cycles = np.bincount(owner, minlength=n) > np.diff(batch.var_ptr) - np.diff(found.ptr)
    # Neighbours in memory: on a grid the numbering of its rows is as good a wave and kinder to the cache.
    return np.where((cycles & (numbered <= 1.5 * reach))[batch.owner], natural, place)


def sweep_order(batch: Batch, place: Ints) -> Ints:
    """Factors by the place of their farthest variable, then by that of their nearest."""
    place, first = place[batch.scope_vars], batch.scope_ptr[:-1]
    if not len(first):
        return first
    return np.lexsort((np.minimum.reduceat(place, first), np.maximum.reduceat(place, first), batch.factor_owner))
