# SPDX-License-Identifier: Apache-2.0
"""The graph of a comparison, and the page that shows it."""

from __future__ import annotations

import html
import json
import math
import re
from dataclasses import replace
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest
import torch
from faulty_kernels import planted
from torch import nn

from pytest_udftorch.diagnose import Side, first_difference, save_difference_page
from pytest_udftorch.diagnose.diff.drawing import page, shade
from pytest_udftorch.errors import DiagnosisError


class Branches(nn.Module):
    """Goes another way if it is told to."""

    other_way = False

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x):
        x = self.first(x)
        x = (x.sin() + 1) if self.other_way else x.tanh()
        return self.last(x)


@pytest.fixture(scope="module")
def found():
    """A product that is wrong, and another way afterwards."""

    def make(other_way):
        torch.manual_seed(0)
        model = Branches().eval()
        model.other_way = other_way
        x = torch.randn(4, 6)
        return lambda: model(x)

    wrong = planted("aten::addmm", lambda t: t * (1 + 2.0**-10)).around
    with torch.no_grad():
        return first_difference(
            Side(name="a", run=make(False)), Side(name="<b>", run=make(True), around=wrong)
        )


def test_nodes_know_their_sources_their_distance_and_who_calls_them(found):
    nodes = {(n.operator, n.place.layer, n.on): n for n in found.graph}
    wrong = nodes["aten::addmm", "first", "both"]
    assert (wrong.differs, wrong.same_inputs) == (True, True)
    assert wrong.distance == pytest.approx(2.0**-10, rel=0.2)
    assert shade(wrong) == "d3"
    number = found.graph.index(wrong)
    assert number in nodes["aten::tanh", "Branches", "a"].sources
    assert number in nodes["aten::sin", "Branches", "b"].sources
    plus = nodes["aten::add.Tensor", "Branches", "b"]
    assert plus.sources == (found.graph.index(nodes["aten::sin", "Branches", "b"]),)
    last = nodes["aten::addmm", "last", "both"]
    # It gets the one side's tanh and weights that nobody made.
    assert last.sources == (found.graph.index(nodes["aten::tanh", "Branches", "a"]),)
    assert not last.same_inputs
    text = found.text()
    assert "Only a calls aten::tanh in Branches; only <b> calls aten::sin in Branches" in text


class Names(HTMLParser):
    """Collects the names of tags and what they refer to."""

    def __init__(self):
        super().__init__()
        self.tags, self.outside = [], []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.outside += [v for k, v in attrs if k in ("src", "href")]


def test_the_page_has_a_box_for_each_operator_and_needs_nothing_else(found, tmp_path):
    text = save_difference_page(found, tmp_path / "page.html").read_text()
    # The table of layers scrolls on a narrow screen; nothing of the report is left out.
    said, layers = re.findall(r"<pre[^>]*>(.*?)</pre>", text, re.S)
    assert html.unescape(f"{said}\n\n{layers}") == found.text()
    assert layers.startswith("layer  ")
    names = Names()
    names.feed(text)
    assert names.outside == []
    assert not re.search(r"https?://|@import|url\(", text)
    assert "<b>" not in text  # a side's name is text
    (drawing,) = re.findall(r'<svg id="graph".*?</svg>', text, re.S)
    boxes = [g for g in ElementTree.fromstring(drawing) if g.get("class") == "box"]
    boxes.sort(key=lambda g: int(g.get("data-number")))
    assert [int(g.get("data-number")) for g in boxes] == list(range(len(found.graph)))
    shown = [g.find("rect").get("class").split() for g in boxes]
    assert [s[0] for s in shown] == [shade(node) for node in found.graph]
    assert [i for i, s in enumerate(shown) if "named" in s] == [
        i for i, n in enumerate(found.graph) if n.calls in [f.calls for f in found.findings]
    ]
    assert {"only-a", "only-b", "d3"} <= {s[0] for s in shown}


def test_graph_is_in_the_document_and_odd_comparisons_have_pages(found, tmp_path):
    graph = json.loads(json.dumps(found.document()))["graph"]
    assert [n["operator"] for n in graph] == [n.operator for n in found.graph]
    equal = first_difference("eager", "threads=1", nn.ReLU().eval(), torch.ones(2))
    assert "nothing to draw" in page(equal)
    bad = planted("aten::relu", lambda t: t * float("nan"))
    broken = first_difference("eager", bad, nn.ReLU().eval(), torch.ones(2))
    assert [shade(n) for n in broken.graph] == ["broken"]
    with pytest.raises(DiagnosisError, match="The page cannot be written"):
        save_difference_page(found, tmp_path)


@pytest.fixture(scope="module")
def deep():
    """Thirty layers, of which the twentieth is wrong, and what follows rounds it away."""
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(6, 6), nn.Tanh()) for _ in range(20)]
    model = nn.Sequential(*layers, nn.GELU(), nn.Sequential(nn.Linear(6, 6), nn.ReLU())).eval()
    wrong = planted("aten::gelu", lambda t: t * (1 + 2.0**-10))
    return first_difference("eager", wrong, model, torch.randn(4, 6))


def test_layers_with_the_same_bits_are_one_line_and_the_way_to_the_finding_is_drawn(deep):
    text = page(deep)
    (drawing,) = re.findall(r'<svg id="graph".*?</svg>', text, re.S)
    root = ElementTree.fromstring(drawing)
    boxes = [g for g in root if g.get("class") == "box"]
    assert len(boxes) < len(deep.graph) / 4
    hidden = [t.text for t in root if t.get("class") == "hidden"]
    assert len(hidden) == 1
    assert re.fullmatch(r"\d+ layers with the same bits, \d+ operators", hidden[0])
    left_out = int(hidden[0].split(", ")[1].split()[0])
    assert left_out + len(boxes) == len(deep.graph)
    (finding,) = (i for i, n in enumerate(deep.graph) if n.calls == deep.first.calls)
    drawn = {int(g.get("data-number")) for g in boxes}
    assert {finding, *deep.graph[finding].sources} <= drawn
    assert len(root.findall(".//path[@class='to']")) >= 1
    assert 'querySelector(".named")' in text


def test_a_difference_that_the_samples_do_not_show_is_unknown(found):
    (node,) = (n for n in found.graph if n.operator == "aten::addmm" and n.place.layer == "first")
    for distance in (None, 0.0):
        assert shade(replace(node, distance=distance)) == "unknown"
    assert shade(replace(node, distance=math.inf)) == "broken"
    assert shade(replace(node, distance=1e-9)) == "d0"
    graph = tuple(replace(n, distance=0.0) if n is node else n for n in found.graph)
    text = page(replace(found, graph=graph))
    assert "how far is not known from samples" in text
    assert "differs by an unknown distance (samples)" in text
