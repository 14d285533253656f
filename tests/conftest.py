"""Settings and fixtures shared by all tests."""

from __future__ import annotations

import os
from collections import defaultdict
from pathlib import Path
from zlib import crc32

import pytest
from hypothesis import settings

from mssvm.core import library

# No deadline: examples differ in size, and machines in load. Derandomised: a red run is red again.
settings.register_profile("mssvm", deadline=None, derandomize=True)
settings.load_profile("mssvm")

# Cases of one test function that count as fast. The conformance tables have thousands; the others are marked slow.
FAST_CASES = 4


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--native", type=Path, help="directory of the native libraries to test, such as sanitized ones")
    parser.addoption("--every", type=int, default=1, help="run one in so many cases of every test of tests/conformance")


def pytest_configure(config: pytest.Config) -> None:
    if directory := config.getoption("--native"):
        library.DIRECTORY = directory.resolve()


@pytest.hookimpl(specname="pytest_collection_modifyitems")
def pytest_mark_large_tables_slow(items: list[pytest.Item]) -> None:
    """Of a test with many cases, mark all but ``FAST_CASES`` as slow.

    The fast ones are picked by a digest of their names: equal steps through a table would follow its axes.
    """
    cases: defaultdict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        function = item.nodeid.partition("[")[0]
        cases[function].append(item)
    for table in cases.values():
        table.sort(key=lambda item: crc32(item.nodeid.encode()))
        for item in table[FAST_CASES:]:
            item.add_marker(pytest.mark.slow)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out all but one in so many cases of the conformance table; by a digest, as steps would follow its axes."""
    every = config.getoption("--every")

    def is_chosen(item: pytest.Item) -> bool:
        return "conformance" not in item.path.parts or crc32(item.nodeid.encode()) % every == 0

    config.hook.pytest_deselected(items=[item for item in items if not is_chosen(item)])
    items[:] = filter(is_chosen, items)


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """Directory of the real data sets, or a skip that says where they were looked for."""
    root = Path(__file__).resolve().parents[1]
    path = Path(os.environ.get("MSSVM_DATA", root.parent / "shared" / "data"))
    if not path.is_dir():
        pytest.skip(f"no data directory at {path}; set MSSVM_DATA to run this test")
    return path
