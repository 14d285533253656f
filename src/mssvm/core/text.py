"""Untrusted text made safe to print."""

from __future__ import annotations


def printable(text: str) -> str:
    """Text with control characters escaped: none may move a terminal's cursor, set colours or reverse the text."""
    return "".join(_escaped(character) for character in text)


def _escaped(character: str) -> str:
    if character.isprintable() or character in "\n\t":
        return character
    return character.encode("unicode_escape").decode()
