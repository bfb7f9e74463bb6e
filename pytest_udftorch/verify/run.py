"""Verification over all inputs: chunks, workers, resumption, and the certificate.

A plan names one form of one function, its inputs and its references. Its chunks are
independent: each is run and judged by the compiled checker of ``reference/`` (16-bit dtypes
by the oracle of ``rounding``), in this process or on the workers of a dask.distributed
cluster. A finished chunk is on the disk before it counts, so that neither a killed worker
nor an interrupted run loses anything.
"""

from __future__ import annotations

import ctypes
import datetime
import hashlib
import os
import platform
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt

from pytest_udftorch.errors import UdfError
from pytest_udftorch.exact.formats import FORMATS, canonical, decode
from pytest_udftorch.exact.rounding import fractional_errors, mpfr_rounded
from pytest_udftorch.library.description import find_library
from pytest_udftorch.native.machine import cpu_model
from pytest_udftorch.verify.candidate import (
    OPERATOR,
    SIXTEEN_BITS,
    STOCK,
    Candidate,
    file_sha256,
    find_candidate,
    hard_counter_address,
    operator_results,
)
from pytest_udftorch.verify.certificate import (
    Certificate,
    CertificateError,
    CertificateMismatchError,
    ChunkResult,
    Example,
    Run,
    Tally,
    in_order,
    load,
    merge,
    save,
)
from pytest_udftorch.verify.journal import Journal
from pytest_udftorch.verify.reference.checker import (
    BINS,
    COARSE_BINS,
    EXAMPLES,
    FINE_BINS,
    FORM_NUMBERS,
    Checker,
    Job,
    ReferenceMissingError,
    checker_file,
    llvmlibc,
    load_checker,
)

Reference = Literal["auto", "llvmlibc", "libm", "mpfr"]

#: Inputs of a chunk; a chunk takes some tenths of a second.
CHUNK_BITS: Final = 24
#: Pairs for a function of two arguments.
PAIRS: Final = 2**30
#: The C library's double results are trusted to this many bits. Their largest known errors
#: are a few units of 2**-53 (Gladman, Innocente, Mather, Zimmermann, "Accuracy of
#: Mathematical Functions", 2024: below 8 for these functions), so this leaves room.
MARGIN_BITS: Final = 48
#: One input in so many goes to MPFR whether or not anything disagrees.
SAMPLE: Final = 4096
#: Disagreements of one chunk that MPFR decides; beyond them reference and double result
#: together outvote the candidate where both are certain.
MAX_ARBITRATED: Final = 20000
#: How long to wait for a scheduler, in seconds.
CONNECT_SECONDS: Final = 30


class PlanError(UdfError):
    """What was asked for cannot be verified."""


class WorkerError(UdfError):
    """A worker cannot run a chunk, or the cluster cannot be reached."""


@dataclass(frozen=True)
class Plan:
    """Everything a worker needs to know to run any chunk.

    Attributes:
        candidate: what is verified.
        count: inputs of the domain.
        chunk_bits: a chunk has 2**chunk_bits inputs.
        seed: of the pairs.
        reference: ``llvmlibc``, ``libm`` or ``mpfr``.
        reference_text: versions of everything that judges.
        flush: denormals are flushed while the candidate runs.
        garbage: vector forms get one true lane among random ones.
        sample: one input in so many goes to MPFR.
        judge: whether results are compared; else only their digests are taken.
        files: role -> (path on the machine that planned, SHA-256).
    """

    candidate: Candidate
    count: int
    chunk_bits: int
    seed: int
    reference: str
    reference_text: str
    flush: bool
    garbage: bool
    sample: int
    judge: bool = True
    files: Mapping[str, tuple[str, str]] = field(default_factory=dict)

    @property
    def total_chunks(self) -> int:
        """How many chunks the domain has."""
        return -(-self.count // self.chunk_size)

    @property
    def chunk_size(self) -> int:
        """Inputs of a chunk; the last one may have fewer."""
        return 1 << self.chunk_bits

    def identity(self) -> dict[str, Any]:
        """What a run must share with another to be merged with it."""
        c = self.candidate
        return {
            "cpu_level": c.cpu_level,
            "form": c.form,
            "symbol": c.symbol,
            "flush": self.flush,
            "garbage": self.garbage,
            "build_id": c.build_id,
            "library_sha256": c.library_sha256,
            "compiler": c.compiler,
            "reference": self.reference_text,
        }

    def subject(self) -> dict[str, Any]:
        """What a certificate is about."""
        c = self.candidate
        return {
            "function": c.function,
            "dtype": c.dtype,
            "library": c.library,
            "version": c.version,
            "claim": c.claim,
            "max_ulp": c.max_ulp,
            "source_sha256": c.source_sha256,
        }

    def domain(self) -> dict[str, Any]:
        """Which inputs, and how they are cut."""
        kind = "every encoding" if self.candidate.arity == 1 else "pairs of reference/pairs.c"
        return {
            "inputs": kind,
            "count": self.count,
            "chunk_bits": self.chunk_bits,
            "seed": self.seed if self.candidate.arity == 2 else None,
        }


def make_plan(
    library: str,
    function: str,
    *,
    dtype: str = "float32",
    form: str | None = None,
    cpu_level: str | None = None,
    reference: Reference = "auto",
    flush: bool = False,
    garbage: bool = False,
    chunk_bits: int = CHUNK_BITS,
    pairs: int = PAIRS,
    seed: int = 0,
    sample: int = SAMPLE,
    count_hard: bool = True,
) -> Plan:
    """Decide what to run, and build what it needs.

    Raises:
        PlanError: garbage lanes without vectors, a 16-bit function of two arguments.
        ReferenceMissingError: the reference, or a package it needs, is not installed, or
            it does not have the function.
        The errors of ``find_candidate``.
    """
    candidate = find_candidate(
        library, function, dtype=dtype, form=form, cpu_level=cpu_level, count_hard=count_hard
    )
    if garbage and candidate.form not in ("v8", "v16"):
        raise PlanError(
            f"--garbage fills the other lanes of a vector; the form {candidate.form!r} has none. "
            "Choose --form v8 or v16."
        )
    if dtype in SIXTEEN_BITS:
        if candidate.arity == 2:
            raise PlanError(
                f"{function} has 2**32 pairs of {dtype}; only functions of one argument are "
                "verified in 16 bits."
            )
        judge = "MPFR through gmpy2, every result"
        return Plan(candidate, 1 << 16, 16, 0, "mpfr", judge, flush, False, 1)
    count = pairs if candidate.arity == 2 else 1 << 32
    files = {"checker": checker_file()}
    checker = load_checker(files["checker"])
    margin = f"double-precision C library trusted to 2**-{MARGIN_BITS}; MPFR {checker.mpfr_version}"
    chosen, text = _choose_reference(reference, function)
    if chosen == "llvmlibc":
        files["reference"] = llvmlibc().path
    if candidate.form != OPERATOR:
        files["candidate"] = candidate.path
    if candidate.hard_counter is not None:
        files["hard"] = candidate.hard_counter
    return Plan(
        candidate=candidate,
        count=count,
        chunk_bits=chunk_bits,
        seed=seed,
        reference=chosen,
        reference_text=f"{text}{margin}",
        flush=flush,
        garbage=garbage,
        sample=1 if chosen == "mpfr" else sample,
        files={role: (str(path), file_sha256(path)) for role, path in files.items()},
    )


def _choose_reference(reference: Reference, function: str) -> tuple[str, str]:
    if reference in ("auto", "llvmlibc"):
        libc = llvmlibc()
        if function in libc.functions:
            return "llvmlibc", f"LLVM-libc {libc.version}; "
        if reference == "llvmlibc":
            raise ReferenceMissingError(
                f"LLVM-libc {libc.version} has no correctly rounded {function}. Choose "
                "--reference libm (the double-precision C library with a rounding test, MPFR "
                "where that is in doubt) or mpfr (slow)."
            )
        return "libm", ""
    return reference, "MPFR decides every result; " if reference == "mpfr" else ""


# One chunk ---------------------------------------------------------------------------

_shipped: dict[str, Path] = {}


def _local_file(plan: Plan, role: str) -> Path:
    """Return a file of the plan on this machine, the very one that was planned with."""
    name, sha256 = plan.files[role]
    path = Path(name)
    if path.is_file() and file_sha256(path) == sha256:
        return path
    if sha256 in _shipped:
        return _shipped[sha256]
    if role == "candidate" and plan.candidate.library in STOCK:
        own = find_candidate(plan.candidate.library, plan.candidate.function,
                             form=plan.candidate.form)  # fmt: skip
        if own.library_sha256 == sha256:
            return own.path
    raise WorkerError(
        f"{platform.node()} has no {role} {path.name} with SHA-256 {sha256[:16]}...: it was not "
        "sent, or this machine has another version of it. Install the same versions everywhere."
    )


@cache
def _function_address(path: Path, symbol: str) -> int:
    if path.name == "libtorch_cpu.so":
        import torch  # noqa: F401
    return ctypes.cast(getattr(ctypes.CDLL(str(path)), symbol), ctypes.c_void_p).value or 0


@cache
def _buffers(size: int) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.uint32]]:
    return np.empty(size, dtype=np.uint32), np.empty(size, dtype=np.uint32)


def run_chunk(plan: Plan, index: int) -> ChunkResult:
    """Run and judge one chunk in this process.

    Raises:
        WorkerError: a file of the plan is not here.
        ReferenceBuildError: this processor cannot run the form.
    """
    if plan.candidate.dtype in SIXTEEN_BITS:
        return _run_sixteen_bits(plan)
    candidate = plan.candidate
    checker = load_checker(_local_file(plan, "checker"))
    job, given = _job(plan, checker, index)
    outputs, normals = (b[: job.count] for b in _buffers(plan.chunk_size))
    if not plan.judge:
        checker.run(job, outputs, normals)
        tally = Tally(inputs=job.count, hard=_count_hard(plan, checker, index))
        return ChunkResult(index, _sha256(outputs), _sha256(normals), tally)
    outcome = checker.check(job, outputs, normals)
    del given

    def arguments(at: int) -> tuple[int, ...]:
        one = checker.inputs(candidate.arity, plan.seed, at, 1)
        return tuple(int(x.view(np.uint32)[0]) for x in one)

    examples = tuple(
        Example(arguments(int(at)), int(got), int(want))
        for at, got, want, _ in zip(
            outcome.example_index,
            outcome.example_got,
            outcome.example_want,
            range(outcome.examples),
            strict=False,
        )
    )
    histogram = {b: int(n) for b, n in enumerate(outcome.histogram) if n}
    tally = Tally(
        inputs=job.count,
        wrong=outcome.wrong,
        reference_wrong=outcome.reference_wrong,
        disagreements=outcome.disagreements,
        arbitrated=outcome.arbitrated,
        flushed=outcome.flushed,
        hard=outcome.hard if "hard" in plan.files else None,
        histogram=histogram,
        examples=examples,
        worst_ulp=outcome.worst_ulp,
        worst_index=outcome.worst_index,
        worst_got=outcome.worst_got,
        incomparable_index=outcome.incomparable_index if BINS - 1 in histogram else None,
    )
    return ChunkResult(index, _sha256(outputs), _sha256(normals), tally)


def _job(plan: Plan, checker: Checker, index: int) -> tuple[Job, npt.NDArray[Any] | None]:
    """Return what the checker shall do for a chunk, and an array that it must outlive."""
    candidate = plan.candidate
    first = index << plan.chunk_bits
    count = min(plan.chunk_size, plan.count - first)
    job = Job(
        first=first,
        count=count,
        seed=plan.seed,
        function=checker.number(candidate.function),
        mode=candidate.mode,
        max_arbitrated=count if plan.reference == "mpfr" else MAX_ARBITRATED,
        flush=plan.flush,
        garbage=plan.garbage,
        margin_bits=MARGIN_BITS,
        sample=plan.sample,
    )
    given = None
    if candidate.form == OPERATOR:
        inputs = checker.inputs(candidate.arity, plan.seed, first, count)
        encoded = tuple(x.view(np.uint32) for x in inputs)
        given = operator_results(candidate, encoded, flush=plan.flush)
        job.candidate, job.form = given.ctypes.data, FORM_NUMBERS["given"]
    else:
        job.candidate = _function_address(_local_file(plan, "candidate"), candidate.symbol)
        job.form = FORM_NUMBERS[candidate.form]
    if plan.reference == "llvmlibc":
        symbol = f"udfref_llvmlibc_{candidate.function}"
        job.reference = _function_address(_local_file(plan, "reference"), symbol)
    if "hard" in plan.files:
        job.hard = hard_counter_address(_local_file(plan, "hard"))
    return job, given


def _count_hard(plan: Plan, checker: Checker, index: int) -> int | None:
    if "hard" not in plan.files:
        return None
    first = index << plan.chunk_bits
    count = min(plan.chunk_size, plan.count - first)
    columns = checker.inputs(plan.candidate.arity, plan.seed, first, count)
    counter = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p)(
        hard_counter_address(_local_file(plan, "hard"))
    )
    return int(counter(count, columns[0].ctypes.data, columns[-1].ctypes.data))


def _sha256(outputs: npt.NDArray[Any]) -> str:
    little = outputs.astype(outputs.dtype.newbyteorder("<"), copy=False)
    return hashlib.sha256(little.data).hexdigest()


def _run_sixteen_bits(plan: Plan) -> ChunkResult:
    """Judge all 65,536 results of a 16-bit operator by the oracle of ``rounding``."""
    candidate = plan.candidate
    fmt = FORMATS[candidate.dtype]
    inputs = np.arange(1 << 16, dtype=np.uint32).astype(np.uint16)
    got = canonical(operator_results(candidate, (inputs,), flush=plan.flush), fmt)
    want = mpfr_rounded(candidate.function, [inputs], fmt)
    errors = fractional_errors(got, [inputs], fmt, candidate.function)
    masks = [(x & np.uint16(fmt.sign_bit - 1)) for x in (inputs, got, want)]
    tiny = [(m < fmt.min_normal) & (m != 0) for m in masks]
    flushed = (tiny[0] | tiny[2]) & plan.flush
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


# Many chunks -------------------------------------------------------------------------


def _results(
    plan: Plan, todo: Sequence[int], workers: int, scheduler: str | None
) -> Iterator[ChunkResult]:
    """Yield the results of chunks in the order in which they finish."""
    if workers == 0 and scheduler is None:
        yield from map(partial(run_chunk, plan), todo)
        return
    with _client(workers, scheduler) as client:
        dask = _distributed()
        client.register_plugin(_files_plugin(plan), name="udftorch-files")
        # A chunk depends on nothing but its number, but two runs must not share results.
        futures = client.map(partial(run_chunk, plan), todo, pure=False)
        try:
            for future in dask.as_completed(futures):
                yield future.result()
                future.release()
        except dask.KilledWorker as error:
            raise WorkerError(
                f"Several workers died on the same chunk of {plan.candidate.function}: {error}. "
                "Finished chunks are recorded; look for too little memory or a crash in the "
                "function itself (--workers 0 runs it in this process), then use --resume."
            ) from error
        finally:
            client.cancel(futures)


def _distributed() -> Any:
    try:
        import distributed
    except ImportError as error:
        raise WorkerError(
            "dask.distributed, which spreads the chunks over processes, is not installed: pip "
            "install 'dask[distributed]', or use --workers 0 to stay in this process."
        ) from error
    return distributed


@contextmanager
def _client(workers: int, scheduler: str | None) -> Iterator[Any]:
    dask = _distributed()
    with ExitStack() as stack:
        if scheduler is None:
            cluster = dask.LocalCluster(
                n_workers=workers,
                threads_per_worker=1,
                processes=True,
                # Any free port, so that two runs at once do not collide.
                dashboard_address="127.0.0.1:0",
                # Chunks need two fixed buffers; dask's guard would pause workers whose
                # libtorch is mapped.
                memory_limit=0,
            )
            stack.enter_context(cluster)
            yield stack.enter_context(dask.Client(cluster))
            return
        try:
            client = dask.Client(scheduler, timeout=CONNECT_SECONDS)
        except (OSError, ValueError) as error:
            raise WorkerError(
                f"No dask scheduler answers at {scheduler!r}: {error}. Start one with 'dask "
                "scheduler' and workers with 'dask worker', where this package is installed."
            ) from error
        yield stack.enter_context(client)


def _files_plugin(plan: Plan) -> Any:
    """Return a worker plugin that brings the plan's files to workers, also to later ones."""
    contents = {}
    for role, (name, sha256) in plan.files.items():
        # libtorch is no file to send around: workers have their own, which is compared.
        if role != "candidate" or plan.candidate.library not in STOCK:
            contents[sha256] = (Path(name).name, Path(name).read_bytes())

    def setup(self: Any, worker: Any) -> None:
        receive_files(contents, Path(worker.local_directory))

    return type("Files", (_distributed().WorkerPlugin,), {"setup": setup})()


def receive_files(contents: Mapping[str, tuple[str, bytes]], folder: Path) -> None:
    """Store files that a plan needs (SHA-256 -> name, content) on a worker."""
    for sha256, (name, content) in contents.items():
        if hashlib.sha256(content).hexdigest() != sha256:
            raise WorkerError(f"{name} was damaged on its way to {platform.node()}.")
        target = folder / f"{sha256[:16]}-{name}"
        with tempfile.NamedTemporaryFile(dir=folder, delete=False) as scratch:
            scratch.write(content)
        os.replace(scratch.name, target)
        _shipped[sha256] = target


def default_workers() -> int:
    """Return one worker per CPU that this process may use."""
    return len(os.sched_getaffinity(0))


def execute(
    plan: Plan,
    journal: Journal,
    *,
    chunks: Iterable[int] | None = None,
    workers: int | None = None,
    scheduler: str | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Run:
    """Run what the journal lacks, and return the run over all it then holds.

    Args:
        plan: what to run.
        journal: opened under the plan's identity.
        chunks: only these; all by default.
        workers: processes of a local cluster, 0 to stay in this one; all CPUs by default.
        scheduler: address of a dask scheduler to use instead.
        progress: called with the number of finished chunks and of all.

    Raises:
        PlanError: a chunk number that the domain does not have.
        WorkerError: no cluster, or one whose workers cannot run the plan.
    """
    start = time.monotonic()
    wanted = sorted(set(range(plan.total_chunks) if chunks is None else chunks))
    if not wanted or wanted[0] < 0 or wanted[-1] >= plan.total_chunks:
        raise PlanError(
            f"{plan.candidate.function} has the chunks 0 to {plan.total_chunks - 1}; asked for "
            f"{f'{wanted[0]} to {wanted[-1]}' if wanted else 'none'}."
        )
    todo = [i for i in wanted if i not in journal.finished]
    done = len(wanted) - len(todo)
    if progress:
        progress(done, len(wanted))
    processes = default_workers() if workers is None else workers
    for result in _results(plan, todo, min(processes, len(todo)), scheduler) if todo else ():
        journal.record(result)
        done += 1
        if progress:
            progress(done, len(wanted))
    return _summary(plan, journal, time.monotonic() - start)


def _summary(plan: Plan, journal: Journal, seconds: float) -> Run:
    tally = Tally()
    for index in sorted(journal.finished):
        tally += journal.finished[index].tally
    now = datetime.datetime.now(datetime.UTC)
    return Run(
        identity=plan.identity(),
        chunks={i: (r.digest, r.normal_digest) for i, r in journal.finished.items()},
        total_chunks=plan.total_chunks,
        tally=tally,
        largest=_largest(plan, tally),
        date=now.isoformat(timespec="seconds"),
        seconds=round(seconds, 1),
        machine={"cpu": cpu_model(), "system": platform.system(), "libc": _libc()},
    )


def _largest(plan: Plan, tally: Tally) -> dict[str, Any] | None:
    """Measure the largest error again at its input, with MPFR."""
    if tally.worst_ulp == 0:
        return None
    fmt = FORMATS[plan.candidate.dtype]
    if plan.candidate.dtype in SIXTEEN_BITS:
        inputs = [np.array([tally.worst_index], dtype=fmt.dtype)]
    else:
        checker = load_checker(_local_file(plan, "checker"))
        columns = checker.inputs(plan.candidate.arity, plan.seed, tally.worst_index, 1)
        inputs = [x.view(np.uint32) for x in columns]
    got = np.array([tally.worst_got], dtype=fmt.dtype)
    function = plan.candidate.function
    want = mpfr_rounded(function, inputs, fmt)
    example = Example(tuple(int(x[0]) for x in inputs), tally.worst_got, int(want[0]))
    ulp = float(fractional_errors(got, inputs, fmt, function)[0])
    values = [float(decode(x, fmt)[0]) for x in inputs]
    return {"ulp": ulp, **example.as_json(fmt.bits), "input_values": [v.hex() for v in values]}


def _libc() -> str:
    return os.confstr("CS_GNU_LIBC_VERSION") or "unknown"


# From a plan to a file ---------------------------------------------------------------


def certificate_path(plan: Plan, out: Path | None, library: str) -> Path:
    """Return where the certificate goes: ``out``, or beside the source of a UDF."""
    c = plan.candidate
    name = f"{c.function}.{c.dtype}.certificate.json"
    if out is not None:
        return out / name
    if c.library in STOCK:
        return Path("udf-certificates") / c.library / name
    described = find_library(library)
    if (c.function, "float32") in described.functions:
        return described.functions[c.function, "float32"].source.parent / name
    return Path("udf-certificates") / c.library / name


def stored_certificate(plan: Plan, library: str) -> Path:
    """Return where another library, by name or path, has its certificate of the function.

    Raises:
        PlanError: it does not have the function.
        The errors of ``find_library``.
    """
    c = plan.candidate
    described = find_library(library).functions.get((c.function, "float32"))
    if described is None:
        raise PlanError(
            f"UDF library {library!r} has no float32 {c.function!r}, so it has no certificate to "
            "compare with. Leave out --against for this function."
        )
    return described.source.parent / f"{c.function}.{c.dtype}.certificate.json"


def journal_path(plan: Plan, certificate: Path) -> Path:
    """Return where the finished chunks of an unfinished run are recorded."""
    c = plan.candidate
    parts = [c.cpu_level, c.form] + ["flush"] * plan.flush + ["garbage"] * plan.garbage
    stem = certificate.name.removesuffix(".certificate.json")
    return certificate.with_name(f"{stem}.{'.'.join(parts)}.journal".lower().replace(" ", "-"))


def verify(
    plan: Plan,
    certificate: Path,
    *,
    resume: bool = False,
    judge_all: bool = False,
    against: Path | None = None,
    chunks: Iterable[int] | None = None,
    workers: int | None = None,
    scheduler: str | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Certificate:
    """Run a plan and store its run in a certificate file.

    Runs of other forms that the file holds already are kept if they are of the same
    sources; a run of the same form is replaced, or completed if it is of other chunks.

    If the file holds a complete, judged run of the same sources, only digests are taken
    first: where all of them are those of that run, so are the counts. Where one differs, or
    with ``judge_all``, every result is judged. The certificate ``against``, of the same
    function in another library, serves in the same way.

    Returns:
        The certificate with this run only.

    Raises:
        CertificateMismatchError: ``against`` is of another function or domain, or has no
            complete, judged run.
        The errors of ``Journal``, ``execute`` and of writing a certificate.
    """
    spread = partial(
        _journaled,
        path=journal_path(plan, certificate),
        resume=resume,
        chunks=chunks,
        workers=workers,
        scheduler=scheduler,
        progress=progress,
    )
    known, whose = None, ""
    files = dict(plan.files)
    if not judge_all and chunks is None:
        known = _judged_run(certificate, plan)
        if known is not None:
            # How many inputs are hard depends on the CPU level alone: it is not counted again.
            files.pop("hard", None)
        elif against is not None:
            known, whose = _judged_elsewhere(against, plan)
    run = None
    if known is not None:
        text = f"every output that of {whose}the {known.identity['form']} form, "
        text += f"{known.identity['cpu_level']}: {known.identity['reference']}"
        same = replace(plan, judge=False, reference_text=text, files=files)
        run = spread(same)
        run = _with_counts_of(known, run) if run.chunks == known.chunks else None
    if run is None:
        run = spread(plan)
    fresh = Certificate(plan.subject(), plan.domain(), (run,))
    save(_joined(certificate, fresh), certificate)
    journal_path(plan, certificate).unlink(missing_ok=True)
    return fresh


def _journaled(plan: Plan, *, path: Path, resume: bool, **how: Any) -> Run:
    if not plan.judge:
        path = path.with_suffix(".digests.journal")
    name = {**plan.subject(), **plan.domain(), **plan.identity()}
    with Journal(path, name, resume=resume) as journal:
        run = execute(plan, journal, **how)
        if not plan.judge:
            journal.remove()
        return run


def _judged_run(path: Path, plan: Plan) -> Run | None:
    """Return a run whose counts hold for any form of the plan that has its outputs."""
    if plan.flush or plan.garbage or not path.exists():
        return None
    try:
        stored = load(path)
    except CertificateError:
        return None
    if (stored.subject, stored.domain) != (plan.subject(), plan.domain()):
        return None
    for run in stored.runs:
        judged = run.identity["reference"] == plan.reference_text
        other = run.identity["form"], run.identity["cpu_level"]
        if run.complete and judged and not run.identity["flush"] and not run.identity["garbage"]:
            return None if other == (plan.candidate.form, plan.candidate.cpu_level) else run
    return None


def _judged_elsewhere(path: Path, plan: Plan) -> tuple[Run, str]:
    """Return a run of another library's certificate, and the words that name it."""
    stored = load(path)
    same = all(stored.subject[k] == plan.subject()[k] for k in ("function", "dtype"))
    if not same or stored.domain != plan.domain():
        raise CertificateMismatchError(
            f"The certificate {path} is of {stored.name} over {stored.domain}; it says nothing "
            f"about {plan.candidate.function} {plan.candidate.dtype} over {plan.domain()}."
        )
    for run in stored.runs:
        if run.complete and not run.identity["flush"] and not run.identity["garbage"]:
            return run, f"{stored.subject['library']} {stored.subject['version']}, "
    raise CertificateMismatchError(
        f"The certificate {path} has no complete run without flushed denormals. Verify "
        f"{stored.subject['library']} first, or leave out --against."
    )


def _with_counts_of(known: Run, run: Run) -> Run:
    tally = replace(known.tally, hard=run.tally.hard)
    return replace(run, tally=tally, largest=known.largest)


def _joined(path: Path, fresh: Certificate) -> Certificate:
    """Return the certificate at ``path`` with a new run in it."""
    if not path.exists():
        return fresh
    try:
        stored = load(path)
    except CertificateError:
        return fresh  # damaged, and about to be replaced by a whole one
    if (stored.subject, stored.domain) != (fresh.subject, fresh.domain):
        return fresh
    (run,) = fresh.runs
    try:
        return merge([stored, fresh])
    except CertificateMismatchError:
        others = tuple(r for r in stored.runs if r.key != run.key)
        return replace(stored, runs=in_order((*others, run)))


# Checking a sample against a certificate ---------------------------------------------


def sample_mismatches(certificate: Certificate, plan: Plan, chunks: Iterable[int]) -> list[int]:
    """Run some chunks again and return those whose digests differ from a certificate's.

    Args:
        certificate: with a run of the plan's form, or of any form if none is; a correctly
            rounded function has one digest only.
        plan: what to run.
        chunks: their numbers.

    Raises:
        CertificateMismatchError: the certificate is of another function, of inputs cut
            otherwise, or lacks a chunk.
    """
    if certificate.domain != plan.domain() or (
        certificate.subject["function"] != plan.candidate.function
    ):
        raise CertificateMismatchError(
            f"The certificate of {certificate.name} over {certificate.domain} says nothing "
            f"about {plan.candidate.function} over {plan.domain()}."
        )
    same = {"form": plan.candidate.form, "cpu_level": plan.candidate.cpu_level, "flush": plan.flush}
    stored = (certificate.run(**same) or certificate.runs[0]).chunks
    differ = []
    for index in chunks:
        if index not in stored:
            raise CertificateMismatchError(
                f"The certificate of {certificate.name} has no chunk {index}; it is unfinished."
            )
        if outputs_digest(plan, index) != stored[index][0]:
            differ.append(index)
    return differ


def outputs_digest(plan: Plan, index: int) -> str:
    """Return the digest of one chunk's outputs, without judging them."""
    return run_chunk(replace(plan, judge=False), index).digest
