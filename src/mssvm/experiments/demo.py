"""The demonstration, in two parts: the command line on data that come with the package, and the paper's hidden chains.

Part one writes files and runs fit, predict, evaluate and compare on them, as a user would. In part two every draw
is a new model (paper section 7.1) with 20 training and 100 test chains of 10 outputs and 10 hidden variables. All
members get the same solver (Algorithm 1), rate, number of steps and random initial weights. Decoders are each member's
own: marginal MAP for MSSVM and HCRF, joint MAP for LSSVM. ``Bayes-optimal`` decodes with the generating weights.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import monotonic

import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table
from rich.text import Text as Line

from mssvm.cli.versions import versions
from mssvm.core.arrays import AnyArray
from mssvm.core.topology import Topology
from mssvm.data.embedded import landscape, weak_pictures, write_chunking, write_pictures
from mssvm.data.readers import png
from mssvm.data.readers.images import MISSING
from mssvm.experiments.members import NAMES, Arena
from mssvm.experiments.simulate import Recipe, Truth, hidden_chain
from mssvm.experiments.statistics import Estimate
from mssvm.inference.exact import Exact
from mssvm.optim.subgradient import Subgradient
from mssvm.report import Figure, Section, Text, page
from mssvm.report import Table as ReportTable
from mssvm.report.pictures import colour_picture, label_picture, scalar_picture

MEMBERS = ("M", "L", "H")
BAYES = "Bayes-optimal"
PAINTED = "painted"


@dataclass(frozen=True)
class DemoSettings:
    """Size and seed of the demonstration."""

    n_draws: int = 10
    n_steps: int = 150
    rate: float = 0.02
    initial_std: float = 0.1
    recipe: Recipe = field(default_factory=Recipe)
    seed: int = 0


def one_draw(settings: DemoSettings, draw: int) -> dict[str, float]:
    """Test accuracy of every member, and of the true weights, on a freshly drawn model."""
    rng = np.random.default_rng([settings.seed, draw])
    arena = Arena.of(hidden_chain(rng, settings.recipe), settings.initial_std, rng, Exact())
    solver = Subgradient.literal(settings.rate, settings.n_steps)
    return {NAMES[m]: arena.accuracy(arena.fit(m, solver)) for m in MEMBERS} | {BAYES: arena.bayes()}


def summary(draws: list[dict[str, float]], settings: DemoSettings) -> ReportTable:
    """Mean accuracy and its standard error over draws; differences to MSSVM are paired by draw."""
    columns = {name: np.array([draw[name] for draw in draws]) for name in draws[0]}
    rows = []
    for name, values in columns.items():
        difference = "" if name == "MSSVM" else Estimate.paired(values, columns["MSSVM"]).show(sign=True)
        rows.append([name, Estimate.of(values).show(), difference])
    note = f"± is the standard error; {settings.n_steps} steps of Algorithm 1 at rate {settings.rate:g}, C = 1."
    title = f"Hidden chains: test accuracy, {len(draws)} draws"
    return ReportTable(title, ["method", "accuracy %", "minus MSSVM"], rows, note, strong=frozenset({len(rows) - 1}))


@dataclass(frozen=True)
class DemoFiles:
    """Paths of the files that the commands work on."""

    chunks: Path
    chunks_test: Path
    landscape: Path
    pictures: Path
    chain: Path


def write_files(folder: Path, seed: int = 0) -> DemoFiles:
    """Write all files. The pictures to compare on are small, so that inference on them is exact."""
    train, test = write_chunking(folder)
    landscapes = write_pictures(folder / "landscape", [landscape(seed=seed)])
    pictures = write_pictures(folder / "pictures", weak_pictures(9, 6, 14, share=0.15, noise=45.0, seed=seed))
    return DemoFiles(train, test, landscapes, pictures, write_chain(folder / "hidden-chain.jsonl", 60, seed))


def write_chain(path: Path, n: int, seed: int = 0, n_sites: int = 20) -> Path:
    """``n`` chains y h y h ... (paper section 7.1) as graphs in JSON lines, their hidden sites marked as such.

    Every site has a type of its own, because in the generating model no two sites share weights.
    """
    rng = np.random.default_rng([seed, 0])
    recipe = Recipe()
    output = np.arange(n_sites) % 2 == 0
    graph = Topology((recipe.n_states,) * n_sites, tuple((t, t + 1) for t in range(n_sites - 1)))
    x, states = Truth.draw(graph, output, recipe, rng).sample(n, rng)
    kinds = [f"{t:02d}" for t in range(n_sites)]
    with path.open("w", encoding="utf-8") as file:
        for inputs, labels in zip(x.tolist(), states.tolist(), strict=True):
            record = {
                "nodes": [[float(v == k) for k in range(recipe.n_states)] for v in inputs],
                "edges": graph.scopes,
                "node_types": kinds,
                "edge_types": kinds[1:],
                "hidden": (~output).tolist(),
                "y": [label if seen else None for label, seen in zip(labels, output.tolist(), strict=True)],
            }
            file.write(json.dumps(record) + "\n")
    return path


def commands(files: DemoFiles, folder: Path) -> list[tuple[str, list[str]]]:
    """The commands of part one, each after a title."""
    model = str(folder / "chunks.safetensors")
    out = str(folder / "predicted.jsonl")
    train = str(files.chunks)
    test = str(files.chunks_test)
    scene = str(files.landscape)
    painter = str(folder / "landscape.safetensors")
    return [
        ("look at sentences half of whose chunk tags are missing", ["check", train]),
        ("learn from them", ["fit", train, "-o", model, "--structure", "chain", "--method", "mssvm", "--hidden", "2"]),
        ("tag new sentences, with probabilities", ["predict", model, test, "--marginals", "-o", out]),
        ("see how good the tags are", ["evaluate", model, test, "--by-class"]),
        ("compare members of the family", ["compare", train, "--hidden", "2", "--cv", "3"]),
        ("learn a picture from a few strokes", ["fit", scene, "-o", painter]),
        ("paint the rest of it", ["predict", painter, scene, "-o", str(folder / PAINTED), "--uncertainty"]),
        ("and others on pictures", ["compare", str(files.pictures), "--methods", "crf,ssvm", "--cv", "3"]),
    ]


def run_commands(files: DemoFiles, folder: Path, console: Console) -> list[Section]:
    """Run the commands of part one; returns the comparisons' sections for the page."""
    from mssvm.cli import app

    sections: list[Section] = []
    for title, arguments in commands(files, folder):
        console.rule(Line(title), align="left")
        console.print(Line("$ mssvm " + " ".join(arguments), style="bold"), soft_wrap=True)
        result = app(arguments, standalone_mode=False)
        if arguments[0] == "compare":
            name = Path(arguments[1]).stem
            sections += [replace(s, name=f"{name}-{s.name}", title=f"{s.title}: {name}") for s in result]
    return sections


def painted(folder: Path, seed: int) -> Section:
    """The landscape, its given labels, the predicted ones, and their uncertainty."""
    scene = landscape(seed=seed)
    predicted = _channel(folder / PAINTED / "masks" / "000.png")
    uncertainty = _channel(folder / PAINTED / "uncertainty" / "000.png")
    drawings = [
        colour_picture("picture", scene.pixels),
        label_picture("labels given", np.where(scene.given == MISSING, -1, scene.given.astype(int))),
        label_picture("predicted", predicted.astype(int)),
        scalar_picture("uncertainty", uncertainty.astype(float), 0.0, 255.0),
    ]
    unlabelled = scene.given == MISSING
    right = (predicted == scene.truth)[unlabelled].mean()
    share = 1.0 - unlabelled.mean()
    text = (
        f"Strokes label {share:.1%} of the pixels as sky, hills, meadow or lake; of the others {right:.1%} came out "
        "right. Uncertainty is the entropy of a pixel's label: white is undecided."
    )
    return Section("landscape", "A picture labelled by strokes", [Figure("", drawings, columns=2), Text(text)])


def _channel(path: Path) -> AnyArray:
    """The first channel of a PNG file."""
    return png.decode(path.read_bytes(), path.name)[..., 0]


def main(settings: DemoSettings | None = None, folder: Path | None = None, console: Console | None = None) -> Path:
    """Run both parts; returns the page."""
    settings = settings or DemoSettings()
    console = console or Console()
    folder = folder or Path("demo")
    began = monotonic()
    folder.mkdir(parents=True, exist_ok=True)
    sections = run_commands(write_files(folder, settings.seed), folder, console)
    sections.insert(0, painted(folder, settings.seed))
    console.rule("the paper's hidden chains", align="left")
    steps = track(range(settings.n_draws), "Training MSSVM, LSSVM and HCRF", console=console, transient=True)
    table = summary([one_draw(settings, draw) for draw in steps], settings)
    shown = Table(title=table.caption, caption=table.note)
    for k, heading in enumerate(table.header):
        shown.add_column(heading, justify="right" if k else "left")
    for row in table.rows:
        shown.add_row(*row)
    console.print(shown)
    path = folder / "report.html"
    path.write_text(_page(table, sections, settings, monotonic() - began), "utf-8")
    console.print(Line(f"Took {monotonic() - began:.0f} s. Files are in {folder}; the page: {path}"), soft_wrap=True)
    return path


def _page(table: ReportTable, sections: list[Section], settings: DemoSettings, seconds: float) -> str:
    lead = (
        "Members of the family on small problems: chains simulated with hidden variables, a landscape and smaller "
        "pictures labelled by a few strokes, and sentences of which half of the chunk tags are missing. Small data: "
        "differences within their errors mean nothing."
    )
    first = Section("hidden-chains", "Hidden chains", [table])
    facts = [("draws", str(settings.n_draws)), ("seed", str(settings.seed)), ("seconds", f"{seconds:.0f}")]
    return page("mssvm: a first look", lead, [*facts, *versions().items()], [first, *sections])


if __name__ == "__main__":
    main()
