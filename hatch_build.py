"""Compiles the kernels while a wheel or an editable install is built; a wheel serves every Python of its platform.

An install from the sources has the variant for its own processor. ``tools/wheel.py`` names a platform tag and gets
every variant of that platform, compiled by zig.
"""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

sys.path.insert(0, str(Path(__file__).parent / "tools"))
import native

# Set by tools/wheel.py: the tag of a platform of tools/native.py.
TAG = "MSSVM_WHEEL"


class NativeBuild(BuildHookInterface[Any]):
    """Runs ``tools/native.py``; without a compiler on the path its build asks for ziglang."""

    def dependencies(self) -> list[str]:
        return [] if native.has_compiler() and TAG not in os.environ else ["ziglang"]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if self.target_name != "wheel":
            return
        tag = os.environ.get(TAG, "")
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{tag or this_tag()}"
        if version == "editable":
            native.build_here()
            return
        out = native.ROOT / "build/wheel" / (tag or "here")
        shutil.rmtree(out, ignore_errors=True)
        if tag:
            wanted = native.PLATFORMS[tag]
            native.build(native.zig(), wanted, list(wanted.variants), out)
        else:
            native.build_here(out)
        for path in sorted(out.iterdir()):
            build_data["force_include"][str(path)] = f"mssvm/engines/native/lib/{path.name}"


def this_tag() -> str:
    """The platform tag of this machine."""
    return sysconfig.get_platform().replace("-", "_").replace(".", "_")
