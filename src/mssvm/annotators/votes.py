"""Votes of annotators in flat arrays.

The votes of one instance are either a mapping of annotators to labels in the shape of y (``MISSING`` where an annotator
abstained), or labels in the shape of y, where the entry of a site may be a mapping of annotators to votes:

    {"ann": ["B", "I", "O"], "bob": ["B", MISSING, "O"]}
    [{"ann": "B", "bob": "B"}, {"ann": "I"}, "O"]

A site that is not a mapping has a *gold* label (or a candidate set, or none); so does a site with a vote of the
annotator ``GOLD``, who is always right. A vote may itself be a set of labels.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mssvm.core.arrays import Floats, Ints
from mssvm.core.checks import shown
from mssvm.core.errors import InputError
from mssvm.core.topology import offsets
from mssvm.data.labels import CANDIDATES, MISSING, LabelVocabulary, flat_sites, is_missing, plain

GOLD = "gold"  # the annotator who is always right
Vote = tuple[int, Hashable, Any]  # site within the instance, annotator, label or set of labels


def with_gold(votes: Sequence[Mapping[Any, Any]], gold: Sequence[Any]) -> list[dict[Any, Any]]:
    """Votes by annotator, with the labels ``gold`` (MISSING where unknown) as votes of ``GOLD``.

    So every instance shows the shape of its labels, even one without votes.

    >>> from mssvm.annotators.votes import with_gold
    >>> with_gold([{"ann": ["B", "I"]}, {}], [[None, None], ["O"]])
    [{'gold': [None, None], 'ann': ['B', 'I']}, {'gold': ['O']}]
    """
    return [{GOLD: labels, **given} for given, labels in zip(votes, gold, strict=True)]


@dataclass(frozen=True, eq=False)
class RawVotes:
    """Votes as they were given, instance by instance; ``gold`` is the true label of every site, MISSING if unknown.

    ``shapes`` are those of the labels of every instance, in whose C order sites are numbered.
    """

    votes: list[list[Vote]]
    gold: list[list[Any]]
    shapes: list[tuple[int, ...]]

    @classmethod
    def parse(cls, votes: Any, depth: int, missing_label: Hashable = None) -> RawVotes:
        """Read what a user gives; ``depth`` is the number of axes of one instance's labels."""
        if isinstance(votes, Mapping) or not isinstance(votes, Iterable):
            raise InputError(f"votes must be a sequence with the votes of every instance, got {shown(votes)}.")
        every_vote = []
        every_gold = []
        shapes = []
        for instance, item in enumerate(votes):
            if item is None and depth > 0:
                reason = "there are no votes; give a label, or None, for every site."
                raise InputError(reason, what="votes", instance=instance)
            if isinstance(item, Mapping) and depth > 0:
                found, gold = _by_annotator(item, depth, instance, missing_label)
                example = next(iter(item.values()), ())
            else:
                found, gold = _by_site(flat_sites(item, depth, instance, "votes"), missing_label)
                example = item
            every_vote.append(found)
            every_gold.append([MISSING if is_missing(label, missing_label) else label for label in gold])
            shapes.append(_shape(example, depth))
        return cls(every_vote, every_gold, shapes)

    def labels(self, classes: Sequence[Hashable]) -> list[Any]:
        """Labels in the shape of y: gold labels as they are, any of the classes where there are only votes."""
        out = []
        any_class = list(classes)
        for votes, gold, shape in zip(self.votes, self.gold, self.shapes, strict=True):
            sites = np.empty(len(gold), dtype=object)
            for site, label in enumerate(gold):
                sites[site] = label
            for site in {site for site, _, _ in votes}:
                if is_missing(sites[site]):
                    sites[site] = any_class
            out.append(sites.reshape(shape) if shape else sites[0])
        return out

    def classes(self, missing_label: Hashable = None) -> tuple[Hashable, ...]:
        """All labels that occur, as votes or as gold labels, ascending."""
        members: list[Any] = [label for found in self.votes for _, _, label in found]
        members += [label for gold in self.gold for label in gold]
        return LabelVocabulary.learn([members], 1, None, missing_label).classes

    def annotators(self) -> tuple[Hashable, ...]:
        """All annotators, in the order in which they first vote."""
        return tuple(dict.fromkeys(name for found in self.votes for _, name, _ in found))


def _by_annotator(
    item: Mapping[Hashable, Any], depth: int, instance: int, missing_label: Hashable
) -> tuple[list[Vote], list[Any]]:
    votes: list[Vote] = []
    gold: list[Any] = []
    n_sites = 0
    for name, labels in item.items():
        sites = flat_sites(labels, depth, instance, f"votes of {name!r}")
        if n_sites and len(sites) != n_sites:
            reason = f"annotator {name!r} has votes for {len(sites)} sites, another one for {n_sites}."
            raise InputError(reason, what="votes", instance=instance)
        n_sites = len(sites)
        if name == GOLD:
            gold = sites
            continue
        votes += [(site, name, label) for site, label in enumerate(sites) if not is_missing(label, missing_label)]
    return votes, gold or [MISSING] * n_sites


def _shape(labels: Any, depth: int) -> tuple[int, ...]:
    """The lengths of the axes of one instance's labels."""
    sizes = []
    for _ in range(depth):
        sizes.append(len(labels))
        labels = labels[0] if len(labels) else ()
    return tuple(sizes)


def _by_site(sites: list[Any], missing_label: Hashable) -> tuple[list[Vote], list[Any]]:
    votes: list[Vote] = []
    gold: list[Any] = []
    for site, value in enumerate(sites):
        if not isinstance(value, Mapping):
            gold.append(value)
            continue
        gold.append(value.get(GOLD, MISSING))
        for name, label in value.items():
            if name != GOLD and not is_missing(label, missing_label):
                votes.append((site, name, label))
    return votes, gold


@dataclass(frozen=True, eq=False)
class Votes:
    """Vote k is by annotator ``annotator[k]`` on site ``site[k]``, for the classes ``label[ptr[k] : ptr[k + 1]]``.

    A plain vote names one class, a set several. ``previous[k]`` is the class that the same annotator gave to the site
    before, ``n_classes`` where there is none (the first site, an abstention, a set). Sites are numbered over all
    instances.
    """

    names: tuple[Hashable, ...]
    n_sites: int
    n_classes: int
    annotator: Ints
    site: Ints
    ptr: Ints
    label: Ints
    previous: Ints

    @classmethod
    def encode(
        cls, raw: RawVotes, sizes: Ints, vocabulary: LabelVocabulary, names: Sequence[Hashable] | None = None
    ) -> Votes:
        """Votes as numbers; ``sizes`` has the number of sites of every instance. Annotators who are not among ``names``
        are appended to them."""
        if len(raw.votes) != len(sizes):
            raise InputError(f"votes has {len(raw.votes)} instances and X has {len(sizes)}; they must match.")
        number = {name: k for k, name in enumerate(names if names is not None else raw.annotators())}
        first_site = offsets(np.asarray(sizes, dtype=np.int64))
        annotator: list[int] = []
        site: list[int] = []
        count: list[int] = []
        label: list[int] = []
        for instance, found in enumerate(raw.votes):
            begin = int(first_site[instance])
            for at, name, value in found:
                if at >= sizes[instance]:
                    reason = f"a vote on site {at}, but X has {sizes[instance]} sites."
                    raise InputError(reason, what="votes", instance=instance)
                members = value if isinstance(value, CANDIDATES) else (value,)
                if not len(members):
                    reason = f"the vote of annotator {name!r} is an empty set; list at least one label, or None."
                    raise InputError(reason, what="votes", instance=instance, site=at)
                codes = [_code(vocabulary, member, name, instance, at) for member in members]
                annotator.append(number.setdefault(name, len(number)))
                site.append(begin + at)
                count.append(len(codes))
                label += codes
        arrays = [np.array(values, dtype=np.int64) for values in (annotator, site, label)]
        ptr = offsets(np.array(count, dtype=np.int64))
        previous = _previous(arrays[0], arrays[1], ptr, arrays[2], first_site, vocabulary.n_classes)
        n_sites = int(first_site[-1])
        return cls(tuple(number), n_sites, vocabulary.n_classes, arrays[0], arrays[1], ptr, arrays[2], previous)

    def __len__(self) -> int:
        return len(self.annotator)

    def counts(self) -> Floats:
        """How often each class (columns) was voted for at each site; a set counts for its members in equal parts."""
        sizes = np.diff(self.ptr)
        share = np.repeat(1.0 / np.maximum(sizes, 1), sizes)
        where = np.repeat(self.site, sizes) * self.n_classes + self.label
        flat = np.bincount(where, weights=share, minlength=self.n_sites * self.n_classes)
        return np.asarray(flat.reshape(self.n_sites, self.n_classes), dtype=np.float64)


def _code(vocabulary: LabelVocabulary, label: Any, name: Hashable, instance: int, site: int) -> int:
    try:
        return vocabulary.table[plain(label)]
    except (KeyError, TypeError):
        reason = f"annotator {name!r} votes {shown(label)}, which is not among the classes {vocabulary.shown}."
        raise InputError(reason, what="votes", instance=instance, site=site) from None


def _previous(annotator: Ints, site: Ints, ptr: Ints, label: Ints, first_site: Ints, n_classes: int) -> Ints:
    """The class that the annotator of a vote gave to the site before it."""
    previous = np.full(len(annotator), n_classes, dtype=np.int64)
    if not len(annotator):
        return previous
    single = np.diff(ptr) == 1
    first_label = label[np.minimum(ptr[:-1], len(label) - 1)]
    begins = np.zeros(int(first_site[-1]) + 1, dtype=bool)
    begins[first_site] = True
    order = np.lexsort((site, annotator))
    earlier = order[:-1]
    later = order[1:]
    follows = (annotator[earlier] == annotator[later]) & (site[earlier] + 1 == site[later])
    follows &= single[earlier] & ~begins[site[later]]
    previous[later[follows]] = first_label[earlier[follows]]
    return previous
