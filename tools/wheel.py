"""Wheels and the sdist; the wheel of this platform in an empty environment without a compiler: README and demo.

    python tools/wheel.py                                  # with this interpreter: make wheel
    python tools/wheel.py python3.12 python3.13            # and with these instead
    python tools/wheel.py --all                            # and the wheels of the other platforms, which nobody runs

What is built goes to dist/. A wheel holds every variant of its platform, compiled by zig (package ziglang) against the
oldest C library that its tag allows, and serves every Python. Each environment is made anew in a temporary folder, with
nothing of the sources in it.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZipFile

import native

ROOT = Path(__file__).resolve().parents[1]
QUIET = ("--quiet", "--disable-pip-version-check")
MOST_BYTES = 5 * 10**6
GLIBC = 17  # of manylinux_2_17


def run(*command: str | Path, cwd: Path, **variables: str) -> str:
    """What a command prints; it must succeed."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")} | {"MPLBACKEND": "Agg"} | variables
    parts = [str(part) for part in command]
    done = subprocess.run(parts, cwd=cwd, env=clean, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(parts)} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


def environment(python: str | Path, folder: Path) -> Path:
    """The interpreter of a new virtual environment."""
    run(python, "-m", "venv", folder, cwd=ROOT)
    return folder / ("Scripts" if os.name == "nt" else "bin") / "python"


def lines_of_readme() -> str:
    """The first block of Python in the README."""
    match = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text("utf-8"), re.DOTALL)
    assert match is not None
    return match.group(1)


def tag_here() -> str:
    """The tag of this machine's wheel."""
    here = native.this_platform()
    for tag, wanted in native.PLATFORMS.items():
        if (wanted.system, wanted.machine) == (here.system, here.machine):
            return tag
    sys.exit(f"There is no wheel for {here.system} on {here.machine}: pip install . compiles for this machine alone.")


def build(python: Path, tag: str, folder: Path) -> Path:
    """The wheel with a tag."""
    began = time.monotonic()
    run(python, "-m", "build", "--wheel", "--outdir", ROOT / "dist", ROOT, cwd=folder, MSSVM_WHEEL=tag)
    wheel = next((ROOT / "dist").glob(f"mssvm-*-py3-none-{tag}.whl"))
    compress(wheel)
    size = wheel.stat().st_size
    print(f"{wheel.name}, {size / 1e6:.2f} MB, {time.monotonic() - began:.0f} s", flush=True)
    if size > MOST_BYTES:
        sys.exit(f"The wheel must not be larger than {MOST_BYTES / 1e6:.0f} MB.")
    inspect(wheel, native.PLATFORMS[tag])
    return wheel


def compress(wheel: Path) -> None:
    """Write a wheel again with the best compression, which its build does not offer; its files stay as they are."""
    unfinished = wheel.with_suffix(".tmp")
    with ZipFile(wheel) as archive, ZipFile(unfinished, "w") as smaller:
        for info in archive.infolist():
            smaller.writestr(info, archive.read(info), ZIP_DEFLATED, compresslevel=9)
    unfinished.replace(wheel)


def build_sources(python: Path, wheel: Path, folder: Path) -> None:
    """The sdist, which must hold every file of the wheel but the libraries, and what compiles these."""
    run(python, "-m", "build", "--sdist", "--outdir", ROOT / "dist", ROOT, cwd=folder)
    sdist = max((ROOT / "dist").glob("mssvm-*.tar.gz"), key=lambda path: path.stat().st_mtime)
    with tarfile.open(sdist) as archive:
        held = {name.partition("/")[2] for name in archive.getnames()}
    with ZipFile(wheel) as archive:
        needed = {f"src/{name}" for name in archive.namelist() if name.startswith("mssvm/")}
    needed = {name for name in needed if "/native/lib/" not in name} | {"hatch_build.py", "tools/native.py"}
    if lacking := sorted(needed - held):
        sys.exit(f"{sdist.name} lacks {', '.join(lacking)}.")
    print(f"{sdist.name}, {sdist.stat().st_size / 1e6:.2f} MB", flush=True)


def inspect(wheel: Path, wanted: native.Platform) -> None:
    """All variants must be there, and on Linux need no younger C library than the tag says."""
    with ZipFile(wheel) as archive:
        libraries = {Path(name).name: archive.read(name) for name in archive.namelist() if "/native/lib/" in name}
    expected = {f"libmssvm-{variant}{wanted.suffix}" for variant in wanted.variants}
    if wanted.machine in native.X86:
        expected.add(f"libmssvm-cpu{wanted.suffix}")
    if set(libraries) != expected:
        sys.exit(f"{wheel.name} holds {sorted(libraries)}, not {sorted(expected)}.")
    for name, content in libraries.items():
        youngest = max((int(minor) for minor in re.findall(rb"GLIBC_2\.(\d+)", content)), default=0)
        if wanted.system == "Linux" and youngest > GLIBC:
            sys.exit(f"{name} needs glibc 2.{youngest}; the tag allows 2.{GLIBC}.")


def check(python: str, wheel: Path, folder: Path) -> str:
    """Install the wheel for ``python`` and use it where no compiler is on the path; what was installed."""
    empty_python = environment(python, folder / "empty")
    path = {"PATH": str(empty_python.parent), "CXX": ""}
    run(empty_python, "-m", "pip", "install", *QUIET, f"{wheel}[plot]", cwd=folder, **path)
    (folder / "readme.py").write_text(lines_of_readme(), "utf-8")
    run(empty_python, "readme.py", cwd=folder, **path)
    began = time.monotonic()
    run(empty_python.parent / "mssvm", "demo", cwd=folder, **path)
    seconds = time.monotonic() - began
    about = "import sys, numpy, mssvm; from mssvm.core import library\n"
    about += "print(sys.version.split()[0], numpy.__version__, mssvm.__version__, library.variants()[0])"
    versions = run(empty_python, "-c", about, cwd=folder, **path).split()
    summary = "Python {}, numpy {}: mssvm {} ({}) runs the README's lines and mssvm demo".format(*versions)
    return f"{summary} (the demo alone: {seconds:.0f} s)"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("python", nargs="*", default=[sys.executable], help="interpreters to try the wheel with")
    parser.add_argument("--all", action="store_true", help="cross-compile the wheels of the other platforms, too")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        builder = environment(sys.executable, Path(name) / "build")
        run(builder, "-m", "pip", "install", *QUIET, "build", cwd=Path(name))
        wheel = build(builder, tag_here(), Path(name))
        build_sources(builder, wheel, Path(name))
        for tag in native.PLATFORMS if args.all else ():
            if tag != tag_here():
                build(builder, tag, Path(name))
        for k, python in enumerate(args.python):
            began = time.monotonic()
            folder = Path(name) / str(k)
            folder.mkdir()
            print(f"{check(python, wheel, folder)}, {time.monotonic() - began:.0f} s", flush=True)


if __name__ == "__main__":
    main()
