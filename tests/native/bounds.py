# SPDX-License-Identifier: Apache-2.0
"""Bounds of errors by Gappa, and the arguments that it leaves open: what such tests share."""

import math
import re
import shutil
import subprocess

import numpy as np
import pytest
from mpmath import mpf
from toolchain import SOURCES

needs_gappa = pytest.mark.skipif(shutil.which("gappa") is None, reason="needs gappa (Debian)")


def as_gappa(*numbers):
    """Numbers as Gappa reads them: one, or the ends of an interval."""

    def one(x):
        mantissa, exponent = math.frexp(x)
        return f"{int(mantissa * 2**53)}b{exponent - 53}"

    return ", ".join(map(one, numbers))


def gappa(text, known):
    """What Gappa prints of a script, with the names between @ signs filled in."""
    values = {n: v if isinstance(v, str) else as_gappa(v) for n, v in known.items()}
    script = re.sub(r"@(\w+)@", lambda m: values.get(m[1], m[0]), text)
    ran = subprocess.run(["gappa"], input=script, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr + script
    return ran.stderr


def ends(printed, expression):
    """The two ends that Gappa printed for an expression."""
    found = re.search(re.escape(expression) + r" in \[(\S+?)(?: \{.*?\})?, (\S+?)[ \]]", printed)
    values = (re.fullmatch(r"(-?\d+)(?:b(-?\d+))?", end) for end in found.groups())
    return [mpf(int(v[1])) * mpf(2) ** int(v[2] or 0) for v in values]


def largest(printed, expression):
    """The largest size that Gappa printed for an expression."""
    return max(map(abs, ends(printed, expression)))


def halved(r, share, halvings):
    """Yield parts of a piece with their shares of a margin, halved until those are below 1."""
    found = share(r)
    if found < 1 or not halvings:
        yield found, r
        return
    middle = (r[0] + r[1]) / 2
    for half in ((r[0], middle), (middle, r[1])):
        yield from halved(half, share, halvings - 1)


def run_range(folder, source, quick, exact, ranges, flags):
    """Return what quick_range.c counts in the ranges: all arguments, decided ones, wrong ones."""
    program = folder / "range"
    defines = [f'-DSOURCE="{source}"', f"-DQUICK={quick}", f"-DEXACT={exact}"]
    command = ["clang-19", "-O2", *flags, "-ffp-contract=off", *defines, "-o", program]
    subprocess.run([*command, SOURCES / "quick_range.c", "-lm"], check=True)
    lines = "".join(f"{low.hex()} {high.hex()}\n" for low, high in ranges)
    ran = subprocess.run([program], input=lines, capture_output=True, text=True, check=True)
    return np.loadtxt(ran.stdout.splitlines(), dtype=int, ndmin=2).sum(axis=0)
