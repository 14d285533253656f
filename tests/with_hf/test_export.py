"""Exported programs and ONNX files against the layer and the estimators, on batches and lengths unseen at export."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch

import mssvm as ms
from mssvm.core.errors import UnsupportedError
from mssvm.torch import ChainDecoder, StructuredLoss
from mssvm.torch.onnx import BATCH, SITES, write

K = 4
D = 3
TAGS = ["O", "B-x", "I-x", "B-y"]
CHAINS = {
    "plain": (ms.Chain(), 1.0),
    "bio": (ms.Chain(forbidden="bio", ends=True), 1.0),
    "hidden at 1": (ms.Chain(hidden=2, forbidden="bio"), 1.0),
    "hidden at .5, direct": (ms.Chain(hidden=3, direct=True), 0.5),
    "linked at 0": (ms.Chain(hidden=2, linked=True, forbidden=[("O", "I-x")]), 0.0),
}


class Network(torch.nn.Module):
    """Scores of every group of a chain from features; links have tables of their own."""

    def __init__(self, chain: ms.Chain) -> None:
        super().__init__()
        self.chain = chain
        hidden = chain.hidden
        sizes = {"node": K, "edge": K * K, "first": K, "last": K, "hidden": hidden, "between": hidden}
        sizes |= {"attach": K * hidden, "left": K * hidden, "right": hidden * K, "hidden.edge": hidden * hidden}
        self.layers = torch.nn.ModuleDict()
        for name, size in sizes.items():
            if size:
                self.layers[name.replace(".", "_")] = torch.nn.Linear(D, size)
        for parameter in self.parameters():
            torch.nn.init.normal_(parameter)

    def _of(self, name: str, x: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
        return self.layers[name.replace(".", "_")](x).unflatten(-1, shape)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        chain = self.chain
        hidden = chain.hidden
        links = x  # a row behind the last site, too, which is not read
        nothing = x.new_zeros(D)
        scores = {"node": self._of("node", x, (K,))}
        if not hidden or chain.direct:
            scores["edge"] = self._of("edge", links, (K, K))
        if chain.ends:
            scores |= {"first": self._of("first", nothing, (K,)), "last": self._of("last", nothing, (K,))}
        if hidden and chain.linked:
            scores |= {"hidden": self._of("hidden", x, (hidden,)), "attach": self._of("attach", nothing, (K, hidden))}
            scores["hidden.edge"] = self._of("hidden.edge", links, (hidden, hidden))
        elif hidden:
            scores |= {"left": self._of("left", nothing, (K, hidden)), "right": self._of("right", nothing, (hidden, K))}
            scores["between"] = self._of("between", links, (hidden,))
        return scores


class Tagger(torch.nn.Module):
    def __init__(self, chain: ms.Chain, eps_h: float, decode: str = "map") -> None:
        super().__init__()
        self.network = Network(chain)
        self.decoder = ChainDecoder(chain, TAGS, eps_h, decode=decode)

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        found: tuple[torch.Tensor, torch.Tensor] = self.decoder(self.network(x), lengths)
        return found


def numbered(chain: ms.Chain) -> ms.Chain:
    """The chain with pairs of numbers as its forbidden transitions: the layer's classes have no names."""
    from mssvm.structures.tags import illegal_pairs

    pairs = chain.forbidden
    if isinstance(pairs, str):
        pairs = illegal_pairs(pairs, TAGS)
    number = {tag: k for k, tag in enumerate(TAGS)} | {None: None}
    named = None if pairs is None else [(number[a], number[b]) for a, b in pairs]
    return ms.Chain(chain.hidden, chain.linked, chain.direct, chain.ends, named)


def batches() -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Ragged batches of every length from 1 to 60, of batch sizes that were not those of the export."""
    generator = torch.Generator().manual_seed(0)
    out = []
    for longest in (*range(1, 61, 3), 2, 59, 60):
        size = int(torch.randint(1, 6, (), generator=generator))
        lengths = torch.randint(1, longest + 1, (size,), generator=generator)
        lengths[0] = longest
        out.append((torch.randn(size, longest, D, generator=generator), lengths))
    return out


def session(path: Path) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


@pytest.mark.parametrize(
    ("name", "dtype"), [*((name, torch.float64) for name in CHAINS), ("hidden at 1", torch.float32)]
)
def test_network_and_decoder_as_onnx(name: str, dtype: torch.dtype, tmp_path: Path) -> None:
    torch.manual_seed(1)
    chain, eps_h = CHAINS[name]
    tagger = Tagger(chain, eps_h).to(dtype)
    example = {"x": torch.zeros(2, 5, D, dtype=dtype), "lengths": torch.tensor([5, 3])}
    axes = {"x": (BATCH, SITES), "lengths": (BATCH,)}
    write(tagger, tmp_path / "tagger.onnx", example, axes, ("states", "marginals"), {})
    running = session(tmp_path / "tagger.onnx")
    layer = StructuredLoss(numbered(chain), 0.0, eps_h)
    for x, lengths in batches():
        given = x.to(dtype)
        states, marginals = running.run(None, {"x": given.numpy(), "lengths": lengths.numpy()})
        with torch.no_grad():
            scores = tagger.network(given)
        assert np.array_equal(states, layer.decode(scores, lengths=lengths).numpy())
        close = 1e-9 if dtype == torch.float64 else 1e-4
        assert np.abs(marginals - layer.marginals(scores, lengths=lengths).numpy()).max() < close


def test_an_exported_program_runs_at_other_lengths() -> None:
    torch.manual_seed(2)
    tagger = Tagger(*CHAINS["hidden at 1"]).eval()
    batch = torch.export.Dim("batch")
    sites = torch.export.Dim("sites")
    example = (torch.zeros(2, 5, D), torch.tensor([5, 3]))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of PyTorch about its own future
        program = torch.export.export(tagger, example, dynamic_shapes=({0: batch, 1: sites}, {0: batch}))
        assert sum(node.target is torch.ops.higher_order.scan for node in program.graph.nodes) == 4
        for x, lengths in [(torch.randn(3, n, D), torch.tensor([n, 1, n // 2])) for n in (2, 7, 40)]:
            with torch.no_grad():
                found = program.module()(x, lengths)
                want = tagger(x, lengths)
            assert torch.equal(found[0], want[0])
            torch.testing.assert_close(found[1], want[1])


# ----------------------------------------------------------------------------------------- fitted estimators


def sequences(n: int, edges: bool = False, seed: int = 0) -> tuple[list[Any], list[list[str]]]:
    rng = np.random.default_rng(seed)
    X: list[Any] = []
    y = []
    for length in rng.integers(1, 12, size=n):
        inside = np.zeros(length, dtype=int)
        for t in range(length):
            allowed = [0, 1, 3] + ([2] if t and inside[t - 1] in (1, 2) else [])
            inside[t] = rng.choice(allowed)
        x = rng.normal(size=(length, K)) + np.eye(K)[inside]
        X.append({"x": x, "edge_x": rng.normal(size=(length - 1, 2))} if edges else x)
        y.append([TAGS[k] for k in inside])
    return X, y


ESTIMATORS: dict[str, Any] = {
    "CRF, marginal": ms.CRF(ms.Chain(), decode="marginal"),
    "CRF, map, bio": ms.CRF(ms.Chain(forbidden="bio", ends=True)),
    "CRF, marginal, bio": ms.CRF(ms.Chain(forbidden="bio"), decode="marginal"),
    "SSVM": ms.SSVM(ms.Chain()),
    "MSSVM, bio": ms.MSSVM(ms.Chain(hidden=2, forbidden="bio"), random_state=0),
    "LSSVM, direct": ms.LSSVM(ms.Chain(hidden=2, direct=True), random_state=0),
    "HCRF, linked": ms.HCRF(ms.Chain(hidden=2, linked=True), decode="marginal", random_state=0),
    "epsilon": ms.EpsilonSSVM(ms.Chain(hidden=3), eps=0.4, random_state=0),
    "fixed": ms.CRF(ms.Chain(fixed={"transition": {("O", "O"): 2.0}})),
}


def padded(parts: list[Any], width: int) -> np.ndarray[Any, Any]:
    out = np.zeros((len(parts), max(map(len, parts)), width))
    for b, part in enumerate(parts):
        out[b, : len(part)] = part
    return out


def check(clf: Any, X: list[Any], path: Path, **inputs: Any) -> None:
    states, marginals = session(path).run(None, inputs)
    for b, (labels, probabilities) in enumerate(zip(clf.predict(X), clf.predict_marginals(X), strict=True)):
        n = len(labels)
        assert clf.classes_[states[b, :n]].tolist() == labels.tolist()
        assert np.all(states[b, n:] == -100) and np.all(marginals[b, n:] == 0.0)
        np.testing.assert_allclose(marginals[b, :n], probabilities, atol=1e-9)


@pytest.mark.parametrize("name", ESTIMATORS)
def test_fitted_estimators_as_onnx(name: str, tmp_path: Path) -> None:
    X, y = sequences(30)
    clf = ESTIMATORS[name].fit(X, y)
    clf.to_onnx(tmp_path / "model.onnx")
    new, _ = sequences(40, seed=1)
    lengths = np.array([len(x) for x in new])
    check(clf, new, tmp_path / "model.onnx", x=padded(new, K), lengths=lengths)
    stored = session(tmp_path / "model.onnx").get_modelmeta().custom_metadata_map["classes"]
    assert json.loads(stored) == clf.classes_.tolist()


@pytest.mark.parametrize("chain", [ms.Chain(), ms.Chain(hidden=2, direct=True)])
def test_features_of_links_and_calibration(chain: ms.Chain, tmp_path: Path) -> None:
    X, y = sequences(30, edges=True)
    clf = ms.HCRF(chain, random_state=0).fit(X, y).calibrate(*sequences(20, edges=True, seed=3))
    clf.to_onnx(tmp_path / "model.onnx")
    new, _ = sequences(20, edges=True, seed=1)
    sites = [item["x"] for item in new]
    links = padded([np.vstack([item["edge_x"], np.zeros((1, 2))]) for item in new], 2)
    lengths = np.array([len(x) for x in sites])
    check(clf, new, tmp_path / "model.onnx", x=padded(sites, K), edge_x=links, lengths=lengths)


def test_single_precision(tmp_path: Path) -> None:
    X, y = sequences(30)
    clf = ms.CRF(ms.Chain()).fit(X, y)
    clf.to_onnx(tmp_path / "model.onnx", dtype="float32")
    lengths = np.array([len(x) for x in X])
    inputs = {"x": padded(X, K).astype(np.float32), "lengths": lengths}
    marginals = session(tmp_path / "model.onnx").run(None, inputs)[1]
    for b, probabilities in enumerate(clf.predict_marginals(X)):
        np.testing.assert_allclose(marginals[b, : lengths[b]], probabilities, atol=1e-5)


def test_what_cannot_be_exported_is_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    X, y = sequences(10)
    with pytest.raises(UnsupportedError, match="only models on chains"):
        ms.CRF(ms.Grid()).fit([np.zeros((2, 2, 1))], [[["a", "b"], ["b", "a"]]]).to_onnx(path)
    with pytest.raises(UnsupportedError, match="dense features"):
        ms.CRF(ms.Chain()).fit([["the", "cat"]], [["D", "N"]]).to_onnx(path)
    with pytest.raises(UnsupportedError, match="no exact recursion"):
        ms.HCRF(ms.Chain(hidden=2, linked=True), random_state=0).fit(X, y).to_onnx(path, decode="map")
    with pytest.raises(UnsupportedError, match="dtype"):
        ms.CRF(ms.Chain()).fit(X, y).to_onnx(path, dtype="float16")
    weighted = ms.SSVM(ms.Chain(), loss=ms.losses.WeightedHamming([2.0, 1.0, 1.0, 1.0])).fit(X, y)
    with pytest.raises(UnsupportedError, match="use decode='map'"):
        weighted.to_onnx(path, decode="marginal")
    assert not path.exists()
