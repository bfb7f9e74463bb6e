# SPDX-License-Identifier: Apache-2.0
"""Which rules fire on whole models, and how much faster do they become?

    python -m benches.experiments.rewriting_gains [--device D] [--seconds N] [--journal FILE]
        [--store FILE]

ResNet-50 and GoogLeNet of torchvision on images of 224 x 224, BERT-base from its configuration over
64 tokens, and one block of a transformer of the same width, with random weights, at batch 1 and 32.
Each is rewritten by ``udf_templates``, ``udf_taso``, ``udf_pet`` and ``udf_fusion``, one row each;
a row's model takes turns with eager mode, and nothing is kept that was not measured to be faster.
Each row is written to the journal as soon as it is there; a run that is interrupted goes on from
it. Rows that are not begun within ``--seconds`` are named as left out. BERT needs
``pip install transformers``.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
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
IMAGE, TOKENS, WIDTH, HEADS, LAYERS, WORDS = 224, 64, 768, 12, 12, 1000
#: Turns of a model and eager mode: as many as fit into so many seconds, but not fewer than this.
RUNS, SECONDS = (7, 20), 10.0
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


def row(name: str, batch: int, backend: str, device: str, search: float) -> dict[str, Any]:
    """Return the figures of one model at one batch size under one backend.

    Args:
        name: of the model.
        batch: its size.
        backend: that rewrites it.
        device: cpu or cuda.
        search: seconds after which ``udf_taso`` ends its search.

    Raises:
        UdfError: a rewritten model gives other results than the model.
    """
    torch.manual_seed(0)
    torch.compiler.reset()
    make, draw = MODELS[name]
    model, x = make().eval().to(device), draw(batch).to(device)
    wanted = model(x)
    given = {"seconds": search} if backend == "udf_taso" else {}
    compiled = torch.compile(model, backend=backend, dynamic=False, options=given)
    before = time.perf_counter()
    with recording() as reports:
        result = compiled(x)
    seconds = time.perf_counter() - before
    distance = float((result - wanted).abs().max() / wanted.abs().max())
    if distance > TOLERANCE:
        raise UdfError(f"{name}, {backend}: the results differ by {distance:.2g}.")
    once = sync_timer(device, runs=1, rounds=1, warmup=1).time(lambda: model(x)).median_ns / 1e9
    fewest, most = RUNS
    runs = min(most, max(fewest, int(SECONDS / max(4 * once, 1e-9))))
    rounds = 1 if once > 0.05 else 5
    timed = sync_timer(device, runs=runs, rounds=rounds, warmup=1).compare(
        {"eager": lambda: model(x), backend: lambda: compiled(x)}
    )
    speedup = timed.speedup(backend, over="eager")
    return {
        "model": name,
        "batch": batch,
        "backend": backend,
        "shape": list(x.shape),
        "runs": runs,
        "median_ns": {n: timed[n].median_ns for n in timed.timings},
        "search_seconds": seconds,
        "distance": distance,
        "speedup": [speedup.low, speedup.value, speedup.high],
        "graphs": [_graph(report.to_json()) for report in reports],
    }


def _graph(report: dict[str, Any]) -> dict[str, Any]:
    """Return a report without its pictures, with the rules counted."""
    kept = {k: v for k, v in report.items() if k not in ("pictures", "fired", "tried")}
    counted = {k: dict(Counter(f["rule"] for f in report[k])) for k in ("fired", "tried")}
    return {**kept, **counted}


def measure(
    seconds: float, device: str, search: float, journal: Path | None, only: Sequence[str] = ()
) -> dict[str, Any]:
    """Return the rows that are begun in time or in the journal, small batches first."""
    began = time.perf_counter()
    known = []
    if journal is not None and journal.is_file():
        known = [json.loads(line) for line in journal.read_text(encoding="utf-8").splitlines()]
    rows = {(r["model"], r["batch"], r["backend"]): r for r in known}
    left = []
    torch.backends.cudnn.allow_tf32 = False  # what is compared is float32
    with torch.no_grad():
        for key in [(name, n, backend) for n in BATCHES for name in MODELS for backend in BACKENDS]:
            if key in rows:
                continue
            if only and f"{key[0]}, {key[1]}" not in only:
                left.append(f"{key[0]} at batch {key[1]}, {key[2]}")
                continue
            if time.perf_counter() - began > seconds:
                left.append(f"{key[0]} at batch {key[1]}, {key[2]}")
                continue
            rows[key] = row(*key, device, search)
            print(*key, rows[key]["search_seconds"], rows[key]["speedup"], flush=True)
            if journal is not None:
                with journal.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(rows[key]) + "\n")
    return {
        "device": torch.cuda.get_device_name() if device == "cuda" else "cpu",
        "threads": torch.get_num_threads(),
        "search_limit": search,
        "image": IMAGE,
        "tokens": TOKENS,
        "width": WIDTH,
        "layers": LAYERS,
        "rows": list(rows.values()),
        "left_out": left,
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Run from the command line; return the exit status."""
    parser: argparse.ArgumentParser = command.parser("rewriting_gains", __doc__)
    parser.add_argument("--seconds", type=float, default=3600.0, help="after which none is begun")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--search", type=float, default=60.0, help="seconds of udf_taso's search")
    parser.add_argument(
        "--only", nargs="*", default=[], metavar="CASE", help="for instance 'BERT, 1'"
    )
    parser.add_argument("--journal", type=Path, metavar="FILE", help="rows, as they are measured")
    options = parser.parse_args(arguments)
    options.changed = [f"--seconds {options.seconds:g}"] if options.seconds != 3600 else []
    options.changed += [f"--search {options.search:g}"] if options.search != 60 else []
    options.changed += ["--device cuda"] if options.device == "cuda" else []
    return command.run(
        "rewriting_gains",
        options,
        lambda: measure(
            options.seconds, options.device, options.search, options.journal, options.only
        ),
    )


if __name__ == "__main__":
    sys.exit(main())
