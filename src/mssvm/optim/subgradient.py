"""Algorithm 1 of the paper: w <- (1 - eta) w - eta g, and its working form for data of any size.

The literal form takes full batches at a fixed rate. The default works on the objective per labelled site, instance by
instance, with AdaGrad's or Adam's rates; it chooses the overall rate by short trials, lowers it towards the end
("cooling"), averages the weights over the last half of the epochs (with Adam's rates, the last quarter), and returns
the best point that was evaluated at the end of an epoch, or the mean where objectives are estimates.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from math import ceil
from time import monotonic
from typing import Any, ClassVar, Self

import numpy as np

from mssvm.core.arrays import Floats, Ints
from mssvm.core.errors import InputError
from mssvm.optim.former_names import former_names
from mssvm.optim.outcome import Outcome, Stop
from mssvm.optim.run import SolverRun
from mssvm.optim.solver import Solver

TRIAL_RATES = (1.0, 0.3, 0.1, 0.03, 0.01)
TRIAL_STEPS = 20  # least number of steps in the trial of a rate; trials end with whole epochs
USUAL_RATE = 0.3  # the rate where no trial lowers the objective
PAUSE = 0.5  # an epoch pauses for a checkpoint after visits that took this many seconds
# A run of at least this many epochs counts as completed, because this solver cannot bound its distance to the minimum.
ENOUGH_EPOCHS = 10


class Stopping(Enum):
    """Which norm is compared with the tolerance: of the loss gradient alone, as printed in the paper's Algorithm 2,
    or of the gradient of the whole objective, which is the one that vanishes at a minimum.

    >>> ms.solvers.Subgradient(full_batch=True, tolerance=1e-3, stopping=ms.solvers.Stopping.CORRECTED).full_batch
    True
    """

    PRINTED = "printed"
    CORRECTED = "corrected"


class Scaling(Enum):
    """How the rate of each weight follows its gradients g_t. AdaGrad divides by the root of sum g_t^2, which the large
    gradients of the first steps hold down for good. Adam forgets: it divides a running mean of g_t by the root of a
    running mean of g_t^2, so weights keep moving, and needs cooling from the first epoch on to settle.

    >>> [member.value for member in ms.solvers.Scaling]
    ['adagrad', 'adam']
    """

    ADAGRAD = "adagrad"
    ADAM = "adam"


# Decay of Adam's running means of g and g^2, a step.
MEAN_DECAY = 0.9
SQUARES_DECAY = 0.99
# Share of the best decrease in a trial that is enough for a rate; lower for Adam, whose high rates still have to cool.
TRIAL_SHARE = {Scaling.ADAGRAD: 0.9, Scaling.ADAM: 0.5}


@dataclass
class SubgradientState:
    """Weights, running means of gradients and iterates, and the position in the epoch.

    ``waiting`` are the instances not visited yet in this epoch, ``falls`` the decreases in the trials of rates so far
    (None: the rate is known).
    """

    w: Floats
    epoch: int
    rate: float
    squares: Floats
    mean: Floats
    sum: Floats
    summed: int
    steps: int
    rng: np.random.Generator
    waiting: Ints
    falls: list[float] | None


@former_names(n_epochs="max_iter")
@dataclass(frozen=True)
class Subgradient(Solver[SubgradientState]):
    """Subgradient descent over ``max_iter`` epochs, each a visit to every instance.

    ``rate=None`` chooses the rate by short trials, ``batch_size=None`` a batch size that grows with the sample;
    ``full_batch`` takes all instances at once. ``adaptive`` rates follow ``scaling`` ("adagrad" or "adam") and cool
    down, others stay fixed.
    ``average`` also tries the mean of the last iterates; ``keep_last`` returns the last iterate instead of the best.
    ``tolerance`` > 0 ends a full-batch run when the gradient norm of ``stopping`` ("printed" or "corrected") falls to
    it. An epoch in ``evaluate_every``, and the last, ends with a pass over all instances that evaluates the objective,
    which costs as much as the epoch itself. ``seed`` is that of the order of visits.

    >>> ms.SSVM(ms.Chain(), solver=ms.solvers.Subgradient(max_iter=30, scaling="adam")).fit(X, y).score(X, y)
    1.0
    """

    max_iter: int = 100
    rate: float | None = None
    batch_size: int | None = None
    full_batch: bool = False
    adaptive: bool = True
    scaling: Scaling | str = Scaling.ADAGRAD
    average: bool = True
    keep_last: bool = False
    evaluate_every: int = 1
    tolerance: float = 0.0
    stopping: Stopping | str = Stopping.CORRECTED
    seed: int = 0

    state_type: ClassVar[type] = SubgradientState

    def __post_init__(self) -> None:
        if self.max_iter < 1 or (self.batch_size is not None and self.batch_size < 1):
            raise InputError("Subgradient needs max_iter >= 1 and batch_size >= 1.")
        if self.evaluate_every < 1:
            raise InputError(f"evaluate_every must be at least 1, got {self.evaluate_every}.")
        if self.rate is not None and not (np.isfinite(self.rate) and self.rate > 0):
            raise InputError(f"rate must be a finite number > 0 or None, got {self.rate!r}.")
        if self.rate is None and not self.adaptive:
            raise InputError("a rate is chosen by trials only with adaptive=True; name the fixed rate.")
        _check_choice(Scaling, self.scaling)
        _check_choice(Stopping, self.stopping)

    @classmethod
    def literal(
        cls, rate: float, n_steps: int, tolerance: float = 0.0, stopping: Stopping = Stopping.CORRECTED
    ) -> Self:
        """Algorithm 1 as printed: full batch, fixed rate, the last iterate."""
        plain = cls(max_iter=n_steps, rate=rate, full_batch=True, adaptive=False, average=False, keep_last=True)
        return replace(plain, tolerance=tolerance, stopping=stopping)

    def begin(self, run: SolverRun, warm: dict[str, Any]) -> SubgradientState:
        run.regulariser.demand_smooth("Subgradient")
        w = run.regulariser.project(run.w0)
        state = self._fresh(w, self.rate or TRIAL_RATES[0])
        if not self.full_batch or self.rate is None:
            run.record(w, run.objective(w)[0])
        return state if self.rate else replace(state, falls=[])

    def step(self, run: SolverRun, state: SubgradientState) -> None:
        if state.falls is not None:
            self._trial(run, state, state.falls)
            return
        if self.full_batch:
            self._full_step(run, state)
            return
        if state.epoch >= self.max_iter:
            outcome = Outcome.COMPLETED if self.max_iter >= ENOUGH_EPOCHS else Outcome.BUDGET
            raise Stop(outcome, f"All {self.max_iter} epochs were run, at rate {state.rate:g}.")
        if not self._epoch(run, state):
            return
        if state.epoch % self.evaluate_every and state.epoch < self.max_iter:
            return
        if not (self.average and state.summed) or state.epoch == self.max_iter:
            run.record(state.w, run.objective(state.w)[0])
        self._record_mean(run, state)

    def limit(self, temperatures: tuple[float, float]) -> int:
        """The last epoch records its mean too, and trials of rates the start."""
        if self.full_batch:
            return self.max_iter + int(self.rate is None)
        return ceil(self.max_iter / self.evaluate_every) + int(self.average)

    @property
    def uses_whole_budget(self) -> bool:
        return not self.full_batch

    @property
    def averaged(self) -> float:
        """The share of the epochs, at the end, that is averaged over; Adam's rates are still high at half time."""
        return 0.25 if Scaling(self.scaling) is Scaling.ADAM else 0.5

    def choose(self, run: SolverRun) -> tuple[Floats, float]:
        """The point with the lowest objective, or the mean where approximate inference merely estimates objectives:
        the lowest estimate is found where inference fails, not where the weights are good."""
        estimated = self.average and not self.full_batch and not run.tally.exact
        return run.chosen(last=self.keep_last or (estimated and run.rows[-1].objective < run.rows[0].objective))

    def _fresh(self, w: Floats, rate: float) -> SubgradientState:
        """The state before the first epoch, at a known rate."""
        return SubgradientState(
            w=w.copy(),
            epoch=0,
            rate=rate,
            squares=np.zeros_like(w),
            mean=np.zeros_like(w),
            sum=np.zeros_like(w),
            summed=0,
            steps=0,
            rng=np.random.default_rng(self.seed),
            waiting=np.zeros(0, dtype=np.int64),
            falls=None,
        )

    def _trial(self, run: SolverRun, state: SubgradientState, falls: list[float]) -> None:
        """Continue the trial of a rate; after the last trial begin at the best rate."""
        if not self._epoch(run, state) or state.steps < TRIAL_STEPS:
            return
        falls = [*falls, run.rows[-1].objective - run.objective(state.w)[0]]
        w = run.regulariser.project(run.w0)
        if len(falls) == len(TRIAL_RATES):
            fresh = self._fresh(w, self._best_rate(falls))
        else:
            fresh = replace(self._fresh(w, TRIAL_RATES[len(falls)]), falls=falls)
        vars(state).update(vars(fresh))

    def _best_rate(self, falls: list[float]) -> float:
        """The highest rate that achieves most of the best decrease: short trials favour low rates."""
        fall = np.where(np.isfinite(falls), falls, -np.inf)
        if not fall.max() > 0:
            return USUAL_RATE
        good = np.flatnonzero(fall >= TRIAL_SHARE[Scaling(self.scaling)] * fall.max())
        return TRIAL_RATES[int(good[0])]

    def _full_step(self, run: SolverRun, state: SubgradientState) -> None:
        """One step of Algorithm 1 on all instances."""
        objective, part = run.objective(state.w)
        total = run.regulariser.gradient(state.w) + part.gradient
        norm = run.gradient_norm(state.w, part.gradient)
        run.record(state.w, objective, gradient_norm=norm)
        stopping = Stopping(self.stopping)
        tested = float(np.linalg.norm(part.gradient)) if stopping is Stopping.PRINTED else norm
        if self.tolerance > 0 and tested <= self.tolerance:
            raise Stop(Outcome.CONVERGED, f"The {stopping.value} gradient norm fell to {tested:.3g}.")
        if state.epoch >= self.max_iter:
            self._record_mean(run, state)
            raise Stop(Outcome.BUDGET, f"All {self.max_iter} steps were taken.")
        if self.adaptive:
            total = total / run.problem.n_sites
        self._move(run, state, total)
        state.epoch += 1

    def _record_mean(self, run: SolverRun, state: SubgradientState) -> None:
        if self.average and state.summed:
            mean = state.sum / state.summed
            run.record(mean, run.objective(mean)[0])

    def _epoch(self, run: SolverRun, state: SubgradientState) -> bool:
        """One visit to every instance, in random order; False if it paused for a checkpoint."""
        began = monotonic()
        n = run.problem.n_instances
        size = self.batch_size or int(np.clip(n // 200, 1, 32))
        if not len(state.waiting):
            state.waiting = state.rng.permutation(n)
        while len(state.waiting):
            if monotonic() - began > PAUSE:
                return False
            instances = state.waiting[:size]
            part = run.count(run.problem.difference(state.w, instances))
            total = run.regulariser.gradient(state.w) + part.gradient * (n / len(instances))
            self._move(run, state, total / run.problem.n_sites)
            state.waiting = state.waiting[size:]
        state.epoch += 1
        return True

    def _move(self, run: SolverRun, state: SubgradientState, g: Floats) -> None:
        """One step along -g, and the running sum of the last iterates."""
        state.steps += 1
        if self.adaptive:
            g = self._scaled(state, g)
        state.w = run.regulariser.project(state.w - state.rate * g)
        if self.average and state.epoch >= (1.0 - self.averaged) * self.max_iter:
            state.sum += state.w
            state.summed += 1

    def _scaled(self, state: SubgradientState, g: Floats) -> Floats:
        """The direction at AdaGrad's or Adam's rates, cooled: that lets the iterates settle where a constant rate
        keeps them moving."""
        left = 1.0 - state.epoch / self.max_iter
        if Scaling(self.scaling) is Scaling.ADAM:
            state.mean = MEAN_DECAY * state.mean + (1.0 - MEAN_DECAY) * g
            state.squares = SQUARES_DECAY * state.squares + (1.0 - SQUARES_DECAY) * g * g
            square = state.squares / (1.0 - SQUARES_DECAY**state.steps)
            g = state.mean / (1.0 - MEAN_DECAY**state.steps)
        else:
            state.squares += g * g
            square = state.squares
            left = min(1.0, 2.0 * left)
        return left * g / np.sqrt(np.where(square > 0, square, 1.0))

    def tightened(self, tolerance: float) -> Self:
        """This solver, set to return the best iterate instead of the last; it knows no gap that ``tolerance`` could
        bound."""
        return replace(self, keep_last=False)


def _check_choice(kind: type[Enum], choice: Enum | str) -> None:
    """Raise unless ``choice`` is a member of ``kind`` or the value of one."""
    values = [member.value for member in kind]
    if choice not in list(kind) and choice not in values:
        raise InputError(f"{kind.__name__.lower()} must be one of {values}, got {choice!r}.")
