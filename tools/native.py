"""Compiles src/mssvm/engines/native/cpp into src/mssvm/engines/native/lib; nothing but the standard library is needed.

    python tools/native.py                        for this machine, by $CXX, c++, g++, clang++ or the package ziglang
    python tools/native.py --wheel TAG --out DIR  every variant of a platform's wheel, by ziglang
    python tools/native.py --sanitize address     with AddressSanitizer and UndefinedBehaviorSanitizer; or: thread

Objects and libraries are kept in build/native; a file is compiled again when it, a header of its own, an option or the
compiler has changed, so that a second build, such as that of a wheel after its metadata, takes no time.
"""

from __future__ import annotations

import argparse
import ctypes
import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ROOT / "src/mssvm/engines/native/cpp"
LIBRARIES = ROOT / "src/mssvm/engines/native/lib"
OBJECTS = ROOT / "build/native"
# No errno and traps, no signed zeros, multiplications and additions fused: vectors need the first, speed the others.
# Infinities and NaN keep their meaning.
FLAGS = (
    "-std=c++20",
    "-O3",
    "-fPIC",
    "-fvisibility=hidden",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-fno-signed-zeros",
    "-ffp-contract=fast",
    "-Wall",
    "-Wextra",
    "-Wno-psabi",
    "-Wno-unknown-warning-option",
)
# Orders break ties by sums of logarithms: unfused, they are the same on every processor.
OWN_FLAGS = {"orders": ("-ffp-contract=off",)}
# Little optimised: watched code takes many times as long to compile, and minutes at -O3.
SANITIZERS = {
    "address": ("-fsanitize=address,undefined", "-fno-sanitize-recover=undefined", "-O1", "-g1"),
    "thread": ("-fsanitize=thread", "-O1", "-g1"),
}
X86 = ("x86_64", "AMD64")
COMPILERS = ("c++", "g++", "clang++")


@dataclass(frozen=True)
class Platform:
    """An operating system and processor family; ``target`` is zig's name of it, empty for this machine's own."""

    system: str
    machine: str
    target: str = ""

    @property
    def suffix(self) -> str:
        return {"Windows": ".dll", "Darwin": ".dylib"}.get(self.system, ".so")

    @property
    def variants(self) -> tuple[str, ...]:
        """Names of the library's variants, the one for the oldest processors first."""
        return ("x86-64-v2", "x86-64-v3", "x86-64-v4") if self.machine in X86 else ("baseline",)


# Wheels, by their platform tags. The C library of zig's target is the oldest that the tag allows.
PLATFORMS = {
    "manylinux_2_17_x86_64.manylinux2014_x86_64": Platform("Linux", "x86_64", "x86_64-linux-gnu.2.17"),
    "manylinux_2_17_aarch64.manylinux2014_aarch64": Platform("Linux", "aarch64", "aarch64-linux-gnu.2.17"),
    "macosx_13_0_x86_64": Platform("Darwin", "x86_64", "x86_64-macos.13.0"),
    "macosx_13_0_arm64": Platform("Darwin", "arm64", "aarch64-macos.13.0"),
    "win_amd64": Platform("Windows", "AMD64", "x86_64-windows-gnu"),
}


def this_platform() -> Platform:
    return Platform(platform.system(), platform.machine())


@dataclass(frozen=True)
class Compiler:
    """A C++20 compiler: the words of its command, and whether it is zig's, which takes other options."""

    command: tuple[str, ...]
    is_zig: bool = False

    @property
    def name(self) -> str:
        return "zig" if self.is_zig else Path(self.command[0]).name

    def march(self, variant: str) -> list[str]:
        """The option that compiles for the processors of a variant."""
        if variant == "baseline":
            return []
        return [f"-march={variant.replace('-', '_') if self.is_zig else variant}"]


@cache
def version(compiler: Compiler) -> str:
    """What a compiler says of itself, but for the place where it lies; objects of another one are not used."""
    done = subprocess.run([*compiler.command, "--version"], capture_output=True, text=True, check=False)
    return "".join(line for line in done.stdout.splitlines(keepends=True) if not line.startswith("InstalledDir"))


def find_compiler() -> Compiler:
    """The machine's C++ compiler, or that of the package ziglang."""
    if os.environ.get("CXX"):
        return Compiler(tuple(os.environ["CXX"].split()))
    for name in COMPILERS:
        if path := shutil.which(name):
            return Compiler((path,))
    return zig()


def zig() -> Compiler:
    """The compiler of the package ziglang, or a sentence that says how to get one."""
    try:
        import ziglang  # noqa: F401
    except ImportError:
        raise SystemExit(
            "mssvm's kernels need a C++20 compiler: install g++ or clang, or run pip install ziglang, then try again."
        ) from None
    return Compiler((sys.executable, "-m", "ziglang", "c++"), is_zig=True)


def has_compiler() -> bool:
    """Whether a compiler is on the path."""
    return bool(os.environ.get("CXX")) or any(shutil.which(name) for name in COMPILERS)


def run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}\n{done.stdout}{done.stderr}")
    if done.stderr.strip():
        print(done.stderr.strip(), file=sys.stderr)


def digest(parts: list[str], files: list[Path]) -> str:
    """Of everything that an object or a library depends on."""
    found = hashlib.sha256("\n".join(parts).encode())
    for path in files:
        found.update(path.read_bytes())
    return found.hexdigest()[:16]


def produce(command: list[str], out: Path) -> Path:
    """Run a command that writes ``out``, if that is not there, in the place of older ones."""
    if not out.exists():
        out.parent.mkdir(parents=True, exist_ok=True)
        for old in out.parent.glob(f"{out.stem.rpartition('-')[0]}-{'?' * 16}{out.suffix}"):
            old.unlink(missing_ok=True)
        unfinished = out.with_suffix(f".{os.getpid()}.tmp")
        run([*command, "-o", str(unfinished)])
        unfinished.replace(out)
    return out


@cache
def included(path: Path) -> frozenset[Path]:
    """The headers of this directory that a file includes, and those that these include."""
    named = re.findall(r'^#include "([^"]+)"', path.read_text("utf-8"), re.MULTILINE)
    direct = frozenset(path.parent / name for name in named)
    return direct.union(*(included(header) for header in direct))


def lines(source: Path) -> int:
    """Of a source and its headers."""
    return sum(path.read_bytes().count(b"\n") for path in (source, *included(source)))


def compile_object(compiler: Compiler, options: list[str], source: Path, kind: str) -> Path:
    """The object file of one source, compiled now if it is not known."""
    options = [*FLAGS, *OWN_FLAGS.get(source.stem, ()), *options]
    known = digest([version(compiler), *options], [source, *sorted(included(source))])
    return produce(
        [*compiler.command, *options, "-c", str(source)], OBJECTS / compiler.name / kind / f"{source.stem}-{known}.o"
    )


def link(compiler: Compiler, options: list[str], objects: list[Path], out: Path, system: str) -> None:
    """A shared library of some objects; whoever has the old one loaded keeps it."""
    options = [*options, "-shared"]
    if system != "Windows":
        options.append("-pthread")
    if compiler.is_zig:
        options.append("-s")  # its C++ library comes with two megabytes of names
    elif system == "Linux":
        options += ["-static-libstdc++", "-static-libgcc"]
    known = digest([version(compiler), *options, *(path.name for path in objects)], [])
    kept = objects[0].parent / f"{out.stem}-{known}{out.suffix}"
    produce([*compiler.command, *options, *map(str, objects)], kept)
    out.parent.mkdir(parents=True, exist_ok=True)
    unfinished = out.with_suffix(f".{os.getpid()}.tmp")
    shutil.copy(kept, unfinished)
    unfinished.replace(out)


def build(compiler: Compiler, wanted: Platform, variants: list[str], out: Path, sanitize: str = "") -> None:
    """Compile and link the named variants, and the small library that tells which of them a processor can run."""
    common = ["-target", wanted.target] if wanted.target else []
    extra = list(SANITIZERS[sanitize]) if sanitize else []
    sources = [path for path in SOURCES.glob("*.cpp") if path.stem != "cpu"]
    sources.sort(key=lambda path: (-lines(path), path.stem))  # the longest first: nobody waits for it at the end
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        jobs = {}
        for variant in variants:
            options = [*common, *extra, *compiler.march(variant)]
            kind = "-".join(filter(None, (wanted.target, variant, sanitize)))
            jobs[variant] = [pool.submit(compile_object, compiler, options, source, kind) for source in sources]
        for variant, objects in jobs.items():
            # Linked for no variant: zig compiles its C++ library once for every processor it is asked to link for.
            name = out / f"libmssvm-{variant}{wanted.suffix}"
            link(compiler, [*common, *extra], [job.result() for job in objects], name, wanted.system)
    if wanted.machine in X86:
        cpu = compile_object(compiler, common, SOURCES / "cpu.cpp", wanted.target or "cpu")
        link(compiler, common, [cpu], out / f"libmssvm-cpu{wanted.suffix}", wanted.system)


def best_variant(compiler: Compiler, out: Path) -> str:
    """The fastest variant that this machine can run."""
    here = this_platform()
    if here.machine not in X86:
        return "baseline"
    build(compiler, here, [], out)
    level = ctypes.CDLL(str(out / f"libmssvm-cpu{here.suffix}")).mssvm_cpu_level()
    return f"x86-64-v{max(level, 2)}"


def build_here(out: Path = LIBRARIES, sanitize: str = "") -> None:
    """The variant for this machine by this machine's compiler."""
    compiler = find_compiler()
    build(compiler, this_platform(), [best_variant(compiler, out)], out, sanitize)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sanitize", choices=sorted(SANITIZERS), default="")
    parser.add_argument("--out", type=Path, default=LIBRARIES, help="directory of the libraries")
    parser.add_argument("--wheel", choices=PLATFORMS, help="every variant of the wheel with this tag, by zig")
    given = parser.parse_args()
    if given.wheel:
        wanted = PLATFORMS[given.wheel]
        build(zig(), wanted, list(wanted.variants), given.out)
    else:
        build_here(given.out, given.sanitize)
    (given.out / ".built").touch()  # what the Makefile looks at


if __name__ == "__main__":
    main()
