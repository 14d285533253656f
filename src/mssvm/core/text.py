"""Text of users where it could do harm."""

from __future__ import annotations


def printable(text: str) -> str:
    """Text without what moves a terminal's cursor, changes its colours or turns the direction of writing."""
    return "".join(c if c.isprintable() or c in "\n\t" else c.encode("unicode_escape").decode() for c in text)
