"""Versions of what results depend on."""

from __future__ import annotations

import platform

PACKAGES = ("mssvm", "numpy", "scipy", "scikit-learn", "piqp", "safetensors")


def versions() -> dict[str, str]:
    """Name and version of the package, of Python, and of what computes."""
    from importlib.metadata import PackageNotFoundError, version  # seldom asked for, and slow to import

    out = {}
    for name in PACKAGES:
        try:
            out[name] = version(name)
        except PackageNotFoundError:
            out[name] = "not installed"
    return {"mssvm": out.pop("mssvm"), "python": platform.python_version(), **out, "system": platform.platform()}
