# SPDX-License-Identifier: Apache-2.0
"""``udftorch verify``."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from pytest_udftorch.cli.progress_bar import progress_bar
from pytest_udftorch.cli.status import Subparsers, report_failures


def add(commands: Subparsers) -> None:
    """Add ``udftorch verify``."""
    parser = commands.add_parser(
        "verify",
        help="run functions over all inputs and write certificates",
        description="Runs functions over all 2^32 float32 encodings (pairs for functions of two "
        "arguments, 2^16 encodings for 16-bit types), compares each result with the correctly "
        "rounded one, and writes a certificate.",
    )
    parser.add_argument(
        "library",
        help="name or path of a UDF library, or what PyTorch ships with: vml, sleef, sleef-u35, "
        "libm; std for torch's operators",
    )
    parser.add_argument(
        "functions", nargs="*", metavar="function", help="torch's names; by default all"
    )
    parser.add_argument(
        "--form",
        action="append",
        choices=["array", "scalar", "v8", "v16", "operator", "all"],
        help="may be repeated; by default array, or the usual form of the library",
    )
    parser.add_argument(
        "--cpu-level",
        action="append",
        choices=["baseline", "avx2", "avx512", "all"],
        help="may be repeated; by default the best of this CPU",
    )
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16", "float16"])
    parser.add_argument(
        "--reference",
        default="auto",
        choices=["auto", "llvmlibc", "libm", "mpfr"],
        help="auto: LLVM-libc where it has the function, libm elsewhere; MPFR decides what these "
        "leave open; mpfr: MPFR decides every result (hours)",
    )
    parser.add_argument("--flush-denormal", action="store_true", help="run with FTZ and DAZ set")
    parser.add_argument(
        "--garbage", action="store_true", help="vector forms: one input among random lanes"
    )
    parser.add_argument(
        "--sparse",
        action="store_true",
        help="array and vector forms: every input among easy ones, so that no repair of a whole "
        "block hides what the fast or quick path gives for it",
    )
    parser.add_argument(
        "--workers", type=int, help="processes; 0 runs in this one; by default one per CPU"
    )
    parser.add_argument(
        "--scheduler", metavar="ADDRESS", help="run on the workers of this dask scheduler"
    )
    parser.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        help="where certificates go; by default beside the UDF's source",
    )
    parser.add_argument(
        "--judge-all",
        action="store_true",
        help="judge every form, even if its outputs have the digests of a judged one",
    )
    parser.add_argument(
        "--against",
        metavar="LIBRARY",
        help="do not judge outputs that have the digests of this library's certificate",
    )
    parser.add_argument(
        "--again",
        action="store_true",
        help="repeat the runs of the certificates on the present builds; if all outputs are the "
        "same, the certificates then name these builds",
    )
    parser.add_argument("--resume", action="store_true", help="continue an interrupted run")
    parser.add_argument(
        "--chunks",
        type=_chunk_range,
        metavar="FIRST:END",
        help="run only these; certificates of separate chunks can be merged",
    )
    parser.add_argument("--chunk-bits", type=int, default=24, help="2^BITS inputs in a chunk")
    parser.add_argument(
        "--pairs", type=int, default=2**30, help="how many, for functions of two arguments"
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of the pairs")
    parser.add_argument("--quiet", action="store_true", help="no progress bar")
    parser.add_argument(
        "--quick",
        action="store_true",
        help="run a sample in seconds (every exponent, boundaries, hard cases, random inputs), and "
        "write no certificate",
    )
    parser.set_defaults(run=run, needs=needs)


def needs(options: argparse.Namespace) -> list[str]:
    """Return the packages that a run needs."""
    found = ["numpy", "gmpy2"]
    if options.quick:
        return found
    if options.workers != 0:
        found.append("distributed")
    return found


def _chunk_range(text: str) -> range:
    first, colon, end = text.partition(":")
    if not (colon and first.isdecimal() and end.isdecimal() and int(first) < int(end)):
        raise argparse.ArgumentTypeError(f"{text!r} is not a range of chunks such as 0:128")
    return range(int(first), int(end))


def run(options: argparse.Namespace) -> int:
    """Verify every function, form and CPU level asked for."""
    from pytest_udftorch.errors import VerifyError
    from pytest_udftorch.prove.verify.candidate_search import cpu_levels, forms_of, functions_of

    if options.quick:
        return _sample(options)
    if options.again:
        return _repeat(options)
    if not 8 <= options.chunk_bits <= 28:
        raise VerifyError("--chunk-bits must lie between 8 and 28.")
    if options.pairs < 1 or (options.workers is not None and options.workers < 0):
        raise VerifyError("--pairs must be positive, --workers must not be negative.")
    failures: list[str] = []
    for function in options.functions or functions_of(options.library, options.dtype):
        for level in _each(options.cpu_level, cpu_levels):
            for form in _each(options.form, partial(forms_of, options.library, level)):
                failures += _verify_one(options, function, form, level)
    return report_failures(failures)


#: Options that say what a certificate is made of.
_OF_CERTIFICATES = (
    "cpu_level", "flush_denormal", "garbage", "sparse", "workers", "scheduler", "out", "judge_all",
    "against", "resume", "chunks",
)  # fmt: skip


def _sample(options: argparse.Namespace) -> int:
    """Sample the functions, and print a table of each."""
    from pytest_udftorch.errors import VerifyError
    from pytest_udftorch.prove.verify.candidate_search import functions_of
    from pytest_udftorch.prove.verify.quick_sample import sample

    given = [name for name in _OF_CERTIFICATES if getattr(options, name) not in (None, False)]
    if given or options.dtype != "float32":
        option = given[0].replace("_", "-") if given else f"dtype={options.dtype}"
        raise VerifyError(
            f"--quick runs a sample of float32 inputs and writes no certificate, so --{option} has "
            "no meaning. Leave out one of the two."
        )
    failures: list[str] = []
    functions = options.functions or functions_of(options.library, "float32")
    for function in functions:
        for form in options.form or [None]:
            found = sample(options.library, function, form, options.seed)
            print(found.text(), flush=True)
            failures += found.failures()
    return report_failures(failures)


#: Options that a certificate answers itself.
_OF_RUNS = (
    "form", "cpu_level", "flush_denormal", "garbage", "sparse", "judge_all", "against", "resume",
    "chunks",
)  # fmt: skip


def _repeat(options: argparse.Namespace) -> int:
    """Run the runs of certificates once more, on the present builds."""
    from pytest_udftorch.errors import VerifyError
    from pytest_udftorch.prove.verify.candidate_search import Request, functions_of
    from pytest_udftorch.prove.verify.repetition import repeat
    from pytest_udftorch.prove.verify.run import Execution, certificate_path
    from pytest_udftorch.prove.verify.schedule import make_schedule
    from pytest_udftorch.prove.verify.workers import cluster_address

    given = [name for name in _OF_RUNS if getattr(options, name) not in (None, False)]
    if given:
        raise VerifyError(
            f"--again takes forms, levels and modes from the certificates, so "
            f"--{given[0].replace('_', '-')} has no meaning. Leave out one of the two."
        )
    failures: list[str] = []
    with cluster_address(options.workers, options.scheduler) as scheduler:
        for function in options.functions or functions_of(options.library, options.dtype):
            plain = Request(dtype=options.dtype, reference="libm", count_hard=False)
            schedule = make_schedule(options.library, function, plain)
            path = certificate_path(schedule, options.out, options.library)
            how = Execution(workers=options.workers, scheduler=scheduler)
            for found in repeat(options.library, function, path, how):
                print(found.text(), flush=True)
                failures += found.failures()
    return report_failures(failures)


def _each(asked: Sequence[str] | None, every: Callable[[], Sequence[str]]) -> Sequence[str | None]:
    """Return what an option asks for, with ``all`` spelled out; None stands for the default."""
    if not asked:
        return [None]
    return every() if "all" in asked else asked


def _verify_one(
    options: argparse.Namespace, function: str, form: str | None, level: str | None
) -> list[str]:
    from pytest_udftorch.prove.verify import run as verify
    from pytest_udftorch.prove.verify.candidate_search import Request
    from pytest_udftorch.prove.verify.schedule import make_schedule

    request = Request(
        dtype=options.dtype,
        form=form,
        cpu_level=level,
        reference=options.reference,
        flush=options.flush_denormal,
        garbage=options.garbage,
        sparse=options.sparse,
        chunk_bits=options.chunk_bits,
        pairs=options.pairs,
        seed=options.seed,
    )
    schedule = make_schedule(options.library, function, request)
    path = verify.certificate_path(schedule, options.out, options.library)
    against = options.against and verify.stored_certificate(schedule, options.against)
    c = schedule.candidate
    what = f"{c.library} {c.function} {c.dtype} {c.form} {c.cpu_level}"
    with progress_bar(what, "chunk", quiet=options.quiet) as progress:
        how = verify.Execution(options.chunks, options.workers, options.scheduler, progress)
        certificate = verify.verify(
            schedule, path, how, resume=options.resume, judge_all=options.judge_all, against=against
        )
    print(*certificate.summaries(), sep="\n")
    return certificate.failures()
