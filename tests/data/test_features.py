"""Features: arrays, sparse matrices and named features against dictionaries built by hand; what is refused and why."""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

from mssvm.core.errors import InputError, MssvmWarning
from mssvm.data.features import FeatureRows, FeatureSchema
from mssvm.data.named import ALIKE, PROBE, Columns


def named_rows(space: FeatureSchema, rows: FeatureRows) -> list[dict[str, float]]:
    """Every row as a dict of its nonzero entries."""
    matrix = rows.matrix.toarray()
    return [{space.names[j]: float(row[j]) for j in np.flatnonzero(row)} for row in matrix]


def test_arrays_stay_dense_and_in_order() -> None:
    X = [np.arange(6).reshape(3, 2), np.ones((1, 2), np.float32), [[5, 6], [7, 8]]]
    space, rows = FeatureSchema.learn(X)
    assert (space.kind, space.n_features, space.names) == ("dense", 2, ("x0", "x1"))
    assert rows.matrix.tolist() == [[0, 1], [2, 3], [4, 5], [1, 1], [5, 6], [7, 8]]
    assert rows.ptr.tolist() == [0, 3, 4, 6]
    assert np.array_equal(space.encode(X).matrix, rows.matrix)


@pytest.mark.parametrize("form", [sparse.csr_array, sparse.csc_matrix, sparse.coo_array, sparse.lil_matrix])
def test_sparse_matrices_stay_sparse(form: Any) -> None:
    dense = [np.array([[0.0, 2.0, 0.0], [1.0, 0.0, 0.0]]), np.array([[0.0, 0.0, 3.0]])]
    space, rows = FeatureSchema.learn([form(x) for x in dense])
    assert space.kind == "sparse" and sparse.issparse(rows.matrix)
    assert np.array_equal(rows.matrix.toarray(), np.concatenate(dense))
    again = space.encode(dense)
    assert sparse.issparse(again.matrix) and np.array_equal(again.matrix.toarray(), np.concatenate(dense))


def test_named_features_as_crfsuite_reads_them() -> None:
    sites: list[Any] = [
        {"word": "the", "len": 3, "title": True, "digit": False, "half": 0.5},
        {"tags": ["a", "b"], "left": {"word": "on", "n": 2.0}, "set": {"q"}},
        {"word": "the", "left": {"deep": {"w": "x"}}},
    ]
    space, rows = FeatureSchema.learn([sites[:2], sites[2:]])
    assert named_rows(space, rows) == [
        {"word:the": 1, "len": 3, "title": 1, "half": 0.5},
        {"tags:a": 1, "tags:b": 1, "left:word:on": 1, "left:n": 2, "set:q": 1},
        {"word:the": 1, "left:deep:w:x": 1},
    ]
    assert "digit" not in space.names and rows.ptr.tolist() == [0, 2, 3]


def test_iterables_of_strings_are_indicators() -> None:
    space, rows = FeatureSchema.learn([[["w=a", "cap"], ["w=b"]], [{"w=a", "z", "y"}, []]])
    assert named_rows(space, rows) == [{"w=a": 1, "cap": 1}, {"w=b": 1}, {"w=a": 1, "z": 1, "y": 1}, {}]
    assert space.names == ("w=a", "cap", "w=b", "y", "z")


def test_a_feature_named_twice_at_a_site_counts_twice() -> None:
    space, rows = FeatureSchema.learn([[["a", "a", "b"]]])
    assert named_rows(space, rows) == [{"a": 2, "b": 1}]


def test_unseen_names_are_ignored() -> None:
    space, _ = FeatureSchema.learn([[{"w": "a"}, {"v": 1.0}]])
    rows = space.encode([[{"w": "zzz", "v": 2.0}], [{"u": 3.0}]])
    assert rows.matrix.toarray().tolist() == [[0.0, 2.0], [0.0, 0.0]]


def test_json_keeps_a_space() -> None:
    for X in ([[{"w": "a"}, {"v": 1.0}]], [np.ones((2, 3))], [sparse.eye_array(2)]):
        space, rows = FeatureSchema.learn(X)
        again = FeatureSchema.from_json(space.to_json()).encode(X)
        both = [m.toarray() if sparse.issparse(m) else m for m in (rows.matrix, again.matrix)]
        assert np.array_equal(*both) and np.array_equal(rows.ptr, again.ptr)


def test_making_sparse_features_dense_is_announced() -> None:
    space, _ = FeatureSchema.learn([np.ones((2, 2))])
    with pytest.warns(MssvmWarning, match="made dense"):
        rows = space.encode([sparse.eye_array(2)])
    assert isinstance(rows.matrix, np.ndarray)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("wrap", [np.asarray, sparse.csr_array])
def test_numbers_that_are_none_are_found(bad: float, wrap: Any) -> None:
    X = [np.ones((2, 2)), np.ones((3, 2))]
    X[1][2, 0] = bad
    with pytest.raises(InputError, match="X, instance 1, site 2: a feature is NaN or inf"):
        FeatureSchema.learn([wrap(x) for x in X])
    with pytest.raises(InputError, match="X, instance 0, site 1"):
        FeatureSchema.learn([[{"a": 1.0}, {"a": bad}]])


@pytest.mark.parametrize(
    ("X", "words"),
    [
        ([], "X is empty"),
        ([np.ones((2, 2)), np.ones((2, 3))], "instance 1: 3 features per site, but the instances before have 2"),
        ([np.ones(3)], r"instance 0: features have shape \(3,\)"),
        ([np.ones((2, 0))], "no features"),
        ([[{"a": 1}], np.ones((1, 1))], "mixes named features with arrays"),
        ([[[1, 2], [3]]], "instance 0: features are not a table of numbers"),
        (["word"], "instance 0: expected one row of features per site, got str"),
        ([[{"a": 1}, 5]], "instance 0, site 1: 5 is neither a dict"),
        ([[{"a": None}]], "instance 0, site 0"),
        ([[{"a": 10**400}]], "instance 0, site 0: a feature is NaN or inf or beyond"),
        ([[["a", 1]]], "instance 0, site 0"),
    ],
)
def test_what_cannot_be_features_is_refused(X: Any, words: str) -> None:
    with pytest.raises(InputError, match=words):
        FeatureSchema.learn(X)


def test_new_data_of_another_kind_is_refused() -> None:
    numbers, _ = FeatureSchema.learn([np.ones((2, 2))])
    names, _ = FeatureSchema.learn([[{"a": 1}]])
    with pytest.raises(InputError, match="holds named features, but the model learned from arrays"):
        numbers.encode([[{"a": 1}]])
    with pytest.raises(InputError, match="holds arrays, but the model learned from named features"):
        names.encode([np.ones((2, 2))])
    with pytest.raises(InputError, match="3 features per site, but the model learned from 2"):
        numbers.encode([np.ones((2, 3))])


@pytest.mark.parametrize(
    "site",
    [
        {"a": 1.0, "b": 0, "c": np.float64(2.5)},
        {"a": "x", "b": "y"},
        {"a": "x", "b": False, "c": True, "d": 0.0, "e": 3},
        ["a", "b", "a"],
    ],
    ids=["numbers", "text", "mixed", "indicators"],
)
def test_sites_in_bulk_and_one_by_one_are_the_same(site: Any) -> None:
    """A set among the sites sends its part the slow way."""
    bulk, rows = FeatureSchema.learn([[site, site], [site]])
    slow, slow_rows = FeatureSchema.learn([[site, site], [site], [{"z"}]])
    assert slow.vocabulary == (*bulk.vocabulary, "z")
    assert named_rows(bulk, rows) == named_rows(slow, slow_rows)[:3]
    assert named_rows(bulk, bulk.encode([[site, {"new": 1.0} if isinstance(site, dict) else ["new"]]]))[1] == {}


@pytest.mark.parametrize("times", [1, 9], ids=["few alike", "many alike"])
def test_sites_of_several_kinds_are_read_as_one_by_one(times: int) -> None:
    """Sites that have names in common are read name by name; columns stay numbered by first use."""
    kinds: list[Any] = [
        {"w": "a", "n": 1.5, "t": False},
        {"w": "b", "n": 2, "t": True},
        {"n": "x", "w": "a", "t": 3.0},
        {"w": "c"},
        {},
        {"w:a": "b", "w": "a:b"},
        {"t": False, "w": "d"},
    ]
    bulk, rows = FeatureSchema.learn([kinds * times])
    slow, slow_rows = FeatureSchema.learn([kinds * times, [{"z"}]])
    assert bulk.vocabulary == slow.vocabulary[:-1] == ("w:a", "n", "w:b", "t", "n:x", "w:c", "w:a:b", "w:d")
    assert named_rows(bulk, rows) == named_rows(slow, slow_rows)[:-1]
    assert (bulk.encode([kinds * times]).matrix != rows.matrix).nnz == 0


NAMES = st.sampled_from(["a", "b", "a:b", "c", "word.lower()", ""])
TEXT = st.sampled_from(["x", "y", "b", "b:x", "", "ä"])
PLAIN = st.one_of(
    TEXT, st.booleans(), st.sampled_from([0, 1, -2, 0.0, -0.0, 1.0, 2.5, np.float64(0.5), np.float32(1.5)])
)
RARE = st.one_of(
    st.sampled_from([None, np.str_("x"), np.True_, np.False_, np.int64(3), 10**400, 1e301, float("nan"), b"x", 1j]),
    st.lists(TEXT, max_size=2),
    st.sets(TEXT, max_size=2),
    st.dictionaries(NAMES, PLAIN | st.lists(TEXT, max_size=2), max_size=2),
)
DICTS = st.dictionaries(NAMES, PLAIN, max_size=5)
KINDS = [
    DICTS,  # names and values of the common kinds
    st.dictionaries(NAMES, TEXT, min_size=1, max_size=1),
    st.dictionaries(NAMES | st.integers(0, 2), PLAIN | RARE, max_size=4),
    st.lists(NAMES, max_size=3) | st.tuples(NAMES),
    st.sets(NAMES, max_size=3) | DICTS.map(OrderedDict) | DICTS | st.just("word") | st.none(),
]


@st.composite
def corpora(draw: Any) -> list[list[Any]]:
    """Instances of sites with few names: some alike and many, some alone."""
    kind = draw(st.sampled_from(KINDS))
    sites = draw(st.lists(kind, min_size=1, max_size=6))
    many = draw(st.lists(st.sampled_from(sites), max_size=3))
    varied = [{name: draw(PLAIN) for name in site} if isinstance(site, dict) else site for site in many]
    every = [*sites, *many * draw(st.sampled_from([0, 1, 40])), *varied * draw(st.sampled_from([0, 1, 40]))]
    order = draw(st.permutations(range(len(every)))) if len(every) < 20 else range(len(every))
    cut = draw(st.integers(0, len(every)))
    return [[every[s] for s in order][:cut], [every[s] for s in order][cut:]]


def read(X: list[Any], new: list[Any]) -> Any:
    """What learning from X, and reading new items then, come to: names and all arrays, or the words of an error."""
    try:
        schema, rows = FeatureSchema.learn(X)
    except InputError as error:
        return str(error)
    found: list[Any] = [schema.vocabulary, *csr(rows)]
    try:
        return [*found, *csr(schema.encode(new))]
    except InputError as error:
        return [*found, str(error)]


def csr(rows: FeatureRows) -> list[Any]:
    if not sparse.issparse(rows.matrix):
        return [rows.matrix.tolist(), rows.ptr.tolist()]
    m = rows.matrix
    return [m.shape, m.data.tolist(), m.indices.tolist(), m.indptr.tolist(), m.indices.dtype, rows.ptr.tolist()]


@settings(deadline=None)
@given(corpora(), corpora())
def test_bulk_reading_is_reading_one_by_one(X: list[Any], new: list[Any]) -> None:
    found = read(X, new)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Columns, "_in_bulk", refuse)
        expected = read(X, new)
    assert repr(found) == repr(expected)  # of the same types, and NaN equal to itself


def refuse(self: Columns, sites: list[Any]) -> None:
    raise TypeError


@pytest.mark.parametrize("n", [1, ALIKE - 1, ALIKE, PROBE + 1, 3 * PROBE])
@pytest.mark.parametrize(
    "last",
    [{"w": "a", "t": True}, {"t": True, "w": "a"}, {"w": "b"}, {"w": 1.0, "t": "x"}, {"w": "a", "t": np.False_}, {}],
)
def test_the_last_site_may_be_of_another_kind(n: int, last: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    X = [[{"w": "a", "t": k % 2 == 0} for k in range(n)], [last]]
    found = read(X, X[::-1])
    monkeypatch.setattr(Columns, "_in_bulk", refuse)
    assert found == read(X, X[::-1])


def test_common_sites_are_read_in_bulk(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests above compare two readers only if there are two."""

    def fail(*args: Any) -> None:
        raise AssertionError("a common site was read by itself")

    monkeypatch.setattr(Columns, "_one_by_one", fail)
    texts = [{"w": "a", "n": 1.5, "t": False}, {"w": "b", "n": 2, "t": True}]
    for sites in (texts * 40, [*texts * 40, {"w": "c"}], [{"w": "a"}] * 3, [{"w": "a"}, {"v": 1}], [["a"], ("b", "c")]):
        schema, _ = FeatureSchema.learn([sites])
        schema.encode([sites[::-1]])


def test_a_site_may_be_read_only_once() -> None:
    sites: list[Any] = [{"w": "a"}, iter(["x", "y"]), {"v": "a"}]
    space, rows = FeatureSchema.learn([sites])
    assert named_rows(space, rows) == [{"w:a": 1}, {"x": 1, "y": 1}, {"v:a": 1}]
    other, rows = FeatureSchema.learn([[{"w": "a"}, {"v": "a"}, {}, {"w": "a", "v": "b"}]])
    assert named_rows(other, rows) == [{"w:a": 1}, {"v:a": 1}, {}, {"w:a": 1, "v:b": 1}]


def test_parts_are_numbered_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    X = [[{"w": str(3 * i % 11), "v": str(i % 4)} for i in range(n)] for n in (5, 3, 9, 1)]
    whole, rows = FeatureSchema.learn(X)
    monkeypatch.setattr("mssvm.data.named.SITES_AT_ONCE", 4)
    parts, part_rows = FeatureSchema.learn(X)
    assert parts.vocabulary == whole.vocabulary and (rows.matrix != part_rows.matrix).nnz == 0


def test_dicts_with_defaults_stay_as_they_are() -> None:
    given = defaultdict(str, {"v": "q"})
    space, rows = FeatureSchema.learn([[{"w": "a"}, given, {"w": "b"}]])
    assert named_rows(space, rows) == [{"w:a": 1}, {"v:q": 1}, {"w:b": 1}] and dict(given) == {"v": "q"}
