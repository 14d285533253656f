"""The one error hierarchy. A message says what was wrong, where, and what to do."""

from __future__ import annotations


class MssvmError(Exception):
    """Base of every error raised by the package."""


class InputError(MssvmError, ValueError):
    """The caller's data or parameters are unusable."""


class MemoryLimitError(MssvmError, MemoryError):
    """An exact computation would need more memory than allowed."""


class InfeasibleError(MssvmError, ValueError):
    """No assignment satisfies the masks and the forbidden table entries."""


class UnsupportedError(MssvmError, ValueError):
    """The combination asked for is valid mathematics that this component cannot do."""


class MssvmWarning(UserWarning):
    """Something worked, but probably not as intended."""
