# SPDX-License-Identifier: Apache-2.0
"""corem's quick paths for AVX2 and AVX-512 alone, on ranges where a step of theirs changes."""

from dataclasses import dataclass

import pytest
from bounds import COREM, changed_corem, needs_fma, run_path
from parameters import mostly_slow


@dataclass(frozen=True)
class Ranged:
    """A path and what is run of it.

    Attributes:
        ranges: of arguments: around ends of intervals and of the path, and where low parts count.
        decided: the share of the arguments that the path decides at least.
        file: where the rounding test stands; None for the file of the path.
        test: what the rounding test is there.
    """

    name: str
    level: str
    ranges: list[tuple[float, float]]
    decided: float = 0.98
    file: str | None = None
    test: str = "upper != lower"

    @property
    def place(self):
        """The file of the rounding test, from corem's folder."""
        _, source = COREM.functions[self.name, "float32"].own_quick(self.level)
        return self.file or source.relative_to(COREM.folder)


INVERSE = [(0.5425, 0.5435), (0.9999, 1.0), (2.0**-12, 1.001 * 2.0**-12)]
LOGARITHM = [
    (0.707, 0.708), (0.95, 0.951), (1.0, 1.001), (1.414, 1.415), (2.0**120, 1.001 * 2.0**120),
]  # fmt: skip
HYPERBOLIC = [(0.0433, 0.0434), (0.001, 0.00101), (-1.001, -1.0), (5.0, 5.001), (80.0, 80.01)]
AVX2 = {
    "asin": ([*INVERSE, (-0.5435, -0.5425)], "common/asin_eight.h"),
    "acos": ([*INVERSE, (-1.0, -0.9999)], "common/asin_eight.h"),
    **dict.fromkeys(("log", "log2", "log10"), (LOGARITHM, "common/log_eight.h")),
    "log1p": (
        [(-0.293, -0.292), (0.001, 0.00101), (0.414, 0.415), (1e9, 1.001e9)],
        "common/log_eight.h",
    ),
    "asinh": (
        [(0.124, 0.125), (0.001, 0.00101), (1.0, 1.001), (-20.01, -20.0), (4090.0, 4095.0)],
        None,
    ),
    "acosh": ([(1.0001, 1.001), (1.5, 1.501), (20.0, 20.01), (4090.0, 4095.0)], None),
    **dict.fromkeys(("expm1", "sinh", "cosh"), (HYPERBOLIC, None)),
}
#: By tables of eight.
EIGHT = {
    "erfc": [
        (-3.9, -3.85), (-0.34, -0.325), (2.0**-7, 1.05 * 2.0**-7), (0.325, 0.35), (1.0, 1.03),
        (2.6, 2.61), (7.6, 7.605),
    ],
    "atan": [
        (2.0**-12, 1.001 * 2.0**-12), (0.0666, 0.0673), (0.2, 0.201), (0.2499, 0.2501),
        (0.4999, 0.5001), (0.9999, 1.0001), (1.999, 2.001), (3.999, 4.001), (-14.95, -14.9),
        (14.5, 15.5), (5e7, 7e7),
    ],
}  # fmt: skip

WIDE_LOGARITHM = [
    (0.7, 0.7005), (0.98, 0.9803), (0.993, 0.994), (0.9999, 1.0001), (1.0078, 1.008), (1.2, 1.2001),
    (2.0**127, 1.001 * 2.0**127), (2.0**-124, 1.001 * 2.0**-124), (2.0**-130, 1.001 * 2.0**-130),
    (1.97, 1.9701), (2.0, 2.001),
]  # fmt: skip
WIDE_EXPONENTIAL = [
    (0.0108, 0.0109), (-1e-4, -0.99e-4), (0.9999, 1.0001), (-20.001, -20.0), (54.99, 55.0),
    (-87.3, -87.29), (88.66, 88.67),
]  # fmt: skip
ROOT = [(0.4999, 0.5001), (0.9999, 1.0), (2.0**-12, 1.001 * 2.0**-12), (-0.5001, -0.4999)]
AVX512 = {
    "log1p": (
        [(-0.293, -0.292), (0.001, 0.00101), (0.0087, 0.0093), (0.38, 0.381), (1e9, 1.001e9)],
        "log1p",
    ),
    "asinh": (
        [(0.0465, 0.0475), (0.001, 0.00101), (1.0, 1.001), (-20.01, -20.0), (4090.0, 4095.0)],
        "asinh",
    ),
    "acosh": ([(1.001, 1.002), (1.5, 1.501), (20.0, 20.01), (4090.0, 4095.0)], "asinh"),
    "atanh": ([(0.0465, 0.0475), (0.001, 0.00101), (-0.751, -0.75), (0.9999, 0.99999)], "log1p"),
    **dict.fromkeys(("log", "log2", "log10"), (WIDE_LOGARITHM, "log")),
    **dict.fromkeys(("exp", "exp2"), (WIDE_EXPONENTIAL, "exp")),
    "atan": (
        [(0.0322, 0.0324), (0.9999, 1.0001), (30.9, 31.0), (2.0**-10, 1.001 * 2.0**-10)],
        "rows",
    ),
    **dict.fromkeys(("asin", "acos"), (ROOT, "rows")),
}
#: Where intervals meet, where sums begin to lose bits, and at the end.
WIDE_HYPERBOLIC = [(0.0108, 0.0109), *HYPERBOLIC[1:]]
#: Where steps meet, at multiples of pi/4, and at the end.
STEPS = [
    (0.0488, 0.0495), (0.78, 0.7854), (-1.5709, -1.57), (3.1415, 3.1417), (19.9, 20.0),
    (0.001, 0.00101), (1000.0, 1003.0), (1607.0, 1608.0),
]  # fmt: skip
#: These leave more arguments of such ranges to the fast path.
HARDER = {
    "expm1": ([*WIDE_HYPERBOLIC, (-0.358, -0.357), (15.9999, 16.0001), (-17.51, -17.49)], "expm1"),
    **dict.fromkeys(("sinh", "cosh"), ([*WIDE_HYPERBOLIC, (0.682, 0.683)], "expm1")),
}
TANH = [
    (0.001, 0.00101), (0.0390, 0.0391), (0.3515, 0.3516), (-1.3516, -1.3515), (3.351, 3.352),
    (9.0, 9.1),
]  # fmt: skip
#: Around 0, where the difference to the center is the argument, and around ends of intervals; the
#: rounding of the terms from r^3 on counts most near 0.46.
ERFC = [
    (-3.9, -3.84), (-1.35, -1.31), (-0.47, -0.455), (-0.1585, -0.1555), (2.0**-7, 1.05 * 2.0**-7),
    (0.155, 0.16), (0.47, 0.49), (2.29, 2.295), (7.6, 7.65), (9.1, 9.14),
]  # fmt: skip
DIFFERENCE = "udf_f32_bits(upper - lower)"
TRIG = "common/trig_wide.h"
PATHS = [
    *(Ranged(name, "avx2", ranges, file=file) for name, (ranges, file) in AVX2.items()),
    *(Ranged(name, "avx2", ranges, 0.99) for name, ranges in EIGHT.items()),
    *(Ranged(n, "avx512", r, file=f"common/{h}_wide.h") for n, (r, h) in AVX512.items()),
    *(Ranged(n, "avx512", r, 0.95, f"common/{h}_wide.h") for n, (r, h) in HARDER.items()),
    Ranged("tanh", "avx512", TANH, 0.95, "common/odd_quick.h"),
    Ranged("erfc", "avx512", ERFC, 0.998, test="!(upper == lower)"),
    *(
        Ranged(name, "avx512", [*STEPS, more], 0.95, TRIG, DIFFERENCE)
        for name, more in (("sin", (-3.95, -3.92)), ("cos", (-3.95, -3.92)), ("tan", (8.68, 8.69)))
    ),
]
#: Of the controls, which compile a library each, those in the default run.
SEEN = ("exp", "log", "sin", "erfc")


def name_of(path):
    return f"{path.name}-{path.level}"


every_path = pytest.mark.parametrize("path", PATHS, ids=name_of)


@needs_fma
@every_path
def test_a_path_is_right_where_a_step_changes(tmp_path, path):
    assert COREM.functions[path.name, "float32"].own_quick(path.level) is not None
    every, decided, wrong = run_path(tmp_path, path.name, path.level, path.ranges)
    assert wrong == 0
    assert path.decided * every < decided


@needs_fma
@pytest.mark.parametrize(
    "path",
    mostly_slow(PATHS, [path for path in PATHS if path.name in SEEN]),
    ids=name_of,
)
def test_a_path_without_a_rounding_test_is_seen(tmp_path, path):
    corem = changed_corem(tmp_path, path.place, path.test, "0")
    assert run_path(tmp_path, path.name, path.level, path.ranges, corem=corem)[2] > 0


@needs_fma
@pytest.mark.parametrize(
    ("name", "beyond"),
    [
        ("log", [0.0, -0.0, -1e-40, -1.0, -3e38]),
        ("log2", [0.0, -0.0, -1e-40, -1.0, -3e38]),
        ("log10", [0.0, -0.0, -1e-40, -1.0, -3e38]),
        ("log1p", [-1.0, -2.0, 3e38]),
        ("asinh", [4096.0, -4096.0, 3e38]),
        ("acosh", [0.5, -2.0, 4096.0]),
        ("atanh", [1.0, -1.0, 2.0]),
    ],
)
def test_arguments_beyond_the_range_are_not_decided(tmp_path, name, beyond):
    assert run_path(tmp_path, name, "avx512", [(x, x) for x in beyond])[1] == 0


def test_every_path_of_one_argument_is_run():
    """erf has tests of its own."""
    found = {(p.name, p.level) for p in PATHS} | {("erf", "avx2")}
    wanted = {
        (name, level)
        for name, _ in COREM.functions
        for level in ("avx2", "avx512")
        if name not in ("atan2", "hypot", "pow")
        and COREM.functions[name, "float32"].own_quick(level)
    }
    assert wanted == found
