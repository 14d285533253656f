"""CUDA kernels compiled for the CPU, every thread of a block a fiber: they can be tested without a GPU."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
import torch

import mssvm.engines.torch
from mssvm.engines.torch import chains, decomposition, grids, padded, pairs, segments, trees
from mssvm.engines.torch.nvrtc import CudaKernel, source_text

SHARED = "extern __shared__ __align__(16) unsigned char raw[];"  # as much as a multiprocessor has


# Otherwise all kernels of one name would have the shared memory of the first.
HIDDEN = "-fvisibility=hidden"
DEVICES = ["fibers", *(["cuda"] if torch.cuda.is_available() else [])]


def kernel_device(name: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """The PyTorch device for one of ``DEVICES``; with "fibers", CPU tensors go through the kernels."""
    if name == "cuda":
        return name
    install(monkeypatch)
    return "cpu"


def install(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let CPU tensors go through the kernels."""
    if compiler() is None:
        pytest.skip("there is no C++ compiler")
    for module in (chains, decomposition, grids, padded, pairs, segments, trees):
        monkeypatch.setattr(module, "kernel", kernel)
        monkeypatch.setattr(module, "available", lambda device: True)
    monkeypatch.setattr(mssvm.engines.torch, "available", lambda device: True)
    monkeypatch.setattr(pairs, "_recorded", lambda part: part)
    monkeypatch.setattr(pairs, "_DelayedCheck", ImmediateCheck)


class ImmediateCheck:
    """Tells whether any instance is active now."""

    def none_active(self, active: torch.Tensor) -> bool:
        return not bool(active.any())


def compiler() -> str | None:
    return shutil.which("g++") or shutil.which("clang++")


class FiberKernel(CudaKernel):
    def __init__(self, library: Any, real: type[Any]) -> None:
        super().__init__(ctypes.c_void_p(), 0, real)
        self._library = library

    def ready(self, blocks: int, threads: int, *arguments: Any) -> Callable[[], None]:
        values = [self._value(argument) for argument in arguments]
        pointers = (ctypes.c_void_p * len(values))(*(ctypes.cast(ctypes.pointer(v), ctypes.c_void_p) for v in values))
        kept = (values, arguments)
        return lambda _=kept: self._library.run(blocks, threads, pointers)


def kernel(
    source: str, name: str, device: torch.device, real: torch.dtype, numbers: str, shared: int = 0
) -> FiberKernel:
    kind = "double" if real == torch.float64 else "float"
    return FiberKernel(_library(source, name, kind, numbers), ctypes.c_double if kind == "double" else ctypes.c_float)


@lru_cache(maxsize=64)
def _library(source: str, name: str, kind: str, numbers: str) -> ctypes.CDLL:
    structs = source_text("common.cu").partition("\n\n")[2]
    text = source_text(source).replace('extern "C" __global__', "static")
    text = text.replace(SHARED, "static __align__(16) unsigned char raw[240000];")
    found = re.search(rf"__launch_bounds__\([^)]*\)\s+{name}\(\s*(.*?)\)\s*{{", text, re.DOTALL)
    assert found is not None
    declared = [" ".join(p.split()) for p in re.sub("const __grid_constant__|__restrict__", "", found[1]).split(",")]
    names = [re.findall(r"\w+", p)[-1] for p in declared]
    shim = Path(__file__).with_name("fibers.h").read_text()
    code = [f"typedef {kind} REAL;", numbers, shim, structs, text]
    code += [f"static {p.removesuffix(n)}given_{n};" for p, n in zip(declared, names, strict=True)]
    code += [f"static void call() {{ {name}({', '.join('given_' + n for n in names)}); }}"]
    copies = [f"memcpy((void*)&given_{n}, arguments[{k}], sizeof(given_{n}));" for k, n in enumerate(names)]
    code += [
        'extern "C" __attribute__((visibility("default"))) void run(int blocks, int threads, void** arguments) {',
        *copies,
    ]
    code += ["body = call; launch(blocks, threads); }"]
    with tempfile.TemporaryDirectory() as place:
        built = Path(place) / "kernel.so"
        flags = ("-x", "c++", "-O1", "-std=c++17", "-w", "-shared", "-fPIC", "-ffp-contract=off", HIDDEN)
        command = [str(compiler()), *flags, "-o", str(built), "-"]
        subprocess.run(command, input="\n".join(code), text=True, check=True)
        return ctypes.CDLL(str(built))
