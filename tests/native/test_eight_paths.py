# SPDX-License-Identifier: Apache-2.0
"""corem's quick paths at AVX2 without a proof, on ranges where a step of theirs changes."""

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
    "log": [
        (0.707, 0.708),
        (0.95, 0.951),
        (1.0, 1.001),
        (1.414, 1.415),
        (2.0**120, 1.001 * 2.0**120),
    ],
    "log2": [
        (0.707, 0.708),
        (0.95, 0.951),
        (1.0, 1.001),
        (1.414, 1.415),
        (2.0**120, 1.001 * 2.0**120),
    ],
    "log10": [
        (0.707, 0.708),
        (0.95, 0.951),
        (1.0, 1.001),
        (1.414, 1.415),
        (2.0**120, 1.001 * 2.0**120),
    ],
    "log1p": [(-0.293, -0.292), (0.001, 0.00101), (0.414, 0.415), (1e9, 1.001e9)],
    "asinh": [(0.124, 0.125), (0.001, 0.00101), (1.0, 1.001), (-20.01, -20.0), (4090.0, 4095.0)],
    "acosh": [(1.0001, 1.001), (1.5, 1.501), (20.0, 20.01), (4090.0, 4095.0)],
    "expm1": [(0.0433, 0.0434), (0.001, 0.00101), (-1.001, -1.0), (5.0, 5.001), (80.0, 80.01)],
    "sinh": [(0.0433, 0.0434), (0.001, 0.00101), (-1.001, -1.0), (5.0, 5.001), (80.0, 80.01)],
    "cosh": [(0.0433, 0.0434), (0.001, 0.00101), (-1.001, -1.0), (5.0, 5.001), (80.0, 80.01)],
}
#: Where the rounding test of a path stands that has it in a header.
HEADERS = {
    "asin": "asin",
    "acos": "asin",
    **dict.fromkeys(("log", "log2", "log10", "log1p"), "log"),
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
    header = HEADERS.get(name)
    file = folder / "common" / f"{header}_eight.h" if header else source
    text = file.read_text()
    changed = text.replace("upper != lower", "0")
    assert changed != text
    file.write_text(changed)
    assert run(tmp_path, name, source)[2] > 0
