# SPDX-License-Identifier: Apache-2.0
"""Beyond the six: a vision transformer and a small GPT, end to end over the executors.

    python -m benches.experiments.compile_transformers OUT.json [--scale full] [--device cuda]

The vision transformer is torchvision's; at the full scale vit_b_16 at 224 x 224. The GPT is a
decoder of pre-norm blocks with causal attention; at the full scale 12 layers of width 768 over
512 tokens of 50,257 (the sizes of GPT-2's smallest). Weights are random.
A row also holds the time of each layer in the interpreted model, measured by hooks.
"""

from __future__ import annotations

import sys

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torchvision.models import VisionTransformer

from benches.experiments import experiment
from benches.experiments.experiment import Case, Experiment, Prepared
from pytest_udftorch.measure import layer_times, model_pair

EXECUTORS = {
    "cpu": ["eager", "compile"],
    "cuda": [
        "eager",
        "compile",
        "eager+cudagraph",
        "compile+cudagraph",
        "compile-reduce-overhead",
    ],
}

#: Layers, heads, width; image or context, and patch or vocabulary.
SIZES = {
    ("vit", "small"): (4, 4, 128, 64, 16),
    ("vit", "full"): (12, 12, 768, 224, 16),
    ("gpt", "small"): (4, 4, 128, 64, 1000),
    ("gpt", "full"): (12, 12, 768, 512, 50257),
}


class Block(nn.Module):
    """Causal attention and a perceptron, each after a norm and around a residual path."""

    def __init__(self, heads: int, width: int) -> None:
        super().__init__()
        self.heads = heads
        self.before_attention = nn.LayerNorm(width)
        self.projections = nn.Linear(width, 3 * width)
        self.attended = nn.Linear(width, width)
        self.before_perceptron = nn.LayerNorm(width)
        self.wide = nn.Linear(width, 4 * width)
        self.activation = nn.GELU(approximate="tanh")
        self.narrow = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Return batch x tokens x width for batch x tokens x width."""
        parts = self.projections(self.before_attention(x)).chunk(3, dim=-1)
        query, key, value = (p.unflatten(-1, (self.heads, -1)).transpose(1, 2) for p in parts)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.attended(mixed.transpose(1, 2).flatten(2))
        return x + self.narrow(self.activation(self.wide(self.before_perceptron(x))))


class Gpt(nn.Module):
    """Token and position embeddings, blocks, and logits with the embedding's weights."""

    def __init__(self, layers: int, heads: int, width: int, context: int, tokens: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(tokens, width)
        self.positions = nn.Embedding(context, width)
        self.blocks = nn.Sequential(*(Block(heads, width) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.logits = nn.Linear(width, tokens, bias=False)
        self.logits.weight = self.tokens.weight

    def forward(self, ids: Tensor) -> Tensor:
        """Return logits, batch x tokens x vocabulary, for int64 token ids, batch x tokens."""
        places = torch.arange(ids.shape[1], device=ids.device)
        x = self.tokens(ids) + self.positions(places)
        return self.logits(self.norm(self.blocks(x)))


def build(kind: str, scale: str, batch: int) -> tuple[nn.Module, Tensor]:
    """Return the model in evaluation mode, with weights from seed 0, and an input."""
    torch.manual_seed(0)
    layers, heads, width, size, last = SIZES[kind, scale]
    if kind == "vit":
        model: nn.Module = VisionTransformer(size, last, layers, heads, width, 4 * width)
        # torchvision initialises the head with zeros, and all outputs would be equal.
        nn.init.normal_(model.heads.head.weight, std=0.02)
        return model.eval(), torch.randn(batch, 3, size, size)
    model = Gpt(layers, heads, width, size, last)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            nn.init.normal_(parameter, std=0.02)
    return model.eval(), torch.randint(last, (batch, size))


def cases(device: str, scale: str) -> list[Case]:
    """Return models and batches; the large batches only on a GPU."""
    wide = {"vit": 32, "gpt": 8} if (device, scale) == ("cuda", "full") else {}
    found = [{"model": kind, "batch": 1, "size": scale} for kind in ("vit", "gpt")]
    return found + [{"model": k, "batch": b, "size": scale} for k, b in wide.items()]


def prepare(case: Case, device: str) -> Prepared:
    """Return the executors of one model."""
    model, x = build(case["model"], case["size"], case["batch"])
    model, x = model.to(device), x.to(device)
    prepared = experiment.pair_calls(model_pair(model, x, EXECUTORS[device]))
    report = layer_times(model, (x,), runs=7, rounds=3)
    prepared.info["layers"] = [row.document() for row in report.rows]
    prepared.info["notes"] = list(report.notes)
    return prepared


EXPERIMENT = Experiment("compile_transformers", cases, prepare)

if __name__ == "__main__":
    sys.exit(experiment.main(EXPERIMENT, __doc__))
