"""The members of the family, as in the paper's Table 1: each is a pair of temperatures and a loss.

member              eps_y   eps_h   loss in training
LSSVM               0       0       Delta
MSSVM               0       1       Delta
HCRF                1       1       -
LossAugmentedCRF    1       1       Delta
EpsilonSSVM         eps     eps     Delta
UnifiedSSVM         any     any     Delta
SSVM, CRF           the first and third without hidden variables
M3E, ModLat         relatives with an objective of their own
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from mssvm.core.errors import InputError
from mssvm.core.potentials import Belief, Potentials
from mssvm.estimators.base import StructuredEstimator
from mssvm.estimators.training import Data, Minimise
from mssvm.inference.base import Inference, plan_of
from mssvm.losses.losses import Loss, Zero
from mssvm.objectives import m3e, modlat
from mssvm.objectives.base import Objective
from mssvm.objectives.sample import Sample
from mssvm.objectives.training import TrainingProblem
from mssvm.optim import Solution

F = TypeVar("F", bound=Callable[..., None])


def _and_common(init: F) -> F:
    """Let the signature of ``init(self, structure, *, own, **common)`` list the common parameters by name, as
    scikit-learn reads it."""
    own = [p for p in inspect.signature(init).parameters.values() if p.kind is not p.VAR_KEYWORD]
    known = {p.name for p in own}
    common = inspect.signature(StructuredEstimator.__init__).parameters.values()
    merged = inspect.Signature([*own, *(p for p in common if p.name not in known)])
    init.__signature__ = merged  # type: ignore[attr-defined]
    return init


class LSSVM(StructuredEstimator):
    """Latent structured SVM (paper eq. 4): maximises over hidden variables, in training and in prediction."""

    eps_y, eps_h = 0.0, 0.0


class MSSVM(StructuredEstimator):
    """Marginal structured SVM (paper eq. 3): sums over hidden variables, maximises over outputs."""

    eps_y, eps_h = 0.0, 1.0


class HCRF(StructuredEstimator):
    """Hidden conditional random field: conditional likelihood of the outputs, hidden variables summed out."""

    eps_y, eps_h = 1.0, 1.0
    default_loss = "zero"

    def _loss(self) -> Loss:
        loss = super()._loss()
        if not isinstance(loss, Zero):
            raise InputError(f"{type(self).__name__} is a likelihood without a loss; use LossAugmentedCRF to have one.")
        return loss


class LossAugmentedCRF(StructuredEstimator):
    """Likelihood with the loss inside the partition function; without hidden variables, softmax-margin."""

    eps_y, eps_h = 1.0, 1.0


class _WithoutHidden(StructuredEstimator):
    def _check_data(self, data: Data) -> None:
        if len(data.encoded.hidden):
            raise InputError(
                f"{type(self).__name__} has no hidden variables, but the structure has; "
                "use MSSVM, LSSVM or HCRF, or a structure with hidden=0 (--hidden 0)."
            )


class SSVM(_WithoutHidden, LSSVM):
    """Structured SVM; missing labels are maximised over."""


class CRF(_WithoutHidden, HCRF):
    """Conditional random field; missing labels are summed over."""


class EpsilonSSVM(StructuredEstimator):
    """One temperature ``eps`` for outputs and hidden variables (Schwing et al. 2012)."""

    @_and_common
    def __init__(self, structure: Any = None, *, eps: float = 0.5, **common: Any) -> None:
        super().__init__(structure, **common)
        self.eps = eps

    @property
    def eps_y(self) -> float:  # type: ignore[override]
        return self.eps

    @property
    def eps_h(self) -> float:  # type: ignore[override]
        return self.eps


class UnifiedSSVM(StructuredEstimator):
    """Any temperatures: ``eps_y`` of outputs and ``eps_h`` of hidden variables (paper section 4)."""

    @_and_common
    def __init__(self, structure: Any = None, *, eps_y: float = 0.0, eps_h: float = 1.0, **common: Any) -> None:
        super().__init__(structure, **common)
        self.eps_y = eps_y
        self.eps_h = eps_h


class M3E(StructuredEstimator):
    """Max-margin min-entropy model (Miller et al. 2012) with entropy order ``alpha``; needs exact inference."""

    eps_y, eps_h = 0.0, 1.0

    @_and_common
    def __init__(self, structure: Any = None, *, alpha: float = 2.0, **common: Any) -> None:
        super().__init__(structure, **common)
        self.alpha = alpha

    def _objective(self, loss: Loss) -> Objective:
        return m3e.RenyiMargin(self.alpha, loss)

    def _best(self, inference: Inference, sample: Sample, theta: Potentials) -> Belief:
        planner = partial(plan_of, inference)
        return m3e.RenyiMargin(self.alpha).decoder(sample.batch, sample.query, planner).decode(theta)


class ModLat(StructuredEstimator):
    """Latent SVM with a second, conditional model of the hidden variables (Kumar, Packer, Koller 2012).

    ``beta`` weighs the diversity of the conditional model, ``latent_weight`` the loss on hidden variables against that
    on outputs (0 leaves LSSVM); the two models are fitted by ``n_rounds`` turns.
    """

    eps_y, eps_h = 0.0, 0.0

    @_and_common
    def __init__(
        self,
        structure: Any = None,
        *,
        beta: float = 0.1,
        latent_weight: float = 1.0,
        n_rounds: int = 5,
        **common: Any,
    ) -> None:
        super().__init__(structure, **common)
        self.beta = beta
        self.latent_weight = latent_weight
        self.n_rounds = n_rounds

    def _solve(self, problem: TrainingProblem, w0: Any, minimise: Minimise) -> Solution:
        pair = modlat.ModLatProblems(
            problem.model,
            problem.sample,
            problem.inference,
            problem.engine,
            problem.C,
            self.beta,
            self.latent_weight,
            problem.objective.loss,
        )
        conditional = w0
        solution = minimise(pair.prediction_problem(conditional), w0)
        for _ in range(self.n_rounds - 1):
            conditional = minimise(pair.conditional_problem(solution.w), conditional).w
            solution = minimise(pair.prediction_problem(conditional), solution.w)
        return solution
