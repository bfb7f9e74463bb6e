# SPDX-License-Identifier: Apache-2.0
"""Reports: the page in a real browser, the terminal's short form, and the command."""

from __future__ import annotations

import json
import re
from html import escape
from html.parser import HTMLParser

import numpy as np
import pytest
from counts import META, Recorder, net

from benches.render import browser
from pytest_udftorch import cli
from pytest_udftorch.errors import NoProfileError
from pytest_udftorch.swap.records.profile import Profile, load_profiles
from pytest_udftorch.watch.profile import ranges, report

HOSTILE = '<script>document.title="taken"</script>&amp;"\'<img src=x onerror=alert(1)>'


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """corem with an overflowing gate and a NaN in a layer of a hostile name; std without."""
    folder = tmp_path_factory.mktemp("profiles")
    recorder = Recorder()
    net(recorder, scale=40)
    recorder.call("log", np.array([-1, 2], np.float32), module=HOSTILE, operator="aten::log")
    recorder.write(folder / "corem" / "profiled-1.bin")
    recorder = Recorder()
    net(recorder)
    recorder.write(folder / "std" / "profiled-1.bin", META | {"library": "std"})
    return folder


@pytest.fixture(scope="module")
def profiles(folder):
    return load_profiles([folder / "corem", folder / "std"])


class Checker(HTMLParser):
    """Finds tags that are not closed, and everything that would load something."""

    def __init__(self):
        super().__init__()
        self.open: list[str] = []
        self.loads: list[str] = []
        self.tags: list[str] = []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        if tag not in ("meta", "link", "input", "br"):
            self.open.append(tag)
        for name, value in attrs:
            if name in ("src", "href", "action", "srcset") and not value.startswith(("#", "data:")):
                self.loads.append(value)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_the_page_is_whole_and_loads_nothing(profiles):
    text = report.profiles_html(profiles)
    checker = Checker()
    checker.feed(text)
    assert checker.open == []
    assert checker.loads == []
    assert checker.tags.count("script") == 1
    assert "img" not in checker.tags
    assert not re.search(r"https?://|@import|url\(", text)


def test_the_page_has_the_numbers_of_the_profile(profiles):
    text = report.profiles_html(profiles[1:])
    for row in profiles[1].rows("function", "dtype"):
        assert f'data-sort="{row.elements}">{row.elements:,}<' in text
    assert "exp in gate" in text
    assert "First infinity made" in text
    # The first NaN is in the layer with the hostile name.
    assert "log in &lt;script&gt;" in text


def test_a_page_of_nothing():
    recorder = Recorder()
    p = Profile.from_arrays(recorder.strings, META, cells=recorder.cells)
    text = report.profiles_html([p])
    assert "No watched function was called." in text
    assert "<table" not in text
    assert report.terminal([p]).endswith("no watched function was called")
    with pytest.raises(NoProfileError):
        report.profiles_html([])


def test_a_page_without_times(folder):
    recorder = Recorder()
    recorder.call("exp", np.ones(4, np.float32))
    p = Profile.from_arrays(recorder.strings, META | {"stride": 16}, cells=recorder.cells)
    text = report.profiles_html([p])
    assert "No times" in text
    assert "one block in 16" in text
    assert ">time<" not in text


def row_of(values, function="exp"):
    recorder = Recorder()
    recorder.call(function, values)
    return Profile.from_arrays(recorder.strings, META, cells=recorder.cells).layers()[0]


def test_headroom():
    f32 = np.float32
    assert ranges.headroom(row_of(np.array([0.5, 80], f32))) == pytest.approx(
        128 - 80 / np.log(2), abs=1e-3
    )
    assert ranges.headroom(row_of(np.array([89], f32))) == 0  # it overflowed
    assert ranges.headroom(row_of(np.array([-(2.0**100)], f32))) == 28
    assert ranges.headroom(row_of(np.array([2.0**100]))) == 0  # float64: exp(2^100)
    assert ranges.headroom(row_of(np.array([-(2.0**100)]))) == 1024 - 100


def test_what_half_could_not_hold():
    # Two values of four are beyond 65,504 (2^17 and exp(12)), one below 2^-14 (2^-20).
    values = np.array([2.0**-20, 12], np.float32)
    high, low = ranges.half_shares(row_of(values))
    assert (high, low) == (0.25, 0.25)
    assert ranges.half_shares(row_of(np.array([np.nan], np.float32))) is None


def test_terminal(profiles):
    text = report.terminal(profiles, top=2)
    std, corem = text.split("\n\n")
    assert corem.startswith("corem 1, build 0123456789ab")
    assert "... and 2 more" in corem
    assert "first inf made: exp (float32) in aten::sigmoid, layer gate" in corem
    assert "first NaN made: log (float32)" in corem
    assert "first" not in std


# In a browser ------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tab(tmp_path_factory):
    path = browser.find()
    if path is None:
        pytest.skip("no Chromium here (Ubuntu's snap cannot read files of tests)")
    with browser.page(path) as page:
        yield page


@pytest.fixture
def opened(tab, profiles, tmp_path):
    """The page of both libraries in the browser, 1200 pixels wide."""
    path = tmp_path / "report.html"
    path.write_text(report.profiles_html(profiles), encoding="utf-8")
    tab.problems.clear()
    tab.requests.clear()
    tab.size(1200)
    tab.open(path.as_uri())
    return tab


def column(tab, table, number):
    return tab.run(
        f"[...document.querySelectorAll('#{table} tbody tr')].map(r => r.cells[{number}].innerText)"
    )


def test_the_browser_has_nothing_to_complain_of(opened):
    assert opened.problems == []
    assert [url for url in opened.requests if not url.startswith(("file:", "data:"))] == []
    assert opened.run("document.title") == "Math functions in PyTorch"


def test_the_check_of_the_browser_checks(opened, tmp_path):
    page = tmp_path / "bad.html"
    page.write_text('<script src="https://example.invalid/x.js"></script><script>nope()</script>')
    opened.open(page.as_uri())
    text = " ".join(opened.problems)
    assert "nope is not defined" in text
    assert "ERR_INTERNET_DISCONNECTED" in text
    assert "https://example.invalid/x.js" in opened.requests


def test_clicking_a_heading_sorts(opened, profiles):
    elements = [r.elements for p in profiles for r in p.layers()]
    number = 4  # layer, library, function, operator calls, elements
    heading = f"#layers th:nth-child({number + 1})"
    assert opened.run(f"document.querySelector('{heading}').innerText") == "elements"
    before = column(opened, "layers", number)
    for direction, backwards in (("descending", True), ("ascending", False)):
        opened.click(f"{heading} button")
        shown = [int(t.replace(",", "")) for t in column(opened, "layers", number)]
        assert shown == sorted(elements, reverse=backwards)
        assert shown != before
        assert opened.run(f"document.querySelector('{heading}').ariaSort") == direction
    opened.click("#layers th:nth-child(3) button")
    names = column(opened, "layers", 2)
    assert names == sorted(names)
    assert opened.run(f"document.querySelector('{heading}').ariaSort") is None
    # Other tables stay as they were.
    assert column(opened, "functions", 0)[0] == "exp"
    assert opened.problems == []


def test_infinities_and_missing_values_have_their_place(opened):
    # Layer, library, function, operator calls, elements, in min, in max, out min, out max.
    opened.click("#layers th:nth-child(9) button")
    shown = column(opened, "layers", 8)
    assert shown[0] == "∞"
    assert opened.run("document.querySelector('#layers tbody tr').cells[0].innerText") == "gate"


def test_the_address_restores_the_sorting(opened, tmp_path):
    opened.click("#functions th:nth-child(5) button")
    url = opened.run("location.href")
    assert url.endswith("#functions.4.descending")
    want = column(opened, "functions", 4)
    opened.open("about:blank")
    opened.open(url)
    assert column(opened, "functions", 4) == want
    for wrong in ("#functions.99.ascending", "#nothing", "#ranges.nonsense", "#%E2%82%AC"):
        opened.run(f"location.hash = '{wrong}'")
    assert opened.problems == []


def chart_rows(tab):
    return tab.run(
        "[...document.querySelectorAll('#ranges .chart-row')].filter(r => !r.hidden)"
        ".map(r => r.querySelector('.where').innerText.split('\\n')[0])"
    )


def test_the_chart_can_be_ordered_and_filtered(opened):
    assert chart_rows(opened)[0] == "features.1"
    opened.run(
        "(() => { const s = document.getElementById('order'); s.value = 'headroom';"
        "s.dispatchEvent(new Event('change')); })()"
    )
    assert chart_rows(opened)[0] == "gate"
    count = len(chart_rows(opened))
    opened.run(
        "(() => { const f = document.getElementById('filter'); f.value = 'FEATURES exp';"
        "f.dispatchEvent(new Event('input')); })()"
    )
    assert set(chart_rows(opened)) == {"features.1"}
    assert len(chart_rows(opened)) < count


def test_names_from_the_profile_are_shown_and_not_run(opened):
    assert opened.run("document.title") != "taken"
    assert opened.run("document.querySelectorAll('img').length") == 0
    assert HOSTILE in [name.replace("\n", "") for name in column(opened, "layers", 0)]


SHAPES = """(() => {
  const boxes = (selector) => [...document.querySelectorAll(selector)]
    .filter(e => getComputedStyle(e).display !== 'none')
    .map(e => [e.textContent, e.getBoundingClientRect()])
    .map(([t, r]) => [t, r.left, r.top, r.right, r.bottom]);
  return {
    wide: document.documentElement.scrollWidth, screen: document.documentElement.clientWidth,
    labels: boxes('.chart-head svg text'), cards: boxes('.finding p, .finding h3'),
    where: boxes('.chart-row .where'), pictures: boxes('.chart-row > svg'),
    limits: boxes('.chart-row .limits'),
  };
})()"""


@pytest.mark.parametrize("width", [1200, 400])
@pytest.mark.parametrize("dark", [False, True])
def test_nothing_overlaps_and_nothing_is_cut_off(opened, width, dark):
    opened.size(width, dark=dark)
    found = opened.run(SHAPES)
    assert found["wide"] == found["screen"] == width
    for group in ("labels", "cards", "limits", "pictures", "where"):
        boxes = found[group]
        assert len(boxes) > 4
        for i, (text, left, top, right, bottom) in enumerate(boxes):
            assert left >= 0, text
            assert right <= width, text
            for other, l2, t2, r2, b2 in boxes[:i]:
                apart = right <= l2 + 0.5 or r2 <= left + 0.5 or bottom <= t2 + 2 or b2 <= top + 2
                assert apart, f"{text!r} lies over {other!r}"


def test_the_chart_is_drawn_in_its_colors(opened):
    """Chromium gives black to what a style sheet does not reach, as within <use>."""
    for dark in (False, True):
        opened.size(1200, dark=dark)
        fills = opened.run(
            "[...document.querySelectorAll('#bands rect, .chart-row rect, .chart-head rect')]"
            ".map(e => getComputedStyle(e).fill)"
        )
        assert "rgb(0, 0, 0)" not in fills
        assert len(set(fills)) > 6


@pytest.mark.slow
def test_the_picture_has_the_colors_of_inputs_and_outputs(opened, tmp_path):
    Image = pytest.importorskip("PIL.Image")
    opened.screenshot(tmp_path / "p.png")
    pixels = np.asarray(Image.open(tmp_path / "p.png").convert("RGB")).reshape(-1, 3)
    found = set(map(tuple, pixels.tolist()))
    for color in ((0x1F, 0x66, 0xC9), (0xB8, 0x57, 0x0A), (0xC0, 0x1F, 0x2E)):
        assert color in found
    assert (np.asarray(pixels).sum(1) == 0).mean() < 0.001


def test_on_a_narrow_screen_each_figure_stands_beside_its_heading(opened):
    opened.size(400)
    cells = opened.run(
        "[...document.querySelectorAll('#layers td, #tests td')].map(e => [e.dataset.label,"
        " e.scrollWidth <= e.clientWidth + 1, e.getBoundingClientRect().right])"
    )
    assert len(cells) > 50
    for label, whole, right in cells:
        assert label
        assert whole, label
        assert right <= 400
    wide = "(() => { const e = document.querySelector('.scroll'); return e.scrollWidth; })()"
    assert opened.run(wide) <= 400
    opened.click("#layers th:nth-child(5) button")  # the headings still sort
    values = [int(text.replace(",", "")) for text in column(opened, "layers", 4)]
    assert values == sorted(values, reverse=True)


def test_each_test_has_a_line(profiles):
    summary = profiles[0].summary()
    tests = [
        report.TestFigures("test_a.py::test_one[std]", "passed", summary),
        report.TestFigures(f"test_a.py::test_two[{HOSTILE}]", "failed", profiles[1].summary()),
    ]
    page = report.profiles_html(profiles, tests=tests)
    (table,) = re.findall(r'<table class="sortable" id="tests">.*?</table>', page, re.S)
    assert table.count("<tr") == 3
    assert "test_a.py::test_one[std]" in table
    assert '<span class="bad-text">failed</span>' in table
    assert "inf: exp (float32)" in table
    assert HOSTILE not in page
    assert 'id="tests"' not in report.profiles_html(profiles)


def test_the_card_of_the_nearest_overflow_agrees_with_the_table(profiles):
    for profile in profiles:
        page = report.profiles_html([profile])
        card = re.search(r"Nearest to overflow</h3><p class=\"lead\">(.*?)</p><p>(.*?)</p>", page)
        rows = [r for r in profile.layers() if np.isfinite(ranges.headroom(r))]
        least = min(rows, key=ranges.headroom)
        assert card[1] == f"{escape(least.function_name)} in {escape(least.layer)}"
        assert f"{ranges.headroom(least):.1f} binades" in card[2]
    assert {ranges.headroom(min(p.layers(), key=ranges.headroom)) > 0 for p in profiles} == {
        True, False,
    }  # fmt: skip


# The command -------------------------------------------------------------------------


def test_command(folder, tmp_path, capsys):
    out = tmp_path / "out"
    status = cli.main(
        ["report", str(folder / "corem"), str(folder / "std"), "-o", str(out / "report.html"),
         "--json", str(out / "p.json"), "--csv", str(out / "p.csv"), "--title", "A <b>title"]
    )  # fmt: skip
    assert status == 0
    assert "first inf made" in capsys.readouterr().out
    assert sorted(p.name for p in out.iterdir()) == [
        "p-corem.csv", "p-corem.json", "p-std.csv", "p-std.json", "report.html",
    ]  # fmt: skip
    assert json.loads((out / "p-std.json").read_text())["processes"][0]["library"] == "std"
    assert "<title>A &lt;b&gt;title</title>" in (out / "report.html").read_text()
    assert cli.main(["report", str(folder / "std"), "--trace", str(out / "t.json")]) == 0
    assert json.loads((out / "t.json").read_text())["traceEvents"]


def test_command_errors(folder, tmp_path, capsys):
    def error(*arguments):
        assert cli.main(["report", *map(str, arguments)]) == cli.MISUSE
        text = capsys.readouterr().err
        assert text.startswith("udftorch report: ")
        assert "Traceback" not in text
        return text

    assert "There is no file or folder" in error(tmp_path / "none")
    (tmp_path / "empty").mkdir()
    assert "holds no profile" in error(tmp_path / "empty")
    (tmp_path / "odd").mkdir()
    (tmp_path / "odd" / "profiled-1.bin").write_bytes(b"something else")
    assert "is not a profile" in error(tmp_path / "odd")
    recorder = Recorder()
    recorder.call("exp", np.ones(4, np.float32))
    recorder.write(tmp_path / "other" / "profiled-1.bin", META | {"build_id": "other"})
    assert "differ in build_id" in error(folder / "corem", tmp_path / "other")
    (tmp_path / "file").touch()
    assert "Choose another place" in error(folder / "std", "-o", tmp_path / "file" / "r.html")
    with pytest.raises(SystemExit):
        cli.main(["report"])


def test_a_page_without_a_nan_says_what_it_has_watched():
    recorder = Recorder()
    recorder.call("exp", np.ones(4, np.float32))
    text = report.profiles_html([Profile.from_arrays(recorder.strings, META, cells=recorder.cells)])
    assert text.count('<p class="lead">none by a watched function</p>') == 3
    assert "pytest --udf-nan=error" in text
