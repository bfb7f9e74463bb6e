# SPDX-License-Identifier: Apache-2.0
"""How results show themselves as text and as HTML."""

from html.parser import HTMLParser

from pytest_udftorch.base.result import Result, Shown
from pytest_udftorch.base.table import markdown_table, text_table


class Thing(Result):
    def __init__(self, shown):
        self.shown = shown

    def _shown(self):
        return self.shown


def test_columns_of_numbers_are_flush_right():
    lines = [["name", "elements", "what", "time"], ["a", "7", "inf 0→20", "1 ms"],
             ["longer", "1,000", "", "< 0.1 %"]]  # fmt: skip
    assert text_table(lines[0], lines[1:]).splitlines() == [
        "name    elements  what         time",
        "-" * 35,
        "a              7  inf 0→20     1 ms",
        "longer     1,000            < 0.1 %",
    ]


def test_a_table_without_a_header_has_no_line():
    assert text_table((), [("a", "7"), ("longer", "10")]) == "a        7\nlonger  10"
    assert text_table((), []) == ""


def test_cells_of_markdown_are_not_padded():
    assert markdown_table(("name", "n"), [("longer", "7")]).splitlines() == [
        "| name | n |",
        "|--------|-----|",
        "| longer | 7 |",
    ]


def test_a_result_without_a_table_is_its_title_and_notes():
    thing = Thing(Shown("one line", notes=["a note"]))
    assert repr(thing) == "<Thing one line>"
    assert str(thing) == "one line\na note"
    assert "<table" not in thing._repr_html_()


def test_html_escapes_what_it_shows_and_closes_its_tags():
    class Balance(HTMLParser):
        depth, tags = 0, 0

        def handle_starttag(self, tag, attrs):
            self.depth += 1
            self.tags += 1

        def handle_endtag(self, tag):
            self.depth -= 1

    text = "<script>&"
    html = Thing(Shown(text, (text, text), [(text, text)], [text]))._repr_html_()
    assert "<script" not in html
    assert html.count("&lt;script&gt;&amp;") == 6
    parser = Balance()
    parser.feed(html)
    assert parser.depth == 0
    assert parser.tags > 8
