"""Belief propagation at two temperatures on any graph: sum-, max-, mixed-product and everything between.

    eps_y = eps_h > 0, or one role only      sum-product at that temperature; exact on forests
    eps_y > 0, eps_h > 0                     the two-temperature recursion; hidden components are merged where cheap
    eps_y = 0 < eps_h                        marginal MAP: several starts, best y by evaluated Q, sum-product given y
    eps_y = eps_h = 0                        max-product: every variable an output

The value is the region free energy for eps_y > 0 and Q(y) of the decoded y at eps_y = 0.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from mssvm.core.arrays import Floats, Ints
from mssvm.core.errors import InputError
from mssvm.core.params import Settings
from mssvm.core.potentials import Belief, Potentials, Query
from mssvm.core.topology import Batch
from mssvm.engines import engine_of
from mssvm.engines.base import Engine
from mssvm.engines.messages import Schedule
from mssvm.inference.propagation.effort import Effort
from mssvm.inference.propagation.plan import PropagationPlan
from mssvm.inference.propagation.search import STARTS


@dataclass(frozen=True)
class Propagate(Settings):
    """Approximate inference by messages; ``effort`` is the main setting: "fast", "normal", "careful", or a number.

    The numbers 0, 1, 2 are the three names; each step above 2 doubles the restarts of "careful". ``threads`` changes
    the time, never the result. ``scaled=False`` forces the log-space kernel. ``starts`` and ``max_sweeps`` override the
    effort. ``schedule`` is the order of messages ("sequential" or "flooding"), ``damping`` the share of the old message
    in the new one, ``tolerance`` the change below which messages have converged, ``seed`` that of random starts.
    ``merging`` sums small hidden components out into factors over outputs; ``keep_messages`` returns the messages in
    ``Belief.extras``, for a warm start.

    >>> by_messages = ms.inference.Propagate(effort="fast")
    >>> ms.HCRF(ms.Chain(), inference=by_messages, random_state=0, max_iter=20).fit(X, y).score(X, y)
    1.0
    """

    effort: int | str = "normal"
    damping: float = 0.0
    max_sweeps: int | None = None
    tolerance: float = 1e-9
    schedule: str = "sequential"
    seed: int = 0
    threads: int = 1
    merging: bool = True
    scaled: bool = True
    starts: tuple[str, ...] | None = None
    keep_messages: bool = False

    def __post_init__(self) -> None:
        if self.schedule not in ("sequential", "flooding"):
            raise InputError(f"schedule is {self.schedule!r}; it must be 'sequential' or 'flooding'.")
        if self.threads < 1:
            raise InputError(f"threads must be at least 1, got {self.threads}.")
        if not 0.0 <= self.damping < 1.0:
            raise InputError(f"damping is {self.damping}; it must be at least 0 and less than 1.")
        unknown = [s for s in self.starts or () if s not in STARTS]
        if unknown:
            raise InputError(f"start {unknown[0]!r} is unknown; it must be one of {', '.join(map(repr, STARTS))}.")
        self.budget()

    def budget(self) -> Effort:
        """The effort in terms of starts and sweeps."""
        effort = Effort.of(self.effort)
        return replace(
            effort,
            starts=effort.starts if self.starts is None else self.starts,
            sweeps=effort.sweeps if self.max_sweeps is None else self.max_sweeps,
            schedule=Schedule(self.damping, self.schedule == "flooding", self.tolerance),
        )

    @cached_property
    def _engine(self) -> Engine:
        return engine_of("auto", self.threads)

    def plan(self, batch: Batch, engine: Engine | None = None) -> PropagationPlan:
        """Message passing on a batch, on an engine (default: the usual one with ``threads`` threads)."""
        return PropagationPlan(self, batch, engine or self._engine)

    def __call__(
        self,
        batch: Batch,
        theta: Potentials,
        query: Query,
        eps_y: float,
        eps_h: float,
        candidates: list[Ints] | None = None,
        messages: Floats | None = None,
    ) -> Belief:
        """``candidates``: assignments whose outputs are judged too; ``messages``: a warm start, from ``extras``."""
        return self.plan(batch).bind(query, eps_y, eps_h).run(theta, candidates or [], messages)
