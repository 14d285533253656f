"""The one error hierarchy. A message says what was wrong, where, and what to do."""

from __future__ import annotations

from bisect import bisect_right
from typing import Any

__all__ = [
    "ClusterError", "InfeasibleError", "InputError", "MemoryLimitError", "MissingExtraError", "MssvmError",
    "MssvmWarning", "UnsupportedError",
]  # fmt: skip


class MssvmError(Exception):
    """Base of every error raised by the package.

    An error about the caller's data says which by fields: ``InputError("a feature is NaN", what="X", instance=2,
    site=0)`` reads "X, instance 2, site 0: a feature is NaN", and whoever knows where the instance comes from can say
    that instead (``reason`` is the message without the place).

    >>> ms.errors.InputError("a feature is NaN.", what="X", instance=2, site=0)
    InputError('X, instance 2, site 0: a feature is NaN.')
    """

    def __init__(
        self, reason: str = "", *, what: str = "X", instance: int | None = None, site: int | None = None
    ) -> None:
        self.reason, self.instance, self.site = reason, instance, site
        place = "" if instance is None else f"{what}, instance {instance}"
        super().__init__(f"{place}{'' if site is None else f', site {site}'}: {reason}" if place else reason)


class InputError(MssvmError, ValueError):
    """The caller's data or parameters are unusable.

    >>> ms.CRF(ms.Chain(), C=-1.0).fit(X, y)
    Traceback (most recent call last):
    mssvm.core.errors.InputError: C must be ...
    """


class MemoryLimitError(MssvmError, MemoryError):
    """An exact computation would need more memory than allowed.

    >>> grid = np.zeros((40, 40, 1))
    >>> ms.CRF(ms.Grid(), inference="exact", memory_limit=1000).fit([grid], [np.arange(1600).reshape(40, 40) % 2])
    Traceback (most recent call last):
    mssvm.core.errors.MemoryLimitError: ...
    """


class InfeasibleError(MssvmError, ValueError):
    """No assignment satisfies the masks and the forbidden table entries.

    >>> ms.CRF(ms.Chain(forbidden=[("B", "I")])).fit(X, y)
    Traceback (most recent call last):
    mssvm.core.errors.InfeasibleError: ...
    """


class UnsupportedError(MssvmError, ValueError):
    """The combination asked for is valid mathematics that this component cannot do.

    >>> ms.SSVM(ms.Chain(), solver="bcfw", l1_ratio=0.5).fit(X, y)
    Traceback (most recent call last):
    mssvm.core.errors.UnsupportedError: ...
    """


class MissingExtraError(MssvmError, ImportError):
    """A package that an extra brings is not installed.

    >>> issubclass(ms.errors.MissingExtraError, ImportError)                      # "mssvm.torch needs PyTorch; run ..."
    True
    """


class ClusterError(MssvmError, RuntimeError):
    """A cluster failed in a way that going on elsewhere could not mend.

    >>> issubclass(ms.errors.ClusterError, ms.errors.MssvmError)
    True
    """


class MssvmWarning(UserWarning):
    """Something worked, but probably not as intended.

    >>> with warnings.catch_warnings(record=True) as told:
    ...     warnings.simplefilter("always")
    ...     fitted = ms.HCRF(ms.Chain(hidden=2), init="zeros").fit(X, y)
    >>> told[0].category.__name__
    'MssvmWarning'
    """


def at_row(row: int, ptr: Any) -> dict[str, int]:
    """The fields of an error about a flat row, where the rows of instance b are ``ptr[b] : ptr[b+1]``."""
    b = bisect_right(ptr, row) - 1
    return {"instance": b, "site": int(row - ptr[b])}
