"""Scores of a chain from the vectors of words: the groups of ``structures.pairwise``, by linear maps."""

from __future__ import annotations

import torch

from mssvm.structures import Chain
from mssvm.structures.chain import TRIGRAM

SPREAD = 0.1  # standard deviation of the initial tables: hidden states that start equal would stay equal


class Transitions(torch.nn.ParameterDict):
    """The tables of a chain by name."""

    def initialise(self) -> None:
        """Draw the tables at random around zero."""
        for table in self.values():
            torch.nn.init.normal_(table, std=SPREAD)


class ChainHead(torch.nn.Module):
    """Vectors (B, W, D) to the scores of all groups of a chain; ``transitions`` are tables without features."""

    def __init__(self, chain: Chain, size: int, n_classes: int) -> None:
        super().__init__()
        self.chain = chain
        self.node = torch.nn.Linear(size, n_classes)
        hidden = chain.hidden
        shapes: dict[str, tuple[int, ...]] = {}
        if not hidden or chain.direct:
            shapes["edge"] = (n_classes, n_classes)
        if chain.order == 2:
            shapes[TRIGRAM] = (n_classes, n_classes, n_classes)
        if chain.ends:
            shapes |= {"first": (n_classes,), "last": (n_classes,)}
        if hidden and chain.linked:
            self.hidden = torch.nn.Linear(size, hidden)
            shapes |= {"attach": (n_classes, hidden), "hidden_edge": (hidden, hidden)}
        elif hidden:
            self.left = torch.nn.Linear(size, hidden, bias=False)
            self.right = torch.nn.Linear(size, hidden, bias=False)
            shapes |= {"left": (n_classes, hidden), "right": (hidden, n_classes)}
        self.transitions = Transitions({name: torch.nn.Parameter(torch.empty(shape)) for name, shape in shapes.items()})

    def forward(self, words: torch.Tensor) -> dict[str, torch.Tensor]:
        scores = {"node": self.node(words)}
        for name, table in self.transitions.items():
            scores[name.replace("_", ".")] = table
        if self.chain.hidden and self.chain.linked:
            scores["hidden"] = self.hidden(words)
        elif self.chain.hidden:
            scores["between"] = self.left(words) + self.right(words).roll(-1, dims=1)
        return scores
