# SPDX-License-Identifier: Apache-2.0
"""corem's quick paths of atan, asin and acos at AVX-512: ranges where a step changes, constants."""

import shutil
import subprocess
import sys

import pytest
from bounds import run_range
from test_eight_paths import COREM, needs_fma

FLAGS = ["-march=x86-64-v3"]
ROOT = [(0.4999, 0.5001), (0.9999, 1.0), (2.0**-12, 1.001 * 2.0**-12), (-0.5001, -0.4999)]
#: Ranges around the ends of the branches and of some rows, and where the argument is small.
WIDE_RANGES = {
    "atan": [(0.0322, 0.0324), (0.9999, 1.0001), (30.9, 31.0), (2.0**-10, 1.001 * 2.0**-10)],
    "asin": ROOT,
    "acos": ROOT,
}
COMMON = COREM.folder / "common"


@needs_fma
@pytest.mark.parametrize("name", WIDE_RANGES)
def test_a_wide_path_is_right_where_a_step_changes(tmp_path, name):
    source = COREM.folder / name / f"{name}f_wide.c"
    every, decided, wrong = run_range(
        tmp_path, source, f"udf_{name}f_wide", f"{name}l", WIDE_RANGES[name], FLAGS
    )
    assert wrong == 0
    assert 0.98 * every < decided


@needs_fma
@pytest.mark.parametrize("name", WIDE_RANGES)
def test_a_wide_path_without_a_rounding_test_is_seen(tmp_path, name):
    folder = tmp_path / "corem"
    shutil.copytree(COREM.folder, folder, ignore=shutil.ignore_patterns("*.txt", "*.json"))
    header = folder / "common" / "rows_wide.h"
    text = header.read_text()
    changed = text.replace("upper != lower", "0")
    assert changed != text
    header.write_text(changed)
    source = folder / name / f"{name}f_wide.c"
    found = run_range(tmp_path, source, f"udf_{name}f_wide", f"{name}l", WIDE_RANGES[name], FLAGS)
    assert found[2] > 0


@pytest.mark.parametrize("name", WIDE_RANGES)
def test_the_rows_are_what_the_generator_writes(name):
    header = COREM.folder / name / "wide_constants.h"
    command = [sys.executable, COMMON / "rows_wide.py", name, "--keep", header]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    assert ran.stdout == header.read_text(encoding="utf-8")


def test_the_constants_of_the_root_are_what_the_generator_writes():
    command = [sys.executable, COMMON / "root_wide.py"]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    assert ran.stdout == (COMMON / "root_wide_constants.h").read_text(encoding="utf-8")
