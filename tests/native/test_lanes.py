# SPDX-License-Identifier: Apache-2.0
"""The bodies of the functions that udf-lanes knows give the bits of the instructions."""

import subprocess

import numpy as np
import pytest
from bounds import COREM
from toolchain import LEVELS, SOURCES, missing_on_cpu

HEADERS = {
    "LANES": COREM.folder / "common" / "lanes.h",
    "DOUBLE_LANES": COREM.folder.parent / "corem-d" / "common" / "double_lanes.h",
}
MISSING = missing_on_cpu(LEVELS["avx512"])
#: In the order of lanes.c.
NAMES = ("scale", "exponent", "mantissa", "scale_double")
#: How many numbers an argument n has in lanes.c.
POWERS = 11
RANDOM = 1 << 16
#: Encodings of zero, the ends of the subnormal numbers, those of the normal ones, some others,
#: infinity and NaN; each stands for both signs.
SPECIAL = [
    0x00000000, 0x00000001, 0x00000002, 0x00400000, 0x00400001, 0x007FFFFF, 0x00800000, 0x00800001,
    0x3F000000, 0x3F7FFFFF, 0x3F800000, 0x3F800001, 0x3FFFFFFF, 0x40000000, 0x7F000000, 0x7F7FFFFF,
    0x7F800000, 0x7F800001, 0x7FC00000,
]  # fmt: skip
#: The header of a body, what the body has, and what is wrong in its place.
CHANGES = {
    "scale": ("LANES", "(int)__builtin_floorf(n)", "(int)n"),
    "exponent": ("LANES", "{ return __builtin_logbf(x); }", "{ return __builtin_ilogbf(x); }"),
    "mantissa": ("LANES", "if (!(x >= 0))", "if (x < -0x1p-126f)"),
    "scale_double": ("DOUBLE_LANES", "(int)__builtin_floor(n)", "(int)n"),
}
pytestmark = pytest.mark.skipif(bool(MISSING), reason=MISSING or "AVX-512")


def encodings():
    """Special numbers of both signs, random subnormal ones, and random encodings."""
    rng = np.random.default_rng(0)
    special = np.array(SPECIAL, np.uint32)
    subnormal = rng.integers(0, 1 << 23, 1 << 10, dtype=np.uint32)
    positive = np.concatenate([special, subnormal])
    every = rng.integers(0, 1 << 32, RANDOM, dtype=np.uint32)
    return np.concatenate([positive, positive | np.uint32(1 << 31), every])


def run(folder, headers=HEADERS):
    """Return what lanes.c counts for each function: compared results, and different ones."""
    program = folder / "lanes"
    command = ["clang-19", "-O2", "-march=x86-64-v4", "-ffp-contract=off"]
    command += [f'-D{name}="{path}"' for name, path in headers.items()]
    command += ["-o", program, SOURCES / "lanes.c", "-lm"]
    subprocess.run(command, check=True)
    given = encodings().tobytes()
    printed = subprocess.run([program], input=given, capture_output=True, check=True).stdout
    counts = [tuple(map(int, line.split())) for line in printed.decode().splitlines()]
    return dict(zip(NAMES, counts, strict=True))


def test_the_bodies_give_the_bits_of_the_instructions(tmp_path):
    found = run(tmp_path)
    assert {name: wrong for name, (_, wrong) in found.items()} == dict.fromkeys(NAMES, 0)
    every = encodings()
    finite = np.isfinite(every.view(np.float32))
    zeros = np.count_nonzero(every.view(np.float32) == 0)
    # Zero times 2^infinity is NaN.
    assert found["scale"][0] == POWERS * np.count_nonzero(finite) - zeros
    assert found["exponent"][0] == found["mantissa"][0] == every.size
    # Half of an encoding is that of the one before.
    words = np.append(np.uint32(0), every)
    doubles = np.stack([words[:-1], words[1:]], 1).copy().view(np.float64)
    zeros = np.count_nonzero(doubles == 0)
    assert found["scale_double"][0] == POWERS * np.count_nonzero(np.isfinite(doubles)) - zeros


@pytest.mark.parametrize("name", NAMES)
def test_a_body_that_is_changed_is_seen(tmp_path, name):
    header, old, new = CHANGES[name]
    text = HEADERS[header].read_text(encoding="utf-8")
    assert old in text
    changed = tmp_path / "changed.h"
    changed.write_text(text.replace(old, new), encoding="utf-8")
    found = run(tmp_path, {**HEADERS, header: changed})
    assert [other for other, (_, wrong) in found.items() if wrong] == [name]
