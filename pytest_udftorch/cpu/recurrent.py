# SPDX-License-Identifier: Apache-2.0
"""Kernels for the dispatcher: the layer of ``nn.LSTM`` that stock leaves to oneDNN.

oneDNN generates code for the whole layer, which no symbol leads into. Here the layer is products,
sigmoid and tanh as operators of their own, whose functions sessions reach. Autograd differentiates
those operators, so a graph that a session made can be followed after it. What stock made outside of
the session, and is differentiated inside, is computed anew from the layer's inputs and results.

bfloat16 and half are computed in float32 and rounded once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from pytest_udftorch import compat
from pytest_udftorch.cpu.pointwise import numbers
from pytest_udftorch.overrides.dispatcher import Mode, thread

FORWARD: Final = "mkldnn_rnn_layer"
BACKWARD: Final = "mkldnn_rnn_layer_backward"
FUNCTIONS: Final = frozenset(("exp", "tanh"))

#: ATen's number for an LSTM among the kinds of layers.
_LSTM: Final = 2


def _takes(x: Any, mode: int) -> bool:
    """Tell whether a call is computed here; the others are for the stock kernel."""
    return (
        thread.mode is not Mode.BYPASS and mode == _LSTM and x.dim() == 3 and x.dtype in numbers()
    )


def _layer(stock: Callable[..., Any]) -> Callable[..., Any]:
    """Return the kernel of the layer."""
    import torch
    from torch.nn import functional as F

    def kernel(*args: Any) -> Any:
        x, w0, w1, w2, w3, hx, cx, reverse, _, mode, _, _, biased, *_ = args
        if not _takes(x, mode):
            return stock(*args)
        lines = x.shape[1]
        wide = (x.flip(0) if reverse else x).float()
        h, c = (t.float().reshape(lines, -1) for t in (hx, cx))
        bias = w2.float() + w3.float() if biased else None
        given, again = F.linear(wide, w0.float(), bias).unbind(0), w1.float().mT
        hidden = []
        for each in given:
            gates = torch.addmm(each, h, again)
            i, f, _, o = gates.sigmoid().chunk(4, 1)
            g = gates.chunk(4, 1)[2].tanh()
            c = torch.addcmul(f * c, i, g)
            h = o * c.tanh()
            hidden.append(h)
        y = torch.stack(hidden[::-1] if reverse else hidden)
        y, h, c = y.to(x.dtype), h.to(x.dtype), c.to(x.dtype)
        return y, h.reshape(hx.shape), c.reshape(cx.shape), x.new_empty(0, dtype=torch.uint8)

    return kernel


def _gradients(stock: Callable[..., Any]) -> Callable[..., Any]:
    """Return the kernel of the layer's gradient, for graphs that were made under stock."""
    import torch

    def kernel(*args: Any) -> Any:
        x, w0, w1, w2, w3, hx, cx, y, _, _, *rest = args
        given, reverse, mode, biased = rest[:3], rest[3], rest[4], rest[7]
        if not _takes(x, mode):
            return stock(*args)
        xs, ys = (t.float().flip(0) if reverse else t.float() for t in (x, y))
        dy, dh, dc = given
        steps, lines, size = ys.shape
        h0, c = (t.float().reshape(lines, size) for t in (hx, cx))
        before = torch.cat((h0[None], ys[:-1]))
        into, again = w0.float(), w1.float()
        gates = xs @ into.mT + before @ again.mT
        if biased:
            gates = gates + w2.float() + w3.float()
        i, f, g, o = gates.chunk(4, 2)
        i, f, g, o = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
        cells = [c]
        for at in range(steps):
            cells.append(f[at] * cells[-1] + i[at] * g[at])
        dys = torch.zeros_like(ys) if dy is None else dy.float().flip(0) if reverse else dy.float()
        last_h, last_c = (
            torch.zeros_like(c) if d is None else d.float().reshape(c.shape) for d in (dh, dc)
        )
        each = torch.empty_like(gates)
        for at in reversed(range(steps)):
            last_h = last_h + dys[at]
            t = cells[at + 1].tanh()
            last_c = last_c + last_h * o[at] * (1 - t * t)
            parts = (
                last_c * g[at] * i[at] * (1 - i[at]),
                last_c * cells[at] * f[at] * (1 - f[at]),
                last_c * i[at] * (1 - g[at] * g[at]),
                last_h * t * o[at] * (1 - o[at]),
            )
            torch.cat(parts, 1, out=each[at])
            last_c = last_c * f[at]
            last_h = each[at] @ again
        flat = each.flatten(0, 1)
        dx = each @ into
        bias = flat.sum(0)
        found = (
            dx.flip(0) if reverse else dx,
            flat.mT @ xs.flatten(0, 1), flat.mT @ before.flatten(0, 1), bias, bias,
            last_h.reshape(hx.shape), last_c.reshape(cx.shape),
        )  # fmt: skip
        return tuple(
            d.to(like.dtype) for d, like in zip(found, (x, w0, w1, w2, w3, hx, cx), strict=True)
        )

    return kernel


def kernels() -> dict[str, dict[str, Callable[..., Any]]]:
    """Return dispatch key -> overload -> kernel.

    The layer is composed above autograd, which sees its operators.
    """
    above = compat.stock_kernel(f"aten::{FORWARD}", "AutogradCPU", "CPU")
    return {
        "AutogradCPU": {FORWARD: _layer(above)},
        "CPU": {
            FORWARD: _layer(compat.stock_kernel(f"aten::{FORWARD}", "CPU")),
            BACKWARD: _gradients(compat.stock_kernel(f"aten::{BACKWARD}", "CPU")),
        },
    }
