"""Votes of several annotators in JSON lines: ``votes`` by annotator or by site, ``spans`` of labelling functions.

{"x": [...], "votes": {"ann": ["B", "I"], "bob": ["B", null]}}         null: abstained, ["B", "I"]: one of these
{"x": [...], "votes": [{"ann": "B", "bob": "B"}, {"ann": "I"}]}        the same, site by site (chains)
{"x": [...], "spans": {"dictionary": [[0, 2, "PER"]], "rule": []}}     spans [start, stop, type], as BIO tags (chains)

A labelling function that is named votes "O" outside its spans; one that is left out of an instance, or null, abstained.
"""

from __future__ import annotations

from typing import Any

from mssvm.core.checks import shown
from mssvm.data.chunks import span_tags
from mssvm.data.readers.values import Fail, LabelReader

OUTSIDE = "O"


def has_votes(record: dict[str, Any]) -> bool:
    """Whether an object has votes in either form."""
    return record.get("votes") is not None or record.get("spans") is not None


def read_votes(
    record: dict[str, Any], shape: tuple[int, ...], labels: LabelReader, fail: Fail, line: int
) -> dict[str, Any] | None:
    """Annotators to labels nested like ``shape``; None if the object has no votes."""
    if not has_votes(record):
        return None
    by_name = _given(record.get("votes"), shape, fail)
    by_name |= _from_spans(record.get("spans"), shape, by_name, fail)
    out = {}
    for name, values in by_name.items():
        if values is None and shape:
            continue  # abstained from the whole instance
        out[name] = labels.read(values, shape, _naming(name, fail), line)
    return out


def _naming(name: str, fail: Fail) -> Fail:
    """A function like ``fail`` whose errors name the annotator."""

    def fail_of_annotator(reason: str) -> Any:
        fail(f"votes of {name!r}: {reason}")

    return fail_of_annotator


def _given(votes: Any, shape: tuple[int, ...], fail: Fail) -> dict[str, Any]:
    """``votes`` by annotator, whichever way they are written."""
    if votes is None:
        return {}
    if isinstance(votes, dict):
        return dict(votes)
    if not isinstance(votes, list) or len(shape) != 1:
        fail(f"'votes' should be an object of annotators and their labels, got {shown(votes)}")
    if len(votes) != shape[0]:
        fail(f"'votes' has {len(votes)} entries for {shape[0]} sites; give one object (or null) each")
    out: dict[str, Any] = {}
    for site, entry in enumerate(votes):
        if entry is None:
            continue
        if not isinstance(entry, dict):
            fail(f"'votes' of site {site} should be an object of annotators and labels, got {shown(entry)}")
        for name, label in entry.items():
            out.setdefault(name, [None] * shape[0])[site] = label
    return out


def _from_spans(spans: Any, shape: tuple[int, ...], taken: dict[str, Any], fail: Fail) -> dict[str, Any]:
    """BIO tags of the spans that each labelling function marks."""
    if spans is None:
        return {}
    if not isinstance(spans, dict) or len(shape) != 1:
        fail(f"'spans' should be an object of labelling functions and their spans on a chain, got {shown(spans)}")
    out = {}
    for name, found in spans.items():
        if name in taken:
            fail(f"{name!r} is in 'votes' and in 'spans'; give each annotator once")
        if found is not None:
            out[name] = bio_tags(found, shape[0], _naming(name, fail))
    return out


def bio_tags(spans: Any, n_sites: int, fail: Fail) -> list[str]:
    """Spans [start, stop, type] as BIO tags; where spans overlap, the one that starts first is taken."""
    if not isinstance(spans, list):
        fail(f"spans should be a list of [start, stop, type], got {shown(spans)}")
    for span in spans:
        proper = isinstance(span, list) and len(span) == 3 and type(span[0]) is int and type(span[1]) is int
        if not proper or not isinstance(span[2], str) or not 0 <= span[0] < span[1] <= n_sites:
            fail(f"{shown(span)} is no span [start, stop, type] of {n_sites} sites")
    tags = [OUTSIDE] * n_sites
    free = 0  # first site after the spans taken
    for start, stop, kind in sorted(spans, key=lambda span: (span[0], -span[1])):
        if start < free:
            continue
        tags[start:stop] = span_tags(kind, stop - start)
        free = stop
    return tags
