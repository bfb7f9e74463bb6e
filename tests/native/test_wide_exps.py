# SPDX-License-Identifier: Apache-2.0
"""corem's quick paths at AVX-512 of tanh, expm1, sinh and cosh where a step of theirs changes.

The paths are plain C and need no more than FMA.
"""

import shutil

import pytest
from bounds import run_range
from test_eight_paths import COREM, needs_fma

#: Ranges where intervals meet, where sums begin to lose bits, and at the end.
HYPERBOLIC = [(0.0108, 0.0109), (0.001, 0.00101), (-1.001, -1.0), (5.0, 5.001), (80.0, 80.01)]
RANGES = {
    "expm1": [*HYPERBOLIC, (-0.358, -0.357), (15.9999, 16.0001), (-17.51, -17.49)],
    "sinh": [*HYPERBOLIC, (0.682, 0.683)],
    "cosh": [*HYPERBOLIC, (0.682, 0.683)],
    "tanh": [
        (0.001, 0.00101),
        (0.0390, 0.0391),
        (0.3515, 0.3516),
        (-1.3516, -1.3515),
        (3.351, 3.352),
        (9.0, 9.1),
    ],
}
#: Where the rounding test of a path stands.
HEADERS = {"tanh": "odd_quick", **dict.fromkeys(("expm1", "sinh", "cosh"), "expm1_wide")}


def run(folder, name, source):
    """Return what quick_range.c counts: all arguments, decided ones, wrong ones."""
    flags = ["-march=x86-64-v3"]
    return run_range(folder, source, f"udf_{name}f_wide", f"{name}l", RANGES[name], flags)


@needs_fma
@pytest.mark.parametrize("name", RANGES)
def test_a_path_is_right_where_a_step_changes(tmp_path, name):
    every, decided, wrong = run(tmp_path, name, COREM.folder / name / f"{name}f_wide.c")
    assert wrong == 0
    assert 0.95 * every < decided


@needs_fma
@pytest.mark.parametrize("name", RANGES)
def test_a_path_without_a_rounding_test_is_seen(tmp_path, name):
    folder = tmp_path / "corem"
    shutil.copytree(COREM.folder, folder, ignore=shutil.ignore_patterns("*.txt", "*.json"))
    file = folder / "common" / f"{HEADERS[name]}.h"
    text = file.read_text()
    changed = text.replace("upper != lower", "0")
    assert changed != text
    file.write_text(changed)
    assert run(tmp_path, name, folder / name / f"{name}f_wide.c")[2] > 0
