"""Versions of the packages that results depend on."""

from __future__ import annotations

import platform

PACKAGES = ("mssvm", "numpy", "scipy", "scikit-learn", "piqp", "safetensors")


def versions() -> dict[str, str]:
    """Names and versions of this package, Python, the numerical packages and the operating system."""
    from importlib.metadata import PackageNotFoundError, version  # rarely needed, and slow to import

    out = {}
    for name in PACKAGES:
        try:
            out[name] = version(name)
        except PackageNotFoundError:
            out[name] = "not installed"
    return {"mssvm": out.pop("mssvm"), "python": platform.python_version(), **out, "system": platform.platform()}
