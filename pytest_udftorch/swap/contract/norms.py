# SPDX-License-Identifier: Apache-2.0
"""Variances, norms and normalizations, whose sums are those of docs/reproduce/contract.md."""

from __future__ import annotations

import math
from typing import Any, Final

from pytest_udftorch.swap.contract.gpu import GPU
from pytest_udftorch.swap.contract.layouts import suggested
from pytest_udftorch.swap.contract.native import contract
from pytest_udftorch.swap.contract.outside import declined as stock
from pytest_udftorch.swap.contract.rows import dense, run
from pytest_udftorch.swap.contract.sums import in_range, is_float32, over, root

# Variances --------------------------------------------------------------------------------


def _correction(given: Any) -> float:
    return 1 if given is None else given


def _defined(x: Any, dim: Any, correction: Any) -> bool:
    """Tell whether a variance has degrees of freedom; stock has the errors and the warning."""
    if not x.numel() or not in_range(x, dim):
        return False
    named = [dim] if isinstance(dim, int) else list(dim or range(x.dim()))
    count = math.prod(x.shape[d] for d in named if x.dim())
    return bool(count > _correction(correction))


def _spread(x: Any, dim: Any, correction: Any, keepdim: bool) -> tuple[Any, Any]:
    """Return variances and means: a mean, differences, and the sum of their squares."""
    mean = over(x, dim, keep=True)
    count = x.numel() / mean.numel()
    mean = mean.div_(count)
    d = x - mean
    free = max(0.0, count - _correction(correction))
    var = over(d * d, dim, keepdim).div_(free)
    return var, mean if keepdim else mean.view(var.shape)


def var(self: Any, dim: Any = None, *, correction: Any = None, keepdim: bool = False) -> Any:
    """Return variances."""
    if not _defined(self, dim, correction):
        return stock(self, dim, correction=correction, keepdim=keepdim)
    return _spread(self, dim, correction, keepdim)[0]


def std(self: Any, dim: Any = None, *, correction: Any = None, keepdim: bool = False) -> Any:
    """Return roots of variances."""
    if not _defined(self, dim, correction):
        return stock(self, dim, correction=correction, keepdim=keepdim)
    return root(_spread(self, dim, correction, keepdim)[0])


def var_mean(self: Any, dim: Any = None, *, correction: Any = None, keepdim: bool = False) -> Any:
    """Return variances and means."""
    if not _defined(self, dim, correction):
        return stock(self, dim, correction=correction, keepdim=keepdim)
    return _spread(self, dim, correction, keepdim)


def std_mean(self: Any, dim: Any = None, *, correction: Any = None, keepdim: bool = False) -> Any:
    """Return roots of variances, and means."""
    if not _defined(self, dim, correction):
        return stock(self, dim, correction=correction, keepdim=keepdim)
    found, mean = _spread(self, dim, correction, keepdim)
    return root(found), mean


def vector_norm(
    self: Any, ord: Any = 2, dim: Any = None, keepdim: bool = False, *, dtype: Any = None
) -> Any:
    """Return the root of a sum of squares, or a sum of magnitudes; stock has the other norms."""
    if ord not in (1, 2) or not is_float32(dtype) or not self.numel() or not in_range(self, dim):
        return stock(self, ord, dim, keepdim, dtype=dtype)
    if ord == 1:
        return over(self.abs(), dim, keepdim)
    return root(over(self * self, dim, keepdim))


def _others(x: Any, dim: int) -> list[int]:
    return [d for d in range(x.dim()) if d != dim % x.dim()]


def weight_norm(v: Any, g: Any, dim: int = 0) -> Any:
    """Return a weight whose slices have the norms ``g``, and the norms of those of ``v``."""
    norms = root(over(v * v, _others(v, dim), keep=True)).view(g.shape)
    return v * (g / norms), norms


def weight_norm_backward(
    grad_w: Any, saved_v: Any, saved_g: Any, saved_norms: Any, dim: int
) -> Any:
    """Return the gradients of the slices and of their norms, by torch's formula."""
    total = over(grad_w * saved_v, _others(saved_v, dim), keep=True).view(saved_g.shape)
    less = saved_v * (total / (saved_norms * saved_norms))
    return saved_g / saved_norms * (grad_w - less), total / saved_norms


# Batch norm -------------------------------------------------------------------------------

#: Loops over channels take inputs with as many positions, or more.
_POSITIONS: Final = 8


def _per_channel(x: Any) -> Any:
    """Return a sum for each channel: over positions, then over samples."""
    made = contract()
    sums = made.sums(x.flatten(2), 2) if x.dim() > 2 else x
    return made.sums(sums, 0)


def _channels(v: Any, like: Any) -> Any:
    return v.view(1, -1, *(1,) * (like.dim() - 2))


def fit(input: Any, *channels: Any) -> bool:
    """Tell whether there are elements, and one number for each channel in what is given."""
    return bool(
        input.dim() >= 2
        and input.numel()
        and all(v is None or v.shape == input.shape[1:2] for v in channels)
    )


def given(*tensors: Any) -> bool:
    """Tell whether tensors are there."""
    return all(t is not None for t in tensors)


def _in_loops(input: Any, *channels: Any) -> bool:
    """Tell whether loops over channels compute a batch norm: positions lie side by side."""
    return bool(
        dense(input)
        and input.shape[2:].numel() >= _POSITIONS
        and all(v is None or v.dtype == input.dtype for v in channels)
    )


def _like(y: Any, input: Any) -> Any:
    """Lay a result out as the stock kernel for the CPU does; that for GPUs keeps the strides."""
    return y if input.is_cuda else y.contiguous(memory_format=suggested(input))


def _normalized(input: Any, weight: Any, bias: Any, eps: float) -> tuple[Any, ...]:
    """Return normalized channels, their means, reciprocal deviations and sums of squares."""
    import torch

    samples, channels = input.shape[:2]
    y, found = torch.empty_like(input), torch.empty(3, channels, dtype=torch.float32)
    weight, bias = (v if v is None else v.contiguous() for v in (weight, bias))
    given = {"x": input, "weight": weight, "bias": bias, "y": y}
    given |= {"mean": found[0], "rstd": found[1], "second": found[2]}
    n = input.shape[2:].numel()
    run(contract(), "batch_norm", samples * channels, n, channels=channels, eps=eps, **given)
    return y, *found


def _normalized_gradients(
    grad: Any, input: Any, weight: Any, mean: Any, rstd: Any, wanted: bool
) -> tuple[Any, Any, Any]:
    """Return the gradients of input, weight and bias in training."""
    import torch

    samples, channels = input.shape[:2]
    y, found = (
        torch.empty_like(input) if wanted else None,
        torch.empty(2, channels, dtype=torch.float32),
    )
    given = {"x": input, "grad": grad.contiguous(), "mean": mean.contiguous(), "y": y}
    given |= {"weight": weight if weight is None else weight.contiguous(), "second": found}
    n = input.shape[2:].numel()
    given["rstd"] = rstd.contiguous()
    run(contract(), "batch_norm_backward", samples * channels, n, channels=channels, **given)
    return y, *found


def _on_gpu(input: Any, *others: Any) -> bool:
    """Tell whether dense float32 tensors are on a GPU, whose kernels take whole norms."""
    return bool(
        input.is_cuda
        and all(
            v is None or (v.is_contiguous() and str(v.dtype) == "torch.float32")
            for v in (input, *others)
        )
    )


def batch_norm(
    input: Any, weight: Any, bias: Any, running_mean: Any, running_var: Any, training: bool,
    momentum: float, eps: float,
) -> Any:  # fmt: skip
    """Return normalized channels, and in training their means and reciprocal deviations."""
    statistics = (running_mean, running_var)
    if not fit(input, weight, bias, *statistics) or not (training or given(*statistics)):
        return stock(input, weight, bias, running_mean, running_var, training, momentum, eps)
    if training and _on_gpu(input, weight, bias, *statistics):
        return GPU.batch_norm(input, weight, bias, statistics, momentum, eps)
    count = input.numel() // input.shape[1]
    looped = training and _in_loops(input, weight, bias)
    if training:
        if looped:
            y, mean, rstd, squares = _normalized(input, weight, bias, eps)
        else:
            mean = _per_channel(input).div_(count)
            d = input - _channels(mean, input)
            squares = _per_channel(d * d)
            rstd = root(squares.div(count).add_(eps)).reciprocal_()
        keep = 1 - momentum
        if running_mean is not None:
            running_mean.copy_((running_mean * keep).add_(mean * momentum))
        if running_var is not None:
            unbiased = squares.div(count - 1)
            running_var.copy_((running_var * keep).add_(unbiased * momentum))
        saved = mean, rstd
    else:
        d = input - _channels(running_mean, input)
        rstd = root(running_var + eps).reciprocal_()
        saved = input.new_empty(0), input.new_empty(0)
    if looped:
        return y, *saved
    y = d.mul_(_channels(rstd, input))
    if weight is not None:
        y *= _channels(weight, input)
    if bias is not None:
        y += _channels(bias, input)
    return _like(y, input), *saved


def batch_norm_alone(
    input: Any, weight: Any, bias: Any, training: bool, momentum: float, eps: float
) -> Any:
    """Return normalized channels, and their statistics, of a norm that keeps none."""
    if not fit(input, weight, bias) or not training:
        return stock(input, weight, bias, training, momentum, eps)
    return batch_norm(input, weight, bias, None, None, training, momentum, eps)


def batch_norm_in_evaluation(
    input: Any, weight: Any, bias: Any, running_mean: Any, running_var: Any, momentum: float,
    eps: float,
) -> Any:  # fmt: skip
    """Return normalized channels: the form of the operator that compilers call."""
    if not fit(input, weight, bias, running_mean, running_var):
        return stock(input, weight, bias, running_mean, running_var, momentum, eps)
    return batch_norm(input, weight, bias, running_mean, running_var, False, momentum, eps)


def batch_norm_backward(  # noqa: PLR0913 - torch's signature
    grad_out: Any, input: Any, weight: Any, running_mean: Any, running_var: Any, save_mean: Any,
    save_invstd: Any, train: bool, eps: float, output_mask: Any,
) -> Any:  # fmt: skip
    """Return the gradients of input, weight and bias that are asked for."""
    import torch

    mean = save_mean if train else running_mean
    if not fit(input, weight, mean) or not given(mean) or grad_out.shape != input.shape:
        return stock(
            grad_out, input, weight, running_mean, running_var, save_mean, save_invstd, train,
            eps, output_mask,
        )  # fmt: skip
    if train and given(save_invstd) and _in_loops(input, weight):
        of_input, *of_weights = _normalized_gradients(
            grad_out, input, weight, mean, save_invstd, output_mask[0]
        )
        return of_input, *(
            v if o else None for v, o in zip(of_weights, output_mask[1:], strict=True)
        )
    if train and given(save_invstd) and _on_gpu(input, grad_out, weight, mean, save_invstd):
        found, products, sums = GPU.batch_norm_backward(
            input, grad_out, weight, mean, save_invstd, wanted=output_mask[0]
        )
        return found, products if output_mask[1] else None, sums if output_mask[2] else None
    count = input.numel() // input.shape[1]
    rstd = save_invstd if train else root(running_var + eps).reciprocal_()
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
        found = torch.mul(found, _channels(scale, input), out=torch.empty_like(input))
        found = _like(found, input)
    return found, products if output_mask[1] else None, sums if output_mask[2] else None


# Group norm -------------------------------------------------------------------------------


def _in_groups(input: Any, N: int, C: int, HxW: int, group: int) -> bool:
    """Tell whether sizes are those of an input with groups of channels."""
    return bool(
        input.shape[:2] == (N, C)
        and input.shape[2:].numel() == HxW
        and group > 0
        and C % group == 0
    )


def _laid_out(dense: Any, input: Any) -> Any:
    """Lay a result out as the stock kernel does, which has contiguous ones on GPUs."""
    return dense if input.is_cuda else _like(dense, input)


def group_norm(
    input: Any, weight: Any, bias: Any, N: int, C: int, HxW: int, group: int, eps: float
) -> Any:
    """Return normalized groups, their means and reciprocal deviations."""
    if not _in_groups(input, N, C, HxW, group) or not fit(input, weight, bias):
        return stock(input, weight, bias, N, C, HxW, group, eps)
    x = input.reshape(N * group, -1)
    made, count = contract(), x.shape[1]
    mean = made.sums(x, 1)[:, None].div_(count)
    d = x - mean
    rstd = root(made.sums(d * d, 1)[:, None].div_(count).add_(eps)).reciprocal_()
    y = _laid_out(d.mul_(rstd).view(input.shape), input)
    if weight is not None:
        y *= _channels(weight, input)
    if bias is not None:
        y += _channels(bias, input)
    return y, mean.view(N, group), rstd.view(N, group)


def group_norm_backward(  # noqa: PLR0913 - torch's signature
    grad_out: Any, input: Any, mean: Any, rstd: Any, weight: Any, N: int, C: int, HxW: int,
    group: int, output_mask: Any,
) -> Any:  # fmt: skip
    """Return the gradients of input, weight and bias that are asked for."""
    groups = _in_groups(input, N, C, HxW, group) and grad_out.shape == input.shape
    if not groups or not fit(input, weight):
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
        found[0] = _laid_out((scaled - one).sub_(hat * two).mul_(rstd).view(input.shape), input)
    each = grad_out.reshape(N, C, -1)
    if output_mask[1]:
        found[1] = _per_channel(each * hat.view(N, C, -1))
    if output_mask[2]:
        found[2] = _per_channel(each)
    return tuple(found)
