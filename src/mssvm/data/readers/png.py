"""PNG pictures to arrays and back with zlib alone; of a palette the indices are kept, for in masks they are labels."""

from __future__ import annotations

import struct
import zlib

import numpy as np

from mssvm.core.arrays import AnyArray
from mssvm.core.errors import InputError
from mssvm.core.library import BYTES, INT, Function
from mssvm.data.readers.stream import RAISE

SIGNATURE = b"\x89PNG\r\n\x1a\n"
CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}  # by colour type
MAX_PIXELS = 1 << 24  # of one picture; larger ones are cut into tiles
UNFILTER = Function("mssvm_png_unfilter", height=INT, width=INT, step=INT, lines=BYTES, out=BYTES)


def decode(data: bytes, name: str, limit: float = 1) -> AnyArray:
    """(H, W, channels) of an undamaged, not interlaced PNG; palette pictures give the index, not the colour."""
    try:
        chunks = _chunks(data)
        header = chunks[0][1]
        width, height, depth, colour, _, _, interlaced = struct.unpack(">IIBBBBB", header)
        packed = b"".join(body for kind, body in chunks if kind == b"IDAT")
        if interlaced or colour not in CHANNELS:
            raise InputError(f"{name}: interlaced PNG pictures cannot be read; save it without interlacing.")
        if width * height > limit * MAX_PIXELS:
            told = f"{width} x {height} pixels are too many; cut it into tiles of at most {MAX_PIXELS}, {RAISE}."
            raise InputError(f"{name}: {told}")
        if depth not in (1, 2, 4, 8, 16) or not width or not height:
            raise ValueError("impossible sizes")
        n = CHANNELS[colour]
        row = (width * n * depth + 7) // 8
        raw = np.frombuffer(zlib.decompressobj().decompress(packed, height * (row + 1)), dtype=np.uint8)
        lines = raw.reshape(height, row + 1)
    except (struct.error, zlib.error, ValueError, IndexError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{name} is damaged or no PNG picture; save it again.") from None
    flat = np.empty((height, row), dtype=np.uint8)
    UNFILTER(height=height, width=row, step=max(1, n * depth // 8), lines=lines, out=flat)
    if depth == 16:
        return flat.view(">u2").astype(np.uint16).reshape(height, width, n)
    if depth < 8:
        bits = np.unpackbits(flat, axis=1).reshape(height, -1, depth)
        values = bits @ (1 << np.arange(depth - 1, -1, -1))
        return values[:, : width * n].astype(np.uint8).reshape(height, width, n)
    return flat.reshape(height, width, n)


def palette_of(data: bytes, name: str) -> list[list[int]] | None:
    """The colours of a palette picture, None of any other."""
    try:
        found = [body for kind, body in _chunks(data) if kind == b"PLTE"]
    except (struct.error, ValueError):
        raise InputError(f"{name} is damaged or no PNG picture; save it again.") from None
    indexed = data[len(SIGNATURE) + 17] == 3
    return np.frombuffer(found[0], dtype=np.uint8).reshape(-1, 3).tolist() if found and indexed else None


def encode(pixels: AnyArray, palette: AnyArray | None = None) -> bytes:
    """(H, W) grey or (H, W, 3) colour bytes as a PNG, or (H, W) indices of a ``palette`` (n, 3)."""
    array = np.ascontiguousarray(pixels, dtype=np.uint8)
    height, width = array.shape[:2]
    rows = np.concatenate([np.zeros((height, 1), np.uint8), array.reshape(height, -1)], axis=1)
    colour = 2 if array.ndim == 3 else 0 if palette is None else 3
    colours = [] if palette is None else [(b"PLTE", np.ascontiguousarray(palette, dtype=np.uint8).tobytes())]
    header = struct.pack(">IIBBBBB", width, height, 8, colour, 0, 0, 0)
    parts = ((b"IHDR", header), *colours, (b"IDAT", zlib.compress(rows.tobytes(), 9)), (b"IEND", b""))
    return SIGNATURE + b"".join(
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body)) for kind, body in parts
    )


def _chunks(data: bytes) -> list[tuple[bytes, bytes]]:
    """Kind and content of every chunk, checked."""
    if not data.startswith(SIGNATURE):
        raise ValueError("no PNG")
    out, at = [], len(SIGNATURE)
    while at < len(data):
        (size,) = struct.unpack(">I", data[at : at + 4])
        kind, body = data[at + 4 : at + 8], data[at + 8 : at + 8 + size]
        (check,) = struct.unpack(">I", data[at + 8 + size : at + 12 + size])
        if zlib.crc32(kind + body) != check:
            raise ValueError("damaged")
        out.append((kind, body))
        at += 12 + size
    if not out or out[0][0] != b"IHDR" or out[-1][0] != b"IEND":
        raise ValueError("incomplete")
    return out
