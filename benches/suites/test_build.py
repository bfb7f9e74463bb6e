# SPDX-License-Identifier: Apache-2.0
"""What a build costs: cold, from the cache, and when several processes want it at once."""

from __future__ import annotations

import pytest

from benches import stored
from benches.experiments.child import Child, timed
from pytest_udftorch import build_library, find_library

#: By scale.
COLD_BUILDS = {"small": 2, "full": 3}
LOOKUPS = {"small": 3, "full": 15}
PROCESSES = (2, 4)


@pytest.fixture
def new_cache(tmp_path):
    """A function that names another empty cache folder at each call."""
    numbers = iter(range(1000))

    def environment():
        folder = tmp_path / str(next(numbers))
        return {"UDFTORCH_CACHE_DIR": str(folder)}

    return environment


@pytest.mark.parametrize("library", ["corem", "canary"])
def test_cold_build(benchmark, new_cache, library, bench_scale):
    """Compiles every function of the library; the process has just started."""
    rounds = COLD_BUILDS[bench_scale]
    answers = timed(benchmark, rounds, lambda: Child(new_cache()), do="build", library=library)
    benchmark.extra_info["functions"] = len(find_library(library).function_names)
    benchmark.extra_info["build_ns"] = stored.summary([a["ns"] for a in answers])
    assert all(a["compiled_s"] > 0 for a in answers)


def test_warm_lookup_in_a_new_process(benchmark, bench_scale):
    """Finds the finished build in the cache: reads and hashes the sources, asks clang's version."""
    build_library("corem")
    answers = timed(benchmark, LOOKUPS[bench_scale], do="build", library="corem")
    benchmark.extra_info["build_ns"] = stored.summary([a["ns"] for a in answers])


def test_warm_lookup_in_the_same_process(benchmark):
    first = build_library("corem")
    assert benchmark(build_library, "corem") is first


@pytest.mark.parametrize("processes", PROCESSES)
def test_several_processes_at_once(benchmark, new_cache, processes, bench_scale):
    """All want the same cold build: one compiles, the others wait for it."""
    children, answers = [], []

    def fresh():
        environment = new_cache()
        children.extend(Child(environment) for _ in range(processes))

    def build():
        for child in children:
            child.send(do="build", library="corem")
        answers.append([child.answer() for child in children])

    def leave():
        while children:
            children.pop().close()

    benchmark.pedantic(build, setup=fresh, teardown=leave, rounds=COLD_BUILDS[bench_scale])
    benchmark.extra_info["build_ns"] = stored.summary(
        [max(a["ns"] for a in group) for group in answers]
    )
    for group in answers:
        # Equal to the digit: every process read the one build.json that one of them wrote.
        assert len({(a["build_id"], a["compiled_s"]) for a in group}) == 1
