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

PACKAGE = Path(__file__).resolve().parents[1] / "src" / "mssvm"


def test_importing_the_package_loads_no_optional_dependency():
    late = {"torch", "dask", "distributed", "cv2", "matplotlib", "piqp"}
    code = "import sys, mssvm; print(*{name.partition('.')[0] for name in sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert "mssvm" in loaded
    assert loaded & late == set()


def test_what_a_command_puts_off_is_there_when_it_is_used() -> None:
    code = (
        "import sys\n"
        "from mssvm.cli.later import SELDOM_USED, PutOff\n"
        "sys.meta_path.insert(0, PutOff(*SELDOM_USED, 'scipy.nothing'))\n"
        "import mssvm.cli.fit, scipy.stats\n"
        "assert 'scipy.stats._stats_py' not in sys.modules and not hasattr(scipy.stats, '__file__')\n"
        "late = {'scipy.special._ufuncs', 'scipy.optimize', 'scipy.linalg._basic', 'narwhals.dataframe'}\n"
        "assert not late & set(sys.modules)\n"
        "import numpy, sklearn.utils.fixes, sklearn.utils._indexing, mssvm.core.components\n"
        "found = mssvm.core.components.connected_components(scipy.sparse.csr_array([[0, 1, 0], [1, 0, 0], [0] * 3]))\n"
        "solved = sklearn.utils.fixes._sparse_linalg_cg(2 * numpy.eye(2), numpy.array([2, 4]))[0]\n"
        "assert found[0] == 2 and numpy.allclose(solved, [1, 2])\n"
        "assert 'narwhals' not in sys.modules or hasattr(sklearn.utils._indexing.nw, 'from_native')\n"
        "assert isinstance(sys.modules['scipy.sparse.linalg'].LinearOperator, type) and scipy.linalg.__file__\n"
        "assert scipy.stats.mode([1, 2, 2]).mode == 2 and scipy.special.expit(0.0) == 0.5\n"
        "from scipy.stats import t\n"
        "import scipy.stats.distributions, numpy.testing.overrides\n"
        "assert sys.modules['scipy.stats'] is scipy.stats and scipy.stats.__file__ and numpy.testing.overrides\n"
        "try:\n    import scipy.nothing\n"
        "except ModuleNotFoundError:\n    print('all well')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "all well\n", done.stderr


def test_what_is_put_off_may_be_inherited_from_and_asked_about() -> None:
    code = (
        "import sys\n"
        "from mssvm.cli.later import SELDOM_USED, PutOff\n"
        "sys.meta_path.insert(0, PutOff(*SELDOM_USED))\n"
        "import mssvm.cli.fit, numpy\n"
        "from scipy.sparse.linalg import LinearOperator\n"
        "assert not isinstance(LinearOperator, type)\n"
        "class Twice(LinearOperator):\n    def _matvec(self, x): return 2 * x\n"
        "found = Twice(float, (2, 2))\n"
        "assert isinstance(found, LinearOperator) and not isinstance(1, LinearOperator)\n"
        "import scipy.optimize\n"
        "assert isinstance(scipy.optimize.LbfgsInvHessProduct, type) and (found @ numpy.ones(2)).sum() == 4\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_without_pytorch_the_layer_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    for name in [name for name in sys.modules if name.startswith("mssvm.torch")]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(MissingExtraError, match=re.escape('pip install "mssvm[torch]"')):
        import_module("mssvm.torch")


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
    assert ms.solvers.LBFGS().max_iterations == 500 and ms.losses.Hamming().scale == 1.0
    assert ms.inference.Exact().memory_limit > 0 and ms.FactorInput.__name__ == "FactorInput"
    assert all(getattr(ms, name) is not None for name in ms.__all__)
    with pytest.raises(AttributeError):
        ms.inference.Guess  # noqa: B018
