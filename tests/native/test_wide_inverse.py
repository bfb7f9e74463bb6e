# SPDX-License-Identifier: Apache-2.0
"""corem's quick paths of asin, acos and atan at AVX-512, on ranges where a step of theirs changes."""

import shutil
import subprocess
import sys

import pytest
from bounds import run_range
from test_eight_paths import COREM, needs_fma

RANGES = {
    "asin": [(0.5406, 0.5416), (0.9999, 1.0), (2.0**-12, 1.001 * 2.0**-12), (-0.5416, -0.5406)],
    "acos": [(0.4995, 0.5005), (0.9999, 1.0), (2.0**-12, 1.001 * 2.0**-12), (-1.0, -0.9999)],
    "atan": [(0.01562, 0.01564), (0.9374, 0.9376), (1.937, 1.938), (13.93, 13.94), (1e6, 1.0001e6)],
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
    assert 0.98 * every < decided


@needs_fma
@pytest.mark.parametrize("name", RANGES)
def test_a_path_without_a_rounding_test_is_seen(tmp_path, name):
    folder = tmp_path / "corem"
    shutil.copytree(COREM.folder, folder, ignore=shutil.ignore_patterns("*.txt", "*.json"))
    source = folder / name / f"{name}f_wide.c"
    text = source.read_text()
    changed = text.replace("*hard = high != other", "*hard = 0")
    changed = changed.replace("*hard = upper != lower", "*hard = 0")
    assert changed != text
    source.write_text(changed)
    assert run(tmp_path, name, source)[2] > 0


@pytest.mark.parametrize("name", ["asin", "acos"])
def test_the_tables_are_those_of_the_program(name):
    program = COREM.folder / "common" / "asin_wide.py"
    command = [sys.executable, program, name]
    written = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert written == (COREM.folder / name / "wide_constants.h").read_text()
