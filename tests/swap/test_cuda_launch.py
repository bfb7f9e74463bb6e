# SPDX-License-Identifier: Apache-2.0
"""What launches CUDA kernels without Python: built, registered and removed without a GPU."""

from __future__ import annotations

import multiprocessing

import pytest
import torch

from pytest_udftorch.base import compat
from pytest_udftorch.errors import CompilerNotFoundError
from pytest_udftorch.swap.cuda import direct
from pytest_udftorch.swap.cuda.launcher import wake_triton
from pytest_udftorch.swap.cuda.operators import Registration
from pytest_udftorch.swap.operators.table import overloads
from pytest_udftorch.swap.overrides import dispatcher
from pytest_udftorch.swap.overrides.active import Active
from pytest_udftorch.swap.overrides.switchboard import switchboard

pytestmark = [
    pytest.mark.without_cuda,
    pytest.mark.skipif(
        not torch._C._dispatch_has_kernel_for_dispatch_key("aten::exp", "CUDA"),
        reason="torch is a CPU build",
    ),
]

CPP = "C++"
FUNCTIONS = "exp expm1 log log1p pow erf tanh sin atan2 hypot"


class Chosen(Active):
    """Functions without a build."""

    @property
    def functions(self):
        return frozenset(self.id.split())


@pytest.fixture(scope="module")
def cpp():
    found = direct.load()
    assert found is not None
    return found


@pytest.fixture(autouse=True)
def given_back():
    """Each test leaves the boards to the stock kernels."""
    yield
    dispatcher.overrides.serve("cuda", None)
    assert kernel("exp") == "stock"


def kernel(name: str) -> str:
    return switchboard.called(f"aten::{name}", "CUDA")


def serve(cpp, name, below):
    """Let the board of an overload call C++ above a function in Python."""
    place = f"aten::{name}", "CUDA"
    target = switchboard.python(place, below)
    target = switchboard.above(place, target, cpp.target)
    dispatcher.overrides.serve("cuda", dispatcher.Kernels((target,)))


def call(name, *args, **kwargs):
    """Call the board of an overload, whatever the tensors are."""
    return compat.stock_kernel(f"aten::{name}", "CUDA")(*args, **kwargs)


def test_kernels_in_cpp_lie_above_those_in_python_until_the_session_ends(cpp):
    names = overloads(frozenset(FUNCTIONS.split()))
    assert {kernel(name) for name in names} == {"stock"}
    Registration(Chosen(FUNCTIONS)).register()
    above = {name for name in names if kernel(name) == CPP}
    for name in ("exp", "exp_", "exp.out", "silu_backward", "gelu", "_softmax"):
        assert name in above
    for name in ("_foreach_exp", "pow.Scalar"):
        assert kernel(name) == "Python"
    assert kernel("_softmax.out") == "recorded"
    dispatcher.overrides.serve("cuda", None)
    assert {kernel(name) for name in names} == {"stock"}


#: Overload -> positional arguments and keywords.
X = torch.arange(6.0).reshape(2, 3)
GIVEN = {
    "exp": ((X,), {}),
    "exp_": ((X,), {}),
    "exp.out": ((X,), {"out": X + 1}),
    "elu": ((X, 0.5, 2, 3.5), {}),
    "elu_": ((X, 0.5, True, 3.5), {}),
    "elu.out": ((X, 0.5, 1, 3), {"out": X + 1}),
    "gelu": ((X,), {"approximate": "tanh"}),
    "gelu_": ((X,), {"approximate": "none"}),
    "gelu.out": ((X,), {"approximate": "tanh", "out": X + 1}),
    "softplus": ((X, 2, 30), {}),
    "silu_backward": ((X, X + 1), {}),
    "silu_backward.grad_input": ((X, X + 1), {"grad_input": X + 2}),
    "elu_backward": ((X, 0.5, 1, 2, True, X + 1), {}),
    "gelu_backward": ((X, X + 1), {"approximate": "other"}),
    "softplus_backward": ((X, X + 1, 1, 20), {}),
    "log_sigmoid_backward": ((X, X + 1, X + 2), {}),
    "atan2_": ((X, X + 1), {}),
    "pow.Tensor_Tensor": ((X, X + 1), {}),
    "pow.Tensor_Scalar": ((X, 2.5), {}),
    "_softmax": ((X, -1, False), {}),
    "_log_softmax": ((X, 7, True), {}),
    "_log_softmax_backward_data": ((X, X + 1, 1, torch.float32), {}),
}


@pytest.mark.parametrize("name", GIVEN)
def test_what_cpp_does_not_take_reaches_python_with_all_its_arguments(cpp, name):
    # A tensor on the CPU is the simplest such call: torch asks no GPU for it.
    args, kwargs = GIVEN[name]
    got = []

    def below(*args, **kwargs):
        got.append((args, kwargs))
        return kwargs.get("out", kwargs.get("grad_input", args[0] if name.endswith("_") else X * 7))

    serve(cpp, name, below)
    assert kernel(name) == CPP
    result = call(name, *args, **kwargs)
    ((given, named),) = got
    # torch leaves out arguments that have their default value, and gives dtypes as numbers.
    assert all(a is b or a == b or b is torch.float32 for a, b in zip(given, args, strict=False))
    assert all(kwargs[k] is v or kwargs[k] == v for k, v in named.items())
    assert result is kwargs.get("out", kwargs.get("grad_input", result))
    assert not cpp.pending()


def test_an_error_of_the_kernel_in_python_comes_through(cpp):
    def below(x):
        raise ValueError("from below")

    serve(cpp, "exp", below)
    with pytest.raises(ValueError, match="from below"):
        call("exp", X)
    assert not cpp.pending()


def test_nothing_is_published_outside_a_call(cpp):
    assert not cpp.pending()
    assert cpp._publish(0, 0, 128, 0, 1, 1, 0, b"", None, b"exp") == 0


def test_python_launches_if_asked_to(cpp, monkeypatch):
    monkeypatch.setenv(direct.VARIABLE, "python")
    monkeypatch.setattr(direct, "_loaded", None)
    assert direct.load() is None
    Registration(Chosen("exp")).register()
    assert kernel("exp") == "Python"


def _close(found):
    dispatcher.overrides.serve("cuda", None)
    found.put(kernel("exp") == "stock")


def test_a_forked_process_gives_the_operators_back_for_itself(cpp):
    Registration(Chosen("exp")).register()
    context = multiprocessing.get_context("fork")
    found = context.Queue()
    child = context.Process(target=_close, args=(found,))
    child.start()
    assert found.get(timeout=60)
    child.join()
    assert kernel("exp") == CPP


@pytest.mark.skipif(torch.cuda.is_available(), reason="Triton finds a GPU here")
def test_what_triton_lacks_is_said():
    pytest.importorskip("triton")
    with pytest.raises(CompilerNotFoundError, match=r"0 active drivers.*Install a C compiler"):
        wake_triton()
