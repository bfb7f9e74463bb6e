# SPDX-License-Identifier: Apache-2.0
"""Triton kernels under a session, compiled for a GPU that need not be there: PTX is looked at."""

from __future__ import annotations

import functools
import inspect
import os

import pytest
import torch

from pytest_udftorch.errors import CudaFormError
from pytest_udftorch.swap.compiled import triton as triton_changes
from pytest_udftorch.swap.compiled.follower import follower
from pytest_udftorch.swap.session.session import patched
from pytest_udftorch.swap.toolchain.cuda_form import gpus

triton = pytest.importorskip("triton")

# What libdevice and Triton's builtins approximate exp with, and what corem's is made of.
APPROXIMATION = "ex2.approx"
DOUBLE = "fma.rn.f64"


KERNELS = """
from triton.language import exp as imported_exp


@triton.jit
def by_library(p, o, n: tl.constexpr):
    i = tl.arange(0, n)
    tl.store(o + i, libdevice.exp(tl.load(p + i)))


@triton.jit
def by_name(p, o, n: tl.constexpr):
    i = tl.arange(0, n)
    tl.store(o + i, tl.exp(tl.load(p + i)))


@triton.jit
def by_import(p, o, n: tl.constexpr):
    i = tl.arange(0, n)
    tl.store(o + i, imported_exp(tl.load(p + i)))


@triton.jit
def by_method(p, o, n: tl.constexpr):
    i = tl.arange(0, n)
    tl.store(o + i, tl.load(p + i).exp())


@triton.jit
def by_softmax(p, o, n: tl.constexpr):
    i = tl.arange(0, n)
    x = tl.load(p + i)
    e = tl.exp(x - tl.max(x, 0))
    tl.store(o + i, e / tl.sum(e, 0))


@triton.jit
def sine(p, o, n: tl.constexpr):
    i = tl.arange(0, n)
    tl.store(o + i, tl.sin(tl.load(p + i)))


@triton.jit
def in_double(p, o, n: tl.constexpr):
    i = tl.arange(0, n)
    tl.store(o + i, tl.exp(tl.load(p + i)))
"""


@pytest.fixture(scope="module")
def kernels(kernel_file):
    return kernel_file(KERNELS)


@pytest.fixture
def ptx(ptx):
    return functools.partial(ptx, n=128)


EXP = ("by_library", "by_name", "by_import", "by_method", "by_softmax")


@pytest.mark.parametrize("name", EXP)
def test_every_way_to_exp_gets_the_udf_and_is_stock_again(kernels, name, ptx):
    kernel = getattr(kernels, name)
    before = ptx(kernel)
    assert APPROXIMATION in before
    assert DOUBLE not in before
    with patched("corem"):
        inside = ptx(kernel)
    assert APPROXIMATION not in inside
    assert DOUBLE in inside
    assert ptx(kernel) == before


def test_only_the_chosen_functions_are_in(kernels, ptx):
    stock = ptx(kernels.sine)
    with patched("corem", functions=("exp",)):
        assert ptx(kernels.sine) == stock
        assert DOUBLE in ptx(kernels.by_name)
    with patched("corem", functions=("sin",)):
        assert ptx(kernels.sine) != stock
        assert APPROXIMATION in ptx(kernels.by_name)


def test_two_libraries_do_not_share_kernels(kernels, ptx):
    with patched("corem"):
        right = ptx(kernels.by_library)
    with patched("canary"):
        wrong = ptx(kernels.by_library)
    assert right != wrong
    with patched("corem"):
        assert ptx(kernels.by_library) == right


def test_double_precision_stays_stock(kernels, ptx):
    stock = ptx(kernels.in_double, "fp64")
    with patched("corem"):
        assert ptx(kernels.in_double, "fp64") == stock


def test_knobs_environment_keys_and_builtins_are_put_back():
    import triton.language.math as tl_math
    from triton import knobs
    from triton.backends.compiler import GPUTarget
    from triton.compiler import compiler
    from triton.runtime import jit

    def state():
        return (
            knobs.nvidia.libdevice_path,
            jit.compute_cache_key,
            jit.get_cache_key,
            compiler.get_cache_key,
            os.environ.get("TRITON_LIBDEVICE_PATH"),
            inspect.unwrap(tl_math.exp).__code__,
            {k for k in vars(tl_math) if k.startswith("_udf")},
        )

    before = state()
    with patched("corem"):
        compiler.make_backend(GPUTarget("cuda", 90, 32))  # as the first compilation does
        inside = state()
        assert all(a != b for a, b in zip(inside, before, strict=True))
    assert state() == before


@pytest.mark.skipif(bool(gpus()), reason="with a GPU libdevice is made when a session opens")
def test_without_a_gpu_libdevice_is_made_for_the_first_kernel(kernels, ptx, monkeypatch):
    asked = []
    made = triton_changes.libdevice_for

    def libdevice_for(parts, stock):
        asked.append(parts)
        return made(parts, stock)

    monkeypatch.setattr(triton_changes, "libdevice_for", libdevice_for)
    monkeypatch.setattr(triton_changes, "_made", {})
    with patched("corem", functions=("exp",)):
        assert not asked
        ptx(kernels.by_import)
        ptx(kernels.by_library)
    assert len(asked) == 1


def test_kernels_in_memory_are_kept_apart():
    from triton.runtime import jit

    def key():
        return jit.compute_cache_key({}, [("*fp32", "D")], {"num_warps": 4})

    stock = key()
    with patched("corem"):
        corem = key()
        with patched("canary"):
            canary = key()
        assert key() == corem
    assert len({stock, corem, canary}) == 3
    assert key() == stock


def test_a_triton_that_makes_its_keys_elsewhere_is_refused(monkeypatch):
    from triton import knobs
    from triton.runtime import jit

    monkeypatch.delattr(jit, "compute_cache_key")
    with pytest.raises(CudaFormError, match=r"jit has no compute_cache_key"), patched("corem"):
        pass
    assert "libdevice_path" not in vars(knobs.nvidia)
    assert follower.active.id == "stock"


def test_a_udf_that_calls_libm_is_an_error_of_the_kernel_and_not_of_the_session(
    kernels, ptx, tmp_path
):
    (tmp_path / "udf.toml").write_text(
        '[library]\nname = "mine"\nversion = "1"\n'
        '[functions.exp.float32]\nsource = "e.c"\nscalar = "my_expf"\n'
    )
    (tmp_path / "e.c").write_text(
        "double cbrt(double);\nfloat my_expf(float x) { return (float)cbrt(x); }\n"
    )
    stock = ptx(kernels.by_name)
    variable = os.environ.get("TRITON_LIBDEVICE_PATH")
    with patched(tmp_path):
        assert float(torch.exp(torch.tensor(8.0))) == 2.0
        with pytest.raises(CudaFormError, match="calls cbrt, which a GPU does not have"):
            ptx(kernels.by_name)
    assert os.environ.get("TRITON_LIBDEVICE_PATH") == variable
    assert ptx(kernels.by_name) == stock


def test_a_udf_that_llvm_computes_by_an_intrinsic_is_an_error_too(kernels, ptx, tmp_path):
    (tmp_path / "udf.toml").write_text(
        '[library]\nname = "mine"\nversion = "1"\n'
        '[functions.exp.float32]\nsource = "e.c"\nscalar = "my_expf"\n'
    )
    (tmp_path / "e.c").write_text("float my_expf(float x) { return __builtin_expf(x); }\n")
    with patched(tmp_path), pytest.raises(CudaFormError, match="calls exp, which a GPU does not"):
        ptx(kernels.by_name)


def test_a_libdevice_that_llvm_cannot_read_is_named(tmp_path):
    import pytest_udftorch
    from pytest_udftorch.swap.toolchain.libdevice import libdevice_for
    from pytest_udftorch.swap.toolchain.selection import Part

    broken = tmp_path / "libdevice.10.bc"
    broken.write_bytes(b"BC\xc0\xde" + b"no bitcode")
    build = pytest_udftorch.build_library("corem")
    with pytest.raises(CudaFormError, match=r"cannot be put into .*libdevice"):
        libdevice_for((Part(build, (("exp", "float32"),)),), broken)


def test_kernels_of_two_libraries_are_kept_apart_in_memory():
    from triton.runtime import jit

    stock = jit.compute_cache_key

    def key():
        return jit.compute_cache_key({}, [("i32", "")], {})

    plain = key()
    with patched("corem"):
        right = key()
    with patched("canary"):
        wrong = key()
    assert len({plain, right, wrong}) == 3
    assert key() == plain
    assert jit.compute_cache_key is stock
