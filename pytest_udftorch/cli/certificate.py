# SPDX-License-Identifier: Apache-2.0
"""``udftorch certificate``."""

from __future__ import annotations

import argparse
from pathlib import Path

from pytest_udftorch.cli.status import Subparsers, report_failures


def add(commands: Subparsers) -> None:
    """Add ``udftorch certificate``."""
    what = "check, merge, tabulate or export certificates"
    parser = commands.add_parser("certificate", help=what, description=f"{what.capitalize()}.")
    actions = parser.add_subparsers(dest="action", required=True, metavar="action")
    needed = {"check": ["numpy"], "merge": ["numpy"], "table": ["numpy"]}
    for name, run, text in (
        ("check", check_files, "check certificates against their digests and claims"),
        ("merge", merge_files, "make one certificate of several"),
        ("table", print_table, "print functions x libraries as Markdown"),
    ):
        action = actions.add_parser(name, help=text)
        action.add_argument("files", nargs="+", type=Path)
        action.set_defaults(run=run, needs=lambda _, name=name: needed[name])
        if name == "merge":
            action.add_argument("--out", required=True, type=Path, metavar="FILE")
    _add_export(actions)


def _add_export(actions: Subparsers) -> None:
    action = actions.add_parser(
        "export",
        help="write certified functions for Herbie and the tools of FPBench",
        description="Writes correctly rounded functions as a platform of Herbie, or as FPCore.",
    )
    action.add_argument("files", nargs="+", type=Path)
    formats = action.add_mutually_exclusive_group(required=True)
    formats.add_argument("--herbie", action="store_true", help="a platform of Herbie 2.2 and newer")
    formats.add_argument("--fpcore", action="store_true", help="FPCore 2.0, a benchmark for each")
    action.add_argument(
        "--measure",
        action="store_true",
        help="the platform's costs: nanoseconds for an element on this machine; by default 1",
    )
    action.add_argument("--out", required=True, type=Path, metavar="FILE")
    action.set_defaults(run=export_files, needs=lambda _: ["numpy"])


def check_files(options: argparse.Namespace) -> int:
    """Check that files are whole, unedited, complete, and keep their claims."""
    from pytest_udftorch.prove.verify.certificate_file import load_certificate

    failures = []
    for path in options.files:
        certificate = load_certificate(path)
        failures += certificate.failures() + certificate.unfinished()
        print(f"{path}: {certificate.name}, {len(certificate.runs)} runs, intact")
    return report_failures(failures)


def merge_files(options: argparse.Namespace) -> int:
    """Merge certificates into one file."""
    from pytest_udftorch.prove.verify.certificate_file import load_certificate, save_certificate
    from pytest_udftorch.prove.verify.merge import merge_certificates

    merged = merge_certificates([load_certificate(path) for path in options.files])
    save_certificate(merged, options.out)
    print(f"{options.out}: {merged.name}, {len(merged.runs)} runs")
    return 0


def export_files(options: argparse.Namespace) -> int:
    """Write certified functions for other tools."""
    from pytest_udftorch.base.store import store_text
    from pytest_udftorch.errors import CertificateError
    from pytest_udftorch.prove.verify.certificate_file import load_certificate
    from pytest_udftorch.prove.verify.export import fpcore, herbie_platform

    certificates = [load_certificate(path) for path in options.files]
    if options.fpcore:
        text = fpcore(certificates)
    else:
        text = herbie_platform(certificates)  # before the measurement, which takes longer
        if options.measure:
            from pytest_udftorch.diagnose.tolerance.cost import arithmetic_costs, costs

            found = {
                c.subject["function"]: costs(c.subject["function"], (c.subject["library"],))
                for c in certificates
            }
            own = {name: min(by_library.values()) for name, by_library in found.items()}
            text = herbie_platform(certificates, arithmetic_costs() | own)
    store_text(options.out, text, CertificateError, "The export")
    print(f"{options.out}: {len(certificates)} functions")
    return 0


def print_table(options: argparse.Namespace) -> int:
    """Print the comparison of libraries."""
    from pytest_udftorch.prove.verify.certificate_file import load_certificate
    from pytest_udftorch.prove.verify.merge import comparison_table

    print(comparison_table([load_certificate(path) for path in options.files]))
    return 0
