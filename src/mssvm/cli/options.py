"""Options that several commands share, and what they stand for."""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from mssvm.cli.meter import Meter
from mssvm.core.errors import InputError
from mssvm.data.dataset import Dataset
from mssvm.data.readers import Options, read
from mssvm.data.readers.stream import shown_name


class StructureName(StrEnum):
    chain = "chain"
    sequence = "sequence"
    grid = "grid"
    graph = "graph"


class FormatName(StrEnum):
    jsonl = "jsonl"
    conll = "conll"
    ts = "ts"
    npz = "npz"
    images = "images"


class SolverName(StrEnum):
    auto = "auto"
    lbfgs = "lbfgs"
    cccp = "cccp"
    bcfw = "bcfw"
    cutting_plane = "cutting-plane"
    subgradient = "subgradient"
    adam = "adam"


class InferenceName(StrEnum):
    auto = "auto"
    exact = "exact"
    propagate = "propagate"


METHODS = {
    "mssvm": "MSSVM",
    "lssvm": "LSSVM",
    "hcrf": "HCRF",
    "lacrf": "LossAugmentedCRF",
    "epsilon": "EpsilonSSVM",
    "unified": "UnifiedSSVM",
    "ssvm": "SSVM",
    "crf": "CRF",
    "m3e": "M3E",
    "modlat": "ModLat",
}
MethodName = StrEnum("MethodName", {name: name for name in METHODS})  # type: ignore[misc]

Data = Annotated[Path, typer.Argument(help="Data file or image folder, gzipped or not; - is standard input.")]
Model = Annotated[Path, typer.Argument(help="Model written by mssvm fit.")]
Format = Annotated[FormatName | None, typer.Option("--format", help="Format; else the file's ending tells.")]
Structure = Annotated[
    StructureName | None, typer.Option(help="What is labelled: every site of a chain, grid or graph, or a sequence.")
]
Unlabelled = Annotated[bool, typer.Option("--unlabelled", help="CoNLL: the last column is no label.")]
MissingColour = Annotated[str, typer.Option(help="Colour of missing labels in colour masks.")]
Hidden = Annotated[
    int | None,
    typer.Option(min=0, help="States of each hidden variable; 0 for none. Default: 0, for sequence classes 3."),
]
Cost = Annotated[float, typer.Option("-C", "--cost", help="Weight of the data against the regulariser.")]
Solver = Annotated[SolverName, typer.Option(help="Solver; auto suits the method and the inference.")]
Inference = Annotated[InferenceName, typer.Option(help="auto: exact where memory allows, else belief propagation.")]
MaxIter = Annotated[int | None, typer.Option(min=1, help="Iterations of the solver; else its own limit.")]
Seed = Annotated[int, typer.Option(min=0, help="Seed of random starts and splits.")]
Jobs = Annotated[int, typer.Option(help="Threads; negative numbers count back from all cores.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


def read_data(path: Path, options: Options) -> Dataset:
    """The whole data set, with progress."""
    with meter(path, "Reading") as progress:
        return read(path, replace(options, progress=progress))


def meter(path: Path, doing: str) -> Meter:
    """Progress through a data set: pictures of a folder, megabytes of a file."""
    title = f"{doing} {shown_name(path)}"
    return Meter(title, "pictures", 1.0) if path.is_dir() else Meter(title)


WITHOUT_HIDDEN = ("crf", "ssvm")


def reading(
    form: FormatName | None, structure: StructureName | str | None, unlabelled: bool = False, colour: str = "#ffffff"
) -> Options:
    """Options of the readers from those of the command line."""
    if len(colour) != 7 or colour[0] != "#" or any(c not in "0123456789abcdefABCDEF" for c in colour[1:]):
        raise InputError(f"--missing-colour needs a colour such as '#ffffff', got {colour!r}.")
    fmt: Any = None if form is None else form.value
    kind: Any = None if structure is None else str(structure)
    return Options(fmt, kind, not unlabelled, colour)


def make_structure(kind: str, hidden: int | None) -> Any:
    """The structure with its own default, or the given number, of hidden states."""
    import mssvm as ms

    names = {"chain": "Chain", "sequence": "SequenceClass", "grid": "Grid", "graph": "GraphModel"}
    made = getattr(ms, names[kind])
    return made() if hidden is None else made(hidden=hidden)


def make_estimator(method: str, structure: Any, **settings: Any) -> Any:
    """The member of the family by its name on the command line."""
    import mssvm as ms

    if method not in METHODS:
        raise InputError(f"there is no method {method!r}; use some of {', '.join(METHODS)}.")
    return getattr(ms, METHODS[method])(structure, **{k: v for k, v in settings.items() if v is not None})


def kind_of(structure: Any) -> str:
    """The name on the command line of a model's structure."""
    names = {"Chain": "chain", "SequenceClass": "sequence", "Grid": "grid", "GraphModel": "graph"}
    name = type(structure).__name__
    if name not in names:
        raise InputError(f"a model of the structure {name} takes no data files; use it from Python.")
    return names[name]
