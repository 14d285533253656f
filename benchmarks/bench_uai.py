"""Measure ``mssvm infer`` on the public UAI models: values against references, time, and peak memory of each command.

    python benchmarks/bench_uai.py exact                      every PR, MAR, MAP and MMAP by elimination
    python benchmarks/bench_uai.py bp --seeds 0 1 2           the marginal-MAP instances by propagation and search
    python benchmarks/bench_uai.py auto                       the marginal-MAP instances by whatever fits
    python benchmarks/bench_uai.py known                      the same by auto, bp and, where it fits, exact, kept in
                                                              results/uai_known.json
    python benchmarks/bench_uai.py reference --time-limit 90 --seeds 0 1 2 3 --jobs 16
                                                              the best values known of the hard marginal-MAP instances,
                                                              kept in results/uai_reference.json, where they only rise
    python benchmarks/bench_uai.py hard --jobs 16             the hard instances by auto: what is known when, kept in
                                                              results/uai_hard.json, against the references
    python benchmarks/bench_uai.py threads                    the same with one and with two threads each, kept in
                                                              results/uai_hard_threads.json (or, with processor time,
                                                              uai_hard_threads_processor.json)
    python benchmarks/bench_uai.py planning                   planning models by auto, kept in results/uai_planning.json
    python benchmarks/bench_uai.py longer --time-limit 300 --jobs 16
                                                              the instances of hard and planning that their files do
                                                              not prove, kept in results/uai_hard_300.json (and
                                                              uai_planning_300.json, if any are left)
    python benchmarks/bench_uai.py sums                       PR and MAR by auto, within the usual memory and within
                                                              less and less, kept in results/uai_pr_mar.json
    python benchmarks/bench_uai.py raise                      better values and bounds of the kept files to
                                                              results/uai_reference.json
    python benchmarks/bench_uai.py figure                     results/uai_hard.png and uai_hard_300.png, drawn from
                                                              these, and the picture of one proof in
                                                              docs/marginal-map.md
    python benchmarks/bench_uai.py bounds                     mini-bucket (i = 12) and decomposition bounds, and gaps

The data folder is named by MSSVM_DATA (default ../shared/data). One command runs at a time, or --jobs of the hard ones,
a thread each. With --processor-time their limits and seconds are those of the processor, not of the wall.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mssvm.inference.bounds import FactorDecomposition, MiniBucket
from mssvm.uai import UaiTask, read_evidence, read_model, read_query
from mssvm.uai.files import read_mar

DATA = Path(os.environ.get("MSSVM_DATA", Path(__file__).parents[2] / "shared" / "data"))
RESULTS = Path(__file__).parent / "results"
LN10 = np.log(10.0)
DOCS = Path(__file__).parents[1] / "docs"
SHOWN_PROOF = "90-42-5.Q0.5.I1"
WARM_UP = 2.0
# Prints the answer, then the peak resident memory of the process in KiB on standard error.
WRAPPED = (
    "import resource, sys; from mssvm.core.stopping import leave, stop_at_once; stop_at_once(); "
    "from mssvm.cli import main; code = main(); "
    "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, file=sys.stderr); sys.exit(leave(code))"
)


# On a machine that others use, too: time limits and curves count the processor time of a command and its children.
PROCESSOR_CLOCK = (
    "import resource, time; usage = resource.getrusage; who = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN); "
    "time.monotonic = lambda: sum(sum(usage(w)[:2]) for w in who); "
)
# The same with several threads, as if each had a core: the processor time of the threads that are there without
# helpers, or an equal share of all processor time, whichever is more.
SHARED_PROCESSOR_CLOCK = """
import resource, threading, time
usage, who = resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
latest = [0.0]
def processor_time():
    own = [t.ident for t in threading.enumerate() if t.name in ("MainThread", "mssvm-command")]
    alone = sum(time.clock_gettime(time.pthread_getcpuclockid(i)) for i in own if i is not None)
    latest[0] = max(latest[0], alone, sum(sum(usage(w)[:2]) for w in who) / {threads})
    return latest[0]
time.monotonic = processor_time
"""


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


def ask(
    case: Case, task: str, *options: str, clock: str = "", threads: int = 1
) -> tuple[dict[str, object], float, float, list[dict[str, float]]]:
    """The JSON answer, the wall-clock seconds of the whole command, its peak memory in MiB, and its progress."""
    command = [sys.executable, "-c", clock + WRAPPED, "infer", str(case.model), "--task", task, "--json", *options]
    command += ["--jobs", str(threads)]
    command += ["--evid", str(case.evidence)] if case.evidence else []
    command += ["--query", str(case.query)] if task == "MMAP" else []
    began = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True)
    seconds = time.perf_counter() - began
    if done.returncode:
        raise SystemExit(f"{case.name}: {done.stderr}")
    told = [json.loads(line) for line in done.stderr.splitlines() if line.startswith("{")]
    return json.loads(done.stdout), seconds, int(done.stderr.split()[-1]) / 1024, told


def run_exact(only: str) -> None:
    for case in cases(only):
        tasks = ["MMAP"] if case.query else ["PR", "MAR"] + ["MAP"] * (case.reference["ln_MPE_recomputed"] is not None)
        for task in tasks:
            answer, seconds, memory, _ = ask(case, task, "--method", "exact")
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
            answer, seconds, memory, _ = ask(case, "MMAP", *options)
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


def run_known(time_limit: float, only: str) -> None:
    """The marginal-MAP instances with references by every method: errors, proofs, seconds of the whole command."""
    rows: list[dict[str, object]] = []
    for case in (c for c in cases(only) if c.query is not None):
        for method in ("auto", "bp", "exact"):
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            try:
                answer, seconds, memory, _ = ask(case, "MMAP", "--method", method, "--time-limit", str(time_limit))
            except SystemExit as error:
                rows.append({"name": case.name, "method": method, "refused": str(error).splitlines()[-1]})
                continue
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
            rows.append(
                {
                    "name": case.name,
                    "method": method,
                    "error": answer["value_ln"] - case.optimum,
                    "exact": answer["exact"],
                    "wall_s": round(seconds, 2),
                    "processor_s": round(used, 2),
                    "memory_mib": round(memory),
                }
            )
            print(rows[-1], flush=True)
    summary = {}
    for method in ("auto", "bp", "exact"):
        of = [r for r in rows if r["method"] == method]
        ran = [r for r in of if "error" in r]
        summary[method] = {
            "rows": len(of),
            "ran": len(ran),
            "optimal": sum(abs(r["error"]) < 1e-4 for r in ran),
            "proven": sum(bool(r["exact"]) for r in ran),
            "slowest_s": max(r["wall_s"] for r in ran),
            "most_processor_s": max(r["processor_s"] for r in ran),
        }
    print(json.dumps(summary))
    (RESULTS / "uai_known.json").write_text(json.dumps({"summary": summary, "instances": rows}, indent=1) + "\n")


# GiB of the runs of ``run_sums``; the first is the default.
SUM_MEMORIES = (4.0, 0.01, 0.001)
# References are printed with six digits.
SIX_DIGITS = 5e-6


def run_sums(time_limit: float, only: str, jobs: int, clock: str) -> None:
    """PR and MAR of the models of 2014 in several memories, and of the hard models that are no networks by themselves.

    The others of these are Bayesian networks without evidence, whose sum is one.
    """

    def run(job: tuple[Case, float, str]) -> dict[str, object]:
        case, memory, task = job
        options = ("--time-limit", str(time_limit), "--memory-limit", str(memory), "--progress")
        answer, seconds, used, told = ask(case, task, *options, clock=clock)
        found = {**sum_row(case, task, memory, answer, told), "wall_s": round(seconds, 2), "memory_mib": round(used)}
        print(found, flush=True)
        return found

    with hard_cases(only) as hard, ThreadPoolExecutor(jobs) as pool:
        models = [c for c in cases(only) if c.query is None]
        runs = [(case, memory) for memory in SUM_MEMORIES for case in models]
        runs += [(case, SUM_MEMORIES[0]) for case in hard if case.name.startswith(("pedigree", "or_chain"))]
        rows = list(pool.map(run, [(*pair, task) for pair in runs for task in ("PR", "MAR")]))
    machine = {"time_limit": time_limit, "clock": "processor" if clock else "wall", "jobs": jobs}
    summary = {**machine, **summarised_sums(rows)}
    print(json.dumps(summary))
    (RESULTS / "uai_pr_mar.json").write_text(json.dumps({"summary": summary, "instances": rows}, indent=1) + "\n")


def sum_row(
    case: Case, task: str, memory: float, answer: dict[str, object], told: list[dict[str, float]]
) -> dict[str, object]:
    """Bounds, all in log10, beside the reference; bounds of marginals beside the exact ones where these are known."""
    lower, upper = (answer[k] and float(answer[k] / LN10) for k in ("lower_bound_ln", "upper_bound_ln"))
    low = [t["lower_bound_ln"] for t in told if t["lower_bound_ln"] is not None]
    high = [t["upper_bound_ln"] for t in told if t["upper_bound_ln"] is not None]
    row = {
        "name": case.name,
        "task": task,
        "memory_gib": memory,
        "value": answer["value_log10"],
        "exact": answer["exact"],
        "method": answer["method"],
        "lower": lower,
        "upper": upper,
        "seconds": round(answer["seconds"], 2),
        "bounds_monotone": bool((np.diff(low) >= -1e-9).all() and (np.diff(high) <= 1e-9).all()),
    }
    if "log10Z_recomputed" in case.reference:
        reference = case.reference["log10Z_recomputed"]
        row["reference"] = reference
        row["error"] = answer["value_log10"] - reference
        row["encloses"] = bool(lower - SIX_DIGITS <= reference <= upper + SIX_DIGITS)
    if task == "MAR":
        found = np.concatenate(answer["marginals"])
        bounded = answer["marginals_lower"] is not None
        least = np.concatenate(answer["marginals_lower"]) if bounded else np.zeros(len(found))
        most = np.concatenate(answer["marginals_upper"]) if bounded else np.ones(len(found))
        row["mean_width"] = float((most - least).mean())
        if "log10Z_recomputed" in case.reference:
            known = np.concatenate(read_mar(f"{case.model}.MAR"))
            row["largest_error"] = float(np.abs(found - known).max())
            row["marginals_enclosed"] = bool(((least <= known + SIX_DIGITS) & (known <= most + SIX_DIGITS)).all())
    return row


def summarised_sums(rows: list[dict[str, object]]) -> dict[str, object]:
    """Counts by memory over the models with references, and over the hard ones."""
    known = [r for r in rows if "reference" in r]
    groups = {f"{memory} GiB": [r for r in known if r["memory_gib"] == memory] for memory in SUM_MEMORIES}
    groups["hard"] = [r for r in rows if "reference" not in r]
    summary: dict[str, object] = {}
    for name, of in groups.items():
        if not of:
            continue
        exact = [r for r in of if r["exact"]]
        summary[name] = {
            "rows": len(of),
            "exact": len(exact),
            "exact_by_conditioning": sum(r["method"] == "conditioning" for r in exact),
            "exact_and_equal": sum(abs(r.get("error", 1.0)) < SIX_DIGITS for r in exact),
            "bounded": sum(r["lower"] is not None and r["upper"] is not None for r in of),
            "enclosed": sum(r.get("encloses", False) for r in of),
            "marginals_enclosed": sum(r.get("marginals_enclosed", False) for r in of),
            "bounds_monotone": sum(r["bounds_monotone"] for r in of),
            "slowest_s": max(r["seconds"] for r in of),
        }
    return summary


# A case, a seed, a method, a time limit, the clock that it counts by ("": the wall's), and a number of threads.
Job = tuple[Case, int, str, float, str, int]


@contextmanager
def hard_cases(only: str, archive: str = "uai_mmap_hard.zip") -> Iterator[list[Case]]:
    """The instances without references of their own."""
    with tempfile.TemporaryDirectory() as folder:
        zipfile.ZipFile(DATA / archive).extractall(folder)
        models = sorted(m for m in Path(folder).glob("*.uai") if only in m.name)
        yield [Case(m.stem, m, None, m.with_suffix(".map"), {}) for m in models]


def row(job: Job) -> dict[str, object]:
    """What a run knows, and when it knew it: seconds and the two bounds, in log10 as all values here."""
    case, seed, method = job[:3]
    limit, clock, threads = job[3:]
    options = ("--method", method, "--time-limit", str(limit), "--seed", str(seed), "--progress")
    try:
        answer, seconds, memory, told = ask(case, "MMAP", *options, clock=clock, threads=threads)
    except SystemExit as error:
        return {"name": case.name, "seed": seed, "method": method, "threads": threads, "error": str(error)}
    bounds = ("lower_bound_ln", "upper_bound_ln")
    curve = [[round(t["seconds"], 2), *(t[k] and round(t[k] / LN10, 5) for k in bounds)] for t in told]
    curve.append([round(answer["seconds"], 2), *(answer[k] and round(answer[k] / LN10, 5) for k in bounds)])
    found = {
        "value": round(answer["value_log10"], 5),
        "exact": answer["exact"],
        "wall_s": round(seconds, 2),
        "memory_mib": round(memory),
    }
    print(f"{case.name:28s} {method} {seed} {threads} {found} upper {curve[-1][2]}", flush=True)
    return {"name": case.name, "seed": seed, "method": method, "threads": threads, **found, "curve": curve}


def run_jobs(jobs: list[Job], at_once: int) -> Iterator[dict[str, object]]:
    """All of them, so many at a time, with one thread each; one before, so that everything is compiled."""
    if not jobs:
        return
    os.environ.update({f"{name}_NUM_THREADS": "1" for name in ("OMP", "OPENBLAS", "MKL", "NUMBA")})
    row((*jobs[0][:2], "bp", WARM_UP, "", 1))
    with ThreadPoolExecutor(at_once) as pool:
        yield from pool.map(row, jobs)


def run_reference(seeds: list[int], time_limit: float, only: str, jobs: int) -> None:
    """The best value of each hard instance by any method and seed, or in the file already.

    The file is written after every run: what was run before, for as long, is not run again.
    """
    path = RESULTS / "uai_reference.json"
    kept = json.loads(path.read_text()) if path.exists() else {"runs": [], "instances": {}}
    best = kept["instances"]
    done = kept.setdefault("done", {})
    with hard_cases(only) as cases_:
        # Elimination alone does not fit, and auto then is bp; the bound's own search has the same parts.
        wanted = [(case, seed, "bp", time_limit, "", 1) for seed in seeds for case in cases_]
        wanted = [job for job in wanted if done.get(f"{job[0].name} {job[1]}", 0.0) < time_limit]
        for r in run_jobs(wanted, jobs):
            if "value" not in r:
                continue
            old = best.get(r["name"], {"value": r["value"], "upper": None})
            uppers = [x for x in (old["upper"], r["curve"][-1][2]) if x is not None]
            best[r["name"]] = {"value": max(old["value"], r["value"]), "upper": min(uppers, default=None)}
            assert not uppers or best[r["name"]]["value"] <= min(uppers) + 1e-4, f"{r['name']}: a bound is no bound"
            done[f"{r['name']} {r['seed']}"] = time_limit
            path.write_text(json.dumps(kept, indent=1, sort_keys=True) + "\n")
    kept["runs"].append({"methods": ["bp"], "seeds": seeds, "seconds": time_limit, "only": only})
    path.write_text(json.dumps(kept, indent=1, sort_keys=True) + "\n")


def run_hard(seeds: list[int], time_limit: float, only: str, jobs: int, clock: str) -> None:
    """The hard instances by auto, with what is known when, and how it compares with the references."""
    with hard_cases(only) as cases_:
        rows = list(run_jobs([(case, seed, "auto", time_limit, clock, 1) for seed in seeds for case in cases_], jobs))
    reference = json.loads((RESULTS / "uai_reference.json").read_text())["instances"]
    found = [r for r in rows if "value" in r]
    summary = {
        **summarised(rows, time_limit, jobs, clock),
        "equal_to_reference": sum(r["value"] >= reference[r["name"]]["value"] - 0.05 for r in found),
    }
    print(json.dumps(summary))
    (RESULTS / "uai_hard.json").write_text(json.dumps({"summary": summary, "instances": rows}, indent=1) + "\n")


def run_threads(threads: list[int], time_limit: float, only: str, processor_time: bool) -> None:
    """The hard instances by auto with several numbers of threads, one command at a time, instance by instance."""
    clocks = {n: SHARED_PROCESSOR_CLOCK.format(threads=n) if processor_time else "" for n in threads}
    with hard_cases(only) as cases_:
        jobs = [(case, 0, "auto", time_limit, clocks[n], n) for case in cases_ for n in threads]
        rows = list(run_jobs(jobs, 1))
    reference = json.loads((RESULTS / "uai_reference.json").read_text())["instances"]
    summaries = []
    for n in threads:
        mine = [r for r in rows if r["threads"] == n]
        values = [(r["value"], reference[r["name"]]["value"]) for r in mine if "value" in r]
        summary = {"threads": n, **summarised(mine, time_limit, 1, clocks[n])}
        summary["equal_to_reference"] = sum(value >= best - 0.05 for value, best in values)
        summaries.append(summary)
        print(json.dumps(summary))
    name = "uai_hard_threads_processor.json" if processor_time else "uai_hard_threads.json"
    (RESULTS / name).write_text(json.dumps({"summaries": summaries, "instances": rows}, indent=1) + "\n")


def run_planning(seeds: list[int], time_limit: float, only: str, jobs: int, clock: str) -> None:
    """The planning models by auto; they have no references."""
    with hard_cases(only, "uai_mmap_planning.zip") as cases_:
        rows = list(run_jobs([(case, seed, "auto", time_limit, clock, 1) for seed in seeds for case in cases_], jobs))
    summary = summarised(rows, time_limit, jobs, clock)
    print(json.dumps(summary))
    (RESULTS / "uai_planning.json").write_text(json.dumps({"summary": summary, "instances": rows}, indent=1) + "\n")


def run_longer(time_limit: float, only: str, jobs: int, clock: str) -> None:
    """The instances of hard and planning that are not proven in their kept files, all side by side, for longer."""
    kinds = {"hard": "uai_mmap_hard.zip", "planning": "uai_mmap_planning.zip"}
    kept = {kind: json.loads((RESULTS / f"uai_{kind}.json").read_text()) for kind in kinds}
    open_names = {kind: {r["name"] for r in of["instances"] if not r.get("exact")} for kind, of in kept.items()}
    with hard_cases(only, kinds["hard"]) as hard, hard_cases(only, kinds["planning"]) as planning:
        wanted = [c for c in (*hard, *planning) if any(c.name in names for names in open_names.values())]
        rows = list(run_jobs([(case, 0, "auto", time_limit, clock, 1) for case in wanted], jobs))
    reference = json.loads((RESULTS / "uai_reference.json").read_text())["instances"]
    for kind, of in kept.items():
        mine = [r for r in rows if r["name"] in open_names[kind]]
        if not mine:
            continue
        summary = {
            **summarised(mine, time_limit, jobs, clock),
            "proven_before": sum(bool(r.get("exact")) for r in of["instances"]),
            "time_limit_before": of["summary"]["time_limit"],
        }
        if kind == "hard":
            values = [(r["value"], reference[r["name"]]["value"]) for r in mine if "value" in r]
            summary["equal_to_reference"] = sum(value >= best - 0.05 for value, best in values)
        print(json.dumps(summary))
        file = RESULTS / f"uai_{kind}_{time_limit:g}.json"
        file.write_text(json.dumps({"summary": summary, "instances": mine}, indent=1) + "\n")


def summarised(rows: list[dict[str, object]], time_limit: float, jobs: int, clock: str) -> dict[str, object]:
    """Counts over all runs, and the mean of upper bound minus value, in log10."""
    found = [r for r in rows if "value" in r]
    last = [r["curve"][-1] for r in found]
    gaps = [upper - lower for _, lower, upper in last if lower is not None]
    return {
        "time_limit": time_limit,
        "clock": "processor" if clock else "wall",
        "jobs": jobs,
        "rows": len(rows),
        "positive": len(found),
        "positive_in_2s": sum(r["curve"][0][0] <= 2.0 for r in found),
        "proven": sum(bool(r["exact"]) for r in found),
        "mean_gap": round(float(np.mean(gaps)), 4),
        "limit_kept_to_a_second": sum(seconds <= time_limit + 1.0 for seconds, _, _ in last),
        "slowest_s": max(seconds for seconds, _, _ in last),
    }


def run_raise() -> None:
    """Better values and lower bounds of the kept files of hard become the references, which only ever improve."""
    path = RESULTS / "uai_reference.json"
    references = json.loads(path.read_text())
    for name in ("uai_hard.json", "uai_hard_300.json"):
        for r in json.loads((RESULTS / name).read_text())["instances"]:
            best = references["instances"][r["name"]]
            best["value"] = max(best["value"], r["value"])
            best["upper"] = min(best["upper"], r["curve"][-1][2])
            assert best["value"] <= best["upper"] + 1e-4, f"{r['name']}: a bound is no bound"
    path.write_text(json.dumps(references, indent=1, sort_keys=True) + "\n")


def run_figure() -> None:
    """Both bounds of every hard instance against time, with the reference."""
    import matplotlib

    matplotlib.use("Agg")
    kept = json.loads((RESULTS / "uai_hard.json").read_text())
    rows = [r for r in kept["instances"] if "curve" in r]
    draw_curves(rows, "uai_hard.png")
    draw_proof(rows, kept["summary"]["clock"])
    draw_curves(json.loads((RESULTS / "uai_hard_300.json").read_text())["instances"], "uai_hard_300.png")


def draw_curves(rows: list[dict[str, object]], name: str) -> None:
    """One panel for every instance."""
    from matplotlib import pyplot

    reference = json.loads((RESULTS / "uai_reference.json").read_text())["instances"]
    figure, axes = pyplot.subplots(-(-len(rows) // 4), 4, figsize=(14, 2.3 * -(-len(rows) // 4)), layout="constrained")
    for axis, r in zip(axes.flat, rows, strict=False):
        seconds, *bounds = (np.array(x, dtype=float) for x in zip(*r["curve"], strict=True))
        for values, label in zip(bounds, ("best found", "upper bound"), strict=True):
            axis.step(seconds, values, where="post", label=label)
        best = reference[r["name"]]["value"]
        axis.axhline(best, color="grey", lw=0.7, ls="--", label="reference")
        last = 1.05 * max(r["curve"][-1][0] for r in rows)
        axis.set(title=r["name"] + (" (proven)" if r["exact"] else ""), xscale="log", xlim=(0.3, last))
        low = best - 3.0
        high = max(np.nanmin(bounds[1]), best) + 3.0
        axis.set_ylim(min(low, r["value"] - 0.5), high)
        axis.title.set_fontsize(9)
    for axis in axes.flat[len(rows) :]:
        axis.set_axis_off()
    axes.flat[0].legend(fontsize=7)
    figure.supxlabel("seconds")
    figure.supylabel("log10 of the probability")
    figure.savefig(RESULTS / name, dpi=80)


def draw_proof(rows: list[dict[str, object]], clock: str) -> None:
    """One proof closing, as docs/marginal-map.md shows it."""
    from matplotlib import pyplot

    (r,) = [r for r in rows if r["name"] == SHOWN_PROOF]
    seconds, lower, upper = (np.array(x, dtype=float) for x in zip(*r["curve"], strict=True))
    figure, axis = pyplot.subplots(figsize=(7, 3.2), layout="constrained")
    axis.step(seconds, upper, where="post", label="upper bound")
    axis.step(seconds, lower, where="post", label="best outputs found")
    axis.set(
        title=f"{r['name']}: proven after {seconds[-1]:.0f} s", xlabel="seconds", ylabel="log10 of the probability"
    )
    axis.set(xlim=(0.0, seconds[-1] * 1.03), ylim=(r["value"] - 1.0, r["value"] + 3.0))
    axis.legend(frameon=False)
    figure.savefig(DOCS / "_static" / "proof.png", dpi=110)


def run_bounds(only: str) -> None:
    for case in cases(only):
        if case.query is None:
            continue
        model = read_model(case.model)
        evidence = read_evidence(case.evidence, model) if case.evidence else {}
        task = UaiTask.of("MMAP", model, evidence, read_query(case.query, model))
        line = f"{case.name:36s} optimum {case.optimum:11.5f}"
        for name, bound in (("mini-bucket", MiniBucket(ibound=12)), ("decomposition", FactorDecomposition())):
            began = time.perf_counter()
            p = task.problem
            upper = float(bound(p.batch, p.theta, task.query, 0.0, 1.0)[0]) + p.constant
            line += f"  {name} {upper:11.5f} gap {upper - case.optimum:8.4f} ({time.perf_counter() - began:.1f} s)"
        print(line, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "what",
        choices=[
            "exact",
            "bp",
            "auto",
            "bounds",
            "known",
            "reference",
            "hard",
            "planning",
            "threads",
            "longer",
            "sums",
            "raise",
            "figure",
        ],
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--time-limit", type=float, default=20.0)
    parser.add_argument("--jobs", type=int, default=1, help="commands at a time, of reference and hard")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2], help="numbers of threads, of threads")
    parser.add_argument("--only", default="", help="instances whose name contains this")
    parser.add_argument("--processor-time", action="store_true", help="limits of hard and planning in processor time")
    arguments = parser.parse_args()
    clock = PROCESSOR_CLOCK if arguments.processor_time else ""
    if arguments.what == "exact":
        run_exact(arguments.only)
    elif arguments.what == "known":
        run_known(arguments.time_limit, arguments.only)
    elif arguments.what == "hard":
        run_hard(arguments.seeds, arguments.time_limit, arguments.only, arguments.jobs, clock)
    elif arguments.what == "threads":
        run_threads(arguments.threads, arguments.time_limit, arguments.only, arguments.processor_time)
    elif arguments.what == "sums":
        run_sums(arguments.time_limit, arguments.only, arguments.jobs, clock)
    elif arguments.what == "longer":
        run_longer(arguments.time_limit, arguments.only, arguments.jobs, clock)
    elif arguments.what == "planning":
        run_planning(arguments.seeds, arguments.time_limit, arguments.only, arguments.jobs, clock)
    elif arguments.what == "reference":
        run_reference(arguments.seeds, arguments.time_limit, arguments.only, arguments.jobs)
    elif arguments.what == "raise":
        run_raise()
    elif arguments.what == "figure":
        run_figure()
    elif arguments.what == "bounds":
        run_bounds(arguments.only)
    else:
        run_search(arguments.what, arguments.seeds, arguments.time_limit, arguments.only)


if __name__ == "__main__":
    main()
