# SPDX-License-Identifier: Apache-2.0
"""What launching an overridden CUDA operator costs the host, and training steps that it bounds.

    python -m benches.experiments.cuda_launch [--store FILE]

Calls of operators on few elements, timed on the host alone, and whole training steps of small
batches, timed until the GPU has finished. std and corem take turns in random order in one process.
Everything runs twice, in two processes: launched from C++, and from Python
(``UDFTORCH_CUDA_LAUNCH=python``). The models are built from their configurations. The language
models' attention is in its plain form, so that its softmax is an operator.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from benches import stored
from benches.experiments import command
from benches.experiments.cuda_digests import gpu
from pytest_udftorch import patched

LIBRARIES = ("std", "corem")
#: How kernels are launched -> the value of the variable that says so.
LAUNCHES = {"C++": "", "Python": "python"}

#: Elements of an operator's tensors, and calls between two looks at the clock: fewer than the
#: driver queues before it waits for the GPU.
ELEMENTS, CALLS = 1 << 12, 200
ROUNDS = 20
#: Steps of a turn, the first of which is not timed, and turns of each library.
STEPS, TURNS = 9, 16

WORDS, LENGTH = 5000, 128

Call = Callable[[], Any]


def operators() -> dict[str, Call]:
    """Return the calls of operators."""
    aten = torch.ops.aten
    generator = torch.Generator("cuda").manual_seed(0)
    x = torch.randn(ELEMENTS, generator=generator, device="cuda")
    rows = x.view(-1, 64)
    half = x.bfloat16()
    image = x.view(1, 16, 16, 16).contiguous(memory_format=torch.channels_last)
    out = torch.empty_like(x)
    return {
        "exp": lambda: torch.exp(x),
        "log": lambda: torch.log(x),
        "cos": lambda: torch.cos(x),
        "tanh": lambda: torch.tanh(x),
        "sigmoid": lambda: torch.sigmoid(x),
        "silu": lambda: F.silu(x),
        "gelu": lambda: F.gelu(x),
        "gelu tanh": lambda: F.gelu(x, approximate="tanh"),
        "elu": lambda: F.elu(x),
        "softplus": lambda: F.softplus(x),
        "silu, bfloat16": lambda: F.silu(half),
        "silu, channels_last": lambda: F.silu(image),
        "exp, out=": lambda: torch.exp(x, out=out),
        "tanh, in place": lambda: out.tanh_(),
        "atan2": lambda: torch.atan2(x, out),
        "silu backward": lambda: aten.silu_backward(x, out),
        "gelu backward": lambda: aten.gelu_backward(x, out),
        "softmax": lambda: torch.softmax(rows, -1),
        "log_softmax": lambda: torch.log_softmax(rows, -1),
        "log_softmax backward": lambda: aten._log_softmax_backward_data(
            rows, rows, 1, torch.float32
        ),
    }


def call_ns(call: Call) -> float:
    """Return the host's time for a call."""
    call(), call()
    torch.cuda.synchronize()
    start = time.perf_counter_ns()
    for _ in range(CALLS):
        call()
    spent = time.perf_counter_ns() - start
    torch.cuda.synchronize()
    return spent / CALLS


def _image_model(make: Callable[[], nn.Module], batch: int) -> Call:
    model = make().cuda()
    x = torch.randn(batch, 3, 224, 224, device="cuda")
    labels = torch.arange(batch, device="cuda")
    return _step(model, lambda: F.cross_entropy(model(x), labels))


def _language_model(kind: str, config: str, batch: int, **sizes: Any) -> Call:
    import transformers

    made = getattr(transformers, config)(vocab_size=WORDS, attn_implementation="eager", **sizes)
    model = getattr(transformers, kind)(made).cuda()
    words = torch.randint(WORDS, (batch, LENGTH), device="cuda")
    return _step(model, lambda: model(input_ids=words, labels=words, use_cache=False).loss)


def _step(model: nn.Module, loss: Callable[[], torch.Tensor]) -> Call:
    model.train()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)

    def step() -> None:
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()

    return step


def models() -> dict[str, Callable[[], Call]]:
    """Return for each model what makes its training step."""
    from torchvision.models import VisionTransformer, efficientnet_b0

    found: dict[str, Callable[[], Call]] = {
        "EfficientNet-B0, batch 1": lambda: _image_model(efficientnet_b0, 1),
        "EfficientNet-B0, batch 4": lambda: _image_model(efficientnet_b0, 4),
        "ViT-tiny, batch 1": lambda: _image_model(
            lambda: VisionTransformer(224, 16, 12, 3, 192, 768), 1
        ),
        "GPT-2, 4 layers, batch 2": lambda: _language_model(
            "GPT2LMHeadModel", "GPT2Config", 2, n_layer=4
        ),
    }
    for batch in (1, 2, 4):
        found[f"Llama-like, 4 layers, batch {batch}"] = lambda batch=batch: _language_model(
            "LlamaForCausalLM", "LlamaConfig", batch, hidden_size=512, intermediate_size=1376,
            num_hidden_layers=4, num_attention_heads=8,
        )  # fmt: skip
    return found


def turn_ns(step: Call) -> float:
    """Return the time of a step; the first of the turn is left out."""
    step()
    torch.cuda.synchronize()
    start = time.perf_counter_ns()
    for _ in range(STEPS - 1):
        step()
    torch.cuda.synchronize()
    return (time.perf_counter_ns() - start) / (STEPS - 1)


def in_turns(calls: dict[str, Call], time_one: Callable[[Call], float],
             rounds: int) -> dict[str, Any]:  # fmt: skip
    """Return times by call and library, and the ratios of neighbouring turns."""
    order = random.Random(0)
    times: dict[str, dict[str, list[float]]] = {n: {x: [] for x in LIBRARIES} for n in calls}
    for _ in range(rounds + 2):
        for library in order.sample(LIBRARIES, len(LIBRARIES)):
            with patched(library):
                for name, call in calls.items():
                    times[name][library].append(time_one(call))
    found = {}
    for name, by_library in times.items():
        std, corem = (by_library[n][2:] for n in LIBRARIES)  # the first two compile and load
        ratios = [b / a for a, b in zip(std, corem, strict=True)]
        found[name] = {
            "std_ns": stored.summary(std),
            "corem_ns": stored.summary(corem),
            "ratio": stored.summary(ratios),
        }
    return found


def measure(turns: int) -> dict[str, Any]:
    """Return the figures of this process, which launches as its environment says."""
    found: dict[str, Any] = {"operators": in_turns(operators(), call_ns, ROUNDS), "models": {}}
    for name, make in models().items():
        torch.manual_seed(0)
        found["models"] |= in_turns({name: make()}, turn_ns, turns)
        print(name, found["models"][name]["ratio"]["median"], flush=True)
        torch.cuda.empty_cache()
    return found


def main(arguments: list[str] | None = None) -> int:
    parser = command.parser("cuda_launch", __doc__)
    parser.add_argument("--turns", type=int, default=TURNS)
    parser.add_argument("--alone", type=Path, metavar="FILE", help="measure in this process")
    options = parser.parse_args(arguments)
    if options.alone:
        options.alone.write_text(json.dumps(measure(options.turns)), encoding="utf-8")
        return 0
    figures: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        for launch, value in LAUNCHES.items():
            file = Path(folder) / "figures.json"
            subprocess.run(
                [sys.executable, "-m", "benches.experiments.cuda_launch", "--alone", str(file),
                 "--turns", str(options.turns)],
                check=True, env={**os.environ, "UDFTORCH_CUDA_LAUNCH": value},
            )  # fmt: skip
            figures[launch] = json.loads(file.read_text(encoding="utf-8"))
            sizes = {"elements": ELEMENTS, "calls": CALLS, "steps": STEPS - 1}
            command.store("cuda_launch", options, {"device": gpu(), **sizes, "launches": figures})
    return 0


if __name__ == "__main__":
    sys.exit(main())
