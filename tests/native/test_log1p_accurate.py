# SPDX-License-Identifier: Apache-2.0
"""The accurate path of the float64 log1p: what 128 bits decide, and how exactly."""

import re
import subprocess

import mpmath
import numpy as np
import pytest
from bounds import COREM
from mpmath import mpf
from toolchain import SOURCES

FOLDER = COREM.folder.parent / "corem-d"
SOURCE = FOLDER / "log1p" / "log1p.c"
#: Bits below the last place of a double, in a significand of 128.
DROPPED = 75


def arguments(count):
    """Beside 0, of all sizes, beside -1, and up to the largest that the path takes."""
    rng = np.random.default_rng(4)
    sizes = np.exp2(rng.uniform(-54, -1, count)) * rng.choice([-1, 1], count)
    return np.concatenate([
        rng.uniform(-0.03, 0.03, count), sizes, rng.uniform(-1, 10, count),
        -1 + np.exp2(rng.uniform(-53, -1, count)), np.exp2(rng.uniform(0, 200, count)),
    ])  # fmt: skip


def run(folder, x, source=SOURCE):
    """For each argument: the result of 128 bits, its distance, and the result of 512 bits."""
    program = folder / "log1p"
    command = ["clang-19", "-O2", "-ffp-contract=off", f'-DLOG1P="{source}"']
    command += [f"-I{COREM.folder}", f"-I{FOLDER / 'log1p'}"]
    subprocess.run([*command, "-o", program, SOURCES / "log1p_accurate.c"], check=True)
    given = "\n".join(map(float.hex, x.tolist()))
    printed = subprocess.run([program], input=given, capture_output=True, text=True, check=True)
    rows = [line.split() for line in printed.stdout.splitlines()]
    assert len(rows) == x.size
    return [(float.fromhex(a), int(b, 16), float.fromhex(c)) for a, b, c in rows]


def true_distance(x):
    """Of log1p(x) from the middle of two doubles, in units of 2^-127 of its significand."""
    y = abs(mpmath.log1p(mpf(x)))
    significand = mpmath.ldexp(y, 127 - int(mpmath.floor(mpmath.log(y, 2))))
    return abs(mpmath.fmod(significand, 2**DROPPED) - 2 ** (DROPPED - 1))


def short_error():
    """What the path allows for."""
    text = SOURCE.read_text(encoding="utf-8")
    return 1 << int(re.search(r"LOG1P_SHORT_ERROR \(\(udf_u128\)1 << (\d+)\)", text)[1])


def test_128_bits_give_what_512_do(tmp_path):
    x = arguments(2000)
    assert [
        a for a, (short, _, long) in zip(x, run(tmp_path, x), strict=True) if short != long
    ] == []


def test_128_bits_have_no_more_error_than_is_allowed_for(tmp_path):
    mpmath.mp.prec = 400
    x = arguments(300)
    found = run(tmp_path, x)
    errors = [abs(d - true_distance(a)) for a, (_, d, _) in zip(x, found, strict=True)]
    assert max(errors) < short_error()
    near_zero = [e for a, e in zip(x, errors, strict=True) if abs(a) < 2**-6]
    assert max(near_zero) < 2**4
    # The error is not idle.
    assert max(errors) > short_error() / 2**6


def test_what_128_bits_do_not_decide_is_left_to_512(tmp_path):
    [hardest] = np.array([0x3CD8000000000003], np.uint64).view(np.float64)
    ((_, distance, _),) = run(tmp_path, np.array([hardest]))
    assert distance <= short_error()
    mpmath.mp.prec = 400
    assert true_distance(hardest) < 1


@pytest.mark.parametrize(
    ("old", "new"),
    [(">> 3;", ">> 4;"), ("udf_log1p_fixed(x, 128)", "udf_log1p_fixed(x, 127)")],
)
def test_a_wrong_unit_is_seen(tmp_path, old, new):
    text = SOURCE.read_text(encoding="utf-8")
    assert old in text
    text = text.replace(old, new).replace('"../', f'"{FOLDER}/')
    changed = tmp_path / "log1p.c"
    changed.write_text(text, encoding="utf-8")
    x = arguments(100)
    assert any(short != long for short, _, long in run(tmp_path, x, changed))
