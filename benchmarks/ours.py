"""Our side of every row, as a user calls it. Each function prepares with ``quick`` or full sizes and gives back the run
that is timed."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import c_loops
import numpy as np
import workloads as w
from environments import Unavailable
from measuring import Here, Outcome, clocked, command

import mssvm as ms
from mssvm.core.potentials import Potentials, Query
from mssvm.core.topology import Batch, Topology

Array = np.ndarray[Any, Any]
Run = Callable[[], Outcome]
PACKAGE = Path(ms.__file__).resolve().parent


class Ticks:
    """A callback of ``fit`` that notes the times of its iterations; most of them are one evaluation."""

    def __init__(self) -> None:
        self.times: list[tuple[float, float]] = []

    def __call__(self, row: Any, weights: Any) -> None:
        self.times.append((time.perf_counter(), time.process_time()))

    def outcome(self, **answer: Any) -> Outcome:
        wall, cpu = np.median(np.diff(self.times, axis=0), axis=0)
        return Outcome(answer, 1.0, float(wall), float(cpu))


def accuracy(given: Any, truth: Any) -> float:
    right = [np.asarray(a) == np.asarray(b) for a, b in zip(given, truth, strict=True)]
    return float(np.concatenate([r.ravel() for r in right]).mean())


def blanked(y: Array, seen: Array) -> Any:
    """Labels with ``MISSING`` where they are not seen, nested like y."""
    if y.ndim == 1:
        return [int(v) if s else ms.MISSING for v, s in zip(y, seen, strict=True)]
    return [blanked(row, some) for row, some in zip(y, seen, strict=True)]


# ------------------------------------------------------------------------------------------------------- chains


def _tagged(quick: bool, workload: str = "tagged") -> tuple[Any, Any, Any, Any]:
    X, y = w.tagged_texts(workload, quick)
    cut = len(X) * 4 // 5
    return X[:cut], y[:cut], X[cut:], y[cut:]


def tagged_fit(quick: bool) -> Run:
    """crfsuite minimises -log-likelihood + |w|^2, which is twice our objective at C = 1/2."""
    X, y, _, _ = _tagged(quick)

    def run() -> Outcome:
        model = ms.CRF(ms.Chain(), C=0.5, max_iter=50, tol=1e-12).fit(X, y)
        return Outcome({"objective": 2 * model.objective_, "iterations": model.n_iter_})

    return run


def tagged_predict(workload: str) -> Here:
    def make(quick: bool) -> Run:
        X, y, X_test, y_test = _tagged(quick, workload)
        model = ms.CRF(ms.Chain(), C=0.5, max_iter=50, tol=1e-12, decode="map").fit(X, y)  # as crfsuite decodes

        def run() -> Outcome:
            found, wall, cpu = clocked(lambda: model.predict(X_test))
            return Outcome({"accuracy": accuracy(found, y_test)}, 1.0, wall, cpu)

        return run

    return Here(make)


@cache
def _dense(quick: bool) -> tuple[list[Array], Any, Array]:
    x, y, seen = w.dense_chains(**w.sizes("dense", quick))
    return list(x), blanked(y, seen), y


def _judged(model: Any, quick: bool) -> float:
    X, _, y = _dense(quick)
    some = slice(0, 200)
    return accuracy(model.predict(X[some]), y[some])


def iteration(member: str, hidden: int, direct: bool = False, **settings: Any) -> Here:
    """An iteration of training on dense chains with missing labels, which may have edges of their own."""

    def make(quick: bool) -> Run:
        X, y, _ = _dense(quick)

        def run() -> Outcome:
            ticks = Ticks()
            chain = ms.Chain(hidden=hidden, direct=direct)
            made = getattr(ms, member)(chain, random_state=0, **{"max_iter": 10, **settings})
            model = made.fit(X, y, callback=ticks)
            return ticks.outcome(accuracy=_judged(model, quick))

        return run

    return Here(make)


def whole_fit(member: str, hidden: int) -> Here:
    """Training on dense chains with missing labels, defaults."""

    def make(quick: bool) -> Run:
        X, y, _ = _dense(quick)

        def run() -> Outcome:
            model = getattr(ms, member)(ms.Chain(hidden=hidden), random_state=0)
            _, wall, cpu = clocked(lambda: model.fit(X, y))
            return Outcome({"accuracy": _judged(model, quick), "iterations": model.n_iter_}, 1.0, wall, cpu)

        return run

    return Here(make)


def sequence_iteration(states: int) -> Here:
    """An iteration out of 100: by then both sides fit the training labels alike, whatever their line searches."""

    def make(quick: bool) -> Run:
        x, y = w.hidden_sequences(**w.sizes("sequences", quick))
        cut = len(x) * 3 // 4
        X = list(x[:cut])
        labels = y[:cut].tolist()

        def run() -> Outcome:
            ticks = Ticks()
            made = ms.HCRF(ms.SequenceLabel(hidden=states), C=0.5, max_iter=100, tol=1e-12, random_state=3)
            model = made.fit(X, labels, callback=ticks)
            return ticks.outcome(accuracy=float(np.mean(model.predict(X) == np.array(labels))))

        return run

    return Here(make)


def latent_fit(quick: bool) -> Run:
    """A latent SSVM on small chains, each label over a hidden variable, the hidden ones in a chain."""
    x, y, _ = w.dense_chains(**w.sizes("latent", quick), missing=0.0)
    X = list(x)
    labels = [row.tolist() for row in y]

    def run() -> Outcome:
        model = ms.LSSVM(ms.Chain(hidden=4, linked=True), random_state=0)
        _, wall, cpu = clocked(lambda: model.fit(X, labels))
        return Outcome({"accuracy": model.score(X, labels)}, 1.0, wall, cpu)

    return run


def many_labels(quick: bool) -> Run:
    size = w.sizes("many_labels", quick)
    x, y, _ = w.dense_chains(**size, missing=0.0)
    X = list(x)
    labels = [row.tolist() for row in y]

    def run() -> Outcome:
        model = ms.CRF(ms.Chain(), classes=range(size["labels"]), max_iter=5).fit(X, labels)
        at_zero = y.size * np.log(size["labels"])  # the objective at weights 0
        return Outcome({"objective": model.objective_, "descent": 1.0 - model.objective_ / at_zero})

    return run


# ------------------------------------------------------------------------------------------------------- inference


def hidden_chain_batch(kind: str, n: int, length: int, labels: int, hidden: int) -> Batch:
    """Labels first, then hidden variables: linked as ``Chain(hidden=...)`` does it, or one leaf a label."""
    at = range(length)
    if kind == "links":
        scopes = [(t, length + t) for t in at[:-1]] + [(length + t, t + 1) for t in at[:-1]]
        tables = [0] * (length - 1) + [1] * (length - 1)
    else:
        scopes = [(t, t + 1) for t in at[:-1]] + [(t, length + t) for t in at]
        tables = [0] * (length - 1) + [1] * length
    cards = (labels,) * length + (hidden,) * (length - (kind == "links"))
    return Batch.build([Topology(cards, tuple(scopes))] * n, [tables] * n)


def hidden_chain_problem(kind: str, scores: dict[str, Array]) -> tuple[Batch, Potentials, Query]:
    n, length, labels = scores["u"].shape
    batch = hidden_chain_batch(kind, n, length, labels, scores["v"].shape[2])
    v = scores["v"][:, : length - 1] if kind == "links" else scores["v"]
    unary = np.concatenate([scores["u"].reshape(n, -1), v.reshape(n, -1)], axis=1)
    tables = [scores[name].ravel() for name in (("left", "right") if kind == "links" else ("table", "leaf"))]
    outputs = np.zeros((n, batch.n_vars // n), dtype=bool)
    outputs[:, :length] = True
    return batch, Potentials(unary.ravel(), np.concatenate(tables)), Query.of(batch, outputs.ravel())


def hidden_pass(kind: str, eps_y: float, eps_h: float = 1.0) -> Here:
    def make(quick: bool) -> Run:
        scores = w.hidden_chain_scores(**w.sizes("hidden_chains", quick))
        batch, theta, query = hidden_chain_problem(kind, scores)
        bound = ms.inference.Exact().plan(batch).bind(query, eps_y, eps_h)
        sites = scores["u"].shape[0] * scores["u"].shape[1]

        def run() -> Outcome:
            belief, *times = clocked(lambda: bound(theta))
            answer = {"value": float(belief.value.sum()), "squares": float((belief.mu.unary**2).sum())}
            return Outcome(answer, sites, *times)

        return run

    return Here(make)


def hidden_limit(kind: str, eps_y: float) -> Here:
    def make(quick: bool) -> Run:
        scores = w.hidden_chain_scores(**w.sizes("hidden_chains", quick))
        loop = _built(c_loops.HiddenChains, kind, eps_y, scores)
        sites = scores["u"].shape[0] * scores["u"].shape[1]

        def run() -> Outcome:
            _, *times = clocked(loop)
            labels = float(loop.labels.size) if eps_y == 0 else float((loop.labels**2).sum())
            answer = {"value": float(loop.value.sum()), "squares": labels + float((loop.hidden**2).sum())}
            return Outcome(answer, sites, *times)

        return run

    return Here(make)


def chain_pass(eps: float) -> Here:
    """A pass over chains without hidden variables, 10 labels, at one temperature."""

    def make(quick: bool) -> Run:
        scores = w.hidden_chain_scores(**w.sizes("hidden_chains", quick))
        n, length, labels = scores["u"].shape
        graph = Topology((labels,) * length, tuple((t, t + 1) for t in range(length - 1)))
        batch = Batch.build([graph] * n, [[0] * (length - 1)] * n)
        theta = Potentials(scores["u"].ravel(), scores["table"].ravel())
        bound = ms.inference.Exact().plan(batch).bind(Query.all_outputs(batch), eps, eps)
        return lambda: Outcome({"value": float(bound(theta).value.sum())}, n * length)

    return Here(make)


def _built(loop: Any, *arguments: Any) -> Any:
    try:
        return loop(*arguments)
    except c_loops.NoCompilerError as error:
        raise Unavailable(str(error)) from None


def grid_batch(height: int, width: int, states: int, count: int, tied: bool) -> Batch:
    """Grids that share their tables: one a direction, or one an edge."""
    edges = w.grid_edges(height, width)
    graph = Topology((states,) * (height * width), tuple(map(tuple, edges.tolist())))
    across = height * (width - 1)
    tables = (np.arange(len(edges)) >= across).astype(np.int64) if tied else np.arange(len(edges))
    return Batch.build([graph] * count, [tables] * count)


def propagation(eps: float, sweeps: int) -> Any:
    """Exactly so many sweeps after a short warm-up, from one start and without a search."""
    starts = ("cold",) if eps == 0 else ()
    return ms.inference.Propagate("fast", starts=starts, max_sweeps=sweeps, tolerance=0.0)


def grid_messages(workload: str, count: int, sweeps: int, eps: float) -> Here:
    def make(quick: bool) -> Run:
        size = w.sizes(workload, quick)
        edges, unary, tables = w.grid_scores(**size, count=count)
        batch = grid_batch(**size, count=count, tied=False)
        theta = Potentials(unary.ravel(), tables.ravel())
        nodes = unary[0].size
        bound = propagation(eps, sweeps).plan(batch).bind(Query.all_outputs(batch), eps, eps)

        def run() -> Outcome:
            belief, wall, cpu = clocked(lambda: bound(theta))
            states = belief.decode(batch)[: unary.shape[1]]
            answer = {"marginals": belief.mu.unary[:nodes].tolist(), "states": states.tolist()}
            return Outcome(answer, 2.0 * len(edges) * int(belief.status.sweeps.sum()), wall, cpu)

        return run

    return Here(make)


def tied_messages(quick: bool) -> Run:
    size = w.sizes("side_by_side", quick)
    unary, tables = w.tied_grid_scores(**size)
    batch = grid_batch(size["height"], size["width"], unary.shape[2], size["count"], tied=True)
    theta = Potentials(unary.ravel(), tables.ravel())
    bound = propagation(1.0, 50).plan(batch).bind(Query.all_outputs(batch), 1.0, 1.0)
    edges = batch.n_factors // len(batch)

    def run() -> Outcome:
        belief, *times = clocked(lambda: bound(theta))
        answer = {"squares": float((belief.mu.unary**2).sum())}
        return Outcome(answer, 2.0 * edges * int(belief.status.sweeps.sum()), *times)

    return run


def tied_limit(quick: bool) -> Run:
    size = w.sizes("side_by_side", quick)
    unary, tables = w.tied_grid_scores(**size)
    sweeps = 50
    loop = _built(c_loops.GridSweeps, unary, tables, size["height"], size["width"], sweeps)
    edges = len(w.grid_edges(size["height"], size["width"]))

    def run() -> Outcome:
        beliefs, *times = clocked(lambda: (loop(), loop.beliefs())[1])
        return Outcome({"squares": float((beliefs**2).sum())}, 2.0 * edges * sweeps * size["count"], *times)

    return run


def checkerboards(quick: bool) -> Run:
    """Marginal MAP, exactly; the plan is made anew for every board, as for one that comes alone."""
    size = w.sizes("board", quick)
    boards = [w.board(seed, size["side"]) for seed in range(size["boards"])]

    def run() -> Outcome:
        values = []
        for edges, unary, tables, output in boards:
            graph = Topology((unary.shape[1],) * len(unary), tuple(map(tuple, edges.tolist())))
            batch = Batch.build([graph])
            bound = ms.inference.Exact().plan(batch).bind(Query.of(batch, output), 0.0, 1.0)
            y = bound(Potentials(unary.ravel(), tables.ravel())).decode(batch)
            values.append(w.board_value(edges, unary, tables, output, y))
        return Outcome({"values": values}, len(boards))

    return run


# ------------------------------------------------------------------------------------------------------- pictures


def grid_fit(workload: str, **settings: Any) -> Here:
    def make(quick: bool) -> Run:
        x, y, seen = w.pictures(**w.sizes(workload, quick))
        labels = [blanked(t, s) for t, s in zip(y, seen, strict=True)]

        def run() -> Outcome:
            model = ms.MSSVM(ms.Grid(), random_state=0, **settings)
            _, wall, cpu = clocked(lambda: model.fit(x, labels))
            return Outcome({"accuracy": accuracy(model.predict(x), y)}, 1.0, wall, cpu)

        return run

    return Here(make)


def image(workload: str) -> Here:
    """``predict`` with default inference, by a model quickly trained on small pictures of the same kind."""

    def make(quick: bool) -> Run:
        size = w.sizes(workload, quick)
        x, y, _ = w.pictures(6, 24, size["labels"], seed=5, noise=0.5)
        model = ms.MSSVM(ms.Grid(), max_iter=20, random_state=0).fit(x, y)
        big, truth, _ = w.pictures(1, size["side"], size["labels"], seed=6, noise=0.5)

        def run() -> Outcome:
            found, wall, cpu = clocked(lambda: model.predict(big))
            return Outcome({"accuracy": accuracy(found, truth)}, 1.0, wall, cpu)

        return run

    return Here(make)


# ------------------------------------------------------------------------------------------------------- commands


def write_lines(path: Path, X: Any, y: Any) -> None:
    """A file of JSON lines."""
    with path.open("w") as file:
        for x, labels in zip(X, y, strict=True):
            file.write(json.dumps({"x": x, "y": labels}) + "\n")


def small_file(kind: str, path: Path) -> None:
    """40 sequences of 8 sites with 3 labels, or 6 pictures of 6 x 6 with 2; some labels are missing."""
    if kind == "chain":
        x, y, seen = w.dense_chains(40, 8, 3, 4)
        X = [a.tolist() for a in x]
    else:
        pictures, y, seen = w.pictures(6, 6, labelled=0.5)
        X = [a.tolist() for a in pictures]
    labels = [np.where(s, t, -1).tolist() for t, s in zip(y, seen, strict=True)]
    names = {-1: None, **{k: f"label {k}" for k in range(3)}}
    write_lines(path, X, [_named(t, names) for t in labels])


def _named(labels: Any, names: dict[int, Any]) -> Any:
    return [_named(t, names) for t in labels] if isinstance(labels, list) else names[labels]


def fresh_package(folder: Path) -> dict[str, str]:
    """A copy of the package without anything compiled, and the variables under which a command uses it alone."""
    shutil.copytree(PACKAGE, folder / "mssvm", ignore=shutil.ignore_patterns("__pycache__"))
    cache = str(folder / "cache")
    alone = {"PYTHONPATH": str(folder), "XDG_CACHE_HOME": cache, "HOME": str(folder), "NUMBA_CACHE_DIR": ""}
    return {**alone, "PYTHONDONTWRITEBYTECODE": ""}  # as pip installs it: with bytecode


def fit_command(data: Path, *options: str) -> list[str]:
    model = str(data.with_suffix(".safetensors"))
    return [sys.executable, "-m", "mssvm", "fit", str(data), "-o", model, *options]


def said_accuracy(output: str) -> float:
    """What ``mssvm fit`` says about the training labels; 0 where it says nothing."""
    said = [line for line in output.splitlines() if line.startswith("Accuracy")]
    return float(said[0].split()[-1].rstrip("%")) / 100 if said else 0.0


def first_fit(kind: str, warm: bool) -> Here:
    """``mssvm fit`` of a small file, with nothing compiled, or once more."""

    def make(quick: bool) -> Run:
        options = ["--structure", kind] + (["--hidden", "2"] if kind == "chain" else [])

        def in_folder(folder: Path, runs: int) -> Outcome:
            env = fresh_package(folder)
            small_file(kind, folder / "train.jsonl")
            for _ in range(runs):
                done = command(fit_command(folder / "train.jsonl", *options), env)
            return Outcome({"accuracy": said_accuracy(done.output)}, 1.0, done.wall, done.cpu)

        def run() -> Outcome:
            with tempfile.TemporaryDirectory() as folder:
                return in_folder(Path(folder), 2 if warm else 1)

        return run

    return Here(make)


def memory(hidden: int) -> Here:
    """Peak memory of training from a file of 20 features a site, less that of a fifth of it, over the bytes of the
    features that make the difference: what remains of the ratio with a file of any size."""

    def make(quick: bool) -> Run:
        kept = tempfile.TemporaryDirectory()
        folder = Path(kept.name)
        size = w.sizes("file", quick)["megabytes"]
        sites = features_file(folder / "large.jsonl", size) - features_file(folder / "small.jsonl", size / 5)
        options = ["--method", "hcrf" if hidden else "crf", "--max-iter", "3"]
        options += ["--hidden", str(hidden)] if hidden else []
        env = {"PYTHONPATH": os.pathsep.join([str(PACKAGE.parent), os.environ.get("PYTHONPATH", "")])}
        train = partial(command, env=env)

        def run() -> Outcome:
            small, large = (Path(kept.name, name) for name in ("small.jsonl", "large.jsonl"))  # as long as this runs
            train(fit_command(small, *options))  # compiles
            base = train(fit_command(small, *options)).peak
            done = train(fit_command(large, *options))
            answer = {"accuracy": said_accuracy(done.output), "peak_gigabytes": done.peak / 1e9}
            return Outcome(answer, (done.peak - base) / (sites * 20 * 8), done.wall, done.cpu)

        return run

    return Here(make)


def features_file(path: Path, megabytes: float) -> int:
    """Sequences of 50 sites, 5 labels, 20 features in full precision, up to a size; gives back the number of sites."""
    rng = np.random.default_rng(7)
    sites = 0
    with path.open("w") as file:
        while file.tell() < 1e6 * megabytes:
            y = rng.integers(5, size=50)
            x = rng.normal(size=(50, 20)) + np.eye(5, 20)[y]
            rows = ", ".join("[" + ", ".join(map(repr, row)) + "]" for row in x.tolist())
            labels = ", ".join(f'"{v}"' for v in y)
            file.write(f'{{"x": [{rows}], "y": [{labels}]}}\n')
            sites += len(y)
    return sites
