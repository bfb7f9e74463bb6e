# SPDX-License-Identifier: Apache-2.0
"""Libraries whose results are numbers of a shorter format."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from pytest_udftorch import find_library
from pytest_udftorch.swap.toolchain.shared_library import build_library

#: Library -> torch's type of the format, and gfloat's name of it.
FORMATS = {
    "format-bfloat16": (torch.bfloat16, "format_info_bfloat16"),
    "format-half": (torch.float16, "format_info_binary16"),
    "format-e4m3": (torch.float8_e4m3fn, "format_info_ocp_e4m3"),
    "format-e5m2": (torch.float8_e5m2, "format_info_ocp_e5m2"),
}


def results(library, function):
    """The library's and corem's results over a sample of all encodings and small arguments."""
    encodings = np.arange(0, 2**32, 200_003, dtype=np.uint64).astype(np.uint32).view(np.float32)
    near = np.linspace(-20, 20, 20_001, dtype=np.float32)
    x = np.concatenate([encodings, near, np.float32([np.inf, -np.inf, np.nan, 0.0, -0.0])])
    found = []
    for name in (library, "corem"):
        y = np.empty_like(x)
        call = build_library(name).array_function(function)
        call(x.size, x.ctypes.data, y.ctypes.data, 0)
        found.append(torch.from_numpy(y))
    return found


@pytest.mark.parametrize("library", FORMATS)
def test_results_are_those_of_corem_in_torchs_type(library):
    dtype, _ = FORMATS[library]
    assert len(find_library(library).function_names) == 7
    for function in find_library(library).function_names:
        got, exact = results(library, function)
        wanted = exact.to(dtype).float()
        if library == "format-e4m3":
            # Versions of torch differ in what overflows; here it becomes a NaN, as in gfloat.
            over = exact.abs() > 464
            assert got[over].isnan().all()
            got, exact, wanted = got[~over], exact[~over], wanted[~over]
        same = (got == wanted) | (got.isnan() & wanted.isnan())
        assert same.all(), (function, got[~same][:3], exact[~same][:3])
        assert torch.equal(got.signbit()[got == 0], wanted.signbit()[got == 0])
        # Negative control: the results of corem are no numbers of the format.
        assert (exact != wanted).any()


@pytest.mark.parametrize("library", FORMATS)
def test_results_are_those_that_gfloat_rounds(library):
    formats = pytest.importorskip("gfloat.formats")
    from gfloat import round_float

    got, exact = results(library, "exp")
    chosen = exact.isfinite().nonzero().flatten()[::37]
    info = getattr(formats, FORMATS[library][1])
    for at in chosen.tolist():
        wanted = round_float(info, float(exact[at]))
        assert float(got[at]) == wanted or (wanted != wanted and got[at].isnan())


def posits(bits):
    """All positive posits of so many bits with two bits of exponent, by their definition."""
    found = []
    for encoding in range(1, 1 << (bits - 1)):
        string = format(encoding, f"0{bits - 1}b")
        run = len(string) - len(string.lstrip(string[0]))
        regime = run - 1 if string[0] == "1" else -run
        rest = string[run + 1 :]
        exponent, fraction = int(rest[:2].ljust(2, "0"), 2), rest[2:]
        significand = 1 + (int(fraction, 2) / 2 ** len(fraction) if fraction else 0)
        found.append(significand * 2.0 ** (4 * regime + exponent))
    return np.array(found)


def test_results_are_the_nearest_posits():
    numbers = posits(16)
    # The standard: a posit of one more bit, which ends in 1, lies on the border of its neighbours.
    borders = posits(17)[2:-1:2]
    assert len(borders) == len(numbers) - 1
    for function in find_library("format-posit16").function_names:
        got, exact = (t.double().numpy() for t in results("format-posit16", function))
        finite = np.isfinite(exact)
        assert np.isnan(got[~finite]).all()
        got, exact = got[finite], exact[finite]
        size = np.abs(exact)
        at = np.searchsorted(borders, size)
        tie = (at < len(borders)) & (borders[np.minimum(at, len(borders) - 1)] == size)
        at += tie & (at % 2 == 0)  # encodings begin with 1, and a tie goes to the even one
        wanted = np.where(exact == 0, 0.0, np.copysign(numbers[at], exact))
        assert (got == wanted).all(), (function, got[got != wanted][:3], exact[got != wanted][:3])
        assert not np.signbit(got[exact == 0]).any()
        assert (exact != wanted).any()


def test_results_are_the_posits_that_softposit_rounds():
    softposit = pytest.importorskip("softposit")
    got, exact = results("format-posit16", "exp")
    chosen = exact.isfinite().nonzero().flatten()[::7]
    for at in chosen.tolist():
        posit = softposit.convertDoubleToPX2(float(exact[at]), 16)
        assert float(got[at]) == softposit.convertPX2ToDouble(posit)
