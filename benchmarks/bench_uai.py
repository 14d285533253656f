"""Measure ``mssvm infer`` on the public UAI models: values against references, time, and peak memory of each command.

    python benchmarks/bench_uai.py exact                      every PR, MAR, MAP and MMAP by elimination
    python benchmarks/bench_uai.py bp --seeds 0 1 2           the marginal-MAP instances by propagation and search
    python benchmarks/bench_uai.py auto                       the marginal-MAP instances by whatever fits
    python benchmarks/bench_uai.py hard                       the hard marginal-MAP instances by auto, in JSON
    python benchmarks/bench_uai.py bounds                     mini-bucket (i = 12) and decomposition bounds, and gaps

The data folder is named by MSSVM_DATA (default ../shared/data). One command runs at a time.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mssvm.inference.bounds import Decomposition, MiniBucket
from mssvm.uai import UaiTask, read_evidence, read_model, read_query
from mssvm.uai.files import read_mar

DATA = Path(os.environ.get("MSSVM_DATA", Path(__file__).parents[2] / "shared" / "data"))
# Prints the answer, then the peak resident memory of the process in KiB on standard error.
WRAPPED = (
    "import resource, sys; from mssvm.core.stopping import leave, stop_at_once; stop_at_once(); "
    "from mssvm.cli import main; code = main(); "
    "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, file=sys.stderr); sys.exit(leave(code))"
)


@dataclass(frozen=True)
class Case:
    name: str
    model: Path
    evidence: Path | None
    query: Path | None
    reference: dict[str, float]

    @property
    def optimum(self) -> float:
        return self.reference.get("exact_lnMMAP", self.reference.get("ln_MMAP_exact_recomputed", float("nan")))


def cases(only: str = "") -> Iterator[Case]:
    for name, reference in json.loads((DATA / "uai_reference_values.json").read_text()).items():
        if only not in name:
            continue
        folder, _, stem = name.rpartition("/")
        place = {"": "uai2014", "MMAP": "uai2014_mmap", "dechterlab": "uai_mmap_dechterlab"}[folder]
        model = DATA / place / f"{stem}.uai"
        evidence = Path(f"{model}.evid")
        query = {"": None, "MMAP": Path(f"{model}.query")}.get(folder, model.with_suffix(".map"))
        yield Case(name, model, evidence if evidence.exists() else None, query, reference)


def ask(case: Case, task: str, *options: str) -> tuple[dict[str, object], float, float]:
    """The JSON answer, the wall-clock seconds of the whole command, and its peak memory in MiB."""
    command = [sys.executable, "-c", WRAPPED, "infer", str(case.model), "--task", task, "--json", *options]
    command += ["--evid", str(case.evidence)] if case.evidence else []
    command += ["--query", str(case.query)] if task == "MMAP" else []
    began = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True)
    seconds = time.perf_counter() - began
    if done.returncode:
        raise SystemExit(f"{case.name}: {done.stderr}")
    return json.loads(done.stdout), seconds, int(done.stderr.split()[-1]) / 1024


def run_exact(only: str) -> None:
    for case in cases(only):
        tasks = ["MMAP"] if case.query else ["PR", "MAR"] + ["MAP"] * (case.reference["ln_MPE_recomputed"] is not None)
        for task in tasks:
            answer, seconds, memory = ask(case, task, "--method", "exact")
            if task == "PR":
                error = answer["value_log10"] - case.reference["log10Z_recomputed"]
            elif task == "MAR":
                reference = np.concatenate(read_mar(f"{case.model}.MAR"))
                error = np.abs(np.concatenate(answer["marginals"]) - reference).max()
            else:
                error = answer["value_ln"] - (case.optimum if task == "MMAP" else case.reference["ln_MPE_recomputed"])
            print(f"{case.name:36s} {task:4s} error {error:+.1e}  {seconds:6.1f} s  {memory:6.0f} MiB", flush=True)


def run_search(method: str, seeds: list[int], time_limit: float, only: str) -> None:
    counts = []
    for seed in seeds:
        optimal = proven = 0
        for case in cases(only):
            if case.query is None:
                continue
            options = ("--method", method, "--time-limit", str(time_limit), "--seed", str(seed))
            answer, seconds, memory = ask(case, "MMAP", *options)
            error = answer["value_ln"] - case.optimum
            optimal += abs(error) < 1e-4
            proven += bool(answer["exact"])
            gap = answer["upper_bound_ln"] - case.optimum
            print(
                f"{case.name:36s} seed {seed} error {error:+.1e} bound {gap:+.1e} proven {answer['exact']!s:5s} "
                f"{answer['method']}, {answer['seconds']:.1f} s ({seconds:.1f} s in all), {memory:.0f} MiB",
                flush=True,
            )
        counts.append(optimal)
        print(f"{method} seed {seed}: {optimal} optimal, {proven} proven", flush=True)
    print(f"{method}: median {np.median(counts):g} optimal over seeds {seeds}")


def run_hard(seeds: list[int], time_limit: float, only: str) -> None:
    """Instances without references: what is found when, one line each, all of it as JSON at the end."""
    kept = []
    with tempfile.TemporaryDirectory() as folder:
        zipfile.ZipFile(DATA / "uai_mmap_hard.zip").extractall(folder)
        for model in sorted(m for m in Path(folder).glob("*.uai") if only in m.name):
            case = Case(model.stem, model, None, model.with_suffix(".map"), {})
            for seed in seeds:
                try:
                    answer, seconds, memory = ask(case, "MMAP", "--time-limit", str(time_limit), "--seed", str(seed))
                except SystemExit as error:
                    kept.append({"name": case.name, "seed": seed, "error": str(error)})
                    print(error, flush=True)
                    continue
                fields = ("value_log10", "lower_bound_ln", "upper_bound_ln", "exact", "method")
                row = {"name": case.name, "seed": seed, **{k: answer[k] for k in fields}, "wall_s": seconds}
                kept.append(row)
                print(f"{case.name:28s} {row['value_log10']:10.4f} {answer['method']}, exact {answer['exact']}, "
                      f"{seconds:.1f} s, {memory:.0f} MiB", flush=True)  # fmt: skip
    print(json.dumps({"time_limit": time_limit, "instances": kept}, indent=1))


def run_bounds(only: str) -> None:
    for case in cases(only):
        if case.query is None:
            continue
        model = read_model(case.model)
        evidence = read_evidence(case.evidence, model) if case.evidence else {}
        task = UaiTask.of("MMAP", model, evidence, read_query(case.query, model))
        line = f"{case.name:36s} optimum {case.optimum:11.5f}"
        for name, bound in (("mini-bucket", MiniBucket(ibound=12)), ("decomposition", Decomposition())):
            began = time.perf_counter()
            p = task.problem
            upper = float(bound(p.batch, p.theta, task.query, 0.0, 1.0)[0]) + p.constant
            line += f"  {name} {upper:11.5f} gap {upper - case.optimum:8.4f} ({time.perf_counter() - began:.1f} s)"
        print(line, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["exact", "bp", "auto", "bounds", "hard"])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--time-limit", type=float, default=20.0)
    parser.add_argument("--only", default="", help="instances whose name contains this")
    arguments = parser.parse_args()
    if arguments.what == "exact":
        run_exact(arguments.only)
    elif arguments.what == "hard":
        run_hard(arguments.seeds, arguments.time_limit, arguments.only)
    elif arguments.what == "bounds":
        run_bounds(arguments.only)
    else:
        run_search(arguments.what, arguments.seeds, arguments.time_limit, arguments.only)


if __name__ == "__main__":
    main()
