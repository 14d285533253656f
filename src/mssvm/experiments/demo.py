"""A first look: three members of the family trained by Algorithm 1 on simulated hidden chains (paper section 7.1).

Every draw is a new model with 20 training and 100 test chains of 10 outputs and 10 hidden variables. All members get
the same solver, rate, number of steps and random initial weights. Decoders are each member's own: marginal MAP for
MSSVM and HCRF, joint MAP for LSSVM. ``Bayes-optimal`` decodes with the weights that generated the data.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table

from mssvm.arrays import Floats
from mssvm.experiments.simulate import Recipe, decoded_accuracy, hidden_chain
from mssvm.inference.exact import Exact
from mssvm.objectives.training import TrainingProblem
from mssvm.objectives.unified import Unified, hcrf, lssvm, mssvm
from mssvm.optim.subgradient import Subgradient

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


def summary(draws: list[dict[str, float]]) -> Table:
    """Mean accuracy and its standard error over draws; differences to MSSVM are paired by draw."""
    table = Table(title=f"Hidden chains: test accuracy, {len(draws)} draws")
    table.add_column("method")
    for heading in ("accuracy %", "minus MSSVM"):
        table.add_column(heading, justify="right")
    columns = {name: 100 * np.array([draw[name] for draw in draws]) for name in (*MEMBERS, BAYES)}
    for name, values in columns.items():
        difference = "" if name == "MSSVM" else _mean(values - columns["MSSVM"], sign="+")
        table.add_row(name, _mean(values), difference, end_section=name == "HCRF")
    return table


def _mean(values: Floats, sign: str = "") -> str:
    if len(values) < 2:
        return f"{values.mean():{sign}.2f}"
    return f"{values.mean():{sign}.2f} ± {values.std(ddof=1) / np.sqrt(len(values)):.2f}"


def main(settings: Settings | None = None, console: Console | None = None) -> None:
    settings, console = settings or Settings(), console or Console()
    steps = track(range(settings.n_draws), "Training MSSVM, LSSVM and HCRF", console=console, transient=True)
    console.print(summary([one_draw(settings, draw) for draw in steps]))
    console.print(f"± is the standard error; {settings.n_steps} steps of Algorithm 1 at rate {settings.rate:g}, C = 1.")


if __name__ == "__main__":
    main()
