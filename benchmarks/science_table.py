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
    """Claims by reading with cells decided, accuracies on the hidden chain, and these from starts of other sizes."""
    claims = [c for e in tree["experiments"].values() for c in e["claims"]]
    claims.sort(key=lambda c: (int(re.sub(r"\D", "", c["number"])), c["number"]))
    lines = ["| | claim | by reading | paper | cells decided (Holm) |", "|---|---|---|---|---|"]
    for c in claims:
        groups = "; ".join(
            f"{name.removesuffix(', pooled')} {value} {_direction(value)}" for name, value in c["groups"]
        )
        paper = c["paper"].partition(" (")[0]
        lines.append(f"| {' | '.join([c['number'], c['text'], groups, paper, c['cells']])} |")
    return "\n".join([*lines, "", *_chain(tree), *_start(tree)])


def _direction(value: str) -> str:
    """Where an interval "mean [low, high]" lies, in bold where it leaves out 0."""
    inside = re.search(r"\[(\S+), (\S+)\]", value)
    if inside is None:
        return "undecided"
    low, high = map(float, inside.groups())
    if low <= 0 <= high:
        return "undecided"
    return "**as claimed**" if low > 0 else "**opposite**"


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
        f"trained to the end by L-BFGS {gap('LB', '1')}, whatever the start. So most of the gap is the optimiser. What "
        f"remains at C = 1 is not shown to be the model's: by an independent "
        f"computation (A2, L-BFGS, 60 trials, not kept here) the lead of +1.07 [+0.75, "
        f"+1.39] at C = 1 becomes +0.07 [-0.19, +0.32] when each member takes its best C. That the start matters was "
        f"first seen in an exploratory run; these trials came after."
    )
    rows = {(row[0], row[1]): row for row in tree["experiments"]["literal"]["tables"][0]["rows"]}
    names = tree["experiments"]["literal"]["tables"][0]["header"]
    gap_column = names.index("MSSVM - LSSVM")
    letter = ", ".join(f"{r} {rows[r, 'SGD to the letter'][gap_column]}" for r in ("A", "A2", "B"))
    trials = rows["B", "SGD to the letter"][names.index("trials")]
    zero = (
        f"**The printed start.** Algorithms 1 and 2 print w = 0. Run to the letter by SGD (zero start, the paper's "
        f"steps, propagation; {trials} trials), MSSVM - LSSVM is {letter}: hidden states that start equal stay "
        f"equal under MSSVM, while LSSVM's maximum breaks the tie. None of these is the printed +2.33."
    )
    lines = ["", quoted, "", zero]
    for table in tables[:2]:
        names = [*table["header"]]
        lines += ["", f"{table['caption']}:", "", f"| {' | '.join(names)} |", "|---" * len(names) + "|"]
        lines += [f"| {' | '.join(row)} |" for row in table["rows"]]
    return lines


def text_of(results: Path) -> str:
    return table(json.loads(results.read_text("utf-8")))


if __name__ == "__main__":
    sys.exit(keep(__doc__, "results", "results/results.json", "docs/paper.md", text_of))
