# SPDX-License-Identifier: Apache-2.0
"""Kill a process at each of its steps in the file system, as SQLite's crash tests do.

``python tests/kills.py SCENARIO FOLDER LIBRARY STRIDE`` runs a scenario in a forked child, kills
it before its first step, and lets another child, which nobody kills, do the same work. Then it
kills before a later step (the stride is 1 for all steps), and so on until a child comes to its
end. It prints JSON: how many children were killed, after how many of these the next run gave the
right bytes, and after how many something was left behind.

The scenarios of the build cache are here, those of the other writers in ``killed_writers``.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pytest_udftorch.errors import SourceError
from pytest_udftorch.swap.toolchain import cache
from pytest_udftorch.swap.toolchain.compiler import Compiler, find_compiler
from pytest_udftorch.swap.toolchain.job import Job, Step, compile_job
from pytest_udftorch.swap.toolchain.shared_library import build_library

#: Events of the file system, and calls that raise none and are wrapped.
STEPS = {
    "open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.truncate", "os.utime",
    "os.listdir", "os.scandir", "fcntl.flock", "subprocess.Popen", "os.symlink", "os.link",
    "os.chmod",
}  # fmt: skip
CALLS = ("fsync", "write", "pwrite")

CONTENT = b"what the build holds\n" * 1000


@dataclass(frozen=True)
class Scenario:
    """Work that may be killed.

    Attributes:
        act: does the work in a folder, with a library, and returns what must be the same each
            time.
        find: leaves what the work finds in the folder.
        warm: does once in the parent what every child would do: imports and builds.
        tidy: what later work of the same kind removes.
        outside: counts only the steps on paths in the folder, where the work takes thousands.
    """

    act: Callable[[Path, Path], bytes]
    find: Callable[[Path, Path], None] | None = None
    warm: Callable[[Path], None] = lambda library: None
    tidy: Callable[[Path], object] = lambda folder: None
    outside: bool = True


def write(folder: Path, library: Path) -> bytes:
    """Write a build without a compiler."""

    def make(aside: Path) -> dict[str, int]:
        (aside / "content").write_bytes(CONTENT)
        (aside / "more").mkdir()
        (aside / "more" / "content").write_bytes(CONTENT)
        return {"number": 7}

    home = folder / "a-0123456789abcdef"
    facts = cache.fill(home, make)
    contents = [(home / name).read_bytes() for name in facts["files"]]
    return b"".join([str(facts["number"]).encode(), *contents])


def evict(folder: Path, library: Path) -> bytes:
    """Write a build beside others that nobody uses, in a cache over its limit."""
    os.environ["UDFTORCH_CACHE_MIB"] = "0"
    return write(folder, library)


def _one_file(aside: Path) -> dict[str, int]:
    (aside / "content").write_bytes(CONTENT)
    return {}


def job(folder: Path, library: Path) -> bytes:
    """Run a job whose tool copies a file."""
    tool = Path("/bin/cp")
    steps = (Step(tool, ("a.txt", "b.txt")),), (Step(tool, ("b.txt", "out")),)
    texts = {"a.txt": CONTENT.decode()}
    made = compile_job(
        Job("", Compiler(tool, "1"), steps, "out", lambda _, m: SourceError(m), texts)
    )
    return made.path.read_bytes()


def build(folder: Path, library: Path) -> bytes:
    """Build a UDF library and compute with it."""
    made = build_library(library)
    value = made.scalar_function("exp")(21.0)
    return made.path.read_bytes() + str(value).encode()


def _damaged(folder: Path, library: Path) -> None:
    write(folder, library)
    (folder / "a-0123456789abcdef" / "content").write_bytes(b"torn")


def _unused(folder: Path, library: Path) -> None:
    for name in ("b", "c"):
        cache.fill(folder / f"{name}-0123456789abcdef", _one_file)


def tidied(folder: Path) -> None:
    """Make one more build and remove it, as any later build would tidy the cache."""
    cache.fill(folder / "z-0123456789abcdef", _one_file)
    shutil.rmtree(folder / "z-0123456789abcdef")


def careless(folder: Path, library: Path) -> bytes:
    """The negative control: write in place, and leave a file that nobody removes."""
    file = folder / "content"
    before = file.read_bytes() if file.exists() else CONTENT
    (folder / f"left.{os.getpid()}").touch()
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for half in (CONTENT[:1000], CONTENT[1000:]):
        os.write(descriptor, half)
    os.close(descriptor)
    (folder / f"left.{os.getpid()}").unlink()
    return before


def _folder(folder: Path, library: Path) -> None:
    folder.mkdir(parents=True)


BUILDS = {
    "write": Scenario(write, tidy=tidied),
    "replace": Scenario(write, find=_damaged, tidy=tidied),
    "evict": Scenario(evict, find=_unused, tidy=tidied),
    "job": Scenario(job, tidy=tidied),
    "build": Scenario(build, tidy=tidied),
    "careless": Scenario(careless, _folder),
}


def scenario_named(name: str) -> Scenario:
    if name in BUILDS:
        return BUILDS[name]
    import killed_writers  # it may import torch

    return killed_writers.SCENARIOS[name]


# Running ------------------------------------------------------------------------------


class Killer:
    """Counts the steps of this process, and kills its group before one of them.

    Args:
        at: number of the step, from 1; 0 for none.
        within: only steps on paths in this folder count; None for all.
    """

    def __init__(self, at: int, within: Path | None = None) -> None:
        self.at, self.within = at, within
        self.taken = 0
        for name in CALLS:
            setattr(os, name, self._counted(getattr(os, name)))
        sys.addaudithook(self._event)

    def _event(self, event: str, args: tuple[object, ...]) -> None:
        if event in STEPS and self._is_here(args[0] if args else None):
            self._step()

    def _counted(self, call: Callable[..., object]) -> Callable[..., object]:
        def counting(descriptor: int, *args: object) -> object:
            if descriptor > 2 and self._is_here(descriptor):
                self._step()
            return call(descriptor, *args)

        return counting

    def _is_here(self, where: object) -> bool:
        if self.within is None:
            return True
        if isinstance(where, int):
            try:
                where = os.readlink(f"/proc/self/fd/{where}")
            except OSError:
                return False
        return isinstance(where, str | bytes | os.PathLike) and os.fsdecode(where).startswith(
            str(self.within)
        )

    def _step(self) -> None:
        self.taken += 1
        if self.taken == self.at:
            os.killpg(0, signal.SIGKILL)


def run(action: Callable[[], bytes], at: int = 0, within: Path | None = None) -> bytes | None:
    """Run an action in a child; return what it returned, or None if it was killed at a step."""
    readable, writable = os.pipe()
    child = os.fork()
    if child == 0:
        os.setpgid(0, 0)
        os.close(readable)
        signal.alarm(300)
        try:
            with os.fdopen(writable, "wb") as file:
                Killer(at, within)
                file.write(action())
        except BaseException as error:
            traceback.print_exception(error)
            os._exit(1)
        os._exit(0)
    os.close(writable)
    with os.fdopen(readable, "rb") as file:
        content = file.read()
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if status == -signal.SIGKILL:
        return None
    return content if status == 0 else f"failed with {status}".encode()


def names(folder: Path) -> set[str]:
    """Return what lies in a folder; numbers of processes and dates count as equal."""
    found = (str(p.relative_to(folder)) for p in folder.rglob("*"))
    return {re.sub(r"(?<=-)\d+(?=[-.])", "N", name) for name in found}


def main(name: str, folder: Path, library: Path, stride: int) -> dict[str, int]:
    """Kill at every stride-th step of a scenario; return the counts."""
    scenario = scenario_named(name)
    within = None if scenario.outside else folder

    def action() -> bytes:
        return scenario.act(folder, library)

    def prepared() -> None:
        shutil.rmtree(folder, ignore_errors=True)
        if scenario.find is not None:  # what the work finds is not part of it
            run(lambda: bytes(scenario.find(folder, library) or b""))

    find_compiler()  # asks clang for its version once
    scenario.warm(library)
    if name in BUILDS:
        os.environ["UDFTORCH_CACHE_DIR"] = str(folder)
    prepared()
    found = names(folder)
    right = run(action)
    if not right or right.startswith(b"failed"):
        raise SystemExit(f"{name}, which nobody killed, {right!r}")
    expected = {*found, *names(folder)}
    counts = {"killed": 0, "healed": 0, "left behind": 0}
    for at in range(1, 100_000, stride):
        prepared()
        if run(action, at, within) is not None:
            break
        counts["killed"] += 1
        again = run(action)
        counts["healed"] += again == right
        if again != right:
            print(f"{name}, killed at step {at}: {again!r}, not {right!r}", file=sys.stderr)
        run(lambda: bytes(scenario.tidy(folder) or b""))
        if left := names(folder) - expected:
            counts["left behind"] += 1
            print(f"{name}, killed at step {at}, left {sorted(left)}", file=sys.stderr)
    return counts


if __name__ == "__main__":
    scenario, folder, library, stride = sys.argv[1:]
    print(json.dumps(main(scenario, Path(folder), Path(library), int(stride))))
