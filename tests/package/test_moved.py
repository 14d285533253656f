"""Old names still work, say what they are called now, and cost nothing to those who do not use them."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module

import pytest

from mssvm._moved import NAMES


@pytest.mark.parametrize(("module", "name"), [(m, n) for m, names in NAMES.items() for n in names])
def test_moved_names(module: str, name: str) -> None:
    home, now = NAMES[module][name]
    with pytest.warns(FutureWarning, match=f"{module}.{name} is called {home}.{now} now") as caught:
        found = getattr(import_module(module), name)
    assert found is getattr(import_module(home), now)
    assert caught[0].filename == __file__
    with pytest.raises(AttributeError, match="nothing_of_the_kind"):
        getattr(import_module(module), "nothing_of_the_kind")  # noqa: B009


def test_a_plain_import_warns_of_nothing() -> None:
    code = "import mssvm, mssvm.data, mssvm.uai, mssvm.inference.bounds; mssvm.MSSVM; mssvm.errors"
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
