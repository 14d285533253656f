"""Sizes of the instances of padded tensors, from lengths or from a mask."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from mssvm.core.arrays import Ints
from mssvm.core.checks import shown
from mssvm.core.errors import InputError


def lengths_of(mask: Any) -> Ints:
    """Sizes of padded instances from booleans in the shape of the sites: (B,), or (B, 2) for grids."""
    inside = torch.as_tensor(mask).detach().cpu().numpy()
    if inside.dtype != np.bool_ or inside.ndim not in (2, 3):
        raise InputError(f"mask must be booleans in the shape of the sites, got {inside.dtype} {inside.shape}.")
    axes = range(1, inside.ndim)
    sizes = np.zeros((len(inside), len(axes)), dtype=np.int64)
    expected = np.ones(inside.shape, dtype=bool)
    for axis in axes:
        others = tuple(other for other in axes if other != axis)
        size = inside.any(axis=others).sum(axis=1)
        sizes[:, axis - 1] = size
        expected &= np.expand_dims(np.arange(inside.shape[axis]) < size[:, None], others)
    wrong = np.flatnonzero((inside != expected).reshape(len(inside), -1).any(axis=1))
    if len(wrong):
        reason = "sites that are masked out must follow all others; mark missing labels in y, not in mask."
        raise InputError(reason, what="mask", instance=int(wrong[0]))
    return sizes[:, 0] if inside.ndim == 2 else sizes


def checked_lengths(given: Any, n: int, most: tuple[int, ...]) -> Ints:
    """Checked sizes of padded instances."""
    try:
        found = torch.as_tensor(given, device="cpu").numpy()
    except (TypeError, ValueError, RuntimeError):
        found = np.zeros(())
    shape = (n,) if len(most) == 1 else (n, len(most))
    if found.shape not in (shape, (n, len(most))) or found.dtype.kind not in "iu":
        raise InputError(f"lengths must be whole numbers in the shape {shape}, got {shown(given)}.")
    sizes: Ints = found.reshape(n, len(most)).astype(np.int64)
    if np.any(sizes < 0) or np.any(sizes > most):
        raise InputError(f"lengths must lie between 0 and the axes {most} of padded scores, got {shown(given)}.")
    return sizes
