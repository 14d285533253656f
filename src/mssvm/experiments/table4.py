"""Table 4: categories of MSRC patches by the structured members and by a classifier of single patches."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse
from sklearn.linear_model import LogisticRegression

from mssvm.core.arrays import Bools, Floats, Ints
from mssvm.core.potentials import Query
from mssvm.core.terms import node_term, table_term
from mssvm.core.topology import Batch
from mssvm.experiments.collect import Experiment, Trials, claim
from mssvm.experiments.members import NAMES, UNIFIED
from mssvm.experiments.msrc import CATEGORIES, UNKNOWN, read_msrc
from mssvm.experiments.msrc_features import Patches, codebook, features, load_patches
from mssvm.experiments.protocol import Protocol
from mssvm.experiments.segmentation import grid_graph
from mssvm.experiments.statistics import Estimate
from mssvm.experiments.trials import Params, Result
from mssvm.inference.propagation.propagate import Propagate
from mssvm.models.layout import WeightLayout
from mssvm.models.linear import LinearInputs, LinearModel
from mssvm.objectives.sample import Sample
from mssvm.objectives.training import TrainingProblem
from mssvm.optim import Subgradient
from mssvm.report import Claim, Figure, Section, Table, Text, label_picture

NAME = "table4"
PATCH, MARGINALS = "patch", "H marginals"
TITLES = NAMES | {PATCH: "single patches", MARGINALS: "HCRF by max-marginals"}
PAPER = {
    "M": (72.4, 89.7, 88.3, 71.9, 70.8),
    "L": (70.7, 88.9, 85.6, 71.0, 69.4),
    "H": (71.7, 88.3, 88.2, 70.1, 70.2),
}


def skip(protocol: Protocol) -> str:
    """Why this experiment cannot run; empty if it can."""
    if protocol.data is None:
        return "needs the MSRC images; name their folder with --data"
    return "" if find_spec("cv2") else "needs OpenCV: pip install 'mssvm[vision]'"


def tasks(protocol: Protocol) -> list[Params]:
    if skip(protocol):
        return []
    settings = protocol.settings(NAME)
    return [{"codebook": c, "fold": f, "trial": 0} for c in settings["codebooks"] for f in settings["folds"]]


def run(protocol: Protocol, params: Params) -> Result:
    """Right and labelled patches per test image and category, for every member and for single patches."""
    assert protocol.data is not None
    settings = protocol.settings(NAME)
    patches = _patches(protocol.data)
    kept = np.linspace(0, len(patches) - 1, min(settings.get("n_images", len(patches)), len(patches))).astype(int)
    patches = [patches[i] for i in kept]  # images are ordered by subject, so some of them means evenly spread ones
    fold = np.arange(len(patches)) % settings["n_folds"]
    train, test = np.flatnonzero(fold != params["fold"]), np.flatnonzero(fold == params["fold"])
    known = train if params["codebook"] == "fold" else np.arange(len(patches))
    words = codebook([patches[i] for i in known], settings["words"], protocol.seed)
    rows = [features(p, words.predict(p.sift.astype(np.float64)), settings["words"]) for p in patches]
    held_out = np.arange(len(train)) % settings["inner"] == 0
    data = Data(patches, rows, train, held_out, test, settings["examples"] if params["fold"] == 0 else 0)
    shown = [patches[i] for i in data.shown]
    result: Result = {"truth": [{"shape": p.shape, "labels": p.labels.tolist()} for p in shown]}
    result[PATCH] = _patch_classifier(settings, data)
    for member in settings["members"]:
        result |= _member(protocol, data, member)
    return result


class Data:
    """Images with features, and who is trained on, held out and tested on."""

    def __init__(
        self, patches: Sequence[Patches], rows: Sequence[Any], train: Ints, held_out: Bools, test: Ints, n_shown: int
    ) -> None:
        self.patches, self.rows, self.train, self.test = patches, rows, train, test
        self.inner, self.held_out = train[~held_out], train[held_out]
        variety = [len(set(patches[i].labels.tolist()) - {UNKNOWN}) for i in test]
        self.shown = test[np.argsort(-np.array(variety), kind="stable")[:n_shown]]  # the first of the most varied

    def labels(self, which: Ints) -> Ints:
        return np.concatenate([self.patches[i].labels for i in which])

    def features(self, which: Ints) -> Any:
        return sparse.vstack([self.rows[i] for i in which], format="csr")

    def layout(self) -> WeightLayout:
        k = len(CATEGORIES)
        return WeightLayout.of({"patch": (self.rows[0].shape[1], k), "edge": (1, k * k)})

    def sample(self, which: Ints) -> Sample:
        """Labelled patches are outputs, the others hidden."""
        k, groups = len(CATEGORIES), self.layout()
        graphs = [grid_graph(*self.patches[i].shape, k) for i in which]
        batch = Batch.build(graphs, [np.zeros(g.n_factors, dtype=np.int64) for g in graphs])
        terms = (
            node_term(batch, self.features(which), groups["patch"].start),
            table_term(batch, None, groups["edge"].start),
        )
        labels = self.labels(which)
        output = labels != UNKNOWN
        admitted = ~output[:, None] | (np.arange(k) == labels[:, None])
        return Sample.of(LinearInputs(batch, terms), Query.of(batch, output), admitted.ravel())


def _member(protocol: Protocol, data: Data, member: str) -> Result:
    settings, objective = protocol.settings(NAME), UNIFIED[member]()
    model, inference = LinearModel.named(data.layout()), Propagate(effort="fast", max_sweeps=settings["sweeps"])
    start = np.zeros(model.n_weights)  # features are shared with labelled patches, so zeros freeze nothing

    def fit(sample: Sample, C: float, rate: float) -> Floats:
        solver = Subgradient(n_epochs=settings["epochs"], rate=rate, batch_size=1)
        return solver.minimize(TrainingProblem(objective, model, sample, inference, C), start).w

    def decode(w: Floats, sample: Sample, eps_y: float) -> Ints:
        theta = model.forward(w, sample.inputs)
        eps_h = objective.eps_h if eps_y == 0 else 1.0
        return inference(sample.batch, theta, sample.query, eps_y, eps_h).decode(sample.batch)

    inner, held_out, labels = data.sample(data.inner), data.sample(data.held_out), data.labels(data.held_out)
    pairs = [(C, rate) for C in settings["Cs"] for rate in settings["rates"]]
    scores = [_share(decode(fit(inner, *pair), held_out, 0.0), labels) for pair in pairs] if len(pairs) > 1 else [0.0]
    best = pairs[int(np.argmax(scores))]
    w, test = fit(data.sample(data.train), *best), data.sample(data.test)
    found = {member: _count(data, decode(w, test, 0.0)) | {"C": best[0], "rate": best[1]}}
    return found | ({MARGINALS: _count(data, decode(w, test, 1.0))} if member == "H" else {})


def _patch_classifier(settings: dict[str, Any], data: Data) -> Result:
    """Logistic regression on the same features, without structure; C by the same inner split."""

    def fit(which: Ints, C: float) -> LogisticRegression:
        labels = data.labels(which)
        return LogisticRegression(C=C, max_iter=300).fit(
            data.features(which)[labels != UNKNOWN], labels[labels != UNKNOWN]
        )

    held_out = data.features(data.held_out), data.labels(data.held_out)
    scores = [_share(fit(data.inner, C).predict(held_out[0]), held_out[1]) for C in settings["patch_Cs"]]
    best = settings["patch_Cs"][int(np.argmax(scores))]
    return _count(data, fit(data.train, best).predict(data.features(data.test))) | {"C": best}


def _share(decoded: Ints, labels: Ints) -> float:
    return float(np.mean(decoded[labels != UNKNOWN] == labels[labels != UNKNOWN]))


def _count(data: Data, decoded: Ints) -> Result:
    """Per test image and category: labelled patches, and those that were right; and what was decoded where shown."""
    ends = np.cumsum([len(data.patches[i].labels) for i in data.test])[:-1]
    right, total, parts = [], [], np.split(decoded, ends)
    for mine, labels in zip(parts, np.split(data.labels(data.test), ends), strict=True):
        total.append([int(np.sum(labels == k)) for k in range(len(CATEGORIES))])
        right.append([int(np.sum((labels == k) & (mine == k))) for k in range(len(CATEGORIES))])
    shown = [parts[int(np.flatnonzero(data.test == i)[0])].tolist() for i in data.shown]
    return {"right": right, "total": total, "shown": shown}


@lru_cache(1)
def _patches(folder: Path) -> list[Patches]:
    return load_patches(read_msrc(folder), Path.home() / ".cache" / "mssvm" / "msrc")


def section(protocol: Protocol, trials: Trials) -> Section:
    settings = protocol.settings(NAME)
    tables = [_table(settings, trials, book) for book in trials.present("codebook", settings["codebooks"])]
    intro = Text(
        "Accuracy (%) on labelled patches, folds together; patches of other categories and void are hidden. The "
        "standard error is a bootstrap over images. 'Single patches' is a logistic regression on the same features."
    )
    items: list[Text | Table | Figure] = [intro, *tables, *_gallery(settings, trials)]
    return Section(NAME, "Table 4: MSRC", items, claims(protocol, trials))


def _gallery(settings: dict[str, Any], trials: Trials) -> list[Figure]:
    """Labels of some test images beside what every method makes of them, with the first codebook."""
    found = [t.result for t in trials.where(codebook=settings["codebooks"][0]) if t.result["truth"]]
    drawings = []
    for result in found:
        for k, truth in enumerate(result["truth"]):
            drawings.append(label_picture("ground truth", np.reshape(truth["labels"], truth["shape"])))
            drawings += [
                label_picture(TITLES[m], np.reshape(result[m]["shown"][k], truth["shape"]))
                for m in (PATCH, *settings["members"])
            ]
    note = "The test images of the first fold with the most categories. Patches without a label are left blank."
    columns = 2 + len(settings["members"])
    return [Figure("Labels of patches, and predictions", drawings, note, columns)] if drawings else []


def _table(settings: dict[str, Any], trials: Trials, book: str) -> Table:
    rows = []
    for m in (PATCH, *settings["members"], MARGINALS):
        means, errors = _bootstrap(settings, *_counts(trials, book, m))
        rows.append([TITLES[m], *[f"{a:.1f} ± {e:.1f}" for a, e in zip(means, errors, strict=True)]])
    n = len(rows)
    rows += [
        [f"paper {NAMES[m]}", *[f"{v:.1f}" for v in values], f"{np.mean(values):.1f}", ""]
        for m, values in PAPER.items()
    ]
    where = "all images" if book == "all" else "the training fold"
    return Table(f"Codebook on {where}", ["", *CATEGORIES, "mean", "all"], rows, strong=frozenset(range(n, len(rows))))


def _counts(trials: Trials, book: str, member: str) -> tuple[Floats, Floats]:
    found = [t.result[member] for t in trials.where(codebook=book)]
    right, total = (np.concatenate([np.array(r[k], dtype=np.float64) for r in found]) for k in ("right", "total"))
    return right, total


def _scores(right: Floats, total: Floats) -> Floats:
    """Accuracy of every category, their mean, and of all patches together."""
    by_class = 100 * right.sum(0) / np.maximum(total.sum(0), 1.0)
    return np.append(by_class, [by_class.mean(), 100 * right.sum() / total.sum()])


def _bootstrap(settings: dict[str, Any], right: Floats, total: Floats) -> tuple[Floats, Floats]:
    rng = np.random.default_rng(0)
    draws = rng.integers(len(right), size=(settings["resamples"], len(right)))
    return _scores(right, total), np.std([_scores(right[d], total[d]) for d in draws], axis=0, ddof=1)


def claims(protocol: Protocol, trials: Trials) -> list[Claim]:
    settings = protocol.settings(NAME)
    found: dict[str, list[tuple[str, Estimate]]] = {}
    for book in trials.present("codebook", settings["codebooks"]):
        mine, total = _counts(trials, book, "M")
        found[f"codebook {book}"] = []
        for m in ("L", "H"):
            other, _ = _counts(trials, book, m)
            draws = np.random.default_rng(0).integers(len(mine), size=(settings["resamples"], len(mine)))
            gaps = np.array([_scores(mine[d], total[d]) - _scores(other[d], total[d]) for d in draws])
            low, high = np.quantile(gaps, [(1 - trials.confidence) / 2, (1 + trials.confidence) / 2], axis=0)
            mean, se = _scores(mine, total) - _scores(other, total), gaps.std(axis=0, ddof=1)
            found[f"codebook {book}"] += [
                (
                    f"{c}, MSSVM - {NAMES[m]}",
                    Estimate(float(mean[k]), float(se[k]), float(low[k]), float(high[k]), len(mine)),
                )
                for k, c in enumerate(CATEGORIES)
            ]
    return [claim(protocol, 8, "MSSVM is the best member for every MSRC category.", found)]


EXPERIMENT = Experiment(NAME, tasks, run, section, skip)
