"""Training against peers in one run: a chain CRF (python-crfsuite) and a hidden-chain classifier (pyhcrf).

    python benchmarks/bench_training.py --peer-python PATH [--repeats 3]

PATH is an interpreter with python-crfsuite and pyhcrf installed; without it only our own figures are printed. Both
sides get the same data, features, parameters and regularisation; every figure is the best of ``repeats`` and ratios are
peer / ours. crfsuite minimises -log-likelihood + |w|^2, which is twice our objective at C = 1/2.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
import time
from pathlib import Path

import numpy as np
from scipy import sparse
from threadpoolctl import threadpool_limits
from workloads import hidden_sequences, tagged_chains

from mssvm.core.arrays import Floats, Ints
from mssvm.core.potentials import Query, Term
from mssvm.core.topology import Batch, Topology
from mssvm.data.labels import LabelSpace
from mssvm.engines.native.engine import NativeEngine
from mssvm.inference.exact import Exact
from mssvm.models.linear import LinearInputs, LinearModel
from mssvm.objectives.sample import Sample
from mssvm.objectives.training import TrainingProblem
from mssvm.objectives.unified import crf, hcrf
from mssvm.optim.lbfgs import LBFGS
from mssvm.structures import Encoder, SequenceLabel
from mssvm.structures.encoded import to_sample


def crf_sample(x: Ints, y: Ints) -> tuple[LinearModel, Sample]:
    """One weight per symbol and label, one per transition; one table for all."""
    n, length = x.shape
    k, d = int(y.max()) + 1, int(x.max()) + 1
    graph = Topology((k,) * length, tuple((t, t + 1) for t in range(length - 1)))
    batch = Batch.build([graph] * n, np.zeros((n, length - 1), dtype=np.int64))
    rows = sparse.csr_array((np.ones(x.size), (np.arange(x.size), x.ravel())), shape=(x.size, d))
    symbols = Term("unary", rows, batch.unary_ptr[:-1], k, np.array(0))
    transitions = Term("tables", np.ones((1, 1)), np.zeros(1, dtype=np.int64), k * k, np.array(d * k))
    inputs = LinearInputs(batch, (symbols, transitions))
    truth = (np.arange(k) == y.reshape(-1, 1)).ravel()
    return LinearModel(d * k + k * k), Sample.of(inputs, Query.all_outputs(batch), truth)


def hcrf_sample(x: Floats, y: Ints, states: int) -> tuple[object, Sample]:
    structure = SequenceLabel(hidden=states)
    labels = LabelSpace.learn(y.tolist(), 0)
    encoder, parsed = Encoder.learn(structure, list(x), labels)
    encoded = encoder.encode_parsed(parsed)
    return encoder.model, to_sample(encoded, labels.encode(y.tolist(), encoded.labels.shapes))


def best(repeats: int, run: object) -> tuple[float, object]:
    times, out = [], None
    for _ in range(repeats):
        start = time.perf_counter()
        out = run()  # type: ignore[operator]
        times.append(time.perf_counter() - start)
    return min(times), out


PEER_CRF = """
import sys, time, json, numpy as np, pycrfsuite
z = np.load(sys.argv[1]); times = []
X = [[['o=%d' % o] for o in s] for s in z['x']]; Y = [[str(v) for v in s] for s in z['y']]
for _ in range(int(sys.argv[2])):
    t = pycrfsuite.Trainer(algorithm='lbfgs', verbose=False)
    t.set_params({'c1': 0.0, 'c2': 1.0, 'max_iterations': int(sys.argv[3]), 'feature.possible_transitions': True})
    for a, b in zip(X, Y): t.append(a, b)
    start = time.perf_counter(); t.train(sys.argv[1] + '.model'); times.append(time.perf_counter() - start)
last = t.logparser.last_iteration
print(json.dumps({'seconds': min(times), 'objective': last['loss'], 'iterations': last['num']}))
"""

PEER_HCRF = """
import sys, time, json, numpy as np
from pyhcrf import HCRF
z = np.load(sys.argv[1]); S = int(sys.argv[3]); times = []
X = [np.ascontiguousarray(s) for s in z['x']]; y = [int(v) for v in z['y']]
full = np.array([[c, a, b] for c in range(max(y) + 1) for a in range(S) for b in range(S)], dtype='int64')
for _ in range(int(sys.argv[2])):
    np.random.seed(3)
    m = HCRF(num_states=S, c2=1.0, transitions=full, state_parameter_noise=.1, transition_parameter_noise=.1,
             optimizer_kwargs={'options': {'maxiter': 30}})
    start = time.perf_counter()
    try: m.fit(X, y)
    except RuntimeError: pass
    times.append((time.perf_counter() - start) / m._optimizer_result.nit)
print(json.dumps({'seconds_an_iteration': min(times)}))
"""


def peer(python: str, code: str, arrays: dict[str, np.ndarray], *args: object) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "data.npz"
        np.savez(path, **arrays)
        done = subprocess.run(
            [python, "-c", code, str(path), *map(str, args)], capture_output=True, text=True, check=True
        )
    return dict(json.loads(done.stdout.splitlines()[-1]))


def bench_crf(args: argparse.Namespace) -> dict[str, object]:
    x, y = (a[:800] for a in tagged_chains())
    model, sample = crf_sample(x, y)
    out: dict[str, object] = {}
    theirs = peer(args.peer_python, PEER_CRF, {"x": x, "y": y}, args.repeats, 50) if args.peer_python else None
    out["crfsuite"] = theirs
    for threads in (1, 2):
        problem = TrainingProblem(crf(), model, sample, Exact(), C=0.5, engine=NativeEngine(threads))
        problem.difference(np.zeros(model.n_weights))
        target = theirs["objective"] / 2 if theirs else -np.inf

        def run(problem: TrainingProblem = problem, target: float = target) -> object:
            return LBFGS(max_iter=100, tolerance=1e-9).minimize(
                problem, np.zeros(model.n_weights), callback=lambda row, w: row.objective <= target * (1 + 1e-4)
            )

        seconds, found = best(args.repeats, run)
        mine = {"seconds": seconds, "objective": 2 * found.objective, "iterations": len(found.trace)}  # type: ignore[attr-defined]
        out[f"ours, {threads} threads"] = mine
        if theirs:
            out[f"speed-up, {threads} threads"] = theirs["seconds"] / seconds
    problem = TrainingProblem(crf(), model, sample, Exact(), C=0.5)
    full = LBFGS(max_iter=1000, tolerance=1e-9).minimize(problem, np.zeros(model.n_weights))
    out["our final objective"] = 2 * full.objective
    return out


def bench_hcrf(args: argparse.Namespace) -> dict[str, object]:
    x, y = (a[:150] for a in hidden_sequences())
    out: dict[str, object] = {}
    for states in (3, 6):
        model, sample = hcrf_sample(x, y, states)
        problem = TrainingProblem(hcrf(), model, sample, Exact(), C=0.5)  # type: ignore[arg-type]
        w0 = 0.1 * np.random.default_rng(3).standard_normal(problem.n_weights)
        problem.difference(w0)

        def run(problem: TrainingProblem = problem, w0: Floats = w0) -> object:
            return LBFGS(max_iter=30, tolerance=1e-12).minimize(problem, w0)

        seconds, found = best(args.repeats, run)
        ours = seconds / max(1, len(found.trace) - 1)  # type: ignore[attr-defined]
        out[f"ours, {states} states, ms an iteration"] = 1e3 * ours
        if args.peer_python:
            theirs = peer(args.peer_python, PEER_HCRF, {"x": x, "y": y}, args.repeats, states)
            out[f"pyhcrf, {states} states, ms an iteration"] = 1e3 * theirs["seconds_an_iteration"]
            out[f"speed-up, {states} states"] = theirs["seconds_an_iteration"] / ours
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--peer-python", default="")
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    with threadpool_limits(1):
        print(json.dumps({"chain CRF": bench_crf(args), "hidden-chain classifier": bench_hcrf(args)}, indent=1))


if __name__ == "__main__":
    main()
