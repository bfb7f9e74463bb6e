# SPDX-License-Identifier: Apache-2.0
"""``udftorch run``."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any

from pytest_udftorch.cli.status import Subparsers


def add(commands: Subparsers) -> None:
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
    parser.add_argument("--udf-functions", action="append", metavar="NAMES", help="swap only these")
    parser.add_argument("--udf-cpu-level", metavar="LEVEL", help="baseline, avx2 or avx512")
    parser.add_argument("--udf-cuda-form", metavar="FORM", help="double, float-float or auto")
    parser.add_argument(
        "--udf-strict", action="store_true", help="fail if ranks have different libraries"
    )
    parser.add_argument(
        "--udf-exclusive", action="store_true", help="switch only while no thread is in an operator"
    )
    parser.add_argument(
        "--udf-composites", action="store_true", help="compute each activation as one function"
    )
    parser.add_argument("--udf-profile-out", type=Path, metavar="DIR", help="write profiles there")
    parser.add_argument("--udf-profile", metavar="DEPTH", help="counters, timed or events")
    program = argparse.REMAINDER
    parser.add_argument("-m", dest="module", nargs=program, metavar="MODULE", help="as python -m")
    parser.add_argument("-c", dest="code", nargs=program, metavar="CODE", help="as python -c")
    parser.add_argument(
        "file", nargs=program, metavar="FILE", help="the program, and its arguments"
    )
    parser.set_defaults(run=run, needs=needs)


def needs(options: argparse.Namespace) -> list[str]:
    """Return the packages that a run needs."""
    return ["torch", "numpy"] if options.udf_profile else ["torch"]


def run(options: argparse.Namespace) -> int:
    """Check and build the library; then become the program."""
    from pytest_udftorch.errors import ProfileError, SessionStateError
    from pytest_udftorch.swap.session import option_values as asked
    from pytest_udftorch.swap.session import startup
    from pytest_udftorch.swap.session.session import patched
    from pytest_udftorch.swap.toolchain.compiler import resolve_cpu_level
    from pytest_udftorch.swap.toolchain.shared_library import build_library

    program: list[str] = options.file
    for flag, words in (("-m", options.module), ("-c", options.code)):
        program = [flag, *words] if words else program
    if not program:
        raise SessionStateError(
            "There is nothing to run. Give a file, -m and a module, or -c and code, and its "
            "arguments: udftorch run --udf-lib corem train.py --epochs 2."
        )
    if bool(options.udf_profile) != bool(options.udf_profile_out):
        raise ProfileError(
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
