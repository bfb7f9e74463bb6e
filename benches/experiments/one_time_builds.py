# SPDX-License-Identifier: Apache-2.0
"""How long the parts take that are compiled once on a machine, each in an empty cache.

    python -m benches.experiments.one_time_builds [--store FILE]

``pytest_udftorch.swap.toolchain.agenda`` says these times while somebody waits. Parts are compiled
one after the other; measure on an idle machine.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Sequence
from typing import Any

from benches.experiments import command
from pytest_udftorch import find_library
from pytest_udftorch.swap.observe.native_recorder import RECORDER
from pytest_udftorch.swap.session.builds import builds
from pytest_udftorch.swap.toolchain.agenda import Candidate
from pytest_udftorch.swap.toolchain.environment import describe


def candidates() -> list[Candidate]:
    """Return all parts: those of sessions, and the recorder of ``udftorch diff`` and others."""
    corem, repro = find_library("corem"), find_library("repro")
    found = {
        one.what: one
        for library, options in (
            (corem, {"exclusive": True}),
            (corem, {"profiled": True}),
            (repro, {}),
        )
        for one in builds(library, library.names, **options)
    }
    return [*found.values(), RECORDER.candidate()]


def measure() -> dict[str, Any]:
    """Return the parts, with their seconds."""
    parts = []
    with tempfile.TemporaryDirectory() as folder:
        os.environ["UDFTORCH_CACHE_DIR"] = folder
        for one in candidates():
            start = time.perf_counter()
            one.obtain()
            seconds = round(time.perf_counter() - start, 2)
            parts.append({"kind": one.kind, "what": one.what, "seconds": seconds})
            print(f"{seconds:6.1f} s  {one.what}", flush=True)
    return {"processors": len(os.sched_getaffinity(0)), "parts": parts}


def main(arguments: Sequence[str] | None = None) -> int:
    options = command.parser("one_time_builds", __doc__).parse_args(arguments)
    # Before the measurement, because it starts compilers itself.
    environment = describe()
    found = {"environment": environment, **measure()}
    if options.store is not None:
        command.store("one_time_builds", options, found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
