# SPDX-License-Identifier: Apache-2.0
"""What small models cost under the contract of repro, in a forward pass and in a training step.

    python -m benches.experiments.contract_small [--store FILE]

At these sizes a call is mostly overhead. Stock and the session take turns in one process and one
thread, at each CPU level in a process of its own, as in ``contract_speed``. The models are those of
``benches/data/models/zoo.py``; they need the extra ``models``.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import torch

from benches.data.models import zoo
from benches.experiments import command
from benches.experiments.contract_speed import at_levels, compared
from benches.experiments.cpu_operators import keep_freed_memory

MODELS: Final = (
    ("transformers", "BERT"), ("transformers", "Llama"), ("transformers", "ViT"),
    ("torchvision", "resnet18"), ("torchvision", "efficientnet_b0"),
)  # fmt: skip

#: What was asked for: the time under the session, over stock's.
ASKED: Final = {"forward": 1.2, "step": 1.35}
SEED: Final = 0


def _row(origin: str, name: str) -> dict[str, Any]:
    torch.manual_seed(SEED)
    made = zoo.ZOO[origin, name]()
    model, loss_of = made

    def forward() -> None:
        with torch.no_grad():
            loss_of(model)

    row: dict[str, Any] = {"model": name}
    model.eval()
    row["forward"] = compared(forward)
    model.train()
    row["step"] = compared(zoo.training_step(made, "float32"))
    return row


def measure_here(names: Sequence[str]) -> list[dict[str, Any]]:
    """Return a row for each model, at the CPU level of this process."""
    keep_freed_memory()
    torch.set_num_threads(1)
    return [_row(origin, name) for origin, name in MODELS if not names or name in names]


def run(
    name: str,
    description: str | None,
    asked: Mapping[str, float],
    here: Callable[[Sequence[str]], list[dict[str, Any]]],
    arguments: Sequence[str] | None,
) -> int:
    """Run an experiment about models from the command line; return the exit status.

    Args:
        name: of the experiment.
        description: its docstring.
        asked: kind -> the time under the session, over stock's, that was asked for.
        here: takes the names of models; returns a row for each, at the CPU level of this process.
        arguments: of the command line.
    """
    parser = command.parser(name, description)
    parser.add_argument("--here", action="store_true", help="measure this process, and print JSON")
    parser.add_argument("names", nargs="*", metavar="MODEL", help="only these models")
    options = parser.parse_args(arguments)
    if options.here:
        print(json.dumps(here(options.names)))
        return 0

    def measure() -> dict[str, Any]:
        return {"asked": asked, "levels": at_levels(name, options.names)}

    def show(figures: dict[str, Any]) -> bool:
        for level, rows in figures["levels"].items():
            for row in rows:
                label = f"{row['model']} {row.get('precision', '')}"
                shown = (
                    f"{kind} {row[kind]['stock_us'] / 1e3:7.1f} ms, "
                    f"{1 / row[kind]['speed']['median']:.2f} of stock"
                    for kind in asked
                )
                print(f"{level:7} {label:28} {'   '.join(shown)}")
        return True

    return command.run(name, options, measure, show)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run from the command line; return the exit status."""
    return run("contract_small", __doc__, ASKED, measure_here, arguments)


if __name__ == "__main__":
    sys.exit(main())
