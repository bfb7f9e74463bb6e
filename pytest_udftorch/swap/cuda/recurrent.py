# SPDX-License-Identifier: Apache-2.0
"""Kernels for the dispatcher: cells of LSTM and GRU, and the layers made of them.

cuDNN has machine code for whole layers, which ``nn.LSTM``, ``nn.GRU`` and ``nn.RNN`` run. In a
session these modules run a product and a cell for each step, as ATen does where cuDNN is switched
off. The operator of the layers is overridden above autograd, so that the cells have gradients;
in inference mode, which has no autograd, it is overridden below. A graph that stock made is
differentiated by cuDNN, whose gradient keeps the gates and evaluates no function but the tanh of
LSTM's cells.

Dropout between layers draws from torch's generator, not from cuDNN's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from pytest_udftorch.swap.cuda.launcher import Launcher, handled, on_device, stock_kernel
from pytest_udftorch.swap.operators.row import Operator
from pytest_udftorch.swap.operators.tensors import alignment
from pytest_udftorch.swap.overrides.switchboard import switchboard

LAYERS: Final = "_cudnn_rnn"
LSTM_CELL: Final = "_thnn_fused_lstm_cell"
LSTM_BACKWARD: Final = f"{LSTM_CELL}_backward_impl"
GRU_CELL: Final = "_thnn_fused_gru_cell"

#: cuDNN's numbers for the kinds of layers.
_RELU, _TANH, _LSTM, _GRU = range(4)

_BLOCK: Final = 256
_WARPS: Final = 2

_Kernels = dict[str, Callable[..., Any]]


def _run(launcher: Launcher, kernel: str, operator: str, tensors: tuple[Any, ...], size: int,
         n: int, **constants: bool) -> None:  # fmt: skip
    """Run a kernel over ``n`` cells, in rows of ``size``; some of its tensors may be None."""
    if n == 0:
        return
    given = [t for t in tensors if t is not None]
    index = given[0].get_device()
    if index != launcher.current_device():
        with on_device(given[0].device):
            _run(launcher, kernel, operator, tensors, size, n, **constants)
        return
    row = launcher.row(index, kernel, operator)
    pattern = tuple(None if t is None else t.dtype for t in tensors)
    launcher.launch(
        (kernel, pattern, alignment(given), size % 16 == 0, size == 1, n >= 2**31, index,
         row is None, *constants.values()),
        kernel, -(-n // _BLOCK), (*tensors, size, n, row), {**constants, "BLOCK": _BLOCK}, _WARPS,
    )  # fmt: skip


def _whole(tensor: Any) -> Any:
    return None if tensor is None else tensor.contiguous()


def _cells(launcher: Launcher, op: Operator) -> _Kernels:
    """Return overload -> kernel of single cells."""
    import torch

    stock = {name: stock_kernel(name) for name in (LSTM_CELL, LSTM_BACKWARD, GRU_CELL)}

    def lstm(x: Any, h: Any, c: Any, of_x: Any = None, of_h: Any = None) -> Any:
        made = stock[LSTM_CELL](x, h, c, of_x, of_h)
        if c.dtype in handled():
            given = tuple(map(_whole, (x, h, of_x, of_h, c)))
            _run(launcher, "lstm_cell", LSTM_CELL, (*given, *made), c.shape[1], c.numel())
        return made

    def backward(of_h: Any, of_c: Any, c: Any, cy: Any, kept: Any, biased: bool) -> Any:
        if kept.dtype not in handled() or (of_h is None and of_c is None):
            return stock[LSTM_BACKWARD](of_h, of_c, c, cy, kept, biased)
        made = torch.empty_like(kept), torch.empty_like(c)
        given = tuple(map(_whole, (of_h, of_c, c, cy, kept)))
        _run(launcher, "lstm_cell_backward", LSTM_BACKWARD, (*given, *made), c.shape[1], c.numel())
        return *made, made[0].sum(0) if biased else None

    def gru(x: Any, h: Any, state: Any, of_x: Any = None, of_h: Any = None) -> Any:
        made = stock[GRU_CELL](x, h, state, of_x, of_h)
        if state.dtype in handled():
            given = tuple(map(_whole, (x, h, of_x, of_h, state)))
            _run(launcher, "gru_cell", GRU_CELL, (*given, *made), state.shape[1], state.numel())
        return made

    return {LSTM_CELL: lstm, LSTM_BACKWARD: backward, GRU_CELL: gru}


# Layers ------------------------------------------------------------------------------------


def _step(mode: int, x: Any, state: Sequence[Any], weights: Sequence[Any]) -> list[Any]:
    """Return the next state from a step's product with the inputs."""
    import torch

    again, of_x, of_h, projection = weights
    h = torch.nn.functional.linear(state[0], again)
    if mode == _LSTM:
        y, c, _ = getattr(torch.ops.aten, LSTM_CELL)(x, h, state[1], of_x, of_h)
        return [y if projection is None else torch.nn.functional.linear(y, projection), c]
    if mode == _GRU:
        return [getattr(torch.ops.aten, GRU_CELL)(x, h, state[0], of_x, of_h)[0]]
    total = x + h if of_x is None else x + of_x + h + of_h
    return [torch.tanh(total) if mode == _TANH else torch.relu(total)]


def _direction(mode: int, x: Any, state: Sequence[Any], weights: Sequence[Any],
               sizes: Sequence[int], reverse: bool) -> tuple[Any, list[Any]]:  # fmt: skip
    """Run one direction of a layer over packed lines: step t has the first ``sizes[t]`` of them.

    Returns:
        The packed results and the last states.
    """
    import torch

    by_x, *rest = weights
    steps = torch.split(torch.nn.functional.linear(x, by_x), list(sizes))
    order = range(len(sizes))[::-1] if reverse else range(len(sizes))
    alive = sizes[order[0]]
    now = [s[:alive] for s in state]
    ended: list[list[Any]] = [[] for _ in state]
    found: list[Any] = [None] * len(sizes)
    for t in order:
        if sizes[t] > alive:  # lines that end here begin, backwards, with their own first states
            now = [torch.cat((n, s[alive : sizes[t]])) for n, s in zip(now, state, strict=True)]
        elif sizes[t] < alive:
            for n, e in zip(now, ended, strict=True):
                e.insert(0, n[sizes[t] :])
            now = [n[: sizes[t]] for n in now]
        alive = sizes[t]
        now = _step(mode, steps[t], now, rest)
        found[t] = now[0]
    last = [torch.cat((n, *e)) for n, e in zip(now, ended, strict=True)]
    return torch.cat(found), last


def _weights(given: Sequence[Any], mode: int, size: int, projected: int) -> tuple[Any, ...]:
    """Return the weights of inputs and states, their biases or None, and the projection or None.

    Under autocast they are pieces of one buffer, in cuDNN's shapes.
    """
    *weights, projection = given if projected else (*given, None)
    gates = {_LSTM: 4, _GRU: 3}.get(mode, 1) * size
    matrices = [w.reshape(gates, -1) for w in weights[:2]]
    biases = [b.reshape(gates) for b in weights[2:]] or [None, None]
    return *matrices, *biases, None if projection is None else projection.reshape(projected, size)


def _layers(*args: Any) -> Any:
    """Compute the operator of the layers by cells."""
    import torch

    x, flat, per_layer, _, hx, cx, mode, _, projected, count, batch_first = args[:11]
    dropout, train, bidirectional, sizes, _ = args[11:]
    packed = len(sizes) > 0
    if not packed:
        x = x.transpose(0, 1) if batch_first else x
        sizes = [x.shape[1]] * x.shape[0]
        lines = x.shape[1]
        x = x.flatten(0, 1)
    directions = 2 if bidirectional else 1
    lasts: list[list[Any]] = []
    for layer in range(count):
        found = []
        for reverse in range(directions):
            at = layer * directions + reverse
            weights = _weights(
                flat[at * per_layer : (at + 1) * per_layer], mode, args[7], projected
            )
            state = [hx[at]] if cx is None else [hx[at], cx[at]]
            y, last = _direction(mode, x, state, weights, sizes, bool(reverse))
            found.append(y)
            lasts.append(last)
        x = torch.cat(found, -1) if bidirectional else found[0]
        if dropout and train and layer < count - 1:
            x = torch.nn.functional.dropout(x, dropout, True)
    if not packed:
        x = x.unflatten(0, (-1, lines))
        x = x.transpose(0, 1) if batch_first else x
    hy, *cy = (torch.stack(states) for states in zip(*lasts, strict=True))
    none = x.new_empty(0)
    return x, hy, cy[0] if cy else none, x.new_empty(0, dtype=torch.uint8), none


def _takes(args: Sequence[Any]) -> bool:
    x, sizes = args[0], args[14]
    return x.dtype in handled() and x.numel() > 0 and (len(sizes) > 0 or x.dim() == 3)


def _layers_or(stock: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args: _layers(*args) if _takes(args) else stock(*args)


def recurrent_kernels(launcher: Launcher, op: Operator) -> _Kernels:
    """Return overload -> kernel, below autograd."""
    return {**_cells(launcher, op), LAYERS: _layers_or(stock_kernel(LAYERS))}


def layers_above() -> _Kernels:
    """Return overload -> kernel, above autograd."""
    return {LAYERS: _layers_or(switchboard.stock(f"aten::{LAYERS}", "AutogradCUDA"))}
