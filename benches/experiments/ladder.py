# SPDX-License-Identifier: Apache-2.0
"""How far are the functions of the ladder from the truth, over all inputs, and how fast are they?

    python -m benches.experiments.ladder [--bits 24] [--store FILE]

The truth is corem's result, which is proved to be the correctly rounded one; its own half ULP is
added to the error. Every one of the 2^32 encodings is run (``--bits 24`` takes every 2^8th). The
error is counted in ULP of the result, so a rung of b bits may err by 2^(24-b). Times are of 4,096
arguments in the first cache, interleaved over the rungs, in ns per element.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from benches.experiments import command

RUNGS = (8, 10, 12, 16, 20)
FUNCTIONS = ("cos", "erf", "exp", "expm1", "log", "sin", "tanh")
CHUNK = 2**22
ELEMENTS = 4096
ROUNDS = 401


def _judge() -> Callable[..., float]:
    import numba
    import numpy as np

    @numba.njit(nogil=True)  # type: ignore[untyped-decorator]
    def judge(got: Any, true: Any, units: Any, per: Any) -> float:
        """Return the worst error in ULP, infinite for a wrong infinity or NaN."""
        worst = 0.0
        for i in range(got.size):
            a, b = got[i], true[i]
            same = (a == b) | ((a != a) & (b != b))
            error = 0.0 if same else abs(float(a) - float(b)) * per[(units[i] >> 23) & 255]
            error = error if error == error else np.inf
            worst = max(worst, error)
        return worst

    return judge  # type: ignore[no-any-return]


def errors(function: str, bits: int, judge: Callable[..., float]) -> dict[int, Any]:
    """Return rung -> worst error in ULP, with an argument that has it, over 2^bits encodings."""
    import numpy as np

    from pytest_udftorch import build_library

    step = 2 ** (32 - bits)
    # Exponent of an encoding -> units in the last place per 1; subnormals have those of 2^-126.
    per = 2.0 ** (150 - np.maximum(np.arange(256), 1).astype(np.float64))
    true, got = np.empty(CHUNK, np.float32), np.empty(CHUNK, np.float32)
    calls = {b: build_library(f"ladder-{b}").array_function(function) for b in RUNGS}
    exact = build_library("corem").array_function(function)
    found = dict.fromkeys(RUNGS, (0.0, "0x0"))
    for first in range(0, 2**bits, CHUNK):
        last = min(first + CHUNK, 2**bits)
        encodings = np.arange(first, last, dtype=np.uint64) * np.uint64(step)
        x = encodings.astype(np.uint32).view(np.float32)
        exact(x.size, x.ctypes.data, true.ctypes.data, 0)
        units = true[: x.size].view(np.int32)
        for rung, call in calls.items():
            call(x.size, x.ctypes.data, got.ctypes.data, 0)
            worst = judge(got[: x.size], true[: x.size], units, per)
            if worst > found[rung][0]:
                with np.errstate(invalid="ignore"):
                    apart = np.abs(got[: x.size].astype(np.float64) - true[: x.size])
                    scaled = apart * per[(units >> 23) & 255]
                at = int(np.argmax(np.where(np.isnan(scaled), 0 if worst < np.inf else 1, scaled)))
                found[rung] = worst, float(x[at]).hex()
    return {
        rung: {"ulp": worst + 0.5, "of": 2 ** (24 - rung), "at": at}
        for rung, (worst, at) in found.items()
    }


def times(function: str) -> dict[str, Any]:
    """Return library -> ns per element, the median over interleaved rounds, and the quartiles."""
    import numpy as np

    from pytest_udftorch import build_library

    low, high = (0.01, 20.0) if function == "log" else (-8.0, 8.0)
    x = np.random.default_rng(0).uniform(low, high, ELEMENTS).astype(np.float32)
    y = np.empty_like(x)
    names = [f"ladder-{b}" for b in RUNGS] + ["corem"]
    calls = {
        n: partial(
            build_library(n).array_function(function), x.size, x.ctypes.data, y.ctypes.data, 0
        )
        for n in names
    }
    taken: dict[str, list[float]] = {n: [] for n in names}
    for _ in range(ROUNDS):
        for name, call in calls.items():
            begin = time.perf_counter_ns()
            call()
            taken[name].append((time.perf_counter_ns() - begin) / ELEMENTS)
    return {
        name: {"ns": statistics.median(t), "quartiles": statistics.quantiles(t, n=4)[::2]}
        for name, t in taken.items()
    }


def measure(bits: int) -> dict[str, Any]:
    """Measure every function."""
    judge = _judge()
    rows = []
    for function in FUNCTIONS:
        row = {"function": function, "errors": errors(function, bits, judge)}
        rows.append({**row, "times": times(function)})
        print(rows[-1], flush=True)
    return {"inputs": 2**bits, "rows": rows}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run from the command line; return the exit status."""
    parser = command.parser("ladder", __doc__)
    parser.add_argument("--bits", type=int, default=32, help="2^BITS inputs; by default all 2^32")
    options = parser.parse_args(arguments)
    return command.run("ladder", options, lambda: measure(options.bits))


if __name__ == "__main__":
    sys.exit(main())
