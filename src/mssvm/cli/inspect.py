"""``mssvm inspect``: what is in a model file."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from mssvm.cli import options as o
from mssvm.data.labels import plain


def inspect(
    model: o.Model,
    top: Annotated[int, typer.Option(min=1, help="How many of the largest weights to show.")] = 15,
    json_output: o.Json = False,
) -> None:
    """Show a model: its method, structure, classes, how training went, and its largest weights.

    Example: mssvm inspect model.safetensors --top 30
    """
    from mssvm.estimators import load

    estimator = load(model)
    weights = estimator.weights_table(top)
    if json_output:
        print(json.dumps(_fields(estimator, weights)))
        return
    console = Console()
    console.print(_summary(estimator, model.name))
    for line in estimator.diagnose().splitlines():
        console.print(Text(line))
    table = Table(title=f"The {len(weights)} largest of {len(estimator.coef_)} weights")
    for heading in ("block", "feature", "states"):
        table.add_column(heading, overflow="fold")
    table.add_column("weight", justify="right")
    for row in weights:
        table.add_row(Text(row.block), Text(row.feature), Text(" ".join(map(str, row.states))), f"{row.value:+.4f}")
    console.print(table)


def _summary(estimator: Any, name: str) -> Table:
    table = Table(title=Text(name), show_header=False, min_width=min(len(name), 78))
    table.add_row("method", type(estimator).__name__)
    table.add_row("temperatures", f"eps_y {estimator.eps_y:g}, eps_h {estimator.eps_h:g}")
    table.add_row("structure", Text(repr(estimator.structure_)))
    table.add_row("classes", Text(", ".join(str(c) for c in estimator.labels_.classes)))
    table.add_row("features", str(estimator.n_features_in_))
    table.add_row("C", f"{estimator.C:g}")
    table.add_row("solver", f"{estimator.solver}, {estimator.n_iter_} iterations recorded")
    table.add_row("inference", str(estimator.inference))
    return table


def _fields(estimator: Any, weights: list[Any]) -> dict[str, Any]:
    return {
        "method": type(estimator).__name__,
        "eps_y": estimator.eps_y,
        "eps_h": estimator.eps_h,
        "structure": repr(estimator.structure_),
        "classes": [plain(c) for c in estimator.labels_.classes],
        "n_features": estimator.n_features_in_,
        "n_weights": len(estimator.coef_),
        "C": estimator.C,
        "status": estimator.status_,
        "training": estimator.training_,
        "weights": [
            {"block": w.block, "feature": w.feature, "states": [plain(s) for s in w.states], "value": w.value}
            for w in weights
        ],
    }
