"""Settings of solvers under their former names: accepted for one more release, with a ``FutureWarning``.

The budget of every solver is ``max_iter``, as in scikit-learn. Until version 0.2 each solver had a name of its own for
it (``max_iterations``, ``max_outer``, ``max_passes``, ``max_rounds``, ``n_epochs``).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, TypeVar

C = TypeVar("C", bound=type)


def former_names(**new_names: str) -> Callable[[C], C]:
    """Class decorator: ``@former_names(old="new")`` lets ``old`` be passed to the constructor and be read."""

    def decorate(cls: C) -> C:
        generated: Callable[..., None] = cls.__init__  # type: ignore[misc]

        @wraps(generated)
        def init(self: Any, *args: Any, **settings: Any) -> None:
            generated(self, *args, **with_new_names(cls.__name__, new_names, settings))

        cls.__init__ = init  # type: ignore[misc]
        cls.former_names = new_names  # type: ignore[attr-defined]
        for old, new in new_names.items():
            setattr(cls, old, _former_attribute(cls.__name__, old, new))
        return cls

    return decorate


def with_new_names(owner: str, new_names: Mapping[str, str], settings: Mapping[str, Any]) -> dict[str, Any]:
    """``settings`` with the former names replaced, and a warning for each."""
    renamed: dict[str, Any] = {}
    for name, value in settings.items():
        if name not in new_names:
            renamed.setdefault(name, value)
            continue
        new = new_names[name]
        warnings.warn(f"{owner}({name}=...) is now {owner}({new}=...).", FutureWarning, stacklevel=3)
        renamed[new] = value
    return renamed


def _former_attribute(owner: str, old: str, new: str) -> property:
    def read(self: Any) -> Any:
        warnings.warn(f"{owner}.{old} is now {owner}.{new}.", FutureWarning, stacklevel=2)
        return getattr(self, new)

    return property(read, doc=f"Former name of ``{new}``.")
