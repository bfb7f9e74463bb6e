# SPDX-License-Identifier: Apache-2.0
"""A small decoder like Llama's, and a small convolutional net, with layers that ranks can share."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import nn
from torch.nn import functional as F


class Size(NamedTuple):
    """Sizes of a decoder.

    Attributes:
        hidden: features between layers.
        heads: of attention.
        inner: features inside of a feed-forward layer.
        layers: how many.
        symbols: of the vocabulary.
    """

    hidden: int
    heads: int
    inner: int
    layers: int
    symbols: int


class RMSNorm(nn.Module):
    """Root mean square norm, composed of operators."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return float32 of the same shape."""
        x = x.float()
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5))


def turned(x: torch.Tensor) -> torch.Tensor:
    """Return queries or keys, (batch, heads, length, features), turned by their positions."""
    length, size = x.shape[2:]
    steps = torch.arange(0, size, 2, dtype=torch.float32) / size
    places = torch.arange(length, dtype=torch.float32)
    angles = torch.outer(places, torch.exp(-9.25 * steps)).repeat(1, 2)
    cos, sin = angles.cos().to(x.device), angles.sin().to(x.device)
    left, right = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-right, left], -1) * sin


class Attention(nn.Module):
    """Causal attention in float32, of as many heads as this rank's projections have."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.features = size.hidden // size.heads
        self.q, self.k, self.v, self.o = (
            nn.Linear(size.hidden, size.hidden, bias=False) for _ in range(4)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return (batch, length, hidden) of the same shape."""
        q, k, v = (
            p.float().unflatten(-1, (-1, self.features)).transpose(1, 2)
            for p in (self.q(x), self.k(x), self.v(x))
        )
        with torch.autocast(q.device.type, enabled=False):
            y = F.scaled_dot_product_attention(turned(q), turned(k), v, is_causal=True)
        found: torch.Tensor = self.o(y.transpose(1, 2).flatten(2))
        return found


class Feed(nn.Module):
    """SwiGLU; its functions are called in float32."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.gate = nn.Linear(size.hidden, size.inner, bias=False)
        self.up = nn.Linear(size.hidden, size.inner, bias=False)
        self.down = nn.Linear(size.inner, size.hidden, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return (batch, length, hidden) of the same shape."""
        found: torch.Tensor = self.down(F.silu(self.gate(x).float()) * self.up(x).float())
        return found


class Layer(nn.Module):
    """Attention and SwiGLU, each behind a norm."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.norm1, self.norm2 = RMSNorm(size.hidden), RMSNorm(size.hidden)
        self.attention, self.feed = Attention(size), Feed(size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return (batch, length, hidden) of the same shape."""
        x = x + self.attention(self.norm1(x))
        found: torch.Tensor = x + self.feed(self.norm2(x))
        return found


class Llama(nn.Module):
    """A decoder; between layers numbers are float32."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.tokens = nn.Embedding(size.symbols, size.hidden)
        self.layers = nn.ModuleList(Layer(size) for _ in range(size.layers))
        self.norm = RMSNorm(size.hidden)
        self.head = nn.Linear(size.hidden, size.symbols, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return logits, (batch, length, symbols) in float32."""
        x = self.tokens(tokens)
        for layer in self.layers:
            x = layer(x)
        found: torch.Tensor = self.head(self.norm(x)).float()
        return found


class Net(nn.Module):
    """Two convolutions of images of 3 x 12 x 12, and two linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 20, 3, padding=1), nn.Conv2d(20, 36, 3, stride=2)
        self.up, self.down = nn.Linear(36 * 25, 88), nn.Linear(88, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return logits, (batch, 10) in float32."""
        x = torch.tanh(self.first(images).float())
        x = torch.tanh(self.second(x).float())
        x = torch.tanh(self.up(x.flatten(1)).float())
        found: torch.Tensor = self.down(x).float()
        return found
