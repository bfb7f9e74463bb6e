# SPDX-License-Identifier: Apache-2.0
"""Charts: every value at its place and with its tip, every text escaped, nothing by chance."""

from __future__ import annotations

import itertools
import re
import xml.etree.ElementTree as ET

import pytest

from benches.render import charts
from benches.render.charts import Axis, Bar

HOSTILE = '<script>alert("x")</script>&$_$'


def parse(text):
    return ET.fromstring(text)


def titled(svg, tag):
    return [e for e in svg.iter(tag) if e.find("title") is not None]


def points(svg):
    """Where the points stand, in their order; the legend's have no tips."""
    return [(float(u.get("x")), float(u.get("y"))) for u in titled(svg, "use")]


def box(group):
    """The left, right, top and bottom end of the one path of a group."""
    (path,) = group.iter("path")
    numbers = [float(n) for n in re.findall(r"-?[\d.]+", path.get("d"))]
    across, up = numbers[::2], numbers[1::2]
    return min(across), max(across), min(up), max(up)


def labels(svg):
    """Where the text of the chart stands across."""
    return {t.text: float(t.get("x")) for t in svg.iter("text") if t.get("x")}


def test_equal_factors_have_equal_lengths_on_a_logarithmic_axis():
    given = [(1, 10), (10, 20), (100, 40), (1000, 80)]
    svg = parse(charts.plot({"s": given}, Axis("x", log=True), Axis("y", log=True)))
    found = points(svg)
    across = [b[0] - a[0] for a, b in itertools.pairwise(found)]
    up = [a[1] - b[1] for a, b in itertools.pairwise(found)]
    assert across == pytest.approx([across[0]] * 3, abs=0.2)
    assert up == pytest.approx([up[0]] * 3, abs=0.2)
    assert across[0] > 75
    assert up[0] > 37


def test_points_lie_within_the_picture_and_ticks_beside_what_they_name():
    given = [(n, 0.5 + n / 7) for n in range(30)]
    svg = parse(charts.plot({"s": given}, Axis("x"), Axis("y", guide=1.0)))
    width, height = map(float, svg.get("viewBox").split()[2:])
    found = points(svg)
    assert len(found) == 30
    assert all(0 < x < width and 0 < y < height for x, y in found)
    assert labels(svg)["10"] == pytest.approx(found[10][0], abs=0.2)
    assert labels(svg)["20"] == pytest.approx(found[20][0], abs=0.2)
    guides = [g for g in svg.iter("path") if "stroke: var(--faint)" in g.get("style", "")]
    (guide,) = (float(g.get("d").split()[2]) for g in guides)
    # y is 1 between the points 3 and 4.
    assert found[4][1] < guide < found[3][1]


@pytest.mark.parametrize("values", [[1.0], [3.0, 3.0], [0.0, 0.0], [1e-9, 1e9], [-2.0, 5.0]])
def test_any_range_can_be_drawn(values):
    series = {"s": list(enumerate(values))}
    assert len(points(parse(charts.plot(series, Axis("x"), Axis("y"))))) == len(values)
    if min(values) > 0:
        svg = parse(charts.plot(series, Axis("x"), Axis("y", log=True)))
        assert len(points(svg)) == len(values)


def test_tips_name_the_series_and_the_values():
    series = {"a": [(1, 1500.0), (2, 0.25)], "b": [(1, 3.0, "conv1")]}
    svg = parse(charts.plot(series, Axis("x"), Axis("y")))
    tips = [u.find("title").text for u in titled(svg, "use")]
    assert tips == ["a, 1: 1,500", "a, 2: 0.25", "b, conv1: 3"]


def test_bars_begin_at_the_guide_and_end_at_their_value():
    found = [Bar(2.0, "2.00", "a", mark=1.5), Bar(0.5, "0.50", "b")]
    svg = parse(charts.bars([("group", found)], Axis("times faster", guide=1.0)))
    groups = {g.find("title").text: box(g) for g in titled(svg, "g")}
    a, b, mark = (groups[f"group, {n}"] for n in ("a: 2.00", "b: 0.50", "published: 1.5"))
    start = labels(svg)["1"]
    assert a[0] == pytest.approx(start, abs=0.2)
    assert b[1] == pytest.approx(start, abs=0.2)
    assert a[1] - a[0] == pytest.approx(2 * (b[1] - b[0]), abs=0.3)
    assert mark[0] == mark[1] == pytest.approx(start + (b[1] - b[0]), abs=0.3)
    assert "published" in [t.text for t in svg.iter("text")]
    # The first stands above, and nothing overlaps.
    assert a[3] < b[2]


def test_more_bars_than_colors_differ_as_their_names_in_the_legend_do():
    count = 2 * len(charts._COLORS)
    found = [Bar(1.0 + n, "", f"b{n}") for n in range(count)]
    svg = parse(charts.bars([("g", found)], Axis("x")))
    groups = list(svg.iter("g"))
    looks = [
        p.get("style")
        for g in groups
        for p in g.findall("path")
        if "fill: var(--c" in p.get("style", "")
    ]
    drawn, listed = looks[:count], looks[count:]
    assert drawn == listed
    assert len(set(drawn)) == count


def test_a_density_is_highest_where_most_values_are():
    values = [1.0, 1.01, 0.99, 1.02, 4.0]
    svg = parse(charts.density({"s": values}, Axis("times faster", log=True)))
    curve = next(p for p in svg.iter("path") if "fill: none; stroke: var(--c0)" in p.get("style"))
    found = re.findall(r"[ML] ([\d.]+) ([\d.]+)", curve.get("d"))
    assert len(found) > 20
    x, _ = min(((float(x), float(y)) for x, y in found), key=lambda p: p[1])
    rug = [float(u.get("x")) for u in svg.iter("use")]
    assert len(rug) == 5
    assert abs(x - rug[0]) < 10
    assert abs(x - rug[4]) > 75


def test_a_density_of_equal_values():
    text = charts.density({"s": [2.0, 2.0], "t": [3.0]}, Axis("x", log=True))
    assert "nan" not in text
    assert len(parse(text)) > 0


def test_all_text_is_escaped():
    series = {HOSTILE: [(1, 1, HOSTILE), (2, 2, HOSTILE)]}
    texts = [
        charts.plot(series, Axis(HOSTILE), Axis(HOSTILE)),
        charts.bars([(HOSTILE, [Bar(1, HOSTILE, HOSTILE)])], Axis(HOSTILE)),
        charts.density({HOSTILE: [1.0, 2.0]}, Axis(HOSTILE, log=True)),
    ]
    for text in texts:
        assert not re.search("<script", text)
        assert "&lt;script" in text
        # Dollars start no formula.
        assert HOSTILE in [t.text for t in parse(text).iter("text")]


def test_markers_differ():
    svg = parse(charts.plot({str(n): [(n, n)] for n in range(9)}, Axis("x"), Axis("y")))
    marks = {p.get("id"): p.get("d") for p in svg.iter("path") if p.get("id")}
    drawn = [(u.get("href"), u.get("style")) for u in titled(svg, "use")]
    assert len(set(drawn)) == 9
    assert len({marks[href[1:]] for href, _ in drawn[:4]}) == 4
    assert marks[drawn[0][0][1:]] == marks[drawn[4][0][1:]]


def test_series_of_two_figures_share_the_order_of_their_colors():
    points_of_b = {"b": [(1, 1)]}
    svg = parse(charts.plot(points_of_b, Axis("x"), Axis("y"), names=["a", "b"]))
    assert "var(--c1)" in titled(svg, "use")[0].get("style")


def test_a_chart_is_the_same_every_time_and_takes_its_colors_from_the_page():
    series = {"a": [(1, 2), (2, 3)]}
    text = charts.plot(series, Axis("x", log=True), Axis("y"), diagonal=True)
    assert charts.plot(series, Axis("x", log=True), Axis("y"), diagonal=True) == text
    assert not re.search(r"#[0-9a-f]{6}\b", text.replace('href="#', ""))
    assert not re.search(r"https?://|url\(|<metadata", text)
