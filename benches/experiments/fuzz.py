# SPDX-License-Identifier: Apache-2.0
"""Does any file, option or argument from outside bring a reader off its path?

    python -m benches.experiments.fuzz [--minutes N] [--wall N] [--target NAME]... [--store FILE]

Each target of ``tests/fuzz_targets.py`` is fuzzed in a process of its own, guided by the branches
that its inputs reach (libFuzzer, through Atheris: ``pip install atheris``). The processor time is
split evenly. A run starts with the corpus in ``tests/fuzz_corpus.zip`` and puts its own there,
where a test replays it; ``found/`` in it holds the inputs of findings that were mended. A finding
is an exception that is not this package's, a wrong answer, a hang, or a file, code or a process
that reading does not need.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import subprocess
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benches import stored
from benches.experiments import command
from pytest_udftorch import UdfError

TESTS = Path(__file__).parents[2] / "tests"
CORPUS = TESTS / "fuzz_corpus.zip"
#: Bytes of a target's inputs in the archive, the smallest inputs first, and what the archive adds
#: to each. All targets together stay below half a megabyte.
KEPT = 45_000
_ENTRY = 120
_EPOCH = (1980, 1, 1, 0, 0, 0)


def targets() -> list[str]:
    """Return the names of the targets."""
    code = "import fuzz_targets; print(*fuzz_targets.TARGETS)"
    run = subprocess.run(
        [sys.executable, "-c", code], cwd=TESTS, capture_output=True, text=True, check=False
    )
    if run.returncode != 0:
        raise UdfError(f"The targets cannot be imported:\n{run.stderr}")
    return run.stdout.split()


def unpack(target: str, folder: Path) -> int:
    """Write a target's inputs of the archive into a folder; return how many were findings."""
    found = 0
    if CORPUS.is_file():
        with zipfile.ZipFile(CORPUS) as archive:
            for name in archive.namelist():
                kind, _, rest = name.partition("/")
                if kind == target or (kind == "found" and rest.startswith(f"{target}/")):
                    (folder / name.replace("/", "-")).write_bytes(archive.read(name))
                    found += kind == "found"
    return found


def fuzz(target: str, seconds: float, wall: float, folder: Path) -> dict[str, Any]:
    """Fuzz one target; return its counts. The folder gets ``corpus`` and ``findings``."""
    corpus, findings = folder / "corpus", folder / "findings"
    corpus.mkdir()
    findings.mkdir()
    mended = unpack(target, corpus)
    run = subprocess.run(
        [
            sys.executable, str(TESTS / "fuzz_child.py"), target, f"--corpus={corpus}",
            f"--found={findings}", f"--seconds={seconds}", f"--wall={wall}",
        ],
        cwd=folder, capture_output=True, text=True, errors="replace", check=False,
    )  # fmt: skip
    if "No module named 'atheris'" in run.stderr:
        raise UdfError("Fuzzing needs Atheris. Install it: pip install atheris.")
    reached = [int(n) for n in re.findall(r"\bcov: (\d+)", run.stderr)]
    last = run.stdout.splitlines()[-1:]
    try:
        told: dict[str, Any] = json.loads(last[0])
    except (IndexError, ValueError):  # the process died, or libFuzzer ended it as a hang
        (findings / "died.txt").write_text(run.stderr[-20_000:])
        told = {"executions": 0, "seconds": 0.0, "findings": 1}
    return {**told, "edges": max(reached, default=0), "mended": mended}


def keep(folders: dict[str, Path]) -> None:
    """Put the inputs of these targets into the archive, and leave those of the others there."""
    members: dict[str, bytes] = {}
    if CORPUS.is_file():
        with zipfile.ZipFile(CORPUS) as archive:
            members = {
                n: archive.read(n) for n in archive.namelist() if n.partition("/")[0] not in folders
            }
    known = {data for name, data in members.items() if name.startswith("found/")}
    for target, folder in folders.items():
        left = KEPT
        for data in sorted({p.read_bytes() for p in folder.iterdir()} - known, key=len):
            left -= len(data) + _ENTRY
            if left < 0:
                break
            members[f"{target}/{len(data):05}-{zlib.crc32(data):08x}"] = data
    # Another target may be reading the archive.
    new = CORPUS.with_suffix(".new")
    with zipfile.ZipFile(new, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name in sorted(members):
            entry = zipfile.ZipInfo(name, _EPOCH)
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, members[name])
    new.replace(CORPUS)


def measure(
    names: Sequence[str],
    options: argparse.Namespace,
    done: Callable[[dict[str, Any]], None] = lambda found: None,
) -> dict[str, Any]:
    """Fuzz the targets, ``jobs`` at a time; return name -> counts.

    ``done`` gets what is known after each target, in case the run is ended.
    """
    out: Path | None = options.findings
    seconds = 60 * options.minutes / len(names)
    wall = 60 * options.wall / math.ceil(len(names) / options.jobs)
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as scratch:
        folders = {name: Path(scratch) / name for name in names}
        for folder in folders.values():
            folder.mkdir()
        with ThreadPoolExecutor(options.jobs) as pool:
            results = pool.map(lambda n: fuzz(n, seconds, wall, folders[n]), names)
            for name, counts in zip(names, results, strict=True):
                print(name, counts, flush=True)
                found[name] = counts
                for path in sorted((folders[name] / "findings").iterdir()):
                    if out is not None:
                        out.mkdir(parents=True, exist_ok=True)
                        (out / f"{name}-{path.name}").write_bytes(path.read_bytes())
                    if path.suffix == ".txt":
                        print(path.read_text(errors="replace"))
                keep({name: folders[name] / "corpus"})
                done(found)
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Run from the command line; return 1 if there was a finding."""
    parser = command.parser("fuzz", __doc__)
    parser.add_argument("--minutes", type=float, default=60, help="of processor time, in all")
    parser.add_argument("--wall", type=float, default=600, help="minutes after which it ends")
    parser.add_argument("--jobs", type=int, default=2, help="processes at a time")
    parser.add_argument("--target", action="append", metavar="NAME", help="only this one")
    parser.add_argument("--findings", type=Path, metavar="DIR", help="put their inputs there")
    options = parser.parse_args(arguments)
    if not (options.minutes > 0 and options.wall > 0 and options.jobs > 0):
        parser.error("--minutes, --wall and --jobs must be more than 0.")
    figures: dict[str, Any] = {}

    def once() -> dict[str, Any]:
        known = targets()
        names = options.target or known
        for name in names:
            if name not in known:
                raise UdfError(f"There is no target {name!r}. Known: {', '.join(known)}.")
        earlier = _earlier(options, known)

        def keep_figures(found: dict[str, Any]) -> None:
            command.store("fuzz", options, {"targets": {**earlier, **found}})

        figures.update(measure(names, options, keep_figures))
        return {"targets": {**earlier, **figures}}

    status = command.run("fuzz", options, once)
    return status or int(any(row["findings"] for row in figures.values()))


def _earlier(options: argparse.Namespace, known: Sequence[str]) -> dict[str, Any]:
    """Return what the file to store has of the other targets, if only some were asked for."""
    if not options.target or options.store is None or not options.store.is_file():
        return {}
    before = stored.load(options.store)["targets"]
    return {name: before[name] for name in known if name in before}


if __name__ == "__main__":
    sys.exit(main())
