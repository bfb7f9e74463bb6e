# SPDX-License-Identifier: Apache-2.0
"""UDFs written in Python go through the same pass as those written in C."""

from __future__ import annotations

import builtins
import math

import numpy as np
import pytest
import torch

from pytest_udftorch import UdfLibrary, build_library, patched, udf
from pytest_udftorch.errors import CompilerNotFoundError, PythonUdfError, UnknownFunctionError
from pytest_udftorch.exact.rounding import assert_ulp, ulp_distance

pytest.importorskip("numba")


def taylor_exp(x):
    k = math.floor(x * 1.4426950408889634 + 0.5)
    r = x - k * 0.6931471805599453
    p = 1.0
    for i in range(12, 0, -1):
        p = 1.0 + p * r / i
    return math.ldexp(p, k)


def test_a_python_function_becomes_every_form():
    library = udf("exp", max_ulp=1.0)(taylor_exp)
    assert isinstance(library, UdfLibrary)
    assert library.name == "taylor_exp"
    x = torch.linspace(-20, 20, 1003)
    truth = np.array([taylor_exp(float(v)) for v in x], dtype=np.float32)
    with patched(library) as session:
        for layout in (x, torch.stack((x, x), -1)[:, 0]):
            got = torch.exp(layout)
            assert np.array_equal(got.numpy().view(np.uint32), truth.view(np.uint32))
            assert_ulp(got, x, function="exp", max_ulp=1.0)
        assert torch.allclose(torch.softmax(x, 0).sum(), torch.tensor(1.0))
        assert session.reached["exp"]
    assert (
        build_library(library).build_id
        == build_library(udf("exp", max_ulp=1.0)(taylor_exp)).build_id
    )


def test_it_can_still_be_called():
    @udf("exp")
    def one_more(x):
        return x + 1.0

    assert one_more(2.0) == 3.0
    assert one_more.name == "one_more"


def test_it_is_inside_compiled_code_too():
    @udf("exp")
    def one_more(x):
        return x + 1.0

    compiled = torch.compile(torch.exp)
    x = torch.linspace(-3, 3, 77)
    with patched(one_more):
        assert torch.equal(compiled(x), (x.double() + 1).float())
    torch._dynamo.reset()


def test_two_arguments_and_double_precision():
    @udf("hypot", dtype="float64")
    def longest(a, b):
        return max(abs(a), abs(b))

    a, b = torch.linspace(-4, 4, 67, dtype=torch.float64), torch.full((67,), 2.0).double()
    with patched(longest):
        assert torch.equal(torch.hypot(a, b), torch.maximum(a.abs(), b.abs()))


def test_an_exception_in_the_function_is_a_nan():
    @udf("log", dtype="float64")
    def strict(x):
        if x < 0.005:
            raise ValueError
        return x

    with patched(strict):
        got = torch.log(torch.tensor([1.0, -1.0], dtype=torch.float64))
    assert got[0] == 1.0
    assert torch.isnan(got[1])


def test_a_rough_function_is_as_rough_as_it_is():
    @udf("tanh", max_ulp=8)
    def rational(x):
        return x / (1.0 + abs(x))

    x = torch.linspace(-2, 2, 501)
    with patched(rational):
        assert int(ulp_distance(torch.tanh(x), torch.tanh(x.double()).float()).max()) > 8


_LARGE = np.zeros(1_000_000)


def _itself(x):
    return x if x < 1 else _itself(x - 1)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda x: undefined_name(x), "Numba cannot compile"),  # noqa: F821
        (lambda x: "text", "Numba cannot compile|runtime"),
        (lambda x: np.array([x, x]).sum(), "runtime"),
        (lambda x: {1: x}[1], "Numba cannot compile|runtime"),
        (lambda x: _LARGE[int(x)], "address of this process"),
        (_itself, "calls itself"),
        (lambda x, y: x + y, "has 2 parameters, but 'exp' is a function of 1"),
        (math.exp, "plain Python function"),
        (3, "plain Python function"),
    ],
)
def test_what_cannot_be_compiled_is_named(function, message):
    with pytest.raises(PythonUdfError, match=message):
        udf("exp")(function)


def test_functions_of_one_process_may_share_what_they_call():
    numba = pytest.importorskip("numba")

    @numba.njit
    def half(x):
        return 0.5 * x

    @numba.njit
    def third(x):
        return x / 3.0

    third(np.float32(1.0))  # Numba has it before any UDF does
    x = torch.linspace(0.5, 4, 67)
    with patched(udf("exp")(lambda x: half(x) + third(x) + x**3)):  # a power is Numba's function
        one = torch.exp(x)
    with patched(udf("log")(lambda x: half(x) - third(x) - x**3)):
        two = torch.log(x)
    wide = x.double()
    assert torch.allclose(one, (wide / 2 + wide / 3 + wide**3).float())
    assert torch.allclose(two, (wide / 2 - wide / 3 - wide**3).float())


def test_unknown_names_are_refused_at_once():
    with pytest.raises(UnknownFunctionError, match="Did you mean 'exp"):
        udf("exxp")
    with pytest.raises(UnknownFunctionError, match="float32"):
        udf("exp", dtype="float16")
    with pytest.raises(UnknownFunctionError, match=r"Unknown dtype torch\.float32"):
        udf("exp", dtype=torch.float32)
    with pytest.raises(UnknownFunctionError, match=r"write @udf\(.exp.\) above"):
        udf(taylor_exp)


@pytest.mark.parametrize("claim", [0, -1, math.nan, math.inf, "1", True])
def test_a_claim_is_a_positive_number(claim):
    with pytest.raises(PythonUdfError, match="positive number of ULP"):
        udf("exp", max_ulp=claim)


def test_without_numba_the_message_says_what_to_install(monkeypatch):
    real = builtins.__import__

    def without(name, *rest):
        if name.startswith("numba"):
            raise ImportError("No module named 'numba'")
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(PythonUdfError, match="pip install numba"):
        udf("exp")(taylor_exp)


def test_without_clang_the_error_says_what_it_is_needed_for(monkeypatch):
    monkeypatch.setenv("UDFTORCH_CLANG", "/nowhere/clang")
    with pytest.raises(CompilerNotFoundError) as caught:
        udf("exp")(taylor_exp)
    said = str(caught.value)
    assert "Numba compiled the function 'taylor_exp', but the vector and array forms" in said
    assert "'/nowhere/clang' is not an executable. Point it to clang-" in said
    assert "llvm-<version>" in said
