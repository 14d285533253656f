"""The layer as people use it: modes, transforms, empty batches, and one sentence for what cannot be used."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import mssvm as ms
from mssvm.core.errors import InfeasibleError, InputError, UnsupportedError
from mssvm.engines.torch import TorchEngine
from mssvm.engines.torch.arrays import DevicePotentials
from mssvm.inference.base import Planner
from mssvm.torch import StructuredLoss, functions
from mssvm.torch import layer as layers
from with_torch.models import MODELS, K, Model, labels, scores


def chain() -> tuple[StructuredLoss, dict[str, torch.Tensor]]:
    return StructuredLoss(ms.Chain(), 1.0, 1.0), {"node": scores(2, 4, K), "edge": scores(K, K)}


@pytest.mark.parametrize("name", MODELS)
def test_what_inference_mode_made_serves_training(name: str) -> None:
    model: Model = MODELS[name]()
    fresh, used = StructuredLoss(model.structure, 1.0, 1.0), StructuredLoss(model.structure, 1.0, 1.0)
    with torch.inference_mode():
        used(model.scores, model.y, **model.shape), used.decode(model.scores, **model.shape)
    grads = []
    for loss in (fresh, used):
        value = loss(model.scores, model.y, **model.shape) + loss.entropy(model.scores, **model.shape).sum()
        grads.append(torch.autograd.grad(value, model.tensors, allow_unused=True))
    for one, two in zip(*grads, strict=True):
        assert (one is None and two is None) or torch.equal(one, two)


@pytest.mark.parametrize("method", ["forward", "log_partition", "entropy"])
def test_second_derivatives_are_refused(method: str) -> None:
    """A penalty on a gradient would otherwise count for nothing, without a word."""
    loss, given = chain()
    more = (labels(2, 4),) if method == "forward" else ()
    value = getattr(loss, method)(given, *more).sum()
    (gradient,) = torch.autograd.grad(value, given["node"], create_graph=True)
    want = torch.autograd.grad(getattr(loss, method)(given, *more).sum(), given["node"])[0]
    assert torch.equal(gradient, want)
    with pytest.raises(UnsupportedError, match="differentiated again"):
        gradient.square().sum().backward()


@pytest.mark.parametrize("structure", [ms.Chain(), ms.Grid(), ms.SequenceLabel(hidden=2), ms.GraphModel()])
def test_a_batch_without_instances(structure: Any) -> None:
    """The last batch of a process that shares the work; its parameters still have gradients."""
    sites: tuple[int, ...] = (4,)
    shape: dict[str, Any] = {"graphs": []} if isinstance(structure, ms.GraphModel) else {}
    given = {"node": scores(0, 4, K), "edge": scores(K, K)}
    if isinstance(structure, ms.Grid):
        sites, given["node"] = (2, 3), scores(0, 2, 3, K)
    if isinstance(structure, ms.SequenceLabel):
        sites, given = (), {"label": scores(0, K), "label_state": scores(0, 4, K, 2), "transition": scores(K, 2, 2)}
    loss = StructuredLoss(structure, reduction="sum")
    y = torch.zeros(0, *sites, dtype=torch.int64)
    value = loss(given, y, **shape) + loss.log_partition(given, **shape).sum() + loss.entropy(given, **shape).sum()
    value.backward()
    assert float(value.detach()) == 0.0
    for tensor in given.values():
        assert tensor.grad is not None and not tensor.grad.any()
    assert loss.decode(given, **shape).shape == (0, *sites)
    assert loss.marginals(given, **shape).shape == (0, *sites, K)
    assert loss.topk(given, 2, **shape) == [] and loss.sample(given, 3, **shape)[2].shape == (0, *sites)


def test_the_compiler_leaves_every_method_alone() -> None:
    loss, given = chain()

    def answers(given: Any) -> Any:
        return loss.decode(given), loss.marginals(given), loss.entropy(given), loss.topk(given, 2)[0][1]

    given = {name: tensor.detach() for name, tensor in given.items()}
    for one, two in zip(torch.compile(answers, backend="eager")(given), answers(given), strict=True):
        torch.testing.assert_close(one, two)


def test_another_default_device() -> None:
    loss, given = chain()
    y, lengths = labels(2, 4), [4, 3]
    with torch.device("meta"):
        value = loss(given, y, lengths=lengths, weight=[1.0, 2.0])
        drawn, best = loss.sample(given, 1), loss.topk(given, 2)
    assert value.device.type == drawn[0].device.type == best[0][1].device.type == "cpu"


def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Single precision through the torch engine, as tensors on a GPU go."""

    def potentials(unary: torch.Tensor, tables: torch.Tensor) -> DevicePotentials:
        return DevicePotentials(unary.detach(), tables.detach())

    def planner(self: Any, laid: Any, training: bool = False, precision: str | None = None) -> Planner:
        return Planner(ms.inference.Exact(), TorchEngine("cpu", precision or "single"))

    for module in (functions, layers):
        monkeypatch.setattr(module, "potentials", potentials)
    monkeypatch.setattr(StructuredLoss, "_planner", planner)


def test_the_gradient_of_entropy_is_that_of_double_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    loss, given = chain()
    single = {name: tensor.detach().float().requires_grad_() for name, tensor in given.items()}
    double = {name: tensor.detach().double().requires_grad_() for name, tensor in single.items()}
    loss.entropy(double).sum().backward()
    as_on_a_gpu(monkeypatch)
    loss.entropy(single).sum().backward()
    for name in given:
        torch.testing.assert_close(single[name].grad.double(), double[name].grad, rtol=1e-6, atol=1e-6)


def test_topk_of_nothing_possible() -> None:
    loss = StructuredLoss(ms.Chain(forbidden=[(0, 0)]))
    with pytest.raises(InfeasibleError, match="instance 1"):
        loss.topk({"node": scores(2, 2, K), "edge": scores(K, K)}, 2, given=torch.tensor([[0, 1], [0, 0]]))


NODE, EDGE, Y = scores(2, 4, K), scores(K, K), labels(2, 4, missing=0.0)


@pytest.mark.parametrize(
    ("sentence", "y", "more"),
    [
        ("lengths must be whole numbers in the shape \\(2,\\)", Y, {"lengths": [4]}),
        ("lengths must be whole numbers", Y, {"lengths": torch.tensor([4.0, 2.5])}),
        ("lengths must be whole numbers", Y, {"lengths": "ab"}),
        ("lengths must be whole numbers", Y, {"lengths": torch.ones(2, 4, dtype=torch.bool)}),
        ("lengths must lie between 0 and the axes \\(4,\\)", Y, {"lengths": [4, -1]}),
        ("lengths must lie between", Y, {"lengths": [4, 5]}),
        ("needs graphs=", Y, {"graphs": [[(0, 1)]] * 2}),
        ("got float32", Y.float(), {}),
        ("got bool with 0 more axes", Y > 0, {}),
        ("got int64 with 1 more axes", torch.nn.functional.one_hot(Y, K), {}),
        ("leading axes \\(2, 8\\)", torch.cat([Y, Y], 1), {}),
        ("instance 0: the shape is \\(5,\\)", [torch.cat([Y[0], Y[0, :1]]), Y[1, :3]], {}),
        ("a list of 1 for 2 instances", [Y[0]], {}),
        ("instance 0: expected a sequence of labels", [3, None], {}),
        ("got shape \\(2, 1\\)", Y, {"weight": torch.ones(2, 1)}),
        ("got shape \\(3,\\)", Y, {"weight": torch.ones(3)}),
        ("site_weight has leading axes", Y, {"site_weight": torch.ones(2, 3)}),
    ],
)
def test_labels_and_shapes_that_cannot_be_used(sentence: str, y: Any, more: Any) -> None:
    with pytest.raises(InputError, match=sentence):
        StructuredLoss(ms.Chain())({"node": NODE, "edge": EDGE}, y, **more)


@pytest.mark.parametrize(
    ("structure", "given", "sentence", "more"),
    [
        (ms.Chain(), {"node": list(NODE), "edge": [scores(2, K, K), scores(4, K, K)]}, "3 rows of \\(3, 3\\)", {}),
        (ms.Chain(), {"node": list(NODE), "edge": [scores(3, K, K)]}, "a list of 1", {}),
        (ms.Chain(), {"node": [NODE[0], scores(4, 2)], "edge": EDGE}, "instance 1: .* 4 rows of \\(3,\\)", {}),
        (ms.Chain(), {"node": list(NODE), "edge": EDGE}, "lengths are those of padded", {"lengths": [4, 3]}),
        (ms.Chain(), {"node": NODE.to(torch.complex64), "edge": EDGE}, "real numbers", {}),
        (ms.Chain(), {"node": NODE.detach().to_sparse(), "edge": EDGE}, "dense", {}),
        (ms.GraphModel(), {"node": NODE, "edge": EDGE}, "needs graphs=", {}),
        (ms.GraphModel(), {"node": NODE, "edge": EDGE}, "1 graphs for 2 instances", {"graphs": [[(0, 1)]]}),
        (ms.Grid(), {"node": scores(2, 2, 2, K), "edge": scores(2, 2, 2, K, K)}, "all directions", {}),
        (ms.SequenceLabel(hidden=2, per_class=False), {"state": scores(2, 3, 2)}, "how many classes", {}),
    ],
)
def test_scores_that_cannot_be_used(structure: Any, given: Any, sentence: str, more: Any) -> None:
    with pytest.raises(InputError, match=sentence):
        StructuredLoss(structure).decode(given, **more)


def test_the_number_of_draws_is_named() -> None:
    loss, given = chain()
    with pytest.raises(InputError, match="n must be a whole number"):
        loss.sample(given, 0)
    one, two = (loss.sample(given, 2, generator=torch.Generator("cpu").manual_seed(3)) for _ in range(2))
    np.testing.assert_array_equal(torch.stack(one).numpy(), torch.stack(two).numpy())


@pytest.mark.parametrize("name", MODELS)
def test_what_is_kept_between_calls_changes_no_answer(name: str) -> None:
    """Other scores, other temperatures and a part of the labels given, on a layout that was used before."""
    model: Model = MODELS[name]()
    used = StructuredLoss(model.structure, 1.0, 1.0, reduction="none")
    for factor, eps_h, given in ((1.0, 1.0, None), (-0.7, 0.5, None), (0.4, 0.5, model.y), (2.0, 1.0, None)):
        tensors = {n: [factor * t for t in v] if isinstance(v, list) else factor * v for n, v in model.scores.items()}
        used.eps_h, found = eps_h, []
        for loss in (used, StructuredLoss(model.structure, 1.0, eps_h, reduction="none")):
            more = {"given": given, **model.shape}
            answers = [loss(tensors, model.y, **model.shape), loss.log_partition(tensors, **more)]
            answers += [*loss.marginals(tensors, **more), *loss.decode(tensors, **more), loss.entropy(tensors, **more)]
            found.append(answers)
        for one, two in zip(*found, strict=True):
            assert torch.equal(one, two)


def test_topologies_are_made_once_for_all_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    made, original = list[Any](), ms.Chain.topology

    def topology(self: Any, key: Any, encoder: Any) -> Any:
        made.append(key)
        return original(self, key, encoder)

    monkeypatch.setattr(ms.Chain, "topology", topology)
    loss, given = chain()
    for lengths in ([4, 3], [3, 2], [2, 4], [4, 4]):
        loss(given, labels(2, 4), lengths=lengths)
    assert sorted(made) == [2, 3, 4]


def test_one_rule_for_labels_below_zero() -> None:
    loss, given = chain()
    y = torch.tensor([[0, 1, 2, -100], [1, 1, 0, 2]])
    value = loss(given, y)
    torch.testing.assert_close(loss(given, y.numpy()), value)  # arrays as tensors
    torch.testing.assert_close(loss(given, y.tolist()), value)
    other = torch.where(y < 0, -1, y)
    with pytest.warns(FutureWarning, match="y holds -1, and missing_label is -100"):
        torch.testing.assert_close(loss(given, other), value)
    with pytest.raises(ms.errors.InputError, match="label -1 is not among the classes"):
        loss(given, other.numpy())
    named = StructuredLoss(ms.Chain(), 1.0, 1.0, missing_label=-1)
    torch.testing.assert_close(named(given, other), value)
    torch.testing.assert_close(named(given, other.numpy()), value)
    for wrong in (0, 3, True, "x", -1.0):
        with pytest.raises(ms.errors.InputError, match="missing_label must be a whole number below zero"):
            StructuredLoss(ms.Chain(), missing_label=wrong)


def test_a_mask_is_as_good_as_lengths() -> None:
    loss, given = chain()
    y = labels(2, 4)
    mask = torch.tensor([[True, True, True, False], [True, True, True, True]])
    torch.testing.assert_close(loss(given, y, mask=mask), loss(given, y, lengths=[3, 4]))
    torch.testing.assert_close(loss.marginals(given, mask=mask), loss.marginals(given, lengths=[3, 4]))
    assert loss.decode(given, mask=mask)[0, 3] == -100
    with pytest.raises(ms.errors.InputError, match="mask and lengths say the same"):
        loss(given, y, mask=mask, lengths=[3, 4])
    holes = torch.tensor([[True, True, True, True], [True, False, True, True]])
    with pytest.raises(ms.errors.InputError, match="mask, instance 1: sites that are masked out must follow"):
        loss(given, y, mask=holes)
    with pytest.raises(ms.errors.InputError, match="mask must be booleans"):
        loss(given, y, mask=mask.float())


def test_a_mask_of_grids() -> None:
    loss = StructuredLoss(ms.Grid(), 1.0, 1.0)
    given = {"node": scores(2, 2, 3, K), "edge": scores(K, K)}
    mask = torch.ones(2, 2, 3, dtype=torch.bool)
    mask[0, :, 2] = False
    torch.testing.assert_close(
        loss.log_partition(given, mask=mask), loss.log_partition(given, lengths=[[2, 2], [2, 3]])
    )
    mask[0, 0, 0] = False
    with pytest.raises(ms.errors.InputError, match="mask, instance 0"):
        loss.log_partition(given, mask=mask)


def test_undirected_links_score_both_orders() -> None:
    edges = np.array([[0, 1], [2, 1]])
    node, table = scores(1, 3, K), scores(K, K)
    undirected = StructuredLoss(ms.GraphModel(directed=False), 1.0, 1.0)
    directed = StructuredLoss(ms.GraphModel(), 1.0, 1.0)
    both = table + table.T
    expected = directed.log_partition({"node": node, "edge": both}, graphs=[edges])
    for graph in (edges, edges[:, ::-1]):
        torch.testing.assert_close(
            undirected.log_partition({"node": node, "edge": table}, graphs=[graph.copy()]), expected
        )
    own = table.expand(1, 2, K, K)
    torch.testing.assert_close(undirected.log_partition({"node": node, "edge": own}, graphs=[edges]), expected)


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_scores_that_are_no_numbers_are_named(value: float) -> None:
    loss, given = chain()
    edge = given["edge"].detach().clone()
    edge[1, 2] = value
    what = "NaN" if value != value else r"\+inf"
    sentence = f"scores of 'edge' hold {what} at \\(1, 2\\); look at the network's output"
    for ask in (loss.log_partition, loss.marginals, loss.decode, loss.entropy):
        with pytest.raises(ms.errors.InputError, match=sentence):
            ask({**given, "edge": edge})
    node = [part.detach().clone() for part in given["node"]]
    node[1][0, 0] = value
    with pytest.raises(ms.errors.InputError, match=f"scores of 'node' of instance 1 hold {what} at \\(0, 0\\)"):
        loss({**given, "node": node}, list(labels(2, 4)))


def test_tensors_of_pytorch_are_data_of_estimators() -> None:
    y = torch.randint(2, (8, 5), generator=torch.Generator().manual_seed(0))
    X = torch.nn.functional.one_hot(y).double().requires_grad_()
    expected = ms.CRF(ms.Chain()).fit(list(X.detach().numpy()), list(y.numpy())).predict_marginals(X)
    for given, tags in ((X, y), (list(X), list(y)), (X.float(), y), (X.bfloat16(), y)):
        np.testing.assert_allclose(ms.CRF(ms.Chain()).fit(given, tags).predict_marginals(given), expected, atol=1e-6)


def test_the_first_axis_of_an_edge_is_where_it_comes_from() -> None:
    loss = StructuredLoss(ms.Chain(), 1.0, 1.0)
    table = torch.zeros(K, K)
    table[0, 1] = 9.0  # 0 followed by 1
    assert loss.decode({"node": torch.zeros(1, 2, K), "edge": table}).tolist() == [[0, 1]]
    model = ms.CRF(ms.Chain(), C=10.0).fit([np.ones((2, 1))] * 3, [["a", "b"]] * 3)
    best = max((row for row in model.weights_table() if row.block == "transition"), key=lambda row: row.value)
    assert best.states == ("a", "b")
