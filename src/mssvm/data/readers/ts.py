"""``.ts`` files of time series with one label each: ``@`` lines, then a series per line, ``dim:dim:label``."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from mssvm.core.arrays import Floats
from mssvm.data.dataset import Record
from mssvm.data.readers.stream import Opened, Options, Stream

MISSING = "?"


def open_ts(stream: Stream, options: Options) -> Opened:
    """Sequences, each a (length, dimensions) array."""
    options.demand("sequence", stream.name, "a .ts file")
    return Opened("sequence", _all_series(stream))


def _all_series(stream: Stream) -> Iterator[Record]:
    header: dict[str, list[str]] = {}
    in_data = False
    labelled = False
    dimensions = 0
    for line, text in stream.lines():
        text = text.strip()
        if not text or text.startswith("#"):
            continue
        if not in_data:
            if not text.startswith("@"):
                stream.fail("a .ts file begins with lines such as '@classLabel true a b' and '@data'", line)
            name, *values = text.split()
            header[name.lower()] = values
            if name.lower() == "@data":
                in_data = True
                labelled = _is_true(header, "@classlabel")
                if _is_true(header, "@timestamps"):
                    stream.fail("series with time stamps cannot be read; write equally spaced values", line)
            continue
        parts = text.split(":")
        label = parts.pop().strip() if labelled else ""
        dimensions = dimensions or len(parts)
        if len(parts) != dimensions or not parts:
            stream.fail(f"{len(parts)} dimensions, but the series before have {dimensions}", line)
        if labelled and label != MISSING and label not in header["@classlabel"][1:]:
            classes = ", ".join(header["@classlabel"][1:9])
            stream.fail(f"the label {label!r} is not among those that @classLabel names ({classes})", line)
        yield Record(line, _series(parts, stream, line), None if label in ("", MISSING) else label)
    if not in_data:
        stream.fail("the file ends before '@data', which every .ts file has")


def _is_true(header: dict[str, list[str]], name: str) -> bool:
    return (header.get(name) or ["false"])[0].lower() == "true"


def _series(parts: list[str], stream: Stream, line: int) -> Floats:
    columns = []
    for k, part in enumerate(parts):
        try:
            column = np.array([float(v) for v in part.split(",")])
        except ValueError:
            stream.fail(f"dimension {k} holds something that is not a number; impute missing values", line)
        if not np.isfinite(column).all():
            stream.fail(f"dimension {k} holds NaN or infinity; impute missing values", line)
        columns.append(column)
    if len({len(c) for c in columns}) > 1:
        stream.fail(f"the dimensions differ in length ({', '.join(str(len(c)) for c in columns)})", line)
    return np.stack(columns, axis=1)
