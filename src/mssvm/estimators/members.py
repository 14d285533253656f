"""The members of the family, as in the paper's Table 1 (``core.registry.MEMBERS``): temperatures and a loss.

SSVM and CRF are LSSVM and HCRF without hidden variables; M3E and ModLat are relatives with an objective of their own.
"""

from __future__ import annotations

from typing import Any

from mssvm.core.arrays import Floats
from mssvm.core.checks import count
from mssvm.core.potentials import Query
from mssvm.engines.base import BoundQuery
from mssvm.estimators.base import StructuredEstimator
from mssvm.estimators.docstrings import documented
from mssvm.estimators.prediction import Predictor
from mssvm.inference.base import Planner
from mssvm.losses import Loss
from mssvm.models.base import Inputs
from mssvm.objectives import m3e, modlat
from mssvm.objectives.base import Objective
from mssvm.objectives.training import TrainingProblem
from mssvm.optim import Solution
from mssvm.optim.alternate import Minimise, alternate


@documented
class LSSVM(StructuredEstimator):
    """Latent structured SVM (paper eq. 4): maximises over hidden variables, in training and in prediction.

    Parameters
    ----------
    {structure}
    {common}

    {example}
    """


@documented
class MSSVM(StructuredEstimator):
    """Marginal structured SVM (paper eq. 3): sums over hidden variables, maximises over outputs.

    Parameters
    ----------
    {structure}
    {common}

    {example}
    """


@documented
class HCRF(StructuredEstimator):
    """Hidden conditional random field: conditional likelihood of the outputs, hidden variables summed out.

    Parameters
    ----------
    {structure}
    {common}

    {example}
    """


@documented
class LossAugmentedCRF(StructuredEstimator):
    """Likelihood with the loss inside the partition function; without hidden variables, softmax-margin.

    Parameters
    ----------
    {structure}
    {common}

    {example}
    """


@documented
class SSVM(LSSVM):
    """Structured SVM; missing labels are maximised over.

    Parameters
    ----------
    {structure}
    {common}

    {example}
    """


@documented
class CRF(HCRF):
    """Conditional random field; missing labels are summed over.

    Parameters
    ----------
    {structure}
    {common}

    {example}
    """


@documented
class EpsilonSSVM(StructuredEstimator):
    """One temperature for outputs and hidden variables (Schwing et al. 2012).

    Parameters
    ----------
    {structure}
    eps : float
        The temperature; 0 is LSSVM, 1 the loss-augmented likelihood.
    {common}

    {example}
    """

    def __init__(self, structure: Any = None, *, eps: float = 0.5, **common: Any) -> None:
        super().__init__(structure, **common)
        self.eps = eps

    @property
    def eps_y(self) -> float:  # type: ignore[override]
        return self.eps

    @property
    def eps_h(self) -> float:  # type: ignore[override]
        return self.eps


@documented
class UnifiedSSVM(StructuredEstimator):
    """Any temperatures (paper section 5).

    Parameters
    ----------
    {structure}
    eps_y, eps_h : float
        Temperatures of outputs and of hidden variables: (0, 1) is MSSVM, (0, 0) LSSVM.
    {common}

    {example}
    """

    def __init__(self, structure: Any = None, *, eps_y: float = 0.0, eps_h: float = 1.0, **common: Any) -> None:
        super().__init__(structure, **common)
        self.eps_y = eps_y
        self.eps_h = eps_h


@documented
class M3E(StructuredEstimator):
    """Max-margin min-entropy model (Miller et al. 2012); needs exact inference.

    Parameters
    ----------
    {structure}
    alpha : float
        Order of the entropy, > 0 and not 1; infinity is LSSVM.
    {common}

    {example}
    """

    def __init__(self, structure: Any = None, *, alpha: float = 2.0, **common: Any) -> None:
        super().__init__(structure, **common)
        self.alpha = alpha

    def _objective(self, loss: Loss) -> Objective:
        return m3e.RenyiMargin(self.alpha, loss)

    @property
    def _predictor(self) -> Predictor:
        objective = m3e.RenyiMargin(self.alpha)

        def bind(planner: Planner, inputs: Inputs, query: Query) -> BoundQuery:
            return objective.decoder(inputs.batch, query, planner).decode

        return bind


@documented
class ModLat(StructuredEstimator):
    """Latent SVM with a second, conditional model of the hidden variables (Kumar, Packer, Koller 2012).

    Parameters
    ----------
    {structure}
    beta : float
        Weight of the diversity of the conditional model, from 0 to 1.
    latent_weight : float
        Weight of the loss on hidden variables relative to that on outputs; 0 is LSSVM.
    n_rounds : int
        Largest number of rounds in which the two models are fitted in turn; the predictor of least objective is
        returned.
    {common}

    {example}
    """

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

    def _strategy(self, problem: TrainingProblem, w0: Floats, minimise: Minimise) -> Solution:
        problems = modlat.ModLatProblems(
            problem.model,
            problem.sample,
            problem.inference,
            problem.engine,
            problem.C,
            self.beta,
            self.latent_weight,
            problem.objective.loss,
        )
        rounds = count(self.n_rounds, "n_rounds", 1)
        return alternate(problems, minimise, w0, w0, max_iter=rounds)[0]
