"""Structures against scores written out by hand from named weights, on every assignment of tiny instances."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import pytest
from scipy import sparse
from sklearn.base import clone

import mssvm as ms
from mssvm.core.errors import InputError, MssvmWarning
from mssvm.core.potentials import Marginals
from mssvm.core.topology import mask_from_indices, spans
from mssvm.data.graphs import FactorInput, Graph
from mssvm.data.labels import LabelVocabulary
from mssvm.estimators import MSSVM
from mssvm.inference.enumerate import score
from mssvm.models import LinearModel
from mssvm.structures import Chain, Encoder, FactorModel, GraphModel, Grid, SequenceLabel, Structure
from mssvm.structures.encoded import Encoded

LABELS = LabelVocabulary(("a", "b", "c"))
Name = Callable[..., float]


def compiled(structure: Structure, X: list[Any]) -> Encoder:
    return Encoder.learn(structure, X, LABELS)[0]


def encoded(structure: Structure, X: list[Any], seed: int = 0) -> tuple[Encoded, Any, Name]:
    """The batch, its potentials at random weights, and a look-up of weights by name."""
    encoder, parsed = Encoder.learn(structure, X, LABELS)
    batch, model = encoder.encode_parsed(parsed), encoder.model
    w = np.random.default_rng(seed).normal(size=model.n_weights)
    named = {(v.block, v.feature, *v.states): v.value for v in encoder.weights(w)}
    assert len(named) == model.n_weights
    return batch, model.forward(w, batch.inputs), lambda block, feature, *states: named[(block, feature, *states)]


def check_all(
    batch: Encoded, theta: Any, by_hand: Callable[[int, list[Any], list[int]], float], most: int = 300
) -> None:
    """``score`` equals ``by_hand(instance, labels, hidden)`` on assignments of every instance."""
    rng = np.random.default_rng(0)
    b = batch.batch
    for i in range(len(b)):
        cards = b.cards[b.var_ptr[i] : b.var_ptr[i + 1]]
        assignments = list(product(*(range(c) for c in cards)))
        chosen = rng.permutation(len(assignments))[:most]
        for k in chosen:
            z = np.zeros(b.n_vars, dtype=np.int64)
            z[b.var_ptr[i] : b.var_ptr[i + 1]] = assignments[k]
            y = batch.labels.vars[batch.labels.ptr[i] : batch.labels.ptr[i + 1]]
            h = batch.hidden.vars[batch.hidden.ptr[i] : batch.hidden.ptr[i + 1]]
            expected = by_hand(i, [LABELS.classes[s] for s in z[y]], z[h].tolist())
            assert score(b, theta, z)[i] == pytest.approx(expected, rel=1e-12, abs=1e-12)


def dot(name: Name, block: str, x: Any, *states: Any) -> float:
    return sum(float(v) * name(block, f"x{j}", *states) for j, v in enumerate(x))


def sequences(seed: int = 0, d: int = 2) -> list[Any]:
    rng = np.random.default_rng(seed)
    return [rng.normal(size=(n, d)) for n in (3, 1, 2, 3)]


def test_chain() -> None:
    X = sequences()
    batch, theta, w = encoded(Chain(ends=True), X)

    def by_hand(i: int, y: list[Any], h: list[int]) -> float:
        total = w("start", "1", y[0]) + w("end", "1", y[-1])
        total += sum(dot(w, "node", X[i][t], y[t]) + w("bias", "1", y[t]) for t in range(len(y)))
        return total + sum(w("transition", "1", a, b) for a, b in zip(y, y[1:], strict=False))

    check_all(batch, theta, by_hand)
    assert len(np.unique(batch.batch.table_at)) == 1


@pytest.mark.parametrize("hidden", [0, 2])
def test_chain_of_second_order(hidden: int) -> None:
    X = sequences()
    theta_1 = encoded(Chain(hidden=hidden), X)[1]
    batch, theta, w = encoded(Chain(hidden=hidden, order=2), X)

    def by_hand(i: int, y: list[Any], h: list[int]) -> float:
        x = X[i]
        total = sum(dot(w, "node", x[t], y[t]) + w("bias", "1", y[t]) for t in range(len(y)))
        for t in range(len(y) - 1):
            if not hidden:
                total += w("transition", "1", y[t], y[t + 1])
                continue
            total += w("left", "1", y[t], h[t]) + w("right", "1", h[t], y[t + 1])
            total += dot(w, "left.x", x[t], h[t]) + dot(w, "right.x", x[t + 1], h[t])
        return total + sum(w("trigram", "1", *y[t : t + 3]) for t in range(len(y) - 2))

    check_all(batch, theta, by_hand)
    assert len(theta.tables) == len(theta_1.tables) + 27  # one table for all trigrams


@pytest.mark.parametrize("form", ["dict", "tuple"])
def test_chain_with_edge_features(form: str) -> None:
    X = sequences()
    edges = [np.random.default_rng(i).normal(size=(len(x) - 1, 3)) for i, x in enumerate(X)]
    pairs = zip(X, edges, strict=True)
    given = [{"x": x, "edge_x": e} for x, e in pairs] if form == "dict" else list(pairs)
    batch, theta, w = encoded(Chain(), given)

    def by_hand(i: int, y: list[Any], h: list[int]) -> float:
        total = sum(dot(w, "node", X[i][t], y[t]) + w("bias", "1", y[t]) for t in range(len(y)))
        for t in range(len(y) - 1):
            total += w("transition", "1", y[t], y[t + 1]) + dot(w, "transition.x", edges[i][t], y[t], y[t + 1])
        return total

    check_all(batch, theta, by_hand)


@pytest.mark.parametrize("direct", [False, True])
def test_chain_with_hidden_variables_between_the_labels(direct: bool) -> None:
    X = sequences(1)
    batch, theta, w = encoded(Chain(hidden=2, direct=direct), X)

    def by_hand(i: int, y: list[Any], h: list[int]) -> float:
        x = X[i]
        total = sum(dot(w, "node", x[t], y[t]) + w("bias", "1", y[t]) for t in range(len(y)))
        for t in range(len(y) - 1):
            total += w("left", "1", y[t], h[t]) + w("right", "1", h[t], y[t + 1])
            total += dot(w, "left.x", x[t], h[t]) + dot(w, "right.x", x[t + 1], h[t])
            total += w("transition", "1", y[t], y[t + 1]) if direct else 0.0
        return total

    check_all(batch, theta, by_hand)


def test_chain_with_a_hidden_chain_below() -> None:
    X = sequences(2)
    batch, theta, w = encoded(Chain(hidden=2, linked=True), X)

    def by_hand(i: int, y: list[Any], h: list[int]) -> float:
        x = X[i]
        total = 0.0
        for t in range(len(y)):
            total += dot(w, "node", x[t], y[t]) + w("bias", "1", y[t])
            total += dot(w, "hidden.node", x[t], h[t]) + w("attach", "1", y[t], h[t])
        return total + sum(w("hidden.transition", "1", a, b) for a, b in zip(h, h[1:], strict=False))

    check_all(batch, theta, by_hand)


@pytest.mark.parametrize("per_class", [True, False])
@pytest.mark.parametrize("pool", [None, "mean"])
@pytest.mark.parametrize("wrap", [np.asarray, sparse.csr_array])
def test_sequence_class(per_class: bool, pool: str | None, wrap: Any) -> None:
    X = sequences(3)
    structure = SequenceLabel(hidden=2, per_class=per_class, pool=pool)
    batch, theta, w = encoded(structure, [wrap(x) for x in X])

    def by_hand(i: int, labels: list[Any], h: list[int]) -> float:
        (y,) = labels
        total = w("bias", "1", y)
        for t, x in enumerate(X[i]):
            total += dot(w, "state", x, y, h[t]) if per_class else dot(w, "state", x, h[t])
            total += w("label_state", "1", y, h[t])
        total += dot(w, "pooled", X[i].mean(axis=0), y) if pool else 0.0
        return total + sum(w("transition", "1", y, a, b) for a, b in zip(h, h[1:], strict=False))

    check_all(batch, theta, by_hand)
    assert batch.labels.scalar
    again = compiled(structure, [wrap(x) for x in X]).encode([wrap(x) for x in X])
    assert again.batch.n_table_entries == batch.batch.n_table_entries


STEPS = {"right": (0, 1), "down": (1, 0), "down_right": (1, 1), "down_left": (1, -1)}


def grid_pairs(h: int, w: int, neighbours: int) -> list[tuple[str, int, int, int]]:
    """(direction, pixel, pixel, number within the direction)."""
    out = []
    for name, (dr, dc) in list(STEPS.items())[: neighbours // 2]:
        inside = [
            (r * w + c, (r + dr) * w + c + dc)
            for r in range(h)
            for c in range(w)
            if 0 <= r + dr < h and 0 <= c + dc < w
        ]
        out += [(name, a, b, k) for k, (a, b) in enumerate(inside)]
    return out


@pytest.mark.parametrize("neighbours", [4, 8])
@pytest.mark.parametrize("features", [False, True])
def test_grid(neighbours: int, features: bool) -> None:
    rng = np.random.default_rng(4)
    X = [rng.normal(size=(h, w, 2)) for h, w in ((2, 3), (2, 2), (1, 3))]
    given: list[Any] = list(X)
    edge: list[dict[str, Any]] = []
    for x in X:
        h, w = x.shape[:2]
        shapes = {"right": (h, w - 1), "down": (h - 1, w), "down_right": (h - 1, w - 1), "down_left": (h - 1, w - 1)}
        edge.append({k: rng.normal(size=(*s, 2)) for k, s in list(shapes.items())[: neighbours // 2]})
    if features:
        given = [(x, *e.values()) if i else {"x": x, "edge_x": e} for i, (x, e) in enumerate(zip(X, edge, strict=True))]
    batch, theta, name = encoded(Grid(neighbours=neighbours), given)

    def by_hand(i: int, y: list[Any], hidden: list[int]) -> float:
        h, w = X[i].shape[:2]
        flat = X[i].reshape(h * w, -1)
        total = sum(dot(name, "node", flat[p], y[p]) + name("bias", "1", y[p]) for p in range(h * w))
        for direction, a, b, k in grid_pairs(h, w, neighbours):
            total += name(f"edge:{direction}", "1", y[a], y[b])
            if features:
                total += dot(name, f"edge.x:{direction}", edge[i][direction].reshape(-1, 2)[k], y[a], y[b])
        return total

    check_all(batch, theta, by_hand)
    assert batch.labels.split(np.arange(len(batch.labels.vars)))[0].shape == (2, 3)


@pytest.mark.parametrize("linked", [True, False])
def test_grid_with_hidden_variables(linked: bool) -> None:
    rng = np.random.default_rng(5)
    X = [rng.normal(size=(2, 2, 2)), rng.normal(size=(1, 2, 2))]
    batch, theta, name = encoded(Grid(hidden=2, linked=linked), X)

    def by_hand(i: int, y: list[Any], z: list[int]) -> float:
        h, w = X[i].shape[:2]
        flat = X[i].reshape(h * w, -1)
        total = sum(dot(name, "node", flat[p], y[p]) + name("bias", "1", y[p]) for p in range(h * w))
        if linked:
            total += sum(
                dot(name, "hidden.node", flat[p], z[p]) + name("attach", "1", y[p], z[p]) for p in range(h * w)
            )
        for e, (direction, a, b, _) in enumerate(grid_pairs(h, w, 4)):
            if linked:
                total += name(f"hidden.edge:{direction}", "1", z[a], z[b])
            else:
                total += name(f"left:{direction}", "1", y[a], z[e]) + name(f"right:{direction}", "1", z[e], y[b])
                total += dot(name, f"left.x:{direction}", flat[a], z[e])
                total += dot(name, f"right.x:{direction}", flat[b], z[e])
        return total

    check_all(batch, theta, by_hand)
    shape = batch.hidden.split(np.arange(len(batch.hidden.vars)))[0].shape
    assert shape == ((2, 2) if linked else (4,))


@pytest.mark.parametrize("neighbours", [4, 8])
@pytest.mark.parametrize("options", [{}, {"hidden": 2, "direct": True}], ids=str)
@pytest.mark.parametrize("features", [False, True])
def test_grid_with_associative_edges(neighbours: int, options: dict[str, Any], features: bool) -> None:
    """One weight for agreement, of labels and of hidden states; with contrast, one for how alike the ends look."""
    rng = np.random.default_rng(5)
    X = [rng.normal(size=(2, 2, 2)), rng.normal(size=(1, 2, 2)), np.ones((2, 1, 2))]
    structure = Grid(neighbours=neighbours, edges="contrast" if features else "associative", **options)
    batch, theta, name = encoded(structure, X)

    def by_hand(i: int, y: list[Any], z: list[int]) -> float:
        h, w = X[i].shape[:2]
        flat = X[i].reshape(h * w, -1)
        total = sum(dot(name, "node", flat[p], y[p]) + name("bias", "1", y[p]) for p in range(h * w))
        for p in range(h * w if z else 0):
            total += dot(name, "hidden.node", flat[p], z[p]) + name("attach", "1", y[p], z[p])
        pairs = [(direction, a, b) for direction, a, b, _ in grid_pairs(h, w, neighbours)]
        apart = [float(np.sum((flat[a] - flat[b]) ** 2)) for _, a, b in pairs]
        for (direction, a, b), d in zip(pairs, apart, strict=True):
            at = "side" if direction in ("right", "down") else "corner"
            alike = np.exp(-d / (2 * np.mean(apart))) if d else 1.0
            for block, states in (("edge", y), ("hidden.edge", z)):
                if states and states[a] == states[b]:
                    total += name(f"{block}:{at}", "1")
                    total += alike * name(f"{block}.x:{at}", "x0") if features else 0.0
        return total

    check_all(batch, theta, by_hand)
    bounded = compiled(structure, X).weight_masks.nonnegative
    assert bounded.sum() == (1 + features) * neighbours // 4 * (2 if options else 1)
    assert not compiled(Grid(neighbours=neighbours, **options), X).weight_masks.nonnegative.any()


def test_associative_edges_and_features_of_ones_own() -> None:
    x, across, down = np.zeros((2, 2, 1)), np.ones((2, 1, 1)), np.full((1, 2, 1), 2.0)
    _, _, name = encoded(Grid(edges="contrast"), [(x, across, down)])
    assert np.isfinite([name("edge.x:side", "x0"), name("edge.x:side", "x1")]).all()
    with pytest.raises(InputError, match="'down' fall below 0; associative edges need them >= 0"):
        compiled(Grid(edges="associative"), [(x, across, -down)])
    with pytest.raises(InputError, match="edges must be one of 'free', 'associative', 'contrast', got 'potts'"):
        compiled(Grid(edges="potts"), [x])
    with pytest.raises(InputError, match="contrast needs an"):
        compiled(Grid(edges="contrast"), [[[{"a": 1.0}]]])
    known = compiled(Grid(edges="associative", fixed={"edge:side": 0.75}), [x])
    assert known.model.fill(np.zeros(known.layout.n_weights))[-1] == 0.75


def graphs() -> list[Graph]:
    rng = np.random.default_rng(6)
    return [
        Graph(rng.normal(size=(3, 2)), [(2, 0), (0, 1), (1, 2)], rng.normal(size=(3, 2)), "pqp", ["s", "t", "s"]),
        Graph(rng.normal(size=(2, 2)), [(1, 0)], rng.normal(size=(1, 2)), "qq", ["t"]),
        Graph(rng.normal(size=(1, 2)), [], np.zeros((0, 2)), "p", []),
    ]


def test_graph_model_with_types_and_edge_features() -> None:
    X = graphs()
    batch, theta, name = encoded(GraphModel(), X)

    def by_hand(i: int, y: list[Any], h: list[int]) -> float:
        g = X[i]
        assert g.node_types is not None and g.edge_types is not None
        total = 0.0
        for v, t in enumerate(g.node_types):
            total += dot(name, f"node:{t}", g.nodes[v], y[v]) + name(f"bias:{t}", "1", y[v])
        for e, ((a, b), t) in enumerate(zip(g.edges.tolist(), g.edge_types, strict=True)):
            total += name(f"edge:{t}", "1", y[a], y[b]) + dot(name, f"edge.x:{t}", g.edge_features[e], y[a], y[b])
        return total

    check_all(batch, theta, by_hand)


def test_graph_model_with_hidden_variables_and_types() -> None:
    X = graphs()
    batch, theta, name = encoded(GraphModel(hidden=2), X)

    def by_hand(i: int, y: list[Any], h: list[int]) -> float:
        g = X[i]
        assert g.node_types is not None and g.edge_types is not None
        total = 0.0
        for v, t in enumerate(g.node_types):
            total += dot(name, f"node:{t}", g.nodes[v], y[v]) + name(f"bias:{t}", "1", y[v])
            total += dot(name, f"hidden.node:{t}", g.nodes[v], h[v]) + name(f"attach:{t}", "1", y[v], h[v])
        for e, ((a, b), t) in enumerate(zip(g.edges.tolist(), g.edge_types, strict=True)):
            total += name(f"hidden.edge:{t}", "1", h[a], h[b])
            total += dot(name, f"hidden.edge.x:{t}", g.edge_features[e], h[a], h[b])
        return total

    check_all(batch, theta, by_hand)


def test_names_of_types_come_as_arrays_and_may_be_missing() -> None:
    nodes = np.eye(2)
    listed = Graph(nodes, [[0, 1]], node_types=["p", "q"], edge_types=["r"])
    arrays = Graph(nodes, [[0, 1]], node_types=np.array(["p", "q"]), edge_types=np.array(["r"]))
    clf = ms.CRF(GraphModel()).fit([arrays], [["a", "b"]])
    assert clf.schema_.types == ms.CRF(GraphModel()).fit([listed], [["a", "b"]]).schema_.types
    np.testing.assert_array_equal(clf.predict_marginals([arrays])[0], clf.predict_marginals([listed])[0])
    some = Graph(nodes, [[0, 1]], node_types=[None, "q"], edge_types=[None])  # None: no type
    partly = ms.CRF(GraphModel()).fit([some], [["a", "b"]])
    assert partly.schema_.types["node"] == ("", "q")
    assert partly.schema_.types["edge"] == ("",)
    np.testing.assert_array_equal(partly.predict([some])[0], ["a", "b"])


@pytest.mark.parametrize("wrap", [np.asarray, sparse.csr_array, lambda rows: [list(r) for r in rows]])
def test_undirected_edges_score_both_orders(wrap: Any) -> None:
    rng = np.random.default_rng(9)
    features, edges = rng.normal(size=(2, 2)), np.array([(0, 1), (2, 1)])
    X = [
        Graph(np.ones((3, 1)), edges, wrap(features), edge_types="st"),
        Graph(np.ones((3, 1)), edges[:, ::-1], wrap(features), edge_types="st"),
    ]
    batch, theta, name = encoded(GraphModel(directed=False), X)

    def by_hand(i: int, y: list[Any], h: list[int]) -> float:
        total = sum(name("node", "x0", label) + name("bias", "1", label) for label in y)
        for e, (t, (a, b)) in enumerate(zip("st", edges.tolist(), strict=True)):
            for first, second in ((y[a], y[b]), (y[b], y[a])):
                total += name(f"edge:{t}", "1", first, second) + dot(name, f"edge.x:{t}", features[e], first, second)
        return total

    check_all(batch, theta, by_hand)


def test_an_undirected_edge_is_one_factor() -> None:
    """Two factors with the same ends are a loop, on which propagation is wrong; on a tree it must be exact."""
    rng = np.random.default_rng(3)
    edges = [(0, 1), (2, 1), (1, 3), (4, 3)]
    X = [Graph(rng.normal(size=(5, 2)), edges) for _ in range(6)]
    y = [rng.integers(3, size=5).tolist() for _ in X]
    exact = ms.HCRF(GraphModel(directed=False), random_state=0).fit(X, y)
    assert exact.encoder_.encode(X).batch.n_factors == 6 * len(edges)
    assert exact.status_.startswith("Training converged. Inference was exact")
    swapped = [Graph(graph.nodes, [edge[::-1] for edge in edges]) for graph in X]
    spread = clone(exact).set_params(inference="propagate").fit(X, y)
    for model in (exact, spread):
        p = np.concatenate(model.predict_marginals(X))
        assert np.allclose(p, np.concatenate(exact.predict_marginals(X)), atol=1e-4)
        assert np.array_equal(p, np.concatenate(model.predict_marginals(swapped)))
    table = exact.coef_[exact.encoder_.layout["edge"].span].reshape(3, 3)
    assert np.allclose(table, table.T, atol=1e-12)


def test_forbidden_pairs_of_undirected_edges_hold_in_both_orders() -> None:
    X = [Graph(np.array([[5.0], [-5.0]]), [edge]) for edge in ([0, 1], [1, 0])]
    model = ms.CRF(GraphModel(directed=False, forbidden=[("a", "b")])).fit(X, [["a", "a"], ["b", "b"]])
    assert all(len(set(labels.tolist())) == 1 for labels in model.predict(X))


def test_known_and_left_out_weights_of_undirected_edges() -> None:
    rng = np.random.default_rng(5)
    edges = [(0, 1), (1, 2), (2, 0)]
    words = [[["w" + str(w)] for w in rng.integers(6, size=3)] for _ in range(8)]
    X = [Graph(nodes, edges, rng.normal(size=(3, 2))) for nodes in words]
    y = [["ab"[int(name[0][1]) % 2] for name in nodes] for nodes in words]
    fixed = {"edge": np.array([[np.nan, -0.5], [0.25, np.nan]])}
    model = ms.CRF(GraphModel(directed=False, fixed=fixed), support="seen", tol=1e-8).fit(X, y)
    table = model.coef_[model.encoder_.layout["edge"].span].reshape(2, 2)
    assert table[0, 1] == -0.5 and table[1, 0] == 0.25 and table[0, 0] != 0.0
    whole = ms.CRF(GraphModel(directed=False, fixed=fixed), tol=1e-8).fit(X, y)
    assert whole.objective_ <= model.objective_ + 1e-9  # more weights to choose from
    assert model.score(X, y) == 1.0


def factor_inputs() -> list[FactorInput]:
    rng = np.random.default_rng(7)
    return [
        FactorInput(
            ["word", "topic", "word", "word"],
            {
                "emit": ([(0,), (2,), (3,)], rng.normal(size=(3, 2))),
                "about": [(0, 1), (2, 1), (3, 1)],
                "triple": ([(0, 2, 3)], rng.normal(size=(1, 2))),
            },
        ),
        FactorInput(["topic", "word"], {"emit": ([(1,)], rng.normal(size=(1, 2))), "about": [(1, 0)]}),
        FactorInput(["word"], {"emit": ([(0,)], rng.normal(size=(1, 2)))}),
    ]


def test_factor_inputs_that_share_their_factors_differ_in_features_only() -> None:
    rng = np.random.default_rng(0)
    first = FactorInput("yh", {"site": ([(0,)], rng.normal(size=(1, 2))), "link": [(0, 1)]})
    rows = rng.normal(size=(1, 2))
    other, anew = first.with_features({"site": rows}), FactorInput("yh", {"site": ([(0,)], rows), "link": [(0, 1)]})
    assert other.scopes is first.scopes and np.array_equal(other.factors["site"][1], rows)
    model = FactorModel(hidden={"h": 2})
    fitted = MSSVM(model, max_iter=5, random_state=0).fit([first, other, anew], [["a"], ["b"], ["b"]])
    marginals = fitted.predict_marginals([first, other, anew])
    np.testing.assert_array_equal(marginals[1], marginals[2])
    assert np.any(marginals[0] != marginals[1])
    for bad in ({"site": np.zeros((2, 2))}, {"nothing": np.zeros((1, 2))}):
        with pytest.raises(InputError, match=r"rows, but there are"):
            first.with_features(bad)


def test_factor_model_with_hidden_types_and_higher_order_factors() -> None:
    X = factor_inputs()
    batch, theta, name = encoded(FactorModel(hidden={"topic": 2}), X)

    def by_hand(i: int, y: list[Any], h: list[int]) -> float:
        item = X[i]
        words, topics = iter(y), iter(h)
        z = [next(topics) if t == "topic" else next(words) for t in item.variables]
        total = 0.0
        for kind, scopes in item.scopes.items():
            for f, scope in enumerate(scopes.tolist()):
                states = [z[v] for v in scope]
                total += name(kind, "1", *states)
                if kind in item.features:
                    total += dot(name, f"{kind}.x", item.features[kind][f], *states)
        return total

    check_all(batch, theta, by_hand)


def structures() -> list[tuple[Structure, list[Any]]]:
    rng = np.random.default_rng(8)
    images = [rng.normal(size=(2, 3, 2)), rng.normal(size=(3, 2, 2)), rng.normal(size=(2, 3, 2))]
    return [
        (Chain(hidden=2, forbidden=[("a", "b"), (None, "c")]), sequences()),
        (Chain(hidden=2, linked=True, fixed={"bias": 0.5}), sequences()),
        (Chain(hidden=2, order=2, forbidden=[("a", "b")]), sequences()),
        (SequenceLabel(hidden=2, pool="mean"), sequences()),
        (Grid(hidden=2, forbidden={"down": [("a", "b")]}), images),
        (Grid(neighbours=8, edges="contrast"), images),
        (Grid(edges="associative", forbidden=[("a", "b")]), images),
        (GraphModel(allowed={"p": ["a", "b"]}), graphs()),
        (FactorModel(hidden={"topic": 2}, forbidden={"about": [("a", 1)]}), factor_inputs()),
    ]


@pytest.mark.parametrize("case", structures(), ids=lambda case: type(case[0]).__name__)
def test_selecting_instances_is_encoding_them_alone(case: tuple[Structure, list[Any]]) -> None:
    structure, X = case
    encoder = compiled(structure, X)
    model = encoder.model
    w = np.random.default_rng(0).normal(size=model.n_weights)
    whole = encoder.encode(X)
    for which in ([0], [2, 0], [1, 1, 2]):
        part, alone = whole.select(which), encoder.encode([X[i] for i in which])
        one, two = model.forward(w, part.inputs), model.forward(w, alone.inputs)
        np.testing.assert_allclose(one.unary, two.unary, atol=1e-14)
        tables = [spans(e.batch.table_at, e.batch.table_sizes) for e in (part, alone)]
        np.testing.assert_allclose(one.tables[tables[0]], two.tables[tables[1]], atol=1e-14)
        for a, b in ((part.labels, alone.labels), (part.hidden, alone.hidden)):
            assert a.vars.tolist() == b.vars.tolist() and a.ptr.tolist() == b.ptr.tolist() and a.shapes == b.shapes
        masks = [np.ones(part.batch.n_states, bool) if e.allowed is None else e.allowed for e in (part, alone)]
        assert np.array_equal(*masks)


@pytest.mark.parametrize("case", structures(), ids=lambda case: type(case[0]).__name__)
def test_structures_are_estimators_whose_schema_survives_json(case: tuple[Structure, list[Any]]) -> None:
    structure, X = case
    encoder = compiled(structure, X)
    twin = clone(structure)
    assert repr(twin) == repr(structure)
    other = Encoder(twin, type(encoder.schema).from_json(encoder.schema.to_json()), LABELS)
    one, two = encoder.encode(X), other.encode(X)
    w = np.random.default_rng(0).normal(size=other.model.n_weights)
    assert np.array_equal(other.model.forward(w, one.inputs).tables, other.model.forward(w, two.inputs).tables)


@pytest.mark.parametrize("case", structures(), ids=lambda case: type(case[0]).__name__)
def test_hidden_weights_are_those_that_hidden_marginals_reach(case: tuple[Structure, list[Any]]) -> None:
    structure, X = case
    encoder = compiled(structure, X)
    encoded = encoder.encode(X)
    batch, rng = encoded.batch, np.random.default_rng(0)
    hidden = mask_from_indices(encoded.hidden.vars, batch.n_vars)
    near = np.zeros(batch.n_mu_entries, dtype=bool)
    touched = np.logical_or.reduceat(hidden[batch.scope_vars], batch.scope_ptr[:-1])
    near[spans(batch.mu_at[touched], batch.table_sizes[touched])] = True
    unary = np.where(hidden[batch.state_var], rng.random(batch.n_states), 0.0)
    mu = Marginals(unary, np.where(near, rng.random(len(near)), 0.0))
    free = LinearModel(encoder.layout.n_weights)
    assert np.array_equal(encoder.weight_masks.hidden, free.adjoint(mu, encoded.inputs) != 0)


def test_chains_of_one_length_share_one_graph() -> None:
    X = [np.ones((n, 1)) for n in (4, 2, 4, 4)]
    batch = compiled(Chain(), X).encode(X).batch
    assert len(batch.topologies) == 2


def test_unknown_parameters_are_refused_in_words() -> None:
    X = sequences()
    for structure, words in (
        (Chain(hidden=-1), "hidden must be a whole number"),
        (Chain(hidden=2.5), "hidden must be"),  # type: ignore[arg-type]
        (Chain(linked=1), "linked must be True or False"),  # type: ignore[arg-type]
        (Chain(forbidden=[("a",)]), "pairs"),  # type: ignore[list-item]
        (Chain(forbidden=[("a", "z")]), "names 'z'"),
        (Chain(fixed={"nothing": 0.0}), "no weights are called 'nothing'"),
        (Chain(fixed={"bias": {"z": 0.0}}), "names 'z'"),
        (Chain(fixed={"bias": np.zeros(7)}), "shape"),
        (Chain(fixed=0.0), "fixed must map names"),  # type: ignore[arg-type]
        (GraphModel(hidden=2, linked=False, directed=False), "makes it directed"),
        (SequenceLabel(hidden=0), "hidden must be a whole number >= 1"),
        (SequenceLabel(pool="max"), "pool"),
    ):
        with pytest.raises(InputError, match=words):
            encoder, parsed = Encoder.learn(structure, X, LABELS)
            encoder.encode_parsed(parsed)
            assert encoder.model is None
    with pytest.raises(InputError, match="neighbours must be 4 or 8"):
        Encoder.learn(Grid(neighbours=6), [np.ones((2, 2, 1))], LABELS)


def test_wrong_instances_are_refused_in_words() -> None:
    x = np.ones((3, 2))
    for structure, X, words in (
        (Chain(), [{"x": x, "edge_x": np.ones((3, 1))}], "instance 0: 3 rows of edge features where there should be 2"),
        (Chain(), [(x, np.ones((2, 1))), x], "instance 1: edge features are missing"),
        (Chain(), [{"z": x}], "instance 0: a dict needs the key 'x'"),
        (Chain(), "abc", "sequence of instances"),
        (Chain(), sparse.eye_array(3), "sequence of instances"),
        (Grid(), [x], "instance 0: a grid has shape"),
        (Grid(), [{"x": np.ones((2, 2, 1)), "edge_x": (np.ones((2, 2, 1)), np.ones((1, 2, 1)))}], "'right' have shape"),
        (Grid(), [{"x": np.ones((2, 2, 1)), "edge_x": (np.ones((2, 1, 1)),)}], "each of right, down"),
        (GraphModel(), [x], "instance 0: expected a Graph"),
        (GraphModel(allowed={"z": ["a"]}), graphs(), "node type 'z'"),
        (FactorModel(), [x], "instance 0: expected a FactorInput"),
        (FactorModel(), [FactorInput("uu", {"f": [(0, 1)]}), FactorInput("uuu", {"f": [(0, 1, 2)]})], "joins"),
    ):
        with pytest.raises(InputError, match=words):
            encoder, parsed = Encoder.learn(structure, X, LABELS)  # type: ignore[arg-type]
            encoder.encode_parsed(parsed)


def test_new_data_must_look_like_the_old() -> None:
    X = graphs()
    encoder = compiled(GraphModel(), X)
    other = Graph(np.ones((2, 2)), [(0, 1)], np.ones((1, 2)), "pz", ["s"])
    with pytest.raises(InputError, match="node type 'z'"):
        encoder.encode([other])
    with pytest.raises(InputError, match="0 rows of edge features where there should be 1"):
        encoder.encode([Graph(np.ones((2, 2)), [(0, 1)], None, "pp", ["s"])])
    with pytest.raises(InputError, match="3 features per site, but the model learned from 2"):
        compiled(Chain(), [np.ones((2, 2))]).encode([np.ones((2, 3))])


@pytest.mark.parametrize("case", structures(), ids=lambda case: type(case[0]).__name__)
def test_no_instances_make_an_empty_batch(case: tuple[Structure, list[Any]]) -> None:
    structure, X = case
    batch = compiled(structure, X).encode([])
    assert len(batch.batch) == 0 and len(batch.labels.vars) == 0
    with pytest.raises(InputError, match="empty"):
        Encoder.learn(structure, [], LABELS)


def test_factors_that_some_instances_lack() -> None:
    X = [FactorInput("vv", {"u": [(0,), (1,)], "p": []}), FactorInput("vv", {"u": [], "p": [(0, 1)]})]
    batch, theta, w = encoded(FactorModel(), X)

    def by_hand(i: int, y: list[Any], h: list[int]) -> float:
        return w("p", "1", *y) if i else w("u", "1", y[0]) + w("u", "1", y[1])

    check_all(batch, theta, by_hand)


def test_the_order_of_instances_that_lack_factors_does_not_matter() -> None:
    """Types of factors of which no instance has one, with features (0, d) in some of the instances alone."""
    lacking = FactorInput(["y", "y"], {"own": ([[0], [1]], [[1.0], [0.0]])})
    without = FactorInput(["y", "y"], {**lacking.factors, "pair": (np.zeros((0, 2), int), np.zeros((0, 3)))})
    with_one = FactorInput(["y", "y"], {**lacking.factors, "pair": ([[0, 1]], np.ones((1, 3)))})
    for X in ([lacking, without], [without, lacking]):
        clf = ms.CRF(FactorModel()).fit(X, [["a", "b"]] * 2)
        assert clf.schema_.features["factor:pair"].n_features == 3
        forbidding = FactorModel(forbidden={"pair": [("a", "b")]})
        np.testing.assert_array_equal(ms.CRF(forbidding).fit(X, [["a", "b"]] * 2).predict(X), [["a", "b"]] * 2)
        with pytest.raises(InputError, match="factors 'pair', but no instance"):
            clf.predict([with_one])


def test_a_model_without_weights_is_refused() -> None:
    with pytest.raises(InputError, match="no weights, as no instance has a factor"):
        ms.CRF(FactorModel()).fit([FactorInput(["y", "y"], {"pair": []})], [["a", "b"]])


def test_names_of_factors_and_variables_that_would_be_confused_are_refused() -> None:
    own = ([[0], [1]], [[1.0], [0.0]])
    with pytest.raises(InputError, match="type 'label'"):
        X = [FactorInput(["y", "y", "label"], {"own": own, "to": [[0, 2]]})]
        ms.HCRF(FactorModel(hidden={"label": 3})).fit(X, [["a", "b"]])
    with pytest.raises(InputError, match=r"'own.x'"):
        ms.CRF(FactorModel()).fit([FactorInput(["y", "y"], {"own": own, "own.x": [[0]]})], [["a", "b"]])


def test_what_is_built_is_built_once() -> None:
    encoder = compiled(Chain(hidden=2, fixed={"bias": 0.0}), sequences())
    assert encoder.blocks is encoder.blocks and encoder.model is encoder.model and encoder.layout is encoder.layout
    assert encoder.model.layout is encoder.layout


def test_too_many_weights_are_announced() -> None:
    with pytest.warns(MssvmWarning, match=r"the model has 1,073,\d+,\d+ weights, 8.0 GiB for each"):
        assert compiled(Chain(hidden=1 << 15, linked=True), sequences()).layout.n_weights > 1 << 30
