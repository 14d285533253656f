"""PNG pictures to arrays and back with zlib alone; palette pictures give indices, which in masks are labels."""

from __future__ import annotations

import struct
import zlib

import numpy as np

from mssvm.core.arrays import AnyArray
from mssvm.core.errors import InputError
from mssvm.core.library import BYTES, INT, Function
from mssvm.data.readers.stream import RAISE

SIGNATURE = b"\x89PNG\r\n\x1a\n"
GREY = 0  # colour types
COLOUR = 2
INDEXED = 3
CHANNELS = {GREY: 1, COLOUR: 3, INDEXED: 1, 4: 2, 6: 4}  # by colour type; 4 and 6 have an alpha channel
MAX_PIXELS = 1 << 24  # most pixels of one picture; larger pictures are cut into tiles
UNFILTER = Function("mssvm_png_unfilter", height=INT, width=INT, step=INT, lines=BYTES, out=BYTES)


def decode(data: bytes, name: str, limit: float = 1) -> AnyArray:
    """(H, W, channels) of an undamaged, not interlaced PNG; palette pictures give the index, not the colour."""
    try:
        chunks = _chunks(data)
        header = chunks[0][1]
        width, height, depth, colour, _, _, interlaced = struct.unpack(">IIBBBBB", header)
        packed = b"".join(body for kind, body in chunks if kind == b"IDAT")
        if colour not in CHANNELS:
            raise ValueError("impossible colour type")
        if interlaced:
            raise InputError(f"{name}: interlaced PNG pictures cannot be read; save it without interlacing.")
        if width * height > limit * MAX_PIXELS:
            reason = f"{width} x {height} pixels are too many; cut it into tiles of at most {MAX_PIXELS}, {RAISE}."
            raise InputError(f"{name}: {reason}")
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


def decode_picture(data: bytes, name: str, limit: float = 1) -> AnyArray:
    """As ``decode``, but as it is seen: palette pictures in their colours, grey of fewer bits from 0 to 255."""
    pixels = decode(data, name, limit)
    palette = palette_of(data, name)
    if palette is not None:
        if int(pixels.max()) >= len(palette):
            raise InputError(f"{name} has pixels without a colour in its palette; save it again.")
        return np.array(palette, dtype=np.uint8)[pixels[..., 0]]
    depth = data[len(SIGNATURE) + 16]
    if depth < 8:
        return pixels * np.uint8(255 // ((1 << depth) - 1))
    return pixels


def palette_of(data: bytes, name: str) -> list[list[int]] | None:
    """The colours of a palette picture; None for other pictures."""
    try:
        palettes = [body for kind, body in _chunks(data) if kind == b"PLTE"]
        colour_type = data[len(SIGNATURE) + 17]
        if not palettes or colour_type != INDEXED:
            return None
        return np.frombuffer(palettes[0], dtype=np.uint8).reshape(-1, 3).tolist()
    except (struct.error, ValueError):
        raise InputError(f"{name} is damaged or no PNG picture; save it again.") from None


def encode(pixels: AnyArray, palette: AnyArray | None = None) -> bytes:
    """(H, W) grey or (H, W, 3) colour bytes as a PNG, or (H, W) indices of a ``palette`` (n, 3)."""
    array = np.ascontiguousarray(pixels, dtype=np.uint8)
    height, width = array.shape[:2]
    rows = np.concatenate([np.zeros((height, 1), np.uint8), array.reshape(height, -1)], axis=1)
    colour_type = GREY
    if array.ndim == 3:
        colour_type = COLOUR
    elif palette is not None:
        colour_type = INDEXED
    out = SIGNATURE + _chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, colour_type, 0, 0, 0))
    if palette is not None:
        out += _chunk(b"PLTE", np.ascontiguousarray(palette, dtype=np.uint8).tobytes())
    out += _chunk(b"IDAT", zlib.compress(rows.tobytes(), 9))
    return out + _chunk(b"IEND", b"")


def _chunk(kind: bytes, body: bytes) -> bytes:
    """A chunk: the size of its content, its kind, the content, and a checksum."""
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def _chunks(data: bytes) -> list[tuple[bytes, bytes]]:
    """Kind and content of every chunk, checked."""
    if not data.startswith(SIGNATURE):
        raise ValueError("no PNG")
    out = []
    at = len(SIGNATURE)
    while at < len(data):
        (size,) = struct.unpack(">I", data[at : at + 4])
        kind = data[at + 4 : at + 8]
        body = data[at + 8 : at + 8 + size]
        (check,) = struct.unpack(">I", data[at + 8 + size : at + 12 + size])
        if zlib.crc32(kind + body) != check:
            raise ValueError("damaged")
        out.append((kind, body))
        at += 12 + size
    if not out or out[0][0] != b"IHDR" or out[-1][0] != b"IEND":
        raise ValueError("incomplete")
    return out
