# SPDX-License-Identifier: Apache-2.0
"""Torch's operators under an own library, the stock functions and corem, timed in turns.

A turn is one session and some calls in it, of which the first is not timed. The contenders of an
operator take their turns in random order, so that what slows a shared machine down falls on all.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch

from pytest_udftorch.base.result import Result, Shown
from pytest_udftorch.errors import MeasureError, nearest
from pytest_udftorch.measure.timing.timers import sync_timer
from pytest_udftorch.swap.library.description import UdfLibrary, find_library
from pytest_udftorch.swap.library.symbols import FUNCTIONS
from pytest_udftorch.swap.session.session import patched
from pytest_udftorch.watch.compare.bench_file import FORMAT

STOCK: Final = "stock"
COREM: Final = "corem"

#: Elements of an operator's input: 64 KiB of float32, which stay in a core's second cache.
ELEMENTS: Final = 16384


@dataclass(frozen=True)
class Quartiles:
    """The middle half of a sample."""

    low: float
    median: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Quartiles:
        """Return the quartiles of at least two values."""
        low, median, high = statistics.quantiles(values, n=4, method="inclusive")
        return cls(low, median, high)

    def rounded(self) -> dict[str, float]:
        """Return plain data, with five digits."""
        return {name: float(f"{value:.5g}") for name, value in vars(self).items()}


@dataclass(frozen=True)
class OperatorTiming:
    """One operator under one contender.

    Attributes:
        operator: torch's name.
        contender: ``stock``, or the name of a library.
        ns_per_element: of the whole operator.
        ratio_to_stock: of times of the same turn; below 1 is faster than the stock function.
    """

    operator: str
    contender: str
    ns_per_element: Quartiles
    ratio_to_stock: Quartiles


@dataclass(frozen=True, repr=False)
class OperatorTimings(Result):
    """Operators under every contender.

    Attributes:
        library: the name of the library in question.
        timings: those of one operator together, the stock function first.
        machine: CPU, capability and version of torch.
        elements: of an operator's input.
        runs: turns of each contender.
        threads: of torch's operators.
    """

    library: str
    timings: tuple[OperatorTiming, ...]
    machine: Mapping[str, str]
    elements: int
    runs: int
    threads: int

    def _shown(self) -> Shown:
        header = (
            "operator",
            "library",
            "ns per element",
            "half of the runs",
            "ratio to stock",
            "half",
        )
        rows = []
        for t in self.timings:
            ns, ratio, stock = t.ns_per_element, t.ratio_to_stock, t.contender == STOCK
            rows.append(
                (
                    t.operator if stock else "", t.contender, f"{ns.median:.3f}",
                    f"{ns.low:.3f} to {ns.high:.3f}", "1" if stock else f"{ratio.median:.2f}",
                    "" if stock else f"{ratio.low:.2f} to {ratio.high:.2f}",
                )
            )  # fmt: skip
        facts = {**self.machine, "threads": str(self.threads), "elements": f"{self.elements:,}"}
        return Shown(
            "; ".join(f"{name} {value}" for name, value in facts.items()), header, rows, ruled=False
        )

    def document(self) -> dict[str, Any]:
        """Return the file of ``udftorch bench``."""
        return {
            "format": FORMAT,
            "library": self.library,
            "dtype": "float32",
            "elements": self.elements,
            "runs": self.runs,
            "threads": self.threads,
            "machine": dict(self.machine),
            "rows": [
                {
                    "operator": t.operator,
                    "contender": t.contender,
                    "ns_per_element": t.ns_per_element.rounded(),
                    "ratio_to_stock": t.ratio_to_stock.rounded(),
                }
                for t in self.timings
            ],
        }


def _contenders(library: UdfLibrary, function: str) -> dict[str, UdfLibrary | None]:
    found: dict[str, UdfLibrary | None] = {STOCK: None, library.name: library}
    corem = find_library(COREM)
    if library.name != COREM and (function, "float32") in corem.functions:
        found[COREM] = corem
    return found


def functions_of(library: UdfLibrary, asked: Sequence[str]) -> list[str]:
    """Return the functions to time.

    Raises:
        MeasureError: the library has none of float32, or not what was asked for.
    """
    known = [n for n, dtype in library.functions if dtype == "float32" and n in FUNCTIONS]
    for name in asked:
        if name not in known:
            raise MeasureError(
                f"UDF library {library.name!r} has no float32 {name!r} to time. "
                f"{nearest(name, known)}"
            )
    if not known:
        raise MeasureError(
            f"UDF library {library.name!r} has no float32 function, so there is nothing to time "
            "against the stock functions. Name a library of your own, or corem."
        )
    return list(asked) or known


def inputs_of(function: str, elements: int, seed: int = 0) -> list[torch.Tensor]:
    """Return a tensor for each argument, uniform over the function's usual interval."""
    known = FUNCTIONS[function]
    generator = torch.Generator().manual_seed(seed)
    low, high = known.domain
    return [
        torch.rand(elements, generator=generator) * (high - low) + low for _ in range(known.arity)
    ]


def time_operator(
    library: str | Path | UdfLibrary,
    function: str,
    *,
    elements: int = ELEMENTS,
    runs: int = 20,
    rounds: int = 20,
    threads: int = 1,
    progress: Callable[[], None] = lambda: None,
) -> list[OperatorTiming]:
    """Time torch's operator of a function under each contender.

    Args:
        library: the library to judge.
        function: torch's name.
        elements: of the input.
        runs: turns of each contender.
        rounds: timed calls in a turn, of which the median counts.
        threads: of torch's operators, while they are timed.
        progress: called after each turn of all.

    Raises:
        MeasureError: fewer than four turns, which have no quartiles, or nothing to time.
        The errors of ``find_library`` and of a session.
    """
    if runs < 4 or min(rounds, elements, threads) < 1:
        raise MeasureError(
            f"runs={runs}, rounds={rounds}, elements={elements}, threads={threads}: quartiles need "
            "four runs, of at least one round, one element and one thread each."
        )
    described = find_library(library)
    contenders = _contenders(described, function)
    arguments, operator = inputs_of(function, elements), getattr(torch, function)
    timer = sync_timer(runs=1, rounds=rounds, warmup=1)
    times: dict[str, list[float]] = {name: [] for name in contenders}
    order = random.Random(0)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for _ in range(runs):
            for name in order.sample(list(contenders), k=len(contenders)):
                with _session(contenders[name], function):
                    found = timer.time(lambda: operator(*arguments), function)
                times[name].append(found.median_ns / elements)
            progress()
    finally:
        torch.set_num_threads(before)
    return [
        OperatorTiming(
            function,
            name,
            Quartiles.of(values),
            Quartiles.of([x / y for x, y in zip(values, times[STOCK], strict=True)]),
        )
        for name, values in times.items()
    ]


def _session(library: UdfLibrary | None, function: str) -> Any:
    # Its canary refuses a library that the operator does not go through.
    return nullcontext() if library is None else patched(library, functions=(function,))
