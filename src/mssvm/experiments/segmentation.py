"""Weakly labelled images (paper section 7.2): a fixed picture of labels under Gaussian noise, some labels missing.

x = label + N(0, variance), labels 1 to 5 on 20 x 40 pixels; features e_y (x) (x, 1) and a 5 x 5 table tied over edges.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from mssvm.core.arrays import Bools, Floats, Ints
from mssvm.core.potentials import Query
from mssvm.core.terms import node_term, table_term
from mssvm.core.topology import Batch, Topology
from mssvm.models.layout import WeightLayout
from mssvm.models.linear import LinearInputs, LinearModel
from mssvm.objectives.sample import Sample

ROWS, COLUMNS, N_LABELS = 20, 40, 5


def truth(name: str) -> Ints:
    """The picture, labels 0 to 4: ``blocks`` is four quarters and an ellipse, ``coins`` stripes and small discs."""
    r, c = np.indices((ROWS, COLUMNS))
    if name == "blocks":
        quarter = np.where(r < 10, np.where(c < 20, 0, 4), np.where(c < 20, 3, 1))
        return np.where(((r - 9.5) / 6.5) ** 2 + ((c - 19.5) / 9.5) ** 2 < 1, 2, quarter).astype(np.int64)
    stripes = np.where((r + c) // 5 % 2 == 0, 0, 1)
    for k, (row, column) in enumerate([(4, 6), (5, 20), (4, 33), (14, 12), (15, 27), (14, 38)]):
        stripes = np.where((r - row) ** 2 + (c - column) ** 2 < 13, 2 + k % 3, stripes)
    return np.asarray(stripes, dtype=np.int64)


@lru_cache
def grid_graph(n_rows: int = ROWS, n_columns: int = COLUMNS, n_labels: int = N_LABELS) -> Topology:
    """Sites numbered by rows, joined to their neighbours right and below."""
    at = np.arange(n_rows * n_columns).reshape(n_rows, n_columns)
    pairs = [(at[:, :-1], at[:, 1:]), (at[:-1], at[1:])]
    edges = [(int(a), int(b)) for one, two in pairs for a, b in zip(one.ravel(), two.ravel(), strict=True)]
    return Topology((n_labels,) * at.size, tuple(edges))


def layout() -> WeightLayout:
    return WeightLayout.of({"pixel": (2, N_LABELS), "edge": (1, N_LABELS**2)})


@dataclass(frozen=True, eq=False)
class Images:
    """Noisy copies of one picture; ``hidden`` marks pixels whose label is missing."""

    labels: Ints
    x: Floats
    hidden: Bools

    @classmethod
    def draw(cls, labels: Ints, n: int, variance: float, share: float, rng: np.random.Generator) -> Images:
        """``n`` images; in each, exactly the given share of the pixels, chosen at random, is hidden."""
        x = labels.ravel() + 1.0 + np.sqrt(variance) * rng.standard_normal((n, labels.size))
        rank = rng.random((n, labels.size)).argsort(axis=1).argsort(axis=1)
        return cls(labels, x, rank < round(share * labels.size))

    def sample(self, all_outputs: bool = False) -> Sample:
        """Observed pixels are outputs and missing ones hidden; or every pixel is an output."""
        n, groups = len(self.x), layout()
        graph = grid_graph()
        batch = Batch.build([graph] * n, [np.zeros(graph.n_factors, dtype=np.int64)] * n)
        features = np.stack([self.x.ravel(), np.ones(self.x.size)], axis=1)
        terms = (node_term(batch, features, groups["pixel"].start), table_term(batch, None, groups["edge"].start))
        output = np.ones(batch.n_vars, dtype=bool) if all_outputs else ~self.hidden.ravel()
        right = np.arange(N_LABELS) == np.tile(self.labels.ravel(), n)[:, None]
        admitted = right | ~output[:, None]
        return Sample.of(LinearInputs(batch, terms), Query.of(batch, output), admitted.ravel())


def model() -> LinearModel:
    return LinearModel.named(layout())
