"""Labels of segments: spans beside labels of sites."""

import pytest

import mssvm as ms
from mssvm.data.spans import span_labels


@pytest.mark.parametrize(
    ("site", "span", "left"),
    [
        ("a", "a", "a"),
        ({"a", "b"}, "a", "a"),
        ("a", {"a", "b"}, "a"),
        (["a", "b", "c"], ["c", "b"], ["b", "c"]),
        (ms.MISSING, ["a", "b"], ["a", "b"]),
        ("a", ms.MISSING, "a"),
    ],
)
def test_a_site_has_the_labels_that_it_and_its_span_allow(site, span, left):
    given = {"sites": [site, ms.MISSING, ms.MISSING], "spans": [(0, 2, span)]}
    second = ms.MISSING if span is ms.MISSING else span
    assert span_labels(given, 0, 3).sites == [left, second, ms.MISSING]


@pytest.mark.parametrize(("site", "span"), [("a", "b"), ({"a", "b"}, "c"), ({"a", "b"}, {"c", "d"})])
def test_a_span_that_contradicts_a_site_is_refused_with_its_place(site, span):
    given = {"sites": [ms.MISSING, site], "spans": [(0, 2, span)]}
    with pytest.raises(ms.errors.InputError, match=r"the span \(0, 2, .*covers a site with label") as found:
        span_labels(given, 4, 2)
    assert (found.value.instance, found.value.site) == (4, 1)


def test_candidates_of_sites_and_labels_of_spans_train_together():
    X = [[[1.0], [1.0], [0.0], [0.0]], [[0.0], [1.0], [1.0], [0.0]]]
    with_spans = [{"sites": [{"a", "b"}, None, "b", None], "spans": [(0, 2, "a")]}, ["b", "a", "a", "b"]]
    by_hand = [{"sites": ["a", "a", "b", None], "spans": [(0, 2, "a")]}, ["b", "a", "a", "b"]]
    fits = [ms.CRF(ms.Segments(max_length=3), random_state=0).fit(X, y) for y in (with_spans, by_hand)]
    assert (fits[0].coef_ == fits[1].coef_).all()
