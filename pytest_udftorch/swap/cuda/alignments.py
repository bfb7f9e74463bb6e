# SPDX-License-Identifier: Apache-2.0
"""Kernels for the dispatcher: ctc_loss.

In a session cuDNN, whose ctc_loss is machine code, is never asked. The stock kernel runs first:
checks, errors and the warning that its gradient is not deterministic are torch's own. Targets of
more labels than a program can hold stay stock's, and float64 does.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any, Final

from pytest_udftorch.swap.cuda.launcher import Launcher, on_device, stock_kernel
from pytest_udftorch.swap.operators.row import Operator
from pytest_udftorch.swap.operators.tensors import alignment

#: The most states of a program, and the fewest.
_MOST: Final = 16384
_FEWEST: Final = 128
_PER_WARP: Final = 128


def _list(lengths: Any) -> list[int]:
    return [int(n) for n in (lengths.tolist() if hasattr(lengths, "tolist") else lengths)]


def _block(size: int) -> int:
    return max(_FEWEST, 1 << (size - 1).bit_length())


def _run(launcher: Launcher, kernel: str, operator: str, tensors: tuple[Any, ...],
         numbers: tuple[int, ...], size: int, lines: int) -> None:  # fmt: skip
    index = tensors[0].get_device()
    if index != launcher.current_device():
        with on_device(tensors[0].device):
            _run(launcher, kernel, operator, tensors, numbers, size, lines)
        return
    row = launcher.row(index, kernel, operator)
    block = _block(size)
    warps = min(32, block // _PER_WARP)
    kinds = tuple((n % 16 == 0, n == 1, n >= 2**31) for n in numbers)
    launcher.launch(
        (kernel, tuple(t.dtype for t in tensors), alignment(tensors), kinds, block, index,
         row is None),
        kernel, lines, (*tensors, *numbers, row), {"BLOCK": block}, warps,
    )  # fmt: skip


def _layout(x: Any, targets: Any, steps: Sequence[int], labels: Sequence[int]) -> tuple[Any, ...]:
    """Return where each line's labels begin, how far they lie apart, and the lengths."""
    import torch

    if targets.dim() == 1:
        apart = targets.stride(0)
        firsts = [n * apart for n in itertools.accumulate(labels, initial=0)][:-1]
    else:
        apart = targets.stride(1)
        firsts = [line * targets.stride(0) for line in range(len(labels))]
    found = torch.tensor([firsts, list(steps), list(labels)], device=x.device)
    return found[0], found[1], found[2], apart


def alignment_kernels(launcher: Launcher, op: Operator) -> dict[str, Callable[..., Any]]:
    """Return overload -> kernel of ctc_loss."""
    import torch

    asks = {end: stock_kernel(f"_use_cudnn_ctc_loss{end}") for end in ("", ".Tensor")}

    def ask_cudnn(x: Any, targets: Any, steps: Any, labels: Any, blank: int) -> bool:
        """Tell whether stock would run cuDNN, had the session not forbidden it."""
        ask = asks[".Tensor" if isinstance(steps, torch.Tensor) else ""]
        return bool(ask(x, targets, steps, labels, blank))

    def takes(x: Any, targets: Any, alpha: Any) -> bool:
        return (
            x.dtype is torch.float32
            and x.dim() == 3
            and alpha.dim() == 3
            and alpha.numel() > 0
            and alpha.is_contiguous()
            and _block(alpha.shape[2]) <= _MOST
            and targets.is_cuda
        )

    def forward(stock: Callable[..., Any]) -> Callable[..., Any]:
        def kernel(x: Any, targets: Any, steps: Any, labels: Any, blank: int = 0,
                   zero_infinity: bool = False) -> Any:  # fmt: skip
            if not targets.is_cuda and ask_cudnn(x, targets, steps, labels, blank):
                targets = targets.to(x.device)  # cuDNN alone takes them from the CPU
            nll, alpha = stock(x, targets, steps, labels, blank, zero_infinity)
            if not takes(x, targets, alpha):
                return nll, alpha
            firsts, lengths, counts, apart = _layout(x, targets, _list(steps), _list(labels))
            lines, most, size = alpha.shape
            _run(
                launcher, "alignments", "_ctc_loss",
                (x, targets, firsts, lengths, counts, alpha),
                (*x.stride(), apart, most, size, blank), size, lines,
            )  # fmt: skip
            line = torch.arange(lines, device=x.device)
            last = alpha[line, (lengths - 1).clamp_(min=0)]
            ends = [last.gather(1, (2 * counts - k).clamp_(min=0)[:, None])[:, 0] for k in (0, 1)]
            total = torch.where(counts > 0, torch.logaddexp(*ends), ends[0])
            nll.copy_(torch.where(lengths > 0, -total, nll))
            return nll, alpha

        return kernel

    def backward(stock: Callable[..., Any]) -> Callable[..., Any]:
        def kernel(grad: Any, x: Any, targets: Any, *rest: Any) -> Any:
            steps, labels, nll, alpha, blank = rest[:5]
            if not targets.is_cuda and ask_cudnn(x, targets, steps, labels, blank):
                targets = targets.to(x.device)
            theirs = stock(grad, x, targets, *rest)
            if not takes(x, targets, alpha):
                return theirs
            firsts, lengths, counts, apart = _layout(x, targets, _list(steps), _list(labels))
            lines, most, size = alpha.shape
            alive = torch.arange(x.shape[0], device=x.device)[:, None] < lengths
            made = torch.exp(x) * torch.where(alive, grad, 0.0)[..., None]
            _run(
                launcher, "alignments_backward", "_ctc_loss_backward",
                (x, targets, firsts, lengths, counts, alpha, torch.empty_like(alpha),
                 nll.contiguous(), grad.contiguous(), made),
                (*x.stride(), *made.stride(), apart, most, size, blank), size, lines,
            )  # fmt: skip
            # Where there is no alignment, stock has rules of its own.
            impossible = torch.isinf(nll)[None, :, None]
            return theirs.copy_(torch.where(impossible, theirs, made))

        return kernel

    def asks_cudnn(stock: Callable[..., Any]) -> Callable[..., Any]:
        def kernel(x: Any, *rest: Any) -> bool:
            return x.dtype is not torch.float32 and bool(stock(x, *rest))

        return kernel

    made: dict[str, Callable[..., Any]] = {
        "_ctc_loss": forward, "_ctc_loss_backward": backward, "_use_cudnn_ctc_loss": asks_cudnn,
    }  # fmt: skip
    return {name: made[name.partition(".")[0]](stock_kernel(name)) for name in op.overloads}
