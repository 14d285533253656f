"""PyTorch tensors as arrays, by duck typing: PyTorch itself is never imported."""

from __future__ import annotations

from typing import Any

import numpy as np


def is_tensor(value: Any) -> bool:
    """Whether a value is a tensor, on any device, with a gradient or without."""
    return all(hasattr(value, name) for name in ("detach", "cpu", "numpy"))


def as_array(value: Any) -> Any:
    """A tensor as an array of its values, without gradient and on the host; anything else as it is."""
    if not is_tensor(value):
        return value
    host = value.detach().cpu()
    if str(host.dtype) in ("torch.bfloat16", "torch.float16"):  # NumPy lacks bfloat16, and would compute in half
        host = host.float()
    return np.asarray(host.numpy())


def as_arrays(X: Any) -> Any:
    """X, or its instances, or the parts of its instances, as arrays where they are tensors."""
    if is_tensor(X):
        return as_array(X)
    if not isinstance(X, (list, tuple)) or not X:
        return X
    first = X[0]
    if is_tensor(first):
        return [as_array(item) for item in X]
    if isinstance(first, tuple) and any(map(is_tensor, first)):
        return [tuple(map(as_array, item)) for item in X]
    if isinstance(first, dict) and any(map(is_tensor, first.values())):
        return [{name: as_array(part) for name, part in item.items()} for item in X]
    return X
