"""``mssvm demo``: a tour of the commands, on data that come with the package."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mssvm.cli import options as o


def demo(
    folder: Annotated[Path, typer.Option(help="Where data, model, predictions and page go.")] = Path("demo"),
    draws: Annotated[int, typer.Option(min=1, help="Simulated models to average over.")] = 10,
    data_only: Annotated[bool, typer.Option("--data-only", help="Write the example data files and stop.")] = False,
    seed: o.Seed = 0,
) -> None:
    """Run fit, predict, evaluate and compare on embedded data, and end with a table and a page.

    Example: mssvm demo --folder demo
    """
    from mssvm.experiments.demo import DemoSettings, main, write_files

    if data_only:
        folder.mkdir(parents=True, exist_ok=True)
        files = write_files(folder, seed)
        for path in (files.chunks, files.chunks_test, files.landscape, files.pictures, files.chain):
            print(path)
        return
    main(DemoSettings(n_draws=draws, seed=seed), folder)
