# SPDX-License-Identifier: Apache-2.0
"""Kernels for the dispatcher: attention on the CPU.

``scaled_dot_product_attention`` chooses between these operators, stock's flash form, and the math
form, whose functions sessions reach through symbols. bfloat16 and half are computed in float32.
A call of another dtype, or one that stock refuses, goes to the stock kernel. Where libtorch has no
BLAS that can be called, the operators are composed of products and softmax.
"""

from __future__ import annotations

import ctypes
import functools
import math
from collections.abc import Callable
from typing import Any, Final

from pytest_udftorch.swap.cpu.loops import Loops, blas
from pytest_udftorch.swap.cpu.pointwise import numbers, stock_kernel

FORWARD: Final = "_scaled_dot_product_flash_attention_for_cpu"
BACKWARD: Final = "_scaled_dot_product_flash_attention_for_cpu_backward"
FUNCTIONS: Final = frozenset(("exp", "log"))

#: Keys of a block: its scores stay in the second-level cache.
_KEY_BLOCK: Final = 512


class _Rows(ctypes.Structure):
    """``struct rows`` of ``cpu_attention.h``, field for field."""

    _fields_ = (
        ("at", ctypes.c_void_p),
        ("batch", ctypes.c_int64),
        ("head", ctypes.c_int64),
        ("row", ctypes.c_int64),
    )


class _Attention(ctypes.Structure):
    """``struct attention`` of ``cpu_attention.h``, field for field."""

    _fields_ = (
        ("q", _Rows),
        ("k", _Rows),
        ("v", _Rows),
        ("out", _Rows),
        ("mask", ctypes.c_void_p),
        ("mask_stride", ctypes.c_int64 * 4),
        ("lse", _Rows),
        ("grad", _Rows),
        ("dq", _Rows),
        ("dk", _Rows),
        ("dv", _Rows),
        *((name, ctypes.c_int64) for name in (
            "batches", "heads", "key_heads", "queries", "keys", "size",
        )),
        ("scale", ctypes.c_float),
        ("causal", ctypes.c_int32),
        ("query_block", ctypes.c_int64),
        ("key_block", ctypes.c_int64),
        ("exp", ctypes.c_void_p),
        ("log", ctypes.c_void_p),
        ("product", ctypes.c_void_p),
        ("threads", ctypes.c_void_p),
        ("next", ctypes.c_int64),
        ("failed", ctypes.c_int32),
    )  # fmt: skip


def _rows(tensor: Any) -> _Rows:
    batch, head, row = tensor.stride()[:3]
    return _Rows(tensor.data_ptr(), batch, head, row)


def _by_rows(tensor: Any) -> Any:
    """Return a tensor in float32 whose rows the product can read."""
    wide = tensor.float()
    row, element = wide.stride()[2:]
    return wide if element == 1 and row >= wide.shape[3] else wide.contiguous()


def _query_block(queries: int) -> int:
    return 256 if queries >= 768 else 64 if queries >= 192 else 32


class _Kernels:
    """The operators for one set of functions."""

    def __init__(self, loops: Loops) -> None:
        self.loops = loops
        self.numbers = numbers()
        self.ready: Any = None

    def takes(self, query: Any, key: Any, value: Any, dropout: float, mask: Any) -> bool:
        """Tell whether the kernels compute a call; the others are for the stock kernel."""
        return (
            query.dtype in self.numbers
            and query.dtype == key.dtype == value.dtype
            and query.dim() == key.dim() == value.dim() == 4
            and query.shape[0] == key.shape[0] == value.shape[0]
            and query.shape[3] == key.shape[3] == value.shape[3]
            and key.shape[1:3] == value.shape[1:3]
            and 0 not in query.shape
            and 0 not in key.shape
            and query.shape[1] % key.shape[1] == 0
            and dropout == 0.0
            and (
                mask is None or (mask.dtype in (query.dtype, self.float32) and mask.dim() in (2, 4))
            )
        )

    @functools.cached_property
    def float32(self) -> Any:
        import torch

        return torch.float32

    def problem(
        self, name: str, q: Any, k: Any, v: Any, causal: bool, mask: Any, scale: float | None
    ) -> tuple[_Attention, list[Any]]:
        """Return the description of a call, and what must live as long as it."""
        if self.ready is None:
            library = self.loops.library()
            exp, log = self.loops.addresses(("exp", "log"))
            self.ready = library.attention_forward, library.attention_backward, exp, log
        batches, heads, queries, size = q.shape
        threads = self.loops.threads(name, FUNCTIONS)
        a = _Attention(
            q=_rows(q), k=_rows(k), v=_rows(v), batches=batches, heads=heads,
            key_heads=k.shape[1], queries=queries, keys=k.shape[2], size=size,
            scale=1 / math.sqrt(size) if scale is None else scale, causal=causal,
            query_block=_query_block(queries), key_block=min(_KEY_BLOCK, k.shape[2]),
            exp=self.ready[2], log=self.ready[3], product=blas(),
            threads=ctypes.addressof(threads),
        )  # fmt: skip
        kept = [q, k, v, threads]
        if mask is not None:
            wide = mask.float().expand(batches, heads, queries, k.shape[2])
            a.mask, a.mask_stride = wide.data_ptr(), (ctypes.c_int64 * 4)(*wide.stride())
            kept.append(wide)
        return a, kept

    def run(self, which: int, problem: _Attention) -> None:
        if self.ready[which](ctypes.byref(problem)):
            raise MemoryError("There is no memory for a block of attention scores.")

    def forward(self, stock: Callable[..., Any]) -> Callable[..., Any]:
        import torch

        def kernel(query: Any, key: Any, value: Any, dropout_p: float = 0.0,
                   is_causal: bool = False, *, attn_mask: Any = None,
                   scale: float | None = None) -> Any:  # fmt: skip
            if not self.takes(query, key, value, dropout_p, attn_mask):
                return stock(query, key, value, dropout_p, is_causal, attn_mask=attn_mask,
                             scale=scale)  # fmt: skip
            result = torch.empty_like(query)
            batches, heads, queries, _ = query.shape
            lse = torch.empty(batches, queries, heads, dtype=torch.float32).transpose(1, 2)
            if not blas():
                weights, logs = _composed(query, key, attn_mask, is_causal, scale)
                lse.copy_(logs)
                result.copy_(weights @ _repeated(value, heads))
                return result, lse
            q, k, v = map(_by_rows, (query, key, value))
            fits = result.dtype == torch.float32 and result.stride(3) == 1
            out = (
                result
                if fits and result.stride(2) >= result.shape[3]
                else q.new_empty(q.shape, dtype=torch.float32)
            )
            problem, kept = self.problem(FORWARD, q, k, v, is_causal, attn_mask, scale)
            problem.out, problem.lse = _rows(out), _rows(lse)
            self.run(0, problem)
            del kept
            if out is not result:
                result.copy_(out)
            return result, lse

        return kernel

    def backward(self, stock: Callable[..., Any]) -> Callable[..., Any]:
        import torch

        def kernel(*args: Any, attn_mask: Any = None, scale: float | None = None) -> Any:
            grad_out, query, key, value, out, logsumexp, dropout_p, is_causal = args
            if not self.takes(query, key, value, dropout_p, attn_mask):
                return stock(*args, attn_mask=attn_mask, scale=scale)
            made = [
                torch.zeros(t.transpose(1, 2).shape, dtype=torch.float32).transpose(1, 2)
                for t in (query, key, value)
            ]
            if not blas():
                scores = _scores(query, key, attn_mask, is_causal, scale)
                _composed_backward(made, scores, args, scale)
            else:
                q, k, v, grad, result = map(_by_rows, (query, key, value, grad_out, out))
                lse = logsumexp.float()
                problem, kept = self.problem(BACKWARD, q, k, v, is_causal, attn_mask, scale)
                problem.out, problem.lse, problem.grad = _rows(result), _rows(lse), _rows(grad)
                problem.dq, problem.dk, problem.dv = map(_rows, made)
                self.run(1, problem)
                del kept
            return tuple(t.to(query.dtype) for t in made)

        return kernel


# Where no product of libtorch can be called --------------------------------------------------


def _repeated(tensor: Any, heads: int) -> Any:
    """Return keys or values in float32, repeated for each head of the queries."""
    return tensor.float().repeat_interleave(heads // tensor.shape[1], 1)


def _scores(query: Any, key: Any, mask: Any, causal: bool, scale: float | None) -> Any:
    import torch

    by = 1 / math.sqrt(query.shape[3]) if scale is None else scale
    scores = query.float() @ _repeated(key, query.shape[1]).mT * by
    if mask is not None:
        scores = scores + mask.float()
    if causal:
        seen = torch.ones(scores.shape[2:], dtype=torch.bool).tril()
        scores = scores.masked_fill(~seen, -math.inf)
    return scores


def _composed(query: Any, key: Any, mask: Any, causal: bool, scale: float | None) -> Any:
    """Return the weights of attention, and the logarithms of the rows' sums."""
    import torch

    scores = _scores(query, key, mask, causal, scale)
    logs = torch.logsumexp(scores, -1)
    logs = logs.masked_fill(logs == -math.inf, 0.0)
    return torch.exp(scores - logs[..., None]), logs


def _composed_backward(made: Any, scores: Any, args: Any, scale: float | None) -> None:
    """Compute the gradients of queries, keys and values from the arguments of the operator."""
    import torch

    grad, query, key, value, out, logs = (t.float() for t in args[:6])
    heads, by = query.shape[1], 1 / math.sqrt(query.shape[3]) if scale is None else scale
    weights = torch.exp(scores - logs[..., None])
    less = (grad * out).sum(-1, keepdim=True)
    inner = weights * (grad @ _repeated(value, heads).mT - less) * by

    def summed(tensor: Any) -> Any:
        return tensor.unflatten(1, (key.shape[1], -1)).sum(2)

    made[0].copy_(inner @ _repeated(key, heads))
    made[1].copy_(summed(inner.mT @ query))
    made[2].copy_(summed(weights.mT @ grad))


def attention_kernels(loops: Loops) -> dict[str, Callable[..., Any]]:
    """Return overload -> kernel of attention and its gradient."""
    made = _Kernels(loops)
    return {
        FORWARD: made.forward(stock_kernel(FORWARD)),
        BACKWARD: made.backward(stock_kernel(BACKWARD)),
    }
