"""Promises about the package as a whole."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1] / "src" / "mssvm"


def test_importing_the_package_loads_no_optional_dependency():
    late = {"torch", "dask", "distributed", "cv2", "matplotlib", "piqp"}
    code = "import sys, mssvm; print(*{name.partition('.')[0] for name in sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert "mssvm" in loaded
    assert loaded & late == set()
