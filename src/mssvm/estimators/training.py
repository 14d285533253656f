"""One call of ``fit``: pose the problem of the data, solve it from one or several starts, keep the solution of lowest
objective."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any

import numpy as np

from mssvm.core.arrays import Bools, Floats
from mssvm.core.errors import InfeasibleError, InputError, UnsupportedError
from mssvm.core.progress import ProgressLine
from mssvm.core.threads import ONE_BLAS_THREAD
from mssvm.estimators.hooks import FitHooks, HeldOut, TrainingLine
from mssvm.estimators.outcome import BOUNDED, summary
from mssvm.estimators.plan import BOUNDED_TOLERANCE, LARGEST_SEED, SMOOTHED, inference_for, n_starts, starts
from mssvm.estimators.prediction import KnownLabels, agreement, request
from mssvm.estimators.training_data import FittedData
from mssvm.inference.base import Planner
from mssvm.losses import Zero
from mssvm.models.partial import ActiveWeights
from mssvm.objectives.problem import Evaluation, Problem
from mssvm.objectives.sample import Sample
from mssvm.objectives.unified import Unified
from mssvm.optim import BCFW, LBFGS, Callback, Checkpoint, Row, Solution, Solver, Validation
from mssvm.optim.solution import best_of, followed_by

FEW_WEIGHTS = 1000  # with at most this many weights, cutting planes close a gap in tens of rounds
NO_PRODUCT = "No certified stage: independent variables cannot avoid what the structure forbids."
NEARLY = 1e-3  # an objective within this share of that at zero weights is no better than it


@dataclass(eq=False)
class Training:
    """One call of ``fit``: the problem, its solver and the hooks. ``taken`` selects the weights that training sees
    from an array over all weights; ``whole`` is its inverse. ``center`` are the weights, all of them, from which the
    regulariser measures distances (None: zero)."""

    data: FittedData[Any]
    hooks: FitHooks
    began: float = field(default_factory=monotonic)
    calls: int = 0
    seed: int = 0
    warm: bool = False
    center: Floats | None = None

    def __post_init__(self) -> None:
        data = self.data
        plan = data.plan
        self.plan = plan
        self.hooks.check()
        trained = (data.n_instances, self._wide())
        self.inference = inference_for(data.encoder, plan.inference, plan.memory_limit, 1, *trained)
        self.problem = data.pose(self.inference)
        self.model = self.problem.model
        self.taken = self.model.take if isinstance(self.model, ActiveWeights) else np.asarray
        if not self.problem.n_instances:
            raise InputError("no site of y is labelled; training needs at least one label.")
        if self._certifying and not self._certifiable:
            raise UnsupportedError(
                "Decompose(certified=True) is for the unified objective (MSSVM, LSSVM, HCRF and others) with a loss "
                "over sites, on data in memory; leave it out."
            )
        self.regulariser = data.regulariser(self.taken)
        if self.center is not None:
            self.regulariser = replace(self.regulariser, center=self.taken(self.center))
        self.whole = self.model.fill
        self.validation = None if self.hooks.validation is None else self._validation(self.hooks.validation)
        self._lines: list[TrainingLine] = []
        self._at_zero: float | None = None  # the loss at weights of zero, once it is known

    @property
    def planner(self) -> Planner:
        return Planner(self.inference, self.plan.engine)

    def _wide(self) -> str:
        """The method of "auto" on wide graphs: "decompose" if L-BFGS minimises the unified objective on data in memory
        with chains of the engine's own, otherwise "propagate"; "propagate" also where minimum cuts may prove maxima."""
        plan = self.plan
        smooth = plan.solver in ("auto", "lbfgs") if isinstance(plan.solver, str) else isinstance(plan.solver, LBFGS)
        able = plan.engine.name != "reference" and hasattr(plan.engine, "chains") and hasattr(self.data, "sample")
        unified = plan.strategy is None and isinstance(plan.objective, Unified)
        return "decompose" if smooth and able and unified and not self._cuts() else "propagate"

    def _cuts(self) -> bool:
        """Whether inference is a maximum over variables of at most two states, with every label known and nothing
        hidden. Minimum cuts can prove such maxima, and cutting planes then certify the training."""
        objective = self.plan.objective
        sample: Sample = self.data.sample  # type: ignore[attr-defined]
        known = int(np.count_nonzero(sample.query.allowed & sample.truth)) == sample.batch.n_vars
        return bool(known and objective.eps_y == 0.0 and sample.batch.cards.max(initial=1) <= 2)

    def run(self, warm: Floats | None) -> tuple[Floats, Solution, dict[str, Any]]:
        """Minimise from every start; return the weights of lowest objective (all of them), the solution, and figures
        about the training."""
        plan = self.plan
        hidden = self.taken(self.data.encoder.weight_masks.hidden)
        self.warm = warm is not None
        init = plan.init if warm is None else warm
        if not isinstance(init, str):
            init = self.taken(np.asarray(init))
        with ProgressLine(plan.name, quiet=0.0) if plan.verbose else nullcontext() as line, self._callers_instances():
            self._lines = [] if line is None else [TrainingLine(line)]
            if isinstance(self.hooks.callback, TrainingLine):
                self._lines.append(self.hooks.callback)
            self.n_starts = n_starts(init, self.problem, hidden, plan.n_init)
            best, figures = self._best_start(init, hidden)
            if figures["worse"]:
                best, figures = self._retrained(best, figures, hidden)
        return self.whole(best.w), best, figures

    @contextmanager
    def _callers_instances(self) -> Iterator[None]:
        """Renumber instances in errors: the problem holds only the labelled instances, the caller's y all of them."""
        try:
            yield
        except InfeasibleError as error:
            sample = getattr(self.data, "sample", None)
            if error.instance is None or sample is None:
                raise
            instance = int(np.flatnonzero(sample.labelled)[error.instance])
            raise InfeasibleError(error.reason, what="y", instance=instance) from None

    def _best_start(self, init: Any, hidden: Bools) -> tuple[Solution, dict[str, Any]]:
        """Minimise from every start; return the solution of lowest objective, and figures about the training."""
        plan = self.plan
        solutions: list[Solution] = []
        objectives: list[float] = []
        for w0 in starts(init, self.problem, hidden, plan.n_init, plan.rng, self.regulariser):
            self.seed = int(plan.rng.randint(LARGEST_SEED))
            self._start = len(solutions) + 1
            if plan.strategy is None:
                solution = self.minimise(self.problem, w0)
            else:
                solution = plan.strategy(self.problem, w0, self.minimise)
            solutions.append(solution)
            objectives.append(float(solution.objective))
            if solution.outcome.cut_short:
                break
        best = best_of(solutions)
        return best, summary(self, best, objectives)

    def _retrained(self, first: Solution, figures: dict[str, Any], hidden: Bools) -> tuple[Solution, dict[str, Any]]:
        """Train a second time if the first model predicts its training labels worse than a simpler rule: with careful
        inference if it propagated, from another random start if there are hidden variables. The better of the two
        models is returned."""
        plan = self.plan
        propagated = not figures["exact"] and figures["methods"].keys().isdisjoint(BOUNDED)
        careful = propagated and hasattr(self.inference, "effort")
        if first.outcome.cut_short or self.warm or plan.inference != "auto" or not (careful or hidden.any()):
            return first, figures
        if careful:
            self.inference = replace(self.inference, effort="careful")  # type: ignore[type-var]
            self.problem = self.data.pose(self.inference)
            self._at_zero = None
        init = "random" if hidden.any() else plan.init
        second, new_figures = self._best_start(init, hidden)
        better = new_figures["sites_right"] > figures["sites_right"]
        how = "careful inference" if careful else "another start"
        outcome = "predicts more of them and is kept" if better else "is no better, and the first is kept"
        repeated = f"Training was repeated with {how}, as the first predicted too few labels; the second {outcome}."
        kept, kept_figures = (second, new_figures) if better else (first, figures)
        status = f"{kept_figures['status']} {repeated}"
        return kept, {**kept_figures, "repeated": repeated, "status": status}

    def minimise(self, problem: Problem, w0: Floats) -> Solution:
        """Minimise one problem. The k-th run of a solver has checkpoint number k, so that a resumed training repeats
        none."""
        solver, first = self._solver(problem, w0)
        if self.warm:
            solver = solver.for_warm_start()
        solution = self._solved(problem, w0, solver, first)
        if self._certifying and not (problem.convex or solution.tally.exact) and solution.outcome.own:
            return self._certified(solution, solver)
        return solution

    def _solver(self, problem: Problem, w0: Floats) -> tuple[Solver[Any], Evaluation | None]:
        """The solver, and the evaluation at ``w0`` by which "auto" chooses it (None: the parameter names another)."""
        missing = 1.0 - self.data.census.sites_labelled / self.data.census.sites
        dual = partial(self._has_dual, problem)
        if self.plan.solver != "auto":
            return self.plan.solver_for(True, False, dual, missing, self.seed), None
        with ONE_BLAS_THREAD:
            first = problem.difference(w0)
        if problem is self.problem and not w0.any():
            self._at_zero = float(first.total)
        exact = first.exact and self._exact_when_smoothed(problem, w0)
        # What is exact at the target temperatures alone was answered by minimum cuts.
        cuts = first.exact and not exact and problem.n_weights <= FEW_WEIGHTS
        bounded = not exact and self._converges()
        return self.plan.solver_for(exact, cuts, dual, missing, self.seed, bounded), first

    def _solved(self, problem: Problem, w0: Floats, solver: Solver[Any], first: Evaluation | None) -> Solution:
        """One run of a solver with the hooks of this training."""
        self.calls += 1
        for line in self._lines:
            most = solver.limit(problem.temperatures)
            line.begin(most, self._start, self.n_starts, self.data.where, solver.uses_whole_budget)
        solution: Solution = solver.minimize(
            problem,
            w0,
            regulariser=self.regulariser,
            callback=self._callback(),
            validation=self.validation,
            time_limit=self._time_left(),
            checkpoint=self._checkpoint(),
            first=first,
        )
        return solution

    def _certified(self, solution: Solution, solver: Solver[Any]) -> Solution:
        """The stage that minimises an upper bound of the true objective, from the weights that minimise the difference
        of bounds; returns the weights of the lowest bound. If these first weights have no finite bound, their solution
        is returned unchanged."""
        problem = self.problem.as_certified()
        w = solution.w
        try:
            with ONE_BLAS_THREAD:
                first = problem.difference(w)
        except InfeasibleError:
            return replace(solution, message=f"{solution.message} {NO_PRODUCT}")
        last_stage = solver if isinstance(solver, LBFGS) else LBFGS(SMOOTHED, tolerance=BOUNDED_TOLERANCE)
        stage = self._solved(problem, w, last_stage.for_warm_start(), first)
        began = self.regulariser.value(w) + first.total
        message = f"{solution.message} The certified stage began at {began:.6g}. {stage.message}"
        return replace(followed_by(solution, stage), message=message, bounded=True)

    def upper_bound(self, chosen: Solution) -> float:
        """An upper bound of the true objective at the chosen weights, where it was asked for: by one evaluation if
        training did not minimise it; NaN where none is known."""
        problem = self.problem
        w = chosen.w
        if chosen.bounded:
            return float(chosen.objective)
        asked = bool(getattr(self.inference, "certified", False))
        if not asked or not self._certifiable or chosen.tally.exact:
            return float("nan")
        try:
            with ONE_BLAS_THREAD:
                return self.regulariser.value(w) + float(problem.as_certified().difference(w).total)
        except InfeasibleError:  # a product of independent distributions gives forbidden states probability
            return float("nan")

    @property
    def _certifying(self) -> bool:
        return getattr(self.inference, "certified", False) is True

    @property
    def _certifiable(self) -> bool:
        """Whether the sum of an upper bound of U+ and a lower bound of U- can be computed."""
        return self.plan.strategy is None and bool(getattr(self.problem, "certifiable", False))

    def _callback(self) -> Callback | None:
        if self.hooks.callback is None and not self._lines:
            return None
        return self._on_row

    def _time_left(self) -> float | None:
        if self.hooks.time_limit is None:
            return None
        return self.hooks.time_limit - (monotonic() - self.began)

    def _checkpoint(self) -> Checkpoint | None:
        checkpoint = self.hooks.checkpoint
        if isinstance(checkpoint, (str, Path)):
            checkpoint = Checkpoint(checkpoint)
        if checkpoint is None:
            return None
        return checkpoint.numbered(self.calls)

    def _exact_when_smoothed(self, problem: Problem, w0: Floats) -> bool:
        """Whether inference that is exact at the target temperatures is also exact at the first ones of L-BFGS: minimum
        cuts are exact at temperature 0 only."""
        begin = (max(problem.temperatures[0], SMOOTHED[0]), max(problem.temperatures[1], SMOOTHED[0]))
        if begin == problem.temperatures:
            return True
        with ONE_BLAS_THREAD:
            return problem.at(*begin).difference(w0).exact

    def _converges(self) -> bool:
        """Whether approximate inference changes little with the weights, as a bound does and a search does not."""
        ask = getattr(self.inference, "converges", None)
        sample = getattr(self.data, "sample", None)
        return ask is not None and sample is not None and bool(ask(sample.batch))

    @property
    def is_margin(self) -> bool:
        """Whether outputs are maximised against a loss, in one objective."""
        objective = self.plan.objective
        return self.plan.strategy is None and objective.eps_y == 0.0 and not isinstance(objective.loss, Zero)

    def no_better_than_zero(self, chosen: Solution) -> bool:
        """Whether a margin ended where weights of zero are as good, up to a share of ``NEARLY``."""
        if not self.is_margin or self.center is not None:
            return False
        zero = np.zeros_like(chosen.w)
        if np.array_equal(chosen.w, zero):
            return True
        if self._at_zero is None:
            self._at_zero = float(self.problem.difference(zero).total)
        return bool(chosen.objective >= (1.0 - NEARLY) * self._at_zero)

    def _has_dual(self, problem: Problem) -> bool:
        """Whether BCFW can solve the problem: single instances are accessible, outputs are maximised, nothing is
        missing, all weights are regularised, and its planes fit into memory."""
        if not problem.has_atoms:
            return False
        regulariser = self.regulariser
        if regulariser.center is not None:
            return False
        size = 8 * BCFW.n_planes * self.problem.plane_size
        penalised = not regulariser.has_absolute and bool(np.all(regulariser.strengths(problem.n_weights) > 0))
        return problem.convex and problem.temperatures[0] == 0 and penalised and size <= self.plan.memory_limit

    def _on_row(self, row: Row, w: Floats) -> bool | None:
        """Pass a row of the trace on to the progress line and to the user's callback."""
        for line in self._lines:
            line(row, w)
        callback = self.hooks.callback
        if callback is None or callback in self._lines:
            return None
        return callback(row, self.whole(w))

    def _validation(self, validation: HeldOut | Validation | tuple[Any, Any]) -> Validation:
        """Scores of held-out data as a function of the weights that training sees."""
        if isinstance(validation, Validation):
            score_whole = validation.score
            return replace(validation, score=lambda w: score_whole(self.whole(w)))
        held = validation if isinstance(validation, HeldOut) else HeldOut(*validation)
        encoder = self.data.encoder
        predictor = self.hooks.predictor
        with held.naming():
            known = KnownLabels(held.hidden_sites)
            held_out = request(encoder, np.zeros(encoder.layout.n_weights), self.planner, predictor, held.X, known)
            shapes = held_out.encoded.labels.shapes
            y = encoder.structure.site_labels(held.y, shapes)
            truth = encoder.vocabulary.widened(y, self.plan.structure.depth).encode(y, shapes)
        inputs = held_out.encoded.inputs
        sites = held_out.encoded.labels
        ones = np.ones(len(inputs.batch))
        features = encoder.model.bind(inputs, self.planner.engine)
        bound = predictor(self.planner, inputs, held_out.query)

        def score(w: Floats) -> float:
            belief = bound(features.forward(self.whole(w)))
            return agreement(belief.decode(inputs.batch)[sites.vars], truth, ones)

        return Validation(score, held.patience, held.every)
