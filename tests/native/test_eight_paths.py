# SPDX-License-Identifier: Apache-2.0
"""corem's quick paths of asin, acos and atan at AVX2, on ranges where a step of theirs changes."""

import shutil

import pytest
from bounds import run_range

from pytest_udftorch.build.toolchain import resolve_cpu_level
from pytest_udftorch.library.description import find_library

COREM = find_library("corem")
needs_fma = pytest.mark.skipif(resolve_cpu_level(None) == "baseline", reason="no FMA")

#: Ranges around the ends of the intervals, and where the roundings of the low parts count.
RANGES = {
    "asin": [(0.5425, 0.5435), (0.9999, 1.0), (2.0**-12, 1.001 * 2.0**-12), (-0.5435, -0.5425)],
    "acos": [(0.5425, 0.5435), (0.9999, 1.0), (2.0**-12, 1.001 * 2.0**-12), (-1.0, -0.9999)],
    "atan": [(0.2499, 0.2501), (0.4999, 0.5001), (0.9999, 1.0001), (1.999, 2.001), (3.999, 4.001)],
}


def run(folder, name, source):
    """Return what quick_range.c counts: all arguments, decided ones, wrong ones."""
    flags = ["-march=x86-64-v3"]
    return run_range(folder, source, f"udf_{name}f_eight", f"{name}l", RANGES[name], flags)


@needs_fma
@pytest.mark.parametrize("name", RANGES)
def test_a_path_is_right_where_a_step_changes(tmp_path, name):
    every, decided, wrong = run(tmp_path, name, COREM.folder / name / f"{name}f_eight.c")
    assert wrong == 0
    assert 0.98 * every < decided


@needs_fma
@pytest.mark.parametrize("name", RANGES)
def test_a_path_without_a_rounding_test_is_seen(tmp_path, name):
    folder = tmp_path / "corem"
    shutil.copytree(COREM.folder, folder, ignore=shutil.ignore_patterns("*.txt", "*.json"))
    source = folder / name / f"{name}f_eight.c"
    file = source if name == "atan" else folder / "common" / "asin_eight.h"
    text = file.read_text()
    changed = text.replace("= upper != lower", "= 0")
    assert changed != text
    file.write_text(changed)
    assert run(tmp_path, name, source)[2] > 0
