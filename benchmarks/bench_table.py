"""Write the page's table of speed from what ``bench.py`` measured.

    python benchmarks/bench_table.py [--results benchmarks/results/bench.json] [--page docs/benchmarks.md] [--check]

Everything between the two marker lines of the page is replaced; without results, by the sentence that there are none.
With --check nothing is written, and the exit code says whether the page agrees with the results.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from pages import keep

NOTHING = "No measurements are kept at the moment; `make bench` makes them."


def compiled_by(machine: dict[str, Any]) -> str:
    """What the kernels of the measured version were compiled by."""
    return f"Numba {machine['numba']}" if "numba" in machine else f"NumPy {machine['numpy']}"


def number(value: float) -> str:
    """Three digits that count, without exponents."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def figures(entry: dict[str, Any]) -> str:
    """A contestant's figure by wall time, and by processor time where that is another one."""
    if "failed" in entry:
        return "not run"
    wall = number(entry["figure_wall"])
    cpu = number(entry["figure_cpu"])
    return wall if wall == cpu else f"{wall} ({cpu})"


def line(row: dict[str, Any]) -> str:
    """What, ours with the unit, the others, and what was wanted."""
    wanted = "; ".join(f"{w['text']}: {verdict(w)}" for w in row.get("wanted", ()))
    if "failed" in row:
        return f"| {row['what']} | failed: {row['failed']} | | {wanted} |"
    (first, ours), *others = row["contestants"].items()
    name = "" if first == "mssvm" else f"{first.removeprefix('mssvm, ')} "
    right = f", {100 * ours['answer']['accuracy']:.1f}% right" if len(row["contestants"]) == 1 and _scored(ours) else ""
    beside = "; ".join(f"{who} {figures(entry)}" for who, entry in others)
    return f"| {row['what']} | {name}{figures(ours)} {row['unit']}{right} | {beside} | {wanted} |"


def _scored(entry: dict[str, Any]) -> bool:
    return "accuracy" in entry["answer"]


def verdict(wanted: dict[str, Any]) -> str:
    if wanted["met"] is None:
        return "not compared"
    reached = "" if wanted["value"] is None else f" ({number(wanted['value'])})"
    return f"{'met' if wanted['met'] else '**not met**'}{reached}"


def table(tree: dict[str, Any]) -> str:
    """All rows, then the machine and the peers that did not run."""
    on = tree["machine"]
    lines = ["| what | mssvm | beside it | wanted |", "|---|---|---|---|"]
    lines += [line(row) for row in tree["rows"].values()]
    absent = "; ".join(f"{name} ({why})" for name, why in sorted(tree["peers_not_run"].items()))
    about = (
        "Best of several runs, contestants in turn, by wall time (by processor time in brackets where it differs), on "
        f"{on['cores']} cores of {on['processor']}, Python {on['python']}, {compiled_by(on)}. C is a loop written by "
        f"hand for that work alone (`benchmarks/limits`). Peers that were not run: {absent}."
    )
    return "\n".join([*lines, "", about])


def text_of(results: Path) -> str:
    if not results.is_file():
        return NOTHING
    tree = json.loads(results.read_text("utf-8"))
    if tree["quick"]:
        raise SystemExit(f"{results} comes from a quick run, whose times mean nothing.")
    return table(tree)


if __name__ == "__main__":
    sys.exit(keep(__doc__, "bench", "benchmarks/results/bench.json", "docs/benchmarks.md", text_of))
