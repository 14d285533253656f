"""Promises about the package as a whole."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import mssvm as ms
from mssvm.core.errors import MissingExtraError
from mssvm.core.registry import INFERENCES, LOSSES, MEMBERS, SOLVERS, STRUCTURES

PACKAGE = Path(__file__).resolve().parents[2] / "src" / "mssvm"


def test_importing_the_package_loads_no_optional_dependency():
    late = {"torch", "transformers", "dask", "distributed", "cv2", "matplotlib", "piqp"}
    code = "import sys, mssvm; print(*{name.partition('.')[0] for name in sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert "mssvm" in loaded
    assert loaded & late == set()


def test_without_pytorch_the_layer_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    for name in [name for name in sys.modules if name.startswith("mssvm.torch")]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(MissingExtraError, match=re.escape('pip install "mssvm[torch]"')):
        import_module("mssvm.torch")


def test_without_transformers_taggers_say_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    for name in [name for name in sys.modules if name.startswith("mssvm.hf")]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(MissingExtraError, match=re.escape('pip install "mssvm[hf]"')):
        import_module("mssvm.hf")


PUBLIC = [
    *MEMBERS,
    "LatentClassifier",
    *(e.name for t in (SOLVERS, LOSSES, INFERENCES, STRUCTURES) for e in t.values()),
]


def public(name: str) -> type:
    rooms = (ms, ms.solvers, ms.losses, ms.inference)
    return next(getattr(room, name) for room in rooms if hasattr(room, name))


@pytest.mark.parametrize("name", dict.fromkeys(PUBLIC))
def test_every_parameter_is_described(name: str) -> None:
    kind = public(name)
    text = inspect.getdoc(kind) or ""
    missing = [p for p in inspect.signature(kind).parameters if not re.search(rf"(^|[^\w]){p}\b", text)]
    assert not missing, f"help(ms.{name}) does not speak of {missing}"


def test_help_describes_every_parameter_of_a_member_in_a_section_of_its_own() -> None:
    for name in MEMBERS:
        kind = getattr(ms, name)
        text = inspect.getdoc(kind) or ""
        described = re.findall(r"^(\w+(?:, \w+)*) : .+\n    \S", text, re.MULTILINE)
        names = [word for line in described for word in line.split(", ")]
        assert set(inspect.signature(kind).parameters) <= set(names), name
        assert len(names) == len(set(names)) and text.index("Parameters\n----------") > 20


def test_doors_are_public_and_all_names_exist() -> None:
    assert ms.solvers.LBFGS().max_iter == 500 and ms.losses.Hamming().scale == 1.0
    assert ms.inference.Exact().memory_limit > 0 and ms.FactorInput.__name__ == "FactorInput"
    assert all(getattr(ms, name) is not None for name in ms.__all__)
    with pytest.raises(AttributeError):
        ms.inference.Guess  # noqa: B018


def test_the_package_shows_public_names_only() -> None:
    assert dir(ms) == sorted(ms.__all__)
    assert not {"Any", "import_module", "moved_name", "MEMBERS"} & set(dir(ms))
