# SPDX-License-Identifier: Apache-2.0
"""corem's quick paths at AVX-512 without a proof: ranges where a step changes.

They are compiled for AVX2 here, which has the same arithmetic but not the same look-ups.
"""

import re
import shutil

import numpy as np
import pytest
from bounds import run_range
from test_eight_paths import COREM, needs_fma

#: The macro says which tables are used.
FLAGS = ["-march=x86-64-v3", "-D__AVX512F__"]

#: Around the ends of intervals, 1, and limits.
LOGARITHMS = [
    (0.7, 0.7005), (0.98, 0.9803), (0.993, 0.994), (0.9999, 1.0001), (1.0078, 1.008), (1.2, 1.2001),
    (2.0**120, 1.001 * 2.0**120), (2.0**-124, 1.001 * 2.0**-124),
]  # fmt: skip
#: Around 0, steps of the reduction, and where results are left to the fast path.
EXPONENTIALS = [
    (0.0108, 0.0109),
    (-1e-4, -0.99e-4),
    (0.9999, 1.0001),
    (-20.001, -20.0),
    (54.99, 55.0),
]
#: Around the ends of intervals and of the series of asinh, and where low parts are smallest.
RANGES = {
    "log1p": [(-0.293, -0.292), (0.001, 0.00101), (0.0087, 0.0093), (0.38, 0.381), (1e9, 1.001e9)],
    "asinh": [(0.0465, 0.0475), (0.001, 0.00101), (1.0, 1.001), (-20.01, -20.0), (4090.0, 4095.0)],
    "acosh": [(1.001, 1.002), (1.5, 1.501), (20.0, 20.01), (4090.0, 4095.0)],
    "atanh": [(0.0465, 0.0475), (0.001, 0.00101), (-0.751, -0.75), (0.9999, 0.99999)],
    "log": LOGARITHMS,
    "log2": LOGARITHMS,
    "log10": LOGARITHMS,
    "exp": EXPONENTIALS,
    "exp2": EXPONENTIALS,
}
#: Where the rounding test of a path stands.
HEADERS = {
    **dict.fromkeys(("log", "log2", "log10"), "common/log_wide.h"),
    **dict.fromkeys(("exp", "exp2"), "common/exp_wide.h"),
    **dict.fromkeys(("log1p", "atanh"), "common/log1p_wide.h"),
    **dict.fromkeys(("asinh", "acosh"), "common/asinh_wide.h"),
}


def path_of(name):
    """The C file of a path."""
    return COREM.folder / name / f"{name}f_wide.c"


def run(folder, name, source):
    """Return what quick_range.c counts: all arguments, decided ones, wrong ones."""
    return run_range(folder, source, f"udf_{name}f_wide", f"{name}l", RANGES[name], FLAGS)


@needs_fma
@pytest.mark.parametrize("name", RANGES)
def test_a_path_is_right_where_a_step_changes(tmp_path, name):
    described = COREM.functions[name, "float32"]
    assert described.own_quick("avx512") == (f"udf_{name}f_wide", path_of(name))
    every, decided, wrong = run(tmp_path, name, path_of(name))
    assert wrong == 0
    assert 0.98 * every < decided


@needs_fma
@pytest.mark.parametrize("name", RANGES)
def test_a_path_without_a_rounding_test_is_seen(tmp_path, name):
    folder = tmp_path / "corem"
    shutil.copytree(COREM.folder, folder, ignore=shutil.ignore_patterns("*.txt", "*.json"))
    source = folder / name / f"{name}f_wide.c"
    file = folder / HEADERS[name]
    text = file.read_text(encoding="utf-8")
    changed = text.replace("upper != lower", "0")
    assert changed != text
    file.write_text(changed, encoding="utf-8")
    assert run(tmp_path, name, source)[2] > 0


@needs_fma
@pytest.mark.parametrize(
    ("name", "beyond"),
    [
        ("log1p", [-1.0, -2.0, 3e38]),
        ("asinh", [4096.0, -4096.0, 3e38]),
        ("acosh", [0.5, -2.0, 4096.0]),
        ("atanh", [1.0, -1.0, 2.0]),
    ],
)
def test_arguments_beyond_the_range_are_not_decided(tmp_path, name, beyond):
    single = [(x, x) for x in beyond]
    entry = f"udf_{name}f_wide"
    assert run_range(tmp_path, path_of(name), entry, f"{name}l", single, FLAGS)[1] == 0


def constants(table):
    """The entries of a table of log_quick.h at AVX-512."""
    text = (COREM.folder / "common/log_quick_constants.h").read_text(encoding="utf-8")
    body = re.search(rf"{table}\[\] = {{(.*?)}};", text.split("#else")[0], re.S)[1]
    return np.array([float.fromhex(v) for v in re.findall(r"(\S+)f,", body)])


@pytest.mark.parametrize("name", ["log", "log2", "log10"])
def test_what_the_logarithms_count_as_exact_is_exact(name):
    """r, and base less high where k is zero; elsewhere base is far larger than r."""
    header = (COREM.folder / "common/log_wide_constants.h").read_text(encoding="utf-8")
    found = re.search(rf"UDF_{name.upper()}_WIDE_C1_HI (\S+)f", header)
    factor = float.fromhex(found[1]) if found else 1.0
    offset = np.arange(2**23, dtype=np.uint32)
    text = (COREM.folder / "common/log_quick_constants.h").read_text(encoding="utf-8")
    start = int(re.search(r"LOG_QUICK_START UINT32_C\((\d+)\)", text)[1]) - 4000
    m = (offset + np.uint32(start)).view(np.float32).astype(float)
    r = m * constants("udf_log_quick_reciprocal")[offset >> 18] - 1
    assert (r.astype(np.float32) == r).all()
    base = constants(f"udf_{name}_quick_high")[offset >> 18]
    difference = base - (base + r * factor).astype(np.float32)
    assert (difference.astype(np.float32) == difference).all()
