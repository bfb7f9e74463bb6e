# SPDX-License-Identifier: Apache-2.0
"""What does compiling cost, and gain, when the sizes of the inputs keep changing?

    python -m benches.experiments.recompilation [--calls N] [--rounds N] [--round N]
        [--journal FILE] [--store FILE]

A model is called many times with sizes that are drawn from a distribution with a few frequent and
many rare ones. Each way of compiling runs the same calls in a process of its own, with an empty
cache of compiled code: eager mode, torch.compile with ``dynamic=False``, ``True`` and by default,
with the changing dimension marked (``mark_dynamic``), and ``by_size``, once without statistics and
once with those of an earlier process. Compiling pays within the calls of the last workload, and not
within those of the others. In each round all ways run once, one at a time, in a new
random order (statistics are kept by ``by_size``, which comes before its second process) and in one
thread; figures are medians of the rounds, with the least and the largest. A
round is written to the journal as soon as it is whole, and a run that is interrupted goes on from
it. ``--round`` measures one round alone, so that rounds can run on cores of their own; journals
that are put together hold all.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor, nn

from benches.experiments import command
from pytest_udftorch import UdfError
from pytest_udftorch.measure import by_size

CALLS: Final = 240
ROUNDS: Final = 5
#: What is measured in each round.
MEASURED: Final = ("seconds", "compile_seconds", "median_ns", "late_seconds")
LEARNT: Final = "by_size, statistics kept"
WAYS: Final = (
    "eager",
    "dynamic=False",
    "dynamic=True",
    "default",
    "mark_dynamic",
    "by_size",
    LEARNT,
)


class Chain(nn.Module):
    """Eight pointwise steps, which eager mode writes to memory one by one."""

    def forward(self, x: Tensor) -> Tensor:
        """Compute on a batch of rows."""
        y = torch.tanh(x) * 0.5 + torch.sigmoid(x)
        return (y * y + 1).rsqrt() * torch.relu(x) - y


class Horner(nn.Module):
    """A polynomial of degree 20 by Horner's rule: 40 passes over memory in eager mode."""

    def forward(self, x: Tensor) -> Tensor:
        """Compute on a batch of rows."""
        y = x
        for step in range(20):
            y = y * x + 0.5 / (step + 1)
        return y


def block() -> nn.Module:
    """Return a block of a transformer."""
    torch.manual_seed(0)
    return nn.TransformerEncoderLayer(256, 4, 1024, batch_first=True, activation="gelu").eval()


@dataclass(frozen=True)
class Workload:
    """A model and inputs of changing sizes.

    Attributes:
        model: makes the model.
        draw: an input of a size.
        largest: the largest size.
        dimension: the dimension of the input that changes.
        times: how many times as many calls as other workloads.
    """

    model: Callable[[], nn.Module]
    draw: Callable[[int], Tensor]
    largest: int
    dimension: int
    times: int = 1


def _rows(n: int) -> Tensor:
    return torch.rand(n, 50_000)


WORKLOADS: Final = {
    "batch sizes, pointwise chain": Workload(Chain, _rows, 40, 0),
    "sequence lengths, transformer block": Workload(block, lambda n: torch.randn(4, n, 256), 96, 1),
    "batch sizes, polynomial": Workload(Horner, _rows, 40, 0, 3),
}


def trace(largest: int, calls: int) -> list[int]:
    """Return sizes from 2 on: half of the calls have one of three, the others any."""
    generator = torch.Generator().manual_seed(0)
    often = [largest, largest // 2, largest // 4]
    drawn = torch.rand(calls, generator=generator).tolist()
    any_size = torch.randint(2, largest + 1, (calls,), generator=generator).tolist()
    which = torch.randint(3, (calls,), generator=generator).tolist()
    return [
        often[w] if share < 0.5 else size
        for share, w, size in zip(drawn, which, any_size, strict=True)
    ]


class _Limit(logging.Handler):
    """Notes whether Dynamo says that it has reached its limit and compiles no more."""

    def __init__(self) -> None:
        super().__init__()
        self.reached = False

    def emit(self, record: logging.LogRecord) -> None:
        """Look at one message."""
        self.reached |= "recompile_limit" in record.getMessage()


def child(workload: str, way: str, calls: int, kept: str) -> dict[str, Any]:
    """Run the calls in this process, in one thread; return their times."""
    torch.set_num_threads(1)
    work = WORKLOADS[workload]
    model = work.model()
    sizes = trace(work.largest, calls)
    inputs = {n: work.draw(n) for n in sorted(set(sizes))}
    compiled: list[int] = []
    limit = _Limit()
    logging.getLogger("torch._dynamo").addHandler(limit)
    inductor: Any = torch._dynamo.lookup_backend("inductor")

    def counted(graph: Any, examples: Any) -> Any:
        compiled.append(1)
        return inductor(graph, examples)

    run: Any = model
    own = None
    if way.startswith("by_size"):
        run = own = by_size(model, statistics=kept)
    elif way != "eager":
        dynamic = {"dynamic=False": False, "dynamic=True": True}.get(way)
        run = torch.compile(model, backend=counted, dynamic=dynamic)
    if way == "mark_dynamic":
        for x in inputs.values():
            torch._dynamo.mark_dynamic(x, work.dimension, min=2, max=work.largest)
    times: list[int] = []
    compiling: list[int] = []
    model(inputs[sizes[0]])
    with torch.no_grad():
        for n in sizes:
            made = len(own.compilations) if own else len(compiled)
            before = time.perf_counter_ns()
            run(inputs[n])
            took = time.perf_counter_ns() - before
            now = len(own.compilations) if own else len(compiled)
            (compiling if now > made else times).append(took)
        wanted = model(inputs[sizes[0]])
        far = float((run(inputs[sizes[0]]) - wanted).abs().max() / wanted.abs().max())
    if own:
        own.save()
    steady = statistics.median(times)
    return {
        "seconds": (sum(times) + sum(compiling)) / 1e9,
        "compilations": len(own.compilations) if own else len(compiled),
        "compile_seconds": sum(compiling) / 1e9,
        "median_ns": steady,
        # The last quarter, when everything has been compiled.
        "late_seconds": sum(times[-calls // 4 :]) / 1e9,
        "limit_reached": limit.reached,
        "distance": far,
        "sizes": len(inputs),
    }


def _asked(workload: str, way: str, calls: int, kept: str) -> dict[str, Any]:
    order = json.dumps([workload, way, calls, kept])
    with tempfile.TemporaryDirectory() as cache:
        done = subprocess.run(
            [sys.executable, "-m", "benches.experiments.recompilation", "--child", order],
            env={**os.environ, "TORCHINDUCTOR_CACHE_DIR": cache},
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode:
        raise UdfError(f"{workload}, {way}: {done.stderr[-500:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def break_even(rows: dict[str, dict[str, Any]], way: str, calls: int) -> int | None:
    """Return the calls after which compiling has cost less than eager mode; None for never."""
    quarter = calls // 4
    saved = (rows["eager"]["late_seconds"] - rows[way]["late_seconds"]) / quarter
    spent = rows[way]["compile_seconds"]
    return round(spent / saved) if saved > 0 and spent > 0 else None


def one_round(workload: str, calls: int, number: int) -> dict[str, dict[str, Any]]:
    """Run all ways once, in a random order; return what each took.

    Raises:
        UdfError: a way gives other results than eager mode.
    """
    order = random.Random(number).sample(WAYS, k=len(WAYS))
    # The process without statistics is the one that they are from, so it is the earlier one.
    first, second = sorted(map(order.index, ("by_size", LEARNT)))
    order[first], order[second] = "by_size", LEARNT
    with tempfile.TemporaryDirectory() as folder:
        kept = str(Path(folder) / "statistics.json")
        rows = {way: _asked(workload, way, calls, kept) for way in order}
    for way, row in rows.items():
        if row["distance"] > 1e-4:
            raise UdfError(f"{workload}, {way}: the results differ by {row['distance']:.2g}.")
    return rows


#: The ways that treat all calls alike.
UNIFORM: Final = tuple(way for way in WAYS if not way.startswith("by_size"))


def together(rounds: Sequence[dict[str, dict[str, Any]]], calls: int) -> dict[str, dict[str, Any]]:
    """Return each way's medians over rounds, and between which figures they lie."""
    rows: dict[str, dict[str, Any]] = {}
    for way in WAYS:
        runs = [found[way] for found in rounds]
        rows[way] = {
            **{name: statistics.median(run[name] for run in runs) for name in MEASURED},
            "range": {name: [min(r[name] for r in runs), max(r[name] for r in runs)]
                      for name in MEASURED},
            "compilations": statistics.median_high(run["compilations"] for run in runs),
            "limit_reached": any(run["limit_reached"] for run in runs),
            "distance": max(run["distance"] for run in runs),
            "sizes": runs[0]["sizes"],
            "calls": calls,
        }  # fmt: skip
    best = min(UNIFORM, key=lambda way: rows[way]["seconds"])
    for way, row in rows.items():
        row["break_even_calls"] = break_even(rows, way, calls)
        # The calls of a round are those of one state of the machine: ratios within rounds.
        ratios = [found["eager"]["median_ns"] / found[way]["median_ns"] for found in rounds]
        row["times_as_fast"] = [min(ratios), statistics.median(ratios), max(ratios)]
        ratios = [found[best]["seconds"] / found[way]["seconds"] for found in rounds]
        row["best_uniform"] = best
        row["over_best"] = [min(ratios), statistics.median(ratios), max(ratios)]
    return rows


def measure(
    calls: int, rounds: int, journal: Path | None, alone: int | None = None
) -> dict[str, Any]:
    """Return the figures of all workloads; of one round alone, where its number is given."""
    done: dict[str, Any] = {}
    if journal is not None and journal.is_file():
        for line in journal.read_text(encoding="utf-8").splitlines():
            done.update(json.loads(line))
    numbers = range(rounds) if alone is None else [alone]
    load = os.getloadavg()[0]
    for number in numbers:
        for workload in WORKLOADS:
            key = f"{workload}; {calls}; {number}"
            if key in done:
                continue
            done[key] = one_round(workload, calls * WORKLOADS[workload].times, number)
            print(key, {way: row["seconds"] for way, row in done[key].items()}, flush=True)
            if journal is not None:
                with journal.open("a", encoding="utf-8") as file:
                    file.write(json.dumps({key: done[key]}) + "\n")
    workloads = {
        name: together([done[f"{name}; {calls}; {n}"] for n in numbers], calls * work.times)
        for name, work in WORKLOADS.items()
    }
    return {"calls": calls, "rounds": len(numbers), "load": load, "workloads": workloads}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run from the command line; return the exit status."""
    parser: argparse.ArgumentParser = command.parser("recompilation", __doc__)
    parser.add_argument("--calls", type=int, default=CALLS, help="of each workload")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="in each, every way runs once")
    parser.add_argument("--round", type=int, metavar="N", help="measure this one alone, from 0")
    parser.add_argument("--journal", type=Path, metavar="FILE", help="rounds, as they are measured")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.child:
        print(json.dumps(child(*json.loads(options.child))))
        return 0
    options.changed = [f"--calls {options.calls}"] if options.calls != CALLS else []
    options.changed += [f"--rounds {options.rounds}"] if options.rounds != ROUNDS else []

    def show(figures: dict[str, Any]) -> bool:
        for workload, rows in figures["workloads"].items():
            for way, row in rows.items():
                print(workload, way, row, sep=": ")
        return True

    return command.run(
        "recompilation",
        options,
        lambda: measure(options.calls, options.rounds, options.journal, options.round),
        show,
    )


if __name__ == "__main__":
    sys.exit(main())
