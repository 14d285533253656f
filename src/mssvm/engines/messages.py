"""Belief propagation on an engine: the operations that a search over starting points needs.

    engine.messages(batch)            -> MessagePlan    index arrays and sweep order, from the graphs alone
    plan.load(theta, query, noise)    -> MessageModel   masked potentials
    model.run(...)                    -> MessageRun     messages: start, advance, decode, hold, beliefs
    model.given(components, eps_h)    -> Conditional    hidden trees given the outputs, exactly: Q(y) and local search

The recursion, for a factor a with outputs a_B and hidden a_A, and cavities n_i = theta_i + the other messages to i:

    S_a = theta_a + sum_i n_i          R_a(x_B) = PS_{eps_h} over x_A of S_a
    b_a = softmax_{eps_y}(R_a)(x_B) * exp((S_a - R_a) / eps_h)
    output i   m_i(x_i) = PS_{eps_y} over the other outputs of R_a  -  n_i(x_i)
    hidden i   m_i(x_i) = eps_h log b_a(x_i)  -  n_i(x_i)

up to a constant, which is chosen so that max m_i = 0. At eps_y = 0 the softmax is uniform over the maximisers of R_a.
At states with n_i = -inf a message has no meaning; in log space it is 0 there.

Potentials and messages are arrays of the engine. States y and z (one integer per variable), values, residuals and
log-messages (one message per entry of ``Batch.scope_vars``, in that order) are NumPy arrays over the whole batch; a
method reads and writes the entries of the named ``instances`` only. Engines spread instances over threads themselves.
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
    """``eps_y`` for the variables in ``outputs``, ``eps_h`` for the others.

    Sum-product, max-product, mixed-product and everything between.
    """

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
    """How sweeps are made: factor by factor in alternating directions, or all at once (``flooding``).

    New messages are averaged with the old ones in log space; ``damping`` is the share of the old. Residuals up to
    ``tolerance`` count as convergence.
    """

    damping: float = 0.0
    flooding: bool = False
    tolerance: float = 1e-9


class Borders(NamedTuple):
    """Outputs at the borders of hidden components.

    ``var[ptr[c] : ptr[c+1]]`` is the border of component c. Numbers about its joint border states, in C order, are
    stored at ``entry_ptr[c] : entry_ptr[c+1]``, which is empty for components that are not merged.
    """

    ptr: Ints
    var: Ints
    entry_ptr: Ints


@dataclass(frozen=True, eq=False)
class Annealing:
    """Gibbs sampling at a falling temperature, in ``rounds`` over all free outputs.

    The temperature falls geometrically from ``hot[b]`` to ``cold[b]``. An instance whose rounds would take more than
    ``budget`` operations makes fewer, or none. Every instance uses ``draws``, numbers in (0, 1), from the first on.
    """

    hot: Floats
    cold: Floats
    rounds: int
    budget: float
    draws: Floats


class MessageRun(Protocol):
    """Messages of a batch in progress.

    ``sweeps`` counts the sweeps of every instance since its start. ``residual`` is that of the last sweep, infinite at
    the start (set it to infinity to continue at other temperatures).

    A residual up to the tolerance means convergence of log-messages: in the last sweep none changed by more, in units
    of the lowest positive temperature (of ``unit`` where there is none), nor by more than the rounding of the scores
    that it is computed from. An engine may measure changes of probabilities while these are larger, or where no table
    is so strong that a probability could be tiny: a state of probability 1e-12 may still move by hundreds.
    """

    batch: Batch
    sweeps: Ints
    residual: Floats
    unit: float

    def start(self, instances: Ints, messages: Floats | None) -> None:
        """Begin with the given log-messages, or with uniform ones."""

    def advance(self, instances: Ints, temperatures: Temperatures, n_sweeps: int, schedule: Schedule) -> None:
        """Up to ``n_sweeps`` more sweeps of the recursion, for every instance until it converges."""

    def hold(self, instances: Ints, outside: Bools, y: Ints) -> None:
        """From the next start on, forbid every state but y of the variables ``outside``."""

    def decode(self, instances: Ints, y: Ints) -> None:
        """y_i = argmax over allowed states of theta_i + all messages to i; ties go to the first."""

    def scores(self, instances: Ints) -> Floats:
        """theta_i + all messages to i, up to a constant, also at states that ``hold`` forbids."""

    def log_messages(self, instances: Ints) -> Floats:
        """The messages in the format of ``start``; arbitrary numbers for other instances."""

    def beliefs(self, instances: Ints, temperatures: Temperatures, value: Floats, mu: Marginals | None) -> None:
        """Region free energy sum_a PS(S_a) + sum_i (1 - degree_i) PS(g_i), with g_i = theta_i + all messages to i and
        PS(S_a) = PS_{eps_y} R_a. Adds b_a and b_i = softmax(g_i) to ``mu`` (at mu_at of the batch) unless it is None.
        """


class Conditional(Protocol):
    """Q(y) = PS_{eps_h} over h of theta(y, h), a sum over hidden components given the variables outside them.

    Only the entries of y for variables outside are read. Instances with components that are not trees are skipped.
    """

    def evaluate(self, instances: Ints, y: Ints, value: Floats) -> None:
        """Q(y), or NaN where a hidden component is not a tree."""

    def marginals(self, instances: Ints, y: Ints, mu: Marginals) -> None:
        """Add the point mass on y times the marginals of h given y."""

    def improve(self, instances: Ints, free: Bools, y: Ints, annealing: Annealing | None = None) -> None:
        """Coordinate ascent: set the ``free`` outputs in turn to their best state given the others, until Q(y) no
        longer rises. With ``annealing``, Gibbs sampling of exp(Q(y) / t) comes first."""

    def tabulate(self, borders: Borders, instances: Ints, y: Ints, values: Floats) -> None:
        """V_c(y_border) = PS_{eps_h} over component c, with variables outside but not at its border at y; 0 where the
        mask forbids a state of the border."""

    def expect(self, borders: Borders, instances: Ints, y: Ints, weights: Floats, mu: Marginals) -> None:
        """Add the marginals of h given the border, weighted by the probability of every border state."""


class MessageModel(Protocol):
    """Potentials of a batch, with forbidden states at -inf.

    ``range`` is, per instance, the largest range of the scores that meet at a variable: its unary's allowed states and
    the tables of its factors (infinite if a score is).

    ``relabel(instances, free, z)`` is optional (None where an engine has none). It raises theta(z) by moves of single
    free variables and of whole regions (connected ones of equal state) until none gains, on pairwise factors. It
    returns the instances that changed, and the log-messages m_j(x_j) = theta_ij(z_i, x_j) that variables fixed at z
    would send (arbitrary numbers for other instances).
    """

    @property
    def range(self) -> Floats: ...

    @property
    def relabel(self) -> Callable[[Ints, Bools, Ints], tuple[Ints, Floats]] | None: ...

    def marginals(self) -> Marginals:
        """Zeros, to which runs add their beliefs; on a device if the engine works on one."""

    def run(
        self, instances: Ints | None = None, scaled_at: Temperatures | None = None, noisy: bool = False
    ) -> MessageRun:
        """Fresh messages, in log space, for any factors and temperatures.

        With ``scaled_at`` an engine may hold scaled probabilities of the named ``instances`` at these temperatures,
        which must be one temperature, or eps_y = 0 and eps_h. ``noisy`` scores break ties.
        """

    def given(self, components: HiddenComponents, eps_h: float) -> Conditional:
        """Q(y) for the components of the hidden variables, at their temperature."""


class MessagePlan(Protocol):
    """Message passing on one batch."""

    def load(self, theta: Potentials, query: Query, noise: Floats) -> MessageModel:
        """Transfer potentials to the engine; ``noise``: numbers in (0, 1), one per state, that break ties."""


def with_noise(unary: Floats, noise: Floats) -> Floats:
    """Scores with tie-breaking noise."""
    return np.asarray(unary + NOISE * noise * (1.0 + np.abs(np.where(unary == -np.inf, 0.0, unary))))


def sweep_places(batch: Batch) -> Ints:
    """The places of variables in sweeps, breadth first: on a forest one sweep each way is enough.

    On graphs with cycles the given numbering is used instead if it keeps neighbours about as close. On a grid, row by
    row is as good an order as a wave front, and neighbours are close in memory.
    """
    n = len(batch)
    scope = batch.scope_vars
    components = hidden_components(batch, np.zeros(batch.n_vars, dtype=bool))
    numbering = np.arange(batch.n_vars)
    breadth_first = np.empty(batch.n_vars, dtype=np.int64)
    breadth_first[components.visit] = numbering
    # Consecutive slots of one factor: pairs of neighbours.
    second = np.flatnonzero(np.diff(batch.slot_factor, prepend=-1) == 0)
    owner = batch.factor_owner[batch.slot_factor[second]]
    farthest_by_breadth = np.zeros(n, dtype=np.int64)
    farthest_by_number = np.zeros(n, dtype=np.int64)
    distance = np.abs(breadth_first[scope[second]] - breadth_first[scope[second - 1]])
    np.maximum.at(farthest_by_breadth, owner, distance)
    np.maximum.at(farthest_by_number, owner, np.abs(scope[second] - scope[second - 1]))
    has_cycles = np.bincount(owner, minlength=n) > np.diff(batch.var_ptr) - np.diff(components.ptr)
    keep_numbering = has_cycles & (farthest_by_number <= 1.5 * farthest_by_breadth)
    return np.where(keep_numbering[batch.owner], numbering, breadth_first)


def sweep_order(batch: Batch, place: Ints) -> Ints:
    """Factors by the place of their farthest variable, then by that of their nearest."""
    first = batch.scope_ptr[:-1]
    if not len(first):
        return first
    slot_place = place[batch.scope_vars]
    nearest = np.minimum.reduceat(slot_place, first)
    farthest = np.maximum.reduceat(slot_place, first)
    return np.lexsort((nearest, farthest, batch.factor_owner))
