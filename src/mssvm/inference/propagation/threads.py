"""Threads that live as long as one call: starting them anew for every step would cost more than small steps do."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any

# Calls a function with the entries of columns, row by row, in any order and on any thread; returns when all are done.
Each = Callable[..., None]


def in_turn(action: Callable[..., None], *columns: Iterable[Any]) -> None:
    """``Each`` without threads."""
    for row in zip(*columns, strict=True):
        action(*row)


def _at_once(pool: ThreadPoolExecutor, action: Callable[..., None], *columns: Iterable[Any]) -> None:
    for _ in pool.map(action, *columns):
        pass


@contextmanager
def workers(threads: int) -> Iterator[Each]:
    """``Each`` on that many threads."""
    if threads == 1:
        yield in_turn
        return
    with ThreadPoolExecutor(threads) as pool:
        yield partial(_at_once, pool)
