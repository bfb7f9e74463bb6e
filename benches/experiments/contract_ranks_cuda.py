# SPDX-License-Identifier: Apache-2.0
"""Whether a model ends with the same weights on one GPU, on several, and in micro-batches.

    python -m benches.experiments.contract_ranks_cuda [--store FILE]

LeNet and a decoder of characters learn from the same batches with SGD and AdamW: on one GPU, whole
and in micro-batches; on two over NCCL, whole and in micro-batches; on four ranks, over NCCL where
there are four GPUs, otherwise over gloo with two ranks a GPU; and on the CPU on one rank and on
four. One run stops three times and goes on, from its checkpoint, on another number of ranks. Stock
does the same as far as it can: it has the same hook and the same micro-batches.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from itertools import islice, product
from pathlib import Path
from typing import Any, Final

import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

from benches import stored
from benches.experiments import command
from benches.experiments.contract_models import OPTIMIZERS, SEED
from benches.experiments.cuda_digests import gpu
from benches.experiments.cuda_training import on_gpu
from benches.experiments.training import LENGTH, Task, Training, lenet, transformer
from pytest_udftorch import patched
from pytest_udftorch.reproduce import GradientTree, tree_hook

LIBRARIES: Final = ("std", "repro")
#: Steps of a run, a multiple of the number of places that one with stops passes through.
STEPS: Final = 16
#: Fewer steps than this are not timed.
TIMED: Final = 12
#: Threads of each rank on the CPU.
THREADS: Final = 2


@dataclass(frozen=True)
class Model:
    """A model whose batches fall apart on nodes of the contract's tree.

    Attributes:
        label: the model and its sizes.
        batch: samples; a quarter of them has 64 rows at every linear layer, or more.
        rate: of SGD with momentum.
    """

    label: str
    batch: int
    rate: float

    def task(self, name: str) -> Task:
        """Load the data."""
        task = lenet() if name == "lenet" else transformer(batch=self.batch)
        return replace(task, batch=self.batch)


MODELS: Final = {
    "lenet": Model("LeNet, MNIST, batch 256", 256, 0.02),
    "gpt": Model(
        f"GPT of characters, 2 layers of size 64, windows of {LENGTH}, batch 16", 16, 0.05
    ),
}


@dataclass(frozen=True)
class Leg:
    """Some steps of a run on some ranks.

    Attributes:
        run: names the row of the table.
        parts: micro-batches of a rank's part of the batch; 1 takes it as a whole.
        begin: number of the first step.
        end: number of the step after the last.
        load: whether it goes on from the checkpoint of its run.
        save: whether it leaves one.
        stock_hook: gradients are averaged as torch does without a hook.
    """

    run: str
    parts: int = 1
    begin: int = 0
    end: int = STEPS
    load: bool = False
    save: bool = False
    stock_hook: bool = False


@dataclass(frozen=True)
class Place:
    """Where legs run: so many ranks on a device, joined by a backend."""

    device: str
    ranks: int
    backend: str
    legs: tuple[Leg, ...]


def _stops(number: int, steps: int) -> Leg:
    """Return one of four legs of a run that stops three times."""
    quarter = steps // 4
    return Leg(
        "stopped", begin=number * quarter, end=(number + 1) * quarter, load=number > 0,
        save=number < 3,
    )  # fmt: skip


def places(gpus: int, steps: int = STEPS) -> list[Place]:
    """Return where the legs run, in an order in which checkpoints are left before they are read."""
    whole = Leg("whole", end=steps)

    def parts(n: int) -> Leg:
        return replace(whole, run="parts", parts=n)

    found = [Place("cuda", 1, "", (whole, parts(2), parts(4), _stops(0, steps)))]
    if gpus > 1:
        stock = replace(whole, run="torch's all-reduce", stock_hook=True)
        found.append(Place("cuda", 2, "nccl", (whole, parts(2), stock, _stops(1, steps))))
    else:
        found.append(Place("cuda", 2, "gloo", (whole, parts(2), _stops(1, steps))))
    backend = "nccl" if gpus > 3 else "gloo"
    found.append(Place("cuda", 4, backend, (whole, _stops(2, steps))))
    found.append(Place("cuda", 1, "", (_stops(3, steps),)))
    return found


def on_cpu(steps: int = STEPS) -> list[Place]:
    """Return what runs on the CPU beside."""
    whole = (Leg("whole", end=steps),)
    return [Place("cpu", 1, "", whole), Place("cpu", 4, "gloo", whole)]


# On one rank ------------------------------------------------------------------------------


def _digest(training: Training) -> str:
    return hashlib.sha256(training.weights().cpu().numpy().tobytes()).hexdigest()


def _step_in_parts(training: Training, batch: torch.Tensor, parts: int, group: Any) -> None:
    tree = GradientTree(training.model.parameters())
    training.optimizer.zero_grad()
    for part in batch.chunk(parts):
        training.loss(part).backward()
        tree.add()
    tree.finish(group)
    training.optimizer.step()


def _checkpoint(training: Training, path: Path, *, save: bool) -> None:
    model = training.model
    core = model.module if isinstance(model, DistributedDataParallel) else model
    if save:
        torch.save([core.state_dict(), training.optimizer.state_dict()], path)
        return
    weights, state = torch.load(path, map_location="cpu")
    core.load_state_dict(weights)
    training.optimizer.load_state_dict(state)


def _wrapped(training: Training, leg: Leg) -> None:
    """Give the model to DDP, which averages the gradients of the ranks."""
    wrapped: Any = DistributedDataParallel(training.model)
    if not leg.stock_hook:
        wrapped.register_comm_hook(None, tree_hook)
    training.model = wrapped


def trained(task: Task, place: Place, leg: Leg, checkpoint: Path) -> dict[str, Any]:
    """Do the steps of a leg in this rank.

    Returns:
        ``digest``, of the weights at the end, and ``step_ns``, the times of the steps, of which
        the first quarter is left out; None for fewer than ``TIMED``.
    """
    rank = distributed.get_rank() if place.backend else 0
    training = Training(task, SEED)
    if place.backend and leg.parts == 1:
        _wrapped(training, leg)
    if leg.load:
        _checkpoint(training, checkpoint, save=False)
    times = []
    for batch in islice(task.batches(SEED), leg.begin, leg.end):
        mine = batch.chunk(place.ranks)[rank].to(place.device)
        begin = time.perf_counter_ns()
        if leg.parts == 1:
            training.step(mine)
        else:
            group = distributed.group.WORLD if place.backend else None
            _step_in_parts(training, mine, leg.parts, group)
        if place.device == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter_ns() - begin)
    if leg.save and rank == 0:
        _checkpoint(training, checkpoint, save=True)
    if place.backend:
        distributed.barrier()
    timed = stored.summary(times[len(times) // 4 :]) if len(times) >= TIMED else None
    return {"digest": _digest(training), "step_ns": timed}


def child(order: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Do the legs of a place under each library in this rank."""
    place = Place(**{**order["place"], "legs": tuple(Leg(**x) for x in order["place"]["legs"])})
    torch.set_num_threads(THREADS)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    rank = int(os.environ.get("LOCAL_RANK", "0"))
    if place.device == "cuda":
        torch.cuda.set_device(rank % torch.cuda.device_count())
    if place.backend:
        distributed.init_process_group(place.backend)
    for name, optimizer in product(order["models"], order["optimizers"]):
        model = MODELS[name]
        task = replace(model.task(name), optimizer=OPTIMIZERS[optimizer](model.rate))
        if place.device == "cuda":
            task = on_gpu(task)
        for library, leg in product(order["libraries"], place.legs):
            path = Path(order["folder"], f"{name}-{optimizer}-{library}")
            with patched(library):
                found = trained(task, place, leg, path)
            yield {
                "device": place.device, "ranks": place.ranks, "backend": place.backend,
                "run": leg.run, "parts": leg.parts, "end": leg.end, "library": library,
                "model": name, "optimizer": optimizer, **found,
            }  # fmt: skip
    if place.backend:
        distributed.destroy_process_group()


# All of them ------------------------------------------------------------------------------


def launched(place: Place, order: dict[str, Any]) -> list[dict[str, Any]]:
    """Start the ranks of a place, and return what they found, which must be the same.

    Args:
        place: where.
        order: ``models``, ``optimizers``, ``libraries``, and ``folder``, which has checkpoints.

    Returns:
        a row for each leg, library, model and optimizer.
    """
    with tempfile.TemporaryDirectory() as out:
        text = json.dumps({**order, "place": asdict(place), "out": out})
        ranks = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={place.ranks}"]
        what = ["-m", "benches.experiments.contract_ranks_cuda", "--here", text]
        env = {**os.environ, "OMP_NUM_THREADS": str(THREADS), "OMP_WAIT_POLICY": "passive"}
        subprocess.run([sys.executable, *(ranks if place.backend else []), *what],
                       env=env, check=True)  # fmt: skip
        files = [Path(out, f"{rank}").read_text() for rank in range(place.ranks)]
    each = [[json.loads(line) for line in text.splitlines()] for text in files]
    rows = []
    for same in zip(*each, strict=True):
        digests = {row["digest"] for row in same}
        # The time of a step is that of the slowest rank.
        slowest = max(same, key=lambda row: (row["step_ns"] or {"median": 0})["median"])
        rows.append(slowest if len(digests) == 1 else {**slowest, "digest": "ranks differ"})
    return rows


def measured(order: dict[str, Any], chosen: Sequence[Place]) -> list[dict[str, Any]]:
    """Run places one after the other."""
    found = []
    for place in chosen:
        found += launched(place, order)
        print(place.device, place.ranks, place.backend, "done", flush=True)
    return found


def measure() -> dict[str, Any]:
    """Return the digests of every run, and the times of its steps."""
    gpus = torch.cuda.device_count()
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(2) as pool:
        order = {
            "models": list(MODELS), "optimizers": list(OPTIMIZERS), "libraries": LIBRARIES,
            "folder": folder,
        }  # fmt: skip
        runs = [pool.submit(measured, order, p) for p in (places(gpus), on_cpu())]
        rows = [row for run in runs for row in run.result()]
    # Legs that were stopped have no weights of their own.
    rows = [row for row in rows if row["end"] == STEPS]
    models = {name: {"label": m.label, "steps": STEPS} for name, m in MODELS.items()}
    return {
        "device": gpu(), "gpus": gpus, "nccl": ".".join(map(str, torch.cuda.nccl.version())),
        "models": models, "rows": rows,
    }  # fmt: skip


def same(rows: Sequence[dict[str, Any]], library: str) -> bool:
    """Tell whether a library's runs of each model and optimizer end with one digest."""
    ends: dict[tuple[str, str], set[str]] = {}
    for row in rows:
        if row["library"] == library:
            ends.setdefault((row["model"], row["optimizer"]), set()).add(row["digest"])
    return bool(ends) and all(len(found) == 1 for found in ends.values())


def main(arguments: Sequence[str] | None = None) -> int:
    """Run from the command line; return the exit status."""
    parser = command.parser("contract_ranks_cuda", __doc__)
    parser.add_argument("--here", metavar="JSON", help="be a rank that does what this says")
    options = parser.parse_args(arguments)
    if options.here:
        order = json.loads(options.here)
        with Path(order["out"], os.environ.get("RANK", "0")).open("w") as file:
            for row in child(order):
                print(json.dumps(row), file=file, flush=True)
        return 0

    def show(figures: dict[str, Any]) -> bool:
        for row in figures["rows"]:
            print(*(row[k] for k in ("device", "ranks", "backend", "run", "parts", "library",
                                     "model", "optimizer")), row["digest"][:12])  # fmt: skip
        return same(figures["rows"], "repro") and not same(figures["rows"], "std")

    return command.run("contract_ranks_cuda", options, measure, show)


if __name__ == "__main__":
    sys.exit(main())
