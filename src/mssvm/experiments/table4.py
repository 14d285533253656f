"""Table 4: categories of MSRC patches by the structured members and by a classifier of single patches."""

from __future__ import annotations

from functools import lru_cache
from importlib.util import find_spec
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
PATCH, MARGINALS = "patch", "H marginals"
TITLES = NAMES | {PATCH: "single patches", MARGINALS: "HCRF by max-marginals"}
PAPER = {
    "M": (72.4, 89.7, 88.3, 71.9, 70.8),
    "L": (70.7, 88.9, 85.6, 71.0, 69.4),
    "H": (71.7, 88.3, 88.2, 70.1, 70.2),
}


def skip(protocol: Protocol) -> str:
    """Why this experiment cannot run; empty if it can."""
    if not protocol.data:
        return "needs the MSRC images; name their folder with --data"
    return "" if find_spec("cv2") else "needs OpenCV: pip install 'mssvm[vision]'"


def tasks(protocol: Protocol) -> list[Params]:
    if skip(protocol):
        return []
    settings = protocol.settings(NAME)
    return cross(codebook=settings["codebooks"], solver=list(settings["solvers"]), fold=settings["folds"], trial=[0])


def run(protocol: Protocol, params: Params) -> Result:
    """Right and labelled patches per test image and category, for every member and for single patches."""
    settings = protocol.settings(NAME)
    patches = _patches(*protocol.data)
    kept = np.linspace(0, len(patches) - 1, min(settings.get("n_images", len(patches)), len(patches))).astype(int)
    patches = [patches[i] for i in kept]  # images are ordered by subject, so some of them means evenly spread ones
    fold = np.arange(len(patches)) % settings["n_folds"]
    train, test = np.flatnonzero(fold != params["fold"]), np.flatnonzero(fold == params["fold"])
    known = train if params["codebook"] == "fold" else np.arange(len(patches))
    words = codebook([patches[i] for i in known], settings["words"], protocol.seed)
    rows = [features(p, words.predict(p.sift.astype(np.float64)), settings["words"]) for p in patches]
    data = Fold(patches, rows, train, test, settings["inner"])
    shown = data.varied(settings["examples"] if params["fold"] == 0 else 0)
    truth = [{"shape": patches[i].shape, "labels": patches[i].labels.tolist()} for i in shown]
    result: Result = {"truth": truth, PATCH: _patch_classifier(settings, data, shown)}
    for member in settings["members"]:
        result |= _member(protocol, data, member, params["solver"], shown)
    return result


class Fold:
    """Images with features: which are trained on, held out of that to choose settings by, and tested on."""

    def __init__(self, patches: list[Patches], rows: list[Any], train: Ints, test: Ints, every: int) -> None:
        held_out = np.arange(len(train)) % every == 0
        self.rows, self.labels = rows, [p.labels for p in patches]
        self.train, self.test, self.inner, self.held_out = train, test, train[~held_out], train[held_out]
        # The graph model has a bias of its own, so the constant feature goes.
        graphs = [Graph(row[:, :-1], grid_edges(*p.shape)) for row, p in zip(rows, patches, strict=True)]
        self.images = PartlyLabelled(graphs, self.labels, [labels == UNKNOWN for labels in self.labels])

    def varied(self, n: int) -> Ints:
        """The first of the test images with the most categories."""
        variety = [len(set(self.labels[i].tolist()) - {UNKNOWN}) for i in self.test]
        return self.test[np.argsort(-np.array(variety), kind="stable")[:n]]

    def single(self, images: Ints) -> tuple[Any, Ints]:
        """Features and labels of the patches of some images, without structure."""
        rows, labels = ([part[i] for i in images] for part in (self.rows, self.labels))
        return sparse.vstack(rows, format="csr"), np.concatenate(labels)

    def count(self, decoded: list[Ints], shown: Ints) -> Result:
        """Per test image and category: labelled patches, and those that were right; and what was decoded in some."""
        pairs = [(mine, self.labels[i]) for mine, i in zip(decoded, self.test, strict=True)]
        total = [[int(np.sum(labels == k)) for k in range(len(CATEGORIES))] for _, labels in pairs]
        right = [[int(np.sum((labels == k) & (mine == k))) for k in range(len(CATEGORIES))] for mine, labels in pairs]
        at = {int(i): mine for i, mine in zip(self.test, decoded, strict=True)}
        return {"right": right, "total": total, "shown": [at[int(i)].tolist() for i in shown]}


def _member(protocol: Protocol, data: Fold, member: str, how: str, shown: Ints) -> Result:
    """A member by CCCP at the paper's C, or by AdaGrad with C and rate chosen on the held-out images; HCRF is decoded
    by its marginals as well."""
    settings = protocol.settings(NAME)
    inference = protocol.inference("fast", max_sweeps=settings["sweeps"])
    outer = settings["solvers"][how].get("outer")

    def fit(images: PartlyLabelled, C: float, rate: float) -> Any:
        solver: Any = protocol.descent("adagrad", rate, max_iter=settings["solvers"][how]["epochs"])
        if outer is not None:
            solver = CCCP(solver, max_iter=outer, literal=True)
        # Features are shared with labelled patches, so a start at zero freezes nothing.
        common: dict[str, Any] = {"C": C, "init": "zeros", "classes": range(len(CATEGORIES))}
        return MEMBERS[member](GraphModel(), solver=solver, inference=inference, **common).fit(images.X, images.y)

    inner, held_out, train, test = map(data.images.select, (data.inner, data.held_out, data.train, data.test))
    pairs = [(C, rate) for C in settings["solvers"][how]["Cs"] for rate in settings["solvers"][how]["rates"]]
    scores = [held_out.accuracy(fit(inner, *pair), protocol.decode) for pair in pairs] if len(pairs) > 1 else [0.0]
    best = pairs[int(np.argmax(scores))]
    fitted = fit(train, *best)
    decoded = {
        how: fitted.predict(test.X, hidden_sites=test.hidden, decode=how) for how in (protocol.decode, "marginal")
    }
    found = {member: data.count(decoded[protocol.decode], shown) | {"C": best[0], "rate": best[1]}}
    return found | ({MARGINALS: data.count(decoded["marginal"], shown)} if member == "H" else {})


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
    """Labels of some test images beside what every method makes of them, with the first codebook and solver."""
    found = [t.result for t in trials.where(**_cells(settings, trials)[0]) if t.result["truth"]]
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
    shown = [*drawings, legend(CATEGORIES)]
    return [Figure("Labels of patches, and predictions", shown, note, columns)] if drawings else []


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
    rows += [
        [f"paper {NAMES[m]}", *[f"{v:.1f}" for v in values], f"{np.mean(values):.1f}", ""]
        for m, values in PAPER.items()
    ]
    images = "all images" if where["codebook"] == "all" else "the training fold"
    caption = f"{where['solver']}; codebook on {images}; {len(total)} test images"
    return Table(caption, ["", *CATEGORIES, "mean", "all"], rows, strong=frozenset(range(n, len(rows))))


def _counts(trials: Trials, where: Params, member: str) -> tuple[Floats, Floats]:
    found = [t.result[member] for t in trials.where(**where)]
    right, total = (np.concatenate([np.array(r[k], dtype=np.float64) for r in found]) for k in ("right", "total"))
    return right, total


def _scores(right: Floats, total: Floats) -> Floats:
    """Accuracy of every category, their mean, and of all patches together."""
    by_class = 100 * right.sum(0) / np.maximum(total.sum(0), 1.0)
    return np.append(by_class, [by_class.mean(), 100 * right.sum() / total.sum()])


def _bootstrap(settings: Params, total: Floats, *right: Floats) -> list[Floats]:
    """The scores of images drawn again with replacement, one row a draw, the same draws for all counts of rights."""
    draws = np.random.default_rng(0).integers(len(total), size=(settings["resamples"], len(total)))
    return [np.array([_scores(counts[d], total[d]) for d in draws]) for counts in right]


def claims(protocol: Protocol, trials: Trials) -> list[Claim]:
    """Shares are ratios of sums over images; an image's part in them is that of the linearised ratio."""
    out: list[Claim] = []
    for letter, member in zip("ab", ("L", "H"), strict=True):
        found: Comparisons = {}
        for where in _cells(protocol.settings(NAME), trials):
            mine, total = _counts(trials, where, "M")
            more, whole = mine - _counts(trials, where, member)[0], np.maximum(total.sum(axis=0), 1.0)
            gap = more.sum(axis=0) / whole
            parts = 100 * (gap + len(total) * (more - gap * total) / whole)
            labels = [f"{category}, MSSVM - {NAMES[member]}" for category in CATEGORIES]
            columns = zip(labels, parts.T.tolist(), strict=True)
            name = f"{where['solver']}, codebook {where['codebook']}"
            found[name] = [Differences(label, dict(enumerate(column))) for label, column in columns]
        text = f"MSSVM is more accurate than {NAMES[member]} over the MSRC categories."
        paper = float(np.mean(PAPER["M"]) - np.mean(PAPER[member]))
        out += claim(protocol, f"8{letter}", text, "Section 7.3, Table 4", found, paper)
    return out


EXPERIMENT = Experiment(NAME, tasks, run, section, skip)
