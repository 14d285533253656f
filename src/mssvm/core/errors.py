"""The one error hierarchy. A message says what was wrong, where, and what to do."""

from __future__ import annotations

from bisect import bisect_right
from typing import Any


class MssvmError(Exception):
    """Base of every error raised by the package.

    An error about the caller's data says which by fields: ``InputError("a feature is NaN", what="X", instance=2,
    site=0)`` reads "X, instance 2, site 0: a feature is NaN", and whoever knows where the instance comes from can say
    that instead (``reason`` is the message without the place).
    """

    def __init__(
        self, reason: str = "", *, what: str = "X", instance: int | None = None, site: int | None = None
    ) -> None:
        self.reason, self.instance, self.site = reason, instance, site
        place = "" if instance is None else f"{what}, instance {instance}"
        super().__init__(f"{place}{'' if site is None else f', site {site}'}: {reason}" if place else reason)


class InputError(MssvmError, ValueError):
    """The caller's data or parameters are unusable."""


class MemoryLimitError(MssvmError, MemoryError):
    """An exact computation would need more memory than allowed."""


class InfeasibleError(MssvmError, ValueError):
    """No assignment satisfies the masks and the forbidden table entries."""


class UnsupportedError(MssvmError, ValueError):
    """The combination asked for is valid mathematics that this component cannot do."""


class MissingExtraError(MssvmError, ImportError):
    """A package that an extra brings is not installed."""


class ClusterError(MssvmError, RuntimeError):
    """A cluster failed in a way that going on elsewhere could not mend."""


class MssvmWarning(UserWarning):
    """Something worked, but probably not as intended."""


def at_row(row: int, ptr: Any) -> dict[str, int]:
    """The fields of an error about a flat row, where the rows of instance b are ``ptr[b] : ptr[b+1]``."""
    b = bisect_right(ptr, row) - 1
    return {"instance": b, "site": int(row - ptr[b])}
