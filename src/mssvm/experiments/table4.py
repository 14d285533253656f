"""Table 4: categories of MSRC patches by the structured members and by a classifier of single patches."""

from __future__ import annotations

from functools import lru_cache
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse
from sklearn.linear_model import LogisticRegression

from mssvm.core.arrays import Floats, Ints
from mssvm.data.graphs import Graph
from mssvm.experiments.collect import Comparisons, Experiment, Trials, claim
from mssvm.experiments.members import MEMBERS, NAMES
from mssvm.experiments.msrc import CATEGORIES, UNKNOWN, Patches, codebook, features, load_patches, read_msrc
from mssvm.experiments.protocol import Params, Protocol
from mssvm.experiments.simulate import PartlyLabelled, grid_edges
from mssvm.experiments.statistics import Differences
from mssvm.experiments.trials import Result, cross
from mssvm.optim import CCCP
from mssvm.report import Claim, Figure, Section, Table, Text, label_picture, legend
from mssvm.structures import GraphModel

NAME = "table4"
PATCH = "patch"
MARGINALS = "H marginals"
IMAGES = {"all": "all images", "fold": "training fold"}  # whose patches make the codebook
TITLES = NAMES | {PATCH: "single patches", MARGINALS: "HCRF by largest marginals"}
PAPER = {
    "M": (72.4, 89.7, 88.3, 71.9, 70.8),
    "L": (70.7, 88.9, 85.6, 71.0, 69.4),
    "H": (71.7, 88.3, 88.2, 70.1, 70.2),
}


def skip(protocol: Protocol) -> str:
    """Why this experiment cannot run; empty if it can."""
    if not protocol.data:
        return "needs the MSRC images; name their folder with --data"
    if find_spec("cv2") is None:
        return "needs OpenCV: pip install 'mssvm[vision]'"
    return ""


def tasks(protocol: Protocol) -> list[Params]:
    if skip(protocol):
        return []
    settings = protocol.settings(NAME)
    return cross(codebook=settings["codebooks"], solver=list(settings["solvers"]), fold=settings["folds"], trial=[0])


def run(protocol: Protocol, params: Params) -> Result:
    """Right and labelled patches per test image and category, for every member and for single patches."""
    settings = protocol.settings(NAME)
    patches = _patches(*protocol.data)
    # Images are ordered by subject: a subset is evenly spread.
    n_images = min(settings.get("n_images", len(patches)), len(patches))
    patches = [patches[i] for i in np.linspace(0, len(patches) - 1, n_images).astype(int)]
    fold = np.arange(len(patches)) % settings["n_folds"]
    train = np.flatnonzero(fold != params["fold"])
    test = np.flatnonzero(fold == params["fold"])
    codebook_images = train if params["codebook"] == "fold" else np.arange(len(patches))
    words = codebook([patches[i] for i in codebook_images], settings["words"], protocol.seed)
    rows = [features(p, words.predict(p.sift.astype(np.float64)), settings["words"]) for p in patches]
    data = Fold(patches, rows, train, test, settings["inner"])
    shown = data.varied(settings["examples"] if params["fold"] == 0 else 0)
    truth = [{"shape": patches[i].shape, "labels": patches[i].labels.tolist()} for i in shown]
    result: Result = {"truth": truth, PATCH: _patch_classifier(settings, data, shown)}
    for member in settings["members"]:
        result |= _member(protocol, data, member, params["solver"], shown)
    return result


class Fold:
    """Images with features, and their split: ``train`` and ``test``; ``inner`` and ``held_out`` split ``train``."""

    def __init__(self, patches: list[Patches], rows: list[Any], train: Ints, test: Ints, every: int) -> None:
        held_out = np.arange(len(train)) % every == 0
        self.rows = rows
        self.labels = [p.labels for p in patches]
        self.train = train
        self.test = test
        self.inner = train[~held_out]
        self.held_out = train[held_out]
        # The graph model has a bias of its own, so the constant feature is dropped.
        graphs = [Graph(row[:, :-1], grid_edges(*p.shape)) for row, p in zip(rows, patches, strict=True)]
        self.images = PartlyLabelled(graphs, self.labels, [labels == UNKNOWN for labels in self.labels])

    def varied(self, n: int) -> Ints:
        """The first of the test images with the most categories."""
        variety = [len(set(self.labels[i].tolist()) - {UNKNOWN}) for i in self.test]
        return self.test[np.argsort(-np.array(variety), kind="stable")[:n]]

    def single(self, images: Ints) -> tuple[Any, Ints]:
        """Features and labels of the patches of some images, without structure."""
        rows = sparse.vstack([self.rows[i] for i in images], format="csr")
        labels = np.concatenate([self.labels[i] for i in images])
        return rows, labels

    def count(self, decoded: list[Ints], shown: Ints) -> Result:
        """Labelled patches and right ones by test image and category, and the labels decoded for ``shown`` images."""
        categories = range(len(CATEGORIES))
        decoded_of = {int(i): labels for i, labels in zip(self.test, decoded, strict=True)}
        total = []
        right = []
        for i, predicted in decoded_of.items():
            labels = self.labels[i]
            total.append([int(np.sum(labels == k)) for k in categories])
            right.append([int(np.sum((labels == k) & (predicted == k))) for k in categories])
        return {"right": right, "total": total, "shown": [decoded_of[int(i)].tolist() for i in shown]}


def _member(protocol: Protocol, data: Fold, member: str, solver_name: str, shown: Ints) -> Result:
    """A member by CCCP at the paper's C, or by AdaGrad with C and rate chosen on the held-out images; HCRF is decoded
    by its marginals as well."""
    settings = protocol.settings(NAME)
    inference = protocol.inference("fast", max_sweeps=settings["sweeps"])
    outer = settings["solvers"][solver_name].get("outer")

    def fit(images: PartlyLabelled, C: float, rate: float) -> Any:
        solver: Any = protocol.descent("adagrad", rate, max_iter=settings["solvers"][solver_name]["epochs"])
        if outer is not None:
            solver = CCCP(solver, max_iter=outer, literal=True)
        # Features are shared with labelled patches, so a start at zero freezes nothing.
        common: dict[str, Any] = {"C": C, "init": "zeros", "classes": range(len(CATEGORIES))}
        return MEMBERS[member](GraphModel(), solver=solver, inference=inference, **common).fit(images.X, images.y)

    pairs = list(product(settings["solvers"][solver_name]["Cs"], settings["solvers"][solver_name]["rates"]))
    scores = [0.0]
    if len(pairs) > 1:
        inner = data.images.select(data.inner)
        held_out = data.images.select(data.held_out)
        scores = [held_out.accuracy(fit(inner, C, rate), protocol.decode) for C, rate in pairs]
    C, rate = pairs[int(np.argmax(scores))]
    fitted = fit(data.images.select(data.train), C, rate)
    test = data.images.select(data.test)
    decoded = fitted.predict(test.X, hidden_sites=test.hidden, decode=protocol.decode)
    result = {member: data.count(decoded, shown) | {"C": C, "rate": rate}}
    if member == "H":
        by_marginals = fitted.predict(test.X, hidden_sites=test.hidden, decode="marginal")
        result[MARGINALS] = data.count(by_marginals, shown)
    return result


def _patch_classifier(settings: Params, data: Fold, shown: Ints) -> Result:
    """Logistic regression on the same features, without structure; C by the same inner split."""

    def fit(images: Ints, C: float) -> LogisticRegression:
        rows, labels = data.single(images)
        return LogisticRegression(C=C, max_iter=300).fit(rows[labels != UNKNOWN], labels[labels != UNKNOWN])

    rows, labels = data.single(data.held_out)
    scores = [np.mean((fit(data.inner, C).predict(rows) == labels)[labels != UNKNOWN]) for C in settings["patch_Cs"]]
    best = settings["patch_Cs"][int(np.argmax(scores))]
    chosen = fit(data.train, best)
    return data.count([chosen.predict(data.rows[i]) for i in data.test], shown) | {"C": best}


@lru_cache(1)
def _patches(*folders: Path) -> list[Patches]:
    return load_patches(read_msrc(*folders), Path.home() / ".cache" / "mssvm" / "msrc")


def section(protocol: Protocol, trials: Trials) -> Section:
    settings = protocol.settings(NAME)
    tables = [_table(settings, trials, where) for where in _cells(settings, trials)]
    intro = Text(
        "Accuracy (%) on labelled patches, two folds (every other image) together; patches of other categories and "
        "void are hidden. The standard error is a bootstrap over images. 'Single patches' is a logistic regression "
        "on the same features. CCCP at C = 1 is how the paper trains; AdaGrad chooses C and its rate by an inner split."
    )
    items: list[Text | Table | Figure] = [intro, *tables, *_gallery(settings, trials)]
    return Section(NAME, "Table 4: MSRC", items, claims(protocol, trials))


def _gallery(settings: Params, trials: Trials) -> list[Figure]:
    """Labels of some test images and the predictions of every method, with the first codebook and solver."""
    results = [trial.result for trial in trials.where(**_cells(settings, trials)[0])]
    drawings = []
    for result in results:
        for k, truth in enumerate(result["truth"]):
            drawings.append(label_picture("ground truth", np.reshape(truth["labels"], truth["shape"])))
            drawings += [
                label_picture(TITLES[m], np.reshape(result[m]["shown"][k], truth["shape"]))
                for m in (PATCH, *settings["members"])
            ]
    note = "The test images of the first fold with the most categories. Patches without a label are left blank."
    columns = 2 + len(settings["members"])
    if not drawings:
        return []
    return [Figure("Labels of patches, and predictions", drawings, note, columns, legend(CATEGORIES))]


def _cells(settings: Params, trials: Trials) -> list[Params]:
    """Codebooks and solvers of which there are trials."""
    cells = cross(codebook=settings["codebooks"], solver=list(settings["solvers"]))
    return [where for where in cells if trials.where(**where)]


def _table(settings: Params, trials: Trials, where: Params) -> Table:
    rows = []
    for m in (PATCH, *settings["members"], MARGINALS):
        right, total = _counts(trials, where, m)
        errors = _bootstrap(settings, total, right)[0].std(axis=0, ddof=1)
        cells = zip(_scores(right, total), errors, strict=True)
        rows.append([TITLES[m], *[f"{a:.1f} ± {e:.1f}" for a, e in cells]])
    n = len(rows)
    for m, values in PAPER.items():
        cells_of_paper = [f"{value:.1f}" for value in (*values, np.mean(values))]
        rows.append([f"paper {NAMES[m]}", *cells_of_paper, ""])
    caption = f"{where['solver']}; codebook on {IMAGES[where['codebook']]}; {len(total)} test images"
    return Table(caption, ["", *CATEGORIES, "mean", "all"], rows, strong=frozenset(range(n, len(rows))))


def _counts(trials: Trials, where: Params, member: str) -> tuple[Floats, Floats]:
    """Right and labelled patches, (images, categories), of all folds."""
    results = [trial.result[member] for trial in trials.where(**where)]
    right = np.concatenate([np.array(result["right"], dtype=np.float64) for result in results])
    total = np.concatenate([np.array(result["total"], dtype=np.float64) for result in results])
    return right, total


def _scores(right: Floats, total: Floats) -> Floats:
    """Accuracy of every category, their mean, and of all patches together."""
    by_class = 100 * right.sum(0) / np.maximum(total.sum(0), 1.0)
    return np.append(by_class, [by_class.mean(), 100 * right.sum() / total.sum()])


def _bootstrap(settings: Params, total: Floats, *right: Floats) -> list[Floats]:
    """The scores of images drawn with replacement: one row per draw, and the same draws for every method."""
    draws = np.random.default_rng(0).integers(len(total), size=(settings["resamples"], len(total)))
    return [np.array([_scores(counts[d], total[d]) for d in draws]) for counts in right]


def claims(protocol: Protocol, trials: Trials) -> list[Claim]:
    """Claims on shares, which are ratios of sums over images; differences per image are those of the linearised
    ratio."""
    out: list[Claim] = []
    for letter, member in zip("ab", ("L", "H"), strict=True):
        by_cell: Comparisons = {}
        for where in _cells(protocol.settings(NAME), trials):
            mssvm, total = _counts(trials, where, "M")
            other, _ = _counts(trials, where, member)
            more = mssvm - other
            whole = np.maximum(total.sum(axis=0), 1.0)
            gap = more.sum(axis=0) / whole
            parts = 100 * (gap + len(total) * (more - gap * total) / whole)
            labels = [f"{category}, MSSVM - {NAMES[member]}" for category in CATEGORIES]
            columns = zip(labels, parts.T.tolist(), strict=True)
            name = f"{where['solver']}, {IMAGES[where['codebook']]}"
            by_cell[name] = [Differences(label, dict(enumerate(column))) for label, column in columns]
        text = f"MSSVM is more accurate than {NAMES[member]} over the MSRC categories."
        paper = float(np.mean(PAPER["M"]) - np.mean(PAPER[member]))
        out += claim(protocol, f"8{letter}", text, "Section 7.3, Table 4", by_cell, paper, paper_trials=0)
    return out


EXPERIMENT = Experiment(NAME, tasks, run, section, skip)
