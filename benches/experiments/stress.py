# SPDX-License-Identifier: Apache-2.0
"""Do sessions stay whole, and does anything grow, when many open and close under threads?

    python -m benches.experiments.stress [--sessions N] [--threads N] [--store FILE]

One thread opens and closes sessions, nested and out of order, with all functions and with some,
with profiles and without. Timers interrupt some of them with KeyboardInterrupt or another
exception, and forked children that do the same end by SIGTERM. Meanwhile other threads run
operators on inputs whose results name the library: each must be bit for bit that of one of them.
An operator on more elements than one vector may mix two libraries while another thread switches
(docs/guide.md), so the inputs have one element.

After each block of sessions, resident memory, descriptors, threads, mappings and temporary files
are read. ``tests/swap/test_stress.py`` runs the same at a smaller size.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from benches import stored
from benches.experiments import command
from pytest_udftorch import patched

SESSIONS = 100_000
THREADS = 16
BLOCKS = 50

#: Seconds for which each thread sleeps after three calls.
PAUSE = 0.002


def write_library(folder: Path, name: str, shift: int) -> Path:
    """Write a library whose exp adds a number, and whose log takes it away."""
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


class Callers:
    """Threads that run operators, and note each result that no library gives.

    The inputs are one vector long or shorter, so that no operator calls a function twice: a switch
    in the middle of an operator may give it one call of each library.

    Args:
        count: of threads.
        pause: seconds for which a thread sleeps after every three calls, so that sixteen threads
            leave Python's lock to the one that opens sessions.
    """

    def __init__(self, count: int, pause: float = 0.0) -> None:
        self._pause = pause
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
            if self._pause:
                time.sleep(self._pause)


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


class Disturbance(Exception):
    """What a signal handler raises at a random place, as an error of the user's would be."""


@dataclass
class Opener:
    """Opens and closes sessions, and counts what it did.

    Attributes:
        libraries: the folders of :func:`write_library`.
        choose: decides everything.
        sessions, profiles, interrupted, still_open, terminated: counts of sessions opened, of
            those with a profile, of those that an exception interrupted, of those that were open
            afterwards and were closed, and of children ended by SIGTERM.
    """

    libraries: list[Path]
    choose: random.Random
    sessions: int = 0
    profiles: int = 0
    interrupted: int = 0
    still_open: int = 0
    terminated: int = 0
    _opened: list[Any] = field(default_factory=list)
    _profiled: Any = None

    @property
    def switches(self) -> int:
        """How often the functions changed: each session that opens also closes."""
        return 2 * self.sessions

    def run(self, count: int) -> None:
        """Open and close sessions, nested and out of order, until none is open."""
        end = self.sessions + count
        while self.sessions < end or self._opened:
            full = self.sessions >= end or len(self._opened) > 4
            if self._opened and (full or self.choose.random() < 0.5):
                self.close(self._opened.pop(self.choose.randrange(len(self._opened))))
            else:
                session = self.session()
                session.__enter__()
                self._opened.append(session)

    def session(self) -> Any:
        """Return a session that is not entered yet; one in fifty counts."""
        functions = self.choose.choice([None, ("exp",), ("log",)])
        profile = self._profiled is None and self.choose.random() < 0.02
        library = self.choose.choice([*self.libraries, "std"])
        session = patched(library, functions, profile=profile)
        self._profiled = session if profile else self._profiled
        self.profiles += profile
        self.sessions += 1
        return session

    def close(self, session: Any) -> None:
        """Close a session."""
        session.__exit__(None, None, None)
        self._profiled = None if session is self._profiled else self._profiled

    def disturb(self, count: int, lasts: float) -> None:
        """Raise in short sessions, at random times within twice what such a session lasts."""
        for _ in range(count):
            session = self.session()
            try:
                try:
                    signal.setitimer(signal.ITIMER_REAL, self.choose.uniform(1e-6, 2 * lasts))
                    with session:
                        torch.exp(torch.ones(1))
                        if self.choose.random() < 0.1:
                            raise Disturbance
                finally:
                    signal.setitimer(signal.ITIMER_REAL, 0)
            except (KeyboardInterrupt, Disturbance):
                self.interrupted += 1
            if session.is_open:  # nothing can step in between __enter__ and the block
                self.still_open += 1
                session.close()
            self._profiled = None if session is self._profiled else self._profiled

    def terminate(self) -> None:
        """End a forked child, which opens and closes sessions, by SIGTERM."""
        readable, writable = os.pipe()
        child = os.fork()
        if child == 0:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.write(writable, b"1")
            with contextlib.suppress(BaseException):
                while True:
                    self.run(10)
            signal.pause()
        os.close(writable)
        os.read(readable, 1)
        os.close(readable)
        time.sleep(self.choose.uniform(0, 0.02))
        os.kill(child, signal.SIGTERM)
        self.terminated += os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGTERM


@contextlib.contextmanager
def raising(choose: random.Random) -> Iterator[None]:
    """Let timers raise KeyboardInterrupt or an exception in this thread."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise choose.choice((KeyboardInterrupt, Disturbance))

    before = signal.signal(signal.SIGALRM, interrupt)
    # Threads take turns fifty times as often as by default.
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-4)
    try:
        yield
    finally:
        sys.setswitchinterval(interval)
        signal.signal(signal.SIGALRM, before)


def stress(
    opener: Opener,
    sessions: int,
    threads: int,
    blocks: int,
    *,
    pause: float = 0.0,
    seconds: float = float("inf"),
    progress: Callable[[str], None] = lambda text: None,
) -> tuple[Callers, list[dict[str, int]]]:
    """Open and close sessions under threads.

    Args:
        opener: does it; every hundredth session is disturbed.
        sessions: how many, after a fifth of a block to warm up.
        threads: that run operators meanwhile.
        blocks: parts of the sessions, after each of which a child is terminated.
        pause: see :class:`Callers`.
        seconds: no block begins after that time.
        progress: called with a text after each block.

    Returns:
        The threads, which have ended, and what was kept before the blocks and after each.
    """
    began = time.monotonic()
    block = sessions // blocks
    for library in (*opener.libraries, "std"):  # what is built and loaded once
        for functions, profile in itertools.product((None, ("exp",), ("log",)), (0, 1)):
            with patched(library, functions, profile=bool(profile)):
                pass
    with Callers(threads, pause) as callers, raising(opener.choose):
        begin = time.perf_counter()
        opener.run(max(block // 5, 10))
        lasts = (time.perf_counter() - begin) / opener.sessions
        opener.disturb(block // 100 + 1, lasts)
        opener.terminate()
        opener.sessions = opener.profiles = opener.interrupted = 0
        opener.still_open = opener.terminated = 0
        found = [kept()]
        for number in range(blocks):
            if time.monotonic() - began > seconds:
                break
            opener.run(block - block // 100)
            opener.disturb(block // 100, lasts)
            opener.terminate()
            found.append(kept())
            progress(f"{number + 1} of {blocks}: {opener.sessions:,} sessions, {found[-1]}")
    return callers, found


def figures_of(
    opener: Opener, callers: Callers, found: Sequence[dict[str, int]], threads: int
) -> dict[str, Any]:
    """Return what is stored."""
    growth = {}
    for what in found[0]:
        steps = [b[what] - a[what] for a, b in itertools.pairwise(found)]
        growth[what] = {
            "before": found[0][what],
            "after": found[-1][what],
            "growth": found[-1][what] - found[0][what],
            "a_block": stored.summary([float(s) for s in steps]),
        }
    return {
        "sessions": opener.sessions,
        "switches": opener.switches,
        "profiles": opener.profiles,
        "interrupted": opener.interrupted,
        "still_open_and_closed": opener.still_open,
        "children_terminated": opener.terminated,
        "threads": threads,
        "calls": callers.calls,
        "torn": len(callers.torn),
        "blocks": len(found) - 1,
        "growth": growth,
    }


def measure(sessions: int, threads: int, seconds: float) -> dict[str, Any]:
    """Run at full size, with a folder of its own for temporary files."""
    x = torch.linspace(-5, 5, 1001)
    before = torch.exp(x)
    usual = tempfile.tempdir
    with tempfile.TemporaryDirectory() as folder:
        libraries = [
            write_library(Path(folder) / name, name, shift)
            for name, shift in (("one", 100), ("two", 300))
        ]
        (Path(folder) / "tmp").mkdir()
        tempfile.tempdir = str(Path(folder) / "tmp")
        try:
            opener = Opener(libraries, random.Random(0))
            said = stress(
                opener, sessions, threads, BLOCKS, pause=PAUSE, seconds=seconds,
                progress=lambda text: print(text, flush=True),
            )  # fmt: skip
        finally:
            tempfile.tempdir = usual
    found = figures_of(opener, *said, threads)
    return {**found, "restored": torch.equal(torch.exp(x), before)}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run from the command line; return the exit status."""
    parser = command.parser("stress", __doc__)
    parser.add_argument("--sessions", type=int, default=SESSIONS)
    parser.add_argument("--threads", type=int, default=THREADS)
    parser.add_argument(
        "--seconds", type=float, default=float("inf"), help="begin no block after that time"
    )
    options = parser.parse_args(arguments)
    options.changed = [
        f"--{name} {getattr(options, name):g}"
        for name in ("sessions", "threads", "seconds")
        if getattr(options, name) != parser.get_default(name)
    ]
    if options.sessions < 100 * BLOCKS:
        parser.error(f"--sessions must be at least {100 * BLOCKS}.")

    def once() -> dict[str, Any]:
        return measure(options.sessions, options.threads, options.seconds)

    def judge(figures: dict[str, Any]) -> bool:
        print(figures)
        return figures["torn"] == 0 and figures["restored"]

    return command.run("stress", options, once, judge)


if __name__ == "__main__":
    sys.exit(main())
