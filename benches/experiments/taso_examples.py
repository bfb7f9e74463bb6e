# SPDX-License-Identifier: Apache-2.0
"""Does ``udf_taso`` find the merges of the papers, from plain modules, and what do they gain?

    python -m benches.experiments.taso_examples [--threads N] [--runs N] [--only NAME ...]
                                                [--store FILE]

Each example is a part of a model on which Jia et al. (TASO, SOSP 2019) or Ding et al. (RepVGG,
CVPR 2021) report a gain, with random weights and the shapes of the model. It is rewritten by the
templates alone, and by ``udf_taso``, which applies them first. What the search chose by the
measured costs of calls is kept (``gain=0``), and takes turns with templates alone, with
TorchInductor's and with eager mode. The rules that matched and were not chosen are given with what
the region cost before and after.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor, nn

from benches.experiments import command
from pytest_udftorch import UdfError
from pytest_udftorch.measure import recording, sync_timer

RUNS: Final = 30
TOLERANCE: Final = 1e-3
#: At most so many rules are named that matched and were not chosen.
NAMED: Final = 4


class _Branches(nn.Module):
    """Convolutions of one image, each with its norm and activation, put together."""

    def __init__(
        self, inputs: int, kernels: Sequence[tuple[int, int]], joined: str, norm: bool = True
    ) -> None:
        super().__init__()
        self.joined = joined
        self.convolutions = nn.ModuleList(
            nn.Conv2d(inputs, outputs, size, padding=size // 2, bias=not norm)
            for outputs, size in kernels
        )
        self.norms = nn.ModuleList(
            nn.BatchNorm2d(outputs) if norm else nn.Identity() for outputs, _ in kernels
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return the sum, or the channels of all."""
        parts = [n(c(x)) for n, c in zip(self.norms, self.convolutions, strict=True)]
        if self.joined == "add":
            return torch.relu(sum(parts[1:], parts[0]))
        return torch.cat([part.relu() for part in parts], 1)


class _OfTwo(nn.Module):
    """Convolutions of two images, added."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.a, self.b = (nn.Conv2d(width, width, 3, padding=1) for _ in range(2))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the sum."""
        found: Tensor = self.a(x) + self.b(y)
        return found


class _Attention(nn.Module):
    """Attention with a projection for each of query, key and value."""

    def __init__(self, width: int, heads: int, bias: bool, count: int = 3) -> None:
        super().__init__()
        self.heads = heads
        self.layers = nn.ModuleList(nn.Linear(width, width, bias=bias) for _ in range(count))

    def forward(self, x: Tensor) -> Tensor:
        """Return what is attended to; with two projections the keys are the values."""
        parts = [
            layer(x).view(*x.shape[:-1], self.heads, -1).transpose(-2, -3) for layer in self.layers
        ]
        found: Tensor = nn.functional.scaled_dot_product_attention(parts[0], parts[1], parts[-1])
        return found


class _Gates(nn.Module):
    """Gates of a recurrent cell: two products of one input and one of the state for each."""

    def __init__(self, width: int, count: int) -> None:
        super().__init__()
        self.inputs, self.states = (
            nn.ParameterList(torch.randn(width, width) / width for _ in range(count))
            for _ in range(2)
        )

    def forward(self, x: Tensor, h: Tensor) -> Tensor:
        """Return the product of the gates' activations."""
        gates = [x @ w + h @ u for w, u in zip(self.inputs, self.states, strict=True)]
        found = gates[0].sigmoid()
        for gate in gates[1:]:
            found = found * gate.tanh()
        return found


class _Weights(nn.Module):
    """A function of an input and of some matrices."""

    def __init__(self, call: Callable[..., Tensor], *shapes: tuple[int, ...]) -> None:
        super().__init__()
        self.call = call
        self.weights = nn.ParameterList(torch.randn(shape) / shape[-1] for shape in shapes)

    def forward(self, x: Tensor) -> Tensor:
        """Call it."""
        return self.call(x, *self.weights)


@dataclass(frozen=True)
class Example:
    """A part of a model.

    Attributes:
        make: the module.
        shapes: of its inputs.
        what: the merge that the paper reports.
    """

    make: Callable[[], nn.Module]
    shapes: tuple[tuple[int, ...], ...]
    what: str


def _product(x: Tensor, w: Tensor, v: Tensor) -> Tensor:
    return x @ w + x @ v


def _low_rank(x: Tensor, w: Tensor, v: Tensor) -> Tensor:
    return (x @ w) @ v


def _in_batches(x: Tensor, w: Tensor, v: Tensor) -> Tensor:
    return (x @ w).tanh() * (x @ v)


EXAMPLES: Final = {
    "SqueezeNet, expansion": Example(
        lambda: _Branches(16, [(64, 1), (64, 3)], "cat", norm=False),
        ((1, 16, 54, 54),),
        "1 x 1 enlarged to 3 x 3 and merged with the 3 x 3 beside it",
    ),
    "Inception v3, 1 x 1 branches": Example(
        lambda: _Branches(192, [(64, 1), (48, 1), (64, 1)], "cat"),
        ((1, 192, 35, 35),),
        "convolutions of one input merged, behind folded norms, with ReLU behind",
    ),
    "two 3 x 3 branches": Example(
        lambda: _Branches(64, [(64, 3), (64, 3)], "cat"),
        ((1, 64, 28, 28),),
        "convolutions of one input merged",
    ),
    "RepVGG, block": Example(
        lambda: _Branches(64, [(64, 3), (64, 1)], "add"),
        ((1, 64, 56, 56),),
        "1 x 1 enlarged and added to the 3 x 3 beside it",
    ),
    "two norms added": Example(
        lambda: _Branches(64, [(64, 3), (64, 3)], "add"),
        ((1, 64, 28, 28),),
        "kernels of one input added",
    ),
    "NasNet, sum of two inputs": Example(
        lambda: _OfTwo(42),
        ((1, 42, 28, 28), (1, 42, 28, 28)),
        "conv(x, a) + conv(y, b) as one convolution",
    ),
    "ResNeXt, groups": Example(
        lambda: nn.Conv2d(128, 128, 3, padding=1, groups=32),
        ((1, 128, 28, 28),),
        "groups merged two by two",
    ),
    "BERT, query, key, value": Example(
        lambda: _Attention(768, 12, bias=True), ((1, 64, 768),), "three products merged, with bias"
    ),
    "query and key, no bias": Example(
        lambda: _Attention(256, 4, bias=False, count=2),
        ((64, 256),),
        "two products merged, 2-d, without bias",
    ),
    "batched products": Example(
        lambda: _Weights(_in_batches, (8, 64, 64), (8, 64, 64)),
        ((8, 32, 64),),
        "two products merged, batched",
    ),
    "products added": Example(
        lambda: _Weights(_product, (256, 256), (256, 256)), ((64, 256),), "x w + x v as x (w + v)"
    ),
    "products reassociated": Example(
        lambda: _Weights(_low_rank, (8, 256), (256, 8)), ((512, 8),), "(x w) v as x (w v)"
    ),
    "NasRNN, gates": Example(
        lambda: _Gates(512, 4), ((1, 512), (1, 512)), "products of one input merged, and added"
    ),
}


def row(name: str, runs: int) -> dict[str, Any]:
    """Return the figures of an example.

    Raises:
        UdfError: the rewritten module gives other results.
    """
    example = EXAMPLES[name]
    torch.manual_seed(0)
    torch.compiler.reset()
    model = example.make().eval()
    inputs = [torch.randn(shape) for shape in example.shapes]
    calls: dict[str, Callable[..., Tensor]] = {"eager": model}
    kernels, found = {}, None
    for backend in ("udf_templates", "udf_taso"):
        calls[backend] = torch.compile(model, backend=backend, dynamic=False, options={"gain": 0})
        with recording() as reports:
            result = calls[backend](*inputs)
        (found,) = reports
        wanted = model(*inputs)
        far = float((result - wanted).abs().max() / wanted.abs().max())
        if far > TOLERANCE or found.before is None:
            raise UdfError(f"{name}, {backend}: the results differ by {far:.2g}.")
        kernels["as traced"] = found.before.kernels
        kernels[backend] = (found.after or found.before).kernels
    assert found is not None
    calls["inductor"] = torch.compile(model, dynamic=False)
    timed = sync_timer("cpu", runs=runs, rounds=5, warmup=2).compare(
        {label: partial(call, *inputs) for label, call in calls.items()}
    )
    over = {n: timed.speedup("udf_taso", over=n) for n in calls if n != "udf_taso"}
    matched = [d for d in found.details if not d["used"]]
    return {
        "example": name,
        "what": example.what,
        "shapes": [list(shape) for shape in example.shapes],
        "own": found.own,
        "matched": matched[:NAMED],
        "search": found.notes[0],
        "left_alone": found.left_alone,
        "kernels": kernels,
        "median_ns": {n: timed[n].median_ns for n in timed.timings},
        "over": {n: [r.low, r.value, r.high] for n, r in over.items()},
    }


def measure(threads: int | None, runs: int, only: Sequence[str]) -> dict[str, Any]:
    """Return the rows of all examples, or of those that are named."""
    torch.set_num_threads(threads or torch.get_num_threads())
    rows = []
    with torch.no_grad():
        for name in only or EXAMPLES:
            rows.append(row(name, runs))
            print(name, rows[-1]["own"], rows[-1]["over"]["udf_templates"], flush=True)
    return {"threads": torch.get_num_threads(), "runs": runs, "rows": rows}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run from the command line; return the exit status."""
    parser: argparse.ArgumentParser = command.parser("taso_examples", __doc__)
    parser.add_argument("--threads", type=int, help="of torch")
    parser.add_argument("--runs", type=int, default=RUNS, help="turns of the contenders")
    parser.add_argument("--only", nargs="*", default=[], choices=EXAMPLES, metavar="NAME")
    options = parser.parse_args(arguments)
    options.changed = [f"--threads {options.threads}"] if options.threads else []
    return command.run(
        "taso_examples", options, lambda: measure(options.threads, options.runs, options.only)
    )


if __name__ == "__main__":
    sys.exit(main())
