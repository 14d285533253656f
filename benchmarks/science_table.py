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
    """Claims with direction and size, then the accuracies on the hidden chain."""
    claims = [c for e in tree["experiments"].values() for c in e["claims"]]
    claims.sort(key=lambda c: (int(re.sub(r"\D", "", c["number"])), c["number"]))
    lines = ["| | claim | direction | effect | paper | by reading | each by itself |", "|---|---|---|---|---|---|---|"]
    for c in claims:
        groups = "; ".join(f"{name.removesuffix(', pooled')} {value}" for name, value in c["groups"])
        cells = [c["number"], c["text"], f"**{c['verdict']}**", c["effect"], c["paper"], groups, c["cells"]]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, "", *_chain(tree)])


def _chain(tree: dict[str, Any]) -> list[str]:
    tables = tree["experiments"]["table2"]["tables"]
    found = next(t for t in tables if t["caption"].startswith("Hidden chain"))
    header = found["header"]
    lines = [f"| {' | '.join(header)} |", "|---" * len(header) + "|"]
    return [*lines, *(f"| {' | '.join(row)} |" for row in found["rows"])]


def text_of(results: Path) -> str:
    return table(json.loads(results.read_text("utf-8")))


if __name__ == "__main__":
    sys.exit(keep(__doc__, "results", "results/results.json", "docs/paper.md", text_of))
