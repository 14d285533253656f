"""Chunks of sequences as tags: the schemes BIO (IOB2) and BIOES, such as B-NP I-NP O."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence

Span = tuple[int, int, str]
"""First site, site after the last, and name of a chunk."""
# Tags of chunks, beside O.
OPENING = ("B", "S")
INSIDE = ("I", "E")
CLOSING = ("E", "S")


def is_bio(classes: Iterable[Hashable]) -> bool:
    """Whether ``classes`` are chunk tags: O, and B-x and I-x, also E-x and S-x (or the plain letters).

    >>> ms.metrics.is_bio(["B-NP", "I-NP", "O"]), ms.metrics.is_bio(["noun", "verb"])
    (True, False)
    """
    names = [c for c in classes if isinstance(c, str)]
    kinds = {name.partition("-")[0] for name in names}
    return len(names) > 1 and kinds <= {*INSIDE, *OPENING, "O"} and bool(kinds & set(OPENING))


def span_tags(kind: str, length: int) -> list[str]:
    """The BIO tags of one span of a type."""
    return [f"B-{kind}", *[f"I-{kind}"] * (length - 1)]


def spans(tags: Sequence[str | None]) -> list[Span]:
    """Chunks of a sequence of ``tags``: B and S open a chunk; I and E continue a chunk of their own name, and open one
    otherwise; a chunk ends after E and S.

    >>> ms.metrics.spans(["B-NP", "I-NP", "O", "B-VP"])
    [(0, 2, 'NP'), (3, 4, 'VP')]
    """
    out: list[Span] = []
    start = -1
    name = ""
    for t, tag in enumerate([*tags, "O"]):
        kind, _, what = (tag or "O").partition("-")
        goes_on = kind in INSIDE and start >= 0 and what == name
        if start >= 0 and not goes_on:
            out.append((start, t, name))
            start = -1
        if kind != "O" and not goes_on:
            start = t
            name = what
        if kind in CLOSING:
            out.append((start, t + 1, name))
            start = -1
    return out


def is_span(span: Span, tags: Sequence[str | None]) -> bool | None:
    """Whether ``span`` is a chunk of ``tags``; None if that depends on unknown tags (None)."""
    first, end, name = span
    padded = ["O", *tags, "O"]  # tag t is padded[t + 1]
    continues = [_continues(padded[t], padded[t + 1]) for t in range(first, end + 1)]
    # Every site has the name of the chunk; it continues at each but the first, and not at the site after the last.
    conditions = [_has_name(tag, name) for tag in tags[first:end]]
    conditions += continues[1:-1]
    conditions.append(_negated(continues[0]))
    conditions.append(_negated(continues[-1]))
    if False in conditions:
        return False
    if None in conditions:
        return None
    return True


def _has_name(tag: str | None, name: str) -> bool | None:
    if tag is None:
        return None
    return tag != "O" and tag.partition("-")[2] == name


def _negated(condition: bool | None) -> bool | None:
    if condition is None:
        return None
    return not condition


def _continues(before: str | None, tag: str | None) -> bool | None:
    """Whether the chunk at the previous site continues with the tag ``tag``; None if that depends on an unknown tag."""
    kind, _, name = (tag or "I").partition("-")
    kind_before, _, name_before = (before or "B").partition("-")
    if kind not in INSIDE or kind_before == "O" or kind_before in CLOSING:
        return False
    if tag is None or before is None:
        return None
    return name == name_before
