# SPDX-License-Identifier: Apache-2.0
"""Whether four models end with the same weights at every CPU level and number of threads.

    python -m benches.experiments.contract_models [--libraries NAME ...] [--store FILE]

LeNet, ResNet-18, a vision transformer and a decoder of characters learn under each library, with
SGD and AdamW. Each library, CPU level and number of threads is a process of its own. Where weights
differ, the step at which they first do is recorded at both places, and the records are compared.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any, Final

import torch
from torch import nn
from torchvision.models import VisionTransformer

from benches.data import photographs
from benches.experiments import command
from benches.experiments.training import LENGTH, Task, Training, lenet, resnet, transformer
from pytest_udftorch import patched
from pytest_udftorch.diagnose import first_difference, record_run

#: ``deterministic`` is stock with ``torch.use_deterministic_algorithms``.
LIBRARIES: Final = ("std", "deterministic", "corem", "repro")
CAPABILITIES: Final = ("avx512", "avx2")
THREADS: Final = (1, 2)
SEED: Final = 0
#: Processes at once.
SIDE_BY_SIDE: Final = 2


@dataclass(frozen=True)
class Case:
    """A model that is trained.

    Attributes:
        label: the model and its sizes, without the optimizer.
        make: loads the data and returns the task.
        steps: of training.
        rate: of SGD with momentum.
    """

    label: str
    make: Callable[[], Task]
    steps: int
    rate: float


def vision_transformer() -> Task:
    """Return a transformer of patches on the photographs; its attention is one operator."""
    return Task(
        "vit",
        "ViT",
        photographs.load(),
        lambda: nn.Sequential(
            VisionTransformer(32, 8, 3, 4, 64, 128, num_classes=10), nn.LogSoftmax(-1)
        ),
        torch.optim.SGD,
        batch=16,
    )


CASES: Final = {
    "lenet": Case("LeNet, MNIST, batch 50", lenet, 300, 0.01),
    "resnet": Case(
        "ResNet-18 with 16 channels instead of 64, photographs of 32×32, batch 16",
        lambda: resnet(width=16, batch=16), 20, 0.005,
    ),
    "vit": Case(
        "ViT, 3 layers of size 64, photographs of 32×32, batch 16", vision_transformer, 60, 0.01
    ),
    "gpt": Case(
        f"GPT of characters, 2 layers of size 64, windows of {LENGTH}, batch 8",
        lambda: transformer(batch=8), 80, 0.05,
    ),
}  # fmt: skip

OPTIMIZERS: Final[dict[str, Callable[[float], Any]]] = {
    "SGD": lambda rate: lambda weights: torch.optim.SGD(weights, lr=rate, momentum=0.9),
    "AdamW": lambda rate: lambda weights: torch.optim.AdamW(weights, lr=1e-3),
}


@contextmanager
def under(library: str) -> Iterator[None]:
    """Train under a library, or in torch's deterministic mode."""
    if library != "deterministic":
        with patched(library):
            yield
        return
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


def _training(name: str, optimizer: str) -> tuple[Training, Iterator[torch.Tensor]]:
    case = CASES[name]
    task = replace(case.make(), optimizer=OPTIMIZERS[optimizer](case.rate))
    return Training(task, SEED), task.batches(SEED)


def digest(training: Training) -> str:
    """Return the SHA-256 of all weights."""
    return hashlib.sha256(training.weights().cpu().numpy().tobytes()).hexdigest()


def digest_of(weights: Iterable[torch.Tensor]) -> str:
    """Return SHA-256 of tensors of any dtype, one after the other."""
    bits = hashlib.sha256()
    for weight in weights:
        bits.update(weight.detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes())
    return bits.hexdigest()


def one_digest(rows: Sequence[dict[str, Any]], library: str, form: str) -> bool:
    """Tell whether a library's runs of each model end with one digest.

    Args:
        rows: with ``library``, ``model`` and ``digest``.
        library: whose rows are compared.
        form: the key of what else tells models apart.
    """
    ends: dict[tuple[str, str], set[str]] = {}
    for row in rows:
        if row["library"] == library:
            ends.setdefault((row["model"], row[form]), set()).add(row["digest"])
    return bool(ends) and all(len(found) == 1 for found in ends.values())


def trained(library: str, name: str, optimizer: str, steps: int) -> dict[str, Any]:
    """Train in this process.

    Returns:
        the digest of the weights at the beginning and after each step, and the seconds that the
        steps took.
    """
    with under(library):
        training, batches = _training(name, optimizer)
        digests = [digest(training)]
        begin = time.process_time()
        for _ in range(steps):
            training.step(next(batches))
            digests.append(digest(training))
    if not training.weights().view(torch.float32).isfinite().all():
        raise ValueError(f"{name} diverges with {optimizer}, so its digest says nothing.")
    return {"digests": digests, "cpu_s": time.process_time() - begin}


def recorded(library: str, name: str, optimizer: str, steps: int, folder: Path) -> None:
    """Record a run of some steps, which begins with the initial weights."""

    def run() -> None:
        # In the run itself, so that random numbers of the weights are recorded.
        training, batches = _training(name, optimizer)
        for _ in range(steps):
            training.step(next(batches))

    with under(library):
        record_run(folder, make=lambda: run, seed=SEED)


def child(order: dict[str, Any]) -> list[dict[str, Any]]:
    """Do what the parent asks for, in this process."""
    torch.set_num_threads(order["threads"])
    found = []
    for job in order["jobs"]:
        what = order["library"], job["model"], job["optimizer"], job["steps"]
        if "folder" in job:
            recorded(*what, Path(job["folder"]))
            continue
        where = {"capability": torch.backends.cpu.get_cpu_capability(), "threads": order["threads"]}
        found.append({"library": order["library"], **job, **where, **trained(*what)})
    return found


def ask(library: str, capability: str, threads: int, jobs: list[dict[str, Any]]) -> Any:
    """Do jobs in a process of their own."""
    # Waiting threads that spin would slow a shared machine down.
    passive = {"ATEN_CPU_CAPABILITY": capability, "OMP_WAIT_POLICY": "passive"}
    order = {"library": library, "threads": threads, "jobs": jobs}
    made = subprocess.run(
        [sys.executable, "-m", "benches.experiments.contract_models", "--here"],
        input=json.dumps(order), text=True, env={**os.environ, **passive},
        stdout=subprocess.PIPE, check=True,
    )  # fmt: skip
    return json.loads(made.stdout.splitlines()[-1])


def first_step(digests: Sequence[str], others: Sequence[str]) -> int | None:
    """Return the first step after which weights differ; 0 if they do at the beginning."""
    pairs = enumerate(zip(digests, others, strict=True))
    return next((step for step, (one, other) in pairs if one != other), None)


def parted(runs: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return where and when runs of one model first differ from the first of them.

    Args:
        runs: of one library, model and optimizer, that of one thread at the first CPU level first.

    Returns:
        at most one entry for another number of threads, and one for another CPU level.
    """
    base = runs[0]
    found = []
    for what, other in (("threads", "capability"), ("capability", "threads")):
        there = (r for r in runs if r[what] != base[what] and r[other] == base[other])
        # A CPU without AVX-512 has one level.
        run = next(there, base)
        step = first_step(base["digests"], run["digests"])
        if step is not None:
            sides = [{k: r[k] for k in ("capability", "threads")} for r in (base, run)]
            found.append({"other": what, "step": step, "sides": sides})
    return found


def _record_all(library: str, rows: Sequence[dict[str, Any]], folder: Path) -> None:
    """Record what differs, at both places; entries get the names of their records."""
    jobs: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for row in rows:
        for entry in row["differs"]:
            given = {k: row[k] for k in ("model", "optimizer")}
            given["steps"] = max(entry["step"], 1)
            entry["records"] = []
            for side in entry["sides"]:
                place = side["capability"].lower(), side["threads"]
                name = "-".join(map(str, (library, *given.values(), *place)))
                job = given | {"folder": str(folder / name)}
                entry["records"].append(job["folder"])
                if job not in jobs.setdefault(place, []):
                    jobs[place].append(job)
    with ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
        list(pool.map(lambda place: ask(library, *place, jobs[place]), jobs))


def name_operators(library: str, rows: Sequence[dict[str, Any]]) -> None:
    """Find for each entry the first operator with equal inputs and other outputs."""
    with tempfile.TemporaryDirectory() as scratch:
        _record_all(library, rows, Path(scratch))
        for row in rows:
            for entry in row["differs"]:
                sides = [f"rec:{path}" for path in entry.pop("records")]
                found = first_difference(*sides, seed=SEED).first
                entry["operator"] = None if found is None else found.operator
                entry["layer"] = None if found is None else found.document()["place"]["layer"]


def measure(libraries: Sequence[str] = LIBRARIES) -> dict[str, Any]:
    """Return the runs of libraries at every CPU level and number of threads."""
    pairs = list(product(CASES, OPTIMIZERS))
    jobs = [{"model": m, "optimizer": o, "steps": CASES[m].steps} for m, o in pairs]
    best = CAPABILITIES.index(torch.backends.cpu.get_cpu_capability().lower())
    places = list(product(libraries, CAPABILITIES[best:], THREADS))
    with ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
        runs = [r for found in pool.map(lambda p: ask(*p, jobs), places) for r in found]
    rows = []
    for library, (model, optimizer) in product(libraries, pairs):
        named = {"library": library, "model": model, "optimizer": optimizer}
        mine = [r for r in runs if all(r[k] == v for k, v in named.items())]
        short = [
            {k: r[k] for k in ("capability", "threads", "cpu_s")} | {"digest": r["digests"][-1]}
            for r in mine
        ]
        rows.append({**named, "runs": short, "differs": parted(mine)})
    for library in libraries:
        name_operators(library, [r for r in rows if r["library"] == library])
    models = {m: {"label": c.label, "steps": c.steps} for m, c in CASES.items()}
    return {"models": models, "rows": rows}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run from the command line; return the exit status."""
    parser = command.parser("contract_models", __doc__)
    parser.add_argument("--here", action="store_true", help="do what standard input says")
    parser.add_argument(
        "--libraries", nargs="+", choices=LIBRARIES, default=LIBRARIES, help="all by default"
    )
    options = parser.parse_args(arguments)
    if options.here:
        print(json.dumps(child(json.load(sys.stdin))))
        return 0
    if options.libraries != LIBRARIES:
        options.changed = [f"--libraries {' '.join(options.libraries)}"]

    def show(figures: dict[str, Any]) -> bool:
        for row in figures["rows"]:
            digests = {run["digest"] for run in row["runs"]}
            print(f"{row['library']:14} {row['model']:7} {row['optimizer']:6} {len(digests)}")
        held = [row for row in figures["rows"] if row["library"] == "repro"]
        return all(len({run["digest"] for run in row["runs"]}) == 1 for row in held)

    return command.run("contract_models", options, lambda: measure(options.libraries), show)


if __name__ == "__main__":
    sys.exit(main())
