"""The one error hierarchy. A message says what was wrong, where, and what to do."""

from __future__ import annotations

from bisect import bisect_right
from typing import Any

__all__ = [
    "ClusterError",
    "InfeasibleError",
    "InputError",
    "MemoryLimitError",
    "MissingExtraError",
    "MssvmError",
    "MssvmWarning",
    "UnsupportedError",
]


class MssvmError(Exception):
    """Base of every error raised by the package.

    An error about the caller's data has fields for the place: ``InputError("a feature is NaN", what="X", instance=2,
    site=0)`` reads "X, instance 2, site 0: a feature is NaN". ``reason`` is the message without the place, so that code
    that knows the file and line of an instance can raise it again with those.

    >>> ms.errors.InputError("a feature is NaN.", what="X", instance=2, site=0)
    InputError('X, instance 2, site 0: a feature is NaN.')
    """

    def __init__(
        self, reason: str = "", *, what: str = "X", instance: int | None = None, site: int | None = None
    ) -> None:
        self.reason = reason
        self.instance = instance
        self.site = site
        message = reason
        if instance is not None and site is not None:
            message = f"{what}, instance {instance}, site {site}: {reason}"
        elif instance is not None:
            message = f"{what}, instance {instance}: {reason}"
        super().__init__(message)


class InputError(MssvmError, ValueError):
    """The caller's data or parameters are unusable.

    >>> ms.CRF(ms.Chain(), C=-1.0).fit(X, y)
    Traceback (most recent call last):
    mssvm.core.errors.InputError: C must be ...
    """


class MemoryLimitError(MssvmError, MemoryError):
    """A computation would need more memory than allowed, or than the machine has.

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
    """A combination of settings that makes sense mathematically, but is not implemented here.

    >>> ms.SSVM(ms.Chain(), solver="bcfw", l1_ratio=0.5).fit(X, y)
    Traceback (most recent call last):
    mssvm.core.errors.UnsupportedError: ...
    """


class MissingExtraError(MssvmError, ImportError):
    """A package of an optional extra is not installed.

    >>> issubclass(ms.errors.MissingExtraError, ImportError)                      # "mssvm.torch needs PyTorch; run ..."
    True
    """


class ClusterError(MssvmError, RuntimeError):
    """A cluster failed, and other workers could not take over.

    >>> issubclass(ms.errors.ClusterError, ms.errors.MssvmError)
    True
    """


class MssvmWarning(UserWarning):
    """Something worked, but probably not as intended.

    >>> with warnings.catch_warnings(record=True) as caught:
    ...     warnings.simplefilter("always")
    ...     fitted = ms.HCRF(ms.Chain(hidden=2), init="zeros").fit(X, y)
    >>> caught[0].category.__name__
    'MssvmWarning'
    """


def at_row(row: int, ptr: Any) -> dict[str, int]:
    """The place of a flat row as fields of an error; the rows of instance b are ``ptr[b] : ptr[b+1]``."""
    instance = bisect_right(ptr, row) - 1
    return {"instance": instance, "site": int(row - ptr[instance])}
