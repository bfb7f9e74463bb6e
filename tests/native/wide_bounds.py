# SPDX-License-Identifier: Apache-2.0
"""What the proofs of the paths at AVX-512 share: the constants of headers, and intervals."""

import re
from functools import cache

import numpy as np
from mpmath import iv, mpf

from pytest_udftorch.library.description import find_library

COREM = find_library("corem")
UNIT = 2.0**-24
NUMBER = r"-?0x[\d.a-f]+p[+-]?\d+|-?\d+\.\d+(?:p[+-]?\d+)?|-?\d+"


def as_float(text):
    return float.fromhex(text) if "0x" in text else float(text)


@cache
def source(path):
    """The text of a file of corem."""
    return (COREM.folder / path).read_text(encoding="utf-8")


def part(path, before):
    """The text of a file, or its part before some other text."""
    text = source(path)
    return text.partition(before)[0] if before else text


def macros(path, before=None):
    """The macros of a file that are numbers; of the part before some text if that is given."""
    found = re.findall(
        rf"#define (\w+) (?:UINT32_C\()?(0x[\da-f]+(?=\))|{NUMBER})f?\)?$",
        part(path, before),
        re.M,
    )
    return {name: as_float(value) for name, value in found}


def tables(path, before=None):
    """The tables of floats of a file, or of its part before some text."""
    text = part(path, before)
    return {
        name: [as_float(v) for v in re.findall(rf"({NUMBER})f,", body)]
        for name, body in re.findall(r"float (\w+)\[\] = \{(.*?)\};", text, re.S)
    }


def single(x):
    """The nearest float, as a double."""
    return float(np.float32(x))


def encoding(x):
    return int(np.float32(x).view(np.uint32))


def value(bits):
    return float(np.uint32(bits).view(np.float32))


def hull(values):
    """The interval of some numbers."""
    values = list(values)
    return iv.mpf([min(values), max(values)])


def low(x):
    return mpf(x.a)


def high(x):
    return mpf(x.b)


def merged(ranges):
    """Ranges without overlap."""
    found = []
    for a, b in sorted(map(tuple, ranges)):
        if found and a <= found[-1][1]:
            found[-1][1] = max(float(b), found[-1][1])
        else:
            found.append([float(a), float(b)])
    return found
