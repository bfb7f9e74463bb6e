# SPDX-License-Identifier: Apache-2.0
"""Kernels for the dispatcher: the layer of ``nn.LSTM`` that stock leaves to oneDNN.

oneDNN generates code for the whole layer, which no symbol leads into. Here a layer is a product for
each step, by libtorch's BLAS, and one loop for the cells (``cpu_recurrent.h``). The forward pass
keeps the gates and the cells, so that its gradient needs no function: a graph that a session made
can be followed after it. What stock made outside of the session, and is differentiated inside, is
computed anew from the layer's inputs and results.

Loops have no access to the numbers under ``torch.func`` and forward-mode gradients, and in tensors
of a subclass. There, and where gradients are differentiated once more,
the layer is composed of products, sigmoid and tanh as operators, whose functions sessions reach.

bfloat16 and half are computed in float32 and rounded once.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from pytest_udftorch.base import compat
from pytest_udftorch.swap.cpu.loops import Loops, blas
from pytest_udftorch.swap.cpu.pointwise import numbers
from pytest_udftorch.swap.overrides.switchboard import switchboard

FORWARD: Final = "mkldnn_rnn_layer"
BACKWARD: Final = "mkldnn_rnn_layer_backward"
FUNCTIONS: Final = frozenset(("exp", "tanh"))

#: ATen's number for an LSTM among the kinds of layers.
_LSTM: Final = 2

#: Positions of the tensors among the operator's arguments: x, the weights of x and of h, their
#: biases, h and c.
_TENSORS: Final = 7
#: Position of the flag that says whether the biases count.
_BIASED: Final = 12


class _Layer(ctypes.Structure):
    """``struct layer`` of ``cpu_recurrent.h``, field for field."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("steps", "lines", "size")),
        ("reverse", ctypes.c_int32),
        *((name, ctypes.c_void_p) for name in (
            "again", "h0", "c0", "gates", "h", "c", "t", "dy", "dh", "dc", "dgates",
            "exp", "tanh", "product", "threads",
        )),
        ("step", ctypes.c_int64),
        ("before", ctypes.c_int64),
    )  # fmt: skip


class Kept(NamedTuple):
    """What the forward pass keeps for the gradient: dense float32, by steps."""

    h0: Any
    c0: Any
    gates: Any
    h: Any
    c: Any
    t: Any


_KEPT: Final = ("h0", "c0", "gates", "h", "c", "t")


def _takes(tensors: Sequence[Any], mode: int) -> bool:
    """Tell whether a call is computed here; the others are for the stock kernel.

    Args:
        tensors: of the call; the layer's input is the first.
        mode: of the layer.
    """
    x = tensors[0]
    return (
        mode == _LSTM
        and x.dim() == 3
        and 0 not in x.shape[:2]
        and all(t.dtype in numbers() for t in tensors)
    )


def _wide(tensor: Any, *shape: int) -> Any:
    return tensor.detach().float().reshape(shape or tensor.shape).contiguous()


class _Loops:
    """The loops of a layer for one set of functions."""

    def __init__(self, loops: Loops) -> None:
        self.loops = loops
        self.ready: Any = None

    def call(self, direction: str, shape: Sequence[int], reverse: bool, **at: Any) -> None:
        """Run ``lstm_forward`` or ``lstm_backward`` on tensors, given by their field."""
        if self.ready is None:
            library = self.loops.library()
            self.ready = (
                {n: getattr(library, f"lstm_{n}") for n in ("forward", "backward")},
                (self.loops.addresses(("exp", "tanh"))),
            )
        kernels, (exp, tanh) = self.ready
        name = FORWARD if direction == "forward" else BACKWARD
        # The gradient evaluates no function.
        threads = self.loops.threads(name, FUNCTIONS if direction == "forward" else ())
        steps, lines, size = shape
        layer = _Layer(
            steps=steps, lines=lines, size=size, reverse=reverse, exp=exp, tanh=tanh,
            threads=ctypes.addressof(threads), **{n: t.data_ptr() for n, t in at.items()},
            product=blas() if "again" in at else None,
        )  # fmt: skip
        kernels[direction](ctypes.byref(layer))

    def forward(self, args: Sequence[Any]) -> Kept:
        """Compute a layer."""
        from torch.nn import functional as F

        x, w0, w1, w2, w3, hx, cx, reverse, *_, biased, _, _, _ = args
        steps, lines, size = x.shape[0], x.shape[1], hx.shape[-1]
        bias = _wide(w2) + _wide(w3) if biased else None
        again = _wide(w1)
        h0, c0 = _wide(hx, lines, size), _wide(cx, lines, size)
        gates = F.linear(_wide(x), _wide(w0), bias)
        kept = Kept(h0, c0, gates, *(gates.new_empty(steps, lines, size) for _ in range(3)))
        self.call(
            "forward",
            (steps, lines, size),
            reverse,
            again=again,
            **dict(zip(_KEPT, kept, strict=True)),
        )
        return kept

    def anew(self, args: Sequence[Any], y: Any) -> Kept:
        """Return what ``forward`` keeps, from the results of a layer that stock computed."""
        import torch

        x, w0, w1, w2, w3, hx, cx, reverse, *_, biased, _, _, _ = args
        steps, lines, size = y.shape
        h0, c0, h = _wide(hx, lines, size), _wide(cx, lines, size), _wide(y)
        before = torch.cat((h[1:], h0[None]) if reverse else (h0[None], h[:-1]))
        gates = _wide(x) @ _wide(w0).mT + before @ _wide(w1).mT
        if biased:
            gates += _wide(w2) + _wide(w3)
        kept = Kept(h0, c0, gates, *(torch.empty_like(h) for _ in range(3)))
        self.call("forward", (steps, lines, size), reverse, **dict(zip(_KEPT, kept, strict=True)))
        return Kept(*kept[:3], h, *kept[4:])

    def backward(self, args: Sequence[Any], kept: Kept, given: Sequence[Any]) -> tuple[Any, ...]:
        """Return the gradients of a layer's tensors.

        Args:
            args: the layer's.
            kept: by ``forward`` or ``anew``.
            given: the gradients of y, h and c; None where there is none.
        """
        import torch

        x, w0, w1, *_ = args
        reverse, shape = args[_TENSORS], kept.h.shape
        dy = torch.zeros_like(kept.h) if given[0] is None else _wide(given[0])
        # The loop writes here.
        dh, dc = (
            torch.zeros_like(kept.c0)
            if d is None
            else d.detach().float().reshape(kept.c0.shape).clone().contiguous()
            for d in given[1:]
        )
        dgates, again = torch.empty_like(kept.gates), _wide(w1)
        self.call(
            "backward", shape, reverse, again=again, c0=kept.c0, gates=kept.gates, c=kept.c,
            t=kept.t, dy=dy, dh=dh, dc=dc, dgates=dgates,
        )  # fmt: skip
        first = (kept.h[1:], kept.h0[None]) if reverse else (kept.h0[None], kept.h[:-1])
        flat, before = dgates.flatten(0, 1), torch.cat(first).flatten(0, 1)
        bias = flat.sum(0)
        found = (
            dgates @ _wide(w0), flat.mT @ _wide(x).flatten(0, 1), flat.mT @ before,
            bias, bias.clone(), dh.reshape(args[5].shape), dc.reshape(args[6].shape),
        )  # fmt: skip
        return tuple(d.to(like.dtype) for d, like in zip(found, args[:_TENSORS], strict=True))


def _results(args: Sequence[Any], kept: Kept) -> tuple[Any, ...]:
    """Return the operator's results."""
    import torch

    x, hx, cx, reverse = args[0], *args[5:8]
    last = 0 if reverse else -1
    h, c = (t[last].to(like.dtype).reshape(like.shape) for t, like in ((kept.h, hx), (kept.c, cx)))
    # The last step of y is no view of h.
    h = h.clone() if x.dtype is torch.float32 else h
    return kept.h.to(x.dtype), h, c.clone(), x.new_empty(0, dtype=torch.uint8)


def _composed(args: Sequence[Any]) -> tuple[Any, ...]:
    """Compute a layer by operators."""
    import torch
    from torch.nn import functional as F

    x, w0, w1, w2, w3, hx, cx, reverse, *_, biased, _, _, _ = args
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


def _function() -> Any:
    """Return the layer as a function that autograd knows."""
    import torch

    class Layer(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, loops: _Loops, *args: Any) -> Any:
            kept = loops.forward(args)
            results = _results(args, kept)
            ctx.loops, ctx.rest = loops, args[_TENSORS:]
            # y is kept as the result that it is, so that nothing is held in a circle.
            ctx.save_for_backward(*args[:_TENSORS], *kept)
            ctx.mark_non_differentiable(results[3])
            ctx.set_materialize_grads(False)
            return results

        @staticmethod
        def backward(ctx: Any, *given: Any) -> Any:
            saved = ctx.saved_tensors
            tensors, kept = saved[:_TENSORS], Kept(*saved[_TENSORS:])
            args, none = (*tensors, *ctx.rest), (None,) * len(ctx.rest)
            if not torch.is_grad_enabled():
                found = ctx.loops.backward(args, kept, given[:3])
                # Layers without biases get other tensors in their place.
                biases = found[3:5] if args[_BIASED] else (None, None)
                return None, *found[:3], *biases, *found[5:], *none
            # Somebody differentiates the gradient.
            wanted = [i for i in range(_TENSORS) if ctx.needs_input_grad[1 + i]]
            pairs = [
                (y, d) for y, d in zip(_composed(args), given[:3], strict=False) if d is not None
            ]
            made = torch.autograd.grad(
                [y for y, _ in pairs], [tensors[i] for i in wanted], [d for _, d in pairs],
                create_graph=True, allow_unused=True,
            )  # fmt: skip
            by_place = dict(zip(wanted, made, strict=True))
            return None, *(by_place.get(i) for i in range(_TENSORS)), *none

    return Layer


def _has_numbers(tensors: Sequence[Any]) -> bool:
    """Tell whether tensors are ordinary ones, which nobody follows."""
    import torch

    forward_ad: Any = torch.autograd.forward_ad
    plain = (torch.Tensor, torch.nn.Parameter)
    return (
        not compat.is_transformed()
        and not compat.is_in_mode()
        and all(type(t) in plain and forward_ad.unpack_dual(t).tangent is None for t in tensors)
    )


def _above(
    loops: _Loops, stock: Callable[..., Any], in_mode: Callable[..., Any]
) -> Callable[..., Any]:
    """Return the kernel above autograd; ``in_mode`` is stock's, which goes on to modes."""
    import torch

    layer: Any = None

    def kernel(*args: Any) -> Any:
        nonlocal layer
        tensors = args[:_TENSORS]
        if not _takes(tensors, args[9]):
            return stock(*args)
        if compat.is_in_mode() and not compat.is_transformed():
            # A mode sees the layer, and calls the kernel below autograd.
            return in_mode(*args)
        if not blas() or not _has_numbers(tensors):
            return _composed(args)
        if not torch.is_grad_enabled() or not any(t.requires_grad for t in tensors):
            return _results(args, loops.forward(args))
        layer = layer or _function()
        return layer.apply(loops, *args)

    return kernel


def _forward(loops: _Loops, stock: Callable[..., Any]) -> Callable[..., Any]:
    """Return the kernel below autograd."""

    def kernel(*args: Any) -> Any:
        if not _takes(args[:_TENSORS], args[9]):
            return stock(*args)
        if not blas() or not _has_numbers(args[:_TENSORS]):
            return _composed(args)
        return _results(args, loops.forward(args))

    return kernel


def _gradients(loops: _Loops, stock: Callable[..., Any]) -> Callable[..., Any]:
    """Return the kernel of the layer's gradient, for graphs that were made under stock."""

    def kernel(*args: Any) -> Any:
        x, w0, w1, w2, w3, hx, cx, y, _, _, *rest = args
        given, reverse, mode, biased = rest[:3], rest[3], rest[4], rest[7]
        if not _takes((x, w0, w1, w2, w3, hx, cx), mode) or not blas():
            return stock(*args)
        layer = (x, w0, w1, w2, w3, hx, cx, reverse, (), mode, 0, 1, biased, False, False, True)
        return loops.backward(layer, loops.anew(layer, y), given)

    return kernel


def kernels(loops: Loops) -> dict[str, dict[str, Callable[..., Any]]]:
    """Return dispatch key -> overload -> kernel."""
    made = _Loops(loops)
    name = f"aten::{FORWARD}"
    above = switchboard.stock(name, "AutogradCPU")
    return {
        "AutogradCPU": {FORWARD: _above(made, above, compat.seen_by(above, "Python"))},
        "CPU": {
            FORWARD: _forward(made, switchboard.stock(name, "CPU")),
            BACKWARD: _gradients(made, switchboard.stock(f"aten::{BACKWARD}", "CPU")),
        },
    }
