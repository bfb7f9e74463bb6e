# SPDX-License-Identifier: Apache-2.0
"""Operators that multiply matrices, in the order of docs/contract.md."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pytest_udftorch.contract.native import contract
from pytest_udftorch.contract.outside import declined as stock
from pytest_udftorch.contract.windows import Geometry, convolve, weight_gradient

#: More elements than this of partial gradients are not held at once.
_ROOM = 1 << 24


def _fit(a: Any, b: Any, rank: int = 2) -> bool:
    """Tell whether matrices can be multiplied; the stock kernel has the words where not."""
    return bool(a.dim() == b.dim() == rank and a.shape[-1] == b.shape[-2])


def mm(self: Any, mat2: Any) -> Any:
    """Return the product of two matrices."""
    if not _fit(self, mat2):
        return stock(self, mat2)
    return contract().mm(self, mat2)


def addmm(self: Any, mat1: Any, mat2: Any, *, beta: Any = 1, alpha: Any = 1) -> Any:
    """Return beta * self + alpha * product; factors of 1 are left out, one of 0 leaves self out."""
    if not _fit(mat1, mat2):
        return stock(self, mat1, mat2, beta=beta, alpha=alpha)
    product = contract().mm(mat1, mat2)
    if alpha != 1:
        product *= alpha
    if beta == 0:
        return product
    return product.add_(self if beta == 1 else self * beta)


def batch_product(self: Any, mat2: Any) -> Any:
    """Return the product of each two matrices of two batches, which fit."""
    return contract().products(self, mat2)


def bmm(self: Any, mat2: Any) -> Any:
    """Return the product of each two matrices of two batches."""
    if not _fit(self, mat2, 3) or self.shape[0] != mat2.shape[0]:
        return stock(self, mat2)
    return batch_product(self, mat2)


def baddbmm(self: Any, batch1: Any, batch2: Any, *, beta: Any = 1, alpha: Any = 1) -> Any:
    """Return beta * self + alpha * product of each two matrices, as ``addmm`` does."""
    if not _fit(batch1, batch2, 3) or batch1.shape[0] != batch2.shape[0]:
        return stock(self, batch1, batch2, beta=beta, alpha=alpha)
    product = batch_product(batch1, batch2)
    if alpha != 1:
        product *= alpha
    if beta == 0:
        return product
    return product.add_(self if beta == 1 else self * beta)


def dot(self: Any, tensor: Any) -> Any:
    """Return the product of two vectors."""
    if self.dim() != 1 or self.shape != tensor.shape:
        return stock(self, tensor)
    return contract().mm(self[None], tensor[:, None]).reshape(())


def mv(self: Any, vec: Any) -> Any:
    """Return the product of a matrix and a vector."""
    if self.dim() != 2 or self.shape[1:] != vec.shape:
        return stock(self, vec)
    return contract().mm(self, vec[:, None])[:, 0]


def addmv(self: Any, mat: Any, vec: Any, *, beta: Any = 1, alpha: Any = 1) -> Any:
    """Return beta * self + alpha * product of a matrix and a vector, as ``addmm`` does."""
    if mat.dim() != 2 or mat.shape[1:] != vec.shape or self.dim() > 1:
        return stock(self, mat, vec, beta=beta, alpha=alpha)
    product = contract().mm(mat, vec[:, None])[:, 0]
    if alpha != 1:
        product *= alpha
    if beta == 0:
        return product
    return product.add_(self if beta == 1 else self * beta)


# Convolution ---------------------------------------------------------------------------


def _columns(
    x: Any, kernel: Sequence[int], stride: Sequence[int], dilation: Sequence[int]
) -> tuple[Any, list[int]]:
    """Return the windows of a padded input, and how many there are in each direction.

    The windows are contiguous, as (batch, channels, taps, positions).
    """
    out = [
        (size - d * (k - 1) - 1) // s + 1
        for size, k, s, d in zip(x.shape[2:], kernel, stride, dilation, strict=True)
    ]
    steps = x.stride()[2:]
    view = x.as_strided(
        (*x.shape[:2], *kernel, *out),
        (
            *x.stride()[:2], *(a * d for a, d in zip(steps, dilation, strict=True)),
            *(a * s for a, s in zip(steps, stride, strict=True)),
        ),
        x.storage_offset(),
    )  # fmt: skip
    return view.reshape(*x.shape[:2], -1, _count(out)), out


def _count(sizes: Sequence[int]) -> int:
    count = 1
    for size in sizes:
        count *= size
    return count


def _padded(x: Any, before: Sequence[int], after: Sequence[int]) -> Any:
    import torch

    if not any(before) and not any(after):
        return x.contiguous()
    pairs = [p for one in zip(reversed(before), reversed(after), strict=True) for p in one]
    return torch.nn.functional.pad(x, pairs).contiguous()


def _correlate(
    x: Any, weight: Any, stride: Any, padding: Any, dilation: Any, groups: int, bias: Any = None
) -> Any:
    """Return the convolution of an input."""
    if x.is_cuda:
        y = _correlate_padded(_padded(x, padding, padding), weight, stride, dilation, groups)
        return y if bias is None else y.add_(bias.view(-1, *(1,) * (y.dim() - 2)))
    how = _geometry(x, weight.shape[2:], stride, padding, dilation)
    return convolve(contract(), x, weight.unflatten(0, (groups, -1)), bias, how)


def _geometry(
    x: Any, taps: Sequence[int], stride: Any, padding: Sequence[int], dilation: Any
) -> Geometry:
    room = tuple(size + 2 * p for size, p in zip(x.shape[2:], padding, strict=True))
    ones = (1,) * len(taps)
    return Geometry(tuple(padding), room, tuple(taps), tuple(stride), tuple(dilation), ones)


def _correlate_padded(x: Any, weight: Any, stride: Any, dilation: Any, groups: int) -> Any:
    """Return the convolution of a padded input on a GPU."""
    import torch

    columns, out = _columns(x, weight.shape[2:], stride, dilation)
    batch, made = x.shape[0], contract()
    parts = []
    for w, c in zip(weight.chunk(groups), columns.chunk(groups, 1), strict=True):
        rows = w.reshape(1, w.shape[0], -1).expand(batch, -1, -1)
        parts.append(made.products(rows, c.flatten(1, 2)))
    y = parts[0] if groups == 1 else torch.cat(parts, 1)
    return y.view(batch, weight.shape[0], *out)


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
    transposed: bool, output_padding: Any, groups: int,
) -> Any:  # fmt: skip
    """Convolve; a result is a product over channels of its group and taps, then the bias."""
    given = (input, weight, bias, stride, padding, dilation)
    if transposed:
        size = _transposed_size(*given, output_padding, groups)
        if not size:
            return stock(*given, transposed, output_padding, groups)
        y = _input_gradient(input, size, weight, stride, padding, dilation, groups)
        if bias is not None:
            y.add_(bias.view(-1, *(1,) * (y.dim() - 2)))
    elif not _takes(*given, groups):
        return stock(*given, transposed, output_padding, groups)
    else:
        y = _correlate(input, weight, stride, padding, dilation, groups, bias)
    return _laid_out(y, input, weight)


def _laid_out(y: Any, *given: Any) -> Any:
    """Put channels last if an argument has them last, as the stock kernel does."""
    import torch

    last = {4: torch.channels_last, 5: torch.channels_last_3d}.get(y.dim())
    if last is not None and any(map(_channels_last, given)):
        return y.contiguous(memory_format=last)
    return y


def _channels_last(x: Any) -> bool:
    """Tell whether strides say that channels are last; with one channel, memory alone does not.

    torch's rule (``is_channels_last_strides_2d``): from the channels on through the positions from
    right to left to the samples, no stride is below the extent of the one before.
    """
    sizes, strides = x.shape, x.stride()
    if not strides[1]:
        return False
    extent = 0
    for d in (1, *range(x.dim() - 1, 1, -1), 0):
        if not sizes[d] or strides[d] < extent or (d == 0 and extent == strides[1]):
            return False
        extent = strides[d] * max(sizes[d], 1)
    return True


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
    import torch

    kernel, dims = weight.shape[2:], range(2, weight.dim())
    spread = [(size - 1) * s + 1 for size, s in zip(grad.shape[2:], stride, strict=True)]
    before = [d * (k - 1) - p for d, k, p in zip(dilation, kernel, padding, strict=True)]
    if not grad.is_cuda:
        room = (size + d * (k - 1) for size, d, k in zip(shape, dilation, kernel, strict=True))
        steps = (1,) * len(kernel), tuple(dilation), tuple(stride)
        how = Geometry(tuple(before), tuple(room), tuple(kernel), *steps)
        rows = weight.unflatten(0, (groups, -1)).transpose(1, 2)
        return convolve(contract(), grad, rows, None, how, turned=True)
    wide = grad
    if max(stride) > 1:
        wide = grad.new_zeros(*grad.shape[:2], *spread)
        holes: Any = (..., *(slice(None, None, s) for s in stride))
        wide[holes] = grad
    after = [
        size + d * (k - 1) - b - have
        for size, d, k, b, have in zip(shape, dilation, kernel, before, spread, strict=True)
    ]
    turned = [w.transpose(0, 1) for w in weight.flip(tuple(dims)).chunk(groups)]
    flipped = turned[0] if groups == 1 else torch.cat(turned)
    padded = _padded(wide, before, after)
    return _correlate_padded(padded, flipped, [1] * len(kernel), dilation, groups)


def _weight_gradient(
    grad: Any, input: Any, weight: Any, stride: Any, padding: Any, dilation: Any, groups: int
) -> Any:
    """Return a product over positions for each sample, and their sum by the tree."""
    if not input.is_cuda:
        how = _geometry(input, weight.shape[2:], stride, padding, dilation)
        return weight_gradient(contract(), input, grad, how, groups)
    batch = input.shape[0]
    if batch * weight.numel() > _ROOM and batch > 1:
        half = 1 << (batch - 1).bit_length() - 1
        given = (weight, stride, padding, dilation, groups)
        first = _weight_gradient(grad[:half], input[:half], *given)
        return first.add_(_weight_gradient(grad[half:], input[half:], *given))
    columns, _ = _columns(_padded(input, padding, padding), weight.shape[2:], stride, dilation)
    made = contract()
    windows = columns.reshape(batch, groups, -1, columns.shape[3])
    flat = grad.reshape(batch, groups, grad.shape[1] // groups, -1)
    if groups == 1:
        each = made.products(flat[:, 0], windows[:, 0].mT)
    else:
        each = made.products(flat.flatten(0, 1), windows.flatten(0, 1).mT)
    return made.sums(each.view(batch, *weight.shape), 0)


def convolution_backward(
    grad_output: Any, input: Any, weight: Any, bias_sizes: Any, stride: Any, padding: Any,
    dilation: Any, transposed: bool, output_padding: Any, groups: int, output_mask: Any,
) -> Any:  # fmt: skip
    """Return the gradients of input, weight and bias that are asked for."""
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
    return tuple(g if g is None else _laid_out(g, input, weight) for g in found)
