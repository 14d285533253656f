"""The layer's fast path: its kernel lane by lane on the CPU, and on a GPU where there is one, beside the general path
and brute force; the errors it reports; and ``torch.compile``."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import numpy as np
import pytest
import torch

import mssvm as ms
from mssvm.core.errors import InfeasibleError, InputError, UnsupportedError
from mssvm.engines.torch import padded as engine
from mssvm.inference.enumerate import Enumerate
from mssvm.losses import Hamming
from mssvm.torch import StructuredLoss
from with_torch import fibers
from with_torch.models import MODELS, PAIRS, Model

SHORT = ["padded chains", "chains with ends and candidates", "chains with hidden between"]
STRENGTHS = (1.0, 30.0, 300.0, 3e4)


@pytest.fixture(params=fibers.DEVICES)
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    return fibers.kernel_device(request.param, monkeypatch)


def moved(value: Any, device: str) -> Any:
    """Tensors in mappings, on a device, leaves that need a gradient as before."""
    if isinstance(value, dict):
        return {name: moved(part, device) for name, part in value.items()}
    if not torch.is_tensor(value):
        return value
    return value.detach().to(device).requires_grad_(value.requires_grad)


def taken(layer: StructuredLoss, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Calls of the layer that did not take the fast path."""
    general: list[Any] = []
    for name in ("objective", "value_function"):
        monkeypatch.setattr(layer, name, lambda *a, name=name: general.append(name))
    return general


def drawn(seed: int) -> Model:
    """Random chains: lengths from 1, labels missing or in sets, tables shared or each its own, hidden states, ends and
    forbidden pairs."""
    rng = torch.Generator().manual_seed(seed)

    def one_of(*values: Any) -> Any:
        return values[int(torch.randint(len(values), (1,), generator=rng))]

    n = one_of(1, 3, 5)
    longest = one_of(1, 2, 5, 7)
    classes = one_of(2, 3, 5)
    hidden = one_of(0, 0, 2)
    strength = one_of(*STRENGTHS)
    ends = one_of(True, False)
    forbidden = one_of(None, [(0, 1), (None, 1)])

    def scores(*shape: int) -> torch.Tensor:
        return (strength * torch.randn(shape, dtype=torch.float64, generator=rng)).requires_grad_()

    def table(*states: int) -> torch.Tensor:
        return scores(*one_of(states, (n, longest - 1, *states)))

    given = {"node": scores(n, longest, classes)}
    if hidden:
        given |= {"left": table(classes, hidden), "right": table(hidden, classes), "between": table(hidden)}
    else:
        given["edge"] = table(classes, classes)
    if ends:
        given |= {"first": scores(classes), "last": scores(n, 1, classes)}
    y = torch.randint(0, classes, (n, longest), generator=rng)
    if forbidden:
        y = torch.where(y == 1, 0, y)
    y = torch.where(torch.rand(n, longest, generator=rng) < one_of(0.0, 0.5, 0.9), -100, y)
    if one_of(True, False):
        sets = torch.nn.functional.one_hot(y.clamp(min=0), classes).bool()
        sets = sets | (torch.rand(sets.shape, generator=rng) < 0.2)
        y = sets & (y >= 0)[..., None]
    lengths = torch.randint(1, longest + 1, (n,), generator=rng)
    lengths[0] = longest
    structure = ms.Chain(hidden=hidden, ends=ends, forbidden=forbidden)
    shape = one_of({}, {"lengths": lengths}, {"mask": torch.arange(longest) < lengths[:, None]})
    return Model(structure, given, y, shape)


@pytest.mark.parametrize("seed", range(60))
def test_the_kernel_equals_the_general_way(seed: int, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Values, gradients, marginals and best labels, at pairs of temperatures, zeros included."""
    model = drawn(seed)
    eps_y, eps_h = [(0.0, 1.0), (1.0, 1.0), (0.0, 0.0), (0.5, 1.0), (1.0, 0.0), (0.03, 0.5), (2.0, 0.03)][seed % 7]
    loss = Hamming(normalize=bool(seed % 2), scale=1.5)
    weight = torch.rand(model.scores["node"].shape[:2], generator=torch.Generator().manual_seed(seed))
    found: list[list[Any]] = []
    for where in (device, None):
        if where is None:
            monkeypatch.setattr(engine, "available", lambda _: False)
        layer = StructuredLoss(model.structure, eps_y, eps_h, loss, reduction="none")
        given = moved(model.scores, where or "cpu")
        shape = moved(model.shape, where or "cpu")
        y = moved(model.y, where or "cpu")
        general = taken(layer, monkeypatch) if where else []
        answers = [layer(given, y, site_weight=weight.to(where or "cpu"), **shape)]
        answers[0].sum().backward()
        answers += [layer.log_partition(given, given=y, **shape), layer.marginals(given, **shape)]
        answers += [layer.marginals(given, given=y, **shape)]
        best = layer.decode(given, **shape)
        assert not general
        answers += [layer.log_partition(given, given=best, **shape)] if not model.structure.hidden else []
        answers += [part.grad for part in given.values()]
        layer.check()
        found.append([answer.detach().cpu() for answer in answers])
    scale = 1.0 + max(float(part.detach().abs().max()) if part.numel() else 0.0 for part in model.scores.values())
    for one, two in zip(*found, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-9, atol=1e-10 * scale)


@pytest.mark.parametrize(("eps_y", "eps_h"), PAIRS)
@pytest.mark.parametrize("name", SHORT)
def test_brute_force_and_differences(
    name: str, eps_y: float, eps_h: float, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model: Model = MODELS[name]()
    brute = StructuredLoss(model.structure, eps_y, eps_h, reduction="none", inference=Enumerate())
    want = brute(model.scores, model.y, **model.shape)
    ours = StructuredLoss(model.structure, eps_y, eps_h, reduction="none")
    general = taken(ours, monkeypatch)
    given = moved(model.scores, device)
    y = moved(model.y, device)
    torch.testing.assert_close(ours(given, y, **model.shape).cpu(), want, rtol=1e-9, atol=1e-9)
    assert not general

    def function(*tensors: torch.Tensor) -> torch.Tensor:
        return ours(dict(zip(given, tensors, strict=True)), y, **model.shape)

    assert torch.autograd.gradcheck(function, tuple(given.values()))


def test_many_states_and_single_precision(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = torch.Generator().manual_seed(0)
    node = torch.randn(3, 6, 17, generator=rng)
    edge = torch.randn(17, 17, generator=rng)
    y = torch.where(torch.rand(3, 6, generator=rng) < 0.5, -100, torch.randint(0, 17, (3, 6), generator=rng))
    found = []
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        layer = StructuredLoss(ms.Chain(), 0.0, 1.0)
        general = taken(layer, monkeypatch)
        given = {"node": node.clone().to(device, dtype).requires_grad_(), "edge": edge.to(device, dtype)}
        value = layer(given, y.to(device))
        value.backward()
        assert not general and given["node"].grad.dtype == dtype
        found.append((float(value.detach()), given["node"].grad.double().cpu()))
    assert found[0][0] == pytest.approx(found[1][0], rel=1e-5) and found[2][0] == pytest.approx(found[1][0], rel=0.05)
    torch.testing.assert_close(found[0][1], found[1][1], atol=1e-5, rtol=0)


def test_chains_without_sites_can_be_asked(device: str) -> None:
    node = torch.ones(2, 3, 2, device=device)
    scores = {"node": node, "edge": torch.zeros(2, 2, device=device)}
    layer = StructuredLoss(ms.Chain(), 0.0, 1.0)
    lengths = torch.tensor([0, 1], device=device)
    assert layer.decode(scores, lengths=lengths).tolist() == [[-100] * 3, [0, -100, -100]]
    assert layer.log_partition(scores, lengths=lengths).tolist() == pytest.approx([0.0, 1.0 + np.log(2.0)])


def test_launches_in_parts_are_the_same(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = MODELS["padded chains"]()
    given = moved(model.scores, device)
    y = moved(model.y, device)
    layer = StructuredLoss(model.structure, 0.0, 1.0, reduction="none")
    whole = layer(given, y)
    monkeypatch.setattr(engine, "MOST_WORK", 1)
    assert torch.equal(layer(given, y), whole)


def test_second_derivatives_are_refused(device: str) -> None:
    model = MODELS["chains with hidden between"]()
    given = moved(model.scores, device)
    value = StructuredLoss(model.structure, 1.0, 1.0)(given, moved(model.y, device), **model.shape)
    gradient = torch.autograd.grad(value, given["left"], create_graph=True)[0]
    with pytest.raises(UnsupportedError, match="cannot be differentiated again"):
        gradient.sum().backward()


WRONG: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "label": ({"y": torch.tensor([[0, 1, 2], [0, 3, 0]])}, InputError, "instance 1 had a label that is not a class"),
    "weight": ({"site_weight": torch.tensor([[1.0, 1, 1], [1, -1, 1]])}, InputError, "instance 1 .* site_weight"),
    "length": ({"lengths": torch.tensor([4, 3])}, InputError, "length of instance 0 was not between"),
    "empty": ({"lengths": torch.tensor([0, 3])}, InputError, "length of instance 0 was not between"),
    "mask": ({"mask": torch.tensor([[True, False, True], [True] * 3])}, InputError, "its mask had a hole"),
    "NaN": ({"scores": torch.tensor([0.0, torch.nan, 0.0])}, InputError, "scores of instance 1 held NaN"),
    "infinite": ({"scores": torch.tensor([0.0, torch.inf, 0.0])}, InputError, "scores of instance 1 held NaN or .inf"),
    "impossible": ({"scores": torch.full((3,), -torch.inf)}, InfeasibleError, "no labelling of instance 1"),
    "negative": ({"y": torch.tensor([[0, 1, 2], [0, -1, 0]])}, FutureWarning, "instance 1 had a label below zero"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_tensors_are_reported(name: str, device: str) -> None:
    """On a GPU by ``check``, and NaN at once; with fibers by the call itself."""
    changes, kind, sentence = WRONG[name]
    node = torch.zeros(2, 3, 3)
    if "scores" in changes:
        node[1, 2] = changes["scores"]
    y = changes.get("y", torch.tensor([[0, 1, 2], [0, -100, 0]])).to(device)
    shape = {n: v.to(device) for n, v in changes.items() if n in ("site_weight", "lengths", "mask")}
    layer = StructuredLoss(ms.Chain(), 0.0, 1.0, reduction="none")
    scores = {"node": node.to(device), "edge": torch.zeros(3, 3, device=device)}

    def call() -> None:
        value = layer(scores, y, **shape)
        assert bool(torch.isnan(value).any()) == (kind is not FutureWarning)
        layer.check()

    if kind is FutureWarning:
        with pytest.warns(FutureWarning, match=sentence):
            call()
        return
    with pytest.raises(kind, match=sentence):
        call()
    copy.deepcopy(layer).check()  # reports stay with the layer that made the call


def test_other_calls_go_the_general_way(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lists of tensors, labels as lists, other losses; mistakes in shapes have the general way's sentences."""
    monkeypatch.setattr(engine.PaddedChains, "power_sums", lambda *a: pytest.fail("the fast path"))
    node = torch.zeros(2, 3, 3, device=device)
    edge = torch.zeros(3, 3, device=device)
    layer = StructuredLoss(ms.Chain(), 0.0, 1.0)
    assert float(layer({"node": list(node), "edge": edge}, [[0, 1, 2], [0, 0, ms.MISSING]])) > 0
    assert float(layer({"node": node, "edge": edge}, [[0, 1, 2], [0, {0, 1}, 2]])) > 0
    weighted = StructuredLoss(ms.Chain(), 0.0, 1.0, ms.losses.WeightedHamming([1.0, 2.0, 3.0]))
    assert float(weighted({"node": node, "edge": edge}, torch.zeros(2, 3, dtype=torch.int64, device=device))) > 0
    with pytest.raises(InputError, match="scores lack the group 'edge'"):
        layer({"node": node}, torch.zeros(2, 3, dtype=torch.int64, device=device))
    with pytest.raises(InputError, match="give one of them"):
        layer({"node": node, "edge": edge}, [[0] * 3] * 2, lengths=[3, 3], mask=torch.ones(2, 3, dtype=torch.bool))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of PyTorch's own modules
@pytest.mark.parametrize("device", ["cpu", *fibers.DEVICES[1:]])
@pytest.mark.parametrize("seed", range(8))
def test_compiled_whole(seed: int, device: str) -> None:
    """Network and loss, marginals and best labels in one graph each, with the values of the layer as it is."""
    torch.compiler.reset()
    model = drawn(100 + seed)
    layer = StructuredLoss(model.structure, 0.0, 1.0)
    factor = torch.ones((), dtype=torch.float64, device=device, requires_grad=True)
    given = {name: part.detach().to(device) for name, part in model.scores.items()}
    shape = moved(model.shape, device)
    y = moved(model.y, device)

    def step(factor: torch.Tensor) -> torch.Tensor:
        return layer({name: factor * part for name, part in given.items()}, y, **shape)

    def answers() -> tuple[torch.Tensor, ...]:
        return layer.decode(given, **shape), layer.marginals(given, **shape), layer.log_partition(given, **shape)

    def compiled(function: Any) -> Any:
        return torch.compile(function, fullgraph=True, backend="aot_eager")

    want = step(factor)
    found = compiled(step)(factor)
    torch.testing.assert_close(found, want)
    for one, two in zip(*(torch.autograd.grad(value, factor) for value in (found, want)), strict=True):
        torch.testing.assert_close(one, two)
    for one, two in zip(compiled(answers)(), answers(), strict=True):
        torch.testing.assert_close(one, two)


def test_nothing_waits_for_the_device() -> None:
    """A step on a GPU makes no call that waits for it."""
    if not torch.cuda.is_available():
        assert engine.available(torch.device("cpu")) is False
        return
    model = MODELS["chains with hidden between"]()
    given = moved(model.scores, "cuda")
    y = moved(model.y, "cuda")
    lengths = torch.tensor(model.shape["lengths"], device="cuda")
    layer = StructuredLoss(model.structure, 0.0, 1.0)
    layer(given, y, lengths=lengths).backward()
    layer.decode(given, lengths=lengths)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch says that the mode is a prototype
        torch.cuda.set_sync_debug_mode("error")
    try:
        layer(given, y, lengths=lengths).backward()
        layer.decode(given, lengths=lengths)
        layer.marginals(given, lengths=lengths)
    finally:
        torch.cuda.set_sync_debug_mode("default")
