"""Checks of parameters at the boundary: each returns the value in its canonical type or raises an ``InputError``."""

from __future__ import annotations

import os
from collections.abc import Mapping
from math import nan
from pathlib import Path
from sys import float_info
from typing import Any

import numpy as np

from mssvm.core.errors import InputError

LARGEST = 1e100  # largest feature or parameter: sums of products of two of them stay finite
MOST = (1 << 53) - 1  # largest count: exact as a float, too
SHOWN = 60  # characters of a value in a message


def shown(value: Any) -> str:
    """The ``repr`` of a value for a message, shortened."""
    try:
        text = repr(value)
    except ValueError:  # Python refuses to write out integers of thousands of digits
        text = f"a {type(value).__name__} of very many digits"
    if len(text) <= SHOWN:
        return text
    return text[: SHOWN - 3] + "..."


def number(
    value: Any, name: str, *, low: float = -LARGEST, above: float | None = None, high: float = LARGEST, unit: str = ""
) -> float:
    """A finite number from ``low`` (or above ``above``) to ``high``, as a float."""
    real = _as_float(value)
    if low <= real <= high and (above is None or real > above):
        return real
    limits = ""
    if above is not None:
        limits = f" > {above:g}"
    elif low > -LARGEST:
        limits = f" >= {low:g}"
    if high < LARGEST:
        limits += f" and <= {high:g}"
    raise InputError(f"{name} must be a finite number{unit}{limits}, got {shown(value)}.")


def _as_float(value: Any) -> float:
    """A number as a float; NaN for anything else."""
    if isinstance(value, bool) or not isinstance(value, (int, float, np.integer, np.floating)):
        return nan
    try:
        return float(value)
    except OverflowError:
        return nan


def count(value: Any, name: str, low: int, high: int = MOST, unit: str = "") -> int:
    """A whole number from ``low`` to ``high``."""
    whole = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
    if not whole or not low <= value <= high:
        limits = f">= {low}"
        if high < MOST:
            limits += f" and <= {high}"
        raise InputError(f"{name} must be a whole number{unit} {limits}, got {shown(value)}.")
    return int(value)


def temperature(value: Any, name: str) -> float:
    """A finite number >= 0, however large."""
    return number(value, name, low=0.0, high=float_info.max)


def numbers(values: Any, name: str, needs: str) -> np.ndarray[Any, np.dtype[np.float64]]:
    """An array of finite numbers; ``needs`` completes the sentence "name needs ..."."""
    try:
        array = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        array = np.array(np.nan)
    if not np.all(np.isfinite(array)):
        raise InputError(f"{name} needs {needs}")
    return array


def mapping(value: Any, name: str, of: str) -> Mapping[Any, Any]:
    """A mapping, or the empty one for None."""
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise InputError(f"{name} must map {of}, got {shown(value)}.")
    return value


def several(value: Any, name: str, of: str) -> list[Any]:
    """The members of an iterable other than a mapping, as a list (a string gives its letters); [] for None."""
    if value is None:
        return []
    message = f"{name} must list {of}, got {shown(value)}."
    if isinstance(value, (bytes, Mapping)):
        raise InputError(message)
    try:
        return list(value)
    except TypeError:
        raise InputError(message) from None


def sequence_length(value: Any, what: str, of: str) -> int:
    """The length of a sequence of instances. Strings, mappings, sets, scalars and iterators are refused."""
    kind = "an array without axes" if isinstance(value, np.ndarray) else type(value).__name__
    message = f"{what} must be a sequence {of}, got {kind}."
    if isinstance(value, (str, bytes, Mapping, set, frozenset)):
        raise InputError(message)
    try:
        return len(value)
    except TypeError:
        raise InputError(message) from None


def path(value: Any, name: str) -> Path:
    """A path that can name a file."""
    if not isinstance(value, (str, os.PathLike)) or not os.fspath(value) or "\0" in str(value):
        raise InputError(f"{name} must be the path of a file, got {shown(value)}.")
    return Path(value)
