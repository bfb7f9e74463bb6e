# SPDX-License-Identifier: Apache-2.0
"""The command ``udftorch``.

Each subcommand has a function that adds its parser and sets ``run``, the function to call;
``COMMANDS`` lists them.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pytest_udftorch import __version__
from pytest_udftorch.errors import NoProfileError, UdfError

if TYPE_CHECKING:
    from pytest_udftorch.library.description import UdfLibrary

Subparsers = Any  # argparse has no public name for it

#: Exit status of a run that finished and found the claim false.
FAILED: Final = 1
#: Exit status of a mistake in the call or the installation.
MISUSE: Final = 2
#: Exit status of an interrupted run, as shells report SIGINT.
INTERRUPTED: Final = 130


def _status(failures: Sequence[str]) -> int:
    """Print what failed and return the exit status."""
    for sentence in failures:
        print(f"FAILED: {sentence}", file=sys.stderr)
    return FAILED if failures else 0


# verify ------------------------------------------------------------------------------


def add_verify(commands: Subparsers) -> None:
    """Add ``udftorch verify``."""
    parser = commands.add_parser(
        "verify",
        help="run functions over all their inputs and write certificates",
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
        "--garbage", action="store_true", help="vector forms: one true lane among random ones"
    )
    parser.add_argument(
        "--workers", type=int, help="processes; 0 runs in this one; by default one per CPU"
    )
    parser.add_argument("--scheduler", metavar="ADDRESS", help="of a running dask scheduler")
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help="by default beside the UDF's source"
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
    parser.add_argument("--resume", action="store_true", help="continue an interrupted run")
    parser.add_argument(
        "--chunks",
        type=_chunk_range,
        metavar="FIRST:END",
        help="only these; certificates of separate chunks can be merged",
    )
    parser.add_argument("--chunk-bits", type=int, default=24, help="2^BITS inputs in a chunk")
    parser.add_argument("--pairs", type=int, default=2**30, help="for functions of two arguments")
    parser.add_argument("--seed", type=int, default=0, help="of the pairs")
    parser.add_argument("--quiet", action="store_true", help="no progress bar")
    parser.set_defaults(run=run_verify)


def _chunk_range(text: str) -> range:
    first, colon, end = text.partition(":")
    if not (colon and first.isdecimal() and end.isdecimal() and int(first) < int(end)):
        raise argparse.ArgumentTypeError(f"{text!r} is not a range of chunks such as 0:128")
    return range(int(first), int(end))


def run_verify(options: argparse.Namespace) -> int:
    """Verify every function, form and CPU level asked for."""
    from pytest_udftorch.verify.find import cpu_levels, forms_of, functions_of
    from pytest_udftorch.verify.schedule import ScheduleError

    if not 8 <= options.chunk_bits <= 28:
        raise ScheduleError("--chunk-bits must lie between 8 and 28.")
    if options.pairs < 1 or (options.workers is not None and options.workers < 0):
        raise ScheduleError("--pairs must be positive, --workers must not be negative.")
    failures: list[str] = []
    for function in options.functions or functions_of(options.library, options.dtype):
        for level in _each(options.cpu_level, cpu_levels):
            for form in _each(options.form, partial(forms_of, options.library, level)):
                failures += _verify_one(options, function, form, level)
    return _status(failures)


def _each(asked: Sequence[str] | None, every: Callable[[], Sequence[str]]) -> Sequence[str | None]:
    """Return what an option asks for, with ``all`` spelled out; None stands for the default."""
    if not asked:
        return [None]
    return every() if "all" in asked else asked


def _verify_one(
    options: argparse.Namespace, function: str, form: str | None, level: str | None
) -> list[str]:
    from pytest_udftorch.verify import run as verify
    from pytest_udftorch.verify.find import Request
    from pytest_udftorch.verify.schedule import make_schedule

    request = Request(
        dtype=options.dtype,
        form=form,
        cpu_level=level,
        reference=options.reference,
        flush=options.flush_denormal,
        garbage=options.garbage,
        chunk_bits=options.chunk_bits,
        pairs=options.pairs,
        seed=options.seed,
    )
    schedule = make_schedule(options.library, function, request)
    path = verify.certificate_path(schedule, options.out, options.library)
    against = options.against and verify.stored_certificate(schedule, options.against)
    c = schedule.candidate
    what = f"{c.library} {c.function} {c.dtype} {c.form} {c.cpu_level}"
    with _progress(what, quiet=options.quiet) as progress:
        how = verify.Execution(options.chunks, options.workers, options.scheduler, progress)
        certificate = verify.verify(
            schedule, path, how, resume=options.resume, judge_all=options.judge_all, against=against
        )
    print(*certificate.summaries(), sep="\n")
    return certificate.failures()


@contextmanager
def _progress(what: str, *, quiet: bool) -> Iterator[Callable[[int, int], None] | None]:
    """Show a progress bar over chunks from the first report on."""
    bar: Any = None

    def update(done: int, total: int) -> None:
        nonlocal bar
        if bar is None:
            from tqdm import tqdm

            bar = tqdm(total=total, initial=done, desc=what, unit="chunk")
        bar.update(done - bar.n)

    try:
        yield None if quiet else update
    finally:
        if bar is not None:
            bar.close()


# certificate -------------------------------------------------------------------------


def add_certificate(commands: Subparsers) -> None:
    """Add ``udftorch certificate``."""
    what = "check, merge or tabulate certificates"
    parser = commands.add_parser("certificate", help=what, description=f"{what.capitalize()}.")
    actions = parser.add_subparsers(dest="action", required=True, metavar="action")
    for name, run, text in (
        ("check", run_check, "check certificates against their digests and claims"),
        ("merge", run_merge, "make one certificate of several"),
        ("table", run_table, "print functions x libraries as Markdown"),
    ):
        action = actions.add_parser(name, help=text)
        action.add_argument("files", nargs="+", type=Path)
        action.set_defaults(run=run)
        if name == "merge":
            action.add_argument("--out", required=True, type=Path, metavar="FILE")


def run_check(options: argparse.Namespace) -> int:
    """Check that files are whole, unedited, complete, and keep their claims."""
    from pytest_udftorch.verify.certificate_file import load

    failures = []
    for path in options.files:
        certificate = load(path)
        failures += certificate.failures() + certificate.unfinished()
        print(f"{path}: {certificate.name}, {len(certificate.runs)} runs, intact")
    return _status(failures)


def run_merge(options: argparse.Namespace) -> int:
    """Merge certificates into one file."""
    from pytest_udftorch.verify.certificate_file import load, save
    from pytest_udftorch.verify.merging import merge

    merged = merge([load(path) for path in options.files])
    save(merged, options.out)
    print(f"{options.out}: {merged.name}, {len(merged.runs)} runs")
    return 0


def run_table(options: argparse.Namespace) -> int:
    """Print the comparison of libraries."""
    from pytest_udftorch.verify.certificate_file import load
    from pytest_udftorch.verify.merging import comparison_table

    print(comparison_table([load(path) for path in options.files]))
    return 0


# libraries ---------------------------------------------------------------------------


def add_libraries(commands: Subparsers) -> None:
    """Add ``udftorch libraries``."""
    parser = commands.add_parser(
        "libraries",
        help="list UDF libraries, their functions and operators",
        description="Lists what libraries have, as their udf.toml says; nothing is compiled.",
    )
    parser.add_argument(
        "libraries", nargs="*", metavar="library", help="names or paths; by default all known"
    )
    parser.set_defaults(run=run_libraries)


def run_libraries(options: argparse.Namespace) -> int:
    """Print each library's functions with their dtypes, and operators with dispatch keys."""
    from pytest_udftorch.library.description import available_libraries, find_library

    if options.libraries:
        for which in options.libraries:
            _print_library(find_library(which))
        return 0
    broken = []
    for name, folder in sorted(available_libraries().items()):
        if folder is None:
            print(f"{name}: only code of its package knows where it is; udftorch libraries {name}")
            continue
        try:
            _print_library(find_library(folder))
        except UdfError as error:
            broken.append(f"{name}: {error}")
    return _status(broken)


def _print_library(library: UdfLibrary) -> None:
    claim = f" ({library.claim})" if library.claim else ""
    print(f"{library.name} {library.version}{claim}: {library.description}".rstrip(": "))
    if library.stock:
        print("  the stock functions and operators")
    for name in () if library.stock else library.function_names:
        dtypes = ", ".join(d for n, d in library.functions if n == name)
        print(f"  {name}: {dtypes}")
    for name, udfs in library.operators.items():
        for udf in udfs:
            keys = ", ".join(udf.dispatch_keys)
            only = f"; {', '.join(udf.dtypes)} only" if udf.dtypes else ""
            print(f"  {name}: {keys}{only}")


# reach -------------------------------------------------------------------------------


def add_reach(commands: Subparsers) -> None:
    """Add ``udftorch reach``."""
    parser = commands.add_parser(
        "reach",
        help="run the table of operators, dtypes and layouts that a session reaches",
        description="Runs operators in every dtype and layout, counts the math symbols they "
        "call, and finds out with swapped probes whether every element went through them.",
    )
    parser.add_argument(
        "operators", nargs="*", metavar="operator", help="such as torch.exp; by default all"
    )
    parser.add_argument("--store", type=Path, metavar="FILE", help="also write the rows as JSON")
    parser.set_defaults(run=run_reach)


def run_reach(options: argparse.Namespace) -> int:
    """Run the table, store it and print it."""
    from pytest_udftorch.reach import table as reach

    rows = reach.table(options.operators, options.store)
    print(reach.terminal(rows))
    unexplained = reach.unexplained(rows)
    return _status([f"no reason is known for {', '.join(unexplained)}"] if unexplained else [])


# coverage ----------------------------------------------------------------------------


def add_coverage(commands: Subparsers) -> None:
    """Add ``udftorch coverage``."""
    parser = commands.add_parser(
        "coverage",
        help="count which evaluations of functions in a model a session swaps",
        description="Records the operators of a run on the CPU, counts the transcendental "
        "functions that they evaluate by their definitions, and finds out with wrong functions "
        "which of these evaluations a session swaps.",
    )
    parser.add_argument(
        "model",
        metavar="FILE:FUNCTION",
        help="a function that returns a callable, which is the run, or a model and its inputs",
    )
    parser.add_argument("--store", type=Path, metavar="FILE", help="also write everything as JSON")
    parser.set_defaults(run=run_coverage)


def run_coverage(options: argparse.Namespace) -> int:
    """Judge one run, store it and print it; fail unless everything is swapped."""
    from pytest_udftorch.reach import counted

    found = counted.coverage(counted.load_step(options.model))
    if options.store:
        command = f"udftorch coverage {options.model}"
        counted.save_coverage({options.model: found}, options.store, command)
    print(found.text())
    return 0 if found.complete else FAILED


# report ------------------------------------------------------------------------------


def add_report(commands: Subparsers) -> None:
    """Add ``udftorch report``."""
    parser = commands.add_parser(
        "report",
        help="make a page, tables or a trace of profiles",
        description="Reads the profiles that pytest --udf-profile-out=DIR or a session wrote, "
        "adds up those of one library, and sets different libraries beside each other.",
    )
    parser.add_argument(
        "paths", nargs="+", type=Path, metavar="DIR|FILE", help="folders or files with profiles"
    )
    parser.add_argument("-o", "--out", type=Path, metavar="FILE", help="write the HTML page here")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all numbers as JSON")
    parser.add_argument("--csv", type=Path, metavar="FILE", help="write one line per cell")
    parser.add_argument("--parquet", type=Path, metavar="FILE", help="the same as Parquet")
    parser.add_argument(
        "--trace", type=Path, metavar="FILE", help="write the events as a trace for Perfetto"
    )
    parser.add_argument(
        "--torch-trace",
        type=Path,
        metavar="FILE",
        help="a trace of torch.profiler from the same run, which --trace takes in",
    )
    parser.add_argument("--title", help="of the page")
    parser.set_defaults(run=run_report)


def run_report(options: argparse.Namespace) -> int:
    """Read profiles; print the short form, and write what was asked for."""
    from pytest_udftorch.profile import report
    from pytest_udftorch.profile.aggregate import load_all
    from pytest_udftorch.profile.export import write_text

    for path in options.paths:
        if path.suffix == ".json":
            raise NoProfileError(
                f"{path} is a JSON file, and profiles are folders or .bin files. If a bench wrote "
                f"it, `python -m benches.render.bench_report {path}` in a checkout of the project "
                "draws its figures."
            )
    profiles = load_all(options.paths)
    print(report.terminal(profiles))
    if options.out:
        text = report.html(profiles, title=options.title or report.TITLE)
        write_text(options.out, text)

    for profile in profiles:
        for path, write in (
            (options.json, profile.to_json),
            (options.csv, profile.to_csv),
            (options.parquet, profile.to_parquet),
            (options.trace, partial(profile.to_trace, torch_trace=options.torch_trace)),
        ):
            if path and len(profiles) > 1:
                # One file for each library.
                write(path.with_name(f"{path.stem}-{profile.label}{path.suffix}"))
            elif path:
                write(path)
    return 0


# patch -------------------------------------------------------------------------------


def add_patch(commands: Subparsers) -> None:
    """Add ``udftorch patch``."""
    parser = commands.add_parser(
        "patch",
        help="make a libtorch on disk that has a library's functions",
        description="Makes a folder that stands in for the installed torch, for C++ programs and "
        "for Python processes that never load this package. The installed torch stays untouched.",
    )
    parser.add_argument("--udf-lib", metavar="LIBRARY", help="name or path of a UDF library")
    parser.add_argument(
        "--functions", type=lambda text: text.split(","), metavar="NAME,...",
        help="torch's names; by default all that the library has",
    )  # fmt: skip
    action = parser.add_mutually_exclusive_group(required=True)
    action.add_argument("--out", type=Path, metavar="DIR", help="make the patch here")
    action.add_argument(
        "--verify", type=Path, metavar="DIR", help="compare a patch with its manifest, and run it"
    )
    action.add_argument("--undo", type=Path, metavar="DIR", help="remove a patch")
    parser.set_defaults(run=run_patch)


def run_patch(options: argparse.Namespace) -> int:
    """Make, verify or undo a patch."""
    from pytest_udftorch.errors import UnknownLibraryError
    from pytest_udftorch.patch import folder

    if options.verify:
        failures = folder.verify(options.verify)
        for sentence in failures:
            print(f"FAILED: {sentence}", file=sys.stderr)
        if not failures:
            print(f"{options.verify}: intact, and a fresh process computes with it")
        return FAILED if failures else 0
    if options.undo:
        for path in folder.undo(options.undo):
            print(f"kept, because the patch does not list it: {path}")
        return 0
    if not options.udf_lib:
        raise UnknownLibraryError("udftorch patch --out needs a library: add --udf-lib=corem.")
    made = folder.make(options.udf_lib, options.functions, options.out)
    print(folder.description(made))
    return 0


# cuda-form ---------------------------------------------------------------------------


def add_cuda_form(commands: Subparsers) -> None:
    """Add ``udftorch cuda-form``."""
    parser = commands.add_parser(
        "cuda-form",
        help="time the forms for GPUs, double and float-float, on the GPU of this machine",
        description="Times a library's functions in double precision and in float-float on the "
        "GPU of this machine, and stores the result, by which cuda_form='auto' decides.",
    )
    parser.add_argument("library", nargs="?", default="corem", help="by default corem")
    parser.add_argument("--no-store", action="store_true", help="only print")
    parser.set_defaults(run=run_cuda_form)


def run_cuda_form(options: argparse.Namespace) -> int:
    """Time both forms, print the ratios and store the means."""
    from pytest_udftorch.build.cuda_form import DOUBLE, FLOAT_FLOAT, store_measurement
    from pytest_udftorch.errors import CudaFormError

    try:
        import torch

        from pytest_udftorch.timing import cuda_forms
    except ImportError as error:
        raise CudaFormError(
            f"udftorch cuda-form needs torch and triton: {error}. Install a torch with CUDA."
        ) from error
    timings = cuda_forms.measure(options.library)
    name = torch.cuda.get_device_name()
    print(f"{name}: ns per element in double, in float-float, ratio")
    for timing in timings:
        double, pairs = timing.ns[DOUBLE], timing.ns[FLOAT_FLOAT]
        print(f"{timing.function:6} {double:9.4f} {pairs:9.4f} {timing.ratio:7.2f}")
    means = cuda_forms.mean_ns(timings)
    print(f"faster: {min(means, key=lambda form: means[form])}")
    if not options.no_store:
        print(f"stored in {store_measurement(name, means)}")
    return 0


# run ---------------------------------------------------------------------------------


def add_run(commands: Subparsers) -> None:
    """Add ``udftorch run``."""
    parser = commands.add_parser(
        "run",
        help="run a program under a library",
        usage="udftorch run --udf-lib LIB [options] [-m MODULE | -c CODE | FILE] ...",
        description="Runs a program as python does, in a session over its whole life. The Python "
        "processes that it starts, with the same interpreter and environment, open the same "
        "session.",
    )
    parser.add_argument("--udf-lib", required=True, metavar="LIB", help="a name, or ./folder")
    parser.add_argument("--udf-functions", action="append", metavar="NAMES", help="only these")
    parser.add_argument("--udf-cpu-level", metavar="LEVEL", help="baseline, avx2 or avx512")
    parser.add_argument("--udf-cuda-form", metavar="FORM", help="double, float-float or auto")
    parser.add_argument(
        "--udf-strict", action="store_true", help="fail if ranks have other libraries"
    )
    parser.add_argument(
        "--udf-exclusive", action="store_true", help="switch while no thread is in an operator"
    )
    parser.add_argument(
        "--udf-composites", action="store_true", help="activations are one function each"
    )
    parser.add_argument("--udf-profile-out", type=Path, metavar="DIR", help="write profiles there")
    parser.add_argument("--udf-profile", metavar="DEPTH", help="counters, timed or events")
    program = argparse.REMAINDER
    parser.add_argument("-m", dest="module", nargs=program, metavar="MODULE", help="as python -m")
    parser.add_argument("-c", dest="code", nargs=program, metavar="CODE", help="as python -c")
    parser.add_argument("file", nargs=program, metavar="FILE", help="and its arguments")
    parser.set_defaults(run=run_run)


def run_run(options: argparse.Namespace) -> int:
    """Check and build the library; then become the program."""
    from pytest_udftorch.build.shared import build_library
    from pytest_udftorch.build.toolchain import resolve_cpu_level
    from pytest_udftorch.errors import ProfileDepthError, SessionStateError
    from pytest_udftorch.session import asked, startup
    from pytest_udftorch.session.session import patched

    program: list[str] = options.file
    for flag, words in (("-m", options.module), ("-c", options.code)):
        program = [flag, *words] if words else program
    if not program:
        raise SessionStateError(
            "There is nothing to run. Give a file, -m and a module, or -c and code, and its "
            "arguments: udftorch run --udf-lib corem train.py --epochs 2."
        )
    if bool(options.udf_profile) != bool(options.udf_profile_out):
        raise ProfileDepthError(
            "--udf-profile says what is counted, and --udf-profile-out where it goes. Give both."
        )
    arguments: dict[str, Any] = {
        "library": str(asked.as_path_or_name(options.udf_lib, Path.cwd())),
        "functions": options.udf_functions and asked.names_in(options.udf_functions),
        "cpu_level": options.udf_cpu_level,
        "cuda_form": options.udf_cuda_form,
        "ranks": "error" if options.udf_strict else "warn",
        "exclusive": options.udf_exclusive,
        "composites": options.udf_composites,
    }
    if options.udf_profile:
        arguments["profile"] = options.udf_profile
        arguments["profile_out"] = str(Path.cwd() / options.udf_profile_out.expanduser())
    session = patched(**arguments)
    level = resolve_cpu_level(options.udf_cpu_level)
    if session.functions and not session.library.stock:
        build_library(session.library, level, profiled=bool(options.udf_profile))
    environment = startup.environment(arguments)
    sys.stdout.flush()
    command = [*startup.interpreter(), *program]
    os.execve(command[0], command, environment)


# doctor ------------------------------------------------------------------------------


def add_doctor(commands: Subparsers) -> None:
    """Add ``udftorch doctor``, also called ``info``."""
    parser = commands.add_parser(
        "doctor",
        aliases=["info"],
        help="say what works here, what does not, and why",
        description="Shows versions, the CPU, compilers, the cache, and what works here, to put "
        "into a bug report. Nothing is compiled.",
    )
    parser.add_argument("--json", action="store_true", help="as JSON")
    parser.set_defaults(run=run_doctor)


def run_doctor(options: argparse.Namespace) -> int:
    """Print what was found; the status is 1 if functions cannot be swapped."""
    from pytest_udftorch import doctor

    found = doctor.facts()
    print(json.dumps(found, indent=1) if options.json else doctor.text(found))
    return 0 if found["works"][0]["works"] else FAILED


# cache -------------------------------------------------------------------------------


def add_cache(commands: Subparsers) -> None:
    """Add ``udftorch cache``."""
    what = "show, prune, fill or export finished builds"
    parser = commands.add_parser("cache", help=what, description=f"{what.capitalize()}.")
    actions = parser.add_subparsers(dest="action", required=True, metavar="action")
    show = actions.add_parser("show", help="list the builds in the cache")
    show.add_argument("--json", action="store_true", help="as JSON")
    show.set_defaults(run=run_cache_show)
    prune = actions.add_parser(
        "prune", help="remove what killed builds left, and builds; none that a process uses"
    )
    prune.add_argument(
        "--to", type=float, metavar="MIB", help="the size that may stay; by default the limit"
    )
    prune.set_defaults(run=run_cache_prune)
    for name, run, text in (
        ("prebuild", run_cache_prebuild, "build what sessions and profiles on this machine need"),
        ("export", run_cache_export, "the same, and copy it to a folder for UDFTORCH_PREBUILT"),
    ):
        action = actions.add_parser(name, help=text)
        if name == "export":
            action.add_argument("folder", type=Path, help="where the copy goes")
        action.add_argument(
            "libraries", nargs="*", metavar="library", help="names or paths; by default corem"
        )
        action.set_defaults(run=run)


def run_cache_show(options: argparse.Namespace) -> int:
    """List the builds in the cache, the one that was used last first."""
    from pytest_udftorch.build import cache

    root = cache.cache_folder()
    rows: list[dict[str, Any]] = []
    for stored in reversed(cache.builds(root)):
        used = datetime.datetime.fromtimestamp(stored.used_ns / 1e9, datetime.UTC)
        facts = stored.facts
        what = " ".join(str(facts[k]) for k in ("library", "cpu_level", "torch") if k in facts)
        rows.append(
            {
                "build": stored.folder.name,
                "what": what,
                "bytes": stored.bytes,
                "used": used.isoformat(timespec="seconds"),
            }
        )
    total = sum(row["bytes"] for row in rows)
    if options.json:
        said = {"folder": str(root), "limit_bytes": round(cache.limit()), "builds": rows}
        print(json.dumps(said, indent=1))
        return 0
    for row in rows:
        size = row["bytes"] / 1024
        print(f"{row['used'][:16]}  {size:8,.0f} KiB  {row['build']:40}  {row['what']}".rstrip())
    print(f"{root}: {len(rows)} builds, {total / 2**20:.1f} of {cache.limit() / 2**20:.0f} MiB")
    return 0


def run_cache_prune(options: argparse.Namespace) -> int:
    """Remove leftovers, and the builds that were used longest ago."""
    from pytest_udftorch.build import cache
    from pytest_udftorch.errors import CacheError

    if options.to is not None and not 0 <= options.to < float("inf"):
        raise CacheError(f"--to {options.to} is not a size in MiB. Give a number from 0.")
    root = cache.cache_folder()
    before = cache.builds(root)
    if root.is_dir():
        cache.tidy(root, None if options.to is None else options.to * 2**20)
    after = cache.builds(root)
    freed = sum(b.bytes for b in before) - sum(b.bytes for b in after)
    print(f"{root}: {len(before) - len(after)} builds removed, {freed / 2**20:.1f} MiB")
    return 0


def run_cache_prebuild(options: argparse.Namespace) -> int:
    """Build what sessions and profiles of libraries need on this machine."""
    from pytest_udftorch import prebuild

    prebuild.run(prebuild.for_this_machine(options.libraries or ["corem"]))
    return 0


def run_cache_export(options: argparse.Namespace) -> int:
    """Build, and copy the builds into a store."""
    from pytest_udftorch import prebuild
    from pytest_udftorch.build import prebuilt

    with prebuilt.recording():
        prebuild.run(prebuild.for_this_machine(options.libraries or ["corem"]))
        count = prebuilt.export(options.folder)
    print(f"{options.folder}: {count} builds; use them with {prebuilt.VARIABLE}={options.folder}")
    return 0


# The command -------------------------------------------------------------------------

COMMANDS: Final[tuple[Callable[[Subparsers], None], ...]] = (
    add_run,
    add_verify,
    add_certificate,
    add_libraries,
    add_reach,
    add_coverage,
    add_report,
    add_patch,
    add_cuda_form,
    add_doctor,
    add_cache,
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run ``udftorch`` and return its exit status."""
    parser = argparse.ArgumentParser(
        prog="udftorch", description="Math libraries inside PyTorch: verify and compare them."
    )
    parser.add_argument("--version", action="version", version=f"pytest_udftorch {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="command")
    for add in COMMANDS:
        add(commands)
    options = parser.parse_args(arguments)
    try:
        return int(options.run(options))
    except UdfError as error:
        print(f"udftorch {options.command}: {error}", file=sys.stderr)
        return MISUSE
    except BrokenPipeError:  # whoever read the output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        resume = " Finished chunks are recorded; continue with --resume."
        more = resume if options.command == "verify" else ""
        print(f"\nudftorch {options.command}: interrupted.{more}", file=sys.stderr)
        return INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
