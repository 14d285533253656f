"""Decoding by the best output or by the most probable labels, and whether probabilities are calibrated.

Every member on the same problems: simulated chains with sticky labels and weak inputs, handwritten letters, CoNLL-2000
chunks, MSRC patches, and the weakly labelled images of figure 4 (with the settings of users, and the kept trials of the
protocol). A trial is a fold or a seed; it trains once and decodes the same model in both ways. Trials with even numbers
choose the rule of decode="auto" among ``RULES`` by the mean accuracy over problems and members; the odd ones report
it. Half of every odd trial's test instances calibrate the model, the other half judges its probabilities.

The tables of docs/decoding.md are made from what is kept.

Run: python benchmarks/bench_decoding.py [--problems sticky letters ...] [--trials 2] [--show]
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from bench_conll import f1, features, sentences
from bench_letters import masked, take, words
from common_data import Clock, data_dir, read_result, write
from rich.console import Console

import mssvm as ms
from mssvm.experiments.msrc import codebook, load_patches, read_msrc
from mssvm.experiments.msrc import features as patch_features
from mssvm.experiments.segmentation import noisy_images, picture

FAMILY = ("MSSVM", "LSSVM", "HCRF", "LossAugmentedCRF", "EpsilonSSVM")
RELATIVES = ("M3E", "ModLat")
ROOT = Path(__file__).resolve().parents[1]
KEPT = ROOT / "results" / "figure4.jsonl"
PAGE = ROOT / "docs" / "decoding.md"
SHARES_SHOWN = (50, 90)  # of the kept trials of figure 4
LETTERS = {"M": "MSSVM", "L": "LSSVM", "H": "HCRF"}


@dataclass(frozen=True)
class Cell:
    """What one training gave; accuracies and ``missing`` are in per cent, ``exact`` is whether inference was."""

    problem: str
    missing: int
    member: str
    trial: int
    exact: bool
    map: float
    marginal: float
    train_map: float = 0.0
    train_marginal: float = 0.0
    map_f1: float | None = None
    marginal_f1: float | None = None
    seconds: float = 0.0
    raw: dict[str, Any] | None = None
    calibrated: dict[str, Any] | None = None
    temperature: float | None = None


@dataclass(frozen=True)
class Task:
    """Data of one trial of one problem; -1 stands for a missing label in training."""

    problem: str
    missing: int
    trial: int
    train: tuple[list[Any], list[Any]]
    test: tuple[list[Any], list[Any]]
    settings: dict[str, Any]
    members: tuple[str, ...] = FAMILY


def sticky(trial: int, n_labels: int, stay: float, noise: float, n: int) -> tuple[list[Any], list[Any]]:
    """Chains of 30 to 90 sites that keep their label with probability ``stay``, seen through unit vectors in noise."""
    rng = np.random.default_rng([trial, n_labels])
    X = []
    y = []
    for _ in range(n):
        length = int(rng.integers(30, 90))
        start = np.where(rng.random(length) < stay, 0, np.arange(length))
        label = rng.integers(n_labels, size=length)[np.maximum.accumulate(start)]
        X.append(np.eye(n_labels)[label] + noise * rng.normal(size=(length, n_labels)))
        y.append(label)
    return X, y


def sticky_tasks(trial: int) -> Iterator[Task]:
    for (n_labels, stay, noise), percent in product(((3, 0.9, 3.0), (5, 0.85, 2.0)), (0, 50)):
        X, y = sticky(trial, n_labels, stay, noise, 160)
        thin = masked(y[:60], percent, trial)
        members = FAMILY + (RELATIVES if n_labels == 3 else ())
        settings = {"missing_label": -1}
        yield Task(f"sticky {n_labels}", percent, trial, (X[:60], thin), (X[60:], y[60:]), settings, members)


def letters_tasks(trial: int) -> Iterator[Task]:
    """300 words of one fold train, 300 of the next test."""
    X, y, folds = words()
    train, test = (np.flatnonzero(folds == k % 5)[:300] for k in (trial, trial + 1))
    for percent in (0, 50, 90):
        data = take(X, train), masked(take(y, train), percent, trial)
        settings = {"C": 0.1, "missing_label": -1, "classes": range(26), "max_iter": 40}
        yield Task("letters", percent, trial, data, (take(X, test), take(y, test)), settings)


def conll_tasks(trial: int) -> Iterator[Task]:
    """500 sentences train, the next 500 test."""
    some = sentences()[1000 * trial : 1000 * (trial + 1)]
    X = [[features(s, t) for t in range(len(s))] for s in some]
    y = [[token[2] for token in s] for s in some]
    for percent in (0, 50):
        rng = np.random.default_rng([percent, trial])
        thin = [[ms.MISSING if rng.random() * 100 < percent else tag for tag in item] for item in y[:500]]
        settings = {"support": "seen", "max_iter": 30}
        yield Task("conll", percent, trial, (X[:500], thin), (X[500:], y[500:]), settings, FAMILY[:4])


def msrc_tasks(trial: int) -> Iterator[Task]:
    """Every fourth image, half of them to train, by words of a codebook of these; void patches are hidden."""
    patches = load_patches(read_msrc(data_dir() / "msrc_v1")[trial::4], None)
    train = patches[::2]
    book = codebook(train, 200, 0)
    rows = [patch_features(p, book.predict(p.sift.astype(np.float64)), 200).toarray()[:, :-1] for p in patches]
    X = [row.reshape(*p.shape, -1) for row, p in zip(rows, patches, strict=True)]
    y = [p.labels.reshape(p.shape) for p in patches]
    mixed = np.random.default_rng(trial).permutation(np.arange(1, len(X), 2))  # images are ordered by subject
    settings = {"missing_label": -1, "classes": range(5), "C": 1.0}
    yield Task("msrc", 28, trial, (X[::2], y[::2]), (take(X, mixed), take(y, mixed)), settings, FAMILY[:4])


def image_tasks(trial: int) -> Iterator[Task]:
    """The images of figure 4 by users' settings, all pixels of the test images predicted."""
    for percent in (50, 90):
        rng = np.random.default_rng([trial, percent])
        sizes = zip((10, 6), rng.spawn(2), strict=True)
        train, test = (noisy_images(picture("blocks"), n, 5.0, percent / 100, stream) for n, stream in sizes)
        thin = [np.where(hidden, -1, z).reshape(20, 40) for z, hidden in zip(train.states, train.hidden, strict=True)]
        X, new = ([np.asarray(g.nodes).reshape(20, 40, 1) for g in part.X] for part in (train, test))
        settings = {"missing_label": -1}
        truth = [z.reshape(20, 40) for z in test.states]
        yield Task("figure 4", percent, trial, (X, thin), (new, truth), settings, FAMILY[:4])


TASKS: dict[str, Callable[[int], Iterator[Task]]] = {
    "sticky": sticky_tasks,
    "letters": letters_tasks,
    "conll": conll_tasks,
    "msrc": msrc_tasks,
    "images": image_tasks,
}


def structure(task: Task) -> Any:
    return ms.Grid() if task.problem in ("msrc", "figure 4") else ms.Chain()


def settings(task: Task, member: str) -> dict[str, Any]:
    """Those of the problem; on letters C is ten times as large for members without a maximum (``bench_letters.py``)."""
    return task.settings | ({"C": 1.0} if task.problem == "letters" and EPS[member][0] > 0 else {})


def run(task: Task, member: str) -> Cell:
    """Train once, decode in both ways, and look at the probabilities before and after calibration."""
    with Clock() as clock:
        model = getattr(ms, member)(structure(task), random_state=0, **settings(task, member)).fit(*task.train)
    X, y = task.test
    found = {how: model.predict(X, decode=how) for how in ("map", "marginal")}
    right = {how: 100 * ms.metrics.site_accuracy(_missing(y), labels) for how, labels in found.items()}
    for how in ("map", "marginal"):
        right[f"train_{how}"] = 100 * model.score(*task.train, decode=how)
    spans = {f"{how}_f1": f1(labels, y) for how, labels in found.items()} if task.problem == "conll" else {}
    half = len(X) // 2
    raw = ms.metrics.calibration(model, X[half:], y[half:])
    better = ms.metrics.calibration(model.calibrate(X[:half], y[:half]), X[half:], y[half:])
    named = (task.problem, task.missing, member, task.trial, bool(model.training_["exact"]))
    judged = {"raw": _kept(raw), "calibrated": _kept(better), "temperature": model.temperatures_[0]}
    return Cell(*named, **right, **spans, seconds=clock.cpu, **judged)


def _kept(found: ms.metrics.Calibration) -> dict[str, Any]:
    """A calibration as JSON, bins as rows (low, confidence, accuracy, sites)."""
    rows = [[round(b.low, 2), round(b.confidence, 4), round(b.accuracy, 4), b.n_sites] for b in found.bins]
    return {"log_loss": found.log_loss, "error": found.error, "bins": rows}


def _missing(y: list[Any]) -> list[Any]:
    """Labels with None for -1."""
    return [np.where(item == -1, None, item) if isinstance(item, np.ndarray) else item for item in y]


def kept() -> Iterator[Cell]:
    """The trials of figure 4 as the protocol ran them: all pixels predicted."""
    for line in KEPT.read_text().splitlines():
        trial = json.loads(line)
        params = trial["params"]
        result = trial["result"]
        for letter, member in LETTERS.items():
            both = (result[letter]["all"], result[letter]["all marginals"])
            problem = f"figure 4 kept, {params['image']}"
            yield Cell(problem, round(100 * params["share"]), member, params["trial"], False, *both)


# ----------------------------------------------------------------------------------------- the rule

EPS = {"MSSVM": (0, 1), "LSSVM": (0, 0), "HCRF": (1, 1), "LossAugmentedCRF": (1, 1), "EpsilonSSVM": (0.5, 0.5)}
EPS |= {"M3E": (0, 1), "ModLat": (0, 0)}
RULES: dict[str, Callable[[float, float, dict[str, Any]], bool]] = {
    "never": lambda eps_y, eps_h, cell: False,
    "always": lambda eps_y, eps_h, cell: True,
    "eps_y > 0": lambda eps_y, eps_h, cell: eps_y > 0,
    "eps_y >= 1": lambda eps_y, eps_h, cell: eps_y >= 1,
    "eps_h >= 1": lambda eps_y, eps_h, cell: eps_h >= 1,
    "eps_y >= 1, or eps_h >= 1 and labels missing": lambda eps_y, eps_h, cell: (
        eps_y >= 1 or (eps_h >= 1 and cell["missing"] > 0)
    ),
    "eps_y >= 1, or eps_h >= 1 and inference approximate": lambda eps_y, eps_h, cell: (
        eps_y >= 1 or (eps_h >= 1 and not cell["exact"])
    ),
    "better on the training labels": lambda eps_y, eps_h, cell: (
        cell["train_marginal"] > cell["train_map"] or (cell["train_marginal"] == cell["train_map"] and eps_y >= 1)
    ),
    "more than 0.5 better on the training labels, or eps_y >= 1 and not 0.5 worse": lambda eps_y, eps_h, cell: (
        cell["train_marginal"] - cell["train_map"] > (0.5 if eps_y < 1 else -0.5)
    ),
}


def by_rule(cells: list[dict[str, Any]], rule: str) -> float:
    """Mean over problems and members of the accuracy, when marginals decide where the rule says so."""
    groups: dict[tuple[Any, ...], list[float]] = {}
    for c in cells:
        key = (c["problem"], c["missing"], c["member"])
        groups.setdefault(key, []).append(c["marginal"] if RULES[rule](*EPS[c["member"]], c) else c["map"])
    return float(np.mean([np.mean(values) for values in groups.values()]))


def report(cells: list[dict[str, Any]]) -> dict[str, Any]:
    """The rules on both halves, and every problem on the half that did not choose."""
    made = [c for c in cells if "kept" not in c["problem"]]
    choose, judge = ([c for c in made if c["trial"] % 2 == k] for k in (0, 1))
    rules = {name: {"chosen by": by_rule(choose, name), "reported": by_rule(judge, name)} for name in RULES}
    rows = []
    judge += [c for c in cells if "kept" in c["problem"]]
    for key in dict.fromkeys((c["problem"], c["missing"], c["member"]) for c in judge):
        mine = [c for c in judge if (c["problem"], c["missing"], c["member"]) == key]
        row = dict(zip(("problem", "missing", "member"), key, strict=True)) | {"trials": len(mine)}
        for name in ("map", "marginal", "map_f1", "marginal_f1"):
            if mine[0].get(name) is not None:
                row[name] = float(np.mean([c[name] for c in mine]))
        if mine[0].get("raw"):
            for when in ("raw", "calibrated"):
                row[when] = {k: float(np.mean([c[when][k] for c in mine])) for k in ("log_loss", "error")}
            row["temperature"] = float(np.exp(np.mean([np.log(c["temperature"]) for c in mine])))
        rows.append(row)
    return {"rules": rules, "rows": rows, "reliability": reliability(judge)}


def reliability(cells: list[dict[str, Any]]) -> dict[str, Any]:
    """Confidence against accuracy of every member, sites of all problems together, before and after calibration."""
    out: dict[str, Any] = {}
    for member, when in product(EPS, ("raw", "calibrated")):
        bins: dict[float, list[float]] = {}
        for c in cells:
            for low, *means, n in (c[when] or {"bins": []})["bins"] if c["member"] == member else []:
                total = bins.setdefault(low, [0.0, 0.0, 0.0])
                for k, value in enumerate((*means, 1.0)):
                    total[k] += value * n
        listed = [[low, conf / n, acc / n, int(n)] for low, (conf, acc, n) in sorted(bins.items())]
        out.setdefault(member, {})[when] = [[round(v, 4) for v in row] for row in listed]
    return out


def table(header: tuple[str, ...], rows: list[list[str]]) -> list[str]:
    """A table in Markdown."""
    return [f"| {' | '.join(row)} |" for row in (list(header), ["---"] * len(header), *rows)]


def rule_lines(found: dict[str, Any]) -> list[str]:
    rows = [[name, f"{r['chosen by']:.2f}", f"{r['reported']:.2f}"] for name, r in found["rules"].items()]
    return table(("marginals decide where", "even trials (choose)", "odd trials (report)"), rows)


def problem_lines(found: dict[str, Any]) -> list[str]:
    rows = []
    for r in found["rows"]:
        if "kept" in r["problem"] and r["missing"] not in SHARES_SHOWN:
            continue
        row = [r["problem"], str(r["missing"]), r["member"], *(f"{r[k]:.1f}" for k in ("map", "marginal"))]
        row += [f"{r['marginal'] - r['map']:+.1f}"]
        if "raw" in r:
            row += [f"{r['raw'][k]:.2f} / {r['calibrated'][k]:.2f}" for k in ("log_loss", "error")]
            row.append(f"{r['temperature']:.2f}")
        rows.append(row + [""] * (9 - len(row)))
    head = ("problem", "missing %", "member", "map", "marginal", "difference", "log loss", "error", "temperature")
    return table(head, rows)


def bins(found: dict[str, Any]) -> list[str]:
    rows = []
    lows = sorted({row[0] for parts in found["reliability"].values() for row in parts["raw"]})
    for member, parts in found["reliability"].items():
        for when, name in (("raw", member), ("calibrated", f"{member}, calibrated")):
            at = {row[0]: f"{100 * row[2]:.0f}" for row in parts[when]}
            if at:
                rows.append([name, *(at.get(low, "") for low in lows)])
    spans = [f"{100 * low:.0f} to {100 * low + 10:.0f}" for low in lows]
    return table(("right, %, where the model says", *spans), rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problems", nargs="*", default=tuple(TASKS), choices=tuple(TASKS))
    parser.add_argument("--trials", type=int, default=2)
    parser.add_argument("--show", action="store_true", help="only the tables of what is kept")
    args = parser.parse_args()
    console = Console()
    result = read_result("decoding")
    cells: list[dict[str, Any]] = [c for c in result.get("cells", []) if "kept" not in c["problem"]]
    cells += [asdict(cell) for cell in kept()]
    done = {(c["problem"], c["missing"], c["member"], c["trial"]) for c in cells}
    for trial, name in product(range(args.trials), () if args.show else args.problems):
        for task in TASKS[name](trial):
            for member in task.members:
                if (task.problem, task.missing, member, task.trial) in done:
                    continue
                cell = asdict(run(task, member))
                cells.append(cell)
                brief = [f"{cell[k]:.1f}" for k in ("map", "marginal", "seconds")]
                console.print(task.problem, task.missing, member, trial, *brief)
        write("decoding", {"cells": [c for c in cells if "kept" not in c["problem"]]})
    found = report(cells)
    write("decoding", {"cells": [c for c in cells if "kept" not in c["problem"]], **found})
    for name, lines in (("rules", rule_lines(found)), ("problems", problem_lines(found)), ("reliability", bins(found))):
        head, _, rest = PAGE.read_text().partition(f"<!-- {name}: begin -->\n")
        tail = rest.partition(f"<!-- {name}: end -->")[2]
        PAGE.write_text(f"{head}<!-- {name}: begin -->\n" + "\n".join(lines) + f"\n<!-- {name}: end -->{tail}")


if __name__ == "__main__":
    main()
