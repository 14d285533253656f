"""Methods that only some estimators have, depending on their parameters.

scikit-learn's ``available_if`` hides such methods too, but its error says only that there is no such attribute. Here
the error of the check itself reaches the user, and says what to call instead.
"""

from __future__ import annotations

from collections.abc import Callable
from types import MethodType
from typing import Any


class AvailableMethod:
    """A method of the instances that ``check`` accepts; for others ``check`` raises ``AttributeError``, so that
    ``hasattr`` is False."""

    def __init__(self, method: Callable[..., Any], check: Callable[[Any], None]) -> None:
        self.method = method
        self.check = check
        self.__doc__ = method.__doc__

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        if instance is None:
            return self.method
        self.check(instance)
        return MethodType(self.method, instance)


def available_where(check: Callable[[Any], None]) -> Callable[[Callable[..., Any]], Any]:
    """Decorator: the method exists only on instances for which ``check`` raises no ``AttributeError``."""

    def decorate(method: Callable[..., Any]) -> Any:
        return AvailableMethod(method, check)

    return decorate
