# SPDX-License-Identifier: Apache-2.0
"""Operators that multiply matrices, in the order of docs/reproduce/contract.md."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from pytest_udftorch.base import compat
from pytest_udftorch.swap.contract import cuda_exact, cuda_windows
from pytest_udftorch.swap.contract.gpu import GPU
from pytest_udftorch.swap.contract.layouts import has_channels_last, spreads
from pytest_udftorch.swap.contract.native import contract
from pytest_udftorch.swap.contract.outside import declined as stock
from pytest_udftorch.swap.contract.windows import Geometry, convolve, weight_gradient


def _fit(a: Any, b: Any, rank: int = 2) -> bool:
    """Tell whether matrices can be multiplied; the stock kernel has the words where not."""
    return bool(a.dim() == b.dim() == rank and a.shape[-1] == b.shape[-2])


def _plus(self: Any, product: Any, beta: Any, alpha: Any) -> Any:
    """Return beta * self + alpha * product in float32, of which self may be in bfloat16.

    Factors of 1 are left out, one of 0 leaves self out.
    """
    self = self.float()
    if alpha != 1:
        product *= alpha
    if beta == 0:
        return product
    return product.add_(self if beta == 1 else self * beta)


def mm(self: Any, mat2: Any) -> Any:
    """Return the product of two matrices."""
    if not _fit(self, mat2):
        return stock(self, mat2)
    if cuda_exact.takes(self):
        return cuda_exact.mm(self, mat2)
    return contract().mm(self, mat2)


def addmm(self: Any, mat1: Any, mat2: Any, *, beta: Any = 1, alpha: Any = 1) -> Any:
    """Return beta * self + alpha * product of two matrices."""
    if not _fit(mat1, mat2) or not spreads(self.shape, (len(mat1), mat2.shape[1])):
        return stock(self, mat1, mat2, beta=beta, alpha=alpha)
    if alpha == beta == 1 and self.shape == mat2.shape[1:]:
        if cuda_exact.takes(mat1):
            return cuda_exact.mm(mat1, mat2, self.contiguous())
        if mat1.is_cuda:
            return GPU.mm(mat1, mat2, self.contiguous())
    return _plus(self, contract().mm(mat1, mat2), beta, alpha)


def bmm(self: Any, mat2: Any) -> Any:
    """Return the product of each two matrices of two batches."""
    if not _fit(self, mat2, 3) or self.shape[0] != mat2.shape[0]:
        return stock(self, mat2)
    if cuda_exact.takes(self):
        return cuda_exact.product(self, mat2)
    return contract().products(self, mat2)


def baddbmm(self: Any, batch1: Any, batch2: Any, *, beta: Any = 1, alpha: Any = 1) -> Any:
    """Return beta * self + alpha * product of each two matrices of two batches."""
    if (
        not _fit(batch1, batch2, 3)
        or batch1.shape[0] != batch2.shape[0]
        or not spreads(self.shape, (*batch1.shape[:2], batch2.shape[2]))
    ):
        return stock(self, batch1, batch2, beta=beta, alpha=alpha)
    return _plus(self, contract().products(batch1, batch2), beta, alpha)


def grouped_mm(
    self: Any, mat2: Any, offs: Any = None, bias: Any = None, out_dtype: Any = None
) -> Any:
    """Return the products of groups of rows, columns or terms, each with a matrix of its own.

    ``offs`` says where groups end. Rows of no group are zeros; stock leaves them unwritten. Half is
    widened to float32, bfloat16 is multiplied exactly, and each result is rounded once.
    """
    import torch

    plain = bias is None and out_dtype in (None, self.dtype) and self.dtype is mat2.dtype
    if not plain or not _groups_fit(self, mat2, offs):
        return stock(self, mat2, offs, bias, out_dtype)
    exact = self.dtype is torch.bfloat16
    a, b = (self, mat2) if exact else (self.float(), mat2.float())
    if offs is None:
        return _padded(self, mat2, (self.shape[0],)).copy_(contract().products(a, b))
    ends = offs.tolist()
    of_terms = a.dim() == b.dim() == 2
    out = _padded(self, mat2, (len(ends),) if of_terms else ())
    for group, (start, end) in enumerate(zip([0, *ends], ends, strict=False)):
        if start >= end:
            continue
        if of_terms:
            out[group] = contract().mm(a[:, start:end], b[start:end])
        elif a.dim() == 2:  # groups of rows
            out[start:end] = contract().mm(a[start:end], b[group])
        else:  # of columns
            out[:, start:end] = contract().mm(a[group], b[:, start:end])
    return out


def _groups_fit(a: Any, b: Any, offs: Any) -> bool:
    """Tell whether grouped products are defined; the stock kernel has the words where not."""
    if a.dim() not in (2, 3) or b.dim() not in (2, 3) or a.shape[-1] != b.shape[-2]:
        return False
    if offs is None:
        return bool(a.dim() == b.dim() == 3 and a.shape[0] == b.shape[0])
    groups = {x.shape[0] for x in (a, b) if x.dim() == 3} or {offs.numel()}
    return bool(a.dim() + b.dim() < 6 and offs.dim() == 1 and groups == {offs.numel()})


def _padded(a: Any, b: Any, groups: tuple[int, ...]) -> Any:
    """Return zeros for a product, whose rows begin at multiples of 16 bytes as stock's do."""
    each = 16 // a.element_size()
    columns = b.shape[-1]
    zeros = a.new_zeros(*groups, a.shape[-2], -(-columns // each) * each)
    return zeros[..., :columns]


def dot(self: Any, tensor: Any) -> Any:
    """Return the product of two vectors."""
    # Zeros of a derivative in forward mode have no memory.
    if self.dim() != 1 or self.shape != tensor.shape or not self.data_ptr() * tensor.data_ptr():
        return stock(self, tensor)
    return contract().mm(self[None], tensor[:, None]).reshape(())


def mv(self: Any, vec: Any) -> Any:
    """Return the product of a matrix and a vector."""
    if self.dim() != 2 or self.shape[1:] != vec.shape:
        return stock(self, vec)
    return contract().mm(self, vec[:, None])[:, 0]


def addmv(self: Any, mat: Any, vec: Any, *, beta: Any = 1, alpha: Any = 1) -> Any:
    """Return beta * self + alpha * product of a matrix and a vector."""
    if mat.dim() != 2 or mat.shape[1:] != vec.shape or not spreads(self.shape, mat.shape[:1]):
        return stock(self, mat, vec, beta=beta, alpha=alpha)
    return _plus(self, contract().mm(mat, vec[:, None])[:, 0], beta, alpha)


# Convolution ---------------------------------------------------------------------------


def laid_out(function: Callable[..., Any], first: int = 0) -> Callable[..., Any]:
    """Give a convolution, or its gradient, the layouts of stock's results.

    Args:
        function: takes the arguments of the operator.
        first: where the input stands among these, with the weight behind it.
    """

    @functools.wraps(function)
    def run(*args: Any) -> Any:
        found = function(*args)
        input, weight = args[first : first + 2]
        if not has_channels_last(input) and not has_channels_last(weight):
            return found
        layout = compat.convolution_format(input, weight, None, *args[first + 3 : first + 9])
        if not isinstance(found, tuple):
            return found.contiguous(memory_format=layout)
        return *(g if g is None else g.contiguous(memory_format=layout) for g in found[:2]), found[
            2
        ]

    return run


def _correlate(
    x: Any, weight: Any, stride: Any, padding: Any, dilation: Any, groups: int, bias: Any = None
) -> Any:
    """Return the convolution of an input."""
    how = _geometry(x, weight.shape[2:], stride, padding, dilation)
    rows = weight.unflatten(0, (groups, -1))
    if x.is_cuda:
        return cuda_windows.convolve(x, rows, bias, how)
    return convolve(contract(), x, rows, bias, how)


def _geometry(
    x: Any, taps: Sequence[int], stride: Any, padding: Sequence[int], dilation: Any
) -> Geometry:
    room = tuple(size + 2 * p for size, p in zip(x.shape[2:], padding, strict=True))
    ones = (1,) * len(taps)
    return Geometry(tuple(padding), room, tuple(taps), tuple(stride), tuple(dilation), ones)


def _for_each(words: Any, rank: int) -> Any:
    """Return a word for each direction, where one is given for all, as ``padding="valid"`` is."""
    return list(words) * rank if len(words) == 1 else words


def _described(
    input: Any, weight: Any, stride: Any, padding: Any, dilation: Any, groups: int
) -> bool:
    rank = input.dim() - 2
    return bool(
        rank >= 1
        and weight.dim() == input.dim()
        and weight.numel()
        and len(stride) == len(padding) == len(dilation) == rank
        and groups >= 1
        and weight.shape[0] % groups == 0
        and min(stride) >= 1
        and min(dilation) >= 1
        and min(padding) >= 0
    )


def _takes(
    input: Any, weight: Any, bias: Any, stride: Any, padding: Any, dilation: Any, groups: int
) -> bool:
    """Tell whether a convolution is one that stock accepts, and has results."""
    return bool(
        _described(input, weight, stride, padding, dilation, groups)
        and input.numel()
        and input.shape[1] == weight.shape[1] * groups
        and (bias is None or bias.shape == weight.shape[:1])
        and all(
            size + 2 * p >= d * (k - 1) + 1
            for size, k, p, d in zip(
                input.shape[2:], weight.shape[2:], padding, dilation, strict=True
            )
        )
    )


def convolution(
    input: Any, weight: Any, bias: Any, stride: Any, padding: Any, dilation: Any,
    transposed: bool, output_padding: Any, groups: int, *backends: bool,
) -> Any:  # fmt: skip
    """Convolve; a result is a product over channels of its group and taps, then the bias.

    The inner form of the operator, which ``torch.jit.trace`` records, has four arguments more: they
    choose among stock's backends.
    """
    stride, padding, dilation, output_padding = (
        _for_each(words, input.dim() - 2) for words in (stride, padding, dilation, output_padding)
    )
    given = (input, weight, bias, stride, padding, dilation)
    if transposed:
        size = _transposed_size(*given, output_padding, groups)
        if not size:
            return stock(*given, transposed, output_padding, groups, *backends)
        y = _input_gradient(input, size, weight, stride, padding, dilation, groups)
        if bias is not None:
            y.add_(bias.view(-1, *(1,) * (y.dim() - 2)))
    elif not _takes(*given, groups):
        return stock(*given, transposed, output_padding, groups, *backends)
    else:
        y = _correlate(input, weight, stride, padding, dilation, groups, bias)
    return y


def _transposed_size(
    input: Any, weight: Any, bias: Any, stride: Any, padding: Any, dilation: Any,
    output_padding: Any, groups: int,
) -> list[int]:  # fmt: skip
    """Return the size of a transposed convolution's result; nothing where stock has the words."""
    rank = input.dim() - 2
    if (
        not _described(input, weight, stride, padding, dilation, groups)
        or not input.numel()
        or input.shape[1] != weight.shape[0]
        or len(output_padding) != rank
        or (bias is not None and bias.shape != (weight.shape[1] * groups,))
        or not all(0 <= o < s for o, s in zip(output_padding, stride, strict=True))
    ):
        return []
    size = [
        (n - 1) * s - 2 * p + d * (k - 1) + o + 1
        for n, k, s, p, d, o in zip(
            input.shape[2:], weight.shape[2:], stride, padding, dilation, output_padding,
            strict=True,
        )
    ]  # fmt: skip
    return size if min(size) >= 1 else []


def _input_gradient(
    grad: Any, shape: Sequence[int], weight: Any, stride: Any, padding: Any, dilation: Any,
    groups: int,
) -> Any:  # fmt: skip
    """Return the gradient of an input whose positions have a shape."""
    kernel = weight.shape[2:]
    before = [d * (k - 1) - p for d, k, p in zip(dilation, kernel, padding, strict=True)]
    room = (size + d * (k - 1) for size, d, k in zip(shape, dilation, kernel, strict=True))
    steps = (1,) * len(kernel), tuple(dilation), tuple(stride)
    how = Geometry(tuple(before), tuple(room), tuple(kernel), *steps)
    rows = weight.unflatten(0, (groups, -1)).transpose(1, 2)
    if grad.is_cuda:
        return cuda_windows.convolve(grad, rows, None, how, turned=True)
    return convolve(contract(), grad, rows, None, how, turned=True)


def _weight_gradient(
    grad: Any, input: Any, weight: Any, stride: Any, padding: Any, dilation: Any, groups: int
) -> Any:
    """Return a product over positions for each sample, and their sum by the tree."""
    how = _geometry(input, weight.shape[2:], stride, padding, dilation)
    if input.is_cuda:
        return cuda_windows.weight_gradient(input, grad, how, groups)
    return weight_gradient(contract(), input, grad, how, groups)


def convolution_backward(
    grad_output: Any, input: Any, weight: Any, bias_sizes: Any, stride: Any, padding: Any,
    dilation: Any, transposed: bool, output_padding: Any, groups: int, output_mask: Any,
) -> Any:  # fmt: skip
    """Return the gradients of input, weight and bias that are asked for."""
    stride, padding, dilation, output_padding = (
        _for_each(words, input.dim() - 2) for words in (stride, padding, dilation, output_padding)
    )
    how = (stride, padding, dilation)
    made: list[int] = []
    if transposed:
        made = _transposed_size(input, weight, None, *how, output_padding, groups)
        channels = weight.shape[1] * groups
    elif _takes(input, weight, None, *how, groups):
        made = _geometry(input, weight.shape[2:], *how).result
        channels = weight.shape[0]
    if not made or grad_output.shape != (input.shape[0], channels, *made):
        return stock(
            grad_output, input, weight, bias_sizes, *how, transposed, output_padding, groups,
            output_mask,
        )  # fmt: skip
    found: list[Any] = [None, None, None]
    if output_mask[0] and transposed:
        found[0] = _correlate(grad_output, weight, stride, padding, dilation, groups)
    elif output_mask[0]:
        found[0] = _input_gradient(grad_output, input.shape[2:], weight, *how, groups)
    if output_mask[1]:
        # A transposed convolution is the gradient of one from its result to its input.
        pair = (input, grad_output) if transposed else (grad_output, input)
        found[1] = _weight_gradient(*pair, weight, *how, groups)
    if output_mask[2]:
        sums = contract().sums(grad_output.flatten(2), 2)
        found[2] = contract().sums(sums, 0)
    return tuple(found)
