# SPDX-License-Identifier: Apache-2.0
"""What somebody does in the first hour, in a fresh clone: commands, seconds, words on the screen.

    python -m benches.experiments.first_hour [--store FILE]

A clone of the committed state gets an environment of its own and an empty cache of builds, runs
``make demo``, then the commands of the README, then the set-up of ``make test``. torch must be the
same before and after that. It downloads torch once. Then the set-ups of the demo and of the tests
run in clones of their own, from what the first clone has downloaded.
"""

from __future__ import annotations

import argparse
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benches import stored

ROOT = Path(__file__).parents[2]


def steps(readme: str) -> list[str]:
    """Return the commands in order: the demo, what README shows, the set-up of the tests."""
    shown = re.findall(r"^\$ ((?:udftorch|pytest) .*)$", readme, re.M)
    return ["make demo", "udftorch doctor", *shown, ".ci/setup", "FOR=demo .ci/setup"]


def run(command: str, folder: Path, environment: dict[str, str]) -> dict[str, Any]:
    """Run a command as somebody types it; return what it took and said."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    began = time.monotonic()
    done = subprocess.run(
        command, shell=True, cwd=folder, env=environment, check=False, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = (after.ru_utime - before.ru_utime) + (after.ru_stime - before.ru_stime)
    print(f"{command}: {time.monotonic() - began:.0f} s, status {done.returncode}", file=sys.stderr)
    return {
        "command": command,
        "seconds": round(time.monotonic() - began, 1),
        "cpu_seconds": round(used, 1),
        "status": done.returncode,
        "words": len(done.stdout.split()),
        "last": done.stdout.strip().rpartition("\n")[2][:200] if done.returncode > 1 else "",
    }


def torch_state(folder: Path) -> list[str]:
    """Return the versions of torch and torchvision, and when they were installed."""
    found = sorted((folder / ".venv").glob("lib/*/site-packages/torch*.dist-info"))
    return [f"{one.name} {one.stat().st_mtime_ns}" for one in found]


#: What sets a clone up, for the demo and for the tests.
SET_UPS = ("FOR=demo .ci/setup", ".ci/setup")


def clone(folder: Path) -> dict[str, str]:
    """Clone the committed state; return the environment of its commands."""
    subprocess.run(["git", "clone", "--quiet", ROOT, folder], check=True)
    environment = dict(os.environ)
    for variable in ("VIRTUAL_ENV", "PYTHONPATH", "UDFTORCH_PREBUILT"):
        environment.pop(variable, None)
    environment["UDFTORCH_CACHE_DIR"] = str(folder.with_name(f"{folder.name}-cache"))
    environment["PATH"] = f"{folder / '.venv' / 'bin'}{os.pathsep}{os.environ['PATH']}"
    return environment


def set_up(command: str) -> dict[str, Any]:
    """Run a set-up in a clone of its own; add what the environment takes on the disk."""
    with tempfile.TemporaryDirectory(prefix="first-hour-") as name:
        folder = Path(name) / "clone"
        row = run(command, folder, clone(folder))
        sizes: dict[str, int] = {}
        for path in (folder / ".venv").rglob("*"):
            if path.is_file() and not path.is_symlink():
                part = path.relative_to(folder / ".venv").parts
                package = part[3] if len(part) > 4 else "other"
                sizes[package] = sizes.get(package, 0) + path.stat().st_size
    # Everything that comes with torch, which both need.
    torch = sum(sizes.get(one, 0) for one in ("torch", "nvidia", "triton"))
    return {**row, "bytes": sum(sizes.values()), "torch_bytes": torch}


def first_hour() -> dict[str, Any]:
    """Clone, run every step, and look at torch before and after the set-up of the tests."""
    rows = []
    with tempfile.TemporaryDirectory(prefix="first-hour-") as name:
        folder = Path(name) / "clone"
        environment = clone(folder)
        readme = (folder / "README.md").read_text(encoding="utf-8")
        for path, text in re.findall(
            r"<!-- file: (\S+) -->\n```python\n(.*?)^```$", readme, re.M | re.S
        ):
            (folder / path).write_text(text)
        torch = []
        for command in steps(readme):
            rows.append(run(command, folder, environment))
            torch.append(torch_state(folder))
        shutil.rmtree(folder, ignore_errors=True)
    return {
        "rows": rows,
        "set_ups": [set_up(command) for command in SET_UPS],
        "torch_kept": bool(torch[0]) and all(state == torch[0] for state in torch),
        "load": [round(one, 1) for one in os.getloadavg()],
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it, print it, and store it; fail if a command failed or torch was replaced."""
    parser = argparse.ArgumentParser(prog="python -m benches.experiments.first_hour")
    parser.add_argument("--store", type=Path, metavar="FILE", help="keep it there")
    options = parser.parse_args(arguments)
    found = first_hour()
    for row in found["rows"]:
        print(
            f"{row['seconds']:8.1f} s  {row['words']:6,} words  {row['status']}  {row['command']}"
        )
    for row in found["set_ups"]:
        print(
            f"{row['seconds']:8.1f} s  {row['bytes'] / 1e9:6.2f} GB  {row['status']}  "
            f"{row['command']} alone, from cached downloads"
        )
    print(f"torch was {'kept' if found['torch_kept'] else 'REPLACED'}")
    if options.store:
        stored.save(options.store, "python -m benches.store first_hour", found)
    failed = [row for row in [*found["rows"], *found["set_ups"]] if row["status"] > 1]
    return 1 if failed or not found["torch_kept"] else 0


if __name__ == "__main__":
    sys.exit(main())
