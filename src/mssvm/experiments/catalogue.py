"""The experiments that ``mssvm reproduce`` knows, in the order of the report."""

from __future__ import annotations

from mssvm.experiments import (
    approximation,
    figure2,
    figure3,
    figure4,
    figure5,
    literal,
    start,
    table1,
    table2,
    table3,
    table4,
)
from mssvm.experiments.collect import Experiment

MODULES = (table1, table2, figure2, figure3, table3, figure4, table4, figure5, approximation, literal, start)
EXPERIMENTS: dict[str, Experiment] = {module.NAME: module.EXPERIMENT for module in MODULES}
