# SPDX-License-Identifier: Apache-2.0
"""Many sessions under threads that run operators: nothing is torn, and nothing grows.

``python -m benches.store stress`` runs the same at full size.
"""

from __future__ import annotations

import random
import tempfile

import pytest
import torch

from benches.experiments.stress import Callers, Opener, raising, stress, write_library
from pytest_udftorch import patched
from pytest_udftorch.swap.session.binder import binder


@pytest.fixture(scope="module")
def libraries(tmp_path_factory):
    folder = tmp_path_factory.mktemp("stress")
    return [
        write_library(folder / name, name, shift) for name, shift in (("one", 100), ("two", 300))
    ]


@pytest.fixture
def check(libraries, monkeypatch, tmp_path):
    """Return what runs sessions under threads, and looks at what they left."""
    # A folder of its own: other processes use the usual one.
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))

    def run(*, sessions: int, threads: int, blocks: int) -> str:
        bound, modes = binder(), torch.is_grad_enabled()
        before_slots = bound.native.read(bound.slots)
        opener = Opener(libraries, random.Random(0))
        callers, found = stress(opener, sessions, threads, blocks)
        assert callers.torn == []
        assert callers.calls > 0
        assert opener.sessions == sessions // blocks * blocks
        assert opener.terminated == blocks
        assert torch.is_grad_enabled() == modes
        for slot, old, new in zip(
            bound.slots, before_slots, bound.native.read(bound.slots), strict=True
        ):
            assert new == old or new == bound.native.resolve(slot), slot
        growth = {what: found[-1][what] - found[0][what] for what in found[0]}
        # The allocator keeps some pages; a leak of 1 KiB in each session is above that.
        assert growth.pop("KiB") < max(16384, sessions), found
        # Threads' arenas come and go; a leak of a mapping in 100 sessions is above that.
        assert growth.pop("mappings") <= max(2, sessions // 100), found
        assert all(value <= 2 for value in growth.values()), found
        return f"{opener.sessions} sessions, {callers.calls} calls: {found[0]} -> {found[-1]}"

    return run


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_threads_see_whole_libraries_and_nothing_grows(check, record_property):
    record_property("stress", check(sessions=30, threads=2, blocks=2))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_two_thousand_sessions(check, capsys):
    said = check(sessions=2_000, threads=16, blocks=4)
    with capsys.disabled():
        print(f"\n{said}")


# An interrupted listing of a folder is closed by the garbage collector, which says so.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_interrupts_hit_sessions_and_are_counted(libraries):
    opener = Opener(libraries, random.Random(1))
    with raising(opener.choose):
        opener.disturb(40, 0.001)
    assert opener.sessions == 40
    assert opener.interrupted > 0
    assert torch.exp(torch.zeros(1)).item() == 1


def test_a_torn_result_would_be_seen(libraries, tmp_path):
    """The negative control: a library that the callers do not know of."""
    unknown = write_library(tmp_path / "unknown", "unknown", 7)
    with Callers(1) as callers:
        for _ in range(20):
            with patched(unknown):
                before = callers.calls
                while callers.calls < before + 6:
                    pass
    assert callers.torn
