"""What training says of itself: no negative gap is convergence, and weights of no use are called so."""

from __future__ import annotations

import json
import sys
import warnings
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning

import mssvm as ms
from mssvm.cli import main
from mssvm.cli.fit import _against_majority
from mssvm.estimators import plan, training
from mssvm.estimators.outcome import nothing_learned
from mssvm.optim import BCFW, CCCP, CuttingPlane, Outcome, Subgradient
from optim_problems import Toy

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))

import attack_gaps


class Low(Toy):
    """Reports sums too low at about every other point, as inference does that misses maxima."""

    def plus(self, w: np.ndarray, instances: Any = None) -> Any:
        part = super().plus(w, instances)
        missed = 0.5 * (int(1e6 * abs(w[0])) % 2)
        return replace(part, values=part.values - missed, total=part.total - missed * float(self.scale.sum()))


@pytest.mark.parametrize("solver", [BCFW(max_iter=20), CuttingPlane(max_iter=30)], ids=repr)
def test_solvers_neither_stop_on_negative_gaps_nor_call_them_convergence(solver: Any) -> None:
    problem = replace(Low.draw(), exact=False)
    found = solver.minimize(problem, np.zeros(problem.n_weights))
    gaps = found.history["gap"]
    assert np.nanmin(gaps) < 0
    assert found.outcome is Outcome.UNCERTIFIED and found.outcome.unfinished
    assert "Not certified: inference missed maxima" in found.message and "All" in found.message
    assert "Not certified: inference missed maxima" in found.certificate.sentence
    assert not found.certificate.certifies and found.certificate.negative_gaps > 0


@pytest.mark.parametrize("solver", ["bcfw", "cutting-plane", "cccp"])
def test_gaps_of_rounding_are_no_percentages(solver: str) -> None:
    """One class only: the minimum is 0, and the gap is of the size of rounding."""
    rng = np.random.default_rng(0)
    X = [rng.normal(size=(3, 2)) for _ in range(3)]
    clf = ms.SSVM(ms.Chain(), solver=solver).fit(X, [["a"] * 3] * 3)
    assert clf.training_["gap"] >= 0.0 and np.nanmin(clf.history_["gap"]) >= 0.0
    assert "%" not in clf.training_["certificate"]


def test_outer_loops_count_the_negative_gaps_of_inner_ones() -> None:
    problem = replace(Low.draw(), exact=False)
    found = CCCP(BCFW(max_iter=10), max_iter=3).minimize(problem, np.zeros(problem.n_weights))
    assert found.certificate.negative_gaps > 0 and found.outcome is Outcome.UNCERTIFIED


@pytest.mark.slow
def test_discs_on_which_messages_miss_maxima() -> None:
    """The gap fell below zero after 30 passes, and training had "converged"."""
    X, y = attack_gaps.discs(np.random.default_rng(1), 8, 32, 2, 1.2)
    rough = ms.inference.Propagate("fast", starts=("marginals", "regions"))
    with pytest.warns(ConvergenceWarning, match="not certified: inference missed maxima"):
        model = ms.SSVM(ms.Grid(), inference=rough, solver="bcfw", max_iter=60, random_state=0).fit(X, y)
    assert np.nanmin(model.history_["gap"]) < 0
    assert "converged" not in model.status_.split(".")[0]
    assert "missed maxima" in model.diagnose() and not model.training_["certified"]


@pytest.mark.slow
def test_discs_whose_maxima_are_found() -> None:
    X, y = attack_gaps.discs(np.random.default_rng(1), 8, 32, 2, 1.2)
    model = ms.SSVM(ms.Grid(), random_state=0).fit(X, y)
    assert model.training_["outcome"] == "converged" and "minimum cut" in model.status_
    assert 0 <= model.training_["gap"] <= 1e-3 * model.objective_
    assert model.score(X, y) > 0.95


@pytest.mark.slow
def test_random_fits_on_grids() -> None:
    counts, failed = attack_gaps.run(30, seed=0)
    assert not failed and counts["uncertified"] > 0


def even(n: int = 60) -> tuple[list[np.ndarray], list[list[str]]]:
    """Labels of which none has more than half, whatever the features."""
    return [np.ones((1, 1)) for _ in range(n)], [[label] for label in "aaabbcc" * (n // 7 + 1)][:n]


def test_margins_at_zero_are_not_converged_without_a_word(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    X, y = even()
    with pytest.warns(ConvergenceWarning, match="The weights ended at zero"):
        model = ms.SSVM(ms.Chain(), random_state=0).fit(X, y)
    for told in (model.status_, model.diagnose()):
        assert "The weights ended at zero" in told and "likelihood" in told and "eps_y > 0" in told
    assert "ended at zero" not in ms.CRF(ms.Chain()).fit(X, y).status_
    clear = ms.SSVM(ms.Chain(), random_state=0).fit(X, [["a"]] * 40 + [["b"]] * 20)
    assert "ended at zero" not in clear.status_
    lines = [json.dumps({"x": x.tolist(), "y": labels}) for x, labels in zip(X, y, strict=True)]
    (tmp_path / "even.jsonl").write_text("\n".join(lines) + "\n")
    assert main(["fit", str(tmp_path / "even.jsonl"), "-o", str(tmp_path / "m.st"), "--method", "ssvm"]) == 0
    assert "The weights ended at zero" in capsys.readouterr().out


def sticky(n: int, seed: int) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Chains of five labels that mostly stay, in noise where a site's label rarely has half of the probability."""
    rng = np.random.default_rng(seed)
    X, y = [], []
    for _ in range(n):
        kept = np.where(rng.random(40) < 0.85, 0, np.arange(40))
        labels = rng.integers(5, size=40)[np.maximum.accumulate(kept)]
        X.append(np.eye(5)[labels] + 2.0 * rng.normal(size=(40, 5)))
        y.append(labels)
    return X, y


def test_margins_that_learn_nothing_on_noisy_chains_say_what_to_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """There the optimum of the margin is zero; softened margins and likelihoods learn, and are not warned of."""
    X, y = sticky(60, seed=0)
    X_new, y_new = sticky(100, seed=1)
    with pytest.warns(ConvergenceWarning, match="a margin can learn nothing"):
        margin = ms.MSSVM(ms.Chain(), random_state=0).fit(X, y)
    assert margin.score(X_new, y_new) < 0.3
    assert "eps_y > 0" in margin.diagnose() and "HCRF" in margin.diagnose()
    for softer in (ms.HCRF(ms.Chain()), ms.UnifiedSSVM(ms.Chain(), eps_y=0.5)):
        assert softer.fit(X, y).score(X_new, y_new) > 0.4
        assert softer.training_["nothing_learned"] == ""
    lines = [json.dumps({"x": x.tolist(), "y": labels.tolist()}) for x, labels in zip(X, y, strict=True)]
    (tmp_path / "noisy.jsonl").write_text("\n".join(lines) + "\n")
    call = [
        "compare",
        str(tmp_path / "noisy.jsonl"),
        "--methods",
        "mssvm,hcrf",
        "--cv",
        "2",
        "--hidden",
        "0",
        "--no-curves",
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        assert main(call) == 0
        told = " ".join(capsys.readouterr().out.split())
        assert main([*call, "--json"]) == 0
    assert "MSSVM, 2 of 2 folds: The weights ended at zero" in told and "eps_y > 0" in told
    assert "HCRF, " not in told.replace("(CRF, or HCRF", "")
    assert len(json.loads(capsys.readouterr().out)["warnings"]) == 1


@pytest.mark.parametrize(
    ("at_zero", "margin", "right", "counts", "told"),
    [
        (True, True, 0, [3, 2, 2], "ended at zero"),
        (False, True, 31, [30, 35, 35], "hardly better than the most frequent class"),
        (False, True, 37, [30, 35, 35], "hardly better than the most frequent class"),
        (False, True, 38, [30, 35, 35], ""),
        (False, False, 31, [30, 35, 35], ""),
        (False, True, 60, [60, 20, 20], ""),
    ],
)
def test_what_counts_as_nothing_learned(at_zero: bool, margin: bool, right: int, counts: list[int], told: str) -> None:
    sentence = nothing_learned(at_zero, margin, right, sum(counts), counts)
    assert told in sentence and bool(told) == bool(sentence)


def test_labels_predicted_worse_than_by_the_most_frequent_class() -> None:
    X, y = [np.ones((3, 1))] * 10, [["a", "a", "b"]] * 10
    opposite = -5.0 * ms.CRF(ms.Chain()).fit(X, y).coef_
    model = ms.CRF(ms.Chain(), init=opposite).fit(X, y, callback=lambda row, w: True)
    for told in (model.status_, model.diagnose()):
        assert "of 30 training labels are predicted, fewer than the 20 of the most frequent class" in told
    assert "fewer than" not in ms.CRF(ms.Chain()).fit(X, y).status_


def test_training_worse_than_its_own_unaries_says_so() -> None:
    """Labels that alternate, learned as if they did not: the links make everything worse."""
    rng = np.random.default_rng(0)
    y = [np.arange(20) % 2 for _ in range(10)]
    X = [labels[:, None] + 0.3 * rng.normal(size=(20, 1)) for labels in y]
    alike = {"transition": np.array([[20.0, 0.0], [0.0, 20.0]])}
    with pytest.warns(ConvergenceWarning, match="that the scores of single sites predict without their links"):
        model = ms.CRF(ms.Chain(fixed=alike)).fit(X, y)
    assert model.training_["sites_right_alone"] > 150 > model.training_["sites_right"]
    assert "without their links" in model.diagnose()
    assert ms.CRF(ms.Chain()).fit(X, y).training_["worse"] == ""


def bad_first_start(monkeypatch: pytest.MonkeyPatch, scale: float) -> list[str]:
    """Weights that are far off at the first start only; the names of the starts that were asked for."""
    asked: list[str] = []

    def starts(init: Any, problem: Any, *more: Any) -> Any:
        asked.append(init)
        if len(asked) == 1:
            yield scale * np.random.default_rng(0).normal(size=problem.n_weights)
        else:
            yield from plan.starts(init, problem, *more)

    monkeypatch.setattr(training, "starts", starts)
    return asked


def test_a_failed_training_with_hidden_variables_starts_again(monkeypatch: pytest.MonkeyPatch) -> None:
    y = [np.arange(12) % 3 for _ in range(6)]
    X = [np.eye(3)[labels] for labels in y]
    asked = bad_first_start(monkeypatch, 30.0)
    model = ms.HCRF(ms.Chain(hidden=2), max_iter=1, random_state=0).fit(X, y)
    assert asked == ["auto", "random"]
    assert "Training was repeated with another start" in model.status_ and "is kept" in model.diagnose()
    assert model.score(X, y) > 1 / 3


def test_a_failed_training_that_propagates_is_repeated_carefully(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    y = [np.kron(rng.integers(3, size=(3, 3)), np.ones((4, 4), dtype=int)) for _ in range(2)]
    X = [np.eye(3)[labels] for labels in y]
    asked = bad_first_start(monkeypatch, 30.0)
    settings = {"solver": Subgradient(max_iter=2, rate=0.1), "random_state": 0}
    model = ms.HCRF(ms.Grid(), memory_limit=1000, **settings).fit(X, y)
    assert asked == ["auto", "auto"] and "Training was repeated with careful inference" in model.status_
    assert model.score(X, y) > 0.9
    asked.clear()
    given = ms.HCRF(ms.Grid(), inference=ms.inference.Auto(memory_limit=1000), **settings).fit(X, y)
    assert asked == ["auto"] and "repeated" not in given.status_  # the inference is the caller's own choice


def test_the_command_line_compares_with_the_most_frequent_class() -> None:
    model = SimpleNamespace(training_={"class_counts": [20, 10]})
    assert "less than the 66.67% of the most frequent class" in _against_majority(0.5, model)
    assert _against_majority(0.7, model) == ""


def test_models_of_earlier_versions_have_a_diagnosis() -> None:
    X, y = even(14)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model = ms.SSVM(ms.Chain(), random_state=0).fit(X, y)
    for name in ("nothing_learned", "at_zero", "sites_right"):
        del model.training_[name]
    assert "ended at zero" not in model.diagnose()
