"""Write the page's table of what the reproduction found, from the kept results.

    python benchmarks/science_table.py [--results results/results.json] [--page docs/paper.md] [--check]

Everything between the two marker lines of the page is replaced. With --check nothing is written, and the exit code
says whether the page agrees with the results.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

from pages import keep


def table(tree: dict[str, Any]) -> str:
    """Claims with direction and size, the accuracies on the hidden chain, and the same from starts of other sizes."""
    claims = [c for e in tree["experiments"].values() for c in e["claims"]]
    claims.sort(key=lambda c: (int(re.sub(r"\D", "", c["number"])), c["number"]))
    lines = ["| | claim | direction | effect | paper | by reading | each by itself |", "|---|---|---|---|---|---|---|"]
    for c in claims:
        groups = "; ".join(f"{name.removesuffix(', pooled')} {value}" for name, value in c["groups"])
        cells = [c["number"], c["text"], f"**{c['verdict']}**", c["effect"], c["paper"], groups, c["cells"]]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, "", *_chain(tree), *_start(tree)])


def _chain(tree: dict[str, Any]) -> list[str]:
    tables = tree["experiments"]["table2"]["tables"]
    found = next(t for t in tables if t["caption"].startswith("Hidden chain"))
    header = found["header"]
    lines = [f"| {' | '.join(header)} |", "|---" * len(header) + "|"]
    return [*lines, *(f"| {' | '.join(row)} |" for row in found["rows"])]


def _start(tree: dict[str, Any]) -> list[str]:
    """Where the paper's gap comes from: one paragraph to quote, then the tables behind it."""
    tables = tree["experiments"]["start"]["tables"]
    chain = {tuple(row[:3]): row for row in tables[0]["rows"]}
    header = tables[0]["header"]
    lead = header.index("MSSVM - LSSVM")
    left = len(header) - 1

    def gap(solver: str, scale: str) -> str:
        return f"{chain['B', solver, scale][lead]} (reading B) and {chain['A2', solver, scale][lead]} (A2)"

    mine, theirs = chain["B", "SGD", "1"][left].split(" / ")[:2]
    quoted = (
        f"**Where the gap comes from.** From initial weights N(0, 1), SGD with the paper's rates and steps puts MSSVM "
        f"above LSSVM on the hidden chain by {gap('SGD', '1')}, as in the paper (+2.33); from N(0, 0.01) by "
        f"{gap('SGD', '0.1')}. At the end LSSVM's weights still hold {theirs} of their start, MSSVM's {mine} (reading "
        f"B): its rate of 0.001 is small and its steps are few. With MSSVM's rate for LSSVM the lead is "
        f"{gap('SGD, one rate', '1')}, with 5,000 steps {gap('SGD, LSSVM 5,000 steps', '1')}, and with all members "
        f"trained to the end by L-BFGS {gap('LB', '1')}, whatever the start. So most of the gap is the optimiser; what "
        f"remains is the model's, and depends on the reading."
    )
    lines = ["", quoted]
    for table in tables[:2]:
        names = [*table["header"]]
        lines += ["", f"{table['caption']}:", "", f"| {' | '.join(names)} |", "|---" * len(names) + "|"]
        lines += [f"| {' | '.join(row)} |" for row in table["rows"]]
    return lines


def text_of(results: Path) -> str:
    return table(json.loads(results.read_text("utf-8")))


if __name__ == "__main__":
    sys.exit(keep(__doc__, "results", "results/results.json", "docs/paper.md", text_of))
