# SPDX-License-Identifier: Apache-2.0
"""A causal language model with a cache, called as those of transformers, and of torch alone."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

WIDTH, HEADS, WORDS = 48, 3, 70


class Layer(nn.Module):
    """Attention and a feed-forward network."""

    def __init__(self):
        super().__init__()
        self.norm, self.second_norm = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.dropout = nn.Dropout(0.1)

    def attend(self, q, k, v, mask):
        return F.scaled_dot_product_attention(q, k, v, mask)

    def forward(self, x, mask, past):
        shape = (*x.shape[:2], HEADS, -1)
        q, k, v = (t.view(shape).transpose(1, 2) for t in self.qkv(self.norm(x)).chunk(3, -1))
        k, v = self.remember(k, v, past)
        attended = self.attend(q, k, v, mask).transpose(1, 2).flatten(2)
        x = self.add(x, self.dropout(self.out(attended)))
        return self.add(x, self.feed(self.second_norm(x))), (k, v)

    def add(self, x, y):
        return x + y

    def feed(self, x):
        return self.down(self.activate(self.up(x)))

    def activate(self, x):
        return F.silu(x)

    def remember(self, k, v, past):
        """Put the keys and values behind those of a cache."""
        if past is None:
            return k, v
        return torch.cat([past[0], k], 2), torch.cat([past[1], v], 2)


class Model(nn.Module):
    """Two layers between an embedding and a linear layer."""

    layer: type[Layer] = Layer

    def __init__(self):
        super().__init__()
        self.config = None  # tells that there is a cache
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(256, WIDTH)
        self.layers = nn.ModuleList(self.layer() for _ in range(2))
        self.head = nn.Linear(WIDTH, WORDS, bias=False)

    def forward(
        self, input_ids, attention_mask=None, position_ids=None, cache_params=None, use_cache=False
    ):
        before = 0 if cache_params is None else cache_params[0][0].shape[2]
        rows, length = input_ids.shape
        if position_ids is None:
            position_ids = torch.arange(before, before + length)[None]
        mask = self.mask(rows, before, length, attention_mask)
        x = self.embed(input_ids, position_ids)
        cache = []
        for i, layer in enumerate(self.layers):
            x, kept = layer(x, mask, None if cache_params is None else cache_params[i])
            cache.append(kept)
        return {"logits": self.score(x), "cache_params": cache}

    def embed(self, input_ids, position_ids):
        return self.words(input_ids) + self.places(position_ids)

    def score(self, x):
        return self.head(x)

    def mask(self, rows, before, length, attention_mask):
        """Return which keys each position sees."""
        allowed = torch.ones(length, before + length, dtype=torch.bool).tril(before)
        if attention_mask is None:
            return allowed
        if attention_mask.dim() == 4:
            return attention_mask == 0
        allowed = allowed & attention_mask.bool()[:, None, None, :]
        # A row of padding sees itself, so that no row is empty.
        return allowed | torch.eye(length, dtype=torch.bool)


def inputs():
    """Four rows of 64 words."""
    words = torch.randint(WORDS, (4, 64), generator=torch.Generator().manual_seed(1))
    return {"input_ids": words}


def made(model=Model):
    """Return a model with the same weights every time, and its inputs."""
    torch.manual_seed(0)
    return model().eval(), inputs()


def make():
    """Return the model without faults, for a command line."""
    return made()
