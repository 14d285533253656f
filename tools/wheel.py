"""The wheel and the sdist, and the wheel in an empty environment: the README's lines of Python, and ``mssvm demo``.

    python tools/wheel.py                                  # with this interpreter: make wheel
    python tools/wheel.py python3.12 python3.13            # and with these instead

What is built goes to dist/. Each environment is made anew in a temporary folder, with nothing of the sources in it.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
QUIET = ("--quiet", "--disable-pip-version-check")


def run(*command: str | Path, cwd: Path) -> str:
    """What a command prints; it must succeed."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")} | {"MPLBACKEND": "Agg"}
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
    found = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text("utf-8"), re.DOTALL)
    assert found is not None
    return found.group(1)


def build(folder: Path) -> Path:
    """The wheel, made from the sdist."""
    python = environment(sys.executable, folder / "build")
    run(python, "-m", "pip", "install", *QUIET, "build", cwd=folder)
    run(python, "-m", "build", "--outdir", ROOT / "dist", ROOT, cwd=folder)
    return max((ROOT / "dist").glob("mssvm-*.whl"), key=lambda path: path.stat().st_mtime)


def check(python: str, wheel: Path, folder: Path) -> str:
    """Install the wheel for ``python`` and use it; what was installed."""
    mine = environment(python, folder / "empty")
    run(mine, "-m", "pip", "install", *QUIET, f"{wheel}[plot]", cwd=folder)
    (folder / "readme.py").write_text(lines_of_readme(), "utf-8")
    run(mine, "readme.py", cwd=folder)
    run(mine.parent / "mssvm", "demo", cwd=folder)
    about = "import sys, numpy, numba, mssvm; print(sys.version.split()[0])\n"
    about += "for package in (numpy, numba, mssvm): print(package.__version__)"
    versions = run(mine, "-c", about, cwd=folder).split()
    return "Python {}, numpy {}, numba {}: mssvm {} runs the README's lines and mssvm demo".format(*versions)


def main(pythons: list[str]) -> None:
    with tempfile.TemporaryDirectory() as name:
        wheel = build(Path(name))
        print(f"{wheel.name}, {wheel.stat().st_size / 2**20:.1f} MiB")
        for k, python in enumerate(pythons or [sys.executable]):
            began = time.monotonic()
            (folder := Path(name) / str(k)).mkdir()
            print(f"{check(python, wheel, folder)}, {time.monotonic() - began:.0f} s", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
