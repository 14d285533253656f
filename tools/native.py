"""Compiles src/mssvm/engines/native/cpp into src/mssvm/engines/native/lib; nothing but the standard library is needed.

    python tools/native.py                        for this machine, by $CXX, c++, g++, clang++ or the package ziglang
    python tools/native.py --all                  every variant of this platform (for wheels)
    python tools/native.py --sanitize address     with AddressSanitizer and UndefinedBehaviorSanitizer; or: thread

Objects are kept in build/native; a file is compiled again when it, a header or the command has changed.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import platform
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ROOT / "src/mssvm/engines/native/cpp"
LIBRARIES = ROOT / "src/mssvm/engines/native/lib"
OBJECTS = ROOT / "build/native"
# No errno and traps, no signed zeros, multiplications and additions fused: vectors need the first, speed the others.
# Infinities and NaN keep their meaning.
FLAGS = (
    "-std=c++20", "-O3", "-fPIC", "-fvisibility=hidden", "-fno-math-errno", "-fno-trapping-math", "-fno-signed-zeros",
    "-ffp-contract=fast", "-Wall", "-Wextra", "-Wno-psabi", "-Wno-unknown-warning-option",
)  # fmt: skip
# Orders break ties by sums of logarithms: unfused, they are the same on every processor.
OWN_FLAGS = {"orders": ("-ffp-contract=off",)}
SANITIZERS = {
    "address": ("-fsanitize=address,undefined", "-fno-sanitize-recover=undefined", "-fno-omit-frame-pointer", "-g"),
    "thread": ("-fsanitize=thread", "-g"),
}
X86 = ("x86_64", "AMD64")


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
    def variants(self) -> dict[str, str]:
        """Names of the library's variants, each with its -march option."""
        if self.machine in X86:
            return {f"x86-64-v{k}": f"-march=x86_64_v{k}" if self.target else f"-march=x86-64-v{k}" for k in (2, 3, 4)}
        return {"baseline": ""}


def this_platform() -> Platform:
    return Platform(platform.system(), platform.machine())


def find_compiler() -> list[str]:
    """The command of a C++20 compiler."""
    if os.environ.get("CXX"):
        return os.environ["CXX"].split()
    for name in ("c++", "g++", "clang++"):
        if path := shutil.which(name):
            return [path]
    return zig()


def zig() -> list[str]:
    """The compiler of the package ziglang, or a sentence that says how to get one."""
    try:
        import ziglang  # noqa: F401
    except ImportError:
        raise SystemExit(
            "mssvm's kernels need a C++20 compiler: install g++ or clang, or run pip install ziglang, then try again."
        ) from None
    return [sys.executable, "-m", "ziglang", "c++"]


def has_compiler() -> bool:
    """Whether a compiler is on the path."""
    return bool(os.environ.get("CXX")) or any(shutil.which(name) for name in ("c++", "g++", "clang++"))


def run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}\n{done.stdout}{done.stderr}")
    if done.stderr.strip():
        print(done.stderr.strip(), file=sys.stderr)


def digest(source: Path, command: list[str]) -> str:
    """Of everything that an object depends on."""
    found = hashlib.sha256(" ".join(command).encode())
    for path in (source, *sorted(SOURCES.glob("*.hpp"))):
        found.update(path.read_bytes())
    return found.hexdigest()[:16]


def compile_object(compiler: list[str], options: list[str], source: Path, kind: str) -> Path:
    """The object file of one source, compiled now if it is not known."""
    command = [*compiler, *FLAGS, *OWN_FLAGS.get(source.stem, ()), *options, "-c", str(source)]
    out = OBJECTS / kind / f"{source.stem}-{digest(source, command)}.o"
    if not out.exists():
        out.parent.mkdir(parents=True, exist_ok=True)
        for old in out.parent.glob(f"{source.stem}-*.o"):
            old.unlink(missing_ok=True)
        unfinished = out.with_suffix(f".{os.getpid()}.tmp")
        run([*command, "-o", str(unfinished)])
        unfinished.replace(out)
    return out


def link(compiler: list[str], options: list[str], objects: list[Path], out: Path, system: str) -> None:
    """A shared library of some objects; whoever has the old one loaded keeps it."""
    out.parent.mkdir(parents=True, exist_ok=True)
    extra = ["-pthread"] if system != "Windows" else []
    if "ziglang" not in compiler and system == "Linux":
        extra += ["-static-libstdc++", "-static-libgcc"]
    unfinished = out.with_suffix(f".{os.getpid()}.tmp")
    run([*compiler, *options, "-shared", *extra, *map(str, objects), "-o", str(unfinished)])
    unfinished.replace(out)


def build(
    compiler: list[str], wanted: Platform, variants: list[str], sanitize: str = "", out: Path = LIBRARIES
) -> None:
    """Compile and link the named variants, and the small library that tells which of them a processor can run."""
    common = ["-target", wanted.target] if wanted.target else []
    extra = list(SANITIZERS[sanitize]) if sanitize else []
    sources = [path for path in sorted(SOURCES.glob("*.cpp")) if path.stem != "cpu"]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        jobs = {}
        for variant in variants:
            march = wanted.variants[variant]
            options = [*common, *extra, *([march] if march else [])]
            kind = "-".join(filter(None, (wanted.target, variant, sanitize)))
            jobs[variant] = options, [pool.submit(compile_object, compiler, options, s, kind) for s in sources]
        for variant, (options, objects) in jobs.items():
            name = out / f"libmssvm-{variant}{wanted.suffix}"
            link(compiler, options, [job.result() for job in objects], name, wanted.system)
    if wanted.machine in X86:
        cpu = compile_object(compiler, common, SOURCES / "cpu.cpp", wanted.target or "cpu")
        link(compiler, common, [cpu], out / f"libmssvm-cpu{wanted.suffix}", wanted.system)
    if variants:
        (out / ".built").touch()  # what the Makefile looks at


def best_variant(compiler: list[str]) -> str:
    """The fastest variant that this machine can run."""
    here = this_platform()
    if here.machine not in X86:
        return "baseline"
    build(compiler, here, [])
    import ctypes

    level = ctypes.CDLL(str(LIBRARIES / f"libmssvm-cpu{here.suffix}")).mssvm_cpu_level()
    return f"x86-64-v{max(level, 2)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--all", action="store_true", help="every variant of this platform")
    parser.add_argument("--sanitize", choices=sorted(SANITIZERS), default="")
    parser.add_argument("--out", type=Path, default=LIBRARIES, help="directory of the libraries")
    given = parser.parse_args()
    compiler = find_compiler()
    variants = list(this_platform().variants) if given.all else [best_variant(compiler)]
    build(compiler, this_platform(), variants, given.sanitize, given.out)


if __name__ == "__main__":
    main()
