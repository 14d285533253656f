"""The peers' virtual environments, made when first needed under ``build/peers`` (which git ignores)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[1] / "build" / "peers"

# What pip installs, step by step. PGMax names dozens of packages that its inference does not use.
PACKAGES: dict[str, tuple[tuple[str, ...], ...]] = {
    "crfsuite": (("python-crfsuite", "numpy"),),
    "crowdkit": (("crowd-kit",),),
    "pgmax": (("jax==0.4.38", "jaxlib==0.4.38", "numba", "scipy"), ("--no-deps", "pgmax")),
    "pygms": (("pyGMs",),),
    "pyhcrf": (("pyhcrf",),),
    "pystruct": (("pystruct",),),
    "skweak": (("skweak",),),
    "strokes": (("opencv-python-headless", "scikit-image", "pillow", "numpy"),),
    "torchcrf": (("torch==2.13.0", "numpy"), ("pytorch-crf",)),
    "toulbar2": (("pytoulbar2", "numpy"),),
}

# Peers that no row runs, and why.
NOT_RUN = {
    "libDAI": "C++ without a package on PyPI",
    "Merlin": "C++ without a package on PyPI",
    "hCRF-light": "C++ without a package on PyPI",
    "pgmpy": "its map_query asks for one table of 32 GiB on the checkerboard",
    "torch-struct": "compared on a GPU only, which this target does not use",
}


class Unavailable(Exception):
    """A contestant that cannot run here, with the reason in a sentence."""


def python_of(name: str) -> Path:
    """The interpreter of an environment; made, or known to have failed, if it is not there yet."""
    place = FOLDER / name
    python = place / "bin" / "python"
    done = place / "installed"
    failed = FOLDER / f"{name}.failed"
    wanted = repr(PACKAGES[name])
    if done.is_file() and done.read_text() == wanted:
        return python
    if failed.is_file():
        again = f"delete {failed.name} in build/peers to try again"
        raise Unavailable(f"pip does not install it here: {failed.read_text()} ({again})")
    FOLDER.mkdir(parents=True, exist_ok=True)
    steps = [[sys.executable, "-m", "venv", "--clear", str(place)]]
    steps += [[str(python), "-m", "pip", "install", "--quiet", *packages] for packages in PACKAGES[name]]
    for step in steps:
        run = subprocess.run(step, capture_output=True, text=True, check=False)
        if run.returncode:
            failed.write_text(_reason(run.stderr))
            raise Unavailable(f"pip does not install it here: {failed.read_text()}")
    done.write_text(wanted)
    return python


def install_all() -> dict[str, str]:
    """Make every environment; the reasons of those that cannot be made."""
    out = {}
    for name in PACKAGES:
        try:
            python_of(name)
        except Unavailable as error:
            out[name] = str(error)
    return out


def _reason(words: str) -> str:
    """The line of pip's complaint that says most."""
    lines = [line.strip() for line in words.splitlines() if line.strip() and "WARNING" not in line]
    said = [line for line in lines if "Error: " in line or line.startswith("error: ")]
    telling = [line for line in said if "subprocess-exited" not in line and "metadata-generation" not in line]
    return (telling or said or lines or ["no word why"])[0]
