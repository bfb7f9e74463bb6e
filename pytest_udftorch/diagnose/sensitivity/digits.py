# SPDX-License-Identifier: Apache-2.0
"""How many bits of a result are significant, from samples of it, with confidence intervals.

Parker (UCLA CSD-970002, 1997) estimates them by ``-log2(sigma / mu)``. Sohier, de Oliveira Castro,
Févotte, Lathuilière, Petit and Jamond (Confidence Intervals for Stochastic Arithmetic, ACM Trans.
Math. Softw. 47(2), 2021) say what that means under a centered normal distribution of the error
(their CNH): the first ``s`` bits of a sample are significant with probability ``p`` for

    s = -log2(sigma / mu) - log2(F((p + 1) / 2)),

where ``F`` is the quantile of the normal distribution. The interval of ``s`` comes from that of the
standard deviation of ``n`` samples, which has a chi-squared distribution with ``n - 1`` degrees of
freedom.
"""

from __future__ import annotations

import functools
import math
from dataclasses import asdict, dataclass
from statistics import NormalDist
from typing import Any, Final

from pytest_udftorch.base.result import Result

#: The probability with which the bits of one run are significant.
PROBABILITY: Final = 0.99

#: The confidence of the intervals.
CONFIDENCE: Final = 0.95

#: Elements of a tensor that are watched, evenly spaced.
WATCHED: Final = 4096


@dataclass(frozen=True, repr=False)
class Bits(Result):
    """How many bits of a tensor are significant, relative to its norm.

    Attributes:
        bits: the estimate; at most the precision of the tensor's type.
        low: the lower end of the interval.
        high: the upper end.
        typical: of the single elements, relative to their own size, the median.
        lost: the share of elements that are not zero and have no significant bit.
        exact: whether all runs gave the same.
        infinite: the share of elements that were infinite or no number in a part of the runs.
    """

    bits: float
    low: float
    high: float
    typical: float
    lost: float = 0.0
    exact: bool = False
    infinite: float = 0.0

    def text(self) -> str:
        """Return ``12.3 (11.9 to 12.8)``."""
        if self.exact:
            return "exact"
        return f"{self.bits:.1f} ({self.low:.1f} to {self.high:.1f})"

    def document(self) -> dict[str, Any]:
        """Return it as plain data."""
        return asdict(self)


@functools.cache
def chi_squared(probability: float, freedom: int) -> float:
    """Return the quantile of the chi-squared distribution, by bisection."""
    import torch

    half = torch.tensor(freedom / 2, dtype=torch.float64)

    def below(x: float) -> float:
        return float(torch.special.gammainc(half, torch.tensor(x / 2, dtype=torch.float64)))

    low, high = 0.0, 2.0 * freedom
    while below(high) < probability:
        high *= 2
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if below(middle) < probability else (low, middle)
    return (low + high) / 2


def significant(
    deviation: float, precision: int, samples: int, probability: float = PROBABILITY
) -> tuple[float, float, float]:
    """Return the significant bits and their interval.

    Args:
        deviation: the standard deviation of the samples, relative to the mean.
        precision: bits that the type holds; no estimate is larger.
        samples: how many there were, at least 2.
        probability: with which the bits of one sample are significant.
    """
    if deviation == 0:
        return (float(precision),) * 3
    tail = math.log2(NormalDist().inv_cdf((probability + 1) / 2))
    freedom = samples - 1
    # The true deviation lies between these multiples of the estimate.
    wide = math.sqrt(freedom / chi_squared((1 - CONFIDENCE) / 2, freedom))
    narrow = math.sqrt(freedom / chi_squared((1 + CONFIDENCE) / 2, freedom))

    def bits(sigma: float) -> float:
        return min(float(precision), max(0.0, -math.log2(sigma) - tail))

    return bits(deviation), bits(deviation * wide), bits(deviation * narrow)


class Samples:
    """The mean and the variance of some elements of a tensor over the runs (Welford 1962)."""

    def __init__(self, like: Any) -> None:
        import torch

        self.shape = tuple(like.shape)
        self.dtype = like.dtype
        count = min(like.numel(), WATCHED)
        if like.numel() <= WATCHED:
            self._places = None
        else:
            self._places = torch.linspace(0, like.numel() - 1, count, dtype=torch.float64).long()
        self._runs = 0
        self._mean = torch.zeros(count, dtype=torch.float64)
        self._squares = torch.zeros(count, dtype=torch.float64)
        self._finite = torch.zeros(count, dtype=torch.long)

    def add(self, tensor: Any) -> None:
        """Take a run's tensor in."""
        import torch

        flat = tensor.detach().reshape(-1)
        if self._places is not None:
            flat = flat[self._places.to(flat.device)]
        # MPS and some float8 types have no float64.
        values = flat.cpu().to(torch.float32).double() if _short(flat) else flat.cpu().double()
        finite = values.isfinite()
        self._runs += 1
        self._finite += finite
        values = torch.where(finite, values, self._mean)
        apart = values - self._mean
        self._mean += apart / self._runs
        self._squares += apart * (values - self._mean)

    def fits(self, tensor: Any) -> bool:
        """Tell whether a tensor is one of the same shape and type."""
        return tuple(tensor.shape) == self.shape and tensor.dtype == self.dtype

    def moved(self) -> bool:
        """Tell whether any element changed from run to run."""
        partly = (self._finite > 0) & (self._finite < self._runs)
        return bool((self._squares > 0).any() or partly.any())

    def bits(self, probability: float = PROBABILITY) -> Bits:
        """Return how many bits are significant."""
        import torch

        precision = 1 - int(math.log2(torch.finfo(self.dtype).eps))
        partly = (self._finite > 0) & (self._finite < self._runs)
        infinite = float(partly.double().mean()) if partly.numel() else 0.0
        kept = self._finite == self._runs
        mean, variance = self._mean[kept], self._squares[kept] / max(1, self._runs - 1)
        if not mean.numel() or not bool((variance > 0).any()):
            full = float(precision)
            return Bits(full, full, full, full, 0.0, not infinite, infinite)
        size, spread = float(mean.square().mean()), float(variance.mean())
        deviation = math.sqrt(spread / size) if size else math.inf
        if math.isinf(deviation):
            return Bits(0.0, 0.0, 0.0, 0.0, 1.0, False, infinite)
        own = torch.where(variance > 0, variance.sqrt() / mean.abs(), 0.0)
        typical = significant(float(own.median()), precision, self._runs, probability)[0]
        quantile = NormalDist().inv_cdf((probability + 1) / 2)
        some = (variance > 0) | (mean != 0)
        none = float((own[some] * quantile >= 1).double().mean())
        found = significant(deviation, precision, self._runs, probability)
        return Bits(*found, typical, none, False, infinite)


def _short(tensor: Any) -> bool:
    return bool(tensor.element_size() == 1)
