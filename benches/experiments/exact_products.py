# SPDX-License-Identifier: Apache-2.0
"""How far products of 16 bits as exact sums of integers are from float64, beside stock's results.

    python -m benches.experiments.exact_products [--store FILE]

A row or column has one power of two for each chunk of k, in which its numbers are integers of so
many bits. The candidates differ in this width, in how many products of their two digits of 8 bits
are added (three leave out the product of the lower ones), in the length of chunks, and in a third
digit of the one operand. Chunks are float32, are added by the tree of docs/reproduce/contract.md,
and the result is rounded once.

Of each candidate a row has its root mean square error over that of stock's product in the same
dtype: 1 is as near to float64 as stock. What the integers do is computed in float64, where they are
exact.

Attention in bfloat16 under ``repro`` and its gradients are compared with float64 in the same way,
also over the channels that are no outlier. Both, and a linear layer, are timed in one thread in
turns with stock, as ``contract_speed`` does.
"""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import torch
from torch import nn
from torchvision.models import VisionTransformer

import pytest_udftorch
from benches.data import photographs
from benches.experiments import command, contract_speed, training
from benches.experiments.cpu_operators import keep_freed_memory

ROWS: Final = 96
K: Final = 4096
STEPS: Final = 60
#: Of attention: lengths of sequences, heads, their size, and the channel that is an outlier.
LENGTHS: Final = (128, 512, 2048, 4096)
HEADS: Final = 2
SIZE: Final = 64
LOUD: Final = 3
#: Rows of a model's products that are computed.
MOST: Final = 256

Tensor = torch.Tensor
Pair = tuple[Tensor, Tensor]


class Candidate(NamedTuple):
    """A way to write operands as integers.

    Attributes:
        bits: of the integers of the left and of the right operand, with their signs.
        products: of digits that are added: 4, or 3 without that of the lower ones.
        chunk: of k; 0 is all of it.
    """

    bits: tuple[int, int]
    products: int
    chunk: int

    @property
    def label(self) -> str:
        """Its name in the table."""
        width = " x ".join(map(str, self.bits)) if len(set(self.bits)) > 1 else str(self.bits[0])
        return f"{width} bits, {self.products} products, {self.chunk or 'k'}"


CANDIDATES: Final = (
    *(Candidate((16, 16), 4, chunk) for chunk in (256, 512, 1024, 2048, 0)),
    *(Candidate((16, 16), 3, chunk) for chunk in (256, 512, 0)),
    *(Candidate((15, 15), 4, chunk) for chunk in (512, 0)),
    Candidate((15, 15), 3, 2048),
    Candidate((24, 16), 6, 512),
    Candidate((24, 24), 9, 512),
)
#: What the clause takes.
CHOSEN: Final = Candidate((16, 16), 4, 512)


def integers(x: Tensor, chunk: int, bits: int) -> Pair:
    """Return rows as integers (rows, chunks, chunk), and the exponents of their units."""
    rows, k = x.shape
    count = -(-k // chunk)
    padded = x.new_zeros(rows, count * chunk)
    padded[:, :k] = x
    padded = padded.view(rows, count, chunk)
    top = padded.abs().amax(-1)
    unit = torch.frexp(top).exponent.double() - (bits - 1)
    # Both digits are at most 127; of 15 bits and less all fit.
    largest = 127 * 256 + 127 if bits == 16 else 2 ** (bits - 1)
    unit += (top * torch.exp2(-unit)).round() > largest
    return (padded * torch.exp2(-unit)[..., None]).round(), unit


def lower(x: Tensor) -> Tensor:
    """Return the lower digits of integers."""
    return x - 256 * torch.floor((x + 128) / 256)


def tree(parts: list[Tensor]) -> Tensor:
    """Add neighbours level by level."""
    while len(parts) > 1:
        pairs = [a + b for a, b in zip(parts[::2], parts[1::2], strict=False)]
        parts = [*pairs, *parts[2 * len(pairs) :]]
    return parts[0]


def product(a: Tensor, b: Tensor, by: Candidate) -> Tensor:
    """Return the product of two matrices in 16 bits, in float32."""
    chunk = by.chunk or a.shape[1]
    (x, v), (y, w) = (
        integers(of.double(), chunk, bits) for of, bits in zip((a, b.t()), by.bits, strict=True)
    )
    parts = []
    for q in range(x.shape[1]):
        total = x[:, q] @ y[:, q].t()
        if by.products == 3:
            total -= lower(x[:, q]) @ lower(y[:, q]).t()
        unit = torch.exp2(v[:, q, None] + w[None, :, q])
        parts.append((total.float().double() * unit).float())
    return tree(parts)


def error(found: Tensor, exact: Tensor) -> float:
    """Return the root mean square error."""
    return float((found.double() - exact).square().mean().sqrt())


def compared(a: Tensor, b: Tensor) -> dict[str, float]:
    """Return candidate -> its error over stock's, which is 1 where both are right."""
    exact = a.double() @ b.double()
    stock, found = error(a @ b, exact), {}
    for by in CANDIDATES:
        ours = error(product(a, b, by).to(a.dtype), exact)
        found[by.label] = 1.0 if ours == stock else ours / stock if stock else math.inf
    return found


# Attention -----------------------------------------------------------------------------------


#: Name -> factors of a channel of queries, keys and values.
OUTLIERS: Final[dict[str, tuple[float, float, float]]] = {
    "normal": (1, 1, 1),
    "a channel of values 100 times the others": (1, 1, 100),
    "a channel of values 1,000 times the others": (1, 1, 1000),
    "a channel of keys 30 times the others": (1, 30, 1),
    "a channel of queries and keys 10 times the others": (10, 10, 1),
}


def attended(given: Sequence[Tensor]) -> dict[str, Tensor]:
    """Return the result of causal attention and its gradients, of three inputs and a gradient."""
    inputs = [x.detach().requires_grad_() for x in given[:3]]
    out = nn.functional.scaled_dot_product_attention(*inputs, is_causal=True)
    found = (out.detach(), *torch.autograd.grad(out, inputs, given[3]))
    return dict(zip(("result", "query", "key", "value"), found, strict=True))


def attention_errors(length: int, factors: Sequence[float]) -> dict[str, dict[str, float]]:
    """Return the errors over stock's: of all channels, and of those that are no outlier."""
    generator = torch.Generator().manual_seed(length)
    given = [torch.randn(1, HEADS, length, SIZE, generator=generator) for _ in range(4)]
    for x, factor in zip(given, factors, strict=False):
        x[..., LOUD] *= factor
    narrow = [x.bfloat16() for x in given]
    exact, stock = attended([x.double() for x in narrow]), attended(narrow)
    with pytest_udftorch.patched("repro"):
        ours = attended(narrow)
    others = [channel for channel in range(SIZE) if channel != LOUD]
    found = {}
    for label, channels in (("all", list(range(SIZE))), ("others", others)):
        found[label] = {
            name: error(ours[name][..., channels], exact[name][..., channels])
            / error(stock[name][..., channels], exact[name][..., channels])
            for name in exact
        }
    return found


# Speed ---------------------------------------------------------------------------------------


def calls() -> dict[str, Callable[[], object]]:
    """Return a linear layer and attention in bfloat16."""
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator).bfloat16()

    x, weight = normal(512, 1024), normal(1024, 1024)
    attend = functools.partial(nn.functional.scaled_dot_product_attention, is_causal=True)
    found: dict[str, Callable[[], object]] = {
        "linear, 512×1024 to 1024": lambda: nn.functional.linear(x, weight)
    }
    for heads, length in ((8, 512), (4, 2048)):
        given = [normal(1, heads, length, SIZE) for _ in range(4)]
        size = f"{heads} heads of {length:,} × {SIZE}"
        found[f"causal attention, {size}"] = functools.partial(attend, *given[:3])
        found[f"the same with its gradients, {size}"] = functools.partial(attended, given)
    key = normal(1, 32, 2048, SIZE)
    one = functools.partial(nn.functional.scaled_dot_product_attention, key[:, :, :1], key, key)
    found[f"attention of one query, 32 heads of 2,048 × {SIZE}"] = one
    return found


def speeds() -> dict[str, Any]:
    """Return name -> times under stock and ``repro``, and the share of stock's speed."""
    keep_freed_memory()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return {name: contract_speed.compared(call) for name, call in calls().items()}
    finally:
        torch.set_num_threads(threads)


# Cases ---------------------------------------------------------------------------------------


def made(dtype: torch.dtype) -> Iterator[tuple[str, Pair]]:
    """Yield names and factors of products of random numbers."""
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    a, b = normal(ROWS, K), normal(K, ROWS)
    loud = torch.ones(K)
    loud[77] = 1000
    other = torch.ones(K)
    other[1234] = 1000
    # Half would overflow where both have it.
    scale = 1.0 if dtype is torch.bfloat16 else 0.01
    yield "normal", (a, b)
    yield "k of 65,536", (normal(ROWS, 65536), normal(65536, ROWS))
    yield "a channel of A 1,000 times the others", (scale * a * loud, b)
    yield "a channel of each, another one", (scale * a * loud, scale * b * other[:, None])
    yield "a channel of each, the same", (scale * a * loud, scale * b * loud[:, None])
    yield "positive", (a.abs(), b.abs())
    yield "weights of softmax", ((3 * a).softmax(1), b)
    wide = [scale * torch.exp(2 * normal(*of.shape)) * of for of in (a, b)]
    yield "log-normal magnitudes", (wide[0], wide[1])
    x, y = a[:, : K // 2], b[: K // 2]
    # Differences of neighbours in bfloat16 stay.
    near = y.to(dtype).float() * (1 + normal(*y.shape) * 2.0**-7)
    yield "halves that cancel", (torch.cat([x, x], 1), torch.cat([y, -near]))
    turned = (torch.stack([x, x], 2).flatten(1), torch.stack([y, -near], 1).flatten(0, 1))
    yield "neighbours that cancel", turned


def step_of(model: nn.Module, loss: Callable[[], Tensor]) -> list[tuple[Tensor, ...]]:
    """Return the input, weight and gradient of the result of each linear layer of a step."""
    found: list[tuple[Tensor, ...]] = []

    def see(layer: nn.Linear, given: Any, result: Tensor) -> None:
        x = given[0].detach().flatten(0, -2)
        result.register_hook(
            lambda g: found.append((x, layer.weight.detach(), g.detach().flatten(0, -2)))
        )

    linear = [layer for layer in model.modules() if type(layer) is nn.Linear]
    handles = [layer.register_forward_hook(see) for layer in linear]
    loss().backward()
    for handle in handles:
        handle.remove()
    return found


def layers() -> Iterator[tuple[str, list[tuple[Tensor, ...]]]]:
    """Yield names of models and their linear layers in a step."""
    for task in (training.lenet(), training.transformer()):
        run = training.Training(task, 0)
        batches = task.batches(0)
        for _ in range(STEPS):
            run.step(next(batches))
        last = next(batches)
        yield task.label, step_of(run.model, functools.partial(run.loss, last))
    torch.manual_seed(0)
    samples = photographs.load()
    model = VisionTransformer(32, 4, 4, 4, 128, 512, num_classes=10)
    images, targets = samples.train_inputs[:32], samples.train_targets[:32]
    label = "vision transformer, 4 layers of size 128, random weights, batch 32"
    yield label, step_of(model, lambda: nn.functional.cross_entropy(model(images), targets))


def products(x: Tensor, weight: Tensor, grad: Tensor) -> dict[str, Pair]:
    """Return the three products of a linear layer."""
    return {
        "result": (x[:MOST], weight.t()),
        "gradient of the input": (grad[:MOST], weight),
        "gradient of the weight": (grad.t()[:MOST], x),
    }


def means(rows: Sequence[dict[str, float]]) -> dict[str, float]:
    """Return the geometric mean of each candidate over rows."""
    return {
        label: math.exp(sum(math.log(row[label]) for row in rows) / len(rows)) for label in rows[0]
    }


def measure() -> dict[str, Any]:
    """Return the errors of all candidates over stock's, in each case."""
    found: list[dict[str, Any]] = []

    def add(dtype: torch.dtype, case: str, errors: dict[str, float]) -> None:
        found.append({"dtype": str(dtype)[6:], "case": case, "errors": errors})
        print(f"{found[-1]['dtype']:9}{case:64}{errors[CHOSEN.label]:7.3f}", flush=True)

    for dtype in (torch.bfloat16, torch.float16):
        for case, (a, b) in made(dtype):
            add(dtype, case, compared(a.to(dtype), b.to(dtype)))
    for label, steps in layers():
        of_kind: dict[str, list[dict[str, float]]] = {}
        for x, weight, grad in steps:
            for kind, (a, b) in products(x, weight, grad).items():
                errors = compared(a.bfloat16(), b.bfloat16())
                of_kind.setdefault(kind, []).append(errors)
        for kind, rows in of_kind.items():
            add(torch.bfloat16, f"{label}: {kind}", means(rows))
    attention = []
    for case, factors in OUTLIERS.items():
        for length in LENGTHS:
            attention.append({"case": case, "length": length, **attention_errors(length, factors)})
            print(attention[-1], flush=True)
    return {
        "chosen": CHOSEN.label, "steps": STEPS, "k": K, "rows": found, "attention": attention,
        "speeds": speeds(),
    }  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    """Run from the command line; return the exit status."""
    options = command.parser("exact_products", __doc__).parse_args(arguments)

    def judge(figures: dict[str, Any]) -> bool:
        rows = [row for row in figures["rows"] if row["dtype"] == "bfloat16"]
        near = all(row["errors"][CHOSEN.label] < 1.11 for row in rows)
        return near and all(max(row["all"].values()) < 1 for row in figures["attention"])

    return command.run("exact_products", options, measure, judge)


if __name__ == "__main__":
    sys.exit(main())
