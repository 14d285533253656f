"""What a parameter may be: looked at once, where it comes in, and refused in a sentence that names it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from sys import float_info
from typing import Any

import numpy as np

from mssvm.core.errors import InputError

LARGEST = 1e100  # of features and parameters: products of two of them, summed, stay finite
MOST = (1 << 53) - 1  # of counts: exact as a float, too
SHOWN = 60


def shown(value: Any) -> str:
    """A value in a message, cut short."""
    try:
        text = repr(value)
    except ValueError:  # Python refuses to write out integers of thousands of digits
        text = f"a {type(value).__name__} of very many digits"
    return text if len(text) <= SHOWN else text[: SHOWN - 3] + "..."


def number(
    value: Any, name: str, *, low: float = -LARGEST, above: float | None = None, high: float = LARGEST, unit: str = ""
) -> float:
    """A finite number from ``low`` (or above ``above``) to ``high``, as a float."""
    found = None
    if isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool):
        try:
            found = float(value)
        except OverflowError:
            found = None
    if found is None or not low <= found <= high or (above is not None and not found > above):
        bound = f" > {above:g}" if above is not None else f" >= {low:g}" if low > -LARGEST else ""
        bound += f" and <= {high:g}" if high < LARGEST else ""
        raise InputError(f"{name} must be a finite number{unit}{bound}, got {shown(value)}.")
    return found


def count(value: Any, name: str, low: int, high: int = MOST, unit: str = "") -> int:
    """A whole number from ``low`` to ``high``."""
    whole = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
    if not whole or not low <= value <= high:
        bound = f">= {low}{f' and <= {high}' if high < MOST else ''}"
        raise InputError(f"{name} must be a whole number{unit} {bound}, got {shown(value)}.")
    return int(value)


def temperature(value: Any, name: str) -> float:
    """A finite number >= 0, however large."""
    return number(value, name, low=0.0, high=float_info.max)


def numbers(values: Any, name: str, needs: str) -> np.ndarray[Any, np.dtype[np.float64]]:
    """An array of finite numbers; ``needs`` completes the sentence "name needs ..."."""
    try:
        found = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        found = np.array(np.nan)
    if not np.all(np.isfinite(found)):
        raise InputError(f"{name} needs {needs}")
    return found


def mapping(value: Any, name: str, of: str) -> Mapping[Any, Any]:
    """A mapping, or the empty one for None."""
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise InputError(f"{name} must map {of}, got {shown(value)}.")
    return value


def several(value: Any, name: str, of: str) -> list[Any]:
    """The members of an iterable other than a mapping (letters, of a string); none for None."""
    if value is None:
        return []
    try:
        if isinstance(value, (bytes, Mapping)):
            raise TypeError
        return list(value)
    except TypeError:
        raise InputError(f"{name} must list {of}, got {shown(value)}.") from None


def sequence(value: Any, what: str, of: str) -> int:
    """The length of a sequence of instances; strings, mappings, sets, scalars and iterators are none."""
    try:
        if isinstance(value, (str, bytes, Mapping, set, frozenset)):
            raise TypeError
        return len(value)
    except TypeError:
        told = "an array without axes" if isinstance(value, np.ndarray) else type(value).__name__
        raise InputError(f"{what} must be a sequence {of}, got {told}.") from None


def path(value: Any, name: str) -> Path:
    """A path that can name a file."""
    if not isinstance(value, (str, os.PathLike)) or not os.fspath(value) or "\0" in str(value):
        raise InputError(f"{name} must be the path of a file, got {shown(value)}.")
    return Path(value)
