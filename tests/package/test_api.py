"""Every public name says what its parameters are, and has an example that runs; the API page lists it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))

import public_names

NAMES = public_names.public()


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return public_names.world(tmp_path_factory.mktemp("examples"))


@pytest.mark.parametrize("name", NAMES)
def test_every_public_name_has_its_parameters_and_an_example(name: str, given: dict[str, Any]) -> None:
    assert public_names.faults(name, NAMES[name], given) == []


def test_an_example_that_is_wrong_or_missing_is_noticed(given: dict[str, Any]) -> None:
    def wrong(a: int):
        """Of nothing.

        >>> 1 + 1
        3
        """

    def bare() -> None:
        """Nothing."""

    told = public_names.faults("wrong", wrong, given)
    assert told[:2] == ["does not name a", "does not say what it returns"] and "Expected" in told[2]
    assert public_names.faults("bare", bare, given) == ["has no example"]


def test_the_page_lists_every_public_name() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "api.md").read_text("utf-8")
    assert [name for name in NAMES if name.rsplit(".", 1)[-1] not in page] == []


def test_all_inferences_are_named() -> None:
    from mssvm import inference

    assert sorted(inference._HOMES) == inference.__all__
