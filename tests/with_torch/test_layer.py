"""The layer: values by brute force, gradients by finite differences, and the same answers as the estimators."""

from __future__ import annotations

import doctest
from copy import deepcopy
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import mssvm as ms
from mssvm.core.errors import InfeasibleError, InputError
from mssvm.inference.enumerate import Enumerate
from mssvm.losses import Hamming, WeightedHamming, Zero
from mssvm.torch import StructuredLinear, StructuredLoss
from mssvm.torch.labels import sample_on_device
from with_torch.models import MODELS, PAIRS, K, Model, labels, scores


def layer(model: Model, eps_y: float = 1.0, eps_h: float = 1.0, **settings: Any) -> StructuredLoss:
    return StructuredLoss(model.structure, eps_y, eps_h, **{"reduction": "none", **settings})


@pytest.mark.parametrize(("eps_y", "eps_h"), PAIRS)
@pytest.mark.parametrize("name", MODELS)
def test_objective_by_brute_force_and_gradcheck(name: str, eps_y: float, eps_h: float) -> None:
    model: Model = MODELS[name]()
    ours, brute = (layer(model, eps_y, eps_h, inference=i) for i in ("auto", Enumerate()))
    value = ours(model.scores, model.y, **model.shape)
    torch.testing.assert_close(value, brute(model.scores, model.y, **model.shape), rtol=1e-9, atol=1e-9)
    assert (value >= -1e-12).all()

    def function(*tensors: torch.Tensor) -> torch.Tensor:
        return ours(model.with_tensors(tensors), model.y, **model.shape)

    assert torch.autograd.gradcheck(function, model.tensors)


@pytest.mark.parametrize("name", MODELS)
def test_log_partition_entropy_and_marginals(name: str) -> None:
    model: Model = MODELS[name]()
    ours, brute = layer(model), layer(model, inference=Enumerate())

    def of(method: str, which: StructuredLoss = ours) -> Any:
        return lambda *tensors: getattr(which, method)(model.with_tensors(tensors), **model.shape)

    for method in ("log_partition", "entropy"):
        want = of(method, brute)(*model.tensors)
        torch.testing.assert_close(of(method)(*model.tensors), want, rtol=1e-9, atol=1e-9)
        assert torch.autograd.gradcheck(of(method), model.tensors, atol=1e-6)
    found, want = ours.marginals(model.scores, **model.shape), brute.marginals(model.scores, **model.shape)
    for one, two in zip(found, want, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", MODELS)
def test_decode_and_topk_by_brute_force(name: str) -> None:
    model: Model = MODELS[name]()
    ours = layer(model, 0.0, 1.0)
    for given in (None, model.y):
        found = ours.decode(model.scores, given=given, **model.shape)
        want = layer(model, 0.0, 1.0, inference=Enumerate()).decode(model.scores, given=given, **model.shape)
        assert all(torch.equal(one, two) for one, two in zip(found, want, strict=True))
    exact = layer(model, 0.0, 1.0, inference="exact")
    for (best, values), decoded in zip(exact.topk(model.scores, 3, **model.shape), found, strict=True):
        assert (values.diff() <= 0).all() and len(best) == len(values) <= 3
        assert len({tuple(row.reshape(-1).tolist()) for row in best}) == len(best)
        assert best.shape[1:].numel() <= decoded.numel()


def test_topk_is_the_whole_list_in_order() -> None:
    u, e = scores(1, 3, K).detach(), scores(K, K).detach()
    loss = StructuredLoss(ms.Chain(), 0.0, 1.0)
    states, values = loss.topk({"node": u, "edge": e}, 100)[0]
    every = {
        z: float(sum(u[0, t, z[t]] for t in range(3)) + sum(e[z[t], z[t + 1]] for t in range(2)))
        for z in product(range(K), repeat=3)
    }
    want = sorted(every, key=lambda z: -every[z])
    assert [tuple(row) for row in states.tolist()] == want
    np.testing.assert_allclose(values.numpy(), [every[z] for z in want], rtol=1e-12)


@pytest.mark.parametrize("name", ["padded chains", "trees", "grids", "chains with hidden between"])
def test_samples_have_the_models_marginals(name: str) -> None:
    model: Model = MODELS[name]()
    ours, n = layer(model), 60 if name == "grids" else 4000
    drawn = ours.sample(model.scores, n, generator=torch.Generator().manual_seed(1), **model.shape)
    for b, p in enumerate(ours.marginals(model.scores, **model.shape)):
        states = torch.stack([torch.as_tensor(one[b]) for one in drawn])
        share = torch.stack([(states == k).double().mean(0) for k in range(K)], dim=-1)
        assert (share - p).abs().max() < 5 * 0.5 / n**0.5


def test_samples_keep_what_is_given() -> None:
    model: Model = MODELS["padded chains"]()
    for one in layer(model).sample(model.scores, 5, given=model.y, **model.shape):
        known = (model.y >= 0) & (one >= 0)
        assert known.any() and torch.equal(one[known], model.y[known])


def test_padding_and_order_do_not_matter() -> None:
    """Padded scores with anything behind the ends, ragged ones, and instances one at a time are the same."""
    model: Model = MODELS["padded chains"]()
    u, e = model.scores["node"], model.scores["edge"]
    loss = layer(model, 0.5, 1.0)
    whole = loss(model.scores, model.y, **model.shape)
    spoiled = u.detach().clone()
    spoiled[1, 2:] = float("nan")
    torch.testing.assert_close(loss({"node": spoiled, "edge": e}, model.y, **model.shape), whole)
    rows = [(u[0], model.y[0]), (u[1, :2], model.y[1, :2])]
    ragged = loss({"node": [r for r, _ in rows], "edge": e}, [y for _, y in rows])
    torch.testing.assert_close(ragged, whole)
    alone = torch.cat([loss({"node": [r], "edge": e}, [y]) for r, y in rows])
    torch.testing.assert_close(alone, whole, rtol=1e-12, atol=1e-12)
    tables = e.expand(2, 3, K, K)
    torch.testing.assert_close(loss({"node": u, "edge": tables}, model.y, **model.shape), whole)


def test_labels_as_lists_as_classes_and_as_candidates() -> None:
    u, e = scores(1, 3, K), scores(K, K)
    loss = StructuredLoss(ms.Chain(), 0.5, 1.0)
    given = {"node": u, "edge": e}
    mask = torch.tensor([[[1, 0, 0], [1, 1, 0], [0, 0, 0]]], dtype=torch.bool)
    torch.testing.assert_close(loss(given, [[0, {0, 1}, ms.MISSING]]), loss(given, mask))
    torch.testing.assert_close(loss(given, [[0, 2, None]]), loss(given, torch.tensor([[0, 2, -100]])))


def test_reductions_and_weights() -> None:
    model: Model = MODELS["padded chains"]()
    value = layer(model)(model.scores, model.y, **model.shape)
    weight = torch.tensor([0.5, 2.0])
    for reduction, want in (("sum", (value * weight).sum()), ("mean", (value * weight).mean())):
        got = layer(model, reduction=reduction)(model.scores, model.y, weight=weight, **model.shape)
        torch.testing.assert_close(got, want)
    sites = torch.full((2, 4), 3.0)
    thrice = layer(model, loss=ms.losses.Hamming(scale=3.0))(model.scores, model.y, **model.shape)
    torch.testing.assert_close(layer(model)(model.scores, model.y, site_weight=sites, **model.shape), thrice)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_other_precisions(dtype: torch.dtype) -> None:
    model: Model = MODELS["padded chains"]()
    u, e = (t.detach().to(dtype).requires_grad_() for t in model.tensors)
    value = layer(model)({"node": u, "edge": e}, model.y, **model.shape)
    assert value.dtype == torch.float32
    value.sum().backward()
    assert u.grad is not None and u.grad.dtype == dtype and e.grad is not None and torch.isfinite(e.grad).all()
    wide = layer(model)({"node": u.double(), "edge": e.double()}, model.y, **model.shape)
    torch.testing.assert_close(value.double(), wide, rtol=1e-5, atol=1e-5)


def test_autocast_compile_copies_and_threads() -> None:
    torch.manual_seed(0)
    net, x, y = torch.nn.Linear(5, K), torch.randn(4, 6, 5), labels(4, 6)
    loss, edge = StructuredLoss(ms.Chain(), threads=2), torch.zeros(K, K, requires_grad=True)
    plain = loss({"node": net(x), "edge": edge}, y)
    again = deepcopy(loss)({"node": net(x), "edge": edge}, y)
    assert torch.equal(again, plain)
    compiled = torch.compile(net, backend="eager")
    torch.testing.assert_close(loss({"node": compiled(x), "edge": edge}, y), plain)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        half = loss({"node": net(x), "edge": edge}, y)
    half.backward()
    torch.testing.assert_close(half, plain, rtol=0.05, atol=0.05)
    assert net.weight.grad is not None and net.weight.grad.dtype == torch.float32


def test_data_parallel_training_and_loader_workers(tmp_path: Path) -> None:
    """The gradient of a wrapped network is that of the network; batches may come from other processes."""
    torch.manual_seed(0)
    x, y = torch.randn(8, 5, 4), labels(8, 5)
    net, loss, edge = torch.nn.Linear(4, K), StructuredLoss(ms.Chain(), 1.0, 1.0), torch.zeros(K, K)
    loss({"node": net(x), "edge": edge}, y).backward()
    want = net.weight.grad.clone()
    net.zero_grad()
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        wrapped = torch.nn.parallel.DistributedDataParallel(net)
        loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=4, num_workers=1)
        for part, tags in loader:
            (0.5 * loss({"node": wrapped(part), "edge": edge}, tags)).backward()
    finally:
        torch.distributed.destroy_process_group()
    torch.testing.assert_close(net.weight.grad, want)


def chains(rng: np.random.Generator) -> tuple[list[Any], list[Any]]:
    X = [rng.normal(size=(int(n), 4)) for n in rng.integers(2, 7, 12)]
    return X, [[None if rng.random() < 0.3 else int(v) for v in (x[:, 0] > 0) + (x[:, 1] > 0)] for x in X]


@pytest.mark.parametrize("member", ["CRF", "HCRF", "LossAugmentedCRF"])
def test_a_linear_network_gives_the_estimators_weights(member: str) -> None:
    X, y = chains(np.random.default_rng(0))
    structure = ms.Chain(hidden=2) if member == "HCRF" else ms.Chain()
    clf = getattr(ms, member)(structure, C=0.7, tol=1e-13, max_iter=2000, random_state=0, classes=[0, 1, 2]).fit(X, y)
    lay = clf.encoder_.layout
    blocks = {b.name: torch.tensor(lay.view(clf.coef_, b.name).copy(), requires_grad=True) for b in clf.encoder_.blocks}
    loss = StructuredLoss(structure, clf.eps_y, clf.eps_h, clf._loss(), reduction="sum")
    rows = [torch.tensor(x) for x in X]

    def objective() -> torch.Tensor:
        given: dict[str, Any] = {"node": [x @ blocks["node"] + blocks["bias"] for x in rows]}
        if member == "HCRF":
            given |= {"left": blocks["left"].reshape(3, 2), "right": blocks["right"].reshape(2, 3)}
            given["between"] = [x[:-1] @ blocks["left.x"] + x[1:] @ blocks["right.x"] for x in rows]
        else:
            given["edge"] = blocks["transition"].reshape(3, 3)
        squares = sum((w**2).sum() for w in blocks.values())
        return 0.5 * squares + 0.7 * loss(given, y)

    value = objective()
    assert float(value.detach()) == pytest.approx(clf.objective_, rel=1e-9)
    if member == "HCRF":
        value.backward()
        assert max(float(w.grad.abs().max()) for w in blocks.values()) < 1e-3
        return
    for w in blocks.values():
        torch.nn.init.zeros_(w)
    solver = torch.optim.LBFGS(blocks.values(), max_iter=500, tolerance_grad=1e-10, line_search_fn="strong_wolfe")

    def closure() -> torch.Tensor:
        solver.zero_grad()
        value = objective()
        value.backward()
        return value

    solver.step(closure)
    for name, w in blocks.items():
        np.testing.assert_allclose(w.detach().numpy(), lay.view(clf.coef_, name), atol=2e-5)


@pytest.mark.parametrize("member", ["MSSVM", "CRF"])
def test_an_estimator_as_a_module_and_back(member: str) -> None:
    rng = np.random.default_rng(1)
    X, y = chains(rng)
    named = [[None if v is None else "abc"[v] for v in row] for row in y]
    structure = ms.Chain(hidden=2, fixed={"bias": {("1", "a"): 0.0}}) if member == "MSSVM" else ms.Chain()
    clf = getattr(ms, member)(structure, C=2.0, max_iter=20, random_state=0).fit(X, named)
    module = clf.to_torch()
    assert isinstance(module, StructuredLinear)
    decoded = module.loss.decode(module(X))
    for one, two in zip(decoded, clf.predict(X), strict=True):
        np.testing.assert_array_equal(clf.classes_[one.numpy()], two)
    for one, two in zip(module.loss.marginals(module(X)), clf.predict_marginals(X), strict=True):
        np.testing.assert_allclose(one.numpy(), two, atol=1e-12)

    def objective(coef: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            module.coef.copy_(coef)
        return module.loss(module(X), named)

    module.loss.eps_y = 1.0
    value = module.loss(module(X), named)
    value.backward()
    step = torch.randn(len(module.coef), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    slope = float(module.coef.grad @ step)
    at = module.coef.detach().clone()
    high, low = objective(at + 1e-5 * step), objective(at - 1e-5 * step)
    assert slope == pytest.approx(float((high - low).detach()) / 2e-5, rel=1e-6, abs=1e-7)
    with torch.no_grad():
        module.coef.copy_(at + 0.1 * step)
    back = module.to_estimator()
    np.testing.assert_array_equal(back.coef_, module.coef.detach().numpy())
    np.testing.assert_array_equal(clf.coef_, at.numpy())
    assert back.predict(X)[0].shape == (len(X[0]),)


@pytest.mark.parametrize(
    ("given", "y", "sentence"),
    [
        ({"node": scores(2, 3, K)}, labels(2, 3), "lack the group 'edge'"),
        ({"edge": scores(K, K)}, labels(2, 3), "lack the group 'node'"),
        ({"node": scores(2, 3, K), "edge": scores(K, K), "nodes": scores(K)}, labels(2, 3), "name the group 'nodes'"),
        ({"node": scores(2, 3, K), "edge": scores(K, 2)}, labels(2, 3), "needs \\(3, 3\\)"),
        ({"node": scores(2, 3, K), "edge": scores(2, 1, K, K)}, labels(2, 3), "the batch needs \\(2, 2\\)"),
        ({"node": scores(2, 3, K), "edge": scores(3, K, K)}, labels(2, 3), "have 3 rows"),
        ({"node": scores(2, 3, K), "edge": scores(K, K)}, labels(2, 3) + 200, "not among the classes 0 to 2"),
        ({"node": scores(2, 3, K), "edge": scores(K, K)}, labels(3, 3), "leading axes"),
        ({"node": scores(3, K), "edge": scores(K, K)}, labels(3), "batch axis is missing"),
        ({"node": "x", "edge": scores(K, K)}, labels(3), "a tensor or a list of tensors"),
        ({"node": scores(1, 2, K) * torch.nan, "edge": scores(K, K)}, labels(1, 2), "NaN"),
    ],
)
def test_what_cannot_be_used_is_refused(given: Any, y: Any, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        StructuredLoss(ms.Chain())(given, y)


def test_settings_and_impossible_labels_are_refused() -> None:
    wrong: dict[str, Any] = {"reduction": "max", "eps_y": -1.0, "inference": "x"}
    for name, value in wrong.items():
        with pytest.raises(InputError, match=name):
            StructuredLoss(ms.Chain(), **{name: value})
    loss = StructuredLoss(ms.Chain(forbidden=[(0, 0)]))
    with pytest.raises(InfeasibleError, match="instance 1"):
        loss({"node": scores(2, 2, K), "edge": scores(K, K)}, torch.tensor([[0, 1], [0, 0]]))


def test_a_loss_on_pairs() -> None:
    """A loss on factors gets tables of its own; the tied table's gradient is summed back."""
    cost = np.ones((K, K, K, K)) - np.eye(K * K).reshape(K, K, K, K)
    loss = StructuredLoss(ms.Chain(), 1.0, 1.0, ms.losses.TableLoss({(K, K): cost}), reduction="sum")
    u, e, y = scores(2, 3, K), scores(K, K), torch.tensor([[0, 1, 2], [1, 1, 0]])
    assert torch.autograd.gradcheck(lambda u, e: loss({"node": u, "edge": e}, y), (u, e))


def test_the_page_about_deep_models_runs() -> None:
    page = Path(__file__).parents[2] / "docs" / "deep.md"
    found = doctest.testfile(str(page), module_relative=False)
    assert found.attempted > 5 and not found.failed


@pytest.mark.parametrize("loss", [Zero(), Hamming(), Hamming(normalize=True, scale=2.0)])
@pytest.mark.parametrize("name", [name for name in MODELS if name not in ("sequences", "trees")])
def test_labels_on_a_device_become_what_the_host_makes_of_them(name: str, loss: Any) -> None:
    model: Model = MODELS[name]()
    ours = layer(model, loss=loss)
    laid = ours.lay_out(model.scores, **model.shape)
    if not torch.is_tensor(model.y):
        assert sample_on_device(laid, model.y, None, loss) is None  # lists go through the host
        return
    weight = torch.rand(model.y.shape[: len(laid.padded or ())], dtype=torch.float64)
    for weights in (None, weight):
        want, delta = ours._sample(laid, model.y, weights)
        found = sample_on_device(laid, model.y, weights, loss)
        assert found is not None
        sample, own = found
        np.testing.assert_array_equal(sample.query.output, want.query.output)
        for one, two in ((sample.query, want.query), (sample.truth_query, want.truth_query)):
            np.testing.assert_array_equal(one.allowed, two.allowed)
            np.testing.assert_array_equal(one.n_allowed(sample.batch), two.n_allowed(want.batch))
        np.testing.assert_allclose(own.unary, delta.unary, rtol=1e-12)
        np.testing.assert_array_equal(own.tables, delta.tables)


def test_bad_labels_on_a_device_are_left_to_the_host_to_name() -> None:
    model: Model = MODELS["chains with ends and candidates"]()
    laid = layer(model).lay_out(model.scores, **model.shape)
    bad = [torch.full((2, 3), K), model.y.double(), model.y[:1], model.y[..., None], model.y > 0]
    assert all(sample_on_device(laid, y, None, Hamming()) is None for y in bad)
    for weight in (-torch.ones(2, 3), torch.full((2, 3), torch.nan), torch.ones(2), torch.ones(2, 3, 2)):
        assert sample_on_device(laid, model.y, weight, Hamming()) is None
    assert sample_on_device(laid, model.y, None, WeightedHamming([1.0, 2.0, 3.0])) is None
