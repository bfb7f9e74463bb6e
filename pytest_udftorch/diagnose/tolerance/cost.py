# SPDX-License-Identifier: Apache-2.0
"""What an evaluation of a function costs under each library, measured on this machine."""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from pytest_udftorch.swap.library.symbols import KNOWN
from pytest_udftorch.swap.toolchain.shared_library import build_library

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
    arity = KNOWN[function].arity
    inputs = [generator.uniform(0.05, 4, _ELEMENTS).astype(np.float32) for _ in range(arity)]
    result = np.empty(_ELEMENTS, np.float32)
    addresses = [a.ctypes.data for a in (*inputs, result)]
    calls = {
        name: partial(build_library(name).array_function(function), _ELEMENTS, *addresses, 0)
        for name in libraries
    }
    return _medians(calls)


@functools.cache
def arithmetic_costs() -> dict[str, float]:
    """Return ``+``, ``sqrt`` and the like -> ns per float32 element, as NumPy's loops take."""
    import numpy as np

    a, b = (np.linspace(low, 4, _ELEMENTS, dtype=np.float32) for low in (0.5, 1))
    result, truth = np.empty_like(a), np.empty(a.shape, bool)
    calls = {
        "+": partial(np.add, a, b, result),
        "-": partial(np.subtract, a, b, result),
        "*": partial(np.multiply, a, b, result),
        "/": partial(np.divide, a, b, result),
        "sqrt": partial(np.sqrt, a, result),
        "fabs": partial(np.abs, a, result),
        "neg": partial(np.negative, a, result),
        "if": partial(np.copyto, result, a, where=a < b),
        "==": partial(np.equal, a, b, truth),
        "!=": partial(np.not_equal, a, b, truth),
        "<": partial(np.less, a, b, truth),
        ">": partial(np.greater, a, b, truth),
        "<=": partial(np.less_equal, a, b, truth),
        ">=": partial(np.greater_equal, a, b, truth),
    }
    return _medians(calls)


def _medians(calls: Mapping[str, Callable[[], Any]]) -> dict[str, float]:
    """Return name -> ns per element, the median over interleaved rounds."""
    taken: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(_ROUNDS):
        for name, call in calls.items():
            begin = time.perf_counter_ns()
            call()
            taken[name].append((time.perf_counter_ns() - begin) / _ELEMENTS)
    return {name: statistics.median(t) for name, t in taken.items()}
