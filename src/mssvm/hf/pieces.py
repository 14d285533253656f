"""Word pieces and words: the first piece of every word, and conversion of tensors between pieces and words."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from mssvm.core.errors import InputError
from mssvm.torch.decoder import PADDING


@dataclass(frozen=True, eq=False)
class Words:
    """The words of a batch of sentences of P pieces each.

    ``first`` (B, P): whether a piece is the first of a word; ``member`` (B, P): whether it belongs to a word;
    ``number`` (B, P): to which one, counted from 0; ``at`` (B, W): the position of every word's first piece;
    ``lengths`` (B,): the number of words.
    """

    first: torch.Tensor
    member: torch.Tensor
    number: torch.Tensor
    at: torch.Tensor
    lengths: torch.Tensor

    @classmethod
    def of(
        cls, attention_mask: torch.Tensor, word_ids: torch.Tensor | None, special: torch.Tensor | None, trim: bool
    ) -> Words:
        """Words from ``word_ids`` (below zero: no word); without them every piece that is not ``special`` is a word.

        With ``trim`` W is the largest number of words instead of P; that requires reading the tensors.
        """
        real = attention_mask != 0
        if word_ids is not None:
            member = real & (word_ids >= 0)
            before = torch.nn.functional.pad(word_ids[:, :-1], (1, 0), value=-1)
            first = member & (word_ids != before)
        else:
            member = real if special is None else real & (special == 0)
            first = member
        number = (first.cumsum(dim=1) - 1).clamp(min=0)
        lengths = first.sum(dim=1)
        width = first.shape[1]
        if trim:
            width = max(int(lengths.max()), 1) if len(lengths) else 1
        columns = torch.arange(width, device=first.device)[None, :, None]
        at = ((number[:, None, :] == columns) & first[:, None, :]).to(torch.int64).argmax(dim=2)
        return cls(first, member, number, at, lengths)

    def pool(self, vectors: torch.Tensor, pooling: str) -> torch.Tensor:
        """(B, W, D): the vector of every word; arbitrary after the last word."""
        if pooling == "first":
            return self.of_words(vectors)
        columns = torch.arange(self.at.shape[1], device=vectors.device)[None, :, None]
        share = ((self.number[:, None, :] == columns) & self.member[:, None, :]).to(vectors.dtype)
        return (share @ vectors) / share.sum(dim=2, keepdim=True).clamp(min=1.0)

    def of_words(self, pieces: torch.Tensor) -> torch.Tensor:
        """The rows of the first pieces of words: (B, W, ...) from (B, P, ...)."""
        if pieces.ndim == 2:
            return pieces.gather(1, self.at)
        return pieces.gather(1, self.at[:, :, None].expand(-1, -1, pieces.shape[2]))

    def labels_of_words(self, labels: torch.Tensor) -> torch.Tensor:
        """Labels (B, P), or booleans (B, P, K), at the first pieces of words; missing after the last word."""
        if labels.shape[:2] != self.first.shape:
            raise InputError(
                f"labels have the axes {tuple(labels.shape[:2])}, the pieces {tuple(self.first.shape)}: label the "
                "first piece of every word and put -100 elsewhere, as mssvm.hf.encode does."
            )
        found = self.of_words(labels)
        real = torch.arange(self.at.shape[1], device=labels.device)[None, :] < self.lengths[:, None]
        if labels.dtype == torch.bool:
            return found & real[:, :, None]
        return torch.where(real, found, PADDING)

    def to_pieces(self, words: torch.Tensor, fill: float) -> torch.Tensor:
        """(B, P, ...) from (B, W, ...): a word's row at its first piece, ``fill`` at all other pieces."""
        at = self.number.clamp(max=self.at.shape[1] - 1)
        if words.ndim == 2:
            return torch.where(self.first, words.gather(1, at), fill)
        spread = words.gather(1, at[:, :, None].expand(-1, -1, words.shape[2]))
        return torch.where(self.first[:, :, None], spread, fill)
