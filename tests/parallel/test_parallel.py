"""Clusters of real processes: the same bits as on one machine, whoever works, dies or joins."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dask import bag, config, delayed
from distributed import Client, LocalCluster
from distributed.comm import CommClosedError

import mssvm as ms
from mssvm.core.errors import ClusterError, InputError, UnsupportedError
from mssvm.data.embedded import write_pictures
from mssvm.objectives import blocks
from mssvm.parallel.cluster import PLUGIN
from parallel_faults import Fatal, Loaded, arm, write_shards

MEMBERS = {
    "crf": lambda **more: ms.CRF(ms.Chain(ends=True), max_iter=6, **more),
    "hcrf": lambda **more: ms.HCRF(ms.Chain(hidden=2), max_iter=6, random_state=0, **more),
    "mssvm": lambda **more: ms.MSSVM(ms.Chain(hidden=2), max_iter=4, random_state=0, **more),
}


@pytest.fixture(scope="module")
def local() -> Iterator[Any]:
    quick = {
        "distributed.scheduler.allowed-failures": 2,
        "distributed.worker.profile.enabled": False,
        # Some seconds after a worker was lost Dask looks whether it is there; killed twice, it would not come back.
        "distributed.deploy.lost-worker-timeout": "1 hour",
    }
    with (
        config.set(quick),
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0", silence_logs=50) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        yield client


@pytest.fixture(autouse=True)
def many_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "BLOCK_STATES", 300)


@pytest.fixture(scope="module")
def dense(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, list, list]:
    folder = tmp_path_factory.mktemp("dense")
    return str(folder / "part-*.jsonl"), *write_shards(folder)


def _settle(client: Any) -> None:
    """Waits until two workers answer: one that was killed or let go by the test before may still be leaving."""
    for _ in range(100):
        client.wait_for_workers(2)
        with suppress(CommClosedError):
            if len(client.run(os.getpid)) == 2:
                return
        time.sleep(0.1)
    pytest.fail("there are not two workers")


def _same(found: Any, expected: Any) -> None:
    np.testing.assert_array_equal(found.coef_, expected.coef_)
    assert found.objective_ == expected.objective_
    assert found.diagnose() == expected.diagnose()


@pytest.mark.slow
@pytest.mark.parametrize("name", MEMBERS)
def test_two_workers_have_the_bits_of_one_machine(name: str, local: Any, dense: Any) -> None:
    pattern, X, y = dense
    alone = MEMBERS[name]().fit(X, y)
    with ms.distributed(local):
        _same(MEMBERS[name]().fit(ms.ShardedDataset(pattern)), alone)


@pytest.mark.slow
def test_one_two_and_four_workers_have_the_same_bits_and_new_ones_are_used(dense: Any, local: Any) -> None:
    pattern, X, y = dense
    alone = MEMBERS["hcrf"]().fit(X, y)
    data = ms.ShardedDataset(pattern)

    def grow(row: Any, w: Any) -> None:
        if row.iteration == 2:
            local.cluster.scale(4)
            local.wait_for_workers(4)

    def blocks(dask_worker: Any) -> int:
        return len(dask_worker.plugins[PLUGIN].shelf._blocks)

    with ms.distributed(local):
        _scaled(local, 1)
        _same(MEMBERS["hcrf"]().fit(data), alone)
        _same(MEMBERS["hcrf"]().fit(data, callback=grow), alone)
        assert len(local.run(blocks)) == 4 and min(local.run(blocks).values()) > 0
        _scaled(local, 2)


@pytest.mark.slow
@pytest.mark.parametrize("form", ["conll", "npz", "pictures"])
def test_shards_of_other_formats_have_the_bits_of_one_machine(form: str, local: Any, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    names = []
    for k in range(2):
        if form == "pictures":
            pictures = ms.data.weak_pictures(n=2, height=4, width=5, share=0.5, seed=k)
            names.append(write_pictures(tmp_path / f"shard-{k}", pictures))
        else:
            lengths = rng.integers(2, 6, size=12)
            y = [rng.choice(["A", "B"], size=n) for n in lengths]
            names.append(tmp_path / f"shard-{k}.{form}")
            if form == "conll":
                text = "\n\n".join("\n".join(f"w{v}\t{v}" for v in row) for row in y)
                names[-1].write_text(text + "\n", "utf-8")
            else:
                X = np.concatenate([(row == "A")[:, None] + rng.normal(size=(len(row), 3)) for row in y])
                np.savez(names[-1], x=X, y=np.concatenate(y), ptr=np.append(0, np.cumsum(lengths)))
    whole = [ms.data.read(name) for name in names]
    structure = ms.Grid() if form == "pictures" else ms.Chain()
    settings: Any = {"max_iter": 3, "random_state": 0, "solver": "lbfgs"}
    alone = ms.CRF(structure, **settings).fit([x for d in whole for x in d.X], [t for d in whole for t in d.labels])
    with ms.distributed(local):
        _same(ms.CRF(structure, **settings).fit(ms.ShardedDataset([str(name) for name in names])), alone)


def _scaled(local: Any, n: int) -> None:
    local.cluster.scale(n)
    while len(local.nthreads()) != n:
        time.sleep(0.05)


@pytest.mark.slow
def test_named_features_candidates_and_class_weights(local: Any, tmp_path: Path) -> None:
    X, y = write_shards(tmp_path, named=True)
    alone = MEMBERS["hcrf"](class_weight={"A": 2.0}).fit(X, y)
    with ms.distributed(local):
        data = ms.ShardedDataset(str(tmp_path / "part-*.jsonl"), "chain")
        found = MEMBERS["hcrf"](class_weight={"A": 2.0}).fit(data)
        _same(found, alone)
        assert found.schema_.features["node"].vocabulary == alone.schema_.features["node"].vocabulary
        assert found.score(data) == alone.score(X, y)
        for one, other in zip(found.predict(data), alone.predict(X), strict=True):
            np.testing.assert_array_equal(one, other)
        hashed = MEMBERS["crf"]().fit(ms.ShardedDataset(str(tmp_path / "part-*.jsonl"), hashed=50))
    assert hashed.n_features_in_ == 50 and hashed.score(X, y) > 0.5
    hashed.save(tmp_path / "m.safetensors")
    assert ms.load(tmp_path / "m.safetensors").score(X, y) == hashed.score(X, y)


SOLVERS = {
    "cccp": ms.solvers.CCCP(ms.solvers.LBFGS(max_iter=3), max_iter=2),
    "planes of one slack": ms.solvers.CCCP(ms.solvers.CuttingPlane(max_iter=5), max_iter=2),
    "adam": ms.solvers.Subgradient(max_iter=2, rate=0.1, scaling="adam"),
    "full batch": ms.solvers.Subgradient(max_iter=3, rate=0.1, full_batch=True),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SOLVERS)
def test_every_solver_that_sees_a_problem_works(name: str, local: Any, dense: Any) -> None:
    _, X, y = dense
    settings = {"solver": SOLVERS[name], "random_state": 0}
    alone = ms.MSSVM(ms.Chain(hidden=2), **settings).fit(X[:60], y[:60])
    with ms.distributed(local):
        data = ms.ShardedDataset([Loaded(X[:35], y[:35]), Loaded(X[35:60], y[35:60])], ms.Chain())
        _same(ms.MSSVM(ms.Chain(hidden=2), **settings).fit(data), alone)


@pytest.mark.parametrize("solver", ["bcfw", ms.solvers.CuttingPlane(n_slack=True)])
def test_solvers_of_single_instances_refuse(solver: Any, local: Any, dense: Any) -> None:
    _, X, _ = dense
    y = [["A"] * len(x) for x in X[:9]]
    with ms.distributed(local), pytest.raises(UnsupportedError, match="use solver='lbfgs'"):
        ms.SSVM(ms.Chain(), solver=solver).fit(ms.ShardedDataset([Loaded(X[:9], y)]))


REFUSED: dict[str, tuple[type, dict[str, Any]]] = {
    "cccp by name": (ms.HCRF, {"solver": "cccp"}),
    "cccp as an object": (ms.MSSVM, {"solver": ms.solvers.CCCP()}),
    "bcfw with hidden variables": (ms.MSSVM, {"structure": ms.Chain(hidden=2), "solver": "bcfw"}),
    "bcfw without": (ms.SSVM, {"solver": "bcfw"}),
    "cutting planes with hidden variables": (ms.MSSVM, {"solver": "cutting-plane"}),
    "one slack an instance": (ms.LSSVM, {"solver": ms.solvers.CuttingPlane(n_slack=True)}),
    "bcfw and absolute values": (ms.SSVM, {"solver": "bcfw", "l1_ratio": 0.5}),
    "cccp and absolute values": (ms.HCRF, {"solver": "cccp", "l1_ratio": 0.5}),
    "cutting planes and a weight without strength": (
        ms.SSVM,
        {"solver": "cutting-plane", "penalties": {"transition": 0.0}},
    ),
    "bcfw and a weight without strength": (ms.SSVM, {"solver": "bcfw", "penalties": {"transition": 0.0}}),
    "only weights that were seen": (ms.HCRF, {"support": "seen"}),
    "a member that takes turns": (ms.ModLat, {"structure": ms.Chain(hidden=2)}),
    "a member without hidden variables": (ms.CRF, {"structure": ms.Chain(hidden=2)}),
}


def recommended(sentence: str, member: type, params: dict[str, Any]) -> Iterator[tuple[type, dict[str, Any]]]:
    """What a refusal tells the user to try instead: members and parameters, read from its words."""
    advice = sentence[sentence.index("use ") :]
    for name in re.findall(r"'([a-z-]+)'", advice):
        yield member, {**params, "support" if name == "all" else "solver": name}
    for hidden in re.findall(r"hidden=(\d)", advice):
        yield member, {**params, "structure": ms.Chain(hidden=int(hidden))}
    for call in re.findall(r"\b[A-Z]\w+\((?:[^()]|\([^()]*\))*\)", advice):
        yield member, {**params, "solver": eval(call, {name: getattr(ms.solvers, name) for name in ms.solvers.__all__})}
    for name in re.findall(r"(?<![\w=(])[A-Z]\w+(?![\w(])", advice):
        if hasattr(ms.solvers, name):
            yield member, {**params, "solver": getattr(ms.solvers, name)()}
        else:
            yield getattr(ms, name), params


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("name", REFUSED)
def test_what_a_refusal_recommends_is_accepted(name: str, local: Any) -> None:
    member, params = REFUSED[name]
    X = [np.array([[0.5, 1.0], [-1.0, 0.3]]), np.array([[1.0, -0.5]])]
    y = [["a", None], ["b"]] if member in (ms.HCRF, ms.MSSVM, ms.LSSVM, ms.ModLat) else [["a", "b"], ["b"]]
    with ms.distributed(local):
        data = ms.ShardedDataset([Loaded(X, y)], ms.Chain())
        with pytest.raises((UnsupportedError, InputError)) as refusal:
            member(**params, random_state=0).fit(data)
        advice = list(recommended(str(refusal.value), member, params))
        assert advice, f"no alternative was read from {refusal.value}"
        for other, changed in advice:
            solver = changed.get("solver", "auto")
            by_name = isinstance(solver, str)
            if not by_name:
                changed = {**changed, "solver": replace(solver, max_iter=3)}  # acceptance is at stake, not convergence
            fitted = other(**changed, max_iter=3 if by_name else None, random_state=0).fit(data)
            assert np.isfinite(fitted.coef_).all()


@pytest.mark.slow
def test_bags_and_delayed_loaders_are_shards(local: Any, dense: Any) -> None:
    _, X, y = dense
    alone = MEMBERS["crf"]().fit(X[:40], y[:40])
    with ms.distributed(local):
        pairs = bag.from_sequence(list(zip(X[:40], y[:40], strict=True)), npartitions=3)
        _same(MEMBERS["crf"]().fit(ms.ShardedDataset(pairs, "chain")), alone)
        late = [delayed(Loaded(X[:20], y[:20]))(), delayed(Loaded(X[20:40], y[20:40]))()]
        _same(MEMBERS["crf"]().fit(ms.ShardedDataset(late, "chain")), alone)


@pytest.mark.slow
@pytest.mark.parametrize(("function", "calls"), [("evaluate", 3), ("reduce", 4)])
def test_a_worker_killed_changes_nothing(function: str, calls: int, local: Any, dense: Any, tmp_path: Path) -> None:
    pattern, X, y = dense
    alone = MEMBERS["mssvm"]().fit(X, y)
    flag = tmp_path / "died"
    with ms.distributed(local):
        _settle(local)
        local.run(arm, function, str(flag), calls)
        _same(MEMBERS["mssvm"]().fit(ms.ShardedDataset(pattern)), alone)
    assert flag.exists()


@pytest.mark.slow
def test_a_killed_client_goes_on_from_its_checkpoint(
    local: Any, dense: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pattern, X, y = dense
    target = tmp_path / "m.safetensors"
    most = 150
    command = [sys.executable, "-m", "mssvm", "fit", pattern, "-o", str(target), "--method", "hcrf", "--hidden", "2"]
    command += ["--tol", "1e-12", "--max-iter", f"{most}", "--cluster", local.scheduler.address]
    first = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    while not list(tmp_path.glob("*.checkpoint-*")) and first.poll() is None:
        time.sleep(0.02)
    first.send_signal(signal.SIGKILL)
    assert first.wait() == -signal.SIGKILL
    assert subprocess.run([*command, "--resume"], capture_output=True).returncode == 0
    monkeypatch.undo()  # the command has blocks of the usual size
    alone = ms.HCRF(ms.Chain(hidden=2), max_iter=most, tol=1e-12, random_state=0).fit(X, y)
    np.testing.assert_array_equal(ms.load(target).coef_, alone.coef_)


@pytest.mark.slow
def test_a_lost_scheduler_is_one_sentence_and_the_checkpoint_stays(dense: Any, tmp_path: Path) -> None:
    run = [sys.executable, "-m"]
    file = tmp_path / "scheduler.json"
    scheduler = subprocess.Popen(
        [*run, "distributed.cli.dask_scheduler", "--port", "0", "--no-dashboard", "--scheduler-file", str(file)],
        stderr=subprocess.DEVNULL,
    )
    worker = subprocess.Popen(
        [
            *run,
            "distributed.cli.dask_worker",
            "--scheduler-file",
            str(file),
            "--nthreads",
            "1",
            "--no-nanny",
            "--no-dashboard",
            "--local-directory",
            str(tmp_path),
        ],
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    checkpoint = ms.solvers.Checkpoint(tmp_path / "run", every_seconds=0.0)

    def end(row: Any, w: Any) -> None:
        if row.iteration == 3:
            scheduler.kill()
            scheduler.wait()

    while not file.exists():
        time.sleep(0.1)
    try:
        with (
            config.set({"distributed.comm.timeouts.connect": "2s"}),
            Client(scheduler_file=str(file), timeout=5, set_as_default=False) as client,
            ms.distributed(client),
            pytest.raises(ClusterError, match=r"scheduler was lost .*checkpoints are kept"),
        ):
            MEMBERS["hcrf"]().fit(ms.ShardedDataset(dense[0]), checkpoint=checkpoint, callback=end)
    finally:
        for process in (scheduler, worker):
            process.kill()
            process.wait()
    assert list(tmp_path.glob("run-*"))


def test_a_bad_line_is_named_before_the_first_iteration(local: Any, tmp_path: Path) -> None:
    write_shards(tmp_path)
    bad = tmp_path / "part-3.jsonl"
    lines = bad.read_text().splitlines()
    bad.write_text("\n".join([*lines[:4], '{"x": [[1, 2, 3, "four"]], "y": ["A"]}', *lines[4:]]))
    rows: list[Any] = []
    with ms.distributed(local), pytest.raises(InputError, match=r"part-3\.jsonl, line 5"):
        data = ms.ShardedDataset(str(tmp_path / "part-*.jsonl"))
        MEMBERS["crf"]().fit(data, callback=lambda row, w: rows.append(row))
    assert not rows


def test_a_label_against_the_constraints_is_named_too(local: Any, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"x": [[1.0], [2.0]], "y": ["A", "B"]}\n')
    (tmp_path / "b.jsonl").write_text('{"x": [[1.0], [2.0]], "y": ["A", "A"]}\n{"x": [[1.0]], "y": ["B"]}\n')
    with ms.distributed(local), pytest.raises(InputError, match=r"b\.jsonl, line 2"):
        ms.CRF(ms.Chain(forbidden=[(None, "B")])).fit(ms.ShardedDataset(str(tmp_path / "*.jsonl")))


@pytest.mark.slow
@pytest.mark.parametrize(("kills", "told"), [(False, "ran out of memory on shard 1"), (True, "lost.*on shard 1")])
def test_a_worker_out_of_memory_is_named_with_the_shard(kills: bool, told: str, local: Any, dense: Any) -> None:
    _, X, y = dense
    with ms.distributed(local), pytest.raises((InputError, ClusterError), match=told):
        MEMBERS["crf"]().fit(ms.ShardedDataset([Loaded(X, y), Fatal(kills)]))


@pytest.mark.slow
def test_blocks_beyond_the_memory_are_bound_anew(local: Any, dense: Any) -> None:
    pattern, X, y = dense
    alone = MEMBERS["hcrf"]().fit(X, y)
    with ms.distributed(local):
        data = ms.ShardedDataset(pattern)
        MEMBERS["crf"]().fit(data)

        def little(dask_worker: Any) -> None:
            dask_worker.plugins[PLUGIN].shelf.budget = 100_000

        def made(dask_worker: Any) -> int:
            return sum(block.bytes for block in dask_worker.plugins[PLUGIN].shelf._blocks.values())

        local.run(little)
        _same(MEMBERS["hcrf"]().fit(data), alone)
        assert 0 < max(local.run(made).values()) <= 100_000


def test_predictions_are_one_file_a_shard_in_order(local: Any, dense: Any, tmp_path: Path) -> None:
    pattern, X, y = dense
    model = MEMBERS["crf"]().fit(X, y)
    with ms.distributed(local):
        files = model.predict(ms.ShardedDataset(pattern), output=tmp_path / "out")
    assert [Path(file).name for file in files] == [f"part-{k}.jsonl" for k in range(5)]
    found = [json.loads(line)["y"] for file in files for line in Path(file).read_text().splitlines()]
    assert found == [labels.tolist() for labels in model.predict(X)]


def test_what_cannot_be_is_refused_in_a_sentence(local: Any, dense: Any, tmp_path: Path) -> None:
    data = ms.ShardedDataset(dense[0])
    with pytest.raises(InputError, match=r"open one: with ms\.distributed"):
        ms.CRF().fit(data)
    with ms.distributed(local):
        for change, error, told in (
            ({"support": "seen"}, UnsupportedError, "support='all'"),
            ({"structure": ms.Chain(hidden=2)}, InputError, "no hidden variables"),
            ({"structure": ms.MultiLabel()}, UnsupportedError, "all labels at once"),
        ):
            with pytest.raises(error, match=told):
                ms.CRF(**change).fit(data)
        with pytest.raises(InputError, match="shards hold their labels"):
            ms.CRF().fit(data, dense[2])
    with pytest.raises(InputError, match="no file matches"):
        ms.ShardedDataset(str(tmp_path / "*.jsonl"))
    with pytest.raises(InputError, match="structure must be"):
        ms.ShardedDataset(dense[0], "cube")


@pytest.mark.slow
def test_without_dask_one_sentence_says_what_to_install() -> None:
    code = "import sys; sys.modules['dask'] = None\nimport mssvm as ms\nms.distributed"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert 'clusters need Dask; run pip install "mssvm[dask]".' in done.stderr.splitlines()[-1]
