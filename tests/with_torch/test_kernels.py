"""What can be said about the CUDA sources without a GPU: they are part of the package, and what is missing is said."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from builders import random_forest
from mssvm.core.errors import UnsupportedError
from mssvm.core.topology import Topology
from mssvm.engines.torch import nvrtc
from mssvm.engines.torch.trees import Postorder


def test_sources_travel_with_the_package() -> None:
    found = {f.name for f in files("mssvm.engines.torch").joinpath("kernels").iterdir()}
    assert {"common.cu", "chain.cu", "grid.cu", "nested.cu", "pairs.cu", "tree.cu"} <= found


def test_without_the_libraries_plain_torch_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(path: str) -> None:
        raise OSError(path)

    for load in (nvrtc._driver, nvrtc._nvrtc):
        load.cache_clear()
    monkeypatch.setattr(nvrtc.ctypes, "CDLL", missing)
    assert not nvrtc.available(torch.device("cuda")) and not nvrtc.available(torch.device("cpu"))
    with pytest.raises(UnsupportedError, match=r"libcuda.so.1"):
        nvrtc._driver()
    with pytest.raises(UnsupportedError, match="NVRTC"):
        nvrtc._nvrtc()


class FakeNVRTC:
    """A compiler whose machine code says how many times it was asked."""

    asked = 0

    def nvrtcCompileProgram(self, *_: Any) -> int:
        self.asked += 1
        return 0

    def nvrtcGetCUBINSize(self, _: Any, size: Any) -> None:
        size._obj.value = 5

    def nvrtcGetCUBIN(self, _: Any, code: Any) -> None:
        code.value = b"no %d" % self.asked

    def __getattr__(self, name: str) -> Any:
        return lambda *_: 0


def test_compiled_code_is_kept_until_it_is_damaged(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake = FakeNVRTC()
    monkeypatch.setattr(nvrtc, "_nvrtc", lambda: fake)
    monkeypatch.setattr(nvrtc, "directory", lambda versions: tmp_path)
    nvrtc._version.cache_clear()

    def code(text: str, capability: tuple[int, int] = (9, 0)) -> bytes:
        return nvrtc._compiled(text, "a.cu", capability).rstrip(b"\0")

    assert code("one") == code("one") == b"no 1"
    assert code("two") == b"no 2" and code("one", (8, 0)) == b"no 3" and code("one") == b"no 1"
    assert len(list(tmp_path.iterdir())) == 3
    for file in tmp_path.iterdir():
        file.write_bytes(file.read_bytes()[:-1])
    assert code("one") == code("one") == b"no 4"
    monkeypatch.setattr(nvrtc, "directory", lambda versions: None)
    assert code("one") == b"no 5"
    nvrtc._version.cache_clear()


def test_nothing_has_no_postorder() -> None:
    found = Postorder.of(Topology((), ()))
    assert found is not None and found.rows.shape == (0, 4) and found.factors.shape == (0,)


@pytest.mark.parametrize("seed", range(5))
def test_sums_in_the_postorder_are_those_of_all_states(seed: int) -> None:
    """What the kernel does, step by step: scores are carried from a variable's last child and read for the others."""
    rng = np.random.default_rng(seed)
    g = random_forest(rng, 6, 5)
    postorder = Postorder.of(g)
    assert postorder is not None
    u = [rng.normal(size=card) for card in g.cards]
    tables = [rng.normal(size=g.table_shape(f)) for f in range(g.n_factors)]
    var = {int(at): v for v, at in enumerate(g.unary_ptr[:-1])}
    rows, carried, z = dict[int, np.ndarray](), np.zeros(0), 0.0
    for t, ((v, p, parent, numbers), f) in enumerate(
        zip(postorder.rows.tolist(), postorder.factors.tolist(), strict=True)
    ):
        own, above = var[v], var.get(p, -1)
        assert numbers & 255 == g.cards[own] and (above < 0 or numbers >> 8 & 255 == g.cards[above])
        scores = u[own] if numbers >> 16 & 1 else carried
        if above < 0:
            z += np.log(np.exp(scores).sum())
            continue
        assert parent > t and g.scopes[f] == ((above, own) if numbers >> 18 & 1 else (own, above))
        table = tables[f].T if numbers >> 18 & 1 else tables[f]
        message = np.log(np.exp(scores[:, None] + table).sum(0))
        carried = rows[parent] = (u[above] if numbers >> 17 & 1 else rows[parent]) + message
    total = -np.inf
    for x in np.ndindex(*g.cards):
        score = sum(u[v][s] for v, s in enumerate(x)) + sum(
            tables[f][tuple(x[v] for v in scope)] for f, scope in enumerate(g.scopes)
        )
        total = np.logaddexp(total, score)
    assert z == pytest.approx(total, rel=1e-12)


def test_cycles_and_larger_factors_have_no_postorder() -> None:
    assert Postorder.of(Topology((2, 2, 2), ((0, 1), (1, 2), (0, 2)))) is None
    assert Postorder.of(Topology((2, 2), ((0, 1), (1, 0)))) is None
    assert Postorder.of(Topology((2, 2, 2), ((0, 1, 2),))) is None
    assert Postorder.of(Topology((2, 33), ((0, 1),))) is None
