"""The course of training, in sentences."""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite, nan
from typing import Any

from mssvm.data.labels import LabelVocabulary
from mssvm.estimators.outcome import ENDED

DEAD = 1e-3  # mean probability below which a hidden state counts as unused
USEFUL = 0.1  # share of the objective that the gap of a useful certificate does not exceed


def paragraph(summary: Mapping[str, Any], labels: LabelVocabulary) -> str:
    """One line per topic. Models saved by an earlier version have no sentences about what was learned."""
    lines = [
        f"{ENDED[summary['outcome']]} {summary['message']}",
        summary.get("nothing_learned", ""),
        " ".join(filter(None, (summary.get("repeated"), summary.get("worse")))),
        _gap(summary),
        _inference(summary),
        _restarts(summary["restarts"]),
        _coverage(summary, labels),
        _usage(summary["hidden_usage"]),
        _calibration(summary.get("calibration")),
    ]
    return "\n".join(line for line in lines if line)


def _gap(summary: Mapping[str, Any]) -> str:
    objective = summary["objective"]
    gap = summary["gap"]
    certificate = summary["certificate"]
    if gap > USEFUL * abs(objective) and not summary["negative_gaps"]:
        certificate = f"The certificate is not useful: it leaves a gap of {gap:.4g}."
    return f"Objective {objective:.6g}. {certificate}{_bound(summary.get('objective_bound', nan))}"


def _bound(bound: float) -> str:
    """A sentence on the upper bound of the objective that exact inference would have; "" where none is known."""
    if not isfinite(bound):
        return ""
    return f" With exact inference the objective at these weights is at most {bound:.6g}."


def _inference(summary: Mapping[str, Any]) -> str:
    used = ", ".join(f"{name} for {n} instances" for name, n in summary["methods"].items())
    if summary["exact"]:
        return f"Inference was exact ({used})."
    out = f"Inference was approximate ({used}); {summary['converged_share']:.1%} of its calls converged."
    if summary["floored"]:
        calls = "loss-augmented calls" if summary.get("augmented", True) else "calls"
        out += f" {summary['floored']} {calls} fell below the labels' own score and were raised to it."
    return out


def _restarts(objectives: list[float]) -> str:
    if len(objectives) < 2:
        return ""
    finite = [objective for objective in objectives if isfinite(objective)]
    if not finite:
        return f"None of {len(objectives)} starts gave a finite objective."
    low = min(finite)
    high = max(finite)
    spread = (high - low) / max(abs(low), 1e-300)
    return f"{len(objectives)} starts ended between {low:.6g} and {high:.6g}, {spread:.1%} apart."


def _coverage(summary: Mapping[str, Any], labels: LabelVocabulary) -> str:
    sites = summary["sites"]
    labelled = summary["sites_labelled"]
    if "votes" in summary:
        return (
            f"{labelled} of {sites} sites ({labelled / max(sites, 1):.1%}) had votes, {summary['votes']} in all, or a "
            f"label; {summary['rounds']} rounds estimated annotators and weights."
        )
    out = f"{labelled} of {sites} sites ({labelled / max(sites, 1):.1%}) were labelled"
    if summary["sites_candidates"]:
        out += f", {summary['sites_candidates']} of them by candidate sets"
    if summary["instances_labelled"] < summary["instances"]:
        out += f"; {summary['instances'] - summary['instances_labelled']} instances had no label and changed nothing"
    never = [repr(c) for c, n in zip(labels.classes, summary["class_counts"], strict=True) if not n]
    if not never:
        return f"{out}."
    return f"{out}. Never seen as a single label: {', '.join(never)}."


def _usage(usage: list[list[float]]) -> str:
    if not usage:
        return ""
    dead = sum(p < DEAD for group in usage for p in group)
    total = sum(map(len, usage))
    if dead:
        return f"{dead} of {total} hidden states are unused (mean probability below {DEAD:g}); fewer may do as well."
    return f"All {total} hidden states are in use."


def _calibration(calibrated: Mapping[str, Any] | None) -> str:
    if calibrated is None:
        return ""
    temperature = calibrated["temperature"]
    out = f"Calibrated: temperature {temperature:.3g} has the least log loss, {calibrated['log_loss']:.4g}"
    if calibrated["at_edge"]:
        return f"{out}, at the edge of the interval searched: the loss still falls there."
    return f"{out}, a minimum inside the interval searched."
