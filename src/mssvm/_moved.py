"""Old public names, which work for one more release with a ``FutureWarning`` that gives the new name.

``NAMES`` is the table, by module; a module with such names calls ``moved_name`` in its ``__getattr__``.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from importlib import import_module
from typing import Any

NAMES: Mapping[str, Mapping[str, tuple[str, str]]] = {
    "mssvm": {"SequenceClass": ("mssvm", "SequenceLabel")},
    "mssvm.inference.base": {
        "Auto": ("mssvm.inference.auto", "Auto"),
        "Exact": ("mssvm.inference.exact", "Exact"),
    },
    "mssvm.structures": {"SequenceClass": ("mssvm.structures", "SequenceLabel")},
}


def moved_name(module: str, name: str) -> Any:
    """For a module's ``__getattr__``: the object of an old name, with a warning, or ``AttributeError``."""
    if name not in NAMES[module]:
        raise AttributeError(f"module {module!r} has no attribute {name!r}")
    new_module, new_name = NAMES[module][name]
    warnings.warn(
        f"{module}.{name} is called {new_module}.{new_name} now; the old name will go in the next release.",
        FutureWarning,
        stacklevel=3,
    )
    return getattr(import_module(new_module), new_name)
