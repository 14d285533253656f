"""Names that have moved still work, say where they went, and cost nothing to those who do not use them."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module

import pytest

from mssvm._moved import MODULES, NAMES

DOCUMENTED = {
    "mssvm.errors": "InputError",
    "mssvm.estimators.structures": "Chain",
    "mssvm.inference.anytime": "Anytime",
    "mssvm.inference.bounded": "Bounded",
    "mssvm.inference.decomposition": "Decomposition",
    "mssvm.inference.minibucket": "MiniBucket",
    "mssvm.inference.propagate": "Propagate",
    "mssvm.losses.losses": "Hamming",
    "mssvm.models.losses": "Hamming",
}


def test_every_row_has_a_name_to_test() -> None:
    assert set(DOCUMENTED) == set(MODULES)


@pytest.mark.parametrize(("old", "name"), DOCUMENTED.items())
def test_moved_modules(old: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, old, raising=False)
    scope: dict[str, object] = {}
    with pytest.warns(FutureWarning, match=f"{old} has moved: use {MODULES[old]}") as caught:
        exec(f"from {old} import {name}", scope)
    assert scope[name] is getattr(import_module(MODULES[old]), name)
    assert caught[0].filename == "<string>"
    with pytest.raises(ImportError):
        exec(f"from {old} import nothing_of_the_kind", scope)


@pytest.mark.parametrize(("module", "name"), [(m, n) for m, names in NAMES.items() for n in names])
def test_moved_names(module: str, name: str) -> None:
    home, now = NAMES[module][name]
    with pytest.warns(FutureWarning, match=f"{module}.{name} has moved: use {home}.{now}"):
        found = getattr(import_module(module), name)
    assert found is getattr(import_module(home), now)
    with pytest.raises(AttributeError, match="nothing_of_the_kind"):
        getattr(import_module(module), "nothing_of_the_kind")  # noqa: B009


def test_a_plain_import_warns_of_nothing() -> None:
    code = "import mssvm, mssvm.data, mssvm.uai, mssvm.inference.bounds; mssvm.MSSVM; mssvm.errors"
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
