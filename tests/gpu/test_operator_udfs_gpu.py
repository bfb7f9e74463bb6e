# SPDX-License-Identifier: Apache-2.0
"""UDFs at operator level on CUDA: the Triton kernel of docs/swap/operators.md."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from pytest_udftorch import operator_udf, patched, stock
from pytest_udftorch.errors import OperatorError

pytestmark = [
    pytest.mark.gpu,
    # What torch imports with its compiler.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"),
]

PAGE = Path(__file__).parents[2] / "docs" / "swap" / "operators.md"


@pytest.fixture
def logs(tmp_path):
    (source,) = re.findall(
        r"<!-- file: logs/ops\.py -->\n```python\n(.*?)```", PAGE.read_text(), re.S
    )
    (tmp_path / "ops.py").write_text(source)
    (tmp_path / "udf.toml").write_text(
        '[library]\nname = "logs"\nversion = "1"\n'
        '[operators."aten::log"]\npython = "ops.py"\nfunction = "log_udf_out"\n'
        'dispatch_keys = ["CUDA"]\ndtypes = ["float32"]\n'
    )
    return tmp_path


def test_the_triton_kernel_stands_for_three_overloads(logs):
    x = torch.rand(100_003, device="cuda").add_(1e-3)
    truth = x.double().log().float()
    before = torch.log(x), torch.log(x.cpu()), torch.log(x.double())
    assert not torch.equal(before[0], truth)
    with patched(logs) as session:
        assert session.reached == {
            "aten::log": {"aten::log CUDA": 1, "aten::log_ CUDA": 1, "aten::log.out CUDA": 1}
        }
        assert torch.equal(torch.log(x), truth)
        assert torch.equal(x.clone().log_(), truth)
        assert torch.equal(torch.log(x, out=x.new_empty(0)), truth)
        assert torch.equal(torch.log(x[::2]), truth[::2])
        assert torch.log(x[:0]).shape == (0,)
        # Other dtypes and devices are the stock kernels'.
        assert torch.equal(torch.log(x.double()), before[2])
        assert torch.equal(torch.log(x.cpu()), before[1])
        with torch.cuda.stream(torch.cuda.Stream()):
            assert torch.equal(torch.log(x), truth)
        y = x.clone().requires_grad_()
        torch.log(y).sum().backward()
        assert torch.equal(y.grad, 1 / x)
    assert torch.equal(torch.log(x), before[0])


def test_one_function_at_two_dispatch_keys():
    @operator_udf("aten::log", dispatch_keys=("CPU", "CUDA"))
    def log(self, *, out):
        return stock(self, out=out).add_(300)

    for x in (torch.rand(99), torch.rand(99, device="cuda")):
        before = torch.log(x)
        with patched(log) as session:
            assert len(session.reached["aten::log"]) == 6
            assert torch.equal(torch.log(x), before + 300)


def test_recursion():
    @operator_udf("aten::log", dispatch_keys=("CUDA",))
    def log(self):
        return torch.log(self.cpu()).cuda() + torch.log(self)

    with pytest.raises(OperatorError, match=r"pytest_udftorch\.stock"):
        patched(log).__enter__()
