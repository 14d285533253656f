"""Predictions of a classifier as words with labels and spans with probabilities."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from mssvm.core.arrays import Floats
from mssvm.data.chunks import Span, is_bio, spans
from mssvm.hf.words import check_fast, encode, feature_of

OF_SENTENCES = ("node", "hidden", "between")  # scores with an axis of sentences; the others are shared tables


@dataclass(frozen=True)
class TaggedSpan:
    """A span: words ``start`` to ``stop`` - 1 have the ``label``; ``probability`` is that of exactly this span.

    ``first_char`` and ``last_char`` (exclusive) are its position in the text, None if words were given.

    >>> ms.hf.TaggedSpan("PER", 0, 2, "Ada Lovelace", 0.9).text
    'Ada Lovelace'
    """

    label: str
    start: int
    stop: int
    text: str
    probability: float
    first_char: int | None = None
    last_char: int | None = None


@dataclass(frozen=True, eq=False)
class TaggedSentence:
    """A sentence with its best labelling.

    ``labels`` and ``probabilities`` have the label of every word and its probability, ``spans`` the spans if labels are
    BIO or BIOES tags, ``marginals`` (words, labels) the probabilities of all labels.

    >>> tagged = tagger.tag(["the cat"], tokenizer)[0]
    >>> tagged.words, tagged.spans, all(0 < p < 1 for p in tagged.probabilities)
    (['the', 'cat'], [], True)
    """

    words: list[str]
    labels: list[str]
    probabilities: list[float]
    spans: list[TaggedSpan]
    marginals: Floats


@dataclass(frozen=True)
class Prepared:
    """A sentence in pieces; ``places`` has the first and the last character (exclusive) of every word of a text."""

    feature: dict[str, Any]
    words: list[str]
    places: list[tuple[int, int]] | None = None
    text: str = ""

    def span(self, label: str, start: int, stop: int, probability: float) -> TaggedSpan:
        if self.places is None:
            return TaggedSpan(label, start, stop, " ".join(self.words[start:stop]), probability)
        first = self.places[start][0]
        last = self.places[stop - 1][1]
        return TaggedSpan(label, start, stop, self.text[first:last], probability, first, last)


def tag_batch(model: Any, tokenizer: Any, sentences: Any, start: int) -> list[TaggedSentence]:
    """Tag a batch of sentences; ``start`` is the number of the first one, for errors."""
    prepared = [_prepare(tokenizer, sentence, start + b) for b, sentence in enumerate(sentences)]
    scores, lengths = model.scores([sentence.feature for sentence in prepared], tokenizer)
    states = model.objective.decode(scores, lengths=lengths).cpu().numpy()
    marginals = model.objective.marginals(scores, lengths=lengths).cpu().numpy()
    labels = model.config.labels
    tags = [[labels[k] for k in row[: len(s.words)]] for row, s in zip(states, prepared, strict=True)]
    found: list[list[Span]] = [spans(row) if is_bio(labels) else [] for row in tags]
    chances = _span_probabilities(model, scores, lengths, states, found)
    out = []
    for b, sentence in enumerate(prepared):
        n = len(sentence.words)
        mine = marginals[b, :n]
        of_words = mine[np.arange(n), states[b, :n]].tolist()
        named = [
            sentence.span(label, first, stop, chance)
            for (first, stop, label), chance in zip(found[b], chances[b], strict=True)
        ]
        out.append(TaggedSentence(sentence.words, tags[b], of_words, named, mine))
    return out


def _prepare(tokenizer: Any, sentence: Any, number: int) -> Prepared:
    if not isinstance(sentence, str):
        words = list(sentence)
        return Prepared(encode(tokenizer, [words])[0], words)
    check_fast(tokenizer)
    found = tokenizer(sentence, return_offsets_mapping=True, truncation=False, verbose=False)
    places: dict[int, tuple[int, int]] = {}
    for word, (first, last) in zip(found.word_ids(), found["offset_mapping"], strict=True):
        if word is not None:
            places[word] = (places.get(word, (first, last))[0], last)
    feature = feature_of(tokenizer, found, number)
    trimmed = [_trimmed(sentence, *place) for place in places.values()]
    return Prepared(feature, [sentence[a:b] for a, b in trimmed], trimmed, sentence)


def _trimmed(text: str, first: int, last: int) -> tuple[int, int]:
    """The characters of a word without the space that byte-level tokenizers count as part of it."""
    inside = text[first:last]
    return first + len(inside) - len(inside.lstrip()), last - (len(inside) - len(inside.rstrip()))


def _span_probabilities(
    model: Any, scores: dict[str, torch.Tensor], lengths: torch.Tensor, states: Any, found: list[list[Span]]
) -> list[list[float]]:
    """The probability of every span: that of its labels, followed by a label that does not continue the span."""
    flat = [(b, span) for b, own_spans in enumerate(found) for span in own_spans]
    if not flat:
        return [[] for _ in found]
    labels = model.config.labels
    given = torch.ones(len(flat), states.shape[1], len(labels), dtype=torch.bool, device=lengths.device)
    for row, (b, (start, stop, name)) in enumerate(flat):
        given[row, start:stop] = False
        for t in range(start, stop):
            given[row, t, states[b, t]] = True
        if stop < int(lengths[b]):
            given[row, stop, [k for k, tag in enumerate(labels) if _continues(tag, name)]] = False
    at = torch.tensor([b for b, _ in flat], device=lengths.device)
    copies = {name: value[at] if name in OF_SENTENCES else value for name, value in scores.items()}
    free = model.objective.log_partition(scores, lengths=lengths)[at]
    chances = (model.objective.log_partition(copies, given=given, lengths=lengths[at]) - free).exp().clamp(max=1.0)
    probabilities: list[list[float]] = [[] for _ in found]
    for (b, _), chance in zip(flat, chances.tolist(), strict=True):
        probabilities[b].append(chance)
    return probabilities


def _continues(tag: str, name: str) -> bool:
    """Whether a tag continues a span of this name; plain letters (B, I, O) have the empty name."""
    kind, _, of = tag.partition("-")
    return kind in ("I", "E") and of == name
