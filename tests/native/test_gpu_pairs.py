# SPDX-License-Identifier: Apache-2.0
"""The paths for GPUs in pairs of floats, with approximations that are off, and their constants."""

import shutil
import subprocess
import sys

import pytest
from bounds import run_range
from test_eight_paths import COREM, needs_fma

#: Around ends of intervals, and where results or parts of them are small.
RANGES = {
    "exp": [(-74.99, -74.95), (-0.0109, -0.0108), (0.0108, 0.0109), (0.99, 1.0), (74.95, 74.99)],
    "erf": [(2.0**-10, 1.02 * 2.0**-10), (0.19, 0.2), (1.0, 1.01), (3.9, 3.93)],
    "erfc": [(-3.9, -3.84), (-0.47, -0.455), (-0.159, -0.155), (0.155, 0.165), (9.1, 9.14)],
    "atan": [(2.0**-6, 1.02 * 2.0**-6), (0.99, 1.01), (31.0, 31.5), (2.0**40, 1.01 * 2.0**40)],
    "asinh": [
        (0.99 * 2.0**-13, 1.01 * 2.0**-13),
        (2.0**-7, 1.02 * 2.0**-7),
        (0.7, 0.71),
        (4090.0, 4096.0),
        (2.0**19, 1.01 * 2.0**19),
    ],
    "acosh": [
        (1.0, 1.002),
        (1.25, 1.26),
        (4090.0, 4096.0),
        (2.0**19, 1.01 * 2.0**19),
    ],
}
#: What approximations are multiplied by: PTX ISA states errors below 2^-22.9 for the reciprocal
#: root, and of one unit in the last place for the reciprocal.
OFF = ["0x1p0f", "0x1.000004p0f", "0x1.fffff8p-1f"]
#: The least share of decided arguments.
DECIDED = {"asinh": 0.97, "acosh": 0.99, "atan": 0.99}


def run(folder, source, function, off="0x1p0f"):
    """Return what quick_range.c counts: all arguments, decided ones, wrong ones."""
    flags = [
        "-march=x86-64-v3",
        f"-DUDF_GPU_RSQRT(x)=({off}/__builtin_sqrtf(x))",
        f"-DUDF_GPU_RCP(x)=({off}/(x))",
    ]
    path = f"udf_{function}f_gpu"
    return run_range(folder, source, path, f"{function}l", RANGES[function], flags)


def source_of(function, root=COREM.folder):
    return root / function / f"{function}f_gpu.c"


@needs_fma
@pytest.mark.parametrize("off", OFF)
@pytest.mark.parametrize("function", RANGES)
def test_a_path_is_right_where_a_step_changes(function, off, tmp_path):
    every, decided, wrong = run(tmp_path, source_of(function), function, off)
    assert wrong == 0
    assert DECIDED.get(function, 0.995) * every < decided


@needs_fma
@pytest.mark.parametrize("function", ["asinh", "erfc"])
def test_a_path_without_a_rounding_test_is_seen(function, tmp_path):
    folder = tmp_path / "corem"
    shutil.copytree(COREM.folder, folder, ignore=shutil.ignore_patterns("*.txt", "*.json"))
    source = {"erfc": source_of("erfc", folder), "asinh": folder / "common/gpu_log_pair.h"}[
        function
    ]
    text = source.read_text()
    changed = text.replace("*hard = !", "*hard = 0 & !")
    assert changed != text
    source.write_text(changed)
    assert run(tmp_path, source_of(function, folder), function)[2] > 0


def written(script, *arguments):
    command = [sys.executable, COREM.folder / "common" / script, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize("function", ["erf", "atan"])
def test_the_tables_are_those_of_avx_512(function):
    header = COREM.folder / function / "gpu_constants.h"
    assert written("gpu_columns.py", function) == header.read_text(encoding="utf-8")


def test_the_constants_of_logarithms_are_what_the_generator_writes():
    header = COREM.folder / "common" / "gpu_log_pair_constants.h"
    assert written("gpu_log_pair.py") == header.read_text(encoding="utf-8")


@pytest.mark.slow
def test_the_constants_of_erfc_are_what_the_generator_writes():
    header = COREM.folder / "erfc" / "gpu_constants.h"
    assert written("gpu_erfc.py") == header.read_text(encoding="utf-8")
