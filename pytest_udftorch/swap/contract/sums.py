# SPDX-License-Identifier: Apache-2.0
"""Operators that add up, in the order of docs/reproduce/contract.md.

What maps elements is torch's own: additions, products, quotients and roots of single elements are
rounded once by IEEE 754, and functions are the session's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from pytest_udftorch.swap.contract.gpu import GPU, LONGEST
from pytest_udftorch.swap.contract.layouts import has_dimension
from pytest_udftorch.swap.contract.native import contract
from pytest_udftorch.swap.contract.outside import declined as stock
from pytest_udftorch.swap.contract.rows import dense, functions, run
from pytest_udftorch.swap.overrides.python_override import stock as elementwise


def _chosen(dims: Sequence[int] | None, rank: int) -> list[int]:
    """Return dimensions in their order, all for none; errors have torch's words and classes."""
    if not dims:
        return list(range(rank))
    room = max(rank, 1)
    for d in dims:
        if not -room <= d < room:
            raise IndexError(
                "Dimension out of range (expected to be in range of "
                f"[{-room}, {room - 1}], but got {d})"
            )
    found = sorted(d % room for d in dims)
    for one, next_one in pairwise(found):
        if one == next_one:
            raise RuntimeError(f"dim {one} appears multiple times in the list of dims")
    return found if rank else []


def over(x: Any, dims: Sequence[int] | None, keep: bool = False) -> Any:
    """Return sums over dimensions, which form one sequence in their order."""
    shape = x.shape
    rank = len(shape)
    chosen = _chosen(dims, rank)
    if chosen and chosen[-1] - chosen[0] == len(chosen) - 1:
        before, behind = shape[: chosen[0]], shape[chosen[-1] + 1 :]
        size = shape[chosen[0] : chosen[-1] + 1].numel()
        ones = (1,) * len(chosen) if keep else ()
        sizes = before.numel(), size, behind.numel()
        return contract().spans(x, sizes, (*before, *ones, *behind))
    kept = [s for d, s in enumerate(shape) if d not in chosen]
    size = math.prod(shape[d] for d in chosen)
    if chosen:
        order = [*(d for d in range(rank) if d not in chosen), *chosen]
        y = contract().sums(x.permute(order).reshape(math.prod(kept), size), 1)
    else:
        y = x.clone()
    return y.view([1 if d in chosen else s for d, s in enumerate(shape)] if keep else kept)


def root(x: Any) -> Any:
    """Return square roots, correctly rounded; torch's float32 roots are not on every CPU."""
    return contract().roots(x)


def in_range(x: Any, dims: Any) -> bool:
    """Tell whether dimensions are those of a tensor, each named once."""
    rank = max(x.dim(), 1)
    named = [dims] if isinstance(dims, int) else list(dims or ())
    return all(-rank <= d < rank for d in named) and len({d % rank for d in named}) == len(named)


def is_float32(dtype: Any) -> bool:
    """Tell whether a result is asked for in float32, or in the dtype of the input."""
    return dtype is None or str(dtype) == "torch.float32"


def sum_dims(self: Any, dim: Any, keepdim: bool = False, *, dtype: Any = None) -> Any:
    """Return sums over dimensions."""
    if not is_float32(dtype):
        return stock(self, dim, keepdim, dtype=dtype)
    return over(self, dim, keepdim)


def sum_all(self: Any, *, dtype: Any = None) -> Any:
    """Return the sum of all elements."""
    return over(self, None) if is_float32(dtype) else stock(self, dtype=dtype)


def _mean(x: Any, dims: Sequence[int] | None, keep: bool = False) -> Any:
    y = over(x, dims, keep)
    return y.div_(x.numel() / y.numel()) if y.numel() else y


def mean_dims(self: Any, dim: Any, keepdim: bool = False, *, dtype: Any = None) -> Any:
    """Return means over dimensions."""
    if not is_float32(dtype):
        return stock(self, dim, keepdim, dtype=dtype)
    return _mean(self, dim, keepdim)


def mean_all(self: Any, *, dtype: Any = None) -> Any:
    """Return the mean of all elements."""
    return _mean(self, None) if is_float32(dtype) else stock(self, dtype=dtype)


# Products and running sums ----------------------------------------------------------------


def _product(x: Any, dim: int) -> Any:
    """Multiply neighbours level by level, which is the tree of a sum; of none it is 1."""
    import torch

    x = x.movedim(dim, 0)
    if not len(x):
        return x.new_ones(x.shape[1:])
    while len(x) > 1:
        pairs = len(x) // 2
        y = x[0 : 2 * pairs : 2] * x[1 : 2 * pairs : 2]
        x = torch.cat([y, x[-1:]]) if len(x) & 1 else y
    return x[0].clone(memory_format=torch.contiguous_format)


def prod_all(self: Any, *, dtype: Any = None) -> Any:
    """Return the product of all elements."""
    return _product(self.flatten(), 0) if is_float32(dtype) else stock(self, dtype=dtype)


def prod_dim(self: Any, dim: int, keepdim: bool = False, *, dtype: Any = None) -> Any:
    """Return products over a dimension."""
    if not is_float32(dtype) or not self.dim() or not has_dimension(self, dim):
        return stock(self, dim, keepdim, dtype=dtype)
    y = _product(self, dim)
    return y.unsqueeze(dim) if keepdim else y


def cumsum(self: Any, dim: int, *, dtype: Any = None) -> Any:
    """Return for each place the sum of what stands up to there."""
    if not is_float32(dtype) or not self.numel() or not self.dim() or not has_dimension(self, dim):
        return stock(self, dim, dtype=dtype)
    return contract().prefixes(self, dim % self.dim())


# Softmax and losses -----------------------------------------------------------------------


def by_rows(name: str, operator: str, dim: int, x: Any, grad: Any = None) -> Any:
    """Return what a loop over rows makes of tensors, or None where single operators do it."""
    if not x.dim() or dim not in (-1, x.dim() - 1) or not dense(x, grad):
        return None
    if (called := functions(operator)) is None or (grad is not None and grad.shape != x.shape):
        return None
    y, n = x.new_empty(x.shape), x.shape[-1]
    run(contract(), name, x.numel() // n, n, called=called, x=x, grad=grad, y=y)
    return y


def _held_on_gpu(dim: int, *tensors: Any) -> bool:
    """Tell whether programs of a GPU hold the rows of tensors, along the last dimension."""
    x = tensors[0]
    return bool(
        x.is_cuda
        and x.dim()
        and dim in (-1, x.dim() - 1)
        and x.shape[-1] <= LONGEST
        and all(t.shape == x.shape and str(t.dtype) == "torch.float32" for t in tensors)
    )


def _along(x: Any, dim: int, half_to_float: bool) -> bool:
    """Tell whether there are elements along a dimension; the CPU does not widen half."""
    return bool(x.numel() and has_dimension(x, dim) and (x.is_cuda or not half_to_float))


def softmax(self: Any, dim: int, half_to_float: bool) -> Any:
    """Return exponentials over their sums."""
    if not _along(self, dim, half_to_float):
        return stock(self, dim, half_to_float)
    if (y := by_rows("softmax", "_softmax", dim, self)) is not None:
        return y
    if _held_on_gpu(dim, self):
        e = GPU.row_parts("less", self.contiguous()).exp_()
        return GPU.row_parts("over", e, out=e)
    e = (self.contiguous() - self.amax(dim, keepdim=True)).exp_()
    return e.div_(over(e, [dim], keep=True))


def log_softmax(self: Any, dim: int, half_to_float: bool) -> Any:
    """Return logarithms of softmax."""
    if not _along(self, dim, half_to_float):
        return stock(self, dim, half_to_float)
    if (y := by_rows("log_softmax", "_log_softmax", dim, self)) is not None:
        return y
    if _held_on_gpu(dim, self):
        z = GPU.row_parts("less", self.contiguous())
    else:
        z = self.contiguous() - self.amax(dim, keepdim=True)
    return z.sub_(over(z.exp(), [dim], keep=True).log_())


def logsumexp(self: Any, dim: Any, keepdim: bool = False) -> Any:
    """Return the logarithm of a sum of exponentials, less the largest argument."""
    if not self.numel():
        return stock(self, dim, keepdim)
    largest = self.amax(dim, keepdim=True)
    largest.masked_fill_(largest.isinf(), 0.0)
    y = over((self - largest).exp_(), dim, keep=True).log_().add_(largest)
    return y if keepdim else y.squeeze(tuple(dim) or tuple(range(y.dim())))


def softmax_backward(grad_output: Any, output: Any, dim: int, input_dtype: Any) -> Any:
    """Return the gradient of softmax."""
    if not _along(output, dim, False) or grad_output.shape != output.shape:
        return stock(grad_output, output, dim, input_dtype)
    name = "softmax_backward"
    if (y := by_rows(name, "_softmax_backward_data", dim, output, grad_output)) is not None:
        return y
    if _held_on_gpu(dim, output, grad_output):
        return GPU.row_parts("gradient", output.contiguous(), grad_output.contiguous())
    total = over(grad_output * output, [dim], keep=True)
    return (grad_output.contiguous() - total).mul_(output)


def log_softmax_backward(grad_output: Any, output: Any, dim: int, input_dtype: Any) -> Any:
    """Return the gradient of log_softmax."""
    if not _along(output, dim, False) or grad_output.shape != output.shape:
        return stock(grad_output, output, dim, input_dtype)
    name = "log_softmax_backward"
    if (y := by_rows(name, "_log_softmax_backward_data", dim, output, grad_output)) is not None:
        return y
    total = over(grad_output, [dim], keep=True)
    return grad_output.contiguous() - output.exp().mul_(total)


def nll_loss(self: Any, target: Any, weight: Any, reduction: int, ignore_index: int) -> Any:
    """Return the negative log-likelihood, and the total weight."""
    if self.dim() not in (1, 2) or target.shape != self.shape[:-1]:
        return stock(self, target, weight, reduction, ignore_index)
    rows, labels = (self, target) if self.dim() == 2 else (self[None], target[None])
    found = _likelihood(rows, labels, weight, reduction, ignore_index)
    if found is None:
        return stock(self, target, weight, reduction, ignore_index)
    loss, total = found
    return (loss[0] if reduction == 0 and self.dim() == 1 else loss), total


def nll_loss2d(self: Any, target: Any, weight: Any, reduction: int, ignore_index: int) -> Any:
    """Return the negative log-likelihood of images: positions are further rows, in their order."""
    if self.dim() != 4 or target.shape != (self.shape[0], *self.shape[2:]):
        return stock(self, target, weight, reduction, ignore_index)
    rows = self.movedim(1, -1).reshape(-1, self.shape[1])
    found = _likelihood(rows, target.reshape(-1), weight, reduction, ignore_index)
    if found is None:
        return stock(self, target, weight, reduction, ignore_index)
    loss, total = found
    return (loss.view(target.shape) if reduction == 0 else loss), total


def _likelihood(
    rows: Any, labels: Any, weight: Any, reduction: int, ignore_index: int
) -> tuple[Any, Any] | None:
    """Return losses and the total weight, or nothing where the stock kernel has the words."""
    import torch

    if rows.dtype is not torch.float32 or labels.dtype is not torch.int64 or not rows.numel():
        return None
    if weight is not None and (weight.shape != rows.shape[1:] or weight.dtype is not rows.dtype):
        return None
    used = labels != ignore_index
    safe = torch.where(used, labels, 0)
    # On a GPU, where the answer would have to be waited for, ``gather`` asserts it.
    if not rows.is_cuda and bool(((safe < 0) | (safe >= rows.shape[1])).any()):
        return None
    share = used.to(rows.dtype) if weight is None else torch.where(used, weight[safe], 0.0)
    losses = torch.where(used, -rows.gather(1, safe[:, None])[:, 0] * share, 0.0)
    if reduction == 0:
        return losses, rows.new_zeros(())
    total = contract().sums(share, 0)
    loss = contract().sums(losses, 0)
    return (loss / total if reduction == 1 else loss), total


def mse_loss(self: Any, target: Any, reduction: int = 1) -> Any:
    """Return the squared error."""
    d = self - target
    d = d * d
    if reduction == 0:
        return d
    total = over(d, None)
    return total / d.numel() if reduction == 1 else total


def _reduced(losses: Any, reduction: int) -> Any:
    if reduction == 0:
        return losses
    return _mean(losses, None) if reduction == 1 else over(losses, None)


#: A logarithm of a probability in binary_cross_entropy is at least this; torch's choice.
_LEAST_LOG = -100.0


def binary_cross_entropy(self: Any, target: Any, weight: Any = None, reduction: int = 1) -> Any:
    """Return the cross entropy of probabilities and targets between 0 and 1."""
    if self.shape != target.shape or not bool(((self >= 0) & (self <= 1)).all()):
        return stock(self, target, weight, reduction)
    no = (-self).log1p_().clamp_(min=_LEAST_LOG).mul_(target - 1)
    losses = no.sub_(self.log().clamp_(min=_LEAST_LOG).mul_(target))
    if weight is not None:
        losses = losses * weight
    return _reduced(losses, reduction)


def binary_cross_entropy_backward(
    grad_output: Any, self: Any, target: Any, weight: Any = None, reduction: int = 1
) -> Any:
    """Return the gradient of the probabilities."""
    below = (1 - self).mul_(self).clamp_(min=1e-12)
    found = (self - target).mul_(grad_output).div_(below)
    if weight is not None:
        found = found * weight
    return found.div_(self.numel()) if reduction == 1 else found


def binary_cross_entropy_with_logits(
    self: Any, target: Any, weight: Any = None, pos_weight: Any = None, reduction: int = 1
) -> Any:
    """Return the cross entropy of logits: (1 - target) x, less a weighted logarithm of sigmoid."""
    if self.shape != target.shape:
        return stock(self, target, weight, pos_weight, reduction)
    # log(sigmoid(x)) = min(x, 0) - log1p(exp(-|x|))
    logs = self.clamp(max=0).sub_(self.abs().neg_().exp_().log1p_())
    if pos_weight is not None:
        logs = logs * ((pos_weight - 1) * target + 1)
    losses = (1 - target).mul_(self).sub_(logs)
    if weight is not None:
        losses = losses * weight
    return _reduced(losses, reduction)


def smooth_l1_loss(self: Any, target: Any, reduction: int = 1, beta: float = 1.0) -> Any:
    """Return stock's losses of elements, reduced in the order of the contract."""
    return _reduced(elementwise(self, target, 0, beta), reduction)


def smooth_l1_loss_backward_(
    grad_output: Any, self: Any, target: Any, reduction: int, beta: float, *, grad_input: Any
) -> Any:
    """Put the gradient of the input into ``grad_input``; the rounded 1/n comes first.

    Stock rounds in another order behind the last whole vector, of which each thread has one.
    """
    import torch

    difference = self - target
    share = 1.0 / difference.numel() if reduction == 1 and difference.numel() else 1.0
    whole = grad_output * share
    within = difference * share * grad_output
    if beta:
        within /= beta
    found = torch.where(difference >= beta, whole, within)
    return grad_input.resize_(found.shape).copy_(torch.where(difference <= -beta, -whole, found))


def huber_loss(self: Any, target: Any, reduction: int = 1, delta: float = 1.0) -> Any:
    """Return stock's losses of elements, reduced in the order of the contract."""
    return _reduced(elementwise(self, target, 0, delta), reduction)


# Norms --------------------------------------------------------------------------------------


def _row_weights(n: int, input: Any, *weights: Any) -> bool:
    """Tell whether loops of rows compute a layer norm: its weights are of the same kind."""
    return not input.is_cuda and all(
        w is None or (w.numel() == n and w.dtype == input.dtype) for w in weights
    )


def are_shaped(shape: tuple[int, ...], *weights: Any) -> bool:
    """Tell whether weights that are there have a shape."""
    return all(w is None or w.shape == shape for w in weights)


def layer_norm(input: Any, normalized_shape: Any, weight: Any, bias: Any, eps: float) -> Any:
    """Return the normalized rows, their means and reciprocal deviations."""
    n, shape = math.prod(normalized_shape), tuple(normalized_shape)
    if (
        not input.numel()
        or tuple(input.shape[-len(shape) :]) != shape
        or not are_shaped(shape, weight, bias)
    ):
        return stock(input, normalized_shape, weight, bias, eps)
    lead = input.shape[: input.dim() - len(normalized_shape)]
    if _row_weights(n, input, weight, bias):
        x, rows = input.contiguous(), input.numel() // n
        shape = (*lead, *(1,) * len(normalized_shape))
        y = input.new_empty(x.shape)
        mean, rstd = input.new_empty(shape), input.new_empty(shape)
        weight = None if weight is None else weight.contiguous()
        bias = None if bias is None else bias.contiguous()
        given = {"x": x, "weight": weight, "bias": bias, "mean": mean, "rstd": rstd, "y": y}
        run(contract(), "layer_norm", rows, n, eps=eps, **given)
        return y, mean, rstd
    x = input.reshape(-1, n)
    if _row_on_gpu(n, x, weight, bias):
        y, mean, rstd = GPU.layer_norm(x, weight, bias, eps)
        shape = (*lead, *(1,) * len(normalized_shape))
        return y.view(input.shape), mean.view(shape), rstd.view(shape)
    mean = contract().sums(x, 1)[:, None].div_(n)
    d = x - mean
    rstd = root(contract().sums(d * d, 1)[:, None].div_(n).add_(eps)).reciprocal_()
    y = d.mul_(rstd).view(input.shape)
    if weight is not None:
        y *= weight
    if bias is not None:
        y += bias
    shape = (*lead, *(1,) * len(normalized_shape))
    return y, mean.view(shape), rstd.view(shape)


def layer_norm_backward(
    grad_out: Any, input: Any, normalized_shape: Any, mean: Any, rstd: Any, weight: Any,
    bias: Any, output_mask: Any,
) -> Any:  # fmt: skip
    """Return the gradients of input, weight and bias that are asked for."""
    if not input.numel():
        return stock(grad_out, input, normalized_shape, mean, rstd, weight, bias, output_mask)
    n = math.prod(normalized_shape)
    if grad_out.shape == input.shape and _row_weights(n, input, weight, bias):
        return _layer_norm_gradients(n, grad_out, input, mean, rstd, weight, bias, output_mask)
    g, x = grad_out.reshape(-1, n), input.reshape(-1, n)
    if g.shape == x.shape and _row_on_gpu(n, x, g, weight, bias, mean, rstd):
        return _gradients_on_gpu(g, x, mean, rstd, weight, bias, output_mask, input.shape)
    rstd = rstd.reshape(-1, 1)
    hat = (x - mean.reshape(-1, 1)).mul_(rstd)
    found: list[Any] = [None, None, None]
    made = contract()
    if output_mask[0]:
        scaled = g if weight is None else g * weight.reshape(1, n)
        one = made.sums(scaled, 1)[:, None].div_(n)
        two = made.sums(scaled * hat, 1)[:, None].div_(n)
        found[0] = (scaled - one).sub_(hat * two).mul_(rstd).view(input.shape)
    if output_mask[1] and weight is not None:
        found[1] = made.sums(g * hat, 0).view(weight.shape)
    if output_mask[2] and bias is not None:
        found[2] = made.sums(g, 0).view(bias.shape)
    return tuple(found)


def _row_on_gpu(n: int, *tensors: Any) -> bool:
    """Tell whether dense float32 tensors are on a GPU, with rows that a program holds."""
    return n <= LONGEST and all(
        t is None or (t.is_cuda and t.is_contiguous() and str(t.dtype) == "torch.float32")
        for t in tensors
    )


def _gradients_on_gpu(
    g: Any, x: Any, mean: Any, rstd: Any, weight: Any, bias: Any, output_mask: Any, shape: Any
) -> Any:
    """Return what ``layer_norm_backward`` returns, by a kernel of rows."""
    import torch

    y = torch.empty_like(x) if output_mask[0] else None
    products = torch.empty_like(x) if output_mask[1] and weight is not None else None
    if y is not None or products is not None:
        GPU.layer_norm_backward(x, g, weight, mean, rstd, y, products)
    return (
        None if y is None else y.view(shape),
        None if products is None else GPU.sums(products, 0).view(weight.shape),
        GPU.sums(g, 0).view(bias.shape) if output_mask[2] and bias is not None else None,
    )


def _layer_norm_gradients(
    n: int, grad_out: Any, input: Any, mean: Any, rstd: Any, weight: Any, bias: Any,
    output_mask: Any,
) -> Any:  # fmt: skip
    """Return what ``layer_norm_backward`` returns, by loops of rows."""
    made, rows = contract(), input.numel() // n
    grad, x, mean, rstd = (v.contiguous() for v in (grad_out, input, mean, rstd))
    y = input.new_empty(input.shape) if output_mask[0] else None
    products = input.new_empty(rows, n) if output_mask[1] and weight is not None else None
    if y is not None or products is not None:
        weights = None if weight is None else weight.contiguous()
        given = {"x": x, "grad": grad, "weight": weights, "mean": mean, "rstd": rstd}
        run(made, "layer_norm_backward", rows, n, y=y, second=products, **given)
    of_weight = None if products is None else made.sums(products, 0).view(weight.shape)
    if not output_mask[2] or bias is None:
        return y, of_weight, None
    return y, of_weight, made.sums(grad.view(rows, n), 0).view(bias.shape)
