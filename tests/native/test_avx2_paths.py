# SPDX-License-Identifier: Apache-2.0
"""corem's quick paths at AVX2 by tables of eight: ranges where a step changes, and constants."""

import shutil
import subprocess
import sys

import pytest
from bounds import run_range
from test_eight_paths import COREM, needs_fma

#: Around 0, the ends of intervals, and the last argument.
RANGES = {
    "erfc": [
        (-3.9, -3.85),
        (-0.34, -0.325),
        (2.0**-7, 1.05 * 2.0**-7),
        (0.325, 0.35),
        (1.0, 1.03),
        (2.6, 2.61),
        (7.6, 7.605),
    ],
    "atan": [
        (2.0**-12, 1.001 * 2.0**-12),
        (0.0666, 0.0673),
        (0.2, 0.201),
        (0.9999, 1.0001),
        (-14.95, -14.9),
        (14.5, 15.5),
        (5e7, 7e7),
    ],
}
#: The file of a generator, what it is called with, and what it writes.
GENERATED = {
    "erfc": ("common/erfc_eight.py", [], "erfc/eight_constants.h"),
    "atan": ("common/atan_eight.py", [], "atan/eight_constants.h"),
}


def run(folder, name, source):
    """Return what quick_range.c counts: all arguments, decided ones, wrong ones."""
    flags = ["-march=x86-64-v3"]
    return run_range(folder, source, f"udf_{name}f_eight", f"{name}l", RANGES[name], flags)


@needs_fma
@pytest.mark.parametrize("name", RANGES)
def test_a_path_is_right_where_a_step_changes(tmp_path, name):
    path = COREM.folder / name / f"{name}f_eight.c"
    assert COREM.functions[name, "float32"].own_quick("avx2") == (f"udf_{name}f_eight", path)
    every, decided, wrong = run(tmp_path, name, path)
    assert wrong == 0
    assert 0.99 * every < decided


@needs_fma
@pytest.mark.parametrize("name", RANGES)
def test_a_path_without_a_rounding_test_is_seen(tmp_path, name):
    folder = tmp_path / "corem"
    shutil.copytree(COREM.folder, folder, ignore=shutil.ignore_patterns("*.txt", "*.json"))
    source = folder / name / f"{name}f_eight.c"
    text = source.read_text(encoding="utf-8")
    changed = text.replace("upper != lower", "0")
    assert changed != text
    source.write_text(changed, encoding="utf-8")
    assert run(tmp_path, name, source)[2] > 0


@pytest.mark.parametrize("name", GENERATED)
def test_the_constants_are_what_the_generator_writes(name):
    generator, options, header = GENERATED[name]
    command = [sys.executable, COREM.folder / generator, *options]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    assert ran.stdout == (COREM.folder / header).read_text(encoding="utf-8")
