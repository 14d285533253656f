"""Names that have moved: the old ones work for one more release, with a ``FutureWarning`` that says where to look.

``MODULES`` is the one table of modules, ``NAMES`` that of names that left a module which is still there.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Mapping, Sequence
from functools import partial
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

MODULES: Mapping[str, str] = {
    "mssvm.errors": "mssvm.core.errors",
    "mssvm.estimators.structures": "mssvm.structures",
    "mssvm.inference.anytime": "mssvm.uai",
    "mssvm.inference.bounded": "mssvm.inference.bounds",
    "mssvm.inference.decomposition": "mssvm.inference.bounds",
    "mssvm.inference.minibucket": "mssvm.inference.bounds",
    "mssvm.inference.propagate": "mssvm.inference.propagation",
    "mssvm.losses.losses": "mssvm.losses",
    "mssvm.models.losses": "mssvm.losses",
}
_FILES = [f"{verb}_{kind}" for verb in ("read", "write") for kind in ("evidence", "fg", "query", "uai")]
NAMES: Mapping[str, Mapping[str, tuple[str, str]]] = {
    "mssvm.data": {
        **{name: ("mssvm.uai", name) for name in (*_FILES, "read_model", "Limits")},
        "FactorModel": ("mssvm.uai", "UaiModel"),
        "Problem": ("mssvm.uai", "UaiProblem"),
    },
    "mssvm.inference.base": {
        "Auto": ("mssvm.inference.auto", "Auto"),
        "Exact": ("mssvm.inference.exact", "Exact"),
    },
}


def moved_name(module: str, name: str) -> Any:
    """For a module's ``__getattr__``: a name that has moved elsewhere, with a warning, or ``AttributeError``."""
    if name not in NAMES[module]:
        raise AttributeError(f"module {module!r} has no attribute {name!r}")
    home, now = NAMES[module][name]
    warnings.warn(f"{module}.{name} has moved: use {home}.{now}.", FutureWarning, stacklevel=3)
    return getattr(import_module(home), now)


class MovedModules(MetaPathFinder, Loader):
    """Finds old module names and makes them stand for the new ones."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return ModuleSpec(fullname, self) if fullname in MODULES else None

    def exec_module(self, module: ModuleType) -> None:
        home = MODULES[module.__name__]
        # The frames of the import system are not counted, so this points at the line that imports.
        warnings.warn(f"{module.__name__} has moved: use {home}.", FutureWarning, stacklevel=2)
        module.__dict__["__getattr__"] = partial(getattr, import_module(home))


def install() -> None:
    """Let imports of old modules through; called once, by the package itself."""
    if not any(isinstance(finder, MovedModules) for finder in sys.meta_path):
        sys.meta_path.append(MovedModules())
