# SPDX-License-Identifier: Apache-2.0
"""What a bench measured, as rows of pytest-benchmark's own table and file.

pytest-benchmark times one call in each test. A bench that times several contenders in turns has a
row for each of them instead, in a group of its own, so that the table compares them.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any


def add(benchmark: Any, times_ns: Mapping[str, Sequence[float]], **extra_info: Any) -> None:
    """Give each contender a row; a test calls this once, and times nothing else by its fixture.

    The first row has ``extra_info`` in the file, as the only row of another bench has.

    Args:
        benchmark: pytest-benchmark's fixture.
        times_ns: contender -> nanoseconds of each run.
        **extra_info: plain data.

    Raises:
        ValueError: there is no contender, or one without a run.
    """
    if not times_ns or not all(times_ns.values()):
        raise ValueError("A bench needs a contender, and each contender a run.")
    benchmark.extra_info.update(extra_info)
    benchmark._mode = "rows.add(...)"
    if benchmark.disabled:
        return
    for number, (contender, runs) in enumerate(times_ns.items()):
        row = copy.copy(benchmark)
        row.name = f"{benchmark.name}: {contender}"
        row.fullname = f"{benchmark.fullname}: {contender}"
        row.group = benchmark.group or benchmark.name
        row.extra_info = benchmark.extra_info if number == 0 else {}
        stats = row._make_stats(1)
        for ns in runs:
            stats.update(ns / 1e9)
