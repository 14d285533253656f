"""Indicator features of words and tags in context, for tokens given as text."""

from __future__ import annotations

from collections.abc import Sequence


def word_features(tokens: Sequence[Sequence[str]]) -> list[list[str]]:
    """Per token, from its columns (the word, then tags such as parts of speech) and those of its neighbours.

    The word in lower case, its first and last letters, its shape (``Xx9-``), and every further column, of the token
    itself; word and columns of the tokens on both sides; marks for the ends of the sentence.
    """
    out = []
    last = len(tokens) - 1
    for t, columns in enumerate(tokens):
        word = columns[0].lower()
        names = [f"w={word}", f"pre2={word[:2]}", f"suf2={word[-2:]}", f"suf3={word[-3:]}"]
        names.append(f"shape={shape(columns[0])}")
        names += [f"c{k}={value}" for k, value in enumerate(columns[1:], start=1)]
        for step, side in ((-1, "<"), (1, ">")):
            if not 0 <= t + step <= last:
                names.append(f"end{side}")
                continue
            near = tokens[t + step]
            names.append(f"w{side}={near[0].lower()}")
            names += [f"c{k}{side}={value}" for k, value in enumerate(near[1:], start=1)]
        out.append(names)
    return out


def shape(word: str) -> str:
    """The kinds of characters of a word, runs shortened: ``McDonald's-2`` is ``XxXx'x-9``."""
    kinds = ["X" if c.isupper() else "x" if c.isalpha() else "9" if c.isdigit() else c for c in word[:40]]
    return "".join(c for i, c in enumerate(kinds) if i == 0 or c != kinds[i - 1])
