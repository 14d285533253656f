"""Sets that keep their promise, and labels that are worth asking for.

    python benchmarks/bench_promises.py [--parts conformal suggest] [--seeds 10]

conformal  A CRF on handwritten words and on CoNLL-2000 sentences; the instances that it was not trained on are split in
           calibration and test, ten times. Coverage and size of the sets on the test half, at a promise of 90%; of the
           labels in calibration none or half are missing. Span sets on CoNLL-2000.
suggest    A pool without labels, of which sites are labelled step by step: at random, or as ``suggest`` says by the
           model of the step before. Accuracy on held-out data by the share of labels, and the share that random choice
           needs for what suggestions reach with 5 to 20%.

Results are kept in results/conformal.json and results/suggest.json.
"""

from __future__ import annotations

import argparse
import warnings
from typing import Any

import numpy as np
from common_data import data_dir, write

import mssvm as ms

Data = tuple[list[Any], list[list[Any]]]
SHARES = (0.02, 0.03, 0.04, 0.05, 0.06, 0.08, 0.1, 0.125, 0.15, 0.2)
FURTHER = (0.3, 0.4)  # shares that only random choice goes on to
ASKED = (0.05, 0.1, 0.15, 0.2)  # shares of suggested labels that are compared with random ones
POOL = {"letters": 1500, "conll2000": 400}  # instances, about 11,000 and 9,500 sites
TEST = 800


def letters() -> Data:
    data = np.load(data_dir() / "ocr_letters" / "letters.npz")
    pixels = np.unpackbits(data["pixels"], axis=1).astype(np.float64)
    ends = np.cumsum(data["lengths"])[:-1]
    return np.split(pixels, ends), [part.tolist() for part in np.split(data["labels"], ends)]


def chunks() -> Data:
    dataset = ms.data.read(data_dir() / "conll2000" / "train.txt")
    return dataset.X, dataset.labels


SETS = {"letters": letters, "conll2000": chunks}


def shuffled(data: Data, seed: int) -> Data:
    order = np.random.default_rng(seed).permutation(len(data[0]))
    return [data[0][b] for b in order], [data[1][b] for b in order]


def summary(values: list[float]) -> dict[str, float]:
    """Mean and half-length of a 95% interval over draws (normal approximation)."""
    spread = 1.96 * float(np.std(values, ddof=1)) / np.sqrt(len(values)) if len(values) > 1 else float("nan")
    return {"mean": float(np.mean(values)), "half interval": spread}


def conformal(seeds: int) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for name, load in SETS.items():
        X, y = shuffled(load(), 0)
        clf = ms.CRF(ms.Chain(), C=1.0, max_iter=100, n_jobs=-1).fit(X[:800], y[:800])
        rest = X[800:3200], y[800:3200]
        out[name] = {"sets": label_sets(clf, rest, seeds)}
        if name == "conll2000":
            out[name]["spans"] = span_sets(clf, rest, seeds)
        print(name, out[name], flush=True)
    return out


def halves(data: Data, seed: int) -> tuple[Data, Data]:
    X, y = shuffled(data, 100 + seed)
    half = len(X) // 2
    return (X[:half], y[:half]), (X[half:], y[half:])


def label_sets(clf: Any, data: Data, seeds: int) -> list[dict[str, Any]]:
    rows = []
    for missing in (0.0, 0.5):
        for by_class in (False, True):
            found = []
            for seed in range(seeds):
                (Xc, yc), test = halves(data, seed)
                rng = np.random.default_rng(seed)
                yc = [[label if rng.random() >= missing else None for label in labels] for labels in yc]
                sets = ms.conformal.LabelSets(clf, coverage=0.9, by_class=by_class).calibrate(Xc, yc)
                found.append(sets.evaluate(*test))
            rows.append(
                {
                    "missing in calibration": missing,
                    "by class": by_class,
                    "coverage": summary([100 * result.by_item for result in found]),
                    "labels in a set": summary([result.mean_size for result in found]),
                }
            )
    return rows


def span_sets(clf: Any, data: Data, seeds: int) -> dict[str, Any]:
    found = []
    for seed in range(seeds):
        (Xc, yc), (Xt, yt) = halves((data[0][:600], data[1][:600]), seed)
        sets = ms.conformal.SpanSets(clf, coverage=0.9, k=10).calibrate(Xc, yc)
        found.append(sets.evaluate(Xt, yt))
    return {
        "coverage": summary([100 * result.by_item for result in found]),
        "spans of a set": summary([result.mean_size for result in found]),
        "true spans of a sentence": float(np.mean([len(ms.metrics.spans(tags)) for tags in yt])),
    }


def accuracy_curve(data: Data, n_pool: int, seed: int, by: str) -> list[float]:
    """Accuracy on held-out instances after every step of labelling."""
    X, y = shuffled(data, 200 + seed)
    pool = X[:n_pool]
    truth = y[:n_pool]
    test = X[n_pool : n_pool + TEST], y[n_pool : n_pool + TEST]
    n_sites = sum(len(labels) for labels in truth)
    classes = sorted({label for labels in y for label in labels})
    rng = np.random.default_rng(seed)
    given: list[list[Any]] = [[None] * len(labels) for labels in truth]
    everywhere = [(b, t) for b, labels in enumerate(truth) for t in range(len(labels))]
    for k in rng.permutation(len(everywhere))[: int(SHARES[0] * n_sites)]:
        b, t = everywhere[k]
        given[b][t] = truth[b][t]
    curve = []
    clf = None
    for share in (*SHARES, *FURTHER) if by == "random" else SHARES:
        known = sum(label is not None for labels in given for label in labels)
        wanted = int(share * n_sites) - known
        if clf is not None and wanted > 0:
            for suggestion in clf.suggest(pool, wanted, given=given, by=by):
                (t,) = suggestion.site
                given[suggestion.instance][t] = truth[suggestion.instance][t]
        clf = ms.HCRF(ms.Chain(), C=1.0, classes=classes, max_iter=60, n_jobs=-1, random_state=seed).fit(pool, given)
        curve.append(100 * clf.score(*test))
    return curve


def random_share(suggested: np.ndarray, random: np.ndarray) -> dict[str, float]:
    """The share of labels with which random choice is as accurate as suggestions with each share of ``ASKED``."""
    out = {}
    for share in ASKED:
        out[f"{share:g}"] = float(np.interp(suggested[SHARES.index(share)], random, (*SHARES, *FURTHER)))
    return out


def suggest(seeds: int) -> dict[str, Any]:
    out: dict[str, Any] = {"shares": SHARES, "further shares of random": FURTHER, "pool": POOL, "test": TEST}
    for name, load in SETS.items():
        data = load()
        curves: dict[str, list[list[float]]] = {by: [] for by in ("random", "entropy", "margin")}
        for seed in range(seeds):
            for by, found in curves.items():
                found.append(accuracy_curve(data, POOL[name], seed, by))
            print(name, seed, {by: [round(a, 2) for a in found[-1]] for by, found in curves.items()}, flush=True)
        means = {by: np.mean(found, axis=0) for by, found in curves.items()}
        needed = {by: random_share(means[by], means["random"]) for by in ("entropy", "margin")}
        out[name] = {
            "accuracy": {
                by: [summary(list(column)) for column in zip(*found, strict=True)] for by, found in curves.items()
            },
            "share that random choice needs": needed,
        }
    return out


PARTS = {"conformal": conformal, "suggest": suggest}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="+", choices=list(PARTS), default=list(PARTS))
    parser.add_argument("--seeds", type=int, default=10)
    options = parser.parse_args()
    warnings.simplefilter("ignore")  # a budget of iterations is a setting here
    for part in options.parts:
        write(part, PARTS[part](options.seeds))


if __name__ == "__main__":
    main()
