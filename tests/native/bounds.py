# SPDX-License-Identifier: Apache-2.0
"""Bounds of errors by Gappa, and runs of arguments: what tests of corem's quick paths share."""

import math
import re
import shutil
import subprocess
from dataclasses import dataclass

import numpy as np
import pytest
from mpmath import mpf
from toolchain import SOURCES

from pytest_udftorch.swap.library.description import find_library
from pytest_udftorch.swap.toolchain.compiler import resolve_cpu_level

COREM = find_library("corem")
HAS_FMA = resolve_cpu_level(None) != "baseline"
#: The flags of a level's paths. The macro says which tables are used, so that any CPU with fused
#: multiply-add runs those of AVX-512, whose arithmetic is the same.
FLAGS = {"avx2": ["-march=x86-64-v3"], "avx512": ["-march=x86-64-v3", "-D__AVX512F__"]}
needs_fma = pytest.mark.skipif(not HAS_FMA, reason="no FMA")
needs_gappa = pytest.mark.skipif(shutil.which("gappa") is None, reason="needs gappa (Debian)")


@dataclass(frozen=True, eq=False)
class Interval:
    """An interval of the arguments, and its entries in the tables of a path."""

    low: float
    high: float
    entries: dict[str, float]


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


def is_exact(entry, ends):
    """Whether the difference of an entry and of all floats between two numbers is a float."""
    if entry == 0:
        return True
    least = min(abs(entry), *map(abs, ends))
    if min(ends) <= 0 <= max(ends):
        return False
    unit = float(np.spacing(np.float32(least)))
    return max(abs(entry - x) for x in ends) <= 2.0**24 * unit


def difference(entry, name, sums, ends):
    """The error of entry - name, a rounded sum, as the path computes it."""
    exact = f"{sums} - {name}"
    if is_exact(entry, ends):
        return exact
    entry = as_gappa(entry)
    return f"({exact}) + (rnd({entry} - {name}) - ({entry} - {name}))"


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


def run_path(folder, name, level, ranges, *, corem=COREM.folder, flags=()):
    """Run the quick path that a function has at a CPU level; see ``run_range``.

    ``corem`` is another folder with its sources, and ``flags`` go behind those of the level.
    """
    described = COREM.functions[name, "float32"]
    entry, source = described.own_quick(level) or (described.quick_at(level), described.source)
    source = corem / source.relative_to(COREM.folder)
    return run_range(folder, source, entry, f"{name}l", ranges, [*FLAGS[level], *flags])


def changed_corem(folder, file, old, new):
    """Copy corem's sources with one text of a file replaced, and return their folder."""
    copy = folder / "corem"
    shutil.copytree(COREM.folder, copy, ignore=shutil.ignore_patterns("*.txt", "*.json"))
    text = (copy / file).read_text(encoding="utf-8")
    assert old in text
    (copy / file).write_text(text.replace(old, new), encoding="utf-8")
    return copy


def merged(ranges):
    """Ranges without overlap."""
    found = []
    for a, b in sorted(map(tuple, ranges)):
        if found and a <= found[-1][1]:
            found[-1][1] = max(float(b), found[-1][1])
        else:
            found.append([float(a), float(b)])
    return found
