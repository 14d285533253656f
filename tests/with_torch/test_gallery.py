"""The deep chain of the gallery runs, draws its picture, and is ahead of the network alone."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "docs" / "gallery"))
matplotlib = pytest.importorskip("matplotlib")  # machines with a GPU may lack it; make test-torch has it


def test_deep_chain(tmp_path: Path) -> None:
    matplotlib.use("Agg")
    import deep_chain

    found = deep_chain.main(tmp_path)
    assert found["network and chain"] > found["network alone"] and (tmp_path / "deep_chain.png").is_file()
