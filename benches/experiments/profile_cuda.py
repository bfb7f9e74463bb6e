# SPDX-License-Identifier: Apache-2.0
"""What a profile costs on a GPU, and whether its counts equal those on the CPU.

    python -m benches.experiments.profile_cuda [--mnist DIR] [--store FILE]

Contenders are sessions of corem without a profile (``off``), the same once more (``off again``,
the A/A control), and with one (``counters``).

Operators: on 2^26 float32 elements, the kernel's time alone, from a CUDA graph that was captured
in each session, with the L2 overwritten between replays; on 2^16 elements, the time of a call in
a loop in Python. The graphs, and the loops, take turns in random order. The result is the median
over the rounds of the ratio to ``off`` in the same round.

Training: the same for some steps, from a synchronised GPU to a synchronised GPU. All contenders
train one model in turns.

Counts: a model runs some steps on the CPU and on the GPU, with the same weights and data, in one
session, and the records are compared.
"""

from __future__ import annotations

import math
import random
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Literal

import torch
from torch.nn import functional as F

from benches.experiments import command, training
from benches.experiments.blocks import one_thread
from benches.experiments.cuda_digests import gpu
from benches.experiments.cuda_speed import LARGE, SMALL, events, graph_of, numbers
from benches.experiments.cuda_training import on_gpu, turn_ns
from pytest_udftorch import patched
from pytest_udftorch.measure.timing.statistics import median, ratio
from pytest_udftorch.swap.records.totals import Row
from pytest_udftorch.watch import Profile

CONTENDERS: Mapping[str, bool] = {"off": False, "off again": False, "counters": True}

OPERATORS: Mapping[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "exp": torch.exp,
    "log": torch.log,
    "gelu": F.gelu,
    "softmax": lambda x: torch.softmax(x.view(-1, 4096), -1),
}

#: Zeros in every block, as after a ReLU; a block with zeros takes a second look at its elements.
WITH_ZEROS = "exp, a zero in 1,000"

ROUNDS, CALLS, CALL_ROUNDS = 43, 100, 8
STEPS, BLOCKS, COUNTED_STEPS = 15, 20, 3

Samples = Mapping[str, Sequence[float]]


def ratios(samples: Samples) -> dict[str, Any]:
    """Return the contenders' ratios to ``off`` with their bootstrap intervals."""
    return {
        name: asdict(ratio(list(times), list(samples["off"])))
        for name, times in samples.items()
        if name != "off"
    }


def _shuffled(rng: random.Random) -> list[str]:
    return rng.sample(list(CONTENDERS), k=len(CONTENDERS))


def kernel_times(call: Callable[[torch.Tensor], Any], x: torch.Tensor) -> dict[str, list[float]]:
    """Return contender -> times of the kernel in ns."""
    graphs = {}
    for name, profile in CONTENDERS.items():
        with patched("corem", profile=profile):
            graphs[name] = graph_of(call, x, 1)
    return events({n: g.replay for n, g in graphs.items()}, ROUNDS, flush=True)


def call_times(call: Callable[[torch.Tensor], Any], x: torch.Tensor) -> dict[str, list[float]]:
    """Return contender -> times of a call from Python in ns."""
    rng = random.Random(0)
    found: dict[str, list[float]] = {name: [] for name in CONTENDERS}
    for _ in range(CALL_ROUNDS):
        for name in _shuffled(rng):
            with patched("corem", profile=CONTENDERS[name]):
                call(x)
                torch.cuda.synchronize()
                start = time.perf_counter_ns()
                for _ in range(CALLS):
                    call(x)
                torch.cuda.synchronize()
                found[name].append((time.perf_counter_ns() - start) / CALLS)
    return found


def operators() -> dict[str, Any]:
    """Return the costs of the operators."""
    large, small = numbers(LARGE), numbers(SMALL)
    zeros = large.clone()
    zeros[::1000] = 0.0
    cases = {name: (call, large.abs() if name == "log" else large, small)
             for name, call in OPERATORS.items()}  # fmt: skip
    cases[WITH_ZEROS] = (torch.exp, zeros, small)
    found = {}
    for name, (call, x, few) in cases.items():
        big = kernel_times(call, x)
        found[name] = {"kernel_ns": median(big["off"]), "kernel": ratios(big)}
        if name != WITH_ZEROS:
            python = call_times(call, few.abs() if name == "log" else few)
            found[name] |= {
                "call_ns": median(python["off"]),
                "call": ratios(python),
            }
        shown = {k: round(v["value"], 3) for k, v in found[name]["kernel"].items()}
        print(name, round(found[name]["kernel_ns"]), shown, file=sys.stderr, flush=True)
    return found


def steps(task: training.Task) -> dict[str, Any]:
    """Return the cost of training steps on the GPU."""
    run, batches = training.Training(task, seed=0), task.batches(0)
    rng = random.Random(0)
    found: dict[str, list[float]] = {name: [] for name in CONTENDERS}
    for block in range(BLOCKS + 1):
        for name in _shuffled(rng):
            chosen = [next(batches).cuda() for _ in range(STEPS + 1)]
            with patched("corem", profile=CONTENDERS[name]):
                step_ns = turn_ns(run, chosen)
                if block:  # the first compiles
                    found[name].append(step_ns)
    return {"label": task.label, "data": str(task.samples), "steps": STEPS, "blocks": BLOCKS,
            "step_ns": median(found["off"]), "ratios": ratios(found)}  # fmt: skip


def counts(task: training.Task) -> dict[str, Any]:
    """Run the same steps on both devices; return what was counted, by device."""
    moved = on_gpu(task)
    with one_thread(), patched("corem", profile=True, profile_stride=1) as session:
        for each in (task, moved):
            run, batches = training.Training(each, seed=0), task.batches(0)
            for _ in range(COUNTED_STEPS):
                batch = next(batches)
                run.step(batch.cuda() if each is moved else batch)
    return {"steps": COUNTED_STEPS, "rows": compared(session.profile)}


def _limits(row: Row, side: Literal["in", "out"]) -> list[float | str] | None:
    limits = row.limits(side)
    # JSON has no infinities.
    return limits and [x if math.isfinite(x) else str(x) for x in limits]


def compared(profile: Profile) -> list[dict[str, Any]]:
    """Return a record for each function, operator, layer and stage, with both devices' counts."""
    key = ("function", "operator", "module", "stage")
    found: dict[tuple[str, ...], dict[str, Any]] = {}
    for row in profile.rows(*key, "device"):
        names = tuple(row.key[k] for k in key)
        entry = found.setdefault(names, dict(zip(key, names, strict=True)))
        entry[row.key["device"]] = {
            "operator_calls": row.operator_calls,
            "elements": row.elements,
            **{side: _limits(row, side) for side in ("in", "out")},
        }
    return list(found.values())


def main(arguments: Sequence[str] | None = None) -> int:
    """Run from the command line; return the exit status."""
    parser = command.parser("profile_cuda", __doc__, "mnist")
    options = parser.parse_args(arguments)
    figures: dict[str, Any] = {
        "device": gpu(),
        "large": LARGE,
        "small": SMALL,
        "operators": operators(),
        "models": {},
    }
    # After each part, so that an interrupted run keeps its results.
    command.store("profile_cuda", options, figures)
    for task in (training.lenet(options.mnist), training.transformer()):
        figures["models"][task.name] = {"counts": counts(task), **steps(on_gpu(task))}
        print(task.name, figures["models"][task.name]["ratios"], file=sys.stderr, flush=True)
        command.store("profile_cuda", options, figures)
    return 0


if __name__ == "__main__":
    sys.exit(main())
