"""Block-coordinate Frank-Wolfe on a convex problem, whose "labels" are pairs (y, q(h)) with loss Delta + eps H(q).

The oracle at w gives a plane of one instance: plus_i(w') >= Phi mu.w' + b, equal at w. Each instance keeps a few
planes and a mixture alpha of them; v = u - sum_i c_i sum_k alpha_ik Phi mu_ik, and w = v / r, with u the slope of the
subtracted part and r the strengths of the regulariser (``dual``). Where weights stay >= 0, w = max(v, 0) / r: the
multipliers of that constraint are one more block, solved after every step. A step on instance i
moves weight among its planes, always from the lowest in use (a) to the highest (s):

    score_k = mu_k.Phi'w + b_k,    gamma = min(alpha_a, (score_s - score_a) / (c_i |Phi (mu_s - mu_a)|^2_{1/r}))

as often as it pays, on the small matrix of products between the planes' features; weights are updated once a step.
gap_i = c_i (plus_i(w) - sum_k alpha_k score_k) add up to a duality gap. Instances are drawn in proportion to their last
known gaps; cached planes are tried first, and replace an oracle call when they promise enough of the gap
(Osokin et al. 2016, Shah et al. 2015).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np

from mssvm.core.arrays import Floats, Ints
from mssvm.core.errors import InputError
from mssvm.optim.dual import ConvexForm, duality_certificate, pairwise
from mssvm.optim.former_names import former_names
from mssvm.optim.outcome import Outcome, Stop, closed, gap_between, impossible
from mssvm.optim.run import SolverRun
from mssvm.optim.solution import Certificate
from mssvm.optim.solver import Solver

UNIFORM = 0.1  # share of draws that ignore the gaps, which may be out of date
MIX_ROUNDS = 100  # most rounds of pairwise steps among one instance's planes at a visit
MIX_SHARE = 1e-3  # these steps end at this share of the first round's difference of gradients
# A cached plane replaces an oracle call if it promises these shares of the instance's own and of the mean gap.
HIT_OWN = 0.25
HIT_MEAN = 0.01


@dataclass
class BCFWState:
    """Planes per instance in coordinates (rows mu_k), their offsets b_k, weights and last use; ``mean`` averages w.

    ``lower`` is the bound of the last check: an interruption may leave v and the mixture of an instance inconsistent.
    """

    u: Floats
    constant: float
    v: Floats
    planes: list[Floats]
    offsets: list[Floats]
    alpha: list[Floats]
    used: list[Ints]
    products: list[Floats]
    gaps: Floats
    mean: Floats
    rng: np.random.Generator
    lower: float = -np.inf
    steps: int = 0
    n_oracle: int = 0
    n_pass: int = 0


@former_names(max_passes="max_iter")
@dataclass(frozen=True)
class BCFW(Solver[BCFWState]):
    """Block-coordinate Frank-Wolfe.

    Stops when the duality gap is at most ``tolerance`` times the objective and not negative, checked every
    ``check_every`` passes, or after ``max_iter`` passes. ``n_planes`` is the number of planes per instance;
    ``cached_passes`` the passes over cached planes, without inference, after each pass with the oracle; ``seed`` is
    that of the order of visits.

    >>> ms.SSVM(ms.Chain(), solver=ms.solvers.BCFW(tolerance=0.01)).fit(X, y).score(X, y)
    1.0
    """

    max_iter: int = 100
    tolerance: float = 1e-3
    n_planes: int = 20
    cached_passes: int = 5
    check_every: int = 5
    seed: int = 0

    state_type: ClassVar[type] = BCFWState
    warm: ClassVar[tuple[str, ...]] = ("planes", "offsets", "alpha", "used", "products")

    def __post_init__(self) -> None:
        if min(self.max_iter, self.check_every) < 1 or self.cached_passes < 0:
            raise InputError("BCFW needs max_iter and check_every >= 1, and cached_passes >= 0.")
        if self.n_planes < 2:
            raise InputError("BCFW needs n_planes >= 2: a new plane, and one that mixes those before.")

    def tightened(self, tolerance: float) -> Self:
        return replace(self, tolerance=tolerance)

    def limit(self, temperatures: tuple[float, float]) -> int:
        return -(-self.max_iter // self.check_every)

    def begin(self, run: SolverRun, warm: dict[str, Any]) -> BCFWState:
        form = ConvexForm.of(run, "BCFW", by_instance=True)
        n = run.problem.n_instances
        cached: dict[str, Any]
        if warm:
            cached = {name: [array.copy() for array in warm[name]] for name in self.warm}
        else:
            cached = self._first_planes(run, form)
        v = form.u.copy()
        for i in range(n):
            run.check_time()
            mixture = cached["alpha"][i] @ cached["planes"][i]
            v -= run.problem.scale[i] * run.problem.features_of(i, mixture)
        rng = np.random.default_rng(self.seed)
        return BCFWState(form.u, form.constant, v, gaps=np.ones(n), mean=form.point(v), rng=rng, **cached)

    def _first_planes(self, run: SolverRun, form: ConvexForm) -> dict[str, Any]:
        """The planes at the start, and the objective there from their values."""
        w = run.regulariser.project(run.w0)
        planes = []
        offsets = []
        plus = 0.0
        for i in range(run.problem.n_instances):
            value, mu = run.atom(w, i)
            planes.append(mu[None])
            offsets.append(np.array([value - mu @ run.problem.scores_of(i, w)]))
            plus += run.problem.scale[i] * value
        run.record(w, form.primal(w, plus))
        return {
            "planes": planes,
            "offsets": offsets,
            "alpha": [np.ones(1) for _ in planes],
            "used": [np.zeros(1, dtype=np.int64) for _ in planes],
            "products": [self._products(run, form.r, i, mu, mu[0])[None] for i, mu in enumerate(planes)],
        }

    def _products(self, run: SolverRun, r: Floats, i: int, planes: Floats, mu: Floats) -> Floats:
        """(Phi mu_k).(Phi mu / r) for every plane k, through coordinates."""
        run.check_time()
        return np.asarray(planes @ run.problem.scores_of(i, run.problem.features_of(i, mu) / r))

    def step(self, run: SolverRun, state: BCFWState) -> None:
        form = ConvexForm(run.regulariser, state.u, state.constant)
        for _ in range(min(self.check_every, self.max_iter - state.n_pass)):
            n = run.problem.n_instances
            for i in _draw(state.gaps, n, state.rng):
                self._visit(run, state, form, int(i), oracle=True)
            for _ in range(self.cached_passes):
                for i in state.rng.permutation(n):
                    self._visit(run, state, form, int(i), oracle=False)
            state.n_pass += 1
        gap = self._check(run, state, form)
        if closed(gap, run.best.objective, self.tolerance):
            raise Stop(Outcome.CONVERGED, f"The duality gap fell to {gap:.4g} after {state.n_pass} passes.")
        if state.n_pass >= self.max_iter:
            raise Stop(Outcome.BUDGET, f"All {self.max_iter} passes were run; the duality gap is {gap:.4g}.")

    def choose(self, run: SolverRun) -> tuple[Floats, float]:
        """The weights of the lowest objective; the last weights if inference missed maxima, since the lowest estimate
        is where it missed the most."""
        return run.chosen(last=run.negative_gaps > 0)

    def certificate(self, run: SolverRun, state: BCFWState, objective: float) -> Certificate:
        return duality_certificate(run, objective, state.lower)

    def _lower(self, run: SolverRun, state: BCFWState, form: ConvexForm) -> float:
        """The dual value of the mixtures: a lower bound on the objective."""
        mixed = np.array([alpha @ b for alpha, b in zip(state.alpha, state.offsets, strict=True)])
        return form.dual(state.v, float(run.problem.scale @ mixed))

    def _check(self, run: SolverRun, state: BCFWState, form: ConvexForm) -> float:
        """Evaluate the current and the averaged weights; renew every instance's gap at the current weights."""
        w = form.point(state.v)
        lower = self._lower(run, state, form)
        state.lower = lower
        part = run.count(run.problem.plus(w))
        at_mean = form.primal(state.mean, run.count(run.problem.plus(state.mean)).total)
        at_w = form.primal(w, part.total)
        mixed = [state.alpha[i] @ _scores(run, state, i, w) for i in range(run.problem.n_instances)]
        state.gaps = np.maximum(run.problem.scale * (part.values - np.array(mixed)), 0.0)
        gap = gap_between(min(at_w, at_mean, run.best.objective), lower)
        if at_mean < at_w:
            run.record(state.mean, at_mean, gap=gap)
        else:
            norm = run.gradient_norm(w, part.gradient - form.u)
            run.record(w, at_w, gap=gap, gradient_norm=norm)
        return gap

    def _visit(self, run: SolverRun, state: BCFWState, form: ConvexForm, i: int, oracle: bool) -> None:
        """One step on instance i, towards a known plane or a new one."""
        run.check_time()
        c = float(run.problem.scale[i])
        w = form.point(state.v)
        scores = _scores(run, state, i, w)
        mixed = float(state.alpha[i] @ scores)
        enough = max(HIT_OWN * state.gaps[i], HIT_MEAN * float(state.gaps.mean()))
        if oracle and c * (float(scores.max()) - mixed) < enough:
            value, mu = run.atom(w, i)
            if impossible(value - mixed, value):
                run.negative_gaps += 1
            state.gaps[i] = max(c * (value - mixed), 0.0)
            if value > scores.max():
                self._store(run, state, form.r, i, mu, value - float(mu @ run.problem.scores_of(i, w)))
                scores = _scores(run, state, i, w)
        self._mix(run, state, i, scores)
        state.steps += 1
        if oracle:
            state.mean += (2.0 / (state.n_oracle + 2.0)) * (form.point(state.v) - state.mean)
            state.n_oracle += 1

    def _mix(self, run: SolverRun, state: BCFWState, i: int, scores: Floats) -> None:
        """Find better weights for the planes of instance i, the others held fixed."""
        c = float(run.problem.scale[i])
        alpha = state.alpha[i].copy()
        if c == 0.0 or len(alpha) == 1:
            return
        one_group = np.zeros(len(alpha), dtype=np.int64)
        pairwise(c * c * state.products[i], -c * scores, alpha, one_group, 1, MIX_ROUNDS, MIX_SHARE)
        change = alpha - state.alpha[i]
        if np.any(change):
            state.v -= c * run.problem.features_of(i, change @ state.planes[i])
            state.used[i][alpha > 0] = state.steps
            state.alpha[i] = alpha

    def _store(self, run: SolverRun, state: BCFWState, r: Floats, i: int, mu: Floats, offset: float) -> None:
        """Cache a plane with weight 0; in a full cache it takes the place of one that is not needed."""
        if len(state.offsets[i]) < self.n_planes:
            k = len(state.offsets[i])
            state.planes[i] = np.vstack([state.planes[i], mu])
            state.offsets[i] = np.append(state.offsets[i], offset)
            state.alpha[i] = np.append(state.alpha[i], 0.0)
            state.used[i] = np.append(state.used[i], state.steps)
            state.products[i] = np.pad(state.products[i], (0, 1))
        else:
            k = _vacate(state.planes[i], state.offsets[i], state.alpha[i], state.used[i], state.products[i])
            state.planes[i][k] = mu
            state.offsets[i][k] = offset
            state.alpha[i][k] = 0.0
            state.used[i][k] = state.steps
        row = self._products(run, r, i, state.planes[i], mu)
        state.products[i][k] = row
        state.products[i][:, k] = row


def _scores(run: SolverRun, state: BCFWState, i: int, w: Floats) -> Floats:
    """Values at w of the planes of instance i."""
    return np.asarray(state.planes[i] @ run.problem.scores_of(i, w) + state.offsets[i])


def _vacate(planes: Floats, offsets: Floats, alpha: Floats, used: Ints, products: Floats) -> int:
    """The slot of the least recently used plane without weight; if all planes have weight, the two with the least
    weight are merged."""
    free = np.flatnonzero(alpha == 0)
    if len(free):
        return int(free[used[free].argmin()])
    k, j = np.argsort(alpha, kind="stable")[:2]
    share = alpha[k] / (alpha[k] + alpha[j])
    planes[j] += share * (planes[k] - planes[j])
    offsets[j] += share * (offsets[k] - offsets[j])
    products[j] += share * (products[k] - products[j])
    products[:, j] += share * (products[:, k] - products[:, j])
    alpha[j] += alpha[k]
    alpha[k] = 0.0
    return int(k)


def _draw(gaps: Floats, n: int, rng: np.random.Generator) -> Ints:
    """``n`` instances, drawn in proportion to their gaps, except for a share drawn uniformly."""
    total = gaps.sum()
    p = np.full(n, 1.0 / n)
    if total > 0:
        p = UNIFORM / n + (1.0 - UNIFORM) * gaps / total
    return rng.choice(n, size=n, p=p / p.sum())
