# SPDX-License-Identifier: Apache-2.0
"""Running and judging one chunk in this process.

The compiled checker in ``reference/`` judges float32; the oracle in ``exact`` judges 16-bit
dtypes.
"""

from __future__ import annotations

import hashlib
import itertools
import platform
from functools import cache
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from pytest_udftorch.errors import VerifyError
from pytest_udftorch.prove.exact.formats import FORMATS, canonical
from pytest_udftorch.prove.exact.rounding import fractional_errors, mpfr_rounded
from pytest_udftorch.prove.verify.candidate import (
    OPERATOR,
    SIXTEEN_BITS,
    STOCK,
    address,
    count_hard,
    file_sha256,
)
from pytest_udftorch.prove.verify.candidate_search import Request, find_candidate
from pytest_udftorch.prove.verify.certificate import ChunkResult, Example, Tally
from pytest_udftorch.prove.verify.reference.checker import (
    BESIDE_NUMBERS,
    BINS,
    COARSE_BINS,
    EXAMPLES,
    FINE_BINS,
    FORM_NUMBERS,
    Checker,
    CheckJob,
    Outcome,
    load_checker,
)
from pytest_udftorch.prove.verify.schedule import Schedule, easy_argument, margin_bits
from pytest_udftorch.prove.verify.torch_candidate import operator_results

#: MPFR decides at most this many disagreements of one chunk. Beyond them the reference and the
#: double result together outvote the candidate where both are certain.
MAX_ARBITRATED: Final = 20000


#: SHA-256 -> file that another machine sent (``workers.receive_files``).
shipped: dict[str, Path] = {}


def local_file(schedule: Schedule, role: str) -> Path:
    """Return the file of the schedule on this machine that has the stated SHA-256."""
    name, sha256 = schedule.files[role]
    path = Path(name)
    if path.is_file() and file_sha256(path) == sha256:
        return path
    if sha256 in shipped:
        return shipped[sha256]
    if role == "candidate" and schedule.candidate.library in STOCK:
        c = schedule.candidate
        own = find_candidate(c.library, c.function, Request(form=c.form))
        if own.library_sha256 == sha256:
            return own.path
    raise VerifyError(
        f"{platform.node()} has no {role} {path.name} with SHA-256 {sha256[:16]}...: nobody sent "
        "it, or this machine has another version of it. Install the same versions everywhere."
    )


@cache
def _buffers(size: int) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.uint32]]:
    return np.empty(size, dtype=np.uint32), np.empty(size, dtype=np.uint32)


def run_chunk(schedule: Schedule, index: int) -> ChunkResult:
    """Run and judge one chunk in this process.

    Raises:
        VerifyError: a file of the schedule is not here.
        NativeError: this processor cannot run the form.
    """
    if schedule.candidate.dtype in SIXTEEN_BITS:
        return _run_sixteen_bits(schedule)
    checker = load_checker(local_file(schedule, "checker"))
    job = _job(schedule, checker, index)
    outputs, normals = (b[: job.count] for b in _buffers(schedule.chunk_size))
    if schedule.judge:
        tally = _tally(schedule, checker, job, checker.check(job, outputs, normals))
    else:
        checker.run(job, outputs, normals)
        tally = Tally(inputs=job.count, hard=_count_hard(schedule, checker, job))
    return ChunkResult(index, _sha256(outputs), _sha256(normals), tally)


def _tally(schedule: Schedule, checker: Checker, job: CheckJob, outcome: Outcome) -> Tally:
    def arguments(at: int) -> tuple[int, ...]:
        one = checker.inputs(schedule.candidate.arity, schedule.seed, at, 1)
        return tuple(int(x.view(np.uint32)[0]) for x in one)

    examples = zip(outcome.example_index, outcome.example_got, outcome.example_want, strict=True)
    histogram = {b: int(n) for b, n in enumerate(outcome.histogram) if n}
    return Tally(
        inputs=job.count,
        wrong=outcome.wrong,
        reference_wrong=outcome.reference_wrong,
        disagreements=outcome.disagreements,
        arbitrated=outcome.arbitrated,
        flushed=outcome.flushed,
        hard=outcome.hard if "hard" in schedule.files else None,
        histogram=histogram,
        examples=tuple(
            Example(arguments(at), got, want)
            for at, got, want in itertools.islice(examples, outcome.examples)
        ),
        worst_ulp=outcome.worst_ulp,
        worst_index=outcome.worst_index,
        worst_got=outcome.worst_got,
        incomparable_index=outcome.incomparable_index if BINS - 1 in histogram else None,
    )


def _job(schedule: Schedule, checker: Checker, index: int) -> CheckJob:
    candidate = schedule.candidate
    first = index << schedule.chunk_bits
    count = min(schedule.chunk_size, schedule.count - first)
    job = CheckJob(
        first=first,
        count=count,
        seed=schedule.seed,
        function=checker.number(candidate.function),
        mode=candidate.mode,
        max_arbitrated=count if schedule.reference == "mpfr" else MAX_ARBITRATED,
        flush=schedule.flush,
        beside=BESIDE_NUMBERS[schedule.beside],
        easy=easy_argument(candidate.function),
        margin_bits=margin_bits(candidate.function),
        sample=schedule.sample,
    )
    if candidate.form == OPERATOR:
        inputs = checker.inputs(candidate.arity, schedule.seed, first, count)
        encoded = tuple(x.view(np.uint32) for x in inputs)
        given = operator_results(candidate, encoded, flush=schedule.flush)
        job.candidate, job.form = given.ctypes.data, FORM_NUMBERS["given"]
        job.keeps = given  # the array must live as long as the job
    else:
        job.candidate = address(local_file(schedule, "candidate"), candidate.symbol)
        job.form = FORM_NUMBERS[candidate.form]
    if schedule.reference == "llvmlibc":
        symbol = f"udfref_llvmlibc_{candidate.function}"
        job.reference = address(local_file(schedule, "reference"), symbol)
    if "hard" in schedule.files:
        job.hard = address(local_file(schedule, "hard"), "udfref_hard")
    return job


def _count_hard(schedule: Schedule, checker: Checker, job: CheckJob) -> int | None:
    if not job.hard:
        return None
    columns = checker.inputs(schedule.candidate.arity, schedule.seed, job.first, job.count)
    return count_hard(job.hard, columns)


def _sha256(outputs: npt.NDArray[Any]) -> str:
    little = outputs.astype(outputs.dtype.newbyteorder("<"), copy=False)
    return hashlib.sha256(little.data).hexdigest()


def _run_sixteen_bits(schedule: Schedule) -> ChunkResult:
    """Judge all 65,536 results of a 16-bit operator by the oracle in ``exact``."""
    candidate = schedule.candidate
    fmt = FORMATS[candidate.dtype]
    inputs = np.arange(1 << 16, dtype=np.uint32).astype(np.uint16)
    got = canonical(operator_results(candidate, (inputs,), flush=schedule.flush), fmt)
    want = mpfr_rounded(candidate.function, [inputs], fmt)
    errors = fractional_errors(got, [inputs], fmt, candidate.function)
    masks = [(x & np.uint16(fmt.sign_bit - 1)) for x in (inputs, got, want)]
    tiny = [(m < fmt.min_normal) & (m != 0) for m in masks]
    flushed = (tiny[0] | tiny[2]) & schedule.flush
    judged = ~flushed
    wrong = np.flatnonzero((got != want) & judged)
    finite = judged & np.isfinite(errors)
    bins = _bins(errors[finite])
    histogram = {int(b): int(n) for b, n in zip(*np.unique(bins, return_counts=True), strict=True)}
    incomparable = np.flatnonzero(judged & ~finite)
    if incomparable.size:
        histogram[BINS - 1] = int(incomparable.size)
    worst = int(np.argmax(np.where(finite, errors, -1.0)))
    normals = np.where(tiny[0] | (masks[1] < fmt.min_normal), np.uint16(0), got)
    tally = Tally(
        inputs=inputs.size,
        wrong=int(wrong.size),
        disagreements=int(wrong.size),
        arbitrated=int(judged.sum()),
        flushed=int(flushed.sum()),
        hard=None,
        histogram=histogram,
        examples=tuple(Example((int(i),), int(got[i]), int(want[i])) for i in wrong[:EXAMPLES]),
        worst_ulp=float(errors[worst]),
        worst_index=worst,
        worst_got=int(got[worst]),
        incomparable_index=int(incomparable[0]) if incomparable.size else None,
    )
    return ChunkResult(0, _sha256(got), _sha256(normals), tally)


def _bins(errors: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
    """Return the histogram bins of finite errors, as check.c does."""
    with np.errstate(divide="ignore"):
        exponent = np.where(errors < 1, 0, np.log2(np.maximum(errors, 1)))
    coarse = FINE_BINS + np.minimum(exponent.astype(np.int64), COARSE_BINS - 1)
    return np.where(errors < 1, (errors * FINE_BINS).astype(np.int64), coarse)


def outputs_digest(schedule: Schedule, index: int) -> str:
    """Return the digest of one chunk's outputs, without judging them."""
    if schedule.candidate.dtype in SIXTEEN_BITS:
        return _run_sixteen_bits(schedule).digest
    checker = load_checker(local_file(schedule, "checker"))
    job = _job(schedule, checker, index)
    outputs, normals = (b[: job.count] for b in _buffers(schedule.chunk_size))
    checker.run(job, outputs, normals)
    # The digest of the normal numbers would cost as much again.
    return _sha256(outputs)
