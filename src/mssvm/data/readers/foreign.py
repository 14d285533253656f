"""Records of other programs as records of JSON lines: columns of Hugging Face data sets, documents of spaCy.

{"tokens": ["Anna", "sings"], "ner_tags": ["B-PER", "O"]}                         words with a column of tags
{"text": "Anna sings", "tokens": [{"start": 0, "end": 4}, {"start": 5, "end": 10}],
 "ents": [{"start": 0, "end": 4, "label": "PER"}]}                                spaCy's Doc.to_json: BIO tags
"""

from __future__ import annotations

from typing import Any

from mssvm.core.checks import shown
from mssvm.data.readers.values import Fail

TAGS = ("ner_tags", "tags", "labels", "chunk_tags", "pos_tags")  # columns of labels, the first that is there


def translated(record: dict[str, Any], fail: Fail, label: str | None = None) -> dict[str, Any]:
    """A record with 'x' and 'y', from one with 'tokens'; any other as it is. ``label`` names the column of labels."""
    tokens = record.get("tokens")
    if "x" in record or "nodes" in record or not isinstance(tokens, list):
        return record
    rest = {name: value for name, value in record.items() if name in ("id", "hidden", "votes")}
    if tokens and all(isinstance(token, dict) for token in tokens):
        return {**rest, "x": _words(record, tokens, fail), "y": _entities(record, tokens, fail)}
    name = label or next((name for name in TAGS if name in record), None)
    if label is not None and label not in record:
        fail(f"there is no column {label!r} (it has {', '.join(map(repr, record))})")
    return {**rest, "x": tokens, "y": None if name is None else record[name]}


def _words(record: dict[str, Any], tokens: list[dict[str, Any]], fail: Fail) -> list[str]:
    """The words of a document: their own text, or that between their first and last character."""
    text = record.get("text")
    words = []
    for number, token in enumerate(tokens):
        word = token.get("text", token.get("orth"))
        if word is None and isinstance(text, str):
            first, end = _characters(token, f"token {number}", fail)
            word = text[first:end]
        if not isinstance(word, str) or not word.strip():
            fail(f"token {number} has no text; give 'text' of the document, with 'start' and 'end' of every token")
        words.append(word)
    return words


def _entities(record: dict[str, Any], tokens: list[dict[str, Any]], fail: Fail) -> list[str] | None:
    """BIO tags of the entities of a document, whose ends must be ends of tokens; None if it has no list of them."""
    entities = record.get("ents")
    if entities is None:
        return None
    if not isinstance(entities, list) or not all(isinstance(entity, dict) for entity in entities):
        fail("'ents' should be a list of objects with 'start', 'end' and 'label'")
    places = [_characters(token, f"token {number}", fail) for number, token in enumerate(tokens)]
    tags = ["O"] * len(tokens)
    for number, entity in enumerate(entities):
        first, end = _characters(entity, f"entity {number}", fail)
        name = entity.get("label")
        inside = [k for k, (start, stop) in enumerate(places) if start >= first and stop <= end]
        if not isinstance(name, str) or not inside or places[inside[0]][0] != first or places[inside[-1]][1] != end:
            fail(f"entity {number} ({shown(entity)}) does not begin and end with tokens; correct it or its tokens")
        if any(tags[k] != "O" for k in inside):
            fail(f"entity {number} ({shown(entity)}) overlaps another; a token can have only one tag")
        for k in inside:
            tags[k] = f"I-{name}"
        tags[inside[0]] = f"B-{name}"
    return tags


def _characters(part: dict[str, Any], what: str, fail: Fail) -> tuple[int, int]:
    """Offsets of the first character and of that after the last."""
    first = part.get("start")
    end = part.get("end")
    if type(first) is not int or type(end) is not int or not 0 <= first < end:
        fail(f"{what} needs 'start' and 'end', numbers of characters in the text, got {shown(part)}")
    return first, end
