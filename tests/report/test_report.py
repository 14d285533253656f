"""The report page: complete, escaped, self-contained."""

import re
import xml.etree.ElementTree as ET

import numpy as np
import pytest

from mssvm.report import (
    Claim,
    Figure,
    Section,
    Series,
    Table,
    Text,
    heat_map,
    label_picture,
    legend,
    line_chart,
    page,
    scalar_picture,
)
from mssvm.report.charts import diverging

EVIL = '<script>alert("x")</script>&'


def drawings() -> list[str]:
    series = [
        Series(EVIL, [1, 10, 100], [3.0, 2.0, float("nan")], [0.1, 0.2, 0.0], 1),
        Series("b", [1, 10], [1.0, 2.0]),
    ]
    return [
        line_chart(EVIL, EVIL, EVIL, series, log_x=True, log_y=True),
        heat_map(EVIL, ["0", "1"], ["0"], [[1.0], [None]], "r", "c", [["1\n+0.1"], [EVIL]]),
        label_picture(EVIL, np.array([[0, 0, 1], [-1, 4, 4]])),
        scalar_picture(EVIL, np.array([[0.0, 1.0]])),
    ]


def whole() -> str:
    items = [
        Text(EVIL),
        Table(EVIL, ["a", "b"], [[EVIL, "1"]], EVIL),
        Figure(EVIL, drawings(), EVIL, key=legend([EVIL])),
    ]
    evil = Claim("10a", EVIL, EVIL, "undecided", EVIL, EVIL, EVIL, [(EVIL, EVIL)], [(EVIL, EVIL)])
    claims = [evil, Claim("2", "first", "Table 1", "as claimed", "+1.00", "", "", [], [])]
    settings = [Table(EVIL, [EVIL], [[EVIL]])]
    return page(EVIL, EVIL, [(EVIL, EVIL)], [Section("one", EVIL, items, claims)], settings)


def test_user_text_is_escaped_and_nothing_is_loaded():
    html = whole()
    assert "<script" not in html
    assert not re.findall(r"(?:src|href)=\"(?!#)", html)
    assert "url(" not in html and "@import" not in html
    assert "default-src 'none'" in html


@pytest.mark.parametrize("drawing", drawings())
def test_drawings_are_well_formed_and_finite(drawing):
    root = ET.fromstring(drawing)
    numbers = [v for e in root.iter() for k, v in e.attrib.items() if k in ("x", "y", "cx", "cy", "x1", "y1", "points")]
    assert numbers and not any("nan" in v or "inf" in v for v in numbers)


def test_claims_are_summarised_in_order():
    html = whole()
    summary = html[html.index('id="claims"') : html.index('id="one"')]
    assert summary.index("first") < summary.index("alert")
    assert 'class="verdict undecided"' in summary and 'class="verdict as-claimed"' in summary


def test_picture_draws_every_run_of_pixels_once():
    root = ET.fromstring(label_picture("p", np.array([[0, 0, 1], [2, 2, 2]])))
    widths = [int(e.attrib["width"]) // 7 for e in root.iter() if e.tag == "rect"]
    assert widths == [2, 1, 3]


def test_a_point_lies_where_its_value_says():
    root = ET.fromstring(line_chart("t", "x", "y", [Series("s", [0.0, 1.0, 2.0], [0.0, 5.0, 10.0])]))
    points = next(e for e in root.iter() if e.tag == "polyline").attrib["points"].split()
    x, y = np.array([[float(v) for v in p.split(",")] for p in points]).T
    assert np.allclose(np.diff(x), np.diff(x)[0], atol=0.11) and np.allclose(np.diff(y), np.diff(y)[0], atol=0.11)
    assert x[0] < x[-1] and y[0] > y[-1]


def test_an_axis_from_a_later_point_shows_what_curves_do_there():
    """The first value, 100, is off the axis; the line enters at its top, between the first and the second mark."""
    series = Series("s", [0.0, 1.0, 2.0, 3.0], [100.0, 6.0, 5.0, 7.0])
    root = ET.fromstring(line_chart("t", "x", "y", [series], y_from=1.0))
    marks = [float(e.text) for e in root.iter() if e.tag == "text" and e.attrib["class"] == "k e"]
    assert max(marks) < 8
    line = [e for e in root.iter() if e.tag == "polyline"]
    points = np.array([[float(v) for v in p.split(",")] for p in line[0].attrib["points"].split()])
    circles = [e for e in root.iter() if e.tag == "circle" and e.attrib["r"] == "3.4"]
    assert len(line) == 1 and len(points) == 4 and len(circles) == 3 + 1  # three marks, and the one of the key
    assert points[0, 1] < points[1:, 1].min() and points[0, 0] < points[1, 0]


def test_a_line_that_leaves_and_returns_is_drawn_in_pieces():
    series = Series("s", [0.0, 1.0, 2.0, 3.0, 4.0], [5.0, 90.0, -90.0, 5.0, 6.0])
    root = ET.fromstring(line_chart("t", "x", "y", [series], y_from=3.0))
    assert len([e for e in root.iter() if e.tag == "polyline"]) == 3


@pytest.mark.parametrize(("low", "high"), [(1.0, 3.0), (1.0, 1000.0), (0.9, 1.6)])
def test_a_logarithmic_axis_has_at_least_two_marks(low, high):
    root = ET.fromstring(line_chart("t", "x", "y", [Series("s", [0.0, 1.0], [low, high])], log_y=True))
    marks = [float(e.text) for e in root.iter() if e.tag == "text" and e.attrib["class"] == "k e"]
    assert len(marks) >= 2 and all(0.7 * low <= m <= 1.4 * high for m in marks)


def test_a_bound_makes_zero_the_middle():
    drawing = heat_map("t", ["a"], ["x", "y"], [[0.0, 1.0]], "r", "c", [["0", "1"]], bound=2.0)
    assert re.findall(r"fill:(#\w+)", drawing) == [diverging(0.5), diverging(0.75)] and diverging(0.5) == "#ffffff"
    assert re.findall(r"fill:(#\w+)", heat_map("t", ["a"], ["x"], [[0.0]], "r", "c", [["0"]], bound=0.0)) == ["#ffffff"]


def test_large_values_have_short_marks():
    drawing = line_chart("t", "x", "y", [Series("a", [0, 1], [0.0, 40000.0])])
    assert ">40k<" in drawing and ">40000<" not in drawing
