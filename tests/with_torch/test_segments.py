"""Segmentations in the layer and on the torch engine: the kernel lane by lane on the CPU, and on a GPU where there is
one, beside the native engine; values by brute force; gradients by differences."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import mssvm as ms
from mssvm.core.errors import InputError, UnsupportedError
from mssvm.core.potentials import Potentials, Query
from mssvm.data.labels import LabelVocabulary
from mssvm.engines.native.engine import NativeEngine
from mssvm.engines.torch import TorchEngine
from mssvm.engines.torch import segments as engine
from mssvm.structures import Encoder, Schema
from mssvm.structures.layout import BatchLayout
from mssvm.torch import StructuredLoss
from with_torch import fibers

TEMPERATURES = (0.0, 0.03, 0.5, 1.0, 3.0)
STRENGTHS = (1.0, 30.0, 300.0, 3e4)


@pytest.fixture(params=fibers.DEVICES)
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    return fibers.kernel_device(request.param, monkeypatch)


class Draw:
    """Random models of segments with forbidden transitions and lengths, masks of labels and known boundaries."""

    def __init__(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        labels = int(rng.integers(1, 6))
        longest = int(rng.choice([1, 3, 5, 40, 300]))
        limits = {k: int(rng.integers(1, longest + 1)) for k in range(labels)} if rng.random() < 0.5 else longest
        repeat = True if labels == 1 else bool(rng.random() < 0.7)
        structure = ms.Segments(max_length=limits, borders=bool(rng.random() < 0.5), repeat=repeat, ends=True)
        encoder = Encoder(structure, Schema({}, {}), LabelVocabulary(tuple(range(labels))))
        sites = rng.integers(1, 9, size=int(rng.integers(1, 5))).tolist() + [60] * int(seed % 5 == 0)
        numbers: dict[int, int] = {}
        kind_of = np.array([numbers.setdefault(n, len(numbers)) for n in sites])
        layout = BatchLayout(tuple(map(encoder.topology, numbers)), kind_of, constraints=encoder.constraints)
        self.batch = layout.batch
        self.layout = structure.segment_layout(encoder.schema, encoder.vocabulary)
        self.strength = float(rng.choice(STRENGTHS))
        unary = self.strength * rng.normal(size=self.batch.n_states)
        tables = self.strength * rng.normal(size=self.batch.n_table_entries)
        if layout.offset is not None:
            tables = tables + layout.offset.tables
        self.theta = Potentials(unary, tables)
        allowed = layout.query.allowed.copy()
        for first in self.batch.unary_ptr[layout.labels.vars]:
            if rng.random() < 0.3:
                mask = rng.random(labels) < 0.6
                mask[rng.integers(labels)] = True
                allowed[first : first + labels] &= mask
        assert layout.segments is not None
        for first in layout.segments.boundary:
            narrower = allowed[first : first + 2] & (np.arange(2) == rng.integers(2))
            if rng.random() < 0.2 and narrower.any():
                allowed[first : first + 2] = narrower
        self.query = Query(layout.query.output, allowed)


@pytest.mark.parametrize("seed", range(60))
def test_the_kernel_equals_the_native_engine(seed: int, device: str) -> None:
    draw = Draw(seed)
    eps = TEMPERATURES[seed % 5]
    want = NativeEngine(1).segments(draw.batch, draw.layout).bind(draw.query, eps, 1.0)(draw.theta)
    for precision, tolerance in (("double", 1e-12), ("single", 2e-6)):
        plan = TorchEngine(device, precision).segments(draw.batch, draw.layout)
        bound = plan.bind(draw.query, eps, 1.0)
        found = bound(draw.theta)
        assert found.status.method == (engine.METHOD,) * len(draw.batch)
        possible = np.isfinite(want.value)
        assert np.array_equal(possible, np.isfinite(found.value))
        largest = 1.0 + 70 * draw.strength
        np.testing.assert_allclose(found.value[possible], want.value[possible], atol=tolerance * largest)
        np.testing.assert_allclose(bound.value(draw.theta)[possible], found.value[possible], rtol=1e-12)
        if precision == "single" and (eps < 0.5 or draw.strength > 1.0):
            continue  # scores that are rounded to single precision have other weights
        if eps:
            tolerance *= largest / eps
        np.testing.assert_allclose(found.mu.unary, want.mu.unary, atol=10 * tolerance)
        np.testing.assert_allclose(found.mu.tables, want.mu.tables, atol=100 * tolerance)


def test_hidden_states_and_single_spans_are_left_to_the_native_engine(device: str) -> None:
    rng = np.random.default_rng(0)
    X = [rng.normal(size=(n, 2)) for n in (5, 3)]
    y = [["a", "a", "b", "b", "b"], ["b", ms.MISSING, "a"]]
    structure = ms.Segments(max_length=4, hidden=2)
    model = ms.HCRF(structure, random_state=0, max_iter=3).fit(X, y)
    assert not TorchEngine(device).segments(*_batch_of(model, X)).able
    spans = ms.CRF(ms.Segments(max_length=4), max_iter=3).fit(X, y)
    assert TorchEngine(device).segments(*_batch_of(spans, X)).able


def _batch_of(model: Any, X: Any) -> tuple[Any, Any]:
    encoder = model.encoder_ if hasattr(model, "encoder_") else model._fitted.encoder
    return encoder.encode(X).batch, encoder.structure.segment_layout(encoder.schema, encoder.vocabulary)


SIZES = {"sites": 7, "classes": 3, "longest": 4, "hidden": 2}


def tensors(*shape: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(shape) + 31 * len(shape) + seed)
    return torch.randn(*shape, dtype=torch.float64, generator=generator).requires_grad_()


def scores_of(structure: ms.Segments) -> dict[str, torch.Tensor]:
    n = 3
    sites, classes, hidden = SIZES["sites"], SIZES["classes"], SIZES["hidden"]
    found = {
        "node": tensors(n, sites, classes),
        "transition": tensors(classes, classes),
        "duration": tensors(SIZES["longest"], classes),
    }
    if structure.ends:
        found |= {"begin": tensors(classes, seed=1), "end": tensors(classes, seed=2)}
    if structure.borders:
        found |= {"first": tensors(n, sites, classes, seed=3), "last": tensors(n, sites, classes, seed=4)}
        found["boundary"] = tensors(n, sites, 2)
    if structure.hidden:
        found |= {"hidden": tensors(n, sites, classes, hidden), "attach": tensors(classes, hidden)}
    if structure.moving:
        found["move"] = tensors(classes, hidden, hidden)
    return found


STRUCTURES = {
    "plain": ms.Segments(max_length=4, repeat=True),
    "borders": ms.Segments(max_length=4, ends=True, borders=True, repeat=True),
    "hidden": ms.Segments(max_length=4, hidden=2),
    "moving": ms.Segments(max_length=4, hidden=2, moving=True, repeat=True),
}
LENGTHS = torch.tensor([7, 4, 1])
Y = torch.tensor([[0, -100, 1, 1, -100, -100, 2], [1, 1, -100, 0, 0, 0, 0], [-100, 0, 0, 0, 0, 0, 0]])


@pytest.mark.parametrize(("eps_y", "eps_h"), [(1.0, 1.0), (0.0, 1.0), (0.5, 0.3)])
@pytest.mark.parametrize("name", STRUCTURES)
def test_the_layer_has_the_native_values_and_their_gradients(name: str, eps_y: float, eps_h: float) -> None:
    structure = STRUCTURES[name]
    scores = scores_of(structure)
    layer = StructuredLoss(structure, eps_y, eps_h, reduction="none")

    def function(*parts: torch.Tensor) -> torch.Tensor:
        return layer(dict(zip(scores, parts, strict=True)), Y, lengths=LENGTHS)

    assert torch.autograd.gradcheck(function, tuple(scores.values()))
    assert (function(*scores.values()) >= 0).all()
    marginals = layer.marginals(scores, lengths=LENGTHS)
    inside = torch.arange(7) < LENGTHS[:, None]
    torch.testing.assert_close(marginals.sum(-1), inside.double())
    labels = layer.decode(scores, lengths=LENGTHS)
    for spans, row, length in zip(layer.segments(scores, lengths=LENGTHS), labels, LENGTHS, strict=True):
        assert [label for start, stop, label in spans for _ in range(start, stop)] == row[:length].tolist()
        assert all(stop - start <= SIZES["longest"] for start, stop, _ in spans)


def test_segments_of_one_site_are_a_chain() -> None:
    scores = {"node": tensors(3, 7, 3), "transition": tensors(3, 3)}
    chain = StructuredLoss(ms.Chain(), 1.0, 1.0, "zero", reduction="none")
    segments = StructuredLoss(ms.Segments(max_length=1, repeat=True), 1.0, 1.0, "zero", reduction="none")
    given = {"node": scores["node"], "edge": scores["transition"]}
    for method in ("log_partition", "marginals", "decode", "entropy"):
        one = getattr(segments, method)(scores, lengths=LENGTHS)
        two = getattr(chain, method)(given, lengths=LENGTHS)
        torch.testing.assert_close(one, two)
    y = Y.clamp(min=0)
    torch.testing.assert_close(segments(scores, y, lengths=LENGTHS), chain(given, y, lengths=LENGTHS))


@pytest.mark.parametrize("name", ["plain", "borders"])
def test_the_layer_on_the_kernel(name: str, device: str) -> None:
    """The same as by the native engine, which CPU tensors go to."""
    structure = STRUCTURES[name]
    scores = scores_of(structure)
    on_device = {key: value.detach().to(device).requires_grad_() for key, value in scores.items()}
    ours = StructuredLoss(structure, 0.0, 1.0)
    if device == "cpu":
        ours._planner = lambda laid, **_: _torch_planner(ours, laid)  # type: ignore[method-assign]
    found = ours(on_device, Y.to(device), lengths=LENGTHS)
    found.backward()
    want = StructuredLoss(structure, 0.0, 1.0)(scores, Y, lengths=LENGTHS)
    want.backward()
    torch.testing.assert_close(found.cpu(), want)
    for key, value in scores.items():
        torch.testing.assert_close(on_device[key].grad.cpu(), value.grad)


def _torch_planner(layer: StructuredLoss, laid: Any) -> Any:
    from mssvm.inference.base import Planner

    inference = layer.structure.inference(laid.layout.encoder)
    assert inference is not None
    return Planner(inference, TorchEngine("cpu"))


def test_samples_spans_and_errors() -> None:
    layer = StructuredLoss(ms.Segments(max_length=4, repeat=True), 1.0, 1.0)
    scores = scores_of(STRUCTURES["plain"])
    draws = layer.sample(scores, n=2000, lengths=LENGTHS, generator=torch.Generator().manual_seed(0))
    counted = torch.stack([torch.nn.functional.one_hot(d.clamp(min=0), 3) for d in draws]).double().mean(0)
    marginals = layer.marginals(scores, lengths=LENGTHS)
    inside = torch.arange(7) < LENGTHS[:, None]
    assert (counted - marginals)[inside].abs().max() < 0.05
    spans = [[(0, 2, 0), (2, 6, 1)], {"sites": [1, ms.MISSING, 0, 0]}, [(0, 1, 2)]]
    assert float(layer(scores, spans, lengths=LENGTHS).detach()) > 0
    with pytest.raises(InputError, match=r"the span \(0, 5, 0\) has 5 sites"):
        layer(scores, [[(0, 5, 0)], [(0, 1, 0)], [(0, 1, 0)]], lengths=LENGTHS)
    with pytest.raises(UnsupportedError, match="Chain has no segments"):
        StructuredLoss(ms.Chain()).segments({"node": torch.zeros(1, 2, 2), "edge": torch.zeros(2, 2)})
    with pytest.raises(UnsupportedError, match="scores of single segments"):
        layer({**scores, "segment": torch.zeros(3, 7, 4, 3)}, Y, lengths=LENGTHS)


def test_estimators_train_on_the_kernel(device: str) -> None:
    """The same weights as by the native engine."""
    rng = np.random.default_rng(0)
    X = [rng.normal(size=(n, 2)) for n in (9, 6, 4)]
    y = [["a"] * 4 + ["b"] * 5, ["b"] * 3 + [ms.MISSING] * 3, ["b", "a", "a", "a"]]
    settings: dict[str, Any] = {"max_iter": 5, "random_state": 0}
    native = ms.CRF(ms.Segments(max_length=6), **settings).fit(X, y)
    kernel = ms.CRF(ms.Segments(max_length=6), device=device, **settings).fit(X, y)
    assert kernel.objective_ == pytest.approx(native.objective_, rel=1e-9)
    assert [list(part) for part in kernel.predict(X)] == [list(part) for part in native.predict(X)]
