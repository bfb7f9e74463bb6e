# SPDX-License-Identifier: Apache-2.0
"""The wheel of ``make wheel``: its size, and the way from ``pip install`` to a first table.

    python -m benches.experiments.wheel --store benches/results/wheel.json

Installs the newest wheel of ``dist/`` from its file into a fresh environment, which borrows the
packages of this one (torch's download is left out), hides every compiler, linker and header, and
runs a small suite under corem and a profile with an empty cache. The steps are timed.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benches import stored

ROOT = Path(__file__).parents[2]


def contents(wheel: Path) -> dict[str, Any]:
    """Return the sizes of a wheel in bytes: the file, and what it unpacks to, by folder."""
    unpacked: dict[str, int] = {}
    with zipfile.ZipFile(wheel) as archive:
        for info in archive.infolist():
            folder = "/".join(info.filename.split("/")[:2]) if "/" in info.filename else ""
            kind = folder if folder.startswith("pytest_udftorch/_") else info.filename.split("/")[0]
            if "/udfs/" in info.filename:
                kind = "pytest_udftorch/udfs"
            unpacked[kind] = unpacked.get(kind, 0) + info.file_size
    return {"file": wheel.name, "bytes": wheel.stat().st_size, "unpacked_bytes": unpacked}


def measure(wheel: Path) -> dict[str, Any]:
    """Return the wheel's sizes, what was hidden, and the seconds of each step."""
    sys.path.insert(0, str(ROOT / "tests"))
    import hidden

    seconds: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        machine = hidden.Machine(Path(folder), wheel)
        seconds["install"] = time.perf_counter() - start
        (machine.home / "test_suite.py").write_text(hidden.SUITE, encoding="utf-8")
        steps = {
            "suite_under_corem": ("pytest", "--udf-lib=corem", "test_suite.py"),
            "suite_under_corem_again": ("pytest", "--udf-lib=corem", "test_suite.py"),
            "profile_of_std": (
                "pytest",
                "--udf-lib=std",
                "--udf-profile=counters",
                "test_suite.py",
            ),
        }
        for name, command in steps.items():
            start = time.perf_counter()
            done = machine.run(*command)
            seconds[name] = time.perf_counter() - start
            if done.returncode not in (0, 1):
                raise SystemExit(done.stdout + done.stderr)
        compiled = [p.name for p in machine.cache.rglob("*.so")]
    return {
        "wheel": contents(wheel),
        "seconds": {name: round(value, 2) for name, value in seconds.items()},
        "to_the_first_table_seconds": round(seconds["install"] + seconds["suite_under_corem"], 2),
        "compiled": compiled,
        "hidden": {
            "folders": [str(p).replace(str(Path.home()), "~") for p in hidden.folders()],
            "files": [str(p) for p in hidden.files()],
        },
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, and store if asked."""
    parser = argparse.ArgumentParser(prog="python -m benches.experiments.wheel")
    parser.add_argument("--store", type=Path, metavar="FILE")
    options = parser.parse_args(arguments)
    found = sorted((ROOT / "dist").glob("pytest_udftorch-*.whl"))
    if not found:
        print("There is no wheel in dist/: run make wheel first.", file=sys.stderr)
        return 2
    result = measure(found[-1])
    for name, value in result["seconds"].items():
        print(f"{name:28} {value:7.2f} s")
    print(f"{result['wheel']['file']}: {result['wheel']['bytes'] / 2**20:.2f} MiB")
    if options.store:
        stored.save(options.store, "python -m benches.store wheel", result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
