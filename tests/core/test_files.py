"""Files that are written whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path
from threading import Thread

import pytest

from mssvm.core.errors import InputError
from mssvm.core.files import exclusive_lock, replacing


def test_a_link_goes_on_naming_the_file_that_is_replaced(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    target = kept / "model"
    target.write_bytes(b"old")
    link = tmp_path / "link"
    link.symlink_to(target)
    with replacing(link) as file:
        file.write(b"new")
    assert link.is_symlink()
    assert target.read_bytes() == b"new"
    assert [entry.name for entry in kept.iterdir()] == ["model"]


def test_pipes_are_written_to_and_stay(tmp_path: Path) -> None:
    """Devices, such as /dev/null, too: a rename would put a plain file in their place."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    read: list[bytes] = []
    reader = Thread(target=lambda: read.append(pipe.read_bytes()), daemon=True)
    reader.start()
    with exclusive_lock(pipe), replacing(pipe) as file:
        file.write(b"all of it")
    reader.join(10.0)
    assert read == [b"all of it"]
    assert pipe.is_fifo()


def test_what_cannot_be_written_is_one_sentence_and_leaves_what_was_there(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be written"), replacing(tmp_path):
        pass
    old = tmp_path / "old"
    old.write_bytes(b"old")
    with pytest.raises(KeyError), replacing(old) as file:
        file.write(b"half")
        raise KeyError
    assert [(entry.name, entry.read_bytes()) for entry in tmp_path.iterdir()] == [("old", b"old")]
