# SPDX-License-Identifier: Apache-2.0
"""Tables of polynomials, a row for each interval of the arguments: what their generators share.

In a row f(c + r) is value + slope r + p2 r^2 + ... around the center c of the interval. The center
is chosen so that the first numbers are floats but for errors that do not count (after S. Gal,
Accurate tables, 1986); the others fit the function at Chebyshev points by least squares, and make
up for what rounding takes away. All are multiplied by 1 + margin.
"""

from __future__ import annotations

import argparse
import itertools
import math
import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from mpmath import mp, mpf

#: Half a unit in the last place of float, relative.
UNIT = 2.0**-24
#: What a margin has above the error that is estimated, and above that.
MARGIN = 1.0625
OTHER_ROUNDINGS = 2.0**-41


def single(x: mpf | float) -> float:
    """Round to float32, given as a double."""
    return float(np.float32(float(x)))


def chebyshev(low: mpf, high: mpf, n: int) -> list[mpf]:
    """Return n points of an interval, dense at its ends."""
    middle, half = (mpf(low) + high) / 2, (mpf(high) - low) / 2
    return [middle + half * mp.cos(mp.pi * (2 * i + 1) / (2 * n)) for i in range(n)]


def fit(
    points: Sequence[mpf],
    values: Sequence[mpf],
    powers: Sequence[int],
    weights: Sequence[mpf] | None = None,
    term: Callable[[mpf, int], mpf] = operator.pow,
) -> list[mpf]:
    """Return the coefficients of these powers, or of these terms, that fit the values best."""
    matrix = mp.matrix(len(points), len(powers))
    for i, x in enumerate(points):
        for j, n in enumerate(powers):
            matrix[i, j] = term(x, n) if weights is None else weights[i] * term(x, n)
    if weights is not None:
        values = [w * v for w, v in zip(weights, values, strict=True)]
    return list(mp.lu_solve(matrix, mp.matrix(values)))


def round_in_turn(
    every: list[mpf],
    order: Iterable[int],
    free: list[int],
    points: Sequence[mpf],
    values: Sequence[mpf],
    weights: Sequence[mpf] | None = None,
    term: Callable[[mpf, int], mpf] = operator.pow,
) -> None:
    """Round coefficients to floats, and fit those that are still free again after each.

    Args:
        every: all coefficients.
        order: which are rounded.
        free: which are fitted; those that have been rounded are taken out.
        points: where they are fitted.
        values: what they are fitted to.
        weights: of the points.
        term: what a coefficient multiplies.
    """
    for n in order:
        every[n] = mpf(single(every[n]))
        free.remove(n)
        values = [v - every[n] * term(x, n) for x, v in zip(points, values, strict=True)]
        for m, v in zip(free, fit(points, values, free, weights, term), strict=True):
            every[m] = v


@dataclass(frozen=True)
class Row:
    """The entries of one interval: floats. p begins with p2.

    Attributes:
        slope_low: what the slope lacks, where a table has it.
        more: what the value lacks, where a table has it.
    """

    center: float
    value: float
    slope: float
    p: tuple[float, ...]
    slope_low: float = 0.0
    more: float = 0.0

    @classmethod
    def of(cls, center: float, every: Sequence[mpf]) -> Row:
        """Round the coefficients, the lowest first."""
        value, slope, *p = map(single, every)
        return cls(center, value, slope, tuple(p), single(every[1] - slope))

    @classmethod
    def empty(cls, degree: int) -> Row:
        """Return the row of a place that no argument has."""
        return cls(0.0, 0.0, 0.0, (0.0,) * (degree - 1))

    def exact(self, r: mpf) -> mpf:
        """Return the value of the polynomial."""
        p = sum(mpf(v) * r ** (n + 2) for n, v in enumerate(self.p))
        return self.value + self.more + r * (mpf(self.slope) + self.slope_low) + p


@dataclass(frozen=True, kw_only=True)
class Interval:
    """The arguments from low to high of a function times 1 + margin.

    Each generator adds the function, how a row follows from a center, and how large its error is.
    """

    low: float
    high: float
    margin: float = 0.0

    @property
    def middle(self) -> float:
        """Return the middle."""
        return (self.low + self.high) / 2

    @property
    def half(self) -> float:
        """Return half of the length."""
        return (self.high - self.low) / 2

    @property
    def reach(self) -> float:
        """Return below what the differences to a center are exact, on one side of zero."""
        least = min(abs(self.low), abs(self.high))
        return 2.0**24 * float(np.spacing(np.float32(least)))

    def points(self, center: float, count: int) -> list[mpf]:
        """Return points of the interval, less the center."""
        return chebyshev(mpf(self.low) - center, mpf(self.high) - center, count)

    def row(self, center: float | None = None) -> Row:
        """Return the best entries, or those for a center."""
        raise NotImplementedError

    def largest(self, row: Row) -> float:
        """Return the largest error at some points, that of the roundings included."""
        raise NotImplementedError

    def with_margin(self) -> tuple[Interval, Row]:
        """Return the interval with a margin of few bits above its error, and its entries.

        The center depends on the margin and the error on the center, so that it takes some tries.
        """
        least = MARGIN * self.largest(self.row()) + OTHER_ROUNDINGS
        step = 2.0 ** (math.floor(math.log2(least)) - 3)
        for n in itertools.count(math.ceil(0.9 * least / step)):
            found = replace(self, margin=n * step)
            row = found.row()
            if MARGIN * found.largest(row) + OTHER_ROUNDINGS <= found.margin:
                return found, row
        raise AssertionError


#: Center and margin by place.
Kept = Mapping[int, tuple[float, float]]


def entries(header: str, what: str) -> list[float]:
    """Return one table of a header that was written before."""
    [body] = re.findall(rf"_{what}\[\] = {{(.*?)}};", header, re.DOTALL)
    return [float.fromhex(v) for v in re.findall(r"(-?0x\S+)f,", body)]


def kept(header: str | None) -> Kept | None:
    """Return the centers and margins of a header that was written before."""
    if header is None:
        return None
    columns = (entries(header, "center"), entries(header, "width"))
    return {i: (c, -w / 2) for i, (c, w) in enumerate(zip(*columns, strict=True))}


def columns_of(rows: Sequence[Row], *, slope_low: bool = False) -> dict[str, list[float]]:
    """Return the tables of rows, by their names."""
    return {
        "center": [r.center for r in rows],
        "value": [r.value for r in rows],
        "slope": [r.slope for r in rows],
        **({"slope_low": [r.slope_low for r in rows]} if slope_low else {}),
        **{f"p{n + 2}": [r.p[n] for r in rows] for n in range(len(rows[0].p))},
    }


def columns(
    intervals: Mapping[int, Interval],
    size: int,
    degree: int,
    found: Kept | None,
    *,
    slope_low: bool = False,
    more: bool = False,
) -> dict[str, list[float]]:
    """Return the tables of intervals with a margin each, by their names.

    Args:
        intervals: by their places.
        size: places of a table.
        degree: of the polynomials.
        found: centers and margins that are kept, or None to look for them.
        slope_low: whether there is a table of what slopes lack.
        more: whether there is one of what values lack, the last.
    """
    rows, widths = [Row.empty(degree)] * size, [-2 * 0.0] * size
    for place, interval in intervals.items():
        if found is None:
            marked, rows[place] = interval.with_margin()
        else:
            center, margin = found[place]
            marked = replace(interval, margin=margin)
            rows[place] = marked.row(center)
        # Both margins, one of which is in all entries; negative.
        widths[place] = -2 * marked.margin
    tables = columns_of(rows, slope_low=slope_low) | {"width": widths}
    return tables | ({"low": [r.more for r in rows]} if more else {})


def table(name: str, values: Sequence[float]) -> str:
    """Return a table in C."""
    lines = [f"    {v.hex()}f," for v in values]
    return "\n".join([f"static const float {name}[] = {{", *lines, "};"])


def tables(prefix: str, named: Mapping[str, Sequence[float]]) -> list[str]:
    """Return tables in C, whose names begin so."""
    return [table(f"{prefix}_{what}", values) for what, values in named.items()]


def header(script: str, guard: str, lines: Iterable[str]) -> str:
    """Return a header with these lines."""
    first = [
        "// SPDX-License-Identifier: Apache-2.0",
        f"// Generated by {Path(script).name}; do not edit.",
        "// clang-format off",
        f"#ifndef {guard}",
        f"#define {guard}",
    ]
    return "\n".join([*first, *lines, f"#endif // {guard}"])


def command_line(
    description: str | None, functions: Iterable[str] = ()
) -> tuple[str | None, str | None]:
    """Return the function that the command line names, and the header of --keep."""
    parser = argparse.ArgumentParser(description=description)
    if functions:
        parser.add_argument("function", choices=functions)
    parser.add_argument("--keep", type=Path, help="header whose centers and margins are kept")
    options = parser.parse_args()
    text = options.keep.read_text(encoding="utf-8") if options.keep else None
    return getattr(options, "function", None), text
