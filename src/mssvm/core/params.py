"""Settings objects with scikit-learn's parameter interface, so that a search can set parameters of a loss or solver.

SSVM(loss=Hamming()).set_params(loss__scale=2.0)        GridSearchCV(SSVM(loss=Hamming()), {"loss__scale": [1, 2]})
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any, Self

from mssvm.core.errors import InputError


class Settings:
    """Base of dataclasses of settings (frozen or not) with ``get_params`` and ``set_params``.

    The generated ``repr`` names every setting, so equal settings have equal texts from run to run. A subclass stores
    its arguments unchanged, as ``sklearn.base.clone`` requires that every parameter comes back as the same object.
    Values derived from them belong in a ``cached_property``.
    """

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Settings by name; with ``deep`` also the settings of settings, as ``outer__inner``."""
        params = {f.name: getattr(self, f.name) for f in fields(self) if f.init}  # type: ignore[arg-type]
        if not deep:
            return params
        for name, value in list(params.items()):
            if hasattr(value, "get_params") and not isinstance(value, type):
                for key, part in value.get_params().items():
                    params[f"{name}__{key}"] = part
        return params

    def set_params(self, **params: Any) -> Self:
        """Change settings in place (as scikit-learn does to its own clones), with the checks of the constructor."""
        current = self.get_params(deep=False)
        nested: dict[str, dict[str, Any]] = {}
        changed: dict[str, Any] = {}
        for key, value in params.items():
            name, _, rest = key.partition("__")
            if name not in current:
                raise InputError(f"{type(self).__name__} has no parameter {name!r}; it has {', '.join(current)}.")
            if rest:
                nested.setdefault(name, {})[rest] = value
            else:
                changed[name] = value
        type(self)(**current | changed)  # raises before anything has changed
        names = {f.name for f in fields(self)}  # type: ignore[arg-type]
        for name in [name for name in vars(self) if name not in names]:
            del self.__dict__[name]  # cached properties of the previous settings
        for name, value in changed.items():
            object.__setattr__(self, name, value)
        for name, inner in nested.items():
            getattr(self, name).set_params(**inner)
        return self
