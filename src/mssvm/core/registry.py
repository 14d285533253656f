"""The table of names: strings that estimators accept, classes that files may hold, options of the command line, and the
exports of ``mssvm``. Formats of data files are listed with their readers, engines with their package.

Classes are given by module and name, and imported at their first use.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pkgutil import resolve_name
from types import MappingProxyType
from typing import Any, NamedTuple

NOTHING: Mapping[str, Any] = MappingProxyType({})


class Entry(NamedTuple):
    """A class with preset ``settings``; ``place`` is "module:class", which ``pkgutil.resolve_name`` imports."""

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


MEMBERS = {
    "MSSVM": Member(eps_y=0.0, eps_h=1.0, loss="hamming", command="mssvm"),
    "LSSVM": Member(eps_y=0.0, eps_h=0.0, loss="hamming", command="lssvm"),
    "HCRF": Member(eps_y=1.0, eps_h=1.0, loss="zero", command="hcrf"),
    "LossAugmentedCRF": Member(eps_y=1.0, eps_h=1.0, loss="hamming", command="lacrf"),
    "EpsilonSSVM": Member(eps_y=None, eps_h=None, loss="hamming", command="epsilon"),
    "UnifiedSSVM": Member(eps_y=None, eps_h=None, loss="hamming", command="unified"),
    "SSVM": Member(eps_y=0.0, eps_h=0.0, loss="hamming", command="ssvm", hidden=False),
    "CRF": Member(eps_y=1.0, eps_h=1.0, loss="zero", command="crf", hidden=False),
    "M3E": Member(eps_y=0.0, eps_h=1.0, loss="hamming", command="m3e"),
    "ModLat": Member(eps_y=0.0, eps_h=0.0, loss="hamming", command="modlat"),
}

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
    "spans": Entry("mssvm.losses:SpanLoss"),
    "zero-one": Entry("mssvm.losses:ZeroOne"),
}
NAMED_LOSSES = ("hamming", "zero", "spans", "zero-one")  # the others need costs
INFERENCES = {
    "auto": Entry("mssvm.inference.auto:Auto"),
    "exact": Entry("mssvm.inference.exact:Exact"),
    "propagate": Entry("mssvm.inference.propagation:Propagate"),
    "decompose": Entry("mssvm.inference.decomposition:Decompose"),
    "toulbar2": Entry("mssvm.inference.toulbar2:Toulbar2"),
}
STRUCTURES = {
    "chain": Entry("mssvm.structures:Chain"),
    "segments": Entry("mssvm.structures:Segments"),
    "sequence": Entry("mssvm.structures:SequenceLabel"),
    "grid": Entry("mssvm.structures:Grid"),
    "graph": Entry("mssvm.structures:GraphModel"),
    "multilabel": Entry("mssvm.structures:MultiLabel"),
    "factors": Entry("mssvm.structures:FactorModel"),
}
EDGES = ("free", "associative", "contrast")  # how neighbours of a grid are scored
WITHOUT_FILES = ("factors",)  # structures that no data file describes
READ_AS = {"segments": "chain"}  # structures whose data files are those of another
ENUMS = (Entry("mssvm.optim:Scaling"), Entry("mssvm.optim:Stopping"))
ANNOTATORS = (Entry("mssvm.annotators:Annotators"),)

# Names that files of earlier versions use: for settings, by class (``RENAMED``), and for classes.
RENAMED: Mapping[str, Mapping[str, str]] = {
    "BCFW": {"max_passes": "max_iter"},
    "CCCP": {"max_outer": "max_iter"},
    "CuttingPlane": {"max_rounds": "max_iter"},
    "LBFGS": {"floors": "schedule", "max_iterations": "max_iter"},
    "Subgradient": {"n_epochs": "max_iter"},
}
RENAMED_CLASSES: Mapping[str, str] = {"SequenceClass": "SequenceLabel"}


class ClassesInFiles(Mapping[str, Any]):
    """The classes whose objects a model file may hold, by name, imported at first use; and ``singletons``."""

    def __init__(self, **singletons: Any) -> None:
        self._singletons = singletons
        self._places: dict[str, str] = {}
        for table in (SOLVERS, LOSSES, INFERENCES, STRUCTURES):
            for entry in table.values():
                self._places[entry.name] = entry.place
        for entry in (*ENUMS, *ANNOTATORS):
            self._places[entry.name] = entry.place
        for old, new in RENAMED_CLASSES.items():
            self._places[old] = self._places[new]

    def __getitem__(self, name: str) -> Any:
        if name in self._singletons:
            return self._singletons[name]
        return resolve_name(self._places[name])

    def __iter__(self) -> Iterator[str]:
        yield from self._singletons
        yield from self._places

    def __len__(self) -> int:
        return len(self._singletons) + len(self._places)
