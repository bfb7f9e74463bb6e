# SPDX-License-Identifier: Apache-2.0
"""A clock that only the test moves: no test of a measurement depends on how busy the machine is."""

from __future__ import annotations

import itertools
import types

import pytest

#: What a reading of the clock takes, in turn: an empty call is not always as long, either.
TICKS_NS = (900, 1000, 1100, 1000, 950, 1050)


class Clock:
    """Stands for the module ``time``: ``sleep`` moves it, and each reading does a little."""

    def __init__(self):
        self.now = 10**12
        self._ticks = itertools.cycle(TICKS_NS)

    def perf_counter_ns(self):
        self.now += next(self._ticks)
        return self.now

    monotonic_ns = perf_counter_ns

    def monotonic(self):
        return self.perf_counter_ns() / 1e9

    perf_counter = monotonic

    def sleep(self, seconds):
        self.now += round(seconds * 1e9)


@pytest.fixture
def clock(monkeypatch, request):
    """Put one clock in the place of that of the timers, and of the test's own module ``time``."""
    from pytest_udftorch.measure.rewrite import deadline
    from pytest_udftorch.measure.timing import layers, timers

    found = Clock()
    for module in (timers, layers, deadline, request.module):
        if isinstance(getattr(module, "time", None), types.ModuleType):
            monkeypatch.setattr(module, "time", found)
    return found


@pytest.fixture
def costing(monkeypatch, clock):
    """Return what lets graphs that are measured take given times, by name, in microseconds."""
    from pytest_udftorch.measure.rewrite import backends

    own = backends.measured

    def set_costs(costs):
        def fed(contenders, inputs, *rest):
            def slowed(name, call):
                def run(*given):
                    clock.sleep(costs[name] / 1e6)
                    return call(*given)

                return run

            return own({n: slowed(n, c) for n, c in contenders.items()}, inputs, *rest)

        monkeypatch.setattr(backends, "measured", fed)

    return set_costs
