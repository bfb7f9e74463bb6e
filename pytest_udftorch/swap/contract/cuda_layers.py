# SPDX-License-Identifier: Apache-2.0
"""Operators that torch has on GPUs alone, in the order of docs/reproduce/contract.md.

They compute what torch composes on the CPU of other operators.
"""

from __future__ import annotations

import functools
import math
from typing import Any, Final

from pytest_udftorch.swap.contract.attention import (
    added,
    attention,
    attention_backward,
    by_positions,
    fused,
    taken,
)
from pytest_udftorch.swap.contract.gpu import GPU
from pytest_udftorch.swap.contract.norms import batch_norm, batch_norm_backward, fit, given
from pytest_udftorch.swap.contract.outside import declined
from pytest_udftorch.swap.contract.sixteen import NAMES, sixteen
from pytest_udftorch.swap.contract.sums import over
from pytest_udftorch.swap.contract.variates import key_of
from pytest_udftorch.swap.cuda import direct
from pytest_udftorch.swap.overrides.python_override import stock
from pytest_udftorch.swap.overrides.switchboard import stock_kernel

#: Dtypes of what the operators here take.
FLOATS: Final = ("torch.float32", *NAMES)

# Dropout ----------------------------------------------------------------------------------


def native_dropout(input: Any, p: float, train: Any) -> Any:
    """Return what is kept, over the probability to keep it, and what that is."""
    import torch

    if train is False or not 0 < p < 1 or str(input.dtype) not in FLOATS:
        return stock(input, p, train)
    if input.numel() and input.is_contiguous():
        return GPU.dropped(input, key_of(None, input.device), 1 - p)
    noise = torch.empty_like(input).bernoulli_(1 - p)
    mask = noise != 0
    return input * noise.div_(1 - p), mask


def native_dropout_backward(grad_output: Any, mask: Any, scale: float) -> Any:
    """Return the gradient of what was kept, over the probability to keep it."""
    if str(grad_output.dtype) not in FLOATS or not scale > 1:
        return stock(grad_output, mask, scale)
    dense = grad_output.is_contiguous() and mask.is_contiguous()
    if dense and grad_output.numel() and grad_output.shape == mask.shape:
        return GPU.kept(grad_output, mask, 1 / scale)
    return grad_output * mask.to(grad_output.dtype).div_(1 / scale)


# Batch norm -------------------------------------------------------------------------------


def cudnn_batch_norm(
    input: Any, weight: Any, bias: Any, running_mean: Any, running_var: Any, training: bool,
    exponential_average_factor: float, epsilon: float,
) -> Any:  # fmt: skip
    """Return normalized channels, their means and reciprocal deviations, and no reserve."""
    import torch

    statistics = (running_mean, running_var)
    if not fit(input, weight, bias, *statistics) or not (training or given(*statistics)):
        return declined(
            input, weight, bias, running_mean, running_var, training, exponential_average_factor,
            epsilon,
        )  # fmt: skip
    found = sixteen(batch_norm)(
        input, weight, bias, running_mean, running_var, training, exponential_average_factor,
        epsilon,
    )  # fmt: skip
    return *found, torch.empty(0, dtype=torch.uint8, device=input.device)


def cudnn_batch_norm_backward(
    input: Any, grad_output: Any, weight: Any, running_mean: Any, running_var: Any,
    save_mean: Any, save_var: Any, epsilon: float, reserveSpace: Any,
) -> Any:  # fmt: skip
    """Return the gradients of input, weight and bias."""
    if not fit(input, weight, save_mean, save_var) or grad_output.shape != input.shape:
        return declined(
            input, grad_output, weight, running_mean, running_var, save_mean, save_var, epsilon,
            reserveSpace,
        )  # fmt: skip
    return sixteen(batch_norm_backward)(
        grad_output, input, weight, running_mean, running_var, save_mean, save_var, True, epsilon,
        [True, True, True],
    )  # fmt: skip


# Attention --------------------------------------------------------------------------------

#: What composes attention.
_COMPOSED: Final = "_scaled_dot_product_attention_math"

#: What tells the form of attention that a device has; 0 is the composition.
_CHOICE: Final = "aten::_fused_sdp_choice"


@functools.cache
def _choices() -> tuple[Any, Any]:
    """Return what chooses a form of attention on GPUs, and on CPUs: from kinds of arguments."""
    return stock_kernel(_CHOICE, "CUDA"), stock_kernel(_CHOICE, "CPU")


def attention_in_form(
    query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0,
    is_causal: bool = False, *, scale: Any = None, enable_gqa: bool = False,
) -> Any:  # fmt: skip
    """Return what values attend to, fused where a CPU fuses it, and composed where it composes.

    Torch chooses by the kernels that a GPU has: in float32 it composes what shares keys and values,
    and it fuses dropout.
    """
    import torch

    given = (query, key, value, attn_mask, dropout_p, is_causal)
    switches: Any = torch.backends.cuda
    if not switches.math_sdp_enabled():  # somebody chooses a fused form
        return stock(*given, scale=scale, enable_gqa=enable_gqa)
    here, there = (bool(c(*given, scale=scale, enable_gqa=enable_gqa)) for c in _choices())
    if here == there or (there and not _fits_fused(query, key, value, attn_mask, is_causal)):
        return stock(*given, scale=scale, enable_gqa=enable_gqa)
    if not there:
        mask = added(attn_mask, query)
        return getattr(torch.ops.aten, _COMPOSED)(
            query, key, value, mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
        )[0]
    return fused(query, key, value, attn_mask, is_causal, scale=scale)


attention_in_form.__dict__["above"] = direct.above


def _fits_fused(query: Any, key: Any, value: Any, mask: Any, is_causal: bool) -> bool:
    """Tell whether the fused forms of the contract take a call, and torch does not refuse it."""
    import torch

    return (
        not any(x.is_nested or x.dtype is not query.dtype for x in (query, key, value))
        and taken(query, key, value, 0.0, mask)
        and (mask is None or (not is_causal and mask.dtype in (torch.bool, query.dtype)))
    )


#: Memory-efficient attention has room for the sums of so many rows, or a multiple.
_ROOM: Final = 32


def efficient_attention(
    query: Any, key: Any, value: Any, attn_bias: Any, compute_log_sumexp: bool,
    dropout_p: float = 0.0, is_causal: bool = False, *, scale: Any = None,
) -> Any:  # fmt: skip
    """Return the attended values, the logarithms of the sums, and a seed that is not used."""
    import torch

    if not taken(query, key, value, dropout_p, attn_bias):
        return declined(
            query, key, value, attn_bias, compute_log_sumexp, dropout_p, is_causal, scale=scale
        )
    out, logs = sixteen(attention)(
        query, key, value, dropout_p, is_causal, attn_mask=attn_bias, scale=scale
    )
    # Stock's kernel computes positions before heads, and rounds the room of the sums up.
    if compute_log_sumexp:
        logs = torch.nn.functional.pad(logs, (0, -logs.shape[-1] % _ROOM), value=math.inf)
    else:
        logs = logs.new_empty(*logs.shape[:2], 0)
    seed = torch.zeros((), dtype=torch.int64, device=query.device)
    return by_positions(out), logs.contiguous(), seed, seed.clone()


def efficient_attention_backward(
    grad_out_: Any, query: Any, key: Any, value: Any, attn_bias: Any, out: Any, logsumexp: Any,
    philox_seed: Any, philox_offset: Any, dropout_p: float, grad_input_mask: Any,
    is_causal: bool = False, *, scale: Any = None,
) -> Any:  # fmt: skip
    """Return the gradients of query, key and value; that of a bias is the stock kernel's."""
    if not taken(query, key, value, dropout_p, attn_bias) or grad_input_mask[3]:
        return declined(
            grad_out_, query, key, value, attn_bias, out, logsumexp, philox_seed, philox_offset,
            dropout_p, grad_input_mask, is_causal, scale=scale,
        )  # fmt: skip
    found = sixteen(attention_backward)(
        grad_out_,
        query,
        key,
        value,
        out,
        logsumexp,
        dropout_p,
        is_causal,
        attn_mask=attn_bias,
        scale=scale,
    )
    return *found, None


def _laid_like(gradients: Any, *tensors: Any) -> Any:
    """Lay gradients out as stock's kernels do: like what they are of."""
    import torch

    made = []
    for gradient, of in zip(gradients, tensors, strict=True):
        found = torch.empty_like(of)
        fits = found.stride() == gradient.stride()
        made.append(gradient if fits else found.copy_(gradient))
    return tuple(made)


def _square(query: Any, key: Any, is_causal: bool) -> bool:
    """Tell whether a causal mask has one meaning: flash attention lets it end at the last key."""
    return not is_causal or query.shape[2] == key.shape[2]


def flash_attention(
    query: Any, key: Any, value: Any, dropout_p: float = 0.0, is_causal: bool = False,
    return_debug_mask: bool = False, *, scale: Any = None,
) -> Any:  # fmt: skip
    """Return what flash attention does: values, logarithms of sums, and a seed that is not used."""
    import torch

    known = taken(query, key, value, dropout_p) and _square(query, key, is_causal)
    if not known or return_debug_mask:
        return declined(query, key, value, dropout_p, is_causal, return_debug_mask, scale=scale)
    out, logs = sixteen(attention)(query, key, value, dropout_p, is_causal, scale=scale)
    seed = torch.zeros(2, dtype=torch.int64, device=query.device).view(torch.uint64)
    unused = torch.zeros((), dtype=torch.int64, device=query.device).view(torch.uint64)
    return (
        out, logs.contiguous(), None, None, query.shape[2], key.shape[2], seed, unused,
        query.new_empty(0),
    )  # fmt: skip


def flash_attention_backward(
    grad_out: Any, query: Any, key: Any, value: Any, out: Any, logsumexp: Any, cum_seq_q: Any,
    cum_seq_k: Any, max_q: Any, max_k: Any, dropout_p: float, is_causal: bool, philox_seed: Any,
    philox_offset: Any, *, scale: Any = None,
) -> Any:  # fmt: skip
    """Return the gradients of query, key and value."""
    if not taken(query, key, value, dropout_p) or not _square(query, key, is_causal):
        return declined(
            grad_out, query, key, value, out, logsumexp, cum_seq_q, cum_seq_k, max_q, max_k,
            dropout_p, is_causal, philox_seed, philox_offset, scale=scale,
        )  # fmt: skip
    found = sixteen(attention_backward)(
        grad_out, query, key, value, out, logsumexp, dropout_p, is_causal, scale=scale
    )
    return _laid_like(found, query, key, value)


def cudnn_attention(
    query: Any, key: Any, value: Any, attn_bias: Any, compute_log_sumexp: bool,
    dropout_p: float = 0.0, is_causal: bool = False, return_debug_mask: bool = False, *,
    scale: Any = None,
) -> Any:  # fmt: skip
    """Return what cuDNN's attention does: values, logarithms of sums, and no seed."""
    import torch

    if not taken(query, key, value, dropout_p, attn_bias) or return_debug_mask:
        return declined(
            query, key, value, attn_bias, compute_log_sumexp, dropout_p, is_causal,
            return_debug_mask, scale=scale,
        )  # fmt: skip
    out, logs = sixteen(attention)(
        query, key, value, dropout_p, is_causal, attn_mask=attn_bias, scale=scale
    )
    logs = logs.contiguous().unsqueeze(-1) if compute_log_sumexp else logs.new_empty(0)
    # Compiled code asks for results at multiples of 16 bytes.
    seed = torch.zeros(4, dtype=torch.int64, device=query.device)
    return out, logs, None, None, query.shape[2], key.shape[2], seed[0], seed[2], None


def cudnn_attention_backward(
    grad_out: Any, query: Any, key: Any, value: Any, out: Any, logsumexp: Any, philox_seed: Any,
    philox_offset: Any, attn_bias: Any, cum_seq_q: Any, cum_seq_k: Any, max_q: Any, max_k: Any,
    dropout_p: float, is_causal: bool, *, scale: Any = None,
) -> Any:  # fmt: skip
    """Return the gradients of query, key and value."""
    if not taken(query, key, value, dropout_p, attn_bias):
        return declined(
            grad_out, query, key, value, out, logsumexp, philox_seed, philox_offset, attn_bias,
            cum_seq_q, cum_seq_k, max_q, max_k, dropout_p, is_causal, scale=scale,
        )  # fmt: skip
    found = sixteen(attention_backward)(
        grad_out, query, key, value, out, logsumexp, dropout_p, is_causal, attn_mask=attn_bias,
        scale=scale,
    )  # fmt: skip
    return _laid_like(found, query, key, value)


# RMS norm ---------------------------------------------------------------------------------


def _has_rows(input: Any, normalized_shape: Any) -> bool:
    """Tell whether the last dimensions are those to normalize; torch has the words where not."""
    rank = len(normalized_shape)
    return bool(rank and tuple(input.shape[-rank:]) == tuple(normalized_shape) and input.numel())


def composed_rms_norm(
    input: Any, normalized_shape: Any, weight: Any = None, eps: Any = None
) -> Any:
    """Return normalized rows, with the gradient of what a CPU composes.

    Where the input goes elsewhere too, autograd adds the gradients of its three uses one by one; a
    GPU's operator would add two of them first. In 16 bits both add these two in float32.
    """
    import torch

    rank = len(normalized_shape)
    composes = torch.is_grad_enabled() and str(input.dtype) == "torch.float32"
    if not composes or not _has_rows(input, normalized_shape):
        return stock(input, normalized_shape, weight, eps)
    least = torch.finfo(torch.float32).eps if eps is None else eps
    one_over = input.pow(2).mean(list(range(-rank, 0)), keepdim=True).add_(least).rsqrt()
    y = input * one_over
    # Torch's kernel lays its result out so.
    return (y if weight is None else y * weight).type_as(input).contiguous()


def rms_norm(input: Any, normalized_shape: Any, weight: Any, eps: Any) -> Any:
    """Return the normalized rows and one over their root mean square, which is in float32."""
    import torch

    rank = len(normalized_shape)
    if not _has_rows(input, normalized_shape) or str(input.dtype) not in FLOATS:
        return declined(input, normalized_shape, weight, eps)
    x, dims = input.float().contiguous(), list(range(-rank, 0))
    least = torch.finfo(torch.float32).eps if eps is None else eps
    one_over = x.pow(2).mean(dims, keepdim=True).add_(least).rsqrt_()
    y = x * one_over
    return (y if weight is None else y.mul_(weight)).to(input.dtype), one_over


def rms_norm_backward(
    grad_out: Any, input: Any, normalized_shape: Any, rstd: Any, weight: Any, output_mask: Any
) -> Any:
    """Return the gradients of input and weight that are asked for, as autograd composes them."""
    if not input.numel() or str(input.dtype) not in FLOATS:
        return declined(grad_out, input, normalized_shape, rstd, weight, output_mask)
    rank = len(normalized_shape)
    rows, count = list(range(input.dim() - rank)), math.prod(normalized_shape)
    found: list[Any] = [None, None]
    x, grad = input.float(), grad_out.float()
    if output_mask[0]:
        scaled = grad if weight is None else grad * weight
        of_root = over(scaled * x, [d + input.dim() for d in range(-rank, 0)], keep=True)
        of_mean = (of_root * -0.5).mul_(rstd.pow(3))
        squares = (of_mean.expand(input.shape) / count).mul_(x * 2)
        found[0] = (scaled * rstd).add_(squares).to(input.dtype)
    if output_mask[1] and weight is not None:
        products = grad * (x * rstd)
        found[1] = (over(products, rows) if rows else products).to(weight.dtype)
    return tuple(found)
