"""``mssvm inspect``: the contents of a model file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from mssvm.cli import options as o
from mssvm.cli.output import check_target, output
from mssvm.cli.tables import columns, pairs, shown
from mssvm.cli.versions import versions
from mssvm.data.labels import plain
from mssvm.report import page
from mssvm.report.inspection import sections


def inspect(
    model: o.Model,
    top: Annotated[int, typer.Option(min=1, help="How many of the largest weights to show.")] = 15,
    html: Annotated[Path | None, typer.Option(help="Page to write.")] = None,
    json_output: o.Json = False,
) -> None:
    """Show a model: its method, structure and classes, the course of its training, and its largest weights.

    Example: mssvm inspect model.safetensors --top 30 --html model.html
    """
    from mssvm.estimators import load

    if html is not None:
        check_target(html, model)
    estimator = load(model)
    weights = estimator.weights_table(top)
    if html is not None:
        parts = sections(estimator, _summary(estimator), weights)
        text = page(model.name, estimator.status_, list(versions().items()), parts)
        with output(html) as file:
            file.write(text)
    if json_output:
        print(json.dumps(_fields(estimator, weights)))
        return
    console = Console()
    console.print(pairs(model.name, _summary(estimator).items()))
    for line in estimator.diagnose().splitlines():
        console.print(shown(line))
    title = f"The {len(weights)} largest of {len(estimator.coef_)} weights"
    rows = ((w.block, w.feature, " ".join(str(state) for state in w.states), f"{w.value:+.4f}") for w in weights)
    console.print(columns(title, ("block", "feature", "states", "weight"), rows, 3))
    if html is not None:
        console.print(shown(f"Page: {html}"))


def _summary(estimator: Any) -> dict[str, Any]:
    return {
        "method": type(estimator).__name__,
        "temperatures": f"eps_y {estimator.eps_y:g}, eps_h {estimator.eps_h:g}",
        "structure": repr(estimator.structure_),
        "classes": ", ".join(str(c) for c in estimator.labels_.classes),
        "features": estimator.n_features_in_,
        "C": f"{estimator.C:g}",
        "solver": f"{estimator.solver}, {estimator.n_iter_} iterations recorded",
        "inference": estimator.inference,
    }


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
