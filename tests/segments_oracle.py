"""Brute force over segmentations: every cut of a sequence, every label, every hidden path. The oracle of segments."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import numpy as np

from mssvm.core.potentials import Marginals, Potentials
from mssvm.core.power import power_sum
from mssvm.core.segments import SegmentLayout, SpanPotentials
from mssvm.core.topology import Batch, Topology

Segment = tuple[int, int, int]


def segment_batch(layout: SegmentLayout, lengths: list[int]) -> Batch:
    """Instances with the given numbers of sites; all share their tables."""
    graphs = []
    for n in lengths:
        members = layout.members(n)
        scopes = [tuple(int(members[name][0]) for name in scope) for scope in layout.tables.values()]
        graphs.append(Topology(layout.cards(n).tolist(), scopes))
    return Batch.build(graphs, [list(range(len(layout.tables)))] * len(lengths))


def segmentations(n: int, longest: int, labels: int) -> Iterator[list[Segment]]:
    """Every segmentation of n sites."""

    def cuts(at: int) -> Iterator[list[tuple[int, int]]]:
        if at == n:
            yield []
        for stop in range(at + 1, min(n, at + longest) + 1):
            for rest in cuts(stop):
                yield [(at, stop), *rest]

    for cut in cuts(0):
        for chosen in product(range(labels), repeat=len(cut)):
            yield [(a, b, c) for (a, b), c in zip(cut, chosen, strict=True)]


class Oracle:
    """Nested power sums of one instance by listing segmentations; entries of scores as positions in the batch."""

    def __init__(self, layout: SegmentLayout, batch: Batch, b: int) -> None:
        self.layout = layout
        self.batch = batch
        self.b = b
        self.n = int(layout.sites(batch)[b])
        self.at = {}
        for name, variables in layout.members(self.n).items():
            self.at[name] = batch.unary_ptr[batch.var_ptr[b] + variables]
        factors = range(batch.factor_ptr[b], batch.factor_ptr[b + 1])
        self.table = {name: int(batch.table_at[f]) for name, f in zip(layout.tables, factors, strict=True)}
        self.mu_table = {name: int(batch.mu_at[f]) for name, f in zip(layout.tables, factors, strict=True)}

    def entries(self, segments: list[Segment]) -> tuple[list[int], list[tuple[str, int]]]:
        """Entries of unary scores and of tables of a segmentation, without its hidden states."""
        layout = self.layout
        starts = {a for a, _, _ in segments}
        unary = [int(self.at["boundary"][t]) + (t in starts) for t in range(self.n)]
        tables = []
        for a, b, c in segments:
            unary += [int(self.at["label"][t]) + c for t in range(a, b)]
            tables.append(("duration", (b - a - 1) * layout.labels + c))
            if layout.borders:
                unary += [int(self.at["first"][a]) + c, int(self.at["last"][b - 1]) + c]
            if layout.wide:
                unary.append(int(self.at["segment"][a * layout.longest + b - a - 1]) + c)
        for (_, _, p), (_, _, c) in zip(segments, segments[1:], strict=False):
            tables.append(("transition", p * layout.labels + c))
        unary += [int(self.at["begin"][0]) + segments[0][2], int(self.at["end"][0]) + segments[-1][2]]
        return unary, tables

    def hidden(self, segments: list[Segment]) -> Iterator[tuple[list[int], list[tuple[str, int]]]]:
        """Entries of every assignment of hidden states."""
        layout = self.layout
        H = layout.hidden
        choices = []
        for a, b, c in segments:
            paths = []
            if H and layout.moving:
                for path in product(range(H), repeat=b - a):
                    unary = [int(self.at["hidden"][t]) + c * H + h for t, h in zip(range(a, b), path, strict=True)]
                    tables = [("attach", c * H + path[0])]
                    tables += [("move", (c * H + g) * H + h) for g, h in zip(path, path[1:], strict=False)]
                    paths.append((unary, tables))
            elif H:
                for h in range(H):
                    unary = [int(self.at["hidden"][t]) + c * H + h for t in range(a, b)]
                    paths.append((unary, [("attach", c * H + h)]))
            else:
                paths.append(([], []))
            choices.append(paths)
        for combination in product(*choices):
            unary = [entry for part, _ in combination for entry in part]
            tables = [entry for _, part in combination for entry in part]
            yield unary, tables

    def admitted(self, segments: list[Segment], allowed: np.ndarray) -> bool:
        unary, _ = self.entries(segments)
        masked = unary[: self.n]
        for a, b, c in segments:
            masked += [int(self.at["label"][t]) + c for t in range(a, b)]
        masked.remove(int(self.at["boundary"][0]) + 1)  # the first site begins a segment; whether it may is a mask, too
        return bool(allowed[masked].all() and allowed[int(self.at["boundary"][0]) + 1])

    def scores(
        self, theta: Potentials, allowed: np.ndarray
    ) -> list[tuple[list[Segment], list[tuple[float, list[int], list[tuple[str, int]]]]]]:
        """Every admitted segmentation with the score and the entries of every assignment of hidden states."""
        out = []
        for segments in segmentations(self.n, self.layout.longest, self.layout.labels):
            if not self.admitted(segments, allowed):
                continue
            unary, tables = self.entries(segments)
            bonus = 0.0
            if isinstance(theta, SpanPotentials):
                for k in range(len(theta.spans)):
                    span = (theta.spans.start[k], theta.spans.stop[k], theta.spans.label[k])
                    if theta.spans.instance[k] == self.b and span in segments:
                        bonus += theta.scores[k]
            rows = []
            for more_unary, more_tables in self.hidden(segments):
                every = [*unary, *more_unary]
                all_tables = [*tables, *more_tables]
                score = theta.unary[every].sum() + bonus
                score += sum(theta.tables[self.table[name] + at] for name, at in all_tables)
                rows.append((float(score), every, all_tables))
            out.append((segments, rows))
        return out

    def run(self, theta: Potentials, allowed: np.ndarray, eps_y: float, eps_h: float, mu: Marginals) -> float:
        """The value; marginals are added to ``mu``."""
        listed = self.scores(theta, allowed)
        if not listed:
            return -np.inf
        inner = []
        weights = []
        for _, rows in listed:
            value, weight = power_sum(np.array([score for score, _, _ in rows]), eps_h, axis=0)
            inner.append(float(value))
            weights.append(weight)
        value, outer = power_sum(np.array(inner), eps_y, axis=0)
        for p, weight, (_, rows) in zip(outer, weights, listed, strict=True):
            for q, (_, unary, tables) in zip(weight, rows, strict=True):
                if p * q == 0.0:
                    continue
                np.add.at(mu.unary, unary, p * q)
                for name, at in tables:
                    mu.tables[self.mu_table[name] + at] += p * q
        return float(value)
