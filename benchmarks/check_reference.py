"""Compare trials of ``mssvm reproduce`` with independent reference figures, cell by cell, in combined standard errors.

    python benchmarks/check_reference.py results [--reference FILE]

The reference is a Markdown file of tables (by default ../shared/REFERENCE.md beside the checkout). Where it gives no
standard error of its own for an accuracy, the one of the same reading's first row is taken (accuracies of one reading
vary together over draws). Exit code 0 if at least 95% of the cells are within 2.5 combined standard errors and none is
beyond 4.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import hypot
from pathlib import Path

from mssvm.experiments.collect import Trials
from mssvm.experiments.protocol import Protocol
from mssvm.experiments.statistics import Estimate
from mssvm.experiments.trials import Store

NEAR = 2.5
FAR = 4.0
SHARE = 0.95
NUMBER = re.compile(r"([-+]?(?:\d+\.?\d*|\.\d+))(?:\s*\+-\s*((?:\d+\.?\d*|\.\d+)))?")
TABLE3_SE = 0.85  # the file says "+- 0.7 to 1.0"


@dataclass(frozen=True)
class Cell:
    """A reference figure and the same quantity from our trials."""

    name: str
    mean: float
    se: float
    ours: Estimate

    @property
    def z(self) -> float:
        return (self.ours.mean - self.mean) / hypot(self.se, self.ours.se)


def numbers(text: str) -> list[tuple[float, float | None]]:
    """Every figure of a cell, with its standard error where one is given; one at the end holds for all before it."""
    found = [(float(m), float(e) if e else None) for m, e in NUMBER.findall(text)]
    last = found[-1][1] if found else None
    return [(m, last if e is None else e) for m, e in found]


def rows(text: str, heading: str) -> Iterator[list[str]]:
    """The cells of the Markdown table under a heading, without its two head lines."""
    part = text[text.index(heading) :]
    lines = [line for line in part.split("\n#", 1)[0].splitlines() if line.startswith("|")]
    for line in lines[2:]:
        yield [cell.strip() for cell in line.strip("|").split("|")]


def table2_chain(text: str, trials: Trials) -> Iterator[Cell]:
    reading = ""
    errors = [0.0] * 3
    for row in rows(text, "### Table 2, chain"):
        if row[0].startswith("paper"):
            continue
        values = [numbers(cell)[0] for cell in row[2:]]
        if row[0]:
            reading = row[0].split()[0]
            errors = [e or 0.0 for _, e in values[:3]]
            bayes = float(NUMBER.findall(row[0].split("Bayes")[1])[0][0])
            where = {"graph": "chain", "reading": reading}
            if trials.where(**where, solver=row[1]):
                ours = trials.estimate(lambda r: float(r["bayes"]), **where, solver=row[1])
                yield Cell(f"chain {reading} Bayes", bayes, errors[0], ours)
        filled = [(m, e or errors[k]) for k, (m, e) in enumerate(values)] if row[0] else _fill(values, errors)
        yield from _five(f"chain {reading} {row[1]}", filled, trials, graph="chain", reading=reading, solver=row[1])


def table2_grid(text: str, trials: Trials) -> Iterator[Cell]:
    for row in rows(text, "### Table 2, grid"):
        if row[0].startswith("paper"):
            continue
        cells = [numbers(cell) for cell in row[2:]]
        own = cells[0][-1][1] or 0.0
        for k, solver in enumerate(s.strip() for s in row[1].split("/")):
            values = [(c[k][0], c[k][1] or own) for c in cells]
            yield from _five(f"grid {row[0]} {solver}", values, trials, graph="grid", reading=row[0], solver=solver)


def cccp_for_lssvm(text: str, trials: Trials) -> Iterator[Cell]:
    """LSSVM by the paper's CCCP less LSSVM by SGD."""
    given = numbers(re.findall(r"L, CCCP minus SGD: (.*?) \(paper", text)[0])
    for reading, (mean, se) in zip(("A", "A2", "B"), given, strict=True):
        two = [
            trials.values(lambda r: float(r["L"]["accuracy"]), graph="chain", reading=reading, solver=solver)
            for solver in ("paper CCCP", "SGD")
        ]
        if len(two[0]) > 1 and len(two[0]) == len(two[1]):
            ours = Estimate.paired(two[0], two[1], trials.confidence)
            yield Cell(f"chain {reading} L, CCCP - SGD", mean, se or 0.0, ours)


def literal(text: str, trials: Trials) -> Iterator[Cell]:
    for variant, pattern in (
        ("zero start", r"Zero initial weights, SGD: M-L = (.*?):"),
        ("paper's steps", r"M stopped at 50 steps: M-L = (.*?)\. "),
    ):
        stated = re.findall(pattern, text)[0]
        for (mean, se), reading in zip(numbers(re.sub(r"\(.*?\)", "", stated)), ("A", "A2", "B"), strict=True):
            where = {"variant": variant, "reading": reading}
            if len(trials.where(**where)) > 1:
                yield Cell(f"chain {reading} {variant} M-L", mean, se or 0.0, trials.gap("M", "L", **where))


def table3(text: str, trials: Trials) -> Iterator[Cell]:
    reading = ""
    for row in rows(text, "### Table 3"):
        reading = row[0] or reading
        sigma_h = float(row[1])
        where = {"reading": reading, "sigma_h": sigma_h}
        if not trials.where(**where):
            continue
        values = [numbers(cell)[0] for cell in row[2:]]
        for member, (mean, _) in zip(("M", "L", "H", "M3E", "ModLat"), values[:5], strict=True):
            ours = trials.estimate(lambda r, m=member: float(r[m]["accuracy"]), **where)
            yield Cell(f"table3 {reading} {sigma_h:g} {member}", mean, TABLE3_SE, ours)
        for member, (mean, se) in zip(("L", "H", "M3E"), values[5:], strict=True):
            yield Cell(f"table3 {reading} {sigma_h:g} M-{member}", mean, se or 0.0, trials.gap("M", member, **where))


def figure3(text: str, trials: Trials) -> Iterator[Cell]:
    part = text[text.index("### Figure 3") :].split("\n#", 1)[0].split("\n", 1)[1]
    for reading, body in re.findall(r"(A2|B): (.*?)(?=\s(?:B):|$)", part, re.S):
        for size, pair in re.findall(r"(?:n=)?(\d+):? ([^;]+?)[;.]?(?=\s+\d+:|\s*$)", body.strip()):
            where = {"reading": reading, "scaling": "C", "solver": None, "size": int(size)}
            if trials.where(**where):
                for member, (mean, se) in zip(("L", "H"), numbers(pair), strict=False):
                    ours = trials.gap("M", member, **where)
                    yield Cell(f"figure3 {reading} n={size} {member}-M error", mean, se or 0.0, ours)


def _fill(values: list[tuple[float, float | None]], errors: list[float]) -> list[tuple[float, float]]:
    return [(m, e if e is not None else errors[min(k, 2)]) for k, (m, e) in enumerate(values)]


def _five(name: str, values: list[tuple[float, float]], trials: Trials, **where: str) -> Iterator[Cell]:
    """Accuracies of M, L, H and the differences M-L, M-H."""
    if len(trials.where(**where)) < 2:
        return
    for member, (mean, se) in zip(("M", "L", "H"), values[:3], strict=True):
        yield Cell(f"{name} {member}", mean, se, trials.estimate(lambda r, m=member: float(r[m]["accuracy"]), **where))
    for member, (mean, se) in zip(("L", "H"), values[3:], strict=True):
        yield Cell(f"{name} M-{member}", mean, se, trials.gap("M", member, **where))


CHECKS: dict[str, list[Callable[[str, Trials], Iterator[Cell]]]] = {
    "table2": [table2_chain, table2_grid, cccp_for_lssvm],
    "literal": [literal],
    "table3": [table3],
    "figure3": [figure3],
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path, help="folder with table2.jsonl and so on")
    default = Path(__file__).resolve().parents[2] / "shared" / "REFERENCE.md"
    parser.add_argument("--reference", type=Path, default=default)
    options = parser.parse_args()
    text = options.reference.read_text("utf-8")
    protocol = Protocol.load()
    cells = []
    for name, checks in CHECKS.items():
        store = Store(options.results / f"{name}.jsonl", lambda params, name=name: protocol.fingerprint(name, params))
        trials = Trials(store.read().values(), protocol.confidence)
        cells += [cell for check in checks for cell in check(text, trials)]
    for c in cells:
        flag = ""
        if abs(c.z) > FAR:
            flag = "  beyond 4"
        elif abs(c.z) > NEAR:
            flag = "  beyond 2.5"
        ours = f"{c.ours.show():>14} ({c.ours.n:3})"
        theirs = f"{c.mean:6.2f} ± {c.se:.2f}"
        print(f"{c.name:34} ours {ours}  reference {theirs}  z {c.z:+5.2f}{flag}")
    if not cells:
        print("no trials to compare")
        return 2
    near = sum(abs(c.z) <= NEAR for c in cells)
    worst = max(abs(c.z) for c in cells)
    print(
        f"{near} of {len(cells)} cells ({100 * near / len(cells):.1f}%) within {NEAR}; the farthest is {worst:.2f} away"
    )
    return 0 if near >= SHARE * len(cells) and worst <= FAR else 1


if __name__ == "__main__":
    sys.exit(main())
