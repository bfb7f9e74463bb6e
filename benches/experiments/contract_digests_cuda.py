# SPDX-License-Identifier: Apache-2.0
"""Whether a GPU and a CPU end with the same weights, and what that costs on the GPU.

    python -m benches.experiments.contract_digests_cuda [--store FILE]

The four models of :mod:`benches.experiments.contract_models` learn with SGD and AdamW under each
library, on the GPU and on the CPU of its machine. Each library and device is a process of its own;
they run side by side. Then steps and products of repro are timed in turns with stock's, which has
no TF32.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import product
from typing import Any, Final

import torch

from benches import stored
from benches.experiments import command
from benches.experiments.contract_models import CASES, LIBRARIES, OPTIMIZERS, SEED, under
from benches.experiments.contract_models import digest as digest_of
from benches.experiments.cuda_digests import gpu
from benches.experiments.cuda_training import on_gpu, turn_ns
from benches.experiments.training import Task, Training
from pytest_udftorch import patched

DEVICES: Final = ("cuda", "cpu")
#: Steps of a turn, and turns; the first turn compiles kernels.
TURN, TURNS = 10, 8
#: Sides of the square matrices, and rounds.
SIZES, ROUNDS = (512, 1024, 4096), 12
#: Calls that are timed together: one alone would be the launch, not the kernel.
CALLS = 10
#: Threads of each process on the CPU.
THREADS: Final = 2


def _task(name: str, optimizer: str, device: str) -> Task:
    case = CASES[name]
    task = replace(case.make(), optimizer=OPTIMIZERS[optimizer](case.rate))
    return on_gpu(task) if device == "cuda" else task


def trained_on(device: str, library: str, name: str, optimizer: str, steps: int) -> dict[str, Any]:
    """Train in this process.

    Returns:
        ``digests``, those of the weights at the beginning and after each step; where torch refuses
        an operator in its deterministic mode, ``refused`` instead, with torch's words.
    """
    with under(library):
        task = _task(name, optimizer, device)
        training, batches = Training(task, SEED), task.batches(SEED)
        digests = [digest_of(training)]
        try:
            for _ in range(steps):
                training.step(next(batches).to(device))
                digests.append(digest_of(training))
        except RuntimeError as error:
            if library != "deterministic" or "deterministic" not in str(error):
                raise
            return {"refused": str(error).split("\n", maxsplit=1)[0]}
    return {"digests": digests}


def child(device: str, library: str) -> Iterator[dict[str, Any]]:
    """Train every model in this process."""
    torch.set_num_threads(THREADS)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    for name, optimizer in product(CASES, OPTIMIZERS):
        found = trained_on(device, library, name, optimizer, CASES[name].steps)
        yield {"library": library, "device": device, "model": name, "optimizer": optimizer, **found}


def _ask(place: tuple[str, str]) -> list[dict[str, Any]]:
    # Without the workspace's size, torch's deterministic mode refuses cuBLAS.
    found = command.ask("contract_digests_cuda", *place, CUBLAS_WORKSPACE_CONFIG=":4096:8")
    print(*place, "done", flush=True)
    return found


def rows(runs: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return a row for each library, model and optimizer: both digests, and the first step apart.

    ``step`` is 0 where the weights differ before any training, and None where they never do.
    """
    found = []
    for library, name, optimizer in product(LIBRARIES, CASES, OPTIMIZERS):
        what = {"library": library, "model": name, "optimizer": optimizer}
        mine = {r["device"]: r for r in runs if all(r[k] == v for k, v in what.items())}
        refused = [r["refused"] for r in mine.values() if "refused" in r]
        if refused:
            found.append({**what, "refused": refused[0]})
            continue
        pairs = enumerate(zip(*(mine[d]["digests"] for d in DEVICES), strict=True))
        step = next((i for i, (one, other) in pairs if one != other), None)
        found.append({**what, **{d: mine[d]["digests"][-1] for d in DEVICES}, "step": step})
    return found


def steps_ns(name: str) -> dict[str, Any]:
    """Return the times of a step of stock and of repro, which take turns."""
    task = _task(name, "SGD", "cuda")
    runs = {library: Training(task, SEED) for library in ("std", "repro")}
    batches = task.batches(SEED)
    times: dict[str, list[float]] = {library: [] for library in runs}
    for turn in range(TURNS):
        chosen = [next(batches).cuda() for _ in range(TURN)]
        for library in runs if turn % 2 else reversed(runs):
            with patched(library):
                times[library].append(turn_ns(runs[library], chosen))
    return {library: stored.summary(found[1:]) for library, found in times.items()}


def _event_ns(call: Callable[[], Any]) -> float:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(CALLS):
        call()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) * 1e6 / CALLS


def _paired_ns(call: Callable[[], Any]) -> dict[str, Any]:
    times: dict[str, list[float]] = {"std": [], "repro": []}
    for turn in range(ROUNDS):
        for library in times if turn % 2 else reversed(times):
            with patched(library):
                call()
                times[library].append(_event_ns(call))
    return {library: stored.summary(found[1:]) for library, found in times.items()}


def products_ns(size: int) -> dict[str, Any]:
    """Return the times of a product of square matrices in stock and in repro."""
    a, b = (torch.randn(size, size, device="cuda") for _ in range(2))
    return _paired_ns(lambda: torch.mm(a, b))


def variates_ns() -> dict[str, Any]:
    """Return the times of 2^26 normal variates in stock and in repro."""
    out = torch.empty(1 << 26, device="cuda")
    return _paired_ns(out.normal_)


def measure() -> dict[str, Any]:
    """Return the digests of every library on both devices, and times."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    places = list(product(DEVICES, LIBRARIES))
    with ThreadPoolExecutor(len(places)) as pool:
        runs = [run for found in pool.map(_ask, places) for run in found]
    models = {m: {"label": c.label, "steps": c.steps} for m, c in CASES.items()}
    figures: dict[str, Any] = {"device": gpu(), "models": models, "rows": rows(runs)}
    for row in figures["rows"]:
        print(row, flush=True)
    figures["step_ns"] = {name: steps_ns(name) for name in CASES}
    figures["mm_ns"] = {str(size): products_ns(size) for size in SIZES}
    figures["randn_ns"] = variates_ns()
    return figures


def main(arguments: Sequence[str] | None = None) -> int:
    """Run from the command line; return the exit status."""
    parser = command.parser("contract_digests_cuda", __doc__)
    parser.add_argument(
        "--here", nargs=2, metavar=("DEVICE", "LIBRARY"), help="train in this process"
    )
    options = parser.parse_args(arguments)
    if options.here:
        for run in child(*options.here):
            print(json.dumps(run), flush=True)
        return 0

    def show(figures: dict[str, Any]) -> bool:
        held = [row for row in figures["rows"] if row["library"] == "repro"]
        return all(row["step"] is None for row in held)

    return command.run("contract_digests_cuda", options, measure, show)


if __name__ == "__main__":
    sys.exit(main())
