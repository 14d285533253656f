"""Labels of several people for the sites of one item: where they agree, and where they do not.

A person's entry for a site is a label, a set of candidate labels (the others were rejected), or None.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

Site = str | frozenset[str] | None
UNNAMED = "unnamed"  # the annotator of marks without a name


def agreed(votes: Iterable[Site]) -> tuple[Site, bool]:
    """The labels that all votes on one site allow (None without votes), and whether the votes contradict each other."""
    left: frozenset[str] | None = None
    for vote in votes:
        if vote is None:
            continue
        allowed = frozenset([vote]) if isinstance(vote, str) else vote
        left = allowed if left is None else left & allowed
    if left is None:
        return None, False
    if not left:
        return None, True
    return single(left), False


def single(allowed: frozenset[str]) -> Site:
    """The label of a set with one member, else the set."""
    if len(allowed) > 1:
        return allowed
    (label,) = allowed
    return label


def consensus(by_name: Mapping[str, Sequence[Site]], otherwise: Sequence[Site]) -> tuple[list[Site], list[int]]:
    """The agreed entry of every site, ``otherwise`` without a vote; and the sites on which people disagree."""
    labels: list[Site] = []
    disputed = []
    for k, fallback in enumerate(otherwise):
        label, differ = agreed(row[k] for row in by_name.values())
        if differ:
            disputed.append(k)
        elif label is None:
            label = fallback
        labels.append(label)
    return labels, disputed
