# SPDX-License-Identifier: Apache-2.0
"""In which order stock operators add, and whether their own results agree with that order.

    python -m benches.experiments.summation_trees [--device cuda] [--store FILE]

Each order is read, on the CPU in a process of its own for each of torch's capabilities, and then
tried: random terms are added in that order with NumPy, and the bits compared with the operator's.
A row's order in a batch of one and in a batch of eight is a verdict on whether a row depends on its
batch; random rows try each verdict.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import numpy as np
import torch

from benches.experiments import command
from pytest_udftorch.errors import SummationError
from pytest_udftorch.reproduce import SummationTree, summation_tree

CAPABILITIES: Final = ("avx512", "avx2", "default")
#: Trials of orders, and again of verdicts, at each place.
TRIALS: Final = {"cpu": 300_000, "cuda": 100_000}
#: Trials whose terms are made at once.
CHUNK: Final = 5_000
#: Rows of the larger batch of a verdict.
BATCH: Final = 8

Case = tuple[Callable[..., Any], tuple[tuple[int, ...], ...]]

functional = torch.nn.functional


def _embedding_gradient(g: torch.Tensor) -> torch.Tensor:
    rows = torch.zeros(64, dtype=torch.int64, device=g.device)
    return torch.ops.aten.embedding_dense_backward(g, rows, 4, -1, False)


def cases() -> dict[str, Case]:
    """Return name -> operator and shapes of its inputs; the terms come first."""
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
        "embedding's gradient, 64 equal rows": (_embedding_gradient, ((64, 8),)),
    }


#: On tensor cores: name -> dtype and whether float32 is rounded to TF32.
TENSOR_CORES: Final = {
    "mm, 64 × 64 × 64, TF32": (torch.float32, True),
    "mm, 64 × 64 × 64, bfloat16": (torch.bfloat16, False),
    "mm, 64 × 64 × 64, half": (torch.float16, False),
}

#: Operators whose terms are the first elements of one tensor, with a weight of 1.
_TRIED: Final = ("sum, 64", "sum, 1,000", "sum of rows, 8 × 64", "dot, 64", "mm, 8 × 64 × 8")

#: Name -> operator of rows, the terms of a row, and the shapes of its other inputs.
ROWS: Final[dict[str, tuple[Callable[..., Any], int, tuple[tuple[int, ...], ...]]]] = {
    "sum of rows, 64": (lambda x: x.sum(1), 64, ()),
    "sum of rows, 1,000": (lambda x: x.sum(1), 1000, ()),
    "mean of rows, 100": (lambda x: x.mean(1), 100, ()),
    "mv, 64": (torch.mv, 64, ((64,),)),
    "mm, 64 × 8": (torch.mm, 64, ((64, 8),)),
    "mm, 64 × 1": (torch.mm, 64, ((64, 1),)),
    "mm, 1,000 × 64": (torch.mm, 1000, ((1000, 64),)),
    "linear, 300 to 10": (functional.linear, 300, ((10, 300),)),
}


def _random(generator: np.random.Generator, trials: int, terms: int) -> Iterator[Any]:
    """Yield matrices of random terms, a trial a row, on the CPU."""
    for at in range(0, trials, CHUNK):
        yield generator.standard_normal((min(CHUNK, trials - at), terms), dtype=np.float32)


def _bits(x: Any) -> Any:
    return np.ascontiguousarray(x, dtype=np.float32).view(np.int32)


def _differing(case: Case, tree: SummationTree, device: str, trials: int) -> int:
    """Return in how many trials the operator's bits are not those of the tree."""
    op, shapes = case
    inputs = [torch.ones(s, device=device) for s in shapes]
    flat, wrong = inputs[0].view(-1), 0
    for values in _random(np.random.default_rng(tree.terms), trials, flat.numel()):
        expected = tree.fold(list(values.T[: tree.terms]), lambda below: below[0] + below[1])
        given = torch.from_numpy(values).to(device)
        found = torch.empty(len(values), device=device)
        for i, row in enumerate(given):
            flat.copy_(row)
            found[i] = op(*inputs).view(-1)[0]
        wrong += int((_bits(expected) != _bits(found.cpu().numpy())).sum())
    return wrong


def verdict(name: str, device: str, trials: int) -> dict[str, Any]:
    """Return what trees say about a row alone and in a batch, and in how many trials bits differ.

    Raises:
        SummationError: an order cannot be read.
    """
    op, terms, others = ROWS[name]
    trees = [summation_tree(op, (n, terms), *others, device=device) for n in (1, BATCH)]
    rest = [torch.ones(s, device=device) for s in others]
    batch, differing = torch.ones(BATCH, terms, device=device), 0
    for values in _random(np.random.default_rng(terms), trials, terms):
        found = torch.empty(2, len(values), device=device)
        for i, row in enumerate(torch.from_numpy(values).to(device)):
            batch[0] = row
            found[0, i] = op(row[None], *rest).view(-1)[0]
            found[1, i] = op(batch, *rest).view(-1)[0]
        alone, among = found.cpu().numpy()
        differing += int((_bits(alone) != _bits(among)).sum())
    equal = str(trees[0]) == str(trees[1])
    return {"trees_equal": equal, "trials": trials, "differing": differing}


def is_false(row: dict[str, Any]) -> bool:
    """Tell whether trials refute what trees say."""
    return bool(row["trees_equal"]) != (row["differing"] == 0)


def _order(op: Callable[..., Any], shapes: Any, device: str, dtype: Any = None) -> dict[str, Any]:
    try:
        tree = summation_tree(op, *shapes, device=device, dtype=dtype)
    except SummationError as error:
        return {"error": str(error)}
    found = {"terms": tree.terms, "depth": tree.depth, "digest": tree.digest, "kind": tree.kind()}
    return {**found, "tree": tree}


@contextmanager
def _tf32(on: bool) -> Iterator[None]:
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = on
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


def read(device: str = "cpu", trials: int | None = None) -> dict[str, Any]:
    """Return the orders in this process, and the verdicts.

    Args:
        device: ``cpu`` or ``cuda``.
        trials: in all, of orders and again of verdicts.
    """
    torch.set_num_threads(1)
    trials = TRIALS[device] if trials is None else trials
    found: dict[str, Any] = {"capability": torch.backends.cpu.get_cpu_capability(), "orders": {}}
    for name, case in cases().items():
        row = found["orders"][name] = _order(*case, device)
        tree = row.pop("tree", None)
        if tree is not None and name in _TRIED and tree.widest == 2:
            row["trials"] = trials // len(_TRIED)
            row["differing"] = _differing(case, tree, device, row["trials"])
    for name, (dtype, rounded) in TENSOR_CORES.items() if device == "cuda" else ():
        with _tf32(rounded):
            row = found["orders"][name] = _order(torch.mm, ((64, 64), (64, 64)), device, dtype)
        row.pop("tree", None)
    found["verdicts"] = {name: verdict(name, device, trials // len(ROWS)) for name in ROWS}
    return found


def measure() -> dict[str, Any]:
    """Return capability -> case -> order, and capability -> case -> verdict, on the CPU."""
    found: dict[str, Any] = {"orders": {}, "verdicts": {}}
    best = CAPABILITIES.index(torch.backends.cpu.get_cpu_capability().lower())
    for capability in CAPABILITIES[best:]:
        made = subprocess.run(
            [sys.executable, "-m", "benches.experiments.summation_trees", "--here"],
            env={**os.environ, "ATEN_CPU_CAPABILITY": capability},
            stdout=subprocess.PIPE, check=True,
        )  # fmt: skip
        row = json.loads(made.stdout)
        for kind in found:
            found[kind][row["capability"]] = row[kind]
    return found


def measure_gpu() -> dict[str, Any]:
    """Return the same of a GPU, under its name."""
    row, name = read("cuda"), torch.cuda.get_device_name()
    return {kind: {name: row[kind]} for kind in ("orders", "verdicts")}


def show(figures: dict[str, Any]) -> bool:
    """Print the orders; tell whether neither an order nor a verdict is refuted."""
    for where, orders in figures["orders"].items():
        for name, row in orders.items():
            print(f"{where:8} {name:40} {row.get('kind', row.get('error'))}")
    tried = [row for rows in figures["verdicts"].values() for row in rows.values()]
    for where, rows in figures["verdicts"].items():
        for name, row in rows.items():
            print(f"{where:8} {name:40} {row}")
    return not any(map(is_false, tried)) and not any(
        row.get("differing") for orders in figures["orders"].values() for row in orders.values()
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run from the command line; return the exit status."""
    parser = command.parser("summation_trees", __doc__)
    parser.add_argument("--here", action="store_true", help="print this process's orders as JSON")
    parser.add_argument("--device", choices=TRIALS, default="cpu", help="where to add")
    options = parser.parse_args(arguments)
    if options.here:
        print(json.dumps(read(options.device)))
        return 0
    if options.device == "cuda":
        options.changed = ["--device cuda"]
        return command.run("summation_trees", options, measure_gpu, show)
    return command.run("summation_trees", options, measure, show)


if __name__ == "__main__":
    sys.exit(main())
