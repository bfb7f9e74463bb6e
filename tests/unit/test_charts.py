# SPDX-License-Identifier: Apache-2.0
"""Charts: every value at its place, every text escaped, every shape closed."""

from __future__ import annotations

import itertools
import re
import xml.etree.ElementTree as ET

import pytest

from benches.render import charts
from benches.render.charts import Axis, Bar, Series

HOSTILE = '<script>alert("x")</script>&'


def parse(text):
    return ET.fromstring(text)


def circles(svg):
    return [(float(c.get("cx")), float(c.get("cy"))) for c in svg.iter("circle")]


def test_equal_factors_have_equal_lengths_on_a_logarithmic_axis():
    points = [(1, 10), (10, 20), (100, 40), (1000, 80)]
    svg = parse(charts.plot([Series("s", points)], Axis("x", log=True), Axis("y", log=True)))
    found = circles(svg)
    across = [b[0] - a[0] for a, b in itertools.pairwise(found)]
    up = [a[1] - b[1] for a, b in itertools.pairwise(found)]
    assert across == pytest.approx([across[0]] * 3, abs=0.2)
    assert up == pytest.approx([up[0]] * 3, abs=0.2)
    assert across[0] > 100
    assert up[0] > 50


def test_points_lie_within_the_picture_and_ticks_beside_what_they_name():
    points = [(n, 0.5 + n / 7) for n in range(30)]
    svg = parse(charts.plot([Series("s", points)], Axis("x"), Axis("y", guide=1.0)))
    width, height = map(float, svg.get("viewBox").split()[2:])
    found = circles(svg)
    assert len(found) == 30
    assert all(0 < x < width and 0 < y < height for x, y in found)
    labels = {
        t.text: float(t.get("x")) for t in svg.iter("text") if t.get("text-anchor") == "middle"
    }
    assert labels["10"] == pytest.approx(found[10][0], abs=0.2)
    assert labels["20"] == pytest.approx(found[20][0], abs=0.2)
    (guide,) = [line for line in svg.iter("line") if line.get("class") == "guide"]
    # y is 1 between the points 3 and 4.
    assert found[4][1] < float(guide.get("y1")) < found[3][1]


@pytest.mark.parametrize("values", [[1.0], [3.0, 3.0], [0.0, 0.0], [1e-9, 1e9], [-2.0, 5.0]])
def test_any_range_can_be_drawn(values):
    series = [Series("s", [(n, v) for n, v in enumerate(values)])]
    assert len(circles(parse(charts.plot(series, Axis("x"), Axis("y"))))) == len(values)
    if min(values) > 0:
        svg = parse(charts.plot(series, Axis("x"), Axis("y", log=True)))
        assert len(circles(svg)) == len(values)


def test_bars_begin_at_the_guide_and_end_at_their_value():
    found = [Bar(2.0, "2.00", 0, "a", mark=1.5), Bar(0.5, "0.50", 1, "b")]
    svg = parse(charts.bars([("group", found)], Axis("times faster", guide=1.0)))
    a, b = [r for r in svg.iter("rect")]
    guide = next(line for line in svg.iter("line") if line.get("class") == "guide")
    start = float(guide.get("x1"))
    assert float(a.get("x")) == pytest.approx(start, abs=0.2)
    assert float(b.get("x")) + float(b.get("width")) == pytest.approx(start, abs=0.2)
    assert float(a.get("width")) == pytest.approx(2 * float(b.get("width")), abs=0.3)
    mark = next(line for line in svg.iter("line") if line.get("class") == "published")
    assert float(mark.get("x1")) == pytest.approx(start + float(b.get("width")), abs=0.3)


def test_more_bars_than_colors_differ_as_their_names_in_the_legend_do():
    count = 2 * charts.COLORS
    found = [Bar(1.0 + n, "", n, f"b{n}") for n in range(count)]
    drawn = [r.get("class") for r in parse(charts.bars([("g", found)], Axis("x"))).iter("rect")]
    listed = parse(charts.legend([(bar.name, bar.color, None) for bar in found]))
    assert drawn == [r.get("class") for r in listed.iter("rect")]
    assert len(set(drawn)) == count


def test_a_density_is_highest_where_most_values_are():
    values = [1.0, 1.01, 0.99, 1.02, 4.0]
    svg = parse(charts.density([("s", values)], Axis("times faster", log=True)))
    (curve,) = svg.iter("polyline")
    points = [tuple(map(float, p.split(","))) for p in curve.get("points").split()]
    x, _ = min(points, key=lambda p: p[1])
    rug = [float(r.get("x")) for r in svg.iter("rect")]
    assert len(rug) == 5
    assert abs(x - rug[0]) < 12
    assert abs(x - rug[4]) > 100


def test_a_density_of_equal_values():
    assert "nan" not in charts.density([("s", [2.0, 2.0]), ("t", [3.0])], Axis("x", log=True))


def test_all_text_is_escaped():
    series = Series(HOSTILE, [(1, 1), (2, 2)], tips=[HOSTILE, HOSTILE])
    texts = [
        charts.plot([series], Axis(HOSTILE), Axis(HOSTILE, show=lambda _: HOSTILE)),
        charts.bars([(HOSTILE, [Bar(1, HOSTILE, 0, HOSTILE)])], Axis(HOSTILE)),
        charts.density([(HOSTILE, [1.0, 2.0])], Axis(HOSTILE, log=True)),
        charts.legend([(HOSTILE, 0, 0)]),
    ]
    for text in texts:
        assert not re.search("<script", text)
        assert "&lt;script" in text
        parse(text)


def test_markers_differ_and_close():
    drawn = [Series(str(n), [(n, n)], marker=n) for n in range(5)]
    svg = parse(charts.plot(drawn, Axis("x"), Axis("y")))
    kinds = [e.tag for e in svg.iter() if e.get("class", "").startswith("c") and e.tag != "line"]
    assert kinds == ["circle", "rect", "polygon", "polygon", "circle"]
    first, second = (e.get("points") for e in svg.iter("polygon"))
    assert len(first.split()) == 3
    assert len(second.split()) == 4
