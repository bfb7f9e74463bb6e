# SPDX-License-Identifier: Apache-2.0
"""What a session costs: the first entry of a process, later ones, and the exit.

The first entry loads the package's session, the runtime and the library, reads libtorch's
relocations and runs the canary operators. It is measured in fresh processes that have
imported torch, in two ways: with the build in the cache, where the entry has to find it; and
after ``build_library``, so that finding it does not count.
"""

from __future__ import annotations

import pytest

from benches import stored
from benches.experiments.child import Child, timed
from pytest_udftorch import build_library, find_library, patched

#: By scale: every one starts a process that imports torch.
FIRST_ENTRIES = {"small": 3, "full": 9}
LATER_ENTRIES = 200

SELECTIONS = {
    "std": ("std", None),
    "corem: exp, log": ("corem", ("exp", "log")),
    "corem: exp, expm1, log, sin, cos": ("corem", ("exp", "expm1", "log", "sin", "cos")),
    "corem: all": ("corem", None),
}
selections = pytest.mark.parametrize(
    ("library", "functions"), SELECTIONS.values(), ids=SELECTIONS.keys()
)


@pytest.fixture(autouse=True)
def _built():
    build_library("corem")


def count(library, functions):
    return len(functions or find_library(library).function_names)


@pytest.mark.parametrize("name", ["std", "corem: exp, log", "corem: all"])
@pytest.mark.parametrize("before", ["build in the cache", "after build_library"])
def test_first_entry(benchmark, before, name, bench_scale):
    library, functions = SELECTIONS[name]

    def start():
        child = Child()
        if before == "after build_library":
            child.order(do="build", library="corem")
        return child

    answers = timed(
        benchmark,
        FIRST_ENTRIES[bench_scale],
        start,
        do="enter",
        library=library,
        functions=functions,
    )
    benchmark.extra_info["functions"] = count(library, functions)
    benchmark.extra_info["entry_ns"] = stored.summary([a["ns"] for a in answers])
    if library != "std":
        assert all(len(a["reached"]) == count(library, functions) for a in answers)


@selections
def test_later_entry(benchmark, library, functions):
    sessions = []
    with patched(library, functions):
        pass

    def close():
        sessions.pop().close()

    def enter():
        session = patched(library, functions)
        session.__enter__()
        sessions.append(session)

    benchmark.pedantic(enter, teardown=close, rounds=LATER_ENTRIES, warmup_rounds=3)
    benchmark.extra_info["functions"] = count(library, functions)


@selections
def test_exit(benchmark, library, functions):
    sessions = []

    def enter():
        sessions.append(patched(library, functions))
        sessions[-1].__enter__()

    def leave():
        sessions.pop().close()

    benchmark.pedantic(leave, setup=enter, rounds=LATER_ENTRIES, warmup_rounds=3)
    benchmark.extra_info["functions"] = count(library, functions)
