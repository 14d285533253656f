"""Reproduction harness: seeds, resuming, statistics and verdicts."""

import json
from dataclasses import astuple, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import ttest_1samp, ttest_rel

import mssvm as ms
from mssvm.core.errors import InputError
from mssvm.engines.base import METHODS
from mssvm.experiments import figure5, table1
from mssvm.experiments.catalogue import EXPERIMENTS
from mssvm.experiments.collect import Trials, claim, lead_over, z_score
from mssvm.experiments.lbfgs import ScipyLBFGS
from mssvm.experiments.members import MEMBERS, NAMES, Untrained
from mssvm.experiments.protocol import Protocol
from mssvm.experiments.reproduce import _ran, report_so_far
from mssvm.experiments.segmentation import filtered_accuracy, noisy_images, picture
from mssvm.experiments.statistics import Differences, Estimate, Verdict, judge, judge_each, pool
from mssvm.experiments.trials import Store, Trial, key, run_trials
from mssvm.inference.exact import Exact
from mssvm.inference.propagation.propagate import Propagate
from mssvm.optim import BCFW, CCCP, Subgradient

TINY = Protocol.load(quick=True)


def tiny_protocol() -> Protocol:
    """The quick protocol on very small problems, so that a trial takes a fraction of a second."""
    tree = json.loads(json.dumps(TINY.tree))
    tree["data"] |= {"n_train": 3, "n_test": 4, "chain_sites": 4, "grid_rows": 2, "grid_columns": 2}
    for graph in tree["solvers"].values():
        for spec in graph.values():
            spec |= {"steps": {"M": 2, "L": 2, "H": 2}} if "steps" in spec else {}
            spec |= {"iterations": 3} if "iterations" in spec else {}
            spec |= {"outer": 2, "inner": 2} if "inner" in spec else {}
            spec |= {"outer": 2, "passes": 5} if "passes" in spec else {}
    tree["table1"]["quick"] |= {
        "trials": {"temperatures": 2, "tuned": 2, "by C": 2},
        "eps_y": [0.0, 1.0],
        "eps_h": [0.0, 1.0],
    }
    tree["approximation"]["quick"] |= {"effort": "fast"}
    tree["table2"]["quick"] |= {"trials": {"chain": 2, "grid": 2}}
    tree["figure2"]["quick"] |= {"steps": 20}
    tree["figure3"]["quick"] |= {"sizes": [2, 4], "sites": 4, "n_test": 5}
    tree["figure4"]["quick"] |= {"shares": [0.5, 0.9], "epochs": 1, "n_images": 1}
    tree["figure5"]["quick"] |= {"steps": 4, "every": 2}
    return Protocol(tree, quick=True)


def count(protocol: Protocol, params: dict) -> dict:
    return {"value": int(protocol.generator("count", params["trial"]).integers(1000))}


@dataclass
class Interrupted:
    after: int

    def __call__(self, protocol: Protocol, params: dict) -> dict:
        if self.after == 0:
            raise KeyboardInterrupt
        self.after -= 1
        return count(protocol, params)


def store(path: Path) -> Store:
    return Store(path, lambda params: TINY.fingerprint("table3", params))


def tasks(n: int) -> list[dict]:
    return [{"reading": "A2", "sigma_h": 1.0, "trial": k} for k in range(n)]


def test_an_interrupted_run_resumes_without_repeating_trials(tmp_path):
    file = store(tmp_path / "t.jsonl")
    with pytest.raises(KeyboardInterrupt):
        list(run_trials(Interrupted(2), TINY, tasks(5), file, 1, False))
    assert len(file.read()) == 2
    resumed = list(run_trials(Interrupted(3), TINY, tasks(5), file, 1, True))
    fresh = list(run_trials(count, TINY, tasks(5), store(tmp_path / "u.jsonl"), 1, False))
    assert [t.result for t in resumed] == [t.result for t in fresh]


def test_a_line_cut_off_by_a_kill_is_run_again(tmp_path):
    path = tmp_path / "t.jsonl"
    list(run_trials(count, TINY, tasks(3), store(path), 1, False))
    whole = path.read_bytes()
    path.write_bytes(whole[:-20])
    assert len(store(path).read()) == 2
    list(run_trials(count, TINY, tasks(3), store(path), 1, True))
    assert [lasting(line) for line in path.read_text().splitlines()] == [lasting(line) for line in whole.splitlines()]


def lasting(line: str | bytes) -> dict:
    """What a trial's line has in common with those of its repetitions."""
    return {k: v for k, v in json.loads(line).items() if k not in ("seconds", "when")}


def test_trials_say_when_they_ran_and_by_which_version(tmp_path):
    before = datetime.now(UTC).replace(microsecond=0)
    (trial,) = run_trials(count, TINY, tasks(1), store(tmp_path / "t.jsonl"), 1, False)
    assert before <= datetime.fromisoformat(trial.when) <= datetime.now(UTC) and trial.version == ms.__version__
    (kept,) = store(tmp_path / "t.jsonl").read().values()
    assert (kept.when, kept.version) == (trial.when, trial.version)


def test_trials_from_before_dates_were_recorded_are_read(tmp_path):
    path = tmp_path / "t.jsonl"
    list(run_trials(count, TINY, tasks(1), store(path), 1, False))
    older = {k: v for k, v in json.loads(path.read_text()).items() if k not in ("when", "version")}
    path.write_text(json.dumps(older) + "\n")
    (trial,) = store(path).read().values()
    assert (trial.when, trial.version) == ("", "") and _ran([trial])["undated"] == 1


def test_without_resume_the_old_trials_are_set_aside_and_not_lost(tmp_path):
    path = tmp_path / "t.jsonl"
    list(run_trials(count, TINY, tasks(2), store(path), 1, False))
    before = path.read_text()
    list(run_trials(count, TINY, tasks(1), store(path), 1, False))
    assert (tmp_path / "t.previous.jsonl").read_text() == before
    assert len(store(path).read()) == 1


def test_trials_of_other_settings_are_not_reused(tmp_path):
    path = tmp_path / "t.jsonl"
    list(run_trials(count, TINY, tasks(2), store(path), 1, False))
    other = Protocol.load(quick=True, seed=7)
    assert Store(path, lambda p: other.fingerprint("table3", p)).read() == {}


@pytest.mark.slow
def test_processes_give_the_results_of_one_process(tmp_path):
    alone = {t.params["trial"]: t.result for t in run_trials(count, TINY, tasks(4), store(tmp_path / "a"), 1, False)}
    pool = {t.params["trial"]: t.result for t in run_trials(count, TINY, tasks(4), store(tmp_path / "b"), 2, False)}
    assert alone == pool
    assert len({r["value"] for r in alone.values()}) > 1


def test_fingerprint_ignores_trials_and_other_solvers_but_not_the_own_one():
    protocol = tiny_protocol()
    params = {"graph": "chain", "solver": "LB", "reading": "A", "trial": 0}
    before = protocol.fingerprint("table2", params)
    protocol.tree["table2"]["quick"]["trials"] = {"chain": 9, "grid": 9}
    protocol.tree["solvers"]["chain"]["SGD"]["steps"]["M"] = 99
    assert protocol.fingerprint("table2", params) == before
    protocol.tree["solvers"]["chain"]["LB"]["iterations"] = 99
    assert protocol.fingerprint("table2", params) != before


def test_paired_interval_agrees_with_the_t_test():
    rng = np.random.default_rng(0)
    a = rng.normal(1.0, 1.0, 12)
    b = rng.normal(0.0, 1.0, 12)
    e = Estimate.paired(a, b, 0.95)
    reference = ttest_rel(a, b).confidence_interval(0.95)
    assert (e.low, e.high) == pytest.approx((reference.low, reference.high))
    assert e.se == pytest.approx(np.std(a - b, ddof=1) / np.sqrt(12))


def differences(*values: float, label: str = "d") -> Differences:
    return Differences(label, dict(enumerate(values)))


def test_one_comparison_pooled_is_the_paired_interval():
    x = np.random.default_rng(0).normal(size=9)
    assert astuple(pool([differences(*x)], 0.95)) == pytest.approx(astuple(Estimate.of(x)))
    assert judge(pool([differences(5.0)], 0.95), 1) is Verdict.UNDECIDED


def test_pooling_takes_trials_as_the_unit_whatever_comparisons_they_are_in():
    """The standard error is that of the mean over comparisons, trial by trial, where all trials have all of them."""
    x = np.random.default_rng(1).normal(size=(4, 30)) + np.random.default_rng(2).normal(size=30)
    together = pool([differences(*row) for row in x], 0.95)
    assert astuple(together) == pytest.approx(astuple(Estimate.of(x.mean(axis=0))))
    cut = pool([differences(*x[0]), differences(*x[1][:10])], 0.95)
    assert cut.mean == pytest.approx((x[0].mean() + x[1][:10].mean()) / 2) and cut.n == 30


@pytest.mark.parametrize(
    ("values", "minimum", "expected"),
    [
        ([1.0, 1.1, 0.9, 1.0, 1.2], 5, Verdict.CLAIMED),
        ([-1.0, -1.1, -0.9, -1.0, -1.2], 5, Verdict.OPPOSITE),
        ([-1.0, 1.1, -0.9, 1.0, 0.1], 5, Verdict.UNDECIDED),
        ([1.0, 1.0], 5, Verdict.UNDECIDED),
    ],
)
def test_the_direction_is_where_the_interval_lies(values, minimum, expected):
    assert judge(pool([differences(*values)], 0.95), minimum) is expected


def test_single_comparisons_are_corrected_for_their_number():
    """A difference at p = 0.04 counts alone and not among ten; Holm's limits loosen from the smallest p on."""
    rng = np.random.default_rng(3)
    noise = rng.normal(size=20)
    noise = (noise - noise.mean()) / noise.std(ddof=1)
    weak, strong = (differences(*(noise + t / np.sqrt(20))) for t in (2.2, 9.0))
    assert ttest_1samp(list(weak.values.values()), 0.0).pvalue == pytest.approx(0.0404, abs=1e-4)
    assert judge_each([weak], 0.95, 5) == [Verdict.CLAIMED]
    assert judge_each([weak, strong], 0.95, 5) == [Verdict.CLAIMED, Verdict.CLAIMED]
    nothing = [differences(*rng.normal(size=20)) for _ in range(8)]
    assert judge_each([weak, strong, *nothing], 0.95, 5)[:2] == [Verdict.UNDECIDED, Verdict.CLAIMED]


def test_a_claim_has_direction_size_and_readings():
    good = differences(1.0, 1.1, 0.9, 1.0, 1.2, label="a")
    bad = differences(-3.0, -3.1, -2.9, -3.0, -3.1, label="b")
    (found,) = claim(TINY, "1a", "x", "Table 9", {"A": [good], "B": [bad], "C": []}, paper=2.0)
    assert (found.verdict, found.place, found.unit) == ("by reading", "Table 9", "points")
    assert found.paper.startswith("+2.00; z\u00a0-") and found.paper.count(",") == 1
    assert claim(TINY, "1a", "x", "", {"A": [good]}, paper=2.0, paper_trials=0)[0].paper == "+2.00"
    assert [k for k, _ in found.groups] == ["A, pooled", "B, pooled"]
    assert [k for k, _ in found.evidence] == ["A: a", "B: b"] and found.cells == "1 as claimed, 1 opposite"
    assert found.effect.startswith("A +1.04 [") and "; B -3.02 [" in found.effect
    assert claim(TINY, "1", "x", "", {"A": [good]}, 1.0)[0].verdict == "as claimed"
    assert claim(TINY, "1", "x", "", {"A": []}) == []


def test_the_papers_own_noise_is_that_of_its_trials():
    """z is the difference of two means, of our trials and of the paper's fewer ones with the same spread."""
    x = np.random.default_rng(4).normal(size=100)
    printed = 0.3
    ours = Estimate.of(x)
    spread = x.std(ddof=1)
    assert z_score(ours, printed, 20) == pytest.approx((x.mean() - printed) / np.sqrt(spread**2 / 100 + spread**2 / 20))


def test_trials_pair_by_number_whatever_the_order_of_arrival():
    made = [Trial({"trial": k}, {"M": {"accuracy": k + 1.0}, "L": {"accuracy": float(k)}}, 0.0) for k in (2, 0, 1)]
    trials = Trials(made, 0.95)
    assert [t.params["trial"] for t in trials.where()] == [0, 1, 2]
    assert trials.gap("M", "L").mean == 1.0


def test_changes_between_settings_pair_the_trials_that_both_have():
    def trial(size: int, k: int, accuracy: float) -> Trial:
        return Trial({"size": size, "trial": k}, {"M": {"accuracy": accuracy}, "L": {"accuracy": 1.0}}, 0.0)

    trials = Trials([trial(4, 0, 5.0), trial(4, 1, 6.0), trial(4, 2, 9.0), trial(8, 2, 3.0), trial(8, 1, 2.0)], 0.95)
    (found,) = trials.compare("x", lead_over("L"), lead_over("L"), {"size": 4}, {"size": 8})
    assert found.values == {1: 4.0, 2: 6.0}
    assert trials.compare("x", lead_over("L"), lead_over("L"), {"size": 4}, {"size": 16}) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in EXPERIMENTS if name != "table4"])
def test_every_experiment_runs_and_reports_and_repeats_itself(name):
    protocol = tiny_protocol()
    experiment = EXPERIMENTS[name]
    chosen = experiment.tasks(protocol)
    if name in ("table2", "start"):
        chosen = [p for p in chosen if p["reading"] == "B"]
    if name in ("table3", "table1", "figure2", "figure3", "figure5"):
        chosen = [p for p in chosen if p["reading"] == "A2"]
    made = [Trial(p, experiment.run(protocol, p), 0.0) for p in chosen]
    assert experiment.run(protocol, chosen[-1]) == made[-1].result
    json.dumps([t.result for t in made], allow_nan=False)
    section = experiment.section(protocol, Trials(made, protocol.confidence))
    assert section.name == name and section.items and (section.claims or name == "literal")
    assert all(c.verdict in list(Verdict) for c in section.claims)
    for n in range(1, len(made)):  # a report of a run that was stopped
        assert experiment.section(protocol, Trials(made[:n], protocol.confidence)).items


@pytest.mark.slow
def test_a_stopped_run_has_a_report_of_what_is_there(tmp_path):
    protocol = tiny_protocol()
    assert report_so_far(protocol, tmp_path, 0.0) == 0 and not (tmp_path / "report.html").exists()
    for name, n in (("figure5", 1), ("start", 3)):
        file = Store(tmp_path / f"{name}.jsonl", lambda params, name=name: protocol.fingerprint(name, params))
        list(run_trials(EXPERIMENTS[name].run, protocol, EXPERIMENTS[name].tasks(protocol)[:n], file, 1, False))
    assert report_so_far(protocol, tmp_path, 0.0) == 4
    html = (tmp_path / "report.html").read_text()
    assert 'id="figure5"' in html and 'id="start"' in html and 'id="table2"' not in html
    assert json.loads((tmp_path / "results.json").read_text())["experiments"]["start"]["ran"]["undated"] == 0


def test_further_trials_are_of_the_same_settings_and_cells_of_their_own():
    """Solvers and readings that were added later leave older trials valid and lie in no older cell."""
    protocol = Protocol.load()
    without = Protocol(json.loads(json.dumps(protocol.tree)))
    for name in ("start", "figure3"):
        without.tree[name]["further"] = {}
        older = EXPERIMENTS[name].tasks(without)
        wanted = EXPERIMENTS[name].tasks(protocol)
        assert wanted[: len(older)] == older and len({key(p) for p in wanted}) == len(wanted) > len(older)
        assert without.fingerprint(name, older[0]) == protocol.fingerprint(name, older[0])


def test_members_of_a_trial_share_data_and_start():
    protocol = tiny_protocol()
    one, two = (protocol.arena("table2", {"reading": "A", "trial": t}) for t in (0, 0))
    other = protocol.arena("table2", {"reading": "A", "trial": 1})
    assert np.array_equal(one.w0, two.w0) and np.array_equal(one.test.states, two.test.states)
    assert not np.array_equal(one.w0, other.w0)


def test_unknown_reading_and_too_few_trials_are_refused():
    with pytest.raises(InputError, match="reading 'Z'"):
        TINY.recipe("Z")
    with pytest.raises(InputError, match="at least 2"):
        Protocol.load(trials=1)


def test_segmentation_hides_the_share_and_keeps_the_order_of_pixels():
    labels = picture("blocks")
    assert (labels[0, 0], labels[0, 39], labels[19, 0], labels[19, 39], labels[9, 19]) == (0, 4, 3, 1, 2)
    images = noisy_images(labels, 2, 1e-12, 0.3, np.random.default_rng(0))
    assert [int(mask.sum()) for mask in images.hidden] == [240, 240]
    assert [y.count(None) for y in images.y] == [240, 240]
    assert np.allclose(images.X[1].nodes[:, 0], labels.ravel() + 1)
    assert images.X[0].edges[[0, 780]].tolist() == [[0, 1], [0, 40]]


def test_the_filter_is_right_without_noise_and_chooses_a_width_with_it():
    labels = picture("blocks")
    rng = np.random.default_rng(0)
    clean, noisy = (noisy_images(labels, 3, variance, 0.3, rng) for variance in (1e-12, 5.0))
    assert filtered_accuracy(clean, clean) == {"accuracy": 100.0, "all": 100.0}
    single = np.clip(np.rint(np.concatenate([x.nodes[:, 0] for x in noisy.X]) - 1), 0, 4)
    assert filtered_accuracy(clean, noisy)["all"] == 100 * np.mean(single == np.concatenate(noisy.states))
    assert filtered_accuracy(noisy, noisy)["all"] > 2 * filtered_accuracy(clean, noisy)["all"]


def kept_trials():
    """One kept trial of every experiment and solver."""
    found = {}
    for path in sorted((Path(__file__).parents[2] / "results").glob("*.jsonl")):
        for line in path.read_text().splitlines():
            record = json.loads(line)
            place = [record["params"].get(k) for k in ("graph", "solver", "reading", "part")]
            found.setdefault(json.dumps([path.stem, *place]), (path.stem, record))
    return list(found.values())


def test_pinned_settings_leave_the_kept_trials_valid_until_they_change():
    protocol = Protocol.load()
    kept = kept_trials()
    assert {name for name, _ in kept} == set(EXPERIMENTS)
    assert all(protocol.fingerprint(name, r["params"]) == r["fingerprint"] for name, r in kept)
    touched = {
        "exact": {"table1", "table2", "table3", "figure2", "figure3", "figure5", "approximation", "literal", "start"},
        "fast": {"figure4", "table4", "approximation", "literal"},
        "lbfgs": {"table1", "table2", "table3", "figure2", "figure3", "start"},
        "cccp": {"table2", "figure2"},
        "members": {"table3", "start"},
        "adam": {"figure4"},
        "adagrad": {"table4"},
    }
    for pin, experiments in touched.items():
        moved = Protocol(json.loads(json.dumps(protocol.tree)))
        moved.tree["pinned"][pin]["new"] = 1
        changed = [(name, r) for name, r in kept if moved.fingerprint(name, r["params"]) != r["fingerprint"]]
        assert {name for name, _ in changed} == experiments
        if pin == "lbfgs":
            assert {r["params"]["solver"] for name, r in changed if name == "table2"} == {"LB"}


def test_pinned_settings_are_those_of_the_library_when_they_were_pinned():
    """Every setting that the constructors take is named; all but a few are still the defaults."""
    protocol = Protocol.load()
    alone = tuple(name for name in METHODS if name not in ("side by side", "clustering"))
    assert protocol.inference("exact") == Exact(methods=alone)
    for name in ("fast", "normal"):
        pinned = protocol.inference(name)
        assert replace(pinned, starts=None, max_sweeps=None) == Propagate(effort=name)
        # Minimum cuts came after the experiments, whose search stays as it was.
        default = Propagate(effort=name).budget()
        older = tuple(start for start in default.starts if start not in ("cut", "expansions"))
        assert pinned.budget() == replace(default, starts=older)
    assert protocol.solver("chain", "LB", "M") == ScipyLBFGS(schedule=(1.0, 0.3, 0.1, 0.03))
    assert protocol.solver("chain", "CCCP+BCFW", "M") == CCCP(BCFW(max_iter=100), tolerance=1e-4)
    for name in ("M3E", "ModLat"):
        own = protocol.tree["pinned"]["members"][name]
        defaults = {k: v for k, v in MEMBERS[name]().get_params().items() if k in own}
        assert own == defaults | ({"n_rounds": 10} if name == "ModLat" else {})


def test_members_are_read_from_the_public_estimators():
    assert list(MEMBERS.values()) == [ms.MSSVM, ms.LSSVM, ms.HCRF, ms.M3E, ms.ModLat]
    assert NAMES["M"] == "MSSVM" and NAMES["ModLat"] == "ModLat"
    found = [table1._title(m) for m in ("M", "L", "H", "E")]
    assert found == ["MSSVM (0, 1)", "LSSVM (0, 0)", "HCRF (1, 1), no loss", "(0.5, 1)"]


def test_watching_the_test_set_agrees_with_fitting_and_predicting():
    """Figure 5 encodes the test set once; its accuracy is that of ``predict``, its likelihood that of HCRF's fit."""
    arena = tiny_protocol().arena("figure5", {"reading": "B", "trial": 0})
    held_out = figure5.TestScores(arena)
    seen = []
    for member in ("M", "L", "H"):
        fitted = arena.fit(member, Subgradient.literal(0.05, 5), lambda row, w: seen.append((row.iteration, w)))
        assert [k for k, _ in seen[-6:]] == list(range(6)) and np.array_equal(seen[-1][1], fitted.coef_)
        assert held_out.accuracy(fitted.coef_, fitted.eps_h) == arena.accuracy(fitted)
        on_test = replace(arena, train=arena.test).fit("H", Untrained(), init=fitted.coef_)
        loss = (on_test.objective_ - 0.5 * fitted.coef_ @ fitted.coef_) / len(arena.test)
        assert held_out.log_likelihood(fitted.coef_) == pytest.approx(-loss, rel=1e-12)
