# SPDX-License-Identifier: Apache-2.0
"""The ladder: libraries of fewer and fewer bits, from one source."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from pytest_udftorch import find_library, patched
from pytest_udftorch.errors import LibraryError
from pytest_udftorch.prove import ulp_error
from pytest_udftorch.swap.toolchain.shared_library import build_library

RUNGS = (8, 10, 12, 16, 20)
FUNCTIONS = ("cos", "erf", "exp", "expm1", "log", "sin", "tanh")


def worst(library, function, level):
    """The largest error in ULP over a sample of all encodings, specials among them."""
    encodings = np.arange(0, 2**32, 300_007, dtype=np.uint64).astype(np.uint32)
    special = [0, 1 << 31, 0x7F800000, 0xFF800000, 0x7FC00000, 1, 0x80000001, 0x7F7FFFFF]
    x = np.concatenate([encodings, np.array(special, np.uint32)]).view(np.float32)
    y, true = np.empty_like(x), np.empty_like(x)
    for name, out in ((library, y), ("corem", true)):
        call = build_library(name, level).array_function(function)
        call(x.size, x.ctypes.data, out.ctypes.data, 0)
    kept = np.isfinite(true)
    assert np.array_equal(np.isnan(y), np.isnan(true))
    assert np.array_equal(y[np.isinf(true)], true[np.isinf(true)])
    assert np.isfinite(y[kept]).all()
    assert np.array_equal(np.signbit(y[true == 0]), np.signbit(true[true == 0]))
    _, exponent = np.frexp(np.maximum(abs(true[kept].astype(np.float64)), 2.0**-126))
    return float((abs(y[kept].astype(np.float64) - true[kept]) / 2.0 ** (exponent - 24)).max())


@pytest.mark.parametrize("function", FUNCTIONS)
def test_every_rung_keeps_its_bits_and_no_many_more(function):
    for level in ("baseline", None):
        for bits in RUNGS:
            error = worst(f"ladder-{bits}", function, level)
            assert error + 0.5 < 2 ** (24 - bits)
            # Negative control of the measure: each rung is as coarse as it is meant to be.
            assert error > 2 ** (24 - bits - 8)


def test_rungs_share_one_source_and_differ_in_a_macro():
    sources = {find_library(f"ladder-{b}").functions["exp", "float32"].source for b in RUNGS}
    assert len(sources) == 1
    builds = {build_library(f"ladder-{b}").build_id for b in RUNGS}
    assert len(builds) == len(RUNGS)


def test_a_session_computes_softmax_with_few_bits():
    x = torch.linspace(-8, 8, 333)
    with patched("corem"):
        exact = x.softmax(0)
    for bits in (8, 16):
        with patched(f"ladder-{bits}"):
            apart = (x.softmax(0) / exact - 1).abs().max().item()
        assert 2.0 ** (-bits - 6) < apart < 3 * 2.0**-bits


def test_large_arguments_of_sine_are_exact():
    x = torch.tensor([2.0**15, 1e10, -3e38])
    with patched("ladder-8", ("sin",)):
        assert ulp_error(x.sin(), x, function="sin").max() <= 0.5


@pytest.mark.parametrize("macro", ["1A", "A B", "A=`x`", "-DA", 3])
def test_a_macro_that_the_compiler_could_take_for_more_is_refused(tmp_path, macro):
    (tmp_path / "f.c").write_text("float f(float x) { return x * SCALE; }\n")
    text = '[library]\nname = "m"\nversion = "1"\ndefines = [{}]\n'
    text += '[functions.exp.float32]\nsource = "f.c"\nscalar = "f"\n'
    (tmp_path / "udf.toml").write_text(text.format(repr(macro)))
    with pytest.raises(LibraryError, match="is no macro such as BITS=12"):
        find_library(tmp_path)


def test_a_macro_reaches_the_source(tmp_path):
    (tmp_path / "f.c").write_text("float f(float x) { return x * SCALE; }\n")
    (tmp_path / "udf.toml").write_text(
        '[library]\nname = "m"\nversion = "1"\ndefines = ["SCALE=3.0f"]\n'
        '[functions.exp.float32]\nsource = "f.c"\nscalar = "f"\n'
    )
    assert build_library(tmp_path).scalar_function("exp")(1.0) == 3
