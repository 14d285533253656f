"""Labels of segments: spans (start, stop, label), labels of sites, or both, as labels of sites and known boundaries.

    y[b] = [(0, 4, "helix"), (9, 12, "loop")]                 spans; nothing is known between them
    y[b] = ["helix", ms.MISSING, "loop", ...]                 labels of sites; boundaries are where labels differ
    y[b] = {"sites": [...], "spans": [(0, 4, "helix")]}       both

An empty list is one without spans: nothing is known. A span covers sites start .. stop - 1. Its label may be missing or
a set of candidates: then its boundaries are known. Where a site that it covers has a label or candidates of its own,
those remain that both allow.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from mssvm.core.arrays import Bools
from mssvm.core.checks import shown
from mssvm.core.errors import InputError
from mssvm.data.labels import CANDIDATES, MISSING, flat_sites, is_missing, plain

KEYS = ("sites", "spans")


class SpanLabels(NamedTuple):
    """The known labels of one instance: a label (or MISSING) for every site, and spans."""

    sites: list[Any]
    spans: list[tuple[int, int, Any]]

    def boundaries(self) -> Bools:
        """Per site: whether it may be inside a segment, and whether one may begin there, as far as spans say."""
        n = len(self.sites)
        out = np.ones((n, 2), dtype=bool)
        for start, stop, _ in self.spans:
            out[start] = (False, True)
            out[start + 1 : stop] = (True, False)
            if stop < n:
                out[stop] = (False, True)
        return out


def span_labels(item: Any, b: int, n: int | None, what: str = "y") -> SpanLabels:
    """The labels of instance b in one of the forms above; ``n`` is its number of sites (None: as many as are named)."""
    sites_given: Any = item
    spans: list[tuple[int, int, Any]] = []
    if isinstance(item, Mapping):
        if not item or any(key not in KEYS for key in item):
            raise InputError(f"a dict has the keys 'sites' and 'spans', got {shown(item)}.", what=what, instance=b)
        spans = [_span(span, b, what) for span in item.get("spans") or ()]
        sites_given = item.get("sites")
    elif _are_spans(item) or (isinstance(item, (list, tuple)) and not item):
        spans = [_span(span, b, what) for span in item]
        sites_given = None
    last = max((stop for _, stop, _ in spans), default=0)
    if sites_given is None or sites_given is MISSING:
        sites = [MISSING] * (last if n is None else n)
    else:
        sites = list(flat_sites(sites_given, 1, b, what, None if n is None else (n,)))
    if n is None and len(sites) < last:
        sites += [MISSING] * (last - len(sites))
    _label_sites(sites, spans, b, what)
    return SpanLabels(sites, spans)


def _label_sites(sites: list[Any], spans: list[tuple[int, int, Any]], b: int, what: str) -> None:
    """Give the sites of every span the labels that it leaves them; raise if spans overlap, end too late or contradict a
    site's label."""
    end = 0
    for start, stop, label in sorted(spans, key=lambda span: span[:2]):
        if stop > len(sites):
            reason = f"the span ({start}, {stop}) ends after the last of {len(sites)} sites."
            raise InputError(reason, what=what, instance=b)
        if start < end:
            raise InputError(f"the span ({start}, {stop}) overlaps the one before it.", what=what, instance=b)
        end = stop
        if is_missing(label):
            continue
        for t in range(start, stop):
            if is_missing(sites[t]):
                sites[t] = label
                continue
            possible = [member for member in _members(sites[t]) if member in _members(label)]
            if not possible:
                reason = f"the span ({start}, {stop}, {shown(label)}) covers a site with label {shown(sites[t])}."
                raise InputError(reason, what=what, instance=b, site=t)
            sites[t] = possible[0] if len(possible) == 1 else possible


def _members(label: Any) -> list[Any]:
    """The members of a candidate set, or a label as the only one."""
    return [plain(member) for member in (label if isinstance(label, CANDIDATES) else (label,))]


def _are_spans(item: Any) -> bool:
    """Whether labels of an instance are a list of spans: tuples of two whole numbers and a label."""
    if not isinstance(item, (list, tuple)) or not item:
        return False
    return all(isinstance(span, tuple) and len(span) == 3 and _whole(span[0]) and _whole(span[1]) for span in item)


def _whole(value: Any) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def _span(span: Any, b: int, what: str) -> tuple[int, int, Any]:
    if not isinstance(span, (tuple, list)) or len(span) != 3 or not (_whole(span[0]) and _whole(span[1])):
        raise InputError(f"a span is (start, stop, label), got {shown(span)}.", what=what, instance=b)
    start, stop, label = span
    if not 0 <= start < stop:
        raise InputError(f"the span {shown(tuple(span))} needs 0 <= start < stop.", what=what, instance=b)
    return int(start), int(stop), label
