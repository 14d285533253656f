"""Damaged files of every format: readers, models and checkpoints answer with a data set, or with one sentence.

    python tools/attack_files.py [--cases N] [--seed S] [--json FILE]

Good files are changed where their structure is (a byte, a number, a bracket, a chunk, a header, a line twice or
missing) and read back. Only ``MssvmError`` may come out.
"""

from __future__ import annotations

import gzip
import io
import json
import struct
import sys
import tempfile
import time
import warnings
import zlib
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from attack import options, report
from safetensors.numpy import load, save

import mssvm as ms
from mssvm.core.files import digest_of
from mssvm.data.readers import Options, read
from mssvm.data.readers.png import SIGNATURE, encode
from mssvm.uai import read_model

NUMBERS = (b"1e999", b"-1", b"0", b"9" * 400, b"null", b"NaN", b'"x"', b"[]", b"{}", b"1e-999", b"true", b"\xff\xfe")
VALUES = (None, True, -1, 0, 3, 1 << 40, 10**400, 0.5, "", "x", "MSSVM", [], {}, [1], {"$": "float", "text": "nan"})
MARKS = b'[]{}",:\n\t 0123456789'


def good_files() -> dict[str, tuple[bytes, Callable[[Path], Any]]]:
    """A small file of every format, and how it is read."""
    rng = np.random.default_rng(0)
    chains = [{"x": rng.normal(size=(3, 2)).tolist(), "y": ["a", None, "b"]} for _ in range(3)]
    graphs = [{"nodes": [[1.0], [2.0]], "edges": [[0, 1]], "y": [0, 1]} for _ in range(2)]
    archive = io.BytesIO()
    np.savez_compressed(archive, x=rng.normal(size=(2, 3, 2)), y=np.array([[0, 1, -1], [1, 0, 1]]))
    conll = "\n".join(f"w{i} N{i % 2} {'B-X' if i % 3 else 'O'}" + ("\n" if i % 4 == 3 else "") for i in range(12))
    series = "@problemName x\n@univariate true\n@classLabel true a b\n@data\n1.0,2.0,3.0:a\n2.0,1.0,0.5:b\n"
    uai = "MARKOV\n2\n2 2\n2\n1 0\n2 0 1\n2 0.5 0.5\n4 1 2 3 4\n"
    chain_lines = "\n".join(json.dumps(row) for row in chains).encode()
    graph_lines = "\n".join(json.dumps(row) for row in graphs).encode()
    return {
        "c.jsonl": (chain_lines, read),
        "g.jsonl": (graph_lines, read),
        "c.jsonl.gz": (gzip.compress(chain_lines), read),
        "c.conll": (conll.encode(), read),
        "c.ts": (series.encode(), read),
        "c.npz": (archive.getvalue(), read),
        "p.png": (encode(rng.integers(0, 255, (6, 5, 3)).astype(np.uint8)), _read_picture),
        "m.uai": (uai.encode(), read_model),
        "m.safetensors": (_model(), _predict),
        "k-1": (_checkpoint(), _resume),
    }


def _data() -> tuple[list[Any], list[Any]]:
    rng = np.random.default_rng(1)
    return [rng.normal(size=(3, 2)) for _ in range(3)], [["a", "b", "a"], ["b", "a", "a"], ["a", None, "b"]]


def _model() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "m.safetensors"
        ms.CRF(ms.Chain(), max_iter=2).fit(*_data()).save(path)
        return path.read_bytes()


def _checkpoint() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        ms.CRF(ms.Chain(), max_iter=2).fit(*_data(), checkpoint=Path(folder) / "k")
        return (Path(folder) / "k-1").read_bytes()


def _predict(path: Path) -> Any:
    return ms.load(path).predict(_data()[0])


def _resume(path: Path) -> Any:
    return ms.CRF(ms.Chain(), max_iter=2).fit(*_data(), checkpoint=path.with_name("k"))


def _read_picture(path: Path) -> Any:
    for folder in ("images", "masks"):
        (path.parent / folder).mkdir(exist_ok=True)
        (path.parent / folder / "p.png").write_bytes(path.read_bytes())
    return read(path.parent, Options(format="images"))


def mutated(data: bytes, rng: np.random.Generator) -> bytes:
    """One to three changes."""
    for _ in range(int(rng.integers(1, 4))):
        at = int(rng.integers(len(data) + 1)) if data else 0
        match int(rng.integers(8)):
            case 0:
                data = data[:at]
            case 1 if data:
                k = min(at, len(data) - 1)
                data = data[:k] + bytes([data[k] ^ (1 << int(rng.integers(8)))]) + data[k + 1 :]
            case 2:
                data = data[:at] + NUMBERS[int(rng.integers(len(NUMBERS)))] + data[at:]
            case 3:
                k = int(rng.integers(len(MARKS)))
                data = data[:at] + MARKS[k : k + 1] + data[at + 1 :]
            case 4:
                lines = data.split(b"\n")
                k = int(rng.integers(len(lines)))
                data = b"\n".join([*lines[:k], *lines[k + int(rng.integers(0, 2)) :], lines[k]])
            case 5:
                end = min(len(data), at + int(rng.integers(1, 30)))
                data = data[:at] + data[end:]
            case 6:
                data = data[:at] + rng.integers(0, 256, int(rng.integers(1, 12)), dtype=np.uint8).tobytes() + data[at:]
            case _:
                end = min(len(data), at + int(rng.integers(1, 60)))
                data = data[:end] + data[at:end] + data[end:]
    return data


def edited(tree: Any, rng: np.random.Generator) -> Any:
    """JSON with one value somewhere inside replaced, taken out or doubled."""
    if not isinstance(tree, (dict, list)) or not tree or rng.random() < 0.1:
        return VALUES[int(rng.integers(len(VALUES)))]
    keys = list(tree) if isinstance(tree, dict) else list(range(len(tree)))
    key = keys[int(rng.integers(len(keys)))]
    changed = tree.copy()
    if rng.random() < 0.05:
        del changed[key]
    else:
        changed[key] = edited(tree[key], rng)
    return changed


def sealed(data: bytes, rng: np.random.Generator) -> bytes:
    """A model or checkpoint with one change and a digest that fits it, as an attacker could write it."""
    (size,) = struct.unpack("<Q", data[:8])
    meta = json.loads(data[8 : 8 + size])["__metadata__"]
    tensors = load(data)
    key = next(k for k in meta if k not in ("format", "digest"))
    text = json.dumps(edited(json.loads(meta[key]), rng))
    if rng.random() < 0.2 and tensors:
        name = list(tensors)[int(rng.integers(len(tensors)))]
        tensors[name] = (np.zeros(3), np.full(tensors[name].shape, np.nan), tensors[name].astype(bool))[rng.integers(3)]
    return bytes(save(tensors, {**meta, key: text, "digest": digest_of(text, tensors)}))


def checked(data: bytes, rng: np.random.Generator) -> bytes:
    """A picture with one chunk changed, its checksums right."""
    parts = []
    at = len(SIGNATURE)
    while at < len(data):
        (size,) = struct.unpack(">I", data[at : at + 4])
        parts.append((data[at + 4 : at + 8], data[at + 8 : at + 8 + size]))
        at += 12 + size
    k = int(rng.integers(len(parts)))
    kind, body = parts[k]
    packed = kind == b"IDAT" and rng.random() < 0.7
    body = zlib.compress(mutated(zlib.decompress(body), rng)) if packed else mutated(body, rng)
    parts[k] = (kind, body)
    return SIGNATURE + b"".join(
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body)) for kind, body in parts
    )


INSIDE = {"p.png": checked, "m.safetensors": sealed, "k-1": sealed}  # formats whose checksums would reject any change


def run(cases: int, seed: int) -> tuple[dict[str, Counter[str]], list[str]]:
    """By format the outcomes of ``cases`` damaged files, and the failures: errors other than ``MssvmError``."""
    counts: dict[str, Counter[str]] = {}
    failed = []
    for name, (data, reader) in good_files().items():
        rng = np.random.default_rng([seed, len(name), len(data)])
        counts[name] = Counter()
        for k in range(cases):
            with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
                warnings.simplefilter("ignore")
                path = Path(folder) / name
                path.write_bytes(INSIDE.get(name, mutated)(data, rng) if k % 4 else mutated(data, rng))
                try:
                    reader(path)
                    counts[name]["read"] += 1
                except ms.errors.MssvmError:
                    counts[name]["refused"] += 1
                except Exception as error:
                    counts[name]["raw"] += 1
                    failed.append(f"{name}, case {k}: {type(error).__name__}: {error}")
    return counts, failed


def main() -> int:
    parser = options(__doc__)
    parser.add_argument("--cases", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    began = time.monotonic()
    counts, failed = run(args.cases, args.seed)
    return report({"counts": counts, "failed": failed, "seconds": round(time.monotonic() - began, 1)}, args.json)


if __name__ == "__main__":
    sys.exit(main())
