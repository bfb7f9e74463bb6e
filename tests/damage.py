# SPDX-License-Identifier: Apache-2.0
"""Give the scenarios of ``kills.py`` full disks, read-only folders and damaged files.

``python tests/damage.py SCENARIO FAULT FOLDER LIBRARY STRIDE`` runs a scenario under a fault, and
then without it. It prints JSON: how many faults were injected, after how many of these the
scenario gave the right bytes, and how often it refused with an error of this package. The rest is
wrong. The stride is 1 for all faults of a kind.
"""

from __future__ import annotations

import json
import random
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import kills

from pytest_udftorch.errors import UdfError
from pytest_udftorch.swap.toolchain.compiler import find_compiler

REFUSED = b"refused: "

#: Limits on the size of a file, in bytes.
LIMITS = (0, 100, 500, 1000, 2000, 4000, 8000, 16_000, 64_000)

#: Sizes of a filesystem, in KiB.
SIZES = (4, 8, 12, 16, 24, 32, 48, 64, 96)

#: Damages of each file.
DAMAGES = 6


class Bench:
    """A scenario, its right bytes, and the counts of what became of the faults."""

    def __init__(self, name: str, folder: Path, library: Path, stride: int) -> None:
        self.stride = stride
        self.name, self.folder, self.library = name, folder, library
        self.scenario = kills.scenario_named(name)
        self.counts = {"injected": 0, "healed": 0, "errors": 0}
        self.scenario.warm(library)
        self.clear()
        found = kills.names(folder)
        self.right = self.outcome()
        if not self.right or self.right.startswith((b"failed", REFUSED)):
            raise SystemExit(f"{name}, which nothing disturbed: {self.right!r}")
        self.expected = {*found, *kills.names(folder)}

    def clear(self) -> None:
        """Leave the folder as the scenario finds it, on whatever filesystem is there now."""
        self.folder.mkdir(parents=True, exist_ok=True)
        for path in self.folder.iterdir():
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()

    def outcome(self, before: Callable[[], object] = lambda: None) -> bytes | None:
        """Return what the scenario gives in a child, or the error by which it refuses."""

        def act() -> bytes:
            try:
                before()
                return self.scenario.act(self.folder, self.library)
            except UdfError as error:
                return REFUSED + f"{type(error).__name__}: {error}".encode()

        return kills.run(act)

    def inject(self, what: str, *, before: Callable[[], object] = lambda: None) -> None:
        """Count what the scenario gives under a fault."""
        got = self.outcome(before)
        self.counts["injected"] += 1
        self.counts["healed"] += got == self.right
        self.counts["errors"] += bool(got and got.startswith(REFUSED))
        if got != self.right and not (got and got.startswith(REFUSED)):
            print(f"{self.name}, {what}: {got!r:.500}, not {self.right!r:.200}", file=sys.stderr)

    def check_healed(self, what: str) -> None:
        """The fault is gone: the next run is right, and leaves nothing else."""
        got = self.outcome()
        self.scenario.tidy(self.folder)
        left = kills.names(self.folder) - self.expected
        if got != self.right or left:
            raise SystemExit(f"{self.name}, after {what}: {got!r}, left {sorted(left)}")


def full_disk(bench: Bench) -> None:
    """Limit the size of files, and then that of the filesystem, where it can be mounted."""
    for limit in LIMITS[:: bench.stride]:
        bench.clear()

        def limited(limit: int = limit) -> None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

        bench.inject(f"files of {limit} bytes", before=limited)
        bench.check_healed(f"files of {limit} bytes")
    for size in SIZES[:: bench.stride]:
        for _ in mounted(bench.folder, f"size={size}k"):
            bench.inject(f"a disk of {size} KiB")
            subprocess.run(["mount", "-o", "remount,size=64m", bench.folder], check=True)
            bench.check_healed(f"a disk of {size} KiB")


def read_only(bench: Bench) -> None:
    """Let an empty folder, and one with what an earlier run wrote, be read-only."""
    for what in ("empty", "written"):
        for _ in mounted(bench.folder, "size=64m"):
            if what == "written":
                bench.outcome()
            subprocess.run(["mount", "-o", "remount,ro", bench.folder], check=True)
            bench.inject(f"read-only, {what}")
            subprocess.run(["mount", "-o", "remount,rw", bench.folder], check=True)
            bench.check_healed(f"read-only, {what}")


def mounted(folder: Path, options: str) -> Iterator[None]:
    """Yield once, with a filesystem of its own in a folder; not at all if that is impossible."""
    command = ["mount", "-t", "tmpfs", "-o", options, "udf", folder]
    if subprocess.run(command, check=False, capture_output=True).returncode == 0:
        try:
            yield
        finally:
            subprocess.run(["umount", "-l", folder], check=True)


def damaged(bench: Bench, spoil: Callable[[bytes, random.Random], bytes]) -> None:
    """Damage each file of a run that was killed half way, and of one that was not."""
    choose = random.Random(16)
    kept = bench.folder.with_name(f"{bench.folder.name}-kept")
    within = None if bench.scenario.outside else bench.folder
    for at in (0, *_halves(bench, within)):
        bench.clear()
        kills.run(lambda: bench.scenario.act(bench.folder, bench.library), at, within)
        shutil.rmtree(kept, ignore_errors=True)
        shutil.copytree(bench.folder, kept, symlinks=True)
        files = [p for p in sorted(kept.rglob("*")) if p.is_file() and not p.is_symlink()]
        for file in files:
            content = file.read_bytes()
            for _ in range(0, DAMAGES if content else 0, bench.stride):
                bench.clear()
                shutil.copytree(kept, bench.folder, symlinks=True, dirs_exist_ok=True)
                where = bench.folder / file.relative_to(kept)
                where.write_bytes(spoil(content, choose))
                bench.inject(f"damage of {where.name}, step {at}")
    shutil.rmtree(kept, ignore_errors=True)


def _halves(bench: Bench, within: Path | None) -> list[int]:
    """Return some steps in the second half of a run."""

    def counted() -> bytes:
        killer = kills.Killer(0, within)
        bench.scenario.act(bench.folder, bench.library)
        return str(killer.taken).encode()

    bench.clear()
    steps = int(kills.run(counted) or 0)
    return [steps * eighths // 8 for eighths in (4, 5, 6, 7)[:: bench.stride]]


def _cut(content: bytes, choose: random.Random) -> bytes:
    return content[: choose.randrange(len(content))]


def _flip(content: bytes, choose: random.Random) -> bytes:
    spoiled = bytearray(content)
    spoiled[choose.randrange(len(content))] ^= 1 << choose.randrange(8)
    return bytes(spoiled)


FAULTS = {
    "disk full": full_disk,
    "read-only": read_only,
    "truncated": lambda bench: damaged(bench, _cut),
    "bit flip": lambda bench: damaged(bench, _flip),
}


def main(name: str, fault: str, folder: Path, library: Path, stride: int) -> dict[str, int]:
    """Run a scenario under a fault; return the counts."""
    find_compiler()
    bench = Bench(name, folder, library, stride)
    FAULTS[fault](bench)
    return bench.counts


if __name__ == "__main__":
    scenario, fault, folder, library, stride = sys.argv[1:]
    print(json.dumps(main(scenario, fault, Path(folder), Path(library), int(stride))))
