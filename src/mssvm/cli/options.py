"""Options that several commands share, and the objects that their values stand for."""

from __future__ import annotations

import json
import sys
from collections.abc import Hashable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from pkgutil import resolve_name
from typing import Annotated, Any

import typer

from mssvm.annotators.confusion import CONTEXTS
from mssvm.core.errors import InputError
from mssvm.core.progress import ProgressLine
from mssvm.core.registry import DECODERS, EDGES, INFERENCES, MEMBERS, READ_AS, SOLVERS, STRUCTURES, WITHOUT_FILES
from mssvm.data.dataset import Dataset
from mssvm.data.labels import kind_of_sites
from mssvm.data.readers import Options, read
from mssvm.data.readers.read import FORMATS
from mssvm.data.readers.stream import shown_name
from mssvm.data.shards import ShardedDataset
from mssvm.structures.tags import KINDS

METHODS = {member.command: name for name, member in MEMBERS.items()}


def one_of(names: Iterable[str], *flags: str, text: str) -> Any:
    """An option whose value is one of ``names`` (lower case), in upper or lower case."""
    choices = list(names)

    def check(value: str | None) -> str | None:
        if value is None:
            return None
        if value.lower() not in choices:
            raise typer.BadParameter(f"{value!r} is not one of {', '.join(repr(choice) for choice in choices)}.")
        return value.lower()

    return typer.Option(*flags, metavar=f"[{'|'.join(choices)}]", callback=check, help=text)


Data = Annotated[Path, typer.Argument(help="Data file or image folder, gzipped or not; - is standard input.")]
Model = Annotated[Path, typer.Argument(help="Model written by mssvm fit.")]
Format = Annotated[str | None, one_of(FORMATS, "--format", text="Format; by default that of the file's ending.")]
Structure = Annotated[
    str | None,
    one_of(
        (kind for kind in STRUCTURES if kind not in WITHOUT_FILES),
        text="What is labelled: every site of a chain, grid or graph; stretches of a chain (segments); a sequence; a "
        "row, several times (multilabel).",
    ),
]
Method = Annotated[str, one_of(METHODS, text="Member of the family.")]
Unlabelled = Annotated[bool, typer.Option("--unlabelled", help="CoNLL: the last column is not a label.")]
MissingColour = Annotated[str, typer.Option(help="Colour of missing labels in colour masks.")]
Limit = Annotated[
    int, typer.Option(min=1, max=1 << 20, help="Lines, arrays and pictures may be this many times larger.")
]
Hidden = Annotated[
    int | None,
    typer.Option(min=0, help="States of each hidden variable; 0 for none. Default: 0, or 3 with --structure sequence."),
]
MaxLength = Annotated[
    int | None, typer.Option(min=1, help="Sites of the longest segment, with --structure segments. Default: 40.")
]
Edges = Annotated[
    str | None,
    one_of(EDGES, text="Scores of neighbours in a grid (see Grid). Default: contrast in image folders, else free."),
]
Constraints = Annotated[
    str | None,
    one_of(KINDS, "--constraints", text="Tags of chunks: forbid transitions that the scheme excludes."),
]
Cost = Annotated[float, typer.Option("-C", "--cost", help="Weight of the data against the regulariser.")]
Solver = Annotated[str, one_of(("auto", *SOLVERS), text="Solver; auto suits the method and the inference.")]
Inference = Annotated[str, one_of(INFERENCES, text="auto: exact where memory allows, else a bound or propagation.")]
DecodeOf = Annotated[str | None, one_of(DECODERS, "--decode", text="How labels are decided; else as the model says.")]
Decode = Annotated[
    str, one_of(DECODERS, text="map: the best labelling; marginal: the most probable labels; auto: by the method.")
]
Classes = Annotated[str | None, typer.Option(help="All classes, separated by commas, if the data may lack some.")]
MissingLabel = Annotated[
    str | None,
    typer.Option(help="A label that stands for a missing one, such as -100. In evaluate by default the model's."),
]
Columns = Annotated[
    str | None,
    typer.Option(help="Tables: the columns of groups and of labels, as GROUP,LABEL. Tokens: that of labels."),
]
MaxIter = Annotated[int | None, typer.Option(min=1, help="Iterations of the solver; else its own limit.")]
Seed = Annotated[int, typer.Option(min=0, max=(1 << 32) - 1, help="Seed of random starts and splits.")]
Jobs = Annotated[int, typer.Option(help="Threads; negative numbers count back from all cores.")]
Cluster = Annotated[
    str | None,
    typer.Option(metavar="ADDRESS|N", help="Dask scheduler, or number of workers to start; DATA is then a pattern."),
]
Context = Annotated[
    str,
    one_of(
        CONTEXTS,
        text="What a vote depends on beside the truth: the annotator's vote before (auto on chains), or none (best for "
        "labelling functions).",
    ),
]
VoteColumns = Annotated[
    str | None,
    typer.Option(
        metavar="NAMES", help="CoNLL: the last columns are votes of these annotators (ann,bob; gold is the truth)."
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


def read_data(path: Path, options: Options) -> Dataset:
    """The whole data set, with progress."""
    with progress(path, "Reading") as line:
        return read(path, replace(options, progress=line))


def progress(path: Path, doing: str) -> ProgressLine:
    """Progress through a data set: pictures of a folder, megabytes of a file."""
    title = f"{doing} {shown_name(path)}"
    if path.is_dir():
        return ProgressLine(title, "pictures", 1.0)
    return ProgressLine(title)


def reading(
    form: str | None,
    structure: str | None,
    unlabelled: bool = False,
    colour: str = "#ffffff",
    limit: int = 1,
    vote_columns: str | None = None,
    missing_label: Hashable = None,
    columns: str | None = None,
) -> Options:
    """Options of the readers from those of the command line."""
    if len(colour) != 7 or colour[0] != "#" or any(c not in "0123456789abcdefABCDEF" for c in colour[1:]):
        raise InputError(f"--missing-colour needs a colour such as '#ffffff', got {colour!r}.")
    kind = structure if structure is None else READ_AS.get(structure, structure)
    checked: dict[str, Any] = {"format": form, "structure": kind}  # values that the command line has checked already
    names = tuple(name.strip() for name in (vote_columns or "").split(",") if name.strip())
    if len(set(names)) < len(names):
        raise InputError(f"--vote-columns names an annotator twice: {vote_columns}.")
    return Options(
        **checked,
        labelled=not unlabelled,
        vote_columns=names,
        missing_colour=colour,
        missing_label=missing_label,
        columns=tuple(name.strip() for name in (columns or "").split(",") if name.strip()),
        limit=limit,
    )


def votes_of(data: Dataset) -> list[dict[str, Any]]:
    """The votes of a data set; raises if it has none."""
    if data.votes is None:
        reason = f"{data.name} holds no votes; give instances 'votes' or 'spans', or name --vote-columns of CoNLL files"
        raise InputError(f"{reason} (docs/data-formats.md).")
    return data.votes


def label_of(text: str | None) -> Hashable:
    """A label named on the command line: a whole number, or text."""
    if text is None or not text.lstrip("-").isdecimal():
        return text
    return int(text)


def first_part(data: Path, reading: Options) -> Dataset:
    """The first instances of the first of several files, from which the structure of all files is detected."""
    return next(ShardedDataset(str(data), options=reading).shards[0].parts())


@contextmanager
def shards(cluster: str | None, data: Path, reading: Options) -> Iterator[ShardedDataset | None]:
    """The files of a pattern, on a cluster by its address or number of workers; None without one."""
    if cluster is None:
        yield None
        return
    import mssvm as ms

    sharded = ShardedDataset(str(data), options=reading)
    with ms.distributed(int(cluster) if cluster.isdecimal() else cluster) as joined:
        sys.stderr.write(f"{joined!r}\n")
        yield sharded


def make_structure(
    data: Dataset,
    hidden: int | None,
    edges: str | None = None,
    constraints: str | None = None,
    structure: str | None = None,
    max_length: int | None = None,
) -> Any:
    """The structure by its name, or that of the data; other parameters that are None are its own defaults, except that
    images have contrast-sensitive edges."""
    named = structure if structure in READ_AS else data.kind
    if max_length is not None and named != "segments":
        raise InputError("--max-length is for --structure segments; leave it out, or name the structure.")
    if constraints is not None and named != "chain":
        raise InputError(f"--constraints is for chains, and {data.name} holds {named}s; leave it out.")
    if edges is not None and data.kind != "grid":
        raise InputError(f"--edges is for grids, and {data.name} holds {data.kind}s; leave it out.")
    if edges is None and data.unit == "image":
        edges = "contrast"
    parameters = {"hidden": hidden, "edges": edges, "forbidden": constraints, "max_length": max_length}
    structure_class = resolve_name(STRUCTURES[named].place)
    return structure_class(**{name: value for name, value in parameters.items() if value is not None})


def make_estimator(method: str, structure: Any, **settings: Any) -> Any:
    """The estimator by its name on the command line; settings that are None keep their defaults."""
    import mssvm as ms

    if method not in METHODS:
        raise InputError(f"there is no method {method!r}; use some of {', '.join(METHODS)}.")
    parameters = {name: value for name, value in settings.items() if value is not None}
    return getattr(ms, METHODS[method])(structure, **parameters)


def classes_of(names: str | None, data: Dataset, of_votes: bool = False) -> list[Any] | None:
    """The classes named on the command line, as numbers or booleans if the labels (or votes) of the data are such."""
    if of_votes:
        y = [labels for given in votes_of(data) for labels in given.values()]
    else:
        y = data.labels  # raises if there are none
    if names is None:
        return None
    depth = resolve_name(STRUCTURES[data.kind].place).depth
    kind = kind_of_sites(y, depth)
    classes = [name.strip() for name in names.split(",") if name.strip()]
    if kind == "text":
        return classes
    try:
        return [json.loads(name) for name in classes]
    except json.JSONDecodeError:
        raise InputError(f"--classes names {names!r}, but the labels of the data are {kind}.") from None


def kind_of(structure: Any, asked: str | None = None) -> str:
    """The name on the command line of a model's structure, which must be the one ``asked`` for, if any is."""
    name = type(structure).__name__
    kind = next((k for k, entry in STRUCTURES.items() if entry.name == name), None)
    if kind is None or kind in WITHOUT_FILES:
        raise InputError(f"a model of the structure {name} takes no data files; use it from Python.")
    if asked not in (None, kind):
        raise InputError(f"the model labels {kind}s, not {asked}s; leave --structure out, or fit another model.")
    return kind
