# SPDX-License-Identifier: Apache-2.0
"""Kill a process at each of its steps in the file system, as SQLite's crash tests do.

``python tests/killed.py SCENARIO FOLDER LIBRARY STRIDE`` runs a scenario in a forked child, kills
it before its first step, and lets another child, which nobody kills, do the same work. Then it
kills before a later step (the stride is 1 for all steps), and so on until a child comes to its
end. It prints JSON: how many children were killed, after how many of these the next run gave the
right bytes, and after how many something was left behind.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from pytest_udftorch.build import cache
from pytest_udftorch.build.job import Job, Step, compile_job
from pytest_udftorch.build.shared import build_library
from pytest_udftorch.build.toolchain import Compiler, find_compiler
from pytest_udftorch.errors import SourceCompileError

STEPS = {
    "open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.truncate", "os.utime",
    "os.listdir", "os.scandir", "fcntl.flock", "subprocess.Popen", "os.fsync", "os.pwrite",
}  # fmt: skip

CONTENT = b"what the build holds\n" * 1000


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
        Job("", Compiler(tool, "1"), steps, "out", lambda _, m: SourceCompileError(m), texts)
    )
    return made.path.read_bytes()


def build(folder: Path, library: Path) -> bytes:
    """Build a UDF library and compute with it."""
    made = build_library(library)
    value = made.scalar_function("exp")(21.0)
    return made.path.read_bytes() + str(value).encode()


SCENARIOS = {"write": write, "replace": write, "evict": evict, "job": job, "build": build}


def run(action: Callable[[], bytes], at: int = 0) -> bytes | None:
    """Run an action in a child; return what it returned, or None if it was killed at a step."""
    readable, writable = os.pipe()
    child = os.fork()
    if child == 0:
        os.setpgid(0, 0)
        os.close(readable)
        taken = 0

        def step(event: str, args: object = ()) -> None:
            nonlocal taken
            if event in STEPS:
                taken += 1
                if taken == at:
                    os.killpg(0, signal.SIGKILL)

        def counted(name: str, call: Callable[..., object]) -> Callable[..., object]:
            def counting(*args: object) -> object:
                step(name)
                return call(*args)

            return counting

        os.fsync = counted("os.fsync", os.fsync)  # neither raises an event
        os.pwrite = counted("os.pwrite", os.pwrite)
        sys.addaudithook(step)
        signal.alarm(120)
        with os.fdopen(writable, "wb") as file:
            file.write(action())
        os._exit(0)
    os.close(writable)
    with os.fdopen(readable, "rb") as file:
        content = file.read()
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if status == -signal.SIGKILL:
        return None
    return content if status == 0 else f"failed with {status}".encode()


def names(folder: Path) -> list[str]:
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*"))


def main(scenario: str, folder: Path, library: Path, stride: int) -> dict[str, int]:
    """Kill at every stride-th step of a scenario; return the counts."""

    def action() -> bytes:
        return SCENARIOS[scenario](folder, library)

    def prepared() -> None:
        shutil.rmtree(folder, ignore_errors=True)
        if scenario in ("replace", "evict"):  # what they find there is not part of the scenario
            child = os.fork()
            if child == 0:
                os._exit(_prepare(scenario, folder, library))
            os.waitpid(child, 0)

    find_compiler()  # asks clang for its version once
    os.environ["UDFTORCH_CACHE_DIR"] = str(folder)
    prepared()
    found = names(folder)
    right = run(action)
    if not right or right.startswith(b"failed"):
        raise SystemExit(f"{scenario}, which nobody killed, {right!r}")
    expected = {*found, *names(folder)}
    counts = {"killed": 0, "healed": 0, "left behind": 0}
    for at in range(1, 10_000, stride):
        prepared()
        if run(action, at) is not None:
            break
        counts["killed"] += 1
        again = run(action)
        counts["healed"] += again == right
        run(lambda: tidied(folder))
        counts["left behind"] += bool(set(names(folder)) - expected)
    return counts


def _prepare(scenario: str, folder: Path, library: Path) -> int:
    """Leave what a scenario finds: a damaged build, or builds that nobody uses."""
    if scenario == "replace":
        write(folder, library)
        (folder / "a-0123456789abcdef" / "content").write_bytes(b"torn")
    else:
        for name in ("b", "c"):
            cache.fill(folder / f"{name}-0123456789abcdef", _one_file)
    return 0


def tidied(folder: Path) -> bytes:
    """Make one more build and remove it, as any later build would tidy the cache."""
    cache.fill(folder / "z-0123456789abcdef", _one_file)
    shutil.rmtree(folder / "z-0123456789abcdef")
    return b"done"


if __name__ == "__main__":
    scenario, folder, library, stride = sys.argv[1:]
    print(json.dumps(main(scenario, Path(folder), Path(library), int(stride))))
