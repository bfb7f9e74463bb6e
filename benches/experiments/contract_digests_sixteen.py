# SPDX-License-Identifier: Apache-2.0
"""Whether a model ends with the same weights in bfloat16 on CPUs of two levels and on a GPU.

    python -m benches.experiments.contract_digests_sixteen [--store FILE]

The four models of :mod:`benches.experiments.contract_models` learn with AdamW, under autocast and
with weights in bfloat16, with AVX2 and AVX-512, and on a GPU if there is one. Each place and
library is a process of its own; they run side by side.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import product
from typing import Any, Final

import torch
from torch import nn

from benches.experiments import command
from benches.experiments.contract_models import CASES, OPTIMIZERS, SEED, digest_of, one_digest
from benches.experiments.cuda_digests import gpu
from benches.experiments.cuda_training import on_gpu
from benches.experiments.training import Training
from pytest_udftorch import patched

LIBRARIES: Final = ("std", "repro")
FORMS: Final = ("autocast", "bfloat16")
CAPABILITIES: Final = ("avx2", "avx512")
#: Threads of each process on the CPU, and on the GPU's side.
THREADS: Final = {"avx2": 1, "avx512": 2, "cuda": 2}
#: Of the steps of a case in float32 a run takes this part.
SHARE: Final = 4


class Narrow(nn.Module):
    """A model under autocast, or with weights in bfloat16; its results are in float32."""

    def __init__(self, model: nn.Module, form: str, device: str) -> None:
        super().__init__()
        self.model = model.bfloat16() if form == "bfloat16" else model
        self.form, self.device = form, device

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return what the model does; windows of characters are integers, images are rounded."""
        if self.form == "bfloat16" and x.is_floating_point():
            x = x.bfloat16()
        with torch.autocast(self.device, torch.bfloat16, enabled=self.form == "autocast"):
            found: torch.Tensor = self.model(x)
        return found.float()


def trained(name: str, form: str, device: str, steps: int) -> str:
    """Train in this process; return the digest of the weights."""
    case = CASES[name]
    task = replace(case.make(), optimizer=OPTIMIZERS["AdamW"](case.rate))
    whole = task.make
    task = replace(task, make=lambda: Narrow(whole(), form, device))
    training = Training(on_gpu(task) if device == "cuda" else task, SEED)
    begin, batches = digest_of(training.model.parameters()), task.batches(SEED)
    for _ in range(steps):
        training.step(next(batches).to(device))
    end = digest_of(training.model.parameters())
    if end == begin or not all(p.isfinite().all() for p in training.model.parameters()):
        raise ValueError(f"{name} in {form} does not learn, so its digest says nothing.")
    return end


def steps_of(name: str) -> int:
    """Return how many steps a model takes."""
    return max(8, CASES[name].steps // SHARE)


def child(place: str, library: str) -> Iterator[dict[str, Any]]:
    """Train every model in this process."""
    torch.set_num_threads(THREADS[place])
    device = "cuda" if place == "cuda" else "cpu"
    for name, form in product(CASES, FORMS):
        with patched(library):
            found = trained(name, form, device, steps_of(name))
        yield {"library": library, "place": place, "model": name, "form": form, "digest": found}


def _ask(of: tuple[str, str]) -> list[dict[str, Any]]:
    level = {} if of[0] == "cuda" else {"ATEN_CPU_CAPABILITY": of[0]}
    found = command.ask("contract_digests_sixteen", *of, **level)
    print(*of, "done", flush=True)
    return found


def measure() -> dict[str, Any]:
    """Return the digests of every library and place."""
    best = CAPABILITIES.index(torch.backends.cpu.get_cpu_capability().lower())
    places = [*CAPABILITIES[: best + 1], *(["cuda"] if torch.cuda.is_available() else [])]
    with patched("repro"):
        pass  # builds what is not built, once and not in each process
    with ThreadPoolExecutor(len(places) * len(LIBRARIES)) as pool:
        found = list(pool.map(_ask, product(places, LIBRARIES)))
    models = {n: {"label": c.label, "steps": steps_of(n)} for n, c in CASES.items()}
    device = gpu() if "cuda" in places else None
    return {"device": device, "models": models, "rows": [row for rows in found for row in rows]}


def same(rows: Sequence[dict[str, Any]], library: str) -> bool:
    """Tell whether a library's runs of each model and form end with one digest."""
    return one_digest(rows, library, "form")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run from the command line; return the exit status."""
    parser = command.parser("contract_digests_sixteen", __doc__)
    parser.add_argument(
        "--here", nargs=2, metavar=("PLACE", "LIBRARY"), help="train in this process"
    )
    options = parser.parse_args(arguments)
    if options.here:
        for run in child(*options.here):
            print(json.dumps(run), flush=True)
        return 0

    def judge(figures: dict[str, Any]) -> bool:
        for row in figures["rows"]:
            print(*row.values(), flush=True)
        return same(figures["rows"], "repro") and not same(figures["rows"], "std")

    return command.run("contract_digests_sixteen", options, measure, judge)


if __name__ == "__main__":
    sys.exit(main())
