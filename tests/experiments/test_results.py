"""The page's tables are those of the kept results."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_the_page_agrees_with_the_kept_results() -> None:
    command = [sys.executable, str(ROOT / "benchmarks" / "science_table.py"), "--check"]
    assert subprocess.run(command, check=False).returncode == 0
