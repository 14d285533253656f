"""Forbidden entries of the tables of chains, as tensors on a device and as constants of compiled graphs."""

from __future__ import annotations

from typing import Any

import torch

from mssvm.core.errors import InputError
from mssvm.data.labels import LabelVocabulary
from mssvm.engines.torch.padded import MOST_STATES
from mssvm.structures import Chain, Schema

Constraint = tuple[str, str, tuple[int, ...]]
"""A group, its forbidden entries as a string of zeros and ones, and their shape: constants to torch.compile."""


class Constraints:
    """Forbidden entries of the groups of a chain, by number of classes, which is known only from the scores."""

    def __init__(self, structure: Any) -> None:
        constrained = isinstance(structure, Chain) and (structure.forbidden is not None or structure.forced is not None)
        self._found: dict[int, tuple[Constraint, ...]] = {}
        self._uploaded: dict[tuple[int, torch.device], dict[str, torch.Tensor]] = {}
        for classes in range(1, MOST_STATES + 1) if constrained else ():
            self._learn(structure, classes)

    def __reduce__(self) -> Any:
        return _restored, (self._found,)

    def _learn(self, structure: Chain, classes: int) -> None:
        vocabulary = LabelVocabulary(tuple(range(classes)))
        try:
            constraints = structure.constraints(Schema({}, {}), vocabulary)
        except InputError:  # they name a class that does not exist; the general path raises the error
            return
        found = []
        for constraint in constraints:
            bits = "".join("1" if entry else "0" for entry in constraint.mask.ravel())
            found.append((constraint.group, bits, constraint.mask.shape))
        self._found[classes] = tuple(found)

    def on(self, classes: int, device: torch.device) -> dict[str, torch.Tensor]:
        """Masks of forbidden entries, uploaded once to every device."""
        if torch.compiler.is_compiling():
            return self._tensors(classes, device)
        key = classes, device
        if key not in self._uploaded:
            with torch.inference_mode(False):
                self._uploaded[key] = self._tensors(classes, device)
        return self._uploaded[key]

    def _tensors(self, classes: int, device: torch.device) -> dict[str, torch.Tensor]:
        out = {}
        for group, bits, shape in self._found.get(classes, ()):
            out[group] = torch.tensor([bit == "1" for bit in bits], device=device).reshape(shape)
        return out

    def known(self, structure: Chain, classes: int) -> bool:
        """Whether the constraints of a structure can be applied to this number of classes."""
        return classes in self._found or (structure.forbidden is None and structure.forced is None)


def _restored(found: dict[int, tuple[Constraint, ...]]) -> Constraints:
    constraints = Constraints(None)
    constraints._found = found
    return constraints
