# SPDX-License-Identifier: Apache-2.0
"""The experiments' own kernels and forms on a CUDA device; skipped, with the reason, without."""

import pytest
import torch

from benches.experiments import (
    compile_convolutions,
    compile_matmul,
    compile_resnet_convolutions,
    experiment,
)

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device"),
    # The products are of float32 on purpose.
    pytest.mark.filterwarnings("ignore:TensorFloat32 tensor cores:UserWarning"),
    # Inductor captures an empty graph first, to have a pool of memory.
    pytest.mark.filterwarnings("ignore:The CUDA Graph is empty:UserWarning"),
    # Inductor's own, where max-autotune tries its templates.
    pytest.mark.filterwarnings("ignore:TypedStorage is deprecated:UserWarning"),
]


@pytest.mark.parametrize("n", [1, 7, 127, 128, 129, 300, 1000])
def test_products_by_hand_are_right_at_every_edge(n):
    from benches.experiments.matmul_cuda import by_cuda, by_triton

    a, b = (torch.randn(n, n, device="cuda") for _ in range(2))
    wanted = (a.double() @ b.double()).float()
    for make in (by_cuda, by_triton):
        torch.testing.assert_close(make(a, b)(), wanted, rtol=1e-4, atol=1e-4)


def test_a_product_is_measured_in_every_form():
    row = experiment.measure(
        compile_matmul.EXPERIMENT, {"n": 256, "compiled": True}, "cuda", "small"
    )
    assert "error" not in row
    assert not row["failures"]
    assert set(row["timings"]) == {"interpreted", "CUDA", "Triton", *compile_matmul.MODES}


def test_a_convolution_is_measured_with_and_without_a_graph():
    case = compile_convolutions.cases("cuda", "small")[1]
    row = experiment.measure(compile_convolutions.EXPERIMENT, case, "cuda", "small")
    assert not row["failures"]
    assert set(row["timings"]) == set(compile_convolutions.EXECUTORS["cuda"])


def test_the_profiler_finds_the_kernels_of_every_convolution():
    for executor in ("eager", "compile"):
        found = compile_resnet_convolutions.in_model(executor, 1, 64, "cuda")
        convolutions = compile_resnet_convolutions._convolutions(1, 64)
        wanted = {compile_resnet_convolutions._shapes(calls[0]) for calls in convolutions.values()}
        assert wanted == set(found)
        assert min(found.values()) > 0
