# SPDX-License-Identifier: Apache-2.0
"""The graph of a comparison, and the page that shows it."""

from __future__ import annotations

import json
import re
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
