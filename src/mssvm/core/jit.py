"""The package's own ``njit``: kernels compiled fast, and kept on disk under a name that no edit or upgrade makes wrong.

Numba's decorator recompiles a kernel when its own file changes, not when a kernel that it calls does, and it fails
where no directory can be written. Here compiled code is named by a digest of all sources that its module imports from
the package, in a directory named by the versions of what compiles; where nothing can be written it stays in memory.

Numba also optimises and assembles every callee by itself, with a door for Python, before it does all of that again in
the caller. Here a kernel that is compiled because another calls it stays intermediate code, which the caller takes in;
it is compiled for itself if Python ever calls it.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from types import CodeType
from typing import Any

import llvmlite
import llvmlite.binding as llvm
import numba
import numpy
from numba.core import cgutils, sigutils
from numba.core.caching import CompileResultCacheImpl, FunctionCache, NullCache, _CacheLocator
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Compiler, Flags
from numba.core.compiler_lock import global_compiler_lock
from numba.core.compiler_machinery import PassManager, register_pass
from numba.core.lowering import Lower
from numba.core.registry import CPUDispatcher
from numba.core.runtime.nrt import rtsys
from numba.core.typed_passes import DumpParforDiagnostics, InlineOverloads, NativeLowering
from numba.core.types import unliteral
from numba.core.untyped_passes import (
    FindLiterallyCalls,
    InlineClosureLikes,
    LiteralPropagationSubPipelinePass,
    LiteralUnroll,
    MakeFunctionToJitFunction,
    WithLifting,
)
from numba.misc.appdirs import AppDirs

from mssvm.core.garbage import uncollected

_config: Any = numba.config
PACKAGE = Path(__file__).parents[1]
KEPT = "kernels"  # how the directories of compiled code begin
VERSIONS = "-".join(
    [sys.implementation.cache_tag or "python"] + [f"{m.__name__}{m.__version__}" for m in (numba, llvmlite, numpy)]
)
UNUSED = 30 * 86400.0  # seconds after which the directory of other versions is removed
_IMPORTS = re.compile(r"^\s*(?:from (mssvm[\w.]*) import (\([^)]*\)|[^\n#]*)|import (mssvm[\w.]*))", re.MULTILINE)


def njit(*, cache: bool = True, unroll: bool = True, **options: Any) -> Callable[[Callable[..., Any]], Any]:
    """Compile a function as ``numba.njit`` with the same options does; ``cache=False`` keeps nothing on disk.

    ``unroll=False``, of a kernel that Python calls, is for loops that are short and written out already: unrolled they
    would mostly run in what is left over.
    """
    compiler = _KernelCompiler if unroll else _RolledCompiler

    def kernel(function: Callable[..., Any]) -> Any:
        if _config.DISABLE_JIT:
            return function
        return Kernel(function, None, {"nopython": True, "boundscheck": None, **options}, compiler, kept=cache)

    return kernel


class _Within(JITCodeLibrary):
    """Code of a kernel that only other kernels call: neither optimised nor assembled for itself."""

    def _optimize_functions(self, ll_module: Any) -> None:
        """The caller's module is optimised as a whole."""
        ll_module.data_layout = self._codegen._data_layout

    def _optimize_final_module(self) -> None:
        """The caller's module is optimised as a whole."""

    def _finalize_final_module(self) -> None:
        self._finalize_dynamic_globals()
        self._finalized = True


class _Rolled(JITCodeLibrary):
    """Code in which no loop is unrolled, optimised in one go: without arrays there are no references to be counted."""

    def _optimize_final_module(self) -> None:
        options = llvm.create_pipeline_tuning_options(_config.OPT)
        options.loop_vectorization, options.loop_unrolling = True, False
        builder = llvm.create_pass_builder(self._codegen._tm, options)
        builder.getModulePassManager().run(self._final_module, builder)


class _Flags(Flags):
    """Numba's, compared by what was set: at every call in a kernel they are looked up among those of all overloads."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Flags) and self._values == other._values

    def __hash__(self) -> int:
        return hash(tuple(sorted((name, str(value)) for name, value in self._values.items())))


class _Lower(Lower):
    """Numba's, without what is for debuggers, and references are counted only to what has some."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self._counted: dict[int, bool] = {}  # by identity: types live as long as the code
        super().__init__(*arguments, **options)

    def is_counted(self, kind: Any) -> bool:
        found = self._counted.get(id(kind))
        if found is None:
            found = self._counted[id(kind)] = self.context.data_model_manager[kind].contains_nrt_meminfo()
        return found

    def incref(self, typ: Any, val: Any) -> None:
        if self.is_counted(typ):
            super().incref(typ, val)

    def decref(self, typ: Any, val: Any) -> None:
        if self.is_counted(typ):
            super().decref(typ, val)

    def delvar(self, name: str) -> None:
        if self.is_counted(self.typeof(name)):
            super().delvar(name)

    def storevar(self, value: Any, name: str, argidx: int | None = None) -> None:
        super().storevar(value, name, argidx if self.is_counted(self.typeof(name)) else None)

    def alloca_lltype(self, name: str, lltype: Any, datamodel: Any = None) -> Any:
        return cgutils.alloca_once(self.builder, lltype, name=name, zfill=False)


@register_pass(mutates_CFG=True, analysis_only=False)
class _Lowering(NativeLowering):
    _name = "kernel_lowering"

    @property
    def lowering_class(self) -> Any:
        return _Lower


_SELDOM = {
    DumpParforDiagnostics, FindLiterallyCalls, InlineClosureLikes, InlineOverloads, LiteralPropagationSubPipelinePass,
    LiteralUnroll, MakeFunctionToJitFunction, WithLifting,
}  # fmt: skip


def _shortened(pipeline: Any, plain: bool) -> Any:
    """The passes of a pipeline with our lowering. Where a kernel is ``plain``, nothing is looked for that it has not,
    and nothing computed anew that no pass has changed."""
    out = PassManager(pipeline.pipeline_name)
    for step, name in pipeline.passes:
        if not (plain and step in _SELDOM):
            out.add_pass(_Lowering if step is NativeLowering else step, name)
    out._ENFORCING = not plain
    out.finalize()
    return out


class _KernelCompiler(Compiler):
    """Numba's own, with less to do for kernels within kernels."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.state.flags = _Flags(self.state.flags)

    def define_pipelines(self) -> Any:
        state = self.state
        state.flags.no_cfunc_wrapper = True
        if _is_within(state.typingctx):
            state.flags.no_cpython_wrapper = state.flags.no_compile = True
            state.library = _Within(state.targetctx.codegen(), state.func_id.func_qualname)
        closures = any(isinstance(constant, CodeType) for constant in state.func_id.code.co_consts)
        plain = bool(state.flags.no_rewrites) and not closures
        return [_shortened(pipeline, plain) for pipeline in super().define_pipelines()]


class _RolledCompiler(_KernelCompiler):
    def define_pipelines(self) -> Any:
        self.state.library = _Rolled(self.state.targetctx.codegen(), self.state.func_id.func_qualname)
        self.state.library.enable_object_caching()
        return super().define_pipelines()


def _is_within(typing: Any) -> bool:
    # While the types of a kernel are inferred, the kernels that it calls are compiled.
    return len(typing.callstack) > 0


@contextmanager
def interrupted_later() -> Iterator[None]:
    """At a prompt or in a notebook, Ctrl-C waits for the end of the block: a compiler cut off in the middle compiles
    nothing more in this process. A program that ends with Ctrl-C ends at once.

    Only the main thread is ever interrupted; inner blocks find the handler of the outermost and leave it alone.
    """
    prompt = hasattr(sys, "ps1") or "IPython" in sys.modules
    mine = prompt and threading.current_thread() is threading.main_thread()
    before = signal.getsignal(signal.SIGINT) if mine else None
    if not callable(before) or isinstance(before, _Pending):
        yield
        return
    pending = _Pending()
    signal.signal(signal.SIGINT, pending)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if pending.met is not None:
            before(*pending.met)


class _Pending:
    """A handler that remembers the signal."""

    met: tuple[int, Any] | None = None

    def __call__(self, number: int, frame: Any) -> None:
        self.met = number, frame


class Kernel(CPUDispatcher):
    """A function compiled for the types of its arguments when they are first met."""

    def __init__(
        self, py_func: Any, locals: Any = None, targetoptions: Any = None, compiler: Any = _KernelCompiler, *,
        kept: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(py_func, locals or {}, targetoptions, compiler)
        self._kept = kept

    def compile(self, sig: Any) -> Any:
        with global_compiler_lock:  # nobody else infers types meanwhile
            if self._kept:
                self._kept, self._cache = False, _cache_of(self.py_func)
            types = tuple(sigutils.normalize_signature(sig)[0])
            if types in self.overloads and not _is_within(self.typingctx) and _only_within(self.overloads[types]):
                del self.overloads[types]
            with uncollected(), interrupted_later():
                return super().compile(sig)

    def address(self, *arguments: Any) -> int:
        """Where the code for arguments of these types begins, for kernels that call it there instead of taking it in
        (``engines.numba.calls``)."""
        found = self._for(arguments)
        return int(found.library.get_pointer_to_function(found.fndesc.llvm_func_name))

    def ready(self, *arguments: Any) -> Callable[..., Any]:
        """The kernel for arguments of these types, not looked at again: for many arguments and short work."""
        entry: Callable[..., Any] = self._for(arguments).entry_point
        return entry

    def _for(self, arguments: tuple[Any, ...]) -> Any:
        types = tuple(map(self.typeof_pyval, arguments))
        if types not in self.overloads or _only_within(self.overloads[types]):
            self.compile(types)
        return self.overloads[types]

    def get_call_template(self, args: Any, kws: Any) -> Any:
        """For a kernel that calls this one: a number written out is an argument like any other."""
        plain = {name: unliteral(value) for name, value in kws.items()}
        return super().get_call_template(tuple(map(unliteral, args)), plain)

    def add_overload(self, cres: Any) -> None:
        """Make the result known, to Python only if it is for Python."""
        if not _only_within(cres):
            super().add_overload(cres)
            return
        # Callers find code by the identity of what Python would call.
        cres = cres._replace(entry_point=object())
        self.targetctx.insert_user_function(cres.entry_point, cres.fndesc, [cres.library])
        self.overloads[tuple(cres.signature.args)] = cres


def _only_within(cres: Any) -> bool:
    return isinstance(cres.library, _Within)


class _Locator(_CacheLocator):
    def __init__(self, file: str, path: Path, digest: str) -> None:
        self._py_file, self._path, self._digest = file, path, digest

    def get_cache_path(self) -> str:
        return str(self._path)

    def get_source_stamp(self) -> str:
        return self._digest

    def get_disambiguator(self) -> str:
        return self._digest


class _CacheImpl(CompileResultCacheImpl):
    def __init__(self, function: Any) -> None:
        path, file = directory(), function.__code__.co_filename
        if path is None:
            raise OSError("no directory can be written")
        self._lineno = function.__code__.co_firstlineno
        self._locator = _Locator(file, path, digest_of(_unedited(sources_of(Path(file)))))
        name = re.sub(r"[<>]", "", f"{function.__module__}.{function.__qualname__}")
        self._filename_base = f"{name}-{self._locator.get_disambiguator()}"


class _KernelCache(FunctionCache):
    """Numba's files, in a directory of their own; whatever is wrong with them, they are only not used."""

    _impl_class = _CacheImpl

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        try:
            # All that code which is ready needs of Numba. Its declarations, a sixth of the time of a short command, are
            # for compiling, which asks for them itself.
            rtsys.initialize(target_context)
            with self._guard_against_spurious_io_errors():
                return self._load_overload(sig, target_context)
        except Exception:  # a damaged file can fail in any way
            with suppress(OSError):
                self.flush()
            return None

    def save_overload(self, sig: Any, data: Any) -> None:
        if _only_within(data):
            return
        with suppress(OSError):  # a full disk or a directory that went away: the code is in memory
            super().save_overload(sig, data)
            self._forget_others()

    def _forget_others(self) -> None:
        """Remove what was compiled from other sources of the same kernel."""
        base = self._impl.filename_base
        for file in Path(self.cache_path).glob(f"{base.rpartition('-')[0]}-*"):
            if not file.name.startswith(base):
                file.unlink(missing_ok=True)


def _cache_of(function: Any) -> Any:
    try:
        return _KernelCache(function)
    except OSError:
        return NullCache()


@cache
def directory(versions: str = VERSIONS) -> Path | None:
    """Where kernels compiled by what has these versions are kept: where Numba is told to, in the package, or with the
    user's files; or nowhere."""
    for place in _places():
        path = place / f"{KEPT}-{versions}"
        try:
            path.mkdir(parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=path).close()
        except OSError:
            continue
        _prune(place, path)
        return path
    return None


def _places() -> Iterator[Path]:
    # Of several installations outside the package every one has its own.
    name = hashlib.sha256(str(PACKAGE).encode()).hexdigest()[:12]
    if _config.CACHE_DIR:
        yield Path(_config.CACHE_DIR) / f"mssvm_{name}"
    yield PACKAGE / "__pycache__"
    yield Path(AppDirs(appname="mssvm", appauthor=False).user_cache_dir) / name


def _prune(place: Path, used: Path) -> None:
    """Remove directories of other versions that nothing was written to for long."""
    for path in place.glob(f"{KEPT}-*"):
        if path != used and time.time() - path.stat().st_mtime > UNUSED:
            shutil.rmtree(path, ignore_errors=True)


Stamp = tuple[int, int]


def sources_of(file: Path, package: Path = PACKAGE) -> dict[Path, Stamp]:
    """A source file and all others of the package that it imports, directly or through others."""
    found: dict[Path, Stamp] = {}
    waiting = [file]
    while waiting:
        path = waiting.pop()
        if path not in found:
            found[path] = _stamp(path)
            waiting += _read(path, found[path], package)[1]
    return found


def digest_of(sources: dict[Path, Stamp]) -> str:
    """A digest of what the files hold."""
    total = hashlib.sha256()
    for path, stamp in sorted(sources.items()):
        total.update(_read(path, stamp)[0])
    return total.hexdigest()[:16]


def _stamp(path: Path) -> Stamp:
    stat = path.stat()
    return stat.st_mtime_ns, stat.st_size


@cache
def _read(path: Path, stamp: Stamp, package: Path = PACKAGE) -> tuple[bytes, tuple[Path, ...]]:
    """Digest of a source file, and the files of the modules that it imports from the package."""
    content, out = path.read_bytes(), list[str]()
    for source, names, plain in _IMPORTS.findall(content.decode()):
        modules = [os.path.join(package, *(source or plain).split(".")[1:])]
        if not os.path.isfile(f"{modules[0]}.py"):  # else the names are in that file
            modules += (os.path.join(modules[0], name) for name in re.findall(r"\w+", names))
        out += [file for module in modules for file in (f"{module}.py", os.path.join(module, "__init__.py"))]
    return hashlib.sha256(content).digest(), tuple(Path(file) for file in out if os.path.isfile(file))


# What the files were when their modules were about to be imported.
_FILES = (Path(at, name) for at, _, names in os.walk(PACKAGE) for name in names if name.endswith(".py"))
_AT_START = {path: _stamp(path) for path in _FILES}


def _unedited(sources: dict[Path, Stamp]) -> dict[Path, Stamp]:
    """The sources, unless the code in memory may come from what they were before."""
    if any(_AT_START.get(path) != stamp for path, stamp in sources.items()):
        raise OSError("sources were edited after they were imported")
    return sources
