"""Parameters to JSON and back: plain values, containers, arrays (as tensors), and objects from a fixed list."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any

import numpy as np

from mssvm import losses, optim, structures
from mssvm.core.arrays import AnyArray
from mssvm.core.errors import InputError
from mssvm.data.labels import MISSING
from mssvm.inference.auto import Auto
from mssvm.inference.exact import Exact
from mssvm.inference.propagation.propagate import Propagate

DATACLASSES = (
    *(optim.BCFW, optim.CCCP, optim.CuttingPlane, optim.LBFGS, optim.Subgradient),
    *(losses.Hamming, losses.WeightedHamming, losses.TableLoss, losses.Zero),
    *(Auto, Exact, Propagate),
)
STRUCTURES = tuple(
    kind
    for kind in vars(structures).values()
    if isinstance(kind, type) and issubclass(kind, structures.Structure) and kind is not structures.Structure
)
ENUMS = (optim.Scaling, optim.Stopping)
OBJECTS: dict[str, Any] = {kind.__name__: kind for kind in (*DATACLASSES, *STRUCTURES, *ENUMS)}
CONTAINERS: dict[str, Any] = {"tuple": tuple, "list": list, "set": set, "frozenset": frozenset}


class Writer:
    """Values as JSON; arrays are added to ``tensors``."""

    def __init__(self, tensors: dict[str, AnyArray]) -> None:
        self.tensors = tensors

    def encode(self, value: Any, what: str) -> Any:
        """JSON for ``value``, or an ``InputError`` if it is of a kind that files do not hold."""
        if isinstance(value, np.generic):
            value = value.item()
        if value is None or isinstance(value, (bool, str)):
            return value
        if isinstance(value, int):
            return value if abs(value) < 1 << 53 else {"$": "int", "text": str(value)}
        if isinstance(value, float):
            return {"$": "float", "text": repr(value)}
        if value is MISSING:
            return {"$": "missing"}
        if isinstance(value, bytes):
            return {"$": "bytes", "text": value.hex()}
        if isinstance(value, np.ndarray) and value.dtype.kind in "fiub":
            return self._array(value)
        return self._compound(value, what)

    def _array(self, value: AnyArray) -> dict[str, Any]:
        name = f"array/{len(self.tensors)}"
        self.tensors[name] = np.ascontiguousarray(value)
        return {"$": "array", "tensor": name, "shape": list(value.shape)}

    def _compound(self, value: Any, what: str) -> dict[str, Any]:
        name = type(value).__name__
        if name in CONTAINERS and type(value) is CONTAINERS[name]:
            items = sorted(value, key=repr) if isinstance(value, (set, frozenset)) else value
            return {"$": name, "items": [self.encode(v, what) for v in items]}
        if isinstance(value, np.ndarray):
            return {"$": "list", "items": [self.encode(v, what) for v in value.tolist()]}
        if isinstance(value, Mapping):
            return {"$": "dict", "items": [[self.encode(k, what), self.encode(v, what)] for k, v in value.items()]}
        if OBJECTS.get(name) is type(value):
            return {"$": "object", "name": name, "parameters": self._object(value, what)}
        raise InputError(
            f"{what} holds {value!r}, which a model file cannot keep; use plain labels and the library's own objects."
        )

    def _object(self, value: Any, what: str) -> Any:
        if isinstance(value, Enum):
            return {"value": value.value}
        if is_dataclass(value):
            parts = {f.name: getattr(value, f.name) for f in fields(value) if f.init and not f.name.startswith("_")}
        else:
            parts = value.get_params(deep=False)
        return {k: self.encode(v, f"{what}.{k}") for k, v in parts.items()}


class Reader:
    """Values from JSON; objects only of the fixed list, built by their constructors from decoded values."""

    def __init__(self, tensors: Mapping[str, AnyArray]) -> None:
        self.tensors = tensors

    def decode(self, data: Any) -> Any:
        if data is None or isinstance(data, (bool, str, int)):
            return data
        kind = data["$"]
        if kind in ("int", "float"):
            return int(data["text"]) if kind == "int" else float(data["text"])
        if kind == "missing":
            return MISSING
        if kind == "bytes":
            return bytes.fromhex(data["text"])
        if kind == "array":
            return np.array(self.tensors[data["tensor"]]).reshape(data["shape"])
        if kind in CONTAINERS:
            return CONTAINERS[kind](self.decode(v) for v in data["items"])
        if kind == "dict":
            return {self.decode(k): self.decode(v) for k, v in data["items"]}
        if kind == "object" and data["name"] in OBJECTS:
            made = OBJECTS[data["name"]]
            parameters = {k: self.decode(v) for k, v in data["parameters"].items()}
            return made(parameters["value"]) if issubclass(made, Enum) else made(**parameters)
        raise InputError(f"the file holds an object of kind {kind!r}, which this version of mssvm does not know.")
