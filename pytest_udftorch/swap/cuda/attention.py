# SPDX-License-Identifier: Apache-2.0
"""Kernels for the dispatcher: fused attention on CUDA.

``scaled_dot_product_attention`` chooses between the flash, the memory-efficient and the cuDNN form,
and the math form, whose functions are operators that sessions override. The three fused forms run
the kernels of ``flash``. A call that looks unusual goes to the stock kernel first, which refuses
what it does not take; its results are then overwritten. Heads of more than 256 elements are
composed of products and the session's functions. float64 stays stock.

Dropout draws its seed from torch's generator, but not stock's random numbers. Its gradient has to
be taken in a session: stock's flash and memory-efficient gradients refuse the seeds, and raise. A
gradient of what stock's kernel dropped is stock's, also in a session.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from pytest_udftorch.swap.cuda.launcher import Launcher, handled, on_device, stock_kernel
from pytest_udftorch.swap.operators.row import Operator
from pytest_udftorch.swap.operators.tensors import alignment

#: The longest head of the kernels.
_LONGEST: Final = 256

#: The most elements that a thread of the kernels looks at together: see ``sixteen``.
_PACKED: Final = 32

#: Keys of a row of logarithms in the memory-efficient form are padded to a multiple of this.
_PADDED: Final = 32


@dataclass(frozen=True)
class _Form:
    """What tells one of the three operators from the others.

    Attributes:
        name: ATen's.
        from_end: whether a causal mask lets the last query see the last key, instead of the first
            query the first key.
        empty: the logarithm of the sum of a row without keys.
    """

    name: str
    from_end: bool = False
    empty: float = -math.inf


_FLASH: Final = _Form("_scaled_dot_product_flash_attention", from_end=True, empty=math.inf)
_EFFICIENT: Final = _Form("_scaled_dot_product_efficient_attention")
_CUDNN: Final = _Form("_scaled_dot_product_cudnn_attention")


@dataclass(frozen=True)
class _Problem:
    """A call, for either direction; ``seed`` is None without dropout."""

    query: Any
    key: Any
    value: Any
    bias: Any
    causal: bool
    offset: int
    scale: float
    dropout: float
    seed: Any

    @property
    def heads(self) -> int:
        return int(self.query.shape[1])

    @property
    def group(self) -> int:
        return self.heads // int(self.key.shape[1])

    @property
    def short(self) -> bool:
        return max(int(self.query.shape[3]), int(self.value.shape[3])) <= _LONGEST

    def scores(self) -> int:
        """Return how many scores exist."""
        queries, keys = int(self.query.shape[2]), int(self.key.shape[2])
        count = queries * keys
        if self.causal:
            # Query i sees i + 1 + offset keys, between none and all.
            first = min(max(-self.offset, 0), queries)
            full = min(max(keys - self.offset, first), queries)
            rising = full - first
            count = rising * (2 * self.offset + first + full + 1) // 2 + (queries - full) * keys
        return count * int(self.query.shape[0]) * self.heads


def _problem(form: _Form, query: Any, key: Any, value: Any, bias: Any, causal: bool,
             scale: float | None, dropout: float, seed: Any) -> _Problem:  # fmt: skip
    if bias is not None:
        # The cuDNN form is given masks whose batch and heads are one, or missing. Where a size is
        # one, its stride may be anything.
        bias = bias.expand(*query.shape[:3], key.shape[2])
    return _Problem(
        _by_rows(query), _by_rows(key), _by_rows(value), bias, causal,
        key.shape[2] - query.shape[2] if form.from_end else 0,
        1 / math.sqrt(query.shape[3]) if scale is None else scale,
        dropout, seed if dropout > 0 else None,
    )  # fmt: skip


def _by_rows(tensor: Any) -> Any:
    return tensor if tensor.stride(3) == 1 else tensor.contiguous()


def _usual(form: _Form, query: Any, key: Any, value: Any, bias: Any, dropout: float) -> bool:
    """Tell whether the stock kernel surely takes a call that the kernels take."""
    import torch

    tensors = (query, key, value)
    wide = query.dtype == torch.float32
    return (
        query.dtype in (handled() if form is _EFFICIENT else handled() - {torch.float32})
        and all(t.dim() == 4 and t.dtype == query.dtype and t.is_cuda for t in tensors)
        and query.device == key.device == value.device
        and all(0 not in t.shape and t.stride(3) == 1 for t in tensors)
        and query.shape[0] == key.shape[0]
        and key.shape[:3] == value.shape[:3]
        and query.shape[3] == key.shape[3] == value.shape[3] <= (128 if form is _CUDNN else 256)
        and query.shape[3] % (4 if wide else 8) == 0
        and query.shape[1] == key.shape[1]
        and (
            bias is None
            or (
                bias.dtype == query.dtype
                and bias.device == query.device
                and bias.shape == (*query.shape[:3], key.shape[2])
                and bias.stride(3) == 1
                and bias.stride(2) % 16 == 0
                and bias.data_ptr() % 16 == 0
            )
        )
        and 0.0 <= dropout < 1.0
    )


# The kernels -----------------------------------------------------------------------------------


def _power_of_two(n: int) -> int:
    return max(16, 1 << max(n - 1, 0).bit_length())


class _Blocks(NamedTuple):
    """How a kernel divides its work.

    Attributes:
        queries: of a block.
        keys: of a block.
        warps: of a program.
        stages: how many blocks ahead it loads; 0 leaves it to Triton.
        registers: the most that a thread may use; 0 sets no limit.
    """

    queries: int
    keys: int
    warps: int = 4
    stages: int = 0
    registers: int = 0


def _blocks(launcher: Launcher, problem: _Problem, kernel: str) -> _Blocks:
    backward = kernel != "attention_forward"
    if launcher.counted:
        return _Blocks(32, 32)  # the code that counts is long
    size = max(_power_of_two(problem.query.shape[3]), _power_of_two(problem.value.shape[3]))
    if problem.query.element_size() == 4:
        return _Blocks(32, 32) if size <= 128 else _Blocks(16, 16)
    # Chosen by measurements on an H100 with 4,096 queries and keys.
    if size > 128:
        return _Blocks(32, 32) if backward else _Blocks(64, 32)
    if size > 64:
        return _Blocks(64, 64, stages=2)
    return _Blocks(64, 64, stages=3, registers=0 if backward else 168)


def _strides(tensor: Any) -> tuple[int, ...]:
    return tuple(tensor.stride()[:3])


#: Integers from here on are of 64 bits for Triton.
_WIDE: Final = 2**31


def _like(number: int) -> tuple[bool, bool, bool]:
    """Return what Triton compiles a kernel for in an integer."""
    return number % 16 == 0, number == 1, abs(number) >= _WIDE


def _run(launcher: Launcher, kernel: str, operator: str, problem: _Problem, tensors: Any,
         strided: Any, sizes: tuple[int, ...], constants: dict[str, Any], grid: int,
         blocks: _Blocks) -> None:  # fmt: skip
    """Launch a kernel of ``flash``; the arguments are in the order of its parameters."""
    index = problem.query.get_device()
    if index != launcher.current_device():
        with on_device(problem.query.device):
            _run(launcher, kernel, operator, problem, tensors, strided, sizes, constants, grid,
                 blocks)  # fmt: skip
        return
    row = launcher.row(index, kernel, operator)
    bias = problem.bias
    numbers = [n for t in strided for n in _strides(t)]
    numbers += (0, 0, 0, 0) if bias is None else bias.stride()
    # Sizes matter by their type alone: see ``flash``.
    scores = problem.scores()
    kinds = (*map(_like, numbers), *(abs(n) >= _WIDE for n in (*sizes, scores)))
    numbers += sizes
    given = [t for t in (*tensors, bias, problem.seed) if t is not None]
    pattern = tuple(None if t is None else t.dtype for t in (*tensors, bias, problem.seed))
    key = (kernel, index, pattern, alignment(given), *kinds, row is None, *constants.values(),
           *blocks)  # fmt: skip
    launcher.launch(
        key, kernel, grid,
        (*tensors, bias, problem.seed, *numbers, problem.offset, float(problem.scale),
         float(problem.dropout), scores, row),
        constants, blocks.warps, blocks.registers, blocks.stages,
    )  # fmt: skip


def _constants(launcher: Launcher, problem: _Problem, blocks: _Blocks) -> dict[str, Any]:
    size, size_v = problem.query.shape[3], problem.value.shape[3]
    return {
        "SIZE": size, "SIZE_V": size_v, "BLOCK": _power_of_two(size),
        "BLOCK_V": _power_of_two(size_v), "QUERIES": blocks.queries, "KEYS": blocks.keys,
        "FOLD": problem.bias is None and problem.scale > 0,
        "QUICK": launcher.quick if problem.query.element_size() == 2 else 0,
        "PACK": min(_PACKED, blocks.queries * blocks.keys // (32 * blocks.warps)),
    }  # fmt: skip


def _attend(launcher: Launcher, form: _Form, problem: _Problem, out: Any, lse: Any) -> None:
    """Compute the result, and the logarithms of the rows' sums if ``lse`` is not None."""
    if 0 in out.shape or 0 in problem.key.shape:
        return
    if not problem.short:
        _composed(form, problem, out, lse)
        return
    blocks = _blocks(launcher, problem, "attention_forward")
    rows = -(-problem.query.shape[2] // blocks.queries)
    target = _by_rows(out) if out.stride(3) == 1 else out.new_empty(out.shape)
    _run(
        launcher, "attention_forward", form.name, problem,
        (problem.query, problem.key, problem.value, target, lse),
        (problem.query, problem.key, problem.value, target),
        (problem.heads, problem.group, problem.query.shape[2], problem.key.shape[2],
         0 if lse is None else lse.shape[2], rows),
        {"CAUSAL": problem.causal, "EMPTY": form.empty, **_constants(launcher, problem, blocks)},
        rows * problem.query.shape[0] * problem.heads, blocks,
    )  # fmt: skip
    if target is not out:
        out.copy_(target)


def _differentiate(launcher: Launcher, form: _Form, problem: _Problem, grad: Any, out: Any,
                   lse: Any, made: tuple[Any, ...]) -> None:  # fmt: skip
    """Compute the gradients of queries, keys and values into ``made``."""
    if any(0 in t.shape for t in (problem.query, problem.key, problem.value)):
        for t in made:
            t.zero_()
        return
    less = (grad.float() * out.float()).sum(-1).contiguous()
    if not problem.short:
        _composed_backward(problem, grad, less, lse, made)
        return
    grad, lse = _by_rows(grad), lse.contiguous()
    q, k, v = problem.query, problem.key, problem.value
    targets = [t if t.stride(3) == 1 else t.new_empty(t.shape) for t in made]
    lengths = (q.shape[2], k.shape[2], lse.shape[2])

    def constants(blocks: _Blocks) -> dict[str, Any]:
        even = q.shape[2] % blocks.queries == 0 and k.shape[2] % blocks.keys == 0
        return {"CAUSAL": problem.causal, "EVEN": even, **_constants(launcher, problem, blocks)}

    blocks = _blocks(launcher, problem, "attention_queries")
    rows = -(-q.shape[2] // blocks.queries)
    _run(
        launcher, "attention_queries", f"{form.name}_backward", problem,
        (q, k, v, grad, lse, less, targets[0]), (q, k, v, grad, targets[0]),
        (problem.heads, problem.group, *lengths, rows), constants(blocks),
        rows * q.shape[0] * problem.heads, blocks,
    )  # fmt: skip
    blocks = _blocks(launcher, problem, "attention_keys")
    rows = -(-k.shape[2] // blocks.keys)
    _run(
        launcher, "attention_keys", f"{form.name}_backward", problem,
        (q, k, v, grad, lse, less, *targets[1:]), (q, k, v, grad, *targets[1:]),
        (k.shape[1], problem.group, *lengths, rows), constants(blocks),
        rows * k.shape[0] * k.shape[1], blocks,
    )  # fmt: skip
    for target, one in zip(targets, made, strict=True):
        if target is not one:
            one.copy_(target)


# Composed of products and the session's functions ----------------------------------------------


def _repeated(problem: _Problem, tensor: Any) -> Any:
    return tensor.float().repeat_interleave(problem.group, 1)


def _scores(problem: _Problem) -> Any:
    import torch

    scores = problem.query.float() @ _repeated(problem, problem.key).mT * problem.scale
    if problem.bias is not None:
        scores = scores + problem.bias.float()
    if problem.causal:
        seen = torch.ones(scores.shape[2:], dtype=torch.bool, device=scores.device)
        scores = scores.masked_fill(~seen.tril(problem.offset), -math.inf)
    return scores


def _composed(form: _Form, problem: _Problem, out: Any, lse: Any) -> None:
    import torch

    _refuse_dropout(problem)
    scores = _scores(problem)
    peak = scores.amax(-1, keepdim=True)
    power = torch.exp(scores - peak.masked_fill(peak == -math.inf, 0.0))
    total = power.sum(-1, keepdim=True)
    none = total == 0
    out.copy_((power @ _repeated(problem, problem.value)) / total.masked_fill(none, 1.0))
    if lse is not None:
        known = (peak + torch.log(total)).masked_fill(none, form.empty)
        lse.fill_(math.inf)[:, :, : known.shape[2]].copy_(known[..., 0])


def _slopes(problem: _Problem, grad: Any, less: Any, lse: Any) -> tuple[Any, Any]:
    """Return the weights and the gradient of the scores before their scale."""
    import torch

    _refuse_dropout(problem)
    known = lse[:, :, : less.shape[2], None]
    weight = torch.exp(_scores(problem) - known.masked_fill(known == -math.inf, math.inf))
    slope = grad.float() @ _repeated(problem, problem.value).mT
    return weight, weight * (slope - less[..., None])


def _composed_backward(problem: _Problem, grad: Any, less: Any, lse: Any,
                       made: tuple[Any, ...]) -> None:  # fmt: skip
    weight, inner = _slopes(problem, grad, less, lse)
    inner = inner * problem.scale

    def summed(tensor: Any) -> Any:
        return tensor.unflatten(1, (problem.key.shape[1], -1)).sum(2)

    made[0].copy_(inner @ _repeated(problem, problem.key))
    made[1].copy_(summed(inner.mT @ problem.query.float()))
    made[2].copy_(summed(weight.mT @ grad.float()))


def _refuse_dropout(problem: _Problem) -> None:
    if problem.seed is not None:
        raise RuntimeError(
            "Fused attention under a session takes dropout with heads of at most "
            f"{_LONGEST} elements, and gradients of a mask without dropout. Use "
            "torch.nn.attention.sdpa_kernel(SDPBackend.MATH) for this call."
        )


# The operators ---------------------------------------------------------------------------------


def _seeds(query: Any, dropout: float, count: int = 2) -> Any:
    """Return the seed of dropout, on the GPU, so that a CUDA graph draws anew at each replay.

    What is returned as a seed and an offset has ``count`` 4: it is the numbers 0 and 2, since
    compiled code asks for results at multiples of 16 bytes.
    """
    import torch

    if dropout == 0:
        return torch.zeros((count,), dtype=torch.int64, device=query.device)
    return torch.randint(0, 1 << 30, (count,), dtype=torch.int64, device=query.device)


def _returned(seeds: Any, dropout: float, dtype: Any) -> Any:
    """Return seeds as an operator's result, in stock's dtype where nothing is dropped.

    With dropout they look like float64, which stock's gradients refuse. A gradient that is taken
    after the session would otherwise drop other weights than the forward pass did.
    """
    import torch

    return seeds.view(torch.float64 if dropout > 0 else dtype)


def _received(seeds: Any) -> Any:
    """Undo :func:`_returned`."""
    import torch

    return seeds.view(torch.int64)


def _dropped_by_stock(seeds: Any, dropout: float) -> bool:
    """Tell whether stock's forward pass dropped weights, which its gradient alone knows."""
    import torch

    return dropout > 0 and seeds.dtype != torch.float64


def _flash(launcher: Launcher) -> tuple[Callable[..., Any], Callable[..., Any]]:
    import torch

    stock, stock_backward = stock_kernel(_FLASH.name), stock_kernel(f"{_FLASH.name}_backward")
    dtypes = handled()

    def forward(query: Any, key: Any, value: Any, dropout_p: float = 0.0, is_causal: bool = False,
                return_debug_mask: bool = False, *, scale: float | None = None) -> Any:  # fmt: skip
        usual = _usual(_FLASH, query, key, value, None, dropout_p) and not return_debug_mask
        found: Any = None
        if not usual:
            found = stock(query, key, value, dropout_p, is_causal, return_debug_mask, scale=scale)
            if query.dtype not in dtypes:
                return found
        seeds = _seeds(query, dropout_p)
        problem = _problem(
            _FLASH, query, key, value, None, is_causal, scale, dropout_p, seeds
        )  # fmt: skip
        if found is not None:
            _attend(launcher, _FLASH, problem, found[0], found[1])
            return (*found[:6], _returned(seeds, dropout_p, torch.uint64), *found[7:])
        out = torch.empty_like(query)
        lse = query.new_empty(query.shape[:3], dtype=torch.float32)
        _attend(launcher, _FLASH, problem, out, lse)
        unused = query.new_empty((), dtype=torch.uint64)
        shown = _returned(seeds, dropout_p, torch.uint64)
        return (out, lse, None, None, query.shape[2], key.shape[2], shown, unused,
                query.new_empty(0))  # fmt: skip

    def backward(*args: Any, scale: float | None = None) -> Any:
        grad, query, key, value, out, lse, _, _, _, _, dropout, causal, seeds, _ = args
        if query.dtype not in dtypes or _dropped_by_stock(seeds, dropout):
            return stock_backward(*args, scale=scale)
        problem = _problem(
            _FLASH, query, key, value, None, causal, scale, dropout, _received(seeds)
        )
        made = torch.empty_like(query), torch.empty_like(key), torch.empty_like(value)
        _differentiate(launcher, _FLASH, problem, grad, out, lse, made)
        return made

    return forward, backward


def _efficient(launcher: Launcher) -> tuple[Callable[..., Any], Callable[..., Any]]:
    import torch

    stock = stock_kernel(_EFFICIENT.name)
    stock_backward = stock_kernel(f"{_EFFICIENT.name}_backward")
    dtypes = handled()

    def forward(query: Any, key: Any, value: Any, attn_bias: Any, compute_log_sumexp: bool,
                dropout_p: float = 0.0, is_causal: bool = False, *,
                scale: float | None = None) -> Any:  # fmt: skip
        found: Any = None
        if not _usual(_EFFICIENT, query, key, value, attn_bias, dropout_p):
            found = stock(query, key, value, attn_bias, compute_log_sumexp, dropout_p, is_causal,
                          scale=scale)  # fmt: skip
            if query.dtype not in dtypes:
                return found
        seeds = _seeds(query, dropout_p, 4)
        problem = _problem(
            _EFFICIENT, query, key, value, attn_bias, is_causal, scale, dropout_p, seeds[:1]
        )
        if found is None:
            batches, heads, queries, _ = query.shape
            out = query.new_empty(batches, queries, heads, value.shape[3]).transpose(1, 2)
            padded = -(-queries // _PADDED) * _PADDED if compute_log_sumexp else 0
            lse = query.new_empty(batches, heads, padded, dtype=torch.float32)
        else:
            out, lse = found[:2]
        _attend(launcher, _EFFICIENT, problem, out, lse if compute_log_sumexp else None)
        shown = _returned(seeds, dropout_p, torch.int64)
        return out, lse, shown[0], shown[2]

    def backward(grad: Any, query: Any, key: Any, value: Any, bias: Any, out: Any, lse: Any,
                 seed: Any, offset: Any, dropout: float, wanted: Any, causal: bool = False, *,
                 scale: float | None = None) -> Any:  # fmt: skip
        if query.dtype not in dtypes or _dropped_by_stock(seed, dropout):
            return stock_backward(grad, query, key, value, bias, out, lse, seed, offset, dropout,
                                  wanted, causal, scale=scale)  # fmt: skip
        problem = _problem(
            _EFFICIENT, query, key, value, bias, causal, scale, dropout, _received(seed).reshape(1)
        )
        made = tuple(
            torch.empty_permuted(t.shape, (0, 2, 1, 3), dtype=t.dtype, device=t.device)
            for t in (query, key, value)
        )
        _differentiate(launcher, _EFFICIENT, problem, grad, out, lse, made)
        of_bias = None
        if bias is not None and wanted[3]:
            less = (grad.float() * out.float()).sum(-1)
            slope = _slopes(problem, grad, less, lse)[1]
            of_bias = slope.sum_to_size(bias.shape).to(bias.dtype)
        return *made, of_bias

    return forward, backward


def _cudnn(launcher: Launcher) -> tuple[Callable[..., Any], Callable[..., Any]]:
    import torch

    stock, stock_backward = stock_kernel(_CUDNN.name), stock_kernel(f"{_CUDNN.name}_backward")
    dtypes = handled()

    def forward(query: Any, key: Any, value: Any, attn_bias: Any, compute_log_sumexp: bool,
                dropout_p: float = 0.0, is_causal: bool = False, return_debug_mask: bool = False,
                *, scale: float | None = None) -> Any:  # fmt: skip
        found: Any = None
        if not _usual(_CUDNN, query, key, value, attn_bias, dropout_p) or return_debug_mask:
            found = stock(query, key, value, attn_bias, compute_log_sumexp, dropout_p, is_causal,
                          return_debug_mask, scale=scale)  # fmt: skip
            if query.dtype not in dtypes:
                return found
        seeds = _seeds(query, dropout_p, 4)
        problem = _problem(
            _CUDNN, query, key, value, attn_bias, is_causal, scale, dropout_p, seeds[:1]
        )
        if found is None:
            out = torch.empty_like(query)
            rows = (*query.shape[:3], 1) if compute_log_sumexp else (0,)
            lse = query.new_empty(rows, dtype=torch.float32)
            found = (out, lse, None, None, query.shape[2], key.shape[2], None, None, None)
        out, lse = found[:2]
        _attend(launcher, _CUDNN, problem, out, lse[..., 0] if compute_log_sumexp else None)
        shown = _returned(seeds, dropout_p, torch.int64)
        return (*found[:6], shown[0], shown[2], found[8])

    def backward(*args: Any, scale: float | None = None) -> Any:
        grad, query, key, value, out, lse, seed, _, bias, _, _, _, _, dropout, causal = args
        if query.dtype not in dtypes or _dropped_by_stock(seed, dropout):
            return stock_backward(*args, scale=scale)
        problem = _problem(
            _CUDNN, query, key, value, bias, causal, scale, dropout, _received(seed).reshape(1)
        )  # fmt: skip
        made = torch.empty_like(query), torch.empty_like(key), torch.empty_like(value)
        _differentiate(launcher, _CUDNN, problem, grad, out, lse[..., 0], made)
        return made

    return forward, backward


def attention_kernels(launcher: Launcher, op: Operator) -> dict[str, Callable[..., Any]]:
    """Return overload -> kernel of the three forms of attention and their gradients."""
    found: dict[str, Callable[..., Any]] = {}
    for form, make in ((_FLASH, _flash), (_EFFICIENT, _efficient), (_CUDNN, _cudnn)):
        found[form.name], found[f"{form.name}_backward"] = make(launcher)
    return found
