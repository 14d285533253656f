"""The torch engine on a GPU beside its peers on the same GPU, and training beside all cores of its host.

    PYTHONPATH=src python3 benchmarks/bench_gpu.py --output benchmarks/results/gpu.json

Answers are compared with double precision before any time counts. Times are medians of device events (kernels) or of
the wall clock (training, PGMax); rates are sites or directed messages a second. Peers: PyTorch as one would write it,
the same by torch.compile, and where they are installed torch-struct and pytorch-crf (chains) and PGMax on JAX (grids).
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from bench_loopy import discs, partly

import mssvm as ms
import mssvm.torch
from mssvm.core.potentials import Query
from mssvm.core.topology import Batch, Topology
from mssvm.engines.base import ExactSettings
from mssvm.engines.messages import Schedule, Temperatures
from mssvm.engines.torch import TorchEngine
from mssvm.engines.torch.arrays import DevicePotentials
from mssvm.estimators.hooks import FitHooks
from mssvm.estimators.training import Training
from mssvm.estimators.training_data import TrainingData

DEVICE = "cuda"
COPY = 4257e9  # bytes a second that a copy reads and writes on an H200


def timed(work: Callable[[], Any], repeats: int = 9, warm: int = 2, at_once: int = 1) -> float:
    """Median seconds of device time, of ``at_once`` calls in a row (short kernels would wait for the host)."""
    for _ in range(warm):
        work()
    times = []
    for _ in range(repeats):
        start = torch.cuda.Event(enable_timing=True)
        end = torch.cuda.Event(enable_timing=True)
        start.record()
        for _ in range(at_once):
            work()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) / 1e3 / at_once)
    return statistics.median(times)


def clocked(work: Callable[[], Any], repeats: int = 3) -> float:
    """Median seconds on the wall clock, after one warm-up."""
    work()
    times = []
    for _ in range(repeats):
        torch.cuda.synchronize()
        start = time.perf_counter()
        work()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


# ----------------------------------------------------------------------------------------- chains


def chain_loop(u: torch.Tensor, e: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """log Z, its gradient in the scores and in the table, by PyTorch's autograd."""
    u = u.detach().requires_grad_()
    e = e.detach().requires_grad_()
    a = u[:, 0]
    for t in range(1, u.shape[1]):
        a = torch.logsumexp(a[:, :, None] + e, 1) + u[:, t]
    z = torch.logsumexp(a, 1)
    return z, *torch.autograd.grad(z.sum(), (u, e))


def chains(n: int, length: int, states: int, loop: bool = True) -> dict[str, Any]:
    graph = Topology((states,) * length, tuple((t, t + 1) for t in range(length - 1)))
    batch = Batch.of_kinds((graph,), np.zeros(n, dtype=np.int64), np.zeros(n * (length - 1), dtype=np.int64))
    u = torch.randn(n, length, states, device=DEVICE)
    e = torch.randn(states, states, device=DEVICE)
    query = Query.all_outputs(batch)
    row = dict[str, Any]()
    plan = TorchEngine(DEVICE, "single").exact(batch, ExactSettings())
    bounds = {"sum": plan.bind(query, 1.0, 1.0), "max": plan.bind(query, 0.0, 0.0)}
    theta = DevicePotentials(u.reshape(-1), e.reshape(-1))
    belief = bounds["sum"](theta)
    few = min(n, 64)
    z, mu_u, mu_e = chain_loop(u[:few].double(), e.double())
    tables = belief.mu.parts[1].reshape(n, -1)[:few].double().sum(0)
    row["errors"] = [
        float(np.abs(belief.value[:few] - z.detach().cpu().numpy()).max() / z.abs().max().item()),
        float((belief.mu.parts[0].reshape(u.shape)[:few].double() - mu_u).abs().max()),
        float((tables - mu_e.reshape(-1)).abs().max() / mu_e.abs().max()),
    ]
    for name, bound in bounds.items():
        route = bound.routes[0]
        mu = torch.zeros(batch.n_states, device=DEVICE), torch.zeros(batch.n_mu_entries, device=DEVICE)
        seconds = timed(route.ready(*theta.parts, mu)[0], at_once=10)
        row[f"kernel, {name}, G sites/s"] = n * length / seconds / 1e9
        row[f"engine call, {name}, G sites/s"] = n * length / clocked(lambda b=bound: b(theta), 15) / 1e9
    if loop:
        row["torch loop + autograd, G sites/s"] = n * length / timed(lambda: chain_loop(u, e), 3, 1) / 1e9
        row |= peer("torch-struct, G sites/s", lambda: n * length / torch_struct(u, e) / 1e9)
    return row


def torch_struct(u: torch.Tensor, e: torch.Tensor) -> float:
    """Seconds of log Z and the marginals of pairs; scores of sites belong to the pair before them."""
    from torch_struct import LinearChainCRF

    pairs = u[:, 1:, :, None] + e.T[None, None]
    pairs[:, 0] += u[:, 0, None, :]
    return timed(lambda: LinearChainCRF(pairs).marginals, 3, 1)


def peer(name: str, rate: Callable[[], float]) -> dict[str, Any]:
    """A peer's rate, or why there is none."""
    try:
        return {name: rate()}
    except Exception as error:  # a peer may fail in its own way: it is said, and the others go on
        return {name: f"not run: {type(error).__name__}: {str(error).splitlines()[0][:120]}"}


# ----------------------------------------------------------------------------------------- grids


def grid_loop(u: torch.Tensor, across: torch.Tensor, down: torch.Tensor, sweeps: int) -> list[torch.Tensor]:
    """Flooding in plain PyTorch, scaled probabilities: messages from the left, the right, above and below."""
    m = [torch.ones_like(u) for _ in range(4)]
    for _ in range(sweeps):
        left, right = m[:2]
        above, below = m[2:]
        out = [
            (u * left * above * below) @ across,
            (u * right * above * below) @ across.T,
            (u * above * left * right) @ down,
            (u * below * left * right) @ down.T,
        ]
        out = [o / o.amax(-1, keepdim=True) for o in out]
        m = [torch.ones_like(u) for _ in range(4)]
        m[0][:, :, 1:] = out[0][:, :, :-1]
        m[1][:, :, :-1] = out[1][:, :, 1:]
        m[2][:, 1:] = out[2][:, :-1]
        m[3][:, :-1] = out[3][:, 1:]
    return m


def grid_pairs(h: int, w: int) -> np.ndarray:
    """Neighbours in a grid, across and then down."""
    at = np.arange(h * w).reshape(h, w)
    both = ((at[:, :-1], at[:, 1:]), (at[:-1], at[1:]))
    return np.concatenate([np.stack([a.ravel(), b.ravel()], 1) for a, b in both])


def pgmax(u: torch.Tensor, table: torch.Tensor, sweeps: int) -> float:
    """Directed messages a second of PGMax, sum-product, all grids at once by vmap."""
    import jax
    from pgmax import fgraph, fgroup, infer, vgroup

    if not hasattr(jax.lib, "xla_bridge"):  # gone from JAX; PGMax asks it for the platform
        from jax.extend.backend import get_backend

        jax.lib.xla_bridge = SimpleNamespace(get_backend=get_backend)
    h, w, states = u.shape[1:]
    variables = vgroup.NDVarArray(num_states=states, shape=(h, w))
    graph = fgraph.FactorGraph(variable_groups=variables)
    pairs = grid_pairs(h, w)
    ends = [[variables[i // w, i % w], variables[j // w, j % w]] for i, j in pairs.tolist()]
    graph.add_factors(fgroup.PairwiseFactorGroup(ends, log_potential_matrix=table.cpu().numpy()))
    bp = infer.build_inferer(graph.bp_state, backend="bp")

    def beliefs(scores: Any) -> Any:
        arrays = bp.run(bp.init(evidence_updates={variables: scores}), num_iters=sweeps, damping=0.0, temperature=1.0)
        return bp.get_beliefs(arrays)[variables]

    run = jax.jit(jax.vmap(beliefs))
    scores = jax.numpy.asarray(u.cpu().numpy())
    return 2 * len(pairs) * len(u) * sweeps / clocked(lambda: run(scores).block_until_ready())


def grid_batch(n: int, h: int, w: int, states: int, own: str) -> Batch:
    """Grids with a table for each direction (``own`` is ""), one for each edge, or one for each edge of each grid."""
    scopes = grid_pairs(h, w)
    graph = Topology((states,) * (h * w), tuple(map(tuple, scopes.tolist())))
    ids = np.arange(len(scopes)) if own else np.repeat([0, 1], [h * (w - 1), (h - 1) * w])
    each = np.tile(ids, n) + (np.repeat(np.arange(n) * len(ids), len(ids)) if own == "each grid" else 0)
    return Batch.of_kinds((graph,), np.zeros(n, dtype=np.int64), each)


def run_of(batch: Batch, engine: TorchEngine, theta: Any) -> Any:
    model = engine.messages(batch).load(theta, Query.all_outputs(batch), np.zeros(batch.n_states))
    run = model.run()
    run.start(np.arange(len(batch)), None)
    return run


def sweeper(run: Any, kernel: Any, t: Temperatures, schedule: Schedule, k: int) -> Callable[[], None]:
    """k sweeps of all grids, by the kernel where there is one."""
    every = np.arange(len(run.residual))
    mine = run.at.ints(every)
    residual = torch.full((len(every),), torch.inf, device=DEVICE)

    def plain() -> None:
        run.residual[:] = np.inf
        run.advance(every, t, k, schedule)

    def launch() -> None:
        residual.fill_(torch.inf)
        sweep, tables = kernel
        sweep(run.unary, tables, mine, run.m, t, k, schedule, residual)

    return plain if kernel is None else launch


# Of the mixed product half of the variables, drawn at random, are outputs.
RUNS = {
    "sum, flooding": ((1.0, 1.0), True),
    "sum, red-black": ((1.0, 1.0), False),
    "max, red-black": ((0.0, 0.0), False),
    "mixed, red-black": ((0.0, 1.0), False),
}


def temperatures(eps: tuple[float, float], n_vars: int) -> Temperatures:
    if eps[0] == eps[1]:
        return Temperatures.one(n_vars, eps[0])
    return Temperatures(np.random.default_rng(0).random(n_vars) < 0.5, *eps)


def grids(n: int, h: int, w: int, states: int, own: str = "", peers: bool = False) -> dict[str, Any]:
    batch = grid_batch(n, h, w, states, own)
    row = dict[str, Any]()
    u = torch.randn(n, h, w, states, device=DEVICE)
    tables = 0.5 * torch.randn(batch.n_table_entries, device=DEVICE)
    theta = DevicePotentials(u.reshape(-1), tables)
    every = np.arange(n)
    few = min(n, 2)
    messages = len(batch.scope_vars)
    engine = TorchEngine(DEVICE, "single")
    part = grid_batch(few, h, w, states, own)
    known = DevicePotentials(u[:few].reshape(-1).double(), tables[: part.n_table_entries].double())
    for name, (eps, flooding) in RUNS.items():
        run = run_of(batch, engine, theta)
        t = temperatures(eps, batch.n_vars)
        schedule = Schedule(flooding=flooding, tolerance=-1.0)
        kernel = run.model.kernel_for(run.unary, t, flooding)
        row["kernel"] = kernel[0].__self__.__class__.__name__ if kernel else "none"
        if name.startswith("sum"):
            run.advance(every, t, 20, schedule)
            want = run_of(part, TorchEngine(DEVICE, "double", plain=True), known)
            want.advance(every[:few], temperatures(eps, part.n_vars), 20, schedule)
            row[f"{name}, error of logs"] = float((want.m - run.m[: len(want.m)].double()).abs().max())
        first, last = (20, 220) if kernel is not None else (4, 12)
        sweeps = partial(sweeper, run, kernel, t, schedule)
        seconds = timed(sweeps(last)) - timed(sweeps(first))
        row[f"{name}, G messages/s"] = messages * (last - first) / seconds / 1e9
        if kernel is not None:
            row[f"{name}, 20 sweeps with all around them, ms"] = 1e3 * timed(sweeps(20))
    if not own:
        p = u.exp()
        parts = tables.exp().reshape(2, states, states)
        loops = {"plain torch loop": grid_loop} | (
            {"the same by torch.compile": torch.compile(grid_loop)} if peers else {}
        )
        for name, loop in loops.items():

            def rate(loop: Callable[..., Any] = loop) -> float:
                seconds = timed(lambda: loop(p, *parts, 12), 3, 1) - timed(lambda: loop(p, *parts, 2), 3, 1)
                return messages * 10 / seconds / 1e9

            row |= peer(f"{name}, G messages/s", rate)
    if peers:
        few = min(n, 256)  # all 4096 do not fit
        table = tables[: states**2].reshape(states, states)
        row |= peer(f"PGMax, {few} grids, G messages/s", lambda: pgmax(u[:few], table, 20) / 1e9)
    return row


def random_graph(n_vars: int, n_edges: int, states: int) -> dict[str, Any]:
    """One graph with ends drawn at random: degree 2 n_edges / n_vars on average."""
    rng = np.random.default_rng(0)
    ends = rng.integers(0, n_vars, (int(1.05 * n_edges), 2))
    ends = ends[ends[:, 0] != ends[:, 1]][:n_edges]
    graph = Topology((states,) * n_vars, tuple(map(tuple, ends.tolist())))
    batch = Batch.of_kinds((graph,), np.zeros(1, dtype=np.int64), np.zeros(len(ends), dtype=np.int64))
    theta = DevicePotentials(*(torch.randn(size, device=DEVICE) for size in (batch.n_states, batch.n_table_entries)))
    messages = len(batch.scope_vars)
    row = dict[str, Any]()
    bound = COPY / (4 * states * (2 * messages + n_vars))  # sweeps a second that read and write each message once
    for name, (eps, flooding) in RUNS.items():
        run = run_of(batch, TorchEngine(DEVICE, "single"), theta)
        t = temperatures(eps, n_vars)
        schedule = Schedule(flooding=flooding, tolerance=-1.0)
        sweeps = partial(sweeper, run, run.model.kernel_for(run.unary, t, flooding), t, schedule)
        rate = 400 / (timed(sweeps(520), 3) - timed(sweeps(120), 3))
        row[f"{name}, G messages/s"] = messages * rate / 1e9
        row[f"{name}, of the bound"] = rate / bound
    return row


# ----------------------------------------------------------------------------------------- the layer


def crf_loop(u: torch.Tensor, e: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """The likelihood of a chain as one would write it in PyTorch."""
    a = u[:, 0]
    for t in range(1, u.shape[1]):
        a = torch.logsumexp(a[:, :, None] + e, 1) + u[:, t]
    labels = u.gather(2, y[..., None]).sum((1, 2)) + e[y[:, :-1], y[:, 1:]].sum(1)
    return (torch.logsumexp(a, 1) - labels).mean()


def layer(
    structure: Any, scores: dict[str, torch.Tensor], y: torch.Tensor, crf: bool, **settings: Any
) -> dict[str, Any]:
    """Milliseconds of forward and backward through ``StructuredLoss`` and of its decoder, as a network calls them."""
    settings |= {"eps_y": 1.0, "eps_h": 1.0, "loss": "zero"} if crf else {"eps_y": 0.0, "eps_h": 1.0}
    loss = mssvm.torch.StructuredLoss(structure, **settings)
    parts = [s.requires_grad_() for s in scores.values()]

    def step(value: Callable[[], torch.Tensor]) -> None:
        for part in parts:
            part.grad = None
        value().backward()

    row = {"forward and backward, ms": 1e3 * clocked(lambda: step(lambda: loss(scores, y)), 9)}
    row["decode, ms"] = 1e3 * clocked(lambda: loss.decode(scores), 5)
    if crf and set(scores) == {"node", "edge"} and bool((y >= 0).all()):
        row["torch loop + autograd, ms"] = 1e3 * clocked(lambda: step(lambda: crf_loop(*parts, y)), 5)
    return row


def chain_layer(n: int, length: int, states: int, hidden: int, crf: bool) -> dict[str, Any]:
    y = torch.randint(0, states, (n, length), device=DEVICE)
    if not crf:
        y = torch.where(torch.rand(n, length, device=DEVICE) < 0.5, -100, y)
    shapes = {"node": (n, length, states)} | (
        {"left": (states, hidden), "right": (hidden, states), "between": (n, length - 1, hidden)}
        if hidden
        else {"edge": (states, states)}
    )
    scores = {name: torch.randn(*shape, device=DEVICE) for name, shape in shapes.items()}
    return layer(ms.Chain(hidden=hidden), scores, y, crf)


class Tagger(torch.nn.Module):
    """A BiLSTM that scores the labels of every position, as taggers have it."""

    def __init__(self, states: int, width: int = 128) -> None:
        super().__init__()
        self.lstm = torch.nn.LSTM(width, width, bidirectional=True, batch_first=True)
        self.node = torch.nn.Linear(2 * width, states)
        self.edge = torch.nn.Parameter(torch.zeros(states, states))

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"node": self.node(self.lstm(x)[0]), "edge": self.edge}


def network(n: int, length: int, states: int, missing: float) -> dict[str, Any]:
    """Milliseconds of a training step of a network with and without the loss, as it is and recorded in a CUDA graph."""
    net = Tagger(states).to(DEVICE)
    x = torch.randn(n, length, 128, device=DEVICE)
    y = torch.randint(0, states, (n, length), device=DEVICE)
    y = torch.where(torch.rand(n, length, device=DEVICE) < missing, -100, y)
    crf = {"eps_y": 1.0, "eps_h": 1.0, "loss": "zero"}
    layer = mssvm.torch.StructuredLoss(ms.Chain(), **(crf if missing == 0.0 else {"eps_y": 0.0, "eps_h": 1.0}))
    by_layout = mssvm.torch.StructuredLoss(ms.Chain(), **(crf if missing == 0.0 else {"eps_y": 0.0, "eps_h": 1.0}))
    by_layout._of_tensors = lambda *_: None  # the general way, which lays a batch out on the host
    losses: dict[str, Callable[[dict[str, torch.Tensor]], torch.Tensor]] = {
        "network alone": lambda scores: scores["node"].sum() + scores["edge"].sum(),
        "with the layer": lambda scores: layer(scores, y),
    }
    row: dict[str, Any] = {}

    def step(loss: Callable[[dict[str, torch.Tensor]], torch.Tensor]) -> torch.Tensor:
        net.zero_grad()
        value = loss(net(x))
        value.backward()
        return value.detach()

    for name, loss in losses.items():
        row[f"{name}, ms"] = 1e3 * clocked(lambda of=loss: step(of), 41)
    row["with the layer by its general way, ms"] = 1e3 * clocked(lambda: step(lambda s: by_layout(s, y)), 9)
    difference = step(losses["with the layer"]) - step(lambda s: by_layout(s, y))
    row["difference of the two ways"] = float(difference.abs())
    for name, loss in losses.items():
        row[f"{name}, in a CUDA graph, ms"] = 1e3 * timed(_recorded(lambda of=loss: step(of)), 41)
    scores = {name: value.detach() for name, value in net(x).items()}
    row["decode, ms"] = 1e3 * clocked(lambda: layer.decode(scores), 41)
    row["marginals, ms"] = 1e3 * clocked(lambda: layer.marginals(scores), 41)
    if missing == 0.0:
        row["torch loop, ms"] = 1e3 * clocked(lambda: step(lambda s: crf_loop(s["node"], s["edge"], y)), 9)
        row |= peer("pytorch-crf, ms", lambda: 1e3 * clocked(lambda: step(_pytorch_crf(states, y)), 9))
        row |= peer("torch-struct, ms", lambda: 1e3 * clocked(lambda: step(_torch_struct_loss(states, y)), 9))
    layer.check()
    return row


def _recorded(work: Callable[[], Any]) -> Callable[[], None]:
    """The same work as a CUDA graph."""
    other = torch.cuda.Stream()
    other.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(other):
        for _ in range(3):
            work()
    torch.cuda.current_stream().wait_stream(other)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return graph.replay


def _pytorch_crf(states: int, y: torch.Tensor) -> Callable[[dict[str, torch.Tensor]], torch.Tensor]:
    from torchcrf import CRF

    crf = CRF(states, batch_first=True).to(DEVICE)
    return lambda scores: -crf(scores["node"], y, reduction="mean") + scores["edge"].sum()


def _torch_struct_loss(states: int, y: torch.Tensor) -> Callable[[dict[str, torch.Tensor]], torch.Tensor]:
    from torch_struct import LinearChainCRF

    parts = LinearChainCRF.struct.to_parts(y, states)

    def loss(scores: dict[str, torch.Tensor]) -> torch.Tensor:
        node = scores["node"]
        pairs = node[:, 1:, :, None] + scores["edge"].T
        first = pairs[:, :1] + node[:, :1, None, :]
        return -LinearChainCRF(torch.cat([first, pairs[:, 1:]], 1)).log_prob(parts).mean()

    return loss


def grid_layer(n: int, crf: bool) -> dict[str, Any]:
    y = torch.randint(0, 5, (n, 20, 40), device=DEVICE)
    y = torch.where(torch.rand(n, 20, 40, device=DEVICE) < 0.8, -100, y)
    scores = {"node": torch.randn(n, 20, 40, 5, device=DEVICE)}
    scores |= {f"edge:{way}": 0.5 * torch.randn(5, 5, device=DEVICE) for way in ("right", "down")}
    return layer(ms.Grid(), scores, y, crf, inference=ms.inference.Propagate("fast"))


# ----------------------------------------------------------------------------------------- training


def training(kind: str, member: str, n: int, cores: int = 16) -> dict[str, Any]:
    """One evaluation of the objective and its gradient over all instances, on the GPU and on the cores of its host."""
    rng = np.random.default_rng(0)
    if kind == "grids":
        X: list[Any] = [rng.normal(size=(20, 40, 3)) for _ in range(n)]
        truth = [(x @ np.ones(3) > 0) * 1 + (x[..., 0] > 1) for x in X]
        y: list[Any] = [np.where(rng.random((20, 40)) < 0.2, t, None) for t in truth]
        # Propagation throughout: the search for elimination orders would take longer than many passes.
        model = getattr(ms, member)(ms.Grid(), inference=ms.inference.Propagate("fast"), random_state=0)
    else:
        X = [rng.normal(size=(40, 10)) for _ in range(n)]
        w = rng.normal(size=10)
        y = [(np.abs(x @ w).astype(int) % 10).tolist() for x in X]
        model = getattr(ms, member)(ms.Chain(hidden=0 if member == "CRF" else 2), random_state=0)
    row: dict[str, Any] = {}
    for where, settings in {"gpu": {"device": DEVICE}, f"{cores} cores": {"n_jobs": cores}}.items():
        model.set_params(**{"device": None, "n_jobs": None, **settings})
        data = TrainingData.of(model._plan(), X, y, None, None, None)
        problem = Training(data, FitHooks(model._predictor, None, None, None, None)).problem
        w = 0.1 * np.random.default_rng(1).normal(size=problem.n_weights)
        row[f"{where}, objective"] = problem.difference(w).total
        row[f"{where}, s"] = clocked(lambda p=problem, at=w: p.difference(at), 2)
    return row


def pictures(member: str, cores: int = 16) -> dict[str, Any]:
    """Fit and predict of 64 noisy discs of 64 x 64 pixels, two labels, 15% labelled, by the decomposition bound: wall
    seconds after a warm-up, and accuracy on 16 further discs."""
    X, y = discs(64, 64, 2, 30)
    unseen, truth = discs(16, 64, 2, 10_030)
    given = list(partly(y, 0.15, 30))
    row: dict[str, Any] = {}
    for where, settings in {"gpu": {"device": DEVICE}, f"{cores} cores": {"n_jobs": cores}}.items():
        model = getattr(ms, member)(ms.Grid(), missing_label=-1, random_state=0, **settings)
        row[f"{where}, fit, s"] = clocked(partial(model.fit, list(X), given), 3 if where == "gpu" else 1)
        row[f"{where}, predict, s"] = clocked(partial(model.predict, list(X)), 3)
        row[f"{where}, iterations"] = int(model.n_iter_)
        row[f"{where}, objective"] = float(model.objective_)
        row[f"{where}, accuracy"] = 100.0 * float((np.array(model.predict(list(unseen))) == truth).mean())
    return row


ROWS: dict[str, Callable[[], dict[str, Any]]] = {
    "chains 4096 x 50, 20 states": lambda: chains(4096, 50, 20),
    "chains 65536 x 50, 20 states": lambda: chains(65536, 50, 20),
    "chains 256 x 1000, 20 states": lambda: chains(256, 1000, 20),
    "chains 4096 x 50, 5 states": lambda: chains(4096, 50, 5, loop=False),
    "chains 4096 x 50, 32 states": lambda: chains(4096, 50, 32, loop=False),
    "grids 4096, 20x40, 5 states": lambda: grids(4096, 20, 40, 5, peers=True),
    "grids 64, 20x40, 5 states": lambda: grids(64, 20, 40, 5, peers=True),
    "grids 4096, 20x40, 5 states, own tables, shared by the batch": lambda: grids(4096, 20, 40, 5, "each edge"),
    "grids 4096, 20x40, 5 states, own tables, each grid its own": lambda: grids(4096, 20, 40, 5, "each grid"),
    "grids 1024, 20x31, 21 states": lambda: grids(1024, 20, 31, 21),
    "random graph, 200000 nodes, 1e6 edges, 5 states": lambda: random_graph(200_000, 1_000_000, 5),
    **{
        f"network, {name}, {n} chains of 50, 20 states": partial(network, n, 50, 20, missing)
        for n in (32, 256, 4096)
        for name, missing in (("CRF", 0.0), ("half missing", 0.5))
    },
    **{
        f"layer, {name}, {n} chains of 50, 20 states": partial(chain_layer, n, 50, 20, hidden, name == "CRF")
        for n in (32, 256, 4096)
        for name, hidden in (("CRF", 0), ("half missing", 0), ("half missing, 2 hidden states", 2))
    },
    **{
        f"layer, {name}, {n} grids 20x40, 5 states, a fifth labelled": partial(grid_layer, n, name == "HCRF")
        for n in (8, 64)
        for name in ("HCRF", "MSSVM")
    },
    "training, CRF, 20000 chains of 40, 10 labels": lambda: training("chains", "CRF", 20_000),
    **{
        f"training, HCRF, {n} hidden chains of 40, 10 labels": partial(training, "chains", "HCRF", n)
        for n in (20_000, 4000, 1000, 250)
    },
    **{
        f"training, MSSVM, {n} hidden chains of 40, 10 labels": partial(training, "chains", "MSSVM", n)
        for n in (20_000, 1000)
    },
    **{
        f"training, {member}, {n} weakly labelled grids 20x40": partial(training, "grids", member, n)
        for member in ("HCRF", "MSSVM")
        for n in (2000, 200, 50)
    },
    **{f"pictures, {member}, 64 discs of 64x64": partial(pictures, member) for member in ("HCRF", "MSSVM")},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--rows", nargs="*", default=[], help="words that the names of rows start with or hold")
    options = parser.parse_args()
    torch.manual_seed(0)
    chosen = {name: row for name, row in ROWS.items() if not options.rows or any(word in name for word in options.rows)}
    found: dict[str, Any] = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "rows": {}}
    for name, row in chosen.items():
        try:
            found["rows"][name] = row()
        except torch.OutOfMemoryError:
            found["rows"][name] = {"failed": "out of memory"}
        torch.cuda.empty_cache()
        print(name, json.dumps(found["rows"][name]), flush=True)
        if options.output:
            options.output.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
