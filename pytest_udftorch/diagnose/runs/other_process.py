# SPDX-License-Identifier: Apache-2.0
"""A side in a process of its own: another Python, another torch, other instructions of the CPU.

The parent writes what is wanted into a folder; ``python -m`` with this module and the folder
runs the side there and leaves a record, or says why it could not. Another environment needs torch
and NumPy, and gets this package on its path, and nothing else of this environment.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from pytest_udftorch.base import compat
from pytest_udftorch.diagnose.runs import record_file
from pytest_udftorch.diagnose.runs.files import load
from pytest_udftorch.diagnose.runs.record_file import Record
from pytest_udftorch.diagnose.runs.sides import Side, described, side
from pytest_udftorch.diagnose.runs.work import Work, run
from pytest_udftorch.errors import DiagnosisError, RunError, UdfError
from pytest_udftorch.swap.native.machine import cpu_model
from pytest_udftorch.swap.observe.recorder import Recording, Wanted

_ORDER: Final = "order.json"
_PUT: Final = "put.pt"
_ERROR: Final = "error.txt"


def run_elsewhere(work: Work, one: Side, wanted: Wanted | None = None) -> Record:
    """Run a side in its own process and return what it recorded.

    Raises:
        DiagnosisError: what runs, or the side, is made of objects of this process.
        RunError: the run fails there.
    """
    import torch

    wanted = wanted or Wanted()
    order = _order(work, one, wanted)
    with tempfile.TemporaryDirectory(prefix="udftorch-diff-") as name:
        folder = Path(name)
        (folder / _ORDER).write_text(json.dumps(order), encoding="utf-8")
        if wanted.put:
            torch.save({at: list(values) for at, values in wanted.put.items()}, folder / _PUT)
        try:
            _start(one, folder)
        except RunError as error:
            if (folder / record_file.CALLS).is_file():
                error.recording = record_file.load(folder, wanted.put).recording
            raise
        return record_file.load(folder, wanted.put)


def _order(work: Work, one: Side, wanted: Wanted) -> dict[str, Any]:
    name = one.name or described(one)
    if one.around is not None or one.run is not None or one.options:
        raise DiagnosisError(
            f"{name!r} holds objects of this process, so it cannot run in another one. Name what "
            "it needs as a text."
        )
    if one.compiled:
        raise DiagnosisError(
            f"{name!r} is compiled, and a side in another process is recorded, which compiled code "
            "cannot be. Compare eager sides, or run udftorch there."
        )
    make = one.make or work.make
    if not isinstance(make, Subject) or work.loss is not None or work.optimizer is not None:
        raise DiagnosisError(
            f"{name!r} runs in another process, which cannot get objects of this one. Give "
            "make='model.py:make' or a script, without loss= and optimizer=."
        )
    return {
        "where": make.where,
        "arguments": list(make.arguments),
        "side": described(replace(one, python=None, capability=None)),
        "seed": work.seed,
        "steps": work.steps,
        "train": work.train,
        "keep": sorted(wanted.keep),
        "stop": wanted.stop,
        "digests": work.hashed,
    }


class Subject:
    """What ``model.py:make`` or ``train.py`` names; another process can load it, too.

    Attributes:
        where: a file and a function in it, or a script.
        arguments: of the script.
    """

    def __init__(self, where: str, arguments: tuple[str, ...] = ()) -> None:
        self.where, self.arguments = where, tuple(arguments)
        self._make = load(where, arguments)

    def __call__(self) -> Any:
        """Return what the function returns, or what runs the script."""
        return self._make()


def record_of(work: Work, one: Side, recording: Recording) -> Record:
    """Return what a record of a run says."""
    version, capability = compat.torch_summary()
    machine = {
        "cpu": cpu_model(),
        "capability": capability,
        "torch": version,
        "python": platform.python_version(),
    }
    make = one.make or work.make
    subject = make.where if isinstance(make, Subject) else ""
    name = one.name or described(one)
    return Record(name, subject, machine, work.seed, work.steps, work.train, recording)


def _start(one: Side, folder: Path) -> None:
    environment = dict(os.environ)
    command = [sys.executable]
    if one.capability is not None:
        environment["ATEN_CPU_CAPABILITY"] = one.capability
    if one.python is not None:
        command = [str(one.python)]
        # The package alone: beside it lies the torch of this environment.
        (folder / "path").mkdir()
        (folder / "path" / "pytest_udftorch").symlink_to(Path(__file__).parents[2])
        environment["PYTHONPATH"] = str(folder / "path")
        environment.pop("PYTHONHOME", None)
    command += ["-m", "pytest_udftorch.diagnose.runs.other_process", str(folder)]
    ended = subprocess.run(
        command, env=environment, capture_output=True, text=True, errors="replace", check=False
    )
    error = folder / _ERROR
    if error.is_file():
        raise RunError(f"{one.name}: {error.read_text(encoding='utf-8')}")
    if ended.returncode:
        last = "\n".join(ended.stderr.strip().splitlines()[-3:])
        raise RunError(f"The process of {one.name!r} ended with status {ended.returncode}: {last}")


# In the other process ----------------------------------------------------------------


def main(folder: Path) -> int:
    """Do what the folder's order says; return the exit status."""
    order = json.loads((folder / _ORDER).read_text(encoding="utf-8"))
    try:
        record_file.save(_recorded(order, folder), folder)
    except UdfError as error:
        (folder / _ERROR).write_text(str(error), encoding="utf-8")
        return 1
    return 0


def _recorded(order: dict[str, Any], folder: Path) -> Record:
    import torch

    put = {}
    if (folder / _PUT).is_file():
        put = torch.load(folder / _PUT, weights_only=True)
    subject = Subject(order["where"], order["arguments"])
    how = order["seed"], order["train"], order["steps"]
    work = Work(subject, *how, hashed=order["digests"])
    one = side(order["side"])
    wanted = Wanted(frozenset(order["keep"]), put, order["stop"])
    try:
        return record_of(work, one, run(work, one, wanted))
    except RunError as error:
        if error.recording is not None and error.recording.calls:
            record_file.save(record_of(work, one, error.recording), folder)
        raise


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
