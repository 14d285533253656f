"""Helper threads of a search, which share its incumbent, its bound and the open parts of its proof.

The search's own thread makes bounds and proves. Helpers, each with random choices of its own, search locally and, once
there is a proof with parts to spare, share their time between these and local search; the first one also asks the
starts. Native calls, in which nearly all of the time is spent, run side by side.

The first thread that proves the incumbent ends them all. An error of a helper ends the search, which raises it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import copy_context
from functools import partial
from threading import Thread
from time import monotonic
from typing import TYPE_CHECKING

from mssvm.core.threads import ONE_BLAS_THREAD, QUICK_SWITCHES
from mssvm.uai.local_search import LocalSearch

if TYPE_CHECKING:
    from mssvm.uai.proof import Proof
    from mssvm.uai.search import AnytimeSearch

# More threads than this would mostly wait for the interpreter.
MOST_THREADS = 16
# Conditioning is mostly Python, which one thread runs at a time: this number of helpers condition, the others walk.
MOST_CONDITIONING = 2
# Local search before a helper looks again for a proof; a helper without anything to do waits PAUSE_SECONDS.
SLICE_SECONDS = 0.25
MOST_KICKS = 6
PAUSE_SECONDS = 0.02
# At the end of a search, its helpers have this time for what they are at; they then end by themselves.
GRACE_SECONDS = 0.3


class Portfolio:
    """A search's own thread with ``threads - 1`` helpers, which begin once outputs are known and evaluated."""

    def __init__(self, search: AnytimeSearch, threads: int) -> None:
        self.search = search
        self.n_helpers = min(threads, MOST_THREADS) - 1
        self.proof: Proof | None = None
        self._threads: list[Thread] = []
        self._errors: list[BaseException] = []

    def run(self, work: Callable[[], None]) -> None:
        """Run the search's own ``work``, in which ``start`` and ``share`` are called; the helpers end with it."""
        if not self.n_helpers:
            work()
            return
        with ONE_BLAS_THREAD, QUICK_SWITCHES:
            try:
                work()
            finally:
                self._end()
        if self._errors:
            raise self._errors[0]

    def start(self, ask: bool) -> None:
        """Start the helpers, which search locally until ``share`` gives them a proof; one asks the starts before."""
        self.search.helped = self.n_helpers > 0
        for number in range(1, self.n_helpers + 1):
            search = self.search.beside(number)
            search.conditions = number <= MOST_CONDITIONING
            help_in_context = partial(copy_context().run, self._help, search, ask and number == 1)
            thread = Thread(target=help_in_context, name=f"mssvm-search-{number}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def share(self, proof: Proof) -> None:
        """Let the helpers take part in this proof."""
        self.proof = proof

    def _help(self, search: AnytimeSearch, ask: bool) -> None:
        """The work of one helper, which may ``ask`` the starts when a search without helpers would."""
        try:
            local_search = search.find_outputs() if ask else LocalSearch(search)
            while self.proof is None and not search.ended:
                began = monotonic()
                local_search.run(began + SLICE_SECONDS, MOST_KICKS)
                if monotonic() - began < PAUSE_SECONDS:
                    search.stopping.wait(PAUSE_SECONDS)
            if not search.ended:
                search.offer_later()
            if self.proof is not None:
                self.proof.beside(search).run_with(local_search)
        except BaseException as error:
            self._errors.append(error)
            search.stopping.set()

    def _end(self) -> None:
        self.search.stopping.set()
        deadline = monotonic() + GRACE_SECONDS
        try:
            for thread in self._threads:
                thread.join(max(deadline - monotonic(), 0.0))
        finally:
            self.search.incumbent.close()
