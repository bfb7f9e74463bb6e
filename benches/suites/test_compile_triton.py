# SPDX-License-Identifier: Apache-2.0
"""Triton against PyTorch on a GPU; see ``compile_triton``."""

import pytest
import torch

pytest.importorskip("triton")
if not torch.cuda.is_available():
    pytest.skip("Triton's kernels need a CUDA device; torch sees none", allow_module_level=True)

from benches import rows
from benches.experiments import compile_triton
from pytest_udftorch.measure.timing.device import describe_device

ELEMENTS = {"small": 2**22, "full": 2**28}


@pytest.mark.parametrize("columns", [256, 1000, 1024, 4096, 32768, 50257, 65536])
def test_fused_softmax(benchmark, columns, bench_scale):
    count = max(8, ELEMENTS[bench_scale] // columns)
    x = torch.randn(count, columns, device="cuda")
    reference = torch.softmax(x.double(), dim=1)
    found = compile_triton._distance(compile_triton.softmax(x), reference)
    stock = compile_triton._distance(torch.softmax(x, dim=1), reference)
    assert found <= max(2 * stock, 2**-22)
    table = compile_triton.measure_softmax(count * columns, [columns], runs=6, rounds=3)
    rows.add(benchmark, table[0]["runs_ns"], run=describe_device("cuda"), table=table)


def test_softmax_of_extreme_rows():
    x = torch.randn(4, 65536, device="cuda")
    x[0] = -1e30
    x[1, 40000] = 1e30
    x[2, :50000] = -float("inf")
    torch.testing.assert_close(compile_triton.softmax(x), torch.softmax(x, dim=1))


def test_elementwise_add(benchmark, bench_scale):
    elements = ELEMENTS[bench_scale]
    a, b = (torch.randn(elements, device="cuda") for _ in range(2))
    assert torch.equal(compile_triton.add(a, b), a + b)
    assert torch.equal(compile_triton.add_one_block(a[:9000], b[:9000]), a[:9000] + b[:9000])
    table = compile_triton.measure_add([elements], runs=6, rounds=3)
    rows.add(benchmark, table[0]["runs_ns"], run=describe_device("cuda"), table=table)
