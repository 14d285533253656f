"""CUDA source compiled at first use with the libraries that come with PyTorch: no toolkit or other package is needed.

NVRTC compiles source for the present GPU, and the machine code is cached on disk; the driver loads and launches it on
PyTorch's own context and stream. Where either library is missing, ``available`` is False and plain PyTorch runs.
"""

from __future__ import annotations

import ctypes
import hashlib
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import torch

from mssvm.core.errors import InputError, UnsupportedError
from mssvm.core.files import replacing
from mssvm.engines.torch.cache import directory

MAX_DYNAMIC_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES


class CudaKernel:
    """A loaded kernel; arguments are tensors (passed as pointers), whole numbers, numbers of type ``real``, and
    arrays of ctypes (passed by value)."""

    def __init__(self, function: ctypes.c_void_p, shared: int, real: type[Any]) -> None:
        self._function = function
        self._shared = shared
        self._real = real

    def __call__(self, blocks: int, threads: int, *arguments: Any) -> None:
        self.ready(blocks, threads, *arguments)()

    def ready(self, blocks: int, threads: int, *arguments: Any) -> Callable[[], None]:
        """A launch with these arguments, which can be repeated any number of times."""
        values = [self._value(argument) for argument in arguments]
        pointers = (ctypes.c_void_p * len(values))(*map(ctypes.addressof, values))
        sizes = (*map(ctypes.c_uint, (blocks, 1, 1, threads, 1, 1, self._shared)),)
        launch = _driver().cuLaunchKernel
        function = self._function
        targets = (values, arguments)  # keeps the pointers' targets alive during the launch

        def run(_: Any = targets) -> None:
            stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
            _check(launch(function, *sizes, stream, pointers, None), "launch")

        return run

    def _value(self, argument: Any) -> Any:
        if torch.is_tensor(argument):
            return ctypes.c_void_p(argument.data_ptr())
        if isinstance(argument, ctypes.Array):
            return argument
        return self._real(argument) if isinstance(argument, float) else ctypes.c_int(argument)


def constants(**numbers: int) -> str:
    """The lines that name the numbers a kernel is compiled with."""
    return "".join(f"constexpr int {name} = {int(number)};\n" for name, number in numbers.items())


@lru_cache(maxsize=64)
def kernel(
    source: str, name: str, device: torch.device, real: torch.dtype, numbers: str, shared: int = 0
) -> CudaKernel:
    """The kernel ``name`` of a source file beside this one, with the ``constants`` and the type REAL in front of it."""
    kind = "double" if real == torch.float64 else "float"
    parts = [f"typedef {kind} REAL;", numbers, source_text("common.cu"), source_text(source)]
    code = _compiled("\n".join(parts), source, torch.cuda.get_device_capability(device))
    torch.cuda.current_stream()  # PyTorch's context is current from here on
    module = ctypes.c_void_p()
    function = ctypes.c_void_p()
    driver = _driver()
    _check(driver.cuModuleLoadData(ctypes.byref(module), code), "load")
    _check(driver.cuModuleGetFunction(ctypes.byref(function), module, name.encode()), "find")
    if shared:
        _check(driver.cuFuncSetAttribute(function, MAX_DYNAMIC_SHARED, shared), "size")
    return CudaKernel(function, shared, ctypes.c_double if real == torch.float64 else ctypes.c_float)


def source_text(name: str) -> str:
    """A source file of ``kernels``, with the files that it includes in their places."""
    text = files("mssvm.engines.torch").joinpath("kernels", name).read_text()
    return re.sub(r'^#include "(.*)"$', lambda found: source_text(found[1]), text, flags=re.MULTILINE)


def available(device: torch.device) -> bool:
    """Whether kernels can be compiled for a device."""
    if device.type != "cuda":
        return False
    try:
        _driver(), _nvrtc()
    except UnsupportedError:
        return False
    return True


def _compiled(text: str, name: str, capability: tuple[int, int]) -> bytes:
    """Machine code for a GPU, from the kernel cache if the file is intact, else compiled and cached."""
    # The last two concern single precision alone: no denormal numbers, divisions that round like other operations.
    flags = (
        f"--gpu-architecture=sm_{capability[0]}{capability[1]}".encode(),
        b"--std=c++17",
        b"--ftz=true",
        b"--prec-div=false",
    )
    digest = hashlib.sha256(b"\n".join((*flags, text.encode()))).hexdigest()
    folder = directory(f"cuda{_version()}")
    if folder is None:
        return _machine_code(text, name, flags)
    cached = folder / f"{name}-{digest[:32]}"
    with suppress(OSError):
        content = cached.read_bytes()
        if content[:32] == hashlib.sha256(content[32:]).digest():
            return content[32:]
    code = _machine_code(text, name, flags)
    with suppress(InputError), replacing(cached) as file:  # a full disk is not an error: the code is in memory
        file.write(hashlib.sha256(code).digest() + code)
    return code


def _machine_code(text: str, name: str, flags: Sequence[bytes]) -> bytes:
    library = _nvrtc()
    program = ctypes.c_void_p()
    arguments = (ctypes.byref(program), text.encode(), name.encode(), 0, None, None)
    if library.nvrtcCreateProgram(*arguments):
        raise UnsupportedError(f"the CUDA source {name} could not be read by NVRTC.")
    failed = library.nvrtcCompileProgram(program, len(flags), (ctypes.c_char_p * len(flags))(*flags))
    size = ctypes.c_size_t()
    if failed:
        library.nvrtcGetProgramLogSize(program, ctypes.byref(size))
        log = ctypes.create_string_buffer(size.value)
        library.nvrtcGetProgramLog(program, log)
        raise UnsupportedError(f"the CUDA source {name} did not compile: {log.value.decode(errors='replace')}")
    library.nvrtcGetCUBINSize(program, ctypes.byref(size))
    code = ctypes.create_string_buffer(size.value)
    library.nvrtcGetCUBIN(program, code)
    library.nvrtcDestroyProgram(ctypes.byref(program))
    return code.raw


def _check(error: int, doing: str) -> None:
    if error:
        raise UnsupportedError(f"the CUDA driver could not {doing} a kernel: error {error}.")


@lru_cache(maxsize=1)
def _driver() -> Any:
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError:
        raise UnsupportedError("there is no CUDA driver (libcuda.so.1) on this machine.") from None


@lru_cache(maxsize=1)
def _version() -> str:
    major = ctypes.c_int()
    minor = ctypes.c_int()
    _nvrtc().nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
    return f"{major.value}.{minor.value}"


@lru_cache(maxsize=1)
def _nvrtc() -> Any:
    """PyTorch's own copy first: it fits the driver that PyTorch runs on."""
    major = (torch.version.cuda or "").partition(".")[0]
    name = f"libnvrtc.so.{major}"
    home = Path(torch.__file__).parent
    found = [*home.glob(f"lib/{name}*"), *home.parent.glob(f"nvidia/*/lib/{name}*")]
    for path in (*map(str, found), name, f"/usr/local/cuda/lib64/{name}"):
        try:
            return ctypes.CDLL(path)
        except OSError:
            continue
    raise UnsupportedError(f"NVRTC ({name}) was not found beside PyTorch or on the library path.")
