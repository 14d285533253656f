"""Compiles the kernels while a wheel or an editable install is built; a wheel serves every Python of its platform."""

from __future__ import annotations

import sys
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

sys.path.insert(0, str(Path(__file__).parent / "tools"))
import native

# Set by tools/wheel.py to cross-compile: the name of a row of its table of platforms.
WHEEL = "MSSVM_WHEEL"


class NativeBuild(BuildHookInterface[Any]):
    """Runs ``tools/native.py``; without a compiler on the path its build asks for ziglang."""

    def dependencies(self) -> list[str]:
        return [] if native.has_compiler() else ["ziglang"]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if self.target_name != "wheel":
            return
        compiler = native.find_compiler()
        native.build(compiler, native.this_platform(), [native.best_variant(compiler)])
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"
        build_data["artifacts"].append("src/mssvm/engines/native/lib/*")
