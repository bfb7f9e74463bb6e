# SPDX-License-Identifier: Apache-2.0
"""What does recording a run cost, in CPU time and on the disk?

    python -m benches.experiments.record_overhead [--store FILE]

A training step of each model runs alone, under a mode of torch's dispatcher that calls every
operator and does nothing else, and recorded: in turns, in one thread and on fresh copies. The
ratios are those of CPU times, with writing the record, which has no window of values. The empty
mode is what any recorder written in Python costs at least.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

from benches.experiments import command

ROUNDS = 5
#: Model of ``benches/data/planted.py`` -> the shape of larger inputs, or None.
CASES: dict[str, tuple[int, ...] | None] = {
    "LeNet": None,
    "decoder": None,
    "ViT, 3 layers": None,
    "ResNet-18": None,
    "ResNet-18, 16 images of 160": (16, 3, 160, 160),
}


def _made(case: str) -> tuple[Any, Any]:
    import torch

    from benches.data import planted

    model, inputs = planted.make(case.partition(", 16")[0])
    shape = CASES[case]
    return model, inputs if shape is None else torch.randn(shape)


def _cpu_seconds(step: Any) -> float:
    begin = time.process_time()
    step()
    return time.process_time() - begin


@cache
def _empty_mode() -> Any:
    from torch.utils._python_dispatch import TorchDispatchMode

    class Empty(TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            return func(*args, **(kwargs or {}))

    return Empty


def row(case: str) -> dict[str, Any]:
    """Measure one model."""
    from pytest_udftorch.diagnose import record_run
    from pytest_udftorch.swap.reach.coverage import training_step

    plain, empty, recorded, operators = [], [], [], 0
    with tempfile.TemporaryDirectory() as folder:
        for number in range(ROUNDS + 1):
            step = training_step(*_made(case))
            under, made = training_step(*_made(case)), _made(case)
            alone = _cpu_seconds(step)
            with _empty_mode()():
                bare = _cpu_seconds(under)
            begin = time.process_time()
            found = record_run(folder, make=partial(tuple, made))
            # The first round loads what the others find loaded.
            if number:
                plain.append(alone)
                empty.append(bare)
                recorded.append(time.process_time() - begin)
            operators = len(found.recording.calls)
        size = sum(file.stat().st_size for file in Path(folder).iterdir())
    ratios = [b / a for a, b in zip(plain, recorded, strict=True)]
    floor = [b / a for a, b in zip(plain, empty, strict=True)]
    return {
        "model": case,
        "operators": operators,
        "plain_s": statistics.median(plain),
        "recorded_s": statistics.median(recorded),
        "ratio": statistics.median(ratios),
        "ratios": [min(ratios), max(ratios)],
        "empty_mode": statistics.median(floor),
        "bytes": size,
    }


def measure() -> dict[str, Any]:
    """Measure every model."""
    import torch

    torch.set_num_threads(1)
    rows = []
    for case in CASES:
        rows.append(row(case))
        print(rows[-1], flush=True)
    return {"rows": rows}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run from the command line; return the exit status."""
    options = command.parser("record_overhead", __doc__).parse_args(arguments)
    return command.run("record_overhead", options, measure)


if __name__ == "__main__":
    sys.exit(main())
