"""CoNLL-2000 chunks with 50 and 90% of the tags missing: a BiLSTM with a hidden chain on top, against the same network
with cross-entropy on the tags that are there, and with a CRF on the runs of labelled words.

All see the same sentences, missing tags and order for equally many steps; five seeds, paired differences. The sentences
are those of ``MSSVM_DATA``/conll2000/train.txt, or the few that come with the package.
"""

from __future__ import annotations

import os
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import torch
from paired import options, table

import mssvm as ms
from mssvm.data.embedded import chunking
from mssvm.torch import StructuredLoss

TRAIN = 1000
TEST = 400
BATCH = 16
WIDTH = 48
HIDDEN = 2
Sentence = list[tuple[str, str, str]]


def sentences() -> list[Sentence]:
    """Word, part of speech and chunk tag of every word."""
    path = Path(os.environ.get("MSSVM_DATA", "")) / "conll2000" / "train.txt"
    if path.is_file():
        blocks = path.read_text().strip().split("\n\n")
        return [[tuple(line.split()) for line in block.splitlines()] for block in blocks]  # type: ignore[misc]
    found = []
    for part in ("train", "test"):
        data = chunking(part)
        found += [
            [(str(sorted(w)[0]), "", str(t)) for w, t in zip(x, y, strict=True)]
            for x, y in zip(data.X, data.y, strict=True)
        ]
    return found


class Tagger(torch.nn.Module):
    """Scores of tags and of hidden states from words and parts of speech."""

    def __init__(self, n_words: int, n_pos: int, n_tags: int) -> None:
        super().__init__()
        self.word, self.pos = torch.nn.Embedding(n_words, WIDTH), torch.nn.Embedding(n_pos, 16)
        self.lstm = torch.nn.LSTM(WIDTH + 16, WIDTH, batch_first=True, bidirectional=True)
        self.node, self.between = torch.nn.Linear(2 * WIDTH, n_tags), torch.nn.Linear(4 * WIDTH, HIDDEN)
        self.edge = torch.nn.Parameter(torch.zeros(n_tags, n_tags))
        self.left = torch.nn.Parameter(0.5 * torch.randn(n_tags, HIDDEN))
        self.right = torch.nn.Parameter(0.5 * torch.randn(HIDDEN, n_tags))

    def forward(self, words: torch.Tensor, pos: torch.Tensor, lengths: torch.Tensor) -> dict[str, torch.Tensor]:
        x = torch.cat([self.word(words), self.pos(pos)], -1)
        packed = torch.nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        h, _ = torch.nn.utils.rnn.pad_packed_sequence(self.lstm(packed)[0], batch_first=True)
        pairs = torch.cat([h[:, :-1], h[:, 1:]], -1)
        return {
            "node": self.node(h),
            "edge": self.edge,
            "left": self.left,
            "right": self.right,
            "between": self.between(pairs),
        }


class Data:
    """Sentences as padded tensors."""

    def __init__(self, text: list[Sentence]) -> None:
        self.codes = [{v: k + 1 for k, v in enumerate(sorted({w[c] for s in text[:TRAIN] for w in s}))} for c in (0, 1)]
        tags = sorted({w[2] for s in text for w in s})
        self.n_tags, number = len(tags), {t: k for k, t in enumerate(tags)}
        self.words, self.pos = ([torch.tensor([self.codes[c].get(w[c], 0) for w in s]) for s in text] for c in (0, 1))
        self.tags = [torch.tensor([number[w[2]] for w in s]) for s in text]

    def batch(self, ids: Any) -> tuple[torch.Tensor, ...]:
        pad = torch.nn.utils.rnn.pad_sequence
        words, pos = (pad([part[i] for i in ids], batch_first=True) for part in (self.words, self.pos))
        return words, pos, torch.tensor([len(self.tags[i]) for i in ids])


def runs(scores: dict[str, torch.Tensor], y: torch.Tensor) -> tuple[dict[str, Any], list[torch.Tensor]]:
    """The labelled runs of every sentence as sequences of their own."""
    nodes, tags = [], []
    for row, labels in zip(scores["node"], y, strict=True):
        for known, part in groupby(range(len(labels)), lambda t, labels=labels: bool(labels[t] >= 0)):
            at = list(part)
            if known:
                nodes.append(row[at])
                tags.append(labels[at])
    return {"node": nodes, "edge": scores["edge"]}, tags


def accuracy(data: Data, seed: int, method: str, missing: float, steps: int) -> float:
    """Share of right tags on new sentences."""
    rng = np.random.default_rng(seed)
    order = rng.permutation(TRAIN)
    seen = [torch.where(torch.tensor(rng.random(len(t)) < missing), -100, t) for t in data.tags]
    torch.manual_seed(seed)
    net = Tagger(len(data.codes[0]) + 1, len(data.codes[1]) + 1, data.n_tags)
    hidden = StructuredLoss(ms.Chain(hidden=HIDDEN, direct=True), eps_y=1.0, eps_h=1.0, loss="zero")
    crf = StructuredLoss(ms.Chain(), eps_y=1.0, eps_h=1.0, loss="zero", reduction="sum")
    solver = torch.optim.Adam(net.parameters(), lr=0.01)
    for step in range(steps):
        ids = [int(order[(step * BATCH + k) % TRAIN]) for k in range(BATCH)]
        words, pos, lengths = data.batch(ids)
        y = torch.nn.utils.rnn.pad_sequence([seen[i] for i in ids], batch_first=True, padding_value=-100)
        scores = net(words, pos, lengths)
        if method == "hidden":
            value = hidden(scores, y, lengths=lengths)
        elif method == "runs":
            value = crf(*runs(scores, y)) / BATCH
        else:
            value = torch.nn.functional.cross_entropy(scores["node"].transpose(1, 2), y, reduction="sum") / BATCH
        solver.zero_grad()
        value.backward()
        solver.step()
    right = total = 0
    with torch.no_grad():
        ids = range(TRAIN, len(data.tags))
        words, pos, lengths = data.batch(ids)
        scores = net(words, pos, lengths)
        plain = {"node": scores["node"], "edge": scores["edge"]}
        if method == "masked":
            found = scores["node"].argmax(-1)
        else:
            found = hidden.decode(scores, lengths=lengths) if method == "hidden" else crf.decode(plain, lengths=lengths)
        for k, i in enumerate(ids):
            right += int((found[k, : lengths[k]] == data.tags[i]).sum())
            total += len(data.tags[i])
    return 100.0 * right / total


def main() -> None:
    given = options(__doc__)
    torch.set_num_threads(1)
    data = Data(sentences()[: TRAIN + TEST])
    methods = {
        "BiLSTM + hidden chain": "hidden",
        "BiLSTM, masked cross-entropy": "masked",
        "BiLSTM + CRF on labelled runs": "runs",
    }
    for missing in (0.5, 0.9):
        found = {
            name: [accuracy(data, seed, method, missing, given.steps) for seed in range(given.seeds)]
            for name, method in methods.items()
        }
        print(table(f"tags right, %, {missing:.0%} missing", found), flush=True)


if __name__ == "__main__":
    main()
