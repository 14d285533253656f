"""Results in files, complete or not at all; gzipped if the name ends in .gz; "-" is standard output."""

from __future__ import annotations

import gzip
import io
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from mssvm.core.arrays import AnyArray
from mssvm.core.errors import InputError
from mssvm.core.files import is_device, replacing
from mssvm.data.labels import plain
from mssvm.data.readers.stream import STDIN


def check_target(path: Path, *inputs: Path | None) -> None:
    """Raise before long work if the result could not be written, or would take the place of an input."""
    folder = path.parent
    if not folder.is_dir():
        raise InputError(f"{path} cannot be written: there is no folder {folder}; create it first.")
    if path.is_dir():
        raise InputError(f"{path} cannot be written: it is a folder; name a file.")
    if not os.access(folder, os.W_OK) and not is_device(path):
        raise InputError(f"{path} cannot be written: the folder {folder} does not allow it; name another file.")
    for source in inputs:
        if source is not None and source.exists() and path.exists() and path.samefile(source):
            raise InputError(f"{path} cannot be written: it is an input of this command; name another file.")


@contextmanager
def output(path: Path) -> Iterator[IO[str]]:
    """A text file that appears, or replaces an older one, only when everything is written."""
    if str(path) == STDIN:
        with tempfile.TemporaryFile("w+", encoding="utf-8") as spool:
            yield spool
            spool.seek(0)
            for line in spool:
                sys.stdout.write(line)
        return
    check_target(path)
    with replacing(path) as raw:
        packed = gzip.GzipFile(filename="", fileobj=raw, mode="wb") if path.suffix == ".gz" else None
        text = io.TextIOWrapper(packed or raw, encoding="utf-8", write_through=packed is None)
        yield text
        text.detach()  # flushes, and leaves the files open for the lines below
        if packed is not None:
            packed.close()


def answer_record(name: Any, y: Any, classes: AnyArray, marginals: Any = None) -> dict[str, Any]:
    """One instance's answer as JSON values: its id if it has one, its labels, and probabilities on request."""
    record: dict[str, Any] = {} if name is None else {"id": name}
    record["y"] = plain_labels(y)
    if marginals is not None:
        record["classes"] = [plain(label) for label in classes]
        record["marginals"] = marginals.round(6).tolist()
    return record


def plain_labels(y: Any) -> Any:
    """Labels of one instance as JSON values."""
    return y.tolist() if hasattr(y, "tolist") else plain(y)
