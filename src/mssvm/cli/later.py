"""Modules that are imported on the way to what a command needs and that it does not use, put off until they are used.

scikit-learn's base class brings scipy.stats, scipy.special, SciPy's linear algebra, Narwhals and asyncio along, SciPy's
arrays NumPy's tools for tests, Numba a reader of settings: more than half of the time of a short command. Only the
command itself puts them off (``mssvm.__main__``), never the library in somebody else's process.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

SELDOM_USED = (
    "asyncio", "narwhals", "narwhals.stable", "narwhals.stable.v2", "numpy.f2py", "numpy.testing", "scipy.linalg",
    "scipy.sparse.csgraph", "scipy.sparse.linalg", "scipy.special", "scipy.stats", "yaml",
)  # fmt: skip
# What others take out while they are imported, and call later if ever.
TAKEN = {
    "scipy.sparse.csgraph": ("breadth_first_order", "connected_components", "laplacian"),
    "scipy.sparse.linalg": ("LinearOperator", "cg"),
}


class PutOff(MetaPathFinder, Loader):
    """Finds modules of the given names, and loads them when something in them is asked for."""

    def __init__(self, *names: str) -> None:
        self.names = set(names)

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        found = PathFinder.find_spec(name, path) if name in self.names else None
        if found is None:
            return None
        spec = ModuleSpec(name, self)
        # Where others are looked for, or names taken out, nobody needs the module to know that it is a package.
        if name in TAKEN or any(other.startswith(f"{name}.") for other in self.names):
            spec.submodule_search_locations = found.submodule_search_locations
        return spec

    def exec_module(self, module: ModuleType) -> None:
        module.__class__ = _Later

    def load(self, later: ModuleType) -> ModuleType:
        """The module itself, in the place of what stood for it."""
        parent = sys.modules.get(later.__name__.rpartition(".")[0])
        if isinstance(parent, _Later):
            self.load(parent)
        self.names.discard(later.__name__)
        if sys.modules.get(later.__name__) is later:
            del sys.modules[later.__name__]
        return import_module(later.__name__)


class _Later(ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name not in ("__all__", "__path__"):
            raise AttributeError(name)  # whoever looks through all modules there are does not use this one
        assert self.__spec__ is not None and isinstance(self.__spec__.loader, PutOff)
        loader = self.__spec__.loader
        if name in TAKEN.get(self.__name__, ()):
            return _Taken(lambda: getattr(loader.load(self), name))
        return getattr(loader.load(self), name)


class _Taken:
    """Stands for a function or class of such a module: loaded when it is called, asked about, or inherited from."""

    def __init__(self, load: Callable[[], Any]) -> None:
        self._load = load

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._load()(*args, **kwargs)

    def __mro_entries__(self, bases: tuple[Any, ...]) -> tuple[Any, ...]:
        return (self._load(),)

    def __instancecheck__(self, instance: object) -> bool:
        return isinstance(instance, self._load())
