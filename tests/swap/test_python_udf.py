# SPDX-License-Identifier: Apache-2.0
"""UDFs written in Python go through the same pass as those written in C."""

from __future__ import annotations

import builtins
import math
import re

import numpy as np
import pytest
import torch

from pytest_udftorch import UdfLibrary, build_library, patched, udf
from pytest_udftorch.errors import (
    CompilerNotFoundError,
    CpuLevelError,
    CudaFormError,
    SourceError,
    UnknownFunctionError,
)
from pytest_udftorch.prove.exact.rounding import assert_ulp, ulp_distance
from pytest_udftorch.swap.library.symbols import CPU_LEVELS
from pytest_udftorch.swap.toolchain import (
    llvmlite_forms,
    python_udf,
    shared_library,
    watchers,
)
from pytest_udftorch.swap.toolchain.compiler import resolve_cpu_level

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
    with pytest.raises(SourceError, match=message):
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
    with pytest.raises(SourceError, match="positive number of ULP"):
        udf("exp", max_ulp=claim)


def test_without_numba_the_message_says_what_to_install(monkeypatch):
    real = builtins.__import__

    def without(name, *rest):
        if name.startswith("numba"):
            raise ImportError("No module named 'numba'")
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(SourceError, match="pip install numba"):
        udf("exp")(taylor_exp)


def test_a_clang_that_is_named_is_the_only_one_that_is_wanted(monkeypatch):
    monkeypatch.setenv("UDFTORCH_CLANG", "/nowhere/clang")
    with pytest.raises(CompilerNotFoundError, match="is not an executable"):
        udf("exp")(taylor_exp)


# Where there is no clang -----------------------------------------------------------------


def _no_compiler():
    raise CompilerNotFoundError("There is no clang here. Install it.")


@pytest.fixture
def without_clang(monkeypatch):
    def hide() -> None:
        monkeypatch.setattr(python_udf, "find_compiler", _no_compiler)
        monkeypatch.setattr(shared_library, "find_compiler", _no_compiler)
        monkeypatch.setattr(watchers, "find_compiler", _no_compiler)
        monkeypatch.setattr(shared_library, "_built", {})

    return hide


def _branches(x):
    if x < -3.0:
        raise ValueError
    return math.sin(x) + 2.0**x if x < 1.0 else x / (1.0 + abs(x))


def _length(x, y):
    return math.sqrt(x * x + y * y)


@pytest.mark.parametrize(
    ("name", "dtype", "function"),
    [
        ("exp", "float32", taylor_exp),
        ("log", "float64", _branches),
        ("hypot", "float32", _length),
        ("tanh", "float32", lambda x: x / (1.0 + abs(x))),
    ],
)
def test_every_form_has_the_bits_that_clang_and_the_pass_give(name, dtype, function, without_clang):
    arity = 2 if name == "hypot" else 1
    real, bits = (np.float32, np.uint32) if dtype == "float32" else (np.float64, np.uint64)
    special = [0.0, -0.0, np.inf, -np.inf, np.nan, 1e-40, 3.4e38]
    spread = np.random.default_rng(5).uniform(-30, 30, (arity, 1000))
    x = np.concatenate([spread, np.tile(special, (arity, 1))], 1).astype(real)

    def results(build):
        n, found = x.shape[1], []
        call = build.array_function(name, dtype)
        for size in (n, n - 1, 1):  # whole registers and the rest
            y = np.full(n, 7.0, real)
            call(size, *(row.ctypes.data for row in x), y.ctypes.data, 0)
            found.append(y)
        same = x.copy()
        call(n, *(row.ctypes.data for row in same), same[0].ctypes.data, 0)  # in place
        scalar = build.scalar_function(name, dtype)
        found += [same[0], np.array([scalar(*map(float, c)) for c in x.T], real)]
        return np.where(np.isnan(found), real(np.nan), found)

    levels = [level for level in CPU_LEVELS if _has(level)]
    clang = udf(name, dtype=dtype)(function)
    expected = {level: results(build_library(clang, level)) for level in levels}
    without_clang()
    own = udf(name, dtype=dtype)(function)
    for level in levels:
        build = build_library(own, level)
        assert build.path.name == llvmlite_forms.OBJECT
        got = results(build)
        assert np.array_equal(got.view(bits), expected[level].view(bits)), level
        assert all(build.forms(name, dtype).values())
    wrong = udf(name, dtype=dtype)(_other if arity == 1 else _other_of_two)
    control = results(build_library(wrong, levels[0]))
    assert not np.array_equal(control.view(bits), expected[levels[0]].view(bits))


def _other(x):
    return x + 1.0


def _other_of_two(x, y):
    return x + y


def _has(level):
    try:
        return bool(resolve_cpu_level(level))
    except CpuLevelError:
        return False


def test_a_session_needs_no_clang_for_a_python_udf(without_clang):
    """The vector forms, the array form, an operator whose registers the forms are called in."""
    without_clang()
    x = torch.linspace(-20, 20, 1003)
    truth = np.array([taylor_exp(float(v)) for v in x], dtype=np.float32)
    stock = torch.exp(x)
    with patched(udf("exp")(taylor_exp)) as session:
        for layout in (x, torch.stack((x, x), -1)[:, 0], x.to(torch.bfloat16).float()):
            torch.exp(layout)
        assert np.array_equal(torch.exp(x).numpy().view(np.uint32), truth.view(np.uint32))
        assert torch.allclose(torch.softmax(x, 0).sum(), torch.tensor(1.0))
        assert session.reached["exp"]
    assert torch.equal(torch.exp(x), stock)


def _turning(x):
    return math.cos(x)


def _figures(library):
    """What a profile counts of a few operators: where, how often, the ranges, the specials."""
    x = torch.linspace(-20, 20, 1003)
    x[5], x[6], x[7], x[8] = math.inf, math.nan, 0.0, 1e-40
    with patched(library, profile=True) as session:
        # Rows of whole registers: of the lanes that fill one up, the stock padding is a zero.
        results = [torch.exp(x), torch.exp(torch.stack((x, x), -1)[:, 0]), torch.exp(x[9:41] * 0.5)]
        torch.softmax(x[100:164].reshape(2, 32), 1)
    cells = session.profile.cells
    names = [n for n in ("calls", "elements", *cells.dtype.names) if not n.endswith("_ns")]
    names = [n for n in dict.fromkeys(names) if n not in ("function", "operator", "module", "pad")]
    rows = [
        [session.profile.texts("operator", cells[[i]])[0], *(cells[n][i].tolist() for n in names)]
        for i in range(len(cells))
    ]
    rows.sort(key=str)
    return results, rows


@pytest.mark.parametrize("function", [taylor_exp, _turning])
def test_a_profile_of_a_python_udf_needs_no_clang(function, without_clang):
    expected, counted = _figures(udf("exp")(function))
    watchers.obtain_for_forms(resolve_cpu_level(None))  # as a wheel ships it
    without_clang()
    library = udf("exp")(function)
    build = build_library(library, profiled=True)
    assert build.profiled
    assert build.path.name == llvmlite_forms.OBJECT
    got, own = _figures(library)
    assert all(
        torch.equal(a.nan_to_num(7), b.nan_to_num(7)) for a, b in zip(expected, got, strict=True)
    )
    assert len(own) == 2, "arrays, and rows of softmax"
    assert own == counted


def test_two_python_udfs_are_counted_apart(without_clang):
    watchers.obtain_for_forms(resolve_cpu_level(None))
    without_clang()
    first, second = udf("exp")(_other), udf("exp")(_turning)
    x = torch.linspace(-3, 3, 100)
    found = []
    for library in (first, second, first):
        with patched(library, profile=True) as session:
            found.append(torch.exp(x))
        assert session.profile.rows("function")[0].calls > 0
    assert torch.equal(found[0], x + 1)
    assert not torch.equal(found[1], found[0])
    assert torch.equal(found[2], found[0])


def test_a_profile_of_a_python_udf_needs_what_counts(without_clang, tmp_path, monkeypatch):
    monkeypatch.setenv("UDFTORCH_CACHE_DIR", str(tmp_path))
    without_clang()
    library = udf("exp")(taylor_exp)
    with pytest.raises(CompilerNotFoundError, match="calls cannot be counted"):
        build_library(library, profiled=True)


def test_text_that_llvmlite_cannot_read_is_an_error(tmp_path, without_clang):
    (tmp_path / "exp.ll").write_text("this is no LLVM\n")
    (tmp_path / "udf.toml").write_text(
        '[library]\nname = "odd"\nversion = "1"\n'
        '[functions.exp.float32]\nsource = "exp.ll"\nscalar = "udf_expf"\n'
    )
    without_clang()
    with pytest.raises(SourceError, match="llvmlite cannot read UDF library 'odd'"):
        build_library(tmp_path)


KERNEL = """
@triton.jit
def kernel(p, q, n: tl.constexpr):
    i = tl.arange(0, n)
    tl.store(q + i, libdevice.exp(tl.load(p + i)) + libdevice.log(tl.load(p + i)))
"""


def test_a_gpu_gets_a_python_udf_without_clang(kernel_file, ptx, without_clang, monkeypatch):
    from pytest_udftorch.swap.compiled import triton as follower
    from pytest_udftorch.swap.toolchain import libdevice

    def arithmetic(text):
        return sorted(re.findall(r"^\s+((?:add|sub|mul|fma|div|cvt|selp)\S*)", text, re.MULTILINE))

    def curve(x):
        return (x * x + 3.0) / (x - 7.5) if x < 2.0 else x * 0.25

    kernel = kernel_file(KERNEL).kernel
    stock = ptx(kernel, n=128)
    with patched(udf("exp")(curve)):
        expected = ptx(kernel, n=128)
    without_clang()
    monkeypatch.setattr(libdevice, "find_compiler", _no_compiler)
    monkeypatch.setattr(follower, "_made", {})
    with patched(udf("exp")(curve)):
        own = ptx(kernel, n=128)
    (made,) = follower._made.values()
    assert "libdevice-llvmlite" in str(made)
    # Older tritons have an older LLVM than llvmlite, and refuse what they do not know.
    text = made.read_text()
    assert not re.search(r"captures\(|nocreateundeforpoison|samesign", text)
    assert arithmetic(own) == arithmetic(expected)
    assert arithmetic(own) != arithmetic(stock), "the control"
    assert "div.rn.f64" in own


def test_a_gpu_says_what_a_python_udf_may_not_call(kernel_file, ptx, without_clang, monkeypatch):
    from pytest_udftorch.swap.compiled import triton as follower
    from pytest_udftorch.swap.toolchain import libdevice

    without_clang()
    monkeypatch.setattr(libdevice, "find_compiler", _no_compiler)
    monkeypatch.setattr(follower, "_made", {})
    kernel = kernel_file(KERNEL).kernel
    with patched(udf("exp")(_turning)), pytest.raises(CudaFormError, match="A UDF calls cos"):
        ptx(kernel, n=64)
