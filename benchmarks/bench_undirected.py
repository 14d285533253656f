"""Undirected and directed edges on random geometric graphs of which a fifth of the nodes is labelled.

300 points of the unit square, an edge between points nearer than 0.1, four regions (those of the nearest of eight
random centres) as labels, and features that show the label only weakly. A model learns from 20% of the labels of one
graph and is judged on the other nodes, as logistic regression on the same features is. The ends of an edge are listed
in random order.

Run: python benchmarks/bench_undirected.py [--seeds 20] [--members HCRF MSSVM] [--inferences auto propagate]
Propagation takes a minute or more a seed.
Writes undirected.json: accuracies by seed, and whether a warning was given.
"""

from __future__ import annotations

import argparse
import warnings
from itertools import product
from typing import Any

import numpy as np
from common_data import Clock, write
from rich.console import Console
from scipy.spatial import cKDTree
from sklearn.linear_model import LogisticRegression

import mssvm as ms

N_NODES = 300
RADIUS = 0.1
N_CENTRES = 8
N_CLASSES = 4
NOISE = 0.9
LABELLED = 0.2
INFERENCES = {"auto": "auto", "propagate": ms.inference.Auto(effort="fast", wide="propagate")}


def geometric(seed: int) -> tuple[ms.Graph, np.ndarray, np.ndarray]:
    """A graph, the labels of its nodes, and which of them are given."""
    rng = np.random.default_rng([2026, seed])
    points = rng.random((N_NODES, 2))
    edges = cKDTree(points).query_pairs(RADIUS, output_type="ndarray").astype(np.int64)
    edges = rng.permuted(edges, axis=1)
    centres = rng.random((N_CENTRES, 2))
    labels = cKDTree(centres).query(points)[1] % N_CLASSES
    features = np.eye(N_CLASSES)[labels] + NOISE * rng.normal(size=(N_NODES, N_CLASSES))
    given = rng.random(N_NODES) < LABELLED
    return ms.Graph(features, edges), labels, given


def fitted(member: str, directed: bool, inference: str, graph: ms.Graph, y: list[Any]) -> tuple[Any, list[str]]:
    """The model, and the warnings of its training."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        structure = ms.GraphModel(directed=directed)
        model = getattr(ms, member)(structure, inference=INFERENCES[inference], random_state=0)
        model.fit([graph], [y])
    return model, sorted({str(warning.message).split(";")[0] for warning in caught})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--members", nargs="*", default=("HCRF", "MSSVM"))
    parser.add_argument("--inferences", nargs="*", choices=INFERENCES, default=["auto"])
    args = parser.parse_args()
    console = Console()
    rows = []
    for seed in range(args.seeds):
        graph, labels, given = geometric(seed)
        y = [int(label) if known else ms.MISSING for label, known in zip(labels, given, strict=True)]
        row: dict[str, Any] = {"seed": seed}
        alone = LogisticRegression(max_iter=1000).fit(graph.nodes[given], labels[given])
        row["logistic"] = float(alone.score(graph.nodes[~given], labels[~given]))
        for member, inference, directed in product(args.members, args.inferences, (False, True)):
            with Clock() as clock:
                model, said = fitted(member, directed, inference, graph, y)
            right = np.asarray(model.predict([graph])[0]) == labels
            row[f"{member} {inference} {'directed' if directed else 'undirected'}"] = {
                "accuracy": float(right[~given].mean()),
                "on_given": float(right[given].mean()),
                "seconds": clock.cpu,
                "warnings": said,
            }
        rows.append(row)
        console.print(seed, f"logistic {row['logistic']:.3f}")
        for name, found in row.items():
            if isinstance(found, dict):
                console.print(f"    {name} {found['accuracy']:.3f} {' '.join(found['warnings'])}")
    write("undirected", {"settings": vars(args), "rows": rows})


if __name__ == "__main__":
    main()
