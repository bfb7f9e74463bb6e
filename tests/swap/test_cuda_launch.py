# SPDX-License-Identifier: Apache-2.0
"""What launches CUDA kernels without Python: built, registered and removed without a GPU."""

from __future__ import annotations

import multiprocessing

import pytest
import torch

from pytest_udftorch.base import compat
from pytest_udftorch.errors import CompilerNotFoundError, NativeError
from pytest_udftorch.swap.cuda import direct
from pytest_udftorch.swap.cuda.launcher import wake_triton
from pytest_udftorch.swap.cuda.operators import Registration
from pytest_udftorch.swap.operators.table import overloads
from pytest_udftorch.swap.overrides import dispatcher
from pytest_udftorch.swap.overrides.active import Active
from pytest_udftorch.swap.toolchain import torch_part

pytestmark = [
    pytest.mark.without_cuda,
    pytest.mark.skipif(
        not torch._C._dispatch_has_kernel_for_dispatch_key("aten::exp", "CUDA"),
        reason="torch is a CPU build",
    ),
]

CPP = "launched in C++"
FUNCTIONS = "exp expm1 log log1p pow erf tanh sin atan2 hypot"


class Chosen(Active):
    """Functions without a build."""

    @property
    def functions(self):
        return frozenset(self.id.split())


@pytest.fixture(scope="module")
def cpp():
    direct.LAUNCHER.obtain()
    found = direct.load()
    assert found is not None
    return found


@pytest.fixture
def fresh(monkeypatch):
    """As in a process that has not tried to load the launcher."""
    monkeypatch.setattr(direct, "_tried", False)
    monkeypatch.setattr(direct, "_loaded", None)


def kernel(name: str) -> str:
    return str(torch.library.get_kernel(f"aten::{name}", "CUDA"))


def test_kernels_in_cpp_lie_above_those_in_python_until_the_session_ends(cpp):
    names = overloads(frozenset(FUNCTIONS.split()))
    before = {name: kernel(name) for name in names}
    state = Registration(Chosen(FUNCTIONS))
    state.register()
    try:
        above = {name for name in names if CPP in kernel(name)}
        for name in (
            "exp",
            "exp_",
            "exp.out",
            "silu_backward",
            "gelu",
            "_softmax",
            "pow.Tensor_Scalar",
        ):
            assert name in above
        for name in ("_foreach_exp", "_softmax.out", "pow.Scalar"):
            assert name not in above
            assert kernel(name) != before[name]
    finally:
        state.close()
    assert {name: kernel(name) for name in names} == before


def test_closing_an_older_registration_leaves_a_newer_one(cpp):
    stock = kernel("exp")
    older, newer = Registration(Chosen("exp")), Registration(Chosen("exp"))
    older.register()
    newer.register()
    try:
        older.close()
        assert CPP in kernel("exp")
    finally:
        newer.close()
    assert kernel("exp") == stock


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

    owner = object()
    library = dispatcher.implement("aten", "CUDA", {name: below})
    try:
        cpp.register(owner, [name], 1 << 18, 32768)
        assert CPP in kernel(name)
        result = compat.stock_kernel(f"aten::{name}", "CUDA")(*args, **kwargs)
    finally:
        cpp.unregister(owner)
        compat.destroy(library)
    ((given, named),) = got
    # torch leaves out arguments that have their default value, and gives dtypes as numbers.
    assert all(a is b or a == b or b is torch.float32 for a, b in zip(given, args, strict=False))
    assert all(kwargs[k] is v or kwargs[k] == v for k, v in named.items())
    assert result is kwargs.get("out", kwargs.get("grad_input", result))
    assert not cpp.pending()


def test_an_error_of_the_kernel_in_python_comes_through(cpp):
    def below(x):
        raise ValueError("from below")

    owner = object()
    library = dispatcher.implement("aten", "CUDA", {"exp": below})
    try:
        cpp.register(owner, ["exp"], 1, 1)
        with pytest.raises(ValueError, match="from below"):
            compat.stock_kernel("aten::exp", "CUDA")(X)
    finally:
        cpp.unregister(owner)
        compat.destroy(library)
    assert not cpp.pending()


def test_nothing_is_published_outside_a_call(cpp):
    assert not cpp.pending()
    assert cpp._publish(0, 0, 128, 0, 1, 1, 0, b"", None, b"exp") == 0


def test_an_overload_that_torch_does_not_have_is_an_error(cpp):
    with pytest.raises(NativeError, match="UDFTORCH_CUDA_LAUNCH=python"):
        cpp._call(cpp._register, b"no_such_operator")


def test_python_launches_if_asked_to(cpp, fresh, monkeypatch):
    monkeypatch.setenv(direct.VARIABLE, "python")
    assert direct.load() is None
    stock = kernel("exp")
    state = Registration(Chosen("exp"))
    state.register()
    try:
        assert kernel("exp") != stock
        assert CPP not in kernel("exp")
    finally:
        state.close()
    assert kernel("exp") == stock


def test_without_a_compiler_python_launches(fresh, monkeypatch):
    monkeypatch.setenv("UDFTORCH_PREBUILT", "")
    monkeypatch.setenv("UDFTORCH_CLANG", "/nowhere/clang")
    assert direct.load() is None
    with pytest.raises(CompilerNotFoundError):
        direct.LAUNCHER.available()


def test_a_launcher_that_does_not_compile_says_why_and_python_launches(
    fresh, tmp_path, monkeypatch
):
    broken = tmp_path / "cuda_launch.cpp"
    broken.write_text("#error this torch is too new\n", encoding="utf-8")
    stock = torch_part.native_file
    monkeypatch.setattr(
        torch_part, "native_file", lambda n: broken if n == "cuda_launch.cpp" else stock(n)
    )
    with pytest.raises(NativeError, match="this torch is too new"):
        direct.LAUNCHER.obtain()
    assert direct.load() is None


def _close(state, stock, found):
    state.close()
    found.put(kernel("exp") == stock)


def test_a_forked_process_gives_the_operators_back_for_itself(cpp):
    stock = kernel("exp")
    state = Registration(Chosen("exp"))
    state.register()
    try:
        context = multiprocessing.get_context("fork")
        found = context.Queue()
        child = context.Process(target=_close, args=(state, stock, found))
        child.start()
        assert found.get(timeout=60)
        child.join()
        assert CPP in kernel("exp")
    finally:
        state.close()
    assert kernel("exp") == stock


@pytest.mark.skipif(torch.cuda.is_available(), reason="Triton finds a GPU here")
def test_what_triton_lacks_is_said():
    pytest.importorskip("triton")
    with pytest.raises(CompilerNotFoundError, match=r"0 active drivers.*Install a C compiler"):
        wake_triton()
