"""Pictures of which 10 to 25% of the pixels are labelled by scribbles: a small convolutional network with a grid MSSVM
on top, against the same network with cross-entropy on the labelled pixels.

Both see the same pictures and scribbles in the same order for equally many steps; five seeds, paired differences.

Run: make install, then .venv-torch/bin/python examples/scribbles.py (after make test-torch), or with any Python that
has PyTorch and this package.
"""

from __future__ import annotations

import numpy as np
import torch
from paired import options, table

import mssvm as ms
from mssvm.torch import StructuredLoss

K = 4
SIZE = 16
TRAIN = 48
TEST = 100
BATCH = 8


def pictures(rng: np.random.Generator, n: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Patches of nearest centres, one class each, seen in three channels through much noise."""
    at = np.stack(np.meshgrid(np.arange(SIZE), np.arange(SIZE), indexing="ij"), -1)
    centres, classes = rng.uniform(0, SIZE, (n, 7, 2)), rng.integers(0, K, (n, 7))
    nearest = ((at[None, :, :, None] - centres[:, None, None]) ** 2).sum(-1).argmin(-1)
    y = np.take_along_axis(classes, nearest.reshape(n, -1), 1).reshape(nearest.shape)
    colours = np.array([[1, 0, 0], [0, 1, 0], [0, 0, 1], [0.6, 0.6, 0]])
    x = colours[y] + rng.normal(size=(*y.shape, 3))
    return torch.tensor(x, dtype=torch.float32).permute(0, 3, 1, 2), torch.tensor(y)


def scribbled(rng: np.random.Generator, y: torch.Tensor) -> torch.Tensor:
    """Labels along short random walks; -100 elsewhere."""
    out = torch.full_like(y, -100)
    for b in range(len(y)):
        want = rng.uniform(0.10, 0.25) * SIZE * SIZE
        while (out[b] >= 0).sum() < want:
            i, j = rng.integers(0, SIZE, 2)
            for _ in range(12):
                out[b, i, j] = y[b, i, j]
                step = rng.integers(-1, 2, 2)
                i, j = np.clip([i + step[0], j + step[1]], 0, SIZE - 1)
    return out


def network() -> torch.nn.Module:
    conv, relu = torch.nn.Conv2d, torch.nn.ReLU
    return torch.nn.Sequential(conv(3, 12, 3, padding=1), relu(), conv(12, 12, 3, padding=1), relu(), conv(12, K, 1))


def accuracy(seed: int, structured: bool, steps: int) -> float:
    """Share of right pixels on new pictures."""
    rng = np.random.default_rng(seed)
    x, y = pictures(rng, TRAIN)
    weak = scribbled(rng, y)
    x_test, y_test = pictures(rng, TEST)
    torch.manual_seed(seed)
    net, edge = network(), torch.nn.Parameter(torch.zeros(K, K))
    loss = StructuredLoss(ms.Grid(), eps_y=0.0, eps_h=1.0)
    solver = torch.optim.Adam([*net.parameters(), edge], lr=0.01)
    for _ in range(steps):
        chosen = torch.tensor(rng.choice(TRAIN, BATCH, replace=False))
        scores = net(x[chosen])
        if structured:
            value = loss({"node": scores.permute(0, 2, 3, 1), "edge": edge}, weak[chosen]) / (SIZE * SIZE)
        else:
            value = torch.nn.functional.cross_entropy(scores, weak[chosen])
        solver.zero_grad()
        value.backward()
        solver.step()
    with torch.no_grad():
        scores = net(x_test)
        given = {"node": scores.permute(0, 2, 3, 1), "edge": edge}
        found = loss.decode(given) if structured else scores.argmax(1)
    return 100.0 * float((found == y_test).double().mean())


def main() -> None:
    given = options(__doc__)
    torch.set_num_threads(1)
    methods = {"network + grid MSSVM": True, "network, cross-entropy": False}
    found = {name: [accuracy(s, on, given.steps) for s in range(given.seeds)] for name, on in methods.items()}
    print(table("pixels right, %", found))


if __name__ == "__main__":
    main()
