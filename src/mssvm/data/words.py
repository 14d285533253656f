"""Features of words in context, for files of words and for lists of words in Python."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from mssvm.core.checks import shown
from mssvm.core.errors import InputError

Columns = Sequence[str]
"""A token: the word, then tags such as parts of speech."""


def words(
    X: Sequence[Sequence[str | Columns]],
    *,
    window: int = 1,
    prefixes: Sequence[int] = (2,),
    suffixes: Sequence[int] = (2, 3),
    shape: bool = True,
) -> list[list[list[str]]]:
    """Named features of the words of sentences; ``X`` for any estimator on chains.

    Of every token: the word in lower case (``w=``), its first and last letters (``pre2=``, ``suf3=``), its ``shape``
    (``Xx9-``) and its further columns (``c1=``); of the ``window`` tokens on either side their word and columns, with a
    ``<`` or ``>`` for each step (``w<=``, ``c1>>=``), or a mark (``end<``) where the sentence has no such token.

    Parameters
    ----------
    X : list of sentences
        A sentence is a list of words, or of tuples (word, column, ...).
    window : int
        Tokens looked at on both sides; 0 for none.
    prefixes, suffixes : lengths of the first and last letters taken, () for none
    shape : bool
        Whether kinds of characters (capital, small, digit, others as they are; runs shortened) are a feature.

    The defaults are what estimators and the command line make of plain words. In a scikit-learn pipeline this is
    ``FunctionTransformer(ms.features.words, kw_args={"window": 2})``.

    >>> ms.features.words([["The", "cat"]], window=1, prefixes=(), suffixes=(), shape=False)[0][1]
    ['w=cat', 'w<=the', 'end>']
    """
    _check_sizes("window", (window,), 0)
    _check_sizes("prefixes", prefixes, 1)
    _check_sizes("suffixes", suffixes, 1)
    if isinstance(X, str) or any(isinstance(sentence, str) for sentence in X):
        raise InputError("words takes a list of sentences, each a list of words; split the text first.")
    affixes = [(f"pre{n}=", slice(n)) for n in prefixes]
    affixes += [(f"suf{n}=", slice(-n, None)) for n in suffixes]
    neighbours = []
    for k in range(1, window + 1):
        neighbours.append((-k, "<" * k))
        neighbours.append((k, ">" * k))
    return [_sentence(_tokens(sentence, b), affixes, neighbours, shape) for b, sentence in enumerate(X)]


def _check_sizes(name: str, sizes: Sequence[int], least: int) -> None:
    if not all(isinstance(n, int) and n >= least for n in sizes):
        raise InputError(f"{name} must be whole numbers >= {least}, got {sizes!r}.")


def _tokens(sentence: Sequence[str | Columns], b: int) -> list[Columns]:
    """Every token as columns, checked."""
    tokens = [(str(t),) if isinstance(t, str) else t for t in sentence]
    for s, token in enumerate(tokens):
        if not isinstance(token, (tuple, list)) or not token or not all(isinstance(v, str) and v for v in token):
            raise InputError(f"{shown(token)} is neither a word nor a tuple of words.", instance=b, site=s)
    return tokens


def _sentence(
    tokens: list[Columns], affixes: list[tuple[str, slice]], neighbours: list[tuple[int, str]], shape: bool
) -> list[list[str]]:
    """Names of the features of every token. ``affixes`` are names and slices of the word, ``neighbours`` steps to other
    tokens and their marks."""
    out = []
    last = len(tokens) - 1
    for t, columns in enumerate(tokens):
        word = columns[0].lower()
        names = [f"w={word}"]
        names += [f"{name}{word[letters]}" for name, letters in affixes]
        if shape:
            names.append(f"shape={_shape(columns[0])}")
        names += [f"c{k}={value}" for k, value in enumerate(columns[1:], start=1)]
        for step, mark in neighbours:
            if not 0 <= t + step <= last:
                names.append(f"end{mark}")
                continue
            neighbour = tokens[t + step]
            names.append(f"w{mark}={neighbour[0].lower()}")
            names += [f"c{k}{mark}={value}" for k, value in enumerate(neighbour[1:], start=1)]
        out.append(names)
    return out


def _shape(word: str) -> str:
    """The kinds of characters of a word, runs shortened: ``McDonald's-2`` is ``XxXx'x-9``."""
    kinds = [_character_kind(c) for c in word[:40]]
    return "".join(kind for kind, _ in groupby(kinds))


def _character_kind(character: str) -> str:
    if character.isupper():
        return "X"
    if character.isalpha():
        return "x"
    if character.isdigit():
        return "9"
    return character
