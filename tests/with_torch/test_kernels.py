"""What can be said about the CUDA sources without a GPU: they are part of the package, and what is missing is said."""

from __future__ import annotations

from importlib.resources import files

import pytest
import torch

from mssvm.core.errors import UnsupportedError
from mssvm.engines.torch import nvrtc


def test_sources_travel_with_the_package() -> None:
    found = {f.name for f in files("mssvm.engines.torch").joinpath("kernels").iterdir()}
    assert {"common.cu", "chain.cu", "grid.cu", "pairs.cu"} <= found


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
