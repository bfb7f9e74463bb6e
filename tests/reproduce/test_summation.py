# SPDX-License-Identifier: Apache-2.0
"""Orders of additions: read by masking, tried with random terms, compared between batches."""

from __future__ import annotations

import math
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from benches.experiments import summation_trees as bench
from pytest_udftorch.errors import SummationError
from pytest_udftorch.reproduce import (
    SummationTree,
    assert_batch_invariant,
    assert_position_invariant,
    summation_tree,
)
from pytest_udftorch.reproduce.order.tree import sequential

PAGE = Path(__file__).parents[2] / "docs" / "reproduce" / "summation.md"


def added(root, values):
    """Add in an order, where a node of more than two adds exactly and then cuts off low bits."""

    def step(below):
        if len(below) == 2:
            return np.float32(below[0] + below[1])
        top = max(np.frexp(v)[1] for v in below)
        unit = 2.0 ** (int(top) - 24)
        return np.float32(sum(np.trunc(float(v) / unit) * unit for v in below))

    return SummationTree(root, len(values)).fold(list(values), step)


def operator(root):
    return lambda x: torch.tensor([added(root, x.numpy())])


@st.composite
def orders(draw):
    """A random order of up to 12 terms, with fused sums of up to 5."""
    nodes = list(range(draw(st.integers(2, 12))))
    while len(nodes) > 1:
        count = min(len(nodes), draw(st.integers(2, 5)))
        first = [nodes.pop(draw(st.integers(0, len(nodes) - 1))) for _ in range(count)]
        nodes.append(tuple(first))
    return nodes[0]


def lowest(node):
    return node if isinstance(node, int) else min(map(lowest, node))


def in_order(node):
    return node if isinstance(node, int) else tuple(sorted(map(in_order, node), key=lowest))


def grouped(node):
    """The order as sets, since a reader adds subtrees of one term in its own sequence."""
    return node if isinstance(node, int) else frozenset(map(grouped, node))


def count(node):
    return 1 if isinstance(node, int) else sum(map(count, node))


@settings(max_examples=30, deadline=None)
@given(orders())
def test_any_order_is_read_as_it_is_with_fused_sums(root):
    terms = count(root)
    tree = summation_tree(operator(root), (terms,))
    assert grouped(tree.root) == grouped(in_order(root))


def test_the_order_of_stock_operators_gives_their_bits_and_another_order_does_not():
    values = torch.randn(200, 1000, generator=torch.Generator().manual_seed(1))
    tree = summation_tree(torch.sum, (1000,))
    other = SummationTree(sequential(1000), 1000)
    agree = disagree = 0
    for x in values:
        terms = list(x.numpy())
        expected = np.float32(x.sum().item())
        agree += tree.fold(terms, lambda b: b[0] + b[1]) == expected
        disagree += other.fold(terms, lambda b: b[0] + b[1]) != expected
    assert agree == len(values)
    assert disagree > 0


def test_a_sum_that_loses_nothing_has_no_order():
    with pytest.raises(SummationError, match="no order to read"):
        summation_tree(lambda x: torch.tensor([math.fsum(x.tolist())]), (9,))


def test_terms_come_from_several_inputs_and_dtypes_have_masks():
    assert summation_tree(torch.addmm, (3,), (2, 9), (9, 3)).terms == 10
    assert summation_tree(torch.mean, (7,)).terms == 7
    assert summation_tree(torch.sum, (1,)).kind() == "one term"
    for dtype in (torch.float64, torch.bfloat16, torch.float16):
        tree = summation_tree(torch.mm, (1, 20), (20, 1), dtype=dtype)
        assert tree.terms == 20
        assert tree.widest == 2


@pytest.mark.parametrize(
    ("op", "shapes", "options", "says"),
    [
        (torch.exp, [(4,)], {}, "not a sum of elements"),
        (torch.prod, [(4,)], {}, "not a plain sum of its 4 terms"),
        (torch.sum, [(4,)], {"dtype": torch.int64}, "no masks for torch.int64"),
        (torch.sum, [(4,)], {"element": 1}, "element=1 is none of them"),
        (torch.sum, [(300,)], {"dtype": torch.bfloat16}, "300 terms are too many"),
        (lambda x: x.abs().sum(), [(4,)], {}, "does not only add"),
    ],
)
def test_what_masks_cannot_read_is_refused(op, shapes, options, says):
    with pytest.raises(SummationError, match=re.escape(says)):
        summation_tree(op, *shapes, **options)


def test_invariance_is_decided_by_trees_where_there_are_some():
    def by_size(x):
        return x.sum(1) if len(x) > 2 else torch.stack([sum(row) for row in x])

    held = assert_batch_invariant(lambda x: x.cumsum(1)[:, -1], (1, 2, 9), (8,))
    assert (held.by, held.why, held.compared) == ("trees", "", 3)
    with pytest.raises(AssertionError, match="order of additions is another one: batch 1: one aft"):
        assert_batch_invariant(by_size, (1, 9), (64,))
    held = assert_batch_invariant(torch.nn.Softmax(-1), (1, 2, 9), (64,))
    assert held.by == "trials"
    assert "not a sum" in held.why
    with pytest.raises(AssertionError, match="size of the batch: batches 1 and 9"):
        assert_batch_invariant(lambda x: torch.exp(by_size(x)), (1, 9), (64,))
    with pytest.raises(SummationError, match="two sizes"):
        assert_batch_invariant(torch.exp, (3,), (64,))


def test_invariance_of_the_position_has_negative_controls():
    def by_position(x):
        return torch.stack([*(row.sum() for row in x[:-1]), sum(x[-1])])

    assert assert_position_invariant(lambda x: x.sum(1), 9, (64,)).by == "trees"
    with pytest.raises(AssertionError, match="its position: the order of additions"):
        assert_position_invariant(by_position, 5, (64,))
    with pytest.raises(AssertionError, match="its position: rows 0 and 4"):
        assert_position_invariant(lambda x: by_position(x).exp(), 5, (64,))
    with pytest.raises(SummationError, match="two rows"):
        assert_position_invariant(torch.exp, 1, (64,))


def test_the_page_runs():
    spaces = {"torch": torch, "summation_tree": summation_tree}
    for code in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S):
        exec(code, spaces)
    spaces["test_the_order_does_not_depend_on_the_number_of_columns"]


def test_random_rows_try_the_verdicts_of_trees():
    rows = {name: bench.verdict(name, "cpu", 200) for name in ("sum of rows, 64", "mm, 64 × 1")}
    assert not any(map(bench.is_false, rows.values()))
    # The negative control: a verdict that says the opposite is refuted.
    for row in rows.values():
        assert bench.is_false({**row, "trees_equal": not row["trees_equal"]})


def test_trials_see_another_order_than_the_operators():
    case = bench.cases()["sum, 1,000"]
    assert bench._differing(case, summation_tree(torch.sum, (1000,)), "cpu", 100) == 0
    assert bench._differing(case, SummationTree(sequential(1000), 1000), "cpu", 100) > 0
