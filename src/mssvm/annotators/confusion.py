"""Confusion tables of annotators: p_a(vote | true label), and the evidence that votes give for true labels.

Every annotator has one table or, with ``context="previous"``, one table for each class that the annotator may have
voted for on the site before: a crowd worker who has begun a span continues it, whatever the truth (Simpson and Gurevych
2019, sequential annotators). Tables shrink towards a table that all annotators share, with ``strength`` pseudo-votes
per row; the shared table shrinks towards the identity, with ``diagonal`` pseudo-votes per row. A table estimated from
few votes therefore does not overfit, and without any votes every annotator counts as almost perfect. With ``groups`` an
annotator's table shrinks towards that of the group, and the group's towards the shared one.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass

import numpy as np

from mssvm.annotators.votes import Votes
from mssvm.core.arrays import Floats, Ints
from mssvm.core.checks import count, number, shown
from mssvm.core.errors import InputError
from mssvm.core.params import Settings

CONTEXTS = ("auto", "none", "previous")
SPREAD = 0.1  # pseudo-votes of the shared table off the diagonal: no vote is impossible


@dataclass(frozen=True)
class Annotators(Settings):
    """How annotators are modelled.

    Parameters
    ----------
    context : "auto", "none" or "previous"
        What a vote depends on besides the true label: nothing, or the same annotator's vote on the site before. "auto"
        is "previous" on sequences and "none" elsewhere. Use "none" for labelling functions that mark spans: their votes
        inside a span follow from the first one, and would carry no information.
    strength : float
        Number of pseudo-votes, distributed as in the shared table, that are added to every row of an annotator's table.
    diagonal : float
        Number of pseudo-votes for the true label that are added to every row of the shared table.
    weight : float
        Exponent of the votes' likelihood, in (0, 1]. With an exponent below 1, votes count for less than independent
        votes would: annotators make the same mistakes, and one mistake often covers several sites.
    groups : mapping of annotators to names of groups
        Annotators of one group (experts, students, one version of a program) are alike: their tables shrink towards
        the group's. Annotators without a group shrink towards the table that all share.
    max_iter : int
        Rounds of expectation (true labels given votes and features) and maximisation (tables and weights).
    tol : float
        Rounds end when the probabilities of a site move by less than this in all, on average over sites.

    >>> crowd = [[{"ann": "B", "bob": "B"}, {"ann": "I", "bob": "O"}, {"ann": "O"}], {"ann": y[1], "cat": y[1]}]
    >>> ms.HCRF(ms.Chain(), annotators=ms.Annotators(), random_state=0).fit(X, crowd).predict(X)[0].tolist()
    ['B', 'I', 'O']
    """

    context: str = "auto"
    strength: float = 20.0
    diagonal: float = 50.0
    weight: float = 1.0
    groups: Mapping[Hashable, Hashable] | None = None
    max_iter: int = 10
    tol: float = 1e-3

    def __post_init__(self) -> None:
        if self.groups is not None and not isinstance(self.groups, Mapping):
            raise InputError(f"groups must map annotators to names of groups, got {shown(self.groups)}.")
        if self.context not in CONTEXTS:
            raise InputError(f"context must be 'auto', 'none' or 'previous', got {self.context!r}.")
        number(self.strength, "strength", low=0.0)
        number(self.diagonal, "diagonal", low=0.0)
        number(self.weight, "weight", above=0.0, high=1.0)
        count(self.max_iter, "max_iter", 1)
        number(self.tol, "tol", low=0.0)

    def sequential(self, depth: int) -> bool:
        """Whether votes depend on the annotator's previous vote, for labels of ``depth`` axes."""
        if self.context == "auto":
            return depth == 1
        if self.context == "previous" and depth != 1:
            raise InputError("context='previous' is for sequences; use context='none'.")
        return self.context == "previous"


@dataclass(frozen=True, eq=False)
class Confusion:
    """``log_tables[a, c, y, v]``: log p of vote v by annotator a, in context c, where the truth is y.

    There is one context, or one for each class of the previous vote and one for no previous vote. ``shared`` (contexts,
    y, v) holds the probabilities that the annotators' tables shrink towards; it is the table of annotators without
    votes in training.
    """

    log_tables: Floats
    shared: Floats
    sequential: bool

    @classmethod
    def estimate(
        cls, votes: Votes, posterior: Floats, settings: Annotators, sequential: bool, shared: Floats | None = None
    ) -> Confusion:
        """The tables of highest posterior density, given the probabilities (sites, classes) of the true labels.

        A vote for a set counts for its members in equal parts. Without a ``shared`` table it is estimated, too.
        """
        totals = expected_counts(votes, posterior, sequential)
        if shared is None:
            shared = totals.sum(axis=0) + settings.diagonal * np.eye(votes.n_classes) + SPREAD
            shared /= shared.sum(axis=-1, keepdims=True)
        strength = max(settings.strength, 1e-12)
        tables = totals + strength * _centres(votes.names, totals, shared, strength, settings.groups or {})
        tables /= tables.sum(axis=-1, keepdims=True)
        with np.errstate(divide="ignore"):
            return cls(np.log(tables), shared, sequential)

    def evidence(self, votes: Votes, weight: float = 1.0) -> Floats:
        """(sites, classes): ``weight`` times the log likelihood of the votes on a site, 0 for the best true label."""
        total = self.log_likelihood(votes)
        best = total.max(axis=1, keepdims=True)
        return weight * np.where(np.isfinite(best), total - best, total)

    def log_likelihood(self, votes: Votes) -> Floats:
        """(sites, classes): the log likelihood of the votes on a site for each true label."""
        with np.errstate(divide="ignore"):
            unseen = np.log(self.shared)
        n_unseen = len(votes.names) - len(self.log_tables)
        tables = self.log_tables
        if n_unseen > 0:
            tables = np.concatenate([tables, np.broadcast_to(unseen, (n_unseen, *unseen.shape))])
        sizes = np.diff(votes.ptr)
        annotator = np.repeat(votes.annotator, sizes)
        context = np.repeat(_contexts(votes, self.sequential), sizes)
        by_member = tables[annotator, context, :, votes.label]
        if len(by_member) and np.any(sizes != 1):
            by_member = np.logaddexp.reduceat(by_member, votes.ptr[:-1], axis=0)
        total = np.empty((votes.n_sites, votes.n_classes))
        for state in range(votes.n_classes):
            total[:, state] = np.bincount(votes.site, weights=by_member[:, state], minlength=votes.n_sites)
        return total


def _centres(
    names: tuple[Hashable, ...],
    totals: Floats,
    shared: Floats,
    strength: float,
    groups: Mapping[Hashable, Hashable],
) -> Floats:
    """[annotator, context, y, v]: the table that each annotator's shrinks towards: that of the group, or else the
    shared one."""
    centres = np.broadcast_to(shared, totals.shape).copy()
    for group in dict.fromkeys(groups.values()):
        members = [k for k, name in enumerate(names) if name in groups and groups[name] == group]
        if not members:
            continue
        table = totals[members].sum(axis=0) + strength * shared
        centres[members] = table / table.sum(axis=-1, keepdims=True)
    return centres


def _contexts(votes: Votes, sequential: bool) -> Ints:
    """The context of every vote: the class of the annotator's vote before, or the same for all."""
    return votes.previous if sequential else np.zeros(len(votes), dtype=np.int64)


def expected_counts(votes: Votes, posterior: Floats, sequential: bool) -> Floats:
    """[annotator, context, true label, vote]: expected counts, given probabilities of the true labels."""
    k = votes.n_classes
    n_contexts = k + 1 if sequential else 1
    sizes = np.diff(votes.ptr)
    share = np.repeat(1.0 / np.maximum(sizes, 1), sizes)
    cell = np.repeat(votes.annotator * n_contexts + _contexts(votes, sequential), sizes)
    site = np.repeat(votes.site, sizes)
    n_cells = len(votes.names) * n_contexts
    totals = np.empty((n_cells, k, k))
    for state in range(k):
        weights = share * posterior[site, state]
        flat = np.bincount(cell * k + votes.label, weights=weights, minlength=n_cells * k)
        totals[:, state, :] = flat.reshape(n_cells, k)
    return totals.reshape(len(votes.names), n_contexts, k, k)
