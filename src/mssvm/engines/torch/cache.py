"""Directory of the cache of compiled CUDA kernels."""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[2]
NAME = "kernels"
UNUSED = 30 * 86400.0  # seconds after which the directory of other versions is removed


@cache
def directory(versions: str) -> Path | None:
    """Directory of the kernel cache for these versions; None if no directory can be written."""
    for place in _places():
        path = place / f"{NAME}-{versions}"
        try:
            path.mkdir(parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=path).close()
        except OSError:
            continue
        _prune(place, path)
        return path
    return None


def _places() -> Iterator[Path]:
    """The package's own directory, then the user's cache directory, with a subdirectory for every installation."""
    yield PACKAGE / "__pycache__"
    name = hashlib.sha256(str(PACKAGE).encode()).hexdigest()[:12]
    yield _user_cache() / "mssvm" / name


def _user_cache() -> Path:
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA", Path.home() / "AppData/Local"))
    if sys.platform == "darwin":
        return Path.home() / "Library/Caches"
    return Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))


def _prune(place: Path, used: Path) -> None:
    """Remove directories of other versions that were not written to for a long time."""
    for path in place.glob(f"{NAME}-*"):
        if path != used and time.time() - path.stat().st_mtime > UNUSED:
            shutil.rmtree(path, ignore_errors=True)
