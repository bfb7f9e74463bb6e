# SPDX-License-Identifier: Apache-2.0
"""Numbers, counts, times and shares as text."""

from __future__ import annotations

import math
from typing import Final


def value_text(value: float | None) -> str:
    """Return a value of a function with four digits; a dash for None."""
    if value is None:
        return "-"
    text = f"{value:.4g}".replace("e-0", "e-").replace("e+0", "e").replace("e+", "e")
    return text.replace("nan", "NaN")


def tests_text(count: int) -> str:
    """Return a number of tests, in the singular for one."""
    return f"{count} test" if count == 1 else f"{count} tests"


def time_text(time_ns: float) -> str:
    """Return a time with three digits and its unit."""
    for unit, size in (("s", 1e9), ("ms", 1e6), ("µs", 1e3)):
        if time_ns >= 0.9995 * size:
            scaled = time_ns / size
            return f"{scaled:,.0f} {unit}" if scaled >= 999.5 else f"{scaled:.3g} {unit}"
    return f"{time_ns:.3g} ns"


def share_text(part: float, whole: float) -> str:
    """Return a share in percent; a dash where there is no whole."""
    if whole <= 0:
        return "-"
    percent = 100 * part / whole
    return f"{percent:.1f} %" if percent >= 0.05 or not part else "< 0.1 %"


_SUPERSCRIPTS: Final = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def power_text(exponent: float) -> str:
    """Return 2 to a rounded exponent as text."""
    return "2" + str(math.floor(exponent + 0.5)).translate(_SUPERSCRIPTS)


def typeset(text: str) -> str:
    """Return a number with the signs of print: a true minus, and ∞."""
    return text.replace("-", "−").replace("inf", "∞")
