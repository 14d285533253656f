"""The names of ``mssvm.torch`` say what their parameters are, and have an example that runs."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))

import public_names

NAMES = public_names.public("torch")


@pytest.mark.parametrize("name", NAMES)
def test_every_public_name_has_its_parameters_and_an_example(name: str, tmp_path: Path) -> None:
    assert public_names.faults(name, NAMES[name], public_names.world(tmp_path)) == []
