# SPDX-License-Identifier: Apache-2.0
"""Record a run, so that it can be compared later or on another machine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from pytest_udftorch.diagnose.runs import record_file
from pytest_udftorch.diagnose.runs.other_process import Subject, record_of, run_elsewhere
from pytest_udftorch.diagnose.runs.record_file import Record
from pytest_udftorch.diagnose.runs.sides import Side, side
from pytest_udftorch.diagnose.runs.work import Work, made_of, run
from pytest_udftorch.errors import DiagnosisError, RunError
from pytest_udftorch.swap.observe.digests import SHA1, XXH3, fastest
from pytest_udftorch.swap.observe.recorder import Recording, Wanted


def execute(work: Work, one: Side, wanted: Wanted | None = None) -> Recording:
    """Run a side here or in its own process, or read its record.

    Raises:
        DiagnosisError: the record cannot be read, or was made with another seed or steps; as from
            :func:`run_elsewhere`.
        RunError: the run fails.
    """
    if one.record is not None:
        return _read(work, one)
    if one.elsewhere:
        return run_elsewhere(work, one, wanted).recording
    if one.compiled:
        return _with_kernels(work, one, wanted)
    return run(work, one, wanted)


def _with_kernels(work: Work, one: Side, wanted: Wanted | None) -> Recording:
    # kernels.py changes Inductor, which takes long to import.
    from pytest_udftorch.diagnose.diff.kernels import run_with_kernels

    return run_with_kernels(work, one, wanted)


def _read(work: Work, one: Side) -> Recording:
    assert one.record is not None
    found = record_file.load(one.record)
    for name, flag in (("seed", "--seed"), ("steps", "--steps"), ("train", "--train")):
        own, its = getattr(work, name), getattr(found, name)
        if own != its:
            raise DiagnosisError(
                f"{one.name} was recorded with {name}={its}, and this comparison has {name}={own}. "
                f"Give the same {flag} to both."
            )
    if work.hashed != found.recording.hashed:
        raise DiagnosisError(
            f"{one.name} has digests of another kind ({found.recording.hashed}) than what it is "
            f"compared with ({work.hashed}), so nothing can be compared. Record it again, with the "
            "package xxhash installed if that is XXH3."
        )
    return found.recording


def digests_of(*sides: Side) -> str:
    """Return the kind of digests that all of these sides can have.

    A record has what it has. A process of another Python need not have the package xxhash.

    Raises:
        DiagnosisError: a record cannot be read, or needs a package that is missing.
    """
    for one in sides:
        if one.record is not None:
            found = record_file.load(one.record).recording.hashed
            if found == XXH3 != fastest() and any(s.record is None for s in sides):
                raise DiagnosisError(
                    f"{one.name} has XXH3 digests, which a run can have only with the package "
                    "xxhash. Install it: pip install xxhash."
                )
            return found
    return SHA1 if any(one.python is not None for one in sides) else fastest()


# Each option of a run is a parameter.
def record_run(  # noqa: PLR0913
    folder: str | Path,
    model: Any = None,
    inputs: Any = (),
    *,
    on: Side | str = "eager",
    make: Callable[[], Any] | str | None = None,
    full: tuple[int, int] | None = None,
    train: bool | None = None,
    steps: int = 1,
    loss: Callable[[Any], Any] | None = None,
    optimizer: Callable[[list[Any]], Any] | None = None,
    seed: int = 0,
) -> Record:
    """Run a side once and keep digests, shapes and samples of every operator in a folder.

    Of a compiled side, these are its kernels and graphs instead.

    Args:
        folder: is made; a record that is there is replaced.
        model: as in :func:`first_difference`, and so are the others.
        inputs: see there.
        on: the side that runs.
        make: see there; also a text such as ``"model.py:make"``.
        full: the first operator whose values are kept, and the one behind the last.
        train: see there.
        steps: see there.
        loss: see there.
        optimizer: see there.
        seed: see there.

    Raises:
        DiagnosisError: there is nothing to run, or the side cannot be recorded; the window is empty
            or lies behind the run, or the folder cannot be written.
        PrivateNameError: the kernels of a compiled side cannot be watched in this torch.
        RunError: the run fails. What was recorded until then is kept in the folder, with the
            reason.
    """
    one = side(on)
    if one.record is not None:
        raise DiagnosisError(f"{one.name!r} is a record already. Record a side that runs.")
    if one.compiled:
        _check_compiled(one)
    if one.row is not None:
        raise DiagnosisError("A row alone cannot be recorded. Let the run make it.")
    start, end = full or (0, 0)
    if full is not None and not 0 <= start < end:
        raise DiagnosisError(
            f"The window {start}:{end} is empty. It names the first operator and the one behind "
            "the last, counted from 0: 100:120 are twenty."
        )
    if isinstance(make, str):
        make = Subject(make)
    run_of = made_of(make, model, inputs, one)
    work = Work(run_of, seed, train, steps, loss, optimizer, hashed=digests_of(one))
    wanted = Wanted(frozenset(range(start, end)))
    try:
        if one.elsewhere:
            found = replace(run_elsewhere(work, one, wanted), side=one.name)
        else:
            found = record_of(work, one, execute(work, one, wanted))
    except RunError as error:
        part = error.recording
        if part is None or not part.calls:
            raise
        record_file.save(record_of(work, one, part), Path(folder))
        said = RunError(
            f"{error}\nThe {len(part.calls):,} operators before are recorded in {folder}."
        )
        said.recording = part
        raise said from error
    if full is not None and not found.recording.kept:
        raise DiagnosisError(
            f"The run has {len(found.recording.calls):,} operators, so the window {start}:{end} "
            "holds none."
        )
    record_file.save(found, Path(folder))
    return found


def _check_compiled(one: Side) -> None:
    """Refuse compiled sides whose kernels nothing sees."""
    if one.backend != "inductor":
        raise DiagnosisError(
            f"{one.name!r} is compiled by the backend {one.backend}, whose kernels are not seen. "
            "Record 'compiled' (Inductor) or an eager side."
        )
