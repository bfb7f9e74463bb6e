# SPDX-License-Identifier: Apache-2.0
"""How fast corem-d's forms are, against what PyTorch calls: VML, SLEEF and the C library.

    python -m benches.experiments.float64_speed --store

The contenders of a function run interleaved in one process, as in ``speed``. torch sets VML to its
high accuracy (HA), which is its default too. ``--store`` keeps the figures of this machine beside
those of others in ``benches/results/float64_speed.json``, with the load that other processes put on
it. Arguments are those of ``float64``'s first interval.
"""

from __future__ import annotations

import argparse
import ctypes
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

import pytest_udftorch
from benches import stored
from benches.experiments import native, speed
from benches.experiments.float64 import EXPONENTS, INTERVALS
from pytest_udftorch.swap import FUNCTIONS
from pytest_udftorch.swap.toolchain.environment import caption, describe

FILE: Final = stored.RESULTS / "float64_speed.json"
COMMAND: Final = "python -m benches.experiments.float64_speed --store"
LANES: Final = {"avx512": 8, "avx2": 4}


class DoubleHarness(speed.Harness):
    """The timing loops for float64."""

    def __init__(self) -> None:
        super().__init__()
        self._doubles = native.load("doubles.c", "-O2")
        self._doubles.bench.restype = ctypes.c_double

    def time_ns(
        self,
        contender: speed.Contender,
        inputs: tuple[np.ndarray, ...],
        output: np.ndarray,
        repeats: int,
    ) -> float:
        """Return nanoseconds per element of one timed call; one array per argument."""
        kind = "run" if len(inputs) == 1 else "two"
        places = [ctypes.c_void_p(part.ctypes.data) for part in inputs]
        return float(
            self._doubles.bench(
                getattr(self._doubles, f"{kind}_{contender.form}"),
                ctypes.c_void_p(contender.address),
                ctypes.c_int64(output.size),
                *(*places, None)[:2],
                ctypes.c_void_p(output.ctypes.data),
                ctypes.c_int64(repeats),
            )
        )


def contenders(function: str, level: str) -> list[speed.Contender]:
    """Return what competes for one function at one CPU level; corem-d's forms come first."""
    import torch

    libraries = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so", "libm.so.6"
    torch_lib, libm = (ctypes.CDLL(str(name)) for name in libraries)
    symbols = FUNCTIONS[function].symbols("float64")
    if level == "scalar":
        ours = pytest_udftorch.build_library("corem-d").forms(function, "float64")
        listed = [("corem", "scalar", ours["scalar"]),
                  ("glibc", "scalar", address(libm, symbols["scalar"][0]))]  # fmt: skip
    else:
        form = f"v{LANES[level]}"
        ours = pytest_udftorch.build_library("corem-d", level).forms(function, "float64")
        listed = [("corem", "array", ours["array"]), ("corem vector", form, ours[form])]
        listed += [("vml", "array", address(torch_lib, n)) for n in symbols.get("array", ())[:1]]
        listed += [
            (f"sleef {n.rsplit('_', 1)[1]}", form, address(torch_lib, n)) for n in symbols[form]
        ]
    return [speed.Contender(*each) for each in listed if each[2]]


def address(library: ctypes.CDLL, symbol: str) -> int:
    """Return where a symbol of a library is, or 0."""
    try:
        return ctypes.cast(getattr(library, symbol), ctypes.c_void_p).value or 0
    except AttributeError:
        return 0


def sample(function: str) -> tuple[np.ndarray, ...]:
    """Return arguments, uniform over an interval, from a fixed seed."""
    draw = np.random.default_rng(1)
    ends = (INTERVALS[function][0], EXPONENTS)[: FUNCTIONS[function].arity]
    return tuple(draw.uniform(*end, speed.L1_ELEMENTS) for end in ends)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("functions", nargs="*", help="default: all of corem-d's")
    parser.add_argument("--rounds", type=int, default=speed.ROUNDS)
    parser.add_argument("--store", action="store_true", help=f"add this machine to {FILE.name}")
    options = parser.parse_args(arguments)
    harness = DoubleHarness()
    before = os.getloadavg()[0]
    forms: dict[str, Any] = {}
    for function in options.functions or INTERVALS:
        forms[function] = {}
        for level in speed.levels():
            row = speed.measure(
                harness, contenders(function, level), sample(function), options.rounds
            )
            forms[function][level] = row
            print(function, level, {k: round(v["ns"], 3) for k, v in row.items()}, flush=True)
    figures = {
        "environment": describe(),
        "rounds": options.rounds,
        # Processes that wanted a processor in the minute before.
        "load": {"processors": os.cpu_count(), "waiting": round(before, 2)},
        "forms": forms,
    }
    print(caption(figures["environment"]))
    if options.store:
        stored.add_machine(FILE, COMMAND, figures)


if __name__ == "__main__":
    main()
