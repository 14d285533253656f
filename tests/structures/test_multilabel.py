"""Several labels of one instance: scores written out by hand, the tree against all trees, every member end to end."""

from __future__ import annotations

import json
from itertools import combinations, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import sparse
from sklearn.base import clone
from sklearn.metrics import f1_score
from sklearn.model_selection import GridSearchCV

import mssvm as ms
from mssvm.cli import main
from mssvm.core.errors import InputError
from mssvm.core.registry import MEMBERS
from mssvm.data.labels import LabelVocabulary
from mssvm.inference.enumerate import score
from mssvm.structures import Encoder
from mssvm.structures.multilabel import chow_liu_tree, mutual_information

BITS = LabelVocabulary((0, 1))


def scenes(n: int = 60, missing: float = 0.0, seed: int = 0) -> tuple[Any, Any]:
    """Four labels: 1 follows 0, 2 excludes 0, 3 is alone; features tell 0 and 3 well, the others hardly."""
    rng = np.random.default_rng(seed)
    first = rng.random(n) < 0.5
    second = np.where(rng.random(n) < 0.9, first, ~first)
    third = ~first & (rng.random(n) < 0.9)
    y = np.stack([first, second, third, rng.random(n) < 0.4], axis=1).astype(np.int64)
    X = np.hstack([2.0 * (2 * y[:, [0, 3]] - 1), 0.3 * (2 * y[:, [1, 2]] - 1)]) + rng.normal(size=(n, 4))
    return X, np.where(rng.random(y.shape) < missing, -1, y)


def dot(name: dict[Any, float], block: str, x: Any, *states: Any) -> float:
    return sum(float(v) * name[block, f"x{j}", *states] for j, v in enumerate(x))


@pytest.mark.parametrize(("hidden", "linked"), [(0, False), (2, False), (2, True)])
def test_scores_by_hand(hidden: int, linked: bool) -> None:
    X, y = scenes(3)
    structure = ms.MultiLabel([(0, 1), (2, 0)], hidden=hidden, linked=linked, direct=True, names="pqrs")
    encoder, parsed = Encoder.learn(structure, X, BITS, y)
    batch = encoder.encode_parsed(parsed)
    w = np.random.default_rng(0).normal(size=encoder.model.n_weights)
    name: dict[Any, float] = {(v.block, v.feature, *v.states): v.value for v in encoder.weights(w)}
    theta = encoder.model.forward(w, batch.inputs)
    for i, z in product(range(3), product(range(2), repeat=len(batch.batch.cards) // 3)):
        total, h = 0.0, z[4:]
        for j, label in enumerate("pqrs"):
            total += dot(name, f"node:{label}", X[i], z[j]) + name[f"bias:{label}", "1", z[j]]
            if linked:
                total += dot(name, f"hidden.node:{label}", X[i], h[j]) + name[f"attach:{label}", "1", z[j], h[j]]
        for e, (j, k, link) in enumerate(((0, 1, "p-q"), (0, 2, "p-r"))):
            total += name[f"edge:{link}", "1", z[j], z[k]]
            if linked:
                total += name[f"hidden.edge:{link}", "1", h[j], h[k]]
            elif hidden:
                total += name[f"left:{link}", "1", z[j], h[e]] + name[f"right:{link}", "1", h[e], z[k]]
                total += dot(name, f"left.x:{link}", X[i], h[e])
        states = np.zeros(batch.batch.n_vars, dtype=np.int64)
        states[batch.batch.var_ptr[i] : batch.batch.var_ptr[i + 1]] = z
        assert score(batch.batch, theta, states)[i] == pytest.approx(total, rel=1e-12, abs=1e-12)


def test_mutual_information_by_hand() -> None:
    states = np.array([[0, 0], [0, 0], [1, 1], [1, -1], [0, 1]])
    counts = np.array([[2.0, 1.0], [0.0, 1.0]]) + 0.5
    p = counts / counts.sum()
    expected = sum(p[a, b] * np.log(p[a, b] / p[a].sum() / p[:, b].sum()) for a in range(2) for b in range(2))
    assert mutual_information(states)[0, 1] == pytest.approx(expected, rel=1e-13)


@pytest.mark.parametrize("seed", range(5))
def test_the_tree_has_the_largest_information_of_all_trees(seed: int) -> None:
    rng = np.random.default_rng(seed)
    states = (rng.random((30, 3)) @ rng.random((3, 5)) + 0.3 * rng.random((30, 5)) > 0.9).astype(np.int64)
    states[rng.random(states.shape) < 0.2] = -1
    gain = mutual_information(states)
    found = chow_liu_tree(states)

    def spans_all(tree: Any) -> bool:
        reached, grown = {0}, True
        while grown:
            more = {v for pair in tree for v in pair if reached & set(pair)}
            grown, reached = bool(more - reached), reached | more
        return len(reached) == 5

    trees = [tree for tree in combinations(combinations(range(5), 2), 4) if spans_all(tree)]
    assert len(trees) == 5**3 and spans_all(found)
    best = max(sum(gain[pair] for pair in tree) for tree in trees)
    assert sum(gain[pair] for pair in found) == pytest.approx(best, rel=1e-13)


@pytest.mark.parametrize("member", MEMBERS)
def test_every_member_learns_and_comes_back_from_its_file(member: str, tmp_path: Path) -> None:
    X, y = scenes(40, missing=0.3)
    hidden = 2 if MEMBERS[member].hidden else 0
    settings = {"max_iter": 10} if member not in ("M3E", "ModLat") else {"max_iter": 3}
    clf = getattr(ms, member)(ms.MultiLabel(hidden=hidden), missing_label=-1, random_state=0, **settings).fit(X, y)
    Z, truth = scenes(30, seed=1)
    said = clf.predict(Z)
    assert said.shape == truth.shape and said.dtype == truth.dtype and set(said.ravel()) <= {0, 1}
    assert np.mean(said == truth) == pytest.approx(clf.score(Z, truth)) and clf.score(Z, truth) > 0.75
    p = clf.predict_marginals(Z)
    assert p.shape == (30, 4, 2) and np.allclose(p.sum(axis=2), 1.0)
    clf.save(tmp_path / "m.st")
    again = ms.load(tmp_path / "m.st")
    assert np.array_equal(again.predict(Z), said) and np.array_equal(again.predict_marginals(Z), p)


@pytest.mark.parametrize("graph", ["tree", "full", "none"])
def test_marginals_are_those_of_all_labellings(graph: str) -> None:
    X, y = scenes(30)
    clf = ms.CRF(ms.MultiLabel(graph)).fit(X, y)
    encoded = clf.encoder_.encode(X[:3])
    theta = clf.encoder_.model.forward(clf.coef_, encoded.inputs)
    all_y = np.array(list(product(range(2), repeat=4)))
    scores = np.array([score(encoded.batch, theta, np.tile(z, 3)) for z in all_y])
    p = np.exp(scores - scores.max(axis=0))
    expected = np.einsum("zi,zj->ij", p / p.sum(axis=0), all_y)
    assert np.allclose(clf.predict_marginals(X[:3])[..., 1], expected, atol=1e-10)
    assert np.array_equal(clf.predict(X[:3]), all_y[scores.argmax(axis=0)])
    n_links = {"tree": 3, "full": 6, "none": 0}[graph]
    assert len({w.block for w in clf.weights_table() if w.block.startswith("edge:")}) == n_links


def test_links_help_where_features_say_little() -> None:
    X, y = scenes(200, missing=0.3)
    Z, truth = scenes(400, seed=1)
    alone, tree = (ms.CRF(ms.MultiLabel(graph), missing_label=-1).fit(X, y) for graph in ("none", "tree"))
    assert tree.schema_.types["edge"] == ("0-1", "0-2", "0-3")
    assert tree.score(Z, truth) >= alone.score(Z, truth)
    assert f1_score(truth, tree.predict(Z), average="macro") > 0.75
    # A known label tells about those linked to it.
    known = np.full(truth.shape, -1)
    known[:, 1] = truth[:, 1]
    given = tree.predict(Z, given=known)
    assert np.array_equal(given[:, 1], truth[:, 1])
    assert np.mean(given[:, 2] == truth[:, 2]) > np.mean(tree.predict(Z)[:, 2] == truth[:, 2]) - 0.01


def test_forms_of_X() -> None:
    X, y = scenes(30)
    plain = ms.CRF(ms.MultiLabel()).fit(X, y).predict(X)
    for form in (list(X), X.tolist(), [sparse.csr_array(x[None]) for x in X], sparse.csr_matrix(X)):
        assert np.array_equal(ms.CRF(ms.MultiLabel()).fit(form, y.tolist()).predict(form), plain)
    named = [{"a": float(x[0]), "sign": "up" if x[1] > 0 else "down"} for x in X]
    found = ms.CRF(ms.MultiLabel(names=["p", "q", "r", "s"])).fit(named, y)
    assert {w.block for w in found.weights_table() if w.feature == "sign:up"} == {f"node:{n}" for n in "pqrs"}
    assert found.predict(named[:2]).shape == (2, 4)
    gaps = np.where(np.arange(120).reshape(30, 4) % 7 == 0, np.nan, y)
    assert ms.CRF(ms.MultiLabel()).fit(X, gaps).predict(X).dtype == np.float64


def test_a_search_over_links() -> None:
    X, y = scenes(40)
    search = GridSearchCV(ms.CRF(ms.MultiLabel()), {"structure__graph": ["tree", "none"], "C": [0.1, 1.0]}, cv=2)
    assert search.fit(X, y).best_score_ > 0.7
    assert ms.cross_val_predict(clone(search.best_estimator_), X, y, cv=3).shape == y.shape


@pytest.mark.parametrize(
    ("structure", "change", "words"),
    [
        (ms.MultiLabel("ring"), {}, "graph must be 'tree', 'full', 'none'"),
        (ms.MultiLabel([(0, 9)]), {}, r"graph holds \(0, 9\)"),
        (ms.MultiLabel([(1, 1)]), {}, r"graph holds \(1, 1\)"),
        (ms.MultiLabel(names=["a", "a", "b", "c"]), {}, "3 different names, but y has 4"),
        (ms.MultiLabel(), {"y": np.array([[0, 1, 2, 0]] * 9)}, "y holds 0, 1, 2; give missing_label="),
        (ms.MultiLabel(), {"y": [[0, 1]] * 8 + [[0]]}, "instance 8: labels for 1 sites"),
        (ms.MultiLabel(), {"X": np.ones((9, 2, 2))}, r"X has shape \(9, 2, 2\)"),
        (ms.MultiLabel(), {"X": ["some text"] * 9}, "instance 0: expected one row of features"),
    ],
)
def test_what_is_refused(structure: Any, change: Any, words: str) -> None:
    X, y = scenes(9)
    with pytest.raises(InputError, match=words):
        ms.CRF(structure).fit(change.get("X", X), change.get("y", y))


# ----------------------------------------------------------------------------------------- the command line


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    code = main([str(a) for a in arguments])
    out = capsys.readouterr()
    return code, out.out, out.err


@pytest.mark.parametrize("form", ["jsonl", "npz"])
def test_several_labels_by_command_line(form: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    X, y = scenes(40, missing=0.2)
    data, model = tmp_path / f"train.{form}", tmp_path / "m.st"
    if form == "npz":
        np.savez(data, x=X, y=y)
    else:
        labels = [[None if v < 0 else v for v in row] for row in y.tolist()]
        labels[3] = None  # type: ignore[call-overload]
        data.write_text("".join(json.dumps({"x": x, "y": v}) + "\n" for x, v in zip(X.tolist(), labels, strict=True)))
    asked = ["--missing-label", "-1"] if form == "npz" else ["--structure", "multilabel"]
    assert json.loads(run(capsys, "check", data, "--json", *asked)[1])["sites"] == 160
    assert run(capsys, "fit", data, "-o", model, "--method", "mssvm", *asked)[0] == 0
    out = [json.loads(line) for line in run(capsys, "predict", model, data, "--marginals")[1].splitlines()]
    assert [record["y"] for record in out] == ms.load(model).predict(X).tolist()
    assert np.shape(out[0]["marginals"]) == (4, 2)
    found = json.loads(run(capsys, "evaluate", model, data, "--json")[1])
    assert found["accuracy"] > 0.8 and found["n_instances"] == 40
    assert list(found["by_label"]) == ["0", "1", "2", "3"]
    shown = run(capsys, "evaluate", model, data, "--by-class")[1]
    assert "By label" in shown and "macro avg" in shown and "By class" not in shown
    table = run(capsys, "compare", data, *asked, "--methods", "crf,ssvm", "--cv", "2", "--no-curves")
    assert table[0] == 0 and "SSVM" in table[1]


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (['{"x": [1, 2], "y": [0, 1]}', '{"x": [1, 2], "y": [0]}'], "line 2: 'y' should be a list of 2 labels"),
        (['{"x": [1, 2], "y": 1}'], "line 1: 'y' should be a list of labels"),
        (['{"x": [[1], [2]], "y": [1, 0]}'], "line 1: 'x' is nested 3 deep instead of 2"),
        (['{"y": [1, 0]}'], "line 1: the object has no 'x'"),
    ],
)
def test_files_that_cannot_be(lines: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    code, _, err = run(capsys, "fit", tmp_path / "a.jsonl", "-o", tmp_path / "m", "--structure", "multilabel")
    assert code == 2 and words in err
