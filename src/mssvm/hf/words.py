"""Sentences and labels as a ``Trainer`` takes them (pieces, their words, labels at first pieces), and metrics."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from mssvm.core.errors import InputError
from mssvm.data.chunks import is_bio
from mssvm.data.labels import Labels, LabelVocabulary
from mssvm.data.metrics import Rates, span_report
from mssvm.torch.layer import MISSING_LABEL

NO_WORD = -1
NO_SPANS = Rates.of(right=0, predicted=0, true=0)
# The values that pad each tensor.
FILLS = {"word_ids": NO_WORD, "attention_mask": 0, "special_tokens_mask": 1, "token_type_ids": 0}


def encode(
    tokenizer: Any, sentences: Sequence[Sequence[str]], labels: Any = None, classes: Sequence[str] = ()
) -> list[dict[str, Any]]:
    """Features of a ``StructuredTokenClassifier``: one dictionary for each of ``sentences``, which are lists of words.

    ``tokenizer`` is a fast tokenizer of transformers. ``labels`` has for every word one of ``classes``, its number, a
    set of candidates, or for a missing label ``ms.MISSING``, ``None`` or -100. The first piece of a word gets its
    label, other pieces get -100; ``word_ids`` has the word of every piece. Sentences longer than the tokenizer's
    ``model_max_length`` are refused, never cut.

    >>> features = ms.hf.encode(tokenizer, [["the", "cat"]], [["D", {"N", "V"}]], classes=["D", "N", "V"])
    >>> features[0]["word_ids"], features[0]["labels"][1].tolist()
    ([-1, 0, 1, -1], [True, False, False])
    """
    if isinstance(sentences, str) or any(isinstance(words, str) for words in sentences):
        raise InputError("sentences must be lists of words; split texts first, as they were for their labels.")
    features = [_pieces(tokenizer, list(words), number) for number, words in enumerate(sentences)]
    if labels is None:
        return features
    known = _labels(labels, classes, [len(words) for words in sentences])
    for number, feature in enumerate(features):
        mine = known.select([number])
        feature["labels"] = _of_pieces(
            mine, np.array(feature["word_ids"]), bool(np.all(known.single == known.observed))
        )
    return features


def _pieces(tokenizer: Any, words: list[str], number: int) -> dict[str, Any]:
    """The pieces of one sentence; a word without pieces (spaces, control characters) becomes the unknown token."""
    found = _tokenized(tokenizer, words)
    missing = sorted(set(range(len(words))) - set(found.word_ids()))
    if missing:
        if tokenizer.unk_token is None:
            raise InputError(
                f"word {missing[0]} has no pieces, and the tokenizer has no unknown token.", instance=number
            )
        for word in missing:
            words[word] = tokenizer.unk_token
        found = _tokenized(tokenizer, words)
    return feature_of(tokenizer, found, number)


def _tokenized(tokenizer: Any, words: list[str]) -> Any:
    check_fast(tokenizer)
    return tokenizer(words, is_split_into_words=True, truncation=False, verbose=False)


def check_fast(tokenizer: Any) -> None:
    """Raise an error for a tokenizer that does not say which word a piece belongs to."""
    if not getattr(tokenizer, "is_fast", False):
        raise InputError("words are found by fast tokenizers only; load it with use_fast=True.")


def feature_of(tokenizer: Any, found: Any, number: int) -> dict[str, Any]:
    """What the encoder takes of a tokenizer's answer, and the word of every piece; an error for a sentence of more
    pieces than the encoder was made for."""
    size = len(found["input_ids"])
    if size > tokenizer.model_max_length:
        reason = f"{size} pieces, and the tokenizer's model_max_length is {tokenizer.model_max_length}; split it."
        raise InputError(reason, what="sentences", instance=number)
    feature = {name: found[name] for name in found if name in ("input_ids", "attention_mask", "token_type_ids")}
    feature["word_ids"] = [NO_WORD if word is None else word for word in found.word_ids()]
    return feature


def _labels(labels: Any, classes: Sequence[str], lengths: Sequence[int]) -> Labels:
    """Labels of all words, from names or numbers."""
    if not classes:
        raise InputError("labels need classes=, all labels in the order of the model's id2label.")
    rows = [[None if _is_missing(label) else label for label in _row(row)] for row in labels]
    numbers = any(isinstance(label, (int, np.integer)) for row in rows for label in row)
    vocabulary = LabelVocabulary(tuple(range(len(classes))) if numbers else tuple(classes))
    return vocabulary.encode(rows, [(n,) for n in lengths], "labels")


def _row(row: Any) -> list[Any]:
    if isinstance(row, str) or not hasattr(row, "__iter__"):
        raise InputError(f"labels must be a list of labels for every sentence, got {row!r}.")
    return list(row)


def _is_missing(label: Any) -> bool:
    return isinstance(label, (int, np.integer)) and label == MISSING_LABEL


def _of_pieces(labels: Labels, word_ids: Any, single: bool) -> Any:
    """Labels at first pieces, as numbers, or as booleans of candidates if not all are ``single`` labels."""
    first = (word_ids >= 0) & (word_ids != np.concatenate([[NO_WORD], word_ids[:-1]]))
    if single:
        out = np.full(len(word_ids), MISSING_LABEL)
        out[first] = np.where(labels.observed, labels.states, MISSING_LABEL)
        return out.tolist()
    candidates = np.zeros((len(word_ids), labels.mask.shape[1]), dtype=bool)
    candidates[first] = labels.mask & labels.observed[:, None]
    return candidates


@dataclass
class WordCollator:
    """Features of ``encode`` as a padded batch of tensors: the ``data_collator`` of a ``Trainer``.

    Parameters
    ----------
    tokenizer : a tokenizer of transformers
        Its padding token fills ``input_ids``.
    pad_to_multiple_of : int
        Lengths are rounded up to a multiple.

    >>> batch = ms.hf.WordCollator(tokenizer)(ms.hf.encode(tokenizer, [["the", "cat"], ["cat"]]))
    >>> batch["word_ids"].tolist()
    [[-1, 0, 1, -1], [-1, 0, -1, -1]]
    """

    tokenizer: Any
    pad_to_multiple_of: int = 1

    def __call__(self, features: Sequence[Mapping[str, Any]]) -> dict[str, torch.Tensor]:
        longest = max(len(feature["input_ids"]) for feature in features)
        longest += -longest % self.pad_to_multiple_of
        fills = {**FILLS, "input_ids": self.tokenizer.pad_token_id or 0}
        batch = {}
        for name in features[0]:
            if name in fills:
                batch[name] = torch.tensor([_padded(f[name], longest, fills[name]) for f in features])
        if "labels" in features[0]:
            batch["labels"] = _label_batch([np.asarray(feature["labels"]) for feature in features], longest)
        return batch


def _padded(row: Any, longest: int, fill: int) -> list[int]:
    values = list(row)
    return values + [fill] * (longest - len(values))


def _label_batch(rows: list[Any], longest: int) -> torch.Tensor:
    """Numbers (B, P), or booleans (B, P, K) if a sentence has candidates."""
    n_classes = max((row.shape[1] for row in rows if row.ndim == 2), default=0)
    if not n_classes:
        return torch.tensor([_padded(row, longest, MISSING_LABEL) for row in rows])
    out = torch.zeros(len(rows), longest, n_classes, dtype=torch.bool)
    for b, row in enumerate(rows):
        candidates = row if row.ndim == 2 else row[:, None] == np.arange(n_classes)
        out[b, : len(row)] = torch.from_numpy(candidates)
    return out


def span_metrics(classes: Sequence[str]) -> Callable[[Any], dict[str, float]]:
    """A ``compute_metrics`` for a ``Trainer``: accuracy on words that have a single label and, if ``classes`` are BIO
    or BIOES tags, precision, recall and F1 of spans.

    >>> metrics = ms.hf.span_metrics(["O", "B-x", "I-x"])
    >>> paths, labels = np.array([[-100, 1, 2, 0]]), np.array([[-100, 1, 2, 1]])
    >>> metrics(((np.zeros((1, 4, 3)), paths), labels))["f1"]
    0.6666666666666666
    """
    names = np.array([*classes, None], dtype=object)  # position -1 is None, a missing label

    def metrics(prediction: Any) -> dict[str, float]:
        predictions, labels = prediction
        paths = np.asarray(predictions[1])
        truth = np.asarray(labels)
        if truth.ndim == 3:
            truth = np.where(truth.astype(bool).sum(axis=2) == 1, truth.argmax(axis=2), MISSING_LABEL)
        known = truth >= 0
        out = {"accuracy": float(np.mean(paths[known] == truth[known]))}
        if not is_bio(classes):
            return out
        words = paths >= 0
        tagged = [names[row[mine]].tolist() for row, mine in zip(paths, words, strict=True)]
        true = [names[np.maximum(row[mine], -1)].tolist() for row, mine in zip(truth, words, strict=True)]
        total = span_report(true, tagged, classes=tuple(classes)).get("micro avg", NO_SPANS)
        return {**out, "precision": total.precision, "recall": total.recall, "f1": total.f1}

    return metrics
