# SPDX-License-Identifier: Apache-2.0
"""corem's quick paths where the CPU flushes subnormal numbers: arguments of every size.

A path that scales too early loses low parts there, and its rounding test does not see it.
"""

import math

import pytest
from bounds import COREM, FLAGS, changed_corem, needs_fma, run_path

PATHS = [
    (name, level)
    for name, dtype in COREM.functions
    for level in FLAGS
    if dtype == "float32"
    and name not in ("atan2", "hypot", "pow")
    and COREM.functions[name, dtype].quick_at(level)
]


def everywhere(count):
    """Ranges of arguments of every size and both signs, and where exponentials become small."""
    for exponent in range(-126, 127):
        low = math.ldexp(1.37, exponent)
        high = low + count * math.ldexp(1.0, exponent - 23)
        yield from ((low, high), (-high, -low))
    for x in range(-110, 0, 3):
        yield float(x), x + count * 2.0**-17


def run(folder, name, level, corem=COREM.folder):
    """Return what quick_range.c counts: all arguments, decided ones, wrong ones."""
    return run_path(folder, name, level, everywhere(40), corem=corem, flags=["-DFLUSH"])


@needs_fma
@pytest.mark.parametrize(("name", "level"), PATHS)
def test_no_decided_result_is_wrong_where_subnormals_are_flushed(tmp_path, name, level):
    every, decided, wrong = run(tmp_path, name, level)
    assert wrong == 0
    assert decided > every / 100


@needs_fma
def test_a_path_that_scales_too_early_is_seen(tmp_path):
    scaled = "t = udf_lane_scale(t, n);\n  return udf_exp_wide(t, t, r, p, 0,"
    corem = changed_corem(tmp_path, "exp/expf_wide.c", "return udf_exp_wide(t, t, r, p, n,", scaled)
    assert run(tmp_path, "exp", "avx512", corem)[2] > 0
