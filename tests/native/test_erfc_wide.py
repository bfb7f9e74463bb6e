# SPDX-License-Identifier: Apache-2.0
"""The quick path of erfc at AVX-512: its constants, and ranges where a step of it changes."""

import shutil
import subprocess
import sys

import pytest
from bounds import run_range

from pytest_udftorch.build.toolchain import resolve_cpu_level
from pytest_udftorch.library.description import find_library

COREM = find_library("corem")
FOLDER = COREM.folder / "erfc"
needs_fma = pytest.mark.skipif(resolve_cpu_level(None) == "baseline", reason="no FMA")
#: Around 0 and the ends of intervals, where results are near 2, and where the tables end.
RANGES = [(1e-6, 1.0001e-6), (0.047, 0.0472), (1.49, 1.491), (3.9999, 4.0), (-0.047, -0.0469),
          (-3.0, -2.999), (7.499, 7.5)]  # fmt: skip


def run(folder, source):
    """Return what quick_range.c counts: all arguments, decided ones, wrong ones."""
    return run_range(folder, source, "udf_erfcf_wide", "erfcl", RANGES, ["-march=x86-64-v3"])


@needs_fma
def test_the_path_is_right_where_a_step_changes(tmp_path):
    every, decided, wrong = run(tmp_path, FOLDER / "erfcf_wide.c")
    assert wrong == 0
    assert 0.99 * every < decided


@needs_fma
def test_the_path_without_its_rounding_test_is_seen(tmp_path):
    folder = tmp_path / "corem"
    shutil.copytree(COREM.folder, folder, ignore=shutil.ignore_patterns("*.txt", "*.json"))
    source = folder / "erfc" / "erfcf_wide.c"
    text = source.read_text(encoding="utf-8")
    changed = text.replace("upper != lower", "0")
    assert changed != text
    source.write_text(changed, encoding="utf-8")
    assert run(tmp_path, source)[2] > 0


def test_the_constants_are_what_the_generator_writes():
    header = FOLDER / "wide_constants.h"
    command = [sys.executable, FOLDER / "wide.py", "--keep", header]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    assert ran.stdout == header.read_text(encoding="utf-8")
