# SPDX-License-Identifier: Apache-2.0
"""How many results mix two libraries while another thread switches, and what it costs that none do.

    python -m benches.experiments.exclusive [--seconds S] [--store FILE]

Threads compute exp of equal numbers, which is one number under corem and another under canary: a
result with two different numbers is mixed. Meanwhile another thread switches between the libraries:
in ordinary sessions, in exclusive ones, and in ordinary ones within an exclusive session. The ways
take turns, and the exclusive ones go on until they have seen as many operators and switches.

The cost of a call is its CPU time in one thread, with and without an exclusive session in turns.
"""

from __future__ import annotations

import contextlib
import statistics
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from benches import stored
from benches.experiments import blocks, command
from pytest_udftorch import patched

SECONDS = 12.0
THREADS = 3
ELEMENTS = 200_000
ROUNDS = 4
LIBRARIES = ("corem", "canary")

#: How many calls are timed together, and how often in each way.
CALLS, TURNS = 2_000, 101


#: Makes what a thread calls over and over: it returns a tensor whose elements should be equal.
Compute = Callable[[], Callable[[], torch.Tensor]]


class Callers:
    """Threads that compute, and count results that are not one number throughout.

    Args:
        threads: how many.
        compute: called in each thread; returns what that thread calls.
    """

    def __init__(self, threads: int, compute: Compute) -> None:
        self._stop = False
        self._compute = compute
        # A count per thread: two threads that add to one lose updates.
        self._operators = [0] * threads
        self._mixed: list[list[tuple[float, float]]] = [[] for _ in range(threads)]
        self._errors: list[BaseException] = []
        self._threads = [
            threading.Thread(target=self._run, args=(i,), name=f"caller {i}")
            for i in range(threads)
        ]

    def __enter__(self) -> Callers:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop = True
        for thread in self._threads:
            thread.join()
        if self._errors:
            raise self._errors[0]

    def _run(self, index: int) -> None:
        try:
            call = self._compute()
            while not self._stop:
                low, high = torch.aminmax(call())
                if low.item() != high.item():
                    self._mixed[index].append((low.item(), high.item()))
                self._operators[index] += 1
        except BaseException as error:
            self._errors.append(error)

    @property
    def operators(self) -> int:
        """How many results were judged so far."""
        return sum(self._operators)

    @property
    def mixed(self) -> list[tuple[float, float]]:
        """The least and the largest number of each mixed result so far."""
        return [pair for pairs in self._mixed for pair in pairs]

    def settle(self) -> None:
        """Wait until every thread has judged what it was computing."""
        before = list(self._operators)
        while any(new < old + 2 for new, old in zip(self._operators, before, strict=True)):
            if self._errors:
                raise self._errors[0]
            time.sleep(0.001)


def exp_of_equal_numbers() -> Callable[[], torch.Tensor]:
    """Return a call of exp, long enough for OpenMP's workers and for a switch to fall into one."""
    x = torch.full((ELEMENTS,), 0.3)
    y = torch.empty_like(x)
    return lambda: torch.exp(x, out=y)


def switched(
    callers: Callers, enough: Callable[[int, int], bool], exclusive: bool, waits: list[float]
) -> dict[str, int]:
    """Switch until there are enough operators and switches; return the counts."""
    callers.settle()
    first, first_mixed = callers.operators, len(callers.mixed)
    switches = 0
    while not enough(callers.operators - first, switches):
        session = patched(LIBRARIES[switches // 2 % 2], ("exp",), exclusive=exclusive)
        begin = time.perf_counter_ns()
        with session:
            waits.append((time.perf_counter_ns() - begin) / 1e6)
            time.sleep(0.002)
        switches += 2
    callers.settle()
    return {
        "operators": callers.operators - first,
        "switches": switches,
        "mixed": len(callers.mixed) - first_mixed,
    }


def mixing(seconds: float) -> dict[str, Any]:
    """Return, for each way to switch, the counts and the times that opening took, in ms."""
    ways = ("ordinary", "exclusive", "within_exclusive")
    total: dict[str, Any] = {w: {"operators": 0, "switches": 0, "mixed": 0} for w in ways}
    waits: dict[str, list[float]] = {w: [] for w in ways}
    with Callers(THREADS, exp_of_equal_numbers) as callers:
        for _ in range(ROUNDS):
            least = {"operators": 0, "switches": 0}
            for way in ways:
                end = time.monotonic() + seconds / ROUNDS
                bound = dict(least)

                def enough(
                    operators: int, switches: int, *, end: float = end, least: Any = bound
                ) -> bool:
                    done = operators >= least["operators"] and switches >= least["switches"]
                    return done and (bool(least["switches"]) or time.monotonic() >= end)

                with contextlib.ExitStack() as stack:
                    if way == "within_exclusive":
                        stack.enter_context(patched("std", exclusive=True))
                    found = switched(callers, enough, way == "exclusive", waits[way])
                if way == "ordinary":
                    least = {kind: found[kind] for kind in least}
                for kind, count in found.items():
                    total[way][kind] += count
    return {way: {**total[way], "opening_ms": stored.summary(waits[way])} for way in ways}


def _nanoseconds(call: Callable[[], object]) -> float:
    begin = time.thread_time_ns()
    for _ in range(CALLS):
        call()
    return (time.thread_time_ns() - begin) / CALLS


def overhead() -> dict[str, Any]:
    """Return the CPU time of calls of some operators, in exclusive and in ordinary sessions."""
    x, small = torch.linspace(-1, 1, 4096), torch.linspace(-1, 1, 16)
    operators: dict[str, Callable[[], object]] = {
        "add, 16 elements": lambda: torch.add(small, small),
        "exp, 16 elements": lambda: torch.exp(small),
        "softmax, 4,096 elements": lambda: torch.softmax(x, 0),
    }
    found: dict[str, Any] = {}
    with blocks.one_thread():
        for name, call in operators.items():
            ratios, plain, times = [], [], []
            for _ in range(TURNS):
                with patched("std"):
                    plain.append(_nanoseconds(call))
                with patched("std", exclusive=True):
                    times.append(_nanoseconds(call))
                ratios.append(times[-1] / plain[-1])
            found[name] = {
                "ratio": stored.summary(ratios),
                "plain_ns": statistics.median(plain),
                "exclusive_ns": statistics.median(times),
            }
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Run from the command line; return the exit status."""
    parser = command.parser("exclusive", __doc__)
    parser.add_argument("--seconds", type=float, default=SECONDS)
    options = parser.parse_args(arguments)
    if not options.seconds > 0:
        parser.error("--seconds must be above 0.")

    def measure() -> dict[str, Any]:
        for exclusive in (False, True):  # built before the threads run
            for library in LIBRARIES:
                with patched(library, ("exp",), exclusive=exclusive):
                    pass
        return {"overhead": overhead(), "mixing": mixing(options.seconds)}

    def judge(figures: dict[str, Any]) -> bool:
        for part in figures.values():
            for name, row in part.items():
                print(name, row)
        counts = figures["mixing"]
        if not counts["ordinary"]["mixed"]:
            print("No result was mixed at all, so this run shows nothing. Give more --seconds.")
            return False
        return not counts["exclusive"]["mixed"] and not counts["within_exclusive"]["mixed"]

    return command.run("exclusive", options, measure, judge)


if __name__ == "__main__":
    sys.exit(main())
