# SPDX-License-Identifier: Apache-2.0
"""Running a certificate's runs once more, on a library that was built anew from the same sources.

A certificate names the library that was run by its SHA-256, which changes with the other functions
of the library, with the passes and with the linker. Where a new build has every digest of a run, it
has every output, so the counts of the run hold for it, and the certificate may name it.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

from pytest_udftorch.base.result import Result
from pytest_udftorch.errors import VerifyError
from pytest_udftorch.prove.verify.candidate_search import Request
from pytest_udftorch.prove.verify.certificate import MAY_HAVE, MODES, Certificate, Run
from pytest_udftorch.prove.verify.certificate_file import load_certificate, save_certificate
from pytest_udftorch.prove.verify.journal import Journal
from pytest_udftorch.prove.verify.run import Execution, execute
from pytest_udftorch.prove.verify.schedule import Schedule, make_schedule

#: What names a build in the identity of a run.
_BUILD: Final = ("build_id", "library_sha256", "compiler")


@dataclass(frozen=True, repr=False)
class Repeated(Result):
    """A run of a certificate, and what the present build made of its inputs.

    Attributes:
        label: library, function, form, CPU level and mode, for people.
        known: whether the certificate named the present build already; nothing was run then.
        differ: chunks in which an output differs; the certificate keeps its build then.
    """

    label: str
    known: bool
    differ: tuple[int, ...] = ()

    def text(self) -> str:
        """Return a line that says what was found."""
        if self.known:
            return f"{self.label}: names this build already"
        if self.differ:
            return f"{self.label}: other outputs in {len(self.differ)} chunks"
        return f"{self.label}: the same outputs; names this build now"

    def document(self) -> dict[str, Any]:
        """Return it as plain data."""
        return asdict(self)

    def failures(self) -> list[str]:
        """Return a sentence if the present build has other outputs."""
        if not self.differ:
            return []
        first = f"{self.differ[0]}:{self.differ[0] + 1}"
        return [
            f"{self.label}: the present build has other outputs than the certificate in "
            f"{len(self.differ)} chunks, so the certificate does not hold for it. Verify anew, "
            f"without --again; --chunks {first} with --out shows the first."
        ]


def repeat(library: str, function: str, path: Path, how: Execution) -> Iterator[Repeated]:
    """Run every complete run of a certificate on the present builds, and yield what was found.

    The certificate is written after each run that had the same outputs; so after an interruption
    the next call goes on where this one stopped.

    Args:
        library: a UDF library's name or path.
        function: torch's name.
        path: of the certificate.
        how: where to run.

    Raises:
        VerifyError: the certificate is not of the present sources.
        CertificateError: there is no readable certificate.
        The errors of ``make_schedule`` and ``execute``.
    """
    for run in load_certificate(path).runs:
        if run.complete:
            yield _repeat_one(library, function, path, run, how)


def _repeat_one(library: str, function: str, path: Path, run: Run, how: Execution) -> Repeated:
    stored = load_certificate(path)
    schedule = _schedule(library, function, stored, run)
    others = any(run.identity.get(k) != getattr(schedule.candidate, k) for k in MAY_HAVE)
    if others or stored.subject != schedule.subject():
        raise VerifyError(
            f"The certificate {path} is not of the present sources of {schedule.candidate.library} "
            f"{function}, or of another library. Its digests say nothing about their build. "
            "Verify anew, without --again."
        )
    label = f"{stored.name}, {run.label}"
    if run.identity["library_sha256"] == schedule.candidate.library_sha256:
        return Repeated(label, known=True)
    with tempfile.TemporaryDirectory() as folder:
        journal = Journal(Path(folder, "again.journal"), schedule.identity(), resume=False)
        found = execute(replace(schedule, judge=False), journal, how).chunks
    differ = tuple(index for index in sorted(run.chunks) if found[index] != run.chunks[index])
    if not differ:
        identity = {**run.identity, **{k: getattr(schedule.candidate, k) for k in _BUILD}}
        runs = (replace(r, identity=identity) if r.key == run.key else r for r in stored.runs)
        save_certificate(replace(stored, runs=tuple(runs)), path)
    return Repeated(label, known=False, differ=differ)


def _schedule(library: str, function: str, stored: Certificate, run: Run) -> Schedule:
    own: dict[str, Any] = {k: run.identity[k] for k in ("form", "cpu_level", *MODES)}
    domain = stored.domain
    request = Request(
        dtype=stored.subject["dtype"],
        # Nothing is judged.
        reference="libm",
        chunk_bits=domain["chunk_bits"],
        pairs=domain["count"],
        seed=domain["seed"] or 0,
        count_hard=False,
        **own,
    )
    return make_schedule(library, function, request)
