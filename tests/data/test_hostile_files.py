"""Small files that would become large, and files that declare what they do not hold: refused before memory is taken."""

from __future__ import annotations

import gzip
import io
import json
import struct
import subprocess
import sys
import tracemalloc
import zipfile
import zlib
from pathlib import Path

import numpy as np
import pytest

from mssvm.cli import main
from mssvm.core.errors import InputError
from mssvm.data.readers import Options, png, read, stream
from mssvm.data.readers.png import SIGNATURE, decode


def picture(width: int, height: int, depth: int = 8, colour: int = 0, data: bytes = b"") -> bytes:
    """A PNG with any header over any data, its checksums right."""
    header = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    parts = ((b"IHDR", header), (b"IDAT", zlib.compress(data, 9)), (b"IEND", b""))
    return SIGNATURE + b"".join(
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body)) for kind, body in parts
    )


def archive(path: Path, shape: tuple[int, ...], held: bytes) -> Path:
    """An .npz whose x declares ``shape`` and holds other bytes, packed."""
    head = io.BytesIO()
    np.lib.format.write_array_header_1_0(head, {"descr": "<f8", "fortran_order": False, "shape": shape})
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("x.npy", head.getvalue() + held)
    return path


def peak(act: object) -> int:
    tracemalloc.start()
    with pytest.raises(InputError):
        act()  # type: ignore[operator]
    found = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return found


@pytest.mark.parametrize("depth", [0, 3, 255])
def test_impossible_depths_of_pictures(depth: int) -> None:
    with pytest.raises(InputError, match="damaged or no PNG"):
        decode(picture(2, 2, depth, data=bytes(6)), "p.png")


def test_impossible_colour_types_of_pictures() -> None:
    with pytest.raises(InputError, match="damaged or no PNG"):
        decode(picture(2, 2, colour=5, data=bytes(6)), "p.png")


@pytest.mark.parametrize(("width", "height"), [(0, 4), (4, 0), (0, 0)])
def test_pictures_without_pixels(width: int, height: int) -> None:
    with pytest.raises(InputError, match="damaged or no PNG"):
        decode(picture(width, height), "p.png")


def test_pictures_are_bounded_by_what_they_declare(monkeypatch: pytest.MonkeyPatch) -> None:
    large = picture(1 << 16, 1 << 16, data=bytes(1 << 20))
    assert peak(lambda: decode(large, "p.png")) < 1 << 20
    monkeypatch.setattr(png, "MAX_PIXELS", 4)
    good = picture(3, 2, data=bytes(8))
    with pytest.raises(InputError, match="raise --limit"):
        decode(good, "p.png")
    assert decode(good, "p.png", limit=2).shape == (2, 3, 1)


def test_pictures_hold_no_more_than_they_declare() -> None:
    more, less = picture(2, 2, data=bytes(1 << 26)), picture(2000, 2000, data=bytes(9))
    tracemalloc.start()
    assert decode(more, "p.png").shape == (2, 2, 1)
    taken = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert taken < 1 << 20 and peak(lambda: decode(less, "p.png")) < 1 << 20


def test_archives_that_declare_too_much(tmp_path: Path) -> None:
    path = archive(tmp_path / "a.npz", (10**6, 10**3, 10**3), b"")
    assert peak(lambda: read(path)) < 1 << 22


def test_packed_archives_are_bounded_until_the_limit_is_raised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = archive(tmp_path / "a.npz", (100, 100, 10), bytes(800_000))
    monkeypatch.setattr(stream, "UNPACKED", 500_000)
    assert path.stat().st_size * stream.EXPANSION < 500_000
    with pytest.raises(InputError, match="raise --limit"):
        read(path)
    assert len(read(path, Options(limit=2))) == 100
    (tmp_path / "b.npz.gz").write_bytes(gzip.compress(bytes(800_000)))
    with pytest.raises(InputError, match="unpacks to more than"):
        read(tmp_path / "b.npz.gz")


def test_long_lines_are_bounded_until_the_limit_is_raised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(stream, "MAX_LINE", 1 << 20)
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps({"x": [[1.5] * 300_000], "y": ["a"]}) + "\n")
    assert main(["check", str(path)]) == 2 and "raise --limit" in capsys.readouterr().err
    assert main(["check", str(path), "--limit", "2"]) == 0


@pytest.mark.parametrize("y", [np.array([[np.inf, 0.0]]), np.array(3.0)])
def test_labels_of_archives(y: np.ndarray, tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.zeros((1, 2, 1)), y=y)
    with pytest.raises(InputError, match="y"):
        read(tmp_path / "a.npz")


def test_integers_of_hundreds_of_digits(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"x": [[' + "9" * 400 + ']], "y": ["a"]}\n')
    with pytest.raises(InputError, match="line 1"):
        read(path)


@pytest.mark.parametrize(
    "more", [["--seed", "4294967296"], ["--max-iter", "9" * 23], ["--limit", "0"], ["--jobs", "9" * 30]], ids=str
)
def test_numbers_on_the_command_line_that_are_too_large(
    more: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"x": [[1], [2]], "y": ["a", "b"]}\n')
    assert main(["fit", str(path), "-o", str(tmp_path / "m"), *more]) == 2
    told = capsys.readouterr().err
    assert told.startswith("mssvm: ") and told.count("\n") == 1


@pytest.mark.parametrize("limit", ["1e300", "nan", "-1"])
def test_memory_limits_of_infer(limit: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "m.uai"
    path.write_text("MARKOV\n1\n2\n1\n1 0\n2 0.5 0.5\n")
    assert main(["infer", str(path), "--task", "PR", "--memory-limit", limit]) == 2
    assert "memory-limit" in capsys.readouterr().err


@pytest.mark.slow
def test_full_output_is_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"x": [[1], [2]], "y": ["a", "b"]}\n')
    with open("/dev/full", "w") as out:
        command = [sys.executable, "-m", "mssvm", "check", str(path)]
        run = subprocess.run(command, stdout=out, stderr=subprocess.PIPE, text=True)
    assert run.returncode == 2 and run.stderr.count("\n") == 1 and run.stderr.startswith("mssvm: ")
