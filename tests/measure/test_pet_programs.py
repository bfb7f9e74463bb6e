# SPDX-License-Identifier: Apache-2.0
"""PET's programs around products: found by shape and value, judged, and put into graphs."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from pytest_udftorch.measure import recording
from pytest_udftorch.measure.rewrite import programs
from pytest_udftorch.measure.rewrite.programs import Tree

LINEAR = ("linear", None, 0, 1, 2)
#: Name -> a tree, the shapes of its inputs, those that keep their values, and the best program.
TREES = {
    "the last row alone": (
        ("taken", (1, 6), LINEAR), [(2, 7, 12), (12, 40), (40,)], {1, 2}, "linear of taken",
    ),
    "some columns": (
        ("part", (2, 3, 9), LINEAR), [(2, 7, 12), (12, 40), (40,)], {1, 2},
        "linear of part of part",
    ),
    "two layers as one": (
        ("linear", None, LINEAR, 3, 4), [(30, 12), (12, 40), (40,), (40, 3), (3,)],
        {1, 2, 3, 4}, "linear of linear of product",
    ),
    "attention without softmax": (
        ("product", None, ("product", None, 0, ("turned", (0, 2, 1), 1)), 2), [(3, 50, 4)] * 3,
        set(), "product of product of turned",
    ),
    "zeros that are not multiplied": (
        ("product", None, ("edges", (0, 0, 1, 2), 0), 1), [(2, 7, 12), (12, 40)], {1},
        "edges of product",
    ),
    "images averaged first": (
        ("linear", None, ("shaped", (2, 5), ("average", ("avg_pool2d", (4, 4)),
         ("convolution", ((1, 1), (0, 0), (1, 1), False, (0, 0), 1), 0, 1, 2))), 3, 4),
        [(2, 6, 4, 4), (5, 6, 1, 1), (5,), (5, 3), (3,)], {1, 2, 3, 4},
        "linear of shaped of convolution of average",
    ),
}  # fmt: skip


def tree_of(name):
    term, shapes, held, best = TREES[name]
    return Tree(term, tuple(shapes), frozenset(held)), best


@pytest.mark.parametrize("name", TREES)
def test_other_programs_give_what_the_tree_gives(name):
    tree, best = tree_of(name)
    found = programs.generated(tree)
    assert found[0].name == best
    assert found[0].needed > 0
    given = [torch.randn(shape).double() for shape in tree.shapes]
    for other in found:
        ready = list(given)
        term = programs.prepared(other.term, tree, ready)
        wanted = programs.computed(tree.term, given)
        torch.testing.assert_close(programs.computed(term, ready), wanted)


def test_planted_wrong_programs_are_refused(monkeypatch):
    """All of the right shape are handed to the box test."""
    tree, best = tree_of("attention without softmax")
    planted = []
    real = programs.equivalence
    monkeypatch.setattr(programs, "_near", lambda *_: True)
    monkeypatch.setattr(
        programs, "equivalence", lambda *given: planted.append(real(*given)) or planted[-1]
    )
    found = programs.generated.__wrapped__(tree)
    assert any(not verdict.equal for verdict in planted)
    assert all(other.name == best for other in found)


def test_sizes_become_small_but_those_that_calls_look_at():
    tree = Tree(("shaped", (64, 12, 50), LINEAR), ((64, 700), (700, 600), (600,)), frozenset())
    few, back = tree.few()
    assert few.shapes == ((2, 3), (3, 600), (600,))
    assert (few.term[1], back) == ((2, 12, 50), {2: 64, 3: 700})


class Products(nn.Module):
    """Products with what moves elements between them; the last is returned as a part of more."""

    def __init__(self):
        super().__init__()
        self.head, self.tail, self.narrow = (nn.Linear(12, n) for n in (40, 40, 2))
        self.wide = nn.Linear(12, 12)

    def forward(self, x, q, k, v):
        attended = (q @ k.transpose(-1, -2)) @ v
        both = self.narrow(self.wide(x)).relu()
        rows = F.pad(x, (0, 0, 1, 1)) @ self.tail.weight.t()
        return self.head(x)[:, -1].relu(), both, attended, rows, self.tail(x)[:, -1]


@pytest.fixture
def one(monkeypatch):
    """Measure one program for each tree, so that no time decides."""
    monkeypatch.setattr(programs, "_MEASURED", 1)
    programs.generated.cache_clear()
    yield
    programs.generated.cache_clear()


@pytest.mark.usefixtures("one")
def test_programs_of_a_model_are_replaced():
    torch.manual_seed(0)
    torch.compiler.reset()
    options = {"gain": 0, "runs": 3}
    model = Products().eval()
    given = torch.randn(2, 7, 12), *(torch.randn(2, 3, 50, 4) for _ in range(3))
    compiled = torch.compile(model, backend="udf_pet", dynamic=False, options=options)
    with torch.no_grad(), recording() as reports:
        for _ in range(2):
            for mine, wanted in zip(compiled(*given), model(*given), strict=True):
                torch.testing.assert_close(mine, wanted, rtol=1e-4, atol=1e-4)
                assert mine.stride() == wanted.stride()
    (report,) = reports
    assert report.left_alone == ""
    assert report.own == {
        "program linear of taken": 1,
        "program linear of linear of product": 1,
        "program product of product of shaped of turned": 1,
        "program edges of product": 1,
    }
    assert all(d["kept"] and d["needed"] for d in report.details)
