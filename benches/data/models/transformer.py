# SPDX-License-Identifier: Apache-2.0
"""A small decoder of characters: GELU, softmax attention, layer norm."""

from __future__ import annotations

import math

import torch
from torch import nn


class Attention(nn.Module):
    """Causal attention whose softmax is an operator of its own.

    ``scaled_dot_product_attention`` would run its CPU flash kernel, whose exponential is inlined,
    so that no swap reaches it (docs/results/reach.md).
    """

    def __init__(self, size: int, heads: int, length: int) -> None:
        super().__init__()
        self.heads = heads
        self.project = nn.Linear(size, 3 * size)
        self.softmax = nn.Softmax(dim=-1)
        self.out = nn.Linear(size, size)
        later = torch.full((length, length), float("-inf")).triu(1)
        self.register_buffer("later", later, persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return (batch, length, size) of the same shape."""
        batch, length, size = x.shape
        query, key, value = (
            part.view(batch, length, self.heads, -1).transpose(1, 2)
            for part in self.project(x).split(size, dim=2)
        )
        scores = query @ key.transpose(2, 3) / math.sqrt(size // self.heads)
        weights = self.softmax(scores + self.later[:length, :length])
        found: torch.Tensor = self.out((weights @ value).transpose(1, 2).flatten(2))
        return found


class Layer(nn.Module):
    """Attention and two linear layers with GELU, each behind a layer norm."""

    def __init__(self, size: int, heads: int, length: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(size), nn.LayerNorm(size)
        self.attention = Attention(size, heads, length)
        # The tanh form, because oneDNN computes the other on contiguous float32, out of reach.
        self.feed = nn.Sequential(
            nn.Linear(size, 4 * size), nn.GELU(approximate="tanh"), nn.Linear(4 * size, size)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return (batch, length, size) of the same shape."""
        x = x + self.attention(self.norm1(x))
        found: torch.Tensor = x + self.feed(self.norm2(x))
        return found


class Transformer(nn.Module):
    """Predicts the next character at every position of a window."""

    def __init__(
        self, symbols: int, length: int = 64, size: int = 64, heads: int = 4, layers: int = 2
    ) -> None:
        super().__init__()
        self.characters = nn.Embedding(symbols, size)
        self.positions = nn.Parameter(0.02 * torch.randn(length, size))
        self.layers = nn.Sequential(*(Layer(size, heads, length) for _ in range(layers)))
        self.head = nn.Sequential(
            nn.LayerNorm(size), nn.Linear(size, symbols), nn.LogSoftmax(dim=-1)
        )

    def forward(self, windows: torch.Tensor) -> torch.Tensor:
        """Return log-probabilities (batch, length, symbols) of windows (batch, length), int64."""
        embedded = self.characters(windows) + self.positions[: windows.shape[1]]
        found: torch.Tensor = self.head(self.layers(embedded))
        return found
