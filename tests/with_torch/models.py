"""Random scores and labels of every structure, for the tests that need PyTorch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

import mssvm as ms

K, H = 3, 2
PAIRS = [(y, h) for y in (0.0, 0.5, 1.0) for h in (0.0, 0.5, 1.0)]


@dataclass
class Model:
    """A structure with scores by group, what says how they are laid out, and labels."""

    structure: Any
    scores: dict[str, Any]
    y: Any
    shape: dict[str, Any] = field(default_factory=dict)

    @property
    def tensors(self) -> tuple[torch.Tensor, ...]:
        return tuple(t for v in self.scores.values() for t in (v if isinstance(v, list) else [v]))

    def with_tensors(self, tensors: tuple[torch.Tensor, ...]) -> dict[str, Any]:
        left = list(tensors)
        return {n: [left.pop(0) for _ in v] if isinstance(v, list) else left.pop(0) for n, v in self.scores.items()}


def scores(*shape: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(shape) + 31 * len(shape) + seed)
    return torch.randn(*shape, dtype=torch.float64, generator=generator).requires_grad_()


def labels(*shape: int, missing: float = 0.3) -> torch.Tensor:
    generator = torch.Generator().manual_seed(len(shape))
    y = torch.randint(0, K, shape, generator=generator)
    return torch.where(torch.rand(shape, generator=generator) < missing, -100, y)


def candidates(*shape: int) -> torch.Tensor:
    """Sets of candidates, single labels, and rows without any: missing."""
    y = labels(*shape)
    mask = torch.nn.functional.one_hot(y.clamp(min=0), K).bool() & (y >= 0)[..., None]
    mask[0, ..., 0] |= y[0] >= 0
    return mask


RING = torch.tensor([[0, 1], [1, 2], [2, 3], [3, 0]])
TREE = torch.tensor([[1, 0], [1, 2], [3, 1]])
PADDED = {"lengths": torch.tensor([4, 2])}
MODELS: dict[str, Any] = {
    "padded chains": lambda: Model(ms.Chain(), {"node": scores(2, 4, K), "edge": scores(K, K)}, labels(2, 4), PADDED),
    "ragged chains, a table each": lambda: Model(
        ms.Chain(),
        {"node": [scores(3, K), scores(1, K)], "edge": [scores(2, K, K), scores(0, K, K)]},
        [labels(3), labels(1)],
    ),
    "chains with ends and candidates": lambda: Model(
        ms.Chain(ends=True, forbidden=[(0, 1), (None, 2)]),
        {"node": scores(2, 3, K), "edge": scores(K, K), "first": scores(K), "last": scores(2, 1, K)},
        torch.tensor([[0, 2, -100], [1, 1, 0]]),
    ),
    "chains of second order": lambda: Model(
        ms.Chain(order=2, forbidden=[(0, 1)]),
        {"node": scores(2, 4, K), "edge": scores(K, K), "trigram": scores(K, K, K)},
        torch.tensor([[0, 2, -100, 1], [1, -100, 0, 0]]),
        PADDED,
    ),
    "chains of second order, a table each": lambda: Model(
        ms.Chain(order=2),
        {"node": [scores(4, K)], "edge": scores(K, K), "trigram": [scores(2, K, K, K)]},
        [labels(4)],
    ),
    "chains with hidden between": lambda: Model(
        ms.Chain(hidden=H),
        {"node": scores(2, 3, K), "left": scores(K, H), "right": scores(H, K), "between": scores(2, 2, H)},
        candidates(2, 3),
        {"lengths": [3, 2]},
    ),
    "chains over hidden chains": lambda: Model(
        ms.Chain(hidden=H, linked=True),
        {"node": scores(2, 3, K), "attach": scores(2, 3, K, H), "hidden": scores(2, 3, H), "hidden.edge": scores(H, H)},
        labels(2, 3),
    ),
    "trees": lambda: Model(
        ms.GraphModel(),
        {"node": [scores(4, K), scores(4, K, seed=1)], "edge": scores(K, K)},
        [labels(4), labels(4)],
        {"graphs": [TREE, TREE[:2]]},
    ),
    "graphs, a table each": lambda: Model(
        ms.GraphModel(),
        {"node": scores(2, 4, K), "edge": scores(8, K, K)},
        candidates(2, 4),
        {"graphs": [RING, RING]},
    ),
    "grids": lambda: Model(
        ms.Grid(),
        {"node": scores(2, 2, 3, K), "edge:right": scores(K, K), "edge:down": scores(2, 1, 3, K, K)},
        labels(2, 2, 3),
        {"lengths": [[2, 3], [1, 2]]},
    ),
    "grids, one table": lambda: Model(
        ms.Grid(neighbours=8),
        {"node": [scores(2, 2, K)], "edge": scores(K, K)},
        [candidates(2, 2)],
    ),
    "sequences": lambda: Model(
        ms.SequenceLabel(hidden=H),
        {"label": scores(2, K), "label_state": scores(2, 3, K, H), "transition": scores(K, H, H)},
        torch.tensor([1, 2]),
        {"lengths": [3, 2]},
    ),
}
