# SPDX-License-Identifier: Apache-2.0
"""A small library to build, and a way to forget that it was built."""

import pytest

from pytest_udftorch.swap.toolchain import cache, shared_library

#: Lacks the names of the functions in ``e.c``.
TOML = '[library]\nname = "twice"\nversion = "1"\n[functions.exp.float32]\nsource = "e.c"\n'
TWICE = "float udf_expf(float x) { return x + x; }\n"


def forget(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this process know no more of builds than another one would."""
    monkeypatch.setattr(shared_library, "_built", {})
    monkeypatch.setattr(cache, "_checked", {})
