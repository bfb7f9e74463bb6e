# SPDX-License-Identifier: Apache-2.0
"""What keeps eager CUDA operators of a session from the speed of memory: hardware counters.

    python -m benches.experiments.cuda_counters [--store FILE]

Nsight Compute (``ncu``) runs each operator once on 2^26 float32 numbers under corem and reads, for
its kernel: instructions of all kinds and of double precision per element, the share of the slots
for instructions and of the memory's bandwidth that they take, threads per instruction, of 32, and
registers. Branches that few threads take show as fewer threads; a memory-bound kernel takes most
of the bandwidth.
"""

from __future__ import annotations

import csv
import subprocess
import sys
from collections.abc import Sequence
from typing import Any, Final

from benches.experiments import command
from pytest_udftorch import UdfError

#: Figure -> the metric of Nsight Compute that it is read from.
METRICS: Final = {
    "time_ns": "gpu__time_duration.sum",
    "memory_percent": "dram__throughput.avg.pct_of_peak_sustained_elapsed",
    "issue_percent": "sm__inst_executed.avg.pct_of_peak_sustained_active",
    "double_percent": "sm__inst_executed_pipe_fp64.avg.pct_of_peak_sustained_active",
    "instructions": "sm__inst_executed.sum",
    "double_instructions": "sm__inst_executed_pipe_fp64.sum",
    "threads": "smsp__thread_inst_executed_per_inst_executed.ratio",
    "registers": "launch__registers_per_thread",
    "warps_percent": "sm__warps_active.avg.pct_of_peak_sustained_active",
}
OPERATORS: Final = (
    "exp", "tanh", "erf", "erfc", "tan", "asin", "acos", "atan", "asinh", "acosh", "atanh", "gelu",
    "softplus", "mish", "logsigmoid", "gelu backward", "mish backward", "silu backward",
    "softmax, 32768 columns",
)  # fmt: skip
#: Threads that an instruction is for.
_WARP: Final = 32


class CountersError(UdfError):
    """Nsight Compute cannot be run, or says something else than expected."""


def parse(text: str, elements: int) -> dict[str, dict[str, float]]:
    """Return operator -> figures, from the raw page of ``ncu --csv`` with a kernel for each.

    Instructions are per element.

    Raises:
        CountersError: there are fewer or more kernels than operators, or a metric is missing.
    """
    rows = list(csv.reader(line for line in text.splitlines() if line.startswith('"')))
    if len(rows) != len(OPERATORS) + 2:  # names, units
        raise CountersError(
            f"ncu shows {max(0, len(rows) - 2)} kernels, and {len(OPERATORS)} operators ran:\n"
            f"{text[-2000:]}"
        )
    found = {}
    for name, row in zip(OPERATORS, rows[2:], strict=True):
        given = dict(zip(rows[0], row, strict=True))
        if missing := [m for m in METRICS.values() if m not in given]:
            raise CountersError(f"ncu does not show {', '.join(missing)} of {name}.")
        one = {n: float(given[m].replace(",", "")) for n, m in METRICS.items()}
        for counted in ("instructions", "double_instructions"):
            one[counted] *= _WARP / elements
        found[name] = one
    return found


def child() -> None:
    """Run each operator twice; profiled the second time."""
    import torch

    from benches.experiments.cuda_speed import LARGE, numbers, operators
    from pytest_udftorch import patched

    x, known = numbers(LARGE), operators()
    with patched("corem"):
        for name in OPERATORS:
            known[name][0](x)
        for name in OPERATORS:
            torch.cuda.synchronize()
            torch.cuda.cudart().cudaProfilerStart()
            known[name][0](x)
            torch.cuda.synchronize()
            torch.cuda.cudart().cudaProfilerStop()


def measure() -> dict[str, Any]:
    """Return the figures of each operator.

    Raises:
        CountersError: as from :func:`parse`, or there is no ``ncu``.
    """
    from benches.experiments.cuda_digests import gpu
    from benches.experiments.cuda_speed import LARGE

    code = "from benches.experiments.cuda_counters import child; child()"
    run = [
        "ncu", "--profile-from-start", "off", "--clock-control", "none", "--page", "raw", "--csv",
        "--metrics", ",".join(METRICS.values()), sys.executable, "-c", code,
    ]  # fmt: skip
    try:
        said = subprocess.run(run, capture_output=True, text=True).stdout
    except OSError as error:
        raise CountersError(
            f"Nsight Compute does not run ({error}). Install it, and name its folder in PATH."
        ) from error
    return {"device": gpu(), "elements": LARGE, "operators": parse(said, LARGE)}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run from the command line; return the exit status."""
    parser = command.parser("cuda_counters", __doc__)

    def show(figures: dict[str, Any]) -> bool:
        for name, one in figures["operators"].items():
            print(f"{name:26} {one['instructions']:6.1f} instructions per element")
        return True

    return command.run("cuda_counters", parser.parse_args(arguments), measure, show)


if __name__ == "__main__":
    sys.exit(main())
