"""Settings objects as scikit-learn sees parameters: losses, solvers and inference that a search can reach into.

SSVM(loss=Hamming()).set_params(loss__scale=2.0)        GridSearchCV(SSVM(loss=Hamming()), {"loss__scale": [1, 2]})
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any, Self

from mssvm.core.errors import InputError


class Settings:
    """Base of dataclasses of settings (frozen or not) with ``get_params`` and ``set_params``.

    The generated ``repr`` names every setting, so equal settings read alike from run to run. A subclass keeps what it
    is given: ``sklearn.base.clone`` demands that every parameter comes back as the same object. What it computes from
    them belongs into a ``cached_property``.
    """

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Settings by name; with ``deep`` also those of settings that have their own, as ``outer__inner``."""
        own = {f.name: getattr(self, f.name) for f in fields(self) if f.init}  # type: ignore[arg-type]
        inner = {
            f"{name}__{key}": part
            for name, value in own.items()
            if deep and hasattr(value, "get_params") and not isinstance(value, type)
            for key, part in value.get_params().items()
        }
        return own | inner

    def set_params(self, **params: Any) -> Self:
        """Change settings in place (as scikit-learn does to its own clones), with the checks of the constructor."""
        known = self.get_params(deep=False)
        nested: dict[str, dict[str, Any]] = {}
        changed: dict[str, Any] = {}
        for key, value in params.items():
            name, _, rest = key.partition("__")
            if name not in known:
                raise InputError(f"{type(self).__name__} has no parameter {name!r}; it has {', '.join(known)}.")
            if rest:
                nested.setdefault(name, {})[rest] = value
            else:
                changed[name] = value
        type(self)(**known | changed)  # raises before anything has changed
        names = {f.name for f in fields(self)}  # type: ignore[arg-type]
        for name in [name for name in vars(self) if name not in names]:
            del self.__dict__[name]  # what was computed from the settings before
        for name, value in changed.items():
            object.__setattr__(self, name, value)
        for name, inner in nested.items():
            getattr(self, name).set_params(**inner)
        return self
