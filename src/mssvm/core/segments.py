"""Semi-Markov models as batches: which variables and tables of an instance hold which scores.

A segmentation cuts a sequence of T sites into segments [a, b) of at most K sites with a label each. Each of its scores
is that of a state or a table entry of these variables, so that models, weights and gradients need nothing new:

    label      T variables of C states       the label of every site
    boundary   T variables of 2 states       whether a segment begins at the site (1) or the site is inside one (0)
    hidden     T variables of C H states     label and hidden state of the segment that covers the site
    first      T variables of C states       label of the segment that begins at the site, if one does
    last       T variables of C states       label of the segment that ends with the site, if one does
    segment    T K variables of C states     label of the segment of length k that begins at the site, if one does
    begin, end                               labels of the first and of the last segment
    length, state, next                      no scores of their own: axes of tables

    transition (C, C)   duration (K, C)   attach (C, H)   move (C, H, H)

``hidden``, ``first`` and ``last``, and ``segment`` exist where the model has such scores. Marginals are expected
counts: mu of a table entry is the expected number of segments that it scores.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mssvm.core.arrays import Bools, Floats, Ints
from mssvm.core.potentials import Potentials
from mssvm.core.topology import Batch


@dataclass(frozen=True)
class SegmentLayout:
    """Sizes of a semi-Markov model: labels C, longest segment K, hidden states H (0: none), and which scores it has.

    ``moving``: hidden states form a chain inside a segment. ``borders``: scores of first and last sites.
    ``wide``: scores of single segments.
    """

    labels: int
    longest: int
    hidden: int = 0
    moving: bool = False
    borders: bool = False
    wide: bool = False

    @property
    def parts(self) -> list[tuple[str, int, int]]:
        """Groups of variables that every site has, in order: name, variables a site, states."""
        out = [("label", 1, self.labels), ("boundary", 1, 2)]
        if self.hidden:
            out.append(("hidden", 1, self.labels * self.hidden))
        if self.borders:
            out += [("first", 1, self.labels), ("last", 1, self.labels)]
        if self.wide:
            out.append(("segment", self.longest, self.labels))
        return out

    @property
    def single(self) -> list[tuple[str, int]]:
        """Variables that an instance has once, after all others: name, states."""
        out = [("begin", self.labels), ("end", self.labels), ("length", self.longest)]
        if self.hidden:
            out.append(("state", self.hidden))
        if self.moving:
            out.append(("next", self.hidden))
        return out

    @property
    def tables(self) -> dict[str, tuple[str, ...]]:
        """Scopes of the tables, by names of ``single``."""
        out: dict[str, tuple[str, ...]] = {"transition": ("begin", "end"), "duration": ("length", "begin")}
        if self.hidden:
            out["attach"] = ("begin", "state")
        if self.moving:
            out["move"] = ("begin", "state", "next")
        return out

    def cards(self, n_sites: int) -> Ints:
        """States of the variables of an instance."""
        parts = [np.full(n_sites * each, states, dtype=np.int64) for _, each, states in self.parts]
        return np.concatenate([*parts, np.array([states for _, states in self.single], dtype=np.int64)])

    def members(self, n_sites: int) -> dict[str, Ints]:
        """The variables of every group."""
        out: dict[str, Ints] = {}
        at = 0
        for name, each, _ in self.parts:
            out[name] = np.arange(at, at + n_sites * each)
            at += n_sites * each
        for name, _ in self.single:
            out[name] = np.array([at])
            at += 1
        return out

    def sites(self, batch: Batch) -> Ints:
        """The number of sites of every instance of a batch of such models."""
        per_site = sum(each for _, each, _ in self.parts)
        return (np.diff(batch.var_ptr) - len(self.single)) // per_site


@dataclass(frozen=True, eq=False)
class Spans:
    """Single spans [start, stop) with a label (a state), each of one instance of a batch."""

    instance: Ints
    start: Ints
    stop: Ints
    label: Ints

    def __len__(self) -> int:
        return len(self.start)

    def sorted(self) -> tuple[Spans, Ints]:
        """The spans sorted by instance, stop and label, and the permutation that sorts them."""
        order = np.lexsort((self.label, self.stop, self.instance))
        return self.select(order), order

    def select(self, which: Ints | Bools) -> Spans:
        return Spans(self.instance[which], self.start[which], self.stop[which], self.label[which])


@dataclass(frozen=True, eq=False)
class SpanPotentials(Potentials):
    """Potentials with further scores of single spans, which add to those of a segmentation that has the span."""

    spans: Spans
    scores: Floats

    def __add__(self, other: Potentials) -> Potentials:
        return SpanPotentials(self.unary + other.unary, self.tables + other.tables, self.spans, self.scores)

    __radd__ = __add__


def segmentation_of(layout: SegmentLayout, batch: Batch, unary: Floats) -> Spans:
    """The spans of every instance from marginals of 0 and 1: those of a call at eps_y = 0."""
    columns: list[tuple[Ints, Ints, Ints, Ints]] = []
    first = batch.unary_ptr[batch.var_ptr]
    for b, n in enumerate(layout.sites(batch).tolist()):
        at = int(first[b])
        labels = unary[at : at + n * layout.labels].reshape(n, layout.labels).argmax(axis=1)
        at += n * layout.labels
        starts = np.flatnonzero(unary[at + 1 : at + 2 * n : 2] > 0.5)
        columns.append((np.full(len(starts), b), starts, np.append(starts, n)[1:], labels[starts]))
    if not columns:
        empty = np.zeros(0, dtype=np.int64)
        return Spans(empty, empty, empty, empty)
    joined = [np.concatenate(column).astype(np.int64) for column in zip(*columns, strict=True)]
    return Spans(*joined)
