"""Snakes: pixels of small images whose labels follow from far away along the snake (150 images train, 50 test).

Every pixel sees the colours of its 3 x 3 neighbourhood, one-hot. "typed" has one table of transitions for each
direction; "features" also gives every edge the colours around both its ends. Solvers and iterations are the defaults;
--choosing trains on the first 100 images and tests on the next 50, which is where C and solver were chosen.

Run: python benchmarks/bench_snakes.py [--choosing] [--members SSVM] [--inputs features] [--inferences auto propagate]
The file, snakes_inference.json, is written anew by every run; snakes.json has the runs behind docs/defaults.md.
"""

from __future__ import annotations

import argparse
from itertools import product
from typing import Any

import numpy as np
from common_data import Clock, data_dir, write
from rich.console import Console

import mssvm as ms

SPLIT = (150, 200)
CHOOSING = (100, 150)


def images() -> tuple[list[Any], list[Any]]:
    """Colours (H, W) as numbers, and labels (H, W)."""
    data = np.load(data_dir() / "snakes" / "snakes_train.npz")
    shapes = data["X_shapes"].astype(int)
    ends = np.cumsum(shapes.prod(axis=1))[:-1]
    _, colours = np.unique(data["X"], axis=0, return_inverse=True)
    parts = (np.split(colours.ravel(), ends), np.split(data["Y"].astype(int), ends))
    X, y = ([v.reshape(shape) for v, shape in zip(part, shapes, strict=True)] for part in parts)
    return X, y


def windows(colours: np.ndarray, n_colours: int) -> np.ndarray:
    """(H, W, 9 * (n + 1)): one-hot colours of the 3 x 3 neighbourhood, with a colour of its own outside the image."""
    padded = np.pad(colours, 1, constant_values=n_colours)
    h, w = colours.shape
    parts = [np.eye(n_colours + 1)[padded[i : i + h, j : j + w]] for i in range(3) for j in range(3)]
    return np.concatenate(parts, axis=-1)


def with_edges(x: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Features of horizontal and vertical edges: those of both ends."""
    across = np.concatenate([x[:, :-1], x[:, 1:]], axis=-1)
    down = np.concatenate([x[:-1], x[1:]], axis=-1)
    return x, across, down


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--solver", default="auto")
    parser.add_argument("--inferences", nargs="*", default=("auto", "propagate"))
    parser.add_argument("--max-iter", type=int)
    parser.add_argument("--C", type=float, default=1.0)
    parser.add_argument("--choosing", action="store_true")
    parser.add_argument("--members", nargs="*", default=("CRF", "SSVM"))
    parser.add_argument("--inputs", nargs="*", default=("typed", "features"))
    args = parser.parse_args()
    colours, y = images()
    n_colours = max(int(c.max()) for c in colours) + 1
    plain = [windows(c, n_colours) for c in colours]
    inputs: dict[str, list[Any]] = {"typed": plain, "features": [with_edges(x) for x in plain]}
    console = Console()
    rows: list[dict[str, Any]] = []
    end, stop = CHOOSING if args.choosing else SPLIT
    for name in args.inputs:
        X = inputs[name]
        for member, inference in product(args.members, args.inferences):
            settings = {"C": args.C, "solver": args.solver, "max_iter": args.max_iter, "inference": inference}
            model = getattr(ms, member)(ms.Grid(), random_state=0, **settings)
            with Clock() as clock:
                model.fit(X[:end], y[:end])
            row = {
                "inputs": name,
                "member": member,
                **settings,
                "images": end,
                "test": model.score(X[end:stop], y[end:stop]),
                "seconds": clock.cpu,
                "message": model.training_["message"],
                "status": model.status_,
            }
            rows.append(row)
            console.print(row)
            write("snakes_inference", {"rows": rows})


if __name__ == "__main__":
    main()
