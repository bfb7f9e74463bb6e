# SPDX-License-Identifier: Apache-2.0
"""``udftorch order``: the order in which an operator adds, and what it refuses."""

import pytest
import torch

from pytest_udftorch import cli
from pytest_udftorch.reproduce import summation_tree


def test_the_verb_prints_what_the_function_reads(capsys):
    assert cli.main(["order", "torch.sum", "9"]) == 0
    tree = summation_tree(torch.sum, (9,))
    assert capsys.readouterr().out == f"{tree.kind()}\ndigest {tree.digest}\n{tree}\n"


def test_a_library_may_have_another_order(capsys):
    digests = []
    for library in ([], ["--udf-lib", "repro"]):
        assert cli.main(["order", "torch.sum", "4096", *library]) == 0
        said = capsys.readouterr().out
        assert said.endswith(" characters)\n")
        digests.append(said.splitlines()[1])
    assert digests[0] != digests[1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("numpy.sum 8", "numpy.sum is not a function of torch"),
        ("torch.summ 8", "torch.summ is not a function of torch"),
        ("torch.sum 8by8", "8by8 is not a shape"),
        ("torch.sum 8 --dtype int32", "int32 is not a dtype of floating-point numbers"),
        ("torch.softmax 8", "torch.softmax cannot be called with 8: "),
    ],
)
def test_mistakes_are_answered(arguments, message, capsys):
    assert cli.main(["order", *arguments.split()]) == cli.MISUSE
    assert message in capsys.readouterr().err
