# SPDX-License-Identifier: Apache-2.0
"""What Inductor writes in Triton under a session, down to PTX for a GPU that is not there."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from pytest_udftorch.swap.session.session import patched

triton = pytest.importorskip("triton")

OPERATORS = {
    "sigmoid": torch.sigmoid,
    "silu": F.silu,
    "softplus": lambda x: F.softplus(x, 1.3, 5.0),
    "reciprocal": torch.reciprocal,
    "quotient": lambda x: x / (x * x),
}
ROUNDED, APPROXIMATE = "div.rn.f32", "div.full.f32"


class Target:
    """The GPU that Triton shall compile for, as its driver would say."""

    def get_current_target(self):
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", 90, 32)

    def get_current_device(self) -> int:
        return 0


@pytest.fixture(scope="module", autouse=True)
def _target():
    from triton.runtime import driver

    driver.set_active(Target())
    yield
    if torch.cuda.is_available():
        driver.reset_active()


@pytest.fixture
def inductor_ptx(kernel_file, ptx):
    """Return what lowers a function of one tensor by Inductor's Triton backend.

    The tensor is one of the CPU, for which that backend can be chosen without a GPU.
    """
    from torch._inductor import config
    from torch._inductor.compile_fx import select_decomp_table
    from torch._inductor.debug import DebugContext
    from torch._inductor.graph import GraphLowering
    from torch._inductor.virtualized import V
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.proxy_tensor import make_fx

    def text(function) -> str:
        with FakeTensorMode() as mode:
            x = torch.empty(4096)
        # A lambda of its own: make_fx asks for the parameters.
        traced = make_fx(lambda x: function(x), select_decomp_table())(x)
        lowering = GraphLowering(traced, example_inputs=[x])
        with (
            config.patch(cpu_backend="triton"),
            V.set_fake_mode(mode),
            V.set_debug_handler(DebugContext()),
            V.set_graph_handler(lowering),
        ):
            lowering.run(x)
            code = lowering.codegen()[0].value
        start = code.index("@triton.jit")
        module = kernel_file(
            "from torch._inductor.runtime import triton_helpers\n"
            "from torch._inductor.runtime.triton_helpers import math as tl_math\n"
            f"{code[start : code.index(chr(39) * 3, start)]}"
        )
        (kernel,) = (k for name, k in vars(module).items() if name.startswith("triton_poi"))
        return ptx(kernel, numbers=("xnumel",), XBLOCK=128)

    return text


@pytest.mark.parametrize("name", OPERATORS)
def test_quotients_are_correctly_rounded_inside_and_stock_again_outside(inductor_ptx, name):
    before = inductor_ptx(OPERATORS[name])
    if name != "softplus":  # by a constant: newer ones multiply with the reciprocal
        assert APPROXIMATE in before
    assert ROUNDED not in before
    with patched("corem"):
        inside = inductor_ptx(OPERATORS[name])
    assert ROUNDED in inside
    assert APPROXIMATE not in inside
    assert inductor_ptx(OPERATORS[name]) == before
    if name in ("sigmoid", "silu", "softplus"):
        assert "udf_expf" in inside


def test_gelu_with_tanh_fuses_what_the_eager_kernel_does(inductor_ptx):
    def gelu(x):
        return F.gelu(x, approximate="tanh")

    with patched("corem"):
        inside = inductor_ptx(gelu)
    assert "fma.rn.f32" in inside
    assert "udf_tanhf" in inside


def test_sigmoid_in_double_precision_stays_stock(inductor_ptx):
    def sigmoid(x):
        return torch.sigmoid(x.double())

    before = inductor_ptx(sigmoid)
    with patched("corem"):
        assert inductor_ptx(sigmoid) == before
    assert "f64" in before


def test_under_the_contract_nothing_is_subtracted_from_zero(inductor_ptx):
    """0 - 0 is not -0."""

    def negated(x):
        return -x

    before = inductor_ptx(negated)
    with patched("repro"):
        assert "sub.f32" not in inductor_ptx(negated)
    assert inductor_ptx(negated) == before
