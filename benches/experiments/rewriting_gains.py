# SPDX-License-Identifier: Apache-2.0
"""Which rules fire on whole models, and how much faster do they become?

    python -m benches.experiments.rewriting_gains [--seconds N] [--store FILE]

ResNet-50 and GoogLeNet of torchvision on images of 96 x 96, BERT from a configuration of 4 layers
of width 256 over 64 tokens, and one block of a transformer of that width, with random weights, at
batch 1 and 32 on the CPU. Each is rewritten by ``udf_templates``, ``udf_taso``, ``udf_pet`` and
``udf_fusion``; the times of the four take turns with those of eager mode. Models that are not begun
within ``--seconds`` are named as left out. BERT needs ``pip install transformers``.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Final

import torch
import torchvision
from torch import Tensor, nn

from benches.experiments import command
from benches.experiments.compile_transformers import Block
from pytest_udftorch import UdfError
from pytest_udftorch.rewriting import recording
from pytest_udftorch.timers import sync_timer

BACKENDS: Final = ("udf_templates", "udf_taso", "udf_pet", "udf_fusion")
BATCHES: Final = (1, 32)
IMAGE, TOKENS, WIDTH, HEADS, LAYERS, WORDS = 96, 64, 256, 4, 4, 1000
RUNS: Final = 5
#: What decides between floating-point results whose operations have another order.
TOLERANCE: Final = 1e-3


class _Bert(nn.Module):
    """BERT without its dictionary of results."""

    def __init__(self) -> None:
        super().__init__()
        import transformers

        config = transformers.BertConfig(
            vocab_size=WORDS,
            hidden_size=WIDTH,
            num_hidden_layers=LAYERS,
            num_attention_heads=HEADS,
            intermediate_size=4 * WIDTH,
        )
        self.model = transformers.BertModel(config)

    def forward(self, words: Tensor) -> Tensor:
        """Return the last layer's states, of batch x tokens x width."""
        states: Tensor = self.model(words).last_hidden_state
        return states


def _image(batch: int) -> Tensor:
    return torch.randn(batch, 3, IMAGE, IMAGE)


#: Model -> what makes it, and an input for a batch.
MODELS: Final[dict[str, tuple[Callable[[], nn.Module], Callable[[int], Tensor]]]] = {
    "transformer block": (lambda: Block(HEADS, WIDTH), lambda n: torch.randn(n, TOKENS, WIDTH)),
    "ResNet-50": (torchvision.models.resnet50, _image),
    "GoogLeNet": (
        lambda: torchvision.models.googlenet(aux_logits=False, init_weights=False),
        _image,
    ),
    "BERT": (_Bert, lambda n: torch.randint(WORDS, (n, TOKENS))),
}


def case(name: str, batch: int) -> dict[str, Any]:
    """Return the figures of one model at one batch size.

    Raises:
        UdfError: a rewritten model gives other results than the model.
    """
    torch.manual_seed(0)
    torch.compiler.reset()
    make, draw = MODELS[name]
    model, x = make().eval(), draw(batch)
    wanted = model(x)
    calls: dict[str, Callable[[], Any]] = {"eager": lambda: model(x)}
    found = {}
    for backend in BACKENDS:
        compiled = torch.compile(model, backend=backend, dynamic=False)
        before = time.perf_counter()
        with recording() as reports:
            result = compiled(x)
        seconds = time.perf_counter() - before
        distance = float((result - wanted).abs().max() / wanted.abs().max())
        if distance > TOLERANCE:
            raise UdfError(f"{name}, {backend}: the results differ by {distance:.2g}.")
        found[backend] = {
            "search_seconds": seconds,
            "distance": distance,
            "graphs": [
                {
                    **{k: v for k, v in r.to_json().items() if k not in ("pictures", "fired")},
                    "fired": dict(Counter(f.rule for f in r.fired)),
                }
                for r in reports
            ],
        }
        calls[backend] = _kept(compiled, x)
    timed = sync_timer("cpu", runs=RUNS, rounds=1, warmup=1).compare(calls)
    for backend, row in found.items():
        speedup = timed.speedup(backend, over="eager")
        row["speedup"] = [speedup.low, speedup.value, speedup.high] if speedup else None
    return {
        "model": name,
        "batch": batch,
        "shape": list(x.shape),
        "median_ns": {n: timed[n].median_ns for n in calls},
        "backends": found,
    }


def _kept(compiled: Callable[..., Any], x: Tensor) -> Callable[[], Any]:
    """Return a call of compiled code."""
    return lambda: compiled(x)


def measure(seconds: float) -> dict[str, Any]:
    """Return the figures of all models that are begun in time, small batches first."""
    began = time.perf_counter()
    cases, left = [], []
    with torch.no_grad():
        for batch in BATCHES:
            for name in MODELS:
                if time.perf_counter() - began > seconds:
                    left.append(f"{name} at batch {batch}")
                    continue
                cases.append(case(name, batch))
                print(name, batch, cases[-1]["median_ns"], flush=True)
    return {
        "threads": torch.get_num_threads(),
        "image": IMAGE,
        "tokens": TOKENS,
        "width": WIDTH,
        "layers": LAYERS,
        "cases": cases,
        "left_out": left,
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Run from the command line; return the exit status."""
    parser: argparse.ArgumentParser = command.parser("rewriting_gains", __doc__)
    parser.add_argument("--seconds", type=float, default=600.0, help="after which none is begun")
    options = parser.parse_args(arguments)
    options.changed = [f"--seconds {options.seconds:g}"] if options.seconds != 600 else []
    return command.run("rewriting_gains", options, lambda: measure(options.seconds))


if __name__ == "__main__":
    sys.exit(main())
