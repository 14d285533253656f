"""Every name that stands for something, in one place: what estimators accept as strings, what files may hold, what the
command line offers and what ``mssvm`` exports. Formats of data files are listed with their readers, engines with their
package. Classes are given by module and name, and imported when they are first asked for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pkgutil import resolve_name
from types import MappingProxyType
from typing import Any, NamedTuple

NOTHING: Mapping[str, Any] = MappingProxyType({})


class Entry(NamedTuple):
    """A class by its ``place``, which ``pkgutil.resolve_name`` imports; ``settings`` are those that the name stands
    for."""

    place: str
    settings: Mapping[str, Any] = NOTHING

    @property
    def name(self) -> str:
        return self.place.partition(":")[2]


class Member(NamedTuple):
    """A row of the paper's Table 1: temperatures (None: a parameter) and the loss in training; the name on the command
    line; whether there may be hidden variables."""

    eps_y: float | None
    eps_h: float | None
    loss: str
    command: str
    hidden: bool = True


MEMBERS = {  #                eps_y eps_h  Delta      command
    "MSSVM":            Member(0.0,  1.0,  "hamming", "mssvm"),
    "LSSVM":            Member(0.0,  0.0,  "hamming", "lssvm"),
    "HCRF":             Member(1.0,  1.0,  "zero",    "hcrf"),
    "LossAugmentedCRF": Member(1.0,  1.0,  "hamming", "lacrf"),
    "EpsilonSSVM":      Member(None, None, "hamming", "epsilon"),
    "UnifiedSSVM":      Member(None, None, "hamming", "unified"),
    "SSVM":             Member(0.0,  0.0,  "hamming", "ssvm", hidden=False),
    "CRF":              Member(1.0,  1.0,  "zero",    "crf", hidden=False),
    "M3E":              Member(0.0,  1.0,  "hamming", "m3e"),
    "ModLat":           Member(0.0,  0.0,  "hamming", "modlat"),
}  # fmt: skip

DECODERS = ("map", "marginal", "auto")
SOLVERS = {
    "lbfgs": Entry("mssvm.optim:LBFGS"),
    "cccp": Entry("mssvm.optim:CCCP"),
    "bcfw": Entry("mssvm.optim:BCFW"),
    "cutting-plane": Entry("mssvm.optim:CuttingPlane"),
    "subgradient": Entry("mssvm.optim:Subgradient"),
    "adam": Entry("mssvm.optim:Subgradient", {"max_iter": 40, "scaling": "adam"}),
}
LOSSES = {
    "hamming": Entry("mssvm.losses:Hamming"),
    "zero": Entry("mssvm.losses:Zero"),
    "weighted": Entry("mssvm.losses:WeightedHamming"),
    "table": Entry("mssvm.losses:TableLoss"),
}
NAMED_LOSSES = ("hamming", "zero")  # the others need costs
INFERENCES = {
    "auto": Entry("mssvm.inference.auto:Auto"),
    "exact": Entry("mssvm.inference.exact:Exact"),
    "propagate": Entry("mssvm.inference.propagation:Propagate"),
    "decompose": Entry("mssvm.inference.decomposition:Decompose"),
    "toulbar2": Entry("mssvm.inference.toulbar2:Toulbar2"),
}
STRUCTURES = {
    "chain": Entry("mssvm.structures:Chain"),
    "sequence": Entry("mssvm.structures:SequenceLabel"),
    "grid": Entry("mssvm.structures:Grid"),
    "graph": Entry("mssvm.structures:GraphModel"),
    "multilabel": Entry("mssvm.structures:MultiLabel"),
    "factors": Entry("mssvm.structures:FactorModel"),
}
EDGES = ("free", "associative", "contrast")  # what scores neighbours of a grid
WITHOUT_FILES = ("factors",)  # structures that no data file describes
ENUMS = (Entry("mssvm.optim:Scaling"), Entry("mssvm.optim:Stopping"))

# Names in files of earlier versions: of settings, by class, and of classes.
RENAMED: Mapping[str, Mapping[str, str]] = {
    "BCFW": {"max_passes": "max_iter"},
    "CCCP": {"max_outer": "max_iter"},
    "CuttingPlane": {"max_rounds": "max_iter"},
    "LBFGS": {"floors": "schedule", "max_iterations": "max_iter"},
    "Subgradient": {"n_epochs": "max_iter"},
}
RENAMED_CLASSES: Mapping[str, str] = {"SequenceClass": "SequenceLabel"}


class ClassesInFiles(Mapping[str, Any]):
    """The classes whose objects a model file may hold, by name, imported when asked for; and single ``others``."""

    def __init__(self, **others: Any) -> None:
        tables = (SOLVERS, LOSSES, INFERENCES, STRUCTURES)
        entries = (*(e for table in tables for e in table.values()), *ENUMS)
        self._places = {entry.name: entry.place for entry in entries}
        for old, new in RENAMED_CLASSES.items():
            self._places[old] = self._places[new]
        self._others = others

    def __getitem__(self, name: str) -> Any:
        return self._others[name] if name in self._others else resolve_name(self._places[name])

    def __iter__(self) -> Iterator[str]:
        return iter((*self._others, *self._places))

    def __len__(self) -> int:
        return len(self._others) + len(self._places)
