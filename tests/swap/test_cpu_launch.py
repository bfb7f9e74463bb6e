# SPDX-License-Identifier: Apache-2.0
"""CPU operators that a session overrides, run without Python after the first call of a kind."""

from __future__ import annotations

import ctypes
import os
import threading
from contextlib import nullcontext

import pytest
import torch
from torch.nn import functional as F

import pytest_udftorch
from pytest_udftorch import patched
from pytest_udftorch.errors import CompilerNotFoundError, NativeError, SwapError
from pytest_udftorch.swap.cpu import direct, loops
from pytest_udftorch.swap.cpu.operators import cpu_operators
from pytest_udftorch.swap.overrides import dispatcher
from pytest_udftorch.swap.overrides.switchboard import SWITCHBOARD, switchboard
from pytest_udftorch.swap.toolchain import torch_part

ATEN = torch.ops.aten
CPP = "C++"
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
X = torch.linspace(0.05, 0.95, 2 * 3 * 5 * 7).reshape(2, 3, 5, 7)


@pytest.fixture(scope="module")
def cpp():
    found = direct.load()
    assert found is not None
    return found


@pytest.fixture
def corem(cpp):
    with patched("corem", composites=True) as session:
        yield session


def kernel(name):
    return switchboard.called(f"aten::{name}", "CPU")


def bits(tensor):
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8).tolist()


def written(call, x):
    found = x.clone()
    call(found)
    return found


def out_of(overload, *args, name="out", **kwargs):
    found = torch.empty_like(args[0])
    overload(*args, **kwargs, **{name: found})
    return found


#: Calls that C++ computes, of one tensor.
FITTING = {
    "gelu": lambda x: F.gelu(x),
    "gelu, tanh": lambda x: F.gelu(x, approximate="tanh"),
    "gelu_": lambda x: written(ATEN.gelu_, x),
    "gelu.out": lambda x: out_of(ATEN.gelu.out, x),
    "gelu_backward": lambda x: ATEN.gelu_backward(x, x),
    "gelu_backward, tanh": lambda x: ATEN.gelu_backward(x, x, approximate="tanh"),
    "gelu_backward.grad_input": lambda x: out_of(
        ATEN.gelu_backward.grad_input, x, x, name="grad_input"
    ),
    "erf": torch.erf,
    "erf_": lambda x: written(torch.erf_, x),
    "sigmoid.out": lambda x: out_of(ATEN.sigmoid.out, x),
    "silu": F.silu,
    "mish": F.mish,
    "softplus": F.softplus,
    "elu": F.elu,
    "selu_": lambda x: written(torch.selu_, x),
    "rsqrt_": lambda x: written(torch.rsqrt_, x),
}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_calls_after_the_first_go_past_python_and_give_its_bits(cpp, corem, dtype):
    for x in (X.to(dtype), X.to(dtype, memory_format=torch.channels_last), X.to(dtype).mT):
        for name, call in FITTING.items():
            with cpp.through_python():
                before = cpp.launches()
                want = call(x)
                assert cpp.launches() == before, name
            call(x)
            before = cpp.launches()
            got = call(x)
            assert cpp.launches() > before, name
            assert got.stride() == want.stride(), name
            assert bits(got) == bits(want), name


#: Calls that Python computes, and those that stock does.
ODD = {
    "gaps": lambda: F.gelu(X[..., ::2]),
    "expanded": lambda: F.gelu(X[:1].expand(4, 3, 5, 7)),
    "empty": lambda: F.gelu(X[:0]),
    "another layout": lambda: ATEN.gelu_backward(X, X.mT.contiguous().mT),
    "broadcast": lambda: ATEN.gelu_backward(X[:1], X, approximate="tanh"),
    "out has gaps": lambda: torch.erf(X, out=torch.empty(2, 3, 5, 14)[..., ::2]),
    "out is resized": lambda: torch.erf(X, out=torch.empty(0)),
    "out is the argument": lambda: (lambda x: torch.erf(x, out=x))(X.clone()),
    "out is double": lambda: torch.erf(X, out=torch.empty_like(X, dtype=torch.float64)),
    "double": lambda: F.gelu(X.double()),
    "integers": lambda: torch.erf(torch.arange(5)),
    "other scalars": lambda: F.elu(-X, alpha=0.5),
}


def test_other_calls_go_to_python_and_stock(cpp, corem):
    for name, call in ODD.items():
        call()
        before = cpp.launches()
        got = call()
        assert cpp.launches() == before, name
        with cpp.through_python():
            assert bits(got) == bits(call()), name


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: ATEN.gelu(X, approximate="other"), "must be either none or tanh"),
        (lambda: torch.erf(X, out=torch.empty(0, dtype=torch.int32)), "can't be cast"),
        (lambda: ATEN.gelu_backward(X, X[0, 0, 0, :3]), "size of tensor"),
        (lambda: X.expand(2, 2, 3, 5, 7).erf_(), "single memory location"),
        (lambda: (lambda x: torch.erf(x[1:], out=x[:-1]))(X.flatten()), "single memory location"),
    ],
)
def test_refused_calls_are_refused_in_the_words_of_stock(corem, call, said):
    for _ in range(2):
        with pytest.raises(RuntimeError, match=said):
            call()


def test_kernels_lie_above_those_in_python_until_the_session_ends(cpp):
    before = {n: kernel(n) for n in ("gelu", "gelu_backward", "tan", "normal_", "sigmoid")}
    with patched("corem"):
        assert {n for n in before if kernel(n) == CPP} == {*before} - {"sigmoid"}
        with patched("std"):
            assert {n: kernel(n) for n in before} == before
        assert kernel("gelu") == CPP
    assert {n: kernel(n) for n in before} == before


def test_a_session_runs_no_loop_of_another():
    x = torch.linspace(-3, 3, 999)
    seen = []
    for library in ("corem", "canary", "corem", "canary"):
        with patched(f"{os.path.dirname(pytest_udftorch.__file__)}/../udfs/{library}"):
            seen.append([bits(F.gelu(x)) for _ in range(3)])
    assert all(first == again for first, *others in seen for again in others)
    assert seen[0] == seen[2] != seen[1] == seen[3]


def test_sessions_leave_nothing_behind_in_cpp(cpp):
    """Loops that are equal are shared, and so is what they point to."""
    x = torch.randn(100)

    def one():
        with patched("corem"):
            F.gelu(x)
            F.gelu(x)

    one()
    before = direct.kept.cache_info().currsize
    for _ in range(5):
        one()
    assert direct.kept.cache_info().currsize == before


def test_a_bypass_and_a_loop_in_another_thread(cpp):
    x = torch.linspace(-3, 3, 999)
    stock = bits(F.gelu(x))
    found = []
    with patched("corem"):
        ours = bits(F.gelu(x))
        with dispatcher.bypass():
            assert bits(F.gelu(x)) == stock
            other = threading.Thread(target=lambda: found.append(bits(F.gelu(x))))
            other.start()
            other.join()
        assert found == [ours] == [bits(F.gelu(x))]


def test_normal_variates_go_past_python(cpp):
    def drawn(count):
        torch.manual_seed(count)
        return bits(torch.empty(count).normal_(0.5, 2.0)), bits(torch.rand(3))

    with patched("corem"):
        for count in (16, 17, 1000, 50_000):
            with cpp.through_python():
                want = drawn(count)
            drawn(count)
            before = cpp.launches()
            assert drawn(count) == want
            assert cpp.launches() > before
        for odd in (torch.empty(8), torch.empty(40)[::2], torch.empty(32).bfloat16()):
            odd.normal_()
            before = cpp.launches()
            odd.normal_()
            assert cpp.launches() == before
        with pytest.raises(RuntimeError, match="normal expects std >= 0"):
            torch.empty(20).normal_(0, -1)


def test_gradients_vmap_and_functional_gradients(cpp, corem):
    x = torch.linspace(-2, 2, 60).reshape(6, 10)
    for _ in range(2):
        leaf = x.clone().requires_grad_()
        F.gelu(leaf).sum().backward()
        functional = torch.func.grad(lambda t: F.gelu(t).sum())(x)
        mapped = torch.func.vmap(F.gelu)(x)
        assert bits(leaf.grad) == bits(functional)
        assert bits(mapped) == bits(F.gelu(x))
    with torch.autocast("cpu", torch.bfloat16):
        assert F.gelu(x.bfloat16()).dtype == torch.bfloat16


def test_profiles_count_the_same_without_python(cpp):
    def evaluations(way):
        with patched("corem", profile=True) as session:
            for _ in range(3):
                with way():
                    F.gelu(X)
                    F.gelu(X.half(), approximate="tanh")
        rows = session.profile.rows("function", "operator")
        return {(r.key["function"], r.key["operator"]): r.cell.tobytes() for r in rows}, {
            (r.key["function"], int(r.cell["elements"])) for r in rows
        }

    cells, found = evaluations(nullcontext)
    assert (cells, found) == evaluations(cpp.through_python)
    assert found == {("erf", 3 * X.numel()), ("tanh", 3 * X.numel())}


def test_a_team_of_fewer_threads_than_asked_for_does_all_the_work(monkeypatch):
    """OpenMP may give fewer: OMP_THREAD_LIMIT, OMP_DYNAMIC, a call within a parallel region."""
    asked = []
    kind = ctypes.CFUNCTYPE(
        None, ctypes.CFUNCTYPE(None, ctypes.c_void_p), ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint
    )

    @kind
    def alone(part, data, threads, _):
        asked.append(threads)
        part(data)

    slot = ctypes.c_void_p(ctypes.cast(alone, ctypes.c_void_p).value)
    x = torch.linspace(-3, 3, 100_001)
    layer, steps = torch.nn.LSTM(8, 256), torch.randn(2, 64, 8)

    def results():
        torch.manual_seed(0)
        with torch.no_grad():
            return [bits(t) for t in (F.gelu(x), torch.empty(100_000).normal_(), layer(steps)[0])]

    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        with patched("corem"):
            want = results()
        monkeypatch.setattr(loops, "torch_threads", lambda: ctypes.addressof(slot))
        cpu_operators.forget()
        torch.set_num_threads(4)
        with patched("corem"):
            assert results() == want
            assert results() == want  # from C++
    finally:
        torch.set_num_threads(threads)
        cpu_operators.forget()
    assert set(asked) == {4}
    assert len(asked) >= 6


def test_an_overload_that_torch_does_not_have_is_an_error(cpp):
    with pytest.raises(SwapError, match="torch has no kernel of aten::no_such at CPU"):
        switchboard.board("aten::no_such", "CPU")
    below = switchboard.python(("aten::sigmoid", "CPU"), torch.neg)
    assert switchboard.above(below.place, below, lambda *given: None) is below
    assert not cpp.pending()


def test_python_computes_if_asked_to(cpp, monkeypatch):
    x = torch.linspace(-3, 3, 99).half()
    with patched("corem"):
        want = [bits(f(x)) for f in (F.gelu, torch.tan)]
    monkeypatch.setattr(direct, "_loaded", None)
    monkeypatch.setenv(direct.VARIABLE, "python")
    assert direct.load() is None
    cpu_operators.forget()
    with patched("corem"):
        assert kernel("gelu") == "Python"
        assert [bits(f(x)) for f in (F.gelu, torch.tan)] == want
    cpu_operators.forget()
    assert kernel("gelu") == "stock"


def test_without_a_compiler_operators_are_not_overridden(monkeypatch):
    monkeypatch.setenv("UDFTORCH_PREBUILT", "")
    monkeypatch.setenv("UDFTORCH_CLANG", "/nowhere/clang")
    with pytest.raises(CompilerNotFoundError):
        SWITCHBOARD.available()
    with pytest.raises(CompilerNotFoundError, match="Sessions cannot override operators"):
        SWITCHBOARD.obtain()


def test_a_switchboard_that_does_not_compile_says_why(tmp_path, monkeypatch):
    broken = tmp_path / "switchboard.cpp"
    broken.write_text("#error this torch is too new\n", encoding="utf-8")
    stock = torch_part.native_file
    monkeypatch.setattr(
        torch_part, "native_file", lambda n: broken if n == "switchboard.cpp" else stock(n)
    )
    with pytest.raises(NativeError, match="this torch is too new"):
        SWITCHBOARD.obtain()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_forked_child_computes_and_closes(cpp):
    x = torch.linspace(-3, 3, 99)
    with patched("corem") as session:
        want = bits(F.gelu(x))
        F.gelu(x)
        child = os.fork()
        if child == 0:
            ok = bits(F.gelu(x)) == want and kernel("gelu") == CPP
            session.close()
            os._exit(0 if ok and kernel("gelu") != CPP else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert kernel("gelu") == CPP
