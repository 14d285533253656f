"""Segments: what long sequences cost, and membrane proteins by four folds.

    python benchmarks/bench_segments.py scale       memory of T = 100,000, K = 1,000, C = 24; growth with T, K and C
    python benchmarks/bench_segments.py gpu         log Z and its gradient on a GPU, beside flash-semicrf
    python benchmarks/bench_segments.py membrane    Segments beside Chain and Chain(hidden=2), fold by fold
    python benchmarks/bench_segments.py score FILE  the same models trained on all four folds, scored on another fold

Membrane proteins: helices cross the membrane from side 1 to side 2 ("up") or back ("down"), so that sides alternate;
that grammar is the same for all models, as are the features: residues in a window, and averages of hydropathy, charge
and composition around the residue. Unlabelled residues (U) are missing labels. A protein is right if its predicted
helices are as many as the true ones and each overlaps its partner by 10 residues (or all of a shorter one); predicted
helices that are mostly on unlabelled residues do not count.

Results: benchmarks/results/segments_scale.json, segments_gpu.json, segments_membrane.json.
"""

from __future__ import annotations

import argparse
import gzip
import json
import resource
import subprocess
import sys
from collections.abc import Callable, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
from common_data import Clock, data_dir, paired, write
from rich.console import Console
from scipy import sparse

import mssvm as ms

console = Console()

# ----------------------------------------------------------------------------------------- membrane proteins

RESIDUES = "ACDEFGHIKLMNPQRSTVWY"
# Kyte and Doolittle 1982
HYDROPATHY = dict(
    zip(
        "ARNDCQEGHILKMFPSTWYV",
        (
            1.8,
            -4.5,
            -3.5,
            -3.5,
            2.5,
            -3.5,
            -3.5,
            -0.4,
            -3.2,
            4.5,
            3.8,
            -3.9,
            1.9,
            2.8,
            -1.6,
            -0.8,
            -0.7,
            -0.9,
            -1.3,
            4.2,
        ),
        strict=True,
    )
)
CHARGE = {"K": 1.0, "R": 1.0, "D": -1.0, "E": -1.0}
GROUPS = ("AILMFVW", "KR", "DE", "STNQ", "G", "P", "HYWC")
WINDOW = 7  # residues to either side
LABELS = ("1", "2", "down", "signal", "up")
LEGAL = (("1", "up"), ("up", "2"), ("2", "down"), ("down", "1"), ("signal", "1"), ("signal", "2"))
OVERLAP = 10


def proteins(path: Path) -> list[dict[str, Any]]:
    with gzip.open(path, "rt") as lines:
        return [json.loads(line) for line in lines]


def average(values: np.ndarray, reach: int) -> np.ndarray:
    """Mean over the residues up to ``reach`` away, of those that exist; columns apart."""
    n = len(values)
    total = np.vstack([np.zeros((1, values.shape[1])), np.cumsum(values, axis=0)])
    low = np.maximum(np.arange(n) - reach, 0)
    high = np.minimum(np.arange(n) + reach + 1, n)
    return (total[high] - total[low]) / (high - low)[:, None]


def features(residues: str) -> sparse.csr_array:
    """Features of every residue, from the sequence alone."""
    n = len(residues)
    code = np.array([RESIDUES.find(r) for r in residues])
    one_hot = np.zeros((n + 2 * WINDOW, len(RESIDUES) + 1))
    one_hot[:, -1] = 1.0
    known = np.flatnonzero(code >= 0)
    one_hot[WINDOW + known, -1] = 0.0
    one_hot[WINDOW + known, code[known]] = 1.0
    windows = [one_hot[k : k + n] for k in range(2 * WINDOW + 1)]
    hydropathy = np.array([HYDROPATHY.get(r, 0.0) for r in residues])[:, None] / 4.5
    charge = np.array([CHARGE.get(r, 0.0) for r in residues])[:, None]
    groups = np.array([[r in group for group in GROUPS] for r in residues], dtype=np.float64)
    around = [average(hydropathy, reach) for reach in (3, 6, 9, 12, 20, 40)]
    around += [np.maximum(average(hydropathy, reach) - 0.25, 0.0) for reach in (6, 9, 12)]
    around += [average(charge, reach) for reach in (5, 10, 15)]
    around += [average(np.maximum(charge, 0.0), reach) for reach in (8, 15, 30)]
    around += [average(groups, reach) for reach in (9, 25)]
    position = np.arange(n)[:, None]
    ends = [(position < 3), (position < 30), (position >= n - 10), np.exp(-position / 15.0)]
    dense = np.hstack([*around, *(np.asarray(end, dtype=np.float64) for end in ends)])
    return sparse.csr_array(np.hstack([*windows, dense]))


def labels(letters: str) -> list[Any]:
    """Labels of the models: sides, signal, and helices by their direction; MISSING where unknown."""
    letters = letters.replace("h", "H")
    runs = [(letter, len(list(run))) for letter, run in groupby(letters)]
    out: list[Any] = []
    for k, (letter, length) in enumerate(runs):
        before = runs[k - 1][0] if k else "U"
        behind = runs[k + 1][0] if k + 1 < len(runs) else "U"
        label: Any = {"1": "1", "2": "2", "S": "signal", "U": ms.MISSING}.get(letter)
        if letter == "H":
            label = {"up", "down"}
            if before == "1" or behind == "2":
                label = "up"
            elif before == "2" or behind == "1":
                label = "down"
        out += [label] * length
    return out


def letters_of(predicted: Sequence[str]) -> str:
    names = {"1": "1", "2": "2", "signal": "S", "up": "H", "down": "H"}
    return "".join(names[label] for label in predicted)


def helices(letters: str) -> list[tuple[int, int]]:
    spans = []
    at = 0
    for letter, run in groupby(letters):
        length = len(list(run))
        if letter == "H":
            spans.append((at, at + length))
        at += length
    return spans


def judged(predicted: str, truth: str) -> dict[str, float]:
    """Right and labelled residues, right residues as helix or not, whether all helices are right, and with them all
    sides (the first labelled residue of a loop around each helix is on the right side)."""
    truth = truth.replace("h", "H")
    known = np.array([letter != "U" for letter in truth])
    same = np.array([p == t for p, t in zip(predicted, truth, strict=True)])
    helix = np.array([(p == "H") == (t == "H") for p, t in zip(predicted, truth, strict=True)])
    true = helices(truth)
    found = [span for span in helices(predicted) if 2 * known[span[0] : span[1]].sum() >= span[1] - span[0]]
    whole = len(true) == len(found)
    for (a, b), (p, q) in zip(true, found, strict=False):
        whole = whole and min(b, q) - max(a, p) >= min(OVERLAP, b - a)
    loops = np.array([letter in "12" for letter in truth])
    sides = bool(whole) and same[loops].mean() > 0.5
    return {
        "residues": float(known.sum()),
        "right": float(same[known].sum()),
        "helix_right": float(helix[known].sum()),
        "whole": float(whole),
        "topology": float(sides),
    }


def forbidden() -> list[tuple[str, str]]:
    """Pairs of labels that never follow each other; a label may follow itself, as it does in a chain."""
    return [(a, b) for a in LABELS for b in LABELS if a != b and (a, b) not in LEGAL]


LENGTHS = {"up": 45, "down": 45, "signal": 60, "1": 60, "2": 60}
MODELS: dict[str, Callable[[], Any]] = {
    "Chain, CRF": lambda: ms.CRF(ms.Chain(forbidden=forbidden(), ends=True), C=C, classes=LABELS),
    "Chain(hidden=2), HCRF": lambda: ms.HCRF(
        ms.Chain(hidden=2, direct=True, forbidden=forbidden(), ends=True), C=C, classes=LABELS, random_state=0
    ),
    "Segments, CRF": lambda: ms.CRF(segments(), C=C, classes=LABELS),
    "Segments(hidden=2), HCRF": lambda: ms.HCRF(segments(hidden=2), C=C, classes=LABELS, random_state=0),
}
C = 0.1


def segments(**settings: Any) -> ms.Segments:
    """Loops may be longer than 60 residues: they are then several segments."""
    return ms.Segments(LENGTHS, forbidden=forbidden(), repeat=("1", "2"), ends=True, **settings)


def interval(values: np.ndarray, weight: np.ndarray) -> list[float]:
    """A share in per cent with its 95% bootstrap interval over proteins."""
    found = paired(values, np.zeros(len(values)), weight)
    return [found["difference"], found["low"], found["high"]]


def trained(name: str, X: list[Any], y: list[Any]) -> tuple[Any, dict[str, Any]]:
    """A model, and what its training took."""
    model = MODELS[name]()
    with Clock() as clock:
        model.fit(X, y)
    return model, {"seconds": clock.cpu, "iterations": model.n_iter_, "objective": model.objective_}


def answered(model: Any, X: list[Any], truth: list[str]) -> list[dict[str, float]]:
    predicted = model.predict(X, decode="marginal")
    return [judged(letters_of(row), letters) for row, letters in zip(predicted, truth, strict=True)]


def summary(rows: list[dict[str, float]]) -> dict[str, Any]:
    table = {key: np.array([row[key] for row in rows]) for key in rows[0]}
    ones = np.ones(len(rows))
    return {
        "proteins": len(rows),
        "residues_right": interval(table["right"], table["residues"]),
        "helix_or_not_right": interval(table["helix_right"], table["residues"]),
        "all_helices_right": interval(table["whole"], ones),
        "helices_and_sides_right": interval(table["topology"], ones),
    }


def fold(test: int, names: Sequence[str], path: Path) -> None:
    """Models trained on three folds and asked for the other; a line of JSON each is appended to a file."""
    folds = [proteins(data_dir() / "membrane" / f"fold{k}.jsonl.gz") for k in range(4)]
    train = [p for k in range(4) if k != test for p in folds[k]]
    X = [features(p["x"]) for p in train]
    y = [labels(p["y"]) for p in train]
    for name in names:
        model, took = trained(name, X, y)
        rows = answered(model, [features(p["x"]) for p in folds[test]], [p["y"] for p in folds[test]])
        with path.open("a") as file:
            file.write(json.dumps({"model": name, "fold": test, "took": took, "rows": rows}) + "\n")


def membrane(names: Sequence[str], folder: Path) -> None:
    """Four folds, each in a process of its own; ``folder`` keeps what they found, so that a run can go on."""
    folder.mkdir(parents=True, exist_ok=True)
    processes = []
    for k in range(4):
        path = folder / f"fold{k}.jsonl"
        done = {json.loads(line)["model"] for line in path.read_text().splitlines()} if path.exists() else set()
        left = [name for name in names if name not in done]
        if left:
            command = [sys.executable, __file__, "fold", str(k), str(path), "--models", *left]
            processes.append(subprocess.Popen(command))
    for process in processes:
        if process.wait():
            sys.exit("a fold failed")
    found = [json.loads(line) for k in range(4) for line in (folder / f"fold{k}.jsonl").read_text().splitlines()]
    result: dict[str, Any] = {"C": C, "models": {}, "differences": {}}
    rows = {name: [row for part in found if part["model"] == name for row in part["rows"]] for name in names}
    for name in names:
        by_fold = [{"fold": p["fold"], **p["took"], **summary(p["rows"])} for p in found if p["model"] == name]
        result["models"][name] = {**summary(rows[name]), "by_fold": by_fold}
    for name in names[1:]:
        result["differences"][f"{name} - {names[0]}"] = _difference(rows[name], rows[names[0]])
    write("segments_membrane", result)
    console.print(result)


def _difference(a: list[dict[str, float]], b: list[dict[str, float]]) -> dict[str, Any]:
    """Paired differences in points, over proteins."""
    ones = np.ones(len(a))
    return {
        "residues_right": paired(_column(a, "right"), _column(b, "right"), _column(a, "residues")),
        "all_helices_right": paired(_column(a, "whole"), _column(b, "whole"), ones),
        "helices_and_sides_right": paired(_column(a, "topology"), _column(b, "topology"), ones),
    }


def _column(rows: list[dict[str, float]], key: str) -> np.ndarray:
    return np.array([row[key] for row in rows])


def score(path: Path, names: Sequence[str]) -> None:
    """Models trained on the four folds, scored on the proteins of another file."""
    train = [p for k in range(4) for p in proteins(data_dir() / "membrane" / f"fold{k}.jsonl.gz")]
    test = proteins(path)
    for name in names:
        model, took = trained(name, [features(p["x"]) for p in train], [labels(p["y"]) for p in train])
        found = answered(model, [features(p["x"]) for p in test], [p["y"] for p in test])
        console.print(name, {**took, **summary(found)})


# ----------------------------------------------------------------------------------------- long sequences

# Where a term of the cost rules: T K C of lengths, and T C^2 of transitions where segments are short.
SIZES = {
    "T": [(n, 1000, 12) for n in (8000, 16000, 32000, 64000)],
    "K": [(32000, k, 12) for k in (1000, 2000, 4000, 8000)],
    "C": [(16000, 2000, c) for c in (6, 12, 24, 48)],
    "C, short segments": [(2000, 2, c) for c in (192, 384, 768)],
}
REPEATS = 3
LARGE = (100_000, 1000, 24)


def long_model(longest: int, n_classes: int) -> Any:
    """A model of the given size, trained for one iteration: its weights do not matter here."""
    rng = np.random.default_rng(0)
    y = list(range(n_classes))
    X = [rng.normal(size=(n_classes, 4))]
    return ms.CRF(ms.Segments(max_length=longest), max_iter=1, classes=y).fit(X, [y])


def resident() -> int:
    """Bytes of memory that the process has now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def peak() -> int:
    """The most that it has had since the last ``forget``."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) << 10
    raise RuntimeError("this system does not say how much memory a process has had")


def forget() -> None:
    Path("/proc/self/clear_refs").write_text("5")


def asked(model: Any, n: int) -> tuple[np.ndarray, Clock]:
    """Marginals of one long sequence by the public method, and what they took."""
    x = np.random.default_rng(1).normal(size=(n, 4))
    model.predict_marginals([x[:50]])  # loads what is loaded once
    with Clock() as clock:
        found = model.predict_marginals([x])[0]
    assert abs(found.sum() - n) < 1e-3  # probabilities of every site add up to one
    return found, clock


def one(n: int, longest: int, n_classes: int) -> None:
    """Memory above X and the model, in a process of its own."""
    model = long_model(longest, n_classes)
    x = np.random.default_rng(1).normal(size=(n, 4))
    model.predict_marginals([x[:50]])
    forget()
    before = resident()
    with Clock() as clock:
        model.predict_marginals([x])
    row = {"T": n, "K": longest, "C": n_classes, "peak_MB": (peak() - before) / 1e6, "seconds": clock.cpu}
    print(json.dumps(row))


def scale() -> None:
    """Processor time of one thread, best of several runs."""
    command = [sys.executable, __file__, "one", *map(str, LARGE)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    result: dict[str, Any] = {"large": json.loads(done.stdout), "growth": {}}
    console.print(result)
    for name, sizes in SIZES.items():
        rows = []
        for n, longest, n_classes in sizes:
            model = long_model(longest, n_classes)
            seconds = min(asked(model, n)[1].cpu for _ in range(REPEATS))
            rows.append({"T": n, "K": longest, "C": n_classes, "seconds": seconds})
        varied = np.log([row[name[0]] for row in rows])
        exponent = float(np.polyfit(varied, np.log([row["seconds"] for row in rows]), 1)[0])
        result["growth"][name] = {"exponent": exponent, "rows": rows}
        console.print(name, exponent, rows)
    write("segments_scale", result)


# ----------------------------------------------------------------------------------------- a GPU


SECONDS_OF_A_PEER = 30.0
# Sequences, sites, longest segment; the rows of a K grow, so that each tells what the next will take.
GPU_ROWS = ((1, 1_000, 50), (32, 1_000, 50), (1, 10_000, 50), (1, 100_000, 50), (1, 1_000, 1_000))
GPU_ROWS += ((1, 10_000, 1_000), (1, 100_000, 1_000))


def gpu(rows: Sequence[tuple[int, int, int]] = GPU_ROWS, device: str = "cuda") -> None:
    """log Z and its gradient in single precision through ``StructuredLoss``, C = 24, beside flash-semicrf.

    There a segment of the first label follows any label, so that ours begins with the sum over transitions. A peer that
    took long in a smaller row is not run where it would take more than SECONDS_OF_A_PEER.
    """
    import torch

    result: dict[str, Any] = {"gpu": torch.cuda.get_device_name() if device == "cuda" else "none", "rows": {}}
    pace: dict[int, float] = {}  # the peer's seconds a site, by K
    for n_sequences, n_sites, longest in rows:
        rng = torch.Generator(device=device).manual_seed(0)
        node = torch.randn(n_sequences, n_sites, 24, generator=rng, device=device)
        node = (node - node.mean(dim=1, keepdim=True)).requires_grad_()
        transition = torch.randn(24, 24, generator=rng, device=device).requires_grad_()
        duration = torch.randn(longest, 24, generator=rng, device=device).requires_grad_()
        parts = (node, transition, duration)
        ours, row = _timed_on_gpu(_our_log_z, parts)
        found: dict[str, Any] = {"mssvm": row}
        expected = pace.get(longest, 0.0) * n_sites
        if expected > SECONDS_OF_A_PEER:
            found["flash-semicrf"] = f"not run: by the row before it would take {expected:.0f} s"
        else:
            theirs, peer = _timed_on_gpu(_flash_log_z, parts)
            pace[longest] = peer["seconds"] / n_sites
            found["flash-semicrf"] = peer
            found["relative differences of value and gradients"] = [
                float((a - b).abs().max() / b.abs().max()) for a, b in zip(ours, theirs, strict=True)
            ]
            found["ratio"] = peer["seconds"] / row["seconds"]
        result["rows"][f"{n_sequences} x T {n_sites}, K {longest}"] = found
        console.print(n_sequences, n_sites, longest, found)
        if device == "cuda":
            write("segments_gpu", result)


def _our_log_z(node: Any, transition: Any, duration: Any) -> Any:
    import mssvm.torch

    layer = _LAYERS.setdefault(
        len(duration), mssvm.torch.StructuredLoss(ms.Segments(max_length=len(duration), repeat=True, ends=True))
    )
    begin = transition.logsumexp(dim=0)
    return layer.log_partition({"node": node, "transition": transition, "duration": duration, "begin": begin})


_LAYERS: dict[int, Any] = {}


def _flash_log_z(node: Any, transition: Any, duration: Any) -> Any:
    import torch
    from flash_semicrf.streaming import semi_crf_streaming_forward

    summed = torch.nn.functional.pad(node.double().cumsum(dim=1), (0, 0, 1, 0))
    lengths = torch.full((len(node),), node.shape[1], device=node.device)
    return semi_crf_streaming_forward(summed, transition.double(), duration.double(), lengths, len(duration))


def _timed_on_gpu(log_z: Callable[..., Any], parts: Sequence[Any]) -> tuple[list[Any], dict[str, float]]:
    """Value and gradients; median seconds of a few runs after one, and the peak of memory above the input."""
    import torch

    def run() -> list[Any]:
        for part in parts:
            part.grad = None
        value = log_z(*parts).sum()
        value.backward()
        if parts[0].is_cuda:
            torch.cuda.synchronize()
        return [value.detach().double(), *(part.grad.double() for part in parts)]

    on_gpu = parts[0].is_cuda
    if on_gpu:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated() if on_gpu else 0
    with Clock() as first:
        found = run()
    peak = torch.cuda.max_memory_allocated() - before if on_gpu else 0
    seconds = []
    for _ in range(1 if first.wall > 5.0 else 5):
        with Clock() as clock:
            run()
        seconds.append(clock.wall)
    return found, {"seconds": float(np.median(seconds)), "first": first.wall, "peak, MB": peak / 1e6}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("scale", "gpu", "membrane", "fold", "score", "one"))
    parser.add_argument("rest", nargs="*", help="a folder for parts of a run; the file to score; or T K C")
    parser.add_argument("--models", nargs="*", default=list(MODELS))
    args = parser.parse_args()
    if args.what == "gpu":
        gpu()
    elif args.what == "scale":
        scale()
    elif args.what == "one":
        one(*map(int, args.rest))
    elif args.what == "score":
        score(Path(args.rest[0]), args.models)
    elif args.what == "fold":
        fold(int(args.rest[0]), args.models, Path(args.rest[1]))
    else:
        membrane(args.models, Path(*args.rest[:1] or ["build/membrane"]))


if __name__ == "__main__":
    main()
