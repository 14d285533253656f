"""Which tags of chunks may follow each other: the schemes BIO (IOB2) and BIOES.

BIO      I-x only after B-x or I-x
BIOES    I-x and E-x only after B-x or I-x; after B-x and I-x only I-x or E-x, and never the end
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from mssvm.core.errors import InputError

KINDS = {"bio": "BIO", "bioes": "BIOES"}
OPEN = ("B", "I")  # the chunk may continue after these
INSIDE = ("I", "E")  # these continue a chunk


def illegal_pairs(scheme: str, classes: Sequence[Hashable]) -> list[tuple[Hashable | None, Hashable | None]]:
    """The pairs (tag, next tag) that ``scheme`` forbids; None is the start as the first, the end as the second."""
    if scheme not in KINDS:
        raise InputError(f"forbidden must list pairs of labels, or be 'bio' or 'bioes', got {scheme!r}.")
    tags = [_parts(tag, scheme) for tag in classes]
    out: list[tuple[Hashable | None, Hashable | None]] = []
    for tag, (kind, name) in zip(classes, tags, strict=True):
        if kind in INSIDE:
            if ("B", name) not in tags:
                _refuse(tag, "B", name)
            out.append((None, tag))
        if scheme == "bioes" and kind in OPEN:
            if ("E", name) not in tags:
                _refuse(tag, "E", name)
            out.append((tag, None))
    for before, (kind_before, name_before) in zip(classes, tags, strict=True):
        for tag, (kind, name) in zip(classes, tags, strict=True):
            continues = kind in INSIDE
            may_continue = kind_before in OPEN and name_before == name
            must_continue = scheme == "bioes" and kind_before in OPEN
            if (continues and not may_continue) or (must_continue and not continues):
                out.append((before, tag))
    return out


def _parts(tag: Hashable, scheme: str) -> tuple[str, str]:
    """The letter of a tag, and the name of its chunks."""
    kind, _, name = str(tag).partition("-")
    if not isinstance(tag, str) or kind not in KINDS[scheme] or (kind == "O" and name):
        letters = ", ".join(f"{letter}-x" for letter in KINDS[scheme] if letter != "O")
        other = " (or is it 'bioes'?)" if scheme == "bio" and kind in KINDS["bioes"] else ""
        raise InputError(f"forbidden={scheme!r} needs the tags O, {letters}, but there is the label {tag!r}{other}.")
    return kind, name


def _refuse(tag: Hashable, letter: str, name: str) -> None:
    wanted = f"{letter}-{name}" if name else letter
    raise InputError(f"there is the tag {tag!r} and no {wanted!r}, so no chunk can begin or end; add it to classes=.")
