"""The files of the demonstration: chunking sentences, weakly labelled pictures, and the paper's hidden chain."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mssvm.core.topology import Topology
from mssvm.data.embedded import weak_pictures, write_chunking, write_pictures
from mssvm.experiments.simulate import Recipe, Truth


@dataclass(frozen=True)
class Files:
    """Where the files are."""

    chunks: Path
    chunks_test: Path
    pictures: Path
    chain: Path


def write_files(folder: Path, seed: int = 0) -> Files:
    """All of them, made anew. Pictures are small, so that inference on them is exact."""
    train, test = write_chunking(folder)
    pictures = write_pictures(folder / "pictures", weak_pictures(9, 6, 14, share=0.15, noise=45.0, seed=seed))
    return Files(train, test, pictures, write_chain(folder / "hidden-chain.jsonl", 60, seed))


def write_chain(path: Path, n: int, seed: int = 0, n_sites: int = 20) -> Path:
    """``n`` chains y h y h ... (paper section 7.1) as graphs in JSON lines, their hidden sites marked as such.

    Every site has a type of its own, for in the generating model no two sites share weights.
    """
    rng = np.random.default_rng([seed, 0])
    recipe = Recipe()
    edges = [(t, t + 1) for t in range(n_sites - 1)]
    output = np.arange(n_sites) % 2 == 0
    graph = Topology((recipe.n_states,) * n_sites, tuple(edges))
    x, states = Truth.draw(graph, output, recipe, rng).sample(n, rng)
    kinds = [f"{t:02d}" for t in range(n_sites)]
    with path.open("w", encoding="utf-8") as file:
        for inputs, labels in zip(x.tolist(), states.tolist(), strict=True):
            record = {
                "nodes": [[float(v == k) for k in range(recipe.n_states)] for v in inputs],
                "edges": edges,
                "node_types": kinds,
                "edge_types": kinds[1:],
                "hidden": (~output).tolist(),
                "y": [label if seen else None for label, seen in zip(labels, output.tolist(), strict=True)],
            }
            file.write(json.dumps(record) + "\n")
    return path
