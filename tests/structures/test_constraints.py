"""Hard constraints, known weights, and the converters of graphs."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
from scipy import sparse

from mssvm.core.errors import InputError
from mssvm.core.potentials import Marginals
from mssvm.data.graphs import FactorInput, Graph
from mssvm.data.labels import LabelVocabulary
from mssvm.inference.enumerate import Enumerate, score
from mssvm.models.partial import FixedWeights
from mssvm.structures import Chain, Encoder, FactorModel, GraphModel, Grid, Structure
from mssvm.structures.encoded import Encoded, to_query, to_sample

LABELS = LabelVocabulary(("B", "I", "O"))


def possible(structure: Structure, x: Any) -> tuple[Encoded, set[tuple[Any, ...]]]:
    """All label sequences of one instance that have some assignment of finite score."""
    encoder, parsed = Encoder.learn(structure, [x], LABELS)
    encoded, model = encoder.encode_parsed(parsed), encoder.model
    theta = model.forward(np.random.default_rng(0).normal(size=model.n_weights), encoded.inputs)
    allowed = to_query(encoded).allowed
    batch = encoded.batch
    out = set()
    for z in product(*(range(c) for c in batch.cards)):
        states = np.array(z)
        if allowed[batch.unary_ptr[:-1] + states].all() and np.isfinite(score(batch, theta, states)[0]):
            out.add(tuple(LABELS.classes[s] for s in states[encoded.labels.vars]))
    return encoded, out


@pytest.mark.parametrize("options", [{}, {"hidden": 2}, {"hidden": 2, "direct": True}, {"hidden": 2, "linked": True}])
def test_forbidden_transitions_starts_and_ends(options: dict[str, Any]) -> None:
    forbidden = [("O", "I"), (None, "I"), ("B", None)]
    _, found = possible(Chain(forbidden=forbidden, **options), np.ones((3, 1)))  # type: ignore[arg-type]
    expected = {
        y
        for y in product("BIO", repeat=3)
        if y[0] != "I" and y[-1] != "B" and all(pair != ("O", "I") for pair in zip(y, y[1:], strict=False))
    }
    assert found == expected


def test_forced_transitions() -> None:
    _, found = possible(Chain(forced={"B": "I", "O": ["O", "B"]}), np.ones((3, 1)))
    after = {"B": "I", "O": "OB", "I": "BIO"}
    assert found == {y for y in product("BIO", repeat=3) if all(b in after[a] for a, b in zip(y, y[1:], strict=False))}


def test_edge_features_keep_forbidden_transitions() -> None:
    x = {"x": np.ones((3, 1)), "edge_x": np.arange(2.0)[:, None]}
    _, found = possible(Chain(forbidden=[("B", "O")]), x)
    assert found == {y for y in product("BIO", repeat=3) if all(p != ("B", "O") for p in zip(y, y[1:], strict=False))}


def test_forbidden_neighbours_by_direction() -> None:
    _, found = possible(Grid(forbidden={"down": [("B", "O")]}), np.ones((2, 2, 1)))
    assert found == {y for y in product("BIO", repeat=4) if ("B", "O") not in ((y[0], y[2]), (y[1], y[3]))}
    with pytest.raises(InputError, match="edge type 'up'"):
        possible(Grid(forbidden={"up": [("B", "O")]}), np.ones((2, 2, 1)))


def test_allowed_labels_by_node_type_and_forbidden_joint_states() -> None:
    graph = Graph(np.ones((2, 1)), [(0, 1)], node_types="pq")
    _, found = possible(GraphModel(allowed={"p": "BI"}), graph)
    assert found == set(product("BI", "BIO"))
    item = FactorInput(["w", "h", "w"], {"f": [(0, 1, 2)]})
    model = FactorModel(hidden={"h": 2}, allowed={"w": "BO"}, forbidden={"f": [("B", 0, "B"), ("B", 1, "B")]})
    assert possible(model, item)[1] == {("B", "O"), ("O", "B"), ("O", "O")}


def test_inference_honours_forbidden_transitions() -> None:
    structure = Chain(hidden=2, forbidden=[("O", "I"), (None, "I")])
    X = [np.ones((3, 1)), np.ones((2, 1))]
    encoder, parsed = Encoder.learn(structure, X, LABELS)
    encoded, model = encoder.encode_parsed(parsed), encoder.model
    theta = model.forward(np.random.default_rng(1).normal(size=model.n_weights), encoded.inputs)
    belief = Enumerate()(encoded.batch, theta, to_query(encoded), 1.0, 1.0)
    first = encoded.labels.vars[encoded.labels.ptr[:-1]]
    assert np.all(belief.mu.unary[encoded.batch.unary_ptr[first] + 1] == 0.0)
    forbidden = ~np.isfinite(theta.tables)
    assert forbidden.sum() == 1
    assert np.all(belief.mu.tables[forbidden[encoded.batch.mu_source]] == 0.0)


def test_labels_against_a_constraint_are_named() -> None:
    structure = GraphModel(allowed={"p": ["B"]})
    graph = Graph(np.ones((2, 1)), [(0, 1)], node_types="qp")
    encoded = Encoder.learn(structure, [graph], LABELS)[0].encode([graph])
    with pytest.raises(InputError, match="y, instance 0, site 1: no label is left"):
        to_sample(encoded, LABELS.encode([["B", "O"]], encoded.labels.shapes))


def test_known_weights_act_and_get_no_gradient() -> None:
    table = np.full((3, 3), np.nan)
    table[0] = 2.0
    structure = Chain(fixed={"transition": table, "bias": -1.0, "node": {("x1", "O"): 0.25}})
    X = [np.random.default_rng(0).normal(size=(3, 2))]
    encoder, parsed = Encoder.learn(structure, X, LABELS)
    encoded, model = encoder.encode_parsed(parsed), encoder.model
    assert isinstance(model, FixedWeights) and model.layout is not None
    rng = np.random.default_rng(1)
    w = rng.normal(size=model.n_weights)
    full = model.fill(w)
    assert model.layout.view(full, "transition").reshape(3, 3)[0].tolist() == [2.0] * 3
    assert np.all(model.layout.view(full, "bias") == -1.0) and model.layout.view(full, "node")[1, 2] == 0.25
    assert int(model.known.sum()) == 3 + 3 + 1
    free = Encoder(Chain(), encoder.schema, LABELS).model
    one, two = model.forward(w, encoded.inputs), free.forward(full, encoded.inputs)
    assert np.array_equal(one.unary, two.unary) and np.array_equal(one.tables, two.tables)
    batch = encoded.batch
    mu = Marginals(rng.normal(size=batch.n_states), rng.normal(size=batch.n_mu_entries))
    gradient = model.adjoint(mu, encoded.inputs)
    assert np.all(gradient[model.known] == 0.0)
    assert np.array_equal(gradient[~model.known], free.adjoint(mu, encoded.inputs)[~model.known])
    with pytest.raises(InputError, match="finite"):
        FixedWeights(model.model, np.full(model.n_weights, np.inf))


# --------------------------------------------------------------------------------------------- converters


@pytest.mark.parametrize("wrap", [np.asarray, sparse.csr_array, sparse.coo_matrix])
def test_graphs_from_adjacency_matrices(wrap: Any) -> None:
    nodes = np.ones((3, 1))
    matrix = np.array([[9.0, 2.0, 0.0], [2.0, 0.0, 3.0], [0.0, 3.0, 0.0]])
    graph = Graph.from_adjacency(nodes, wrap(matrix), weights=True)
    assert graph.edges.tolist() == [[0, 1], [1, 2]] and graph.edge_features.tolist() == [[2.0], [3.0]]
    directed = Graph.from_adjacency(nodes, wrap(np.triu(matrix)), directed=True, node_types="aab")
    assert directed.edges.tolist() == [[0, 1], [1, 2]] and directed.edge_features is None
    with pytest.raises(InputError, match="not symmetric"):
        Graph.from_adjacency(nodes, wrap(np.triu(matrix)))
    with pytest.raises(InputError, match="there are 2 nodes"):
        Graph.from_adjacency(np.ones((2, 1)), wrap(matrix))


class Networkx:
    """The part of networkx.Graph that the converter uses."""

    def __init__(self, nodes: dict[Any, dict[str, Any]], edges: dict[tuple[Any, Any], dict[str, Any]]) -> None:
        self._nodes, self._edges = nodes, edges

    class _Nodes(list[Any]):
        def __init__(self, data: dict[Any, dict[str, Any]]) -> None:
            super().__init__(data)
            self._data = data

        def __call__(self, data: bool) -> Any:
            return self._data.items()

    @property
    def nodes(self) -> Any:
        return self._Nodes(self._nodes)

    def edges(self, data: bool = False) -> Any:
        return [(*pair, attributes) for pair, attributes in self._edges.items()] if data else list(self._edges)


def test_graphs_from_networkx() -> None:
    nodes = {"u": {"x": [1.0], "kind": "p"}, "v": {"x": [2.0], "kind": "q"}, "w": {"x": [3.0], "kind": "p"}}
    edges = {("v", "u"): {"f": [0.5], "t": "near"}, ("u", "w"): {"f": [1.5], "t": "far"}}
    graph = Graph.from_networkx(Networkx(nodes, edges), "x", "f", "kind", "t")
    assert graph.edges.tolist() == [[1, 0], [0, 2]]
    assert list(graph.nodes) == [[1.0], [2.0], [3.0]] and list(graph.edge_features) == [[0.5], [1.5]]
    assert graph.node_types == ["p", "q", "p"] and graph.edge_types == ["near", "far"]
    with pytest.raises(InputError, match="node u has no attribute 'z'"):
        Graph.from_networkx(Networkx(nodes, edges), "z")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"edges": [(0, -1)]}, "edge 0 names nodes \\(0, -1\\), but nodes run from 0 to 1"),
        ({"edges": [(0, 1), (0, 2)]}, "edge 1 names nodes"),
        ({"edges": [(1, 1)]}, "edge 0 names a node twice"),
        ({"edges": [(0, 1, 1)]}, "two node numbers"),
        ({"edges": [(0.5, 1.0)]}, "whole numbers"),
        ({"edges": [(0, 1)], "node_types": "a"}, "node_types has 1 entries, but there are 2 nodes"),
        ({"edges": [(0, 1)], "edge_types": "ab"}, "edge_types has 2 entries, but there are 1 edges"),
        ({"edges": [(0, 1)], "edge_features": np.ones((2, 1))}, "edge_features has 2 entries"),
    ],
)
def test_graphs_that_cannot_be_are_refused(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        Graph(np.ones((2, 1)), **arguments)


def test_factor_graphs_that_cannot_be_are_refused() -> None:
    for factors, words in (
        ({"f": [(0, 5)]}, "factor 'f' 0 names variables"),
        ({"f": [(0, 0)]}, "twice"),
        ({"f": ([(0, 1)], np.ones((2, 1)))}, "1 scopes but 2 feature rows"),
    ):
        with pytest.raises(InputError, match=words):
            FactorInput("uv", factors)
    pair = FactorInput("uv", {"f": ((0, 1), (1, 0))})
    assert pair.scopes["f"].tolist() == [[0, 1], [1, 0]] and not pair.features
