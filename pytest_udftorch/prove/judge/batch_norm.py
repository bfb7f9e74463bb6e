# SPDX-License-Identifier: Apache-2.0
"""How far rounding may bring the outputs of a batch norm from their true values.

A channel has ``n`` numbers ``x`` of true mean ``m`` and variance ``V``. Kernels add them up in any
order and may fold the channel into ``x alpha + beta``. All bounds are of first order in ``u`` but
for the root, where a small variance makes errors large. ``g = 6 sqrt(n + 2) u`` bounds the relative
error of a sum in any order, with probability 1 - 2 exp(-18) if rounding errors are independent
(Higham and Mary, SIAM J. Sci. Comput. 41(5), 2019, theorem 3.1).

* The mean is a sum that may cancel, so its error counts against magnitudes, not against ``m``:
  ``dm = g mean(|x|) + u |m|``.
* Welford's updates have the condition number ``kappa = sqrt(1 + m^2 / V)``, and two passes are
  better but for the square of the mean's error (Chan, Golub and LeVeque, The American Statistician
  37(3), 1983): ``dV = (g + 4 u) V kappa + dm^2``. ``mean(x^2) - m^2``, which has ``kappa^2``, is
  not granted.
* ``r = (V + eps)^-1/2`` lies between the values for ``V - dV`` and ``V + dV``, with three
  roundings: the sum, the root and the quotient.
* ``y = (x - m) r w + b`` gets these errors and its own roundings, of which those of the folded form
  are the larger: ``3 u (|x r w| + |m r w| + |b|)``, and those of ``r w``.
* Running statistics are ``(1 - t) old + t new``, with ``V n / (n - 1)`` for the variance.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final

from pytest_udftorch.base import compat

#: Operators whose outputs are: result, mean, reciprocal root, running mean, running variance.
BATCH_NORMS: Final = frozenset({"_native_batch_norm_legit", "native_batch_norm"})

#: Standard deviations of the random walk (Higham and Mary's lambda).
_LAMBDA: Final = 6.0


@dataclass(frozen=True)
class _Channel:
    """Statistics of each channel, and how far rounding may bring them."""

    mean: Any
    mean_error: Any
    variance: Any
    variance_error: Any
    scale: Any
    scale_error: Any


def batch_norm_bound(operator: Any, args: Any, kwargs: Any, index: int, unit: float) -> Any:
    """Return the bound of each element of an output, without its own last rounding.

    Args:
        operator: one of ``BATCH_NORMS``.
        args: its arguments in float64.
        kwargs: likewise.
        index: which of its outputs.
        unit: unit roundoff of the numbers that it computes with.

    Returns:
        None if it has no such output.
    """
    schema = compat.overload_schema(operator).arguments
    given = dict(zip((argument.name for argument in schema), args, strict=False)) | kwargs
    x = given["input"]
    old_mean, old_variance = given.get("running_mean"), given.get("running_var")
    n = x.numel() // max(1, x.shape[1])
    found = _channels(given, x, n, unit)
    if index == 0:
        return _of_result(given, x, found, unit)
    if not given["training"]:
        # Kernels save nothing for the backward pass, or what they like.
        return None
    if index == 1:
        return found.mean_error
    if index == 2:
        return found.scale_error
    if old_mean is None or index > 4:
        return None
    share = given["momentum"]
    # A batch of one number per channel is refused by torch.
    larger = n / max(1, n - 1)
    old, new, error = (
        (old_mean, found.mean, found.mean_error)
        if index == 3
        else (old_variance, found.variance * larger, found.variance_error * larger)
    )
    return share * error + 4 * unit * ((1 - share) * old.abs() + share * new.abs())


def _channels(given: dict[str, Any], x: Any, n: int, unit: float) -> _Channel:
    import torch

    if given["training"]:
        dims = [d for d in range(x.dim()) if d != 1]
        mean = x.mean(dims)
        variance = x.var(dims, correction=0)
        walk = _LAMBDA * math.sqrt(n + 2) * unit
        mean_error = walk * x.abs().mean(dims) + unit * mean.abs()
        welford = (variance * (variance + mean.square())).sqrt()
        variance_error = (walk + 4 * unit) * welford + mean_error.square()
    else:
        mean, variance = given["running_mean"], given["running_var"]
        mean_error = variance_error = torch.zeros_like(mean)
    scale = (variance + given["eps"]).rsqrt()
    # The computed variance is no less than 0, whatever its error.
    least = (variance - variance_error).clamp_min(0) + given["eps"]
    scale_error = least.rsqrt() - scale + 3 * unit * least.rsqrt()
    return _Channel(mean, mean_error, variance, variance_error, scale, scale_error)


def _of_result(given: dict[str, Any], x: Any, of: _Channel, unit: float) -> Any:
    import torch

    along = (1, -1, *[1] * (x.dim() - 2))

    def channel(value: Any, default: float) -> Any:
        return torch.full((1,), default).double() if value is None else value.view(along)

    mean, mean_error, scale, scale_error = (
        value.view(along) for value in (of.mean, of.mean_error, of.scale, of.scale_error)
    )
    weight, bias = channel(given["weight"], 1.0).abs(), channel(given["bias"], 0.0).abs()
    centred, widest = (x - mean).abs() + mean_error, scale + scale_error
    statistics = weight * (centred * (scale_error + unit * widest) + mean_error * scale)
    folded = 3 * unit * ((x.abs() + mean.abs()) * widest * weight + bias)
    return statistics + folded
