"""What the defaults of training rest on: where L-BFGS stops cooling, chosen on one half of the letters.

Choosing: handwritten words of folds 0 and 1 train, fold 2 tests, one mask a level; every margin member is followed down
to a low temperature and scored where each stage ends, at several C. Reporting: every member as its defaults are, folds
0 to 3 train, fold 4 tests, other masks; C is the one that does best on fold 3 when trained on folds 0 to 2. Seconds are
processor time. Two shared cores: one mask to choose, few to report. Longer: by how much ten times the iterations, at a
tolerance of 1e-12, lower the objective of a training that said "converged", on the dense chains of bench.py.

Run: python benchmarks/bench_defaults.py [--masks 2] [--levels 50 90] [--resume]
"""

from __future__ import annotations

import argparse
import itertools
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from bench_letters import masked, take, words
from common_data import Clock, read_result, write
from ours import blanked
from rich.console import Console
from rich.table import Table
from sklearn.exceptions import ConvergenceWarning
from workloads import dense_chains

import mssvm as ms
from mssvm.optim import LBFGS, Row

CHOOSING_SEED = 100
COSTS = {
    "HCRF": (0.3, 1.0),
    "LSSVM": (0.1, 0.3),
    "MSSVM": (0.1, 0.3),
}  # the best of bench_letters.py and another
FOLLOWED = (1.0, 0.5, 0.25, 1 / 16)


def member(name: str, C: float, **settings: Any) -> Any:
    return getattr(ms, name)(C=C, classes=range(26), missing_label=-1, random_state=0, **settings)


def accuracy(model: Any, X: list[Any], y: list[Any]) -> float:
    return 100 * float(np.concatenate([a == b for a, b in zip(model.predict(X), y, strict=True)]).mean())


def followed(name: str, C: float, train: tuple[Any, Any], test: tuple[Any, Any]) -> list[dict[str, float]]:
    """Objective and accuracy where every stage ends."""
    model = member(name, C, solver=LBFGS(schedule=FOLLOWED))
    target = (model.eps_y, model.eps_h)
    ends = []
    last = [0.0]

    def note(row: Row, w: np.ndarray) -> None:
        if (row.eps_y, row.eps_h) == target:
            ends.append((last[0], row, w))
        last[0] = row.eps_y

    model.fit(*train, callback=note)
    out = []
    for temperature, row, w in ends[1:] if name != "HCRF" else ends[-1:]:
        model.coef_ = w
        found = {"temperature": temperature, "objective": row.objective, "iterations": row.iteration}
        out.append(found | {"accuracy": accuracy(model, *test)})
    return out


def reported(name: str, C: float, train: tuple[Any, Any], test: tuple[Any, Any]) -> dict[str, Any]:
    model = member(name, C)
    with Clock() as clock:
        model.fit(*train)
    return {
        "C": C,
        "accuracy": accuracy(model, *test),
        "seconds": clock.cpu,
        "iterations": model.n_iter_,
        "outcome": model.training_["outcome"],
        "objective": model.objective_,
    }


def longer() -> dict[str, Any]:
    """Objectives by default and after ten times the iterations."""
    x, y, seen = dense_chains(n=100)
    X = list(x)
    labels = blanked(y, seen)
    out = {}
    for name, solver in itertools.product(("HCRF", "MSSVM", "LSSVM", "CRF", "SSVM"), ("auto", "lbfgs")):
        structure = ms.Chain(hidden=0 if name in ("CRF", "SSVM") else 2)
        model = getattr(ms, name)(structure, solver=solver, random_state=0, warm_start=True).fit(X, labels)
        found = {"iterations": model.n_iter_, "outcome": model.training_["outcome"], "objective": model.objective_}
        model.set_params(tol=1e-12, max_iter=10 * model.n_iter_).fit(X, labels)
        out[f"{name} {solver}"] = found | {"longer": model.objective_, "more": model.n_iter_}
        print(name, solver, out[f"{name} {solver}"], found["objective"] / model.objective_, flush=True)
    return out


def show(result: dict[str, Any], console: Console) -> None:
    choosing = Table("missing %, member, C", *(f"T = {t:g}" for t in FOLLOWED), title="choosing half, accuracy")
    for key, rows in result["choosing"].items():
        by = {row["temperature"]: f"{row['accuracy']:.2f}" for row in rows}
        choosing.add_row(key, *(by.get(t, "") for t in FOLLOWED))
    reporting = Table("missing %, mask, member", "C", "accuracy", "s", "iterations", "outcome", title="reporting half")
    for key, row in result["reporting"].items():
        figures = (f"{row['C']:g}", f"{row['accuracy']:.2f}", f"{row['seconds']:.1f}", str(row["iterations"]))
        reporting.add_row(key, *figures, row["outcome"])
    console.print(choosing, reporting)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--levels", type=int, nargs="*", default=(90, 50))
    parser.add_argument("--masks", type=int, default=2, help="masks a level to report")
    parser.add_argument("--parts", nargs="*", default=("choosing", "reporting", "longer"))
    parser.add_argument("--resume", action="store_true", help="keep what is there")
    args = parser.parse_args()
    warnings.simplefilter("ignore", ConvergenceWarning)
    if "longer" in args.parts:
        write("defaults_longer", longer())
    X, y, folds = words()
    result = read_result("defaults") if args.resume else {}
    parts = {name: result.setdefault(name, {}) for name in ("choosing", "costs", "reporting")}

    def half(train: int, test: int, level: int, seed: int) -> tuple[Any, Any]:
        seen = np.flatnonzero(folds < train)
        out = np.flatnonzero(folds == test)
        return (take(X, seen), take(masked(y, level, seed), seen)), (take(X, out), take(y, out))

    def keep(part: str, key: str, work: Callable[..., Any], *given: Any) -> None:
        if key not in parts[part]:
            parts[part][key] = work(*given)
            write("defaults", result)

    for level, (name, costs) in itertools.product(args.levels, COSTS.items()):
        for C in costs:
            if "choosing" in args.parts:
                keep("choosing", f"{level} {name} {C:g}", followed, name, C, *half(2, 2, level, CHOOSING_SEED))
            if "reporting" in args.parts:
                keep("costs", f"{level} {name} {C:g}", reported, name, C, *half(3, 3, level, CHOOSING_SEED))
        for seed in range(args.masks) if "reporting" in args.parts else ():
            best = max(costs, key=lambda C: parts["costs"][f"{level} {name} {C:g}"]["accuracy"])
            keep("reporting", f"{level} {seed} {name}", reported, name, best, *half(4, 4, level, seed))
    show(result, Console())


if __name__ == "__main__":
    main()
