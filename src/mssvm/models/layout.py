"""Names for the weights of a model: which stretch of w belongs to what."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from math import prod

import numpy as np

from mssvm.core.arrays import Floats, Ints
from mssvm.core.errors import InputError


@dataclass(frozen=True)
class WeightGroup:
    """A named C-ordered array inside w: shape (n_features, width), or (copies, n_features, width) when untied."""

    name: str
    start: int
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        return prod(self.shape)

    @property
    def span(self) -> slice:
        return slice(self.start, self.start + self.size)

    @property
    def blocks(self) -> Ints:
        """Where the (n_features, width) block of each copy starts in w."""
        copies = prod(self.shape[:-2])
        return self.start + np.arange(copies, dtype=np.int64) * prod(self.shape[-2:])


@dataclass(frozen=True)
class WeightLayout:
    """Consecutive named groups that together make up w."""

    groups: tuple[WeightGroup, ...]

    @classmethod
    def of(cls, shapes: Mapping[str, tuple[int, ...]]) -> WeightLayout:
        """Groups of the given shapes one after the other."""
        for name, shape in shapes.items():
            if len(shape) < 2 or min(shape) < 1:
                raise InputError(f"weight group {name!r} has shape {shape}; it needs ([copies,] n_features, width).")
        starts = accumulate((prod(shape) for shape in shapes.values()), initial=0)
        return cls(tuple(WeightGroup(n, a, tuple(s)) for (n, s), a in zip(shapes.items(), starts, strict=False)))

    def __getitem__(self, name: str) -> WeightGroup:
        if name not in self._by_name:
            raise InputError(f"no weights are called {name!r}; there are {', '.join(self._by_name)}.")
        return self._by_name[name]

    @cached_property
    def _by_name(self) -> dict[str, WeightGroup]:
        return {group.name: group for group in self.groups}

    @property
    def n_weights(self) -> int:
        return self.groups[-1].span.stop if self.groups else 0

    def view(self, w: Floats, name: str) -> Floats:
        """The named weights as an array of their own shape, sharing memory with ``w``."""
        group = self[name]
        return w[group.span].reshape(group.shape)

    def per_weight(self, values: Mapping[str, float], default: float = 1.0) -> Floats:
        """One number per weight, by group: for regularisation or step sizes that differ between groups."""
        out = np.full(self.n_weights, default)
        for name, value in values.items():
            out[self[name].span] = value
        return out
