# SPDX-License-Identifier: Apache-2.0
"""Samples of a time: medians, bootstrap intervals, and verdicts that take the noise into account.

These are pure functions over integers and floats; neither torch nor NumPy is imported. A sample
is one number per run (the median of the run's rounds), because rounds of one run share the
machine's momentary state and are not independent, while runs are interleaved.

Intervals are percentile bootstrap intervals (Efron and Tibshirani, An Introduction to the
Bootstrap, 1993, chapter 13) of the median.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from pytest_udftorch.errors import MeasureError

Verdict: TypeAlias = Literal["faster", "slower", "within noise", "too few runs"]

#: All of n independent values lie on one side of the median with probability 2**(1-n). With
#: fewer than six values that is more than the 5 % that a 95 % interval allows.
FEWEST_RUNS: Final = 6

#: Resamples of a bootstrap; the 2.5 % quantile then rests on 25 of them.
RESAMPLES: Final = 1000


@dataclass(frozen=True)
class Interval:
    """A value with the bounds of its 95 % bootstrap interval, in the unit of the samples."""

    value: float
    low: float
    high: float

    def __contains__(self, x: float) -> bool:
        """Say whether ``x`` lies between the bounds."""
        return self.low <= x <= self.high


def median(values: Sequence[float]) -> float:
    """Return the median.

    Raises:
        MeasureError: no values.
    """
    if not values:
        raise MeasureError("There is nothing to take the median of. Measure at least one run.")
    return float(statistics.median(values))


def spread(values: Sequence[float]) -> float:
    """Return the median absolute deviation, scaled to one standard deviation of a normal."""
    centre = median(values)
    # 1 / Phi^-1(3/4), see Rousseeuw and Croux, JASA 88 (1993), section 1.
    return 1.4826 * median([abs(v - centre) for v in values])


def bootstrap(
    values: Sequence[float],
    statistic: Callable[[Sequence[float]], float] = median,
    *,
    seed: int = 0,
) -> Interval:
    """Return ``statistic`` of the values with its 95 % percentile bootstrap interval.

    Args:
        values: one number per run.
        statistic: what is estimated; the median by default.
        seed: of the resampling, so that a report can be drawn again from stored runs.

    Raises:
        MeasureError: no values.
    """
    point = statistic(values)
    rng = random.Random(seed)
    count = len(values)
    drawn = sorted(statistic(rng.choices(values, k=count)) for _ in range(RESAMPLES))
    cut = RESAMPLES // 40
    return Interval(point, drawn[cut], drawn[-1 - cut])


def _paired(a: Sequence[float], b: Sequence[float]) -> None:
    if len(a) != len(b):
        raise MeasureError(
            f"{len(a)} runs cannot be paired with {len(b)}: both must come from one "
            "interleaved measurement. Measure the two together."
        )


def ratio(a: Sequence[float], b: Sequence[float], *, seed: int = 0) -> Interval:
    """Return the median of a/b over paired runs, with its interval.

    Raises:
        MeasureError: the numbers of runs differ or are 0, or ``b`` contains a zero.
    """
    _paired(a, b)
    if any(y == 0 for y in b):
        raise MeasureError("A run took 0 ns: the clock is too coarse. Time more rounds at once.")
    return bootstrap([x / y for x, y in zip(a, b, strict=True)], seed=seed)


def compare(a: Sequence[float], b: Sequence[float], *, seed: int = 0) -> Verdict:
    """Say whether ``a`` is faster than ``b``, from paired runs.

    Returns:
        ``faster`` or ``slower`` when the interval of a/b excludes 1; ``within noise`` when
        it does not; ``too few runs`` below :data:`FEWEST_RUNS`.
    """
    if min(len(a), len(b)) < FEWEST_RUNS:
        _paired(a, b)
        return "too few runs"
    quotient = ratio(a, b, seed=seed)
    if 1.0 in quotient:
        return "within noise"
    return "faster" if quotient.high < 1.0 else "slower"
