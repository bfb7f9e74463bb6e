# SPDX-License-Identifier: Apache-2.0
"""Arguments of the public API that make no sense: an error of our own says so."""

from __future__ import annotations

import contextlib

import pytest

from pytest_udftorch import UdfError, build_library, patched, trace
from pytest_udftorch.errors import CpuLevelError, ProfileFileError

ODD = (None, True, 5, -1, 0.5, float("nan"), b"x", "", "\0", "a" * 5000, [], ["x"], {}, {1}, object)


@pytest.mark.parametrize("value", ODD[1:], ids=[repr(value)[:20] for value in ODD[1:]])
def test_libraries_and_functions(value):
    with pytest.raises(UdfError):
        patched(value)
    with pytest.raises(UdfError):
        patched("corem", value)
    with pytest.raises(UdfError), trace(value):
        pass


@pytest.mark.parametrize(
    "name", ["cpu_level", "profile", "profile_out", "profile_stride", "cuda_form"]
)
@pytest.mark.parametrize("value", ODD, ids=[repr(value)[:20] for value in ODD])
def test_options_of_a_session(name, value):
    """What patched() takes may still be refused on entry, which needs a build."""
    with contextlib.suppress(UdfError):
        patched("corem", ("exp",), **{name: value})
        if name == "cpu_level" and value:
            with pytest.raises(CpuLevelError):
                build_library("corem", value)


def test_a_folder_for_profiles_is_a_path():
    with pytest.raises(ProfileFileError, match=r"profile_out=\['x'\] is not a path"):
        patched("corem", profile=True, profile_out=["x"])
