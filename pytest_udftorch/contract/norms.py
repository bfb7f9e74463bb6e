# SPDX-License-Identifier: Apache-2.0
"""Variances, norms and normalizations, whose sums are those of docs/contract.md."""

from __future__ import annotations

from typing import Any

from pytest_udftorch.contract.native import contract
from pytest_udftorch.contract.sums import is_float32, over
from pytest_udftorch.overrides.python_override import stock

# Variances --------------------------------------------------------------------------------


def _spread(x: Any, dim: Any, correction: Any, keepdim: bool) -> tuple[Any, Any]:
    """Return variances and means: a mean, differences, and the sum of their squares."""
    mean = over(x, dim, keep=True)
    count = x.numel() / mean.numel()
    mean = mean.div_(count)
    d = x - mean
    free = max(0.0, count - (1 if correction is None else correction))
    var = over(d * d, dim, keepdim).div_(free)
    return var, mean if keepdim else mean.view(var.shape)


def var(self: Any, dim: Any = None, *, correction: Any = None, keepdim: bool = False) -> Any:
    """Return variances."""
    if not self.numel():
        return stock(self, dim, correction=correction, keepdim=keepdim)
    return _spread(self, dim, correction, keepdim)[0]


def std(self: Any, dim: Any = None, *, correction: Any = None, keepdim: bool = False) -> Any:
    """Return roots of variances."""
    if not self.numel():
        return stock(self, dim, correction=correction, keepdim=keepdim)
    return _spread(self, dim, correction, keepdim)[0].sqrt_()


def var_mean(self: Any, dim: Any = None, *, correction: Any = None, keepdim: bool = False) -> Any:
    """Return variances and means."""
    if not self.numel():
        return stock(self, dim, correction=correction, keepdim=keepdim)
    return _spread(self, dim, correction, keepdim)


def std_mean(self: Any, dim: Any = None, *, correction: Any = None, keepdim: bool = False) -> Any:
    """Return roots of variances, and means."""
    if not self.numel():
        return stock(self, dim, correction=correction, keepdim=keepdim)
    found, mean = _spread(self, dim, correction, keepdim)
    return found.sqrt_(), mean


def vector_norm(
    self: Any, ord: Any = 2, dim: Any = None, keepdim: bool = False, *, dtype: Any = None
) -> Any:
    """Return the root of a sum of squares, or a sum of magnitudes; stock has the other norms."""
    if ord not in (1, 2) or not is_float32(dtype) or not self.numel():
        return stock(self, ord, dim, keepdim, dtype=dtype)
    if ord == 1:
        return over(self.abs(), dim, keepdim)
    return over(self * self, dim, keepdim).sqrt_()


# Batch norm -------------------------------------------------------------------------------


def _per_channel(x: Any) -> Any:
    """Return a sum for each channel: over positions, then over samples."""
    made = contract()
    sums = made.sums(x.flatten(2), 2) if x.dim() > 2 else x
    return made.sums(sums, 0)


def _channels(v: Any, like: Any) -> Any:
    return v.view(1, -1, *(1,) * (like.dim() - 2))


def batch_norm(
    input: Any, weight: Any, bias: Any, running_mean: Any, running_var: Any, training: bool,
    momentum: float, eps: float,
) -> Any:  # fmt: skip
    """Return normalized channels, and in training their means and reciprocal deviations."""
    if input.dim() < 2 or not input.numel():
        return stock(input, weight, bias, running_mean, running_var, training, momentum, eps)
    count = input.numel() // input.shape[1]
    if training:
        mean = _per_channel(input).div_(count)
        d = input - _channels(mean, input)
        squares = _per_channel(d * d)
        rstd = squares.div(count).add_(eps).sqrt_().reciprocal_()
        keep = 1 - momentum
        if running_mean is not None:
            running_mean.copy_((running_mean * keep).add_(mean * momentum))
        if running_var is not None:
            unbiased = squares.div(count - 1)
            running_var.copy_((running_var * keep).add_(unbiased * momentum))
        saved = mean, rstd
    else:
        d = input - _channels(running_mean, input)
        rstd = (running_var + eps).sqrt_().reciprocal_()
        saved = input.new_empty(0), input.new_empty(0)
    y = d.mul_(_channels(rstd, input))
    if weight is not None:
        y *= _channels(weight, input)
    if bias is not None:
        y += _channels(bias, input)
    return y, *saved


def batch_norm_backward(  # noqa: PLR0913
    grad_out: Any, input: Any, weight: Any, running_mean: Any, running_var: Any, save_mean: Any,
    save_invstd: Any, train: bool, eps: float, output_mask: Any,
) -> Any:  # fmt: skip
    """Return the gradients of input, weight and bias that are asked for."""
    if not input.numel():
        return stock(
            grad_out, input, weight, running_mean, running_var, save_mean, save_invstd, train,
            eps, output_mask,
        )  # fmt: skip
    count = input.numel() // input.shape[1]
    mean = save_mean if train else running_mean
    rstd = save_invstd if train else (running_var + eps).sqrt_().reciprocal_()
    hat = (input - _channels(mean, input)).mul_(_channels(rstd, input))
    sums, products = _per_channel(grad_out), _per_channel(grad_out * hat)
    found = None
    if output_mask[0]:
        scale = rstd if weight is None else rstd * weight
        found = grad_out
        if train:
            found = (grad_out - _channels(sums / count, input)).sub_(
                hat * _channels(products / count, input)
            )
        found = found * _channels(scale, input)
    return found, products if output_mask[1] else None, sums if output_mask[2] else None


# Group norm -------------------------------------------------------------------------------


def group_norm(
    input: Any, weight: Any, bias: Any, N: int, C: int, HxW: int, group: int, eps: float
) -> Any:
    """Return normalized groups, their means and reciprocal deviations."""
    import torch

    if not input.numel():
        return stock(input, weight, bias, N, C, HxW, group, eps)
    x = input.reshape(N * group, -1)
    made, count = contract(), x.shape[1]
    mean = made.sums(x, 1)[:, None].div_(count)
    d = x - mean
    rstd = made.sums(d * d, 1)[:, None].div_(count).add_(eps).sqrt_().reciprocal_()
    # The layout is the stock kernel's.
    y = torch.empty_like(input).copy_(d.mul_(rstd).view(input.shape))
    if weight is not None:
        y *= _channels(weight, input)
    if bias is not None:
        y += _channels(bias, input)
    return y, mean.view(N, group), rstd.view(N, group)


def group_norm_backward(  # noqa: PLR0913
    grad_out: Any, input: Any, mean: Any, rstd: Any, weight: Any, N: int, C: int, HxW: int,
    group: int, output_mask: Any,
) -> Any:  # fmt: skip
    """Return the gradients of input, weight and bias that are asked for."""
    if not input.numel():
        return stock(grad_out, input, mean, rstd, weight, N, C, HxW, group, output_mask)
    rows = N * group
    x, rstd = input.reshape(rows, -1), rstd.reshape(rows, 1)
    hat = (x - mean.reshape(rows, 1)).mul_(rstd)
    found: list[Any] = [None, None, None]
    made = contract()
    if output_mask[0]:
        scaled = grad_out if weight is None else grad_out * _channels(weight, input)
        scaled = scaled.reshape(rows, -1)
        one = made.sums(scaled, 1)[:, None].div_(x.shape[1])
        two = made.sums(scaled * hat, 1)[:, None].div_(x.shape[1])
        found[0] = (scaled - one).sub_(hat * two).mul_(rstd).view(input.shape)
    each = grad_out.reshape(N, C, -1)
    if output_mask[1]:
        found[1] = _per_channel(each * hat.view(N, C, -1))
    if output_mask[2]:
        found[2] = _per_channel(each)
    return tuple(found)
