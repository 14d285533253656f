"""A first look, in two parts: the command line on data that come with the package, and the paper's hidden chains.

Part one writes files and runs fit, predict, evaluate and compare on them, as one would by hand. In part two every draw
is a new model (paper section 7.1) with 20 training and 100 test chains of 10 outputs and 10 hidden variables. All
members get the same solver (Algorithm 1), rate, number of steps and random initial weights. Decoders are each member's
own: marginal MAP for MSSVM and HCRF, joint MAP for LSSVM. ``Bayes-optimal`` decodes with the generating weights.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import monotonic

import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table
from rich.text import Text

from mssvm.cli.versions import versions
from mssvm.engines.numba.compiling import compiling
from mssvm.experiments.demo_data import Files, write_files
from mssvm.experiments.simulate import Recipe, decoded_accuracy, hidden_chain
from mssvm.experiments.statistics import Estimate
from mssvm.inference.exact import Exact
from mssvm.objectives.training import TrainingProblem
from mssvm.objectives.unified import Unified, hcrf, lssvm, mssvm
from mssvm.optim.subgradient import Subgradient
from mssvm.report import Section, page
from mssvm.report import Table as ReportTable

MEMBERS = {"MSSVM": mssvm(), "LSSVM": lssvm(), "HCRF": hcrf()}
BAYES = "Bayes-optimal"


@dataclass(frozen=True)
class Settings:
    """What the demonstration runs."""

    n_draws: int = 10
    n_steps: int = 150
    rate: float = 0.02
    initial_std: float = 0.1
    recipe: Recipe = field(default_factory=Recipe)
    seed: int = 0


def one_draw(settings: Settings, draw: int) -> dict[str, float]:
    """Test accuracy of every member, and of the true weights, on a freshly drawn model."""
    rng = np.random.default_rng([settings.seed, draw])
    simulation = hidden_chain(rng, settings.recipe)
    model, inference = simulation.model, Exact()
    w0 = settings.initial_std * rng.standard_normal(model.n_weights)
    solver = Subgradient.literal(settings.rate, settings.n_steps)

    def trained(objective: Unified) -> float:
        problem = TrainingProblem(objective, model, simulation.train, inference)
        w = solver.minimize(problem, w0).w
        return decoded_accuracy(model, w, simulation.test, inference, objective.eps_h)

    accuracies = {name: trained(objective) for name, objective in MEMBERS.items()}
    return accuracies | {BAYES: decoded_accuracy(model, simulation.weights, simulation.test, inference)}


def summary(draws: list[dict[str, float]], settings: Settings) -> ReportTable:
    """Mean accuracy and its standard error over draws; differences to MSSVM are paired by draw."""
    columns = {name: 100 * np.array([draw[name] for draw in draws]) for name in (*MEMBERS, BAYES)}
    rows = []
    for name, values in columns.items():
        difference = "" if name == "MSSVM" else Estimate.paired(values, columns["MSSVM"]).show(sign=True)
        rows.append([name, Estimate.of(values).show(), difference])
    note = f"± is the standard error; {settings.n_steps} steps of Algorithm 1 at rate {settings.rate:g}, C = 1."
    title = f"Hidden chains: test accuracy, {len(draws)} draws"
    return ReportTable(title, ["method", "accuracy %", "minus MSSVM"], rows, note, strong=frozenset({len(rows) - 1}))


def commands(files: Files, folder: Path) -> list[tuple[str, list[str]]]:
    """What part one runs, with the reason for each."""
    model, out = str(folder / "chunks.safetensors"), str(folder / "predicted.jsonl")
    train, test = str(files.chunks), str(files.chunks_test)
    return [
        ("look at sentences half of whose chunk tags are missing", ["check", train]),
        ("learn from them", ["fit", train, "-o", model, "--structure", "chain", "--method", "mssvm", "--hidden", "2"]),
        ("tag new sentences, with probabilities", ["predict", model, test, "--marginals", "-o", out]),
        ("see how good the tags are", ["evaluate", model, test, "--by-class"]),
        ("compare members of the family", ["compare", train, "--hidden", "2", "--cv", "3"]),
        ("and others on pictures", ["compare", str(files.pictures), "--methods", "crf,ssvm", "--cv", "3"]),
    ]


def run_commands(files: Files, folder: Path, console: Console) -> list[Section]:
    """Run the commands of part one; returns what the comparisons have for the page."""
    from mssvm.cli import app

    sections: list[Section] = []
    for reason, arguments in commands(files, folder):
        console.rule(Text(reason), align="left")
        console.print(Text("$ mssvm " + " ".join(arguments), style="bold"), soft_wrap=True)
        result = app(arguments, standalone_mode=False)
        if arguments[0] == "compare":
            name = Path(arguments[1]).stem
            sections += [replace(s, name=f"{name}-{s.name}", title=f"{s.title}: {name}") for s in result]
    return sections


def main(settings: Settings | None = None, folder: Path | None = None, console: Console | None = None) -> Path:
    """Run both parts; returns the page."""
    settings, console, folder = settings or Settings(), console or Console(), folder or Path("demo")
    began = monotonic()
    folder.mkdir(parents=True, exist_ok=True)
    with compiling(_tell_once(console)):
        sections = run_commands(write_files(folder, settings.seed), folder, console)
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
    console.print(Text(f"Took {monotonic() - began:.0f} s. Files are in {folder}; the page: {path}"), soft_wrap=True)
    return path


def _page(table: ReportTable, sections: list[Section], settings: Settings, seconds: float) -> str:
    lead = (
        "Members of the family on three small problems: chains simulated with hidden variables, sentences of which "
        "half of the chunk tags are missing, and pictures labelled by a few strokes. Small data: differences within "
        "their errors mean nothing."
    )
    first = Section("hidden-chains", "Hidden chains", [table])
    facts = [("draws", str(settings.n_draws)), ("seed", str(settings.seed)), ("seconds", f"{seconds:.0f}")]
    return page("mssvm: a first look", lead, [*facts, *versions().items()], [first, *sections])


def _tell_once(console: Console) -> Callable[[str], None]:
    """Say once that kernels are being compiled, for that is most of the time of a first run."""
    told: list[str] = []

    def tell(kernel: str) -> None:
        if not told:
            console.print("Compiling kernels; this happens once on a machine and takes a minute or so.")
        told.append(kernel)

    return tell


if __name__ == "__main__":
    main()
