# SPDX-License-Identifier: Apache-2.0
"""The recurrent cell that a search found, as in TensorFlow's ``NASCell``.

Source: Zoph and Le, Neural Architecture Search with Reinforcement Learning, ICLR 2017. It is
``NasRNN`` in the tables of TASO and PET: each gate has matrices of its own.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

GATES = 8


class NasRnn(nn.Module):
    """Some steps of the cell.

    Args:
        width: of the input and of the state.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.inputs, self.states = (
            nn.ParameterList(torch.randn(width, width) / width**0.5 for _ in range(GATES))
            for _ in range(2)
        )

    def _step(self, x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        i, m = ([t @ w for w in ws] for t, ws in ((x, self.inputs), (h, self.states)))
        first = [
            torch.sigmoid(m[0] + i[0]),
            torch.relu(m[1] + i[1]),
            torch.sigmoid(m[2] + i[2]),
            torch.relu(m[3] * i[3]),
            torch.tanh(m[4] + i[4]),
            torch.sigmoid(m[5] + i[5]),
            torch.tanh(m[6] + i[6]),
            torch.sigmoid(m[7] + i[7]),
        ]
        second = [
            torch.tanh(first[0] * first[1]),
            torch.tanh(first[2] + first[3]),
            torch.tanh(first[4] * first[5]),
            torch.sigmoid(first[6] + first[7]),
        ]
        injected = torch.tanh(second[0] + c)
        memory = injected * second[1]
        other = torch.tanh(second[2] + second[3])
        return torch.tanh(memory * other), memory

    def forward(self, x: Tensor) -> Tensor:
        """Return the last state.

        Args:
            x: batch x steps x width.
        """
        h = c = x.new_zeros(x.shape[0], x.shape[2])
        for step in range(x.shape[1]):
            h, c = self._step(x[:, step], h, c)
        return h
