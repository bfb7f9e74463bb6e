# SPDX-License-Identifier: Apache-2.0
"""Many sessions under threads that run operators: nothing is torn, and nothing grows."""

from __future__ import annotations

import gc
import itertools
import os
import random
import sys
import tempfile
import threading
from pathlib import Path

import pytest
import torch

from pytest_udftorch import patched
from pytest_udftorch.session.binder import binder

X = torch.linspace(-5.0, 5.0, 64)


def write(folder: Path, name: str, shift: int) -> Path:
    folder.mkdir()
    (folder / "u.c").write_text(
        f"float e(float x) {{ return x + {shift}; }}\nfloat l(float x) {{ return x - {shift}; }}\n"
    )
    (folder / "udf.toml").write_text(
        f'[library]\nname = "{name}"\nversion = "1"\n'
        '[functions.exp.float32]\nsource = "u.c"\nscalar = "e"\n'
        '[functions.log.float32]\nsource = "u.c"\nscalar = "l"\n'
    )
    return folder


@pytest.fixture(scope="module")
def libraries(tmp_path_factory):
    folder = tmp_path_factory.mktemp("stress")
    return [write(folder / name, name, shift) for name, shift in (("one", 100), ("two", 300))]


class Callers:
    """Threads that run operators, and note each result that no library gives.

    The inputs are one vector long or shorter, so that no operator calls a function twice: a switch
    in the middle of an operator may give it one call of each library.
    """

    def __init__(self, count: int) -> None:
        self.calls = 0
        self.torn: list[str] = []
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._run) for _ in range(count)]
        one = torch.tensor([2.5])
        self._inputs = (one, one.abs().double())
        self._right = {
            "exp": {torch.exp(one).item(), 102.5, 302.5},
            "log": {torch.log(one).item(), -97.5, -297.5},
        }
        self._double = torch.exp(self._inputs[1]).item()

    def __enter__(self) -> Callers:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _run(self) -> None:
        while not self._stop.is_set():
            for name, right in self._right.items():
                result = getattr(torch, name)(self._inputs[0]).item()
                if result not in right:
                    self.torn.append(f"{name}: {result!r}")
            if torch.exp(self._inputs[1]).item() != self._double:
                self.torn.append("exp of float64")
            self.calls += 3


def kept() -> dict[str, int]:
    """Return what must not grow; KiB of resident memory among it."""
    gc.collect()
    status = Path("/proc/self/status").read_text()
    (resident,) = (int(x.split()[1]) for x in status.splitlines() if x.startswith("VmRSS:"))
    return {
        "KiB": resident,
        "descriptors": len(os.listdir("/proc/self/fd")),
        "threads": len(os.listdir("/proc/self/task")),
        "mappings": len(Path("/proc/self/maps").read_text().splitlines()),
        "files": len(os.listdir(tempfile.gettempdir())),
    }


def open_and_close(libraries: list[Path], choose: random.Random, count: int) -> int:
    """Open and close sessions, nested and out of order; return how many were opened."""
    opened: list[object] = []
    profiled = None
    done = 0
    while done < count or opened:
        if opened and (done >= count or len(opened) > 4 or choose.random() < 0.5):
            session = opened.pop(choose.randrange(len(opened)))
            session.__exit__(None, None, None)
            profiled = None if session is profiled else profiled
            continue
        functions = choose.choice([None, ("exp",), ("log",)])
        profile = profiled is None and choose.random() < 0.02
        session = patched(choose.choice([*libraries, "std"]), functions, profile=profile)
        session.__enter__()
        profiled = session if profile else profiled
        opened.append(session)
        done += 1
    return done


def stress(libraries, record, monkeypatch, tmp_path, *, sessions: int, threads: int) -> None:
    # A folder of its own: other processes use the usual one.
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    bound, choose = binder(), random.Random(0)
    before_slots = bound.native.read(bound.slots)
    # Threads take turns fifty times as often as by default.
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-4)
    try:
        with Callers(threads) as callers:
            for library in (*libraries, "std"):  # what is loaded once
                for functions, profile in itertools.product((None, ("exp",), ("log",)), (0, 1)):
                    with patched(library, functions, profile=bool(profile)):
                        pass
            open_and_close(libraries, choose, sessions // 5)
            before = kept()
            opened = open_and_close(libraries, choose, sessions)
            after = kept()
    finally:
        sys.setswitchinterval(interval)
    record(f"{opened} sessions, {callers.calls} calls in {threads} threads: {before} -> {after}")
    assert callers.torn == []
    assert callers.calls > 0
    for slot, old, new in zip(
        bound.slots, before_slots, bound.native.read(bound.slots), strict=True
    ):
        assert new == old or new == bound.native.resolve(slot), slot
    growth = {what: after[what] - before[what] for what in before}
    # The allocator keeps some pages; a leak of 1 KiB in each session is above that.
    assert growth.pop("KiB") < max(16384, sessions), growth
    assert all(value <= 2 for value in growth.values()), growth


@pytest.fixture
def record(record_property, capsys):
    def write(text: str) -> None:
        record_property("stress", text)
        with capsys.disabled():
            print(f"\n{text}")

    return write


def test_threads_see_whole_libraries_and_nothing_grows(
    libraries, record_property, monkeypatch, tmp_path
):
    def record(text: str) -> None:
        record_property("stress", text)

    stress(libraries, record, monkeypatch, tmp_path, sessions=60, threads=2)


@pytest.mark.slow
def test_two_thousand_sessions(libraries, record, monkeypatch, tmp_path):
    stress(libraries, record, monkeypatch, tmp_path, sessions=2_000, threads=16)


def test_a_torn_result_would_be_seen(libraries, tmp_path):
    """The negative control: a library that the callers do not know of."""
    unknown = write(tmp_path / "unknown", "unknown", 7)
    with Callers(1) as callers:
        for _ in range(20):
            with patched(unknown):
                before = callers.calls
                while callers.calls < before + 6:
                    pass
    assert callers.torn
