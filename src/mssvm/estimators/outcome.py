"""How a training ended: figures about it, and the sentences that ``status_`` and ``diagnose`` use."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from mssvm.losses import Zero
from mssvm.objectives.summary import InferenceSummary
from mssvm.optim import Solution

if TYPE_CHECKING:
    from mssvm.estimators.training import Training

ENDED = {
    "converged": "Training converged.",
    "completed": "Training ran all its epochs; whether more would lower the objective is not known.",
    "budget": "Training used up its iterations before it converged; raise max_iter.",
    "uncertified": "Training ended and is not certified: inference missed maxima; use inference with more effort.",
    "stalled": "Training stalled: no step lowered the objective further.",
    "diverged": "Training diverged; scale the features or lower C.",
    "stopped": "Training was stopped by a callback.",
    "early": "Training stopped early, at the best validation score.",
    "time": "Training reached its time limit; the best weights so far were kept.",
    "interrupted": "Training was interrupted; the best weights so far were kept.",
}
BOUNDED = "decomposition bound"  # as inference names it
SLACK = 0.02  # share of the labelled sites by which links may be worse than none without a word
AT_ZERO = (
    "The weights ended at zero, or no better than there, and predictions ignore the features. That can be the optimum: "
    "a margin is inconsistent where no label has more than half of the probability. Use a likelihood (CRF, or HCRF "
    "with hidden variables) or eps_y > 0; with hidden variables also another start (init='hcrf' or 'random', n_init)."
)


def below_simple(right: int, alone: int, labelled: int, class_counts: Sequence[int]) -> str:
    """A sentence about weights that predict fewer of the labelled sites than something simpler does: the most frequent
    class, or the unary scores ``alone`` (by more than ``SLACK``, as links may cost a few sites); "" for better ones."""
    most = max(class_counts, default=0)
    simpler = ""
    if right < alone - SLACK * labelled - 1:
        simpler = f"{alone} that the scores of single sites predict without their links"
    if right < most:
        simpler = f"{most} of the most frequent class"
    if not simpler:
        return ""
    return (
        f"At these weights {right} of {labelled} training labels are predicted, fewer than the {simpler}; try other "
        "inference, more effort (inference=ms.inference.Auto(effort='careful')) or another start."
    )


def summary(training: Training, chosen: Solution, objectives: list[float]) -> dict[str, Any]:
    """Figures about a training, as JSON values, which ``diagnosis`` puts into words. A closing pass over every block
    counts the methods of inference that ran, and how much each hidden state is used given the labels."""
    last = chosen.trace[-1] if chosen.trace else None
    certificate = chosen.certificate
    blocks = training.data.look(training.problem, chosen.w)
    right = sum(block.right for block in blocks)
    exact = all(block.exact for block in blocks)
    converged = sum(block.converged for block in blocks)
    answers = sum(block.n for block in blocks)
    methods = Counter[str]()
    for block in blocks:
        methods.update(block.methods)
    kind = "exact" if exact else "approximate"
    names = ", ".join(sorted(methods)) or "none"
    at_zero = training.no_better_than_zero(chosen)
    status = f"{ENDED[chosen.outcome.value]} Inference was {kind} ({names})."
    if at_zero:
        status += f" {AT_ZERO}"
    alone = sum(block.right_alone for block in blocks)
    worse = below_simple(right, alone, training.data.census.sites_labelled, training.data.census.class_counts)
    if worse:
        status += f" {worse}"
    return {
        "objective": float(chosen.objective),
        "outcome": chosen.outcome.value,
        "status": status,
        "at_zero": at_zero,
        "sites_right": right,
        "sites_right_alone": alone,
        "worse": worse,
        "message": chosen.message,
        "certificate": certificate.sentence,
        "augmented": not isinstance(training.plan.objective.loss, Zero),
        "gap": float(certificate.gap),
        "certified": bool(certificate.certifies),
        "negative_gaps": int(certificate.negative_gaps),
        "restarts": objectives,
        "floored": int(last.floored) if last else 0,
        "seconds": float(last.seconds) if last else 0.0,
        "instances": training.data.n_instances,
        "instances_labelled": int(training.problem.n_instances),
        **training.data.census._asdict(),
        "methods": dict(sorted(methods.items())),
        "exact": exact,
        "converged_share": converged / answers,
        "hidden_usage": _hidden_usage(blocks),
    }


def _hidden_usage(blocks: Sequence[InferenceSummary]) -> list[list[float]]:
    """Mean probabilities of the states of hidden variables, for every number of states."""
    totals: dict[int, Any] = {}
    counts = Counter[int]()
    for block in blocks:
        for card, (total, n) in block.usage.items():
            totals[card] = totals.get(card, 0.0) + total
            counts[card] += n
    return [(totals[card] / counts[card]).tolist() for card in sorted(totals)]
