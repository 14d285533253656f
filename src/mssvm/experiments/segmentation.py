"""Weakly labelled images (paper section 7.2): a fixed picture of labels under Gaussian noise, some labels missing.

x = label + N(0, variance), labels 1 to 5 on 20 x 40 pixels. The learner is a ``GraphModel`` with one type of edge, to
the right and down: weights of x and a bias for every label, and one 5 x 5 table.
"""

from __future__ import annotations

import numpy as np
from scipy.ndimage import gaussian_filter

from mssvm.core.arrays import Ints
from mssvm.data.graphs import Graph
from mssvm.experiments.simulate import PartlyLabelled, grid_edges

ROWS = 20
COLUMNS = 40
N_LABELS = 5
N_WEIGHTS = 2 * N_LABELS + N_LABELS**2
WIDTHS = (0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 4.0)  # standard deviations of the Gaussian filter, in pixels


def picture(name: str) -> Ints:
    """The true labels, 0 to 4: ``blocks`` is four quarters and an ellipse, ``coins`` stripes and small discs."""
    r, c = np.indices((ROWS, COLUMNS))
    if name == "blocks":
        quarter = np.where(r < 10, np.where(c < 20, 0, 4), np.where(c < 20, 3, 1))
        return np.where(((r - 9.5) / 6.5) ** 2 + ((c - 19.5) / 9.5) ** 2 < 1, 2, quarter).astype(np.int64)
    stripes = np.where((r + c) // 5 % 2 == 0, 0, 1)
    for k, (row, column) in enumerate([(4, 6), (5, 20), (4, 33), (14, 12), (15, 27), (14, 38)]):
        stripes = np.where((r - row) ** 2 + (c - column) ** 2 < 13, 2 + k % 3, stripes)
    return np.asarray(stripes, dtype=np.int64)


def noisy_images(labels: Ints, n: int, variance: float, share: float, rng: np.random.Generator) -> PartlyLabelled:
    """``n`` noisy copies; in each, exactly the given share of the pixels, chosen at random, has no label."""
    x = labels.ravel() + 1.0 + np.sqrt(variance) * rng.standard_normal((n, labels.size))
    rank = rng.random((n, labels.size)).argsort(axis=1).argsort(axis=1)
    edges = np.array(grid_edges(*labels.shape))
    graphs = [Graph(pixels[:, None], edges) for pixels in x]
    return PartlyLabelled(graphs, [labels.ravel()] * n, list(rank < round(share * labels.size)))


def filtered_accuracy(validation: PartlyLabelled, test: PartlyLabelled) -> dict[str, float]:
    """A baseline without learning: a Gaussian filter, its width chosen on the validation images, then the nearest
    label. Accuracy (%) on the test pixels that have labels, and on ``all``."""
    width = max(WIDTHS, key=lambda w: _agreement(validation, w))
    return {"accuracy": _agreement(test, width), "all": _agreement(test.revealed(), width)}


def _agreement(images: PartlyLabelled, width: float) -> float:
    smooth = [gaussian_filter(x.nodes.reshape(ROWS, COLUMNS), width).ravel() for x in images.X]
    nearest = np.clip(np.rint(np.concatenate(smooth) - 1.0), 0, N_LABELS - 1)
    return 100 * float(np.mean((nearest == np.concatenate(images.states))[~np.concatenate(images.hidden)]))
