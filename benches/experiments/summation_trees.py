# SPDX-License-Identifier: Apache-2.0
"""In which order stock operators add, and whether their own results agree with that order.

    python -m benches.experiments.summation_trees [--store FILE]

Each order is read in a process of its own for each of torch's CPU capabilities, and then tried:
random terms are added in that order with NumPy, and the bits compared with the operator's.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import torch

from benches.experiments import command
from pytest_udftorch.summation import SummationError, summation_tree

CAPABILITIES: Final = ("avx512", "avx2", "default")
TRIALS: Final = 2_000

Case = tuple[Callable[..., Any], tuple[tuple[int, ...], ...]]


def cases() -> dict[str, Case]:
    """Return name -> operator and shapes of its inputs; the terms come first."""
    functional = torch.nn.functional
    return {
        "sum, 64": (torch.sum, ((64,),)),
        "sum, 1,000": (torch.sum, ((1000,),)),
        "sum of columns, 64 × 8": (lambda x: x.sum(0), ((64, 8),)),
        "sum of rows, 8 × 64": (lambda x: x.sum(1), ((8, 64),)),
        "mean, 64": (torch.mean, ((64,),)),
        "dot, 64": (torch.dot, ((64,), (64,))),
        "mv, 8 × 64": (torch.mv, ((8, 64), (64,))),
        "mm, 1 × 64 × 1": (torch.mm, ((1, 64), (64, 1))),
        "mm, 8 × 64 × 8": (torch.mm, ((8, 64), (64, 8))),
        "mm, 64 × 1,000 × 64": (torch.mm, ((64, 1000), (1000, 64))),
        "bmm, 2 × 8 × 64 × 8": (torch.bmm, ((2, 8, 64), (2, 64, 8))),
        "addmm, 8 × 64 × 8": (torch.addmm, ((8,), (8, 64), (64, 8))),
        "conv2d, 8 channels, 3 × 3": (functional.conv2d, ((1, 8, 8, 8), (8, 8, 3, 3))),
        "avg_pool2d, 4 × 4": (lambda x: functional.avg_pool2d(x, 4), ((1, 1, 8, 8),)),
        "embedding's gradient, 64 equal rows": (
            lambda g: torch.ops.aten.embedding_dense_backward(
                g, torch.zeros(64, dtype=torch.int64), 4, -1, False
            ),
            ((64, 8),),
        ),
    }


def _differing(op: Callable[..., Any], shapes: Any, tree: Any) -> int:
    """Return in how many trials the operator's bits are not those of the tree."""
    generator = np.random.default_rng(len(tree.root) if isinstance(tree.root, tuple) else 1)
    inputs = [torch.ones(s) for s in shapes]
    wrong = 0
    x = inputs[0].view(-1)
    for _ in range(TRIALS):
        values = generator.standard_normal(x.numel(), dtype=np.float32)
        x.copy_(torch.from_numpy(values))
        expected = tree.fold(list(values[: tree.terms]), lambda below: below[0] + below[1])
        found = op(*inputs).reshape(-1)[0]
        wrong += np.float32(found.item()).tobytes() != expected.tobytes()
    return wrong


#: Operators whose terms are the first elements of one tensor, with a weight of 1.
_TRIED: Final = ("sum, 64", "sum, 1,000", "sum of rows, 8 × 64", "dot, 64", "mm, 8 × 64 × 8")


def read() -> dict[str, Any]:
    """Return case -> the order in this process."""
    torch.set_num_threads(1)
    found: dict[str, Any] = {"capability": torch.backends.cpu.get_cpu_capability(), "orders": {}}
    for name, (op, shapes) in cases().items():
        try:
            tree = summation_tree(op, *shapes)
        except SummationError as error:
            found["orders"][name] = {"error": str(error)}
            continue
        row = {"terms": tree.terms, "depth": tree.depth, "digest": tree.digest}
        row["kind"] = tree.kind()
        if name in _TRIED:
            row["trials"], row["differing"] = TRIALS, _differing(op, shapes, tree)
        found["orders"][name] = row
    return found


def measure() -> dict[str, Any]:
    """Return capability -> case -> order."""
    found = {}
    for capability in CAPABILITIES:
        made = subprocess.run(
            [sys.executable, "-m", "benches.experiments.summation_trees", "--here"],
            env={**os.environ, "ATEN_CPU_CAPABILITY": capability},
            stdout=subprocess.PIPE, check=True,
        )  # fmt: skip
        row = json.loads(made.stdout)
        found[row["capability"]] = row["orders"]
    return {"orders": found}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run from the command line; return the exit status."""
    parser = command.parser("summation_trees", __doc__)
    parser.add_argument("--here", action="store_true", help="print this process's orders as JSON")
    options = parser.parse_args(arguments)
    if options.here:
        print(json.dumps(read()))
        return 0

    def show(figures: dict[str, Any]) -> bool:
        for capability, orders in figures["orders"].items():
            for name, row in orders.items():
                print(f"{capability:8} {name:40} {row.get('kind', row.get('error'))}")
        return not any(
            row.get("differing") for orders in figures["orders"].values() for row in orders.values()
        )

    return command.run("summation_trees", options, measure, show)


if __name__ == "__main__":
    sys.exit(main())
