# SPDX-License-Identifier: Apache-2.0
"""The layer of ``nn.LSTM`` that stock leaves to oneDNN, with the bits of ``nn.LSTMCell``.

The other recurrent layers are composed by torch of operators that are inside of the contract.
"""

from __future__ import annotations

from typing import Any, Final

from pytest_udftorch.swap.contract.outside import declined as stock
from pytest_udftorch.swap.contract.sums import over

#: ATen's number for an LSTM among the kinds of layers.
_LSTM: Final = 2


def _takes(x: Any, mode: int, *others: Any) -> bool:
    return (
        mode == _LSTM and x.dim() == 3 and x.numel() > 0 and all(t.dtype is x.dtype for t in others)
    )


def _steps(
    x: Any, of_x: Any, of_h: Any, biases: tuple[Any, Any], h: Any, c: Any, reverse: bool
) -> tuple[list[Any], list[Any], list[Any]]:
    """Return hidden states, cells and gates of each step, in the order in which they are made."""
    import torch
    from torch.nn import functional as F

    given = F.linear(x, of_x, biases[0])
    hidden, cells, gates = [h], [c], []
    for each in given.flip(0) if reverse else given:
        i, f, g, o = (F.linear(hidden[-1], of_h, biases[1]) + each).chunk(4, 1)
        i, f, g, o = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
        cells.append(f * cells[-1] + i * g)
        hidden.append(o * cells[-1].tanh())
        gates.append(torch.cat((i, f, g, o), 1))
    return hidden, cells, gates


def lstm_layer(  # noqa: PLR0913
    input: Any, weight0: Any, weight1: Any, weight2: Any, weight3: Any, hx_: Any, cx_: Any,
    reverse: bool, batch_sizes: Any, mode: int, hidden_size: int, num_layers: int,
    has_biases: bool, bidirectional: bool, batch_first: bool, train: bool,
) -> Any:  # fmt: skip
    """Return the hidden states of a layer, the last one, the last cell, and no workspace."""
    import torch

    tensors = input, weight0, weight1, weight2, weight3, hx_, cx_
    if not _takes(input, mode, *tensors):
        return stock(
            *tensors, reverse, batch_sizes, mode, hidden_size, num_layers, has_biases,
            bidirectional, batch_first, train,
        )  # fmt: skip
    biases = (weight2, weight3) if has_biases else (None, None)
    h, c = (t.reshape(input.shape[1], -1) for t in (hx_, cx_))
    hidden, cells, _ = _steps(input, weight0, weight1, biases, h, c, reverse)
    y = torch.stack(hidden[:0:-1] if reverse else hidden[1:])
    last = hidden[-1].reshape(hx_.shape).clone(), cells[-1].reshape(cx_.shape).clone()
    return y, *last, input.new_empty(0, dtype=torch.uint8)


def lstm_layer_backward(  # noqa: PLR0913
    input: Any, weight1: Any, weight2: Any, weight3: Any, weight4: Any, hx_: Any, cx_tmp: Any,
    output: Any, hy_: Any, cy_: Any, grad_output: Any, grad_hy: Any, grad_cy: Any, reverse: bool,
    mode: int, hidden_size: int, num_layers: int, has_biases: bool, train: bool,
    bidirectional: bool, batch_sizes: Any, batch_first: bool, workspace: Any,
) -> Any:  # fmt: skip
    """Return the gradients of a layer's tensors, whose steps are computed again.

    Those of weights are products over steps and rows, those of biases sums over them.
    """
    import torch

    tensors = input, weight1, weight2, weight3, weight4, hx_, cx_tmp
    if not _takes(input, mode, *tensors):
        return stock(
            *tensors, output, hy_, cy_, grad_output, grad_hy, grad_cy, reverse, mode, hidden_size,
            num_layers, has_biases, train, bidirectional, batch_sizes, batch_first, workspace,
        )  # fmt: skip
    biases = (weight3, weight4) if has_biases else (None, None)
    h, c = (t.reshape(input.shape[1], -1) for t in (hx_, cx_tmp))
    hidden, cells, gates = _steps(input, weight1, weight2, biases, h, c, reverse)
    backward: Any = torch.ops.aten
    made: list[Any] = []
    of_h, of_c = (
        torch.zeros_like(h) if d is None else d.reshape(h.shape) for d in (grad_hy, grad_cy)
    )
    steps = len(gates)
    given = torch.zeros_like(output) if grad_output is None else grad_output
    for number in range(steps - 1, -1, -1):
        of_h = of_h + given[steps - 1 - number if reverse else number]
        i, f, g, o = gates[number].chunk(4, 1)
        bent = cells[number + 1].tanh()
        of_c = of_c + backward.tanh_backward(of_h * o, bent)
        of_gates = (
            backward.sigmoid_backward(of_c * g, i),
            backward.sigmoid_backward(of_c * cells[number], f),
            backward.tanh_backward(of_c * i, g),
            backward.sigmoid_backward(of_h * bent, o),
        )
        made.append(torch.cat(of_gates, 1))
        of_c = of_c * f
        of_h = made[-1] @ weight2
    # By the positions of the input, which a layer in reverse goes through from the last.
    whole, before = torch.stack(made), torch.stack(hidden[-2::-1])
    if not reverse:
        whole, before = whole.flip(0), before.flip(0)
    flat = whole.flatten(0, 1)
    bias = over(flat, [0])
    return (
        whole @ weight1, flat.mT @ input.flatten(0, 1), flat.mT @ before.flatten(0, 1),
        bias, bias.clone(), of_h.reshape(hx_.shape), of_c.reshape(cx_tmp.shape),
    )  # fmt: skip
