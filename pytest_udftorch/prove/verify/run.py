# SPDX-License-Identifier: Apache-2.0
"""Verification over all inputs: from a schedule to its certificate.

The chunks of a schedule are independent. A finished chunk is on the disk before it counts,
so neither a killed worker nor an interrupted run loses anything.
"""

from __future__ import annotations

import datetime
import os
import platform
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from pytest_udftorch.errors import CertificateError, VerifyError
from pytest_udftorch.prove.exact.formats import FORMATS, decode
from pytest_udftorch.prove.exact.rounding import fractional_errors, mpfr_rounded
from pytest_udftorch.prove.verify.candidate import SIXTEEN_BITS, STOCK
from pytest_udftorch.prove.verify.certificate import MODES, Certificate, Example, Run, Tally
from pytest_udftorch.prove.verify.certificate_file import load_certificate, save_certificate
from pytest_udftorch.prove.verify.chunks import local_file, outputs_digest
from pytest_udftorch.prove.verify.journal import Journal
from pytest_udftorch.prove.verify.merge import in_order, merge_certificates
from pytest_udftorch.prove.verify.reference.checker import load_checker
from pytest_udftorch.prove.verify.schedule import Schedule
from pytest_udftorch.prove.verify.workers import default_workers, results_of
from pytest_udftorch.swap.library.description import UdfFunction, find_library
from pytest_udftorch.swap.native.machine import cpu_model


@dataclass(frozen=True)
class Execution:
    """Where and how chunks are run.

    Attributes:
        chunks: only these; all by default.
        workers: processes of a local cluster, 0 to stay in this one; all CPUs by default.
        scheduler: address of a dask scheduler to use instead of a local cluster.
        progress: called with the number of finished chunks and of all.
    """

    chunks: Collection[int] | None = None
    workers: int | None = None
    scheduler: str | None = None
    progress: Callable[[int, int], None] | None = None


def execute(schedule: Schedule, journal: Journal, how: Execution = Execution()) -> Run:
    """Run the chunks that the journal lacks, and return the run over all that it then holds.

    Args:
        schedule: what to run.
        journal: opened under the schedule's identity.
        how: where to run, and which chunks.

    Raises:
        VerifyError: a chunk number that the domain does not have; no cluster, or one whose workers
            cannot run the schedule.
    """
    start = time.monotonic()
    wanted = sorted(set(range(schedule.total_chunks) if how.chunks is None else how.chunks))
    if not wanted or wanted[0] < 0 or wanted[-1] >= schedule.total_chunks:
        raise VerifyError(
            f"{schedule.candidate.function} has the chunks 0 to {schedule.total_chunks - 1}; "
            f"you asked for {f'{wanted[0]} to {wanted[-1]}' if wanted else 'none'}."
        )
    todo = [i for i in wanted if i not in journal.finished]
    done = len(wanted) - len(todo)
    progress = how.progress or (lambda done, total: None)
    progress(done, len(wanted))
    processes = default_workers() if how.workers is None else how.workers
    workers = min(processes, len(todo))
    for result in results_of(schedule, todo, workers, how.scheduler) if todo else ():
        journal.record(result)
        done += 1
        progress(done, len(wanted))
    return _summary(schedule, journal, time.monotonic() - start)


def _summary(schedule: Schedule, journal: Journal, seconds: float) -> Run:
    finished = journal.finished
    tally = sum((finished[index].tally for index in sorted(finished)), Tally())
    now = datetime.datetime.now(datetime.UTC)
    return Run(
        identity=schedule.identity(),
        chunks={i: (r.digest, r.normal_digest) for i, r in finished.items()},
        total_chunks=schedule.total_chunks,
        tally=tally,
        largest=_largest(schedule, tally),
        date=now.isoformat(timespec="seconds"),
        seconds=round(seconds, 1),
        machine={
            "cpu": cpu_model(),
            "system": platform.system(),
            "libc": os.confstr("CS_GNU_LIBC_VERSION") or "unknown",
        },
    )


def _largest(schedule: Schedule, tally: Tally) -> dict[str, Any] | None:
    """Measure the largest error again at its input, with MPFR."""
    if tally.worst_ulp == 0:
        return None
    fmt = FORMATS[schedule.candidate.dtype]
    if schedule.candidate.dtype in SIXTEEN_BITS:
        inputs = [np.array([tally.worst_index], dtype=fmt.dtype)]
    else:
        checker = load_checker(local_file(schedule, "checker"))
        columns = checker.inputs(schedule.candidate.arity, schedule.seed, tally.worst_index, 1)
        inputs = [x.view(np.uint32) for x in columns]
    got = np.array([tally.worst_got], dtype=fmt.dtype)
    function = schedule.candidate.function
    want = mpfr_rounded(function, inputs, fmt)
    example = Example(tuple(int(x[0]) for x in inputs), tally.worst_got, int(want[0]))
    ulp = float(fractional_errors(got, inputs, fmt, function)[0])
    values = [float(decode(x, fmt)[0]) for x in inputs]
    return {"ulp": ulp, **example.as_json(fmt.bits), "input_values": [v.hex() for v in values]}


# From a schedule to a file ---------------------------------------------------------------


def certificate_path(schedule: Schedule, out: Path | None, library: str) -> Path:
    """Return where the certificate goes: ``out``, or beside the source of a UDF."""
    c = schedule.candidate
    if out is None:
        described = None if c.library in STOCK else _described(schedule, library)
        out = described.source.parent if described else Path("udf-certificates") / c.library
    return out / _file_name(schedule)


def _file_name(schedule: Schedule) -> str:
    return f"{schedule.candidate.function}.{schedule.candidate.dtype}.certificate.json"


def _described(schedule: Schedule, library: str) -> UdfFunction | None:
    return find_library(library).functions.get((schedule.candidate.function, "float32"))


def stored_certificate(schedule: Schedule, library: str) -> Path:
    """Return where another library, by name or path, has its certificate of the function.

    Raises:
        VerifyError: it does not have the function.
        The errors of ``find_library``.
    """
    described = _described(schedule, library)
    if described is None:
        raise VerifyError(
            f"UDF library {library!r} has no float32 {schedule.candidate.function!r}, so it has no "
            "certificate to compare with. Leave out --against for this function."
        )
    return described.source.parent / _file_name(schedule)


def journal_path(schedule: Schedule, certificate: Path) -> Path:
    """Return where the finished chunks of an unfinished run are recorded."""
    c = schedule.candidate
    parts = [c.cpu_level, c.form, *(mode for mode in MODES if getattr(schedule, mode))]
    stem = certificate.name.removesuffix(".certificate.json")
    return certificate.with_name(f"{stem}.{'.'.join(parts)}.journal".lower().replace(" ", "-"))


def verify(
    schedule: Schedule,
    certificate: Path,
    how: Execution = Execution(),
    *,
    resume: bool = False,
    judge_all: bool = False,
    against: Path | None = None,
) -> Certificate:
    """Run a schedule and store its run in a certificate file.

    The file keeps runs of other forms if they are of the same sources. The new run replaces one
    of the same form, or completes it if it is of other chunks. Part of the inputs never replaces
    a complete run.

    If the file holds a complete, judged run of the same sources, this one takes digests only:
    if they all equal those of that run, so do the counts. If one differs, or with ``judge_all``,
    this run judges every result. The certificate ``against``, of the same function in another
    library, serves in the same way.

    Returns:
        The certificate with this run only.

    Raises:
        CertificateError: the file is complete, and only some chunks were asked for; ``against`` is
            of another function or domain, or has no complete, judged run. The errors of
            ``Journal``, ``execute`` and of writing a certificate.
    """
    _refuse_to_replace(certificate, schedule, how.chunks)
    known, whose = None, ""
    files = dict(schedule.files)
    if not judge_all and how.chunks is None:
        known = _judged_run(certificate, schedule)
        if known is not None:
            # How many inputs are hard depends on the CPU level alone: no need to count again.
            files.pop("hard", None)
        elif against is not None:
            known, whose = _judged_elsewhere(against, schedule)
    path = journal_path(schedule, certificate)
    run = None
    if known is not None:
        judged = known.identity
        text = f"every output that of {whose}the {judged['form']} form, {judged['cpu_level']}: "
        text += judged["reference"]
        same = replace(schedule, judge=False, reference_text=text, files=files)
        run = _journaled(same, path.with_suffix(".digests.journal"), how, resume)
        counts = replace(known.tally, hard=run.tally.hard)
        same_outputs = run.chunks == known.chunks
        run = replace(run, tally=counts, largest=known.largest) if same_outputs else None
    if run is None:
        run = _journaled(schedule, path, how, resume)
    fresh = Certificate(schedule.subject(), schedule.domain(), (run,))
    save_certificate(_joined(certificate, fresh), certificate)
    path.unlink(missing_ok=True)
    return fresh


def _refuse_to_replace(path: Path, schedule: Schedule, chunks: Collection[int] | None) -> None:
    """Raise an error if a run of some chunks would replace complete ones."""
    stored = _readable(path)
    if stored is None or chunks is None or len(set(chunks)) >= schedule.total_chunks:
        return
    kept = _same_question(stored, schedule)
    lost = [r for r in stored.runs if r.complete and not (kept and r.key != schedule.key())]
    if lost:
        raise CertificateError(
            f"The certificate {path} is complete for the {lost[0].identity['form']} form, "
            f"{lost[0].identity['cpu_level']}; a run of some chunks would replace it. Write to "
            "another folder with --out, or leave out --chunks."
        )


def _readable(path: Path) -> Certificate | None:
    """Return the certificate at ``path``; None if there is none, or it is damaged."""
    if not path.exists():
        return None
    try:
        return load_certificate(path)
    except CertificateError:
        return None


def _same_question(stored: Certificate, asked: Schedule) -> bool:
    return (stored.subject, stored.domain) == (asked.subject(), asked.domain())


def _journaled(schedule: Schedule, path: Path, how: Execution, resume: bool) -> Run:
    name = {**schedule.subject(), **schedule.domain(), **schedule.identity()}
    journal = Journal(path, name, resume=resume)
    run = execute(schedule, journal, how)
    if not schedule.judge:
        journal.remove()
    return run


def _judged_run(path: Path, schedule: Schedule) -> Run | None:
    """Return a run whose counts hold for any form of the schedule that has its outputs."""
    if schedule.flush or schedule.garbage:
        return None
    stored = _readable(path)
    if stored is None or not _same_question(stored, schedule):
        return None
    for run in stored.runs:
        if _is_plain(run) and run.identity["reference"] == schedule.reference_text:
            return None if run.key == schedule.key() else run
    return None


def _is_plain(run: Run) -> bool:
    return run.complete and not any(run.identity[mode] for mode in MODES)


def _judged_elsewhere(path: Path, schedule: Schedule) -> tuple[Run, str]:
    """Return a run of another library's certificate, and the words that name it."""
    stored = load_certificate(path)
    same = all(stored.subject[k] == schedule.subject()[k] for k in ("function", "dtype"))
    if not same or stored.domain != schedule.domain():
        raise CertificateError(
            f"The certificate {path} is of {stored.name} over {stored.domain}; it says nothing "
            f"about {schedule.candidate.function} {schedule.candidate.dtype} over "
            f"{schedule.domain()}."
        )
    for run in stored.runs:
        if _is_plain(run):
            return run, f"{stored.subject['library']} {stored.subject['version']}, "
    raise CertificateError(
        f"The certificate {path} has no complete run without flushed denormals. Verify "
        f"{stored.subject['library']} first, or leave out --against."
    )


def _joined(path: Path, fresh: Certificate) -> Certificate:
    """Return the certificate at ``path`` with a new run in it."""
    stored = _readable(path)
    if stored is None or (stored.subject, stored.domain) != (fresh.subject, fresh.domain):
        return fresh
    (run,) = fresh.runs
    try:
        return merge_certificates([stored, fresh])
    except CertificateError:
        others = tuple(r for r in stored.runs if r.key != run.key)
        return replace(stored, runs=in_order((*others, run)))


# Checking a sample against a certificate ---------------------------------------------


def sample_mismatches(
    certificate: Certificate, schedule: Schedule, chunks: Iterable[int]
) -> list[int]:
    """Run some chunks again and return those whose digests differ from a certificate's.

    Args:
        certificate: it has a run of the schedule's form, or of any form, because all forms of
            a correctly rounded function have one digest.
        schedule: what to run.
        chunks: their numbers.

    Raises:
        CertificateError: the certificate is of another function, cuts the inputs in
            another way, or lacks a chunk.
    """
    if certificate.domain != schedule.domain() or (
        certificate.subject["function"] != schedule.candidate.function
    ):
        raise CertificateError(
            f"The certificate of {certificate.name} over {certificate.domain} says nothing "
            f"about {schedule.candidate.function} over {schedule.domain()}."
        )
    same = {
        "form": schedule.candidate.form,
        "cpu_level": schedule.candidate.cpu_level,
        "flush": schedule.flush,
    }
    stored = (certificate.run(**same) or certificate.runs[0]).chunks
    differ = []
    for index in chunks:
        if index not in stored:
            raise CertificateError(
                f"The certificate of {certificate.name} has no chunk {index}; it is unfinished."
            )
        if outputs_digest(schedule, index) != stored[index][0]:
            differ.append(index)
    return differ
