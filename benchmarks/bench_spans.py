"""Decoding BIO tags: span F1 of "map", "marginal" and "auto", and transitions that BIO does not have.

CoNLL-2000 (its training file) in two halves, the first to train on (some tags missing), the second to judge, each cut
to --sentences; features of words and parts of speech in context, as files get them.

Run: python benchmarks/bench_spans.py [--sentences 5000] [--members CRF HCRF MSSVM]
Writes spans.json.
"""

from __future__ import annotations

import argparse
from itertools import product
from typing import Any

import numpy as np
from common_data import Clock, data_dir, write
from rich.console import Console

import mssvm as ms
from mssvm.structures.tags import illegal_pairs

DECODERS = ("map", "marginal", "auto")


def illegal(labels: list[Any], classes: list[str]) -> int:
    """Transitions, starts and ends that BIO does not have."""
    forbidden = set(illegal_pairs("bio", classes))
    count = 0
    for tags in labels:
        padded = [None, *map(str, tags), None]
        count += sum(pair in forbidden for pair in zip(padded[:-1], padded[1:], strict=True))
    return count


def hidden_tags(y: list[Any], share: float) -> list[Any]:
    rng = np.random.default_rng(0)
    return [[None if rng.random() < share else tag for tag in tags] for tags in y]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sentences", type=int, default=5000)
    parser.add_argument("--members", nargs="*", default=("CRF", "HCRF", "MSSVM"))
    parser.add_argument("--missing", nargs="*", type=float, default=(0.0, 0.5))
    args = parser.parse_args()
    options = ms.data.Options(format="conll")
    data = ms.data.read(data_dir() / "conll2000" / "train.txt", options)
    half = len(data) // 2
    train = data.select(range(min(args.sentences, half)))
    test = data.select(range(half, half + min(args.sentences, half)))
    console = Console()
    rows = []
    for member, missing, forbidden in product(args.members, args.missing, (None, "bio")):
        if (member == "CRF") == (missing > 0.0) and member != "MSSVM":
            continue  # with every tag known HCRF is CRF, and with some missing CRF is HCRF
        model = getattr(ms, member)(ms.Chain(forbidden=forbidden), support="seen", random_state=0)
        with Clock() as clock:
            model.fit(train.X, hidden_tags(train.labels, missing))
        row: dict[str, Any] = {"member": member, "missing": missing, "forbidden": forbidden, "seconds": clock.cpu}
        for decode in DECODERS:
            labels = model.predict(test.X, decode=decode)
            row[decode] = {
                "span_f1": ms.metrics.span_f1(test.labels, labels),
                "illegal": illegal(labels, model.classes_.tolist()),
            }
        rows.append(row)
        found = " ".join(f"{d} {100 * row[d]['span_f1']:.2f} ({row[d]['illegal']})" for d in DECODERS)
        console.print(member, missing, forbidden, found, f"{clock.cpu:.0f} s")
    write("spans", {"settings": vars(args), "rows": rows})


if __name__ == "__main__":
    main()
