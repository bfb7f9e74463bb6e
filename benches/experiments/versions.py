# SPDX-License-Identifier: Apache-2.0
"""Does a part of this project's suite pass with other versions of Python and torch?

    python -m benches.experiments.versions [--python 3.13] [--torch 2.11.0] [--store FILE]
    python -m benches.experiments.versions --take FILE --store FILE

``make test-python`` and ``make test-torch`` run the suite, or a part of it, in a virtual
environment of their own. This command sets one such environment up, or without options takes the
running one; it runs ``TESTS`` in one process and adds a row to the stored file. A row of the same
Python and torch is replaced, the others stay. ``--take`` measures nothing: it adds the rows that
were stored on another machine. Each row names its machine.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benches import stored
from benches.experiments import command
from pytest_udftorch import UdfError

ROOT = Path(__file__).parents[2]

#: What depends most on the versions and costs least: private names of torch, sessions and how they
#: spread to other processes, profiles, compilers, the plugin, the Python that UDFs are written in.
TESTS = (
    "tests/base/test_compat.py",
    "tests/swap/test_cuda_registration.py",
    "tests/swap/test_inductor_triton.py",
    "tests/swap/test_python_udf.py",
    "tests/swap/test_run.py",
    "tests/swap/test_session.py",
    "tests/plugin/test_options.py",
    "tests/base/test_host.py",
    "tests/project/test_private_names.py",
    "tests/swap/test_record.py",
)


class VersionError(UdfError):
    """An environment could not be made, or no test ran in it."""


def interpreter(python: str | None, torch: str | None) -> Path:
    """Set an environment up and return its interpreter, or the running one.

    Raises:
        VersionError: ``.ci/setup`` failed.
    """
    if python is None and torch is None:
        return Path(sys.executable)
    asked = {"WITH_PYTHON": python or "", "TORCH": torch or ""}
    done = subprocess.run(
        [ROOT / ".ci" / "setup"], cwd=ROOT, env={**os.environ, **asked}, check=False
    )
    if done.returncode:
        raise VersionError(f".ci/setup failed for {asked}.")
    name = ".venv" + (f"-python-{python}" if python else "") + (f"-torch-{torch}" if torch else "")
    return ROOT / name / "bin" / "python"


def counted(report: Path) -> dict[str, Any]:
    """Return how many tests of a JUnit file ended in which way, and which ones failed.

    Raises:
        VersionError: there is none in it.
    """
    found: dict[str, Any] = {"tests": 0, "passed": 0, "skipped": 0, "failed": 0, "not_passed": []}
    for case in ET.parse(report).getroot().iter("testcase"):
        kinds = {child.tag for child in case} & {"failure", "error", "skipped"}
        found["tests"] += 1
        if not kinds:
            found["passed"] += 1
        elif kinds == {"skipped"}:
            found["skipped"] += 1
        else:
            found["failed"] += 1
            found["not_passed"].append(f"{case.get('classname')}::{case.get('name')}")
    if not found["tests"]:
        raise VersionError("no test ran.")
    return found


def measure(python: Path) -> dict[str, Any]:
    """Run the tests under an interpreter, and return its row.

    Raises:
        VersionError: pytest ended otherwise than with passed or failed tests.
    """
    with tempfile.TemporaryDirectory() as scratch:
        report = Path(scratch) / "junit.xml"
        done = subprocess.run(
            [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report}",
             *TESTS],
            cwd=ROOT, check=False,
        )  # fmt: skip
        if done.returncode not in (0, 1):
            raise VersionError(f"pytest ended with status {done.returncode}.")
        told = subprocess.run(
            [python, "-c",
             "import json; from pytest_udftorch.swap.toolchain.environment import describe; "
             "print(json.dumps(describe()))"],
            cwd=ROOT, capture_output=True, text=True, check=True,
        )  # fmt: skip
        environment = json.loads(told.stdout)
        return {
            "python": environment["versions"]["python"],
            "torch": environment["versions"]["torch"],
            **counted(report),
            "environment": environment,
        }


def _numbers(row: dict[str, Any]) -> list[list[int]]:
    return [
        [int(part) for part in row[name].partition("+")[0].split(".") if part.isdigit()]
        for name in ("python", "torch")
    ]


def merged(old: Sequence[dict[str, Any]], new: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return rows in the order of their versions; new ones replace those of the same versions."""
    rows = {(row["python"], row["torch"]): row for row in [*old, *new]}
    return sorted(rows.values(), key=_numbers)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run from the command line; return the exit status."""
    parser: argparse.ArgumentParser = command.parser("versions", __doc__)
    parser.add_argument("--python", metavar="VERSION", help="as of python3.13 on PATH")
    parser.add_argument("--torch", metavar="VERSION", help="of the registry")
    parser.add_argument("--take", type=Path, metavar="FILE", help="that another machine stored")
    options = parser.parse_args(arguments)
    try:
        if options.take is not None:
            new = stored.load(options.take)["rows"]
        else:
            new = [measure(interpreter(options.python, options.torch))]
    except UdfError as error:
        print(f"versions: {error}", file=sys.stderr)
        return 2
    path = options.store
    old = stored.load(path)["rows"] if path is not None and path.exists() else []
    command.store("versions", options, {"tests": list(TESTS), "rows": merged(old, new)})
    for row in new:
        print({name: row[name] for name in ("python", "torch", "tests", "passed", "failed")})
    return int(any(row["failed"] for row in new))


if __name__ == "__main__":
    sys.exit(main())
