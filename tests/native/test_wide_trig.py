# SPDX-License-Identifier: Apache-2.0
"""corem's quick paths at AVX-512 of sin, cos and tan where a step of theirs changes.

The paths are plain C and need no more than FMA.
"""

import shutil
import subprocess
import sys

import pytest
from bounds import run_range
from test_eight_paths import COREM, needs_fma

COMMON = COREM.folder / "common"
#: Ranges where steps meet, at multiples of pi/4, and at the end.
STEPS = [(0.0488, 0.0495), (0.78, 0.7854), (-1.5709, -1.57), (3.1415, 3.1417), (19.9, 20.0)]
RANGES = {
    "sin": [*STEPS, (0.001, 0.00101), (-3.95, -3.92), (1000.0, 1003.0), (1607.0, 1608.0)],
    "cos": [*STEPS, (0.001, 0.00101), (-3.95, -3.92), (1000.0, 1003.0), (1607.0, 1608.0)],
    "tan": [*STEPS, (0.001, 0.00101), (8.68, 8.69), (1000.0, 1003.0), (1607.0, 1608.0)],
}


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
    file = folder / "common" / "trig_wide.h"
    text = file.read_text()
    changed = text.replace("udf_f32_bits(upper - lower)", "0")
    assert changed != text
    file.write_text(changed)
    assert run(tmp_path, name, folder / name / f"{name}f_wide.c")[2] > 0


def test_the_constants_are_what_the_generator_writes():
    header = COMMON / "trig_wide_constants.h"
    command = [sys.executable, COMMON / "trig_wide.py", "--keep", header]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    assert ran.stdout == header.read_text(encoding="utf-8")
