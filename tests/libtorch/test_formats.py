# SPDX-License-Identifier: Apache-2.0
"""Libraries whose results are numbers of a shorter format."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from pytest_udftorch import find_library
from pytest_udftorch.build.shared import build_library

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
