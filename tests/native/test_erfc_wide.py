# SPDX-License-Identifier: Apache-2.0
"""erfc's quick path at AVX-512, where a step of it changes, and its constants."""

import shutil
import subprocess
import sys

import pytest
from bounds import run_range
from test_eight_paths import COREM, needs_fma

#: Around 0, where the difference to the center is the argument, and around ends of intervals; the
#: rounding of the terms from r^3 on counts most near 0.46.
RANGES = [
    (-3.9, -3.84),
    (-1.35, -1.31),
    (-0.47, -0.455),
    (-0.1585, -0.1555),
    (2.0**-7, 1.05 * 2.0**-7),
    (0.155, 0.16),
    (0.47, 0.49),
    (2.29, 2.295),
    (7.6, 7.65),
    (9.1, 9.14),
]
#: Without the level's compiler flags, so that any CPU with FMA runs the test.
FLAGS = ["-march=x86-64-v3", "-D__AVX512F__"]


def run(folder, source):
    """Return what quick_range.c counts: all arguments, decided ones, wrong ones."""
    return run_range(folder, source, "udf_erfcf_wide", "erfcl", RANGES, FLAGS)


@needs_fma
def test_a_path_is_right_where_a_step_changes(tmp_path):
    every, decided, wrong = run(tmp_path, COREM.folder / "erfc" / "erfcf_wide.c")
    assert wrong == 0
    assert 0.998 * every < decided


@needs_fma
def test_a_path_without_a_rounding_test_is_seen(tmp_path):
    folder = tmp_path / "corem"
    shutil.copytree(COREM.folder, folder, ignore=shutil.ignore_patterns("*.txt", "*.json"))
    source = folder / "erfc" / "erfcf_wide.c"
    text = source.read_text()
    changed = text.replace("!(upper == lower)", "0")
    assert changed != text
    source.write_text(changed)
    assert run(tmp_path, source)[2] > 0


@pytest.mark.slow
def test_the_constants_are_what_the_generator_writes():
    command = [sys.executable, COREM.folder / "common" / "erfc_wide.py"]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    assert ran.stdout == (COREM.folder / "erfc" / "wide_constants.h").read_text(encoding="utf-8")
