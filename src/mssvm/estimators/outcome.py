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
BOUNDED = ("decomposition bound", "decomposition bound on the host")  # the methods' names in the status of inference
SLACK = 0.02  # tolerated loss of accuracy, as a share of the labelled sites, against the unary scores alone
REMEDY = (
    "use a likelihood (CRF, or HCRF with hidden variables) or soften the margin (UnifiedSSVM with eps_y > 0, such as "
    "0.5), and with hidden variables also try another start (init='hcrf', n_init)."
)
AT_ZERO = (
    "The weights ended at zero, or no better than there: a margin can learn nothing where no label has more than half "
    f"of the probability; {REMEDY}"
)
LEARNED_NOTHING = (
    "The margin predicts its training labels hardly better than the most frequent class, which has less than half of "
    f"them: a margin can learn nothing where no label has more than half of the probability; {REMEDY}"
)


def nothing_learned(at_zero: bool, margin: bool, right: int, labelled: int, class_counts: Sequence[int]) -> str:
    """A sentence that says that a ``margin`` learned nothing and what to do about it; "" if it learned something.

    Nothing was learned if training ended ``at_zero``, or if the model predicts at most a share ``SLACK`` of the
    labelled sites more than the most frequent class does and that class has less than half of them. (A margin that
    predicts one class everywhere is no failure if that class has most of the labels.)
    """
    if at_zero:
        return AT_ZERO
    most = max(class_counts, default=0)
    if margin and 2 * most < labelled and right <= most + SLACK * labelled:
        return LEARNED_NOTHING
    return ""


def below_simple(right: int, alone: int, labelled: int, class_counts: Sequence[int], exact: bool) -> str:
    """A sentence about weights that predict fewer of the labelled sites than a simpler rule: the most frequent class,
    or the unary scores ``alone`` (by more than ``SLACK``, as links may cost a few sites); "" for better weights.
    Where inference was ``exact`` another one cannot help."""
    most = max(class_counts, default=0)
    simpler = ""
    if right < alone - SLACK * labelled - 1:
        simpler = f"{alone} that the scores of single sites predict without their links"
    if right < most:
        simpler = f"{most} of the most frequent class"
    if not simpler:
        return ""
    remedy = "other inference, more effort (inference=ms.inference.Auto(effort='careful')) or another start"
    if exact:
        remedy = "another start"
    found = f"At these weights {right} of {labelled} training labels are predicted, fewer than the {simpler}"
    return f"{found}; try {remedy}."


def summary(training: Training, chosen: Solution, objectives: list[float]) -> dict[str, Any]:
    """Figures about a training, as JSON values, which ``diagnosis`` puts into words. A final pass over every block
    counts the methods of inference used, and measures how much each hidden state is used given the labels."""
    last = chosen.trace[-1] if chosen.trace else None
    certificate = chosen.certificate
    bounded = training.upper_bound(chosen)  # computed first, while messages are still those of these weights
    blocks = training.data.summaries(training.problem, chosen.w)
    right = sum(block.right for block in blocks)
    exact = all(block.exact for block in blocks)
    converged = sum(block.converged for block in blocks)
    answers = sum(block.n for block in blocks)
    methods = Counter[str]()
    for block in blocks:
        methods.update(block.methods)
    kind = "exact" if exact else "approximate"
    names = ", ".join(sorted(methods)) or "none"
    census = training.data.census
    at_zero = training.no_better_than_zero(chosen)
    nothing = nothing_learned(at_zero, training.is_margin, right, census.sites_labelled, census.class_counts)
    alone = sum(block.right_alone for block in blocks)
    worse = below_simple(right, alone, census.sites_labelled, census.class_counts, exact)
    sentences = [ENDED[chosen.outcome.value], f"Inference was {kind} ({names}).", nothing, worse]
    status = " ".join(sentence for sentence in sentences if sentence)
    return {
        "objective": float(chosen.objective),
        "outcome": chosen.outcome.value,
        "status": status,
        "at_zero": at_zero,
        "nothing_learned": nothing,
        "sites_right": right,
        "sites_right_alone": alone,
        "worse": worse,
        "message": chosen.message,
        "certificate": certificate.sentence,
        "augmented": not isinstance(training.plan.objective.loss, Zero),
        "objective_bound": bounded,
        "gap": float(certificate.gap),
        "certified": bool(certificate.certifies),
        "negative_gaps": int(certificate.negative_gaps),
        "restarts": objectives,
        "floored": int(last.floored) if last else 0,
        "seconds": float(last.seconds) if last else 0.0,
        "instances": training.data.n_instances,
        "instances_labelled": int(training.problem.n_instances),
        **census._asdict(),
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
