# SPDX-License-Identifier: Apache-2.0
"""The constants of corem's quick paths, as their bounds need them: read from C, never typed."""

import re
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
from bounds import COREM
from mpmath import iv, mpf

NUMBER = r"-?(?:0x[\da-f]+(?:\.[\da-f]*)?p[+-]?\d+|\d+(?:\.\d*)?)"
#: Half a unit in the last place of float, relative.
UNIT = 2.0**-24


@dataclass(frozen=True)
class Constants:
    """The macros and the tables of some files."""

    macros: dict[str, float]
    tables: dict[str, list[float]]

    def without(self, prefix):
        """The macros and the tables whose names begin with a prefix, without it."""

        def cut(values, start):
            return {n.removeprefix(start): v for n, v in values.items() if n.startswith(start)}

        return cut(self.macros, prefix.upper()), cut(self.tables, prefix.lower())

    def perturbed(self, name, factor):
        """The same with one macro, or the first entry that is not zero of a table, multiplied."""
        if name in self.macros:
            return replace(self, macros=self.macros | {name: self.macros[name] * factor})
        values = list(self.tables[name])
        at = next(i for i, v in enumerate(values) if v)
        values[at] *= factor
        return replace(self, tables=self.tables | {name: values})


def single(x):
    """The nearest float, as a double."""
    return float(np.float32(float(x)))


def encoding(x):
    return int(np.float32(x).view(np.uint32))


def value(bits):
    """The float of an encoding."""
    return float(np.uint32(bits).view(np.float32))


def hull(values):
    """The interval of some numbers."""
    values = list(values)
    return iv.mpf([min(values), max(values)])


def low(x):
    return mpf(x.a)


def high(x):
    return mpf(x.b)


@cache
def source(path):
    """The text of a file of corem."""
    return (COREM.folder / path).read_text(encoding="utf-8")


def number(text):
    """A literal of C; one that ends in f is rounded to float."""
    if "0x" in text:
        return float.fromhex(text.removesuffix("f"))
    value = float(text.removesuffix("f"))
    return single(value) if text.endswith("f") else value


def read(*paths, wide=False):
    """The constants of files of corem; wide says which branch of __AVX512F__ counts.

    Their names lack UDF_ or udf_.
    """
    macros, tables = {}, {}
    for path in paths:
        text = re.sub(
            r"#ifdef __AVX512F__\n(.*?)#else\n(.*?)#endif\n",
            lambda m: m[1] if wide else m[2],
            source(path),
            flags=re.S,
        )
        found = re.findall(rf"^#define (?:UDF_)?(\w+) (?:UINT32_C\()?({NUMBER}f?)\)?$", text, re.M)
        macros |= {name: number(value) for name, value in found}
        found = re.findall(r"float udf_(\w+)\[\] = \{(.*?)\};", text, re.S)
        tables |= {
            name: [number(v) for v in re.findall(rf"({NUMBER}f),", body)] for name, body in found
        }
    return Constants(macros, tables)


def unscaled(found):
    """The macros and tables of the paths of log_wide.h, as if r were not times its SCALE."""
    scale, macros, tables = found.macros["LOG_WIDE_SCALE"], dict(found.macros), dict(found.tables)
    for name in macros:
        if power := re.fullmatch(r"LOG(?:2|10)?_WIDE_C(\d)(?:_\w+)?", name):
            macros[name] *= scale ** int(power[1])
    tables["log_wide_reciprocal"] = [c / scale for c in tables["log_wide_reciprocal"]]
    return macros, tables


def mantissas(interval):
    """The least and the largest mantissa of one of the 32 intervals of log_wide.h."""
    return 1 + interval / 32, 1 + (interval + 1) / 32 - 2.0**-23


def half_unit(x):
    """What rounding a number of at most this size to float changes at most."""
    return mpf(float(np.spacing(np.float32(abs(float(x)) * (1 + 2.0**-20))))) / 2


def series_bound(coefficients, rest, r, parts=4):
    """The largest size of a polynomial between two numbers, plus a rest.

    Parts of the interval are bounded by the value at the middle and the sizes of what the other
    coefficients around it add. The precision of mpmath leaves 2^-100 of the largest term.
    """
    low, high = map(mpf, r)
    half = (high - low) / (2 * parts)
    worst = mpf(0)
    for i in range(parts):
        middle = low + (2 * i + 1) * half
        shifted = list(map(mpf, coefficients))
        for n in range(len(shifted) - 1):
            for m in range(len(shifted) - 2, n - 1, -1):
                shifted[m] += middle * shifted[m + 1]
        found = mpf(0)
        for c in reversed(shifted):
            found = found * half + abs(c)
        worst = max(worst, found)
    size = max(abs(low), abs(high))
    terms = max(abs(mpf(c)) * size**n for n, c in enumerate(coefficients))
    return worst + rest + terms * mpf(2) ** -100
