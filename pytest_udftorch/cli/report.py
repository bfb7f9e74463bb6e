# SPDX-License-Identifier: Apache-2.0
"""``udftorch report``."""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path

from pytest_udftorch.cli.status import Subparsers
from pytest_udftorch.errors import NoProfileError


def add(commands: Subparsers) -> None:
    """Add ``udftorch report``."""
    parser = commands.add_parser(
        "report",
        help="make a page, tables or a trace of profiles",
        description="Reads the profiles that pytest --udf-profile-out=DIR or a session wrote, "
        "adds up the processes of one run, and sets different libraries beside each other.",
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
        help="a trace of torch.profiler from the same run, to merge into that of --trace",
    )
    parser.add_argument("--title", help="title of the page")
    parser.add_argument(
        "--add-runs", action="store_true", help="add up the profiles of several runs of a library"
    )
    parser.set_defaults(run=run, needs=needs, waits="reading profiles")


def needs(options: argparse.Namespace) -> list[str]:
    """Return the packages that a report needs."""
    found = ["numpy"]
    if options.csv or options.parquet:
        found.append("pandas")
    return [*found, "pyarrow"] if options.parquet else found


def run(options: argparse.Namespace) -> int:
    """Read profiles; print the short form, and write what was asked for."""
    from pytest_udftorch.swap.records.export import write_text
    from pytest_udftorch.swap.records.profile import load_profiles
    from pytest_udftorch.watch.profile import report

    for path in options.paths:
        if path.suffix == ".json":
            raise NoProfileError(
                f"{path} is a JSON file, and profiles are folders or .bin files. If a bench wrote "
                f"it, `python -m benches.render.bench_report {path}` in a checkout of the project "
                "draws its figures."
            )
    profiles = load_profiles(options.paths, add_runs=options.add_runs)
    print(report.terminal(profiles))
    if options.out:
        text = report.profiles_html(profiles, title=options.title or report.TITLE)
        write_text(options.out, text)

    for profile in profiles:
        for path, write in (
            (options.json, profile.save_json),
            (options.csv, profile.save_csv),
            (options.parquet, profile.save_parquet),
            (options.trace, partial(profile.save_trace, torch_trace=options.torch_trace)),
        ):
            if path and len(profiles) > 1:
                # One file for each library.
                write(path.with_name(f"{path.stem}-{profile.label}{path.suffix}"))
            elif path:
                write(path)
    return 0
