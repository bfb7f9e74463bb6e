# SPDX-License-Identifier: Apache-2.0
"""corem's quick paths where the CPU flushes subnormal numbers: arguments of every size.

A path that scales too early loses low parts there, and its rounding test does not see it.
"""

import math
import shutil

import pytest
from bounds import run_range
from test_eight_paths import COREM, needs_fma

FLAGS = {"avx2": ["-march=x86-64-v3"], "avx512": ["-march=x86-64-v3", "-D__AVX512F__"]}
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


def run(folder, name, level, source=None):
    """Return what quick_range.c counts: all arguments, decided ones, wrong ones."""
    described = COREM.functions[name, "float32"]
    own = described.own_quick(level)
    entry, file = own or (described.quick_at(level), described.source)
    flags = [*FLAGS[level], "-DFLUSH"]
    return run_range(folder, source or file, entry, f"{name}l", everywhere(40), flags)


@needs_fma
@pytest.mark.parametrize(("name", "level"), PATHS)
def test_no_decided_result_is_wrong_where_subnormals_are_flushed(tmp_path, name, level):
    every, decided, wrong = run(tmp_path, name, level)
    assert wrong == 0
    assert decided > every / 100


@needs_fma
def test_a_path_that_scales_too_early_is_seen(tmp_path):
    folder = tmp_path / "corem"
    shutil.copytree(COREM.folder, folder, ignore=shutil.ignore_patterns("*.txt", "*.json"))
    source = folder / "exp" / "expf_wide.c"
    text = source.read_text(encoding="utf-8")
    changed = text.replace("#define EXP_WIDE_MAX 55.0f", "#define EXP_WIDE_MAX 75.0f")
    assert changed != text
    source.write_text(changed, encoding="utf-8")
    assert run(tmp_path, "exp", "avx512", source)[2] > 0
