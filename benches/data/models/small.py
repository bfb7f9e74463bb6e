# SPDX-License-Identifier: Apache-2.0
"""Small models of many kinds: a few thousand parameters each, in torch's own layers."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F


class Encoder(nn.Module):
    """Layers of torch's own transformer, with a mask for padding."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(48, 4, 96, dropout=0.1, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(48, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return (rows, 10) of (rows, 16, 48)."""
        padding = torch.arange(16).expand(len(x), 16) >= 12
        found: torch.Tensor = self.head(self.layers(x, src_key_padding_mask=padding).mean(1))
        return found


class Recurrent(nn.Module):
    """Two layers of LSTM, or of another kind, and a linear one."""

    def __init__(self, kind: type[nn.Module] = nn.LSTM) -> None:
        super().__init__()
        self.cells = kind(24, 32, num_layers=2, batch_first=True)
        self.norm, self.head = nn.LayerNorm(32), nn.Linear(32, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return (rows, 10) of (rows, 12, 24)."""
        found: torch.Tensor = self.head(self.norm(self.cells(x)[0][:, -1]))
        return found


def perceptron() -> nn.Module:
    """Return a perceptron with batch norm and dropout, from 20 to 10 features."""
    return nn.Sequential(
        nn.Linear(20, 64), nn.BatchNorm1d(64), nn.ELU(), nn.Dropout(0.2),
        nn.Linear(64, 64), nn.LayerNorm(64), nn.Tanh(), nn.Linear(64, 10), nn.LogSoftmax(-1),
    )  # fmt: skip


class UNet(nn.Module):
    """One level down and up again, with group norm and a skip connection."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.GroupNorm(4, 16), nn.SiLU())
        self.middle = nn.Sequential(nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.GELU())
        self.up = nn.ConvTranspose2d(32, 16, 2, stride=2)
        self.out = nn.Conv2d(32, 3, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the shape of (rows, 3, 16, 16)."""
        skipped = self.down(x)
        middle = self.middle(F.max_pool2d(skipped, 2))
        found: torch.Tensor = self.out(torch.cat([self.up(middle), skipped], 1))
        return found


class Variational(nn.Module):
    """An autoencoder that draws its code from normal numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.encode, self.decode = nn.Linear(32, 16), nn.Linear(8, 32)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the image and its code's divergence of (rows, 32)."""
        mean, scale = torch.tanh(self.encode(x)).chunk(2, 1)
        code = mean + (0.5 * scale).exp() * torch.randn_like(mean)
        divergence = (mean.square() + scale.exp() - scale - 1).mean(1)
        return torch.sigmoid(self.decode(code)), divergence


class Temporal(nn.Module):
    """Causal convolutions over time with growing steps."""

    def __init__(self) -> None:
        super().__init__()
        sizes = [(8, 16), (16, 16), (16, 16)]
        self.layers = nn.ModuleList(
            nn.Conv1d(a, b, 3, dilation=2**i) for i, (a, b) in enumerate(sizes)
        )
        self.norm, self.head = nn.LayerNorm(16), nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return (rows, 4) of (rows, 8, 32)."""
        for i, layer in enumerate(self.layers):
            x = F.gelu(layer(F.pad(x, (2 * 2**i, 0))))
        found: torch.Tensor = self.head(self.norm(x.mean(2)))
        return found


class Mixer(nn.Module):
    """Perceptrons over patches and over channels in turn."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 24, 8, 8)
        self.norms = nn.ModuleList(nn.LayerNorm(24) for _ in range(4))
        self.tokens = nn.ModuleList(nn.Linear(16, 16) for _ in range(2))
        self.channels = nn.ModuleList(nn.Linear(24, 24) for _ in range(2))
        self.head = nn.Linear(24, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return (rows, 10) of (rows, 3, 32, 32)."""
        x = self.patches(x).flatten(2).mT
        for i in range(2):
            x = x + F.gelu(self.tokens[i](self.norms[2 * i](x).mT)).mT
            x = x + F.gelu(self.channels[i](self.norms[2 * i + 1](x)))
        found: torch.Tensor = self.head(x.mean(1))
        return found


class Graph(nn.Module):
    """Two rounds of messages along the edges of a fixed graph."""

    def __init__(self) -> None:
        super().__init__()
        ends = torch.randint(24, (2, 80), generator=torch.Generator().manual_seed(1))
        self.register_buffer("ends", ends)
        self.message, self.update = nn.Linear(16, 16), nn.GRUCell(16, 16)
        self.head = nn.Linear(16, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return (24, 3) of (24, 16)."""
        for _ in range(2):
            sent = torch.tanh(self.message(x))[self.ends[0]]
            x = self.update(torch.zeros_like(x).index_add(0, self.ends[1], sent), x)
        found: torch.Tensor = F.log_softmax(self.head(x), -1)
        return found


class Translator(nn.Module):
    """Encoder and decoder of a transformer, with a causal mask."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(30, 32)
        self.body = nn.Transformer(32, 4, 1, 1, 64, dropout=0.0, batch_first=True)
        self.head = nn.Linear(32, 30)

    def forward(self, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """Return (rows, 8, 30) of (rows, 12) and (rows, 8)."""
        mask = nn.Transformer.generate_square_subsequent_mask(target.shape[1])
        x = self.body(self.words(source), self.words(target), tgt_mask=mask)
        found: torch.Tensor = self.head(x)
        return found


class Recommender(nn.Module):
    """Bags of categories beside numbers, and the products of their embeddings."""

    def __init__(self) -> None:
        super().__init__()
        self.bags = nn.ModuleList(nn.EmbeddingBag(20, 8, mode="sum") for _ in range(3))
        self.numbers = nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, 8))
        self.top = nn.Sequential(nn.Linear(24, 16), nn.ReLU(), nn.Linear(16, 1), nn.Sigmoid())

    def forward(self, numbers: torch.Tensor, categories: torch.Tensor) -> torch.Tensor:
        """Return (rows, 1) of (rows, 5) and (rows, 3, 4)."""
        parts = [self.numbers(numbers)]
        parts += [bag(categories[:, i]) for i, bag in enumerate(self.bags)]
        every = torch.stack(parts, 1)
        products = torch.bmm(every, every.mT).flatten(1)
        found: torch.Tensor = self.top(torch.cat([parts[0], products], 1))
        return found


class Gated(nn.Module):
    """A layer of a Llama: RMS norm, attention with rotated positions, SwiGLU."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(40, 32), nn.Linear(32, 40, bias=False)
        self.norms = nn.ModuleList(nn.RMSNorm(32) for _ in range(2))
        self.project, self.out = nn.Linear(32, 96, bias=False), nn.Linear(32, 32, bias=False)
        self.gate, self.up = nn.Linear(32, 64, bias=False), nn.Linear(32, 64, bias=False)
        self.down = nn.Linear(64, 32, bias=False)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        """Return (rows, length, 40) of (rows, length)."""
        x = self.words(words)
        rows, length, _ = x.shape
        parts = self.project(self.norms[0](x)).view(rows, length, 3, 4, 8).permute(2, 0, 3, 1, 4)
        query, key, value = _rotated(parts[0]), _rotated(parts[1]), parts[2]
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        inner = self.norms[1](x)
        found: torch.Tensor = self.head(x + self.down(F.silu(self.gate(inner)) * self.up(inner)))
        return found


def _rotated(x: torch.Tensor) -> torch.Tensor:
    half = x.shape[-1] // 2
    angle = torch.outer(torch.arange(x.shape[-2]), 0.1 ** torch.arange(half))
    a, b = x.chunk(2, -1)
    return torch.cat([a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()], -1)
