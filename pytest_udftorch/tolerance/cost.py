# SPDX-License-Identifier: Apache-2.0
"""What an evaluation of a function costs under each library, measured on this machine."""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Sequence
from functools import partial
from typing import Final

from pytest_udftorch.build.shared import build_library
from pytest_udftorch.library.symbols import FUNCTIONS

#: Elements of a measurement, which fit into the first cache, and interleaved rounds.
_ELEMENTS: Final = 4096
_ROUNDS: Final = 101


@functools.cache
def costs(function: str, libraries: Sequence[str]) -> dict[str, float]:
    """Return library -> ns per element, the median over interleaved rounds, in one thread.

    Raises:
        UdfError: as from building the libraries, or one of them lacks the function.
    """
    import numpy as np

    generator = np.random.default_rng(0)
    arity = FUNCTIONS[function].arity
    inputs = [generator.uniform(0.05, 4, _ELEMENTS).astype(np.float32) for _ in range(arity)]
    result = np.empty(_ELEMENTS, np.float32)
    addresses = [a.ctypes.data for a in (*inputs, result)]
    calls = {
        name: partial(build_library(name).array_function(function), _ELEMENTS, *addresses, 0)
        for name in libraries
    }
    taken: dict[str, list[float]] = {name: [] for name in libraries}
    for _ in range(_ROUNDS):
        for name, call in calls.items():
            begin = time.perf_counter_ns()
            call()
            taken[name].append((time.perf_counter_ns() - begin) / _ELEMENTS)
    return {name: statistics.median(t) for name, t in taken.items()}
